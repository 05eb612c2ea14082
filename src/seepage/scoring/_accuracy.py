"""Shares of what came back: labels, columns of a table, words of a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.core import Paired
from seepage.core._batch import class_numbers
from seepage.core._scale import Scale
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.domains._tabular import Tabular
from seepage.domains._tokens import Tokens
from seepage.scoring._entrywise import differences, kind_of


@dataclass(frozen=True)
class LabelAccuracy:
    """1.0 where the guessed label is the person's own, else 0.0; NaN if no labels were guessed.

    Targets that are numbers are right if all of them are, up to a hundredth of their size or of 1.

    Labels travel with the inputs they came with, so an attack that knows every label but swaps
    two people's images scores 0 for both. Of mixed labels `(B, K)` the heaviest class counts. A
    person without a guess scores 0.

    Example:
        >>> inputs, labels = torch.zeros(2, 3), torch.tensor([4, 5])
        >>> guessed = torch.tensor([4, 9])
        >>> LabelAccuracy()(Paired(inputs, inputs, labels, guessed, (0, 1))).tolist()
        [1.0, 0.0]

    References: Zhao et al., 2020 (zhao2020idlg)
    """

    name: ClassVar[str] = "label_accuracy"
    higher_leaks_more: ClassVar[bool] = True

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        if paired.guessed_labels is None:
            return torch.full((len(paired),), torch.nan, dtype=torch.float64)
        right = _are_right(paired.guessed_labels.cpu(), paired.labels.cpu())
        if right is None:
            return torch.full((len(paired),), torch.nan, dtype=torch.float64)
        has_guess = torch.tensor(paired.assignment) >= 0
        return (right & has_guess).double()


def count_error(guessed: Tensor, labels: Tensor) -> int:
    """People counted in a wrong class, of two multisets of B labels: sum_k |n'_k - n_k| / 2.

    B minus the size of the overlap, so that it is 0 for the right labels in any order and at most
    B. It belongs to a batch and not to a person, hence it is no metric.

    Args:
        guessed: Labels `(B,)` in any order.
        labels: The true ones, `(B,)`.

    Example:
        >>> count_error(torch.tensor([1, 1, 4]), torch.tensor([4, 1, 7]))
        1

    References: Ma et al., 2023 (ma2023instance)
    """
    if guessed.shape != labels.shape or labels.ndim != 1:
        raise InvalidValue(
            f"expected as many guessed labels as there are, {tuple(labels.shape)}, got "
            f"{tuple(guessed.shape)}; give classes, not probabilities"
        )
    classes = 1 + int(torch.cat([guessed, labels]).max())
    ours, theirs = (torch.bincount(each.cpu(), minlength=classes) for each in (guessed, labels))
    return int((ours - theirs).abs().sum()) // 2


# Numbers that differ by less count as right.
_CLOSE = 0.01


def _are_right(guessed: Tensor, labels: Tensor) -> Tensor | None:
    """Whether each label is right, `(B,)`; None if there is nothing to be right."""
    classes = class_numbers(labels)
    if classes is not None:
        found = guessed.argmax(1) if guessed.ndim == 2 else guessed
        return found == classes
    if guessed.shape != labels.shape or labels.numel() == 0:
        return None
    near = (guessed - labels).abs() <= _CLOSE * labels.abs().clamp(min=1)
    return near.flatten(1).all(1) if near.ndim > 1 else near


@dataclass(frozen=True, kw_only=True)
class FeatureAccuracy:
    """Share of a row's columns that are right: the category, or the number up to a tolerance.

        (1/F) (sum_categories [guess = truth] + sum_numbers [|guess - truth| <= tolerance sigma])

    A person without a guess scores 0.

    Args:
        tolerance: Of numbers, in standard deviations of the population.

    Raises:
        NotApplicable: For anything but rows of a table whose columns are known.

    Example:
        >>> from seepage.domains import Categorical, Continuous
        >>> age = Continuous(name="age", low=0, high=100, mean=40, std=20)
        >>> vote = Categorical(name="vote", categories=("no", "yes"))
        >>> truth, guess = torch.tensor([[0.3, 1.0, 0.0]]), torch.tensor([[0.35, 0.0, 1.0]])
        >>> labels, table = torch.tensor([0]), Tabular((age, vote))
        >>> FeatureAccuracy()(Paired(truth, guess, labels, None, (0,), domain=table)).tolist()
        [0.5]

    References: Vero et al., 2023, Sec. 5 (vero2023tableak)
    """

    name: ClassVar[str] = "feature_accuracy"
    higher_leaks_more: ClassVar[bool] = True
    scale: ClassVar[Scale] = Scale(of="columns", inputs="tables", telling=0.8, beyond_luck=True)

    tolerance: float = 0.319

    def __post_init__(self) -> None:
        """Refuse a tolerance that nothing would meet."""
        if not self.tolerance > 0:
            raise InvalidValue(f"expected a tolerance above 0, got {self.tolerance!r}")

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        return self.by_column(paired).mean(1)

    def by_column(self, paired: Paired) -> Tensor:
        """Whether each column is right, 1.0 or 0.0: `(B, F)`."""
        domain = self.require(paired)
        truth, guess = paired.truth.cpu().double(), paired.guess.cpu().double()
        right = [
            truth[:, place].argmax(1) == guess[:, place].argmax(1)
            if deviation is None
            else (truth - guess)[:, place.start].abs() <= self.tolerance * deviation
            for place, deviation in zip(domain.places, domain.deviations, strict=True)
        ]
        has_guess = torch.tensor(paired.assignment)[:, None] >= 0
        return (torch.stack(right, dim=1) & has_guess).double()

    def require(self, paired: Paired) -> Tabular:
        """The table the rows belong to, or `NotApplicable`."""
        if not isinstance(paired.domain, Tabular):
            raise NotApplicable(
                "feature_accuracy needs rows of a table and their columns; give "
                "score(..., domain=...)"
            )
        return paired.domain


def _require_texts(paired: Paired) -> Tokens:
    """The kind of text that the inputs are, or `NotApplicable`."""
    domain = kind_of(paired)
    if not isinstance(domain, Tokens):
        raise NotApplicable("token_accuracy needs tokens, whole numbers of words in a vocabulary")
    return domain


@dataclass(frozen=True)
class TokenAccuracy:
    """Share of a text's tokens that are right, each in its own place.

        (1/L) sum_j [guess_j = truth_j]

    Places that hold padding do not count, if the domain says what padding is. Whether all are
    right, hence the rate of exact sequences, is what `exact` says.

    Raises:
        NotApplicable: For anything but tokens.

    Example:
        >>> import torch
        >>> truth, guess = torch.tensor([[4, 8, 1, 5]]), torch.tensor([[4, 8, 1, 6]])
        >>> TokenAccuracy()(Paired(truth, guess, torch.tensor([0]), None, (0,))).tolist()
        [0.75]

    References: Petrov et al., 2024 (petrov2024dager), on texts that come back whole
    """

    name: ClassVar[str] = "token_accuracy"
    higher_leaks_more: ClassVar[bool] = True
    scale: ClassVar[Scale] = Scale(of="words", inputs="texts", telling=0.5, loose="token_recall")
    require = staticmethod(_require_texts)

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        padding = self.require(paired).padding
        counted = torch.ones_like(paired.truth, dtype=torch.bool)
        if padding is not None:
            counted = paired.truth != padding
        right = (differences(paired) == 0).reshape(counted.shape) & counted
        return right.double().sum(1) / counted.double().sum(1)


def _list_tokens(paired: Paired, texts: Tensor) -> list[list[int]]:
    """The tokens of each text, without padding and without places that were not guessed."""
    padding = _require_texts(paired).padding
    return [[t for t in text if t >= 0 and t != padding] for text in texts.tolist()]


@dataclass(frozen=True)
class TokenRecall:
    """Share of a text's different tokens that are among the guesses for the whole batch.

    An update is a sum over the batch, so that an attack may know which words were said, and
    neither by whom nor in which order. NaN for a text without tokens.

    Raises:
        NotApplicable: For anything but tokens.

    Example:
        >>> truth = torch.tensor([[4, 8, 8], [1, 5, 6]])
        >>> guess = torch.tensor([[8, 4, 1], [2, 2, 5]])
        >>> TokenRecall()(Paired(truth, guess, torch.tensor([0, 0]), None, (0, 1))).tolist()
        [1.0, 0.6666666666666666]

    References: Gupta et al., 2022 (gupta2022recovering)
    """

    name: ClassVar[str] = "token_recall"
    higher_leaks_more: ClassVar[bool] = True
    scale: ClassVar[Scale] = Scale(of="different words (in no order)", telling=1.0, in_order=False)
    require = staticmethod(_require_texts)

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        self.require(paired)
        named = {token for text in _list_tokens(paired, paired.guess) for token in text}
        said = [set(text) for text in _list_tokens(paired, paired.truth)]
        shares = [len(own & named) / len(own) if own else torch.nan for own in said]
        return torch.tensor(shares, dtype=torch.float64)


@dataclass(frozen=True)
class TokenPrecision:
    """Share of the different tokens in all guesses that some text of the batch holds.

    It is the same for everybody in a batch. NaN if nothing was guessed.

    Raises:
        NotApplicable: For anything but tokens.

    Example:
        >>> truth, guess = torch.tensor([[4, 8]]), torch.tensor([[8, 1]])
        >>> TokenPrecision()(Paired(truth, guess, torch.tensor([0]), None, (0,))).tolist()
        [0.5]

    References: Gupta et al., 2022 (gupta2022recovering)
    """

    name: ClassVar[str] = "token_precision"
    higher_leaks_more: ClassVar[bool] = True
    require = staticmethod(_require_texts)

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        self.require(paired)
        named, said = (
            {token for text in _list_tokens(paired, texts) for token in text}
            for texts in (paired.guess, paired.truth)
        )
        share = len(named & said) / len(named) if named else torch.nan
        return torch.full((len(paired),), share, dtype=torch.float64)


@dataclass(frozen=True)
class RougeL:
    """ROUGE-L: the longest common subsequence of tokens, as an F-score.

        F = 2 LCS(guess, truth) / (|guess| + |truth|)

    Padding and places that were not guessed do not count. NaN for a text without tokens.

    Raises:
        NotApplicable: For anything but tokens.

    Example:
        >>> truth, guess = torch.tensor([[4, 8, 1, 5]]), torch.tensor([[4, 1, 5, 9]])
        >>> RougeL()(Paired(truth, guess, torch.tensor([0]), None, (0,))).tolist()
        [0.75]

    References: Lin, 2004 (lin2004rouge)
    """

    name: ClassVar[str] = "rouge_l"
    higher_leaks_more: ClassVar[bool] = True
    require = staticmethod(_require_texts)

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        self.require(paired)
        pairs = zip(
            _list_tokens(paired, paired.guess), _list_tokens(paired, paired.truth), strict=True
        )
        scores = [
            2 * _longest_common(guess, truth) / (len(guess) + len(truth)) if truth else torch.nan
            for guess, truth in pairs
        ]
        return torch.tensor(scores, dtype=torch.float64)


def _longest_common(one: list[int], other: list[int]) -> int:
    """Length of the longest common subsequence.

    Example:
        >>> _longest_common([1, 2, 3, 4], [2, 4, 3])
        2
    """
    lengths = [0] * (len(other) + 1)
    for token in one:
        before = 0
        for place, candidate in enumerate(other, 1):
            held = lengths[place]
            lengths[place] = (
                before + 1 if token == candidate else max(lengths[place], lengths[place - 1])
            )
            before = held
    return lengths[-1]
