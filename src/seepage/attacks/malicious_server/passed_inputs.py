"""Reading an input that a network passed on to its first fully connected layer."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool1d, avg_pool2d

from seepage.attacks.linear_systems.analytic_fc import features
from seepage.core import Observation, Reconstruction, Rng, Task, Trace
from seepage.core.errors import NotApplicable
from seepage.core.rng import require_key
from seepage.defenses import Clip, Dropout
from seepage.probing.first_layer import calls
from seepage.probing.usable_update import require_continuous, require_usable


def _fill_holes(shape: tuple[int, ...], index: Tensor, values: Tensor) -> Tensor:
    """An input of this shape with these values at these entries, and their means around them.

    Holes take the mean of what is known next to them, ring by ring; a channel of which nothing is
    known takes the mean of the others.

    Args:
        shape: `(C, H, W)` or `(C, L)`.
        index: `(n, axes)`; entries that come several times are averaged.
        values: `(n,)`.

    Example:
        >>> fill_holes((1, 5), torch.tensor([[0, 0], [0, 4]]), torch.tensor([1.0, 3.0])).tolist()
        [[1.0, 1.0, 2.0, 3.0, 3.0]]
    """
    count, total = values.new_zeros(shape), values.new_zeros(shape)
    count.index_put_(tuple(index.T), torch.ones_like(values), accumulate=True)
    total.index_put_(tuple(index.T), values, accumulate=True)
    known = count > 0
    filled = torch.where(known, total / count.clamp_min(1), 0.0)
    pool = avg_pool1d if len(shape) == 2 else avg_pool2d
    for _ in range(max(shape[1:])):
        around = pool(known.to(filled)[None], 3, 1, 1)[0]
        mean = pool(filled[None], 3, 1, 1)[0] / around.clamp_min(1e-12)
        ring = ~known & (around > 0)
        filled, known = torch.where(ring, mean, filled), known | ring
    shared = (filled * known).sum(0) / known.sum(0).clamp_min(1)
    return torch.where(known, filled, shared)


LEVELS = 33
# Of the range of all features; what answers less to black and white answers to rounding.
SILENT = 1e-4
# Of the range of an input; a feature that is further off stands for more than one entry.
EXACT = 1e-2


@dataclass(frozen=True, eq=False)
class _Carried:
    """What each feature before the first fully connected layer says about the input.

    Args:
        layer: Name of the fully connected layer.
        alive: Numbers of the features that stand for one entry of the input, `(n,)`.
        answers: Of those, to blank inputs from darkest to lightest, `(n, LEVELS)`, rising.
        index: The entry of the input that each of those stands for, `(n, axes)`.
    """

    layer: str
    alive: Tensor
    answers: Tensor
    index: Tensor

    @property
    def places(self) -> int:
        """Number of different entries of the input that arrive."""
        return len(set(map(tuple, self.index.tolist())))


@dataclass(frozen=True)
class ReadPassed:
    """Reads the input of one person behind layers that pass it on entry by entry.

    What a feature says is found by showing the network pictures of the server's own: blank ones
    of every brightness give its answer, which is inverted, and ramps along each axis give its
    place. Entries that no feature stands for are filled in from their neighbours.

    References:
        Geiping et al., 2020, Proposition 1 (geiping2020inverting)
    """

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Compute the input; nothing is random."""
        require_key(rng)
        began = time.perf_counter()
        task = observation.task
        require_usable(observation.update, task)
        require_continuous(task)
        if observation.batch_size not in (None, 1):
            raise NotApplicable(
                f"expected one input, got {observation.batch_size}, whose features are summed; "
                "fish for one of them first"
            )
        passed = carried(task)
        read = features(observation, layer=passed.layer)
        low, high = task.domain.bounds
        values = low + (high - low) * _brightness(passed.answers, read[passed.alive])
        filled = _fill_holes(tuple(task.domain.shape), passed.index, values)
        inputs = task.domain.project(filled[None].to(read))
        seconds = time.perf_counter() - began
        trace = Trace(seconds=seconds, device=str(inputs.device))
        return Reconstruction(inputs, observation.labels, trace)


def carried(task: Task) -> _Carried:
    """Find out what arrives at the first fully connected layer, and from where.

    Raises:
        NotApplicable: There is no such layer, or it reads another thing than one vector.
    """
    shape = tuple(task.domain.shape)
    levels = torch.linspace(0, 1, LEVELS, dtype=torch.float64)
    blank = levels.reshape(-1, *(1 for _ in shape)).expand(-1, *shape)
    layer, answers = _shown(task, blank)
    answers = answers.T.contiguous()
    range_ = answers[:, -1] - answers[:, 0]
    alive = range_ > SILENT * range_.abs().max()
    answers = answers[alive].cummax(1).values
    index = torch.stack([_place(task, axis, alive, answers) for axis in range(len(shape))], 1)
    single = _single(task, alive, answers, index)
    return _Carried(layer, alive.nonzero()[single, 0], answers[single], index[single])


def _single(task: Task, alive: Tensor, answers: Tensor, index: Tensor) -> Tensor:
    """Which features say of a noisy input what it is at their place: they pool nothing."""
    noise = Rng(0).fork("carried").uniform(task.domain.shape).double()
    _, shown = _shown(task, noise[None])
    said = _brightness(answers, shown[0][alive])
    single: Tensor = (said - noise.to(said)[tuple(index.T)]).abs() < EXACT
    return single


def _place(task: Task, axis: int, alive: Tensor, answers: Tensor) -> Tensor:
    """Where along an axis each feature comes from: the middle of what it comes from."""
    shape = tuple(task.domain.shape)
    ramp = torch.linspace(0, 1, shape[axis], dtype=torch.float64)
    ramp = ramp.reshape(*(-1 if a == axis else 1 for a in range(len(shape)))).expand(shape)
    _, shown = _shown(task, torch.stack([ramp, 1 - ramp]))
    up, down = (_brightness(answers, one[alive]) for one in shown)
    return ((up + 1 - down) / 2 * (shape[axis] - 1)).round().long()


def _shown(task: Task, shares: Tensor) -> tuple[str, Tensor]:
    """What the first fully connected layer reads of inputs given as shares of their range."""
    low, high = task.domain.bounds
    double = task.in_mode("eval").to(dtype=torch.float64)
    reference = next(iter(double.parameters.values()))
    normalised = double.domain.normalise((low + (high - low) * shares).to(reference))
    read = calls(double, nn.Linear, normalised)
    if not read or read[0][1].ndim != 2:
        raise NotApplicable(f"expected {task.name} to have a fully connected layer, got none")
    return read[0][0], read[0][1]


def _brightness(answers: Tensor, read: Tensor) -> Tensor:
    """The share of the range at which each feature answers as it did."""
    read = read.to(answers).unsqueeze(1)
    above = torch.searchsorted(answers, read).clamp(1, answers.shape[1] - 1)
    low, high = answers.gather(1, above - 1), answers.gather(1, above)
    within = ((read - low) / (high - low).clamp_min(1e-300)).clamp(0, 1)
    return ((above - 1 + within) / (answers.shape[1] - 1)).squeeze(1)


def drops_entries(observation: Observation) -> bool:
    """Whether the adversary knows of dropout, and of nothing that would hide what it dropped."""
    client = observation.simulate.client
    links = () if client is None else client.chain.links
    alone = all(isinstance(link, Dropout | Clip) for link in links)
    return alone and any(isinstance(link, Dropout) for link in links)


def completed(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The rows with the mean of what is around them in place of entries that are zero.

    Rows that are zero altogether stay so: no input is in them.

    Args:
        weight: Rows `(K, n)` of a gradient, multiples of an input each.
        shape: Of an input, `(C, H, W)` or `(C, L)`; entries of others have no neighbours.
    """
    if len(shape) < 2:
        return weight
    rows = weight.clone()
    for k in weight.any(1).nonzero().flatten().tolist():
        row = weight[k].reshape(shape)
        rows[k] = _fill_holes(shape, row.nonzero(), row[row != 0]).flatten()
    return rows


def strengths(bias: Tensor, rows: Tensor, functional: Tensor, middle: Tensor) -> Tensor:
    """The gradient of each bin's bias, or where it was dropped what it must have been.

    A row is s x, and the bin says what <w, x> is nearly: s = <w, s x> / <w, x>.

    Args:
        bias: As observed, `(K,)`.
        rows: s x, completed, `(K, n)`.
        functional: w of each bin, `(K, n)`.
        middle: <w, x> in the middle of each bin, `(K,)`.
    """
    guessed = (rows * functional).sum(1) / middle
    missing = (bias == 0) & rows.any(1)
    return torch.where(missing, torch.nan_to_num(guessed, posinf=0.0, neginf=0.0), bias)
