"""DAGER: exact texts from the gradient of a decoder."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.applicability import applies_to
from seepage.attacks.certificate import certify_solved
from seepage.attacks.exact_batch.assign_labels import match_one_to_one
from seepage.attacks.text.readers import (
    TOGETHER,
    Reader,
    list_readers,
    run_reader,
    stack_gradients,
)
from seepage.attacks.text.token_table import require_texts
from seepage.clients import Gradient
from seepage.core import Attack, Certificate, Observation, Reconstruction, Rng, Task, Trace
from seepage.core.device import precision
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.progress import report
from seepage.core.rng import require_key
from seepage.domains import Tokens
from seepage.numerics.row_span import row_span, share_outside
from seepage.probing.heads import classifier_head
from seepage.probing.hooks import layer_inputs
from seepage.probing.usable_update import require_usable

# Texts times labels, of which each is tried if no head tells.
MOST_TRIED = 256


def find_readers(task: Task, *, tolerance: float) -> tuple[Reader, tuple[Reader, ...]]:
    """Find a reader of single tokens, and all readers of prefixes.

    Only readers count whose gradient spans everything they read, which is tested on one random
    text: in the last block only the classified position may count.

    Raises:
        NotApplicable: The network has no such layers, for example if it reads in both directions.
    """
    found = list_readers(task)
    probe = Gradient()(task, found.text[None], torch.zeros_like(found.text[:1]))
    spanning: dict[str, list[Reader]] = {"token": [], "prefix": []}
    for reader in found.readers:
        basis = row_span(stack_gradients(reader.layers, probe), tolerance=tolerance)
        outside = share_outside(basis, reader.read)
        if reader.sees in spanning and bool((outside < 1e-2).all()):
            spanning[reader.sees].append(reader.layers)
    if not spanning["token"] or not spanning["prefix"]:
        raise NotApplicable(
            f"expected {task.name} to read texts from left to right by trained linear layers, two "
            "blocks deep or more, got none whose gradient spans what it read; use another attack"
        )
    return spanning["token"][0], tuple(spanning["prefix"])


def _find_labels(observation: Observation, texts: Tensor) -> Tensor | None:
    """Labels of known texts, by the head, or by trying each label where no head is found.

    None if there are too many to try.
    """
    try:
        return _read_labels(observation, *_run_head(observation.task, texts))
    except NotApplicable:
        return _try_labels(observation, texts)


def _try_labels(observation: Observation, texts: Tensor) -> Tensor | None:
    """Change one label at a time as long as the simulated update comes nearer to the observed one.

    Args:
        observation: If it has labels, two of them change places at a time.
        texts: `(B, L)`.
    """
    known, classes = observation.labels, observation.task.classes
    count = len(texts)
    if count * max(count, classes) > MOST_TRIED:
        return None
    wanted = observation.update.flat()

    def measure(labels: Tensor) -> float:
        with torch.no_grad():
            return float((observation.simulate(texts, labels).flat() - wanted).norm())

    labels = texts.new_zeros(count) if known is None else known.clone()
    best, better = measure(labels), True
    while better:
        better = False
        for place in range(count):
            for option in range(classes if known is None else count):
                changed = labels.clone()
                if known is None:
                    changed[place] = option
                else:
                    changed[[place, option]] = labels[[option, place]]
                distance = measure(changed)
                if distance < best * (1 - 1e-6):
                    labels, best, better = changed, distance, True
    return labels


def _read_labels(observation: Observation, features: Tensor, logits: Tensor) -> Tensor:
    """Return for each text the label whose gradient at the logits agrees best with the head's.

    The gradient of the head is dW = U^T F, with the known features F of the texts `(B, d)`, so
    the gradients at the logits are U = (dW F^+)^T. Only directions are compared, so neither the
    batch size nor a step size matters.

    Args:
        observation: If it has labels, each is given to one text.
        features: What the head reads of each text, `(B, d)`.
        logits: What the head returns, `(B, K)`.
    """
    task, known = observation.task, observation.labels
    gradient = observation.update.descent().tensors[classifier_head(task).weight].double()
    seen = (gradient @ torch.linalg.pinv(features.double())).T
    options = torch.arange(task.classes, device=logits.device) if known is None else known
    leaves, fits = logits.detach().requires_grad_(), []
    for option in options:
        losses = task.loss(leaves, option.expand(len(leaves), *option.shape))
        (slopes,) = torch.autograd.grad(losses.sum(), leaves)
        fits.append(torch.cosine_similarity(slopes.double(), seen, dim=1))
    fit = torch.stack(fits, dim=1)
    return options[fit.argmax(1) if known is None else match_one_to_one(fit)]


@dataclass(frozen=True, eq=False)
class _Check:
    """A reader with the basis of the row space of its observed gradient."""

    reader: Reader
    basis: Tensor

    def measure(self, task: Task, texts: Tensor) -> Tensor:
        """Return how far outside the span texts `(N, L)` lie at every position, `(N, L)`."""
        parts = torch.split(texts, TOGETHER)
        return torch.cat(
            [share_outside(self.basis, run_reader(task, self.reader, p)) for p in parts]
        )


@dataclass(frozen=True, kw_only=True)
class _Dager:
    """Find the texts whose tokens and prefixes lie in the spans of a decoder's gradients.

    The weight gradient of a layer that reads vectors x_i is sum_i (dL/dy_i) x_i^T. So the x_i lie
    in its row space, whose dimension is at most the number of tokens in the batch. The first
    attention reads a function of a token and its position: every token of the vocabulary is tried.
    Later layers also depend on the tokens before: texts grow from left to right, and only those
    are kept whose every prefix lies in the spans.

    Labels, batch size and the gradient of the embeddings are not needed. The scale of the update
    cancels, so one local step and clipping change nothing. With noise, where nothing lies inside,
    the guess is made of the nearest texts, and the certificate says so.

    The arguments are those of `dager`.
    """

    rank_tolerance: float = 1e-6
    tolerance: float = 0.05
    at_most: int = 4_096

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("rank_tolerance", "tolerance"):
            if not 0 < getattr(self, name) < 1:
                raise InvalidValue(f"expected {name} between 0 and 1, got {getattr(self, name)!r}")
        if self.at_most < 1:
            raise InvalidValue(f"expected at_most >= 1, got {self.at_most!r}")

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Read the texts; nothing is random."""
        require_key(rng)
        # Spans are told from rounding, which a GPU would make larger.
        with precision("float32"):
            return self._read(observation)

    def _read(self, observation: Observation) -> Reconstruction:
        began = time.perf_counter()
        task, update, size = observation.task, observation.update, observation.batch_size
        require_usable(update, task)
        domain = require_texts(task.domain, needed_by="dager")
        token, prefixes = find_readers(task, tolerance=self.rank_tolerance)
        first, *rest = (
            _Check(
                reader,
                row_span(
                    stack_gradients(reader, update),
                    tolerance=self.rank_tolerance,
                    at_most=None if size is None else size * domain.length,
                ),
            )
            for reader in (token, *prefixes)
        )
        candidates = self._find_tokens(task, first, domain.vocabulary, at_least=size or 1)
        found, outside, complete = self._grow_texts(task, rest, candidates, at_least=size or 1)
        if domain.padding is not None:
            kept = _drop_beginnings(found, domain.padding, at_least=size or 1)
            found, outside = found[kept], outside[kept]
        # Where positions are rotations, one word again and again looks like the word alone.
        last = (found == found[:, :1]).all(1).long().argsort(stable=True)
        found, outside = found[last], outside[last]
        size = size or len(found)
        texts = found[:size]
        labels = _find_labels(observation, texts)
        inside = int((outside < self.tolerance).sum())
        seconds = time.perf_counter() - began
        certificate = Certificate(math.inf)
        if labels is not None:
            certificate = certify_solved(
                observation,
                texts,
                labels,
                read=[f"{layer}.weight" for reader in (token, *prefixes) for layer in reader],
                # Unique if no other text that the vocabulary can make lies in the spans.
                alone=complete and inside == size,
            )
        trace = Trace(seconds=seconds, device=str(texts.device))
        sure = (outside[:size, None] < self.tolerance).float().expand(-1, domain.length)
        return Reconstruction(texts, labels, trace, certificate, sure.clone())

    def _find_tokens(
        self, task: Task, check: _Check, vocabulary: int, *, at_least: int
    ) -> list[Tensor]:
        """Try every token at every position; keep those whose embedding lies in the span.

        Raises:
            NotApplicable: The span holds half of the vocabulary or more, so it tells nothing.
        """
        everywhere = task.move_inputs(torch.arange(vocabulary))[:, None]
        outside = check.measure(task, everywhere.expand(-1, task.domain.shape[0]))
        if float((outside < self.tolerance).double().mean()) > 0.5:
            raise NotApplicable(
                f"the update spans {len(check.basis)} directions and with them nearly every token, "
                "so it tells none apart; the batch holds too many tokens for this width, or it is "
                "noisy"
            )
        return [self._select_nearest(column, at_least) for column in outside.T]

    def _grow_texts(
        self, task: Task, checks: Sequence[_Check], candidates: Sequence[Tensor], *, at_least: int
    ) -> tuple[Tensor, Tensor, bool]:
        """Grow texts by a token at a time, and keep those whose every prefix lies in the spans.

        Position i of a decoder does not depend on later positions, so the rest may be anything. A
        text may end anywhere if the domain knows padding: what follows is not read.

        Returns:
            The texts `(N, L)`, the nearest first; how far outside each lies at its worst `(N,)`;
            and whether every text that lies inside is among them.
        """
        texts = candidates[0].new_zeros(1, len(candidates))
        worst = texts.new_zeros(1, dtype=torch.float64)
        complete = max(map(len, candidates)) < self.at_most
        padding = task.domain.padding if isinstance(task.domain, Tokens) else None
        for position, tokens in enumerate(candidates):
            if padding is not None:
                tokens = tokens[tokens != padding]
                tokens = torch.cat([tokens, tokens.new_full((int(position > 0),), padding)])
            outside = worst.repeat_interleave(len(tokens))
            texts = texts.repeat_interleave(len(tokens), 0)
            texts[:, position] = tokens.repeat(len(worst))
            ended = texts[:, position] == padding if padding is not None else outside < 0
            if padding is not None and position:
                going = ended | (texts[:, position - 1] != padding)
                texts, outside, ended = texts[going], outside[going], ended[going]
            for check in checks:
                measured = check.measure(task, texts)[:, position]
                outside = torch.where(ended, outside, torch.maximum(outside, measured))
                kept = self._select_nearest(outside, at_least)
                texts, outside, ended = texts[kept], outside[kept], ended[kept]
                complete = complete and len(kept) < self.at_most
            worst = outside
            report(position + 1, len(candidates), float(worst.max()))
        return texts, worst, complete

    def _select_nearest(self, outside: Tensor, at_least: int) -> Tensor:
        """Return indices of those inside, nearest first; with noise, of the `at_least` nearest."""
        count = int((outside < self.tolerance).sum())
        return outside.argsort(stable=True)[: min(max(count, at_least), self.at_most)]


def _drop_beginnings(texts: Tensor, padding: int, *, at_least: int) -> Tensor:
    """Indices of texts that are not the beginning of another one, which lie in the spans as well.

    Args:
        texts: `(N, L)`, the nearest first.
        padding: What fills texts up.
        at_least: The longest beginnings are kept as well if there are fewer texts than this.

    Example:
        >>> texts = torch.tensor([[4, 0, 0], [4, 7, 0], [5, 0, 0]])
        >>> _drop_beginnings(texts, 0, at_least=2).tolist()
        [1, 2]
    """
    rows = [tuple(t for t in text if t != padding) for text in texts.tolist()]
    beginnings = {row[:end] for row in rows for end in range(len(row))}
    whole = [i for i, row in enumerate(rows) if row not in beginnings]
    parts = sorted(set(range(len(rows))) - set(whole), key=lambda i: -len(rows[i]))
    chosen = whole + parts[: max(0, at_least - len(whole))]
    return torch.tensor(chosen, dtype=torch.long, device=texts.device)


def _run_head(task: Task, texts: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the head reads of the texts, and the logits."""
    name = classifier_head(task).weight.removesuffix(".weight")
    with layer_inputs(task.network, [name]) as read, torch.no_grad():
        logits = task.outputs(task.parameters, texts)
    return read[name], logits


def _require_decoder(observation: Observation) -> None:
    require_texts(observation.task.domain, needed_by="dager")
    with precision("float32"):
        find_readers(observation.task, tolerance=1e-6)


@applies_to(Tokens, require=_require_decoder)
def dager(*, rank_tolerance: float = 1e-6, tolerance: float = 0.05, at_most: int = 4_096) -> Attack:
    """Exact texts of a decoder: tokens and prefixes that lie in the spans of its gradients.

    Args:
        rank_tolerance: Singular values below this share of the largest are rounding.
        tolerance: Largest share of a vector outside a span that counts as inside.
        at_most: Prefixes kept at each position.

    Example:
        >>> dager(tolerance=0.01).tolerance
        0.01

    Deviations:
        Layers that read the same, such as query, key and value, are stacked: the query alone says
        nothing about a first token, which attends only to itself. Texts are checked at every
        layer that tells; the paper takes the second attention. Decoders only; `token_span` reads
        the words of encoders.

    References:
        Petrov et al., 2024 (petrov2024dager)
    """
    return _Dager(rank_tolerance=rank_tolerance, tolerance=tolerance, at_most=at_most)
