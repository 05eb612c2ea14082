"""The engine: the same results whichever way they are computed."""

import os
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.core._checkpoint import Checkpoints, CheckpointWarning, checkpointing, until_done
from seepage.core._progress import listen
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName
from seepage.domains import Image, Signal
from seepage.search import (
    Adam,
    BatchNormStatistics,
    Constant,
    Cosine,
    Decaying,
    Engine,
    FeatureMatching,
    GradientMatching,
    GroupConsistency,
    Search,
    StepDecay,
    TotalVariation,
)
from seepage.search._engine import Chunk, Job, chunks, fingerprint
from seepage.search._objective import Layout, Objective
from seepage.search._runner import Runner
from seepage.search.fast import row_simulation
from seepage.search.fast._row_simulation import SharedWeights, shared_simulation

NETWORKS = {
    "convolutions": lambda: sp.zoo.cnn(variant="cnn3-v2"),
    "batch normalisation": lambda: sp.zoo.convnet(width=2),
    "circular padding, average pooling": lambda: sp.zoo.convnet(
        width=2, padding="circular", pooling="average"
    ),
    "residual, option A": lambda: sp.zoo.resnet20(width=2),
    "residual, projections": lambda: sp.zoo.resnet18(width=2),
    "strides and bias": sp.zoo.lenet,
    "fully connected": lambda: sp.zoo.mlp(hidden=(8, 8)),
    "group and layer norm": lambda: sp.Task(NormNet(), sp.cross_entropy, Image((3, 32, 32))),
}
# Those with batch normalisation; the others do not ask how a batch is normalised.
BY_BATCH = (
    "batch normalisation",
    "circular padding, average pooling",
    "residual, option A",
    "residual, projections",
)


class NormNet(nn.Module):
    """Layers with row forms that no paper's network has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, stride=2, dilation=2)
        self.group = nn.GroupNorm(2, 4)
        self.layer = nn.LayerNorm(14)
        self.head = nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.layer(self.group(self.conv(x)))).mean((2, 3)))


ROUGHNESS = (TotalVariation(weight=0.1),)


def observe(task, batch, *, local=None, defense=None, **threat):
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    return sp.Threat(**{"knows_labels": True, **threat}).observe(client, task, batch, rng=sp.rng(0))


def evaluate(seen, strategy, rows=3, priors=ROUGHNESS):
    layout = Layout(len(seen.labels), seen.task.domain)
    like = next(iter(seen.update))
    points = sp.rng(3).normal((rows, layout.size), like=like)
    simulate = row_simulation(seen, rows=rows, strategy=strategy)
    labels = seen.labels.expand(rows, -1)
    objective = Objective((Cosine(), *priors), (seen,), layout, labels, simulate)
    return objective.evaluate(points, torch.zeros(()))


@pytest.mark.parametrize("defense", [sp.chain(), sp.Prune(0.3)], ids=repr)
@pytest.mark.parametrize(
    ("network", "batchnorm"),
    [
        *((network, "running") for network in NETWORKS),
        *((network, "exact") for network in BY_BATCH),
    ],
)
def test_rows_that_share_weights_equal_rows_in_turn(photos, network, defense, batchnorm):
    task = NETWORKS[network]().to(dtype=torch.float64)
    batch = sp.Batch(photos.inputs[:2], photos.labels[:2]).to(dtype=torch.float64)
    seen = observe(task, batch, defense=defense, batchnorm=batchnorm)
    values, gradients = evaluate(seen, "shared")
    expected_values, expected_gradients = evaluate(seen, "in_turn")
    assert torch.allclose(values, expected_values, atol=1e-10)
    assert torch.allclose(gradients, expected_gradients, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("rows", [1, 3])
def test_terms_are_told_what_layers_read_instead_of_running_the_network_again(photos, rows):
    task = sp.zoo.resnet18(width=2).to(dtype=torch.float64)
    batch = sp.Batch(photos.inputs[:2], photos.labels[:2]).to(dtype=torch.float64)
    seen = observe(task, batch, batchnorm="exact")
    known = torch.randn(2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    priors = (
        BatchNormStatistics(weight=0.01),
        FeatureMatching(weight=0.5, layer="fc", features=known),
    )
    runs: list[str] = []
    handle = seen.task.network.register_forward_pre_hook(lambda *_: runs.append("again"))
    shared = evaluate(seen, "shared", rows, priors)
    runs_of_the_shared = list(runs)
    again = evaluate(seen, "in_turn", rows, priors)
    handle.remove()
    for told, expected in zip(shared, again, strict=True):
        assert torch.allclose(told, expected, rtol=1e-6, atol=1e-10)
    # The copy that rows share took the hook along, and ran once.
    assert runs_of_the_shared == ["again"]


@pytest.mark.parametrize("network", ["convolutions", "batch normalisation", "fully connected"])
def test_rows_by_vmap_equal_rows_in_turn(photos, network):
    task = NETWORKS[network]().to(dtype=torch.float64)
    batch = sp.Batch(photos.inputs[:2], photos.labels[:2]).to(dtype=torch.float64)
    seen = observe(task, batch, local=sp.FedAvg(lr=0.1, steps=2))
    for ours, theirs in zip(evaluate(seen, "vectorised"), evaluate(seen, "in_turn"), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-10)


def test_a_signal_network_shares_weights_too():
    domain = Signal((1, 40))
    task = sp.zoo.single_conv(filters=3, domain=domain, classes=4).to(dtype=torch.float64)
    batch = sp.Batch(domain.sample(2, rng=sp.rng(0)).double(), torch.tensor([0, 3]))
    seen = observe(task, batch)
    for ours, theirs in zip(evaluate(seen, "shared"), evaluate(seen, "in_turn"), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-10)


class Mixing(nn.Module):
    """Subtracts the mean of the batch, which no row layer knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 32 * 32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((x - x.mean(0)).flatten(1))


class Own(nn.Module):
    """Has a parameter of its own, in no known layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, 1, 1))
        self.head = nn.Linear(3 * 32 * 32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((x * self.scale).flatten(1))


@pytest.mark.parametrize(
    ("model", "local", "defense", "why"),
    [
        (Mixing(), sp.Gradient(), sp.chain(), "mixes the examples"),
        (Own(), sp.Gradient(), sp.chain(), "no row form of Own"),
        (None, sp.FedAvg(lr=0.1, steps=2), sp.chain(), "takes local steps"),
        (None, sp.Gradient(), sp.chain(sp.ClipEach(1.0), sp.Mean()), "per-example"),
    ],
)
def test_what_cannot_share_weights_is_named_and_still_attacked(photos, model, local, defense, why):
    task = sp.zoo.mlp(hidden=(4,)) if model is None else None
    task = task or sp.Task(model, sp.cross_entropy, Image((3, 32, 32)))
    seen = observe(task, photos, local=local, defense=defense)
    reason = shared_simulation(seen)
    assert isinstance(reason, str)
    assert why in reason
    with pytest.raises(NotApplicable, match="use strategy='vectorised'"):
        row_simulation(seen, rows=2, strategy="shared")
    search = Search(terms=(Cosine(),), optimiser=Adam(), schedule=Constant(), steps=2, restarts=2)
    guess = GradientMatching(search, Engine(rows=2))(seen, rng=sp.rng(0))
    assert guess.trace.restarts == 2


def test_rounding_does_not_keep_a_deep_network_from_sharing_weights(photos):
    # With this width a ReLU of two rows of noise switches by rounding in single precision.
    assert isinstance(shared_simulation(observe(sp.zoo.resnet18(width=16), photos)), SharedWeights)


class Single(nn.Module):
    """A network that makes a tensor of single precision on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 32 * 32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.flatten(1) @ torch.eye(3 * 32 * 32))


def test_what_cannot_be_doubled_shares_weights_all_the_same(photos):
    task = sp.Task(Single(), sp.cross_entropy, Image((3, 32, 32)))
    assert isinstance(shared_simulation(observe(task, photos)), SharedWeights)


def test_rows_share_weights_where_the_last_layer_is_read(photos):
    seen = observe(sp.zoo.mlp(hidden=(4,)), sp.Batch(photos.inputs[:1], photos.labels[:1]))
    search = sp.attacks.inverting_gradients(steps=1, restarts=2, engine=Engine(rows=2))
    told = []

    class Listening:
        def __call__(self, observation, *, rng):
            told.append(shared_simulation(observation))
            return search(observation, rng=rng)

        def many(self, observations, *, rngs):
            return [self(o, rng=r) for o, r in zip(observations, rngs, strict=True)]

    sp.attacks.ReadLogits(Listening())(seen, rng=sp.rng(0))
    assert [type(one) for one in told] == [SharedWeights]


def test_a_plain_network_shares_weights(photos):
    assert isinstance(shared_simulation(observe(sp.zoo.convnet(width=2), photos)), SharedWeights)


def attack(**options):
    engine = Engine(**{"rows": None, **options.pop("engine", {})})
    defaults = {
        "terms": (Cosine(), TotalVariation(weight=1e-4)),
        "optimiser": Adam(),
        "schedule": StepDecay(),
        "steps": 30,
        "restarts": 3,
    }
    return GradientMatching(Search(**{**defaults, **options}), engine)


@pytest.fixture(scope="module")
def seen(photos):
    task = sp.zoo.cnn(variant="cnn2-v2").to(dtype=torch.float64)
    return observe(task, sp.Batch(photos.inputs[:1], photos.labels[:1]).to(dtype=torch.float64))


@pytest.fixture(scope="module")
def alone(seen):
    """What a search finds with one row at a time."""
    return attack(engine={"rows": 1})(seen, rng=sp.rng(1))


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_how_rows_are_chunked_does_not_change_the_result(seen, alone, rows):
    chunked = attack(engine={"rows": rows, "strategy": "in_turn"})(seen, rng=sp.rng(1))
    assert alone.trace.finals == pytest.approx(chunked.trace.finals, rel=1e-9)
    assert torch.allclose(alone.inputs, chunked.inputs, atol=1e-9)


def test_cases_side_by_side_equal_cases_one_by_one(photos):
    task = sp.zoo.cnn(variant="cnn2-v2").to(dtype=torch.float64)
    batches = [
        sp.Batch(photos.inputs[i : i + 1], photos.labels[i : i + 1]).to(dtype=torch.float64)
        for i in range(3)
    ]
    observations = [observe(task, b, batchnorm="exact") for b in batches]
    keys = [sp.rng(i) for i in range(3)]
    together = attack(steps=10, engine={"rows": 9}).many(observations, rngs=keys)
    for observation, key, guess in zip(observations, keys, together, strict=True):
        one = attack(steps=10)(observation, rng=key)
        assert torch.allclose(one.inputs, guess.inputs, atol=1e-7)
        assert one.trace.finals == pytest.approx(guess.trace.finals, rel=1e-7)


def test_a_run_interrupted_and_continued_gives_the_same_result_bit_for_bit(seen, tmp_path):
    whole = attack()(seen, rng=sp.rng(1))

    @dataclass(frozen=True)
    class Interrupting:
        """Stops the run the first time it gets far."""

        weight: float = 0.0

        def __call__(self, candidate, observation):
            if float(candidate.step) == 23 and not (tmp_path / "stopped").exists():
                (tmp_path / "stopped").touch()
                raise KeyboardInterrupt
            return candidate.normalised.sum() * 0

    terms = (Cosine(), TotalVariation(weight=1e-4), Interrupting())
    with checkpointing(tmp_path / "checkpoints", every=7):
        with pytest.raises(KeyboardInterrupt):
            attack(terms=terms)(seen, rng=sp.rng(1))
        assert len(list((tmp_path / "checkpoints").glob("*.safetensors"))) == 1
        continued = attack(terms=terms)(seen, rng=sp.rng(1))
    assert torch.equal(continued.inputs, whole.inputs)
    assert continued.trace.finals == whole.trace.finals
    assert continued.trace.objective == whole.trace.objective
    assert not list((tmp_path / "checkpoints").glob("*.safetensors"))


def test_an_optimiser_that_holds_a_tensor_twice_can_be_saved(seen, tmp_path):
    attack = sp.attacks.dlg(iterations=1)
    with checkpointing(tmp_path, every=3):
        saved = attack(seen, rng=sp.rng(1))
    assert torch.equal(saved.inputs, attack(seen, rng=sp.rng(1)).inputs)


def test_knowledge_is_part_of_what_names_a_checkpoint(photos):
    batch = sp.Batch(photos.inputs[:1], photos.labels[:1])
    task, search = sp.zoo.mlp(hidden=(4,)), attack().search
    layout, chunk = Layout(1, task.domain), Chunk(range(1), range(1))
    both = [observe(task, batch, defense=sp.Clip(1e3), knows_defense=k) for k in (True, False)]
    names = {fingerprint([Job(search, seen, sp.rng(0), layout)], chunk) for seen in both}
    assert len(names) == 2


def test_restarts_that_see_each_other_always_run_together(seen):
    terms = (Cosine(), Decaying(GroupConsistency(weight=1.0)))
    alone, together = (
        attack(terms=terms, engine={"rows": rows})(seen, rng=sp.rng(1)) for rows in (1, 3)
    )
    assert alone.trace.finals == together.trace.finals


class Curious(nn.Module):
    """Looks at a layer's own attributes in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 32 * 32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.reshape(-1, self.head.in_features))


def test_a_forward_pass_that_the_stand_ins_do_not_fit_is_simulated_otherwise(photos):
    task = sp.Task(Curious(), sp.cross_entropy, Image((3, 32, 32)))
    assert isinstance(shared_simulation(observe(task, photos)), str)


def test_another_attack_does_not_pick_up_the_checkpoint(seen, tmp_path):
    with checkpointing(tmp_path, every=7):
        first = attack()(seen, rng=sp.rng(1))
        other = attack()(seen, rng=sp.rng(2))
    assert not torch.equal(first.inputs, other.inputs)


@pytest.mark.parametrize("where", [0, 9, 30, -1])
def test_a_checkpoint_with_one_flipped_bit_is_not_used(tmp_path, where):
    saved, path = Checkpoints(tmp_path), tmp_path / "abc.safetensors"
    saved.save("abc", [torch.ones(2), torch.zeros(())])
    assert [t.tolist() for t in saved.load("abc")] == [[1, 1], 0]
    assert (path.stat().st_mode & 0o777, tmp_path.stat().st_mode & 0o777) == (0o600, 0o700)
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)
    with pytest.warns(CheckpointWarning, match="is damaged .* the work starts anew"):
        assert saved.load("abc") is None
    assert not path.exists()


def test_two_processes_may_save_the_same_checkpoint_at_once(tmp_path, monkeypatch):
    folder, name, sync = Checkpoints(tmp_path), "0" * 24, os.fsync

    def save_from_another_process(handle):
        with monkeypatch.context() as other:
            other.setattr(os, "fsync", sync)
            other.setattr(os, "getpid", lambda: -1)
            folder.save(name, [torch.ones(1)])
        sync(handle)

    monkeypatch.setattr(os, "fsync", save_from_another_process)
    folder.save(name, [torch.ones(1)])
    assert [tensor.item() for tensor in folder.load(name)] == [1.0]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_search_from_a_damaged_checkpoint_gives_what_an_undisturbed_one_gives(seen, tmp_path):
    def stop(step, steps, value):
        if step >= 14:
            raise KeyboardInterrupt

    with checkpointing(tmp_path, every=7):
        with pytest.raises(KeyboardInterrupt), listen(stop):
            attack()(seen, rng=sp.rng(1))
        [path] = tmp_path.glob("*.safetensors")
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 64]))
        with pytest.warns(CheckpointWarning, match="is damaged"):
            found = attack()(seen, rng=sp.rng(1))
    assert torch.equal(found.inputs, attack()(seen, rng=sp.rng(1)).inputs)


def test_restarts_one_after_the_other_are_one_progress():
    task, told = sp.zoo.mlp(hidden=(4,), domain=Image((1, 8, 8))), []
    batch = sp.data.bundled("digits", size=1, pixels=8)
    seen = sp.Threat(knows_labels=True).observe(
        sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0)
    )
    with listen(lambda step, total, _: told.append((step, total))):
        sp.attacks.inverting_gradients(steps=30, restarts=3)(seen, rng=sp.rng(1))
    assert {total for _, total in told} == {90}
    assert [step for step, _ in told] == sorted(step for step, _ in told)
    assert told[-1] == (90, 90)


def run(objective, start=1.0, steps=100):
    def evaluate(points, step):
        leaf = points.detach().requires_grad_()
        values = objective(leaf)
        return values.detach(), torch.autograd.grad(values.sum(), leaf)[0]

    adam = Adam(step_size=0.1)
    made = Runner(evaluate=evaluate, optimiser=adam, schedule=StepDecay(), steps=steps)
    state = made.begin(torch.tensor([[start]]))
    scales = made.scales(state.points)
    for _ in range(steps + 1):
        state = made.advance(state, scales)
    return state


def test_a_row_that_stops_being_finite_goes_back_to_its_best_point():
    # Below 0.5 the logarithm of a negative number is NaN.
    state = run(lambda x: (x - 0.5).log().sum(1))
    finite = state.values[state.values.isfinite()]
    assert float(state.lowest) == float(finite.min())
    assert bool(state.diverged)
    assert float(state.best) > 0.5


def test_a_row_that_was_never_finite_has_no_value():
    assert float(run(lambda x: (x * torch.nan).sum(1)).lowest) == float("inf")


def test_every_step_is_evaluated_the_last_one_too():
    state = run(lambda x: x.square().sum(1), steps=5)
    assert state.values.isfinite().all()
    assert len(state.values) == 6
    assert float(state.lowest) == float(state.values.min())


@pytest.mark.parametrize("fuse", [None, True])
def test_a_search_that_is_over_takes_no_further_step(tmp_path, fuse):
    def evaluate(points, step):
        evaluated.append(int(step))
        return points.square().sum(1), 2 * points

    evaluated, given = [], {"optimiser": Adam(step_size=0.1), "schedule": StepDecay(), "steps": 5}
    with checkpointing(tmp_path), until_done():
        once = Runner(evaluate=evaluate, **given).run(torch.ones(1, 1), name="search")
        evaluated.clear()
        again = Runner(evaluate=evaluate, fuse=fuse, **given).run(torch.ones(1, 1), name="search")
    assert not evaluated
    assert torch.equal(again.best, once.best)


def test_restarts_of_a_case_pull_each_other_together(seen):
    apart = attack(restarts=2, engine={"rows": 2})
    pulled = attack(
        restarts=2, engine={"rows": 2}, terms=(Cosine(), GroupConsistency(weight=100.0))
    )
    spread = []
    for candidate in (apart, pulled):
        layout = Layout(1, seen.task.domain)
        job = Job(candidate.search, seen, sp.rng(1), layout)
        state = candidate.engine._chunk([job], Chunk(range(1), range(2)))
        spread.append(float((state.points[0] - state.points[1]).norm()))
    assert spread[1] < spread[0] / 2


def test_labels_are_found_where_they_are_searched_for():
    digits = sp.data.load("digits")
    task = sp.zoo.mlp(hidden=(32,), activation="sigmoid", domain=digits.domain)
    unlabelled = observe(task, digits.batch(1, start=4), knows_labels=False)
    guess = sp.attacks.dlg(iterations=10)(unlabelled, rng=sp.rng(0))
    assert guess.labels.tolist() == digits.batch(1, start=4).labels.tolist()


def test_chunks_cover_every_restart_of_every_case_once():
    for cases, restarts, together in [(3, 4, 1), (3, 4, 4), (3, 4, 9), (1, 5, 2), (5, 1, 2)]:
        grid = [
            (case, restart)
            for chunk in chunks(cases, restarts, together)
            for case in chunk.cases
            for restart in chunk.restarts
        ]
        assert sorted(grid) == [(c, r) for c in range(cases) for r in range(restarts)]
        assert all(chunk.size <= together for chunk in chunks(cases, restarts, together))


def test_a_chunk_is_halved_until_one_row_is_left():
    todo, sizes = [Chunk(range(3), range(2))], []
    while todo:
        chunk = todo.pop()
        halves = chunk.halve()
        sizes.append(chunk.size)
        todo.extend(halves or ())
    assert sizes.count(1) == 6


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"precision": "int8"}, InvalidValue, "got 'int8'"),
        ({"rows": 0}, InvalidValue, "rows >= 1"),
        ({"strategy": "fast"}, UnknownName, "unknown strategy 'fast'"),
    ],
)
def test_impossible_engines_are_refused(photos, options, error, said):
    with pytest.raises(error, match=said):
        attack(engine=options)(observe(sp.zoo.mlp(hidden=(4,)), photos), rng=sp.rng(0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_step_equals_an_eager_one_in_double_precision(photos):
    task = sp.zoo.convnet(width=4).to(device="cuda", dtype=torch.float64)
    batch = sp.Batch(photos.inputs[:2], photos.labels[:2]).to(device="cuda", dtype=torch.float64)
    watched = observe(task, batch)
    captured = attack(engine={"rows": 3})(watched, rng=sp.rng(0))
    eager = attack(engine={"rows": 1, "capture": False})(watched, rng=sp.rng(0))
    assert captured.trace.finals == pytest.approx(eager.trace.finals, rel=1e-6)


def test_bfloat16_simulates_to_its_eight_bits():
    photos = sp.data.load("photos", pixels=16)
    task, photos = sp.zoo.lenet(domain=photos.domain), photos.batch(1)
    one = sp.Batch(photos.inputs[:1], photos.labels[:1])
    client = sp.Client(sp.Gradient())
    seen = sp.Threat(knows_labels=True).observe(client, task, one, rng=sp.rng(0))
    exact, coarse = Engine(precision="float32"), Engine(precision="bf16")
    noise = task.domain.sample(2, rng=sp.rng(3)).unsqueeze(1)
    labels = seen.labels.expand(2, 1)
    full, rounded = (e._simulation((seen,), 2)(noise, labels) for e in (exact, coarse))
    for name, tensor in full.items():
        assert rounded[name].dtype == torch.float32
        assert 1e-6 < (rounded[name] - tensor).norm() / tensor.norm() < 0.05
    attack = sp.attacks.inverting_gradients(steps=30, restarts=1, tv=1e-4, engine=coarse)
    objective = attack(seen, rng=sp.rng(0)).trace.objective
    assert min(objective) < 0.8 * objective[0]
