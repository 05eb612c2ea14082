"""The equations <w_a, dL/dw_b> = <dz_b, z_a> of a layer, imposed on the input of the next one.

For every pair of filters they tie a layer's weights and weight gradient to its output. No linear
system holds them. Here they are solved by Gauss-Newton steps inside the null space of the next
layer's system, from its solution of least norm.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import jacrev

import seepage as sp
from seepage.attacks.linear_systems._rgap import Step, walk_back
from seepage.core import Domain
from seepage.numerics._least_squares import minimum_norm
from seepage.probing._layer_stack import Stack, read_stack

VARIANTS = ("cnn3-v1", "cnn3-v2", "cnn4-v1")
STEPS = 3


def measure(domain: Domain, *, images: int) -> list[dict[str, object]]:
    """PSNR of R-GAP without the equations and with them."""
    rows: list[dict[str, object]] = []
    for variant in VARIANTS:
        task = sp.zoo.cnn(variant=variant, domain=domain).to(dtype=torch.float64)
        stack = read_stack(task)
        for i in range(images):
            batch = sp.data.load("cifar10", pixels=domain.shape[1]).batch(1, start=i)
            batch = batch.to(dtype=torch.float64)
            seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
            mismatches: list[tuple[float, float]] = []

            def correct(steps: Sequence[Step]) -> list[Tensor]:
                return [_consistent(step, stack, seen.update, mismatches) for step in steps]  # noqa: B023

            row: dict[str, object] = {"variant": variant, "image": i}
            for name, way in (("without", None), ("with", correct)):
                delta = seen.update.tensors["head.bias"]
                walks = [(seen.update, delta)]
                (end,) = walk_back(stack, walks, damping=0.0, correct=way)
                inputs = domain.project(domain.denormalise(end.x.reshape(1, *domain.shape)))
                guess = sp.Reconstruction(inputs, batch.labels)
                row[name] = round(sp.score(guess, batch)["psnr"].item(), 2)
            row["mismatch_before"], row["mismatch_after"] = mismatches[0]
            rows.append(row)
            print(row, flush=True)
    return rows


def _consistent(
    step: Step, stack: Stack, update: sp.Update, mismatches: list[tuple[float, float]]
) -> Tensor:
    if step.index == 0 or not step.exact or step.determined:
        return step.x
    below = stack.layers[step.index - 1]
    wanted = update.tensors[below.parameters[0]].flatten(1) @ below.weight.flatten(1).T
    arriving = step.system.input_gradient().reshape(below.channels, -1)

    def mismatch(x: Tensor) -> Tensor:
        z = below.activation.inverse(x.reshape(below.channels, -1))
        return (arriving * below.activation.derivative(z) @ z.T - wanted).flatten()

    x = step.x
    for _ in range(STEPS):
        x = x + _gauss_newton(step, mismatch(x), jacrev(mismatch)(x))
    before, after = (float(mismatch(at).norm() / wanted.norm()) for at in (step.x, x))
    mismatches.append((float(f"{before:.1e}"), float(f"{after:.1e}")))
    return x


def _gauss_newton(step: Step, value: Tensor, jacobian: Tensor) -> Tensor:
    """The least step that solves the linearised equations and that the system does not see."""
    unseen = [row - minimum_norm(step.system, step.system.apply(row)) for row in jacobian]
    free = torch.stack(unseen)
    return torch.linalg.lstsq(free, -value, driver="gelsd", rcond=1e-6).solution
