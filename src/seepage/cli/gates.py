"""What `--fail-above` needs before anything runs, and says at the end."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from seepage.audit import Breach, Gate, Record, Spec
from seepage.core.errors import InvalidValue
from seepage.report import defense_words

SHOWN = 10


def require_measured(gates: Sequence[Gate], spec: Spec) -> None:
    """Refuse a gate that could never trip: on people without a truth, or a metric left out."""
    batches = [batch for part in spec.parts for batch in part.batches]
    blind = next((batch.data for batch in batches if batch.truth is None), None)
    if gates and blind is not None:
        raise InvalidValue(
            f"--fail-above compares with the truth, which there is none of behind {blind}; give "
            "it as --truth, or in the spec as truth, or leave --fail-above out"
        )
    for gate in gates:
        asked = [part.audit.metrics for part in spec.parts]
        if not any(m is None or gate.metric in [metric.name for metric in m] for m in asked):
            raise InvalidValue(
                f"--fail-above {gate.metric} needs that metric, which {spec.source.name} does not "
                "measure; add it to metrics"
            )


def leaked(gates: Sequence[Gate], records: Sequence[Record], console: Console) -> bool:
    """Name who leaked through what, and tell whether anybody did."""
    done = [record for record in records if record.error is None]
    found: list[Breach] = []
    for gate in gates:
        if done and not any(gate.metric in record.scores for record in done):
            raise InvalidValue(
                f"no case could measure {gate.metric}, so --fail-above says nothing; use another "
                "metric"
            )
        found.extend(gate.leaks(done))
    # Seeds that say the same are said once.
    sentences = list(dict.fromkeys(map(_sentence, found)))
    for sentence in sentences[:SHOWN]:
        console.print(sentence, style="bold red", markup=False, soft_wrap=True)
    if len(sentences) > SHOWN:
        console.print(f"and {len(sentences) - SHOWN} more leaks", style="bold red")
    return bool(found)


def _sentence(leak: Breach) -> str:
    record, gate = leak.record, leak.gate
    return (
        f"leaked: {record.data} #{leak.person} through {record.attack} on {record.model} behind "
        f"{defense_words(record.defense)}, {gate.metric} {leak.value:.4g} "
        f"(gate {gate.threshold:g})"
    )
