"""Damaged bytes: an error, or a program that is right; nothing runs, nothing hangs, nothing large is made."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Callable

import pytest

import anima
from anima import export as ex
from anima.core.check import check_jaxpr
from anima.export.exported import MAGIC, VERSION
from anima.export.format import FormatError, Reader, Writer, sealed
from anima.ops import composite
from tests.export.programs import CASES

HEAD = struct.calcsize("<8sIQ32s")
MANY = 1000


def blobs() -> list[bytes]:
    names = ("products", "indexing", "while", "loop", "random", "linalg", "convolution", "mixed", "fft", "folds")
    return [ex.export(anima.jit(CASES[n][0]))(*CASES[n][1]).serialize(
        vjp_order=int(n in ("while", "loop"))) for n in names]


def flip(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)):]


def swap(rng: random.Random, data: bytearray) -> None:
    size = rng.randrange(1, 1 + len(data) // 4)
    a, b = sorted(rng.randrange(len(data) - size) for _ in range(2))
    data[a:a + size], data[b:b + size] = data[b:b + size], data[a:a + size]


def inflate(rng: random.Random, data: bytearray) -> None:
    place = rng.randrange(len(data))
    data[place:place + 1] = bytes([255] * rng.randrange(1, 10) + [rng.randrange(128)])


def insert(rng: random.Random, data: bytearray) -> None:
    place = rng.randrange(len(data))
    data[place:place] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))


def replace(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 127))


DAMAGES = (flip, truncate, swap, inflate, insert, replace)


def test_damage_is_seen() -> None:
    rng, originals = random.Random(0), blobs()
    for k in range(MANY):
        data = bytearray(rng.choice(originals))
        before = bytes(data)
        DAMAGES[k % len(DAMAGES)](rng, data)
        if bytes(data) != before:
            with pytest.raises(FormatError):
                ex.deserialize(bytes(data))


def test_damage_under_a_right_checksum_makes_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composite, "eval_numpy", None)  # what runs a program fails, and not by a FormatError
    rng, originals = random.Random(1), blobs()
    slowest, errors = 0.0, 0
    tracemalloc.start()
    try:
        for k in range(MANY):
            data = bytearray(rng.choice(originals)[HEAD:])
            DAMAGES[k % len(DAMAGES)](rng, data)
            start = time.process_time()
            try:
                found: ex.Exported | None = ex.deserialize(sealed(MAGIC, VERSION, bytes(data)))
            except FormatError:
                errors, found = errors + 1, None
            while found is not None:
                check_jaxpr(found.jaxpr)
                found = found.vjp() if found.has_vjp() else None
            slowest = max(slowest, time.process_time() - start)
        largest = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert slowest < 5.0 and largest < 100e6 and errors > MANY // 2


@pytest.mark.parametrize("damage,message", [
    (lambda b: b"", "are not an exported program"),
    (lambda b: b"pickle" + b, "are not an exported program"),
    (lambda b: b[:8] + struct.pack("<I", VERSION + 1) + b[12:], f"version {VERSION + 1} of the format; this"),
    (lambda b: b[:8] + struct.pack("<I", 0) + b[12:], "version 0 of the format"),
    (lambda b: b[:-1], "incomplete"),
    (lambda b: b + b"!", "incomplete"),
    (lambda b: b[:-1] + bytes([b[-1] ^ 1]), "checksum"),
], ids=["empty", "other", "later", "zero", "short", "long", "changed"])
def test_envelopes(damage: Callable[[bytes], bytes], message: str) -> None:
    blob = ex.export(anima.jit(lambda x: x))(1.0).serialize()
    with pytest.raises(ValueError, match=message) as info:
        ex.deserialize(damage(blob))
    assert isinstance(info.value, ex.FormatError)
    ex.deserialize(bytearray(blob))


def test_programs_that_would_be_endless_are_refused() -> None:
    """Each of 40 programs calls the one before twice."""
    f = anima.jit(lambda x: x + 1.0)
    for _ in range(40):
        f = anima.jit(lambda x, f=f: f(f(x)))
    with pytest.raises(FormatError, match="too long"):
        ex.deserialize(ex.export(f)(1.0).serialize())


@pytest.mark.parametrize("value", [0, 1, -1, 127, 128, -129, 2**62, -2**63, 2**63 - 1])
def test_integers(value: int) -> None:
    w = Writer()
    w.integer(value)
    assert Reader(memoryview(w.bytes())).integer() == value


def test_integers_have_64_bits() -> None:
    with pytest.raises(NotImplementedError, match="64 bits"):
        Writer().integer(2**63)
    with pytest.raises(FormatError, match="too large"):
        Reader(memoryview(b"\xff" * 9 + b"\x02")).natural()
