"""Audit or record chosen steps of a training while it runs.

Both classes are called with a step of any loop; `seepage.integrations` calls them from Lightning,
Hugging Face's trainer and accelerate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from seepage.capture import Capture, Setting, save
from seepage.core import Attack, Domain, Protection
from seepage.core._rng import require_seed
from seepage.core._task import trains_by_batch, unwrap
from seepage.core.errors import summarise_error
from seepage.rehearsal import PublicData
from seepage.rehearsal._effort_plan import EffortName
from seepage.step._audit_step import audit_step
from seepage.step._shared_update import describe_random_layers
from seepage.step._step_inputs import read_batch
from seepage.step._step_result import StepAudit
from seepage.threats import Threat

Gradients = Mapping[str, Tensor | None]
_LOG = logging.getLogger("seepage.steps")


@dataclass(frozen=True)
class AuditSteps:
    """Audits chosen steps of a training, writes a page for each, and never stops the training.

    If a step cannot be audited, a warning is logged and training goes on. A step whose folder is
    there already is left out, which is logged at once. Of several processes only the first audits.

    Args:
        folder: Each step gets a folder in it; `seepage dashboard FOLDER` shows all.
        at: Numbers of the steps to audit, e.g. `(0, 500)` or `range(0, 5000, 1000)`.
        loss: As `audit_step` takes it; None for the loss of a Hugging Face model itself.
        domain: As `audit_step` takes it; give the range of the inputs if you know it.
        defense: What would be done to the gradient before it is shared.
        threat: What the adversary knows.
        others: Inputs of people who are not in the training data.
        public: What `auto` rehearses on.
        attacks: What to run; `auto` by default.
        effort: Of `auto`.
        seconds: About how long each audit may take.
        steps: Of the attacks, instead of those of the effort.
        seed: Of all randomness.
        then: Called with the number of a step and its result, such as `mlflow.log_step`.

    Example:
        >>> import tempfile
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> batch = torch.rand(1, 1, 8, 8), torch.tensor([2])
        >>> audit = AuditSteps(Path(tempfile.mkdtemp()), at=(0, 100), domain=(0, 1), steps=10)
        >>> for number in range(3):
        ...     nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        ...     _ = audit(number, model, batch)
        ...     model.zero_grad()
        >>> {number: result.recognisable for number, result in audit.results.items()}
        {0: True}
    """

    folder: Path | str
    at: Collection[int] = (0,)
    loss: Callable[..., Tensor] | None = nn.functional.cross_entropy
    domain: Domain | tuple[float, float] | None = None
    defense: Protection | None = None
    threat: Threat | None = None
    others: Tensor | PublicData | None = None
    public: PublicData | Tensor | None = None
    attacks: Sequence[str | Attack] | None = None
    effort: EffortName = "quick"
    seconds: float = 300.0
    steps: int | None = None
    seed: int = 0
    then: Callable[[int, StepAudit], object] | None = None
    results: dict[int, StepAudit] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Find out now that nothing could be written, or that all of it was."""
        require_seed(self.seed)
        object.__setattr__(self, "folder", _make_folder(self.folder))
        done = [number for number in self.at if self.path(number).exists()]
        if done:
            _LOG.warning(
                "%d of the steps, the first of them %d, have a folder in %s already and are left "
                "out; choose another folder for another training",
                *(len(done), done[0], self.folder),
            )

    def wants(self, number: int) -> bool:
        """Whether this process audits the step."""
        return number in self.at and not self.path(number).exists() and _is_first_process()

    def path(self, number: int) -> Path:
        """The folder of a step."""
        return Path(self.folder) / f"step-{number:06d}"

    def __call__(
        self, number: int, model: nn.Module, batch: object, gradients: Gradients | None = None
    ) -> StepAudit | None:
        """Audit a step between `backward()` and the step of the optimiser, if it is wanted.

        Where the network draws at random, the step is computed again without that; otherwise the
        gradient of the loop itself is attacked.

        Args:
            number: Which step it is.
            model: The network, with the parameters that the gradient was computed at.
            batch: As `audit_step` takes it.
            gradients: Before clipping; `.grad` of the parameters if not given.

        Returns:
            The result; None if the step is not wanted or cannot be audited.
        """
        if not self.wants(number):
            return None
        own = None if describe_random_layers(model) else gradients or _grads(model)
        try:
            result = audit_step(
                model,
                self.loss,
                batch,  # type: ignore[arg-type]
                domain=self.domain,
                defense=self.defense,
                threat=self.threat,
                others=self.others,
                public=self.public,
                attacks=self.attacks,
                gradients=own,
                effort=self.effort,
                seconds=self.seconds,
                steps=self.steps,
                seed=self.seed,
            )
            self.results[number] = result
            result.report(self.path(number))
            if self.then is not None:
                self.then(number, result)
        except Exception as error:  # noqa: BLE001 - whatever fails here, the training goes on
            own_loss = isinstance(batch, Mapping) and self.loss is not None
            hint = "; loss=None takes the loss of a Hugging Face model itself" if own_loss else ""
            _LOG.warning("step %d was not audited: %s%s", number, summarise_error(error), hint)
        return self.results.get(number)


@dataclass(frozen=True)
class RecordSteps:
    """Keeps the gradients of chosen steps as captures, and never stops the training.

    `seepage audit --capture FOLDER --model ...` attacks them later, elsewhere.

    Args:
        folder: Each step gets a file in it.
        at: Numbers of the steps to keep.
        setting: What is known besides; batch size and the mode of batch normalisation are filled
            in, and the number of the step is recorded as the round.

    Example:
        >>> import tempfile
        >>> keep = RecordSteps(Path(tempfile.mkdtemp()), at=(0,))
        >>> model = nn.Linear(4, 2)
        >>> model(torch.ones(1, 4)).logsumexp(1).sum().backward()
        >>> keep(0, model, (torch.ones(1, 4), torch.tensor([1]))).name
        'step-000000.safetensors'
    """

    folder: Path | str
    at: Collection[int] = (0,)
    setting: Setting = field(default_factory=Setting)

    def __post_init__(self) -> None:
        """Find out now that nothing could be written."""
        object.__setattr__(self, "folder", _make_folder(self.folder))

    def wants(self, number: int) -> bool:
        """Whether this process records the step."""
        return number in self.at and _is_first_process()

    def __call__(
        self, number: int, model: nn.Module, batch: object, gradients: Gradients | None = None
    ) -> Path | None:
        """Record a step between `backward()` and the step of the optimiser, if it is wanted.

        Args:
            number: Which step it is.
            model: The network, with the parameters that the gradient was computed at.
            batch: Whose size and shape are recorded, and nothing else of it.
            gradients: Before clipping; `.grad` of the parameters if not given.

        Returns:
            Where the capture is; None if the step is not wanted or cannot be recorded.
        """
        if not self.wants(number):
            return None
        model = unwrap(model)
        path = Path(self.folder) / f"step-{number:06d}.safetensors"
        sent = {n: g for n, g in (gradients or _grads(model)).items() if g is not None}
        try:
            inputs, _ = read_batch(batch)
            setting = replace(
                self.setting,
                batch_size=self.setting.batch_size or len(inputs),
                shape=self.setting.shape or tuple(inputs.shape[1:]),
                mode="train" if trains_by_batch(model) else "eval",
                round=number,
            )
            save(Capture.of(model, sent, form="gradient", setting=setting), path)
        except Exception as error:  # noqa: BLE001 - whatever fails here, the training goes on
            _LOG.warning("step %d was not recorded: %s", number, summarise_error(error))
            return None
        return path


def _make_folder(folder: Path | str) -> Path:
    path = Path(folder).resolve()
    path.mkdir(parents=True, exist_ok=True)
    return path


def _grads(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def _is_first_process() -> bool:
    spread = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not spread or torch.distributed.get_rank() == 0
