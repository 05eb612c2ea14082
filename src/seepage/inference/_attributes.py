"""What an adversary who knows the rest of a row infers of one column from the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from seepage.core import Batch, Observation, Rng
from seepage.core._usable_update import require_usable
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName
from seepage.data._public_data import PublicData
from seepage.domains._tabular import Categorical, Tabular
from seepage.inference._rehearsed_test import require_batch_size, score_members
from seepage.inference._update_statistics import Whitening
from seepage.numerics._significance import Rate, monotone_likelihood_ratios
from seepage.rehearsal._simulated_clients import simulate_client

# People of rehearsed batches, steps and ridge of the public model, and the fewest public rows.
_PEOPLE, _STEPS, _RIDGE, _LEAST = 64, 100, 1e-3, 40


@dataclass(frozen=True, eq=False)
class AttributeGuess:
    """For every person, how likely each value of the column is, with the update and without.

    Args:
        column: Its name.
        categories: Its values.
        with_update: Probabilities `(N, K)`.
        by_model: Probabilities `(N, K)` of a model of the other columns, trained on public rows.
        by_marginals: Frequencies `(K,)` among public rows.
        test: Which statistic of the update was used.
    """

    column: str
    categories: tuple[str, ...]
    with_update: Tensor
    by_model: Tensor
    by_marginals: Tensor
    test: str

    @property
    def guesses(self) -> tuple[str, ...]:
        """The likeliest value of each person."""
        return tuple(self.categories[i] for i in self.with_update.argmax(1).tolist())

    def compare(self, rows: Tensor, domain: Tabular) -> AttributeComparison:
        """Compare with the truth.

        Args:
            rows: The people's true rows, `(N, D)`.
            domain: Their columns.
        """
        _, place = _find_column(domain, self.column)
        truth = rows[:, place].argmax(1)
        mode = self.by_marginals.argmax().expand(len(truth))
        guesses = (self.with_update.argmax(1), self.by_model.argmax(1), mode)
        return AttributeComparison(self.column, *(guess == truth for guess in guesses))


@dataclass(frozen=True, eq=False)
class AttributeComparison:
    """Whose value was guessed right, by each kind of guess; bools `(N,)`.

    Example:
        >>> yes, no = torch.ones(8, dtype=torch.bool), torch.zeros(8, dtype=torch.bool)
        >>> found = AttributeComparison("party", yes, no, no)
        >>> found.p_value
        0.00390625
    """

    kind: ClassVar[str] = "attributes"
    column: str
    with_update: Tensor
    by_model: Tensor
    by_marginals: Tensor

    def plain(self) -> dict[str, Any]:
        """The result as data that JSON can hold."""
        return {
            "column": self.column,
            "rates": {name: rate.plain() for name, rate in self.rates.items()},
            "p_value": self.p_value,
        }

    @property
    def rates(self) -> dict[str, Rate]:
        """The share of people guessed right, by kind of guess."""
        kinds = {
            "with the update": self.with_update,
            "public model": self.by_model,
            "marginals": self.by_marginals,
        }
        return {name: Rate(int(right.sum()), len(right)) for name, right in kinds.items()}

    @property
    def p_value(self) -> float:
        """Probability of so many more right guesses than the model's, if the update told nothing.

        The exact sign test over people whom only one of the two guesses right.

        References:
            McNemar, 1947 (mcnemar1947note)
        """
        from scipy.stats import binomtest

        gained = int((self.with_update & ~self.by_model).sum())
        lost = int((self.by_model & ~self.with_update).sum())
        if gained + lost == 0:
            return 1.0
        return float(binomtest(gained, gained + lost, 0.5, alternative="greater").pvalue)

    def __str__(self) -> str:
        """One line for each kind of guess, and the test."""
        lines = [f"{self.column}: {name:16s} {rate}" for name, rate in self.rates.items()]
        return "\n".join((*lines, f"p-value of the gain over the model {self.p_value:.2g}"))


def attributes(
    observation: Observation, people: Batch, column: str, *, public: PublicData
) -> AttributeGuess:
    """Infer one column of people whose other columns and label the adversary knows.

    Every value is tried in the row, and the row is scored as in `membership`. What a score is worth
    comes from rehearsals on public rows: how it is distributed for true and for false values. With
    the public model's probability as prior,

        P(value | update) ~ P(value | other columns) * ratio(score of the row with the value)

    Args:
        observation: What the adversary saw; the people were in the batch.
        people: Their rows and labels; what stands in the column itself is not used.
        column: Name of a column of categories.
        public: Rows of the same table with labels, of other people.

    Example:
        >>> import seepage as sp
        >>> voters = sp.data.load("voters")
        >>> task = sp.zoo.mlp(hidden=(64,), classes=2, domain=voters.domain)
        >>> seen = sp.Threat().observe(
        ...     sp.Client(sp.Gradient()), task, voters.take(range(4)), rng=sp.rng(0)
        ... )
        >>> rest = voters.take(range(100, 500))
        >>> public = sp.PublicData(rest.inputs, rest.labels)
        >>> found = attributes(seen, voters.take(range(4)), "party", public=public)
        >>> int(found.compare(voters.inputs[:4], voters.domain).with_update.sum())
        4

    References:
        Fredrikson et al., 2014 (fredrikson2014privacy)
    """
    task = observation.task
    require_usable(observation.update, task)
    if not isinstance(task.domain, Tabular):
        raise NotApplicable(
            f"attributes are columns of a table, but the inputs of {task.name} are {task.domain!r}"
        )
    known, place = _find_column(task.domain, column)
    task.check(people)
    if public.labels is None or len(public.inputs) < _LEAST:
        raise InvalidValue(
            f"expected at least {_LEAST} public rows with labels, got {len(public.inputs)} "
            f"{'without' if public.labels is None else 'with'} labels"
        )
    everybody = public.draw(len(public.inputs), task, rng=Rng(0).fork("attributes"))
    half = len(everybody) // 2
    fitted, rest = (
        Batch(everybody.inputs[part], everybody.labels[part])
        for part in (slice(0, half), slice(half, None))
    )
    model = _PublicModel.fit(fitted, place, task.classes)
    test = _rehearse(observation, fitted, rest, place, model)
    prior = model(people)
    ratios = test.ratios(_score_values(observation, people, place, test.whitening)[test.name])
    return AttributeGuess(
        column=column,
        categories=known.categories,
        with_update=_normalise(prior * ratios),
        by_model=prior,
        by_marginals=everybody.inputs[:, place].double().mean(0),
        test=test.name,
    )


def _find_column(domain: Tabular, name: str) -> tuple[Categorical, slice]:
    """A column of categories by name, and its entries in a row."""
    named = dict(zip((c.name for c in domain.columns), domain.columns, strict=True))
    if name not in named:
        raise UnknownName("column", name, named)
    column = named[name]
    if not isinstance(column, Categorical):
        raise NotApplicable(
            f"expected a column of categories, whose values can be tried, but {name!r} holds "
            "numbers"
        )
    return column, domain.places[domain.columns.index(column)]


def _normalise(weights: Tensor) -> Tensor:
    total: Tensor = weights / weights.sum(1, keepdim=True)
    return total


@dataclass(frozen=True, eq=False)
class _PublicModel:
    """Multinomial logistic regression of a column on the other columns and the label."""

    weights: Tensor
    place: slice
    classes: int

    @classmethod
    def fit(cls, rows: Batch, place: slice, classes: int) -> _PublicModel:
        features = _features(rows, place, classes)
        truth = rows.inputs[:, place].argmax(1)
        count = place.stop - place.start
        weights = nn.Parameter(torch.zeros(features.shape[1], count, dtype=torch.float64))
        optimizer = torch.optim.LBFGS([weights], max_iter=_STEPS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(features @ weights, truth) + _RIDGE * weights.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        return cls(weights.detach(), place, classes)

    def __call__(self, rows: Batch) -> Tensor:
        """Probabilities `(N, K)`."""
        return (_features(rows, self.place, self.classes) @ self.weights).softmax(1)


def _features(rows: Batch, place: slice, classes: int) -> Tensor:
    """Other columns, label and a constant, `(N, F)`."""
    inputs = rows.inputs.double()
    others = torch.cat([inputs[:, : place.start], inputs[:, place.stop :]], dim=1)
    labels = one_hot(rows.labels, classes) if rows.labels.ndim == 1 else rows.labels
    return torch.cat([others, labels.double(), others.new_ones((len(others), 1))], dim=1)


@dataclass(frozen=True, eq=False)
class _ValueTest:
    """A statistic, and the scores of true and false values in rehearsals."""

    name: str
    right: Tensor
    wrong: Tensor
    whitening: Whitening | None

    def ratios(self, scores: Tensor) -> Tensor:
        """Likelihood ratios `(N, K)` of scores `(N, K)`."""
        flat = monotone_likelihood_ratios(scores.flatten(), self.right, self.wrong)
        return flat.reshape(scores.shape)


def _score_values(
    seen: Observation, people: Batch, place: slice, whitening: Whitening | None
) -> dict[str, Tensor]:
    """Score every person with every value, `(N, K)`, each person's mean at zero."""
    number = place.stop - place.start
    rows = people.inputs.repeat_interleave(number, dim=0)
    rows[:, place] = torch.eye(number).to(rows).repeat(len(people), 1)
    tried = Batch(rows, people.labels.repeat_interleave(number, dim=0))
    found = score_members(seen, tried, whitening)
    shaped = {name: scores.reshape(-1, number) for name, scores in found.items()}
    return {name: scores - scores.mean(1, keepdim=True) for name, scores in shaped.items()}


def _rehearse(
    seen: Observation, fitted: Batch, rest: Batch, place: slice, model: _PublicModel
) -> _ValueTest:
    """Be the client on public rows, and find the statistic that tells the true values best."""
    size = min(require_batch_size(seen), len(rest))
    key = Rng(0).fork("attributes", "client")
    batches = []
    for i in range(max(1, -(-_PEOPLE // size))):
        order = key.fork("people", i).permutation(len(rest))[:size]
        batches.append(Batch(rest.inputs[order], rest.labels[order]))
    updates = [simulate_client(seen, batch, rng=key.fork(i)) for i, batch in enumerate(batches)]
    tests: list[tuple[float, _ValueTest]] = []
    for whitening in (None, Whitening.of(seen.task, fitted)):
        tests += _try_statistics(updates, batches, place, model, whitening)
    return max(tests, key=lambda test: test[0])[1]


def _try_statistics(
    updates: Sequence[Observation],
    batches: Sequence[Batch],
    place: slice,
    model: _PublicModel,
    whitening: Whitening | None,
) -> list[tuple[float, _ValueTest]]:
    """Every statistic with the mean log-probability that it gives the true values."""
    scored = [
        _score_values(seen, batch, place, whitening)
        for seen, batch in zip(updates, batches, strict=True)
    ]
    truth = torch.cat([batch.inputs[:, place] for batch in batches]).bool()
    prior = torch.cat([model(batch) for batch in batches])
    found = []
    for name in scored[0]:
        scores = torch.cat([each[name] for each in scored])
        test = _ValueTest(name, scores[truth], scores[~truth], whitening)
        likely = _normalise(prior * test.ratios(scores))[truth].log().mean()
        found.append((float(likely), test))
    return found
