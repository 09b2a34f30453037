"""Named axes of vmap: each collective against NumPy, nested, in control flow, differentiated; names and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)  # 3 elements of the axis "i", each a row
Y = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
RING = [(0, 1), (1, 2), (2, 0)]
Fun = Callable[[Any], Any]


def over(f: Fun, x: Any = X, **options: Any) -> np.ndarray:
    """`f` mapped over the axis "i", alike eagerly, compiled, and called from within a jitted function of its own."""
    mapped = anima.vmap(f, axis_name="i", **options)
    eager = np.asarray(mapped(x))
    np.testing.assert_allclose(np.asarray(anima.jit(mapped)(x)), eager, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.asarray(anima.vmap(anima.jit(f), axis_name="i", **options)(x)), eager, rtol=1e-6,
                               atol=1e-6)
    return eager


def repeated(row: Any, count: int = 3) -> np.ndarray:
    return np.stack([row] * count)


SQUARES = X[:, :, None] * np.arange(1.0, 4.0, dtype=np.float32)  # (3, 4, 3): axis 2 is as long as the mapped one

COLLECTIVES: list[tuple[Fun, np.ndarray, Any]] = [
    (lambda x: lax.psum(x, "i"), X, repeated(X.sum(0))),
    (lambda x: lax.psum(x, ("i", 0)), X, np.full(3, X.sum())),
    (lambda x: lax.psum(x, 0), X, X.sum(1)),
    (lambda x: lax.psum({"a": x}, "i")["a"], X, repeated(X.sum(0))),
    (lambda x: lax.pmean(x, "i"), X, repeated(X.mean(0))),
    (lambda x: lax.pmean(x, ("i", 0)), X, np.full(3, X.mean())),
    (lambda x: lax.pmean((x * 4).astype(int), "i"), X, repeated((X * 4).astype(int).mean(0))),
    (lambda x: lax.pmax(x, "i"), X, repeated(X.max(0))),
    (lambda x: lax.pmin(x, ("i", 0)), X, np.full(3, X.min())),
    (lambda x: lax.axis_index("i") + 0 * x[0].astype(int), X, np.arange(3)),
    (lambda x: lax.all_gather(x, "i"), X, repeated(X)),
    (lambda x: lax.all_gather(x, "i", axis=-1), X, repeated(X.T)),
    (lambda x: lax.all_gather(x, "i", tiled=True), X, repeated(X.ravel())),
    (lambda x: lax.ppermute(x, "i", RING), X, np.roll(X, 1, 0)),
    (lambda x: lax.ppermute(x, "i", [(2, 0)]), X, np.stack([X[2], 0 * X[0], 0 * X[0]])),
    (lambda x: lax.pshuffle(x, "i", [2, 0, 1]), X, X[[2, 0, 1]]),
    (lambda x: lax.precv(lax.psend(x, "i", RING), x, "i", RING), X, np.roll(X, 1, 0)),
    (lambda x: lax.precv(lax.optimization_barrier(lax.psend({"a": x}, "i", [(2, 0)]))["a"], x, ("i",), [(2, 0)]), X,
     np.stack([X[2], 0 * X[0], 0 * X[0]])),
    (lambda x: lax.pbroadcast(x, "i", 1), X, repeated(X[1])),
    (lambda x: lax.pcast(x, "i", to="varying"), X, X),
    (lambda x: lax.psum_scatter(x, "i", scatter_dimension=1), SQUARES, SQUARES.sum(0).T),
    (lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True), SQUARES, SQUARES.sum(0).T[:, :, None]),
    (lambda x: lax.all_to_all(x, "i", 1, 0), SQUARES, SQUARES.transpose(2, 0, 1)),
    (lambda x: lax.all_to_all(x, "i", 1, 1), SQUARES, SQUARES.transpose(2, 1, 0)),
    (lambda x: lax.all_to_all(x, "i", 1, 0, tiled=True), SQUARES, SQUARES.transpose(2, 0, 1).reshape(3, 12, 1)),
    (lambda x: lax.pswapaxes(x, "i", 1), SQUARES, SQUARES.transpose(2, 1, 0)),
    (lambda x: jnp.sum(x, ("i", 0)), X, np.full(3, X.sum())),
    (lambda x: jnp.mean(x, "i", where=x > 0), X, repeated(np.mean(X, 0, where=X > 0))),
    (lambda x: jnp.var(x, "i", ddof=1), X, repeated(X.var(0, ddof=1))),
    (lambda x: jnp.max(x, "i") - jnp.min(x, "i"), X, repeated(np.ptp(X, 0))),
    (lambda x: anima.nn.softmax(x, "i"), X, np.exp(X) / np.exp(X).sum(0)),
    (lambda x: anima.nn.logsumexp(x, ("i", 0)), X, np.full(3, np.log(np.exp(X).sum()))),
    (lambda x: anima.nn.one_hot(1, 3, axis="i") + 0 * x[0], X, np.eye(3)[1]),
]


@pytest.mark.parametrize("f, x, want", COLLECTIVES)
def test_collective(f: Fun, x: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(over(f, x), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(over(f, np.moveaxis(x, 0, 1), in_axes=1), want, rtol=1e-5, atol=1e-6)
    # Mapped over another axis, too, within and without.
    pair = np.stack([x, 2 * x])
    both = np.stack([np.asarray(anima.vmap(f, axis_name="i")(v)) for v in pair])
    np.testing.assert_allclose(anima.vmap(anima.vmap(f, axis_name="i"))(pair), both, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(anima.vmap(anima.vmap(f), in_axes=1, axis_name="i")(pair), np.swapaxes(both, 0, 1),
                               rtol=1e-5, atol=1e-6)


DIFFERENTIABLE = [(f, x) for f, x, want in COLLECTIVES if want.dtype == np.float32]  # those of integers are float64


@pytest.mark.parametrize("f, x", DIFFERENTIABLE)
def test_derivatives(f: Fun, x: np.ndarray) -> None:
    """Forward and reverse mode, around vmap and within, are the derivative of the function of the whole stack."""
    def whole(v: Any) -> Any:
        return anima.vmap(lambda row: f(jnp.sin(row)), axis_name="i")(v)

    rng = np.random.default_rng(2)
    direction = rng.normal(size=x.shape).astype(np.float32)
    out, tangent = anima.jvp(whole, (x,), (direction,))
    weights = rng.normal(size=out.shape).astype(np.float32)
    back = anima.vjp(whole, x)[1](weights)[0]
    np.testing.assert_allclose(np.vdot(back, direction), np.vdot(weights, tangent), rtol=2e-4, atol=1e-4)
    step = 1e-2
    numeric = (np.asarray(whole(x + step * direction)) - np.asarray(whole(x - step * direction))) / (2 * step)
    np.testing.assert_allclose(tangent, numeric, rtol=5e-2, atol=5e-3)

    def rows(row: Any, t: Any, w: Any) -> tuple[Any, Any]:
        def g(r: Any) -> Any:
            return f(jnp.sin(r))

        return anima.jvp(g, (row,), (t,))[1], anima.vjp(g, row)[1](w)[0]

    inner_tangent, inner_back = anima.vmap(rows, axis_name="i")(x, direction, weights)
    np.testing.assert_allclose(inner_tangent, tangent, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(inner_back, back, rtol=1e-4, atol=1e-5)


def test_several_names() -> None:
    def both(f: Fun) -> np.ndarray:
        return np.asarray(anima.vmap(anima.vmap(f, axis_name="j"), axis_name="i")(Y))

    np.testing.assert_allclose(both(lambda x: lax.psum(x, ("i", "j"))), np.broadcast_to(Y.sum((0, 1)), Y.shape),
                               rtol=1e-5)
    np.testing.assert_allclose(both(lambda x: lax.pmean(x, "i")), np.broadcast_to(Y.mean(0), Y.shape), rtol=1e-5)
    np.testing.assert_array_equal(both(lambda x: lax.axis_index(("i", "j"))), np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(both(lambda x: lax.all_gather(x, ("i", "j"))[3]), np.broadcast_to(Y[1, 0], Y.shape))
    np.testing.assert_array_equal(both(lambda x: lax.axis_size(("i", "j"))), np.full((2, 3), 6))
    shadowed = anima.vmap(anima.vmap(lambda x: lax.psum(x, "i"), axis_name="i"), axis_name="i")(Y)
    np.testing.assert_allclose(shadowed, np.broadcast_to(Y.sum(1, keepdims=True), Y.shape), rtol=1e-5)


def test_in_control_flow() -> None:
    index = np.arange(3)[:, None]
    total = repeated(X.sum(0))
    np.testing.assert_allclose(over(lambda x: lax.cond(lax.axis_index("i") > 0, lambda v: lax.psum(v, "i"),
                                                       lambda v: -v, x)), np.where(index > 0, total, -X), rtol=1e-5)
    np.testing.assert_allclose(over(lambda x: lax.switch(lax.axis_index("i"), [
        lambda v: lax.pmax(v, "i"), lambda v: v, lambda v: lax.psum(v, "i")], x)),
        np.stack([X.max(0), X[1], X.sum(0)]), rtol=1e-5)
    np.testing.assert_allclose(over(lambda x: lax.cond(True, lambda v: lax.psum(v, "i"), lambda v: v, x)), total,
                               rtol=1e-5)
    np.testing.assert_allclose(over(lambda x: lax.scan(lambda c, _: (lax.psum(c, "i"), None), x, length=2)[0]),
                               3 * total, rtol=1e-5)
    np.testing.assert_allclose(over(lambda x: lax.fori_loop(0, 3, lambda k, c: c + lax.axis_index("i"), x)),
                               X + 3 * index, rtol=1e-5)
    np.testing.assert_allclose(over(lambda x: lax.map(lambda v: lax.psum(v, "i"), x)), total, rtol=1e-5)
    # Lanes that end sooner take part in the exchange with the values that they have.
    ends = over(lambda x: lax.while_loop(lambda c: c[0] < 10, lambda c: c + lax.psum(c, "i") / 3, x),
                np.array([[1.0], [5.0], [9.0]], np.float32))
    values = np.array([1.0, 5.0, 9.0], np.float32)
    while (values < 10).any():
        values = np.where(values < 10, values + values.sum() / 3, values)
    np.testing.assert_allclose(ends[:, 0], values, rtol=1e-5)
    together = over(lambda x: lax.while_loop(lambda c: lax.pmax(c, "i").max() < 9, lambda c: 2 * c, jnp.abs(x)))
    assert 9 <= together.max() < 18


def test_gradients_of_loops() -> None:
    def loss(x: Any) -> Any:
        final, ys = lax.scan(lambda c, _: (jnp.sin(lax.psum(c, "i")) + x, lax.pmean(c, "i")), x, length=3)
        return (final * ys.sum(0)).sum()

    grad = np.asarray(anima.grad(lambda v: anima.vmap(loss, axis_name="i")(v).sum())(X))
    direction = np.random.default_rng(3).normal(size=X.shape).astype(np.float32)
    _, slope = anima.jvp(lambda v: anima.vmap(loss, axis_name="i")(v).sum(), (X,), (direction,))
    np.testing.assert_allclose(np.vdot(grad, direction), slope, rtol=1e-4)
    remade = anima.grad(lambda v: anima.vmap(anima.checkpoint(loss), axis_name="i")(v).sum())(X)
    np.testing.assert_allclose(remade, grad, rtol=1e-5)


def test_values_that_are_not_mapped() -> None:
    assert anima.vmap(lambda x: lax.psum(1, "i"), axis_name="i", out_axes=None)(X) == 3
    np.testing.assert_array_equal(over(lambda x: lax.psum(jnp.ones(2), "i")), np.full((3, 2), 3))
    np.testing.assert_array_equal(over(lambda x: lax.psum(True, "i")), np.full(3, 3))
    np.testing.assert_array_equal(over(lambda x: lax.all_gather(jnp.arange(2), "i").sum(0)), repeated([0, 3]))
    np.testing.assert_array_equal(over(lambda x: lax.psum_scatter(jnp.arange(3), "i")), [0, 3, 6])
    out = anima.vmap(lambda x: lax.psum(x, "i"), axis_name="i", out_axes=None)(X)  # the same for all elements
    np.testing.assert_allclose(out, X.sum(0), rtol=1e-5)
    np.testing.assert_allclose(anima.vmap(lambda x: x, out_axes=None, sum_match=True)(X), X.sum(0), rtol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_matching_results_are_summed_over_the_axis_that_is_mapped(axis: int) -> None:
    x = np.random.default_rng(0).normal(size=(3, 3, 3)).astype(np.float32)  # a sum over another axis fits as well
    for f in (lambda x: x, jnp.sin, lambda x: [x, 2.0]):
        got = anima.vmap(f, in_axes=axis, out_axes=None, sum_match=True)(x)
        want = anima.tree.map(lambda v: np.sum(v, axis) if np.ndim(v) else v, f(x))
        anima.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, want)


def test_ragged_all_to_all() -> None:
    """Against the loop that MPI's Alltoallv stands for, with rows that nobody sends and places that nobody fills."""
    rng = np.random.default_rng(4)
    operand, output = rng.normal(size=(3, 7, 2)).astype(np.float32), rng.normal(size=(3, 8, 2)).astype(np.float32)
    send = rng.integers(0, 3, (3, 3))
    starts = np.concatenate([np.zeros((3, 1), int), np.cumsum(send, 1)[:, :-1]], 1)
    places = np.concatenate([np.zeros((1, 3), int), np.cumsum(send, 0)[:-1]], 0)
    want = output.copy()
    for i in range(3):
        for j in range(3):
            want[j, places[i, j]: places[i, j] + send[i, j]] = operand[i, starts[i, j]: starts[i, j] + send[i, j]]
    exchange = anima.vmap(lambda *a: lax.ragged_all_to_all(*a, axis_name="i"), axis_name="i")
    args = operand, output, starts, send, places, send.T
    np.testing.assert_array_equal(exchange(*args), want)
    np.testing.assert_array_equal(anima.jit(exchange)(*args), want)
    weights = rng.normal(size=want.shape).astype(np.float32)
    back = anima.grad(lambda x: (exchange(x, *args[1:]) * weights).sum())(operand)
    np.testing.assert_allclose(np.vdot(back, operand), (weights * (np.asarray(exchange(operand, 0 * output, *args[2:])))
                                                        ).sum(), rtol=1e-4)


def test_ragged_all_to_all_in_groups() -> None:
    """Of two pairs of elements, and of axes of two names: as the exchange within each pair alone."""
    rng = np.random.default_rng(5)
    x, send = rng.normal(size=(2, 2, 6)).astype(np.float32), rng.integers(0, 3, (2, 2, 2))
    starts = np.concatenate([np.zeros((2, 2, 1), int), np.cumsum(send, 2)[..., :-1]], 2)
    places = np.concatenate([np.zeros((2, 1, 2), int), np.cumsum(send, 1)[:, :-1]], 1)
    args = x, 0 * x, starts, send, places, send.transpose(0, 2, 1)
    want = anima.vmap(anima.vmap(lambda *a: lax.ragged_all_to_all(*a, axis_name="i"), axis_name="i"))(*args)
    in_groups = anima.vmap(lambda *a: lax.ragged_all_to_all(*a, axis_name="i", axis_index_groups=[[0, 1], [2, 3]]),
                           axis_name="i")
    for fun in (in_groups, anima.jit(in_groups)):
        got = fun(*(a.reshape(4, *a.shape[2:]) for a in args))
        np.testing.assert_array_equal(got, np.asarray(want).reshape(4, 6))
    assert np.any(want)
    swapped = anima.vmap(lambda *a: lax.ragged_all_to_all(*a, axis_name="i", axis_index_groups=[[3, 0], [1, 2]]),
                         axis_name="i")
    order = [3, 0, 1, 2]  # element 3 is the first of its group
    got = swapped(*(a.reshape(4, *a.shape[2:])[np.argsort(order)] for a in args))
    np.testing.assert_array_equal(np.asarray(got)[order], np.asarray(want).reshape(4, 6))


def test_programs() -> None:
    def text(f: Fun, **env: int) -> str:
        return str(anima.make_jaxpr(f, axis_env=list(env.items()))(jnp.ones((4, 2))))

    assert "psum[axes=('i',)]" in text(lambda x: lax.psum(x, "i"), i=4)
    assert "axis_index_groups=((0, 1), (2, 3))" in text(
        lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]]), i=4)
    assert "reduce_scatter[\n" in text(lambda x: lax.psum_scatter(x, "i"), i=4)
    numbers = np.arange(4)
    assert "ragged_all_to_all[axis_name=('i',)" in text(
        lambda x: lax.ragged_all_to_all(x, x, *[numbers] * 4, axis_name="i"), i=4)
    assert "axis_index[axis_name=i]" in text(lambda x: lax.axis_index("i"), i=4)
    assert "psum[axes=(0,)]" in text(anima.vmap(lambda x: lax.psum(x, "i"), axis_name="i"))
    # A function jitted once is traced anew for an axis of another size or name, and once for each.
    traced = []

    @anima.jit
    def f(x: Any) -> Any:
        traced.append(lax.axis_size("i"))
        return x / lax.psum(x, "i")

    for size in (2, 3, 2):
        anima.vmap(f, axis_name="i")(jnp.ones(size))
    assert traced == [2, 3]


@pytest.mark.parametrize("f, error, text", [
    (lambda x: lax.psum(x, "j"), NameError, "unbound axis name: j"),
    (lambda x: lax.axis_index("j"), NameError, "bound here: 'i'"),
    (lambda x: lax.axis_size("j"), NameError, "axis_size"),
    (lambda x: jnp.sum(x, "j"), NameError, "unbound axis name: j"),
    (lambda x: anima.jit(lambda y: lax.pmax(y, "j"))(x), NameError, "unbound axis name: j"),
    (lambda x: lax.ppermute(x, "i", [(0, 1), (0, 2)]), ValueError, "unique"),
    (lambda x: lax.ppermute(x, "i", [(0, 7)]), ValueError, "less than the size 3"),
    (lambda x: lax.pshuffle(x, "i", [0, 0, 1]), ValueError, "permutation"),
    (lambda x: lax.all_to_all(x, "i", 0, 0), ValueError, "they are 3 and 4"),
    (lambda x: lax.psum_scatter(x, "i"), ValueError, "must match"),
    (lambda x: lax.psum_scatter(x, "i", tiled=True), ValueError, "divisible"),
    (lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1]]), ValueError, "exactly once"),
    (lambda x: lax.psum(x, "i", axis_index_groups=[[0, 0], [1]]), ValueError, "exactly once"),
    (lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1], [3]]), ValueError, "exactly once"),
    (lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1], [-2]]), ValueError, "exactly once"),
    (lambda x: lax.pbroadcast(x, "i", 3), ValueError, "no element 3"),
    (lambda x: lax.pcast(x, "i", to="reduced"), NotImplementedError, "sums of parts"),
    (lambda x: lax.psum(x, 7), ValueError, "out-of-bounds"),
    (lambda x: anima.nn.one_hot(1, 5, axis="i"), ValueError, "num_classes"),
    (lambda x: lax.all_gather(x, "i", axis_index_groups=[[0], [1], [2]], to="invarying"), NotImplementedError,
     "results differ"),
    (lambda x: lax.all_gather(x, "i", to="other"), ValueError, "Unexpected to='other'"),
])
def test_errors(f: Fun, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        anima.vmap(f, axis_name="i")(X)


def test_reductions_of_what_is_known_and_the_same() -> None:
    """Sums of a constant over a named axis and over its own dimensions, of groups of several sizes too."""
    known = np.arange(6, dtype=np.float32).reshape(2, 3)
    for axes, total, mean in ((("i",), 3 * known, known), (("i", 0), 3 * known.sum(0), known.mean(0)),
                              (("i", -1), 3 * known.sum(1), known.mean(1)), (("i", 0, 1), 45, 2.5)):
        np.testing.assert_allclose(over(lambda x, a=axes: lax.psum(known, a) + 0 * x[0]), repeated(total))
        np.testing.assert_allclose(over(lambda x, a=axes: lax.pmean(known, a) + 0 * x[0]), repeated(mean), rtol=1e-6)
    np.testing.assert_array_equal(over(lambda x: lax.pmean(3.5, "i") + 0 * x[0]), np.full(3, 3.5))
    groups = [[0, 2], [1]]
    np.testing.assert_allclose(over(lambda x: lax.pmean(x, "i", axis_index_groups=groups)),
                               np.stack([X[[0, 2]].mean(0), X[1], X[[0, 2]].mean(0)]), rtol=1e-6)
    np.testing.assert_allclose(over(lambda x: lax.psum(1.5, "i", axis_index_groups=groups) + 0 * x[0]), [3, 1.5, 3])
    np.testing.assert_allclose(over(lambda x: lax.pmean(1.5, "i", axis_index_groups=groups) + 0 * x[0]), [1.5] * 3)


def test_text_of_what_is_sent() -> None:
    texts = []
    anima.vmap(lambda x: texts.append(repr(lax.psend(x, "i", RING))), axis_name="i")(X)  # type: ignore[func-returns-value]
    assert texts == ["Sent(names=('i',), perm=((0, 1), (1, 2), (2, 0)))"]


def test_names_end_with_vmap() -> None:
    anima.vmap(lambda x: lax.psum(x, "i"), axis_name="i")(X)
    with pytest.raises(NameError, match="bound here: none"):
        lax.psum(jnp.ones(3), "i")
    with pytest.raises(NameError, match="unbound axis name: i"):
        anima.jit(lambda x: lax.psum(x, "i"))(X)
