"""At the client: keep what leaves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.integrations.flower.recorder import Recorder
from seepage.integrations.flower.wire import arrays, client_of, examples_of, is_training, round_of

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
