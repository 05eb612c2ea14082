"""Does the promised epsilon hold? Canaries are planted, and a lower bound is set against it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from seepage.core import Defense, Rng, Update
from seepage.core._rng import require_key
from seepage.core.errors import InvalidValue, require_within
from seepage.inference._epsilon_bounds import (
    bound_from_one_run,
    bound_from_trials,
    bound_gaussian_from_trials,
)

# Clipped by whoever clips, and large enough to fill a whole batch for whoever clips too late.
_LOUD = 1e4
_REVERSED = (
    "canaries that were left out have the larger scores: with the other sign epsilon would be at "
    "least {:.2f}; check the sign, since a score must be larger the more of a canary is seen"
)
# Entries of a gradient in trials, where there is only one canary.
_ENTRIES = 8


class _Mechanism(Protocol):
    """A whole private training, as an observer of every step sees it."""

    def __call__(self, gradients: Tensor, *, rng: Rng) -> Tensor:
        """Sample, clip, add and blur.

        Args:
            gradients: What each of n records would contribute at each step, `(T, n, P)`; n may be
                zero.
            rng: All randomness of the run.

        Returns:
            What is released at each step, `(T, P)`, oriented as the gradients.
        """


@dataclass(frozen=True)
class PrivateSteps:
    """A defense in a training loop: each record takes part in a step with the same probability.

    Args:
        defense: From per-example to aggregate updates, such as `dp_sgd(...)`.
        sample_rate: Probability that a record takes part in a step.

    Example:
        >>> from seepage.defenses import dp_sgd
        >>> steps = PrivateSteps(dp_sgd(max_norm=1.0, noise_multiplier=0.0, batch_size=1))
        >>> steps(torch.full((1, 2, 1), 5.0), rng=Rng(0))
        tensor([[2.]])
    """

    defense: Defense
    sample_rate: float = 1.0

    def __post_init__(self) -> None:
        require_within("(0, 1]", sample_rate=self.sample_rate)
        if (self.defense.consumes, self.defense.produces) != ("per_example", "aggregate"):
            raise InvalidValue(
                f"expected a defense from per-example to aggregate updates, such as dp_sgd, got "
                f"{self.defense}"
            )

    def __call__(self, gradients: Tensor, *, rng: Rng) -> Tensor:
        """Draw who takes part in each step, and defend their gradients."""
        released = []
        for number, each in enumerate(gradients):
            if self.sample_rate < 1:
                drawn = rng.fork("takes part", number).uniform((len(each),)) < self.sample_rate
                each = each[drawn]
            if not len(each):
                # Nobody contributes: the same as somebody whose gradient is zero.
                each = gradients.new_zeros((1, gradients.shape[2]))
            update = Update({"gradient": each}, granularity="per_example")
            released.append(self.defense(update, rng=rng.fork("defense", number)).flat())
        return torch.stack(released)


@dataclass(frozen=True)
class EpsilonAudit:
    """The promised epsilon beside what canaries prove.

    Args:
        claimed: The promise, from an accountant: an upper bound.
        delta: Of the promise.
        confidence: Probability that all bounds hold together.
        from_trials: Lower bound from many runs.
        from_one_run: Lower bound from one run with many canaries.
        if_gaussian: Lower bounds from both, if the noise is Gaussian and independent by entry.
        trials: Runs of each kind; none if only one run was made.
        canaries: In the one run.
        other_sign: What the bounds without assumptions would be with the sign of all scores
            changed. Never part of `proven`: it only tells that the sign may be wrong.
    """

    kind: ClassVar[str] = "epsilon"
    claimed: float
    delta: float
    confidence: float
    from_trials: float
    from_one_run: float
    if_gaussian: tuple[float, float]
    trials: int
    canaries: int
    other_sign: float = 0.0

    @property
    def provable(self) -> float:
        """The largest bound that so many trials and canaries can prove, if every guess is right."""
        return _find_provable(self.trials, self.canaries, self.delta, self.confidence)

    def plain(self) -> dict[str, Any]:
        """The result as data that JSON can hold."""
        # JSON has no infinity: a training that promises nothing claims None.
        claimed = self.claimed if self.claimed < float("inf") else None
        told = {**asdict(self), "claimed": claimed}
        return {**told, "proven": self.proven, "provable": self.provable}

    @property
    def proven(self) -> float:
        """The larger lower bound; neither assumes anything of the mechanism."""
        return max(self.from_trials, self.from_one_run)

    @property
    def violated(self) -> bool:
        """Whether the promise is refuted."""
        return self.proven > self.claimed

    @property
    def looks_reversed(self) -> bool:
        """Whether canaries that were left out have the larger scores, and not by chance."""
        return self.other_sign > self.proven

    def __str__(self) -> str:
        """Write the bounds, and what they say of the promise."""
        trials, one_run = self.if_gaussian
        said = (
            f"refuted: epsilon is at least {self.proven:.2f}"
            if self.violated
            else "not refuted by these canaries, which proves nothing more"
        )
        many = (
            f"{f'{2 * self.trials} runs':<18}epsilon >= {self.from_trials:.2f}"
            f" ({trials:.2f} if Gaussian)"
        )
        return "\n".join(
            (
                f"promised          epsilon <= {self.claimed:.2f} at delta {self.delta:g}",
                *[many] * bool(self.trials),
                f"one run           epsilon >= {self.from_one_run:.2f} with {self.canaries} "
                f"canaries ({one_run:.2f} if Gaussian)",
                f"{said} ({100 * self.confidence:g} % confidence)",
                *[_REVERSED.format(self.other_sign)] * self.looks_reversed,
            )
        )


def audit_epsilon(
    mechanism: _Mechanism,
    *,
    claimed: float,
    delta: float,
    max_norm: float,
    steps: int = 1,
    trials: int = 500,
    canaries: int = 1000,
    confidence: float = 0.95,
    require_power: bool = True,
    rng: Rng,
) -> EpsilonAudit:
    """Plant canary gradients in a private training, and bound its epsilon from below.

    A canary is a gradient far longer than the clipping norm, in a direction of its own, whose
    sign alternates from step to step: noise that repeats cancels. Its score is the sum of what is
    released in its direction, with these signs. In `trials` runs there is one canary and in as many
    none; in one more run each of `canaries` is included by a coin.

    A correct mechanism is accused with probability at most 1 - confidence. One that is not accused
    may still be broken in a way that these canaries do not reach.

    Args:
        mechanism: The training; `PrivateSteps(dp_sgd(...))` for a defense.
        claimed: Epsilon of the promise, for adding or removing one record.
        delta: Of the promise.
        max_norm: The clipping norm that the promise assumes.
        steps: Steps of a run, all of them released.
        trials: Runs with and without a canary, each.
        canaries: In the one run.
        confidence: Probability that all bounds hold together.
        require_power: Refuse numbers with which even perfect guesses could not refute the promise.
        rng: Coins, and keys of the runs.

    Raises:
        InvalidValue: Too few canaries and trials to refute the promise.

    Example:
        >>> from seepage.defenses import AddGaussian, ClipEach, Mean, chain
        >>> forgot = PrivateSteps(chain(ClipEach(1.0), Mean(over=8)))  # and no noise
        >>> found = audit_epsilon(
        ...     forgot, claimed=2.0, delta=1e-5, max_norm=1.0, trials=100, canaries=100, rng=Rng(0)
        ... )
        >>> found.violated
        True

    References:
        Jagielski et al., 2020 (jagielski2020auditing); Nasr et al., 2023 (nasr2023tight); Steinke
        et al., 2023 (steinke2023privacy); Andrew et al., 2024 (andrew2024one) for canaries in
        federated learning
    """
    require_key(rng)
    _check_numbers(claimed, delta, steps, trials, canaries, confidence, max_norm)
    if require_power:
        _require_power(claimed, delta, trials, canaries, confidence)
    # Half of the error each for the trials and the one run.
    error = (1 - confidence) / 2
    signs = 1.0 - 2.0 * (torch.arange(steps) % 2)
    loud = _LOUD * max_norm

    def run(chosen: Tensor, entries: int, key: Rng) -> Tensor:
        """Train on the canaries of these numbers; return the score in every direction."""
        rows = torch.zeros(len(chosen), entries)
        rows[torch.arange(len(chosen)), chosen] = loud
        gradients = signs[:, None, None] * rows
        released = mechanism(gradients, rng=key)
        if not isinstance(released, Tensor) or released.shape != (steps, entries):
            got = tuple(released.shape) if isinstance(released, Tensor) else type(released).__name__
            raise InvalidValue(
                f"expected the mechanism to release a tensor (T, P) = {(steps, entries)}, got {got}"
            )
        _require_numbers(released)
        return (signs[:, None] * released.detach().cpu()).sum(0)

    nobody, first = torch.zeros(0, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    inside = torch.stack([run(first, _ENTRIES, rng.fork("in", i))[0] for i in range(trials)])
    outside = torch.stack([run(nobody, _ENTRIES, rng.fork("out", i))[0] for i in range(trials)])
    coins = rng.fork("coins").uniform((canaries,)) < 0.5
    scores = run(coins.nonzero().flatten(), canaries, rng.fork("one run"))
    return EpsilonAudit(
        claimed=claimed,
        delta=delta,
        confidence=confidence,
        from_trials=bound_from_trials(inside, outside, delta=delta, error=error),
        from_one_run=bound_from_one_run(scores, coins, delta=delta, error=error),
        if_gaussian=(
            bound_gaussian_from_trials(inside, outside, delta=delta, error=error),
            bound_gaussian_from_trials(scores[coins], scores[~coins], delta=delta, error=error),
        ),
        trials=trials,
        canaries=canaries,
        other_sign=max(
            bound_from_trials(-inside, -outside, delta=delta, error=error),
            bound_from_one_run(-scores, coins, delta=delta, error=error),
        ),
    )


def audit_one_run(
    scores: Tensor, coins: Tensor, *, claimed: float, delta: float, confidence: float = 0.95
) -> EpsilonAudit:
    """Bound epsilon from below by the canaries of one training that has been run elsewhere.

    Args:
        scores: How much of each canary is seen in what was released, `(m,)`: larger if it was
            included. The result says if the other sign would tell more, and does not use it.
        coins: Which canaries were included, `(m,)`: each by a fair coin of its own, which nothing
            else depends on.
        claimed: Epsilon of the promise, for adding or removing one canary.
        delta: Of the promise.
        confidence: Probability that the bound holds.

    Raises:
        InvalidValue: Too few canaries to refute the promise.

    Example:
        >>> coins = Rng(0).uniform((200,)) < 0.5
        >>> audit_one_run(coins.float(), coins, claimed=1.0, delta=1e-5).violated  # no noise
        True

    References:
        Steinke et al., 2023 (steinke2023privacy); Andrew et al., 2024 (andrew2024one)
    """
    if scores.ndim != 1 or scores.shape != coins.shape or coins.dtype != torch.bool:
        raise InvalidValue(
            "expected a score and a bool for each canary, got shapes "
            f"{tuple(scores.shape)} and {tuple(coins.shape)} with {coins.dtype}"
        )
    _require_numbers(scores)
    _check_numbers(claimed, delta, 1, 4, len(scores), confidence, 1.0)
    _require_power(claimed, delta, 0, len(scores), confidence)
    error = 1 - confidence
    return EpsilonAudit(
        claimed=claimed,
        delta=delta,
        confidence=confidence,
        from_trials=0.0,
        from_one_run=bound_from_one_run(scores, coins, delta=delta, error=error),
        if_gaussian=(
            0.0,
            bound_gaussian_from_trials(scores[coins], scores[~coins], delta=delta, error=error),
        ),
        trials=0,
        canaries=len(scores),
        other_sign=bound_from_one_run(-scores, coins, delta=delta, error=error),
    )


def _require_numbers(released: Tensor) -> None:
    """NaN is neither above nor below a threshold, so that no canary would be found."""
    if bool(released.isnan().any()):
        raise InvalidValue("expected a training that releases numbers, got NaN; check it")


def _check_numbers(
    claimed: float,
    delta: float,
    steps: int,
    trials: int,
    canaries: int,
    confidence: float,
    max_norm: float,
) -> None:
    if not claimed >= 0 or not 0 < delta < 1 or not 0 < confidence < 1:
        raise InvalidValue(
            "expected claimed >= 0 with delta and confidence in (0, 1), got "
            f"{claimed!r}, {delta!r} and {confidence!r}"
        )
    if steps < 1 or not max_norm > 0:
        raise InvalidValue(f"expected steps >= 1 and max_norm > 0, got {steps!r} and {max_norm!r}")
    if min(trials, canaries) < 4:
        raise InvalidValue(
            f"expected 4 trials and canaries or more, got {trials!r} and {canaries!r}"
        )


def _require_power(
    claimed: float, delta: float, trials: int, canaries: int, confidence: float
) -> None:
    most = _find_provable(trials, canaries, delta, confidence)
    if most <= claimed and claimed < float("inf"):
        raise InvalidValue(
            f"{trials} trials and {canaries} canaries can prove at most epsilon {most:.2f}, so "
            f"they cannot refute {claimed:.2f}; use more, or a lower confidence"
        )


def _find_provable(trials: int, canaries: int, delta: float, confidence: float) -> float:
    """What the audit would say if every guess were right."""
    error = (1 - confidence) / (2 if trials else 1)
    found = []
    if canaries:
        perfect = torch.arange(canaries) % 2 == 0
        found.append(bound_from_one_run(perfect.float(), perfect, delta=delta, error=error))
    if trials:
        ones, zeros = torch.ones(trials), torch.zeros(trials)
        found.append(bound_from_trials(ones, zeros, delta=delta, error=error))
    return max(found)
