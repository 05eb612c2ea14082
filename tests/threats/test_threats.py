"""What reaches the adversary, and what does not."""

import ast
import gc
from pathlib import Path

import pytest
import torch

import seepage as sp
from seepage.core.errors import InvalidValue

SOURCE = Path(sp.__file__).parent


def reachable_tensors(root: object) -> list[torch.Tensor]:
    """Every tensor that can be reached from an object by following references."""
    seen: set[int] = set()
    found, todo = [], [root]
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, type) or type(item).__name__ == "module":
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            found.append(item)
        if callable(item) and hasattr(item, "__globals__"):
            todo.extend(cell.cell_contents for cell in item.__closure__ or ())
            continue
        todo.extend(gc.get_referents(item))
    return found


@pytest.mark.parametrize("batchnorm", ["running", "exact", "unknown"])
@pytest.mark.parametrize("labels", [True, False])
def test_nothing_reachable_from_an_observation_is_the_truth(photos, batchnorm, labels):
    threat = sp.Threat(knows_labels=labels, batchnorm=batchnorm)
    client = sp.Client(sp.Gradient(), sp.Prune(0.5))
    task = sp.zoo.convnet(width=2)
    seen = threat.observe(client, task, photos, rng=sp.rng(0))
    tensors = reachable_tensors(seen)
    assert any(t is next(iter(seen.update)) for t in tensors)  # the walk does walk
    storage = photos.inputs.untyped_storage().data_ptr()
    for tensor in tensors:
        assert tensor.untyped_storage().data_ptr() != storage
        assert tensor.shape != photos.inputs.shape
        assert tensor.grad_fn is None
        if not labels:
            assert not (tensor.dtype == torch.long and tensor.shape == photos.labels.shape)


def test_the_walk_would_find_a_leak(photos):
    client = sp.Client(sp.Gradient())
    seen = sp.Threat().observe(client, sp.zoo.mlp(hidden=(4,)), photos, rng=sp.rng(0))
    leaky = lambda inputs, labels: photos.inputs  # noqa: E731
    object.__setattr__(seen, "simulate", leaky)
    assert any(t is photos.inputs for t in reachable_tensors(seen))


def test_only_threats_and_captures_construct_observations():
    def constructs(path: Path) -> bool:
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        return any(isinstance(c.func, ast.Name) and c.func.id == "Observation" for c in calls)

    makers = {p.relative_to(SOURCE).parts[0] for p in SOURCE.rglob("*.py") if constructs(p)}
    assert makers == {"capture", "threats"}


def test_labels_are_handed_over_without_their_order(photos):
    shuffled = sp.Batch(photos.inputs, torch.tensor([3, 0, 2, 0]))
    client = sp.Client(sp.Gradient())
    seen = sp.Threat(knows_labels=True).observe(
        client, sp.zoo.mlp(hidden=(4,)), shuffled, rng=sp.rng(0)
    )
    assert seen.labels.tolist() == [0, 0, 2, 3]


def test_soft_labels_are_handed_over_without_their_order(photos):
    soft = torch.softmax(sp.rng(0).normal((4, 10)), dim=1)
    client = sp.Client(sp.Gradient())
    task = sp.zoo.mlp(hidden=(4,))
    first, second = (
        sp.Threat(knows_labels=True).observe(
            client, task, sp.Batch(photos.inputs[order], soft[order]), rng=sp.rng(0)
        )
        for order in (torch.arange(4), torch.tensor([2, 0, 3, 1]))
    )
    assert torch.equal(first.labels, second.labels)


def test_none_means_unknown(photos):
    task, client = sp.zoo.convnet(width=2), sp.Client(sp.Gradient())
    threat = sp.Threat(knows_batch_size=False)
    seen = threat.observe(client, task, photos, rng=sp.rng(0))
    assert seen.batch_size is seen.labels is seen.statistics is None


@pytest.mark.parametrize("batchnorm", ["running", "exact", "unknown"])
@pytest.mark.parametrize("local", [sp.Gradient(), sp.FedAvg(lr=0.01, steps=2)], ids=repr)
def test_the_simulation_at_the_truth_is_the_update(photos, batchnorm, local):
    order = photos.labels.argsort()
    batch = sp.Batch(photos.inputs[order], photos.labels[order])
    client = sp.Client(local, sp.Prune(0.3))
    threat = sp.Threat(knows_labels=True, batchnorm=batchnorm)
    seen = threat.observe(client, sp.zoo.convnet(width=2), batch, rng=sp.rng(0))
    simulated = seen.simulate(batch.inputs, seen.labels)
    assert torch.allclose(simulated.flat(), seen.update.flat(), atol=1e-6)


def test_batchnorm_decides_which_statistics_the_client_uses(photos):
    task, client = sp.zoo.convnet(width=2), sp.Client(sp.Gradient())
    shared = {
        mode: sp.Threat(batchnorm=mode).observe(client, task, photos, rng=sp.rng(0))
        for mode in ("running", "exact", "unknown")
    }
    assert torch.equal(shared["exact"].update.flat(), shared["unknown"].update.flat())
    assert not torch.allclose(shared["exact"].update.flat(), shared["running"].update.flat())
    assert len(shared["exact"].statistics) == 8
    assert shared["unknown"].statistics is None


def test_an_ignorant_adversary_simulates_no_defense(photos):
    client = sp.Client(sp.Gradient(), sp.chain(sp.ClipEach(1e-3), sp.Mean()))
    task = sp.zoo.mlp(hidden=(4,))
    known, unknown = (
        sp.Threat(knows_defense=k).observe(client, task, photos, rng=sp.rng(0))
        for k in (True, False)
    )
    plain = sp.Gradient()(task, photos.inputs, photos.labels).flat()
    assert torch.allclose(unknown.simulate(photos.inputs, photos.labels).flat(), plain)
    assert known.simulate(photos.inputs, photos.labels).flat().norm() < 2e-3


def test_the_same_key_gives_the_same_observation(photos):
    client = sp.Client(sp.Gradient(), sp.AddGaussian(0.1))
    task = sp.zoo.mlp(hidden=(4,))
    one, two, other = (
        sp.Threat().observe(client, task, photos, rng=sp.rng(s)).update.flat() for s in (0, 0, 1)
    )
    assert torch.equal(one, two)
    assert not torch.allclose(one, other)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda x: x[:, :1], r"expected inputs \(B, 3, 32, 32\)"),
        (lambda x: torch.where(x == x.max(), torch.nan, x), "NaN or infinity"),
        (lambda x: x * 2 - 1, "did you forget to undo the normalisation"),
    ],
)
def test_bad_pixels_never_reach_the_network(photos, spoil, said):
    with pytest.raises(InvalidValue, match=said):
        sp.Threat().observe(
            sp.Client(sp.Gradient()),
            sp.zoo.mlp(hidden=(4,)),
            sp.Batch(spoil(photos.inputs), photos.labels),
            rng=sp.rng(0),
        )


def test_contradictory_knowledge_is_refused():
    with pytest.raises(InvalidValue, match="includes the batch size"):
        sp.Threat(knows_labels=True, knows_batch_size=False)
    with pytest.raises(InvalidValue, match="got 'train'"):
        sp.Threat(batchnorm="train")
    with pytest.raises(InvalidValue, match="includes the defense"):
        sp.Threat(knows_mixing=True, knows_defense=False)
    # A row of the mixing has a weight for every example, so its length is the batch size.
    with pytest.raises(InvalidValue, match=r"mixing .* includes the batch size"):
        sp.Threat(knows_mixing=True, knows_batch_size=False)


def test_the_ladder_of_knowledge_goes_up_to_the_strongest():
    strongest, realistic = sp.Threat.strongest(), sp.Threat.realistic()
    assert strongest == sp.Threat(knows_labels=True, batchnorm="exact", knows_mixing=True)
    assert realistic == sp.Threat(knows_labels=True, batchnorm="unknown")


@pytest.mark.parametrize("defense", [sp.MixUp(4), sp.InstaHide(4), sp.Oasis()], ids=repr)
def test_no_private_picture_is_in_the_observation_of_prepared_data(photos, defense):
    client = sp.Client(sp.Gradient(), defense)
    seen = sp.Threat.strongest().observe(client, sp.zoo.convnet(width=2), photos, rng=sp.rng(0))
    for tensor in reachable_tensors(seen):
        assert tensor.shape[1:] != photos.inputs.shape[1:]


@pytest.mark.parametrize("defense", [sp.MixUp(4), sp.InstaHide(4), sp.Oasis()], ids=repr)
def test_exact_statistics_are_those_of_what_was_trained_on(photos, defense):
    task = sp.zoo.convnet(width=2)
    client = sp.Client(sp.Gradient(), defense)
    seen = sp.Threat.strongest().observe(client, task, photos, rng=sp.rng(0))
    (prepared,) = client.share(task.in_mode("train"), photos, rng=sp.rng(0)).prepared_batches
    first = next(iter(seen.statistics.values()))
    convolved = task.model.get_submodule("conv1")(task.domain.normalise(prepared.batch.inputs))
    assert torch.allclose(first.mean, convolved.detach().mean((0, 2, 3)), atol=1e-5)
    if seen.simulate.mixing is not None:
        assert torch.allclose(
            seen.simulate.trained_on(photos.inputs), prepared.batch.inputs, atol=1e-6
        )


def test_the_old_name_of_forget_defense_warns_and_still_works():
    threat = sp.Threat.strongest()
    with pytest.warns(DeprecationWarning, match="forget_defense"):
        assert threat.unaware() == threat.forget_defense()
