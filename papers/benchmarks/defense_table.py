"""The table of the benchmark of defenses: what runs left, joined, beside guesses without an update.

A defense protects from what leaks without it. Where the strongest attack on the undefended network
gets no further than a guess that needs no update, rows differ by what attacks prefer and not by
what they learned, so nothing is ranked.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import seepage as sp
from benchmarks.defense_chart import chart
from benchmarks.defense_rows import ROWS, Scale, loaded
from benchmarks.provenance import RESULTS, save
from seepage.audit import Choice, Record, leakages, pareto_front, ranked, strongest
from seepage.core._construct import Component
from seepage.scoring import METRICS, baseline_scores

DELTA = 1e-5
# Accuracy that a choice may cost to be ranked beside the others.
MARGIN = 0.05
POOL = 2_000
PARTS = ("utility", "attack")
# Of what is measured, for verdicts too, what the table compares.
SHOWN = ("psnr", "lpips")
PICTURES = RESULTS.parents[1] / "docs" / "pictures"
Result = dict[str, object]


def join(sources: Sequence[Path], out: Path, scale: Scale, suffix: str) -> None:
    """Write all rows to one file for each part, the table of both, and its figures."""
    pictures = PICTURES if out == RESULTS else out
    parts = {part: gathered(part, sources, suffix) for part in PARTS}
    for part, content in parts.items():
        print(save(f"defenses-{part}{suffix}", "cpu", content, out))
    joined = table(*(parts[part]["rows"] for part in PARTS), guesses(scale))
    print(save(f"defenses{suffix}", "cpu", joined, out))
    for metric, guess in joined["guess"].items():
        path = pictures / f"defenses-{metric}{suffix}.svg"
        drawn = chart(joined["rows"], metric=metric, guess=guess, front=joined["front"][metric])
        path.write_text(drawn + "\n", encoding="utf-8")
        print(path)


def gathered(part: str, sources: Iterable[Path], suffix: str) -> Result:
    """The rows that several runs left, in the order of the table, and what each run was."""
    found, runs = {}, []
    for folder in sources:
        path = folder / f"defenses-{part}{suffix}.json"
        if not path.is_file():
            continue
        kept = json.loads(path.read_text(encoding="utf-8"))
        found |= kept["rows"]
        runs += kept.get("runs") or [
            {key: kept[key] for key in ("command", "commit", "machine")} | {"rows": [*kept["rows"]]}
        ]
    return {"runs": runs, "rows": {name: found[name] for name in ROWS if name in found}}


def guesses(scale: Scale) -> list[Record]:
    """The mean of other people's images, and others drawn at random, scored as attacks are."""
    people, pool = loaded(scale.data, "test"), loaded(scale.data, "train").batch(POOL).inputs
    return [
        Record(
            data=scale.data,
            people=tuple(range(start, start + scale.attacked)),
            model="",
            local=Component(""),
            defense=(),
            threat=None,
            attack=Component(name),
            seed=0,
            scores={metric: tuple(scores[metric].tolist()) for metric in scores},
        )
        for start in range(0, scale.people, scale.attacked)
        for name, scores in baseline_scores(
            people.batch(scale.attacked, start=start), pool=pool, rng=sp.rng(start)
        ).items()
    ]


def read_record(plain: Result) -> Record:
    """A recorded case; those recorded before 0.2 hold words in the place of values."""
    parts = {key: plain[key] for key in ("local", "attack", "threat", "defense")}
    named = {
        key: {"name": part, "arguments": {}} if isinstance(part, str) else part
        for key, part in parts.items()
    }
    if isinstance(named["defense"], dict):
        named["defense"] = [named["defense"]]
    return Record.from_plain({**plain, **named})


def table(
    costs: Mapping[str, Result], leaks: Mapping[str, Result], guessed: Sequence[Record]
) -> Result:
    """Accuracy beside leakage; the front and the ranking at matched utility, if there are any."""
    named = [name for name in ROWS if name in costs and name in leaks]
    records = {name: [read_record(record) for record in leaks[name]["records"]] for name in named}
    metrics = [metric for metric in SHOWN if metric in records[named[0]][0].scores]
    rows = {name: price(costs[name]) | leaked(records[name], guessed, metrics) for name in named}
    guess = {metric: round(leakages(guessed, metric)[0].mean, 4) for metric in metrics}
    result: Result = {"rows": rows, "guess": guess, "front": {}, "within_5_points": {}}
    for metric in metrics:
        sign = 1.0 if METRICS[metric].higher_leaks_more else -1.0
        choices = [
            Choice(name, sign * row[f"{metric}_mean"], row["accuracy"])
            for name, row in rows.items()
        ]
        level = max(choice.utility for choice in choices) - MARGIN
        leaks_undefended = choices[0].leakage > sign * guess[metric]
        front = pareto_front(choices) if leaks_undefended else []
        within = ranked(choices, utility=level) if leaks_undefended else []
        result["front"][metric] = [choice.label for choice in front]
        result["within_5_points"][metric] = [choice.label for choice in within]
    return result


def price(cost: Result) -> Result:
    """What the defense costs."""
    return {
        "accuracy": cost["accuracy"][-1],
        "loss": cost["loss"][-1],
        "training_loss": cost["training_loss"],
        "overhead": round(cost["overhead"], 3),
        "epsilon": cost["epsilon"] or account(cost),
    }


def leaked(records: Sequence[Record], guessed: Sequence[Record], metrics: Sequence[str]) -> Result:
    """What the strongest attack on each person gets, and of how many more than a guess does."""
    row: Result = {}
    for metric in metrics:
        sign = 1.0 if METRICS[metric].higher_leaks_more else -1.0
        [leakage] = leakages(records, metric)
        guess = {leak.person: sign * leak.value for leak in strongest(guessed, metric)}
        found = {leak.person: sign * leak.value for leak in strongest(records, metric)}
        row[f"{metric}_worst"] = round(leakage.worst, 4)
        row[f"{metric}_mean"] = round(leakage.mean, 4)
        row[f"{metric}_attacks"] = leakage.attacks
        row[f"{metric}_ahead"] = sum(found[person] > guess[person] for person in found)
    return row


def account(cost: Result) -> float | None:
    """Epsilon of a training that was made where Opacus was not."""
    if cost["noise_multiplier"] is None or importlib.util.find_spec("opacus") is None:
        return None
    return sp.epsilon(
        noise_multiplier=cost["noise_multiplier"],
        sample_rate=cost["sample_rate"],
        steps=cost["steps"],
        delta=DELTA,
    )
