"""Loops and calls that are linear in some operands, and carry or return what is known of others, are transposed."""

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

EDGES = np.array([[1, 0], [2, 1], [3, 1]], np.int32)
DIAGONAL, LOWER, RIGHT = jnp.array([2.0, 3, 4, 5]), jnp.array([0.0, 0.5, 0.3, 0.2]), jnp.array([1.0, 2, 3, 4])


def by_fori(diagonal, lower, right):
    """A triangular solve on a tree, which carries all it reads, the numbers of the rows among it."""
    def body(i, carry):
        x, lower, edges = carry
        child, parent = edges[i, 0], edges[i, 1]
        return x.at[child].add(-lower[child] * x[parent]), lower, edges

    x, lower, _ = lax.fori_loop(0, len(EDGES), body, (right, lower, EDGES))
    return x / (diagonal + 0 * lower)  # known, though a loop on what is linear returned it


def by_while(diagonal, lower, right):
    def body(carry):
        i, x, lower = carry
        child, parent = jnp.asarray(EDGES)[i]
        return i + 1, x.at[child].add(-lower[child] * x[parent]), lower

    return lax.while_loop(lambda c: c[0] < len(EDGES), body, (0, right, lower))[1] / diagonal


def by_call(diagonal, lower, right):
    return anima.jit(lambda d, lo, r: (by_fori(d, lo, r), d))(diagonal, lower, right)[0]


def by_cond(diagonal, lower, right):
    x, d = lax.cond(diagonal[0] > 0, lambda r: (by_fori(diagonal, lower, r), diagonal),
                    lambda r: (r, 2 * diagonal), right * diagonal)
    return x / d


SOLVES = [by_fori, by_while, by_call, by_cond]


@pytest.mark.parametrize("solve", SOLVES)
def test_rules_that_solve_with_tangents(solve):
    """The derivative of A^-1 b by b is A^-1 again: a loop on the tangent, beside values that are known."""
    @anima.custom_jvp
    def ruled(diagonal, lower, right):
        return solve(diagonal, lower, right)

    @ruled.defjvp
    def rule(primals, tangents):
        return solve(*primals), solve(*primals[:2], tangents[2])

    def loss(solve):
        def fun(right):
            carry, ys = lax.scan(lambda c, _: (solve(DIAGONAL, LOWER, c), c.sum()), right, None, length=3)
            return jnp.sum(jnp.sin(carry)) + ys.sum()

        return fun

    want = anima.grad(loss(solve))(RIGHT)
    for grad in (anima.grad(loss(ruled)), anima.jit(anima.grad(loss(ruled)))):
        np.testing.assert_allclose(grad(RIGHT), want, rtol=1e-6)
    np.testing.assert_allclose(anima.hessian(loss(ruled))(RIGHT), anima.hessian(loss(solve))(RIGHT), atol=1e-6)


@pytest.mark.parametrize("solve", SOLVES)
def test_linear_transpose(solve):
    def fun(right):
        return solve(DIAGONAL, LOWER, right)

    dense = anima.jacfwd(fun)(RIGHT)
    np.testing.assert_allclose(anima.linear_transpose(fun, RIGHT)(RIGHT)[0], dense.T @ RIGHT, rtol=1e-6)
    transposed = anima.jit(lambda ct: anima.linear_transpose(fun, anima.ShapeDtypeStruct((4,), "float32"))(ct)[0])
    np.testing.assert_allclose(transposed(RIGHT), dense.T @ RIGHT, rtol=1e-6)


def test_integers_are_transposed():
    def fourfold(x):
        return lax.scan(lambda c, _: (2 * c, None), 3 * x, None, length=2)[0]

    fun = anima.linear_transpose(fourfold, jnp.arange(3))
    np.testing.assert_array_equal(fun(jnp.arange(3))[0], 12 * np.arange(3))
