"""custom_linear_solve and custom_root: derivatives of what is solved, whatever finds the solution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.flatten_util import ravel_pytree

RNG = np.random.default_rng(0)
A = np.float32(RNG.normal(size=(4, 4)) + 5 * np.eye(4))
S = np.float32(A @ A.T / 8)  # symmetric, positive definite
B = np.float32(RNG.normal(size=4))
AS = np.stack([S, S + np.eye(4, dtype=np.float32), 2 * S])
BS = np.float32(RNG.normal(size=(3, 4)))


def same(fun: Callable[..., Any]) -> Callable[..., Any]:
    return fun


MODES = [same, anima.jit]


def close(actual: Any, expected: Any, rtol: float = 2e-4) -> None:
    leaves, structure = anima.tree.flatten(actual)
    wanted, expected_structure = anima.tree.flatten(expected)
    assert structure == expected_structure
    for a, e in zip(leaves, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=rtol, atol=1e-5)


def conjugate_gradients(matvec: Callable[..., Any], b: Any) -> Any:
    """A loop whose length depends on the values: reverse mode through it would need tapes."""
    def dot(x: Any, y: Any) -> Any:
        return sum(jnp.vdot(u, v) for u, v in zip(anima.tree.leaves(x), anima.tree.leaves(y), strict=True))

    def axpy(a: Any, x: Any, y: Any) -> Any:
        return anima.tree.map(lambda u, v: a * u + v, x, y)

    def step(state: Any) -> Any:
        x, r, p, rr, k = state
        q = matvec(p)
        alpha = rr / dot(p, q)
        r = axpy(-alpha, q, r)
        new = dot(r, r)
        return axpy(alpha, p, x), r, axpy(new / rr, p, r), new, k + 1

    zero = anima.tree.map(jnp.zeros_like, b)
    return lax.while_loop(lambda s: (s[3] > 1e-12) & (s[4] < 20), step, (zero, b, b, dot(b, b), 0))[0]


def by_cg(a: Any, b: Any) -> Any:
    return lax.custom_linear_solve(lambda x: a @ x, b, conjugate_gradients, symmetric=True)


def by_inverse(a: Any, b: Any) -> Any:
    """A solver that no derivative goes through."""
    def solve(matvec: Any, b: Any) -> Any:
        matrix = anima.jacfwd(matvec)(b)
        return lax.stop_gradient(jnp.linalg.inv(matrix)) @ b

    return lax.custom_linear_solve(lambda x: a @ x, b, solve, solve)


def direct(a: Any, b: Any) -> Any:
    return jnp.linalg.solve(a, b)


def total(solve: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: jnp.sum(jnp.sin(solve(a, b)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("solve, a", [(by_cg, S), (by_inverse, A)])
def test_linear_solve_is_differentiated_as_the_solution(mode: Callable[..., Any], solve: Any, a: Any) -> None:
    close(mode(solve)(a, B), np.linalg.solve(a, B))
    tangents = (np.float32(RNG.normal(size=(4, 4))), np.float32(RNG.normal(size=4)))
    tangents = (tangents[0] + tangents[0].T, tangents[1])  # that keep a symmetric matrix so
    x = np.linalg.solve(a, B)
    close(mode(lambda a, b: anima.jvp(solve, (a, b), tangents))(a, B),
          (x, np.linalg.solve(a, tangents[1] - tangents[0] @ x)), 1e-3)
    ct = np.linalg.solve(a.T, np.cos(x))
    close(mode(anima.grad(total(solve), 1))(a, B), ct, 1e-3)
    close(mode(anima.grad(total(solve), 0))(a, B), -np.outer(ct, x), 1e-3)

    def along(solve: Any) -> Any:  # two directions: tangents of a symmetric matrix are symmetric
        return lambda s, t: total(solve)(a + s * tangents[0] + t * np.eye(4, dtype=np.float32), B + s * tangents[1])

    hessian = anima.hessian(along(direct), (0, 1))(0.1, 0.2)
    for second in (anima.hessian(along(solve), (0, 1)), anima.jacrev(anima.jacrev(along(solve), (0, 1)), (0, 1)),
                   anima.jacfwd(anima.jacfwd(along(solve), (0, 1)), (0, 1))):
        close(mode(second)(0.1, 0.2), hessian, 5e-3)


def test_gradient_agrees_with_finite_differences() -> None:
    with anima.enable_x64(True):
        a, b = S.astype(np.float64), B.astype(np.float64)
        v = RNG.normal(size=4)
        fun = anima.jit(total(by_cg))
        for g, numeric in [(anima.grad(fun, 1)(a, b) @ v, (fun(a, b + 1e-5 * v) - fun(a, b - 1e-5 * v)) / 2e-5),
                           (jnp.sum(anima.grad(fun)(a, b) * S), (fun(a + 1e-5 * S, b) - fun(a - 1e-5 * S, b)) / 2e-5)]:
            np.testing.assert_allclose(g, numeric, rtol=1e-7)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0)])
def test_linear_solve_batched(mode: Callable[..., Any], in_axes: Any) -> None:
    args = tuple(xs if axis == 0 else xs[0] for xs, axis in zip((AS, BS), in_axes, strict=True))

    def lane(k: int) -> Any:
        return tuple(xs[k] if axis == 0 else xs for xs, axis in zip(args, in_axes, strict=True))

    for fun in (by_cg, by_inverse):
        close(mode(anima.vmap(fun, in_axes))(*args), np.stack([np.linalg.solve(*lane(k)) for k in range(3)]), 1e-3)
        each = [anima.grad(total(direct), (0, 1))(*lane(k)) for k in range(3)]
        stacked = anima.tree.map(lambda *xs: np.stack(xs), *each)
        close(mode(anima.vmap(anima.grad(total(fun), (0, 1)), in_axes))(*args), stacked, 2e-3)
        summed = tuple(s if axis == 0 else s.sum(0) for s, axis in zip(stacked, in_axes, strict=True))
        loss = total(fun)
        close(mode(anima.grad(lambda *xs, f=loss: anima.vmap(f, in_axes)(*xs).sum(), (0, 1)))(*args), summed, 2e-3)


def test_linear_solve_batched_in_another_order() -> None:
    close(anima.vmap(by_cg, in_axes=(2, 1), out_axes=1)(np.moveaxis(AS, 0, 2), BS.T),
          np.stack([np.linalg.solve(a, b) for a, b in zip(AS, BS, strict=True)], 1), 1e-3)
    nested = anima.vmap(anima.vmap(by_cg, (None, 0)), (0, None))(AS, BS)
    close(nested, np.stack([np.linalg.solve(a, BS.T).T for a in AS]), 1e-3)


def test_linear_solve_of_a_pytree() -> None:
    def solve(d: Any, b: Any) -> Any:
        return lax.custom_linear_solve(lambda x: {"u": d * x["u"] + x["v"], "v": x["u"] + 3 * x["v"]}, b,
                                       conjugate_gradients, symmetric=True)

    b = {"u": np.float32(1.0), "v": np.float32(2.0)}

    def reference(d: Any, b: Any) -> Any:
        det = 3 * d - 1
        return {"u": (3 * b["u"] - b["v"]) / det, "v": (d * b["v"] - b["u"]) / det}

    def loss(f: Any) -> Any:
        return lambda d, b: jnp.sin(f(d, b)["u"]) * f(d, b)["v"]

    close(anima.jit(solve)(5.0, b), reference(5.0, b))
    close(anima.grad(loss(solve), (0, 1))(5.0, b), anima.grad(loss(reference), (0, 1))(5.0, b))


def test_transpose_solve_gets_the_transpose() -> None:
    seen = []

    def solve(matvec: Any, b: Any) -> Any:
        return jnp.linalg.solve(A, b)

    def transpose_solve(vecmat: Any, b: Any) -> Any:
        seen.append(anima.jacfwd(vecmat)(b))
        return jnp.linalg.solve(A.T, b)

    (g,) = anima.linear_transpose(lambda b: lax.custom_linear_solve(lambda x: A @ x, b, solve, transpose_solve), B)(B)
    close(g, np.linalg.solve(A.T, B))
    close(lax.custom_linear_solve(lambda x: A @ x, B, lambda m, b: anima.jacfwd(m)(b) @ b), A @ B)
    assert len(seen) >= 1
    checked = lax.custom_linear_solve(lambda x: A @ x, B, solve, lambda vecmat, b: vecmat(b))
    close(anima.linear_transpose(lambda b: lax.custom_linear_solve(lambda x: A @ x, b, solve,
                                                                   lambda vecmat, b: vecmat(b)), B)(B)[0], A.T @ B)
    close(checked, np.linalg.solve(A, B))


@pytest.mark.parametrize("mode", MODES)
def test_auxiliary_values_are_constants(mode: Callable[..., Any]) -> None:
    def fun(a: Any, b: Any) -> Any:
        def solve(matvec: Any, b: Any) -> Any:
            return jnp.linalg.solve(a, b), {"norm": jnp.sum(b * b), "steps": 3}
        return lax.custom_linear_solve(lambda x: a @ x, b, solve, symmetric=True, has_aux=True)

    x, aux = mode(fun)(S, B)
    close(x, np.linalg.solve(S, B))
    close(aux, {"norm": np.sum(B * B), "steps": 3})
    close(mode(anima.grad(lambda b: fun(S, b)[0].sum() + 7 * fun(S, b)[1]["norm"]))(B),
          np.linalg.solve(S, np.ones(4, np.float32)), 1e-3)
    _, auxs = mode(anima.vmap(fun))(AS, BS)
    close(auxs, {"norm": np.sum(BS * BS, 1), "steps": np.array([3, 3, 3])})


def test_linear_solve_inside_control_flow() -> None:
    def repeated(b: Any) -> Any:
        return lax.scan(lambda c, _: (by_cg(S, c), None), b, None, length=2)[0].sum()

    twice = np.linalg.inv(S) @ np.linalg.inv(S)
    close(anima.jit(anima.grad(repeated))(B), twice.T @ np.ones(4), 1e-3)
    close(anima.grad(anima.checkpoint(lambda b: by_cg(S, b).sum()))(B), np.linalg.solve(S, np.ones(4)), 1e-3)
    chosen = anima.grad(lambda b: lax.cond(b[0] > 0, lambda b: by_cg(S, b).sum(), lambda b: b.sum(), b))
    close(chosen(abs(B)), np.linalg.solve(S, np.ones(4)), 1e-3)
    close(chosen(-abs(B)), np.ones(4))


def test_the_equation() -> None:
    jaxpr = anima.make_jaxpr(by_cg)(S, B)
    (eqn,) = jaxpr.eqns
    assert eqn.primitive is lax.linear_solve_p and eqn.primitive.name == "custom_linear_solve"
    assert jaxpr.jaxpr.invars == list(eqn.invars)
    assert anima.eval_shape(by_cg, S, B).shape == (4,)


def _solve(matvec: Any = lambda x: A @ x, b: Any = B, solve: Any = lambda m, b: b, *args: Any, **kwargs: Any) -> Any:
    return lambda: lax.custom_linear_solve(matvec, b, solve, *args, **kwargs)


@pytest.mark.parametrize("kind, phrase, fun", [
    (TypeError, r"matvec\(\) output pytree structure must match b", _solve(lambda x: (x,))),
    (ValueError, r"matvec\(\) output shapes must match b, got \[\(1,\)\] and \[\(4,\)\]", _solve(lambda x: x[:1])),
    (TypeError, r"solve\(\) output pytree structure must match b", _solve(solve=lambda m, b: (b, b))),
    (ValueError, r"solve\(\) output shapes must match b", _solve(solve=lambda m, b: b[:2])),
    (ValueError, r"solve\(\) output dtypes must match b", _solve(solve=lambda m, b: b.astype(int))),
    (ValueError, r"^solve\(\) output dtypes must match b", _solve(solve=lambda m, b: b.astype("float16"))),
    (ValueError, r"matvec\(\) output dtypes must match b", _solve(lambda x: x.astype("bfloat16"))),
    (ValueError, r"transpose_solve\(\) output dtypes must match b",
     _solve(transpose_solve=lambda m, b: b.astype("float16"))),
    (TypeError, r"transpose_solve\(\) output pytree structure", _solve(transpose_solve=lambda m, b: (b,))),
    (TypeError, r"solve\(\) must return a pair", _solve(has_aux=True)),
    (NotImplementedError, "'sin' is not implemented. It is not linear",
     _solve(jnp.sin, transpose_solve=lambda m, b: b)),
    (TypeError, "transpose_solve required for backwards mode automatic differentiation of custom_linear_solve",
     lambda: anima.grad(lambda b: _solve(b=b)().sum())(B)),
])
def test_linear_solve_errors(kind: type[Exception], phrase: str, fun: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=phrase):
        fun()


# ---------------------------------------------------------------- custom_root

def newton(f: Callable[[Any], Any], x: Any) -> Any:
    def step(state: Any) -> Any:
        x, _, k = state
        y, slope = anima.jvp(f, (x,), (jnp.ones_like(x),))
        return x - y / slope, y, k + 1

    return lax.while_loop(lambda s: (jnp.abs(s[1]) > 1e-6) & (s[2] < 30), step, (x, jnp.ones_like(x), 0))[0]


def scalar(g: Any, y: Any) -> Any:
    return y / g(1.0)


def root(a: Any) -> Any:
    return lax.custom_root(lambda x: x * x - a, 1.0, newton, scalar)


@pytest.mark.parametrize("mode", MODES)
def test_square_root_by_newton(mode: Callable[..., Any]) -> None:
    values = np.float32([2.0, 3.0, 0.25])
    close(mode(root)(2.0), np.sqrt(2.0))
    close(mode(anima.grad(root))(2.0), 0.5 / np.sqrt(2.0))
    close(mode(lambda a: anima.jvp(root, (a,), (3.0,)))(2.0), (np.sqrt(2.0), 1.5 / np.sqrt(2.0)))
    close(mode(anima.grad(anima.grad(root)))(2.0), -0.25 * 2.0**-1.5)
    close(mode(anima.jacfwd(anima.grad(root)))(2.0), -0.25 * 2.0**-1.5)
    close(mode(anima.grad(anima.grad(anima.grad(root))))(2.0), 0.375 * 2.0**-2.5)
    close(mode(anima.vmap(root))(values), np.sqrt(values))
    close(mode(anima.vmap(anima.grad(root)))(values), 0.5 / np.sqrt(values))
    close(mode(anima.grad(lambda v: anima.vmap(root)(v).sum()))(values), 0.5 / np.sqrt(values))
    close(mode(anima.vmap(anima.grad(anima.grad(root))))(values), -0.25 * values**-1.5)


def test_root_does_not_depend_on_its_guess() -> None:
    fun = anima.jit(lambda a, guess: lax.custom_root(lambda x: x * x - a, guess, newton, scalar))
    close(anima.grad(fun, (0, 1))(4.0, 1.0), (0.25, 0.0))
    close(anima.vmap(fun, (None, 0))(4.0, np.float32([1.0, -1.0])), np.float32([2.0, -2.0]))


@pytest.mark.parametrize("mode", MODES)
def test_root_of_several_equations(mode: Callable[..., Any]) -> None:
    """Against the derivative through an unrolled Newton iteration."""
    def f(a: Any, x: Any) -> Any:
        return {"p": x["p"] ** 2 + x["q"] - a[0], "q": x["p"] - jnp.tanh(x["q"]) - a[1]}

    def matrix_solve(g: Any, y: Any) -> Any:
        flat, unravel = ravel_pytree(y)
        matrix = anima.jacfwd(lambda v: ravel_pytree(g(unravel(v)))[0])(flat)
        return unravel(jnp.linalg.solve(matrix, flat))

    def steps(f: Any, x: Any) -> Any:
        for _ in range(8):
            y, push = anima.linearize(f, x)
            x = anima.tree.map(lambda u, v: u - v, x, matrix_solve(push, y))
        return x

    guess = {"p": np.float32(1.0), "q": np.float32(0.5)}
    a = np.float32([2.0, 0.3])

    def implicit(a: Any) -> Any:
        x = lax.custom_root(lambda x: f(a, x), guess, steps, matrix_solve)
        return jnp.sin(x["p"]) * x["q"]

    def unrolled(a: Any) -> Any:
        x = steps(lambda x: f(a, x), guess)
        return jnp.sin(x["p"]) * x["q"]

    close(mode(implicit)(a), unrolled(a))
    close(mode(anima.grad(implicit))(a), anima.grad(unrolled)(a), 1e-3)
    close(mode(anima.hessian(implicit))(a), anima.hessian(unrolled)(a), 1e-2)
    several = np.stack([a, a + 0.1])
    close(mode(anima.vmap(anima.grad(implicit)))(several), np.stack([anima.grad(unrolled)(v) for v in several]), 1e-3)


def test_root_with_auxiliary_values() -> None:
    def fun(a: Any) -> Any:
        return lax.custom_root(lambda x: x * x - a, 1.0, lambda f, x: (newton(f, x), {"a": 20 * a}), scalar,
                               has_aux=True)

    close(fun(9.0), (3.0, {"a": 180.0}))
    close(anima.grad(lambda a: fun(a)[0])(9.0), 1 / 6)
    close(anima.grad(lambda a: fun(a)[1]["a"])(9.0), 0.0)
    close(anima.vmap(fun)(np.float32([4.0, 9.0])), (np.float32([2.0, 3.0]), {"a": np.float32([80.0, 180.0])}))


def test_root_and_linear_solve_together() -> None:
    """A tangent solver that is itself a custom linear solve."""
    def fun(a: Any) -> Any:
        return lax.custom_root(lambda x: S @ x - a * jnp.cos(x), jnp.zeros(4),
                               lambda f, x: lax.fori_loop(0, 60, lambda _, x: x - 0.15 * f(x), x),
                               lambda g, y: lax.custom_linear_solve(g, y, conjugate_gradients, symmetric=True)).sum()

    def unrolled(a: Any) -> Any:
        x = jnp.zeros(4)
        for _ in range(60):
            x = x - 0.15 * (S @ x - a * jnp.cos(x))
        return x.sum()

    for order in (same, anima.grad, lambda f: anima.grad(anima.grad(f))):
        close(anima.jit(order(fun))(0.7), anima.jit(order(unrolled))(0.7), 1e-3)


@pytest.mark.parametrize("kind, phrase, fun", [
    (TypeError, r"f\(\) output pytree structure must match initial_guess",
     lambda: lax.custom_root(lambda x: (x,), 1.0, newton, scalar)),
    (ValueError, r"f\(\) output shapes must match initial_guess, got \[\(3,\)\] and \[\(\)\]",
     lambda: lax.custom_root(lambda x: jnp.ones(3) * x, 1.0, newton, scalar)),
    (ValueError, r"f\(\) output dtypes must match", lambda: lax.custom_root(lambda x: x - 2.5, 1, newton, scalar)),
    (TypeError, r"solve\(\) output pytree structure must match initial_guess",
     lambda: lax.custom_root(lambda x: x, 1.0, lambda f, x: (x, x), scalar)),
    (TypeError, r"tangent_solve\(\) output pytree structure must match x",
     lambda: lax.custom_root(lambda x: x, 1.0, newton, lambda g, y: (y,))),
    (TypeError, r"solve\(\) must return a pair", lambda: lax.custom_root(lambda x: x, 1.0, newton, scalar, True)),
])
def test_root_errors(kind: type[Exception], phrase: str, fun: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=phrase):
        fun()


# ---------------------------------------------------------------- platform_dependent

def test_platform_dependent() -> None:
    def fun(x: Any) -> Any:
        return lax.platform_dependent(x, 2.0, cpu=lambda x, y: x * y, cuda=lambda x, y: x - y)

    close(fun(3.0), 6.0)
    close(anima.jit(fun)(3.0), 6.0)
    close(anima.vmap(anima.grad(fun))(B), np.full(4, 2.0))
    close(lax.platform_dependent(3.0, default=lambda x: x + 1, cuda=lambda x: x), 4.0)
    close(lax.platform_dependent(cpu=lambda: 5.0), 5.0)
    for wrap in MODES:
        with pytest.raises(NotImplementedError, match=r"platforms=\(\('cuda',\),\)\)' not found for platform cpu"):
            wrap(lambda x: lax.platform_dependent(x, cuda=lambda x: x))(1.0)


@pytest.mark.parametrize("mode", MODES)
def test_solutions_that_do_not_change_have_no_slope(mode: Callable[..., Any]) -> None:
    """Equations that stop the gradients of what they close over are those of constants, whatever the solver does."""
    def linear(a: Any) -> Any:
        return lax.custom_linear_solve(lambda v: lax.stop_gradient(a) * v, 6.0, lambda _, b: b / a, lambda _, b: b / a)

    def root(a: Any) -> Any:
        return lax.custom_root(lambda x: lax.stop_gradient(a) * x - 6, 1.0, lambda f, x: 6 / a, lambda g, y: y / g(1.0))

    for solve in (linear, root):
        out, slope = mode(lambda a, f=solve: anima.jvp(f, (a,), (1.0,)))(3.0)
        assert (float(out), float(slope)) == (2, 0)
