"""`custom_gradient`, `closure_convert`, `ravel_pytree`, and checkpointing's policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import ad_checkpoint
from anima.ad_checkpoint import checkpoint_name, print_saved_residuals
from anima.flatten_util import ravel_pytree


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_custom_gradient(wrap):
    @anima.custom_gradient
    def f(x):
        return x**2, lambda ct: (ct * 10.0 * x,)

    assert f(3.0) == 9.0
    assert wrap(anima.grad(f))(3.0) == 30.0
    assert wrap(anima.vmap(anima.grad(f)))(jnp.arange(3.0)).tolist() == [0.0, 10.0, 20.0]


def test_closure_convert_gives_gradients_by_what_is_closed_over():
    def apply(f, x, *consts):
        return f(x, *consts)

    apply = anima.custom_vjp(apply, nondiff_argnums=(0,))
    apply.defvjp(lambda f, x, *consts: (f(x, *consts), (x, consts)),
                 lambda f, res, ct: anima.vjp(f, res[0], *res[1])[1](ct))

    def loss(w):
        converted, consts = anima.closure_convert(lambda x: jnp.sin(w * x), 2.0)
        return apply(converted, 2.0, *consts)

    np.testing.assert_allclose(anima.grad(loss)(0.5), 2.0 * np.cos(1.0), rtol=1e-6)


def test_ravel_pytree():
    tree = {"a": jnp.arange(3), "b": [jnp.ones((2, 2)), 2.0]}
    flat, unravel = ravel_pytree(tree)
    assert flat.tolist() == [0, 1, 2, 1, 1, 1, 1, 2] and flat.dtype == np.dtype("float32")
    back = unravel(flat)
    assert back["a"].dtype == np.dtype("int32") and back["b"][0].shape == (2, 2)
    with pytest.raises(ValueError, match="Sum of sizes 8 must be equal to dimension 0 of the operand shape"):
        unravel(jnp.ones(3))
    assert ravel_pytree(())[0].shape == (0,)


def deep(x):
    return jnp.sin(checkpoint_name(jnp.sin(x), "inner") * x)


POLICIES = [None, anima.checkpoint_policies.everything_saveable, anima.checkpoint_policies.nothing_saveable,
            anima.checkpoint_policies.dots_saveable, anima.checkpoint_policies.save_only_these_names("inner"),
            anima.checkpoint_policies.save_any_names_but_these("inner")]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_checkpoint_changes_no_derivative(policy, wrap):
    f = anima.checkpoint(deep, policy=policy)
    np.testing.assert_allclose(wrap(anima.grad(f))(0.7), anima.grad(deep)(0.7), rtol=1e-6)
    np.testing.assert_allclose(wrap(anima.grad(anima.grad(f)))(0.7), anima.grad(anima.grad(deep))(0.7), rtol=1e-5)
    np.testing.assert_allclose(wrap(anima.vmap(anima.grad(f)))(jnp.arange(3.0)),
                               anima.vmap(anima.grad(deep))(jnp.arange(3.0)), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(anima.jvp(f, (0.7,), (1.0,))[1], anima.grad(deep)(0.7), rtol=1e-6)


def test_what_is_saved(capsys):
    print_saved_residuals(deep, 1.0)
    assert len(capsys.readouterr().out.splitlines()) == 4
    print_saved_residuals(anima.checkpoint(deep), 1.0)
    assert len(capsys.readouterr().out.splitlines()) == 1
    names = anima.checkpoint(deep, policy=anima.checkpoint_policies.save_only_these_names("inner"))
    print_saved_residuals(names, 1.0)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_checkpoint_of_a_scan_body_keeps_carries_only():
    def loss(x, wrap):
        def body(c, _):
            return jnp.sin(jnp.cos(c) * c) * x, None

        return anima.lax.scan(wrap(body), x, None, length=7)[0]

    expected = anima.grad(lambda x: loss(x, lambda f: f))(0.5)
    for wrap in (lambda f: f, anima.jit):
        np.testing.assert_allclose(wrap(anima.grad(lambda x: loss(x, anima.checkpoint)))(0.5), expected, rtol=1e-5)


def test_static_arguments_of_checkpoint():
    @anima.checkpoint
    def plain(x, flag=True):
        return x * 2.0

    @anima.remat(static_argnums=(1,))
    def with_flag(x, flag):
        return jnp.sin(x) if flag else x

    assert anima.grad(plain)(1.0) == 2.0
    np.testing.assert_allclose(anima.grad(with_flag)(1.0, True), np.cos(1.0), rtol=1e-6)
    assert anima.grad(with_flag)(1.0, False) == 1.0


# ---------------------------------------------------------------- ravel_pytree

def test_ravel_pytree_of_one_dtype_takes_any_vector_apart():
    flat, unravel = ravel_pytree({"a": jnp.arange(3), "b": 2})
    assert flat.dtype == jnp.int32
    back = unravel(jnp.arange(4.0))
    assert back["a"].dtype == back["b"].dtype == jnp.float32      # a tangent of integers, say
    assert ravel_pytree(3.0)[0].weak_type and not ravel_pytree({"a": jnp.ones(1), "b": 2.0})[0].weak_type


def test_ravel_pytree_of_several_dtypes_wants_its_own():
    flat, unravel = ravel_pytree({"a": jnp.arange(3), "b": 2.0})
    assert flat.dtype == jnp.float32 and unravel(flat)["a"].dtype == jnp.int32
    with pytest.raises(TypeError, match="dtype int32, but expected dtype float32"):
        unravel(jnp.arange(4))
    assert ravel_pytree([1.0, jnp.float16(2)])[0].dtype == jnp.float32      # weak types have their full size


# ---------------------------------------------------------------- policies

def _f(x, w):
    h = checkpoint_name(jnp.sin(x @ w), "h")
    g = checkpoint_name(jnp.tanh(h @ w), "g")
    return jnp.sum(g * h)


_POLICIES = anima.checkpoint_policies
_KEPT = [  # policy, how many values beside the two arguments reverse mode keeps (as JAX's print_saved_residuals says)
    (None, 0), (_POLICIES.everything_saveable, 5), (_POLICIES.nothing_saveable, 0), (_POLICIES.dots_saveable, 2),
    (_POLICIES.checkpoint_dots_with_no_batch_dims, 2), (_POLICIES.save_only_these_names("h"), 1),
    (_POLICIES.save_only_these_names("h", "g"), 2), (_POLICIES.save_any_names_but_these("h"), 1),
    (_POLICIES.save_from_both_policies(_POLICIES.dots_saveable, _POLICIES.save_only_these_names("g")), 3),
    (_POLICIES.save_and_offload_only_these_names(
        names_which_can_be_saved=["h"], names_which_can_be_offloaded=["g"], offload_src="device",
        offload_dst="pinned_host"), 2),
    (_POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host"), 2),
    (lambda prim, *_, **__: ad_checkpoint.Saveable if prim.name == "sin" else ad_checkpoint.Recompute, 1),
    (lambda prim, *_, **__: ad_checkpoint.Offloadable("device", "pinned_host") if prim.name == "tanh" else False, 1),
]


@pytest.mark.parametrize("policy, kept", _KEPT)
def test_policies_keep_what_they_say_and_gradients_stay(policy, kept):
    x, w = jnp.arange(6.0).reshape(2, 3) / 10, jnp.arange(9.0).reshape(3, 3) / 10
    f = anima.checkpoint(_f, policy=policy)
    assert len(ad_checkpoint.saved_residuals(f, x, w)) == 2 + kept
    for transform in (lambda f: anima.grad(f, (0, 1)), lambda f: anima.jit(anima.hessian(f))):
        for a, b in zip(anima.tree.leaves(transform(f)(x, w)), anima.tree.leaves(transform(_f)(x, w)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_saved_residuals_have_the_users_names(capsys):
    x, w = jnp.ones((2, 3)), {"a": jnp.ones((3, 3))}
    f = anima.checkpoint(lambda x, w, *rest: _f(x, w["a"]) + rest[0], policy=_POLICIES.save_only_these_names("h"))
    print_saved_residuals(f, x, w, 1.0)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" from test_")[0] for line in lines] == [
        "f32[2,3] from the argument x", "f32[3,3] from the argument w['a']", "f32[2,3] named 'h'"]


def test_names_are_saved_or_offloaded():
    with pytest.raises(ValueError, match="not both"):
        _POLICIES.save_and_offload_only_these_names(names_which_can_be_saved=["h"], names_which_can_be_offloaded=["h"],
                                                    offload_src="device", offload_dst="pinned_host")


@pytest.mark.parametrize("nums", [2, (0, 5), -3])
def test_static_argnums_of_checkpoint_are_arguments(nums):
    with pytest.raises(ValueError, match="static_argnums"):
        anima.checkpoint(lambda x, n: x, static_argnums=nums)(1.0, 2)


@anima.custom_batching.custom_vmap
def mapped_cube(x, t):
    return x**3, 3 * x * x * t


mapped_cube.def_vmap(lambda size, batched, x, t: ((x**3, 3 * x * x * t), (batched[0], any(batched))))


@anima.custom_vjp
def pulled_cube(x, t):
    return x**3, 3 * x * x * t


pulled_cube.defvjp(lambda x, t: (pulled_cube(x, t), (x, t)), lambda r, ct: (
    3 * r[0]**2 * ct[0] + 6 * r[0] * r[1] * ct[1], 3 * r[0]**2 * ct[1]))


def solved_cube(x, t):
    def scaled(_, b):
        return b[0] * x**3, b[1] * 3 * x * x

    return anima.lax.custom_linear_solve(lambda v: (v[0] / x**3, v[1] / (3 * x * x)), (jnp.ones_like(x), t), scaled,
                                         scaled)


# Programs that a rule may compute results and slopes in together: x cubed.
TOGETHER = {
    "jit": lambda x, t: anima.jit(lambda x, t: (x**3, 3 * x * x * t))(x, t),
    "checkpoint": lambda x, t: anima.checkpoint(lambda x, t: (x**3, 3 * x * x * t))(x, t),
    "cond": lambda x, t: anima.lax.cond(x > 0, lambda x, t: (x**3, 3 * x * x * t), lambda x, t: (x, t), x, t),
    "scan": lambda x, t: anima.lax.scan(lambda c, _: ((c[0] * x, c[1] * x + c[0] * t), None), (x, t), None, 2)[0],
    "while": lambda x, t: anima.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * x, c[2] * x + c[1] * t),
                                               (0, x, t))[1:],
    "custom_vmap": mapped_cube, "custom_vjp": pulled_cube, "custom_linear_solve": solved_cube,
    "jvp": lambda x, t: anima.jvp(lambda x: anima.jit(lambda x: x**3)(x), (x,), (t,)),
}


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", TOGETHER)
def test_rules_that_compute_results_and_slopes_in_one_program(name: str, wrap: Callable[..., Any]) -> None:
    @anima.custom_jvp
    def cube(x):
        return x**3

    cube.defjvp(lambda primals, tangents: TOGETHER[name](*primals, *tangents))
    value, pull = anima.vjp(cube, 0.7)
    np.testing.assert_allclose((value, *pull(2.0)), (0.343, 2.94), rtol=1e-6)
    np.testing.assert_allclose(wrap(anima.grad(cube))(0.7), 1.47, rtol=1e-6)
    np.testing.assert_allclose(wrap(anima.grad(anima.grad(cube)))(0.7), 4.2, rtol=1e-6)
    if name != "custom_vjp":  # which has no forward mode
        np.testing.assert_allclose(wrap(lambda x: anima.linearize(cube, x)[1](2.0))(0.7), 2.94, rtol=1e-6)
    np.testing.assert_allclose(wrap(anima.vmap(anima.grad(cube)))(jnp.array([0.5, 1.0])), [0.75, 3.0], rtol=1e-6)


def test_rules_whose_results_have_another_structure_are_told() -> None:
    @anima.custom_jvp
    def pair(x):
        return x, x

    pair.defjvp(lambda primals, tangents: ([*primals, *primals], [*tangents, *tangents]))
    with pytest.raises(TypeError, match=r"structure of the function's own output, PyTreeDef\(\(\*, \*\)\), but got"):
        anima.jit(lambda x: anima.jvp(pair, (x,), (x,)))(1.0)

    @anima.custom_vjp
    def other(x):
        return x, x

    other.defvjp(lambda x: ([x, x], None), lambda _, ct: (ct[0],))
    with pytest.raises(TypeError, match=r"container \(pytree\) structure PyTreeDef\(\(\*, \*\)\), but got"):
        anima.jit(anima.grad(lambda x: other(x)[0]))(1.0)


def test_checkpoint_has_no_concrete_arguments() -> None:
    for given in (True, False):
        with pytest.raises(NotImplementedError, match="static_argnums"):
            anima.checkpoint(deep, concrete=given)


def test_saved_residuals_of_functions_that_nobody_can_look_into(capsys: pytest.CaptureFixture[str]) -> None:
    class Silent:
        __signature__ = "none"

        def __call__(self, x, y):
            return x * y

    print_saved_residuals(Silent(), 2.0, 3.0)
    assert capsys.readouterr().out.splitlines() == [f"f32[] from the argument args[{k}]" for k in (1, 0)]


@pytest.mark.parametrize("transform, made", [
    (lambda f: anima.vmap(f)(jnp.ones(2)), "while a function was being mapped by vmap"),
    (lambda f: anima.jvp(f, (1.0,), (1.0,)), "while a function was being differentiated"),
    (lambda f: anima.jit(lambda outer: anima.vmap(f)(outer))(jnp.ones(2)), "It was the argument outer of the function"),
    (lambda f: anima.jit(lambda outer: anima.jvp(f, (outer,), (outer,)))(1.0), "the argument outer of the function"),
])
def test_values_that_outlive_their_transformation_say_where_they_were_made(transform: Callable[..., Any],
                                                                           made: str) -> None:
    kept = []
    transform(lambda x: kept.append(x) or x)
    with pytest.raises(anima.errors.UnexpectedTracerError, match=made):
        kept[0] + 1


def test_outside_of_jit_derivatives_ask_rules_alone() -> None:
    """The function runs where its rule calls it, on arrays with values: it may be NumPy's, or a simulator's."""
    seen = []

    @anima.custom_jvp
    def f(n, x):
        seen.append(x)
        return {"a": jnp.asarray(n * np.sin(np.asarray(x)))}

    @f.defjvp
    def f_jvp(primals, tangents):
        (n, x), (_, x_dot) = primals, tangents
        return f(n, x), {"a": n * jnp.cos(x) * x_dot}

    fun = lambda x: f(2, x)["a"]
    x = jnp.array([0.5, 1.5])
    np.testing.assert_allclose(anima.grad(fun)(0.5), 2 * np.cos(0.5), rtol=1e-6)
    np.testing.assert_allclose(anima.jvp(fun, (0.5,), (3.0,)), (2 * np.sin(0.5), 6 * np.cos(0.5)), rtol=1e-6)
    np.testing.assert_allclose(anima.linearize(fun, 0.5)[1](1.0), 2 * np.cos(0.5), rtol=1e-6)
    for jacobian in anima.jacfwd, anima.jacrev:
        np.testing.assert_allclose(jacobian(fun)(x), np.diag(2 * np.cos(x)), rtol=1e-6)
    np.testing.assert_allclose(anima.grad(anima.grad(fun))(0.5), -2 * np.sin(0.5), rtol=1e-6)
    np.testing.assert_allclose(anima.grad(lambda y: fun(0.5) * y)(1.0), 2 * np.sin(0.5), rtol=1e-6)
    assert len(seen) == 7 and not any(isinstance(x, anima.core.Tracer) for x in seen)
    with pytest.raises(anima.errors.TracerArrayConversionError, match="custom_jvp"):
        anima.jit(anima.grad(fun))(0.5)

    @anima.custom_vjp
    def other(x, y):
        return jnp.asarray(np.sin(np.asarray(x))) * y

    other.defvjp(lambda x, y: (other(x, y), (x, y)),
                 lambda res, ct: (ct * jnp.asarray(np.cos(np.asarray(res[0]))) * res[1], None))
    np.testing.assert_allclose(anima.grad(other)(0.5, 2.0), 2 * np.cos(0.5), rtol=1e-6)
    np.testing.assert_allclose(anima.vjp(lambda x: other(x, other(1.0, 2.0)), 0.5)[1](1.0)[0],
                               2 * np.sin(1) * np.cos(0.5), rtol=1e-6)
    with pytest.raises(anima.errors.TracerArrayConversionError, match="custom_vjp"):
        anima.jit(anima.grad(other))(0.5, 2.0)


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_rules_close_over_what_vmap_maps_within_differentiation(wrap: Any) -> None:
    xs, z = jnp.arange(3.0), 2.0

    def forward(x: Any, z: Any) -> Any:
        @anima.custom_jvp
        def f(z: Any) -> Any:
            return jnp.sin(z) * x
        f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * jnp.cos(primals[0]) * x * 5))
        return f(z)

    def backward(x: Any, z: Any) -> Any:
        @anima.custom_vjp
        def f(z: Any) -> Any:
            return jnp.sin(z) * x
        f.defvjp(lambda z: (f(z), (x, z)), lambda residuals, ct: (ct * residuals[0] * jnp.cos(residuals[1]) * 5,))
        return f(z)

    for function in forward, backward:
        total = lambda z, function=function: anima.vmap(lambda x: function(x, z))(xs).sum()
        np.testing.assert_allclose(wrap(anima.grad(total))(z), 15 * np.cos(z), rtol=1e-6)
        np.testing.assert_allclose(wrap(anima.vmap(anima.grad(total)))(xs), 15 * np.cos(xs), rtol=1e-6)
    total = lambda z: anima.vmap(lambda x: anima.vmap(lambda y: forward(x * y, z))(xs))(xs).sum()
    np.testing.assert_allclose(wrap(anima.grad(total))(z), 45 * np.cos(z), rtol=1e-6)
    np.testing.assert_allclose(wrap(anima.hessian(lambda z: anima.vmap(lambda x: forward(x, z))(xs).sum()))(z),
                               -15 * np.sin(z), rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_arguments_not_differentiated_may_be_mapped_within_differentiation(wrap: Any) -> None:
    jvp = anima.custom_jvp(lambda a, x: jnp.sin(x) * a, nondiff_argnums=(0,))
    jvp.defjvp(lambda a, primals, tangents: (jvp(a, *primals), tangents[0] * jnp.cos(primals[0]) * a))
    mapped = lambda x: anima.vmap(lambda a: jvp(a, x))(jnp.arange(3.0))
    values, slopes = wrap(lambda x: anima.jvp(mapped, (x,), (1.0,)))(2.0)
    np.testing.assert_allclose(values, np.sin(2) * np.arange(3), rtol=1e-6)
    np.testing.assert_allclose(slopes, np.cos(2) * np.arange(3), rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_residuals_of_numpy_stay_so(wrap: Any) -> None:
    f = anima.custom_vjp(jnp.sin)
    f.defvjp(lambda x: (jnp.sin(x), (np.float32(2), np.arange(3.0))),
             lambda residuals, ct: (np.full((), residuals[0] * 7 + residuals[1].sum(), np.float32),))
    assert wrap(anima.grad(f))(0.5) == 17.0
    assert wrap(anima.vmap(anima.grad(f)))(jnp.ones(2)).tolist() == [17.0, 17.0]
    assert wrap(anima.grad(lambda x: anima.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]))(0.5) == 17.0


@pytest.mark.parametrize("given, made", [("bfloat16", "float32"), ("float32", "float16"), ("float16", "bfloat16")])
def test_rules_may_compute_in_floats_of_another_width(given: str, made: str) -> None:
    f = anima.custom_vjp(lambda x: x.astype(made))
    f.defvjp(lambda x: (f(x), None), lambda _, ct: (ct.astype(made) * 3,))
    slope = anima.grad(lambda x: f(x).sum().astype("float32"))(jnp.ones(2, given))
    assert slope.dtype == given and slope.tolist() == [3.0, 3.0]


def test_functions_with_rules_run_while_a_program_is_made() -> None:
    @anima.custom_jvp
    def f(x: Any) -> Any:
        return x * 2 if x == 1 else x
    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))

    @anima.jit
    def g(x: Any) -> Any:
        with anima.ensure_compile_time_eval():
            n = int(f(1.0))
        return x * n
    assert g(3.0) == 6.0
