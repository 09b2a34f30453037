"""`anima.lax`: names, and what is made of other operations."""

from __future__ import annotations

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.core.primitive import Primitive


def test_names_of_primitives():
    assert lax.add_p is lax.add and lax.and_p is lax.bitwise_and and isinstance(lax.reshape_p, Primitive)
    assert all(isinstance(getattr(lax, n), Primitive) for n in dir(lax) if n.endswith("_p"))


@pytest.mark.parametrize("n", range(1, 10))
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan(n, reverse):
    x = np.random.RandomState(n).rand(2, n, 3).astype("f")
    add = lambda a, b: {"a": a["a"] + b["a"]}
    got = lax.associative_scan(add, {"a": jnp.array(x)}, reverse=reverse, axis=1)["a"]
    want = np.cumsum(x[:, ::-1], 1)[:, ::-1] if reverse else np.cumsum(x, 1)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5)


def test_associative_scan_of_an_operation_that_does_not_commute():
    x = jnp.array(np.random.RandomState(0).rand(5, 2, 2).astype("f"))
    got = lax.associative_scan(jnp.matmul, x)
    want = x[0]
    for i in range(1, 5):
        want = want @ x[i]
    np.testing.assert_allclose(np.asarray(got[-1]), np.asarray(want), rtol=1e-5)


@pytest.mark.parametrize("batch_size", [None, 1, 3, 7, 10])
def test_map(batch_size):
    xs = (jnp.arange(7.0), jnp.arange(14.0).reshape(7, 2))
    got = lax.map(lambda x: x[0] * x[1], xs, batch_size=batch_size)
    np.testing.assert_allclose(np.asarray(got), np.asarray(xs[0][:, None] * xs[1]))
    grad = anima.grad(lambda x: lax.map(lambda v: v**2, x, batch_size=batch_size).sum())(jnp.arange(7.0))
    np.testing.assert_allclose(np.asarray(grad), 2 * np.arange(7.0))


def test_approximate_top_k_is_exact():
    values, indices = lax.approx_min_k(jnp.array([3.0, 1.0, 2.0]), 2)
    assert values.tolist() == [1, 2] and indices.tolist() == [1, 2]
    x = np.random.RandomState(0).permutation(24).astype("f").reshape(4, 6)
    for axis, k in ((0, 3), (1, 2), (-1, 6), (-2, 1)):
        for top, order in ((lax.approx_max_k, np.argsort(-x, axis)), (lax.approx_min_k, np.argsort(x, axis))):
            values, indices = top(jnp.asarray(x), k, reduction_dimension=axis)
            want = np.take(order, range(k), axis)
            np.testing.assert_array_equal(indices, want)
            np.testing.assert_array_equal(values, np.take_along_axis(x, want, axis))


def test_bitwise_reductions_are_never_weakly_typed() -> None:
    weak = jnp.broadcast_to(jnp.asarray(3), (4,))
    assert weak.weak_type
    for reduce in (lax.reduce_and, lax.reduce_or, lax.reduce_xor):
        assert not reduce(weak, (0,)).weak_type and not anima.jit(lambda x, r=reduce: r(x, (0,)))(weak).weak_type
    assert lax.reduce_max(weak, (0,)).weak_type


def test_top_k_of_weakly_typed_elements() -> None:
    weak = jnp.broadcast_to(jnp.asarray(2.5), (4,))
    for k in (2, 4):
        for f in (lax.top_k, anima.jit(lax.top_k, static_argnums=1)):
            assert [x.weak_type for x in f(weak, k)] == [True, True]
            assert [x.weak_type for x in f(jnp.ones(4), k)] == [False, False]


def test_associative_scan_refuses_functions_that_return_something_else():
    for fn, elems in ((lambda a, b: (a, b), jnp.arange(5)),
                      (lambda a, b: {"x": a["x"]}, {"x": jnp.arange(5), "y": jnp.arange(5)})):
        with pytest.raises(TypeError, match=r"fn must return the structure of its arguments, PyTreeDef\(.*<lambda>"):
            lax.associative_scan(fn, elems)
    x = jnp.arange(5)
    got = lax.associative_scan(lambda a, b: [a[0] + b[0], a[1] + b[1]], (x, x))  # a list for a tuple is as good
    assert np.array_equal(got[1], np.cumsum(np.arange(5)))


def test_stage_leaves_no_equation() -> None:
    program = anima.make_jaxpr(lambda x: (lax.stage_p.bind(x) * 2, lax.stage(3.0)))(1.0)
    assert [e.primitive.name for e in program.eqns] == ["mul"] and program.out_avals[1].weak_type
    assert anima.grad(lambda x: lax.stage_p.bind(x) ** 2)(3.0) == 6
    np.testing.assert_array_equal(anima.vmap(lax.stage_p.bind)(jnp.arange(3)), np.arange(3))
