"""The lock file and the bill of materials say what is installed."""

import re
from pathlib import Path

from packaging.utils import canonicalize_name
from scripts.lock import list_roots, read_pins
from scripts.sbom import make_bill

ROOT = Path(__file__).parents[1]


def read_lock():
    blocks = re.split(r"\n(?=[a-z])", (ROOT / "requirements.lock").read_text())[1:]
    return {
        block.split("==")[0]: (
            re.search(r"==(\S+)", block)[1],
            re.findall(r"--hash=sha256:([0-9a-f]{64})\b", block),
        )
        for block in blocks
    }


def test_the_lock_has_every_requirement_in_the_version_that_is_tested():
    locked, pins = read_lock(), read_pins()
    for root in list_roots():
        name = canonicalize_name(root.name)
        if name == "seepage":
            continue
        number, hashes = locked[name]
        assert number == pins.get(name, number), name
        assert number in root.specifier, name
        assert hashes, name
    assert all(hashes for _, hashes in locked.values())


def test_the_lock_has_wheels_for_both_processors():
    # torch has no wheel that fits any processor.
    assert len(read_lock()["torch"][1]) > 4


def test_the_bill_has_what_cyclonedx_requires():
    bill = make_bill()
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    components = bill["components"]
    assert all(one["type"] == "library" and one["name"] and one["version"] for one in components)
    names = {one["name"] for one in components}
    assert {"torch", "numpy", "safetensors", "typer"} <= names
    references = [one["bom-ref"] for one in components]
    references.append(bill["metadata"]["component"]["bom-ref"])
    assert len(references) == len({*references})
    for entry in bill["dependencies"]:
        assert {entry["ref"], *entry["dependsOn"]} <= {*references}
