"""Which tokens a batch holds, read off the gradient of the embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks._applicability import applies_to
from seepage.attacks._certificate import certify_solved
from seepage.attacks.labels._infer_labels import try_labels
from seepage.attacks.text._token_table import UNKNOWN, TokenTable, find_token_table, require_texts
from seepage.core import Attack, BaseAttack, Certificate, Observation, Reconstruction, Rng, Update
from seepage.core.errors import SeepageError, require_positive
from seepage.domains import Tokens
from seepage.numerics._row_span import row_span, share_outside
from seepage.numerics._standout_rows import noise_probabilities

# Singular values below this share of the largest are rounding.
_ROUNDING = 1e-5
# Rows of absent tokens lie in the span of each other up to this share, if the table is tied.
_OUTSIDE = 1e-4
# How often some rows are drawn in the hope that their tokens are absent.
_ATTEMPTS = 8
# Whole numbers that a system of equations must come this near to.
_WHOLE = 0.1
# Rows this near to each other are the same, as a share of their length.
_SAME = 1e-3
# Share of the tokens of which it must be clear in which texts they are.
_MOSTLY = 0.8
# Most tokens whose rows are compared with each other.
_MOST = 4_096


@dataclass(frozen=True, eq=False)
class _Found:
    """Tokens of the batch, the most certain first.

    Args:
        tokens: `(n,)`.
        rows: Their gradients, `(n, d)`.
        doubt: Probability of such a row if the token is absent, `(n,)`.
        exact: Whether rows of absent tokens are known to be zero, so that all these are present.
    """

    tokens: Tensor
    rows: Tensor
    doubt: Tensor
    exact: bool


@dataclass(frozen=True, kw_only=True)
class BagOfWords(BaseAttack):
    """Read the tokens whose rows of the embedding gradient are not zero.

    The arguments are those of `bag_of_words`.
    """

    false_tokens: float = 0.1

    def __post_init__(self) -> None:
        require_positive(false_tokens=self.false_tokens)

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Read the tokens; nothing is random."""
        task = observation.task
        domain = require_texts(task.domain, needed_by="bag_of_words")
        table = find_token_table(task)
        found = self._find_tokens(observation, table)
        size = observation.batch_size or max(1, math.ceil(len(found.tokens) / domain.length))
        texts = _order_one_text(observation, found, table) if size == 1 else None
        ordered = texts is not None
        if texts is None:
            texts = _assign_tokens(found, size=size, length=domain.length)
        labels = try_labels(observation, size=size)
        certificate = Certificate(math.inf)
        if ordered and labels is not None and bool((texts != UNKNOWN).all()):
            assert table.positions is not None
            read = (table.weight, table.positions)
            certificate = certify_solved(observation, texts, labels, read=read, alone=found.exact)
        if found.exact:
            proof = certificate
            certificate = Certificate(proof.residual, proof.unique, certain=len(found.tokens))
        sure = _spread_confidence(found, texts)
        return Reconstruction(texts, labels, certificate=certificate, confidence=sure)

    def _find_tokens(self, observation: Observation, table: TokenTable) -> _Found:
        rows = observation.update.tensors[table.weight].double()
        used, noisy = rows.any(1), _adds_to_zero(observation)
        most = len(rows) - 1
        if observation.batch_size is not None:
            most = observation.batch_size * observation.task.domain.shape[0]
        # More rows than there are places for tokens: the defense is not what it is taken for.
        noisy = True if int(used.sum()) > most else noisy
        exact = not table.tied and noisy is False
        if exact or (not table.tied and noisy is None and not bool(used.all())):
            doubt = (~used).double()
        elif table.tied:
            doubt = _test_tied_rows(rows)
        else:
            doubt = noise_probabilities(rows)
        present = (doubt <= self.false_tokens / len(rows)).nonzero().flatten()
        length = rows[present].norm(dim=1)
        # The clearest first; among those without any doubt, the longest rows.
        order = torch.argsort(length, descending=True, stable=True)
        order = order[torch.argsort(doubt[present][order], stable=True)]
        tokens = present[order]
        return _Found(tokens, rows[tokens], doubt[tokens], exact)


def _adds_to_zero(observation: Observation) -> bool | None:
    """Whether the defense turns zeros of an update into other numbers; None if it is unknown.

    Clipping, pruning, rounding and sums over clients keep a zero; noise does not.
    """
    client = observation.simulate.client
    if client is None:
        return None
    zeros = {name: torch.zeros_like(p) for name, p in observation.task.parameters.items()}
    if client.chain.consumes == "per_example":
        zeros = {name: tensor[None] for name, tensor in zeros.items()}
    nothing = Update(zeros, granularity=client.chain.consumes)
    try:
        shared = client.chain(nothing, rng=Rng(0).fork("zeros"))
    except (SeepageError, RuntimeError, ValueError, IndexError):
        return None
    return any(bool(tensor.any()) for tensor in shared)


def _test_tied_rows(rows: Tensor) -> Tensor:
    """Test the rows of a table that the output layer shares.

    The output layer adds sum_i (p_i - y_i) h_i^T, so that the row of a token that is in no text is
    a combination of what the layer read, h_i. Rows of tokens that were read also have the gradient
    of the input, which lies outside that span. The span is found as the smallest one of a few rows
    that holds most others. If the h_i span everything, tokens are tested by how far their rows are
    from the typical row: the target of a prediction has p - 1 for p.
    """
    size, key = 1, Rng(0).fork("tied")
    while size < rows.shape[1]:
        for attempt in range(_ATTEMPTS):
            chosen = key.fork(size, attempt).permutation(len(rows))[:size]
            basis = row_span(rows[chosen.to(rows.device)], tolerance=_ROUNDING)
            outside = share_outside(basis, rows).nan_to_num(0.0)
            if 2 * int((outside <= _OUTSIDE).sum()) > len(rows):
                return (outside <= _OUTSIDE).double()
        size *= 2
    return noise_probabilities(rows - rows.median(dim=0).values)


def _order_one_text(observation: Observation, found: _Found, table: TokenTable) -> Tensor | None:
    """Put the tokens of one text in order by the gradient of the positions; None if that fails.

    The row of a token is the sum of the rows P_t of its positions: R = A P, with a 1 in each column
    of A. If no text is longer than the table is wide, A = R P^+.

    Returns:
        The text `(1, L)`, filled up with padding or unknown tokens; None if it cannot be told.
    """
    domain = observation.task.domain
    assert isinstance(domain, Tokens)
    if table.positions is None or not found.exact or not len(found.tokens):
        return None
    places = observation.update.tensors[table.positions].double()
    places = places.reshape(-1, found.rows.shape[1])[table.first :][: domain.length]
    used = places.any(1).nonzero().flatten()
    # Columns of one length, since positions far from what is classified have short gradients.
    lengths = places[used].norm(dim=1, keepdim=True)
    share = (found.rows @ torch.linalg.pinv(places[used] / lengths)) / lengths.T
    if not bool(((share - share.round()).abs() < _WHOLE).all()):
        return None
    # A token without a place, as where the defense removed its position, would be lost.
    if not bool((share.round().sum(0) == 1).all() and (share.round().sum(1) > 0).all()):
        return None
    filler = UNKNOWN if domain.padding is None else domain.padding
    text = found.tokens.new_full((1, domain.length), filler)
    text[0, used] = found.tokens[share.argmax(0)]
    return text


def _assign_tokens(found: _Found, *, size: int, length: int) -> Tensor:
    """Make texts `(B, L)` of tokens whose order is not known, filled up with unknown ones.

    Texts have the tokens that belong to each if that can be told, all tokens if they fit, or a part
    of them.
    """
    texts = found.tokens.new_full((size, length), UNKNOWN)
    whole = found.tokens.tolist()
    bags = _separate_texts(found, size=size)
    if bags is not None:
        told = {token for bag in bags for token in bag}
        bags = [bag + [token for token in whole if token not in told] for bag in bags]
    else:
        fits = len(whole) <= length
        bags = [whole if fits else whole[i * length : (i + 1) * length] for i in range(size)]
    for text, bag in zip(texts, bags, strict=True):
        text[: min(length, len(bag))] = torch.tensor(bag[:length], dtype=text.dtype)
    return texts


def _separate_texts(found: _Found, *, size: int) -> list[list[int]] | None:
    """Tell which tokens share a text, where the network takes the mean or the sum of embeddings.

    Every token of text b then has the same gradient u_b, so its row is sum_b c_b u_b, with how
    often it occurs. Tokens that occur once, in one text, have equal rows: the B largest groups of
    equal rows are the u_b.

    Returns:
        The tokens of each text, repeated as often as they occur; those of which it cannot be told
        are in none. None if most rows do not say so.
    """
    rows, count = found.rows, len(found.tokens)
    if not found.exact or not size <= count <= _MOST:
        return None
    same = _are_equal(rows, rows)
    groups: list[Tensor] = []
    left = torch.ones(count, dtype=torch.bool, device=rows.device)
    for row in same.sum(1).argsort(descending=True, stable=True):
        if bool(left[row]):
            groups.append((same[row] & left).nonzero().flatten())
            left[groups[-1]] = False
    groups = sorted(groups, key=len, reverse=True)
    if len(groups) < size or len(groups[size - 1]) < 2:
        return None
    units = torch.stack([rows[group].mean(0) for group in groups[:size]])
    options = _list_counts(size).to(rows)
    explained = _are_equal(rows, options @ units)
    if float(explained.any(1).double().mean()) < _MOSTLY:
        return None
    # Of several explanations the first is the simplest.
    counts = options[explained.double().argmax(1)] * explained.any(1, keepdim=True)
    return [
        [t for t, n in zip(found.tokens.tolist(), column, strict=True) for _ in range(int(n))]
        for column in counts.T.tolist()
    ]


def _are_equal(one: Tensor, other: Tensor) -> Tensor:
    """Which rows of two matrices agree up to rounding, `(n, m)`."""
    lengths = torch.maximum(one.norm(dim=1)[:, None], other.norm(dim=1)[None])
    return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist") <= _SAME * lengths


def _list_counts(size: int) -> Tensor:
    """How often a token may occur in each of B texts, the simplest first, `(n, B)`.

    Example:
        >>> _list_counts(2).tolist()[:3], len(_list_counts(2))
        ([[1, 0], [0, 1], [2, 0]], 12)
    """
    unit = torch.eye(size, dtype=torch.long)
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    first, second = (torch.tensor([pair[i] for pair in pairs], dtype=torch.long) for i in (0, 1))
    both = unit[first] + unit[second]
    twice = 2 * unit[first] + unit[second]
    alone = torch.cat([times * unit for times in range(1, 5)])
    return torch.cat([alone, both[first < second], twice, 2 * both[first < second]])


def _spread_confidence(found: _Found, texts: Tensor) -> Tensor:
    """How sure the attack is that each token is in the batch, `(B, L)`; 0 where none is named."""
    doubts = dict(zip(found.tokens.tolist(), found.doubt.tolist(), strict=True))
    sure = [[1 - doubts.get(token, 1.0) for token in text] for text in texts.tolist()]
    return torch.tensor(sure, device=texts.device)


def _require_table(observation: Observation) -> None:
    find_token_table(observation.task)


@applies_to(Tokens, require=_require_table)
def bag_of_words(*, false_tokens: float = 0.1) -> Attack:
    """The tokens of a batch, from the rows of the embedding gradient that are not zero.

    The gradient of the embedding of token v is the sum of the gradients at all places where v
    stands. It is zero for every token that no text holds, so the rows that are not zero name the
    tokens of the batch. Clipping, pruning, rounding and sums over clients keep the zeros: every
    token that is named is then proved to be there, and pruning can only hide some.

    Behind noise each row is tested against the noise that the other rows show, normal or Laplace.
    The probability that a token is named which no text holds is about `false_tokens` divided by the
    size of the vocabulary, or less. Where noise is pruned to less than a quarter of all entries, no
    token is named.

    If a table of positions is trained as well, the text of a batch of one is put in order, exactly.
    If the network takes the mean of the embeddings, tokens are told apart by text. Elsewhere the
    order within the guess means nothing. Places of which nothing is known are -1.

    Args:
        false_tokens: How many tokens of the whole vocabulary are named by mistake, on average,
            behind noise.

    Example:
        >>> bag_of_words(false_tokens=1).false_tokens
        1

    Deviations:
        Order, texts and the test behind noise are ours. The paper goes on with a language model.

    References:
        Gupta et al., 2022 (gupta2022recovering)
    """
    return BagOfWords(false_tokens=false_tokens)
