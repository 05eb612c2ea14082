"""Section: everything needed to run the audit again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from seepage.audit import Record
from seepage.report.page.markup import Markup, element, joined
from seepage.report.page.section import Section
from seepage.report.words import enumerated


def rerun_section(
    records: Sequence[Record], *, spec: str, environment: Mapping[str, object]
) -> Section:
    """The command, the spec, the seeds and the versions."""
    seeds = enumerated([str(seed) for seed in sorted({record.seed for record in records})])
    return Section(
        "rerun",
        "To run it again",
        "The same spec, seeds, versions and device give the same results (on a card up to "
        "rounding).",
        joined(
            element(
                "p", None, "Save the spec as spec.toml and run ",
                element("code", None, "seepage audit spec.toml --out again"), ". ",
                f"Seeds: {seeds or 'none'}.",
            ),
            _folded("Spec", spec),
            _folded("Versions and machine", json.dumps(environment, indent=2)),
            _folded("What ran, in full", "\n".join(_described(records))),
        ),
    )  # fmt: skip


def _described(records: Sequence[Record]) -> list[str]:
    kinds = ("data", "model", "local", "defense", "threat", "attack")
    return [
        f"{kind}: {value}"
        for kind in kinds
        for value in dict.fromkeys(getattr(record, kind) for record in records)
    ]


def _folded(title: str, text: str) -> Markup:
    return element("details", None, element("summary", None, title), element("pre", None, text))
