"""The system of a layer and its solutions, without a matrix, are those of the matrix."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from seepage.attacks.linear_systems._linear_system import (
    LinearSystem,
    count_covered_inputs,
    invert_slopes,
)
from seepage.numerics._least_squares import invert_banded, minimum_norm, nearest_solution
from seepage.probing._activations import Identity
from seepage.probing._layer_stack import Layer


def layer_of(axes, *, channels, filters, size, kernel, stride, padding, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = [size + axis for axis in range(axes)]
    positions = [(length + 2 * padding - kernel) // stride + 1 for length in sizes]
    weight = torch.randn(filters, channels, *[kernel] * axes, generator=generator).double()
    return Layer(
        "layer",
        (channels, *sizes),
        (filters, *positions),
        (kernel,) * axes,
        (stride,) * axes,
        (padding,) * axes,
        weight,
        torch.randn(filters, generator=generator).double(),
        Identity(),
    )


@st.composite
def layers(draw):
    kernel = draw(st.integers(1, 3))
    return layer_of(
        draw(st.integers(0, 2)),
        channels=draw(st.integers(1, 3)),
        filters=draw(st.integers(1, 4)),
        size=draw(st.integers(kernel, 6)),
        kernel=kernel,
        stride=draw(st.integers(1, 3)),
        padding=draw(st.integers(0, kernel - 1)),
        seed=draw(st.integers(0, 9)),
    )


def noise(*shape, seed=5):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def dense(system):
    """The matrix by the definition of Eq. 6: a loop over weights and window positions."""
    layer = system.layer
    column = torch.arange(layer.inputs).reshape(layer.input_shape)
    row_of_z = torch.arange(layer.outputs).reshape(layer.output_shape)
    row_of_w = layer.outputs + torch.arange(layer.weight.numel()).reshape(layer.weight.shape)
    matrix = torch.zeros(system.shape, dtype=torch.float64)
    for weight in product(*map(range, layer.weight.shape)):
        o, c, *offset = weight
        for position in product(*map(range, layer.output_shape[1:])):
            steps = zip(layer.stride, position, offset, layer.padding, strict=True)
            place = tuple(s * i + p - pad for s, i, p, pad in steps)
            if all(0 <= a < n for a, n in zip(place, layer.input_shape[1:], strict=True)):
                matrix[row_of_z[(o, *position)], column[(c, *place)]] += layer.weight[weight]
                matrix[row_of_w[weight], column[(c, *place)]] += system.delta[(o, *position)]
    return matrix


def system_of(layer):
    return LinearSystem(layer, noise(*layer.output_shape))


@settings(max_examples=25, deadline=None)
@given(layers())
def test_applying_the_system_is_multiplying_with_its_matrix(layer):
    system = system_of(layer)
    matrix = dense(system)
    x, rows = noise(layer.inputs), noise(len(matrix), seed=6)
    torch.testing.assert_close(system.apply(x), matrix @ x)
    torch.testing.assert_close(system.adjoint(rows), matrix.T @ rows)


@settings(max_examples=25, deadline=None)
@given(layers())
def test_the_adjoint_is_the_adjoint(layer):
    system = system_of(layer)
    x, rows = noise(layer.inputs), noise(system.shape[0], seed=6)
    left, right = system.apply(x) @ rows, x @ system.adjoint(rows)
    torch.testing.assert_close(left, right)


@settings(max_examples=15, deadline=None)
@given(layers())
def test_a_batch_of_vectors_is_applied_one_by_one(layer):
    system = system_of(layer)
    x, rows = noise(2, 3, layer.inputs), noise(2, 3, system.shape[0])
    one = torch.stack([torch.stack([system.apply(v) for v in row]) for row in x])
    torch.testing.assert_close(system.apply(x), one)
    back = torch.stack([torch.stack([system.adjoint(v) for v in row]) for row in rows])
    torch.testing.assert_close(system.adjoint(rows), back)


@settings(max_examples=15, deadline=None)
@given(layers())
def test_forward_and_backward_pass_satisfy_the_system(layer):
    x = noise(1, *layer.input_shape)
    weight = layer.weight.clone().requires_grad_()
    z = replace(layer, weight=weight).linear(x)
    delta = noise(*z.shape[1:])
    (gradient,) = torch.autograd.grad((z[0] * delta).sum(), weight)
    system = LinearSystem(layer, delta)
    expected = system.right_hand_side(z[0].detach(), gradient)
    torch.testing.assert_close(system.apply(x.flatten()), expected)


@settings(max_examples=15, deadline=None)
@given(layers())
def test_every_pair_of_filters_makes_one_row_redundant(layer):
    system = system_of(layer)
    for a, b in product(range(layer.channels), repeat=2):
        z, gradient = torch.zeros_like(system.delta), torch.zeros_like(layer.weight)
        z[a], gradient[b] = -system.delta[b], layer.weight[a]
        combination = system.adjoint(torch.cat([z.flatten(), gradient.flatten()]))
        torch.testing.assert_close(combination, torch.zeros_like(combination))


def test_unknown_outputs_have_no_rows():
    layer = layer_of(2, channels=2, filters=3, size=5, kernel=3, stride=1, padding=0)
    known = noise(*layer.output_shape) > 0
    system = LinearSystem(layer, noise(*layer.output_shape), known)
    x = noise(layer.inputs)
    forward = system.apply(x)[: layer.outputs].reshape(layer.output_shape)
    assert bool((forward[~known] == 0).all())
    assert bool((forward[known] != 0).all())
    rows = noise(system.shape[0])
    torch.testing.assert_close(system.apply(x) @ rows, x @ system.adjoint(rows))


@pytest.mark.parametrize("axes", [0, 1, 2])
def test_covered_counts_the_columns_that_are_not_zero(axes):
    layer = layer_of(axes, channels=2, filters=2, size=8, kernel=2, stride=3, padding=1)
    touched = int((dense(system_of(layer)).abs().sum(0) > 0).sum())
    assert count_covered_inputs(layer) == touched


def rank_of(matrix):
    """The rank, of matrices whose singular values leave no doubt about it."""
    values = np.linalg.svd(matrix.numpy(), compute_uv=False)
    relative = values / values[0]
    assume(not ((relative > 1e-12) & (relative < 1e-3)).any())
    return int((relative > 1e-3).sum())


def least_norm(matrix, target):
    return torch.from_numpy(np.linalg.lstsq(matrix.numpy(), target.numpy(), rcond=1e-10)[0])


@settings(max_examples=25, deadline=None)
@given(layers(), st.booleans())
def test_the_solution_is_that_of_a_dense_factorisation(layer, consistent):
    system = system_of(layer)
    matrix = dense(system)
    rank_of(matrix)
    target = matrix @ noise(layer.inputs) if consistent else noise(len(matrix), seed=7)
    expected = least_norm(matrix, target)
    found = minimum_norm(system, target)
    assert (found - expected).norm() <= 1e-6 * expected.norm()


@settings(max_examples=15, deadline=None)
@given(layers(), st.sampled_from([0.1, 1.0]))
def test_damping_is_tikhonovs(layer, damping):
    system = system_of(layer)
    matrix, target = dense(system), noise(system.shape[0], seed=7)
    normal = matrix.T @ matrix + damping**2 * torch.eye(layer.inputs, dtype=torch.float64)
    expected = torch.linalg.solve(normal, matrix.T @ target)
    torch.testing.assert_close(minimum_norm(system, target, damping=damping), expected)


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(layers())
def test_the_nearest_solution_keeps_what_the_system_does_not_see(layer):
    system = system_of(layer)
    matrix, x = dense(system), noise(layer.inputs, seed=8)
    rank_of(matrix)
    target = matrix @ noise(layer.inputs)
    expected = x + least_norm(matrix, target - matrix @ x)
    # By rounding it takes several times as many as there are unknowns.
    found = nearest_solution(system, target, x, iterations=1500)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_solved_system_stays_solved():
    layer = layer_of(2, channels=1, filters=2, size=4, kernel=2, stride=1, padding=0)
    system, x = system_of(layer), noise(layer.inputs)
    found = nearest_solution(system, system.apply(x), x, iterations=20)
    torch.testing.assert_close(found, x)
    zero = minimum_norm(system, torch.zeros(system.shape[0], dtype=torch.float64))
    assert bool((zero == 0).all())


@settings(max_examples=25, deadline=None)
@given(layers())
def test_determined_means_full_column_rank(layer):
    system = system_of(layer)
    assert system.has_one_solution() == (rank_of(dense(system)) == layer.inputs)


@settings(max_examples=15, deadline=None)
@given(layers())
def test_systems_side_by_side_are_solved_as_one_by_one(layer):
    systems = [
        LinearSystem(layer, noise(*layer.output_shape, seed=s), noise(*layer.output_shape) > -s)
        for s in range(3)
    ]
    together = LinearSystem.stack(systems)
    targets, x = noise(3, together.shape[0], seed=7), noise(3, layer.inputs, seed=8)

    def alone(function):
        return torch.stack([function(*one) for one in zip(systems, targets, x, strict=True)])

    torch.testing.assert_close(together.apply(x), alone(lambda u, v, x: u.apply(x)))
    torch.testing.assert_close(together.adjoint(targets), alone(lambda u, v, x: u.adjoint(v)))
    solved = minimum_norm(together, targets, damping=0.1)
    torch.testing.assert_close(solved, alone(lambda u, v, x: minimum_norm(u, v, damping=0.1)))
    near = nearest_solution(together, targets, x, iterations=3)
    one = alone(lambda u, v, x: nearest_solution(u, v, x, iterations=3))
    torch.testing.assert_close(near, one)
    assert together.has_one_solution().tolist() == [
        bool(system.has_one_solution()) for system in systems
    ]


@st.composite
def convolutions(draw):
    """One or two convolutions, the second reading what the first returns."""
    axes = draw(st.integers(1, 2))
    kernels, size, channels, chain = draw(st.lists(st.integers(1, 3), max_size=2)), 7, 2, []
    for number, kernel in enumerate(kernels or [2]):
        chain.append(
            layer_of(
                axes,
                channels=channels,
                filters=draw(st.integers(2, 12)),
                size=size,
                kernel=kernel,
                stride=draw(st.integers(1, 2)),
                padding=draw(st.integers(0, kernel - 1)),
                seed=number,
            )
        )
        channels, size = chain[-1].output_shape[:2]
        if axes == 2 and chain[-1].output_shape[2] != size + 1:
            break
    return chain


@settings(max_examples=40, deadline=None)
@given(convolutions(), st.booleans())
def test_the_inverse_of_convolutions_is_that_of_the_whole_matrix(chain, curved):
    def outputs(x):
        for layer in chain:
            x = layer.linear(x)
            x = torch.tanh(x / 10) if curved else x
        return x.flatten()

    x = noise(chain[0].inputs)
    slopes = torch.autograd.functional.jacobian(outputs, x)
    gram, inverse = slopes.T @ slopes, invert_slopes(outputs, x, chain)
    values = torch.linalg.eigvalsh(gram)
    assume(not 1e-14 < values[0] / values[-1] < 1e-10)
    if inverse is None:
        assert values[0] < 1e-10 * values[-1]
    else:
        rows = noise(3, len(x))
        expected = torch.linalg.solve(gram, rows.T).T
        off = (inverse(rows) - expected).norm() / expected.norm()
        assert off <= 1e-14 * values[-1] / values[0] + 1e-10


def test_a_singular_matrix_and_one_of_large_blocks_are_not_inverted():
    singular = torch.diag(torch.tensor([1.0, 0.0, 1.0]))
    assert invert_banded(lambda rows: rows @ singular, (1, 3), (0,), like=singular) is None
    assert invert_banded(lambda rows: rows, (1025, 2), (0,), like=singular) is None


@settings(max_examples=25, deadline=None)
@given(layers(), st.booleans(), st.sampled_from([0.0, 0.1]))
def test_a_preconditioned_solution_is_that_of_a_dense_factorisation(layer, consistent, damping):
    system = replace(system_of(layer), known=None)
    inverse = None
    if layer.convolutional:
        nothing = torch.zeros(layer.inputs).double()
        inverse = invert_slopes(lambda x: layer.linear(x).flatten(), nothing, [layer])
    assume(inverse is not None)
    matrix = dense(system)
    target = matrix @ noise(layer.inputs) if consistent else noise(len(matrix), seed=7)
    normal = matrix.T @ matrix + damping**2 * torch.eye(layer.inputs, dtype=torch.float64)
    expected = torch.linalg.solve(normal, matrix.T @ target)
    for start in (None, noise(layer.inputs, seed=9)):
        found = minimum_norm(
            system, target, damping=damping, tolerance=1e-10, precondition=inverse, start=start
        )
        assert (found - expected).norm() <= 1e-6 * expected.norm()
