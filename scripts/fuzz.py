"""Read files that were changed at random with every reader, and count how each reading ends.

    python -m scripts.fuzz --files 50000

A reader may read a changed file or refuse it in one sentence. Tracebacks, messages of several
lines, crashes and readings of more than 20 seconds are faults, and are printed with the number that
makes the same file again. The files to begin with are written by Seepage, NumPy, PyTorch and Pillow
themselves.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import resource
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scripts.fuzz_values import list_value_readers
from scripts.run_record import find_commit, write_record

import seepage as sp
from seepage.audit import Record, SpecSource, build_spec, load_audit
from seepage.audit._folder import find_damage
from seepage.core._checkpoint import Checkpoints
from seepage.core._schema import parse_json
from seepage.core._whole_file import unpack, unseal
from seepage.core.errors import SeepageError, UnreadableFile
from seepage.data._image_files import read_picture

SECONDS = 20
MEMORY = 8 * 2**30
TOGETHER = 250
# Characters of a message, with "seepage: " before it.
LONGEST = 1_510
ODD_BYTES = (
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\n",
    b'"',
)
ODD_WORDS = (
    *("0", "-1", "1e999", "nan", "null", "true", "[]", "{}", '""', "99999999999999999999", "../x"),
    *('"\\u0000"', "[[[[", "}", ",", "=", "1979-05-27", '"\x1b[2J"', "10000000", "'''", "#"),
)
_TABLE = "age,town,income,label\n" + "".join(
    f"{20 + n},{'ABC'[n % 3]},{n * 1.5},{n % 2}\n" for n in range(12)
)
_COLUMNS = """label = "label"
[columns]
age = { kind = "number", low = 0, high = 120 }
town = "category"
income = "leave out"
"""


@dataclass(frozen=True)
class Reader:
    """A reader, and files that it reads.

    Args:
        read: Reads a file, given its path.
        files: Whole files, by name.
        text: Whether words are replaced, and not bytes alone.
        change: Changes a file; by default `mutate`.
    """

    read: Callable[[Path], object]
    files: dict[str, bytes]
    text: bool = False
    change: Callable[[bytes, random.Random], bytes] | None = None


@dataclass
class Tally:
    """How readings ended, the faults among them, and the most memory that they took."""

    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    kilobytes: int = 0


def mutate(data: bytes, rng: random.Random, *, text: bool) -> bytes:
    """Change a file in one to four places."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not changed:
            break
        # Most of what can be wrong stands at the beginning.
        at = rng.randrange(len(changed) if rng.random() < 0.5 else min(len(changed), 256))
        kind = rng.randrange(7)
        if text and rng.random() < 0.6:
            words = [i for i, byte in enumerate(changed) if byte in b" =,:[{\n"]
            start = rng.choice(words) + 1 if words else 0
            end = next((i for i in words if i > start), len(changed))
            changed[start:end] = rng.choice(ODD_WORDS).encode()
        elif kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at] = rng.randrange(256)
        elif kind == 2:
            odd = rng.choice(ODD_BYTES)
            changed[at : at + len(odd)] = odd
        elif kind == 3:
            del changed[at : at + rng.randint(1, 64)]
        elif kind == 4:
            taken = rng.randrange(len(changed))
            changed[at:at] = changed[taken : taken + rng.randint(1, 64)]
        elif kind == 5:
            number = rng.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1))
            changed[at : at + 8] = number.to_bytes(8, rng.choice(("little", "big")))
        elif rng.random() < 0.5:
            del changed[at:]
    return bytes(changed)


def list_readers(place: Path) -> dict[str, Reader]:
    """Write the files to begin with, and list every reader."""
    drawn = np.random.default_rng(0)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    model(torch.ones(1, 4)).sum().backward()
    gradient = {name: p.grad for name, p in model.named_parameters()}
    setting = sp.capture.Setting(batch_size=1, shape=(1, 2, 2))
    capture = sp.capture.Capture.of(model, gradient, form="gradient", setting=setting)
    sp.capture.save(capture, place / "capture.safetensors")

    weights = sp.zoo.mlp(domain=sp.domains.Image((1, 2, 2)), hidden=(3,), classes=2)
    state = weights.model.state_dict()
    torch.save(state, place / "weights.pt")
    from safetensors.torch import save_file

    save_file(state, place / "weights.safetensors")
    np.savez(place / "plain.npz", images=np.zeros((4, 3, 3), np.uint8), labels=np.arange(4) % 2)
    rows = drawn.random((6, 1, 5), dtype=np.float32)
    np.savez_compressed(place / "packed.npz", inputs=rows, labels=np.arange(6) % 2)

    spec = {
        "title": "Fuzz",
        "seeds": [0],
        "metrics": ["psnr"],
        "scenario": {
            "data": {"name": "digits", "people": 1, "pixels": 8},
            "models": {"name": "mlp", "hidden": [4]},
            "threats": {"knows_labels": True},
            "attacks": [{"name": "inverting_gradients", "steps": 2, "restarts": 1}],
            "defenses": [{"name": "AddGaussian", "std": 0.01}],
        },
    }
    sp.audit.run(spec, place / "audit", device="cpu")
    case, inputs = (
        max((place / "audit" / part).iterdir(), key=lambda path: path.stat().st_size)
        for part in ("cases", "inputs")
    )
    Checkpoints(place / "checkpoints").save("f" * 64, [torch.ones(3), torch.zeros(2, 2)])
    checkpoint = next((place / "checkpoints").iterdir())
    record = unseal(case.read_bytes())["record"]

    def read_spec(path: Path) -> object:
        return build_spec(SpecSource.read(path, device="cpu"))

    def read_folder(path: Path) -> object:
        """Read the audit with this file in place of its own of this name."""
        [kept] = (place / "audit").rglob(path.name)
        whole = kept.read_bytes()
        path.replace(kept)
        try:
            if damage := find_damage(place / "audit"):
                raise UnreadableFile(damage[0])
            return load_audit(place / "audit").records
        finally:
            kept.write_bytes(whole)

    def read_checkpoint(path: Path) -> object:
        path.rename(path.with_name(checkpoint.name))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = Checkpoints(path.parent).load("f" * 64)
        if found is None:
            raise UnreadableFile("a damaged checkpoint is not used")
        return found

    def read_table(path: Path) -> object:
        return sp.data.load(f"csv:{path}")

    def read_columns(path: Path) -> object:
        table = path.with_name("table.csv")
        table.write_text(_TABLE)
        return read_table(table)

    def files(*paths: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in paths}

    return {
        "spec": Reader(read_spec, files(place / "audit" / "spec.toml"), text=True),
        "npz": Reader(
            lambda path: sp.data.load(f"npz:{path}"),
            files(place / "plain.npz", place / "packed.npz"),
        ),
        "table": Reader(
            read_table,
            {"table.csv": _TABLE.encode(), "table.tsv": _TABLE.replace(",", "\t").encode()},
        ),
        "columns": Reader(read_columns, {"table.columns.toml": _COLUMNS.encode()}, text=True),
        "image": Reader(read_picture, _draw_pictures(drawn)),
        "capture": Reader(sp.capture.load, files(place / "capture.safetensors")),
        "weights": Reader(
            lambda path: sp.zoo.load_weights(weights, path),
            files(place / "weights.pt", place / "weights.safetensors"),
        ),
        "plan": Reader(read_folder, files(place / "audit" / "plan.json"), text=True),
        "case": Reader(read_folder, files(case)),
        "inputs": Reader(read_folder, files(inputs)),
        "record": Reader(
            lambda path: Record.from_plain(parse_json(path.read_text("utf-8", "replace"), "it")),
            {"record.json": record.encode()},
            text=True,
        ),
        "tensors": Reader(lambda path: unpack(path.read_bytes()), files(case)),
        "checkpoint": Reader(read_checkpoint, files(checkpoint)),
        **_read_parquet(place),
        **{
            name: Reader(read, begun, change=change)
            for name, (read, begun, change) in list_value_readers(place).items()
        },
    }


def _read_parquet(place: Path) -> dict[str, Reader]:
    """Tables of Parquet as pyarrow writes them, where it is installed."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        return {}
    lines = [line.split(",") for line in _TABLE.splitlines()]
    texts = arrow.table({name: [row[i] for row in lines[1:]] for i, name in enumerate(lines[0])})
    typed = arrow.table(
        {"age": list(range(12)), "when": arrow.array(range(12), arrow.timestamp("ms")),
         "rate": [None, *(0.5 * n for n in range(11))], "label": [True, False] * 6}
    )  # fmt: skip
    parquet.write_table(texts, place / "texts.parquet", compression="zstd")
    parquet.write_table(typed, place / "typed.parquet", compression="none", row_group_size=5)
    parquet.write_table(texts, place / "plain.parquet", use_dictionary=False, compression="none")
    found = {
        f"{n}.parquet": (place / f"{n}.parquet").read_bytes() for n in ("texts", "typed", "plain")
    }
    return {
        "parquet": Reader(
            lambda path: sp.data.load(f"parquet:{path}"), found, change=_change_parquet
        )
    }


def _change_parquet(data: bytes, rng: random.Random) -> bytes:
    """Change bytes, most of them in the footer, which says what is where."""
    size = int.from_bytes(data[-8:-4], "little")
    if rng.random() < 0.4 or size + 8 > len(data):
        return mutate(data, rng, text=False)
    footer = bytearray(data[-8 - size : -8])
    for _ in range(rng.choice((1, 2, 4))):
        footer[rng.randrange(size)] = rng.randrange(256)
    return data[: -8 - size] + bytes(footer) + data[-8:]


def _draw_pictures(drawn: np.random.Generator) -> dict[str, bytes]:
    from PIL import Image

    pixels = drawn.integers(0, 256, (12, 10, 3), dtype=np.uint8)
    made = {}
    for kind in ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM"):
        kept = io.BytesIO()
        Image.fromarray(pixels).save(kept, kind)
        made[f"picture.{kind.lower()}"] = kept.getvalue()
    return made


def read_one(reader: Reader, seed: str, folder: Path) -> str:
    """Change a file, read it, and say how that ended."""
    rng = random.Random(seed)
    name = rng.choice(sorted(reader.files))
    change = reader.change or partial(mutate, text=reader.text)
    return read_bytes(reader, name, change(reader.files[name], rng), folder)


def read_bytes(reader: Reader, name: str, data: bytes, folder: Path) -> str:
    """Read a file with these bytes, and say how that ended."""
    path = folder / name
    path.write_bytes(data)
    try:
        reader.read(path)
    except SeepageError as error:
        said = str(error)
        if len(said) > LONGEST:
            return f"long: {said[:120]!r}"
        return "refused" if len(said.splitlines()) == 1 else f"several lines: {said[:120]!r}"
    except Exception as error:  # noqa: BLE001 - this is what is looked for
        where = error.__traceback__
        while where and where.tb_next:
            where = where.tb_next
        at = f"{Path(where.tb_frame.f_code.co_filename).name}:{where.tb_lineno}" if where else ""
        return f"traceback: {type(error).__name__} at {at}: {str(error)[:120]!r}"
    else:
        return "read"
    finally:
        for left in folder.iterdir():
            left.unlink()


def fuzz(name: str, reader: Reader, count: int, seed: int) -> Tally:
    """Read changed files in processes that are forked for some hundred of them each.

    Args:
        name: Of the reader.
        reader: The reader.
        count: How many files.
        seed: Of all changes.
    """
    tally, number = Tally(), 0
    with tempfile.TemporaryDirectory() as folder:
        for file, data in reader.files.items():
            if (end := read_bytes(reader, file, data, Path(folder))) != "read":
                raise SystemExit(f"{name} does not read {file} as it was written: {end}")
    while number < count:
        source, sink = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(source)
            _read_many(name, reader, range(number, min(count, number + TOGETHER)), seed, sink)
        os.close(sink)
        with os.fdopen(source) as told:
            ends = [json.loads(line) for line in told]
        _, status, used = os.wait4(pid, 0)
        tally.kilobytes = max(tally.kilobytes, used.ru_maxrss)
        for end in ends:
            tally.ends[end.split(":")[0]] += 1
            if end not in ("read", "refused"):
                tally.faults.append(f"{name} {seed}-{number}: {end}")
            number += 1
        if os.WIFSIGNALED(status):
            kind = "hang" if os.WTERMSIG(status) == signal.SIGALRM else "crash"
            tally.ends[kind] += 1
            tally.faults.append(f"{name} {seed}-{number}: {kind}")
            number += 1
    return tally


def _read_many(name: str, reader: Reader, numbers: range, seed: int, sink: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # Whatever a library prints of a damaged file is not what is looked for.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with tempfile.TemporaryDirectory() as folder, os.fdopen(sink, "w") as told:
        for number in numbers:
            signal.alarm(SECONDS)
            end = read_one(reader, f"{name}-{seed}-{number}", Path(folder))
            told.write(json.dumps(end) + "\n")
            told.flush()
        signal.alarm(0)
    os._exit(0)


def main() -> None:
    """Fuzz every reader, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=9000, help="over all readers together")
    parser.add_argument("--readers", nargs="*", help="of these alone")
    parser.add_argument("--seed", type=int, default=0, help="of the changes")
    parser.add_argument("--out", type=Path, help="write the counts to this file as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    find_commit()
    faults: list[str] = []
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        readers = list_readers(Path(folder))
        chosen = options.readers or list(readers)
        print(
            f"{'reader':12}{'files':>8}{'read':>8}{'refused':>9}{'faults':>8}{'peak':>10}{'s':>6}"
        )
        for name in chosen:
            began = time.monotonic()
            tally = fuzz(name, readers[name], options.files // len(chosen), options.seed)
            faults += tally.faults
            row = {
                "reader": name,
                "files": sum(tally.ends.values()),
                "read": tally.ends["read"],
                "refused": tally.ends["refused"],
                "faults": len(tally.faults),
                "peak_mb": tally.kilobytes // 1024,
                "seconds": round(time.monotonic() - began),
            }
            rows.append(row)
            print(
                f"{name:12}{row['files']:>8}{row['read']:>8}{row['refused']:>9}{row['faults']:>8}"
                f"{row['peak_mb']:>7} MB{row['seconds']:>6}",
                flush=True,
            )
    print("\n".join(faults[:200]))
    if options.out is not None:
        write_record(options.out, {"rows": rows, "faults": faults})
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
