"""A record for the tests of reports, which each of them changes."""

from dataclasses import replace

from seepage.audit import Record
from seepage.core._construct import Component


def make_record(**changed):
    """A record of person 0 of the photos, without scores."""
    plain = Record(
        data="photos",
        people=(0,),
        model="mlp(hidden=(8,))",
        local=Component("Gradient"),
        defense=(),
        threat=Component("Threat", {"knows_labels": True}),
        attack=Component("analytic_fc"),
        seed=0,
    )
    return replace(plain, **changed)


def told(judged):
    """What a verdict says, by kind: the numbers of each finding."""
    return {found.kind: found.numbers for found in (judged.main, *judged.findings)}
