"""Products of bytes by the instructions that machines have for them: exact, whatever lies where."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler import driver
from anima.compiler.ir.interpret import run
from anima.compiler.ir.loops import Buffer, Call, Program, statements
from anima.compiler.machine import amx, native
from anima.compiler.machine.native import host
from anima.compiler.machine.target import Target, target_of
from anima.compiler.products import dots
from anima.runtime.executable import compile_program
from tests.compiler.fences import Fenced
from tests.compiler.stages import agree, closed, lowered

RNG = np.random.default_rng(0)
X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
WIDE = target_of(X86, "", "+avx2,+fma,+avx512f,+avx512dq,+avx512bw,+avx512vl,+avx512vnni")
VEX = target_of(X86, "", "+avx2,+fma,+avxvnni")
PLAIN = target_of(X86, "", "+avx2,+fma")
NEON = target_of(ARM, "", "+neon,+dotprod")
TYPES = [(x, y) for x in (np.int8, np.uint8) for y in (np.int8, np.uint8)]


def numbers(dtype: Any, *shape: int) -> np.ndarray:
    """Bytes, of which many are the largest and the smallest ones."""
    ends = np.iinfo(dtype)
    return RNG.choice([ends.min, ends.max, *RNG.integers(ends.min, ends.max + 1, 5)], shape).astype(dtype)


def dot(dims: Any = (((1,), (0,)), ((), ())), dtype: Any = np.int32) -> Any:
    return lambda x, y: lax.dot_general(x, y, dims, preferred_element_type=dtype)


def exactly(x: np.ndarray, y: np.ndarray, dtype: Any = np.int32) -> np.ndarray:
    return (x.astype(np.int64) @ y.astype(np.int64)).astype(dtype)


def kinds(fun: Any, *args: np.ndarray, target: Target) -> list[object]:
    return [s.args[0] for s in statements(*lowered(fun, *args, target=target).loops.body) if isinstance(s, Call)]


@pytest.mark.parametrize(("x", "y"), TYPES)
@pytest.mark.parametrize(("m", "k", "n"), [(2, 400, 33), (15, 16, 18), (16, 17, 17), (17, 63, 16), (29, 64, 15),
                                           (30, 65, 130), (13, 1027, 31), (3, 4101, 40), (100, 70, 300)])
def test_every_size_is_exact(m: int, k: int, n: int, x: Any, y: Any) -> None:
    a, b = numbers(x, m, k), numbers(y, k, n)
    np.testing.assert_array_equal(anima.jit(dot())(a, b), exactly(a, b))
    np.testing.assert_array_equal(anima.jit(dot((((1,), (1,)), ((), ()))))(a, np.ascontiguousarray(b.T)), exactly(a, b))
    np.testing.assert_array_equal(anima.jit(dot((((0,), (0,)), ((), ()))))(np.ascontiguousarray(a.T), b), exactly(a, b))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.float32])
def test_results_of_other_types(dtype: Any) -> None:
    a, b = numbers(np.int8, 20, 64), numbers(np.int8, 64, 33)
    np.testing.assert_array_equal(anima.jit(dot(dtype=dtype))(a, b), exactly(a, b, dtype))


def test_sums_wrap_around() -> None:
    a, b = np.full((2, 140_000), 255, np.uint8), np.full((140_000, 3), 255, np.uint8)
    np.testing.assert_array_equal(anima.jit(dot())(a, b), exactly(a, b))


@pytest.mark.parametrize("target", [WIDE, VEX, NEON], ids=["AVX-512 VNNI", "AVX-VNNI", "dotprod"])
@pytest.mark.parametrize(("x", "y"), TYPES)
def test_what_is_multiplied_is_what_the_machine_can(target: Target, x: Any, y: Any) -> None:
    a, b, c = numbers(x, 2, 13, 24), numbers(y, 2, 24, 20), numbers(y, 20, 5, 4, 3)
    batches, several = (((2,), (1,)), ((0,), (0,))), (((2, 0), (1, 2)), ((), ()))
    for fun, args in ((dot(batches), (a, b)), (dot(several), (numbers(x, 4, 9, 5), c)),
                      (dot(), (a[0][:, :19], b[0][:19]))):
        agree(fun, *args, target=target)
        [kind] = kinds(fun, *args, target=target)
        assert kind in dots.kinds(target)


@pytest.mark.parametrize(("target", "instruction"), [(WIDE, "vpdpbusd.512"), (VEX, "vpdpbusd.256"),
                                                     (NEON, "neon.sdot.v4i32.v16i8")])
def test_instructions(target: Target, instruction: str) -> None:
    emitted = driver.texts(closed(dot(), numbers(np.int8, 30, 64), numbers(np.int8, 64, 40)), target)
    assert any(instruction in text for text in emitted.texts)


def test_machines_without_them() -> None:
    a, b = numbers(np.int8, 30, 64), numbers(np.int8, 64, 40)
    assert not dots.kinds(PLAIN) and kinds(dot(), a, b, target=PLAIN) == ["f32"]
    agree(dot(), a, b, target=PLAIN)


@pytest.mark.skipif(not dots.kinds(host()), reason="this machine has no such instructions")
def test_the_number_of_threads_changes_nothing() -> None:
    a, b = numbers(np.int8, 300, 512), numbers(np.int8, 512, 400)
    assert kinds(dot(), a, b, target=host())
    np.testing.assert_array_equal(anima.jit(dot())(a, b), exactly(a, b))
    assert anima.jit(dot()).lower(a, b).compile().cost_analysis()["flops"] >= 2 * 300 * 512 * 400


TILED = target_of(X86, "", f"{WIDE.features},+amx-tile,+amx-int8")


@pytest.mark.parametrize(("x", "y"), TYPES)
@pytest.mark.parametrize("dims", [(((i,), (j,)), ((), ())) for i, j in ((1, 0), (1, 1), (0, 0))], ids=str)
@pytest.mark.parametrize(("m", "k", "n"), [(33, 64, 31), (17, 100, 40)])
def test_products_by_tiles(m: int, k: int, n: int, dims: Any, x: Any, y: Any) -> None:
    """Words and what they are padded with, as the loops say it: one product, of the very kind of its operands."""
    a, b = numbers(x, m, k), numbers(y, k, n)
    a, b = (np.ascontiguousarray(v if at == d else v.T) for v, at, d in ((a, 1, dims[0][0][0]), (b, 0, dims[0][1][0])))
    stages = agree(dot(dims), a, b, target=TILED)
    (call,) = [s for s in statements(*stages.loops.body) if isinstance(s, Call)]
    names = {np.int8: "i8", np.uint8: "u8"}
    assert call.args[0] == names[x] + names[y]
    assert call.args[1] == "N"
    assert call.args[5] == dots.TILE * -(-k // 64)


def test_batches_by_tiles() -> None:
    a, b = numbers(np.int8, 3, 20, 70), numbers(np.uint8, 3, 70, 33)
    agree(dot((((2,), (1,)), ((0,), (0,)))), a, b, target=TILED)
    np.testing.assert_array_equal(anima.jit(jnp.matmul)(a.astype(np.int8), b.astype(np.int8)),
                                  exactly(a.astype(np.int8), b.astype(np.int8), np.int8))


def test_without_tiles_where_the_system_does_not_lend_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is then one without them; programs of the other kind have other names in the cache."""
    monkeypatch.setattr(amx, "lent", lambda: False)
    assert not dots.has_tiles(native.host.__wrapped__())


BFLOATS = target_of(X86, "", f"{TILED.features},+amx-bf16")


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float32])
@pytest.mark.parametrize("dims", [(((i,), (j,)), ((), ())) for i, j in ((1, 0), (1, 1), (0, 0))], ids=str)
@pytest.mark.parametrize(("m", "k", "n"), [(33, 64, 32), (40, 50, 35)])
def test_bfloat16_by_tiles(m: int, k: int, n: int, dims: Any, dtype: Any) -> None:
    """Of numbers whose products and sums are exact."""
    a, b = (RNG.integers(-8, 8, shape).astype(jnp.bfloat16) for shape in ((m, k), (k, n)))
    want = (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
    a, b = (np.ascontiguousarray(v if at == d else v.T) for v, at, d in ((a, 1, dims[0][0][0]), (b, 0, dims[0][1][0])))
    (call,) = [s for s in statements(*agree(dot(dims, dtype), a, b, target=BFLOATS).loops.body) if isinstance(s, Call)]
    assert call.args[0] == "bf16"
    np.testing.assert_array_equal(anima.jit(dot(dims, dtype))(a, b), want)


FEW: list[tuple[Any, Any]] = [
    (jnp.bfloat16, None), (np.float16, np.float32), (np.int16, None), (np.int16, np.int32), (np.int8, None),
    (np.uint8, np.int32), (np.float32, np.float64), (np.bool_, None)]


@pytest.mark.parametrize(("dtype", "wanted"), FEW, ids=str)
@pytest.mark.parametrize("few", [1, 2, 3, 4, 5, 17])
@pytest.mark.parametrize(("k", "n"), [(1, 70), (64, 33), (300, 130), (17, 1)])
def test_few_rows_by_a_matrix_that_is_made_wider(k: int, n: int, few: int, dtype: Any, wanted: Any, x64: None) -> None:
    """From both sides, with each operand turned or not; of numbers whose products and sums are exact."""
    a, b = (RNG.integers(0, 4, shape).astype(dtype) for shape in ((few, k), (k, n)))
    kind = np.bool_ if dtype == np.bool_ else np.int64
    exact = a.astype(kind) @ b.astype(kind)
    ways = []  # operands, which dimensions are summed over, and what that gives: all in one program
    for i, j in ((1, 0), (1, 1), (0, 0), (0, 1)):
        x, y = (v if at == d else np.ascontiguousarray(v.T) for v, at, d in ((a, 1, i), (b, 0, j)))
        ways += [(x, y, (((i,), (j,)), ((), ())), exact), (y, x, (((j,), (i,)), ((), ())), exact.T)]
    all_found = anima.jit(lambda pairs: [lax.dot_general(x, y, numbers, preferred_element_type=wanted)
                                         for (x, y), (*_, numbers, _) in zip(pairs, ways, strict=True)])(
        [(x, y) for x, y, *_ in ways])
    for found, (*_, product) in zip(all_found, ways, strict=True):
        want = product.astype(wanted or dtype)
        assert found.dtype == want.dtype
        np.testing.assert_array_equal(np.asarray(found), want)
    both = lax.dot_general(jnp.stack([a, a[::-1]]), jnp.stack([b, b]), (((2,), (1,)), ((0,), (0,))))
    np.testing.assert_array_equal(np.asarray(both)[1], exact[::-1].astype(dtype))


def test_bfloat16_of_many_matrices_and_its_derivative() -> None:
    a, b = (RNG.normal(size=shape).astype(jnp.bfloat16) for shape in ((3, 70, 40), (3, 40, 90)))
    want = np.matmul(a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_allclose(anima.jit(jnp.matmul)(a, b).astype(np.float32), want, rtol=2**-7, atol=2**-7)
    slope = anima.jit(anima.grad(lambda a: (a @ b[0]).astype(np.float32).sum()))(a[0])
    want = np.broadcast_to(b[0].astype(np.float32).sum(1), a[0].shape)
    np.testing.assert_allclose(slope.astype(np.float32), want, rtol=2**-6, atol=2**-5)


def test_bfloat16_that_is_not_finite() -> None:
    a, b = np.ones((64, 64), jnp.bfloat16), np.ones((64, 64), jnp.bfloat16)
    a[3, 5], a[7, 9], b[1, 1] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        want = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(anima.jit(jnp.matmul)(a, b).astype(np.float32), want)


@pytest.mark.skipif(not dots.has_tiles(host()) or os.name != "posix", reason="this machine has no tiles")
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("transb", ["N", "T"])
def test_tiles_touch_nothing_outside_of_the_buffers(transb: str, at_end: bool) -> None:
    for m, n, words in ((1, 1, 16), (31, 33, 16), (32, 64, 32), (65, 31, 272), (100, 300, 48)):
        ldb = n if transb == "N" else words
        call = Call("gemm", ("i8i8", "N", transb, m, n, words, 1.0, "a", 0, words, "b", 0, ldb, 0.0, "c", 0, n,
                             1, 0, 0, 0))
        buffers = (Buffer("a", "i32", m * words, "input"), Buffer("b", "i32", n * words, "input"),
                   Buffer("c", "i32", m * n, "output"))
        program, fence = Program("product", buffers, (call,)), Fenced()
        plain = [RNG.integers(-2**31, 2**31, size, np.int32) for size in (m * words, n * words)]
        compiled = compile_program(program, shapes=[(m * n,)])
        found = compiled([fence.array(x, at_end) for x in plain])[0]
        np.testing.assert_array_equal(np.asarray(found), run(program, plain)[0])
