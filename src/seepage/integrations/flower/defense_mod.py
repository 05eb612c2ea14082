"""Any defense as a mod: it acts on what a client sends back."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from seepage.core import Protection, Rng, Update
from seepage.core.errors import InvalidValue
from seepage.defenses import Chain
from seepage.integrations.flower.wire import (
    arrays,
    client_of,
    is_training,
    replace_arrays,
    round_of,
    trainable,
)

if TYPE_CHECKING:
    from flwr.app import Context, Message

    from seepage.integrations.flower.wire import Mod, Next


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
    if links.preparations or links.aggregation or links.consumes != "aggregate":
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
