"""Keeps what clients of a federation send, as captures."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from seepage.capture._capture import Capture, Setting, hashed
from seepage.capture._capture_file import save
from seepage.core.errors import InvalidValue, SeepageError

_LOG = logging.getLogger("seepage.recorder")
# Measured or counted, not trained: sent with the parameters, but not part of an update.
_MEASURED = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Recorder:
    """Writes chosen updates as captures, and never stops the federation.

    If an update cannot be kept (the disk is full, or it is not finite), a warning is logged and
    training goes on.

    Args:
        folder: Folder for the captures, one file each.
        setting: How clients compute: the learning rate at least.
        rounds: Rounds to keep; None keeps all.
        clients: Clients to keep, by partition number at the client and node number at the server;
            None keeps all.
        names: Names of the arrays, needed if they come numbered, as Flower may send them.
        salt: Salt of the hashes that stand for clients; a fresh one by default.

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
        """Find out now, and not in round five, that nothing could be written."""
        if self.setting.lr is None:
            raise InvalidValue(
                "expected the local learning rate, since clients send back weights, whose scale it "
                "sets; give Setting(lr=...)"
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
        who = "sum" if client == "sum" else f"client-{self._hash(client)[:12]}"
        return self.folder / f"round-{number:03d}-{who}.safetensors"

    def keep(
        self,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        *,
        number: int,
        client: int | str,
        examples: int | None,
        framework: str,
    ) -> None:
        """Write one capture: what was broadcast, and what came back."""
        parameters = select_moved(before)
        buffers = {name: t for name, t in before.items() if name not in parameters}
        moved = {name: t for name, t in after.items() if name in parameters}
        setting = replace(
            self.setting,
            framework=framework,
            round=number,
            client=self._hash(client),
            batch_size=self.setting.batch_size or examples,
        )
        try:
            capture = Capture(moved, "weights_after", parameters, buffers, setting)
            save(capture, self.path(number, client))
        except (SeepageError, OSError) as error:
            self.warn(number, error)

    def warn(self, number: int, error: Exception) -> None:
        """Log why an update of this round is not kept."""
        _LOG.warning("the update of round %d was not kept: %s", number, error)

    def _hash(self, client: int | str) -> str:
        return hashed(str(client), salt=self.salt)


def select_moved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a state dict that training changes."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and name.rpartition(".")[2] not in _MEASURED
    }
