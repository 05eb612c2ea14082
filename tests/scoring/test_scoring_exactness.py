"""An exact guess identifies somebody only if it fits nobody else."""

import pytest
import torch

import seepage as sp
from seepage.core import Batch, Rng
from seepage.domains import Categorical, Continuous, Tabular
from seepage.scoring._gallery import Gallery, identify

COUNT = 60


def number(name, **changed):
    return Continuous(**{"name": name, "low": 0, "high": 100, "mean": 45, "std": 15} | changed)


def options(name, count):
    return Categorical(name=name, categories=tuple(f"{name}{n}" for n in range(count)))


def draw(table, count=COUNT, *, seed=0):
    """Rows whose numbers are whole and whose categories are not equally frequent."""
    parts = []
    for place, column in enumerate(table.columns):
        rng = Rng(seed).fork(place)
        if isinstance(column, Continuous):
            unit = (column.mean + column.std * rng.normal((count, 1))).round()
            parts.append(((unit - column.low) / (column.high - column.low)).clamp(0, 1))
        else:
            kinds = (rng.uniform((count,)).square() * column.width).long()
            parts.append(torch.nn.functional.one_hot(kinds, column.width).float())
    return torch.cat(parts, 1)


NARROW = {
    "three categories": Tabular((options("a", 3), options("b", 3), options("c", 2))),
    "a number": Tabular((number("age"), options("b", 2))),
    "two numbers": Tabular((number("age"), number("hours", mean=40, std=3))),
}


def place(gallery, guess, person):
    """Where a person of a gallery stands, given one guess."""
    batch = Batch(gallery.inputs[person, None], torch.zeros(1, dtype=torch.long))
    [found] = identify(guess[None], batch, gallery, without=[person])
    return found


@pytest.mark.parametrize("kind", NARROW)
def test_a_guess_without_an_update_reconstructs_nobody_in_a_narrow_table(kind):
    table = NARROW[kind]
    rows = draw(table)
    gallery = Gallery(rows, domain=table)
    typical = table.project(rows.median(0).values)
    frequent = torch.mode(rows, dim=0).values
    for guess in (table.project(rows.mean(0)), typical, frequent):
        found = [place(gallery, guess, person) for person in range(COUNT)]
        assert sum(one.exact and one.singled_out for one in found) <= 1
    others = [place(gallery, rows[(n + 7) % COUNT], n) for n in range(COUNT)]
    assert not any(one.exact and one.singled_out for one in others)


@pytest.mark.parametrize("kind", NARROW)
def test_a_row_that_came_back_identifies_exactly_those_who_share_it_with_nobody(kind):
    rows = draw(NARROW[kind])
    gallery = Gallery(rows, domain=NARROW[kind])
    alone = [int((rows == row).all(1).sum()) == 1 for row in rows]
    assert 1 <= sum(alone) < COUNT
    found = [place(gallery, row, person) for person, row in enumerate(rows)]
    assert all(one.exact for one in found)
    assert [one.singled_out for one in found] == alone
    assert [one.copies == 0 for one in found] == alone


def test_a_row_is_found_in_a_batch_beside_one_who_has_a_twin():
    table = NARROW["two numbers"]
    rows = draw(table)
    rows[50] = rows[0]
    batch = Batch(rows[:2], torch.zeros(2, dtype=torch.long))
    found = identify(rows[:2].flip(0), batch, Gallery(rows, domain=table), without=[0, 1])
    assert [(one.exact, one.singled_out) for one in found] == [(True, False), (True, True)]


def test_numbers_are_exact_to_the_decimals_that_the_column_has():
    columns = (
        number("age"),
        number("income", high=200_000, std=20_000),
        number("voltage", low=-1, high=1, mean=0, std=0.3),
        options("vote", 2),
    )
    table = Tabular(columns)
    draws = Rng(0).uniform((COUNT, 3)).double()
    units = torch.stack(
        [(99 * draws[:, 0]).round(), (20e6 * draws[:, 1]).round() / 100, draws[:, 2] - 0.5], 1
    )
    lows = torch.tensor([c.low for c in columns[:3]], dtype=torch.float64)
    spans = torch.tensor([c.high - c.low for c in columns[:3]], dtype=torch.float64)
    vote = torch.tensor([[1.0, 0.0]]).expand(COUNT, 2)
    rows = torch.cat([((units - lows) / spans).float(), vote], 1)
    rule = table.exactness(rows)

    def is_exact(**off):
        guess = units[0] + torch.tensor([off.get(c.name, 0.0) for c in columns[:3]])
        guess = torch.cat([((guess - lows) / spans).float(), torch.tensor([0.9, 0.2])])
        return bool(rule.compare(guess, rows[:1]))

    assert is_exact()
    assert is_exact(age=0.4)
    assert not is_exact(age=0.6)
    # 200 000 in single precision leave a cent or two open; a third of a deviation would be 6000.
    assert is_exact(income=0.01)
    assert not is_exact(income=0.5)
    # Numbers of any number of decimals are the same only up to rounding.
    assert is_exact(voltage=3e-7)
    assert not is_exact(voltage=1e-4)
    wrong = rows[0].clone()
    wrong[-2:] = torch.tensor([0.4, 0.6])
    assert not rule.compare(wrong, rows[:1])


def test_a_black_guess_identifies_no_blank_scan():
    scans = 4e-4 * Rng(0).normal((COUNT, 1, 16, 16)).abs()
    scans[13:] += Rng(1).uniform((COUNT - 13, 1, 16, 16))
    gallery, black = Gallery(scans), torch.zeros(1, 16, 16)
    found = [place(gallery, black, person) for person in range(COUNT)]
    assert [one.exact for one in found] == [True] * 13 + [False] * (COUNT - 13)
    assert not any(one.singled_out for one in found[:13])
    # Nor the only blank scan, since anybody can guess a blank.
    alone = Gallery(scans[12:])
    only = place(alone, black, 0)
    assert (only.exact, only.copies, only.singled_out) == (True, 0, False)


def test_an_image_that_came_back_is_found():
    photos = sp.data.load("photos")
    gallery = Gallery(photos.inputs, photos.labels, photos.domain)
    [found] = identify(photos.inputs[:1] + 1e-3, photos.batch(1), gallery, without=[0])
    assert (found.exact, found.singled_out, found.recognisable) == (True, True, True)
    [near] = identify(photos.inputs[:1] + 1e-2, photos.batch(1), gallery, without=[0])
    assert (near.exact, near.singled_out) == (False, True)


@pytest.mark.parametrize("others", [True, False], ids=["others", "made up"])
def test_a_guess_of_zeros_is_no_quiet_signal_in_a_wide_range(others):
    domain = sp.domains.Signal((1, 64), bounds=(-8, 8))
    angle = torch.linspace(0, 6.28, 64)
    quiet = torch.stack([0.025 * torch.sin(n * angle) for n in range(1, 21)])[:, None]
    pool = quiet[1:] if others else domain.sample(64, rng=Rng(0))
    gallery = Gallery(torch.cat([quiet[:1], pool]), None, domain, synthetic=not others)
    for guess in (torch.zeros(1, 64), quiet[0] + 0.02 * Rng(1).normal((1, 64)).clamp(-1, 1)):
        assert not place(gallery, guess, 0).exact
    assert not place(gallery, torch.zeros(1, 64), 0).singled_out
    found = place(gallery, quiet[0] + 1e-6, 0)
    assert (found.exact, found.singled_out) == (True, True)


def test_an_exact_guess_in_a_narrow_table_is_no_rare_match():
    narrow, wide = NARROW["three categories"], Tabular(tuple(number(f"x{n}") for n in range(8)))
    rows = draw(narrow, 400)
    rows = torch.cat([rows[:1], rows[(rows != rows[0]).any(1)]])
    found = place(Gallery(rows, domain=narrow), rows[0], 0)
    assert found.exact
    assert found.one_in_low <= 101
    assert place(Gallery(draw(wide), domain=wide), draw(wide)[0], 0).one_in_low > 1e6
