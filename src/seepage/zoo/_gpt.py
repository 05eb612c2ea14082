"""A decoder-only transformer that classifies texts."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from seepage.core import Domain, Task
from seepage.core.errors import InvalidValue
from seepage.domains._tokens import Tokens
from seepage.zoo._build_task import build_task, require_int
from seepage.zoo._lora import adapt


class Attention(nn.Module):
    """Causal self-attention: every position attends to itself and to those before it."""

    later: Tensor

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("later", later, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Mix positions, `(B, L, d)` to `(B, L, d)`."""
        query, key, value = (
            projection(features).reshape(*features.shape[:-1], self.heads, -1).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        later = self.later[: features.shape[1], : features.shape[1]]
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        mixed: Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return mixed


class TransformerBlock(nn.Module):
    """Attention, then a perceptron at every position, each with LayerNorm and a shortcut."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, length)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, features: Tensor) -> Tensor:
        """Add both parts to the features."""
        features = features + self.attention(self.norm1(features))
        hidden = nn.functional.gelu(self.up(self.norm2(features)))
        added: Tensor = features + self.down(hidden)
        return added


class _GPT(nn.Module):
    """Embeddings of tokens and positions, blocks, a head that reads the last position."""

    def __init__(
        self, domain: Tokens, *, width: int, layers: int, heads: int, classes: int
    ) -> None:
        """Make the layers and draw the weights as GPT-2 does."""
        super().__init__()
        self.tokens = nn.Embedding(domain.vocabulary, width)
        self.positions = nn.Embedding(domain.length, width)
        self.blocks = nn.ModuleList(
            TransformerBlock(width, heads, domain.length) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes, bias=False)
        self.apply(_draw_weights)

    def forward(self, tokens: Tensor) -> Tensor:
        """Class logits `(B, K)` of token sequences `(B, L)`."""
        features = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            features = block(features)
        logits: Tensor = self.head(self.norm(features[:, -1]))
        return logits


def gpt(
    *,
    width: int = 128,
    layers: int = 3,
    heads: int = 4,
    embeddings: bool = True,
    lora: int = 0,
    classes: int = 10,
    domain: Domain = Tokens(12, 512),  # noqa: B008 - a frozen value
    seed: int = 0,
) -> Task:
    """Decoder-only transformer in the manner of GPT-2, classifying by the last token.

    Args:
        width: Dimension d of the embeddings.
        layers: Number of blocks.
        heads: Of each attention; divides the width.
        embeddings: Whether the embeddings are trained; if not, they are frozen and not part of
            the update.
        lora: Rank of adapters beside query, key and value of every block, with all but the head
            frozen; 0 for none. They are as after a step, see `add_lora`.
        classes: Number of outputs.
        domain: The token sequences.
        seed: Of the weights, normal with deviation 0.02 as in GPT-2.

    Example:
        >>> gpt(width=32, layers=2).name
        'gpt(width=32, layers=2)'

    Deviations:
        Query, key and value are three layers where GPT-2 stacks them in one. Weights of residual
        layers are not scaled down by depth.

    References:
        Radford et al., 2019 (radford2019language)
    """
    if not isinstance(domain, Tokens):
        raise InvalidValue(
            f"expected token sequences for gpt, got inputs of shape {domain.shape}; use data such "
            "as 'hamlet', or another network"
        )
    if require_int("width", width) % require_int("heads", heads):
        raise InvalidValue(f"expected heads to divide the width {width}, got {heads}")

    def make() -> nn.Module:
        model = _GPT(domain, width=width, layers=layers, heads=heads, classes=classes)
        for table in (model.tokens, model.positions):
            table.requires_grad_(embeddings)
        if lora:
            adapt(model, rank=lora, targets=("query", "key", "value"), seed=seed)
        return model

    options = {"width": width, "layers": layers, "heads": heads}
    trained = {"embeddings": embeddings, "lora": lora}
    return build_task(gpt, make, domain, **options, **trained, classes=classes, seed=seed)


def _draw_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
