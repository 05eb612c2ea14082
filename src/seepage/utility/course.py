"""One training under way: a step at a time, through the client that attacks face."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from seepage.clients import Client
from seepage.core import Batch, Lesson, Protection, Rng, Task, Update
from seepage.core.errors import InvalidValue
from seepage.defenses import InstaHide, SecureAggregation, chain
from seepage.utility.evaluate import Quality, evaluate
from seepage.utility.local import as_trained
from seepage.utility.plan import Deal, Plan
from seepage.utility.trainee import Trainee


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

    plan: Plan
    client: Client
    trainee: Trainee
    data: Batch
    deal: Deal
    rng: Rng

    @classmethod
    def begin(cls, task: Task, data: Batch, *, plan: Plan, defense: Protection, rng: Rng) -> Course:
        """Prepare the training, and refuse what it would stumble over later."""
        client = Client(plan.local, defense)
        _check_cohort(client, plan)
        trainee = Trainee(
            client.broadcast(task), momentum=plan.momentum, weight_decay=plan.weight_decay
        )
        local = as_trained(plan.local, trainee.task.model)
        deal = plan.deal(data.labels.cpu(), rng=rng.fork("deal"))
        drawn = rng.fork("clients").on(data.inputs.device)
        course = cls(plan, replace(client, local=local), trainee, data, deal, drawn)
        course.rehearse()
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

    def rehearse(self) -> None:
        """Prepare the smallest batch there will be, so that a defense that cannot says so now."""
        batch = Batch(*(t[: self.deal.fewest] for t in (self.data.inputs, self.data.labels)))
        parts = self.client.chain.split(batch) if self.plan.cohort is None else [batch]
        smallest = min(parts, key=len)
        self.client.chain.prepare(Lesson.plain(self.trainee.task, smallest), rng=self.rng)

    @property
    def _alone(self) -> Client:
        """A client of a federation, whose cohort is real."""
        apart = self.client.chain
        links = apart.links if apart.aggregation is None else apart.links[:-1]
        return replace(self.client, defense=chain(*links))

    def _batch(self, indices: Tensor, key: Rng) -> Batch:
        device = self.data.inputs.device
        # From pinned memory, so that the next step is prepared while the card computes this one.
        chosen = (
            indices.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else indices
        )
        inputs, labels = self.data.inputs[chosen], self.data.labels[chosen]
        if self.plan.augment is not None:
            inputs = self.plan.augment(inputs, rng=key.fork("augment"))
        return Batch(inputs, labels)


def _check_cohort(client: Client, plan: Plan) -> None:
    aggregation = client.chain.aggregation
    if plan.cohort is None or not isinstance(aggregation, SecureAggregation):
        return
    if aggregation.clients != plan.cohort:
        raise InvalidValue(
            f"{aggregation} hides {aggregation.clients} clients, but {plan.cohort} take part in a "
            "round; make the two equal"
        )
