"""Other machines than this one: what a target is known to have, and code for x86-64 with fewer instructions."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
from anima import lax, numpy as jnp
from anima.compiler import driver
from anima.compiler.machine import native
from anima.compiler.machine.target import target_of
from anima.core.jaxpr import ClosedJaxpr
from anima.runtime.executable import compile_program
from tests.compiler import results
from tests.compiler.stages import lowered
from tests.op_records import ELEMENTWISE, Record

BF16 = ml_dtypes.bfloat16
X86 = "x86_64-unknown-linux-gnu"
HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
# On this machine, machines with less: the least that x86-64 has, and AVX2 without F16C.
TARGETS = [pytest.param("x86-64", "", id="sse2"), pytest.param("x86-64", "+avx2,+fma", id="avx2")]
on_x86 = pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="code for x86-64")


@pytest.mark.parametrize("triple, features, lanes, registers", [
    (X86, "", 16, 16), (X86, "+avx2,-avx512f", 32, 16), (X86, "+avx512f,+avx512dq,+avx512bw,+avx512vl", 64, 32),
    (X86, "+avx512f", 16, 16), ("i686-pc-windows-msvc", "+sse2", 16, 16), ("aarch64-unknown-linux-gnu", "", 16, 32),
    ("aarch64-unknown-linux-gnu", "+neon", 16, 32), ("arm64-apple-darwin", "", 16, 32),
])
def test_registers_are_the_architectures(triple: str, features: str, lanes: int, registers: int) -> None:
    target = target_of(triple, "", features)
    assert (target.vector_bytes, target.registers) == (lanes, registers)


def on(cpu: str, features: str, fun: Callable[..., Any], *args: np.ndarray) -> np.ndarray:
    """The function's result from code for a target."""
    host = native.host()
    if "avx2" in features and not host.has("avx2"):
        pytest.skip("this machine has no AVX2")
    target = target_of(host.triple, cpu, features)
    stages = lowered(fun, *args)
    [result] = stages.jaxpr.out_avals
    [out] = compile_program(stages.loops, [result.shape], target)(args)
    return out


def bits(x: np.ndarray) -> np.ndarray:
    return np.asarray(x).view(f"u{x.dtype.itemsize}")


def hard(dtype: Any) -> np.ndarray:
    """Numbers of a format about every half: itself, the midpoint to the next, and the nearest on both sides of each."""
    finite = np.unique(HALVES[np.isfinite(HALVES)].astype(dtype))
    middle = np.concatenate([finite, finite[:-1] / 2 + finite[1:] / 2, dtype([65520, -65520, 65536, 1e30])])
    special = dtype([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 2.0**-24, 2.0**-25, 2.0**-26, -(2.0**-25)])
    tiny = np.finfo(dtype).smallest_subnormal
    around = [np.nextafter(middle, dtype(s)) for s in (np.inf, -np.inf)]
    return np.concatenate([middle, *around, special, [tiny, -tiny, np.finfo(dtype).max]]).astype(dtype)


@on_x86
@pytest.mark.parametrize("cpu, features", TARGETS)
@pytest.mark.parametrize("extra", [0, 1])
def test_every_half_is_widened_as_the_instruction_does_it(cpu: str, features: str, extra: int) -> None:
    x = HALVES[: HALVES.size - extra]
    got = on(cpu, features, lambda x: lax.convert_element_type(x, np.float32), x)
    want = bits(x.astype(np.float32)) | np.where(np.isnan(x), 0x400000, 0).astype(np.uint32)  # quiet
    assert (bits(got) == want).all()


def odd(x: np.ndarray) -> np.ndarray:
    """As float32, where what is not exact is truncated and has an odd last bit: the next rounding is the only one."""
    near = x.astype(np.float32)
    back = near.astype(x.dtype)
    return (near.view(np.uint32) - (np.abs(back) > np.abs(x)) | ((back != x) & ~np.isnan(x))).view(np.float32)


@on_x86
@pytest.mark.usefixtures("x64")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("cpu, features", TARGETS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("small", [np.float16, BF16])
def test_small_floats_are_rounded_once(cpu: str, features: str, dtype: Any, small: Any) -> None:
    x = hard(dtype)
    got = on(cpu, features, lambda x: lax.convert_element_type(x, small), x)
    want = odd(x).astype(BF16) if small is BF16 else x.astype(small)
    nan = np.isnan(x)
    assert (np.isnan(got) == nan).all()
    assert (bits(got)[~nan] == bits(want)[~nan]).all()


@on_x86
@pytest.mark.parametrize("cpu, features", TARGETS)
def test_nans_keep_their_payload_as_with_the_instruction(cpu: str, features: str) -> None:
    patterns = np.concatenate([0x7F800001 + np.arange(0, 1 << 23, 4097), [0x7FFFFFFF, 0x7F802000]])
    x = np.concatenate([patterns, patterns | 1 << 31]).astype(np.uint32).view(np.float32)
    got = bits(on(cpu, features, lambda x: lax.convert_element_type(x, np.float16), x)).astype(np.uint32)
    assert (got == bits(x) >> 16 & 0x8000 | 0x7E00 | bits(x) >> 13 & 0x1FF).all()


@on_x86
@pytest.mark.parametrize("cpu, features", TARGETS)
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32])
@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 17, 33])
def test_programs_give_what_they_do_on_this_machine(cpu: str, features: str, dtype: Any, n: int) -> None:
    def f(x: Any) -> Any:
        y = jnp.exp(x) * x - jnp.tanh(x[::-1]) + lax.lgamma(jnp.abs(x) + 1)
        return jnp.where(y > 0, y, jnp.sort(x)).astype(dtype)

    x = np.linspace(-3, 3, n).astype(dtype)
    host = native.host()
    want = on(host.cpu, host.features, f, x)
    assert (bits(on(cpu, features, f, x)) == bits(want)).all()


def small(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Whole numbers, whose sums are the same in any order."""
    values = np.random.default_rng(sum(shape)).integers(-3, 4, shape)
    return (values + 1j * values[::-1]).astype(dtype) if np.dtype(dtype).kind == "c" else values.astype(dtype)


def reductions(x: Any) -> Any:
    parts = (x.sum(0), x.sum(1), x.sum()[None], jnp.prod(x[:3], 0), jnp.cumsum(x, 0)[-1], jnp.cumsum(x, 1)[:, 0])
    return jnp.concatenate(parts)


def orders(x: Any) -> Any:
    parts = (jnp.sort(x, 1), jnp.argsort(x, 1), lax.cummax(x, 1), x.max(0)[None], jnp.argmin(x, 0)[None])
    return jnp.concatenate([p.astype(x.dtype) for p in parts])


def moves(x: Any) -> Any:
    taken = x[jnp.array([1, 0, -1, 9]) + x[0, 0].astype(int) * 0]
    put = x.at[jnp.array([0, 1, 0])].add(x[:1]).at[-1, 1:].set(x[0, 0])
    return jnp.concatenate([taken, put, x[::-1, ::-1], jnp.roll(x, 2, 1), jnp.where(x == x[0], x, x + x)])


def whole(x: Any) -> Any:
    return jnp.concatenate([x // 2, x % 3, x * x - 1, abs(x), -x, jnp.clip(x, 0, 2), (x > 0).astype(x.dtype), x ^ 5,
                            x << 1, x >> 1, x & 3, lax.population_count(x), lax.clz(x)])


def rounded(x: Any) -> Any:
    y = x / 2
    return jnp.concatenate([jnp.floor(y), jnp.ceil(y), jnp.round(y), jnp.sign(y), jnp.sqrt(abs(x)), jnp.trunc(y), y % 3,
                            jnp.maximum(y, 0), jnp.isnan(x / x[0]).astype(x.dtype), jnp.nextafter(y, x), 2 ** x])


def products(x: Any) -> Any:
    return jnp.concatenate([(x @ x.T).ravel(), (x.T @ x).ravel(), x @ x[0], x[:, 0] @ x])


OPERATIONS = [(reductions, ("int8", "int32", "float32", "float64", "complex64", "float16")),
              (orders, ("int8", "uint16", "float32", "float64", "float16")),
              (moves, ("uint8", "int16", "int32", "float64", "complex128", "float16")),
              (whole, ("int8", "uint8", "int16", "int32", "uint32", "int64")),
              (rounded, ("float32", "float64", "float16")), (products, ("float32", "float64", "int32", "complex64"))]


@on_x86
@pytest.mark.usefixtures("x64")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("cpu, features", TARGETS)
@pytest.mark.parametrize("fun, dtype", [(fun, dtype) for fun, kinds in OPERATIONS for dtype in kinds])
def test_operations_give_what_they_do_eagerly(cpu: str, features: str, fun: Callable[..., Any], dtype: str) -> None:
    x = small(4, 19, dtype=dtype)
    with anima.disable_jit():
        want = np.asarray(fun(jnp.asarray(x)))
    np.testing.assert_array_equal(on(cpu, features, fun, x), want)


# ---------------------------------------------------------------- machines that this one is not

ELF_MACHINE = {"x86_64": 62, "aarch64": 183}
OTHERS = {name: target_of(*target) for name, target in {
    "AVX2": ("x86_64-unknown-linux-gnu", "haswell", "+avx2,+fma,+f16c"),
    "NEON": ("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon"),
}.items()}
SAMPLE = list(results.PROGRAMS)[::16]


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("program", SAMPLE)
def test_object_code_for_another_cpu(program: str, name: str) -> None:
    fun, args = results.PROGRAMS[program]
    check_object(anima.make_jaxpr(fun)(*anima.device_put(args)), name)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("record", [pytest.param(r, id=r.name) for r in ELEMENTWISE])
def test_scalar_functions_for_another_cpu(record: Record) -> None:
    """No function knows the instructions of one architecture alone."""
    def all_of_them(*args: Any) -> list[Any]:
        given = iter(args)
        return [record.primitive.bind(*(next(given) for _ in case.args), **case.params_for(dtype))
                for dtype, case in chosen]

    rng = np.random.default_rng(1)
    chosen = [(dtype, case) for dtype in record.dtypes if not dtype.startswith("float8") for case in record.cases[:1]
              if case.only is None or dtype in case.only]
    args = [a.draw(dtype, rng) for dtype, case in chosen for a in case.args]
    check_object(anima.make_jaxpr(all_of_them)(*args), "NEON")


def check_object(closed: ClosedJaxpr, name: str) -> None:
    """Every text of a program makes an object file for the machine."""
    target = OTHERS[name]
    texts = driver.texts(closed, target).texts
    for text in texts:
        made = native.compile_object(text, target=target)
        assert made[:4] == b"\x7fELF" and made[18] == ELF_MACHINE[target.triple.partition("-")[0]]
