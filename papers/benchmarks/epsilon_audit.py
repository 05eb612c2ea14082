"""Epsilon from below: broken private trainings are caught, correct ones are not accused.

    python -m benchmarks.epsilon_audit

Five mechanisms that promise an epsilon which they do not keep, three that keep it, and the
optimiser of Opacus with epsilon 1, 4 and 16. Lower bounds with 95 % confidence beside the promise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

import seepage as sp
from benchmarks.provenance import record
from seepage.core import Rng
from seepage.defenses import gaussian_epsilon
from seepage.inference import EpsilonAudit, PrivateSteps

DELTA, NORM, BATCH, STEPS = 1e-5, 1.0, 16, 4
SIGMA, RATE = 1.0, 0.05


@dataclass(frozen=True)
class Shared:
    """A training of which the parts can be wrong: the same noise, or clipping after the mean."""

    noise: float
    same_noise: bool = False
    clip_late: bool = False

    def __call__(self, gradients: Tensor, *, rng: Rng) -> Tensor:
        released = []
        for number, each in enumerate(gradients):
            if self.clip_late:
                mean = each.sum(0) / BATCH
                mean = mean * min(1.0, NORM / max(float(mean.norm()), 1e-12))
            else:
                lengths = each.norm(dim=1, keepdim=True).clamp_min(NORM)
                mean = (each * NORM / lengths).sum(0) / BATCH
            key = rng.fork("noise", 0 if self.same_noise else number)
            released.append(mean + self.noise * key.normal(mean.shape))
        return torch.stack(released)


@dataclass(frozen=True)
class OpacusSteps:
    """The same by the optimiser of Opacus, with its Poisson sampling."""

    noise_multiplier: float
    sample_rate: float

    def __call__(self, gradients: Tensor, *, rng: Rng) -> Tensor:
        from opacus.optimizers import DPOptimizer

        weight = nn.Parameter(torch.zeros(gradients.shape[2]))
        optimizer = DPOptimizer(
            torch.optim.SGD([weight], lr=1.0),
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=NORM,
            expected_batch_size=BATCH,
            generator=rng.fork("noise").generator(),
        )
        released = []
        for number, each in enumerate(gradients):
            drawn = rng.fork("takes part", number).uniform((len(each),)) < self.sample_rate
            weight.grad_sample = each[drawn] if bool(drawn.any()) else torch.zeros(1, each.shape[1])
            before = weight.detach().clone()
            optimizer.step()
            optimizer.zero_grad()
            released.append(before - weight.detach())
        return torch.stack(released)


def full_promise() -> float:
    """What the noise gives if every record takes part in every step."""
    return gaussian_epsilon(noise_multiplier=4 * SIGMA, steps=STEPS, delta=DELTA)


def sampled_promise() -> float:
    """What the accountant of Opacus says of rare sampling."""
    return sp.epsilon(noise_multiplier=SIGMA, sample_rate=RATE, steps=STEPS, delta=DELTA)


def dp_sgd_steps(noise_multiplier: float, sample_rate: float = 1.0) -> PrivateSteps:
    """The product's own DP-SGD."""
    defense = sp.dp_sgd(max_norm=NORM, noise_multiplier=noise_multiplier, batch_size=BATCH)
    return PrivateSteps(defense, sample_rate)


STD = 4 * SIGMA * NORM / BATCH
BROKEN: dict[str, tuple[Callable[..., Tensor], Callable[[], float]]] = {
    "noise forgotten": (Shared(0.0), full_promise),
    "clipped after averaging": (Shared(STD, clip_late=True), full_promise),
    "seed reused": (Shared(STD, same_noise=True), full_promise),
    "wrong sampling rate claimed": (dp_sgd_steps(SIGMA), sampled_promise),
    "noise divided by the batch twice": (Shared(STD / BATCH), full_promise),
}
CORRECT: dict[str, tuple[Callable[..., Tensor], Callable[[], float]]] = {
    "DP-SGD on all records": (dp_sgd_steps(4 * SIGMA), full_promise),
    "DP-SGD on random batches": (dp_sgd_steps(SIGMA, RATE), sampled_promise),
    "DP-SGD, then rounded to signs": (
        PrivateSteps(
            sp.chain(
                sp.dp_sgd(max_norm=NORM, noise_multiplier=4 * SIGMA, batch_size=BATCH), sp.Sign()
            )
        ),
        full_promise,
    ),
}


def audit(
    mechanism: Callable[..., Tensor],
    claimed: float,
    seed: int,
    *,
    trials: int = 600,
    canaries: int = 2000,
) -> EpsilonAudit:
    """Audit one mechanism."""
    return sp.audit_epsilon(
        mechanism,
        claimed=claimed,
        delta=DELTA,
        max_norm=NORM,
        steps=STEPS,
        trials=trials,
        canaries=canaries,
        rng=sp.rng(seed),
    )


def opacus_rows(seed: int) -> list[dict[str, object]]:
    """Noise for epsilon 1, 4 and 16 by Opacus's own search, and what canaries prove of it."""
    from opacus.accountants.utils import get_noise_multiplier

    rows = []
    for wanted in (1.0, 4.0, 16.0):
        for rate in (0.1, 1.0):
            sigma = get_noise_multiplier(
                target_epsilon=wanted,
                target_delta=DELTA,
                sample_rate=rate,
                steps=STEPS,
                accountant="rdp",
            )
            # No number of canaries that fits here could refute a promise of 16.
            found = sp.audit_epsilon(
                OpacusSteps(sigma, rate),
                claimed=wanted,
                delta=DELTA,
                max_norm=NORM,
                steps=STEPS,
                trials=200,
                canaries=2000,
                require_power=False,
                rng=sp.rng(seed),
            )
            rows.append({"sample_rate": rate, "noise_multiplier": sigma, **asdict(found)})
            print(f"Opacus, epsilon {wanted:g}, rate {rate:g}, sigma {sigma:.2f}\n{found}\n")
    return rows


def measure_all(seed: int) -> dict[str, object]:
    """Broken mechanisms, correct ones, and Opacus."""
    rows = []
    for correct, group in ((False, BROKEN), (True, CORRECT)):
        for name, (mechanism, promise) in group.items():
            found = audit(mechanism, promise(), seed)
            print(f"{name}{'' if correct else ' (broken)'}\n{found}\n", flush=True)
            rows.append({"mechanism": name, "correct": correct, **asdict(found)})
            rows[-1]["refuted"] = found.violated
    misjudged = sum(row["refuted"] == row["correct"] for row in rows)
    return {"mechanisms": rows, "misjudged": misjudged, "opacus": opacus_rows(seed)}


if __name__ == "__main__":
    record("epsilon_audit", __doc__, measure_all)
