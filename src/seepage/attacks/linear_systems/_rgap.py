"""R-GAP: compute the input of every layer from its linear system, last layer first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

import torch
from torch import Tensor

from seepage.attacks._agreement import residual
from seepage.attacks._applicability import applies_to
from seepage.attacks._certificate import certify_solved
from seepage.attacks.labels._infer_labels import recover_labels
from seepage.attacks.labels._label_evidence import reads_classes
from seepage.attacks.linear_systems._linear_system import LinearSystem, invert_slopes
from seepage.core import Attack, Observation, Reconstruction, Rng, SideBySideAttack, Trace, Update
from seepage.core._loss import Loss
from seepage.core.errors import NotApplicable, require_at_least
from seepage.numerics._least_squares import Linear, minimum_norm
from seepage.probing._layer_stack import INSTEAD, Layer, Stack, read_stack

_GRID = 4_000
_HALVINGS = 100
# A preconditioned gradient that has fallen by this factor is as good as zero.
_SOLVED = 1e-10


@dataclass(frozen=True, eq=False)
class Step:
    """The solution of one layer.

    Args:
        index: Place of the layer in the stack.
        system: u, the system that the layer's input must solve.
        target: v, the right-hand side.
        x: The input, flat `(n,)`.
        exact: Whether u and v hold no error: every layer above had one solution only.
        determined: Whether u x = v has no other solution.
    """

    index: int
    system: LinearSystem
    target: Tensor
    x: Tensor
    exact: bool
    determined: bool

    @property
    def settled(self) -> bool:
        """Whether all solutions explain the update equally well: u, v are exact, all z is known.

        Then each gives the same z, so the same gradients above, and the same dL/dw here.
        """
        known = self.system.known
        return self.exact and (known is None or bool(known.all()))


def walk_back(
    stack: Stack,
    walks: Sequence[tuple[Update, Tensor]],
    *,
    damping: float,
    correct: Callable[[Sequence[Step]], Sequence[Tensor]] | None = None,
) -> list[Step]:
    """Compute the input of every layer, last layer first; return the steps of the first layer.

    With x the input of the layer above, z = alpha^-1(x) and dL/dz = (W^T dL/dz_above) alpha'(z)
    make up this layer's system, whose solution is the next x. A fully connected layer needs only
    its weight gradient, which is dz x^T. All walks run side by side.

    Args:
        stack: The network.
        walks: The observed gradient of one example, and dL/dz of the last layer in the same scale.
        damping: Tikhonov damping of the least squares.
        correct: Improves the inputs of a convolutional layer, one per walk, before the walks go on;
            None keeps the solutions of least norm.

    References:
        Zhu and Blaschko, 2021, Sec. 3 (zhu2021recursive); Chen and Campbell, 2022, Eq. 2-7 and
        Lemma 3.1 (chen2022analysing)
    """
    gradients = [update.descent().tensors for update, _ in walks]
    # Of the logits only the gradient is known.
    known = [
        _Known(torch.zeros_like(d), torch.zeros_like(d, dtype=torch.bool), d, True)
        for _, d in walks
    ]
    for index in range(len(stack.layers) - 1, -1, -1):
        layer = stack.layers[index]
        steps = _solve_layer(index, layer, known, gradients, damping)
        if correct is not None and layer.convolutional:
            steps = [replace(s, x=x) for s, x in zip(steps, correct(steps), strict=True)]
        if index > 0:
            known = [_pass_down(stack.layers[index - 1], step) for step in steps]
    return steps


@dataclass(frozen=True, eq=False)
class _Known:
    """What one walk knows of a layer's output: z, a mask of known entries, dL/dz, and exactness."""

    z: Tensor
    where: Tensor
    delta: Tensor
    exact: bool


def _pass_down(below: Layer, step: Step) -> _Known:
    """Turn the input of a layer into the output of the layer below."""
    x = step.x.reshape(below.output_shape)
    z = below.activation.inverse(x)
    arriving = step.system.input_gradient().reshape(below.output_shape)
    delta = arriving * below.activation.derivative(z)
    return _Known(z, below.activation.known(x), delta, step.exact and step.determined)


def _solve_layer(
    index: int,
    layer: Layer,
    known: Sequence[_Known],
    gradients: Sequence[Mapping[str, Tensor]],
    damping: float,
) -> list[Step]:
    """Solve the layer's systems of all walks at once."""
    weight, bias = layer.parameters
    systems, targets = [], []
    for above, gradient in zip(known, gradients, strict=True):
        delta = above.delta
        if not layer.convolutional and bias in gradient:
            delta = gradient[bias].to(delta)
        if not bool(delta.any()):
            raise NotApplicable(
                f"the gradient behind {layer.name!r} is zero, so it holds nothing of the input"
            )
        system = LinearSystem(layer, delta, above.where)
        systems.append(system)
        targets.append(system.right_hand_side(above.z, gradient[weight].to(delta)))
    joint, v = LinearSystem.stack(systems), torch.stack(targets)
    inverse = joint.invert_forward() if layer.convolutional else None
    single = [True] * len(systems) if inverse else joint.has_one_solution().tolist()
    if not layer.convolutional:
        deltas = joint.delta
        outer = torch.stack([gradient[weight].to(deltas) for gradient in gradients])
        solutions = (outer.mT @ deltas[..., None])[..., 0] / deltas.square().sum(1, keepdim=True)
    elif inverse is None:
        solutions = minimum_norm(joint, v, damping=damping)
    else:
        # The forward pass alone has one solution, which is near that of all equations.
        forward = torch.cat([v[:, : layer.outputs], torch.zeros_like(v[:, layer.outputs :])], dim=1)
        start = inverse(joint.adjoint(forward))
        solutions = minimum_norm(
            joint, v, damping=damping, tolerance=_SOLVED, precondition=inverse, start=start
        )
    each = zip(systems, targets, solutions, known, single, strict=True)
    return [Step(index, system, v, x, above.exact, one) for system, v, x, above, one in each]


def _solve_head_deltas(layer: Layer, weight: Tensor, loss: Loss, labels: Tensor) -> list[Tensor]:
    """Every dL/dz of a last fully connected layer that its weight gradient allows.

    The weight gradient of one example is dz x^T. It gives a unit vector a and a vector c with
    dz = s a and x = c / s, and leaves only the number s open. The loss links both at the logits:

        dL/dz (W c / s + b) = s a

    The part of this vector equation along a is solved for s. A logistic head has two solutions
    where the example is classified well.

    Args:
        layer: The head.
        weight: dL/dw.
        loss: Of each example, `(B, K), (B,) -> (B,)`.
        labels: `(1,)`.

    References:
        Zhu and Blaschko, 2021, Sec. 3.1 (zhu2021recursive), for a logistic loss
    """
    direction = torch.linalg.svd(weight, full_matrices=False).U[:, 0]
    features = weight.T @ direction

    def mismatch(scales: Tensor) -> Tensor:
        logits = torch.outer(1 / scales, layer.weight @ features)
        if layer.bias is not None:
            logits = logits + layer.bias
        leaves = logits.detach().requires_grad_()
        losses = loss(layer.activation(leaves), labels.expand(len(leaves), *labels.shape[1:]))
        (slopes,) = torch.autograd.grad(losses.sum(), leaves)
        along: Tensor = slopes @ direction
        return along - scales

    size = torch.logspace(-12, 3, _GRID, dtype=weight.dtype, device=weight.device)
    roots = torch.cat([_find_roots(mismatch, size), _find_roots(mismatch, -size)])
    if len(roots) == 0:
        raise NotApplicable(
            f"no gradient at the logits explains the weight gradient of {layer.name!r}; was the "
            "update made from one example with this label, and not rescaled or made noisy?"
        )
    return [root * direction for root in roots]


def _find_roots(function: Callable[[Tensor], Tensor], grid: Tensor) -> Tensor:
    """Where a function changes its sign between neighbours on a grid, by bisection."""
    values = function(grid)
    change = values[:-1].sign() * values[1:].sign() < 0
    left, right = grid[:-1][change], grid[1:][change]
    at_left = values[:-1][change].sign()
    for _ in range(_HALVINGS):
        middle = (left + right) / 2
        same = function(middle).sign() == at_left
        left, right = torch.where(same, middle, left), torch.where(same, right, middle)
    return (left + right) / 2


def _read_single(observation: Observation) -> Stack:
    """The network as a stack, if the update is one example's and the last layer is connected."""
    if (observation.batch_size or 1) > 1:
        raise NotApplicable(
            f"expected the update of one example, got one of {observation.batch_size}, whose "
            f"layers mix their equations; {INSTEAD}"
        )
    stack = read_stack(observation.task)
    if stack.layers[-1].convolutional:
        raise NotApplicable(
            f"expected the last layer of {observation.task.name} to be fully connected, got a "
            f"convolution; {INSTEAD}"
        )
    return stack


def recover_inputs(
    observations: Sequence[Observation],
    *,
    damping: float,
    correct: Callable[[Stack, Sequence[int], Sequence[Step]], Sequence[Tensor]] | None = None,
    traces: Mapping[int, Trace] | None = None,
) -> list[Reconstruction]:
    """Walk back from every possible gradient at the logits; keep what explains the update best.

    All are of one example each, made with the same task and client. `correct` improves solutions as
    in `walk_back`; it also gets the stack and the observation of each walk, and fills in `traces`.
    """
    stack, *_ = [_read_single(observation) for observation in observations]
    walks = [(c, d) for c, seen in enumerate(observations) for d in _read_head_deltas(seen, stack)]
    owners = [case for case, _ in walks]
    steps = walk_back(
        stack,
        [(observations[case].update, delta) for case, delta in walks],
        damping=damping,
        correct=None if correct is None else partial(correct, stack, owners),
    )
    best = [
        _choose_best(seen, [step for step, of in zip(steps, owners, strict=True) if of == case])
        for case, seen in enumerate(observations)
    ]
    effort = [(traces or {}).get(case, Trace()) for case in range(len(best))]
    return [_certify_guess(*each, stack) for each in zip(observations, best, effort, strict=True)]


def _read_head_deltas(observation: Observation, stack: Stack) -> list[Tensor]:
    head = stack.layers[-1]
    gradients = observation.update.descent().tensors
    weight, bias = head.parameters
    if bias in gradients:
        return [gradients[bias].to(head.weight)]
    labels = observation.require_labels(f"walking back from {head.name!r}, which has no bias,")
    return _solve_head_deltas(
        head, gradients[weight].to(head.weight), observation.task.loss, labels
    )


def _choose_best(observation: Observation, steps: Sequence[Step]) -> Step:
    labels = observation.labels
    if len(steps) == 1 or labels is None:
        return steps[0]
    return min(steps, key=lambda s: residual(observation, _to_inputs(observation, s.x), labels))


def _certify_guess(
    observation: Observation, step: Step, trace: Trace, stack: Stack
) -> Reconstruction:
    """The guess, with a certificate where the labels are known."""
    found, labels = _to_inputs(observation, step.x), observation.labels
    if labels is None:
        return Reconstruction(found, trace=trace)
    certificate = certify_solved(
        observation,
        found,
        labels,
        read=[layer.parameters[0] for layer in stack.layers],
        alone=step.exact and step.determined,
        inverse=partial(_invert_convolutions, observation, stack),
    )
    return Reconstruction(found, labels, trace, certificate)


def _invert_convolutions(observation: Observation, stack: Stack, at: Tensor) -> Linear | None:
    """Multiply by the inverse of F^T F, where F is the derivative of what the convolutions return.

    The first fully connected layer's gradient holds it, so F^T F is much of the update's J^T J.
    """
    layers = list(takewhile(lambda layer: layer.convolutional, stack.layers))
    domain = observation.task.domain

    def outputs(x: Tensor) -> Tensor:
        values = domain.normalise(x.reshape(1, *domain.shape))
        for layer in layers:
            values = layer(values)
        return values.flatten()

    return invert_slopes(outputs, at, layers) if layers else None


def _to_inputs(observation: Observation, x: Tensor) -> Tensor:
    """Inputs in natural units and the precision of the update, `(1, ...)`, from the first x."""
    domain = observation.task.domain
    natural = domain.denormalise(x.reshape(1, *domain.shape))
    return domain.project(natural.to(next(iter(observation.update))))


@dataclass(frozen=True, kw_only=True)
class RGAP(SideBySideAttack):
    """Backward recursion over linear systems, for one example; see `rgap`.

    The input of each layer solves u x = v, whose rows are the layer's forward pass and its weight
    gradient. The solution of least norm is taken. The certificate says `unique` where every layer
    has one solution only. Behind a ReLU only the rows of positive outputs are known.
    """

    damping: float = 0.0

    def __post_init__(self) -> None:
        require_at_least(0, damping=self.damping)

    def run_many(
        self, observations: Sequence[Observation], rngs: Sequence[Rng]
    ) -> list[Reconstruction]:
        """Compute the inputs, the systems of a layer all at once; nothing is random."""
        return recover_inputs(observations, damping=self.damping)


def _require_convolutions(observation: Observation) -> None:
    stack = _read_single(observation)
    if all(not layer.convolutional for layer in stack.layers):
        raise NotApplicable("without convolutions it is what analytic_fc computes at once")
    if reads_classes(observation.task):
        recover_labels(observation)


@applies_to(require=_require_convolutions, needs_labels=True)
def rgap(*, damping: float = 0.0) -> Attack:
    """Recursive gradient attack: every layer's input by linear least squares, last layer first.

    For one example and a chain of convolutions and fully connected layers whose activations can be
    inverted. Needs the label only where the last layer has no bias.

    Args:
        damping: Tikhonov damping of the least squares, for noisy updates.

    Example:
        >>> rgap()
        RGAP(damping=0.0)

    Deviations:
        Least squares by conjugate gradients, without forming the matrix. Any loss will do: the
        gradient at the logits is read off the last bias, or found from the loss, trying every
        solution. All rows of a fully connected layer are used, weighted by the size of their
        gradient; the paper averages their quotients, which is worse with noise.

    References:
        Zhu and Blaschko, 2021 (zhu2021recursive)
    """
    return RGAP(damping=damping)
