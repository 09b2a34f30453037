"""Damaged bytes: an error, or a program that is right; nothing runs, nothing hangs, nothing large is made."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import export as ex, lax
from anima.core.avals import ShapedArray
from anima.core.check import check_jaxpr
from anima.core.dtypes import float0
from anima.core.format import FormatError, Reader, Writer, sealed
from anima.core.jaxpr import Var
from anima.errors import JaxprTypeError
from anima.export import trees
from anima.export.calls import check_call
from anima.export.exported import MAGIC, VERSION
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
                found: ex.Exported | None = ex.deserialize(sealed(MAGIC, 1, bytes(data)))
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


# ---------------------------------------------------------------- written wrong, not damaged

@pytest.mark.parametrize("value", [0, 1, 127, 128, 2**14 - 1, 2**14, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**66,
                                   2**70 - 1, 2**70])
def test_natural_numbers_have_64_bits(value: int) -> None:
    w = Writer()
    w.natural(value)
    r = Reader(memoryview(w.bytes()))
    if value < 2**64:
        assert r.natural() == value
        r.end()
    else:
        with pytest.raises(FormatError, match="too large"):
            r.natural()


def tree_bytes(kind: int, keys: list[Any] | None, children: int) -> Reader:
    """A node as it is written, whose children are leaves."""
    w = Writer()
    w.natural(kind)
    if keys is not None:
        w.natural(len(keys))
        for key in keys:
            number = [str, int, bool].index(type(key))
            w.natural(number)
            (w.text, w.integer, w.flag)[number](key)
    w.natural(children)
    for _ in range(children):
        w.natural(0)
    return Reader(memoryview(w.bytes()))


@pytest.mark.parametrize("kind", [4, 5])
@pytest.mark.parametrize("keys, children, good", [
    (["a", "b"], 2, True), ([3, -1], 2, True), ([], 0, True), (["a", "a"], 2, False), (["a"], 2, False),
    (["a", "b"], 1, False), ([1, True], 2, False), (["a", "b", "a"], 2, False)], ids=str)
def test_dicts_have_a_child_for_each_key(kind: int, keys: list[Any], children: int, good: bool) -> None:
    reader = tree_bytes(kind, keys, children)
    if good:
        assert trees.read_tree(reader).num_leaves == children
    else:
        with pytest.raises(FormatError, match="child for each key"):
            trees.read_tree(reader)


@pytest.mark.parametrize("children", [0, 1, 3])
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_none_has_no_children(kind: int, children: int) -> None:
    if kind == 1 and children:
        with pytest.raises(FormatError, match="None has children"):
            trees.read_tree(tree_bytes(kind, None, children))
    else:
        assert trees.read_tree(tree_bytes(kind, None, children)).num_leaves == children


@pytest.mark.parametrize("side", ["in_avals", "out_avals"])
@pytest.mark.parametrize("change", [{"shape": (4,)}, {"shape": ()}, {"dtype": np.dtype("int32")},
                                    {"dtype": np.dtype("float16")}, {"dtype": float0}], ids=str)
def test_types_that_are_not_those_of_the_program(side: str, change: dict[str, Any]) -> None:
    exported = ex.export(anima.jit(lambda x, y: (x + 1, y)))(np.ones(3, "f4"), np.ones(3, "f4"))
    first, second = getattr(exported, side)
    setattr(exported, side, (first.update(**change), second))
    with pytest.raises(FormatError, match="are not those of its program"):
        ex.deserialize(exported.serialize())


@pytest.mark.parametrize("value", [2, 3, 128, 255])
def test_bools_are_zeros_and_ones(value: int) -> None:
    mask = np.arange(37) % 3 == 0
    blob = ex.export(anima.jit(lambda x: jnp.where(mask, x, 0)))(np.ones(37, "f4")).serialize()
    content = bytearray(blob[HEAD:])
    assert ex.deserialize(sealed(MAGIC, 1, bytes(content))).call(np.ones(37, "f4")).sum() == mask.sum()
    content[bytes(content).index(mask.tobytes()) + 5] = value
    with pytest.raises(FormatError, match="bool"):
        ex.deserialize(sealed(MAGIC, 1, bytes(content)))


@pytest.mark.parametrize("wide", [False, True])
def test_programs_are_read_and_derived_under_their_own_options(wide: bool) -> None:
    """Whatever the options of the process that reads them."""
    with anima.enable_x64(wide):
        fun = anima.jit(lambda x: jnp.sum(jnp.sin(x) * jnp.argsort(x)) * 2.5)
        exported = ex.export(fun)(jnp.ones(3))
    with anima.enable_x64(not wide):
        given = [exported, ex.deserialize(exported.serialize(vjp_order=1))]
        derived = [e.vjp() for e in given]
    for e, d in zip(given, derived, strict=True):
        want = "float64" if wide else "float32"
        assert {a.dtype.name for a in (*e.in_avals, *e.out_avals, *d.in_avals, *d.out_avals)} == {want}
        assert {v.aval.dtype.name for q in e.jaxpr.eqns for v in q.outvars} <= {want, "int64" if wide else "int32"}
        with anima.enable_x64(wide):
            assert float(e.call(jnp.arange(3.0))) == float(fun(jnp.arange(3.0)))


@pytest.mark.parametrize("index, good", [("int32[]", True), ("bool[]", True), ("int32[2]", False), ("int64[]", False),
                                         ("float32[]", False), ("bool[1]", False)])
def test_what_chooses_a_branch_is_one_number(index: str, good: bool) -> None:
    (eqn,) = anima.make_jaxpr(lambda i, x: lax.switch(i, [jnp.sin, jnp.cos], x))(0, 1.0).eqns[-1:]
    dtype, _, shape = index.rstrip("]").partition("[")
    wrong = eqn.replace(invars=[Var(ShapedArray(tuple(map(int, shape.split(","))) if shape else (), np.dtype(dtype))),
                                *eqn.invars[1:]])
    assert eqn.primitive.name == "cond"
    if good:
        check_call(wrong)
    else:
        with pytest.raises(JaxprTypeError, match="chooses a branch"):
            check_call(wrong)


def _loop() -> Any:
    """The equation of a loop with a constant, two carries and an input of four steps."""
    w = jnp.ones(2)

    def step(c: Any, x: Any) -> Any:
        return (c[0] + x * w.sum(), c[1] + 1), c[0]

    (eqn,) = anima.make_jaxpr(lambda c, d, xs: lax.scan(step, (c, d), xs))(1.0, 1, jnp.ones(4)).eqns[-1:]
    assert eqn.primitive.name == "scan"
    return eqn


@pytest.mark.parametrize("change, text", [
    ({}, None), ({"unroll": 2}, None), ({"length": -1}, "A loop has -1 steps"), ({"length": 5}, "A loop has 5 steps"),
    ({"unroll": 0}, "steps, not those of its operands"), ({"num_consts": -1}, "have no parts of"),
    ({"num_carry": 9}, "have no parts of"), ({"num_carry": -1}, "have no parts of"),
    ({"num_carry": 1}, "not those of its operands|are of types")])
def test_loops_that_are_none(change: dict[str, Any], text: str | None) -> None:
    eqn = _loop()
    wrong = eqn.replace(params={**eqn.params, **change})
    if text is None:
        check_call(wrong)
    else:
        with pytest.raises(JaxprTypeError, match=text):
            check_call(wrong)


def test_loops_over_others_than_tapes() -> None:
    program = anima.make_jaxpr(anima.grad(lambda x: lax.while_loop(lambda c: c < 100.0, lambda c: c * c + 1.0, x)))(1.0)
    made, eqn = program.eqns
    assert (made.primitive.name, eqn.primitive.name) == ("tape_while", "tape_scan")
    check_call(made)
    check_call(eqn)
    first, values, steps = eqn.invars
    number = Var(ShapedArray((), np.dtype("float32")))
    for invars, length, text in (
            ([first, values, number], (False, True), "given others than tapes"),
            ([first, values, steps], (False,), "given others than tapes"),
            ([first, values, steps], (False, False), "does not know its length"),
            ([first, values, steps], (True, True), "does not know its length"),
            ([first, steps, values], (False, True), "does not know its length"),
            ([number, steps, values], (True, False), "The operands of a loop over tapes are of types"),
            ([Var(ShapedArray((2,), np.dtype("float32"))), values, steps], (False, True), "operands of a loop over")):
        with pytest.raises(JaxprTypeError, match=text):
            check_call(eqn.replace(invars=invars, params={**eqn.params, "length": length}))


def test_small_numbers_that_are_none() -> None:
    """A number of four bits that does not fit into them is no number of a file."""
    small = np.array([1, -3, 5, 7, -8], np.int8)
    table = jnp.asarray(small).astype("int4")
    blob = ex.export(anima.jit(lambda x: x * table.astype("float32")))(np.ones(5, "f4")).serialize()
    content = bytearray(blob[HEAD:])
    np.testing.assert_array_equal(ex.deserialize(sealed(MAGIC, 1, bytes(content))).call(np.ones(5, "f4")), small)
    place = bytes(content).index(small.tobytes())
    for value in (8, 100, 247):
        content[place + 2] = value
        with pytest.raises(FormatError, match="a number is no int4"):
            ex.deserialize(sealed(MAGIC, 1, bytes(content)))
