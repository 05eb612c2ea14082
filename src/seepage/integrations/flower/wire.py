"""Flower's messages: the arrays in them, and the round, in either generation of its interface.

The newer one sends one record of arrays under the names of a state dict; the older one numbers
them, as `NumPyClient` does and as SecAgg+ needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict

    Next = Callable[[Message, Context], Message]
    Mod = Callable[[Message, Context, Next], Message]

# Measured or counted, not trained: they travel with the parameters and are no part of an update.
_MEASURED = ("running_mean", "running_var", "num_batches_tracked")


def is_training(message: Message) -> bool:
    """Whether a client is asked to train, in a message that carries one record of arrays."""
    kind = str(message.metadata.message_type).partition(".")[0]
    return kind == "train" and len(message.content.array_records) == 1


def arrays(content: RecordDict, names: Sequence[str]) -> dict[str, Tensor]:
    """The arrays by name; numbered ones get the names of a state dict in its order.

    Args:
        content: Of a message with one record of arrays.
        names: Of a state dict, needed where Flower numbers the arrays.
    """
    (record,) = content.array_records.values()
    tensors = [torch.from_numpy(array.numpy().copy()) for array in record.values()]
    keys = list(record.keys())
    if all(key.isdecimal() for key in keys):
        if len(names) != len(keys):
            raise InvalidValue(
                f"this client numbers its {len(keys)} arrays, and {len(names)} names are known; "
                "give names=tuple(model.state_dict())"
            )
        keys = list(names)
    return dict(zip(keys, tensors, strict=True))


def replace_arrays(content: RecordDict, tensors: Sequence[Tensor]) -> None:
    """Put other numbers under the keys of the one record of arrays, in its order."""
    from flwr.app import Array, ArrayRecord

    ((key, record),) = content.array_records.items()
    fresh = (Array(tensor.numpy()) for tensor in tensors)
    content[key] = ArrayRecord(dict(zip(record.keys(), fresh, strict=True)))


def trainable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those that training moves."""
    return {n: t for n, t in tensors.items() if t.is_floating_point() and not _measured(n)}


def round_of(message: Message) -> int:
    """The round a message belongs to; 0 if it does not say."""
    for record in message.content.config_records.values():
        if isinstance(number := record.get("server-round"), int):
            return number
    group = message.metadata.group_id
    return int(group) if group.isdecimal() else 0


def examples_of(content: RecordDict) -> int | None:
    """How many examples a reply says it was trained on."""
    for record in content.metric_records.values():
        for key in ("num-examples", "num_examples"):
            if isinstance(number := record.get(key), int):
                return number
    return None


def client_of(context: Context) -> int:
    """The number of a simulated client's partition, or of the node."""
    partition = context.node_config.get("partition-id", context.node_id)
    return int(partition)


def _measured(name: str) -> bool:
    return name.rpartition(".")[2] in _MEASURED
