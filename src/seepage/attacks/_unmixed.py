"""Find encodings of private inputs by any attack, in one round or several, and decode them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks._agreement import EXPLAINED, residual
from seepage.attacks._unmix import can_unmix, unmix
from seepage.attacks.exact_batch._assign_labels import match_one_to_one
from seepage.core import Attack, AttackWrapper, Mixing, Observation, Prepared, Reconstruction, Rng
from seepage.core._attack import attack_many
from seepage.core._batch import are_numbers
from seepage.core._rng import require_key
from seepage.core.errors import InvalidValue, SeepageError


@dataclass(frozen=True)
class Unmixed(AttackWrapper):
    """Find InstaHide's encodings, then the private inputs that were mixed into them.

    Encodings of one round are unmixed if mixing and labels are known, signs were flipped, one round
    is enough (see `unmix`), and the encodings explain the update. Errors grow with the condition of
    the mixing, so inexact encodings resemble the inputs more as they are. Everything else is left
    as it is. The labels tell which encoding is which row of the mixing.

    If the threat grants several rounds, all of them are used, as `unmix_rounds` does.

    Args:
        attack: What finds the encodings.

    Example:
        >>> import seepage as sp
        >>> photos, task = sp.data.bundled("photos", size=4), sp.zoo.mlp(hidden=(64,))
        >>> client = sp.Client(sp.Gradient(), sp.InstaHide(4))
        >>> seen = sp.Threat.strongest().observe(client, task, photos, rng=sp.rng(0))
        >>> guess = Unmixed(sp.attacks.exact_batch())(seen, rng=sp.rng(1))
        >>> bool(sp.score(guess, photos)["psnr"].min() > 28)
        True

    References:
        Huang et al., 2021, Sec. A.3 (huang2021evaluating)
    """

    # Of several rounds they are recovered.
    needs_labels = False

    def prepare(self, seen: Observation, rng: Rng) -> Prepared:
        """Unmix a guess that explains the update; of several rounds, what they found."""
        if seen.others:
            # The rounds of each observation are side by side already.
            return Prepared(
                seen,
                attack=lambda one, *, rng: unmix_rounds((one, *one.others), self.attack, rng=rng),
            )
        return Prepared(seen, lambda guess: _unmix_guess(guess, seen, rng=rng))


def _unmix_guess(guess: Reconstruction, observation: Observation, *, rng: Rng) -> Reconstruction:
    """Unmix the encodings, or return the guess as it is."""
    mixing, known = observation.mixing, observation.labels
    if mixing is None or mixing.flipped_about is None or known is None or not can_unmix(mixing):
        return guess
    encodings = _order_encodings(guess, known)
    if encodings is None or not _explains(guess, observation):
        return guess
    return _decode([guess], encodings, mixing, known, observation, rng=rng)


def unmix_rounds(
    observations: Sequence[Observation], attack: Attack, *, rng: Rng
) -> Reconstruction:
    """Attack every round in which a client shared one batch, and decode what was found together.

    A client that trains with MixUp or InstaHide mixes the same inputs anew in every round. If signs
    were flipped, the attack finds the encodings of each round, and `unmix` solves for the inputs in
    all of them, even if they are inexact. Rounds whose encodings explain their update are used
    alone if they suffice. If the mixing is known and no sign was flipped, or nothing was mixed, the
    inputs themselves are searched for in all rounds at once (`stack_rounds`). If the mixing is not
    known, nothing says what is in which encoding, and the first round is attacked alone.

    Args:
        observations: One for each round of one model, of clients with the same batch.
        attack: What finds the encodings of a round.
        rng: Of the attacks and of the search for signs.

    Raises:
        InvalidValue: No rounds, or rounds of different models, batch sizes or mixing.
        SeepageError: The attack cannot attack any of the rounds; the reason is the first one's.

    Example:
        >>> import seepage as sp
        >>> photos, task = sp.data.bundled("photos", size=8), sp.zoo.mlp(hidden=(256,))
        >>> client, threat = sp.Client(sp.Gradient(), sp.InstaHide(4)), sp.Threat.strongest()
        >>> rounds = [threat.observe(client, task, photos, rng=sp.rng(i)) for i in range(3)]
        >>> guess = unmix_rounds(rounds, sp.attacks.exact_batch(), rng=sp.rng(0))
        >>> bool(sp.score(guess, photos)["psnr"].min() > 40)
        True

    References:
        Huang et al., 2021, Sec. A.3 (huang2021evaluating)
    """
    # Here, for it imports most attacks.
    from seepage.attacks._rounds import require_same_batch, stack_rounds

    require_key(rng)
    rounds = [replace(seen, others=()) for seen in observations]
    if not rounds:
        raise InvalidValue("expected at least one observation, got none")
    if len(rounds) == 1 or _hides_mixing(rounds):
        return Unmixed(attack)(rounds[0], rng=rng)
    for number, seen in enumerate(rounds[1:], start=2):
        require_same_batch(rounds[0], seen, number)
    known = [seen for seen in rounds if seen.mixing is not None and seen.labels is not None]
    flipped = [seen for seen in known if seen.mixing and seen.mixing.flipped_about is not None]
    if not flipped:
        return attack(stack_rounds(rounds), rng=rng)
    return _unmix_flipped(flipped, attack, rng=rng)


def _hides_mixing(rounds: Sequence[Observation]) -> bool:
    """Whether inputs are mixed, or may be, and the adversary knows of no round how."""
    if any(seen.mixing is not None for seen in rounds):
        return all(seen.labels is None for seen in rounds)
    client, labels = rounds[0].simulate.client, rounds[0].labels
    known = () if client is None else client.chain.input_defenses
    soft = labels is not None and are_numbers(labels)
    return any(link.stage == "mixing" for link in known) or soft


def _unmix_flipped(rounds: Sequence[Observation], attack: Attack, *, rng: Rng) -> Reconstruction:
    """Find the encodings of every round, whose mixing and labels are known, and decode them."""
    # Without the mixing, so that no attack unmixes a round by itself.
    hidden = [replace(seen, mixing=None) for seen in rounds]
    keys = [rng.fork("round", number) if number else rng for number in range(len(rounds))]
    guesses = attack_many(attack, hidden, rngs=keys)
    found = [
        (guess, encodings, seen)
        for guess, seen in zip(guesses, rounds, strict=True)
        if isinstance(guess, Reconstruction)
        and (encodings := _order_encodings(guess, seen.labels)) is not None
    ]
    if not found:
        first = guesses[0]
        if isinstance(first, SeepageError):
            raise first
        return first
    exact = [one for one in found if _explains(one[0], one[2])]
    for chosen in (exact, found):
        mixing = _join_mixings([seen.mixing for _, _, seen in chosen])
        if mixing is not None and can_unmix(mixing):
            labels = torch.cat([seen.labels for _, _, seen in chosen if seen.labels is not None])
            encodings = torch.cat([one for _, one, _ in chosen])
            made = [guess for guess, _, _ in found]
            return _decode(made, encodings, mixing, labels, rounds[0], rng=rng)
    return found[0][0]


def _join_mixings(mixings: Sequence[Mixing | None]) -> Mixing | None:
    known = [mixing for mixing in mixings if mixing is not None]
    if not known:
        return None
    return replace(known[0], coefficients=torch.cat([mixing.coefficients for mixing in known]))


def _order_encodings(guess: Reconstruction, known: Tensor | None) -> Tensor | None:
    """Return the encodings in the order of the mixing; None if labels do not tell it."""
    if known is None:
        return None
    found = known if guess.labels is None else guess.labels
    if found.shape != known.shape:
        return None
    order = match_one_to_one(-torch.cdist(known.double(), found.to(known).double()))
    return guess.inputs[order]


def _explains(guess: Reconstruction, observation: Observation) -> bool:
    """Whether the guess explains the update."""
    labels = observation.labels if guess.labels is None else guess.labels
    return labels is not None and residual(observation, guess.inputs, labels) <= EXPLAINED


def _decode(
    guesses: Sequence[Reconstruction],
    encodings: Tensor,
    mixing: Mixing,
    known: Tensor,
    observation: Observation,
    *,
    rng: Rng,
) -> Reconstruction:
    """Solve for the inputs and their labels; the effort is that of all guesses."""
    domain = observation.task.domain
    inputs = unmix(encodings, mixing, rng=rng.fork("signs"), bounds=domain.bounds)
    inverse = torch.linalg.pinv(mixing.coefficients.to(known))
    labels = (inverse @ known).argmax(1)
    first = guesses[0]
    trace = replace(first.trace, seconds=sum(guess.trace.seconds for guess in guesses))
    return replace(
        first, inputs=domain.project(inputs), labels=labels, trace=trace, certificate=None
    )
