"""custom_jvp and custom_vjp: which rule runs, under which transformation, with which arguments; errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.custom_derivatives as cd
import anima.numpy as jnp
from anima import lax


def equal(actual: Any, expected: Any, rtol: float = 1e-6) -> None:
    leaves, structure = anima.tree.flatten(actual)
    wanted, expected_structure = anima.tree.flatten(expected)
    assert structure == expected_structure
    for a, e in zip(leaves, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=rtol, atol=1e-7)


def same(fun: Callable[..., Any]) -> Callable[..., Any]:
    return fun


MODES = [same, anima.jit, lambda f: anima.jit(anima.jit(f))]


# A wrong derivative on purpose (times 10), so that a test sees which rule ran.

@anima.custom_jvp
def tagged(x: Any) -> Any:
    """sin x, with derivative 10 cos x."""
    return jnp.sin(x)


@tagged.defjvp
def _tagged_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return tagged(x), 10 * jnp.cos(x) * t


@anima.custom_vjp
def pulled(x: Any, y: Any) -> Any:
    """x sin y, with gradients 10 sin y and 100 x cos y."""
    return x * jnp.sin(y)


def _pulled_fwd(x: Any, y: Any) -> Any:
    return pulled(x, y), (x, y)


def _pulled_bwd(residuals: Any, ct: Any) -> Any:
    x, y = residuals
    return 10 * jnp.sin(y) * ct, 100 * x * jnp.cos(y) * ct


pulled.defvjp(_pulled_fwd, _pulled_bwd)
X = np.float32([0.1, 0.7, -0.4])


# ---------------------------------------------------------------- custom_jvp

@pytest.mark.parametrize("mode", MODES)
def test_custom_jvp_under_every_transformation(mode: Callable[..., Any]) -> None:
    f = mode(tagged)
    equal(f(0.5), np.sin(0.5))
    equal(mode(lambda x: anima.jvp(f, (x,), (2.0,)))(0.5), (np.sin(0.5), 20 * np.cos(0.5)))
    equal(mode(anima.grad(f))(0.5), 10 * np.cos(0.5))
    equal(mode(anima.vmap(f))(X), np.sin(X))
    equal(mode(anima.vmap(anima.grad(f)))(X), 10 * np.cos(X))
    equal(mode(anima.grad(lambda v: anima.vmap(f)(v).sum()))(X), 10 * np.cos(X))
    equal(mode(anima.vmap(lambda v: anima.vmap(anima.grad(f))(v)))(np.stack([X, X + 1])),
          10 * np.cos(np.stack([X, X + 1])))
    equal(mode(anima.jacfwd(f))(X), np.diag(10 * np.cos(X)))
    # The derivative of 10 cos x is as usual.
    equal(mode(anima.grad(anima.grad(f)))(0.5), -10 * np.sin(0.5))
    equal(mode(anima.jacfwd(anima.jacfwd(f)))(0.5), -10 * np.sin(0.5))
    equal(mode(anima.hessian(lambda v: f(v).sum()))(X), np.diag(-10 * np.sin(X)))


def test_custom_jvp_rule_calls_the_function_itself() -> None:
    """Where the rule uses `tagged` in its tangent, the second derivative is custom too."""
    @anima.custom_jvp
    def f(x: Any) -> Any:
        return jnp.exp(x)

    f.defjvp(lambda primals, tangents: (f(*primals), 2 * f(*primals) * tangents[0]))
    equal(anima.grad(f)(0.3), 2 * np.exp(0.3))
    equal(anima.grad(anima.grad(f))(0.3), 4 * np.exp(0.3))
    equal(anima.jit(anima.grad(anima.grad(anima.grad(f))))(0.3), 8 * np.exp(0.3))


@pytest.mark.parametrize("mode", MODES)
def test_rules_that_are_made_of_the_function_on_tangents(mode: Callable[..., Any]) -> None:
    """The rule of a bilinear function calls it on a tangent beside a primal: reverse mode must not ask it again."""
    @functools.partial(anima.custom_jvp, nondiff_argnums=(0,))
    def multiply(name: str, x: Any, y: Any) -> Any:
        return x * y

    @multiply.defjvp
    def rule(name: str, primals: Any, tangents: Any) -> Any:
        (x, y), (dx, dy) = primals, tangents
        return multiply(name, x, y), multiply(name, dx, y) + multiply(name, x, dy)

    product = functools.partial(multiply, "name")

    def square(x: Any) -> Any:
        return product(x, x)

    def power(x: Any) -> Any:
        return lax.scan(lambda carry, _: (product(carry, x), None), x, None, length=3)[0]

    equal(mode(lambda x, y: anima.jvp(product, (x, y), (1.0, 0.0)))(2.0, 3.0), (6.0, 3.0))
    equal(mode(anima.grad(product, (0, 1)))(2.0, 3.0), (3.0, 2.0))
    equal(mode(lambda x, y: anima.jvp(anima.grad(product), (x, y), (1.0, 1.0)))(2.0, 3.0), (3.0, 1.0))
    equal(mode(anima.grad(lambda x: anima.jvp(product, (x, 3.0), (x, 0.0))[1]))(2.0), 3.0)
    for second in (anima.grad(anima.grad(square)), anima.hessian(square), anima.jacrev(anima.jacfwd(square))):
        equal(mode(second)(2.0), 2.0)
    equal(mode(anima.grad(power))(2.0), 32.0)
    equal(mode(anima.grad(anima.grad(power)))(2.0), 48.0)
    equal(mode(anima.vmap(anima.grad(anima.grad(power))))(jnp.array([1.0, 2.0])), jnp.array([12.0, 48.0]))


def _scan(x: Any) -> Any:
    (a, v), _ = lax.scan(lambda c, _: ((c[0] * 1.5, c[1] * 2), None), (x, jnp.arange(3)), None, length=3)
    return a, v


def _while(x: Any) -> Any:
    return lax.while_loop(lambda s: s[1][1] < 8, lambda s: (s[0] * 1.5, s[1] * 2), (x, jnp.arange(3)))


def _cond(x: Any) -> Any:
    return lax.cond(x.sum() > 1, lambda x: (x * 2, jnp.arange(3)), lambda x: (x, jnp.arange(3) * 2), x)


def _call(x: Any) -> Any:
    return anima.jit(lambda x: (x * x, (x > 0).astype(np.int32)))(x)


@pytest.mark.parametrize("body", (_scan, _while, _cond, _call))
@pytest.mark.parametrize("mode", MODES)
def test_rules_that_differentiate_loops_and_calls(body: Callable[..., Any], mode: Callable[..., Any]) -> None:
    """Their results, whole numbers among them, are known where they are used, in forward and reverse mode."""
    f = anima.custom_jvp(lambda x: body(x))
    f.defjvp(lambda primals, tangents: anima.jvp(body, primals, tangents))
    x = np.float32([0.9, 0.7, 0.4])
    slopes = {_scan: np.full(3, 1.5 ** 3), _while: np.full(3, 1.5 ** 3), _cond: np.full(3, 2.0), _call: 2 * x}[body]

    def used(x: Any) -> Any:
        a, v = f(x)
        return a * (jnp.ravel(v) >= 0)

    for g in (used, anima.jit(used), anima.checkpoint(used)):
        equal(mode(lambda t, g=g: anima.jvp(g, (x,), (t,))[1])(x), slopes * x)
        equal(mode(lambda t, g=g: anima.vjp(g, x)[1](t)[0])(x), slopes * x)
        equal(mode(lambda t, g=g: anima.linearize(g, x)[1](t))(x), slopes * x)
    equal(mode(anima.vmap(anima.grad(lambda x: used(x).sum())))(np.stack([x, x])), np.stack([slopes, slopes]))
    known = anima.vjp(lambda x: f(x), x)[0][1]
    np.testing.assert_array_equal(np.asarray(known), body(x)[1])


@pytest.mark.parametrize("mode", MODES)
def test_whole_results_of_rules_have_no_tangents(mode: Callable[..., Any]) -> None:
    """Whatever a rule gives for them, in branches, loops and by themselves."""
    @anima.custom_jvp
    def f(x: Any) -> Any:
        return jnp.round(x).astype(np.int32), x * x

    f.defjvp(lambda primals, tangents: anima.jvp(
        lambda x: (jnp.round(x).astype(np.int32), x * x), primals, tangents))

    def branch(x: Any) -> Any:
        k, y = lax.cond(x.sum() > 0, f, lambda x: (jnp.zeros(3, np.int32), x), x)
        return y * (k >= -9)

    def loop(x: Any) -> Any:
        return lax.scan(lambda c, _: (f(c)[1], f(c)[0]), x, None, length=1)[0]

    for g in (lambda x: f(x)[1], branch, loop):
        equal(mode(lambda t, g=g: anima.jvp(g, (X + 1,), (t,))[1])(X), 2 * (X + 1) * X)
        equal(mode(lambda t, g=g: anima.vjp(g, X + 1)[1](t)[0])(X), 2 * (X + 1) * X)
    _, (whole, _) = anima.jvp(f, (X,), (X,))
    assert whole.dtype == anima.dtypes.float0


def test_log1pexp() -> None:
    @anima.custom_jvp
    def log1pexp(x: Any) -> Any:
        return jnp.log(1.0 + jnp.exp(x))

    assert np.isnan(anima.grad(lambda x: jnp.log(1.0 + jnp.exp(x)))(100.0))
    log1pexp.defjvps(lambda t, ans, x: (1 - 1 / (1 + jnp.exp(x))) * t)
    equal(anima.grad(log1pexp)(100.0), 1.0)
    equal(anima.jit(anima.grad(log1pexp))(100.0), 1.0)
    equal(anima.vmap(anima.jit(anima.grad(log1pexp)))(np.float32([100.0, 0.0])), np.array([1.0, 0.5]))


def test_defjvps_of_several_arguments() -> None:
    @anima.custom_jvp
    def f(x: Any, y: Any) -> Any:
        return x * y

    f.defjvps(lambda t, ans, x, y: 3 * t * y, None)
    equal(anima.grad(f, (0, 1))(2.0, 5.0), (15.0, 0.0))
    f.defjvps(lambda t, ans, x, y: 3 * t * y, lambda t, ans, x, y: ans * t)
    equal(anima.grad(f, (0, 1))(2.0, 5.0), (15.0, 10.0))
    equal(anima.grad(f, 1)(2.0, 5.0), 10.0)


@pytest.mark.parametrize("mode", MODES)
def test_custom_jvp_with_pytrees(mode: Callable[..., Any]) -> None:
    @anima.custom_jvp
    def f(d: Any, scale: Any) -> Any:
        return {"out": d["a"] * d["b"][0], "also": [scale]}

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (d, scale), (t, s) = primals, tangents
        assert set(t) == {"a", "b"}
        return f(d, scale), {"out": 10 * t["a"] + t["b"][0], "also": [s * 2]}

    args = {"a": 2.0, "b": (3.0,)}, 4.0
    equal(mode(f)(*args), {"out": 6.0, "also": [4.0]})
    equal(mode(lambda *a: anima.jvp(f, a, ({"a": 1.0, "b": (1.0,)}, 1.0)))(*args),
          ({"out": 6.0, "also": [4.0]}, {"out": 11.0, "also": [2.0]}))
    equal(mode(anima.grad(lambda d, s: f(d, s)["out"] * f(d, s)["also"][0], (0, 1)))(*args),
          ({"a": 40.0, "b": (4.0,)}, 12.0))


@pytest.mark.parametrize("mode", MODES)
def test_custom_jvp_nondiff_argnums(mode: Callable[..., Any]) -> None:
    @functools.partial(anima.custom_jvp, nondiff_argnums=(0, 2))
    def apply(fun: Any, x: Any, n: Any) -> Any:
        return fun(x) * n

    @apply.defjvp
    def rule(fun: Any, n: Any, primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        return apply(fun, x, n), 10 * t * n

    equal(mode(lambda x: apply(jnp.sin, x, 3))(0.5), 3 * np.sin(0.5))
    equal(mode(anima.grad(lambda x: apply(jnp.sin, x, 3)))(0.5), 30.0)
    equal(mode(anima.vmap(anima.grad(lambda x: apply(jnp.sin, x, 3))))(X), np.full(3, 30.0))
    equal(mode(lambda x: apply(lambda y: y * x, x, 2))(3.0),
          18.0)  # closing over a tracer is fine where not differentiated


def test_custom_jvp_default_and_keyword_arguments() -> None:
    @anima.custom_jvp
    def f(x: Any, y: Any = 2.0) -> Any:
        return x * y

    f.defjvp(lambda primals, tangents: (f(*primals), 10 * tangents[0] + tangents[1]))
    equal(f(3.0), 6.0)
    equal(anima.grad(f)(3.0), 10.0)
    equal(anima.grad(lambda x: f(x, y=5.0))(3.0), 10.0)
    equal(anima.grad(lambda y: f(3.0, y=y))(5.0), 1.0)
    equal(anima.jit(lambda y: f(y=y, x=1.0))(5.0), 5.0)


def test_custom_jvp_symbolic_zeros_and_integers() -> None:
    @anima.custom_jvp
    def f(x: Any, n: Any) -> Any:
        return x * n

    seen = []

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        seen.append(tangents[1].dtype)
        return f(*primals), tangents[0] * 7.0

    equal(anima.grad(f)(2.0, 3), 7.0)
    equal(anima.jit(anima.grad(f))(2.0, jnp.arange(4)[3]), 7.0)
    assert all(d == anima.float0 for d in seen)


def test_custom_jvp_inside_control_flow() -> None:
    equal(anima.grad(lambda x: lax.cond(x > 0, tagged, lambda y: y, x))(0.5), 10 * np.cos(0.5))
    equal(anima.grad(lambda x: lax.fori_loop(0, 2, lambda i, y: tagged(y), x))(0.5),
          100 * np.cos(0.5) * np.cos(np.sin(0.5)), 1e-5)
    equal(anima.jit(anima.grad(lambda x: lax.scan(lambda c, _: (tagged(c), None), x, None, length=2)[0]))(0.5),
          100 * np.cos(0.5) * np.cos(np.sin(0.5)), 1e-5)


def test_methods() -> None:
    class Scale:
        def __init__(self, k: float):
            self.k = k

        @functools.partial(anima.custom_jvp, nondiff_argnums=(0,))
        def __call__(self, x: Any) -> Any:
            return self.k * x

        @__call__.defjvp
        def rule(self, primals: Any, tangents: Any) -> Any:
            return self(*primals), 10 * self.k * tangents[0]

    equal(Scale(2.0)(3.0), 6.0)
    equal(anima.grad(Scale(2.0))(3.0), 20.0)


def test_wrapped_names() -> None:
    assert tagged.__name__ == "tagged" and "derivative 10" in (tagged.__doc__ or "")
    assert pulled.__name__ == "pulled"
    assert "custom_jvp_call" in str(anima.make_jaxpr(tagged)(1.0))
    assert "custom_vjp_call" in str(anima.make_jaxpr(pulled)(1.0, 2.0))


# ---------------------------------------------------------------- custom_vjp

@pytest.mark.parametrize("mode", MODES)
def test_custom_vjp_under_every_transformation(mode: Callable[..., Any]) -> None:
    f = mode(pulled)
    equal(f(2.0, 0.5), 2 * np.sin(0.5))
    equal(mode(anima.grad(f, (0, 1)))(2.0, 0.5), (10 * np.sin(0.5), 200 * np.cos(0.5)))
    equal(mode(anima.grad(f, 1))(2.0, 0.5), 200 * np.cos(0.5))
    equal(mode(anima.vmap(f, in_axes=(None, 0)))(2.0, X), 2 * np.sin(X))
    equal(mode(anima.vmap(anima.grad(f, (0, 1)), in_axes=(None, 0)))(2.0, X), (10 * np.sin(X), 200 * np.cos(X)))
    # An argument shared by all lanes gets the sum of their cotangents.
    equal(mode(anima.grad(lambda s, v: anima.vmap(f, in_axes=(None, 0))(s, v).sum(), (0, 1)))(2.0, X),
          (10 * np.sin(X).sum(), 200 * np.cos(X)), 1e-5)
    equal(mode(anima.grad(lambda s, v: anima.vmap(f, in_axes=(0, None))(v, s).sum(), (0, 1)))(0.5, X),
          (100 * X.sum() * np.cos(0.5), np.full(3, 10 * np.sin(0.5))), 1e-5)
    equal(mode(anima.jacrev(f, (0, 1)))(2.0, 0.5), (10 * np.sin(0.5), 200 * np.cos(0.5)))
    # Second order: the rule itself is differentiated.
    equal(mode(anima.grad(anima.grad(f, 0), 1))(2.0, 0.5), 10 * np.cos(0.5))
    equal(mode(anima.grad(anima.grad(f, 1), 1))(2.0, 0.5), -200 * np.sin(0.5))
    equal(mode(anima.vmap(anima.grad(anima.grad(f, 1), 1), in_axes=(None, 0)))(2.0, X), -200 * np.sin(X))


@pytest.mark.parametrize("mode", MODES)
def test_custom_vjp_nondiff_argnums(mode: Callable[..., Any]) -> None:
    @functools.partial(anima.custom_vjp, nondiff_argnums=(0, 2))
    def apply(fun: Any, x: Any, n: Any, y: Any) -> Any:
        return fun(x) * n + y

    def fwd(fun: Any, x: Any, n: Any, y: Any) -> Any:
        return apply(fun, x, n, y), x

    def bwd(fun: Any, n: Any, x: Any, ct: Any) -> Any:
        return 10 * ct * n * fun(x), 3 * ct

    apply.defvjp(fwd, bwd)
    f = mode(lambda x, y: apply(jnp.sin, x, 2, y))
    equal(f(0.5, 1.0), 2 * np.sin(0.5) + 1)
    equal(mode(anima.grad(f, (0, 1)))(0.5, 1.0), (20 * np.sin(0.5), 3.0))
    equal(mode(anima.vmap(anima.grad(f, (0, 1)), in_axes=(0, None)))(X, 1.0), (20 * np.sin(X), np.full(3, 3.0)))


@pytest.mark.parametrize("mode", MODES)
def test_custom_vjp_with_pytrees_and_none(mode: Callable[..., Any]) -> None:
    @anima.custom_vjp
    def f(d: Any, n: Any, z: Any) -> Any:
        return {"s": d["a"] * n + z, "t": (d["b"],)}

    def fwd(d: Any, n: Any, z: Any) -> Any:
        return f(d, n, z), {"n": n, "nothing": None}

    def bwd(residuals: Any, ct: Any) -> Any:
        return {"a": 10 * ct["s"] * residuals["n"], "b": ct["t"][0] * 100}, None, None

    f.defvjp(fwd, bwd)
    equal(mode(f)({"a": 1.0, "b": 2.0}, 3, 4.0), {"s": 7.0, "t": (2.0,)})
    equal(mode(anima.grad(lambda d, n, z: f(d, n, z)["s"] + f(d, n, z)["t"][0], (0, 2)))({"a": 1.0, "b": 2.0}, 3, 4.0),
          ({"a": 30.0, "b": 100.0}, 0.0))
    # None for a whole subtree of the arguments.
    f.defvjp(fwd, lambda residuals, ct: (None, None, ct["s"]))
    equal(mode(anima.grad(lambda d, n, z: f(d, n, z)["s"], (0, 2)))({"a": 1.0, "b": 2.0}, 3, 4.0),
          ({"a": 0.0, "b": 0.0}, 1.0))


def test_gradient_clipping() -> None:
    @anima.custom_vjp
    def clip_gradient(lo: Any, hi: Any, x: Any) -> Any:
        return x

    clip_gradient.defvjp(lambda lo, hi, x: (x, (lo, hi)), lambda res, g: (None, None, jnp.clip(g, res[0], res[1])))
    f = anima.vmap(anima.grad(lambda x: jnp.sin(clip_gradient(-0.75, 0.75, x))))
    t = np.linspace(0, 3, 7, dtype=np.float32)
    equal(f(t), np.clip(np.cos(t), -0.75, 0.75))
    equal(anima.jit(f)(t), np.clip(np.cos(t), -0.75, 0.75))


def test_fixed_point_by_implicit_differentiation() -> None:
    """A while loop inside a custom_vjp function; its rule solves for the cotangent by another loop."""
    @functools.partial(anima.custom_vjp, nondiff_argnums=(0,))
    def fixed_point(f: Any, a: Any, guess: Any) -> Any:
        def far(carry: Any) -> Any:
            return jnp.abs(carry[0] - carry[1]) > 1e-6

        return lax.while_loop(far, lambda c: (c[1], f(a, c[1])), (guess, f(a, guess)))[1]

    def fwd(f: Any, a: Any, guess: Any) -> Any:
        x = fixed_point(f, a, guess)
        return x, (a, x)

    def bwd(f: Any, res: Any, ct: Any) -> Any:
        def backward(packed: Any, u: Any) -> Any:
            a, x, ct = packed  # all that it depends on, so that it can be differentiated again
            return ct + anima.vjp(lambda x: f(a, x), x)[1](u)[0]

        a, x = res
        w = fixed_point(backward, (a, x, ct), ct)
        return anima.vjp(lambda a: f(a, x), a)[1](w)[0], jnp.zeros_like(x)

    fixed_point.defvjp(fwd, bwd)

    def newton_sqrt(a: Any) -> Any:
        return fixed_point(lambda a, x: 0.5 * (x + a / x), a, a)

    equal(newton_sqrt(2.0), np.sqrt(2), 1e-5)
    for mode in MODES:
        equal(mode(newton_sqrt)(2.0), np.sqrt(2), 1e-5)
        equal(mode(anima.grad(newton_sqrt))(2.0), 0.5 / np.sqrt(2), 1e-4)
    equal(anima.grad(anima.grad(newton_sqrt))(2.0), -0.25 * 2**-1.5, 1e-3)


def test_residuals_may_be_what_the_arguments_are_not() -> None:
    @anima.custom_vjp
    def f(x: Any) -> Any:
        return x.sum()

    f.defvjp(lambda x: (x.sum(), {"shape": jnp.zeros(x.shape), "mask": x > 0, "n": 3}),
             lambda res, ct: (jnp.where(res["mask"], ct * res["n"], res["shape"]),))
    equal(anima.grad(f)(X), np.where(X > 0, 3.0, 0))
    equal(anima.jit(anima.grad(f))(X), np.where(X > 0, 3.0, 0))
    equal(anima.vmap(anima.grad(f))(np.stack([X, -X])), np.where(np.stack([X, -X]) > 0, 3.0, 0))


# ---------------------------------------------------------------- symbolic zeros

@pytest.mark.parametrize("mode", MODES)
def test_custom_vjp_symbolic_zeros(mode: Callable[..., Any]) -> None:
    perturbed, cotangents = [], []

    @anima.custom_vjp
    def f(x: Any, y: Any) -> Any:
        return {"p": x * y, "s": x + 1}

    def fwd(x: Any, y: Any) -> Any:
        assert isinstance(x, cd.CustomVJPPrimal)
        perturbed.append((x.perturbed, y.perturbed))
        x, y = cd.custom_vjp_primal_tree_values((x, y))
        return {"p": x * y, "s": x + 1}, (x, y)

    def bwd(residuals: Any, ct: Any) -> Any:
        x, y = residuals
        zeros = {k: isinstance(c, cd.SymbolicZero) for k, c in ct.items()}
        cotangents.append(zeros)
        assert all(c.shape == x.shape and c.dtype == x.dtype for c in ct.values())
        if zeros["p"]:
            return ct["s"] * 5, ct["p"]  # symbolic zeros may be returned
        return ct["p"] * y * 10, None

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    equal(mode(anima.grad(lambda x: f(x, 3.0)["p"]))(2.0), 30.0)
    assert set(perturbed) == {(True, False)} and {"p": False, "s": True} in cotangents
    cotangents.clear()
    equal(mode(anima.grad(lambda x, y: f(x, y)["s"], (0, 1)))(2.0, 3.0), (5.0, 0.0))
    assert perturbed[-1] == (True, True) and cotangents == [{"p": True, "s": False}]
    # Batched on either side; an argument that all lanes share.
    equal(mode(anima.vmap(anima.grad(lambda x: f(x, 3.0)["p"])))(X), np.full(3, 30.0))
    cotangents.clear()
    equal(mode(anima.grad(lambda x, y: anima.vmap(lambda x: f(x, y)["s"])(x).sum(), (0, 1)))(X, 3.0),
          (np.full(3, 5.0), 0.0))
    equal(mode(anima.grad(lambda x, y: anima.vmap(f, (None, 0))(x, y)["s"].sum(), (0, 1)))(3.0, X), (15.0, np.zeros(3)))
    assert all(zeros == {"p": True, "s": False} for zeros in cotangents)


@pytest.mark.parametrize("mode", MODES)
def test_custom_jvp_symbolic_zeros(mode: Callable[..., Any]) -> None:
    kinds = []

    @anima.custom_jvp
    def f(x: Any, y: Any) -> Any:
        return x * y

    def rule(primals: Any, tangents: Any) -> Any:
        kinds.append(tuple(type(t) is cd.SymbolicZero for t in tangents))
        assert tangents[1].shape == primals[1].shape
        return f(*primals), tangents[0] if kinds[-1][0] else 10 * tangents[0]

    f.defjvp(rule, symbolic_zeros=True)
    equal(mode(anima.grad(lambda x: f(x, jnp.float32(3.0))))(2.0), 10.0)
    equal(mode(anima.vmap(anima.grad(lambda x: f(x, X[0]))))(X), np.full(3, 10.0))
    equal(mode(lambda x: anima.jvp(lambda x: f(x, jnp.arange(3)), (x,), (x,)))(X), (X * np.arange(3), 10 * X))
    assert set(kinds) == {(False, True)}
    kinds.clear()
    equal(mode(anima.grad(lambda y: f(2.0, y)))(3.0), 0.0)
    equal(mode(anima.grad(lambda y: anima.vmap(f, (None, 0))(2.0, y).sum()))(X), np.zeros(3))
    assert set(kinds) == {(True, False)}
    kinds.clear()
    f.defjvp(rule)
    equal(anima.grad(f)(2.0, 3.0), 10.0)
    assert kinds == [(False, False)]


def test_tools_for_symbolic_zeros() -> None:
    equal(cd.zero_from_primal({"a": X, "b": 2.0}), {"a": np.zeros(3), "b": 0.0})
    assert cd.zero_from_primal(jnp.arange(3)).dtype == anima.float0
    zero = cd.zero_from_primal(jnp.arange(3), symbolic_zeros=True)
    assert isinstance(zero, cd.SymbolicZero) and zero.shape == (3,) and zero.dtype == anima.float0
    assert cd.SymbolicZero.from_primal_value(X).dtype == np.float32
    assert repr(cd.CustomVJPPrimal(1.0, True)) == "CustomVJPPrimal(value=1.0, perturbed=True)"
    assert cd.custom_vjp_primal_tree_values({"a": (cd.CustomVJPPrimal(1.0, True),)}) == {"a": (1.0,)}
    with pytest.raises(TypeError, match="unexpected leaf type"):
        cd.custom_vjp_primal_tree_values({"a": 1.0})


def test_optimize_remat_and_nondiff_argnames() -> None:
    f = functools.partial(anima.custom_vjp, nondiff_argnames=("n", "m"))(lambda m, x, n: x * n * m)
    f.defvjp(lambda m, x, n: (x * n * m, None), lambda m, n, _, ct: (ct * n * m * 10,), optimize_remat=True)
    for mode in MODES:
        equal(mode(anima.grad(lambda x: f(5.0, x, n=3)))(2.0), 150.0)
        equal(mode(anima.value_and_grad(anima.checkpoint(lambda x: f(5.0, x, 3))))(2.0), (30.0, 150.0))
    g = functools.partial(anima.custom_jvp, nondiff_argnames=("n",))(lambda x, n: x * n)
    g.defjvp(lambda n, primals, tangents: (primals[0] * n, tangents[0] * n * 10))
    equal(anima.grad(lambda x: g(n=3, x=x))(2.0), 30.0)


@pytest.mark.parametrize("mode", MODES)
def test_random_keys_as_arguments(mode: Callable[..., Any]) -> None:
    def body(key: Any, x: Any) -> Any:
        return x * anima.random.uniform(key)

    forward, backward = anima.custom_jvp(body), anima.custom_vjp(body)
    forward.defjvp(lambda primals, tangents: (body(*primals), 10 * tangents[1]))
    backward.defvjp(lambda key, x: (body(key, x), key), lambda key, ct: (None, 10 * ct))
    key = anima.random.key(0)
    for f in (forward, backward):
        equal(mode(f)(key, 2.0), 2 * anima.random.uniform(key))
        equal(mode(anima.grad(f, 1))(key, 2.0), 10.0)
        equal(mode(anima.vmap(anima.grad(f, 1), (0, None)))(anima.random.split(key, 3), 2.0), np.full(3, 10.0))
        equal(mode(anima.grad(lambda x, f=f: anima.vmap(f, (0, None))(anima.random.split(key, 3), x).sum()))(2.0), 30.0)


def test_cotangents_may_be_python_numbers() -> None:
    f = anima.custom_vjp(lambda x: x * 2)
    f.defvjp(lambda x: (x * 2, None), lambda _, ct: (7,))
    gradient = anima.grad(f)(jnp.float16(1.0))
    assert gradient.dtype == jnp.float16 and gradient == 7


# ---------------------------------------------------------------- errors

def _jvp(rule: Callable[..., Any], fun: Callable[..., Any] = lambda x: x) -> Callable[[], Any]:
    f = anima.custom_jvp(fun)
    f.defjvp(rule)
    return lambda: anima.jvp(f, (1.0,), (1.0,))


def _vjp(fun: Callable[..., Any], fwd: Callable[..., Any], bwd: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    f = anima.custom_vjp(fun)
    f.defvjp(fwd, bwd)
    return lambda: anima.grad(f)(*args)


def _closing_over_a_tracer() -> Any:
    def h(y: Any) -> Any:
        f = anima.custom_vjp(lambda x: x * y)
        f.defvjp(lambda x: (x * y, None), lambda r, g: (g,))
        return f(2.0)

    return anima.grad(h)(3.0)


def _vjp_of_the_first(x: Any, limit: Any) -> Any:
    f = functools.partial(anima.custom_vjp, nondiff_argnums=(1,))(lambda x, limit: x)
    f.defvjp(lambda x, limit: (x, None), lambda limit, r, g: (jnp.minimum(g, limit),))
    return f(x, limit)


def _forward_mode(wrap: Callable[..., Any] = lambda f: f) -> Any:
    return anima.jvp(wrap(pulled), (1.0, 2.0), (1.0, 1.0))


@pytest.mark.parametrize("kind, phrase, fun", [
    (AttributeError, "No JVP defined for custom_jvp function <lambda> using defjvp",
     lambda: anima.custom_jvp(lambda x: x)(1.0)),
    (AttributeError, "No VJP defined for custom_vjp function <lambda> using defvjp",
     lambda: anima.custom_vjp(lambda x: x)(1.0)),
    (TypeError, "must produce a pair", _jvp(lambda p, t: 1.0)),
    (TypeError,
     r"Expected float32\[\] \(tangent type of float32\[\]\) but got float32\[3\]",
     _jvp(lambda p, t: (p[0], jnp.ones(3)))),
    (ValueError, r"JVP rule for function <lambda> must produce a primal output.*expected float32\[\], got float32\[3\]",
     anima.jit(_jvp(lambda p, t: (jnp.ones(3), jnp.ones(3))))),
    (TypeError, "equal container .pytree. structures",
     _jvp(lambda p, t: ({"a": p[0]}, {"b": t[0]}), lambda x: {"a": x})),
    (TypeError, "fwd rule .* must produce a pair", _vjp(lambda x: x, lambda x: x, lambda r, g: (g,), 1.0)),
    (TypeError, "must produce a tuple", _vjp(lambda x: x, lambda x: (x, None), lambda r, g: g, 1.0)),
    (TypeError, r"differentiable arguments \(2\)",
     _vjp(lambda x, y: x * y, lambda x, y: (x * y, None), lambda r, g: (g,), 1.0, 2.0)),
    (ValueError, "shapes and dtypes of the arguments",
     _vjp(lambda x: x.sum(), lambda x: (x.sum(), None), lambda r, g: (jnp.ones(5),), jnp.ones(3))),
    (TypeError, r"container \(pytree\) structure as the args tuple",
     _vjp(lambda x: x, lambda x: (x, None), lambda r, g: ((g, g),), 1.0)),
    (TypeError, "(?s)custom_jvp-decorated function .* could not be resolved to positions: y",
     lambda: log_keyword(1.0, y=2.0)),
    (ValueError, r"nondiff_argnames names \['z'\], but the arguments of <lambda> are \['x'\]",
     lambda: anima.custom_jvp(lambda x: x, nondiff_argnames=("z",))),
    (TypeError, "can't apply forward-mode.*custom_vjp function", _forward_mode),
    (TypeError, "can't apply forward-mode.*custom_vjp function", lambda: _forward_mode(anima.jit)),
    (anima.errors.UnexpectedTracerError, "closes over", _closing_over_a_tracer),
    *((anima.errors.UnexpectedTracerError, "given a tracer as argument 1, which nondiff_argnums names",
       lambda wrap=wrap: wrap(_vjp_of_the_first)(1.0, 2.0)) for wrap in (
           anima.jit, lambda f: anima.grad(f, (0, 1)), lambda f: lambda *xs: anima.vmap(f)(*map(jnp.atleast_1d, xs)))),
    (TypeError, "defjvps.* with .*nondiff_argnums",
     lambda: anima.custom_jvp(lambda f, x: x, nondiff_argnums=(0,)).defjvps(lambda t, ans, x: t)),
])
def test_errors(kind: type[Exception], phrase: str, fun: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=phrase):
        fun()


@anima.custom_jvp
def log_keyword(x: Any, *, y: Any) -> Any:
    return jnp.log(x) * y


log_keyword.defjvp(lambda primals, tangents: (primals[0], tangents[0]))


def test_keyword_only_arguments_have_their_defaults() -> None:
    def scaled(x: Any, *, k: float = 2.0) -> Any:
        return x * k

    by_jvp = anima.custom_jvp(scaled)
    by_jvp.defjvp(lambda primals, tangents: (by_jvp(*primals), tangents[0] * 10))
    by_vjp = anima.custom_vjp(scaled)
    by_vjp.defvjp(lambda x: (scaled(x), ()), lambda _, ct: (ct * 10,))
    for f in (by_jvp, by_vjp):
        assert (f(3.0), anima.jit(f)(3.0), anima.grad(f)(3.0), anima.jit(anima.grad(f))(3.0)) == (6, 6, 10, 10)
        for call in (f, anima.jit(f)):
            with pytest.raises(TypeError, match="could not be resolved to positions: k"):
                call(3.0, k=4.0)


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0), (1, 0), (0, 1)])
@pytest.mark.parametrize("given", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("jit", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_no_cotangents_in_batches(jit: Callable[..., Any], given: tuple[bool, bool],
                                  axes: tuple[int | None, int | None]) -> None:
    """A rule gives None for an argument that is mapped along an axis, or by all lanes together."""
    @anima.custom_vjp
    def f(x: Any, y: Any) -> Any:
        return jnp.sum(x) * jnp.sum(y)

    f.defvjp(lambda x, y: (f(x, y), (x, y)),
             lambda res, ct: (ct * res[1] if given[0] else None, ct * 2 * res[0] if given[1] else None))
    shapes = [[3], [3]]
    for shape, axis in zip(shapes, axes, strict=True):
        if axis is not None:
            shape.insert(axis, 2)
    x, y = (np.arange(1.0, 1.0 + np.prod(s), dtype=np.float32).reshape(s) for s in shapes)
    got = jit(anima.grad(lambda x, y: anima.vmap(f, axes)(x, y).sum(), (0, 1)))(x, y)
    rows = [[v if axis is None else np.take(v, lane, axis) for v, axis in zip((x, y), axes, strict=True)]
            for lane in range(2)]
    for k, (g, v, axis) in enumerate(zip(got, (x, y), axes, strict=True)):
        parts = [(1 + k) * row[1 - k] * given[k] for row in rows]
        want = sum(parts) if axis is None else np.stack(parts, axis)
        assert g.shape == v.shape
        equal(g, want)


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_mapped_alone_a_function_just_runs(kind):
    seen = []

    def body(x):
        seen.append(type(x).__name__)
        return x

    f = (anima.custom_jvp if kind == "jvp" else anima.custom_vjp)(body)
    if kind == "jvp":
        f.defjvp(lambda primals, tangents: (f(*primals), 10.0 * tangents[0]))
    else:
        f.defvjp(lambda x: (x, None), lambda _, ct: (10.0 * ct,))
    x = jnp.arange(3.0)
    assert anima.vmap(f)(x) is x and anima.vmap(anima.vmap(f))(x[None])[0].tolist() == [0.0, 1.0, 2.0]
    assert seen == ["BatchTracer", "BatchTracer"]
    assert anima.vmap(lambda x: anima.lax.psum(f(x), "i"), axis_name="i")(x).tolist() == [3.0, 3.0, 3.0]
    assert anima.vmap(anima.grad(lambda x: f(x) * x))(x).tolist() == [0.0, 11.0, 22.0]
    assert anima.grad(lambda x: jnp.sum(anima.vmap(f)(x) * x))(x).tolist() == [0.0, 11.0, 22.0]
    assert anima.jit(anima.vmap(f))(x).tolist() == [0.0, 1.0, 2.0]
    assert str(anima.make_jaxpr(anima.vmap(f))(x)).count(f"custom_{kind}_call") == 1
