"""Checks that `experimental.checkify` makes of its own: indices, divisions, NaNs; no false alarms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
import anima.scipy.special as special
from anima import lax
from anima.experimental import checkify

F32 = jnp.float32
ROW, GRID = jnp.arange(4.0), jnp.arange(12.0).reshape(3, 4)


def told(f: Callable[..., Any], *args: Any, errors: Any = checkify.all_checks) -> str | None:
    """The first line of what is told of a function, which must be the same compiled."""
    error, out = checkify.checkify(f, errors=errors)(*args)
    compiled, other = anima.jit(checkify.checkify(f, errors=errors))(*args)
    for a, b in zip(anima.tree.leaves(out), anima.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    texts = [error.get(), compiled.get()]
    assert all(text is None or "\n  at test_automatic_checks.py:" in text for text in texts)
    first, second = [text and text.split("\n")[0] for text in texts]
    assert first == second
    return first


def outside(shape: tuple[int, ...], index: int, axis: int) -> str:
    return (f"out-of-bounds indexing for array of shape {shape}: index {index} is out of bounds for axis {axis} with "
            f"size {shape[axis]}.")


# ---------------------------------------------------------------- indices

INDEXED: list[tuple[str, Callable[..., Any], tuple[Any, ...], str | None]] = [
    ("inside", lambda x, i: x[i], (ROW, jnp.array([3, -4, 0])), None),
    ("scalar", lambda x, i: x[i], (ROW, jnp.int32(4)), outside((4,), 4, 0)),
    ("negative", lambda x, i: x[i], (ROW, jnp.int32(-5)), outside((4,), -1, 0)),
    ("array", lambda x, i: x[i], (ROW, jnp.array([[1, 2], [-9, 7]])), outside((4,), -5, 0)),
    ("known", lambda x: x[4], (ROW,), outside((4,), 4, 0)),
    ("known row", lambda x: x[-7], (GRID,), outside((3, 4), -4, 0)),
    ("known, two", lambda x: x[1, 9], (GRID,), outside((3, 4), 9, 1)),
    ("known and slice", lambda x: x[5, 1:3], (GRID,), outside((3, 4), 5, 0)),
    ("known array", lambda x: x[np.array([0, 8])], (ROW,), outside((4,), 8, 0)),
    ("two", lambda x, i, j: x[i, j], (GRID, jnp.array([0, 7]), jnp.array([9, 0])), outside((3, 4), 9, 1)),
    ("two, later", lambda x, i, j: x[i, j], (GRID, jnp.array([0, 7]), jnp.array([3, 9])), outside((3, 4), 7, 0)),
    ("two scalars", lambda x, i, j: x[i, j], (GRID, jnp.int32(2), jnp.int32(-6)), outside((3, 4), -2, 1)),
    ("two, inside", lambda x, i, j: x[i, j], (GRID, jnp.array([0, -1]), jnp.array([3, -4])), None),
    ("rows", lambda x, i: x[i], (GRID, jnp.array([2, 3])), outside((3, 4), 3, 0)),
    ("columns", lambda x, i: x[:, i], (GRID, jnp.array([2, 4])), outside((3, 4), 4, 1)),
    ("wide array, narrow index", lambda x, i: x[i], (jnp.ones(300), jnp.array([200, 255], jnp.uint8)), None),
    ("int8", lambda x, i: x[i], (jnp.ones(300), jnp.array([100, -128], jnp.int8)), None),
    *((f"{kind} of int8", lambda x, i: lax.gather(x, jnp.expand_dims(i, -1), lax.GatherDimensionNumbers((), (0,), (0,)),
                                                   (1,), mode="clip"),
       (jnp.ones(300), i), outside((300,), -100, 0)) for kind, i in (("gather", jnp.array([100, -100, -5], jnp.int8)),
                                                                     ("gather of one", jnp.int8(-100)))),
    *((f"{kind} of uint8", lambda x, i: lax.gather(x, jnp.expand_dims(i, -1), lax.GatherDimensionNumbers(
        (), (0,), (0,)), (1,), mode="clip"), (jnp.ones(256), i), None) for kind, i in (
            ("gather", jnp.array([100, 255], jnp.uint8)), ("gather of one", jnp.uint8(255)))),
    ("uint32", lambda x, i: x[i], (ROW, jnp.array([3, 4], jnp.uint32)), outside((4,), 4, 0)),
    ("none", lambda x, i: x[i], (ROW, jnp.zeros(0, jnp.int32)), None),
    ("set", lambda x, i: x.at[i].set(1), (ROW, jnp.int32(5)), outside((4,), 5, 0)),
    ("set known", lambda x: x.at[-6].set(1), (ROW,), outside((4,), -2, 0)),
    ("set inside", lambda x, i: x.at[i].set(1), (ROW, jnp.array([-4, 3])), None),
    ("add", lambda x, i: x.at[i].add(1), (ROW, jnp.array([[1, 2], [8, -9]])), outside((4,), 8, 0)),
    ("max rows", lambda x, i: x.at[i].max(1), (GRID, jnp.array([0, 3])), outside((3, 4), 3, 0)),
    ("get", lambda x, i: x.at[i].get(mode="fill"), (ROW, jnp.array([7])), outside((4,), 7, 0)),
    ("take", jnp.take, (ROW, jnp.array([0, 4])), outside((4,), 4, 0)),
    ("take_along_axis", lambda x, i: jnp.take_along_axis(x, i, 1), (GRID, jnp.array([[0], [5], [1]])),
     outside((3, 4), 5, 1)),
    ("slice", lambda x, i: lax.dynamic_slice(x, (i,), (2,)), (ROW, jnp.int32(3)), outside((4,), 3, 0)),
    ("slice, negative", lambda x, i: lax.dynamic_slice(x, (i,), (2,)), (ROW, jnp.int32(-6)), outside((4,), -2, 0)),
    ("slice inside", lambda x, i: lax.dynamic_slice(x, (i,), (2,)), (ROW, jnp.int32(-2)), None),
    ("slice known", lambda x: lax.dynamic_slice(x, (0, 9), (2, 1)), (GRID,), outside((3, 4), 9, 1)),
    ("update", lambda x, i: lax.dynamic_update_slice(x, jnp.ones((1, 2)), (0, i)), (GRID, jnp.int32(3)),
     outside((3, 4), 3, 1)),
    ("index in dim", lambda x, i: lax.dynamic_index_in_dim(x, i), (GRID, jnp.int32(3)), outside((3, 4), 3, 0)),
    ("lanes", anima.vmap(lambda x, i: x[i]), (GRID, jnp.array([0, 3, 8])), outside((3, 4), 8, 1)),
    ("slice of all", lambda x, i: lax.dynamic_slice(x, (i,), (4,)), (ROW, jnp.int32(1)), outside((4,), 1, 0)),
    ("lanes of slices", anima.vmap(lambda x, i: lax.dynamic_slice(x, (i,), (4,))), (GRID, jnp.array([0, 1, 2])),
     outside((3, 4), 1, 1)),
    ("lanes of slices inside", anima.vmap(lambda x, i: lax.dynamic_slice(x, (i,), (4,))), (GRID, jnp.array([0, -4, 0])),
     None),
    ("lanes of updates", anima.vmap(lambda x, i: lax.dynamic_update_slice(x, x, (i,))), (GRID, jnp.array([0, 0, 3])),
     outside((3, 4), 3, 1)),
    ("one of two axes", lambda x, i: x[i, i], (GRID, jnp.int32(3)), outside((3, 4), 3, 0)),
    ("the other axis", lambda x, i: x[i - 2, i], (GRID, jnp.int32(4)), outside((3, 4), 4, 1)),
    ("gradient", anima.grad(lambda x, i: x[i].sum()), (ROW, jnp.array([0, 8])), outside((4,), 8, 0)),
    ("loop", lambda x: lax.scan(lambda i, _: (i + 1, x[i]), 1, None, length=4), (ROW,), outside((4,), 4, 0)),
    ("float16", lambda x, i: x[i], (ROW.astype(jnp.float16), jnp.array([4])), outside((4,), 4, 0)),
]


FILLED = ("get", "take", "take_along_axis")  # with NaN, where there is nothing to read


@pytest.mark.parametrize("name,f,args,expected", INDEXED, ids=[c[0] for c in INDEXED])
def test_indices(name: str, f: Callable[..., Any], args: tuple[Any, ...], expected: str | None) -> None:
    found = told(f, *args)
    assert found == expected
    others = told(f, *args, errors=checkify.float_checks | checkify.user_checks)
    assert others == ("nan generated by primitive: gather." if name in FILLED else None)


def test_lanes_outside() -> None:
    error, _ = anima.vmap(checkify.checkify(lambda x, i: x[i], errors=checkify.index_checks))(
        GRID, jnp.array([1, 9, -6]))
    text = [line for line in str(error.get()).split("\n") if not line.startswith("  at ")]
    assert text == [f"at mapped index 1: {outside((4,), 9, 0)}", f"at mapped index 2: {outside((4,), -2, 0)}"]


# ---------------------------------------------------------------- division

@pytest.mark.parametrize("dtype", [jnp.int8, jnp.int32, jnp.uint16, jnp.float16, jnp.bfloat16, jnp.float32,
                                   jnp.complex64])
def test_division(dtype: Any) -> None:
    x, zero = jnp.ones(5, dtype), jnp.array([1, 2, 0, 1, 2], dtype)
    assert told(lax.div, x, zero, errors=checkify.div_checks) == "division by zero"
    assert told(lax.div, x, x, errors=checkify.all_checks) is None
    assert told(lambda x: lax.div(x, dtype(0)), x, errors=checkify.div_checks) == "division by zero"
    assert told(lambda x: lax.div(x, dtype(2)), x) is None
    assert told(lax.div, x, zero, errors=checkify.index_checks) is None


def test_zero_over_zero_is_a_division_first() -> None:
    assert told(lax.div, F32(0), F32(0)) == "division by zero"
    assert told(lax.div, F32(0), F32(0), errors=checkify.nan_checks) == "nan generated by primitive: div."


# ---------------------------------------------------------------- NaN

INF, NAN = F32(jnp.inf), F32(jnp.nan)
MADE: list[tuple[Callable[..., Any], tuple[Any, ...], str | None]] = [
    (jnp.log, (F32(-1),), "log"), (jnp.log, (NAN,), None), (jnp.log, (F32(0),), None),
    (jnp.sqrt, (jnp.array([1.0, -1.0]),), "sqrt"), (jnp.sin, (INF,), "sin"), (jnp.arccos, (F32(2),), "acos"),
    (lambda x, i: jnp.take(x, i), (jnp.array([NAN, 1.0]), jnp.int32(0)), None),
    (lambda x: x - x, (INF,), "sub"), (lambda x: x * 0, (INF,), "mul"),
    (lambda x, y: x ** y, (F32(-2), F32(0.5)), "pow"),
    (lambda x: jnp.log(x) + jnp.nan, (F32(1),), None), (lambda x: x + jnp.nan, (F32(1),), None),
    (lambda x: jnp.where(x > 0, jnp.log(x), 0.0), (F32(-1),), "log"),
    (lambda x: jnp.maximum(jnp.exp(x) - jnp.exp(2 * x), 1.0), (F32(1000),), "sub"),
    (lambda x: jnp.log(x), (jnp.array([jnp.nan, -1.0]),), "log"),
    (lambda x: jnp.log(x), (jnp.array([jnp.nan, 1.0]),), None),
    (jnp.sum, (jnp.array([jnp.inf, -jnp.inf]),), "reduce_sum"), (jnp.sum, (jnp.array([jnp.nan, 1.0]),), None),
    (lambda x: x @ x, (jnp.array([[jnp.inf, -jnp.inf], [1.0, 1.0]]),), "dot_general"),
    (jnp.linalg.cholesky, (-jnp.eye(2),), "cholesky"), (jnp.cumsum, (jnp.array([jnp.inf, -jnp.inf]),), "cumsum"),
    (lambda x: jnp.log(x) * 0, (jnp.complex64(0),), "mul"), (jnp.log, (jnp.bfloat16(-1),), "log"),
    (anima.grad(lambda x: jnp.sqrt(x) * x), (F32(0),), "mul"), (anima.grad(jnp.sqrt), (F32(-1),), "sqrt"),
    (lambda x: lax.scan(lambda s, _: (s - 1, jnp.log(s)), x, None, length=4), (F32(2.5),), "log"),
    (lambda x: lax.while_loop(lambda s: s > -2, lambda s: s - 1 + 0 * jnp.log(s), x), (F32(0.5),), "log"),
    (lambda x: lax.scan(lambda s, _: (s * s - s, None), x, None, length=9)[0], (F32(1e10),), "sub"),
    (lambda x: lax.scan(lambda s, _: (jnp.where(s > 0, jnp.log(s), 1.0), None), x, None, length=3)[0], (F32(-1),),
     "log"),
    (lambda x: lax.fori_loop(0, x.astype(int), lambda i, s: s * s - s, F32(1e10)), (F32(9),), "sub"),
    (lambda x: lax.scan(lambda s, _: (s + 1, s), x, None, length=3), (NAN,), None),
    (lambda x: anima.nn.softmax(x), (jnp.array([jnp.inf, 1.0]),), "sub"),
    (lambda x: jnp.real(jnp.log(x)), (F32(-1),), "log"), (lambda x: jnp.isnan(jnp.log(x)), (F32(-1),), "log"),
    (lambda x: jnp.log(x)[1:], (jnp.array([-1.0, 1.0]),), "log"), (lambda x: jnp.log(x) > 0, (F32(-1),), "log"),
    (lambda x: jnp.log(x) ** 0, (F32(-1),), "log"), (lambda x: jnp.log(x).astype(int), (F32(-1),), "log"),
    (lambda x: lax.custom_linear_solve(lambda y: y * x, x, lambda mv, b: b / x * jnp.log(x)), (F32(-1),),
     "custom_linear_solve"),
    (lambda x: lax.reduce(x, 0.0, lambda a, b: a + b * 0, (0,)), (jnp.array([jnp.inf, jnp.inf]),), "reduce"),
]


@pytest.mark.parametrize("number", range(len(MADE)))
def test_nan(number: int) -> None:
    f, args, primitive = MADE[number]
    expected = None if primitive is None else f"nan generated by primitive: {primitive}."
    assert told(f, *args, errors=checkify.nan_checks | checkify.user_checks) == expected
    assert told(f, *args, errors=checkify.index_checks) is None


ELEMENTWISE = ["sin", "cos", "tan", "exp", "log", "log1p", "sqrt", "rsqrt", "tanh", "asin", "acosh", "atanh", "lgamma",
               "digamma", "erf", "erf_inv", "logistic", "neg", "abs", "floor", "sign", "cbrt", "expm1", "sinh"]


@pytest.mark.parametrize("name", [*ELEMENTWISE, "add", "sub", "mul", "div", "pow", "max", "min", "atan2", "rem",
                                  "nextafter"])
def test_made_and_passed_on_as_numpy_says(name: str) -> None:
    """Against the operation itself on random and special numbers, one at a time."""
    rng = np.random.default_rng(0)
    numbers = np.array([0.0, -0.0, 1, -1, 2, -2, 0.5, np.inf, -np.inf, np.nan, 1e30, *rng.normal(size=4)], np.float32)
    f = getattr(lax, name)
    grid = [numbers] if name in ELEMENTWISE else [g.ravel() for g in np.meshgrid(numbers, numbers)]
    out = np.asarray(f(*map(jnp.asarray, grid)))
    made = np.isnan(out) & ~np.any(np.isnan(grid), axis=0)
    checked = anima.vmap(checkify.checkify(f, errors=checkify.nan_checks))
    for run in (checked, anima.jit(checked)):
        error, _ = run(*map(jnp.asarray, grid))
        failed = np.zeros(out.shape, bool) if error.get() is None else np.asarray(error._pred)
        np.testing.assert_array_equal(failed, made)


# ---------------------------------------------------------------- no false alarms

X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32))
V, I = X[0], jnp.array([3, 1, 2, 2, 0])
B = V > 0
QUIET: list[Callable[[], Any]] = [
    lambda: jnp.unique(I, size=8, return_inverse=True, return_counts=True), lambda: jnp.nonzero(B, size=5),
    lambda: jnp.nonzero(B, size=1), lambda: jnp.argwhere(B, size=7), lambda: jnp.setdiff1d(I, I[:1], size=5),
    lambda: jnp.union1d(I, I, size=12), lambda: jnp.intersect1d(I, I, size=9), lambda: jnp.bincount(I, length=2),
    lambda: jnp.histogram(V, bins=3), lambda: jnp.histogram2d(V, V, bins=3), lambda: jnp.digitize(V, V[:1]),
    lambda: jnp.interp(V * 10, jnp.arange(4.0), jnp.arange(4.0)), lambda: jnp.compress(B, V, size=5),
    lambda: jnp.repeat(V, I, total_repeat_length=12), lambda: jnp.place(V, B, V, inplace=False),
    lambda: jnp.extract(B, V, size=2), lambda: jnp.searchsorted(jnp.arange(3.0), V * 9), lambda: jnp.median(X),
    lambda: jnp.quantile(X, jnp.array([0.0, 0.3, 1.0])), lambda: jnp.roll(V, I[0]), lambda: jnp.sort(V)[::-1],
    lambda: jnp.sinc(jnp.zeros(3)), lambda: jnp.hypot(0 * V, 0 * V), lambda: jnp.logaddexp(V, -jnp.inf * jnp.abs(V)),
    lambda: special.xlogy(0 * V, 0 * V), lambda: anima.nn.log_softmax(V), lambda: anima.nn.softmax(V, where=B),
    lambda: anima.nn.silu(V * 100), lambda: anima.nn.softplus(V * 100), lambda: anima.nn.one_hot(I, 3),
    lambda: anima.nn.elu(V * 200), lambda: anima.nn.logsumexp(jnp.array([-jnp.inf, -jnp.inf])),
    lambda: anima.random.normal(anima.random.key(0), (4,)),
    lambda: anima.random.gamma(anima.random.key(0), jnp.ones(3)),
    lambda: anima.random.permutation(anima.random.key(0), V), lambda: anima.random.categorical(anima.random.key(0), X),
    lambda: jnp.nanmean(jnp.array([1.0, jnp.nan])), lambda: jnp.arctan2(0 * V, 0 * V), lambda: jnp.var(X, axis=0),
    lambda: anima.ops.segment_max(V, I, 4), lambda: lax.associative_scan(jnp.add, V), lambda: lax.top_k(V, 2),
    lambda: anima.jacobian(jnp.sort)(V), lambda: jnp.linalg.solve(jnp.eye(3), jnp.ones(3)),
]


@pytest.mark.parametrize("number", range(len(QUIET)))
def test_quiet(number: int) -> None:
    error, out = checkify.checkify(QUIET[number], errors=checkify.all_checks)()
    assert error.get() is None
    for a, b in zip(anima.tree.leaves(out), anima.tree.leaves(QUIET[number]()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- random programs

class Failure(Exception):
    """What NumPy finds."""


class Random:
    """A program of gathers, divisions and logarithms in loops and branches, for NumPy and for Anima."""

    def __init__(self, seed: int):
        rng = np.random.default_rng(seed)
        self.ops = [self.make(rng, 2) for _ in range(rng.integers(2, 5))]
        self.x = rng.uniform(-1, 3, 6).astype(np.float32)

    def make(self, rng: Any, depth: int) -> tuple[Any, ...]:
        kind = rng.choice(["gather", "div", "log", "add", "check", *(["loop", "branch"] if depth else [])])
        if kind in ("loop", "branch"):
            return kind, int(rng.integers(1, 4)), [self.make(rng, depth - 1) for _ in range(rng.integers(1, 3))]
        return kind, int(rng.integers(0, 6)), float(rng.integers(-2, 3))

    def numpy(self, ops: Any, x: np.ndarray) -> np.ndarray:
        for kind, n, *rest in ops:
            if kind == "gather":
                place = int(np.floor(x[n] * 2)) + n
                place = place + 6 if place < 0 else place
                if not 0 <= place < 6:
                    raise Failure(outside((6,), place, 0))
                x = x + x[place] / 2
            elif kind == "div":
                below = np.floor(x[n])
                if below == 0:
                    raise Failure("division by zero")
                x = np.clip(x / below, -3, 3)
            elif kind == "log":
                if (x + rest[0] < 0).any():
                    raise Failure("nan generated by primitive: log.")
                x = np.clip(np.log(x + rest[0]), -3, 3)
            elif kind == "add":
                x = np.clip(x + rest[0], -3, 3)
            elif kind == "check":
                if not x[n] < 2.5:
                    raise Failure(f"{n}: not less (`check` failed)")
            elif kind == "branch":
                x = self.numpy(rest[0], x) if x[n] > 0 else x
            else:
                for _ in range(n):
                    x = self.numpy(rest[0], x)
        return x

    def anima(self, ops: Any, x: Any) -> Any:
        for kind, n, *rest in ops:
            if kind == "gather":
                x = x + x[jnp.floor(x[n] * 2).astype(int) + n] / 2
            elif kind == "div":
                x = jnp.clip(x / jnp.floor(x[n]), -3, 3)
            elif kind == "log":
                x = jnp.clip(jnp.log(x + rest[0]), -3, 3)
            elif kind == "add":
                x = jnp.clip(x + rest[0], -3, 3)
            elif kind == "check":
                checkify.check(x[n] < 2.5, "{n}: not less", n=jnp.int32(n))
            elif kind == "branch":
                x = lax.cond(x[n] > 0, lambda x, ops=rest[0]: self.anima(ops, x), lambda x: x, x)
            elif n == 2:
                x = lax.while_loop(lambda c: c[0] < 2, lambda c, ops=rest[0]: (c[0] + 1, self.anima(ops, c[1])),
                                   (0, x))[1]
            else:
                x = lax.fori_loop(0, n, lambda _, x, ops=rest[0]: self.anima(ops, x), x)
        return x


@pytest.mark.parametrize("seed", range(30))
def test_random_programs(seed: int) -> None:
    program = Random(seed)
    try:
        expected, out = None, program.numpy(program.ops, program.x)
    except Failure as failure:
        expected = str(failure)
    error, found = anima.jit(checkify.checkify(lambda x: program.anima(program.ops, x), errors=checkify.all_checks))(
        program.x)
    assert (None if error.get() is None else str(error.get()).split("\n")[0]) == expected
    if expected is None:
        np.testing.assert_allclose(found, out, rtol=1e-3, atol=1e-4)


def all_kinds(x: Any, i: Any) -> Any:
    checkify.check(x < 50, "too large: {}", x)
    return ROW[i] / (x - 3) + jnp.log(x)


@pytest.mark.parametrize("kinds, seen", [("user_checks", {"user"}), ("float_checks", {"nan", "div"}),
                                         ("div_checks", {"div"}), ("nan_checks", {"nan"}), ("index_checks", {"index"}),
                                         ("all_checks", {"user", "nan", "index", "div"})])
def test_errors_that_become_checks_again_are_of_their_kinds(kinds: str, seen: set[str]) -> None:
    def outer(x: Any, i: Any) -> Any:
        error, out = checkify.checkify(all_kinds, errors=checkify.all_checks)(x, i)
        checkify.check_error(error)
        return out

    for kind, x, i, text in (("user", 60, 0, "too large: 60.0 (`check` failed)"), ("index", 1, 7, outside((4,), 7, 0)),
                             ("nan", -1, 0, "nan generated by primitive: log."), ("div", 3, 1, "division by zero"),
                             ("none", 1, 3, "")):
        assert told(outer, F32(x), jnp.int32(i), errors=getattr(checkify, kinds)) == (text if kind in seen else None)


def rules_of_ones_own() -> dict[str, Callable[[Any], Any]]:
    """Twice and two thirds of x, with slopes of their own."""
    @anima.custom_jvp
    def forward(x: Any) -> Any:
        return x * 2

    @anima.custom_vjp
    def backward(x: Any) -> Any:
        return x * 2

    @anima.custom_batching.custom_vmap
    def mapped(x: Any) -> Any:
        return x * 2

    forward.defjvp(lambda primals, tangents: (forward(*primals), 5 * tangents[0]))
    backward.defvjp(lambda x: (backward(x), None), lambda _, ct: (7 * ct,))
    mapped.def_vmap(lambda size, batched, x: (x * 3, batched[0]))
    return {"custom_jvp": forward, "custom_vjp": backward, "custom_vmap": mapped}


@pytest.mark.parametrize("errors", [checkify.user_checks, checkify.index_checks, checkify.all_checks])
@pytest.mark.parametrize("name, slope, lanes", [("custom_jvp", 5, 2), ("custom_vjp", 7, 2), ("custom_vmap", 2, 3)])
def test_functions_with_rules_of_their_own_and_nothing_to_check(name: str, slope: int, lanes: int, errors: Any) -> None:
    """They stay what they are, whatever is checked beside them."""
    f = rules_of_ones_own()[name]

    def beside(x: Any) -> Any:
        checkify.check(x < 10, "large")
        return f(ROW[x.astype(int)])

    x = F32(2)
    for g, checked in ((anima.jit(f), False), (anima.jit(beside), True)):
        for run in (lambda h: h, anima.jit):
            error, out = run(checkify.checkify(g, errors=errors))(x)
            assert error.get() is None and float(out) == 4
        if not checked:
            assert float(anima.grad(lambda v, g=g: checkify.checkify(g, errors=errors)(v)[1])(x)) == slope
            assert float(checkify.checkify(anima.grad(g), errors=errors)(x)[1]) == slope
        xs = np.float32([1, 2])
        for mapped in (anima.vmap(checkify.checkify(g, errors=errors)),
                       checkify.checkify(anima.vmap(g), errors=errors)):
            np.testing.assert_array_equal(mapped(xs)[1], lanes * xs)


def test_within_programs_for_parts() -> None:
    zero, one = jnp.zeros(1), jnp.ones(1)
    mesh = anima.sharding.Mesh(np.array(anima.devices()[:1]), "x")
    cut = anima.sharding.PartitionSpec("x")
    mapped = [anima.pmap(lambda x, y: x / y),
              anima.shard_map(lambda x, y: x / y, mesh=mesh, in_specs=cut, out_specs=cut)]
    for f in mapped:
        assert told(f, one, zero) == "division by zero"
        assert told(f, one, one) is None
    assert "index 5 is out of bounds" in str(told(anima.pmap(lambda x: x[5]), jnp.ones((1, 2))))
