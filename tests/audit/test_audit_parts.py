"""Every part that a report prints can be pasted back, and gives an equal value."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seepage as sp
from seepage.audit import _spec_entries as spec_entries
from seepage.audit import build_spec
from seepage.audit._spec_entries import build_part, find_dataset
from seepage.audit._spec_text import SpecSource, write_toml
from seepage.core._construct import Component
from seepage.defenses import DEFENSES, Chain

SHARE = st.floats(0.01, 0.99)
SIZE = st.floats(1e-6, 1e6)
COUNT = st.integers(2, 9)
LINKS = {
    "AddGaussian": st.builds(sp.AddGaussian, SIZE),
    "AddLaplace": st.builds(sp.AddLaplace, SIZE),
    "Clip": st.builds(sp.Clip, SIZE),
    "ClipEach": st.builds(sp.ClipEach, SIZE),
    "Dropout": st.builds(sp.Dropout, SHARE),
    "InstaHide": st.builds(sp.InstaHide, k=COUNT),
    "Mean": st.builds(sp.Mean, over=st.none() | COUNT),
    "MixUp": st.builds(sp.MixUp, k=COUNT),
    "Oasis": st.builds(sp.Oasis, flips=st.booleans()),
    "Precode": st.builds(sp.Precode, code=COUNT),
    "Prune": st.builds(sp.Prune, SHARE, scope=st.sampled_from(["tensor", "update"])),
    "Quantize": st.builds(sp.Quantize, bits=COUNT),
    "SecureAggregation": st.builds(sp.SecureAggregation, clients=COUNT),
    "Sign": st.builds(sp.Sign),
    "Soteria": st.builds(sp.Soteria, ratio=SHARE),
    "TopK": st.builds(sp.TopK, k=COUNT),
}
THREATS = st.builds(
    sp.Threat,
    knows_labels=st.booleans(),
    knows_defense=st.booleans(),
    batchnorm=st.sampled_from(["exact", "running", "unknown"]),
    server=st.sampled_from(["honest", "malicious"]),
    rounds=st.integers(1, 3),
)
LOCALS = (
    st.builds(sp.Gradient, reduction=st.sampled_from(["mean", "sum"]))
    | st.builds(sp.FedAvg, lr=SIZE, steps=COUNT)
    | st.builds(
        sp.Local,
        optimizer=st.sampled_from(["Adam", "AdamW"]),
        lr=st.lists(SIZE, min_size=2, max_size=2).map(tuple) | SIZE,
        steps=st.just(2),
        betas=st.just((0.9, 0.99)) | st.none(),
        weight_decay=SIZE | st.none(),
        clip_norm=SIZE | st.none(),
    )
)


def test_every_defense_has_a_way_to_be_drawn():
    assert {*LINKS, "dp_sgd"} == {*DEFENSES}


@given(st.sampled_from(sorted(LINKS)).flatmap(LINKS.get))
def test_a_defense_that_is_printed_is_read_as_an_equal_one(link):
    for printed in (str(Component.of(link)), repr(link)):
        [read] = spec_entries.read_defenses(printed)
        assert read == link
        assert repr(read) == repr(link)


@given(st.lists(st.sampled_from(["AddGaussian", "Clip", "Prune", "Sign"]).flatmap(LINKS.get)))
def test_a_chain_that_is_printed_is_read_as_an_equal_one(links):
    defense = sp.chain(*links)
    joined = " + ".join(str(Component.of(link)) for link in Chain.of(defense).links) or "none"
    assert spec_entries.read_defenses([repr(defense), joined]) == (defense, defense)


@given(THREATS)
def test_a_threat_that_is_printed_is_read_as_an_equal_one(threat):
    read = build_part("threat", str(Component.of(threat)))
    assert read == threat


@given(LOCALS)
def test_a_local_computation_that_is_printed_is_read_as_an_equal_one(local):
    for printed in (str(Component.of(local)), repr(local)):
        assert build_part("local computation", printed) == local


@pytest.mark.parametrize(
    "table",
    [
        {"name": "dlg"},
        {"name": "inverting_gradients", "steps": 3, "tv": [0.2, 0.1], "infer_labels": True},
        {"name": "inverting_gradients", "steps": None, "setting": "A", "adaptive": True},
        {"name": "class_fishing", "attack": {"name": "dlg", "iterations": 2}},
        {"name": "auto", "effort": "quick", "budget": 20},
        {"name": "systematic", "prior": {"width": 8}, "features": {"name": "tensor_features"}},
    ],
    ids=lambda table: table["name"],
)
def test_an_attack_that_is_printed_is_read_as_an_equal_one(table):
    name, attack = spec_entries.read_attack(table)
    again, read = spec_entries.read_attack(str(name))
    assert (str(again), repr(read)) == (str(name), repr(attack))
    assert again == name


@pytest.mark.parametrize(
    "table", [{"name": "CramerRao", "std": 0.5}, {"name": "VanTrees", "radius": 0.1, "std": 0.1}]
)
def test_a_bound_that_is_printed_is_read_as_an_equal_one(table):
    name, bound = spec_entries.read_bound(table)
    again, read = spec_entries.read_bound(str(name))
    assert (again, read) == (name, bound)


@pytest.mark.parametrize(
    "written", ["mlp:hidden=32", "mlp(hidden=[8, 4], activation='tanh')", "lenet", "cnn3-v4",
                "convnet:width=2,pooling=average"],
)  # fmt: skip
def test_a_model_that_is_printed_is_read_as_an_equal_one(written):
    digits = find_dataset("digits(pixels=32)")
    task = spec_entries.read_model(written, digits)
    again = spec_entries.read_model(task.name, digits)
    assert (again.name, again.digest) == (task.name, task.digest)


@pytest.mark.parametrize(
    "written", ["photos", "digits:pixels=14", "photos(mean=[0.4, 0.5, 0.6], labels=False)"]
)
def test_a_data_set_that_is_printed_is_read_as_an_equal_one(written):
    data = find_dataset(written)
    again = find_dataset(data.name)
    assert (again.name, again.domain, len(again)) == (data.name, data.domain, len(data))


@settings(max_examples=20, deadline=None)
@given(THREATS.filter(lambda threat: threat.rounds == 1))
def test_a_spec_takes_parts_in_words(threat):
    words = {
        "data": "photos(pixels=8)",
        "models": ["mlp(hidden=(8,))", "mlp:hidden=8"],
        "locals": "Gradient(reduction='sum')",
        "defenses": ["none", "Prune(0.9) + Sign()", "Mean(over=None)"],
        "threats": str(Component.of(threat)),
        "attacks": "dlg(iterations=2, infer_labels=True)",
        "bounds": "CramerRao(std=0.5)",
    }
    spec = build_spec(SpecSource("", write_toml({"controls": False, "scenario": words})))
    [part] = spec.parts
    assert [task.name for task in part.audit.tasks] == 2 * ["mlp(hidden=(8,))"]
    assert part.audit.defenses == (sp.chain(), sp.chain(sp.Prune(0.9), sp.Sign()), sp.Mean())
    assert part.audit.threats == (threat,)
    assert [str(name) for name in part.audit.attacks] == ["dlg(iterations=2, infer_labels=True)"]
