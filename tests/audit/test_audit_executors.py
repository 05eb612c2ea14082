"""Whoever runs the cases, the records are the same; a worker that dies takes nothing with it."""

import importlib.util
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

import seepage as sp
from seepage.attacks import adaptive
from seepage.attacks.labels import InferLabels
from seepage.attacks.labels._read_logits import ReadLogits
from seepage.audit import (
    Audit,
    Outcome,
    Pool,
    RayCluster,
    SpecSource,
    build_spec,
    load_audit,
    run_case,
    select_targets,
    serial,
    side_by_side,
)
from seepage.audit._ray import _run_task
from seepage.core import Attack
from seepage.core._checkpoint import checkpointing
from seepage.core._progress import listen
from seepage.core.errors import (
    InvalidValue,
    MissingExtra,
    NotApplicable,
    SeepageError,
    install_hint,
    line_to_store,
)
from seepage.search import Engine

# Networks that kill every process but the one whose number the folder holds: `once` the first
# time it meets a private input, `always` each time. The blank input of a check is uniform.
DEADLY = """
import os, signal
from pathlib import Path
import torch
from torch import nn

class Deadly(nn.Sequential):
    def __init__(self, marker=None):
        super().__init__(nn.Flatten(), nn.Linear(784, 10))
        self.marker = marker
    def forward(self, inputs):
        elsewhere = os.getpid() != int(Path("driver").read_text())
        private = inputs.min() < inputs.max()
        if elsewhere and private and not (self.marker and Path(self.marker).exists()):
            if self.marker:
                Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(inputs)

def once(): return Deadly("died-once")
def always(): return Deadly()
"""

SPEC = """
metrics = ["psnr"]
controls = false
[[scenario]]
data = { name = "digits" }
models = [
  { name = "deadly_networks:always", seed = 0 },
  { name = "deadly_networks:once", seed = 0 },
  { name = "mlp", hidden = [8] },
]
threats = { knows_labels = true }
attacks = [{ name = "analytic_fc" }, { name = "inverting_gradients", steps = 30, restarts = 1 }]
defenses = [{ name = "AddGaussian", std = 0.001 }]
"""
BOUNDED = """
[[scenario]]
data = { name = "digits", pixels = 8 }
models = { name = "mlp", hidden = [8], activation = "sigmoid" }
threats = { knows_labels = true }
attacks = { name = "analytic_fc" }
bounds = [{ name = "CramerRao" }, { name = "VanTrees", points = 1 }]
defenses = [{ name = "AddGaussian", std = 0.001 }]
"""
# The deadly networks need no second attack to be deadly.
ALWAYS, ONCE, ONCE_TOO, MLP, MLP_TOO = 0, 2, 3, 4, 5


def timeless(record):
    return replace(record, effort={k: v for k, v in record.effort.items() if k != "seconds"})


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "deadly_networks.py").write_text(DEADLY)
    (tmp_path / "driver").write_text(str(os.getpid()))
    (tmp_path / "spec.toml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("deadly_networks", None)


@pytest.fixture
def cases(place):
    every = build_spec(SpecSource.read(place / "spec.toml")).cases
    return [every[number] for number in (ALWAYS, ONCE, ONCE_TOO, MLP, MLP_TOO)]


def expected(cases):
    return {case.id: timeless(run_case(case).record) for case in cases}


@pytest.mark.slow
def test_worker_processes_give_the_same_records_and_survive_the_death_of_one(place, cases):
    pool = Pool(SpecSource.read(place / "spec.toml"), 2, place / "checkpoints")
    begun, heard = [], []
    with listen(lambda *report: heard.append(report)):
        outcomes = {o.record.case: o for o in pool(cases, lambda case: not begun.append(case))}
    assert (place / "died-once").exists()
    truths = expected(cases)
    doomed = truths.pop(cases[0].id)
    assert outcomes[doomed.case].record.error == "its worker died 2 times (exit code -9)"
    assert outcomes[doomed.case].guess is None
    for case in cases[1:]:
        found = outcomes[case.id]
        assert timeless(found.record) == truths[case.id]
        again = run_case(case)
        assert torch.equal(found.guess, again.guess)
        assert found.objective == again.objective
    # The doomed case was begun twice, and so was one of the others.
    assert len(begun) == len(cases) + 2
    assert heard[-1][1] == 30


def test_a_pool_of_which_no_case_may_begin_ends(place, cases):
    pool = Pool(SpecSource.read(place / "spec.toml"), 1, place / "checkpoints")
    assert list(pool(cases, lambda case: False)) == []


def test_no_worker_is_no_pool(tmp_path):
    with pytest.raises(InvalidValue, match="expected workers >= 1, got 0"):
        Pool(SpecSource("x.toml", ""), 0, tmp_path)


IN_A_POOL = """
import multiprocessing, sys
import seepage as sp

def audit(options):
    try:
        sp.audit.run("spec.toml", "out", device="cpu", **options)
    except sp.SeepageError as error:
        return str(error)

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for options in ({"workers": 2}, {"timeout": 100.0}, {}):
            print(pool.apply(audit, [options]))
"""


@pytest.mark.slow
def test_a_process_that_may_not_start_others_says_so_and_can_audit_alone(tmp_path):
    (tmp_path / "spec.toml").write_text(BOUNDED)
    (tmp_path / "main.py").write_text(IN_A_POOL)
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    refused, also, alone = done.stdout.splitlines()
    assert refused == also
    assert "is daemonic" in refused
    assert alone == "None"


@pytest.fixture
def ray_starts():
    """Skip where ray is missing, or where the machine does not let it start at all."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    start = "import ray; ray.init(num_cpus=1, include_dashboard=False); ray.shutdown()"
    try:
        subprocess.run([sys.executable, "-c", start], capture_output=True, timeout=120, check=True)
    except subprocess.SubprocessError as error:
        pytest.skip(f"ray does not start here: {type(error).__name__}")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_starts")
def test_ray_gives_the_same_records_and_survives_the_death_of_a_worker(place, cases):
    (place / "spec.toml").write_text(SPEC + BOUNDED)
    script = (
        "import os; from pathlib import Path\n"
        "Path('driver').write_text(str(os.getpid()))\n"
        "from seepage.cli import main; main()"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", script),
            *("audit", "spec.toml", "--out", "out", "--plain"),
            *("--executor", "ray", "--workers", "2"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "[9/9]" in done.stdout
    assert (place / "died-once").exists()
    audited = load_audit(place / "out")
    records = {record.case: timeless(record) for record in audited.records}
    (place / "driver").write_text(str(os.getpid()))
    truths = expected(cases)
    doomed = truths.pop(cases[0].id)
    assert records[doomed.case].error == "its worker was lost: WorkerCrashedError"
    assert {case: records[case] for case in truths} == truths
    bounds = build_spec(SpecSource.read(place / "spec.toml")).cases[-2:]
    assert {record.case: timeless(record) for record in audited.bounds} == expected(bounds)
    assert all(0 < min(record.bound.values) < 1 for record in audited.bounds)


class FakeRay(SimpleNamespace):
    """A cluster that gives the outcomes, or raises the errors, of a list, in turn."""

    class exceptions:  # noqa: N801
        RayError = type("RayError", (Exception,), {})
        RayTaskError = type("RayTaskError", (RayError,), {})
        OutOfMemoryError = type("OutOfMemoryError", (RayError,), {})
        WorkerCrashedError = type("WorkerCrashedError", (RayError,), {})
        LocalRayletDiedError = type("LocalRayletDiedError", (RayError,), {})

    def is_initialized(self):
        return False

    def init(self, **options):
        self.options = options

    def shutdown(self):
        pass

    def remote(self, function):
        task = SimpleNamespace(remote=lambda *given: given)
        task.options = lambda **_: task
        return task

    def wait(self, running):
        return running[:1], running[1:]

    def nodes(self):
        return [{"Alive": True}, {"Alive": self.answers}]

    def get(self, task):
        result = self.results[task[1]]
        if isinstance(result, Exception):
            raise result
        return result


@pytest.fixture
def fake_ray(monkeypatch):
    fake = FakeRay(answers=True, results={}, options={})
    monkeypatch.setattr("seepage.audit._ray._import_ray", lambda: fake)
    monkeypatch.setattr("seepage.audit._ray._NOTICED", 1)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return fake


@pytest.mark.parametrize(
    ("error", "answers", "is_kept"),
    [
        ("WorkerCrashedError", True, True),
        ("OutOfMemoryError", True, True),
        ("RayTaskError", True, True),
        ("WorkerCrashedError", False, False),
        ("LocalRayletDiedError", True, False),
    ],
)
def test_a_lost_cluster_is_no_failure_of_a_case(place, cases, fake_ray, error, answers, is_kept):
    """A case that failed by itself has a record; one that was lost runs again on --resume."""
    first, second = cases[3:]
    fake_ray.answers = answers
    fake_ray.results = {
        first.id: run_case(first).pack(),
        second.id: getattr(fake_ray.exceptions, error)(),
    }
    found = iter(RayCluster(SpecSource.read(place / "spec.toml"))([first, second]))
    assert next(found).record.error is None
    if is_kept:
        assert next(found).record.error == f"its worker was lost: {error}"
    else:
        with pytest.raises(
            SeepageError, match=rf"Ray was lost \({error}\).*--resume runs the rest"
        ):
            next(found)
    assert fake_ray.options["_node_ip_address"] == "127.0.0.1"


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_a_cluster_that_does_not_answer_is_one_sentence(
    place, cases, fake_ray, monkeypatch, address
):
    def refuse(**_):
        raise ConnectionError("ray.init() could not connect")

    fake_ray.init = refuse
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    said = f"expected a cluster of Ray {f'at {address!r}' if address else 'here'}, but .*--resume"
    with pytest.raises(SeepageError, match=said):
        next(iter(RayCluster(SpecSource.read(place / "spec.toml"))(cases)))


LISTENERS = """
from seepage.audit import RayCluster, SpecSource
from seepage.audit._ray import _import_ray
ray = _import_ray()
import psutil  # Ray brings it along
cluster = RayCluster(SpecSource("s", ""), 1)
with cluster._start_cluster(ray):
    ray.get(ray.remote(lambda: 1).remote())
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        for link in process.net_connections():
            if link.status == "LISTEN":
                print(process.name(), link.laddr.ip)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("ray_starts")
def test_other_machines_cannot_reach_the_cluster_of_an_audit():
    done = subprocess.run(
        [sys.executable, "-c", LISTENERS], capture_output=True, text=True, timeout=300, check=True
    )
    addresses = [line.split()[-1] for line in done.stdout.splitlines()]
    assert len(addresses) > 3
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}


def test_a_case_on_ray_is_ended_after_its_time(place, monkeypatch):
    (place / "spec.toml").write_text(SPEC)
    source = SpecSource.read(place / "spec.toml")
    case = build_spec(source).cases[MLP]
    monkeypatch.setattr("seepage.audit._ray.run_case", lambda case: time.sleep(60))
    began = time.perf_counter()
    outcome = Outcome.unpack(_run_task(source, case.id, str(place), 0.2), None)
    assert outcome.record.error == "it took longer than the timeout of 0.2 s"
    assert time.perf_counter() - began < 30
    monkeypatch.setattr("seepage.audit._ray.run_case", run_case)
    done = Outcome.unpack(_run_task(source, case.id, str(place), 60.0), None)
    assert done.record.error is None


def test_without_ray_the_extra_is_named(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=re.escape(install_hint("ray"))):
        RayCluster(SpecSource.read(place / "spec.toml"))


class Counting:
    """Gradient matching that notes how many observations come at once."""

    def __init__(self, inner):
        self.inner, self.sizes = inner, []

    def __repr__(self):
        return "Counting()"

    def __call__(self, observation, *, rng):
        self.sizes.append(1)
        return self.inner(observation, rng=rng)

    def many(self, observations, *, rngs):
        self.sizes.append(len(observations))
        return self.inner.many(observations, rngs=rngs)


def side_by_side_grid(attack, *, people=3, batch_size=1, **changes):
    photos = sp.data.load("photos", pixels=8)
    parts = {"defenses": [sp.chain(), sp.AddGaussian(0.01)], "seeds": [0, 1], **changes}
    audit = Audit(
        tasks=[sp.zoo.mlp(hidden=(8,), domain=photos.domain)], attacks={"it": attack}, **parts
    )
    return audit.cases(select_targets(photos, people=people, batch_size=batch_size, start=0))


# Whatever is done to a finished update; the others act before it, and change what is computed.
AFTERWARDS = [sp.chain(), sp.Clip(0.5), sp.AddGaussian(0.01), sp.Dropout(0.3), sp.Prune(0.5)]
BEFORE = [sp.MixUp(2), sp.chain(sp.ClipEach(1.0), sp.Mean()), sp.Oasis(), sp.Precode()]


@pytest.mark.parametrize("adapt", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_cases_that_differ_in_people_seed_and_what_is_done_to_updates_run_side_by_side(adapt):
    # As on a card, where all rows pass through one network.
    engine = Engine(rows=64, strategy="shared")
    search = sp.attacks.inverting_gradients(steps=5, restarts=2, engine=engine)
    attack = Counting(sp.attacks.adaptive(search) if adapt else search)
    cases = side_by_side_grid(attack, defenses=AFTERWARDS, seeds=[0])
    together = {o.record.case: o for o in side_by_side(cases)}
    assert attack.sizes == [3 * len(AFTERWARDS)]
    for alone in serial(cases):
        found = together[alone.record.case]
        assert torch.allclose(found.guess, alone.guess, atol=1e-4)
        assert found.record.scores["psnr"] == pytest.approx(alone.record.scores["psnr"], abs=1e-2)


def test_clients_that_differ_before_the_update_run_apart():
    attack = Counting(sp.attacks.inverting_gradients(steps=2, restarts=1))
    cases = side_by_side_grid(attack, defenses=[sp.chain(), *BEFORE], people=4, batch_size=2)
    apart = {case.batch_key for case in cases}
    assert len(apart) == 1 + len(BEFORE)
    assert not any(outcome.record.error for outcome in side_by_side(cases))
    assert max(attack.sizes) == 4


def test_the_seconds_of_a_group_are_shared_by_its_cases():
    attack = sp.attacks.inverting_gradients(steps=5, restarts=1)
    cases = side_by_side_grid(attack, seeds=[0])
    began = time.perf_counter()
    spent = [float(outcome.record.effort["seconds"]) for outcome in side_by_side(cases)]
    assert 0 < sum(spent) <= time.perf_counter() - began


def test_a_group_that_fails_is_halved_until_the_guilty_case_alone_fails():
    class Moody(Counting):
        def many(self, observations, *, rngs):
            self.sizes.append(len(observations))
            return [self(seen, rng=key) for seen, key in zip(observations, rngs, strict=True)]

        def __call__(self, observation, *, rng):
            if rng == sp.rng(5).fork("adversary"):
                raise RuntimeError("not this one")
            return self.inner(observation, rng=rng)

    attack = Moody(sp.attacks.inverting_gradients(steps=2, restarts=1))
    grid = side_by_side_grid(attack, defenses=[sp.chain()], seeds=list(range(8)), people=1)
    outcomes = list(side_by_side(grid))
    errors = {o.record.seed: o.record.error for o in outcomes if o.record.error}
    assert errors == {5: line_to_store(RuntimeError())}
    assert attack.sizes == [8, 4, 4, 2, 2]


def test_of_a_group_that_fails_in_part_the_rest_is_not_attacked_again():
    class Partly(Counting):
        def many(self, observations, *, rngs):
            guesses = super().many(observations, rngs=rngs)
            return [*guesses[:5], NotApplicable("not this one"), *guesses[6:]]

    attack = Partly(sp.attacks.inverting_gradients(steps=2, restarts=1))
    grid = side_by_side_grid(attack, defenses=[sp.chain()], seeds=list(range(8)), people=1)
    outcomes = list(side_by_side(grid))
    assert {o.record.seed: o.record.error for o in outcomes if o.record.error} == {
        5: "not this one"
    }
    assert attack.sizes == [8]
    plain = serial(case for case in grid if case.seed == 6)
    assert [timeless(o.record) for o in plain] == [timeless(outcomes[6].record)]


# The adversary's key of the second seed.
SECOND = sp.rng(1).fork("adversary")


@dataclass(frozen=True)
class SometimesFails:
    """Fails for the second of several, and gives each of the others what it gives alone."""

    inner: Attack

    def __call__(self, observation, *, rng):
        if rng == SECOND:
            raise NotApplicable("not this one")
        return self.inner(observation, rng=rng)

    def many(self, observations, *, rngs):
        return [
            NotApplicable("not this one") if key == SECOND else self(seen, rng=key)
            for seen, key in zip(observations, rngs, strict=True)
        ]


@pytest.mark.parametrize(
    "around",
    [sp.attacks.Unmixed, adaptive, ReadLogits, InferLabels],
    ids=lambda kind: kind.__name__,
)
def test_a_failure_within_an_attack_changes_nothing_for_the_others(around):
    """Encodings that nobody has unmixed yet are not what an attack that unmixes gives."""
    attack = around(SometimesFails(sp.attacks.exact_batch()))
    photos = sp.data.load("photos", pixels=8)
    audit = Audit(
        tasks=[sp.zoo.mlp(hidden=(64,), domain=photos.domain)],
        attacks={"it": attack},
        defenses=[sp.InstaHide(4) if around is sp.attacks.Unmixed else sp.chain()],
        threats=[sp.Threat.strongest()],
        seeds=[0, 1, 2],
    )
    cases = audit.cases(select_targets(photos, people=4, batch_size=4, start=0))
    alone = {o.record.case: timeless(o.record) for o in serial(cases)}
    beside = {o.record.case: timeless(o.record) for o in side_by_side(cases)}
    assert beside == alone
    assert [record.error for record in alone.values()].count("not this one") == 1


def test_an_attack_that_knows_no_side_by_side_runs_in_turn():
    cases = side_by_side_grid(sp.attacks.analytic_fc())
    assert [timeless(o.record) for o in side_by_side(cases)] == [
        timeless(o.record) for o in serial(cases)
    ]


def test_networks_with_the_same_weights_but_other_inputs_never_run_together():
    photos = sp.data.load("photos", pixels=8)
    shifted = replace(photos.domain, mean=(0.5, 0.5, 0.5))
    plain = sp.zoo.mlp(hidden=(8,), domain=photos.domain)
    attacks = {"it": sp.attacks.inverting_gradients(steps=2, restarts=1)}
    audit = Audit(tasks=[plain, replace(plain, domain=shifted)], attacks=attacks)
    one, other = audit.cases(select_targets(photos, people=1, batch_size=1, start=0))
    assert one.task.digest == other.task.digest
    assert one.batch_key != other.batch_key


def test_attacks_of_one_name_that_differ_never_run_together():
    short, long = (
        side_by_side_grid(sp.attacks.inverting_gradients(steps=steps, restarts=1), seeds=[0])
        for steps in (1, 8)
    )
    steps = [outcome.record.effort["steps"] for outcome in side_by_side([*short, *long])]
    assert steps == [1] * len(short) + [8] * len(long)


@pytest.mark.slow
def test_searches_of_a_group_that_are_done_are_not_made_again_after_an_interruption(
    tmp_path, monkeypatch
):
    """Those without a defense and those behind strong noise are searched for apart."""
    search = sp.attacks.inverting_gradients(steps=20, restarts=1)
    attack = sp.attacks.adaptive(search)
    cases = side_by_side_grid(attack, defenses=[sp.chain(), sp.AddGaussian(5.0)], seeds=[0])
    begun = []

    def heard(step, steps, value):
        begun.append(step)
        if stop and begun.count(0) == 4 and step:
            raise KeyboardInterrupt

    # What a listener hears counts the searches of a group as one.
    monkeypatch.setattr("seepage.search._runner.report", heard)
    with checkpointing(tmp_path, every=5):
        stop = True
        with pytest.raises(KeyboardInterrupt):
            list(side_by_side(cases))
        assert begun.count(0) == 4
        stop, begun = False, []
        found = list(side_by_side(cases))
    # Three were done and the fourth goes on; two are new, and the three that are unaware.
    assert begun.count(0) == len(cases) - 4
    assert not list(tmp_path.glob("*.safetensors"))
    again = {outcome.record.case: outcome for outcome in found}
    for alone in serial(cases):
        assert torch.equal(alone.guess, again[alone.record.case].guess)
