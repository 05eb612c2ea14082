"""NVFlare: a client filter that records what leaves a site.

recipe.add_client_output_filter(RecordUpdate("captures", lr=0.1), tasks=["train"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seepage.capture._capture import Setting
from seepage.core.errors import MissingExtra, install_hint
from seepage.integrations.recorder import Recorder

if TYPE_CHECKING:
    from nvflare.apis.dxo import DXO
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable

# NVFlare finds filters by the path of their class, so the class cannot be made on demand.
try:
    from nvflare.apis.dxo_filter import DXOFilter

    _ERROR: ImportError | None = None
except ImportError as error:
    DXOFilter, _ERROR = object, error


class RecordUpdate(DXOFilter):  # type: ignore[misc]
    """A filter of task results that keeps each update as a capture, and lets it pass unchanged.

    It keeps what the filters before it let out: put it last to see what crosses the wire. The
    weights before training are those that the executor was given. Arguments are plain values, as
    in NVFlare's configuration files. If an update cannot be kept, a warning is logged and the job
    goes on.

    Args:
        folder: Folder for the captures on the site; a relative one is below the working directory.
        lr: Local learning rate.
        steps: Local steps of one round; what the result's meta data say if not given, or else one.
        momentum: Of local SGD.
        batch_size: How many examples the site trains on, if known.
        local_batch_size: Examples in each step; all of them if not given.
        shape: Of one input, such as `[1, 28, 28]`.
        rounds: Rounds to keep; all if not given.

    Raises:
        MissingExtra: If NVFlare is not installed.
    """

    def __init__(
        self,
        folder: str,
        *,
        lr: float,
        steps: int | None = None,
        momentum: float = 0.0,
        batch_size: int | None = None,
        local_batch_size: int | None = None,
        shape: Sequence[int] = (),
        rounds: Sequence[int] | None = None,
    ) -> None:
        """Check the arguments; NVFlare reads them back from the attributes of their names."""
        if _ERROR is not None:
            raise MissingExtra(f"this needs NVFlare: {install_hint('nvflare')}") from _ERROR
        from nvflare.apis.dxo import DataKind

        super().__init__([DataKind.WEIGHTS, DataKind.WEIGHT_DIFF], None)
        self.folder, self.lr, self.steps, self.momentum = str(folder), lr, steps, momentum
        self.batch_size, self.local_batch_size = batch_size, local_batch_size
        self.shape, self.rounds = list(shape), None if rounds is None else list(rounds)
        self._setting = Setting(
            lr=lr,
            steps=steps,
            momentum=momentum,
            batch_size=batch_size,
            local_batch_size=local_batch_size,
            shape=tuple(shape),
        )
        self._recorder: Recorder | None = None
        self._sent: dict[str, Tensor] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Remember the weights that are handed to the executor."""
        from nvflare.apis.dxo import DataKind, from_shareable
        from nvflare.apis.event_type import EventType
        from nvflare.apis.fl_constant import FLContextKey

        if event_type != EventType.BEFORE_TASK_EXECUTION:
            return
        try:
            given = from_shareable(fl_ctx.get_prop(FLContextKey.TASK_DATA))
        except (ValueError, TypeError, AttributeError):
            return
        if given.data_kind == DataKind.WEIGHTS:
            self._sent = _read_tensors(given.data)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        """Keep what is about to be sent."""
        from nvflare.apis.dxo import DataKind, MetaKey
        from nvflare.app_common.app_constant import AppConstants

        number = shareable.get_header(AppConstants.CURRENT_ROUND, 0)
        if self.rounds is not None and number not in self.rounds:
            return
        if not self._sent:
            self.log_warning(fl_ctx, "an update was not kept: the weights before it are not known")
            return
        after = _read_tensors(dxo.data)
        if dxo.data_kind == DataKind.WEIGHT_DIFF:
            # In double precision: rounding to float32 would lose the digits of a small step.
            moved = {n: t for n, t in after.items() if n in self._sent}
            after = {n: self._sent[n].double() + t.double() for n, t in moved.items()}
        if self._recorder is None:
            self._recorder = Recorder(Path(self.folder), self._setting)
        steps = dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND)
        if self.steps is None and isinstance(steps, int) and steps > 0:
            self._recorder = replace(self._recorder, setting=replace(self._setting, steps=steps))
        self._recorder.keep(
            self._sent,
            after,
            number=number,
            client=fl_ctx.get_identity_name(),
            examples=None,
            framework=f"nvflare {version('nvflare')}",
        )


def _read_tensors(data: Mapping[str, Any]) -> dict[str, Tensor]:
    """Arrays or tensors by name, copied."""
    return {name: torch.as_tensor(value).detach().clone().cpu() for name, value in data.items()}
