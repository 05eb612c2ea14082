"""The loss's gradient at the logits, read off the last layer instead of simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from seepage.attacks.labels.head import classifier_head
from seepage.attacks.side_by_side import each
from seepage.clients import Gradient
from seepage.core import Attack, Observation, Reconstruction, Rng
from seepage.core.errors import NotApplicable
from seepage.defenses import chain
from seepage.threats import Simulation


@dataclass(frozen=True)
class ReadLogits:
    """Search with the gradient at the logits given, where the update of one person shows it.

    The gradient of the last layer's bias is that of the loss at the logits z, so that the rest of
    the update is linear in what is known:

        d = dL/db,   g(x) = (dz(x)/dtheta)^T d,   in the place of   (dz(x)/dtheta)^T (p(x) - e_y)

    A trained network is sure of what it knows: p - e_y is tiny, its direction changes with every
    step of a search, and float32 rounds the part of the true class to zero. A search that simulates
    it finds nothing of images that the update, given d, still tells. At the truth both give the
    observed update.

    Batches, local steps and defended updates are attacked as they are, as is every network without
    a bias at its end.

    Args:
        attack: What searches.

    Example:
        >>> import seepage as sp
        >>> photo, task = sp.data.bundled("photos", size=1), sp.zoo.lenet()
        >>> seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, photo, rng=sp.rng(0))
        >>> search = sp.attacks.inverting_gradients(steps=2, restarts=1)
        >>> guess = ReadLogits(search)(seen, rng=sp.rng(1))
        >>> bool(guess.labels == photo.labels)
        True

    References:
        Geiping et al., 2020, Sec. 5.1 (geiping2020inverting) on the small gradients of trained
        networks; Zhao et al., 2020 (zhao2020idlg) on the last layer
    """

    attack: Attack

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Read, and attack."""
        return self.many((observation,), rngs=(rng,))[0]

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> list[Reconstruction]:
        """Read off each, and attack side by side where the attack can."""
        read = [_read(observation) for observation in observations]
        if any(given is None for given in read):
            return each(self.attack, observations, rngs=rngs)
        seen = [given for given in read if given is not None]
        guesses = each(self.attack, seen, rngs=rngs)
        return [
            replace(guess, labels=_label(given, observation))
            for guess, given, observation in zip(guesses, seen, observations, strict=True)
        ]


def inner_product(logits: Tensor, direction: Tensor) -> Tensor:
    """A loss whose gradient at the logits is given: <d, z>, `(B,)`."""
    return (logits * direction).sum(-1)


def _read(observation: Observation) -> Observation | None:
    """The observation with the direction at the logits for its labels; None where none shows."""
    simulation, size = observation.simulate, observation.batch_size
    alone = size == 1 and observation.mixing is None and observation.update.kind == "gradient"
    if not alone or not isinstance(simulation, Simulation):
        return None
    client = simulation.client
    if not isinstance(client.local, Gradient) or client.chain != chain():
        return None
    task = observation.task
    try:
        bias = classifier_head(task).bias
    except NotApplicable:
        return None
    largest = None if bias is None else observation.update.tensors[bias].abs().max()
    if bias is None or largest is None or not largest > 0:
        return None
    # Near one, so that no power of a tiny norm underflows on the way.
    update = observation.update.map(lambda tensor: tensor / largest)
    task = replace(task, loss=inner_product)
    return replace(
        observation,
        task=task,
        update=update,
        simulate=replace(simulation, task=task),
        labels=update.tensors[bias].unsqueeze(0),
    )


def _label(given: Observation, observation: Observation) -> Tensor | None:
    """The label, known or read: only the true class is pulled up, unless rounding took its part."""
    if observation.labels is not None:
        return observation.labels
    assert given.labels is not None
    return given.labels.argmin(1) if given.labels.min() < 0 else None
