"""What layers read at every position of a text, found by running them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.text.span import row_span
from seepage.clients import Gradient
from seepage.core import Rng, Task, Update
from seepage.core.errors import NotApplicable

# Sequences that pass through the network together.
TOGETHER = 256


@dataclass(frozen=True)
class Reader:
    """Linear layers that read the same vector at every position, as query, key and value do.

    Args:
        layers: Their names.
    """

    layers: tuple[str, ...]

    def gradient(self, update: Update) -> Tensor:
        """The gradients of their weights, one below the other: `(m, d)`."""
        return torch.cat([update.tensors[f"{layer}.weight"] for layer in self.layers])


@dataclass(frozen=True)
class Readers:
    """Where a decoder gives its text away.

    Args:
        token: Reads a function of the token and its position alone.
        prefix: Read functions of the token and those before it.
    """

    token: Reader
    prefix: tuple[Reader, ...]


def find_readers(task: Task, *, tolerance: float) -> Readers:
    """Find the readers by running texts of random tokens that agree in their first half.

    A reader of a prefix sees the same where texts agree so far, and a reader of tokens also where
    they agree from there on. Of these, the ones are taken whose gradient spans all that they read,
    which is tried on a random text: in a last block only the position that is classified counts.

    Raises:
        NotApplicable: The network has no such layers, as one that reads texts in both directions.
    """
    half = task.domain.shape[0] // 2
    one, other = task.placed(task.domain.sample(2, rng=Rng(0).fork("probe")))
    mixed = torch.cat([one[:half], other[half:]])
    read = _read(task, torch.stack([one, other, mixed]), None)
    label = torch.zeros(1, dtype=torch.long, device=one.device)
    probe = Gradient()(task, one[None], label)
    token: list[Reader] = []
    prefix: list[Reader] = []
    for reader in _alike(read):
        of_one, of_other, of_mixed = read[reader.layers[0]]
        span = row_span(reader.gradient(probe), tolerance=tolerance)
        told = bool((span.distances(of_one) < 1e-2).all())
        if not told or not torch.allclose(of_mixed[:half], of_one[:half], atol=1e-5):
            continue
        local = torch.allclose(of_mixed[half:], of_other[half:], atol=1e-5)
        (token if local else prefix).append(reader)
    if not token or not prefix:
        raise NotApplicable(
            f"expected {task.name} to read texts from left to right by trained linear layers, two "
            "blocks deep or more, got none whose gradient spans what it read; use another attack"
        )
    return Readers(token[0], tuple(prefix))


def read_by(task: Task, reader: Reader, texts: Tensor) -> Tensor:
    """What a reader sees at every position of texts `(N, L)`: `(N, L, d)`."""
    return torch.cat(
        [_read(task, part, reader)[reader.layers[0]] for part in torch.split(texts, TOGETHER)]
    )


def _alike(read: Mapping[str, Tensor]) -> list[Reader]:
    """Layers grouped by what they read, in the order of the forward pass."""
    groups: list[list[str]] = []
    for name, seen in read.items():
        same = (
            g for g in groups if read[g[0]].shape == seen.shape and torch.equal(read[g[0]], seen)
        )
        group = next(same, None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return [Reader(tuple(group)) for group in groups]


class _SeenEnough(Exception):  # noqa: N818
    """Raised to leave a forward pass whose rest is not needed."""


def _read(task: Task, texts: Tensor, reader: Reader | None) -> dict[str, Tensor]:
    """What every trained linear layer reads at each position, or one reader's first alone."""
    seen: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[[nn.Module, Sequence[Tensor]], None]:
        def hook(_: nn.Module, arguments: Sequence[Tensor]) -> None:
            if arguments[0].ndim == 3 and arguments[0].shape[1] == texts.shape[1]:
                seen[name] = arguments[0].detach()
            if reader is not None:
                raise _SeenEnough

        return hook

    trained = {
        name: module
        for name, module in task.network.named_modules()
        if isinstance(module, nn.Linear) and f"{name}.weight" in task.parameters
    }
    watched = trained if reader is None else {reader.layers[0]: trained[reader.layers[0]]}
    handles = [layer.register_forward_pre_hook(watch(name)) for name, layer in watched.items()]
    try:
        with torch.no_grad():
            task.outputs(task.parameters, texts)
    except _SeenEnough:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return seen
