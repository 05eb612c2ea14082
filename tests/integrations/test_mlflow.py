"""MLflow: a run holds the verdict, numbers of people and the page."""

import warnings

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.integrations.mlflow import log_audit, log_step
from seepage.step._training_steps import AuditSteps

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
# What MLflow warns of is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'runs'}")
    with mlflow.start_run() as begun:
        yield begun.info.run_id


@pytest.fixture
def audit(tmp_path):
    batch = sp.data.bundled("digits", size=1, pixels=28)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 16), nn.ReLU(), nn.Linear(16, 10))
    nn.functional.cross_entropy(model(batch.inputs), batch.labels).backward()
    made = AuditSteps(tmp_path / "audits", at=(7,), domain=(0, 1), steps=20)
    made(7, model, (batch.inputs, batch.labels))
    return made


def list_artifacts(run, folder):
    return [item.path for item in mlflow.MlflowClient().list_artifacts(run, folder)]


def test_a_step_is_logged_with_numbers_verdict_and_page(run, audit):
    log_step(7, audit.results[7])
    data = mlflow.get_run(run).data
    assert data.metrics["seepage.people"] == data.metrics["seepage.reconstructed"] == 1
    assert data.metrics["seepage.worst_psnr"] > 60
    assert "identified: input reconstructed" in data.tags["seepage.verdict"]
    (point,) = mlflow.MlflowClient().get_metric_history(run, "seepage.identified")
    assert (point.step, point.value) == (7, 1)
    assert list_artifacts(run, "seepage/step-000007") == ["seepage/step-000007/report.html"]


def test_an_audit_on_disk_is_logged_and_its_page_can_be_left_out(run, audit):
    log_audit(audit.path(7), page=False)
    assert mlflow.get_run(run).data.metrics["seepage.identified"] == 1
    assert list_artifacts(run, None) == []
    log_audit(audit.path(7))
    assert list_artifacts(run, "seepage/step-000007") == ["seepage/step-000007/report.html"]
