"""Which noise PRECODE drew: two layers tell what they read, and the noise lies between."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from seepage.attacks.linear_systems import features
from seepage.attacks.reading.plan import Plan
from seepage.core import Task, Update
from seepage.defenses import Precode
from seepage.defenses.precode import Bottleneck

# Of one example, the gradient of a fully connected layer has rank one up to rounding.
RANK_ONE = 1e-2


def read_code(link: Precode, plan: Plan) -> Plan:
    """Simulate the noise that the client drew, where it was drawn for one example.

        r = what the encoder read,  z = what the decoder read,  noise = (z - mu(r)) / std(r)

    Of several examples every row holds a mixture, and the mean code is simulated as before.

    References:
        Balunovic et al., 2022, Sec. 5 (balunovic2022bayesian)
    """
    task, update = plan.simulation.task, plan.observation.update
    named = [(n, m) for n, m in task.model.named_modules() if isinstance(m, Bottleneck)]
    name, bottleneck = named[-1]
    if not all(_of_one(update, f"{name}.{part}") for part in ("encoder", "decoder")):
        return plan
    alone = replace(plan.observation, batch_size=1)
    representation = features(alone, layer=f"{name}.encoder")
    code = features(alone, layer=f"{name}.decoder")
    with torch.no_grad():
        mean, log_variance = bottleneck.encoder(representation).chunk(2)
    return plan.running(_with_noise(task, name, (code - mean) * torch.exp(-log_variance / 2)))


def _of_one(update: Update, layer: str) -> bool:
    """Whether a layer's gradient is that of one example: dL/dA = (dL/db) v^T for some v."""
    weight, bias = update.tensors[f"{layer}.weight"], update.tensors[f"{layer}.bias"]
    direction = bias / bias.norm().clamp_min(torch.finfo(bias.dtype).tiny)
    unexplained = weight - torch.outer(direction, direction @ weight)
    return bool(unexplained.norm() < RANK_ONE * weight.norm())


def _with_noise(task: Task, name: str, noise: Tensor) -> Task:
    model = copy.deepcopy(task.model)
    bottleneck = model.get_submodule(name)
    assert isinstance(bottleneck, Bottleneck)
    bottleneck.noise = noise.unsqueeze(0)
    return replace(task, model=model)
