"""The batch of a training step: its tensors, the range of numbers, the vocabulary of texts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from inspect import Parameter, signature

import torch
from torch import Tensor, nn

from seepage.core import Batch, Domain
from seepage.core._batch import are_numbers
from seepage.core._device import convert, upcast
from seepage.core.errors import InvalidValue, NotApplicable, summarise_error
from seepage.domains import Tokens
from seepage.probing._hooks import evaluating
from seepage.zoo._foreign import find_logits

_MASK = "attention_mask"
_INPUTS = ("pixel_values", "inputs", "inputs_embeds", "x", "input_ids")


def read_batch(batch: object) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the inputs of a batch as data loaders give it, and everything behind them.

    That is labels, and weights or masks if there are any; nothing if the inputs are alone.
    """
    match batch:
        case Batch():
            parts: tuple[object, ...] = (batch.inputs, batch.labels)
        case Tensor():
            parts = (batch,)
        case Mapping():
            named = next((key for key in _INPUTS if key in batch), None)
            parts = tuple(batch.get(key) for key in (named, "labels"))
        case tuple() | list() if batch:
            parts = tuple(batch)
        case _:
            parts = (None,)
    parts = parts[:1] if len(parts) == 2 and parts[1] is None else parts
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if len(tensors) < len(parts):
        raise InvalidValue(
            "expected a batch as (inputs, labels), as (inputs, labels, weights), as inputs alone, "
            f"or a mapping of {', '.join(_INPUTS)} and labels, all of them tensors, got "
            f"{_describe_parts(batch, parts)}; labels of other kinds, such as boxes, cannot be "
            "audited"
        )
    return tensors[0], tuple(tensors[1:])


def find_unread(model: nn.Module, batch: object) -> tuple[list[str], list[str]]:
    """Name what else a batch holds: what changes the network's outputs, and what it does not take.

    Attacks run networks on inputs alone, or on tokens with their mask.
    """
    if not isinstance(batch, Mapping):
        return [], []
    first = next(key for key in _INPUTS if key in batch)
    like = next(model.parameters(), torch.zeros(()))
    parts = {
        name: convert(part, like)
        for name, part in batch.items()
        if isinstance(part, Tensor) and part.ndim and len(part) == len(batch[first])
    }
    inputs, _ = parts.pop(first), parts.pop("labels", None)
    masked = not inputs.is_floating_point() and _MASK in parts
    given = {_MASK: parts.pop(_MASK)} if masked else {}
    takes = signature(model.forward).parameters.values()
    names = {one.name for one in takes}
    if any(one.kind is Parameter.VAR_KEYWORD for one in takes):
        names |= parts.keys()
    read, refused = list[str](), list[str]()
    with evaluating(model):
        for name, part in parts.items():
            try:
                if name not in names:
                    raise TypeError
                with_it = find_logits(model(inputs, **given, **{name: part}))
                if not torch.allclose(with_it, find_logits(model(inputs, **given))):
                    read.append(name)
            except Exception:  # noqa: BLE001 - networks raise anything at what they do not take
                refused.append(name)
    return read, refused


def _describe_parts(batch: object, parts: tuple[object, ...]) -> str:
    if isinstance(batch, Mapping):
        return ", ".join(f"{name}: {type(part).__name__}" for name, part in batch.items())
    if parts[0] is None and len(parts) == 1:
        return type(batch).__name__
    return f"({', '.join(type(part).__name__ for part in parts)})"


def check_batch(inputs: Tensor, targets: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the batch as attacks can read it, or raise with the reason why they cannot."""
    if inputs.ndim < 2 or not len(inputs):
        raise InvalidValue(
            "expected inputs (B, ...) with B >= 1 and an axis behind it, got "
            f"{tuple(inputs.shape)}; inputs in several tensors are joined to one that the network "
            "splits"
        )
    if inputs.layout is not torch.strided or inputs.is_complex():
        kind = f"{inputs.layout}, {inputs.dtype}"
        raise InvalidValue(f"expected inputs in a dense tensor of real numbers, got {kind}")
    for target in targets:
        if target.ndim == 0 or len(target) != len(inputs):
            raise InvalidValue(
                f"expected one label per input, got {len(inputs)} inputs and labels of shape "
                f"{tuple(target.shape)}"
            )
    # Double precision stays, or a network in it would read other numbers than in training.
    kept = upcast(inputs) if inputs.is_floating_point() else inputs.long()
    return kept.detach().clone(), tuple(_copy_target(target) for target in targets)


def _copy_target(target: Tensor) -> Tensor:
    """A copy, with class numbers as `(B,)` int64."""
    if are_numbers(target):
        return target.detach().clone()
    if target.dtype != torch.bool and target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    return target.detach().clone().long()


class MaskPadding(nn.Module):
    """Gives a network the mask that says which places of a text are padding.

    Args:
        model: Takes token numbers and `attention_mask`; not copied.
        padding: The token that fills texts up, on one side.

    Example:
        >>> find_mask(torch.tensor([[5, 0, 7, 0, 0]]), 0).tolist()
        [[1, 1, 1, 0, 0]]
    """

    def __init__(self, model: nn.Module, padding: int) -> None:
        super().__init__()
        self.model = model
        self.padding = padding

    def forward(self, tokens: Tensor) -> object:
        """Return what the model returns."""
        return self.model(tokens, attention_mask=find_mask(tokens, self.padding))


def find_mask(tokens: Tensor, padding: int) -> Tensor:
    """Return 1 for the tokens of a text, 0 for the padding before and after it, `(B, L)`."""
    own = (tokens != padding).long()
    begun = own.cumsum(1).clamp(max=1)
    open_still = own.flip(1).cumsum(1).clamp(max=1).flip(1)
    return begun * open_still


def read_mask(batch: object) -> Tensor | None:
    """The mask of a batch as tokenizers make it; None if it has none.

    Raises:
        InvalidValue: The batch has pairs of texts, which are not simulated.
    """
    if not isinstance(batch, Mapping):
        return None
    kinds = batch.get("token_type_ids")
    if isinstance(kinds, Tensor) and bool(kinds.any()):
        raise InvalidValue(
            "expected single texts, got token_type_ids that tell the texts of a pair apart; "
            "audit a batch of single texts"
        )
    found = batch.get(_MASK)
    return found if isinstance(found, Tensor) else None


def _find_padding(tokens: Tensor, mask: Tensor | None) -> int | None:
    """The token that fills short texts up, by the mask; None if no place is masked.

    Raises:
        InvalidValue: The masked places are not the ends of texts, filled up with one token.
    """
    if mask is None or bool(mask.bool().all()):
        return None
    if mask.shape != tokens.shape:
        raise InvalidValue(
            f"expected an attention_mask {tuple(tokens.shape)} as input_ids, got "
            f"{tuple(mask.shape)}"
        )
    fillers = sorted(set(tokens[~mask.bool()].tolist()))
    if len(fillers) != 1 or not torch.equal(find_mask(tokens, fillers[0]), mask.long()):
        raise InvalidValue(
            "expected an attention_mask that leaves out the ends of texts, filled up with one "
            "token that no text begins or ends with; use a padding token of its own"
        )
    return int(fillers[0])


def choose_texts(
    model: nn.Module, tokens: Tensor, *, declared: object, mask: Tensor | None
) -> Tokens:
    """Choose the space of texts: as long as the batch, of the tokens that the network knows.

    The mask is 0 where a text is padding; it is None if texts have one length.

    Raises:
        NotApplicable: The network looks no tokens up, so the whole numbers are something else.
        InvalidValue: The tokens do not fit the network.
    """
    if tokens.ndim != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise _refuse_whole_numbers(tokens)
    if tokens.shape[1] == 0:
        raise InvalidValue("expected texts of at least one token, got texts of length 0")
    size = _find_vocabulary(model, tokens.shape[1])
    if size is None:
        raise _refuse_whole_numbers(tokens)
    padding = _find_padding(tokens, mask)
    domain = Tokens(tokens.shape[1], size, padding=padding)
    if declared is not None:
        domain = _merge(declared, domain)
    if bool((outside := (tokens < 0) | (tokens >= size)).any()):
        raise InvalidValue(
            f"expected tokens in 0..{size - 1}, as many as the network has embeddings, got "
            f"{int(outside.sum())} of {outside.numel()} outside; the tokenizer does not fit the "
            "model"
        )
    return domain


def _refuse_whole_numbers(inputs: Tensor) -> NotApplicable:
    return NotApplicable(
        f"expected real numbers, or tokens (B, L) for a network that looks them up in an "
        f"nn.Embedding, got {inputs.dtype} of shape {tuple(inputs.shape)}: nobody can search "
        "between whole numbers; divide images by their largest value, such as 255"
    )


def _merge(declared: object, found: Tokens) -> Tokens:
    """The declared domain with the length of the batch; names fill up to the network's size."""
    if not isinstance(declared, Tokens):
        raise InvalidValue(f"expected domain=Tokens(...) for a batch of tokens, got {declared!r}")
    if declared.vocabulary > found.vocabulary:
        raise InvalidValue(
            f"expected at most {found.vocabulary} tokens, as many as the network has embeddings, "
            f"got a vocabulary of {declared.vocabulary}; the tokenizer does not fit the model"
        )
    more = range(len(declared.names), found.vocabulary) if declared.names else ()
    padding = found.padding if declared.padding is None else declared.padding
    return replace(found, names=(*declared.names, *map(str, more)), padding=padding)


def _find_vocabulary(model: nn.Module, length: int) -> int | None:
    """How many tokens the first embedding knows that reads the inputs; None if none does."""
    tables = (nn.Embedding, nn.EmbeddingBag)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    # Neither all types of a segment nor positions look like this.
    probe = torch.ones(1, length, dtype=torch.int64, device=device)
    sizes: list[int] = []

    def look(module: nn.Module, arguments: tuple[object, ...]) -> None:
        read = arguments[0] if arguments else None
        if isinstance(read, Tensor) and read.numel() == length and bool((read == 1).all()):
            assert isinstance(module, tables)
            sizes.append(module.num_embeddings)

    with ExitStack() as hooks, evaluating(model):
        for module in model.modules():
            if isinstance(module, tables):
                hooks.enter_context(module.register_forward_pre_hook(look))
        try:
            model(probe)
        except Exception as error:
            if not sizes:
                raise InvalidValue(
                    f"{type(model).__name__} cannot be run on tokens, it raised "
                    f"{summarise_error(error)}"
                ) from error
    return sizes[0] if sizes else None


def gather_texts(others: Tensor | None, domain: Domain) -> Tensor | None:
    """Texts of other people as the batch has them: cut, or filled up with padding."""
    if others is None or not isinstance(domain, Tokens):
        return others
    if others.is_floating_point() or others.ndim != 2:
        raise InvalidValue(
            f"expected others as tokens (N, L), got {others.dtype} of shape {tuple(others.shape)}"
        )
    cut = others[:, : domain.length].long()
    missing = domain.length - cut.shape[1]
    if missing and domain.padding is None:
        raise InvalidValue(
            f"expected others of {domain.length} tokens, as the batch, got {cut.shape[1]}; fill "
            "them up with the padding of domain=Tokens(..., padding=...)"
        )
    texts = nn.functional.pad(cut, (0, missing), value=domain.padding or 0)
    domain.check(texts)
    return texts
