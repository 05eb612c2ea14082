"""A decoder cut at its output layer: the terms of its loss, one for each next token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from seepage.attacks.text._token_table import draw_texts, require_texts
from seepage.core import Observation, Rng, Task, Update
from seepage.core.errors import NotApplicable
from seepage.domains import Tokens
from seepage.probing._hooks import layer_inputs

# Entries of the update that are compared, about; more tell little more.
_ENTRIES = 16_384
# By how much a simulated update may differ from the sum of terms.
_ALIKE = 0.02
# Texts that pass through the network together.
TOGETHER = 256


@dataclass(frozen=True, eq=False)
class CutDecoder:
    """A network that predicts next tokens, cut at the layer that gives their logits.

    Args:
        task: The network, in float32.
        layer: Name of that layer.
        prompt: How many places it reads before those of a text.
        names: Parameters whose gradient is compared.
    """

    task: Task
    layer: str
    prompt: int
    names: tuple[str, ...]

    @property
    def first(self) -> int:
        """The first word that is predicted: the second one if nothing stands before the text."""
        return 0 if self.prompt else 1

    @cached_property
    def domain(self) -> Tokens:
        """The space of the texts."""
        return require_texts(self.task.domain, needed_by="next_words")

    @cached_property
    def head(self) -> nn.Linear:
        """The layer that gives the logits."""
        module = self.task.network.get_submodule(self.layer)
        assert isinstance(module, nn.Linear)
        return module

    @cached_property
    def _kept(self) -> Tensor:
        """Which entries are compared: all, or some that chance chose."""
        count = sum(self.task.parameters[name].numel() for name in self.names)
        return Rng(0).fork("entries").permutation(count)[: 2 * _ENTRIES].sort().values

    def flatten(self, tensors: Mapping[str, Tensor], *, rows: int = 0) -> Tensor:
        """The entries that are compared, `(P,)`, or `(N, P)` after so many axes of rows."""
        flat = torch.cat([tensors[name].flatten(rows) for name in self.names], dim=-1)
        return flat[..., self._kept.to(flat.device)]

    def unflatten(self, entries: Tensor) -> dict[str, Tensor]:
        """Undo `flatten`, with zeros elsewhere."""
        own = Update({name: self.task.parameters[name] for name in self.names})
        flat = torch.zeros_like(own.flat())
        flat[self._kept.to(flat.device)] = entries
        return dict(own.unflatten(flat).tensors)

    def read(self, parameters: Mapping[str, Tensor], texts: Tensor) -> Tensor:
        """What tells the next word at every place of texts `(N, L)`, `(N, prompt + L, D)`."""
        with layer_inputs(self.task.network, [self.layer]) as read:
            self.task.outputs({**self.task.parameters, **parameters}, texts)
        return read[self.layer]

    def read_next(self, parameters: Mapping[str, Tensor], texts: Tensor) -> Tensor:
        """What tells the word after texts `(N, L)`, `(N, D)`."""
        # Networks need a place to read, and no place depends on a later one.
        more = torch.cat([texts, texts.new_zeros(len(texts), 1)], dim=1)
        return self.read(parameters, more)[:, self.prompt + texts.shape[1] - 1]

    def predict(self, features: Tensor) -> Tensor:
        """Logarithms of the probabilities of all words, `(N, V)`."""
        bias = None if self.head.bias is None else self.head.bias.detach()
        logits = nn.functional.linear(features, self.head.weight.detach(), bias)
        return logits.log_softmax(-1)

    def find_pulls(self, chances: Tensor) -> Tensor:
        """Gradient of a term by what the layer reads, for every word that may follow, `(V, D)`."""
        weight = self.head.weight.detach()
        return chances.exp() @ weight - weight

    def make_leaves(self) -> dict[str, Tensor]:
        """The compared parameters, to differentiate by."""
        return {n: self.task.parameters[n].clone().requires_grad_() for n in self.names}

    def differentiate(
        self, compute: Callable[[Mapping[str, Tensor]], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Evaluate a function `(N,)` of the parameters, and its derivatives `(N, P)`."""
        leaves = self.make_leaves()
        values = compute(leaves)
        rows = torch.autograd.grad(
            values,
            list(leaves.values()),
            torch.eye(len(values)).to(values),
            is_grads_batched=True,
            allow_unused=True,
            materialize_grads=True,
        )
        found = dict(zip(self.names, (row.detach() for row in rows), strict=True))
        return values.detach(), self.flatten(found, rows=1)

    def find_terms(self, text: Tensor) -> Tensor:
        """The gradient of each word's loss in one text `(L,)`, `(T, P)`."""
        wanted = text[self.first :, None]

        def compute(parameters: Mapping[str, Tensor]) -> Tensor:
            features = self.read(parameters, text[None])[0, self.prompt + self.first - 1 : -1]
            return -self.predict(features).gather(1, wanted)[:, 0]

        return self.differentiate(compute)[1]

    def find_slopes(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """What tells the word after a text `(L,)`, `(D,)`, and its derivatives `(D, P)`."""
        return self.differentiate(lambda parameters: self.read_next(parameters, text[None])[0])

    @torch.no_grad()
    def sample(self, count: int, length: int, rng: Rng) -> Tensor:
        """Texts as the network expects them, `(N, L)`; a word that it does not predict is any."""
        most = self.domain.vocabulary
        chance = self.task.move_inputs(rng.uniform((count, length)))
        texts = (chance[:, : self.first] * most).long()
        for place in range(self.first, length):
            features = [self.read_next({}, part) for part in torch.split(texts, TOGETHER)]
            sums = self.predict(torch.cat(features)).exp().cumsum(1)
            words = (sums < chance[:, place : place + 1]).sum(1).clamp(max=most - 1)
            texts = torch.cat([texts, words[:, None]], dim=1)
        return texts


def cut_decoder(task: Task) -> CutDecoder:
    """Cut a network at the layer that gives the logits of all tokens.

    Raises:
        NotApplicable: There is none, places depend on later ones, or nothing else is trained.
    """
    domain, task = require_texts(task.domain, needed_by="next_words"), task.upcast()
    layers = [
        name
        for name, module in task.network.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == domain.vocabulary
    ]
    if not layers or domain.length < 2:
        raise NotApplicable(
            f"expected {task.name} to end in a linear layer with a logit for each of "
            f"{domain.vocabulary} tokens, and to read two or more, got none; next_words reads "
            "decoders that predict the next token"
        )
    one, other = task.move_inputs(draw_texts(domain, 2))
    half = domain.length // 2
    cut = CutDecoder(task, layers[-1], 0, ())
    with torch.no_grad():
        whole = cut.read({}, torch.stack([one, torch.cat([one[:half], other[half:]])]))
        alone = cut.read({}, one[None, :half])
    prompt = whole.shape[1] - domain.length
    same = whole.ndim == 3 and prompt >= 0 and alone.shape[1] == prompt + half
    begun = whole[:, : prompt + half]
    if not same or not torch.allclose(begun, alone.expand(2, -1, -1), atol=1e-5):
        raise NotApplicable(
            f"expected {task.name} to read a text from left to right, got places that depend on "
            "later ones; next_words reads decoders that predict the next token"
        )
    return replace(cut, prompt=prompt, names=tuple(_choose_parameters(cut)))


def _choose_parameters(cut: CutDecoder) -> list[str]:
    """Choose trained parameters below the head, the smallest first, of `_ENTRIES` in all."""
    task = cut.task
    own = {id(parameter) for parameter in cut.head.parameters()}
    named = dict(task.network.named_parameters())
    trained = sorted(
        (name for name in task.parameters if id(named[name]) not in own),
        key=lambda name: task.parameters[name].numel(),
    )
    if not trained:
        raise NotApplicable(
            f"expected {task.name} to train more than the layer {cut.layer}, whose gradient holds "
            "what it reads: use dager"
        )
    chosen: list[str] = []
    count = 0
    for name in trained:
        size = task.parameters[name].numel()
        if not chosen or count + size <= _ENTRIES:
            chosen.append(name)
            count += size
    return chosen


def weigh_terms(observation: Observation, decoder: CutDecoder, length: int) -> float:
    """The factor of a text's terms in the update, by the text's length.

    Raises:
        NotApplicable: An update is no multiple of their sum.
    """
    domain, weights, off = decoder.domain, [], 0.0
    for text in observation.task.move_inputs(draw_texts(domain, 2)):
        if length < domain.length:
            assert domain.padding is not None
            text[length:] = domain.padding
        with torch.no_grad():
            simulated = observation.simulate(text[None], observation.task.blank_labels(1))
        shared = decoder.flatten(simulated.descent().tensors).float()
        terms = decoder.find_terms(text[:length]).sum(0)
        weights.append(float(shared @ terms / terms.square().sum()))
        off = max(off, float((shared - weights[-1] * terms).norm() / shared.norm()))
    if not (off <= _ALIKE and abs(weights[0] - weights[1]) <= _ALIKE * abs(weights[0])):
        raise NotApplicable(
            "expected the gradient of the mean loss of next tokens, times a number that does not "
            "depend on the text, got another loss, several local steps, or a defense that changes "
            "it; next_words adds up the terms of that loss"
        )
    return weights[0]
