"""The network below a layer, searched with what each input sends back through it."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from seepage.attacks.feature_recovery import Features
from seepage.attacks.gradient_matching.features import features_at
from seepage.attacks.labels.read_logits import inner_product
from seepage.attacks.running_order import running_order
from seepage.attacks.systematic.above import Above
from seepage.attacks.systematic.order import weight_of
from seepage.clients import Gradient
from seepage.core import Observation, Rng, Task, Update
from seepage.core.errors import InvalidValue
from seepage.defenses import Clip, chain
from seepage.defenses.chain import Chain
from seepage.threats import Simulation

_PROBES = 4


def below(observation: Observation, features: Features) -> Observation | None:
    """The observation of the network below a layer whose inputs are known.

    Everything above the layer is then known as well: the logits z(u_i) of every input, and with
    them what its loss sends back. The rest of the update is linear in that:

        c_i = dL/du_i,   g(x) = sum_i (df(x_i)/dtheta)^T c_i,   f the network below

    A search that simulates c(x) instead starts with the slopes of noise, and every input's gradient
    is as wrong as its logits are. At the truth both give the observed update.

    Returns:
        The observation with the slopes in the place of labels; None where the layer does not cut
        the network in two, or where the client does more than to share its gradient.

    Args:
        observation: What was seen, with labels `(B,)`, or probabilities `(B, K)`.
        features: Inputs of the layer, of their true length, one for each label and in their order.
    """
    simulation, labels = observation.simulate, observation.labels
    if (
        labels is None
        or not isinstance(simulation, Simulation)
        or not _shares_gradients(simulation)
    ):
        return None
    task = _cut(observation.task, features.layer)
    if task is None:
        return None
    above = Above(observation.task, features.layer)
    values = features.values.to(next(iter(task.parameters.values())))
    update, client = observation.update, simulation.client
    if client.chain.guards and all(isinstance(link, Clip) for link in client.chain.guards):
        # The norm that was clipped is that of the whole, of which a part knows nothing.
        share = above.share(values, labels) / (len(labels) if _averages(simulation) else 1)
        update = _unclipped(update, weight_of(features), share)
        client = replace(client, defense=chain(*client.chain.preparations))
    known = {name: tensor for name, tensor in update.tensors.items() if name in task.parameters}
    seen_alone = replace(update, tensors=known)
    if not _defended_alike(client.chain, update, seen_alone):
        return None
    return replace(
        observation,
        task=task,
        update=seen_alone,
        simulate=replace(simulation, task=task, client=client),
        labels=above.slopes(values, labels).detach(),
    )


def _averages(simulation: Simulation) -> bool:
    local = simulation.client.local
    return isinstance(local, Gradient) and local.reduction == "mean"


def _unclipped(update: Update, weight: str, share: Tensor) -> Update:
    """The update before it was clipped, by the gradient of a layer that is known from features."""
    seen, expected = update.descent().tensors[weight].double(), share.double()
    factor = float((seen * expected).sum() / expected.square().sum())
    return update.map(lambda t: t / factor) if 0 < factor < 1 else update


def _shares_gradients(simulation: Simulation) -> bool:
    defense = simulation.client.chain
    plain = defense.aggregation is None and defense.consumes == "aggregate"
    # Of clients that mix, candidates have to be the mixtures.
    as_seen = simulation.mixing is None
    as_seen = as_seen and all(link.stage == "mixing" for link in defense.preparations)
    return plain and as_seen and isinstance(simulation.client.local, Gradient)


def _defended_alike(defense: Chain, whole: Update, part: Update) -> bool:
    """Whether a defense leaves the same of a part, seen alone."""
    # Larger than what was observed, lest a bound that was kept already go unnoticed.
    try:
        left, alone = (defense.expected(update.map(_thousandfold)) for update in (whole, part))
    except InvalidValue:  # it keeps more entries than the part has
        return False
    return all(torch.allclose(left.tensors[name], t) for name, t in alone.tensors.items())


def _thousandfold(tensor: Tensor) -> Tensor:
    return 1000 * tensor


def _cut(task: Task, layer: str) -> Task | None:
    """The task whose network ends with what the layer reads; None if modules do not tell where."""
    above = _from(task, layer)
    if not all(above):
        return None
    model = copy.deepcopy(task.model)
    for name in above:
        model.set_submodule(name, nn.Identity())
    if not any(p.requires_grad for p in model.parameters()):
        return None
    name = f"{task.name} below {layer}"
    cut = replace(task, model=model, loss=inner_product, name=name)
    noise = task.placed(task.domain.sample(_PROBES, rng=Rng(0)))
    with torch.no_grad():
        wanted = features_at(task, layer, noise)
        try:
            found = cut.outputs(cut.parameters, noise)
        except RuntimeError:
            return None
    same = found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-4, atol=1e-6)
    return cut if same else None


def _from(task: Task, layer: str) -> list[str]:
    """The modules without parts of their own that run from a layer on, the layer first."""
    modules = task.network.named_modules()
    whole = [name for name, module in modules if next(module.children(), None) is None]
    order = running_order(task, whole)
    return list(dict.fromkeys(order[order.index(layer) :]))
