"""Images come back from features that an update gives away."""

from dataclasses import dataclass, replace

import torch
from torch import nn

import seepage as sp
from seepage.attacks.feature_recovery import FeatureRecovery
from seepage.rehearsal import Rehearses


@dataclass(frozen=True)
class Directions:
    """Recovers features and forgets how long they are."""

    recovery: FeatureRecovery

    def recover(self, observation, *, rng):
        found = self.recovery.recover(observation, rng=rng)
        values = found.values / found.values.norm(dim=1, keepdim=True)
        return replace(found, values=values, scaled=False)


def see_people_before_a_classifier(count):
    photos = sp.data.load("photos", pixels=8)
    torch.manual_seed(0)
    body = nn.Conv2d(3, 12, 3), nn.Tanh(), nn.Flatten()
    model = nn.Sequential(*body, nn.Linear(12 * 36, 10))
    task, people = sp.Task(model, sp.cross_entropy, photos.domain), photos.batch(count)
    threat = sp.Threat(knows_labels=True)
    return threat.observe(sp.Client(sp.Gradient()), task, people, rng=sp.rng(0)), people


def test_what_any_classifier_reads_gives_its_images_back_where_little_was_lost():
    seen, people = see_people_before_a_classifier(4)
    guess = sp.attacks.feature_inversion(decoder=None, steps=600)(seen, rng=sp.rng(1))
    assert sp.score(guess, people)["psnr"].min() > 30
    assert guess.labels.tolist() == people.labels.tolist()
    assert guess.certificate.residual < 0.1


def test_features_of_unknown_length_are_inverted_by_their_direction():
    seen, people = see_people_before_a_classifier(3)
    recovery = Directions(sp.attacks.softmax_features())
    attack = sp.attacks.feature_inversion(features=recovery, decoder=None, steps=600)
    assert sp.score(attack(seen, rng=sp.rng(1)), people)["psnr"].min() > 25


def test_an_audit_gives_the_decoder_people_that_nobody_attacks():
    attack, few, many = (
        sp.attacks.feature_inversion(),
        *(sp.PublicData(torch.zeros(number, 3, 8, 8)) for number in (9, 90)),
    )
    assert isinstance(attack, Rehearses)
    assert attack.with_public(many).decoder.public == many
    assert attack.with_public(few).decoder.made_up
    assert attack.with_public(many).with_public(few).decoder.public == many
    without = sp.attacks.feature_inversion(decoder=None)
    assert without.with_public(many).decoder is None
