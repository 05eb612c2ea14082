from __future__ import annotations

import importlib.util
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from seepage.core import Paired, rng
from seepage.core.errors import MissingExtra, NotApplicable, UnreadableFile
from seepage.scoring import LPIPS, applicable
from seepage.scoring._perceptual import FILE, _find_weights, load_weights

ROOT = Path(__file__).parents[2]


@pytest.fixture
def real_weights(monkeypatch):
    monkeypatch.chdir(ROOT)
    if _find_weights() is None:
        pytest.skip(f"{FILE} is not here; set SEEPAGE_LPIPS or SEEPAGE_DATA")


@pytest.fixture
def made_up_weights(tmp_path, monkeypatch):
    """Weights of the right shapes, so that everything but the numbers can be tested anywhere."""
    shapes = {0: (64, 3, 11, 11), 3: (192, 64, 5, 5), 6: (384, 192, 3, 3), 8: (256, 384, 3, 3)}
    shapes[10] = (256, 256, 3, 3)
    tensors = {}
    for lin, (i, shape) in enumerate(shapes.items()):
        key = rng(i)
        tensors[f"features.{i}.weight"] = key.normal(shape).float() / shape[1]
        tensors[f"features.{i}.bias"] = key.fork("bias").normal(shape[:1]).float()
        tensors[f"lin{lin}.weight"] = key.fork("lin").uniform((1, shape[0], 1, 1)).float()
    save_file(tensors, tmp_path / FILE)
    monkeypatch.setenv("SEEPAGE_LPIPS", str(tmp_path / FILE))
    return tmp_path / FILE


@pytest.fixture
def no_weights(tmp_path, monkeypatch):
    monkeypatch.delenv("SEEPAGE_LPIPS", raising=False)
    monkeypatch.delenv("SEEPAGE_DATA", raising=False)
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")


def images(*shape: int, seed: int = 0) -> Paired:
    truth = rng(seed).uniform(shape).float()
    guess = rng(seed).fork("guess").uniform(shape).float()
    people = tuple(range(shape[0]))
    return Paired(truth, guess, torch.tensor(people), None, people)


def reference_image(name: str) -> torch.Tensor:
    folder = Path(os.environ.get("SEEPAGE_DATA", ROOT / "../shared/data")) / "lpips_reference"
    if not (folder / name).is_file():
        pytest.skip("the reference images of LPIPS are not here; set SEEPAGE_DATA")
    pixels = np.asarray(Image.open(folder / name).convert("RGB"))
    return torch.tensor(pixels).permute(2, 0, 1).float() / 255


@pytest.mark.usefixtures("real_weights")
def test_lpips_gives_the_published_distances():
    truth, near, far = (reference_image(f"ex_{n}.png") for n in ("ref", "p1", "p0"))
    pairs = Paired(
        torch.stack([truth] * 2), torch.stack([far, near]), torch.arange(2), None, (0, 1)
    )
    assert LPIPS()(pairs).tolist() == pytest.approx([0.722, 0.138], abs=5e-4)
    bytes_ = Paired(pairs.truth * 255, pairs.guess * 255, pairs.labels, None, (0, 1), peak=255.0)
    assert LPIPS()(bytes_).tolist() == pytest.approx([0.722, 0.138], abs=5e-4)


@pytest.mark.usefixtures("made_up_weights")
def test_the_truth_is_at_no_distance():
    paired = images(2, 3, 31, 31)
    same = Paired(paired.truth, paired.truth.clone(), paired.labels, None, (0, 1))
    assert LPIPS()(same).tolist() == pytest.approx([0.0, 0.0], abs=1e-10)
    assert (LPIPS()(paired) > 1e-3).all()


@pytest.mark.usefixtures("made_up_weights")
def test_a_batch_larger_than_a_chunk_is_scored_as_its_parts():
    paired = images(35, 3, 31, 31)
    last = Paired(paired.truth[-2:], paired.guess[-2:], paired.labels[-2:], None, (0, 1))
    scores = LPIPS()(paired)
    assert scores.shape == (35,)
    assert torch.allclose(scores[-2:], LPIPS()(last), rtol=1e-4)


@pytest.mark.usefixtures("made_up_weights")
def test_a_grey_image_is_scored_as_three_equal_channels():
    grey = images(2, 1, 32, 32)
    truth, guess = (x.repeat(1, 3, 1, 1) for x in (grey.truth, grey.guess))
    colour = Paired(truth, guess, grey.labels, None, (0, 1))
    assert torch.allclose(LPIPS()(grey), LPIPS()(colour), rtol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("made_up_weights")
def test_the_device_of_the_images_does_not_matter():
    here = images(2, 3, 48, 48)
    there = Paired(here.truth.cuda(), here.guess.cuda(), here.labels, None, (0, 1))
    assert torch.allclose(LPIPS()(there), LPIPS()(here), rtol=1e-2)


@pytest.mark.usefixtures("made_up_weights")
def test_images_too_small_for_the_pools_are_refused():
    with pytest.raises(NotApplicable, match="at least 31 x 31 pixels, because"):
        LPIPS()(images(1, 3, 40, 30))
    with pytest.raises(NotApplicable, match="grey or colour images"):
        LPIPS()(images(1, 2, 40, 40))
    assert "lpips" not in [m.name for m in applicable(images(1, 3, 30, 40))]
    assert "lpips" in [m.name for m in applicable(images(1, 3, 31, 40))]


@pytest.mark.usefixtures("no_weights")
def test_missing_weights_are_an_error_that_says_what_to_do_and_never_a_number(monkeypatch):
    with pytest.raises(MissingExtra, match=r"scripts/lpips_weights\.py.*set SEEPAGE_LPIPS"):
        LPIPS()(images(1, 3, 32, 32))
    assert "lpips" not in [m.name for m in applicable(images(1, 3, 32, 32))]
    monkeypatch.setenv("SEEPAGE_LPIPS", "nowhere")
    with pytest.raises(MissingExtra, match="SEEPAGE_LPIPS names 'nowhere', which is no file"):
        LPIPS()(images(1, 3, 32, 32))


@pytest.mark.usefixtures("no_weights")
def test_weights_are_looked_for_in_the_data_folder_then_beside_the_repository(
    tmp_path, monkeypatch
):
    beside = tmp_path / "shared" / "data" / "weights" / FILE
    named = tmp_path / "elsewhere" / "weights" / FILE
    assert _find_weights() is None
    for place in (beside, named):
        place.parent.mkdir(parents=True)
        place.touch()
    assert _find_weights() == beside.resolve()
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path / "elsewhere"))
    assert _find_weights() == named.resolve()


def test_weights_are_read_once(made_up_weights):
    device = torch.device("cpu")
    first = load_weights(made_up_weights, device, torch.float32)
    assert load_weights(made_up_weights, device, torch.float32) is first


def test_a_damaged_or_foreign_file_is_named(tmp_path, monkeypatch):
    damaged, foreign = tmp_path / "damaged.safetensors", tmp_path / "foreign.safetensors"
    damaged.write_bytes(b"not weights")
    save_file({"lin0.weight": torch.zeros(1)}, foreign)
    monkeypatch.setenv("SEEPAGE_LPIPS", str(damaged))
    with pytest.raises(UnreadableFile, match="safetensors cannot read"):
        LPIPS()(images(1, 3, 32, 32))
    monkeypatch.setenv("SEEPAGE_LPIPS", str(foreign))
    with pytest.raises(UnreadableFile, match=r"got none named features\.0\.bias"):
        LPIPS()(images(1, 3, 32, 32))


def test_the_script_joins_the_two_published_files_into_the_one_lpips_reads(
    tmp_path, made_up_weights
):
    spec = importlib.util.spec_from_file_location("script", ROOT / "scripts" / "lpips_weights.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    wanted = load_file(made_up_weights)
    convolutions = {name: t for name, t in wanted.items() if name.startswith("features")}
    checkpoint, wheel, out = (tmp_path / n for n in ("alexnet.pth", "lpips.whl", "joined"))
    torch.save({**convolutions, "classifier.1.weight": torch.zeros(2)}, checkpoint)
    heads = {f"lin{i}.model.1.weight": wanted[f"lin{i}.weight"] for i in range(5)}
    stored = io.BytesIO()
    torch.save(heads, stored)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("lpips/weights/v0.1/alex.pth", stored.getvalue())
    script.main([str(wheel), str(checkpoint), "--out", str(out)])
    joined = load_file(out)
    assert joined.keys() == wanted.keys()
    assert all(torch.equal(joined[name], wanted[name]) for name in wanted)


@pytest.mark.usefixtures("made_up_weights")
def test_lpips_is_the_same_for_the_same_images_in_another_range():
    plain = images(2, 3, 32, 32)
    moved = Paired(
        2 * plain.truth - 1, 2 * plain.guess - 1, plain.labels, None, (0, 1), peak=2.0, low=-1.0
    )
    torch.testing.assert_close(LPIPS()(moved), LPIPS()(plain), rtol=1e-3, atol=0)
