"""Windows: which primitive a call becomes, paddings, what extremes' derivatives follow, errors, long windows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.driver import lower
from anima.compiler.ir.loops import Load, walk
from anima.ops import elementwise as ew, window as win
from tests import op_records_window as records

X = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0], np.float32)


def sums(x: Any, window: Any, *args: Any, **options: Any) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, window, *args, **options)


def largest(x: Any, window: Any, *args: Any, **options: Any) -> Any:
    return lax.reduce_window(x, -np.inf, lax.max, window, *args, **options)


def primitives(fun: Any, *args: Any) -> list[str]:
    return [e.primitive.name for e in anima.make_jaxpr(fun)(*args).eqns]


# ---------------------------------------------------------------- which primitive


@pytest.mark.parametrize("operation, init, dtype, name", [
    (lax.add, 0.0, np.float32, "reduce_window_sum"), (lax.add, 0, np.int8, "reduce_window_sum"),
    (lax.max, -np.inf, np.float32, "reduce_window_max"), (lax.max, -128, np.int8, "reduce_window_max"),
    (lax.max, False, np.bool_, "reduce_window_max"), (lax.min, np.inf, np.float32, "reduce_window_min"),
    (lax.min, np.float32(np.inf), np.float32, "reduce_window_min"), (lax.min, 255, np.uint8, "reduce_window_min"),
    (lax.add, 1.0, np.float32, "reduce_window"), (lax.max, 0.0, np.float32, "reduce_window"),
    (lax.mul, 1.0, np.float32, "reduce_window"), (lax.bitwise_or, False, np.bool_, "reduce_window"),
    (lambda a, b: a + b, 0.0, np.float32, "reduce_window")])
def test_known_operations_have_primitives(operation: Any, init: Any, dtype: Any, name: str) -> None:
    x = np.ones(5, dtype)
    assert primitives(lambda x: lax.reduce_window(x, init, operation, (2,)), x) == [name]


def test_the_jaxpr_shows_where_windows_are() -> None:
    jaxpr = str(anima.make_jaxpr(lambda x: sums(x, (3,), (2,), "SAME"))(X))
    for part in ("reduce_window_sum[", "base_dilation=(1,)", "padding=((0, 1),)", "window_dilation=(1,)",
                 "window_dimensions=(3,)", "window_strides=(2,)"):
        assert part in jaxpr
    of_largest = anima.make_jaxpr(lambda x: anima.jvp(lambda x: largest(x, (3,)), (x,), (x,)))(X)
    assert [e.primitive.name for e in of_largest.eqns] == ["reduce_window_max", "select_and_gather_add"]
    assert of_largest.eqns[1].params["select_prim"] is lax.ge


def test_traced_initial_values_are_not_taken_for_neutral_ones() -> None:
    assert primitives(lambda x, z: lax.reduce_window(x, z, lax.add, (2,)), X, 0.0) == ["reduce_window"]


# ---------------------------------------------------------------- paddings and shapes


def test_paddings_of_elements_that_are_apart() -> None:
    """They are those of the elements as they are."""
    assert sums(X.reshape(4, 2), (2, 1), (2, 1), "SAME", base_dilation=(2, 3)).shape == (3, 4)
    for n, stride, apart in ((5, 2, 3), (8, 3, 2)):
        pads = win.padtype_to_pads((n,), (3,), (stride,), "SAME_LOWER")
        got = sums(X[:n], (3,), (stride,), "SAME_LOWER", base_dilation=(apart,))
        np.testing.assert_array_equal(got, sums(X[:n], (3,), (stride,), pads, base_dilation=(apart,)))


def test_paddings() -> None:
    np.testing.assert_array_equal(sums(X, (2,), (1,), "SAME"), [4, 5, 5, 6, 14, 11, 8, 6])
    np.testing.assert_array_equal(sums(X, (2,), (1,), "SAME_LOWER"), [3, 4, 5, 5, 6, 14, 11, 8])
    np.testing.assert_array_equal(sums(X, (2,)), [4, 5, 5, 6, 14, 11, 8])
    np.testing.assert_array_equal(sums(X, (3,), (2,), [(-1, -2)]), [6, 15])
    np.testing.assert_array_equal(sums(np.arange(8.0, dtype=np.float32), (3,), (2,), [(1, 2)], (2,), (3,)),
                                  [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(sums(X, (3,), padding="same", window_dilation=(3,)),
                                  sums(X, (3,), (1,), [(3, 3)], None, (3,)))
    assert lax.padtype_to_pads((8, 9), (3, 2), (2, 1), "SAME") == [(0, 1), (0, 1)]
    assert lax.padtype_to_pads((8, 9), (3, 2), (2, 1), "SAME_LOWER") == [(1, 0), (1, 0)]
    assert lax.padtype_to_pads((8, 9), (3, 2), (2, 1), "valid") == [(0, 0), (0, 0)]
    assert lax.reduce_window_shape_tuple((8, 9), (3, 2), (2, 1), ((0, 1), (1, 1)), (2, 1), (1, 2)) == (7, 9)


@pytest.mark.parametrize("shape, window, padding, want", [
    ((0,), (1,), "VALID", (0,)), ((0,), (2,), [(2, 2)], (3,)), ((3,), (20,), "VALID", (0,)), ((), (), "VALID", ()),
    ((2, 0), (1, 1), "SAME", (2, 0)), ((0, 3), (2, 1), [(1, 1), (0, 0)], (1, 3))])
def test_empty_arrays_and_windows_without_room(shape: Any, window: Any, padding: Any, want: Any) -> None:
    x = np.ones(shape, np.float32)
    for fun in (sums, largest):
        def of_x(x: Any, fun: Any = fun) -> Any:
            return fun(x, window, None, padding)

        eager, compiled = of_x(x), anima.jit(of_x)(x)
        assert eager.shape == compiled.shape == want
        np.testing.assert_array_equal(eager, compiled)
        (slope,) = anima.vjp(of_x, x)[1](np.ones(want, np.float32))
        assert slope.shape == shape
        assert anima.jit(anima.grad(lambda x, f=of_x: f(x).sum()))(x).shape == shape


def test_strides_beyond_the_array() -> None:
    for stride in (8, 1000, 2**40):
        np.testing.assert_array_equal(largest(X, (3,), (stride,)), [4])
        np.testing.assert_array_equal(anima.jit(lambda x, s=stride: largest(x, (3,), (s,)))(X), [4])


@pytest.mark.parametrize("options, error, text", [
    ({"window_dimensions": (0,)}, TypeError, "window_dimensions must have every element be strictly positive"),
    ({"window_dimensions": (-1,)}, TypeError, "strictly positive, got \\(-1,\\)"),
    ({"window_dimensions": (1,), "window_strides": (0,)}, TypeError, "window_strides must have every element"),
    ({"window_dimensions": (1,), "base_dilation": (0,)}, TypeError, "base_dilation must have"),
    ({"window_dimensions": (1,), "window_dilation": (0,)}, TypeError, "window_dilation must have"),
    ({"window_dimensions": (1, 1)}, TypeError, "wrong number of window_dimensions"),
    ({"window_dimensions": (1,), "window_strides": (1, 1)}, TypeError, "inconsistent window_strides"),
    ({"window_dimensions": (1,), "base_dilation": (1, 1)}, TypeError, "inconsistent base_dilation"),
    ({"window_dimensions": (1,), "padding": [(0, 0), (0, 0)]}, TypeError, "inconsistent padding"),
    ({"window_dimensions": (1,), "padding": "FOO"}, RuntimeError, "'SAME', or 'SAME_LOWER', got FOO")])
def test_errors(options: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        lax.reduce_window(X, 0.0, lax.add, **options)
    with pytest.raises(error, match=text):
        lax.reduce_window(X, 0.0, lambda a, b: a - b, **options)


def test_errors_of_types() -> None:
    with pytest.raises(TypeError, match="number dtype, got bool"):
        lax.reduce_window(X > 1, False, lax.add, (1,))
    with pytest.raises(TypeError, match="number or bool dtype, got float0"):
        lax.reduce_window_max_p.bind(np.zeros(2, anima.float0), window_dimensions=(1,), window_strides=(1,),
                                     padding=((0, 0),), base_dilation=(1,), window_dilation=(1,))
    w = {"window_dimensions": (2,), "window_strides": (1,), "padding": ((0, 0),), "base_dilation": (1,),
         "window_dilation": (1,), "select_prim": ew.ge}
    gather, scatter = win.select_and_gather_add_p, win.select_and_scatter_add_p
    np.testing.assert_array_equal(gather.bind(10 * X, X, **w), 10 * np.maximum(X[1:], X[:-1]))
    np.testing.assert_array_equal(scatter.bind(np.ones_like(X[1:]), np.arange(len(X), dtype=X.dtype), **w),
                                  [0, *[1] * (len(X) - 1)])
    with pytest.raises(TypeError, match="select_and_gather_add requires arrays of one shape"):
        gather.bind(X[1:], X, **w)
    for count in (len(X), len(X) - 2):
        with pytest.raises(TypeError, match=r"select_and_scatter_add source has shape .* windows"):
            scatter.bind(np.ones(count, X.dtype), X, **w)
    with pytest.raises(TypeError, match="requires arrays of one floating or complex dtype"):
        gather.bind(X.astype(np.float16), X, **w)
    with pytest.raises(TypeError, match="Unknown padding type"):
        lax.padtype_to_pads((1,), (1,), (1,), ((0, 0),))  # type: ignore[arg-type]


# ---------------------------------------------------------------- dtypes


def test_small_types_round_once() -> None:
    ones = np.ones(600, ml_dtypes.bfloat16)
    for fun in (sums, anima.jit(sums, static_argnums=1)):
        assert float(fun(ones, (512,))[0]) == 512  # adding one by one in bfloat16 would stop at 256
    np.testing.assert_array_equal(lax.reduce_window(np.full(8, 100, np.int8), 0, lax.add, (3,)), [300 - 256] * 6)
    assert lax.reduce_window(np.ones(4, np.int8), 0, lax.add, (2,)).dtype == np.int8


def test_nan_and_infinities() -> None:
    x = np.array([1, np.nan, 3, -np.inf, -np.inf, -np.inf, 2], np.float32)
    want = [np.nan, np.nan, 3, -np.inf, -np.inf, 2]
    np.testing.assert_array_equal(largest(x, (2,)), want)
    np.testing.assert_array_equal(anima.jit(lambda x: largest(x, (2,)))(x), want)


# ---------------------------------------------------------------- derivatives of extremes


@pytest.mark.parametrize("operation, sign, places", [(lax.max, 1, [0, 2, 3, 5]), (lax.min, -1, [0, 1, 4, 5])])
@pytest.mark.parametrize("init", [-np.inf, complex(-np.inf, -np.inf), -2.0])
def test_extremes_of_complex_numbers(operation: Any, sign: int, places: list[int], init: complex) -> None:
    x = np.array([1 + 1j, -3 + 2j, 1 - 5j, -1j, -3 - 4j, 0] if sign > 0 else [
        1 + 1j, -1 - 2j, -1 + 2j, 0, -1j, 0], np.complex64)
    start = np.complex64(init if sign > 0 else -init)

    def windows(x: Any) -> Any:
        return lax.reduce_window(x, start, operation, (2,), (2,), ((1, 3),))

    for transformed in (lambda fun: fun, anima.jit):
        np.testing.assert_array_equal(transformed(windows)(x)[:4], x[places])
        taken = transformed(anima.grad(lambda x: windows(x)[:4].real.sum()))(x)
        np.testing.assert_array_equal(taken, [float(k in places) for k in range(6)])
    if init != -np.inf:
        assert windows(x)[4] == start  # of padding alone


def test_ties_go_to_the_first() -> None:
    def total(x: Any) -> Any:
        return largest(x, (3,), (2,), [(1, 2)]).sum()

    for gradient in (anima.grad(total), anima.jit(anima.grad(total))):
        np.testing.assert_array_equal(gradient(np.zeros(8, np.float32)), [1, 1, 0, 1, 0, 1, 0, 1])
    whole = anima.grad(lambda x: largest(x, (4, 2)).sum())(np.zeros((4, 2), np.float32))
    np.testing.assert_array_equal(whole, [[1, 0], [0, 0], [0, 0], [0, 0]])
    long = anima.jit(anima.grad(lambda x: largest(x, (5, 40)).sum()))(np.zeros((5, 40), np.float32))
    assert long[0, 0] == 1 and long.sum() == 1


@pytest.mark.parametrize("size", [5, 16, 17, 19, 21, 31, 37])
@pytest.mark.parametrize("apart", [0, 1])
def test_ties_of_long_windows_go_to_the_first(size: int, apart: int) -> None:
    """Windows that do not overlap are combined pair by pair: of any two equal elements the first is still the one."""
    pairs = np.array([(i, k) for k in range(size) for i in range(k + 1)])
    x, rows = np.zeros((len(pairs), size + apart), np.float32), np.arange(len(pairs))
    x[rows, pairs[:, 0]] = x[rows, pairs[:, 1]] = 1
    first = rows * (size + apart) + pairs[:, 0]
    x, t = x.ravel(), np.random.default_rng(size).normal(size=x.size).astype(np.float32)
    want = np.zeros_like(x)
    want[first] = 1
    for operation, init, sign in ((lax.max, -np.inf, 1), (lax.min, np.inf, -1)):
        def f(x: Any, operation: Any = operation, init: Any = init) -> Any:
            return lax.reduce_window(x, init, operation, (size,), (size + apart,), "VALID")

        for run in (lambda f: f, anima.jit):
            slope = run(lambda x, t, f=f: anima.jvp(f, (x,), (t,))[1])
            np.testing.assert_array_equal(slope(sign * x, t), t[first])
            np.testing.assert_array_equal(run(anima.grad(lambda x, f=f: f(x).sum()))(sign * x), want)


def test_nan_takes_the_derivative() -> None:
    x = np.array([1, np.nan, 3, np.nan, 5], np.float32)
    for jit in (lambda f: f, anima.jit):
        np.testing.assert_array_equal(jit(anima.grad(lambda x: largest(x, (5,)).sum()))(x), [0, 1, 0, 0, 0])


def test_derivatives_of_overlapping_dilated_windows() -> None:
    """What JAX does not differentiate: window dilation, and negative padding."""
    x = np.array([3.0, 1.0, 4.0, 1.5, 5.0, 9.0, 2.0], np.float32)
    for jit in (lambda f: f, anima.jit):
        dilated = jit(anima.grad(lambda x: largest(x, (2,), (1,), "VALID", None, (3,)).sum()))(x)
        np.testing.assert_array_equal(dilated, [1, 0, 0, 0, 1, 1, 1])
        cropped = jit(anima.grad(lambda x: largest(x, (3,), (2,), [(-1, -2)]).sum()))(x)
        np.testing.assert_array_equal(cropped, [0, 0, 1, 0, 0, 0, 0])


def test_second_derivatives_of_extremes() -> None:
    hessian = anima.hessian(lambda x: (largest(x, (3,), (2,), [(1, 2)]) ** 3).sum())(np.arange(8, dtype=np.float32))
    np.testing.assert_allclose(np.diag(hessian), [0, 6, 0, 18, 0, 30, 0, 84])
    assert np.count_nonzero(hessian) == 4


def test_adjoint_of_a_sum_is_a_sum_over_windows() -> None:
    def both(x: Any) -> Any:
        out, pull = anima.vjp(lambda x: sums(x, (3,), (2,), [(1, 2)], (2,), (3,)), x)
        return pull(out)

    assert primitives(both, X) == ["reduce_window_sum"] * 2


# ---------------------------------------------------------------- any windows, against loops


def drawn(rng: np.random.Generator) -> tuple[tuple[int, ...], dict[str, Any]]:
    """A shape and windows over it, of all kinds."""
    rank = int(rng.integers(1, 3))
    most = (40, 7)[rank - 1]

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(n) for n in rng.integers(low, high, rank))

    shape = each(1, most)
    return shape, {
        "window_dimensions": each(1, int(rng.choice([4, 25]))), "window_strides": each(1, 5),
        "padding": tuple(zip(each(-1, 6), each(0, 9), strict=True)),
        "base_dilation": each(1, int(rng.choice([2, 6]))), "window_dilation": each(1, int(rng.choice([2, 4])))}


@pytest.mark.parametrize("seed", range(20))
def test_random_windows_and_their_derivatives(seed: int) -> None:
    """Whole numbers, so that results are exact."""
    rng = np.random.default_rng(seed)
    shape, w = drawn(rng)
    x = (rng.permutation(int(np.prod(shape))).reshape(shape) - 3).astype(np.float32)
    t = rng.integers(-4, 5, shape).astype(np.float32)
    ct = rng.integers(-4, 5, records.result_shape(shape, w)).astype(np.float32)
    for name, operation, init in (("sum", lax.add, 0.0), ("max", lax.max, -np.inf), ("min", lax.min, np.inf)):
        def both(x: Any, t: Any, ct: Any, operation: Any = operation, init: Any = init) -> Any:
            def fun(x: Any) -> Any:
                return lax.reduce_window(x, init, operation, **w)

            return (*anima.jvp(fun, (x,), (t,)), anima.vjp(fun, x)[1](ct)[0])

        for got, compiled, want in zip(both(x, t, ct), anima.jit(both)(x, t, ct), by_loops(name, x, t, ct, w),
                                       strict=True):
            np.testing.assert_array_equal(got, want, err_msg=f"{name} {shape} {w}")
            np.testing.assert_array_equal(compiled, want, err_msg=f"compiled {name} {shape} {w}")


def by_loops(name: str, x: np.ndarray, t: np.ndarray, ct: np.ndarray, w: dict[str, Any]) -> list[np.ndarray]:
    """Result, tangent and gradient, window by window."""
    out, slope, gradient = np.zeros(ct.shape), np.zeros(ct.shape), np.zeros(x.shape)
    outside, better = {"sum": (0, None), "max": (-np.inf, np.greater), "min": (np.inf, np.less)}[name]
    for window in np.ndindex(*ct.shape):
        places = list(records.elements(x.shape, window, w))
        values = [outside if p is None else x[p] for p in places]
        if better is not None:
            best = 0
            for k, value in enumerate(values):
                best = k if better(value, values[best]) else best
            values, places = [values[best]], [places[best]]
        out[window] = sum(values)
        for place in places:
            if place is not None:
                slope[window] += t[place]
                gradient[place] += ct[window]
    return [out, slope, gradient]


# ---------------------------------------------------------------- compiled


def reference(x: np.ndarray, size: int, stride: int, gap: int, fun: Any) -> np.ndarray:
    count = (len(x) - (size - 1) * gap - 1) // stride + 1
    return np.array([fun(x[i * stride: i * stride + (size - 1) * gap + 1: gap]) for i in range(count)])


@pytest.mark.parametrize("size, stride, gap", [
    (16, 1, 1), (17, 1, 1), (64, 1, 1), (100, 3, 1), (129, 1, 2), (150, 150, 1), (33, 40, 1), (300, 1, 1), (21, 2, 3)])
def test_long_windows(size: int, stride: int, gap: int) -> None:
    x = np.random.default_rng(0).normal(size=300).astype(np.float32)
    for fun, exact in ((sums, lambda v: v.astype(np.float64).sum()), (largest, np.max)):
        got = anima.jit(lambda x, f=fun: f(x, (size,), (stride,), "VALID", None, (gap,)))(x)
        np.testing.assert_allclose(got, reference(x, size, stride, gap, exact), rtol=2e-6, atol=2e-6)
    slope = anima.jit(anima.grad(lambda x: (largest(x, (size,), (stride,), "VALID", None, (gap,)) ** 2).sum()))(x)
    want = np.zeros_like(x)
    for i in range((len(x) - (size - 1) * gap - 1) // stride + 1):
        at = i * stride + gap * int(np.argmax(x[i * stride: i * stride + (size - 1) * gap + 1: gap]))
        want[at] += 2 * x[at]
    np.testing.assert_allclose(slope, want, rtol=1e-4)


def test_long_windows_of_plain_arrays() -> None:
    x = np.random.default_rng(0).normal(size=100_000)
    np.testing.assert_allclose(sums(x.astype(np.float32), (5000,)), np.convolve(x, np.ones(5000), "valid"), atol=1e-2)


def test_long_windows_cost_a_few_slices() -> None:
    """A window of 1000 elements is made of windows of 8, and those of 8 again: some 30 loads, not 1000."""
    program = lower(anima.make_jaxpr(lambda x: sums(x, (1000,)))(np.ones(2000, np.float32))).loops
    assert 8 <= sum(isinstance(node, Load) for node in walk(*program.body)) <= 40


def test_threads_and_gradients_of_pooling_agree_with_a_loop() -> None:
    x = np.random.default_rng(1).normal(size=(4, 16, 18, 3)).astype(np.float32)

    def loss(x: Any) -> Any:
        return (largest(x, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") ** 2).sum()

    got = anima.jit(anima.vmap(anima.grad(lambda x: loss(x[None]))))(x)
    want = np.zeros_like(x)
    padded = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=-np.inf)
    for b, i, j, c in np.ndindex(4, 8, 9, 3):
        patch = padded[b, 2 * i: 2 * i + 3, 2 * j: 2 * j + 3, c]
        di, dj = np.unravel_index(int(np.argmax(patch)), patch.shape)
        want[b, 2 * i + di, 2 * j + dj, c] += 2 * patch.max()
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_windows_inside_of_loops() -> None:
    def step(x: Any, _: Any) -> Any:
        return sums(x, (3,), (1,), "SAME") / 3, None

    got = anima.jit(lambda x: lax.scan(step, x, None, length=4)[0])(X)
    want = X
    for _ in range(4):
        want = np.convolve(want, np.ones(3, np.float32) / 3, "same")
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert jnp.shape(got) == (8,)


def test_pads_are_numbers_of_python() -> None:
    pads = lax.padtype_to_pads(np.array([8, 9]), np.array([3, 3]), np.array([2, 1]), "SAME")
    assert pads == [(0, 1), (1, 1)] and all(type(n) is int for pair in pads for n in pair)


def test_reductions_that_do_not_fit() -> None:
    x = jnp.ones((4, 5))
    with pytest.raises(TypeError, match="expected initial values to be scalars"):
        lax.reduce_window(x, jnp.zeros(1), lax.add, (2, 2), (1, 1), "VALID")
    with pytest.raises(ValueError, match="must return the structure of the operands"):
        lax.reduce_window(x, 0.0, lambda x, y: {"x": x + y}, (2, 2), (1, 1), "VALID")
    with pytest.raises(ValueError, match="expected initial values to be scalars"):
        lax.reduce(x, jnp.zeros(1), lax.add, (0,))
