"""One training under way: a step at a time, through the client that attacks face."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.clients.client import Client
from seepage.core import Batch, PreparedBatch, Protection, Rng, Task, Update
from seepage.core.errors import InvalidValue
from seepage.core.task import batchnorm_layers
from seepage.defenses.aggregation import SecureAggregation
from seepage.defenses.chain import chain
from seepage.defenses.mixing import InstaHide
from seepage.utility.per_example import as_trained
from seepage.utility.quality import Quality, evaluate
from seepage.utility.training_plan import Deal, TrainingPlan
from seepage.zoo.resnet import random_weights


class _Trainee:
    """A copy of a task whose parameters move and whose running statistics are kept.

    The random neurons of a wide head stay as they are: neither gradient nor decay moves them.

    The task it holds stays the same object; its parameters are the network's own memory.
    """

    def __init__(self, task: Task, *, momentum: float, weight_decay: float) -> None:
        """Copy the task, batch normalisation in mode "train" and all other layers as evaluated."""
        model = copy.deepcopy(task.model).eval()
        reference = next(model.parameters())
        if reference.is_cuda:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for layer in batchnorm_layers(model).values():
            layer.train()
        self.task = replace(task, model=model, mode="train")
        named = self.task.model.named_parameters()
        self._weights = {name: p for name, p in named if p.requires_grad}
        self._descent = torch.optim.SGD(
            self._weights.values(), lr=1.0, momentum=momentum, weight_decay=weight_decay
        )
        self._still = [(weights, weights.clone()) for weights in random_weights(self.task.model)]

    def learn(self, update: Update, *, lr: float) -> None:
        """Take one step against the update, a gradient or a difference of parameters."""
        gradient = update.descent().tensors
        for name, weight in self._weights.items():
            weight.grad = gradient[name]
        self._descent.param_groups[0]["lr"] = lr
        self._descent.step()
        self._descent.zero_grad()
        # Descent is entry by entry, so putting entries back is the same as never moving them.
        for weights, drawn in self._still:
            weights.copy_(drawn)

    def diverged(self) -> str | None:
        """The first parameter that is not finite any more, if there is one."""
        names = list(self._weights)
        whole = torch.stack([p.detach().isfinite().all() for p in self._weights.values()])
        return None if bool(whole.all()) else names[int(whole.int().argmin())]

    def snapshot(self) -> Task:
        """What it is now, for good: a task that evaluates with the running statistics."""
        return replace(self.task, model=copy.deepcopy(self.task.model), mode="eval")

    def tensors(self) -> list[Tensor]:
        """All that decides how it goes on: parameters, buffers, momentum."""
        return [*self.task.model.parameters(), *self.task.model.buffers(), *self._velocity()]

    def restore(self, tensors: list[Tensor]) -> None:
        """Go on from what `tensors` gave."""
        for weight in self._weights.values():
            if self._descent.param_groups[0]["momentum"]:
                self._descent.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        with torch.no_grad():
            for mine, saved in zip(self.tensors(), tensors, strict=True):
                mine.copy_(saved)

    def _velocity(self) -> list[Tensor]:
        states = (self._descent.state[weight] for weight in self._weights.values())
        velocity = [state.get("momentum_buffer") for state in states]
        return [buffer for buffer in velocity if buffer is not None]


@dataclass(frozen=True, eq=False)
class Course:
    """Whose examples come when, what clients do with them, and who learns from it.

    Args:
        plan: The training.
        client: What a client does, with the defense.
        trainee: Who learns.
        data: What is trained on.
        deal: Who brings what.
        rng: The clients' randomness.
    """

    plan: TrainingPlan
    client: Client
    trainee: _Trainee
    data: Batch
    deal: Deal
    rng: Rng

    @classmethod
    def begin(
        cls, task: Task, data: Batch, *, plan: TrainingPlan, defense: Protection, rng: Rng
    ) -> Course:
        """Prepare the training, and refuse what it would stumble over later."""
        client = Client(plan.local, defense)
        _check_cohort(client, plan)
        trainee = _Trainee(
            client.broadcast(task), momentum=plan.momentum, weight_decay=plan.weight_decay
        )
        local = as_trained(plan.local, trainee.task.model)
        deal = plan.deal(data.labels.cpu(), rng=rng.fork("deal"))
        drawn = rng.fork("clients").on(data.inputs.device)
        course = cls(plan, replace(client, local=local), trainee, data, deal, drawn)
        course.warm_up()
        return course

    @property
    def steps(self) -> int:
        """How many there are."""
        return self.plan.count_steps(len(self.data))

    def judge(self, data: Batch) -> Quality:
        """How good the trainee is by now, asked the way it was taught."""
        taught = any(isinstance(link, InstaHide) for link in self.client.chain.links)
        flips = self.rng.fork("evaluation") if taught else None
        return evaluate(self.trainee.snapshot(), data, flips=flips)

    def advance(self, step: int) -> None:
        """Let the clients of this step share, and the trainee learn from what the server sees."""
        brought = [indices for indices in self.deal(step) if len(indices)]
        if not brought:
            return
        key = self.rng.fork(step)
        cohort = [self._batch(indices, key.fork(i)) for i, indices in enumerate(brought)]
        update = self.share(cohort, rng=key)
        factor = self.plan.schedule(step, self.steps)
        self.trainee.learn(update, lr=self.plan.lr * factor)

    def share(self, cohort: Sequence[Batch], *, rng: Rng) -> Update:
        """What the server sees of a cohort: one client's update, or the combination of several."""
        task = self.trainee.task
        if self.plan.cohort is None:
            return self.client(task, cohort[0], rng=rng)
        updates = [
            self._alone(task, batch, rng=rng.fork("client", i)) for i, batch in enumerate(cohort)
        ]
        combine = self.client.chain.aggregation or SecureAggregation(len(cohort))
        return combine.combine(updates, [len(batch) for batch in cohort])

    def warm_up(self) -> None:
        """Prepare the smallest batch there will be, so that a defense that cannot says so now."""
        batch = Batch(*(t[: self.deal.fewest] for t in (self.data.inputs, self.data.labels)))
        parts = self.client.chain.split(batch) if self.plan.cohort is None else [batch]
        smallest = min(parts, key=len)
        self.client.chain.prepare(PreparedBatch.plain(self.trainee.task, smallest), rng=self.rng)

    @property
    def _alone(self) -> Client:
        """A client of a federation, whose cohort is real."""
        apart = self.client.chain
        links = apart.links if apart.aggregation is None else apart.links[:-1]
        return replace(self.client, defense=chain(*links))

    def _batch(self, indices: Tensor, key: Rng) -> Batch:
        device = self.data.inputs.device
        # From pinned memory, so that the next step is prepared while the GPU computes this one.
        chosen = (
            indices.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else indices
        )
        inputs, labels = self.data.inputs[chosen], self.data.labels[chosen]
        if self.plan.augment is not None:
            inputs = self.plan.augment(inputs, rng=key.fork("augment"))
        return Batch(inputs, labels)


def _check_cohort(client: Client, plan: TrainingPlan) -> None:
    aggregation = client.chain.aggregation
    if plan.cohort is None or not isinstance(aggregation, SecureAggregation):
        return
    if aggregation.clients != plan.cohort:
        raise InvalidValue(
            f"{aggregation} hides {aggregation.clients} clients, but {plan.cohort} take part in a "
            "round; make the two equal"
        )
