"""One text of a decoder, word by word, off the gradient of whatever parameters are trained."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks._applicability import applies_to
from seepage.attacks._certificate import certify_solved
from seepage.attacks.text._next_token_terms import TOGETHER, CutDecoder, cut_decoder, weigh_terms
from seepage.attacks.text._token_table import draw_texts, require_texts
from seepage.core import Attack, BaseAttack, Observation, Reconstruction, Rng
from seepage.core._device import precision
from seepage.core._progress import report
from seepage.core.errors import InvalidValue, NotApplicable, explain_errors, require_positive
from seepage.domains import Tokens

# Simulated texts for each text that is kept, and at most.
_TEXTS, _MOST_TEXTS = 16, 1_024
# Rows that tell a covariance, at most.
_ROWS = 2_048
# Variance in every direction, as a share of the mean one of the simulated terms.
_RIDGE = 3e-3
# A text explains the update if it leaves at most this share; wrong texts left 7e-2 and more.
_EXPLAINED = 1e-4
# Variances below this share of the largest are rounding.
_ROUNDING = 1e-7
# First words, of which each has its own derivatives, and words that tell their mean length.
_FIRST, _PROBES = 64, 16


@dataclass(frozen=True, eq=False)
class _Whitening:
    """Multiplies by the inverse root of the covariance of what is not known yet.

    Args:
        basis: Its eigenvectors, `(r, P)`.
        shrink: How much of each is taken away, `(r,)`.
        scale: Of all other directions.
    """

    basis: Tensor
    shrink: Tensor
    scale: float

    @classmethod
    def of(cls, rows: Tensor) -> _Whitening:
        """The covariance X^T X of rows X `(N, P)`, and a little in every direction."""
        if len(rows) >= rows.shape[1]:
            variances, vectors = torch.linalg.eigh(rows.T @ rows)
            basis = vectors.T
        else:
            variances, vectors = torch.linalg.eigh(rows @ rows.T)
            told = variances > _ROUNDING * variances[-1]
            variances = variances[told]
            basis = (rows.T @ vectors[:, told] / variances.sqrt()).T
        variances = variances.clamp(min=0)
        least = _RIDGE * variances.sum() / rows.shape[1]
        shrink = 1 - (least / (variances + least)).sqrt()
        return cls(basis, shrink, float(least.rsqrt()))

    def __call__(self, vectors: Tensor) -> Tensor:
        """Whiten vectors `(..., P)`, so that chance has unit covariance."""
        return self.scale * (vectors - (vectors @ self.basis.T * self.shrink) @ self.basis)


@dataclass(frozen=True, eq=False)
class _Beginning:
    """Words that a text may begin with.

    Args:
        text: `(L,)`.
        left: What they leave of the update, `(P,)`.
        doubt: Minus twice the logarithm of how likely the network finds them.
        badness: The square of what is left in units of what chance does, plus the doubt.
    """

    text: Tensor
    left: Tensor
    doubt: float = 0.0
    badness: float = 0.0


@dataclass(frozen=True, kw_only=True)
class NextWords(BaseAttack):
    """Find the words one after the other whose terms add up to the update.

    The arguments are those of `next_words`.
    """

    widths: tuple[int, ...] = (8, 32, 128)
    seconds: float = 180.0

    def __post_init__(self) -> None:
        require_positive(seconds=self.seconds)
        if not self.widths or any(type(w) is not int or w < 1 for w in self.widths):
            raise InvalidValue(f"expected widths of at least one text, got {self.widths!r}")

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Read the text; chance draws the texts that are simulated."""
        began = time.perf_counter()
        domain = require_texts(observation.task.domain, needed_by="next_words")
        decoder = _require_decoder(observation)
        sentence = f"{observation.task.name} cannot be differentiated twice, it raised"
        with explain_errors(NotApplicable, sentence):
            text, alone = self._read(observation, decoder, rng, began)
        filler = 0 if domain.padding is None else domain.padding
        texts = text.new_full((1, domain.length), filler)
        texts[0, : len(text)] = text
        labels = observation.task.blank_labels(1)
        certificate = certify_solved(observation, texts, labels, read=decoder.names, alone=alone)
        sure = torch.full(texts.shape, float(certificate.unique is True), device=texts.device)
        return Reconstruction(texts, labels, certificate=certificate, confidence=sure)

    def _read(
        self, observation: Observation, decoder: CutDecoder, rng: Rng, began: float
    ) -> tuple[Tensor, bool]:
        """The text that leaves least of the update, and whether it alone leaves nothing."""
        domain = require_texts(observation.task.domain, needed_by="next_words")
        shared = decoder.flatten(observation.update.descent().tensors).float()
        shortest = domain.length if domain.padding is None else 1 + decoder.first
        lengths = range(domain.length, shortest - 1, -1)
        terms = shared.new_zeros(0, domain.length - decoder.first, len(shared))
        best: _Beginning | None = None
        for width in self.widths:
            count = min(_TEXTS * width, _MOST_TEXTS) - len(terms)
            needed = _estimate_seconds(decoder, count, width, lengths)
            if needed > self.seconds - (time.perf_counter() - began):
                if best is not None:
                    break
                raise NotApplicable(
                    f"expected to read {observation.task.name} in {self.seconds:g} s, got about "
                    f"{needed:.0f} s on this machine; give next_words(seconds=...) more, or run it "
                    "on a GPU"
                )
            texts = decoder.sample(count, domain.length, rng.fork("texts", width))
            terms = torch.cat([terms, *(decoder.find_terms(text)[None] for text in texts)])
            for length in lengths:
                weight = weigh_terms(observation, decoder, length)
                found, *others = _grow_texts(decoder, shared, weight * terms, weight, length, width)
                if found.badness <= _EXPLAINED:
                    return found.text, all(one.badness > _EXPLAINED for one in others)
                best = min(best or found, found, key=lambda one: one.badness)
        assert best is not None
        return best.text, False


def _estimate_seconds(decoder: CutDecoder, texts: int, width: int, lengths: range) -> float:
    """How long simulated texts and the search of a width take, by one text."""
    (text,) = decoder.task.move_inputs(draw_texts(decoder.domain, 1))
    began = time.perf_counter()
    decoder.find_terms(text)
    told = time.perf_counter()
    decoder.find_slopes(text[:-1])
    each = time.perf_counter() - told
    places = sum(width * length + decoder.first * _FIRST for length in lengths)
    return texts * (told - began) + places * each


def _grow_texts(
    decoder: CutDecoder, shared: Tensor, terms: Tensor, weight: float, length: int, width: int
) -> list[_Beginning]:
    """Grow texts by a word at a time, and keep those that explain the update best.

    Args:
        decoder: The network.
        shared: The update, `(P,)`.
        terms: What each place of simulated texts adds to one, `(N, T, P)`.
        weight: Of a term.
        length: Of the texts.
        width: How many are kept.

    Returns:
        Whole texts, the best first; `badness` is the share of the update that each leaves.
    """
    live = [_Beginning(torch.zeros(0, dtype=torch.long, device=shared.device), shared)]
    for place in range(decoder.first, length):
        later = terms[:, place + 1 - decoder.first : length - decoder.first].flatten(0, 1)
        step = math.ceil(len(later) / _ROWS)
        whiten = _Whitening.of(later[::step] * math.sqrt(step / len(terms))) if len(later) else None
        if place and not len(live[0].text):
            words = _find_first(decoder, shared, weight, whiten)
            live = [_Beginning(word[None], shared) for word in words]
        grown = [one for text in live for one in _extend(decoder, text, weight, width, whiten)]
        live = sorted(grown, key=lambda one: one.badness)[:width]
        report(place + 1, length, live[0].badness)
    size = shared.norm()
    ended = [replace(one, badness=float(one.left.norm() / size)) for one in live]
    return sorted(ended, key=lambda one: one.badness)


def _extend(
    decoder: CutDecoder, start: _Beginning, weight: float, width: int, whiten: _Whitening | None
) -> Iterator[_Beginning]:
    """The best words after a beginning; at the end of a text any that fits exactly.

    With the derivatives J of what the output layer reads, the term of word v is
    J^T (sum_u p_u w_u - w_v): those of all words are had at once.
    """
    features, slopes = decoder.find_slopes(start.text)
    chances = decoder.predict(features)
    pulls = decoder.find_pulls(chances)
    left, turned = (start.left, slopes) if whiten is None else map(whiten, (start.left, slopes))
    inner = pulls @ (turned @ left)
    lengths = (pulls @ (turned @ turned.T) * pulls).sum(1)
    badness = left.square().sum() - 2 * weight * inner + weight**2 * lengths
    # The last word has nothing after it that would blur it.
    doubt = start.doubt - 2 * chances if whiten is not None else torch.zeros_like(chances)
    badness = badness + doubt
    if decoder.domain.padding is not None:
        badness[decoder.domain.padding] = math.inf
    for word in badness.topk(min(width, len(badness)), largest=False).indices:
        yield _Beginning(
            torch.cat([start.text, word[None]]),
            start.left - weight * (pulls[word] @ slopes),
            float(doubt[word]),
            float(badness[word]),
        )


def _find_first(
    decoder: CutDecoder, shared: Tensor, weight: float, whiten: _Whitening | None
) -> Tensor:
    """First words after which some second word fits, if nothing predicts the first, `(N,)`.

    Each has derivatives J of its own, so that all words are tried roughly: J times what is left of
    the update is one derivative for all words together, and J J^T is taken as its mean over some.
    """
    left = shared if whiten is None else whiten(whiten(shared))
    direction = decoder.unflatten(left)
    words = decoder.task.move_inputs(torch.arange(decoder.domain.vocabulary))
    seen: list[Tensor] = []
    along: list[Tensor] = []
    for part in torch.split(words, TOGETHER):
        leaves = decoder.make_leaves()
        features = decoder.read_next(leaves, part[:, None])
        # J v is the derivative of u^T J v by u.
        pulled = torch.zeros_like(features, requires_grad=True)
        rows = torch.autograd.grad(
            features,
            list(leaves.values()),
            pulled,
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        products = [(row * direction[name]).sum() for name, row in zip(leaves, rows, strict=True)]
        along += torch.autograd.grad(torch.stack(products).sum(), [pulled])
        seen.append(features.detach())
    slopes = torch.cat(along)
    chances = decoder.predict(torch.cat(seen))
    probes = (decoder.find_slopes(word[None])[1] for word in words[:: 1 + len(words) // _PROBES])
    turned = torch.stack([one if whiten is None else whiten(one) for one in probes])
    mean = (turned @ turned.mT).mean(0)
    vectors = decoder.head.weight.detach()
    expected = chances.exp() @ vectors
    inner = (expected * slopes).sum(1, keepdim=True) - slopes @ vectors.T
    lengths = (
        (expected @ mean * expected).sum(1, keepdim=True)
        - 2 * expected @ mean @ vectors.T
        + (vectors @ mean * vectors).sum(1)
    )
    badness = weight**2 * lengths - 2 * weight * inner - 2 * chances * (whiten is not None)
    best = badness.min(1).values
    if decoder.domain.padding is not None:
        best[decoder.domain.padding] = math.inf
    return best.topk(min(_FIRST, len(best)), largest=False).indices


def _require_decoder(observation: Observation) -> CutDecoder:
    """Take the network of an observation apart, and require one text and one gradient of it."""
    decoder = cut_decoder(observation.task)
    if observation.batch_size not in (None, 1):
        raise NotApplicable(
            f"expected an update of one text, got {observation.batch_size}: terms of several texts "
            "add up to the same sum in too many ways for next_words"
        )
    weigh_terms(observation, decoder, decoder.domain.length)
    return decoder


def _require_one_text(observation: Observation) -> None:
    with precision("float32"):
        _require_decoder(observation)


@applies_to(Tokens, require=_require_one_text, rank=1)
def next_words(*, widths: tuple[int, ...] = (8, 32, 128), seconds: float = 180.0) -> Attack:
    """One text of a decoder that predicts the next token, whichever of its parameters are trained.

    The loss is a sum of terms, one for each word, and a place of a decoder does not depend on later
    ones. So the term of word t depends on the words up to t alone. With the derivatives J_t of what
    the output layer reads there, and its rows w_v, it is

        g_t(v) = c J_t^T (sum_u p_u w_u - w_v)

    for every word v of the vocabulary at once. The terms of later words are not known; texts that
    the network itself expects tell their covariance S. A word counts by

        (r - g_t(v))^T S^-1 (r - g_t(v)) - 2 log p_v

    where r is what the words before leave of the update. Texts grow from left to right, some of the
    best are kept, and a whole text is right if it leaves nothing. So soft prompts, prefixes that a
    projection makes, scaled activations (IA3), biases and norms give a text away, and so do
    adapters that are too small for `dager`.

    A text is claimed only if it leaves less than 1e-4 of the update, and no other one does.

    Args:
        widths: How many texts are kept at a time: as many as the first number says, and if none
            explains the update, once more with the next one.
        seconds: About how long it may take; where the first width takes longer, the attack does not
            apply, and later ones are left out.

    Example:
        >>> next_words(widths=(8,)).widths
        (8,)

    Deviations:
        Ours; no paper has it.

    References:
        Lester et al., 2021 (lester2021prompt), on soft prompts; Liu et al., 2022 (liu2022learning),
        on IA3
    """
    return NextWords(widths=tuple(widths), seconds=seconds)
