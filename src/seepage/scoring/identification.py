"""Whether a guess singles out its person among strangers.

The truth is hidden among N strangers. If the guess has nothing to do with the person, the truth is
as likely as any stranger to be the one that looks most like it, so the rank of the truth is a
p-value: first place has a probability of 1 / (N + 1). No threshold and no unit is involved.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from seepage.core import Batch, Domain, Rng
from seepage.core.batch import class_numbers
from seepage.core.errors import InvalidValue
from seepage.scoring.picture_views import Features, View
from seepage.scoring.similarity import Similarity, Table

STRANGERS = 100
# With fewer strangers of the same label, first place would say too little.
FEWEST = 9
# Features of a person take about 0.06 MB, so that these take 0.7 GB.
_REMEMBERED = 12_000
# People whose features are computed in one call, and who are compared with guesses in one.
_TOGETHER, _AT_ONCE = 25, 1000
# Degraded truths that an eye still recognises: noise of a quarter of the range.
_NOISE = 0.25
_SEEN = ("pixels", "structure", "entries")
# What about 26 dB of PSNR gives a photo, and neither a mean nor another person does.
_NEAR_COPY = {"pixels": 0.98, "structure": 0.9, "entries": 0.98}
# Most texts share no word, so that one word in the same place by chance would stand out.
_LEAST = {"places": 0.05, "words": 0.05}
# The other measures of a signal blur it, so that noise would drown those that do not. A shift
# that is forgiven costs power too: one of two beats that differ by a shift may be either.
_WEIGHTS = {"samples": 8.0, "shifted samples": 4.0}
# Probability of an accusation by luck that is accepted over all people and attempts.
_LUCK = 0.05
_LARGEST_CLAIM = 1e9


@dataclass(frozen=True)
class Identification:
    """How well the guesses of one attack pick one person out of a gallery.

    Attributes:
        rank: Place of the truth among the candidates; 1 is first.
        strangers: How many others were in the gallery.
        gallery: Who they were: "same label", "any label" if nobody has one, "few of the label" if
            too few others have it, or "synthetic" if they were made up.
        match: How far the truth stands out, in robust deviations of the candidates.
        rival: The same for the stranger who stands out most.
        recognisable: Whether an eye would agree; see `identify`.
        one_in: How many people the guess tells apart, extrapolated from the gallery.
        one_in_low: Lower end of its 95 % interval.
        one_in_high: Upper end.
    """

    rank: int
    strangers: int
    gallery: str
    match: float
    rival: float
    recognisable: bool
    one_in: float
    one_in_low: float
    one_in_high: float

    @property
    def p_value(self) -> float:
        """Probability of this rank or a better one for a guess that ignores the update."""
        return self.rank / (self.strangers + 1)

    @property
    def fair(self) -> bool:
        """Whether a guess that ignores the update has no better chance than any stranger's."""
        return self.gallery in ("same label", "any label")

    @property
    def singled_out(self) -> bool:
        """Whether the truth is first; in a gallery that is not fair it must be a near copy too."""
        return self.rank == 1 and (self.fair or self.recognisable)


@dataclass(frozen=True, eq=False)
class Gallery:
    """Everybody in a data set, among whom the people of a batch are to be found.

    Args:
        inputs: `(N, ...)`.
        labels: `(N,)`, or targets of another shape; None if they are not known.
        domain: What an input is.
        synthetic: Whether nobody of the kind was at hand, so that the inputs are made up.
    """

    inputs: Tensor
    labels: Tensor | None = None
    domain: Domain | None = None
    synthetic: bool = False
    _features: dict[int, Features] = field(default_factory=dict, init=False, repr=False)
    _least: dict[int | None, Mapping[str, float]] = field(
        default_factory=dict, init=False, repr=False
    )

    @cached_property
    def similarity(self) -> Similarity:
        """The measures for inputs of this kind."""
        return Similarity(self.inputs, self.domain)

    @cached_property
    def classes(self) -> Tensor | None:
        """The class of each person; None if not known, or if targets are numbers."""
        return None if self.labels is None else class_numbers(self.labels)

    @cached_property
    def order(self) -> Tensor:
        """A fixed random order of everybody; strangers are the first in it."""
        return Rng(0).fork("gallery").permutation(len(self.inputs))

    def choose_strangers(
        self, truth: Tensor, *, label: int | None, without: Collection[int], size: int
    ) -> Tensor:
        """Numbers of strangers: of the person's label if enough have it, else of any label.

        Args:
            truth: Input of the person; a copy of it is left out, and only one.
            label: The person's label; None if nobody has one.
            without: Numbers of people who are not strangers: the batch.
            size: At most this many.
        """
        allowed = torch.ones(len(self.inputs), dtype=torch.bool)
        allowed[list(without)] = False
        copies = (self.inputs == truth.to(self.inputs)).flatten(1).all(1) & allowed
        # One copy may be the person. More are people whom nothing tells apart from this one: a
        # guess of the most frequent row of a table would single out everybody who has it.
        allowed[copies.nonzero().flatten()[:1]] = False
        order = self.order[allowed[self.order]]
        if label is None or self.classes is None:
            return order[:size]
        alike = order[self.classes[order] == label]
        return (alike if len(alike) >= FEWEST else order)[:size]

    @cached_property
    def _groups(self) -> tuple[Tensor, Tensor]:
        """Everybody in the order in which features are computed, and the place of each."""
        order = self.order
        if self.classes is not None:
            order = order[self.classes[order].argsort(stable=True)]
        return order, order.argsort()

    def embed(self, numbers: Tensor) -> Features:
        """Features of these people, computed once for each.

        The last digits depend on who else is in the call. So people are computed in fixed groups:
        whom an earlier case was compared with, or where an audit was interrupted, changes nothing.
        """
        order, place = self._groups
        groups, rows = place[numbers] // _TOGETHER, place[numbers] % _TOGETHER
        found: list[Features] = []
        for group in sorted(set(groups.tolist())):
            known = self._features.get(group)
            if known is None:
                some = order[group * _TOGETHER : (group + 1) * _TOGETHER]
                known = self.similarity.embed(self.inputs[some])
                if len(self._features) * _TOGETHER < _REMEMBERED:
                    self._features[group] = known
            mine = rows[groups == group]
            found.append({name: values[mine] for name, values in known.items()})
        # Back from groups into the order asked for.
        back = groups.argsort(stable=True).argsort()
        return {name: torch.cat([one[name] for one in found])[back] for name in found[0]}

    def compare(self, shown: Sequence[View], truth: Tensor, strangers: Tensor) -> Table:
        """Similarity of every guess to the truth, first, and to strangers: measure to `(G, C)`."""
        similarity, parts = self.similarity, torch.split(strangers, _AT_ONCE)
        own = similarity.embed(truth[None])
        if len(parts) == 1:
            others = self.embed(strangers)
            candidates = {name: torch.cat([own[name], one]) for name, one in others.items()}
            return similarity.compare(shown, candidates)
        middle = None
        if "edges" in own:
            total = own["edges"].sum(0)
            for part in parts:
                total = total + self.embed(part)["edges"].sum(0)
            middle = total / (len(strangers) + 1)
        tables = [
            similarity.compare(shown, some, middle=middle)
            for some in (own, *(self.embed(part) for part in parts))
        ]
        return {name: torch.cat([table[name] for table in tables], 1) for name in tables[0]}

    def least_alike(self, label: int | None) -> Mapping[str, float]:
        """By pixels, structure or entries, how alike 95 % of noisy people are to themselves."""
        if label not in self._least:
            order = self.order
            if label is not None and self.classes is not None:
                order = order[self.classes[order] == label]
            sample = self.inputs[order[:20]].float()
            width = float(sample.max() - sample.min()) or 1.0
            noise = Rng(0).fork("degraded").normal(tuple(sample.shape))
            shown = self.similarity.show(sample + _NOISE * width * noise)
            known = self.similarity.embed(sample)
            seen = {name: known[name] for name in known if name in (*_SEEN, "inputs")}
            table = self.similarity.compare(shown, seen)
            self._least[label] = {
                name: float(table[name].diagonal().quantile(0.05))
                for name in _SEEN
                if name in table
            }
        return self._least[label]


def identify(
    guesses: Tensor,
    batch: Batch,
    gallery: Gallery,
    *,
    without: Collection[int] = (),
    size: int = STRANGERS,
) -> tuple[Identification, ...]:
    """Look for each person of a batch in all guesses of an attack.

    Each measure of similarity is put in robust deviations over the candidates, the mean over
    measures is taken, and of several guesses the one that looks most like the candidate counts. The
    truth and the strangers are treated alike, so the number of guesses and measures needs no
    correction.

    A label alone would single out many people, and most updates give it away, so strangers have the
    person's label whatever the adversary knows. If fewer than nine people have it, strangers have
    any label, and only a near copy of the truth counts, which the label alone does not give. The
    same holds for strangers who are made up.

    A person is recognisable if the truth is first by pixels or by structure and looks as much like
    the guess as 95 % of strangers look like themselves under noise of a quarter of the range of
    their values. Volumes are judged by the correlation of their entries in the same way. For tables
    80 % of the columns must agree, for texts 50 % of the words, in their place or, weighed by how
    rare they are, in any order. Vectors of numbers are judged like tables: entries are off by a
    fifth of their deviation at most, on average.

    Args:
        guesses: `(G, ...)`, in any order.
        batch: The truth.
        gallery: Everybody in the data set.
        without: Numbers of those in the gallery who are no strangers, such as the batch.
        size: How many strangers.

    Example:
        >>> images = Rng(0).uniform((40, 1, 16, 16))
        >>> batch = Batch(images[:1], torch.tensor([3]))
        >>> [found] = identify(1 - images[:1], batch, Gallery(images), without=[0])
        >>> found.rank, found.strangers, found.singled_out
        (1, 39, True)
    """
    if len(guesses) == 0:
        raise InvalidValue("expected at least one guess to look for people in, got none")
    if guesses.shape[1:] != gallery.inputs.shape[1:]:
        raise InvalidValue(
            f"expected guesses of shape {tuple(gallery.inputs.shape[1:])}, as the gallery has, got "
            f"{tuple(guesses.shape[1:])}"
        )
    classes = class_numbers(batch.labels)
    labels = [None] * len(batch) if classes is None else classes.tolist()
    truths = batch.inputs.detach().cpu()
    shown = gallery.similarity.show(guesses)
    found = []
    for truth, label in zip(truths, labels, strict=True):
        strangers = gallery.choose_strangers(truth, label=label, without=without, size=size)
        if len(strangers) == 0:
            raise InvalidValue("expected at least one stranger to compare with, got none")
        found.append(_find(shown, truth, gallery, strangers, label))
    return tuple(found)


def _find(
    shown: Sequence[View],
    truth: Tensor,
    gallery: Gallery,
    strangers: Tensor,
    label: int | None,
) -> Identification:
    table = gallery.compare(shown, truth, strangers)
    standing = _stand_out(table)
    match, rivals = float(standing[0]), standing[1:]
    rank = 1 + int((rivals >= match).sum())
    one_in, low, high = extrapolate(match, rivals)
    kind = _describe_gallery(gallery, strangers, label)
    fair = kind in ("same label", "any label")
    recognisable = rank == 1 and _is_recognisable(
        table, gallery.least_alike(label) if fair else _near_copy(gallery, truth), every=not fair
    )
    return Identification(
        rank=rank,
        strangers=len(strangers),
        gallery=kind,
        match=match,
        rival=float(rivals.max()),
        recognisable=recognisable,
        one_in=one_in,
        one_in_low=low,
        one_in_high=high,
    )


def _near_copy(gallery: Gallery, truth: Tensor) -> Mapping[str, float]:
    """How alike a near copy is; patches of one shade have no structure to be alike in."""
    least, own = dict(_NEAR_COPY), gallery.similarity.embed(truth[None])
    if "structure" in own:
        least["structure"] *= float(own["structure"].square().mean())
    return least


def _describe_gallery(gallery: Gallery, strangers: Tensor, label: int | None) -> str:
    if gallery.synthetic:
        return "synthetic"
    if label is None or gallery.classes is None:
        return "any label"
    return "same label" if bool((gallery.classes[strangers] == label).all()) else "few of the label"


def _stand_out(table: Table) -> Tensor:
    """How far each candidate stands out by its best guess, the mean over measures: `(C,)`."""
    weights = {name: _WEIGHTS.get(name, 1.0) for name in table}
    scaled = [
        weights[name] * _scale(values, least=_LEAST.get(name, 1e-9))
        for name, values in table.items()
    ]
    return (torch.stack(scaled).sum(0) / sum(weights.values())).amax(0)


def _scale(values: Tensor, *, least: float) -> Tensor:
    """Similarities of each guess in robust deviations over the candidates.

    Fisher's transform first: between 0.99 and 1 lies as much as between 0 and 0.9.

    Args:
        values: `(G, C)`.
        least: Smallest deviation that counts.
    """
    values = torch.atanh(values.clamp(-0.9999, 0.9999))
    middle = values.median(dim=1, keepdim=True).values
    apart = values - middle
    robust = 1.4826 * apart.abs().median(dim=1, keepdim=True).values
    plain = apart.square().mean(1, keepdim=True).sqrt()
    # Where most similarities are equal, as between short rows, the robust deviation is zero.
    scale = torch.maximum(robust, 0.05 * plain)
    return torch.where(scale > 1e-9, apart / scale.clamp(min=least), torch.zeros_like(apart))


def extrapolate(match: float, others: Tensor) -> tuple[float, float, float]:
    """How many people a match tells apart: 1 / P(a stranger matches as well), with its interval.

    The upper tail of the strangers is taken to be exponential, which falls more slowly than that of
    a normal distribution and so claims less. With k strangers above a level u and a mean excess b,

        P(stranger > t) = k / (N + 1) exp(-(t - u) / b),    k b_hat / b ~ Gamma(k)

    Args:
        match: How far the truth stands out.
        others: How far each stranger does, `(N,)`.

    Example:
        >>> others = -torch.log(torch.linspace(0.01, 0.99, 99))
        >>> one_in, low, high = extrapolate(9.0, others)
        >>> low < one_in < high, 2_000 < one_in < 40_000
        (True, True)
    """
    from scipy.special import gammaincinv

    count = len(others)
    as_well = 1 + int((others >= match).sum())
    if as_well > 1 or count < 5:
        plain = (count + 1) / as_well
        return plain, plain, plain
    k = max(3, count // 5)
    ordered = others.sort(descending=True).values.double()
    level = float(ordered[k]) if count > k else float(ordered[-1])
    excess = max(float((ordered[:k] - level).mean()), 1e-6)

    def claim(scale: float) -> float:
        power = min((match - level) / scale, math.log(_LARGEST_CLAIM))
        return min(_LARGEST_CLAIM, max(count + 1.0, (count + 1) / k * math.exp(power)))

    wide, narrow = (k * excess / float(gammaincinv(k, q)) for q in (0.025, 0.975))
    return claim(excess), claim(wide), claim(narrow)


def _is_recognisable(table: Table, least: Mapping[str, float], *, every: bool) -> bool:
    if "columns" in table:
        return float(table["columns"][:, 0].max()) >= 0.8
    if "values" in table:
        return float(table["values"][:, 0].max()) >= (0.95 if every else 0.8)
    if "places" in table:
        # All words in no order tell as much as half of them in their place.
        return any(float(table[name][:, 0].max()) >= 0.5 for name in ("places", "words"))
    reached = [
        float(table[name][:, 0].max()) >= max(value, float(table[name][:, 1:].max()))
        for name, value in least.items()
        if name in table
    ]
    return bool(reached) and (all(reached) if every else any(reached))


def is_identified(found: Sequence[Identification]) -> bool:
    """Whether any of several attempts singles a person out, corrected for how many there were.

    The truth must stand out more, in some attempt, than any stranger in any attempt. A guess that
    ignores the update reaches that with probability 1 / (N + 1), however many attempts there are.
    Or it stands out so much in one attempt, by the lower end of `one_in`, that the best of all of
    them would do so by luck with a tenth of that probability.

    Example:
        >>> one = Identification(1, 99, "any label", 8.0, 3.0, True, 1e4, 1e3, 1e5)
        >>> is_identified([one]), is_identified([])
        (True, False)
    """
    first = [one for one in found if one.singled_out]
    if not first:
        return False
    rare = 10 * len(found)
    clear = any(one.one_in_low >= rare * (one.strangers + 1) or not one.fair for one in first)
    return clear or max(one.match for one in first) > max(one.rival for one in found)


def compute_luck(hits: int, people: int, chance: float) -> float:
    """Probability of so many first places or more for guesses that ignore the update.

    Were people independent, hits would be binomial. But people may share a guess, as those of one
    batch do, and strangers. Then all n of them and the N strangers are in one order, in which k of
    the n come before every stranger with probability

        n (n - 1) ... (n - k + 1) / ((n + N) (n + N - 1) ... (n + N - k + 1))

    The larger of the two is returned.

    Args:
        hits: k, how many people came first.
        people: n, how many were looked for.
        chance: That of one person, 1 / (N + 1).

    Example:
        >>> round(compute_luck(3, 8, 0.1), 3), round(compute_luck(1, 1, 0.01), 3)
        (0.082, 0.01)
    """
    from scipy.special import betainc

    if hits == 0:
        return 1.0
    strangers = 1 / chance - 1
    shared = math.prod((people - i) / (people + strangers - i) for i in range(hits))
    return max(shared, float(betainc(hits, people - hits + 1, chance)))


def explain_by_luck(found: Sequence[Identification], people: int) -> list[bool]:
    """Which of the people singled out in a group may owe it to luck alone.

    If more people are singled out than luck explains, nobody does. Otherwise those do whose match
    is not so rare that luck would not produce it even once among so many people.

    Example:
        >>> weak = Identification(1, 9, "same label", 2.0, 1.9, False, 12.0, 10.0, 20.0)
        >>> explain_by_luck([weak], people=20), any(explain_by_luck([weak] * 12, people=20))
        ([True], False)
    """
    if not found:
        return []
    chance = max(1 / (one.strangers + 1) for one in found)
    count = len(found)
    if compute_luck(count, people, chance) <= _LUCK:
        return [False] * count
    return [one.fair and one.one_in_low * _LUCK < people for one in found]
