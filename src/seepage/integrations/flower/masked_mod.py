"""What leaves a client under SecAgg+: integers behind masks, read as if there were none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from seepage.integrations.flower.recorder import Recorder
from seepage.integrations.flower.wire import arrays, client_of, round_of

if TYPE_CHECKING:
    from flwr.app import Context, Message

    from seepage.integrations.flower.wire import Mod, Next

_CONFIGS, _MASKED = "secaggplus_configs", "masked_params"


def masked_mod(
    recorder: Recorder,
    *,
    clipping_range: float = 8.0,
    quantization_range: int = 2**22,
    weight: float = 1.0,
) -> Mod:
    """A mod to stand before `secaggplus_mod`, that keeps what the server receives of one client.

    The masked integers are taken for what they would be without masks. If the masks do their
    work, an attack on this capture finds nothing.

    Args:
        recorder: With names, since SecAgg+ numbers the arrays.
        clipping_range: Of `SecAggPlusWorkflow`.
        quantization_range: Of `SecAggPlusWorkflow`.
        weight: Examples of the client over the workflow's `max_weight`, by which SecAgg+ multiplies
            parameters before it masks them; with a wrong one nothing is found, masked or not.
    """

    def keep(message: Message, context: Context, call_next: Next) -> Message:
        number, client = round_of(message), client_of(context)
        carries = len(message.content.array_records) == 1 and recorder.wants(number, client)
        before = arrays(message.content, recorder.names) if carries else {}
        reply = call_next(message, context)
        if carries and not reply.has_error():
            packed = cast("list[bytes]", reply.content.config_records[_CONFIGS].get(_MASKED, []))
            step = 2 * clipping_range / quantization_range
            read = _read(packed, before, step / weight, clipping_range / weight)
            if read:
                recorder.keep(before, read, number=number, client=client, examples=None)
        return reply

    return keep


def _read(
    packed: Sequence[bytes], before: Mapping[str, Tensor], step: float, offset: float
) -> dict[str, Tensor]:
    from flwr.common import bytes_to_ndarray

    # The first array is the weight of the client; the others are its parameters.
    whole = [torch.from_numpy(bytes_to_ndarray(part).astype("float64")) for part in packed[1:]]
    pairs = zip(before.items(), whole, strict=False)
    return {name: (part * step - offset).reshape(t.shape).to(t.dtype) for (name, t), part in pairs}
