"""What a table costs, counted without building anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seepage.audit._words import count_noun
from seepage_papers.prepare import without_preparation
from seepage_papers.table import PaperTable

# torch.optim.LBFGS makes up to 20 steps in what papers count as one iteration.
STEPS_PER_ITERATION = 20


@dataclass(frozen=True)
class Cost:
    """How much there is to do.

    Args:
        cases: Attacks on one update each.
        steps: Gradients that the searches take, of one image each.
        epochs: Passes over the training data, over all networks to be trained.
    """

    cases: int = 0
    steps: int = 0
    epochs: int = 0

    def __str__(self) -> str:
        """In a few words, for a list.

        Example:
            >>> str(Cost(cases=112, steps=14_336_000, epochs=0))
            '112 cases, 14M steps'
        """
        parts = [count_noun(self.cases, "case") if self.cases else "", self._steps()]
        parts.append(count_noun(self.epochs, "epoch") if self.epochs else "")
        return ", ".join(part for part in parts if part) or "a count"

    def _steps(self) -> str:
        for size, sign in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
            if self.steps >= size:
                return (
                    f"{self.steps / size:.2g}{sign} steps"
                    if self.steps < 10 * size
                    else (f"{self.steps // size}{sign} steps")
                )
        return f"{self.steps} steps" if self.steps else ""


def cost(table: PaperTable, scale: str) -> Cost:
    """Count cases, steps of searches and epochs of trainings."""
    cells = table.cells(scale)
    audited = any(block.by == "audit" for block in table.published)
    seeds = len(table.seeds(scale))
    cases = steps = 0
    for cell in cells if audited else []:
        scenario = without_preparation(cell.scenario)
        data, attacks = scenario["data"], _listed(scenario["attacks"])
        people = data.get("people", data.get("batch_size", 1))
        people = people if isinstance(people, int) else len(people)
        cases += seeds * len(attacks) * people // data.get("batch_size", 1)
        rounds = sum(threat.get("rounds", 1) for threat in _listed(scenario.get("threats", {})))
        steps += seeds * people * rounds * sum(map(_steps, attacks))
    return Cost(cases, steps, _epochs(table, scale))


def _epochs(table: PaperTable, scale: str) -> int:
    """Every training once, however many cells need it."""
    defended = any(block.by == "utility" for block in table.published)
    trainings: dict[str, int] = {}
    for scenario in (cell.scenario for cell in table.cells(scale)):
        model = scenario["models"]
        trainings[repr(model)] = _passes(model.get("schooling", {}))
        if defended:
            training = scenario["training"]
            key = repr((model, training, scenario.get("defenses")))
            trainings[key] = training["epochs"]
    return sum(trainings.values())


def _passes(schooling: Mapping[str, Any]) -> int:
    """Over the examples; of a training that is so many steps long, those it has begun."""
    if "steps" not in schooling:
        return int(schooling.get("epochs", 0))
    steps, size, examples = (int(schooling[k]) for k in ("steps", "batch_size", "examples"))
    return -(-steps * size // examples)


def _listed(attacks: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [attacks] if isinstance(attacks, Mapping) else list(attacks)


def _steps(attack: Mapping[str, Any]) -> int:
    attack = attack.get("attack", attack)
    steps = attack.get("steps", STEPS_PER_ITERATION * attack.get("iterations", 0))
    each = sum(steps) if isinstance(steps, list) else steps
    return int(each) * int(attack.get("restarts", 1))
