"""The entries of a spec that say what the adversary does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from seepage.attacks import ATTACKS, ReadLogits, Unmixed, adaptive
from seepage.attacks.feature_recovery import FeatureRecovery
from seepage.attacks.image_prior import PriorNetwork
from seepage.attacks.kinds import require_kind
from seepage.attacks.labels import InferLabels
from seepage.audit.entries import Table, constructed, split
from seepage.core import ActiveAttack, Attack, Domain
from seepage.core.construct import construct, described
from seepage.core.errors import InvalidValue
from seepage.core.located import located


def attack(table: Table, domain: Domain | None = None) -> tuple[str, Attack]:
    """What the adversary does to inputs of this kind, if it is known, and what records call it.

    `adaptive = true` adapts it to the defense; `infer_labels = true` recovers labels that it needs
    and are not known; `unmix = true` carries on from InstaHide's encodings to the private inputs;
    `read_logits = true` takes the gradient at the logits from the last layer.
    An attack that ends in another one, or begins with recovered features, names
    it in a table of its own, `attack = { name = ... }` or `features = { name = ... }`; the network
    that makes its images is `prior = { width = ... }`.
    """
    name, options = split(table)
    for key, make in _INNER.items():
        if isinstance(options.get(key), Mapping):
            with located(key):
                options[key] = make(options[key], domain)
    wrappers: dict[str, Callable[[Attack], Attack]] = {
        "read_logits": ReadLogits,
        "infer_labels": InferLabels,
        "adaptive": adaptive,
        "unmix": Unmixed,
    }
    wanted = {key: options.pop(key, False) for key in wrappers}
    made = constructed("attack", ATTACKS, {"name": name, **options}, Attack)
    if domain is not None:
        with located("name"):
            require_kind(name, domain)
    for key, wrap in wrappers.items():
        if not isinstance(wanted[key], bool):
            with located(key):
                raise InvalidValue(f"expected {key} to be true or false, got {wanted[key]!r}")
        if wanted[key]:
            made = _wrapped(name, made, key, wrap)
    return described(*split(table)), made


def recovery(table: Table, domain: Domain | None = None) -> FeatureRecovery:
    """An attack that recovers features inside the network."""
    name, made = attack(table, domain)
    if not isinstance(made, FeatureRecovery):
        raise InvalidValue(
            f"expected an attack that recovers features, such as tensor_features, got {name}"
        )
    return made


_INNER: Mapping[str, Callable[[Table, Domain | None], object]] = {
    "attack": lambda table, domain: attack(table, domain)[1],
    "features": recovery,
    "prior": lambda table, _: construct("prior", PriorNetwork, table),
}


def _wrapped(name: str, made: Attack, key: str, wrap: Callable[[Attack], Attack]) -> Attack:
    if isinstance(made, ActiveAttack):
        with located(key):
            raise InvalidValue(
                f"{name} plants a network and takes no {key}; give it to the attack it ends in, "
                f"as attack = {{ name = ..., {key} = true }}"
            )
    return wrap(made)
