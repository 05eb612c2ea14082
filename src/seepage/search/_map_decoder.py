"""A decoder from what a layer read to the input, learned on public data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.func import functional_call

from seepage.core import Domain, Rng, Task
from seepage.core._digest import digest
from seepage.core.errors import InvalidValue, require_at_least
from seepage.data._public_data import PublicData, make_up
from seepage.search._decoder_training import DecoderTraining, scale_to_unit
from seepage.search._map_network import MapNetwork

# Fewer public inputs than this teach a decoder nothing that holds for others.
_FEWEST = 64
# Inputs that are made up if there are none.
_MADE_UP = 2_000
# Inputs that it sees in all, each of them at most so many times.
_SEEN_ON_GPU, _SEEN_ON_CPU, _MOST_EPOCHS = 320_000, 24_000, 200
# Inputs that are decoded together.
_DECODED = 256


@dataclass(frozen=True)
class Decoder:
    """Learns to make inputs of what layers read, from public inputs that it lets the network read.

    It is learned once for a network and kept in memory; inside `core.checkpoint.checkpointing` it
    is stored in the folder, too, and an interrupted learning continues where it stopped.

    Args:
        public: Public inputs, 64 or more; None makes some up, of which a decoder learns less.
        epochs: Passes over the public inputs; None for as many as a network of this size is worth
            on its device.
        width: Channels of the widest layers at most; maps with few channels need fewer.

    Example:
        >>> Decoder().made_up
        True
    """

    public: PublicData | None = None
    epochs: int | None = None
    width: int = 256

    def __post_init__(self) -> None:
        require_at_least(1, epochs=self.epochs, width=self.width)
        if self.public is not None and not has_enough(self.public):
            raise InvalidValue(
                f"expected at least {_FEWEST} public inputs to learn a decoder from, got "
                f"{len(self.public.inputs)}; without any it learns from made-up ones"
            )

    @property
    def made_up(self) -> bool:
        """Whether it learns from inputs that nobody has."""
        return self.public is None or self.public.made_up

    def learn(
        self, task: Task, layers: Mapping[str, bool], *, group: int | None = None
    ) -> LearnedDecoder:
        """Learn for a network, or find what was learned.

        Args:
            task: The network, in the mode in which it read.
            layers: Names of layers, and whether the scale of what each one read is known.
            group: How many inputs a batch holds if the network normalises by the batch.

        Raises:
            NotApplicable: Inputs cannot be made up, or are of a kind that cannot be decoded.
        """
        public = self.public or make_up(task.domain, _MADE_UP, rng=Rng(0).fork("decoder"))
        task.domain.check(public.inputs)
        epochs = self.epochs or _count_epochs(task, len(public.inputs))
        known = (task.digest, task.mode, repr(task.domain), public.digest, repr(dict(layers)))
        name = digest("decoder", *known, str((group, epochs, self.width)))
        if held := _learned(name):
            return held[0]
        training = DecoderTraining(task, tuple(layers.items()), public.inputs, group, epochs, name)
        network, explained, finished = training.run(self.width)
        learned = LearnedDecoder(
            network, training.layers, task.domain, explained, public.made_up, not finished
        )
        if not learned.cut:
            _learned(name).append(learned)
        return learned


def has_enough(public: PublicData) -> bool:
    """Whether a decoder can learn from these inputs what holds for others.

    Example:
        >>> has_enough(PublicData(torch.zeros(3, 1, 8, 8)))
        False
    """
    return len(public.inputs) >= _FEWEST


def _count_epochs(task: Task, inputs: int) -> int:
    seen = _SEEN_ON_GPU if task.reference.is_cuda else _SEEN_ON_CPU
    return min(max(seen // inputs, 1), _MOST_EPOCHS)


@dataclass(frozen=True, eq=False)
class LearnedDecoder:
    """A decoder for one network.

    Args:
        network: Makes normalised inputs of maps.
        layers: Names of the layers, and whether the scale of what each one read is known.
        domain: The space of the inputs.
        explained: Share of the variance of public inputs that it explains where it was not
            learned; below 0 it is worse than the mean input.
        made_up: Whether it was learned from inputs that nobody has.
        cut: Whether time was over before it had learned all.
    """

    network: MapNetwork
    layers: tuple[tuple[str, bool], ...]
    domain: Domain
    explained: float
    made_up: bool = False
    cut: bool = False

    def __call__(self, values: Mapping[str, Tensor]) -> Tensor:
        """Decode what layers read, by name; the result is normalised for the network."""
        names = [name for name, _ in self.layers]
        with torch.no_grad():
            parts = zip(*(torch.split(values[name], _DECODED) for name in names), strict=True)
            decoded = [
                self.decode(dict(zip(names, part, strict=True)), self.weights) for part in parts
            ]
        return torch.cat(decoded)

    @property
    def weights(self) -> Tensor:
        """All weights in a row, `(P,)`."""
        return torch.cat([weight.detach().flatten() for weight in self.network.parameters()])

    def decode(self, values: Mapping[str, Tensor], weights: Tensor) -> Tensor:
        """Decode with other weights `(P,)`, in which the result can be differentiated."""
        named = dict(self.network.named_parameters())
        parts = torch.split(weights, [weight.numel() for weight in named.values()])
        shaped = {
            name: part.reshape(weight.shape)
            for (name, weight), part in zip(named.items(), parts, strict=True)
        }
        maps = [
            values[name] if scaled else scale_to_unit(values[name]) for name, scaled in self.layers
        ]
        made: Tensor = functional_call(self.network, shaped, (maps,))
        inputs: Tensor = self.domain.project(self.domain.denormalise(made))
        return self.domain.normalise(inputs)


@lru_cache(maxsize=16)
def _learned(name: str) -> list[LearnedDecoder]:
    """What was learned under a name in this process: one decoder, or none."""
    return []
