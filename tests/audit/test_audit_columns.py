"""Columns came back only if an attack has more of them right than of strangers, over people."""

from dataclasses import replace

import pytest
import torch
from tests.report.records import make_record

import seepage as sp
from seepage.audit._record import Record
from seepage.audit._targets import select_targets
from seepage.audit.results import Results
from seepage.audit.results._amount import Amount
from seepage.core import Rng
from seepage.core._construct import Component
from seepage.report import Level

PEOPLE = 32


def make_table(count=160):
    """Numbers and categories that hang together, as those of people do."""
    rng = sp.rng(0)
    kind = rng.fork("kind").uniform((count,))
    columns = {
        f"number {n}": (50 + 20 * kind + 12 * rng.fork(n).normal((count,))).round().tolist()
        for n in range(4)
    } | {
        f"answer {n}": [
            f"a{int(3 * max(0.0, min(0.99, float(each))))}"
            for each in kind + 0.3 * rng.fork(f"answer {n}").normal((count,))
        ]
        for n in range(4)
    }
    return sp.data.read_table(columns | {"label": ["a", "b"] * (count // 2)}, label="label")


TABLE = make_table()


def guess_for(people, guesses, **changed):
    """The records of an attack that makes these guesses, one batch after the other."""
    size = len(people) // len(guesses)
    for number, guess in enumerate(guesses):
        own = people[number * size : (number + 1) * size]
        [target] = select_targets(TABLE, people=own, batch_size=size)
        scored = target.score_guess(sp.Reconstruction(guess), metrics=None, rng=sp.rng(number))
        yield make_record(
            data="table",
            people=tuple(own),
            scores=scored.scores,
            baselines=scored.baselines,
            identification=scored.identification,
            columns=scored.columns,
            **changed,
        )


def typical_rows():
    rows = TABLE.inputs[PEOPLE:]
    counted = torch.cat([rows[:, :4].median(0).values, rows[:, 4:].mean(0)])
    nearest = rows[(rows - counted).square().sum(1).argmin()]
    return {
        "medians": TABLE.domain.project(counted),
        "mean": TABLE.domain.project(rows.mean(0)),
        "typical person": nearest,
    }


IGNORANT = {
    **{name: [row[None]] * PEOPLE for name, row in typical_rows().items()},
    "strangers": list(TABLE.inputs[PEOPLE : 2 * PEOPLE].split(1)),
    "batches of strangers": list(TABLE.inputs[PEOPLE : 2 * PEOPLE].split(4)),
}
# Those that `make test` tries.
QUICK = ("mean", "batches of strangers")


@pytest.mark.parametrize(
    "kind",
    [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in IGNORANT],
)
def test_a_guess_without_an_update_has_no_columns_beyond_chance(kind):
    found = list(guess_for(range(PEOPLE), IGNORANT[kind]))
    assert not any(attempt.parts for attempt in Results.of(found))
    assert {attempt.level for attempt in Results.of(found)} == {Level.inconclusive}


def keep_columns(rows, columns, rng):
    """Rows of which only these columns are right; the others are of somebody else."""
    others = TABLE.inputs[PEOPLE:][rng.permutation(len(TABLE) - PEOPLE)[: len(rows)]].clone()
    for place in (TABLE.domain.places[column] for column in columns):
        others[:, place] = rows[:, place]
    return others


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_columns_that_came_back_are_told(size):
    leaked = keep_columns(TABLE.inputs[:PEOPLE], (0, 3, 5, 7), Rng(1))
    found = list(guess_for(range(PEOPLE), list(leaked.split(size))))
    told = [attempt for attempt in Results.of(found) if attempt.parts]
    assert len(told) >= PEOPLE / 4
    assert {attempt.parts[0].metric for attempt in told} == {"feature_accuracy"}
    assert Level.partly in {attempt.level for attempt in told}


def test_columns_of_one_person_are_told_only_if_few_strangers_share_them():
    own = TABLE.inputs[:1]
    [whole] = guess_for([0], [own])
    assert Results.of([whole])[0].parts == (Amount("feature_accuracy", 1.0),)
    assert whole.columns[0] == 1.0
    assert len(whole.columns) == 1 + whole.identification[0].strangers
    [typical] = guess_for([0], [typical_rows()["medians"][None]])
    assert Results.of([typical])[0].parts == ()


def test_more_attacks_need_more_evidence_and_repetitions_are_no_more_people():
    shares = (0.9, *[0.9] * 2, *[0.3] * 97)
    one = make_record(
        data="table",
        scores={"psnr": (9.0,), "feature_accuracy": (0.9,)},
        baselines={"mean": {"feature_accuracy": (0.3,)}},
        columns=shares,
    )
    assert Results.of([one])[0].parts == (Amount("feature_accuracy", 0.9),)
    other = replace(one, attack=Component("other"), columns=shares[::-1])
    assert not any(attempt.parts for attempt in Results.of([one, other]))
    lucky = replace(one, columns=(0.9, *[0.9] * 9, *[0.3] * 90))
    again = [replace(lucky, seed=seed) for seed in range(5)]
    assert not any(attempt.parts for attempt in Results.of(again)), "seeds are no more people"
    people = [replace(lucky, people=(number,)) for number in range(5)]
    assert all(attempt.parts for attempt in Results.of(people))
    untested = replace(one, columns=())
    assert Results.of([untested])[0].parts == ()


def test_what_was_compared_is_stored():
    [found] = guess_for([0], [TABLE.inputs[:1]])
    assert Record.from_plain(found.plain()).columns == found.columns
    old = {name: value for name, value in found.plain().items() if name != "columns"}
    assert Record.from_plain(old).columns == ()
