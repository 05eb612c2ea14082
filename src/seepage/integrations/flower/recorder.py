"""Which updates of a federation to keep, and where."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from torch import Tensor

from seepage.capture import Capture, Setting, hashed, save
from seepage.core.errors import InvalidValue, SeepageError
from seepage.integrations.flower.wire import trainable

_LOG = logging.getLogger("seepage.flower")


@dataclass(frozen=True)
class Recorder:
    """Writes chosen updates as captures; never stands in the way of the federation.

    An update that cannot be kept, by a full disk or because it is not finite, is a line in the
    log, and training goes on.

    Args:
        folder: For the captures, one file each.
        setting: How clients compute: the learning rate at least.
        rounds: To keep; all if None.
        clients: To keep, by number of partition at the client and of node at the server; all if
            None.
        names: Of the arrays, `tuple(model.state_dict())`, where Flower numbers them.
        salt: Of the hashes that stand for clients; drawn anew if not given.

    Example:
        >>> import tempfile
        >>> recorder = Recorder(Path(tempfile.mkdtemp()), Setting(lr=0.1), rounds=(1, 5))
        >>> recorder.wants(1, 7), recorder.wants(2, 7)
        (True, False)
    """

    folder: Path
    setting: Setting
    rounds: Collection[int] | None = None
    clients: Collection[int] | None = None
    names: tuple[str, ...] = ()
    salt: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        """Find out now, not in round five, that nothing could be written."""
        if self.setting.lr is None:
            raise InvalidValue(
                "what a client sends back are weights, which have no scale without the local "
                "learning rate; give Setting(lr=...)"
            )
        # Clients of a simulation run elsewhere, in folders of their own.
        object.__setattr__(self, "folder", Path(self.folder).resolve())
        self.folder.mkdir(parents=True, exist_ok=True)

    def wants(self, number: int, client: int | None = None) -> bool:
        """Whether to keep what this client, or all of them together, sends in this round."""
        in_round = self.rounds is None or number in self.rounds
        return in_round and (client is None or self.clients is None or client in self.clients)

    def path(self, number: int, client: int | str) -> Path:
        """Where the capture of a client, or of the "sum" of all, is kept."""
        who = client if isinstance(client, str) else f"client-{self._hash(client)[:12]}"
        return self.folder / f"round-{number:03d}-{who}.safetensors"

    def keep(
        self,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        *,
        number: int,
        client: int | str,
        examples: int | None,
    ) -> None:
        """Write one capture: what was broadcast, and what came back."""
        parameters = trainable(before)
        buffers = {name: t for name, t in before.items() if name not in parameters}
        moved = {name: t for name, t in after.items() if name in parameters}
        setting = replace(
            self.setting,
            framework=f"flower {version('flwr')}",
            round=number,
            client=self._hash(client),
            batch_size=self.setting.batch_size or examples,
        )
        try:
            capture = Capture(moved, "weights_after", parameters, buffers, setting)
            save(capture, self.path(number, client))
        except (SeepageError, OSError) as error:
            _LOG.warning("the update of round %d was not kept: %s", number, error)

    def _hash(self, client: int | str) -> str:
        return hashed(str(client), salt=self.salt)
