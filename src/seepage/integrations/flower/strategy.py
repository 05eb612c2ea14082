"""At the server: keep what arrives, in either generation of strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue
from seepage.integrations.flower.recorder import Recorder
from seepage.integrations.flower.wire import arrays, examples_of

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message
    from flwr.common import Parameters

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
