"""Cut a network at a layer whose inputs are known, and search in the lower part alone."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from seepage.attacks.exact_batch._assign_labels import match_one_to_one
from seepage.attacks.feature_recovery._features import Features
from seepage.attacks.labels._read_logits import inner_product
from seepage.clients import Client, Gradient
from seepage.core import Mixing, Observation, Rng, Task, Update
from seepage.core._chain import Chain
from seepage.core.errors import InvalidValue
from seepage.defenses import Clip, chain
from seepage.probing._hooks import running_order
from seepage.search._feature_matching import features_at

# Noise inputs that estimate the length of features, and that check whether a cut is right.
_HEAD_PROBES, _PROBES = 8, 4


def _run_upper(task: Task, layer: str, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run a network with these inputs at a layer that runs once.

    Returns:
        The logits, and what the layer read and returned; gradients can be taken by both.
    """
    returned: list[Tensor] = []
    read = values.detach().clone().requires_grad_()

    def keep(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        returned.append(output)
        # A copy goes on: an in-place ReLU must not overwrite what was returned.
        return output.clone()

    # Any inputs will do, because what the layer reads of them is replaced.
    blank = values.new_zeros((len(values), *task.domain.shape))
    module = task.network.get_submodule(layer)
    with (
        module.register_forward_pre_hook(lambda _, __: (read,)),
        module.register_forward_hook(keep),
    ):
        return task.outputs(task.parameters, blank), read, returned[0]


def order_by_labels(labels: Tensor, features: Features, observation: Observation) -> Features:
    """Order features so that the i-th belongs to an input with the i-th label.

    The gradient dL/dW = D Z of the layer gives, with the features Z, the columns D: what each
    input sent back through the layer. The network above the layer tells what an input with that
    feature and a given label would send. Only directions are compared, and every label is assigned
    once. Inputs of one class keep an order of their own.
    """
    task, gradient = observation.task, observation.update.descent().tensors
    values = task.move_inputs(features.values)
    if not features.scaled:
        noise = task.move_inputs(task.domain.sample(_HEAD_PROBES, rng=Rng(0)))
        lengths = features_at(task, features.layer, noise).detach().norm(dim=1)
        values = values * lengths.median() / values.norm(dim=1, keepdim=True)
    sent = gradient[_weight_name(features)].double() @ torch.linalg.pinv(values.double())
    outputs, _, returned = _run_upper(task, features.layer, values)
    # Row i compares what each feature with label i would send, and what it sent.
    cosines = []
    for label in labels:
        loss = task.loss(outputs, label.expand(len(values), *label.shape)).sum()
        (back,) = torch.autograd.grad(loss, returned, retain_graph=True)
        cosines.append(torch.cosine_similarity(back.double(), sent.T, dim=1))
    choice = match_one_to_one(torch.stack(cosines))
    return replace(features, values=features.values[choice])


def holds_layer_gradient(features: Features, observation: Observation) -> bool:
    """Whether the update holds the gradient of the features' layer, which may be frozen."""
    return _weight_name(features) in observation.update.tensors


def _weight_name(features: Features) -> str:
    # If the network is a single layer, the layer has no name.
    return f"{features.layer}.weight" if features.layer else "weight"


def cut_network(observation: Observation, features: Features) -> Observation | None:
    """Return the observation of the network below a layer whose inputs are known.

    Then everything above the layer is known as well: the logits z(u_i) of every input, and what
    its loss sends back. The rest of the update is linear in that:

        c_i = dL/du_i,   g(x) = sum_i (df(x_i)/dtheta)^T c_i,   f the network below

    A search that simulates c(x) instead starts with the slopes of noise, and every input's gradient
    is as wrong as its logits are. At the truth both give the observed update.

    Returns:
        The observation with the slopes as labels. None if the layer does not cut the network in
        two, or if the client does more than to share its gradient.

    Args:
        observation: What was seen, with labels `(B,)`, or probabilities `(B, K)`.
        features: Inputs of the layer, of their true length, one for each label and in their order.
    """
    simulation, labels = observation.simulate, observation.labels
    client = simulation.client
    if labels is None or client is None or not _shares_gradients(client, simulation.mixing):
        return None
    task = _cut_task(observation.task, features.layer)
    if task is None:
        return None
    values = task.move_inputs(features.values)
    outputs, read, returned = _run_upper(observation.task, features.layer, values)
    loss = observation.task.loss(outputs, labels).sum()
    slopes, back = torch.autograd.grad(loss, (read, returned))
    update, defenses = observation.update, client.chain.update_defenses
    if defenses and all(isinstance(link, Clip) for link in defenses):
        # Clipping used the norm of the whole update, so undo it: compare the layer's gradient
        # with the one that follows from the features.
        averages = isinstance(client.local, Gradient) and client.local.reduction == "mean"
        expected = (back.T @ read.detach() / (len(labels) if averages else 1)).double()
        seen = update.descent().tensors[_weight_name(features)].double()
        factor = float((seen * expected).sum() / expected.square().sum())
        if 0 < factor < 1:
            update = update.map(lambda t: t / factor)
        client = replace(client, defense=chain(*client.chain.input_defenses))
    known = {name: tensor for name, tensor in update.tensors.items() if name in task.parameters}
    seen_alone = replace(update, tensors=known)
    if not _treats_part_as_whole(client.chain, update, seen_alone):
        return None
    return replace(
        observation,
        task=task,
        update=seen_alone,
        simulate=simulation.with_client(client).with_task(task),
        labels=slopes.detach(),
    )


def _shares_gradients(client: Client, mixing: Mixing | None) -> bool:
    """Whether the client shares a gradient of what the candidates are, and does no more."""
    defense = client.chain
    plain = defense.aggregation is None and defense.consumes == "aggregate"
    # If a client mixes, candidates have to be the mixtures.
    as_seen = mixing is None and all(link.stage == "mixing" for link in defense.input_defenses)
    return plain and as_seen and isinstance(client.local, Gradient)


def _treats_part_as_whole(defense: Chain, whole: Update, part: Update) -> bool:
    """Whether a defense changes a part of the update in the same way alone and within the whole."""
    try:
        # Enlarged: a bound that the observed update already keeps must not go unnoticed.
        left, alone = (defense.expected(u.map(lambda t: 1000 * t)) for u in (whole, part))
    except InvalidValue:  # it keeps more entries than the part has
        return False
    return all(torch.allclose(left.tensors[name], t) for name, t in alone.tensors.items())


def _cut_task(task: Task, layer: str) -> Task | None:
    """Cut the task's network before the layer; None if the modules do not show where."""
    modules = task.network.named_modules()
    innermost = [name for name, module in modules if next(module.children(), None) is None]
    order = running_order(task, innermost)
    above = dict.fromkeys(order[order.index(layer) :])
    if not all(above):
        return None
    model = copy.deepcopy(task.model)
    for name in above:
        model.set_submodule(name, nn.Identity())
    if not any(p.requires_grad for p in model.parameters()):
        return None
    cut = replace(task, model=model, loss=inner_product, name=f"{task.name} below {layer}")
    noise = task.move_inputs(task.domain.sample(_PROBES, rng=Rng(0)))
    with torch.no_grad():
        wanted = features_at(task, layer, noise)
        try:
            found = cut.outputs(cut.parameters, noise)
        except RuntimeError:
            return None
    same = found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-4, atol=1e-6)
    return cut if same else None


def observe_mixtures(observation: Observation) -> tuple[Observation, Mixing | None]:
    """Return the observation of the mixtures that the network saw, and how the client made them.

    Features belong to the mixtures and not to the private inputs, so they have to be recovered with
    the mixtures' labels. If nothing is mixed, or encodings are searched for, the observation is
    returned as it is.
    """
    simulation, labels = observation.simulate, observation.labels
    if simulation.mixing is None or labels is None:
        return observation, None
    mixing = simulation.mixing
    known = one_hot(labels, observation.task.classes) if labels.ndim == 1 else labels
    weights = mixing.coefficients.to(next(iter(observation.update)))
    soft, unmixed = weights @ known.to(weights), simulation.with_mixing(None)
    return replace(observation, labels=soft, simulate=unmixed), mixing


def observe_inputs(mixtures: Observation, mixing: Mixing) -> Observation | None:
    """Return the observation of the private inputs that are mixed into these mixtures.

    Mixing turns its labels into the mixtures' labels, whatever they stand for. None if there are
    no such labels, because the coefficients are not of full rank.
    """
    simulation, labels = mixtures.simulate, mixtures.labels
    assert labels is not None
    weights, wanted = mixing.coefficients.double(), labels.double()
    before = torch.linalg.pinv(weights) @ wanted
    if not torch.allclose(weights @ before, wanted, rtol=1e-4, atol=1e-6 * float(wanted.norm())):
        return None
    return replace(mixtures, labels=before.to(labels), simulate=simulation.with_mixing(mixing))
