"""Texts in a training step: the vocabulary that the network has, and how short texts are filled."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import Tensor, nn

from seepage.core import Domain
from seepage.core.errors import InvalidValue, NotApplicable, summarise_error
from seepage.domains import Tokens


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
        """Keep the model and the token."""
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
    """The mask of a batch as tokenizers make it; None if it has none."""
    found = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    return found if isinstance(found, Tensor) else None


def find_padding(tokens: Tensor, mask: Tensor | None) -> int | None:
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

    Args:
        model: The network.
        tokens: The private batch `(B, L)`, whole numbers.
        declared: A domain of texts with the words of tokens, or None.
        mask: 0 where a text is padding; None if texts have one length.

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
    padding = find_padding(tokens, mask)
    domain = Tokens(tokens.shape[1], size, padding=padding)
    if declared is not None:
        domain = _merge(declared, domain)
    highest, lowest = int(tokens.max()), int(tokens.min())
    if lowest < 0 or highest >= size:
        raise InvalidValue(
            f"expected tokens in 0..{size - 1}, as many as the network has embeddings, got "
            f"{lowest} to {highest}; the tokenizer does not fit the model"
        )
    return domain


def _refuse_whole_numbers(inputs: Tensor) -> NotApplicable:
    return NotApplicable(
        f"expected real numbers, or tokens (B, L) for a network that looks them up in an "
        f"nn.Embedding, got {inputs.dtype} of shape {tuple(inputs.shape)}: nobody can search "
        "between whole numbers; divide images by 255"
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

    was_training = model.training
    with ExitStack() as hooks, torch.no_grad():
        for module in model.modules():
            if isinstance(module, tables):
                hooks.enter_context(module.register_forward_pre_hook(look))
        try:
            model.eval()(probe)
        except Exception as error:
            if not sizes:
                raise InvalidValue(
                    f"{type(model).__name__} cannot be run on tokens, it raised "
                    f"{summarise_error(error)}"
                ) from error
        finally:
            model.train(was_training)
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
