"""Floats of 8 and 4 bits, integers of 4, 2 and 1, in compiled code: every conversion, operations on every number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.core import dtypes

FLOATS = [d.name for d in dtypes.SMALL_FLOATS]
INTEGERS = [d.name for d in (*dtypes.SMALL_SIGNED, *dtypes.SMALL_UNSIGNED)]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def every(name: str) -> np.ndarray:
    """All numbers of a type."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    if name in FLOATS:
        return np.arange(1 << dtypes.itemsize_bits(dtype), dtype=np.uint8).view(dtype)
    info = ml_dtypes.iinfo(dtype)
    return np.arange(int(info.min), int(info.max) + 1).astype(dtype)


def compiled(x: Any, dtype: str) -> np.ndarray:
    return np.asarray(anima.jit(lambda v: lax.convert_element_type(v, dtype))(x))


def converted(x: np.ndarray, name: str) -> np.ndarray:
    """As by ml_dtypes, of which 0.6 takes what is above the least power of two for the next one."""
    if name == "float8_e8m0fnu":
        x = np.where((x > 2.0**-127) & (x < 1.5 * 2.0**-127), np.float32(2.0**-127), x)
    return x.astype(every(name).dtype)


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal numbers, with their signs; NaN is NaN."""
    assert got.dtype == want.dtype
    a, b = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(np.signbit(a[~np.isnan(b)]), np.signbit(b[~np.isnan(b)]))


@pytest.mark.parametrize("name", FLOATS)
def test_conversions_of_floats(name: str) -> None:
    """To f32, exactly; from it at every number, halfway between two, next to that, and where ranges end."""
    values = every(name).astype(np.float32)
    same(compiled(every(name), "float32"), values)
    finite = np.sort(values[np.isfinite(values)])
    halves = (finite[1:] / 2 + finite[:-1] / 2).astype(np.float32)
    rng = np.random.default_rng(0)
    wide = (rng.normal(size=2000) * 10.0 ** rng.uniform(-40, 38, 2000)).astype(np.float32)
    x = np.concatenate([values, halves, np.nextafter(halves, np.float32(np.inf)), wide, 2 * finite[-5:],
                        np.nextafter(halves, np.float32(-np.inf)), np.float32([0, -0.0, np.inf, -np.inf, np.nan])])
    want = converted(x, name)
    same(compiled(x, name), want)
    for other in ("float16", "bfloat16"):
        y = x.astype(np.float16 if other == "float16" else ml_dtypes.bfloat16)
        same(compiled(y, name), converted(y.astype(np.float32), name))
    same(compiled(every(name), "int32"), np.asarray(lax.convert_element_type(every(name), "int32")))
    same(compiled(np.arange(-300, 300), name), np.arange(-300, 300).astype(np.float32).astype(want.dtype))


@pytest.mark.parametrize("name", INTEGERS)
def test_conversions_of_integers(name: str) -> None:
    for other in ("float32", "int32", "int8", "uint16", "bool", "bfloat16"):
        same(compiled(every(name), other), np.asarray(lax.convert_element_type(every(name), other)))
    for x in (np.arange(-40, 40, dtype=np.int8), np.arange(70000, dtype=np.int32), np.arange(40, dtype=np.uint16),
              np.float32([-100, -9, -8.5, -2, -1.5, -0.5, 0, 0.5, 1.5, 7, 8, 15.5, 16, 100, np.nan, np.inf, -np.inf])):
        same(compiled(x, name), np.asarray(lax.convert_element_type(x, name)))


ON_FLOATS: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x, y: (x + y, x - y, x * y, x / y, -x, jnp.abs(x), jnp.sign(x), jnp.floor(x)),
    "functions": lambda x, y: (jnp.exp(x), jnp.sin(x), jnp.sqrt(x)),
    "comparisons": lambda x, y: (x < y, x == y, jnp.isnan(x), jnp.maximum(x, y), jnp.where(x > y, x, y)),
    "sums": lambda x, y: (jnp.nansum(x), jnp.nanmax(x), jnp.argmax(x), lax.cumsum(jnp.nan_to_num(x))),
    "products": lambda x, y: lax.dot(jnp.nan_to_num(x) / 8, jnp.nan_to_num(y) / 8),
    "places": lambda x, y: (x[jnp.array([3, 1])], x.at[jnp.array([1, 1, 3])].add(y[:3]), jnp.pad(x, 2), x[::-1],
                            jnp.full(3, 2.5, x.dtype), lax.sort(x)),
    "loops": lambda x, y: lax.fori_loop(0, 3, lambda i, c: c * y, x)}

ON_INTEGERS: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x, y: (x + y, x - y, x * y, -x, lax.div(x, y), lax.rem(x, y), lax.sign(x)),
    "bits": lambda x, y: (x & y, x ^ y, x | y, ~x, lax.shift_left(x, y), lax.population_count(x), lax.clz(x)),
    "comparisons": lambda x, y: (x < y, x == y, jnp.maximum(x, y), jnp.where(x > y, x, y), jnp.full(3, -1, x.dtype)),
    "sums": lambda x, y: (lax.reduce_sum(x, (0,)), lax.reduce_prod(x, (0,)), x.max(), x.min(), lax.cumsum(x),
                          lax.reduce_and(x, (0,)), jnp.argmax(x)),
    "products": lambda x, y: lax.dot(x, y),
    "places": lambda x, y: (x[::-1], x.at[1].add(y[0]), lax.sort(x), jnp.arange(100)[x], jnp.pad(x, 2))}


def check(f: Callable[..., Any], x: Any, y: Any) -> None:
    got, want = (anima.tree.leaves(g(jnp.asarray(x), jnp.asarray(y))) for g in (anima.jit(f), f))
    for a, b in zip(got, want, strict=True):
        same(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("f", ON_FLOATS.values(), ids=ON_FLOATS)
@pytest.mark.parametrize("name", [n for n in FLOATS if n != "float8_e8m0fnu"])
def test_operations_on_floats(name: str, f: Callable[..., Any]) -> None:
    check(f, every(name), np.roll(every(name), 7))


@pytest.mark.parametrize("f", ON_INTEGERS.values(), ids=ON_INTEGERS)
@pytest.mark.parametrize("name", INTEGERS)
def test_operations_on_integers(name: str, f: Callable[..., Any]) -> None:
    x, y = (v.ravel().astype(every(name).dtype) for v in np.meshgrid(*[every(name).astype(np.int32)] * 2))
    check(f, x, y)


@pytest.mark.parametrize("function", [lambda x: jnp.nextafter(x, x), lambda x: lax.reduce_precision(x, 3, 2)])
def test_what_is_not_there_says_so(function: Callable[..., Any]) -> None:
    with pytest.raises(NotImplementedError, match="f8_e5m2"):
        anima.jit(function)(jnp.ones(3, "float8_e5m2"))
