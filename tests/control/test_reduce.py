"""`lax.reduce` and `lax.reduce_window` with users' functions, against loops in Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

RNG = np.random.default_rng(0)


def folded(f: Callable[..., Any], x: np.ndarray, init: Any, axes: tuple[int, ...]) -> np.ndarray:
    """One element after the other, in row-major order."""
    moved = np.moveaxis(x, axes, range(len(axes)))
    rows = moved.reshape(math.prod(moved.shape[: len(axes)]), *moved.shape[len(axes):])
    out = np.full(rows.shape[1:], init, x.dtype)
    for row in rows:
        out = f(out, row)
    return out


def windows(f: Callable[..., Any], x: np.ndarray, init: Any, size: Any, stride: Any, pads: Any) -> np.ndarray:
    """Windows that leave out what is padding."""
    shape = [(n + lo + hi - w) // s + 1 for n, w, s, (lo, hi) in zip(x.shape, size, stride, pads, strict=True)]
    out = np.zeros(shape, x.dtype)
    for i in np.ndindex(*shape):
        total = init
        for k in np.ndindex(*size):
            at = tuple(a * s + b - lo for a, b, s, (lo, _) in zip(i, k, stride, pads, strict=True))
            if all(0 <= a < n for a, n in zip(at, x.shape, strict=True)):
                total = f(total, x[at])
        out[i] = total
    return out


def horner(a: Any, x: Any) -> Any:
    """Neither associative nor commutative."""
    return a * 0.5 + x


def extreme(a: Any, b: Any) -> Any:
    """The largest value and its place."""
    first = a[0] >= b[0]
    return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])


def agrees(fun: Callable[..., Any], want: Any, *args: Any, rtol: float = 1e-5) -> None:
    """Eager and compiled results against what is wanted."""
    for name, version in (("eager", fun), ("compiled", anima.jit(fun))):
        np.testing.assert_allclose(version(*args), want, rtol=rtol, atol=1e-6, err_msg=name)


def primitives(fun: Any, *args: Any) -> list[str]:
    return [e.primitive.name for e in anima.make_jaxpr(fun)(*args).eqns]


# ---------------------------------------------------------------- reduce


@pytest.mark.parametrize("operation, init, dtype, name", [
    (lax.add, 0.0, np.float32, "reduce_sum"), (lax.mul, 1, np.int32, "reduce_prod"),
    (lax.max, -np.inf, np.float32, "reduce_max"), (lax.min, 2**31 - 1, np.int32, "reduce_min"),
    (lax.max, False, np.bool_, "reduce_max"), (lax.bitwise_and, -1, np.int32, "reduce_and"),
    (lax.bitwise_and, True, np.bool_, "reduce_and"), (lax.bitwise_or, 0, np.int32, "reduce_or"),
    (lax.bitwise_xor, 0, np.int32, "reduce_xor"), (lax.add, 1.0, np.float32, "reduce"),
    (lax.max, 0.0, np.float32, "reduce"), (lambda a, b: a + b, 0.0, np.float32, "reduce"),
    (jnp.add, 0.0, np.float32, "reduce")])
def test_known_operations_have_primitives(operation: Any, init: Any, dtype: Any, name: str) -> None:
    assert primitives(lambda x: lax.reduce(x, init, operation, (0,)), np.ones((2, 3), dtype)) == [name]


EXACT = {lax.add: np.add, lax.mul: np.multiply, lax.max: np.maximum, lax.min: np.minimum,
         lax.bitwise_and: np.bitwise_and, lax.bitwise_or: np.bitwise_or, lax.bitwise_xor: np.bitwise_xor}


@pytest.mark.parametrize("operation", EXACT, ids=lambda f: f.name if hasattr(f, "name") else f.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.bool_], ids=lambda d: d.__name__)
def test_every_initial_value(operation: Any, dtype: Any) -> None:
    """Those that leave the others alone, those that do not, and the ends of what there is."""
    if operation in {np.float32: (lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor), np.bool_: (lax.add, lax.mul)}.get(
            dtype, ()):
        return  # not for such numbers
    x = np.array([[1, 0, 3], [2, 5, 0]]).astype(dtype)
    if dtype is np.float32:
        values = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, *([] if operation is lax.mul else
                                                                            [np.finfo(dtype).max, np.finfo(dtype).min])]
    elif dtype is np.bool_:
        values = [False, True]
    else:
        values = [0, 1, 4, np.iinfo(dtype).min, np.iinfo(dtype).max, *([-1] if dtype is np.int32 else [])]
    for value in values:
        init = dtype(value)
        with np.errstate(all="ignore"):
            want = folded(EXACT[operation], x, init, (1,))
            total = folded(EXACT[operation], x, init, (0, 1))
        agrees(lambda x, init=init: lax.reduce(x, init, operation, (1,)), want, x)
        agrees(lambda x, init=init: lax.reduce(x, init, operation, (0, 1)), total, x)
        agrees(lambda x, init=init: lax.reduce_window(x, init, operation, (1, 3), (1, 1), "VALID")[:, 0], want, x)
        agrees(lambda x, init=init: lax.reduce(x[:0], init, operation, (0,)), np.full(3, init), x)


def test_the_jaxpr_holds_the_computation() -> None:
    jaxpr = anima.make_jaxpr(lambda x: lax.reduce(x, 1.0, horner, (0,)))(np.ones((2, 3), np.float32))
    (eqn,) = jaxpr.eqns
    assert eqn.primitive is lax.reduce_p and eqn.params["dimensions"] == (0,)
    assert [e.primitive.name for e in eqn.params["jaxpr"].eqns] == ["mul", "add"]


@pytest.mark.parametrize("shape, axes", [
    ((5,), (0,)), ((2, 3), (0,)), ((2, 3), (1,)), ((3, 4), (0, 1)), ((3, 20, 4), (1,)), ((3, 20, 4), (0, 2)),
    ((70, 3), (0,)), ((3, 70), (1,)), ((2, 0, 3), (1,)), ((2, 0, 3), (0,))])
def test_elements_come_in_order(shape: Any, axes: Any) -> None:
    x = RNG.normal(size=shape).astype(np.float32)
    agrees(lambda x: lax.reduce(x, 2.0, horner, axes), folded(horner, x, 2, axes), x)
    agrees(lambda x: lax.reduce(x, 2.0, lambda a, b: a + b, axes), folded(np.add, x, 2, axes), x)
    agrees(lambda x: lax.reduce(x, 0.5, lambda a, b: lax.max(b, a), axes), folded(np.maximum, x, 0.5, axes), x)


def test_negative_dimensions() -> None:
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    agrees(lambda x: lax.reduce(x, 0.0, horner, (-1,)), folded(horner, x, 0, (1,)), x)


@pytest.mark.parametrize("n", [4, 100])
def test_several_operands(n: int) -> None:
    x = RNG.normal(size=(3, n)).astype(np.float32)
    places = np.broadcast_to(np.arange(n, dtype=np.int32), (3, n))
    for version in (lax.reduce, anima.jit(lax.reduce, static_argnums=(2, 3))):
        value, place = version((x, places), (-jnp.inf, 0), extreme, (1,))
        np.testing.assert_array_equal(value, x.max(1))
        np.testing.assert_array_equal(place, x.argmax(1))
    tree = lax.reduce({"a": x, "b": x}, {"a": 0.0, "b": 1.0}, lambda s, t: {
        "a": s["a"] + t["b"], "b": s["b"] * 0.5 + t["a"]}, (1,))
    np.testing.assert_allclose(tree["a"], x.sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tree["b"], folded(horner, x, 1, (1,)), rtol=1e-4, atol=1e-5)


def test_dtypes() -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]])
    for dtype in (np.int8, np.uint16, np.float16, ml_dtypes.bfloat16, np.complex64):
        given = x.astype(dtype)
        want = np.asarray(x[0] * 2 + x[1], dtype)
        for version in (lax.reduce, anima.jit(lax.reduce, static_argnums=(2, 3))):
            got = version(given, 0, lambda a, b: a * 2 + b, (0,))
            assert got.dtype == dtype
            np.testing.assert_array_equal(np.asarray(got), want)
    parity = lax.reduce(x > 2, False, lambda a, b: a != b, (0, 1))
    assert parity.dtype == np.bool_ and not parity
    assert np.isnan(lax.reduce(np.array([np.nan, 1], np.float32), -np.inf, lambda a, b: lax.max(a, b), (0,)))


def test_computations_with_calls_and_branches_inside() -> None:
    x = RNG.normal(size=(30, 4)).astype(np.float32)

    def step(a: Any, b: Any) -> Any:
        return anima.jit(lambda a, b: lax.cond(b > 0, lambda: a * 0.5 + b, lambda: a - b))(a, b)

    want = folded(lambda a, b: np.where(b > 0, a * 0.5 + b, a - b), x, 0, (0,))
    agrees(lambda x: lax.reduce(x, 0.0, step, (0,)), want, x, rtol=1e-4)


def test_values_that_computations_close_over() -> None:
    x = RNG.normal(size=(30, 4)).astype(np.float32)
    table = np.array([0.5, 0.25], np.float32)
    agrees(lambda x: lax.reduce(x, 0.0, lambda a, b: a * jnp.asarray(table)[0] + b, (0,)), folded(horner, x, 0, (0,)),
           x, rtol=1e-4)

    def of_factor(c: Any) -> Any:
        return lax.reduce(x, 0.0, lambda a, b: a * c + b, (0,)).sum()

    agrees(of_factor, folded(horner, x, 0, (0,)).sum(), np.float32(0.5), rtol=1e-4)
    slope = (of_factor(np.float32(0.51)) - of_factor(np.float32(0.49))) / 0.02
    agrees(anima.grad(of_factor), slope, np.float32(0.5), rtol=2e-2)
    agrees(anima.vmap(of_factor), [of_factor(c) for c in table], table, rtol=1e-4)


def test_long_reductions_of_plain_arrays_are_compiled() -> None:
    x = np.linspace(0, 1, 200_000, dtype=np.float32)
    np.testing.assert_allclose(lax.reduce(x, 0.0, lambda a, b: a * 0.5 + b, (0,)), 2.0, rtol=1e-4)


# ---------------------------------------------------------------- derivatives and vmap


SMOOTH = [("horner", horner), ("sum", lambda a, b: a + b), ("product", lambda a, b: a * b),
          ("mixed", lambda a, b: a * jnp.sin(b) + b * b)]


def check_derivatives(fun: Callable[..., Any], *args: Any) -> None:
    """Gradients to order 2 against differences, and compiled."""
    with anima.enable_x64(True):
        args = tuple(np.asarray(a, np.float64) for a in args)
        ts = [RNG.normal(size=a.shape) for a in args]
        h = 1e-5

        def loss(*xs: Any) -> Any:
            return (fun(*xs) ** 2).sum()

        def gradient(*xs: Any) -> Any:
            return sum((g * t).sum() for g, t in zip(anima.grad(loss, argnums=tuple(range(len(xs))))(*xs), ts,
                                                     strict=True))

        for f in (loss, gradient):
            ahead, behind = (f(*(a + d * t for a, t in zip(args, ts, strict=True))) for d in (h, -h))
            slope = anima.jvp(f, args, tuple(ts))[1]
            np.testing.assert_allclose(slope, (ahead - behind) / (2 * h), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(anima.jit(lambda *xs, f=f: anima.jvp(f, xs, tuple(ts))[1])(*args), slope,
                                       rtol=1e-9)
        np.testing.assert_allclose(gradient(*args), anima.jvp(loss, args, tuple(ts))[1], rtol=1e-9)


@pytest.mark.parametrize("name, f", SMOOTH)
@pytest.mark.parametrize("shape, axes", [((2, 3), (1,)), ((12, 2), (0,)), ((2, 3, 2), (0, 2))])
def test_derivatives_by_elements_and_initial_values(name: str, f: Any, shape: Any, axes: Any) -> None:
    check_derivatives(lambda x, c: lax.reduce(x, c, f, axes), RNG.normal(size=shape), np.array(0.7))


def test_derivatives_of_several_operands() -> None:
    x = RNG.permutation(12).reshape(3, 4).astype(np.float32)
    places = np.broadcast_to(np.arange(4, dtype=np.int32), (3, 4))

    def largest(x: Any) -> Any:
        return lax.reduce((x, places), (-jnp.inf, 0), extreme, (1,))[0].sum()

    agrees(anima.grad(largest), x == x.max(1, keepdims=True), x)


def test_vmap() -> None:
    xs, inits = RNG.normal(size=(3, 4, 5)).astype(np.float32), np.arange(3, dtype=np.float32)

    def fun(x: Any, init: Any) -> Any:
        return lax.reduce(x, init, horner, (0,))

    for axes in ((0, None), (1, None), (2, None), (None, 0), (0, 0)):
        x = xs if axes[0] in (0, None) else np.moveaxis(xs, 0, axes[0])
        args = x if axes[0] is not None else xs[0], inits if axes[1] is not None else np.float32(2)
        want = [folded(horner, xs[k] if axes[0] is not None else xs[0], args[1] if axes[1] is None else inits[k], (0,))
                for k in range(3)]
        agrees(anima.vmap(fun, in_axes=axes), want, *args)
    assert primitives(anima.vmap(lambda x: fun(x, 2.0)), xs) == ["reduce"]


# ---------------------------------------------------------------- windows


WINDOWS = [((2,), (1,), ((0, 0),)), ((3,), (2,), ((1, 2),)), ((40,), (1,), ((3, 30),))]


@pytest.mark.parametrize("size, stride, pads", WINDOWS)
def test_windows_leave_out_padding(size: Any, stride: Any, pads: Any) -> None:
    x = RNG.normal(size=(50,)).astype(np.float32)
    for f, of_numpy in ((horner, horner), (lambda a, b: a + b, np.add), (lambda a, b: a * b, np.multiply),
                        (lambda a, b: lax.min(a, b), np.minimum)):
        agrees(lambda x, f=f: lax.reduce_window(x, 1.0, f, size, stride, pads),
               windows(of_numpy, x, 1, size, stride, pads), x, rtol=2e-4)


def test_windows_of_two_dimensions() -> None:
    x = RNG.normal(size=(9, 10)).astype(np.float32)
    for size, stride, pads in (((2, 3), (2, 1), ((1, 0), (2, 2))), ((7, 6), (1, 2), ((3, 3), (2, 3)))):
        agrees(lambda x, s=(size, stride, pads): lax.reduce_window(x, 1.0, horner, *s),
               windows(horner, x, 1, size, stride, pads), x, rtol=1e-4)


def test_windows_of_bits() -> None:
    x = RNG.integers(0, 8, 20).astype(np.int32)
    for f, of_numpy, init in ((lax.bitwise_and, np.bitwise_and, -1), (lax.bitwise_or, np.bitwise_or, 0),
                              (lax.bitwise_xor, np.bitwise_xor, 0), (lax.bitwise_xor, np.bitwise_xor, 5)):
        agrees(lambda x, f=f, i=init: lax.reduce_window(x, i, f, (3,), (1,), "SAME"),
               windows(of_numpy, x, init, (3,), (1,), ((1, 1),)), x)


def test_windows_of_several_operands() -> None:
    x = RNG.normal(size=30).astype(np.float32)
    for size in (4, 29):
        def fun(x: Any, size: int = size) -> Any:
            places = jnp.arange(30, dtype=np.int32)
            return lax.reduce_window((x, places), (-jnp.inf, -1), extreme, (size,))

        for version in (fun, anima.jit(fun)):
            value, place = version(x)
            np.testing.assert_array_equal(place, [k + np.argmax(x[k: k + size]) for k in range(31 - size)])
            np.testing.assert_array_equal(value, x[np.asarray(place)])


@pytest.mark.parametrize("name, f", SMOOTH)
@pytest.mark.parametrize("size", [3, 35])
def test_derivatives_of_windows(name: str, f: Any, size: int) -> None:
    check_derivatives(lambda x, c: lax.reduce_window(x, c, f, (size,), (2,), ((1, size),)),
                      0.5 * RNG.normal(size=9) + 1, np.array(0.7))


def test_vmap_of_windows() -> None:
    xs, inits = RNG.normal(size=(3, 8)).astype(np.float32), np.arange(3, dtype=np.float32)

    def fun(x: Any, init: Any) -> Any:
        return lax.reduce_window(x, init, horner, (3,), (1,), "SAME")

    for axes in ((0, None), (1, None), (None, 0), (0, 0)):
        args = (xs.T if axes[0] == 1 else xs if axes[0] == 0 else xs[0], np.float32(2) if axes[1] is None else inits)
        want = [windows(horner, xs[0 if axes[0] is None else k], args[1] if axes[1] is None else inits[k], (3,), (1,),
                        ((1, 1),)) for k in range(3)]
        agrees(anima.vmap(fun, in_axes=axes), want, *args)
    assert primitives(anima.vmap(lambda x: fun(x, 2.0)), xs) == ["reduce_window"]


def test_windows_close_over_tracers() -> None:
    x = RNG.normal(size=12).astype(np.float32)

    def fun(c: Any) -> Any:
        return lax.reduce_window(x, 1.0, lambda a, b: a * c + b, (3,))

    agrees(fun, windows(horner, x, 1, (3,), (1,), ((0, 0),)), np.float32(0.5))


# ---------------------------------------------------------------- mistakes


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize("call, error, text", [
    (lambda: lax.reduce((X, X.T), (0.0, 0.0), lambda a, b: a, (0,)), ValueError, "operands must have equal shapes"),
    (lambda: lax.reduce(X, np.int32(0), horner, (0,)), TypeError, "dtypes should match corresponding initial value"),
    (lambda: lax.reduce(X, 1j, horner, (0,)), TypeError, "dtypes should match corresponding initial value"),
    (lambda: lax.reduce(X, 0.0, lambda a, b: (a * b).astype(int), (0,)), TypeError, "output has type int32\\[\\]"),
    (lambda: lax.reduce(X, 0.0, lambda a, b: jnp.ones(3) * a, (0,)), TypeError, "output has type float32\\[3\\]"),
    (lambda: lax.reduce((X, X), 0.0, lambda a, b: a, (0,)), ValueError, "same tree structure as init_values"),
    (lambda: lax.reduce((X, X), (0.0, 0.0), lambda a, b: a[0], (0,)), ValueError, "structure of the operands"),
    (lambda: lax.reduce(X, np.zeros(3, np.float32), horner, (0,)), ValueError, "initial values to be scalars"),
    (lambda: lax.reduce(X, 0.0, horner, (5,)), ValueError, "axis 5 is out of bounds"),
    (lambda: lax.reduce(X, 0.0, lax.add, (5,)), ValueError, "axis 5 is out of bounds"),
    (lambda: lax.reduce(X, 0.0, horner, (0, 0)), ValueError, "duplicate"),
    (lambda: lax.reduce((), (), horner, ()), ValueError, "at least one operand"),
    (lambda: lax.reduce_window(X, np.int32(0), horner, (1, 1)), TypeError, "dtypes should match"),
    (lambda: lax.reduce_window((X, X.T), (0.0, 0.0), lambda a, b: a, (1, 1)), ValueError, "equal shapes"),
    (lambda: lax.reduce_window(X, np.zeros(3, np.float32), horner, (1, 1)), TypeError, "to be scalars"),
    (lambda: lax.reduce(X, 0.0, horner, (0, -X.ndim)), ValueError, "duplicate value in 'axis'")])
def test_mistakes(call: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        call()
    with pytest.raises(error, match=text):
        anima.jit(call)()


@pytest.mark.parametrize("run", [lambda f: f, anima.jit, anima.vmap])
def test_over_no_dimensions_nothing_is_combined(run: Callable[..., Any]) -> None:
    x, y = jnp.arange(6.0).reshape(2, 3), jnp.arange(6).reshape(2, 3)
    for f in (lax.add, lambda a, b: a * b + 1.0):
        np.testing.assert_array_equal(run(lambda x, f=f: lax.reduce(x, 2.0, f, ()))(x), x)
        np.testing.assert_array_equal(anima.grad(lambda x, f=f: run(lambda x: lax.reduce(x, 2.0, f, ()))(x).sum())(x),
                                      np.ones((2, 3)))
    both = run(lambda x, y: lax.reduce((x, y), (2.0, 1), lambda a, b: (a[0] * b[0], a[1] + b[1]), ()))(x, y)
    np.testing.assert_array_equal(both[0], x)
    np.testing.assert_array_equal(both[1], y)


@pytest.mark.parametrize("run", [lambda f: f, anima.jit])
@pytest.mark.parametrize("shape, window", [((3,), (5,)), ((3, 4), (5, 2)), ((0, 4), (1, 2))])
def test_windows_that_have_no_room(run: Callable[..., Any], shape: tuple[int, ...], window: tuple[int, ...]) -> None:
    got = run(lambda x: lax.reduce_window(x, 0.5, horner, window))(np.ones(shape, np.float32))
    assert got.shape == tuple(max(n - k + 1, 0) for n, k in zip(shape, window, strict=True)) and got.size == 0


@pytest.mark.parametrize("run", [lambda f: f, anima.jit])
def test_random_keys_are_folded(run: Callable[..., Any]) -> None:
    def mixed(a: Any, b: Any) -> Any:
        return anima.random.fold_in(b, anima.random.bits(a))

    keys, start = anima.random.split(anima.random.key(0), 3), anima.random.key(1)
    whole, pairs = run(lambda k: (lax.reduce(k, start, mixed, (0,)), lax.reduce_window(k, start, mixed, (2,))))(keys)
    for got, want in ((whole, keys), (pairs[0], keys[:2]), (pairs[1], keys[1:])):
        expected = start
        for key in want:
            expected = mixed(expected, key)
        np.testing.assert_array_equal(anima.random.key_data(got), anima.random.key_data(expected))
