"""At the client: keep what leaves it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from seepage.core import Protection, Rng, Update
from seepage.core.errors import InvalidValue
from seepage.defenses.chain import Chain
from seepage.integrations.flower.recorder import Recorder
from seepage.integrations.flower.wire import (
    arrays,
    client_of,
    examples_of,
    is_training,
    replace_arrays,
    round_of,
    trainable,
)

if TYPE_CHECKING:
    from flwr.app import Context, Message

    from seepage.integrations.flower.wire import Mod, Next


def capture_mod(recorder: Recorder) -> Mod:
    """A mod for `ClientApp(mods=[...])` that keeps what the mods after it let out.

    First in the list it sees what crosses the wire; after `as_mod(...)` or a mod of Flower's it
    sees what that mod was given.
    """

    def keep(message: Message, context: Context, call_next: Next) -> Message:
        number, client = round_of(message), client_of(context)
        wanted = is_training(message) and recorder.wants(number, client)
        before = arrays(message.content, recorder.names) if wanted else {}
        reply = call_next(message, context)
        if wanted and not reply.has_error():
            after, examples = arrays(reply.content, recorder.names), examples_of(reply.content)
            recorder.keep(before, after, number=number, client=client, examples=examples)
        return reply

    return keep


def as_mod(defense: Protection, *, seed: int | None = None, names: tuple[str, ...] = ()) -> Mod:
    """A mod for `ClientApp(mods=[...])` that defends how far the parameters moved.

    What was measured rather than trained, such as running statistics, passes as it is; send it only
    if you mean to.

    Args:
        defense: What acts on an update as a whole.
        seed: Makes its randomness repeatable, and hence worthless against a server that knows it:
            for experiments. Without one, it is drawn from the system at every call.
        names: Of the arrays, `tuple(model.state_dict())`, where Flower numbers them.

    Example:
        >>> import seepage as sp
        >>> as_mod(sp.ClipEach(1.0))
        Traceback (most recent call last):
        ...
        seepage.core.errors.InvalidValue: ClipEach(1.0) needs more than the update a client sends \
back; give a defense of whole updates such as Clip, AddGaussian or Prune
    """
    links = Chain.of(defense)
    if links.input_defenses or links.aggregation or links.consumes != "aggregate":
        raise InvalidValue(
            f"{defense} needs more than the update a client sends back; give a defense of whole "
            "updates such as Clip, AddGaussian or Prune"
        )

    def defend(message: Message, context: Context, call_next: Next) -> Message:
        if not is_training(message):
            return call_next(message, context)
        before = arrays(message.content, names)
        number, client = round_of(message), client_of(context)
        reply = call_next(message, context)
        if not reply.has_error():
            after = arrays(reply.content, names)
            key = Rng(secrets.randbits(62) if seed is None else seed).fork(number, client)
            replace_arrays(reply.content, list(_defended(links, before, after, key).values()))
        return reply

    return defend


def _defended(
    links: Chain, before: Mapping[str, Tensor], after: Mapping[str, Tensor], key: Rng
) -> dict[str, Tensor]:
    moved = {name: after[name] - before[name] for name in trainable(after)}
    shared = links(Update(moved, kind="difference"), rng=key).tensors
    return {n: (before[n] + shared[n]).to(t.dtype) if n in shared else t for n, t in after.items()}


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
