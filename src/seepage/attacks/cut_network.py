"""Cut a network at a layer whose inputs are known, and search in the lower part alone."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from seepage.attacks.exact_batch.assign_labels import match_one_to_one
from seepage.attacks.feature_recovery.features import Features
from seepage.attacks.labels.read_logits import inner_product
from seepage.clients import Client, Gradient
from seepage.core import Mixing, Observation, Rng, Task, Update
from seepage.core.errors import InvalidValue
from seepage.defenses import Clip, chain
from seepage.defenses.chain import Chain
from seepage.probing.hooks import running_order
from seepage.search.feature_matching import features_at

_HEAD_PROBES = 8


@dataclass(frozen=True, eq=False)
class _UpperNetwork:
    """The network from one layer on.

    Args:
        task: The whole network.
        layer: Name of a layer that runs once, as `named_modules` spells it.
    """

    task: Task
    layer: str

    def length(self) -> Tensor:
        """The usual length of what the layer reads, on the adversary's own noise."""
        reference = next(iter(self.task.parameters.values()))
        noise = self.task.domain.sample(_HEAD_PROBES, rng=Rng(0)).to(reference)
        lengths: Tensor = features_at(self.task, self.layer, noise).detach().norm(dim=1)
        return lengths.median()

    def fits(self, values: Tensor, labels: Tensor, sent: Tensor) -> Tensor:
        """Cosines `(B, B)` between what input i with feature j would send, and what j sent."""
        outputs, _, z = self._run(values)
        cosines = []
        for label in labels:
            loss = self.task.loss(outputs, label.expand(len(values), *label.shape)).sum()
            (back,) = torch.autograd.grad(loss, z, retain_graph=True)
            cosines.append(torch.cosine_similarity(back.double(), sent, dim=1))
        return torch.stack(cosines)

    def slopes(self, values: Tensor, labels: Tensor) -> Tensor:
        """The gradient of the sum of the losses by the features, `(B, d)`."""
        outputs, read, _ = self._run(values)
        (back,) = torch.autograd.grad(self.task.loss(outputs, labels).sum(), read)
        return back

    def share(self, values: Tensor, labels: Tensor) -> Tensor:
        """The gradient of the sum of the losses by the layer's weight."""
        outputs, read, returned = self._run(values)
        (back,) = torch.autograd.grad(self.task.loss(outputs, labels).sum(), returned)
        return back.T @ read.detach()

    def _run(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The logits with these features at the layer; what it reads, and what it returns."""
        returned: list[Tensor] = []
        read = values.detach().clone().requires_grad_()

        def put(_: nn.Module, __: tuple[Tensor, ...]) -> tuple[Tensor]:
            return (read,)

        def keep(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
            returned.append(output)
            # A copy goes on, lest a ReLU in place overwrite what was returned.
            return output.clone()

        # Any inputs will do, for what the layer reads of them is replaced.
        blank = values.new_zeros((len(values), *self.task.domain.shape))
        layer = self.task.network.get_submodule(self.layer)
        handles = layer.register_forward_pre_hook(put), layer.register_forward_hook(keep)
        try:
            return self.task.outputs(self.task.parameters, blank), read, returned[0]
        finally:
            for handle in handles:
                handle.remove()


def order_by_labels(labels: Tensor, features: Features, observation: Observation) -> Features:
    """The same features, the i-th of which belongs to an input with the i-th label.

    The gradient dL/dW = D Z of the layer gives, with the features Z, the columns D: what each
    input sent back through the layer. The network above the layer says what an input with that
    feature and a given label would send; only directions are compared, and every label is given
    away once. Inputs of one class keep an order of their own.

    Args:
        labels: Of the batch, `(B,)`.
        features: As many as labels.
        observation: What they were recovered from.
    """
    task, gradient = observation.task, observation.update.descent().tensors
    above = _UpperNetwork(task, features.layer)
    values = features.values.to(next(iter(task.parameters.values())))
    if not features.scaled:
        values = values * above.length() / values.norm(dim=1, keepdim=True)
    sent = gradient[_weight_name(features)].double() @ torch.linalg.pinv(values.double())
    choice = match_one_to_one(above.fits(values, labels, sent.T))
    return replace(features, values=features.values[choice])


def holds_layer_gradient(features: Features, observation: Observation) -> bool:
    """Whether the update holds the gradient of their layer; that of a frozen one it does not."""
    return _weight_name(features) in observation.update.tensors


def _weight_name(features: Features) -> str:
    """The name of their layer's weight."""
    # A network that is one layer has a layer without a name.
    return f"{features.layer}.weight" if features.layer else "weight"


_PROBES = 4


def cut_network(observation: Observation, features: Features) -> Observation | None:
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
    client = simulation.client
    if labels is None or client is None or not _shares_gradients(client, simulation.mixing):
        return None
    task = _cut(observation.task, features.layer)
    if task is None:
        return None
    above = _UpperNetwork(observation.task, features.layer)
    values = features.values.to(next(iter(task.parameters.values())))
    update = observation.update
    if client.chain.update_defenses and all(isinstance(link, Clip) for link in client.chain.update_defenses):
        # The norm that was clipped is that of the whole, of which a part knows nothing.
        share = above.share(values, labels) / (len(labels) if _averages(client) else 1)
        update = _unclipped(update, _weight_name(features), share)
        client = replace(client, defense=chain(*client.chain.input_defenses))
    known = {name: tensor for name, tensor in update.tensors.items() if name in task.parameters}
    seen_alone = replace(update, tensors=known)
    if not _defended_alike(client.chain, update, seen_alone):
        return None
    return replace(
        observation,
        task=task,
        update=seen_alone,
        simulate=simulation.with_client(client).with_task(task),
        labels=above.slopes(values, labels).detach(),
    )


def _averages(client: Client) -> bool:
    local = client.local
    return isinstance(local, Gradient) and local.reduction == "mean"


def _unclipped(update: Update, weight: str, share: Tensor) -> Update:
    """The update before it was clipped, by the gradient of a layer that is known from features."""
    seen, expected = update.descent().tensors[weight].double(), share.double()
    factor = float((seen * expected).sum() / expected.square().sum())
    return update.map(lambda t: t / factor) if 0 < factor < 1 else update


def _shares_gradients(client: Client, mixing: Mixing | None) -> bool:
    defense = client.chain
    plain = defense.aggregation is None and defense.consumes == "aggregate"
    # Of clients that mix, candidates have to be the mixtures.
    as_seen = mixing is None
    as_seen = as_seen and all(link.stage == "mixing" for link in defense.input_defenses)
    return plain and as_seen and isinstance(client.local, Gradient)


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


def observe_mixtures(observation: Observation) -> tuple[Observation, Mixing | None]:
    """The observation of the mixtures that the network saw, and how the client made them.

    Features are the mixtures' and not the private inputs', so that they have to be recovered with
    the mixtures' labels. Where nothing is mixed, or encodings are searched for, the observation is
    returned as it is.
    """
    simulation, labels = observation.simulate, observation.labels
    if simulation.mixing is None or labels is None:
        return observation, None
    mixing = simulation.mixing
    known = one_hot(labels, observation.task.classes) if labels.ndim == 1 else labels
    weights = mixing.coefficients.to(next(iter(observation.update)))
    mixtures = replace(
        observation,
        labels=weights @ known.to(weights),
        simulate=simulation.with_mixing(None),
    )
    return mixtures, mixing


def observe_inputs(mixtures: Observation, mixing: Mixing) -> Observation | None:
    """The observation of private inputs that are mixed into these mixtures.

    Its labels are those that mixing turns into the mixtures', whatever they stand for.

    Returns:
        None where no labels do, since the coefficients are not of full rank.
    """
    simulation, labels = mixtures.simulate, mixtures.labels
    assert labels is not None
    weights, wanted = mixing.coefficients.double(), labels.double()
    before = torch.linalg.pinv(weights) @ wanted
    if not torch.allclose(weights @ before, wanted, rtol=1e-4, atol=1e-6 * float(wanted.norm())):
        return None
    return replace(mixtures, labels=before.to(labels), simulate=simulation.with_mixing(mixing))
