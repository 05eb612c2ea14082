"""A kind of input that Seepage does not have needs a class of its own and nothing else."""

from dataclasses import dataclass

import torch

import seepage as sp
from seepage.audit import Audit, select_targets
from seepage.audit.results import Results
from seepage.core.errors import InvalidValue
from seepage.data._dataset import Dataset
from seepage.domains import Domain
from seepage.rehearsal import make_up

MOST = 99


@dataclass(frozen=True)
class Counts(Domain):
    """How many of each molecule a sample holds."""

    kind = "samples"
    bounds = (0.0, float(MOST))

    shape: tuple[int, ...]

    def normalise(self, inputs):
        return inputs * (2 / MOST) - 1

    def denormalise(self, inputs):
        return (inputs + 1) * (MOST / 2)

    def project(self, inputs):
        return inputs.round().clamp(0, MOST)

    def check(self, inputs):
        if inputs.shape[1:] != self.shape or not torch.equal(self.project(inputs), inputs):
            raise InvalidValue(f"expected whole numbers up to {MOST}")

    def words(self, sample):
        return tuple(f"molecule {n}: {count:.0f}" for n, count in enumerate(sample.tolist()))


def make_molecules():
    labels = torch.arange(60) % 2
    counts = (20 * sp.rng(0).uniform((60, 12)) * (1 + labels[:, None])).round()
    return Dataset("molecules", counts, labels, Counts((12,)), ("benign", "toxic"), "made up")


def test_people_are_scored_told_from_strangers_and_named_by_their_kind():
    data = make_molecules()
    audit = Audit(
        tasks=[sp.zoo.mlp(hidden=(16,), domain=data.domain, classes=2)],
        attacks={"analytic_fc": sp.attacks.analytic_fc()},
        defenses=[sp.defenses.chain(), sp.AddGaussian(10.0)],
    )
    bare, hidden = audit.run(select_targets(data, people=[3], batch_size=1))
    assert bare.record.kind == "samples"
    assert bare.said == (data.domain.words(data.inputs[3]),)
    assert bare.record.is_exact(0)
    assert not hidden.record.is_exact(0)
    found, missed = Results.of([bare.record, hidden.record])
    assert (found.level.identified, missed.level.identified) == (True, False)


def test_an_adversary_without_public_data_rehearses_on_what_the_domain_draws():
    drawn = make_up(Counts((12,)), 5, rng=sp.rng(1)).inputs
    Counts((12,)).check(drawn)
