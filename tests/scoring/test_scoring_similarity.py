"""How alike guesses and candidates look, in the views that forgive what an eye forgives."""

import math

import pytest
import torch

import seepage as sp
from seepage.core import Rng
from seepage.domains import domain_of
from seepage.domains._picture_views import warp


@pytest.fixture(scope="module")
def pictures():
    coarse = Rng(0).fork("patterns").uniform((12, 3, 6, 6))
    return torch.nn.functional.interpolate(coarse, size=(24, 24), mode="bicubic").clamp(0, 1)


def test_pictures_are_alike_themselves_and_nothing_is_more_alike(pictures):
    measures = domain_of(pictures).likeness(pictures)
    table = measures.compare(measures.show(pictures[:2]), measures.embed(pictures[:4]))
    assert torch.allclose(table["pixels"].diagonal(), torch.ones(2), atol=1e-4)
    assert all((values <= 1 + 1e-4).all() for values in table.values())


@pytest.mark.parametrize(
    "change",
    [
        {"angle": -10.0},
        {"zoom": 1.25},
        {"zoom": 0.8},
        {"zoom": 1.25, "corner": (-1, 1)},
    ],
    ids=repr,
)
def test_a_view_undoes_a_turn_a_crop_and_a_zoom(pictures, change):
    measures, guess = domain_of(pictures).likeness(pictures), warp(pictures[:1], **change)
    shown, known = measures.show(guess), measures.embed(pictures)
    plain, best = (measures.compare(views, known)["pixels"][0] for views in (shown[:1], shown))
    assert best[0] > plain[0] + 0.05
    assert best[0] > 0.9
    assert best[1:].max() < best[0] - 0.1


def test_words_are_compared_as_a_plain_count_has_it():
    lines = sp.data.load("hamlet")
    public, guess = lines.inputs[:300], lines.inputs[[3, 7]]
    table = lines.domain.likeness(public)
    found = table.compare(table.show(guess), table.embed(public[:5]))["words"]

    def weigh(words):
        having = sum(bool((text == words[0]).any()) for text in public)
        return -math.log((having + 1) / (len(public) + 2)) * words[1]

    for g, first in enumerate(guess.tolist()):
        for c, second in enumerate(public[:5].tolist()):
            words = {*first, *second}
            both = sum(weigh((w, min(first.count(w), second.count(w)))) for w in words)
            either = sum(weigh((w, max(first.count(w), second.count(w)))) for w in words)
            assert float(found[g, c]) == pytest.approx(both / either, abs=1e-5)
