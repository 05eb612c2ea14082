"""Whether a guess singles out its person among strangers, whatever the units."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

import seepage as sp
from seepage.core import Batch, Rng
from seepage.core.errors import InvalidValue
from seepage.domains._picture_views import warp
from seepage.scoring import _gallery as gallery
from seepage.scoring._gallery import FEWEST, Gallery, identify
from seepage.scoring._identification import (
    Identification,
    compute_luck,
    extrapolate,
    is_identified,
)

COUNT = 60


def patterns(count=COUNT, *, shape=(3, 24, 24), seed=0):
    """Smooth random images, every one different."""
    coarse = Rng(seed).fork("patterns").uniform((count, shape[0], 6, 6))
    return torch.nn.functional.interpolate(coarse, size=shape[1:], mode="bicubic").clamp(0, 1)


@pytest.fixture(scope="module")
def people():
    return Gallery(patterns())


def place(gallery, guesses, person=0, **options):
    """Where one person of a gallery stands."""
    label = torch.tensor([0]) if gallery.labels is None else gallery.labels[person : person + 1]
    batch = Batch(gallery.inputs[person : person + 1], label)
    [found] = identify(guesses, batch, gallery, without=[person], **options)
    return found


FORGIVEN = {
    "noise": lambda x: x + 0.2 * Rng(1).normal(tuple(x.shape)),
    "mirror": lambda x: x.flip(-1),
    "inversion": lambda x: 1 - x,
    "shift": lambda x: torch.roll(x, 1, -1),
    "contrast": lambda x: 0.4 + 0.2 * x,
    "units": lambda x: 1000 * x - 50,
    "crop": lambda x: warp(x, zoom=1.25),
    "corner": lambda x: warp(x, zoom=1.25, corner=(-1, 1)),
    "other corner": lambda x: warp(x, zoom=1.11, corner=(1, -1)),
    "zoom out": lambda x: warp(x, zoom=0.8),
    "turn": lambda x: warp(x, angle=10.0),
    "mirrored and turned": lambda x: warp(x.flip(-1), angle=-5.0),
    "left half": lambda x: keep_half(x, slice(None), slice(12), 0.5),
    "lower half": lambda x: keep_half(x, slice(12, None), slice(None), Rng(4).uniform(x.shape[1:])),
}


def keep_half(images, rows, columns, fill):
    """Half of an image is right, the rest is something else."""
    shown = torch.zeros_like(images) + fill
    shown[..., rows, columns] = images[..., rows, columns]
    return shown


@pytest.mark.parametrize("change", FORGIVEN)
def test_a_degraded_truth_is_found_among_strangers(people, change):
    for person in range(0, COUNT, 10):
        guess = FORGIVEN[change](people.inputs[person : person + 1])
        found = place(people, guess, person)
        assert found.singled_out, (change, person)
        assert found.recognisable


def test_guesses_that_ignore_the_person_come_first_as_often_as_chance_has_it(people):
    ignorant = patterns(20, seed=5)
    first = sum(
        place(people, guess[None], n % COUNT).singled_out for n, guess in enumerate(ignorant)
    )
    several = [place(people, ignorant[:3], person).singled_out for person in range(0, COUNT, 3)]
    # With a chance of 1 in 60 each, five of 40 has a probability of 0.1 %.
    assert first + sum(several) <= 4


def test_a_grey_or_broken_guess_finds_nobody(people):
    grey = torch.full((1, 3, 24, 24), 0.5)
    for guess in (grey, torch.full_like(grey, math.nan), torch.full_like(grey, math.inf)):
        found = place(people, guess)
        assert not found.singled_out
        assert not found.recognisable


def test_units_change_nothing(people):
    guess = people.inputs[:1] + 0.3 * Rng(2).normal((1, 3, 24, 24))
    here = place(people, guess)
    wide = Gallery(6 * people.inputs - 3)
    there = place(wide, 6 * guess - 3)
    assert (here.rank, here.strangers) == (there.rank, there.strangers)
    assert here.match == pytest.approx(there.match, rel=1e-3)


def test_a_label_is_not_counted_as_an_identification():
    # Ten labels of twelve images that vary about the mean of their label.
    centres = patterns(10, seed=3).repeat_interleave(12, 0)
    inputs = (centres + 0.1 * patterns(120, seed=4)).clamp(0, 1)
    labels = torch.arange(10).repeat_interleave(12)
    gallery = Gallery(inputs, labels)
    guesses = {label: inputs[labels == label][1:].mean(0, keepdim=True) for label in range(10)}
    by_label = [place(gallery, guesses[n // 12], n) for n in range(0, 120, 12)]
    everybody = Gallery(inputs)
    unknown = [place(everybody, guesses[n // 12], n) for n in range(0, 120, 12)]
    assert {found.gallery for found in by_label} == {"same label"}
    assert {found.strangers for found in by_label} == {11}
    assert sum(found.singled_out for found in by_label) <= 4
    assert {found.gallery for found in unknown} == {"any label"}
    assert all(found.rank <= 12 for found in unknown)


def test_where_few_share_the_label_only_a_near_copy_counts():
    inputs = patterns(40)
    labels = torch.arange(40) // 4
    gallery = Gallery(inputs, labels)
    assert labels.bincount().max() < FEWEST
    mean = inputs[1:4].mean(0, keepdim=True)
    assert not place(gallery, mean).singled_out
    assert place(gallery, inputs[:1] + 0.1).singled_out
    rough = place(gallery, inputs[:1] + 0.4 * Rng(0).normal((1, 3, 24, 24)))
    assert rough.rank == 1
    assert not rough.singled_out
    assert rough.gallery == "few of the label"


def test_made_up_strangers_accuse_nobody():
    noise = Rng(7).uniform((60, 3, 24, 24))
    faces = patterns(12)
    typical = faces.mean(0, keepdim=True)
    for person in range(6):
        gallery = Gallery(torch.cat([faces[person : person + 1], noise]), synthetic=True)
        assert not place(gallery, typical).singled_out
        assert not place(gallery, faces[person + 1 : person + 2]).singled_out
        assert place(gallery, faces[person : person + 1]).singled_out


def test_odd_guesses_are_refused_or_read_and_never_break_the_rest(people):
    with pytest.raises(InvalidValue, match="at least one guess"):
        place(people, people.inputs[:0])
    with pytest.raises(InvalidValue, match="guesses of shape"):
        place(people, people.inputs[:1, :, :12])
    huge = torch.full((1, 3, 24, 24), 3e38)
    beside = place(people, torch.cat([huge, people.inputs[:1]]))
    assert beside.recognisable
    lines = sp.data.load("hamlet")
    texts = Gallery(lines.inputs, lines.labels, lines.domain)
    beyond = lines.inputs[:1].clone()
    beyond[:, 0] = 2**40
    assert place(texts, beyond).singled_out


def test_nothing_tells_a_person_from_somebody_with_the_same_input(people):
    twins = Gallery(torch.cat([people.inputs, people.inputs[:1]]))
    found = place(twins, people.inputs[:1])
    assert (found.strangers, found.exact, found.copies) == (COUNT, True, 1)
    assert not found.singled_out
    alone = place(people, people.inputs[:1])
    assert (alone.exact, alone.copies, alone.singled_out) == (True, 0, True)


def test_signals_rows_and_texts_are_found_too():
    beats = Gallery(torch.cumsum(Rng(3).normal((50, 1, 100)), -1))
    assert place(beats, -beats.inputs[:1] + 0.5).singled_out
    voters = sp.data.load("voters")
    rows = Gallery(voters.inputs, voters.labels, voters.domain)
    assert place(rows, voters.inputs[:1]).singled_out
    lines = sp.data.load("hamlet")
    texts = Gallery(lines.inputs, lines.labels, lines.domain)
    half = lines.inputs[:1].clone()
    half[:, ::2] = 0
    found = place(texts, half)
    assert found.singled_out
    assert found.recognisable


def test_one_large_column_does_not_make_a_row_exact():
    income = sp.domains.Continuous(name="income", low=0, high=1, mean=0.5, std=0.3)
    ages = [sp.domains.Continuous(name=f"x{n}", low=0, high=1, mean=0.5, std=0.3) for n in range(5)]
    table = sp.domains.Tabular((income, *ages))
    rows = Rng(0).uniform((100, 6))
    guess = Rng(1).uniform((1, 6))
    guess[:, 0] = rows[0, 0]
    assert not place(Gallery(rows, domain=table), guess).recognisable


def test_attempts_are_corrected_for_their_number(people):
    one = place(people, people.inputs[:1])
    lucky = replace(one, match=3.0, rival=2.9, one_in_low=30.0)
    rival = replace(one, rank=5, match=1.0, rival=4.0)
    assert is_identified([lucky])
    assert not is_identified([lucky, rival])
    assert is_identified([one, rival])
    assert not is_identified([])


@pytest.mark.parametrize("seed", range(3))
def test_the_extrapolation_of_an_exponential_tail_is_right_within_its_interval(seed):
    others = torch.from_numpy(stats.expon.rvs(size=400, random_state=seed))
    claim, low, high = extrapolate(9.0, others)
    assert low < math.exp(9.0) < high
    assert low < claim < high
    assert extrapolate(-1.0, others) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(("people", "strangers"), [(8, 9), (6, 20)])
def test_luck_allows_for_people_who_share_a_guess(people, strangers):
    # Similarities to one guess: everybody and all strangers are draws of the same kind.
    drawn = Rng(0).uniform((20_000, people + strangers))
    first = (drawn[:, :people] > drawn[:, people:].amax(1, keepdim=True)).sum(1)
    for hits in (1, 2, 3):
        observed = float((first >= hits).float().mean())
        claimed = compute_luck(hits, people, 1 / (strangers + 1))
        assert observed <= claimed + 0.01
        if hits == 3:
            assert observed >= claimed - 0.01
            assert stats.binom.sf(hits - 1, people, 1 / (strangers + 1)) < 0.8 * observed


def test_freedom_to_turn_and_crop_finds_nobody_who_is_not_there(people):
    ignorant = [warp(image[None], angle=7.0) for image in patterns(60, seed=9)]
    first = [place(people, guess, person).singled_out for person, guess in enumerate(ignorant)]
    # With a chance of 1 in 60 each, five of 60 has a probability of 0.4 %.
    assert sum(first) <= 4


def test_volumes_are_recognisable_as_images_are():
    coarse = Rng(8).uniform((40, 1, 4, 4, 4))
    volumes = torch.nn.functional.interpolate(coarse, size=(12, 12, 12), mode="trilinear")
    scans = Gallery(volumes)
    for person in range(5):
        own = volumes[person : person + 1]
        assert place(scans, own + 0.1 * Rng(person).normal(own.shape), person).recognisable
        assert not place(scans, volumes.mean(0, keepdim=True), person).recognisable
        assert not place(scans, Rng(person).uniform(own.shape), person).recognisable
        faint = place(scans, own + 3.0 * Rng(person).normal(own.shape), person)
        assert not faint.recognisable


def test_vectors_of_numbers_are_recognisable_if_their_values_are_near():
    scale = 10.0 ** torch.arange(8)
    rows = scale * Rng(0).normal((80, 8))
    table = Gallery(rows)
    for person in range(8):
        own = rows[person : person + 1]
        near = place(table, own + 0.1 * scale * Rng(person).normal(own.shape), person)
        assert near.recognisable
        far = place(table, own + 0.6 * scale * Rng(person).normal(own.shape), person)
        assert not far.recognisable
        assert not place(table, rows.mean(0, keepdim=True), person).recognisable
    assert not place(table, torch.full((1, 8), math.nan)).recognisable


def test_first_in_one_of_many_attempts_is_no_more_than_luck_gives():
    weak = Identification(1, 100, "same label", 3.0, 2.9, False, 150.0, 101.0, 300.0)
    others = [replace(weak, rank=7, match=1.0, rival=4.0)] * 4
    assert is_identified([weak])
    assert not is_identified([weak, *others])
    # So rare that the best of five attempts by luck does not explain it.
    rare = replace(weak, match=3.9, one_in=1e6, one_in_low=1e5, one_in_high=1e7)
    assert is_identified([rare, *others])


def test_a_guess_of_the_most_frequent_row_singles_out_nobody_who_has_it():
    rows = Rng(3).uniform((60, 8)).mul(50).long()
    rows[:12] = rows[0]
    rows[59] = rows[58]
    gallery = Gallery(rows)
    assert not any(place(gallery, rows[:1], person).singled_out for person in range(12))
    assert not place(gallery, rows[58:59], 58).singled_out, "the next row is the same"
    assert place(gallery, rows[57:58], 57).singled_out


def test_a_noisy_signal_is_found_almost_as_often_as_by_the_nearest_candidate():
    wave = torch.linspace(0, 6.28, 120)
    base = torch.sin(wave)[None, None] + 0.15 * Rng(1).normal((60, 1, 120))
    gallery, found, nearest = Gallery(base), 0, 0
    for person in range(40):
        guess = base[person] + 0.45 * Rng(2).fork(person).normal((1, 1, 120))
        found += place(gallery, guess, person).singled_out
        nearest += int((base - guess).flatten(1).norm(dim=1).argmin()) == person
    assert nearest >= 30
    assert found >= 0.7 * nearest


@pytest.mark.parametrize("shape", [(1, 8), (1, 40), (3, 16, 16)], ids=str)
def test_what_was_compared_before_changes_nothing(shape):
    count = 12
    people, labels = Rng(0).uniform((count, *shape)), torch.arange(count) % 3

    def look(gallery, place):
        batch = Batch(people[place : place + 1], labels[place : place + 1])
        return identify(people[place : place + 1] + 0.1, batch, gallery, without=[place])

    used = Gallery(people, labels)
    after_others = [look(used, place) for place in range(count)]
    alone = [look(Gallery(people, labels), place) for place in range(count)]
    assert after_others == alone


def test_half_a_signal_beside_one_shade_is_found():
    wave = torch.linspace(0, 12.56, 140)
    beats = 0.5 + 0.2 * torch.sin(wave)[None, None] + 0.02 * Rng(1).normal((60, 1, 140))
    gallery = Gallery(beats)
    for person in range(0, 60, 6):
        half = torch.full((1, 1, 140), 0.5)
        half[..., :70] = beats[person, :, :70]
        assert place(gallery, half, person).singled_out


@pytest.mark.parametrize("shape", [(1, 40), (3, 16, 16)], ids=str)
def test_a_large_gallery_is_compared_in_parts_with_the_same_result(monkeypatch, shape):
    whole = Gallery(Rng(0).uniform((50, *shape)))
    guess = whole.inputs[:1] + 0.3 * Rng(1).normal((1, *shape))
    expected = place(whole, guess)
    monkeypatch.setattr(gallery, "_AT_ONCE", 7)
    monkeypatch.setattr(gallery, "_REMEMBERED", 25)
    parts = place(Gallery(whole.inputs), guess)
    assert (parts.rank, parts.strangers) == (expected.rank, expected.strangers)
    assert parts.match == pytest.approx(expected.match, rel=1e-3)
    assert parts.rival == pytest.approx(expected.rival, rel=1e-3)


def test_a_near_copy_of_an_image_that_is_mostly_blank_counts():
    digits = sp.data.load("digits").inputs
    gallery = Gallery(digits, synthetic=True)
    for person in range(0, 100, 20):
        own = digits[person : person + 1]
        assert place(gallery, own + 0.02 * Rng(person).normal(own.shape), person).singled_out
        assert not place(gallery, digits[person + 10 : person + 11], person).singled_out


@pytest.mark.parametrize("shade", [(0.5, 0.5, 0.5), (1.0, 1.0, 1.0), (0.9, 0.1, 0.1)], ids=str)
def test_an_image_of_one_shade_is_found_by_its_values(shade):
    blank = torch.tensor(shade)[None, :, None, None].expand(1, 3, 24, 24)
    noise = Rng(1).normal((1, 3, 24, 24))
    gallery = Gallery(torch.cat([blank + 0.003 * noise, patterns()]))
    found = place(gallery, blank + 0.01 * noise)
    assert (found.rank, found.singled_out, found.gallery) == (1, True, "one shade")
    for guess in (blank + 0.1 * noise, patterns().mean(0, keepdim=True), torch.nan * noise):
        missed = place(gallery, guess)
        assert not missed.singled_out
        # Nothing else in it could have been found, so that this says nothing.
        assert not missed.fair


@pytest.mark.parametrize("kind", ["signal", "image"])
def test_a_quiet_input_is_no_one_shade_beside_people_who_were_made_up(kind):
    if kind == "signal":
        domain = sp.domains.Signal((1, 256), bounds=(-8, 8))
        truth = 1.3 + 0.15 * torch.linspace(0, 31.4, 256).sin()[None, None]
    else:
        domain = sp.domains.Image((1, 16, 16), bounds=(-3, 3))
        truth = 0.5 + 0.05 * Rng(1).normal((1, 1, 16, 16))
    everybody = torch.cat([truth, domain.sample(64, rng=Rng(0))])
    gallery, batch = Gallery(everybody, None, domain, synthetic=True), Batch(truth, torch.zeros(1))
    flat = torch.full_like(truth, float(truth.mean()))
    noise = flat + 0.1 * Rng(2).normal(tuple(truth.shape))
    for guess, found in ((flat, False), (noise, False), (truth + 1e-3, True)):
        [one] = identify(guess, batch, gallery, without=[0])
        assert (one.gallery, one.singled_out) == ("synthetic", found)
    # One that really has one shade is found by its values.
    [one] = identify(flat, Batch(flat, torch.zeros(1)), gallery, without=[0])
    assert (one.gallery, one.singled_out) == ("one shade", True)
    # But a blank that anybody can guess says nothing.
    zero = torch.zeros_like(flat)
    [one] = identify(zero, Batch(zero, torch.zeros(1)), gallery, without=[0])
    assert (one.gallery, one.exact, one.singled_out) == ("one shade", True, False)


def test_one_person_with_large_values_does_not_make_others_one_shade():
    loud = Gallery(torch.cat([patterns(), 500 * patterns(1, seed=3)]))
    assert place(loud, patterns()[:1] + 0.1).gallery == "any label"


def test_the_length_of_a_text_singles_nobody_out_but_its_words_do():
    texts = (Rng(0).fork("texts").uniform((COUNT, 12)) * 98).long() + 1
    texts[0, 4:] = 0
    people = Gallery(texts, domain=sp.domains.Tokens(12, 100, padding=0))
    batch = Batch(texts[:1], torch.zeros(1))
    wrong = torch.where(texts[:1] > 0, 99, 0)
    for guess in (wrong, torch.zeros_like(wrong)):
        [found] = identify(guess, batch, people, without=[0])
        assert not found.singled_out
        assert not found.recognisable
    half = torch.where(torch.arange(12) < 2, texts[:1], wrong)
    [found] = identify(half, batch, people, without=[0])
    assert found.singled_out
    assert found.recognisable
