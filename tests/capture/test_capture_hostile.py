"""Files made to do harm: one clear error each, nothing run, no memory beyond the file's size."""

import json
import pickle
import random
import re
import tracemalloc

import pytest
import torch

import seepage as sp
from seepage.capture import Capture, Setting
from seepage.core.errors import DataNotFound, InvalidValue, UnreadableFile

MUTATIONS = 12_000
REFUSED = (UnreadableFile, InvalidValue)


def small():
    update = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2)}
    buffers = {"count": torch.tensor(3), "seen": torch.tensor([True, False])}
    setting = Setting(lr=0.1, batch_size=2, shape=(1, 1, 3), client=sp.capture.hashed("x"))
    return sp.capture.dump(Capture(update, "difference", update, buffers, setting))


def split(data):
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header, tensors):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + tensors


def with_header(change):
    header, tensors = split(small())
    change(header)
    return joined(header, tensors)


def with_words(change):
    def changed(header):
        words = json.loads(header["__metadata__"]["capture"])
        change(words)
        header["__metadata__"]["capture"] = json.dumps(words)

    return with_header(changed)


def with_numbers(value):
    capture = sp.capture.parse(small())
    # The value itself would refuse it, so it is written behind its back.
    tensors = {n: t.clone() for n, t in capture.update.items()}
    object.__setattr__(capture, "update", {**tensors, "weight": torch.full((2, 3), value)})
    return sp.capture.dump(capture)


class Bomb:
    """Runs when it is unpickled."""

    def __reduce__(self):
        return exec, ("import seepage; seepage.exploded = True",)


def renamed(name):
    def change(header):
        header[name] = header.pop("update/weight")

    return with_header(change)


def entry(**values):
    return with_header(lambda header: header["update/weight"].update(values))


def twice():
    header, tensors = split(small())
    text = json.dumps(header)
    one = json.dumps({"update/bias": header["update/bias"]})[1:-1]
    return joined(f"{text[:-1]}, {one}}}".encode(), tensors)


HOSTILE = {
    "nothing": (b"", "truncated"),
    "a pickle": (pickle.dumps(Bomb()), "could run code"),
    "an archive of torch": (b"PK\x03\x04" + bytes(60), "could run code"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(64), "a header of"),
    "10 GB of header": ((10 * 2**30).to_bytes(8, "little") + b"{}", "a header of 10737418240"),
    "a header without end": (b"\xff" * 8 + b"{}", "a header of 18446744073709551615"),
    "10 GB of tensor": (entry(shape=[50_000, 50_000]), "needs 10000000000 bytes"),
    "a tensor outside": (entry(data_offsets=[0, 10 * 2**30]), "truncated"),
    "a shape that overflows": (entry(shape=[2**40, 2**40, 2**40]), "bytes"),
    "a shape below zero": (entry(shape=[-2, -3]), "positive sizes"),
    "a shape of truths": (entry(shape=[True, 6]), "positive sizes"),
    "a thousand axes": (entry(shape=[1] * 1000), "positive sizes"),
    "a shape of nothing": (entry(shape=[0, 3]), "positive sizes"),
    "offsets backwards": (entry(data_offsets=[24, 0]), "truncated"),
    "an unknown dtype": (entry(dtype="F8_E4M3"), "as one of F64"),
    "a dtype that is a list": (entry(dtype=["F32"]), "as one of F64"),
    "whole numbers as update": (entry(dtype="I32"), "floating-point numbers, got torch.int32"),
    "a key beside": (entry(code="import os"), "dtype, shape and data_offsets"),
    "one tensor under another": (
        with_header(lambda h: h["update/weight"].update(h["parameters/weight"])),
        "gaps or overlaps",
    ),
    "bytes after the end": (small() + b"more", "gaps or overlaps"),
    "bytes that are missing": (small()[:-1], "truncated"),
    "a path upwards": (renamed("update/../../etc/passwd"), "never a path"),
    "an absolute path": (renamed("/etc/passwd"), "never a path"),
    "a path of windows": (renamed("update/C:\\boot"), "never a path"),
    "a dot-dot": (renamed("update/a..b"), "never a path"),
    "a name that ends a line": (renamed("update/a\nb"), "never a path"),
    "a name of 10 000": (renamed("update/" + "a" * 10_000), "never a path"),
    "another group": (renamed("truth/weight"), "tensors named update"),
    "a key that stands twice": (twice(), "twice"),
    "a header that is no text": (joined(b'{"\xff\xfe": 1}', b""), "UTF-8"),
    "a header that is a list": (joined(b"[]", b""), "a header of names"),
    "a header that is nested": (joined(b"[" * 200_000, b""), "nested too deeply"),
    "a header of a number": (joined(b"9" * 100_000, b""), "plain JSON"),
    "a header of NaN": (joined(b'{"a": NaN}', b""), "the number NaN"),
    "metadata that is a number": (joined({"__metadata__": {"format": 3}}, b""), "as words"),
    "no tensors": (
        with_header(lambda h: [h.pop(k) for k in list(h) if k != "__metadata__"]),
        "gaps or overlaps",
    ),
    "another format": (joined({"__metadata__": {"format": "pt"}}, b""), "seepage.capture"),
    "another version": (
        with_header(lambda h: h["__metadata__"].update(version="2")),
        "expected version 1",
    ),
    "a word unknown": (with_words(lambda w: w.update(labels=[1])), "unknown option 'labels'"),
    "a word of another kind": (with_words(lambda w: w.update(steps="many")), "steps"),
    "a rate without end": (with_words(lambda w: w.update(lr=10**400)), "lr > 0"),
    "a billion people": (with_words(lambda w: w.update(batch_size=10**9)), "batch_size"),
    "inputs without end": (with_words(lambda w: w.update(shape=[3, 10**6, 10**6])), "entries"),
    "a name of a person": (with_words(lambda w: w.update(client="Jane Doe")), "name anybody"),
    "a form unknown": (with_words(lambda w: w.update(form="weights")), "expected form"),
    "NaN": (with_numbers(float("nan")), "NaN or infinity in the update at 'weight'"),
    "infinity": (with_numbers(float("inf")), "NaN or infinity"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_clear_sentence_and_little_memory(name, tmp_path):
    data, said = HOSTILE[name]
    file = tmp_path / "hostile.safetensors"
    file.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(REFUSED, match=re.escape(said)) as caught:
            sp.capture.load(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert str(file) in message
    assert "\n" not in message
    assert len(message) < 500
    assert peak < 4_000_000 + 20 * len(data)
    assert not hasattr(sp, "exploded")


def test_a_file_larger_than_allowed_is_not_even_read(tmp_path):
    file = tmp_path / "sparse.safetensors"
    with file.open("wb") as sparse:
        sparse.truncate(10 * 2**30)
    with pytest.raises(UnreadableFile, match="got 10737418240"):
        sp.capture.load(file)


def test_what_is_no_file_is_said_to_be_missing(tmp_path):
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(DataNotFound, match="no capture at"):
            sp.capture.load(path)


def test_a_huge_header_is_refused_before_it_is_parsed(tmp_path):
    text = b'{"a": "' + b"x" * (17 * 2**20) + b'"}'
    with pytest.raises(UnreadableFile, match="a header of"):
        sp.capture.parse(joined(text, b""))


def test_a_header_whose_length_looks_like_a_pickle_is_read():
    header, tensors = split(small())
    text = json.dumps(header).encode()
    padded = joined(text.ljust(-(-len(text) // 256) * 256 + 0x80), tensors)
    while padded[:2] != b"\x80\x05":
        text += b" " * 256
        padded = joined(text.ljust(-(-len(text) // 256) * 256 + 0x80), tensors)
    assert sp.capture.parse(padded).form == "difference"


def mutated(data, draw):
    """One of the ways in which bytes go wrong, or are made to."""
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        place = draw.randrange(len(data) or 1)
        match draw.randrange(7):
            case 0:
                data[place : place + 1] = bytes([draw.randrange(256)])
            case 1:
                del data[place:]
            case 2:
                data[place:place] = draw.randbytes(draw.randrange(1, 9))
            case 3:
                del data[place : place + draw.randrange(1, 9)]
            case 4:
                data[:8] = draw.randrange(2 ** draw.choice((4, 10, 12, 40, 64))).to_bytes(
                    8, "little"
                )
            case 5:
                numbers = [m.span() for m in re.finditer(rb"\d+", data)]
                if numbers:
                    begin, end = draw.choice(numbers)
                    value = draw.choice((0, 1, 3, 8, 2**31, 2**63, 2**64, -1, 10**30))
                    data[begin:end] = str(value).encode()
            case 6:
                words = (b"F32", b"BF16", b"update", b"parameters", b"shape", b"null", b"[]", b"{}")
                old = draw.choice(words)
                at = data.find(old, place)
                if at >= 0:
                    data[at : at + len(old)] = draw.choice(words)
    return bytes(data)


def test_no_mutation_of_a_file_does_anything_but_parse_or_say_why_not():
    """Every mutation keeps to two outcomes, and those that parse hold numbers that can be used."""
    draw, original = random.Random(9), small()
    outcomes = {True: 0, False: 0}
    for _ in range(MUTATIONS):
        data = mutated(original, draw)
        try:
            capture = sp.capture.parse(data)
        except REFUSED:
            outcomes[False] += 1
            continue
        outcomes[True] += 1
        held = [*capture.update.values(), *capture.parameters.values(), *capture.buffers.values()]
        assert sum(t.numel() * t.element_size() for t in held) <= len(data)
        assert all(bool(torch.isfinite(t).all()) for t in held)
    assert min(outcomes.values()) > MUTATIONS / 50, outcomes
