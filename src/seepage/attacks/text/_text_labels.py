"""Labels of texts that are known, and the last words, which a network only predicts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seepage.attacks.exact_batch._assign_labels import match_one_to_one
from seepage.attacks.labels._read_targets import fit_targets
from seepage.attacks.text._token_table import UNKNOWN
from seepage.core import Observation, Task
from seepage.core.errors import NotApplicable
from seepage.domains import Tokens
from seepage.probing._heads import classifier_head
from seepage.probing._hooks import layer_inputs

# Texts times labels, of which each is tried if no head tells.
_MOST_TRIED = 256
# Rounds in which last words are corrected, and the share of an update that is explained by then.
_ROUNDS, _EXPLAINED = 6, 1e-4


def find_labels(observation: Observation, texts: Tensor) -> Tensor | None:
    """Labels of known texts, by the head, or by trying each label where no head is found.

    None if there are too many to try.
    """
    if observation.task.target_shape is not None:
        return fit_targets(observation, texts)
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
    if count * max(count, classes) > _MOST_TRIED:
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
    leaves, fit = logits.detach().requires_grad_(), seen.new_empty(len(seen), len(options))
    for number, option in enumerate(options):
        losses = task.loss(leaves, option.expand(len(leaves), *option.shape))
        (slopes,) = torch.autograd.grad(losses.sum(), leaves)
        fit[:, number] = torch.cosine_similarity(slopes.double(), seen, dim=1)
    return options[fit.argmax(1) if known is None else match_one_to_one(fit)]


def _run_head(task: Task, texts: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the head reads of the texts, and the logits."""
    name = classifier_head(task).weight.removesuffix(".weight")
    with layer_inputs(task.network, [name]) as read, torch.no_grad():
        logits = task.outputs(task.parameters, texts)
    return read[name], logits


def find_last_words(observation: Observation, texts: Tensor, lengths: Tensor) -> Tensor:
    """Complete texts whose last token is predicted, but never read.

    The gradient of the layer that gives the logits of all places is dW = U^T H, with known features
    H of the places of all texts, so U = (dW H^+)^T. The entry of U is negative at the token that
    follows. Where the table of tokens is shared with that layer, rows of tokens that were read hold
    more than this; so the update of the completed texts is simulated, and what it leaves over is
    read in the same way.

    Args:
        observation: What was seen.
        texts: `(B, L)`, known up to their last token.
        lengths: How many tokens of each text are known, `(B,)`; nothing follows the whole length.

    Returns:
        The texts `(B, L)`; they stay unknown where the layer is not trained, or the places are more
        than the features.
    """
    task = observation.task
    found = _find_text_head(task)
    domain = task.domain
    assert isinstance(domain, Tokens)
    filler = UNKNOWN if domain.padding is None else domain.padding
    places = torch.arange(texts.shape[1], device=texts.device)
    blank = torch.where(places < lengths[:, None], texts, filler)
    missing = torch.where(places == lengths[:, None], UNKNOWN, blank)
    if found is None or int((lengths < texts.shape[1]).sum()) == 0:
        return missing
    layer, weight = found
    with layer_inputs(task.network, [layer]) as read, torch.no_grad():
        task.outputs(task.parameters, blank.clamp(min=0))
    features = read[layer].double()
    inside = places < lengths[:, None]
    if int(inside.sum()) > features.shape[-1]:
        return missing
    inverse = torch.linalg.pinv(features[inside])
    numbers = torch.full_like(texts, -1)
    numbers[inside] = torch.arange(int(inside.sum()), device=texts.device)
    rows = torch.nonzero(lengths < texts.shape[1]).flatten()
    last = numbers[rows, lengths[rows] - 1]
    wanted = observation.update.descent().tensors[weight]
    slopes = (wanted.double() @ inverse)[:, last]
    whole = blank.clone()
    whole[rows, lengths[rows]] = slopes.argmin(0)
    for _ in range(_ROUNDS):
        with torch.no_grad():
            own = observation.simulate(whole, task.blank_labels(len(whole))).descent().tensors
        left = (wanted - own[weight]).double()
        if float(left.norm()) <= _EXPLAINED * float(wanted.double().norm()):
            break
        slopes = (left @ inverse)[:, last]
        # What is there already counts as right unless another token fits better.
        better = slopes.argmin(0)
        wrong = (
            slopes.min(0).values < -slopes.gather(0, whole[rows, lengths[rows]][None])[0].abs() / 2
        )
        if not bool(wrong.any()):
            break
        whole[rows[wrong], lengths[rows][wrong]] = better[wrong]
    return whole


def rank_next_words(observation: Observation) -> Tensor | None:
    """All tokens, the likeliest to follow another one first; None if no output layer is trained.

    The row of a token in the gradient of the output layer is sum_i (p_i - y_i) h_i, where y_i is 1
    if it follows place i. So it is long for tokens that do, unless the network expected them.
    """
    found = _find_text_head(observation.task)
    if found is None:
        return None
    lengths: Tensor = observation.update.tensors[found[1]].double().norm(dim=1)
    return lengths.argsort(descending=True, stable=True)


def _find_text_head(task: Task) -> tuple[str, str] | None:
    """The layer that gives a logit for each token at each place, and the name of its weight."""
    domain = task.domain
    assert isinstance(domain, Tokens)
    named = {id(p): name for name, p in task.network.named_parameters()}
    layers = {
        name: named[id(module.weight)]
        for name, module in task.network.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == domain.vocabulary
    }
    trained = {layer: weight for layer, weight in layers.items() if weight in task.parameters}
    return next(reversed(trained.items()), None)
