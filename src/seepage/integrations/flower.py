"""Flower: record the updates that clients send, and protect them with any defense.

app = ClientApp(mods=[capture_mod(recorder), as_mod(sp.Prune(0.9))])   # at the client
strategy = recorded(FedAvg(), recorder)                                # at the server

Flower's newer interface names arrays as a state dict does. The older one numbers them, as
`NumPyClient` does and as SecAgg+ needs; pass `names=tuple(model.state_dict())` for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from seepage.core import Protection, Rng, Update
from seepage.core._chain import Chain
from seepage.core.errors import InvalidValue, SeepageError
from seepage.integrations.recorder import Recorder, select_moved

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.common import Parameters

    Next = Callable[[Message, Context], Message]
    Mod = Callable[[Message, Context, Next], Message]

__all__ = ["Recorder", "as_mod", "capture_mod", "masked_mod", "recorded"]

StrategyT = TypeVar("StrategyT")
_CONFIGS, _MASKED = "secaggplus_configs", "masked_params"


def recorded(strategy: StrategyT, recorder: Recorder) -> StrategyT:
    """Return the same strategy, which now keeps what every client sends.

    If only the sum of the updates arrives, as under SecAgg+, the sum is kept.

    Args:
        strategy: A strategy of `flwr.serverapp.strategy` or, for `flwr.server.workflow`, of
            `flwr.server.strategy`.
        recorder: What to keep.
    """
    from flwr.server.strategy import Strategy as OlderStrategy
    from flwr.serverapp.strategy import Strategy

    if isinstance(strategy, Strategy):
        _record_rounds(strategy, recorder, "train", _read_record, _read_arrays, _list_messages)
    elif isinstance(strategy, OlderStrategy):
        read = _read_parameters
        _record_rounds(strategy, recorder, "fit", read, read, _list_results)
    else:
        raise InvalidValue(f"expected a strategy of Flower, got {strategy!r}")
    return strategy


def _record_rounds(
    strategy: Any,  # noqa: ANN401 - Flower's own
    recorder: Recorder,
    kind: str,
    read_sent: Callable[[Any, Sequence[str]], dict[str, Tensor]],
    read_reply: Callable[[Any, Sequence[str]], dict[str, Tensor]],
    list_arrivals: Callable[[Sequence[Any]], Iterable[tuple[int | str, Any, int | None]]],
) -> None:
    """Replace the methods on the object, since Flower asks for the class of a strategy."""
    sent: dict[int, dict[str, Tensor]] = {}
    configure: Callable[..., object] = getattr(strategy, f"configure_{kind}")
    aggregate: Callable[..., object] = getattr(strategy, f"aggregate_{kind}")

    def remember(*args: object, **named: object) -> object:
        number, broadcast = signature(configure).bind(*args, **named).args[:2]
        sent.clear()
        sent[number] = read_sent(broadcast, recorder.names)
        return configure(*args, **named)

    def keep(*args: object, **named: object) -> object:
        number, replies, *rest = signature(aggregate).bind(*args, **named).args
        replies = list(replies)
        for client, after, examples in list_arrivals(replies):
            if recorder.wants(number, None if isinstance(client, str) else client):
                read = partial(read_reply, after, recorder.names)
                _keep(recorder, sent[number], read, number, client, examples)
        return aggregate(number, replies, *rest)

    setattr(strategy, f"configure_{kind}", remember)
    setattr(strategy, f"aggregate_{kind}", keep)


def _list_messages(replies: Sequence[Message]) -> list[tuple[int | str, RecordDict, int | None]]:
    """Who sent what on how many examples."""
    return [
        (reply.metadata.src_node_id, reply.content, _read_examples(reply.content))
        for reply in replies
        if not reply.has_error()
    ]


def _list_results(results: Sequence[Any]) -> list[tuple[int | str, Parameters, int | None]]:
    """Who sent what on how many examples; one entry for all if only their mean arrived."""
    if len(results) > 1 and all(fit.parameters is results[0][1].parameters for _, fit in results):
        return [("sum", results[0][1].parameters, sum(fit.num_examples for _, fit in results))]
    return [(proxy.node_id, fit.parameters, fit.num_examples) for proxy, fit in results]


def capture_mod(recorder: Recorder) -> Mod:
    """A mod for `ClientApp(mods=[...])` that keeps what the mods after it let out.

    First in the list it sees what crosses the wire; after `as_mod(...)` or a mod of Flower's it
    sees what that mod was given.
    """

    def keep(message: Message, context: Context, call_next: Next) -> Message:
        number, client = _read_round(message), _read_client(context)
        wanted = _asks_to_train(message) and recorder.wants(number, client)
        before = _read_arrays(message.content, recorder.names) if wanted else {}
        reply = call_next(message, context)
        if wanted and not reply.has_error():
            read = partial(_read_arrays, reply.content, recorder.names)
            _keep(recorder, before, read, number, client, _read_examples(reply.content))
        return reply

    return keep


def as_mod(defense: Protection, *, seed: int | None = None, names: tuple[str, ...] = ()) -> Mod:
    """A mod for `ClientApp(mods=[...])` that defends the change of the parameters.

    Running statistics, other buffers and metrics pass unchanged; send them only if you mean to. A
    reply that cannot be defended is an error and is not sent: one with several records of arrays,
    as SCAFFOLD has, one that a mod after this one has masked, or one with arrays to a message that
    does not ask to train, such as evaluate or query.

    Args:
        defense: A defense of whole updates.
        seed: Makes the noise repeatable, and so worthless against a server that knows the seed:
            for experiments only. Without one, noise is drawn from the system at every call.
        names: Names of the arrays, needed if Flower numbers them.

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
        asked = _is_about_training(message)
        broadcast = len(message.content.array_records) if asked else 0
        before = _read_arrays(message.content, names) if broadcast == 1 else {}
        number, client = _read_round(message), _read_client(context)
        reply = call_next(message, context)
        # SecAgg+ empties the record that it has masked.
        sent = 0 if reply.has_error() else sum(map(bool, reply.content.array_records.values()))
        if sent and not asked:
            raise InvalidValue(
                "expected arrays in replies to train messages alone, where their change can be "
                f"defended, got some in a reply to {message.metadata.message_type!r}, which is not "
                "sent; reply with metrics, and give initial parameters to the strategy"
            )
        if asked and not reply.has_error() and (broadcast or sent):
            if (broadcast, sent) != (1, 1):
                raise InvalidValue(
                    f"expected one record of arrays to defend, got {broadcast} in the message and "
                    f"{sent} in the reply, which is not sent; put mods that mask before this one"
                )
            after = _read_arrays(reply.content, names)
            key = Rng(secrets.randbits(62) if seed is None else seed).fork(number, client)
            moved = {name: _subtract(name, after, before) for name in select_moved(after)}
            shared = links(Update(moved, kind="difference"), rng=key).tensors
            defended = [
                (before[n] + shared[n]).to(t.dtype) if n in shared else t for n, t in after.items()
            ]
            _replace_arrays(reply.content, defended)
        return reply

    return defend


def _subtract(name: str, after: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> Tensor:
    if name not in before or before[name].shape != after[name].shape:
        got = f"{tuple(before[name].shape)} there" if name in before else "none of that name"
        raise InvalidValue(
            f"expected {name!r} of the reply, {tuple(after[name].shape)}, in the message too, so "
            f"that its change can be defended, got {got}; the reply is not sent"
        )
    return after[name] - before[name]


def masked_mod(
    recorder: Recorder,
    *,
    clipping_range: float = 8.0,
    quantization_range: int = 2**22,
    weight: float = 1.0,
) -> Mod:
    """A mod to stand before `secaggplus_mod`, which keeps what the server receives of one client.

    The masked integers are read as if they were not masked. If the masks do their work, an attack
    on this capture finds nothing.

    Args:
        recorder: With names, since SecAgg+ numbers the arrays.
        clipping_range: As given to `SecAggPlusWorkflow`.
        quantization_range: As given to `SecAggPlusWorkflow`.
        weight: Examples of the client over the workflow's `max_weight`. SecAgg+ multiplies the
            parameters by it before masking; with a wrong weight nothing is found, masked or not.
    """
    step, offset = 2 * clipping_range / quantization_range / weight, clipping_range / weight

    def keep(message: Message, context: Context, call_next: Next) -> Message:
        number, client = _read_round(message), _read_client(context)
        carries = len(message.content.array_records) == 1 and recorder.wants(number, client)
        before = _read_arrays(message.content, recorder.names) if carries else {}
        reply = call_next(message, context)
        if carries and not reply.has_error():
            packed = cast("list[bytes]", reply.content.config_records[_CONFIGS].get(_MASKED, []))
            if read := _read_masked(packed, before, step, offset):
                _keep(recorder, before, lambda: read, number, client, None)
        return reply

    return keep


def _read_masked(
    packed: Sequence[bytes], before: Mapping[str, Tensor], step: float, offset: float
) -> dict[str, Tensor]:
    from flwr.common import bytes_to_ndarray

    # The first array is the weight of the client; the others are its parameters.
    whole = [torch.from_numpy(bytes_to_ndarray(part).astype("float64")) for part in packed[1:]]
    pairs = zip(before.items(), whole, strict=False)
    return {name: (part * step - offset).reshape(t.shape).to(t.dtype) for (name, t), part in pairs}


def _keep(
    recorder: Recorder,
    before: Mapping[str, Tensor],
    read_after: Callable[[], Mapping[str, Tensor]],
    number: int,
    client: int | str,
    examples: int | None,
) -> None:
    """Keep a reply; one that cannot be read is a line in the log, since training is done."""
    framework = f"flower {version('flwr')}"
    try:
        after = read_after()
    except SeepageError as error:
        recorder.warn(number, error)
        return
    recorder.keep(
        before, after, number=number, client=client, examples=examples, framework=framework
    )


def _asks_to_train(message: Message) -> bool:
    """Whether a message asks a client to train and carries one record of arrays."""
    return _is_about_training(message) and len(message.content.array_records) == 1


def _is_about_training(message: Message) -> bool:
    return str(message.metadata.message_type).partition(".")[0] == "train"


def _read_arrays(content: RecordDict, names: Sequence[str]) -> dict[str, Tensor]:
    """The arrays of a message with one record of them."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise InvalidValue(f"expected one record of arrays in a message, got {len(records)}")
    return _read_record(records[0], names)


def _read_record(record: ArrayRecord, names: Sequence[str]) -> dict[str, Tensor]:
    """The arrays of a record; numbered ones get `names` in order."""
    tensors = [torch.from_numpy(array.numpy().copy()) for array in record.values()]
    keys = list(record.keys())
    if all(key.isdecimal() for key in keys):
        return _name_arrays(tensors, names)
    return dict(zip(keys, tensors, strict=True))


def _read_parameters(parameters: Parameters, names: Sequence[str]) -> dict[str, Tensor]:
    from flwr.common import parameters_to_ndarrays

    arrays = parameters_to_ndarrays(parameters)
    return _name_arrays([torch.from_numpy(array.copy()) for array in arrays], names)


def _name_arrays(tensors: Sequence[Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    if len(tensors) != len(names):
        raise InvalidValue(
            f"expected a name for each of the {len(tensors)} numbered arrays, got {len(names)}; "
            "give names=tuple(model.state_dict())"
        )
    return dict(zip(names, tensors, strict=True))


def _replace_arrays(content: RecordDict, tensors: Sequence[Tensor]) -> None:
    """Put other numbers under the keys of the one record of arrays, in its order."""
    from flwr.app import Array, ArrayRecord

    ((key, record),) = content.array_records.items()
    fresh = (Array(tensor.numpy()) for tensor in tensors)
    content[key] = ArrayRecord(dict(zip(record.keys(), fresh, strict=True)))


def _read_round(message: Message) -> int:
    """The round a message belongs to; 0 if it does not say."""
    for record in message.content.config_records.values():
        if isinstance(number := record.get("server-round"), int):
            return number
    group = message.metadata.group_id
    return int(group) if group.isdecimal() else 0


def _read_examples(content: RecordDict) -> int | None:
    """How many examples a reply says it was trained on."""
    for record in content.metric_records.values():
        for key in ("num-examples", "num_examples"):
            if isinstance(number := record.get(key), int):
                return number
    return None


def _read_client(context: Context) -> int:
    """The partition number of a simulated client, or else the number of the node."""
    return int(context.node_config.get("partition-id", context.node_id))
