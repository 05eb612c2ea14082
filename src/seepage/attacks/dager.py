"""DAGER: exact texts from the gradient of a decoder."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.applicability import applies_to
from seepage.attacks.certificate import certify_solved
from seepage.attacks.exact_batch.assign_labels import match_one_to_one
from seepage.attacks.text_readers import (
    Check,
    Limits,
    Readers,
    assemble_texts,
    find_readers,
    row_span,
    tokens_in_span,
)
from seepage.core import Attack, Observation, Reconstruction, Rng, Task, Trace
from seepage.core.device import precision
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.rng import require_key
from seepage.domains import Tokens
from seepage.probing.heads import classifier_head
from seepage.probing.usable_update import require_usable


def read_labels(observation: Observation, features: Tensor, logits: Tensor) -> Tensor:
    """The label of each text: the one whose gradient at the logits agrees with the head's.

    The gradient of the head is dW = U^T F, with the known features F of the texts `(B, d)`, so
    that the gradients at the logits are U = (dW F^+)^T. Only their direction is compared, and
    neither the size of the batch nor a step size matters.

    Args:
        observation: With the labels in some order, each then given to one text, or without.
        features: What the head reads of each text, `(B, d)`.
        logits: What it gives, `(B, K)`.
    """
    task, known = observation.task, observation.labels
    gradient = observation.update.descent().tensors[classifier_head(task).weight].double()
    seen = (gradient @ torch.linalg.pinv(features.double())).T
    options = torch.arange(task.classes, device=logits.device) if known is None else known
    fit = torch.stack(
        [_fit(observation, logits, option, seen) for option in options.unbind()], dim=1
    )
    return options[fit.argmax(1) if known is None else match_one_to_one(fit)]


def _fit(observation: Observation, logits: Tensor, option: Tensor, seen: Tensor) -> Tensor:
    leaves = logits.detach().requires_grad_()
    losses = observation.task.loss(leaves, option.expand(len(leaves), *option.shape))
    (slopes,) = torch.autograd.grad(losses.sum(), leaves)
    return torch.cosine_similarity(slopes.double(), seen, dim=1)


@dataclass(frozen=True, kw_only=True)
class _Dager:
    """Texts whose tokens and prefixes lie in the spans of a decoder's gradients.

    The weight gradient of a layer that reads vectors x_i is sum_i (dL/dy_i) x_i^T, so the x_i lie
    in its row space, whose dimension is at most the number of tokens in the batch. What the first
    attention reads depends on a token and its position alone: every token of the vocabulary is
    tried. What layers above it read depends on the tokens before as well: texts are grown from
    left to right, and only those are kept whose every prefix lies in the spans.

    Neither labels nor the batch size are needed, nor a gradient of the embeddings. The scale of
    the update cancels, so that one local step and clipping change nothing. Behind noise, where
    nothing lies inside, the guess is made of what lies nearest, and the certificate says so.

    Args:
        rank_tolerance: Singular values below this share of the largest are rounding.
        tolerance: Largest share of a vector outside a span that counts as inside.
        at_most: Prefixes kept at each position.

    References:
        Petrov et al., 2024 (petrov2024dager)
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
        task, domain = observation.task, observation.task.domain
        require_usable(observation.update, task)
        if not isinstance(domain, Tokens):
            raise NotApplicable(
                f"dager reads token sequences, but the inputs of {task.name} are {domain!r}; use "
                "gradient matching"
            )
        readers = find_readers(task, tolerance=self.rank_tolerance)
        tokens, prefixes = self._checks(observation, readers)
        limits = Limits(self.tolerance, observation.batch_size or 1, self.at_most)
        candidates = tokens_in_span(task, tokens, vocabulary=domain.vocabulary, limits=limits)
        found = assemble_texts(task, prefixes, candidates, limits=limits)
        people = observation.batch_size or len(found.texts)
        texts = found.texts[:people]
        labels = read_labels(observation, *_headed(task, texts))
        inside = int((found.outside < self.tolerance).sum())
        seconds = time.perf_counter() - began
        return Reconstruction(
            texts,
            labels,
            Trace(seconds=seconds, device=str(texts.device)),
            # Unique if, of all the texts the vocabulary can make, only these lie in the spans.
            certify_solved(
                observation,
                texts,
                labels,
                read=_weights(readers),
                alone=found.complete and inside == people,
            ),
        )

    def _checks(
        self, observation: Observation, readers: Readers
    ) -> tuple[Check, tuple[Check, ...]]:
        size = observation.batch_size
        at_most = None if size is None else size * observation.task.domain.shape[0]
        first, *rest = (
            Check(
                reader,
                row_span(
                    reader.gradient(observation.update),
                    tolerance=self.rank_tolerance,
                    at_most=at_most,
                ),
            )
            for reader in (readers.token, *readers.prefix)
        )
        return first, tuple(rest)


def _headed(task: Task, texts: Tensor) -> tuple[Tensor, Tensor]:
    """What the head reads of the texts, and what it gives."""
    name = classifier_head(task).weight.removesuffix(".weight")
    read: list[Tensor] = []
    layer = task.network.get_submodule(name)
    handle = layer.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    try:
        with torch.no_grad():
            logits = task.outputs(task.parameters, texts)
    finally:
        handle.remove()
    return read[0], logits


def _weights(readers: Readers) -> list[str]:
    """Names of the tensors whose spans were read."""
    layers = [layer for reader in (readers.token, *readers.prefix) for layer in reader.layers]
    return [f"{layer}.weight" for layer in layers]


@applies_to(Tokens)
def dager(*, rank_tolerance: float = 1e-6, tolerance: float = 0.05, at_most: int = 4_096) -> Attack:
    """Texts of a decoder, exactly: tokens and prefixes that lie in the spans of its gradients.

    Args:
        rank_tolerance: Singular values below this share of the largest are rounding.
        tolerance: Largest share of a vector outside a span that counts as inside.
        at_most: Prefixes kept at each position.

    Example:
        >>> dager(tolerance=0.01)
        Dager(rank_tolerance=1e-06, tolerance=0.01, at_most=4096)

    Deviations:
        Query, key and value are read together, as are all layers that read the same: the query
        alone says nothing of a first token, which attends to itself only. Texts are checked at
        every layer that tells, where the paper takes the second attention. Decoders only, and
        texts of one length.

    References:
        Petrov et al., 2024 (petrov2024dager)
    """
    return _Dager(rank_tolerance=rank_tolerance, tolerance=tolerance, at_most=at_most)
