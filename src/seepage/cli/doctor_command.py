"""`seepage doctor`: what is installed, which optional parts can be used, and what they are for."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

import seepage as sp
from seepage import __version__
from seepage.cli.report_command import print_line
from seepage.core.errors import install_hint

WELL, ILL = 0, 1
# The extra of each optional package, and what it is for.
_EXTRAS: Mapping[str, tuple[str, str]] = {
    "lpips": ("lpips", "the metric lpips, with the published weights"),
    "flwr": ("flower", "recording and auditing Flower runs"),
    "opacus": ("dp", "epsilon of a whole training, and steps made by Opacus"),
    "ray": ("ray", "audits on a cluster: --executor ray"),
    "transformers": ("huggingface", "networks from Hugging Face, and steps of its Trainer"),
    "lightning": ("lightning", "steps of PyTorch Lightning"),
    "accelerate": ("accelerate", "steps of loops with an Accelerator"),
    "mlflow": ("mlflow", "verdicts and pages in MLflow"),
    "nvflare": ("nvflare", "recording NVFlare jobs"),
    "timm": ("timm", "image models from timm"),
    "torchvision": ("vision", "data sets and models of torchvision"),
    "pyarrow": ("parquet", "tables from Parquet files, and seepage report --format parquet"),
    "cryptography": ("encryption", "private inputs that are encrypted on disk"),
    "pydicom": ("dicom", "DICOM files in folders of images"),
    "mkdocs": ("docs", "building the documentation"),
}


def diagnose(console: Console) -> int:
    """Print what is here and what is not, and return 0 if the program itself works."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none; audits run on CPU"
    facts = {
        "seepage": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "GPU": gpu,
    }
    for name, fact in facts.items():
        print_line(console, f"{name:8} {fact}")
    psnr = _audit_a_digit()
    works = psnr > 60
    told = f"works: a digit came back at {psnr:.0f} dB" if works else "BROKEN: a digit was not read"
    print_line(console, f"audit    {told}", style="green" if works else "bold red")
    table = Table(box=None, padding=(0, 2, 0, 0), title="optional parts", title_justify="left")
    for column in ("package", "version, or how to install", "for"):
        table.add_column(column, no_wrap=column == "package")
    for package, (extra, purpose) in _EXTRAS.items():
        found = _find_version(package)
        here = Text(found, style="green") if found else Text(install_hint(extra), style="yellow")
        table.add_row(Text(package), here, purpose)
    console.print(table)
    papers = _find_version("seepage_papers")
    print_line(console, f"seepage reproduce and leaderboard: {papers or 'not installed'}")
    return WELL if works else ILL


def _find_version(package: str) -> str:
    """The version of an importable package; empty if it is missing. Nothing is imported."""
    if find_spec(package) is None:
        return ""
    try:
        return version(package.replace("_", "-"))
    except PackageNotFoundError:
        return "version unknown"


def _audit_a_digit() -> float:
    """Share one digit's gradient, read it in closed form, and score the guess."""
    digits = sp.data.load("digits")
    task, batch = sp.zoo.mlp(hidden=(16,), domain=digits.domain), digits.batch(1)
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
    return float(sp.scoring.score(guess, batch).values["psnr"][0])
