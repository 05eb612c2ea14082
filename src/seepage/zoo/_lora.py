"""Low-rank adapters: small matrices are trained beside the layers of a frozen network."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from seepage.core import Task
from seepage.core.errors import InvalidValue
from seepage.zoo._build_task import add_argument, require_int, seed_torch


class LowRank(nn.Module):
    """A frozen linear layer with a trained detour of low rank: W x + c + s B A x.

    Args:
        base: The layer, which is frozen; linear, or the transposed one of GPT-2 in transformers.
        rank: Rows of A and columns of B.
        scale: s.
        spread: Standard deviation of B; 0 as before the first step.

    Example:
        >>> import torch
        >>> LowRank(nn.Linear(8, 4), rank=2)(torch.ones(3, 8)).shape
        torch.Size([3, 4])
    """

    def __init__(
        self, base: nn.Module, *, rank: int, scale: float = 1.0, spread: float = 0.0
    ) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        inputs, outputs = _count_features(base)
        self.lora_A = nn.Linear(inputs, rank, bias=False)
        self.lora_B = nn.Linear(rank, outputs, bias=False)
        self.scale = scale
        nn.init.normal_(self.lora_B.weight, std=spread)

    def forward(self, inputs: Tensor) -> Tensor:
        """Add the detour to the layer."""
        outputs: Tensor = self.base(inputs) + self.scale * self.lora_B(self.lora_A(inputs))
        return outputs


def _count_features(layer: nn.Module) -> tuple[int, int]:
    """Inputs and outputs; GPT-2 of transformers keeps its weights the other way round."""
    assert isinstance(layer.weight, Tensor)
    rows, columns = layer.weight.shape
    return (columns, rows) if isinstance(layer, nn.Linear) else (rows, columns)


def add_lora(
    task: Task,
    *,
    rank: int = 8,
    targets: Sequence[str] = ("query", "key", "value"),
    head: bool = True,
    spread: float = 0.02,
    seed: int = 0,
) -> Task:
    """Freeze a network, and train adapters of low rank beside some of its linear layers.

    Args:
        task: The network; it is copied.
        rank: Of each adapter.
        targets: Last parts of the names of the layers that get one.
        head: Whether the last linear layer is trained as well, as for a new set of classes.
        spread: Standard deviation of the matrices B. They are 0 before the first step, which hides
            the matrices A; any later step has trained both.
        seed: Of the adapters.

    Example:
        >>> from seepage.zoo import gpt
        >>> adapted = add_lora(gpt(width=16, layers=1), rank=2)
        >>> [name for name in adapted.parameters if "query" in name]
        ['blocks.0.attention.query.lora_A.weight', 'blocks.0.attention.query.lora_B.weight']

    References:
        Hu et al., 2022 (hu2022lora)
    """
    model = copy.deepcopy(task.model)
    adapt(model, rank=rank, targets=targets, head=head, spread=spread, seed=seed)
    return replace(task, model=model, name=add_argument(task.name, "lora", rank))


def adapt(
    model: nn.Module,
    *,
    rank: int,
    targets: Sequence[str],
    head: bool = True,
    spread: float = 0.02,
    seed: int = 0,
) -> None:
    """Do in place what `add_lora` does to a copy."""
    require_int("rank", rank)
    device = next(model.parameters()).device
    model.requires_grad_(False)
    named = model.named_modules()
    linear = {n: m for n, m in named if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"}
    chosen = [name for name in linear if name.rsplit(".", 1)[-1] in targets]
    if not chosen:
        raise InvalidValue(
            f"expected targets among the linear layers {list(linear)}, got {tuple(targets)!r}"
        )
    with seed_torch(seed):
        for name in chosen:
            parent, _, own = name.rpartition(".")
            adapter = LowRank(linear[name], rank=rank, spread=spread)
            setattr(model.get_submodule(parent), own, adapter)
    if head:
        list(linear.values())[-1].requires_grad_(True)
    model.to(device)
