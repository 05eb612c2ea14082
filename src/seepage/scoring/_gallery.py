"""Look for the person behind a guess among strangers.

The truth is hidden among N strangers. If the guess has nothing to do with the person, the truth is
as likely as any stranger to be the one that looks most like it, so the rank of the truth is a
p-value: first place has a probability of 1 / (N + 1). No threshold and no unit is involved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from seepage.core import Batch, Domain, Rng
from seepage.core._batch import class_numbers
from seepage.core._likeness import Exactness, Features, Likeness, Measure, Table, View
from seepage.core.errors import InvalidValue
from seepage.domains import domain_of
from seepage.scoring._identification import (
    LARGEST_CLAIM,
    GalleryKind,
    Identification,
    extrapolate,
)

STRANGERS = 100
# With fewer strangers of the same label, first place would say too little.
FEWEST = 9
# Features of a person take about 0.06 MB, so that these take 0.7 GB.
_REMEMBERED = 12_000
# People whose features are computed in one call, and who are compared with guesses in one.
_TOGETHER, _AT_ONCE = 25, 1000
# Degraded truths that an eye still recognises: noise of a quarter of the range.
_NOISE = 0.25
# An image of one shade has nothing in it to look alike, so only its values count: up to this share
# of the range, about 34 dB of PSNR.
_ONE_SHADE = 0.02
_SHADES: Mapping[str, Measure] = {"shades": Measure(near=1 - _ONE_SHADE)}


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
    def kind(self) -> Domain:
        """What an input is, by their shape if nobody has said."""
        return self.domain or domain_of(self.inputs)

    @cached_property
    def likeness(self) -> Likeness:
        """How inputs of this kind are compared."""
        return self.kind.likeness(self.inputs)

    @cached_property
    def exactness(self) -> Exactness:
        """What makes a guess an input of this kind."""
        return self.kind.exactness(self.inputs, synthetic=self.synthetic)

    @cached_property
    def classes(self) -> Tensor | None:
        """The class of each person; None if not known, or if targets are numbers."""
        return None if self.labels is None else class_numbers(self.labels)

    @cached_property
    def order(self) -> Tensor:
        """A fixed random order of everybody; strangers are the first in it."""
        return Rng(0).fork("gallery").permutation(len(self.inputs))

    def choose_strangers(self, *, label: int | None, without: Collection[int], size: int) -> Tensor:
        """Numbers of strangers: of the person's label if enough have it, else of any label.

        Args:
            label: The person's label; None if nobody has one.
            without: Numbers of people who are not strangers: the batch.
            size: At most this many.
        """
        # A copy of the person's input is of somebody whom nothing tells apart from the person.
        allowed = self.allow(without)
        order = self.order[allowed[self.order]]
        if label is None or self.classes is None:
            return order[:size]
        alike = order[self.classes[order] == label]
        return (alike if len(alike) >= FEWEST else order)[:size]

    def allow(self, without: Collection[int]) -> Tensor:
        """Who may be a stranger, `(N,)`."""
        allowed = torch.ones(len(self.inputs), dtype=torch.bool)
        allowed[list(without)] = False
        return allowed

    def describe(self, strangers: Tensor, label: int | None) -> GalleryKind:
        """Who these strangers of a person of a label are; see `Identification`."""
        if self.synthetic:
            return "synthetic"
        if label is None or self.classes is None:
            return "any label"
        return (
            "same label" if bool((self.classes[strangers] == label).all()) else "few of the label"
        )

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
                known = self.likeness.embed(self.inputs[some])
                if len(self._features) * _TOGETHER < _REMEMBERED:
                    self._features[group] = known
            mine = rows[groups == group]
            found.append({name: values[mine] for name, values in known.items()})
        # Back from groups into the order asked for.
        back = groups.argsort(stable=True).argsort()
        return {name: torch.cat([one[name] for one in found])[back] for name in found[0]}

    @cached_property
    def _width(self) -> float:
        """The range of a typical person's values, whatever those of a single other one are."""
        some = self.inputs[self.order[:STRANGERS]].flatten(1)
        typical = float((some.amax(1) - some.amin(1)).median())
        return typical or float(some.max() - some.min()) or 1.0

    def is_one_shade(self, truth: Tensor) -> bool:
        """Whether an image or signal varies too little for any part of it to be recognised."""
        if not self.kind.pictorial:
            return False
        varied = truth - truth.mean(tuple(range(1, truth.ndim)), keepdim=True)
        width = self._width
        if self.synthetic:
            # Made-up people fill the whole range: beside them any quiet signal would be one shade.
            # A thousandth of it is for rounding.
            width = min(width, max(float(truth.max() - truth.min()), 1e-3 * width))
        return float(varied.square().mean().sqrt()) < _ONE_SHADE * width

    def make_blanks(self, truth: Tensor) -> Tensor:
        """Inputs of one shade that anybody can guess: all black, grey, white or zero.

        There are none where an input of one shade is no blank: for tables, vectors and texts.
        """
        if not self.is_one_shade(truth):
            return self.inputs[:0]
        low, high = self.kind.bounds
        shades = torch.tensor([low, (low + high) / 2, high, min(max(0.0, low), high)])
        return shades.to(self.inputs).reshape(-1, *[1] * truth.ndim).expand(-1, *truth.shape)

    def compare_values(self, guesses: Tensor, truth: Tensor, strangers: Tensor) -> Table:
        """How near every guess is to the truth, first, and to strangers, value by value."""
        candidates = torch.cat([truth[None].to(self.inputs), self.inputs[strangers]]).flatten(1)
        rows = torch.nan_to_num(guesses.detach().to(candidates).flatten(1))
        apart = [(row - candidates).square().mean(1).sqrt() / self._width for row in rows]
        return {"shades": 1 - torch.stack(apart)}

    def compare(self, shown: Sequence[View], truths: Tensor, strangers: Tensor) -> Iterator[Table]:
        """Similarity of every guess to a truth, first, and to strangers: measure to `(G, C)`.

        Args:
            shown: The guesses.
            truths: Of people who are to be told from the same strangers; each gets a table.
            strangers: Their numbers.
        """
        likeness, others = self.likeness, torch.split(strangers, _AT_ONCE)
        own = likeness.embed(truths)
        plain = [
            {n: v for n, v in some.items() if n != "edges"}
            for some in (own, *map(self.embed, others))
        ]
        if len(others) == 1:
            plain = [{name: torch.cat([one[name] for one in plain]) for name in plain[0]}]
        tables = [likeness.compare(shown, some) for some in plain]
        shared = {name: torch.cat([table[name] for table in tables], 1) for name in tables[0]}
        for number in range(len(truths)):
            columns = [number, *range(len(truths), len(truths) + len(strangers))]
            table = {name: values[:, columns] for name, values in shared.items()}
            if "edges" in own:
                table["edges"] = self._compare_edges(shown, own["edges"][number, None], others)
            yield table

    def _compare_edges(
        self, shown: Sequence[View], own: Tensor, others: Sequence[Tensor]
    ) -> Tensor:
        """Similarity of edges, less the mean of this truth's and of all strangers'."""
        if len(others) == 1:
            candidates = torch.cat([own, self.embed(others[0])["edges"]])
            return self.likeness.compare(shown, {"edges": candidates})["edges"]
        total = own.sum(0)
        for part in others:
            total = total + self.embed(part)["edges"].sum(0)
        middle = total / (sum(map(len, others)) + 1)
        every = (own, *(self.embed(part)["edges"] for part in others))
        tables = [self.likeness.compare(shown, {"edges": e}, middle=middle) for e in every]
        return torch.cat([table["edges"] for table in tables], 1)

    def least_alike(self, label: int | None) -> Mapping[str, float]:
        """By some measures, how alike 95 % of noisy people are to themselves."""
        wanted = [name for name, measure in self.likeness.measures.items() if measure.seen]
        if not wanted:
            return {}
        if label not in self._least:
            order = self.order
            if label is not None and self.classes is not None:
                order = order[self.classes[order] == label]
            sample = self.inputs[order[:20]].float()
            width = float(sample.max() - sample.min()) or 1.0
            noise = Rng(0).fork("degraded").normal(tuple(sample.shape))
            shown = self.likeness.show(sample + _NOISE * width * noise)
            known = self.likeness.embed(sample)
            seen = {name: known[name] for name in known if name in (*wanted, "inputs")}
            table = self.likeness.compare(shown, seen)
            self._least[label] = {
                name: float(table[name].diagonal().quantile(0.05))
                for name in wanted
                if name in table
            }
        return self._least[label]


def find_strangers(truth: Tensor, inputs: Tensor) -> Tensor:
    """Numbers of the inputs that are not in the batch.

    A person is left out once: further copies are others whom nothing tells apart from this one.

    Example:
        >>> find_strangers(torch.tensor([[1], [2]]), torch.tensor([[2], [3], [2], [1]])).tolist()
        [1, 2]
    """
    strange = torch.ones(len(inputs), dtype=torch.bool)
    for one in truth.to(inputs):
        copies = (inputs == one).flatten(1).all(1) & strange
        strange[copies.nonzero().flatten()[:1]] = False
    return strange.nonzero().flatten()


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
    same holds for strangers who are made up, and for an image of one shade, which has nothing in it
    to look alike: its values must come back, to a fiftieth of the range.

    A guess that is the input exactly is compared alone. Everybody in the gallery whose input it is
    as well counts as before the truth; for an image of one shade, so does a blank that anybody can
    guess.

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
        without: Numbers of those in the gallery who are no strangers, such as the batch. Whoever
            else has the input of a person is a stranger all the same.
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
    guesses, truths = guesses.detach().cpu(), batch.inputs.detach().cpu()
    shown = gallery.likeness.show(guesses)
    beside = [gallery.choose_strangers(label=n, without=without, size=size) for n in labels]
    if not all(map(len, beside)):
        raise InvalidValue("expected at least one stranger to compare with, got none")
    allowed = gallery.allow(without)
    fits = [_find_fit(guesses, truth, gallery, allowed) for truth in truths]
    # People who have the same strangers, as those of one label do, are compared in one go.
    together: dict[tuple[int, ...], list[int]] = {}
    found: dict[int, Identification] = {}
    for number, (truth, strangers) in enumerate(zip(truths, beside, strict=True)):
        if gallery.is_one_shade(truth):
            table = gallery.compare_values(guesses, truth, strangers)
            person = _Person(truth, labels[number], strangers, fits[number])
            found[number] = _find(table, person, gallery, "one shade")
        else:
            together.setdefault(tuple(strangers.tolist()), []).append(number)
    for numbers in together.values():
        strangers = beside[numbers[0]]
        tables = gallery.compare(shown, truths[numbers], strangers)
        for number, table in zip(numbers, tables, strict=True):
            kind = gallery.describe(strangers, labels[number])
            person = _Person(truths[number], labels[number], strangers, fits[number])
            found[number] = _find(table, person, gallery, kind)
    return tuple(found[number] for number in range(len(truths)))


@dataclass(frozen=True, eq=False)
class _Fit:
    """A guess that is the input of a person exactly.

    Args:
        guess: Its number.
        others: Who else has this input, `(N,)` of the gallery.
        blank: Whether it is a blank input too, which anybody can guess.
    """

    guess: int
    others: Tensor
    blank: bool


@dataclass(frozen=True, eq=False)
class _Person:
    """Somebody to be found: input, label, strangers, and the guess that is the input, if any."""

    truth: Tensor
    label: int | None
    strangers: Tensor
    fit: _Fit | None


def _find_fit(guesses: Tensor, truth: Tensor, gallery: Gallery, allowed: Tensor) -> _Fit | None:
    """Of the guesses that are a person's input, the one that fewest others have."""
    rule = gallery.exactness
    fits = [
        _Fit(
            number,
            rule.compare(guess, gallery.inputs) & allowed,
            bool(rule.compare(guess, gallery.make_blanks(truth)).any()),
        )
        for number, guess in enumerate(guesses)
        if bool(rule.compare(guess, truth[None].to(gallery.inputs)))
    ]
    return min(fits, key=lambda fit: int(fit.others.sum()), default=None)


def _find(table: Table, person: _Person, gallery: Gallery, kind: GalleryKind) -> Identification:
    fit, measures = person.fit, {**gallery.likeness.measures, **_SHADES}
    if fit is not None:
        own = {name: values[fit.guess, None] for name, values in table.items()}
        # Where inputs fill a small part of their range, to be right to 8 bits of it is no feat.
        fit = fit if _is_copy(own, measures) else None
        table = own if fit is not None else table
    standing = _stand_out(table, measures)
    match, rivals = float(standing[0]), standing[1:]
    before = rivals >= match
    if fit is not None:
        before = _is_as_near(table, standing) | fit.others[person.strangers]
    rank = 1 + int(before.sum())
    copies = 0 if fit is None else int(fit.others.sum())
    if fit is not None and rank == 1 and (copies or fit.blank):
        rank = 2
    one_in, low, high = extrapolate(match, rivals)
    if fit is not None:
        # How far an exact guess stands out tells nothing: few columns are soon all right.
        claim = (len(rivals) + 1) / rank
        if rank == 1:
            claim = min(LARGEST_CLAIM, max(claim, gallery.exactness.count_alike(person.truth)))
        one_in = low = high = claim
    fair = kind in ("same label", "any label")
    least = gallery.least_alike(person.label) if fair else _near_copy(gallery, person.truth)
    recognisable = rank == 1 and (
        fit is not None or _is_recognisable(table, measures, least, every=not fair)
    )
    return Identification(
        rank=rank,
        strangers=len(rivals),
        gallery=kind,
        match=match,
        rival=float(rivals.max()),
        recognisable=recognisable,
        one_in=one_in,
        one_in_low=low,
        one_in_high=high,
        exact=fit is not None,
        copies=copies,
    )


def _is_copy(table: Table, measures: Mapping[str, Measure]) -> bool:
    """Whether a guess that is right to 8 bits looks like the input as well."""
    wanted = {name: measures[name].copy for name in table}
    return all(float(table[n][0, 0]) >= least for n, least in wanted.items() if least is not None)


def _is_as_near(table: Table, standing: Tensor) -> Tensor:
    """Which strangers a guess is as near to as to the truth; of equal standing, by all digits."""
    alike = torch.stack([values[0] for values in table.values()]).double().sum(0)
    tied = (standing[1:] == standing[0]) & (alike[1:] >= alike[0])
    return (standing[1:] > standing[0]) | tied


def _near_copy(gallery: Gallery, truth: Tensor) -> Mapping[str, float]:
    """How alike a near copy is; patches of one shade have no structure to be alike in."""
    measures = {**gallery.likeness.measures, **_SHADES}
    least = {name: one.near for name, one in measures.items() if one.near is not None}
    own = gallery.likeness.embed(truth[None])
    if "structure" in own:
        least["structure"] *= float(own["structure"].square().mean())
    return least


def _stand_out(table: Table, measures: Mapping[str, Measure]) -> Tensor:
    """How far each candidate stands out by its best guess, the mean over measures: `(C,)`."""
    scaled = [
        measures[name].weight * _scale(values, least=measures[name].least)
        for name, values in table.items()
    ]
    return (torch.stack(scaled).sum(0) / sum(measures[name].weight for name in table)).amax(0)


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


def _is_recognisable(
    table: Table, measures: Mapping[str, Measure], least: Mapping[str, float], *, every: bool
) -> bool:
    """Whether the best guess is like enough, by every measure or by one."""
    enough = {name: measures[name].enough for name in table}
    if any(enough.values()):
        return any(
            float(table[name][:, 0].max()) >= wanted[every]
            for name, wanted in enough.items()
            if wanted is not None
        )
    reached = [
        float(table[name][:, 0].max()) >= max(value, float(table[name][:, 1:].max()))
        for name, value in least.items()
        if name in table
    ]
    return bool(reached) and (all(reached) if every else any(reached))
