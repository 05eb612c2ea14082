"""What a stored record may hold: checked before it is used, since it may come from anywhere."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from seepage.audit.artifacts import NAME
from seepage.core.errors import UnreadableFile
from seepage.scoring.identification import GALLERIES

Check = Callable[[Any], bool]
# Numbers beyond this do not fit into tables.
_LARGEST = 2**63
_LONGEST = 100_000
_MOST = 1_000_000
_INFINITIES = ("inf", "-inf")
# How JSON may write half of a character.
_HALF = re.compile(r"\\u[dD]")


def parse_json(text: str, what: str) -> Any:  # noqa: ANN401
    """Parse JSON without NaN or halves of characters; raise `UnreadableFile` if it is none."""
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
        if _HALF.search(text) and not _is_whole(found):
            raise ValueError("half of a character")
        return found
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"{what} is not plain JSON ({str(error)[:100]})") from None


def _is_whole(found: object) -> bool:
    """Whether no text has half of a character, which cannot be printed or written."""
    try:
        return bool(json.dumps(found, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return False


def _refuse_constant(word: str) -> object:
    raise ValueError(f"the number {word}")


def _is_word(value: object) -> bool:
    # A lone surrogate cannot be printed or written, and infinities are read as numbers.
    return (
        isinstance(value, str)
        and len(value) <= _LONGEST
        and value not in _INFINITIES
        and not any(0xD800 <= ord(letter) <= 0xDFFF for letter in value)
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and (not value or re.fullmatch(NAME, value) is not None)


def _is_truth_value(value: object) -> bool:
    return isinstance(value, bool)


def _is_number(value: object) -> bool:
    """Whether this is a number, or an infinity as records write it."""
    if isinstance(value, str):
        return value in _INFINITIES
    if type(value) is int:
        return abs(value) < _LARGEST
    return type(value) is float and abs(value) < math.inf


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _is_place(value: object) -> bool:
    return type(value) is int and 1 <= value < _LARGEST


def _is_person(value: object) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and _is_word(value[0]) and _is_count(value[1])
    )


def _one_of(*words: str) -> Check:
    return lambda value: isinstance(value, str) and value in words


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and len(value) <= _MOST and all(map(check, value))


def _mapping_of(check: Check) -> Check:
    return lambda value: (
        isinstance(value, dict) and all(_is_word(k) and check(v) for k, v in value.items())
    )


def _table(**checks: Check) -> Check:
    return lambda value: (
        isinstance(value, dict)
        and value.keys() == checks.keys()
        and all(check(value[key]) for key, check in checks.items())
    )


def _is_plain(value: object) -> bool:
    """Whether this is what the arguments of a component may be."""
    if isinstance(value, dict):
        return all(_is_word(key) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return _is_scalar(value)


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, bool) or _is_word(value) or _is_number(value)


_COMPONENT = _table(name=_is_word, arguments=_mapping_of(_is_plain))
_SCORES = _mapping_of(_list_of(_or_none(_is_number)))
_PLACE = _table(
    rank=_is_place,
    strangers=_is_place,
    gallery=_one_of(*GALLERIES),
    match=_is_number,
    rival=_is_number,
    recognisable=_is_truth_value,
    one_in=_is_number,
    one_in_low=_is_number,
    one_in_high=_is_number,
    exact=_or_none(_is_truth_value),
    copies=_is_count,
)
# Records of 0.3 do not say whether a guess is exact.
_IDENTIFICATIONS = _list_of(
    lambda value: _PLACE(
        {"exact": None, "copies": 0, **value} if isinstance(value, dict) else value
    )
)
_BOUND = _table(
    values=_list_of(_is_number),
    side=_one_of("lower", "upper"),
    metric=_is_word,
    assumptions=_list_of(_is_word),
    remark=_is_word,
    peak=lambda value: _is_number(value) and 0 < float(value) < math.inf,
    entries=_is_place,
    mode=_one_of("train", "eval"),
)
_PROOF: Mapping[str, Check] = {
    "residual": _is_number,
    "unique": _or_none(_is_truth_value),
    "error": _or_none(_is_number),
}
_PROOFS = (
    _table(**_PROOF),
    _table(**_PROOF, certain=_is_count),
    _table(**_PROOF, locally_unique=_is_truth_value),
)


_RACE = _table(
    metric=_is_word,
    trials=_list_of(
        _table(attack=_is_word, steps=_is_count, scores=_list_of(_is_number), error=_is_word)
    ),
    chosen=lambda value: _list_of(_is_word)(value) and bool(value),
    rule=_one_of("first", "residual", "mean"),
    forecast=_or_none(_table(low=_is_number, middle=_is_number, high=_is_number)),
    rising=_is_truth_value,
    masked=_is_truth_value,
    cut=_is_truth_value,
    made_up=_is_truth_value,
    note=_is_word,
)
_EFFORT: Mapping[str, Check] = {
    "steps": _is_count,
    "restarts": _is_count,
    "sure": _is_count,
    "seconds": lambda value: _is_number(value) and float(value) >= 0,
    "device": _is_word,
}
_FIELDS: Mapping[str, Check] = {
    "data": _is_word,
    "people": lambda value: _list_of(_is_count)(value) and bool(value),
    "model": _is_word,
    "local": _COMPONENT,
    "defense": _list_of(_COMPONENT),
    "threat": _or_none(_table(name=_is_word, arguments=_mapping_of(_is_scalar))),
    "attack": _COMPONENT,
    "seed": lambda value: type(value) is int and abs(value) < _LARGEST,
    "scores": _SCORES,
    "baselines": _mapping_of(_SCORES),
    "certificate": _or_none(lambda value: any(check(value) for check in _PROOFS)),
    "effort": lambda value: (
        _mapping_of(_is_plain)(value)
        and all(check(value[name]) for name, check in _EFFORT.items() if name in value)
    ),
    "error": _or_none(lambda value: _is_word(value) and bool(value)),
    "case": _is_name,
    "truth": _is_name,
    "vetted": _is_word,
    "bound": _or_none(_BOUND),
    "identification": _IDENTIFICATIONS,
    "columns": _list_of(lambda value: _is_number(value) and 0 <= float(value) <= 1),
    "label_chance": _or_none(lambda value: _is_number(value) and 0 <= float(value) <= 1),
    "control_kind": _one_of("", "canary", "noise", "search"),
    "negatives": _IDENTIFICATIONS,
    "race": _or_none(_RACE),
    "applicable": _is_truth_value,
    "sampling": _is_word,
    "readable": _is_truth_value,
    "repeatable": _is_count,
    "known_as": _list_of(_is_person),
    # It stands in sentences.
    "kind": lambda value: isinstance(value, str) and bool(re.fullmatch("[a-z]{0,20}", value)),
    "control": lambda value: value is None,
    "batch_size": _is_place,
}
# What older records lack; they are read as if it were there.
_ADDED: Mapping[str, object] = {
    "applicable": True,
    "sampling": "",
    "readable": False,
    "repeatable": 0,
    "known_as": [],
    "kind": "",
    "columns": [],
}


def check_record(plain: object) -> None:
    """Raise `UnreadableFile`, naming the field, unless this is the plain form of a record."""
    if not isinstance(plain, dict):
        raise UnreadableFile("expected a record of fields by name")
    plain = {**_ADDED, **plain}
    if plain.keys() != _FIELDS.keys():
        [odd, *_] = sorted(map(str, plain.keys() ^ _FIELDS.keys()))
        raise UnreadableFile(f"expected the fields of a record, but {odd[:40]!r} differs")
    try:
        wrong = [name for name, check in _FIELDS.items() if not check(plain[name])]
    except RecursionError:
        raise UnreadableFile("a record is nested too deeply") from None
    wrong = wrong or list(_find_uneven(plain))
    if wrong:
        raise UnreadableFile(f"the field {wrong[0]!r} of a record is not what it should be")


def _find_uneven(plain: Mapping[str, Any]) -> list[str]:
    """Name the fields that do not fit the others, e.g. without one entry per person."""
    count = len(plain["people"])
    tables = [plain["scores"], *plain["baselines"].values()]
    bound = plain["bound"] or {"values": [], "metric": ""}
    bounded = count if plain["bound"] and not plain["error"] else 0
    is_distance = bound["metric"] in ("rmse", "mse")
    uneven = {
        "batch_size": plain["batch_size"] != count,
        "scores": any(len(row) != count for table in tables for row in table.values()),
        "identification": len(plain["identification"]) not in (0, count),
        "known_as": len(plain["known_as"]) not in (0, count),
        "bound": len(bound["values"]) != bounded
        or (is_distance and any(float(value) < 0 for value in bound["values"])),
        "threat": plain["threat"] is None and plain["bound"] is None,
        "applicable": not plain["applicable"] and plain["error"] is None,
    }
    return [name for name, is_uneven in uneven.items() if is_uneven]
