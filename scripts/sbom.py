"""Write a bill of materials of the installed environment: CycloneDX 1.5, as JSON.

    python -m scripts.sbom --out sbom.json

Lists `seepage` and everything that it needs here, with versions, licences and who needs whom.
"""

from __future__ import annotations

import argparse
import json
import uuid
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def find_needed(name: str) -> dict[str, tuple[Distribution, list[str]]]:
    """Find what a distribution needs of what is installed, and what each of those needs."""
    found: dict[str, tuple[Distribution, list[str]]] = {}
    waiting = [name]
    while waiting:
        one = canonicalize_name(waiting.pop())
        if one in found:
            continue
        try:
            held = distribution(one)
        except PackageNotFoundError:
            continue
        asked = map(Requirement, held.requires or ())
        # An optional part that is installed is a part of what runs.
        needed = sorted({canonicalize_name(r.name) for r in asked if not _is_elsewhere(r)})
        found[one] = held, needed
        waiting += needed
    return {one: (held, [n for n in needed if n in found]) for one, (held, needed) in found.items()}


def _is_elsewhere(requirement: Requirement) -> bool:
    """Whether a requirement is for another platform or Python, whatever extras are asked for."""
    marker = requirement.marker
    if marker is None or "extra" in str(marker):
        return False
    return not marker.evaluate()


def describe(name: str, held: Distribution, *, kind: str = "library") -> dict[str, object]:
    """Describe a distribution as a component."""
    about: dict[str, object] = {
        "type": kind,
        "bom-ref": refer(name, held),
        "name": name,
        "version": held.version,
        "purl": refer(name, held),
    }
    licence = held.metadata.get("License-Expression") or held.metadata.get("License")
    if licence and "\n" not in licence and len(licence) < 100:
        about["licenses"] = [{"license": {"name": licence}}]
    return about


def refer(name: str, held: Distribution) -> str:
    """The package URL of a distribution."""
    return f"pkg:pypi/{name}@{held.version.replace('+', '%2B')}"


def make_bill(name: str = "seepage") -> dict[str, object]:
    """Make the bill of a distribution and what it needs."""
    found = find_needed(name)
    if name not in found:
        raise SystemExit(f"{name} is not installed here; pip install it first")
    own = found[name][0]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": describe(name, own, kind="application"),
        },
        "components": [
            describe(one, held) for one, (held, _) in sorted(found.items()) if one != name
        ],
        "dependencies": [
            {"ref": refer(one, held), "dependsOn": [refer(n, found[n][0]) for n in needed]}
            for one, (held, needed) in sorted(found.items())
        ],
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("sbom.json"))
    out = parser.parse_args().out
    bill = make_bill()
    out.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    print(f"{len(bill['components'])} components in {out}")


if __name__ == "__main__":
    main()
