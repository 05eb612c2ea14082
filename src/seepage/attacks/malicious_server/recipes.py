"""Servers that cheat, one function per idea."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.attacks.computed import analytic_fc
from seepage.attacks.malicious_server.class_fishing import ClassFishing
from seepage.attacks.malicious_server.edges import Edges, Law, Public, Shape
from seepage.attacks.malicious_server.first_layer import FirstLayer
from seepage.attacks.malicious_server.identity import IdentityConvolutions
from seepage.attacks.malicious_server.label_flip import LabelFlip
from seepage.attacks.malicious_server.passing import ReadPassed
from seepage.attacks.malicious_server.robbing import Functional, RobbingTheFed, Variant
from seepage.attacks.recipes import inverting_gradients
from seepage.core import ActiveAttack, Attack
from seepage.core.errors import InvalidValue


def robbing_the_fed(
    *,
    bins: int = 128,
    variant: Variant = "sparse",
    functional: Functional = "mean",
    law: Shape = "normal",
    mean: float = 0.474,
    std: float = 0.126,
    public: str | None = None,
    split: str = "train",
    gain: float = 1e-3,
    column: float = 1e-2,
) -> ActiveAttack:
    """A planted layer whose bins catch one input of a large batch each, exactly.

    Args:
        bins: Number of bins; those with one input alone give it away.
        variant: "sparse" (clamped), or "cumulative" (ReLU) as in the paper, which loses digits and
            does not withstand local steps.
        functional: "mean" sorts inputs by brightness, "random" by a random direction.
        law: Of the functional, as the server assumes it: "normal" or "laplace".
        mean: Of that law, in natural units; the default is that of photographs.
        std: Its deviation.
        public: Name of a data set to measure the law on instead.
        split: Of that data set.
        gain: How far the network's input is moved at most, roughly, in normalised units.
        column: Size of what the bins add to; larger stands out of noise more.

    Example:
        >>> robbing_the_fed(bins=64).bins
        64

    References:
        Fowl et al., 2022 (fowl2022robbing)
    """
    assumed: Edges = Law(shape=law, mean=mean, std=std)
    edges = assumed if public is None else Public(data=public, split=split)
    return RobbingTheFed(
        bins=bins, variant=variant, functional=functional, edges=edges, gain=gain, column=column
    )


def label_flip(*, attack: Attack | None = None, rows: Sequence[int] = ()) -> ActiveAttack:
    """Rows of the classifier permuted, so that a trained network's gradients say more.

    Args:
        attack: What attacks the update; `inverting_gradients()` if not given.
        rows: Two rows to swap; none moves every row to the next class.

    References:
        Geiping et al., 2020, Sec. 5.4 (geiping2020inverting)
    """
    return LabelFlip(attack=_passive(attack, inverting_gradients()), rows=rows)


def class_fishing(
    *, attack: Attack | None = None, target: int = 0, margin: float = 1e3
) -> ActiveAttack:
    """All classes but one silenced, so that a large batch becomes a batch of one.

    Args:
        attack: What attacks the update of one person; `inverting_gradients()` if not given.
        target: The class to fish for.
        margin: Bias of all other classes.

    References:
        Wen et al., 2022 (wen2022fishing)
    """
    inner = _passive(attack, inverting_gradients())
    return ClassFishing(attack=inner, target=target, margin=margin)


def identity_convolutions(*, attack: Attack | None = None) -> ActiveAttack:
    """Convolutions set to the identity, so that the input arrives at the classifier unchanged.

    Args:
        attack: What attacks the update; if not given, what was passed on is read in closed form.

    References:
        Geiping et al., 2020, Sec. 5.4 (geiping2020inverting)
    """
    return IdentityConvolutions(attack=_passive(attack, ReadPassed()))


def first_layer_fc(*, attack: Attack | None = None) -> ActiveAttack:
    """A fully connected identity before the network, which gives one input away in closed form.

    Args:
        attack: What attacks the update; `analytic_fc()` if not given.

    References:
        Geiping et al., 2020, Sec. 4.3 (geiping2020inverting)
    """
    return FirstLayer(attack=_passive(attack, analytic_fc()))


def _passive(attack: Attack | None, default: Attack) -> Attack:
    """The attack asked for, which must not plant: what it planted would be overwritten."""
    if isinstance(attack, ActiveAttack):
        raise InvalidValue(
            f"expected an attack that only reads an update, got {attack}, which plants a network "
            "of its own; give it a passive one"
        )
    return default if attack is None else attack
