"""How well the gradient of a candidate alone agrees with the update of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.clients.gradient import Gradient
from seepage.core import Batch, Task, Update

# Numbers in the gradients that are held at a time, and in those of public inputs.
_CHUNK, _PUBLIC = 20_000_000, 40_000_000
# What is added to the variance of public gradients in every direction, as a share of their mean.
_RIDGE = 0.1


@dataclass(frozen=True, eq=False)
class Whitening:
    """Gradients of public inputs `(n, P)`, whose common directions say little of who took part."""

    gradients: Tensor

    @classmethod
    def of(cls, task: Task, public: Batch) -> Whitening:
        """Compute the gradients, of as many inputs as fit."""
        entries = sum(p.numel() for p in task.parameters.values())
        most = max(1, min(len(public), _PUBLIC // entries))
        few = Batch(public.inputs[:most], public.labels[:most])
        return cls(torch.cat([part.flat() for part in _each_gradient(task, few)]))

    def __call__(self, update: Update) -> Update:
        """(Sigma + lambda I)^-1 times the update, up to scale; Sigma is their second moment."""
        own, flat = self.gradients, update.flat().to(self.gradients)
        gram = (own @ own.T).double()
        ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram)).to(gram)
        weights = torch.linalg.solve(gram + ridge, (own @ flat).double())
        return update.unflatten(flat - weights.to(flat) @ own)


def _each_gradient(task: Task, batch: Batch) -> Iterator[Update]:
    """The gradient of every example alone, with running statistics, a few at a time."""
    plain, local = task.in_mode("eval"), Gradient()
    entries = sum(p.numel() for p in task.parameters.values())
    size = max(1, _CHUNK // entries)
    for inputs, labels in zip(
        torch.split(batch.inputs, size), torch.split(batch.labels, size), strict=True
    ):
        there = plain.move_inputs(inputs)
        yield local(plain, there, labels.to(there.device), granularity="per_example").detach()


def alignment_scores(
    update: Update, task: Task, batch: Batch, whitening: Whitening
) -> dict[str, Tensor]:
    """Score examples by the agreement of their own gradient g with the update U.

        cosine: <g, V> / ||g||,   layers: the mean over the tensors of their cosines

    V is the update, or the update whitened by public gradients: the best linear statistic if the
    other members' gradients are normal with their covariance.

    Returns:
        Scores `(N,)` by the name of the statistic.

    References:
        Geiping et al., 2020 (geiping2020inverting) for the cosine
    """
    towards = {"update": update.descent().detach()}
    towards["whitened update"] = whitening(towards["update"])
    parts: dict[str, list[Tensor]] = {}
    for each in _each_gradient(task, batch):
        lengths = each.norm().double().clamp_min(1e-300)
        for name, direction in towards.items():
            along = torch.stack(
                [
                    (g.flatten(1) @ direction.tensors[n].flatten().to(g)).double()
                    for n, g in each.tensors.items()
                ]
            )
            norms = torch.stack([g.flatten(1).norm(dim=1).double() for g in each])
            own = torch.stack([direction.tensors[n].norm().double() for n in each.tensors])
            cosines = along / (norms * own[:, None].to(norms)).clamp_min(1e-300)
            parts.setdefault(f"cosine with the {name}", []).append(along.sum(0) / lengths)
            parts.setdefault(f"layers' cosines with the {name}", []).append(cosines.mean(0))
    scale = {name: float(direction.norm()) or 1.0 for name, direction in towards.items()}
    joined = {name: torch.cat(scores).cpu() for name, scores in parts.items()}
    for name, norm in scale.items():
        joined[f"cosine with the {name}"] /= norm
    return joined
