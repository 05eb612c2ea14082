"""Which updates of a federation to keep, and where."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from seepage.capture.capture import Capture
from seepage.capture.capture_file import save
from seepage.capture.setting import Setting, hashed
from seepage.core.errors import InvalidValue, SeepageError
from seepage.integrations.flower.wire import arrays, examples_of, trainable

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message
    from flwr.common import Parameters


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


StrategyT = TypeVar("StrategyT")


def recorded(strategy: StrategyT, recorder: Recorder) -> StrategyT:
    """The same strategy, which keeps on the way what every client sent.

    Where the updates arrive summed up, as under SecAgg+, the sum is kept: it is all there is.

    Args:
        strategy: Of `flwr.serverapp.strategy` or, for `flwr.server.workflow`, of
            `flwr.server.strategy`.
        recorder: What to keep.
    """
    from flwr.server.strategy import Strategy as OlderStrategy
    from flwr.serverapp.strategy import Strategy

    if isinstance(strategy, Strategy):
        _around_messages(strategy, recorder)
    elif isinstance(strategy, OlderStrategy):
        _around_results(strategy, recorder)
    else:
        raise InvalidValue(f"expected a strategy of Flower, got {strategy!r}")
    return strategy


def _around_messages(strategy: Any, recorder: Recorder) -> None:  # noqa: ANN401 - Flower's own
    sent: dict[int, dict[str, Tensor]] = {}
    configure, aggregate = strategy.configure_train, strategy.aggregate_train

    def configure_train(server_round: int, broadcast: ArrayRecord, *rest: object) -> object:
        sent.clear()
        sent[server_round] = {
            name: torch.from_numpy(array.numpy().copy()) for name, array in broadcast.items()
        }
        return configure(server_round, broadcast, *rest)

    def aggregate_train(server_round: int, replies: Iterable[Message]) -> object:
        messages = list(replies)
        for reply in messages:
            client = reply.metadata.src_node_id
            if not reply.has_error() and recorder.wants(server_round, client):
                recorder.keep(
                    sent[server_round],
                    arrays(reply.content, recorder.names),
                    number=server_round,
                    client=client,
                    examples=examples_of(reply.content),
                )
        return aggregate(server_round, messages)

    _put(strategy, configure_train=configure_train, aggregate_train=aggregate_train)


def _around_results(strategy: Any, recorder: Recorder) -> None:  # noqa: ANN401 - Flower's own
    sent: dict[int, dict[str, Tensor]] = {}
    configure, aggregate = strategy.configure_fit, strategy.aggregate_fit

    def configure_fit(server_round: int, parameters: Parameters, *rest: object) -> object:
        sent.clear()
        sent[server_round] = _numbered(parameters, recorder.names)
        return configure(server_round, parameters, *rest)

    def aggregate_fit(server_round: int, results: Sequence[Any], failures: object) -> object:
        before = sent[server_round]
        for client, after, examples in _arrivals(results):
            if recorder.wants(server_round, None if client == "sum" else int(client)):
                recorder.keep(
                    before,
                    _numbered(after, recorder.names),
                    number=server_round,
                    client=client,
                    examples=examples,
                )
        return aggregate(server_round, results, failures)

    _put(strategy, configure_fit=configure_fit, aggregate_fit=aggregate_fit)


def _arrivals(results: Sequence[Any]) -> list[tuple[int | str, Parameters, int]]:
    """Who sent what on how many examples; one line for all where only their mean arrived."""
    if len(results) > 1 and all(fit.parameters is results[0][1].parameters for _, fit in results):
        return [("sum", results[0][1].parameters, sum(fit.num_examples for _, fit in results))]
    return [(proxy.node_id, fit.parameters, fit.num_examples) for proxy, fit in results]


def _numbered(parameters: Parameters, names: Sequence[str]) -> dict[str, Tensor]:
    from flwr.common import parameters_to_ndarrays

    tensors = [torch.from_numpy(array.copy()) for array in parameters_to_ndarrays(parameters)]
    if len(tensors) != len(names):
        raise InvalidValue(
            f"this strategy numbers its {len(tensors)} arrays, and {len(names)} names are known; "
            "give names=tuple(model.state_dict()) to the Recorder"
        )
    return dict(zip(names, tensors, strict=True))


def _put(strategy: Any, **methods: Callable[..., object]) -> None:  # noqa: ANN401 - Flower's own
    # On the object, not in a class around it: Flower asks what class a strategy is.
    for name, method in methods.items():
        setattr(strategy, name, method)
