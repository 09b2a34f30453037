"""anima.extend.core: primitives defined rule by rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.extend import core
from anima.interpreters import ad, partial_eval

X = np.float32([1.0, 2.0, -3.0])
X_TYPE = core.ShapedArray((3,), np.dtype(np.float32))


def equal(actual: Any, expected: Any) -> None:
    for a, e in zip(anima.tree.leaves(actual), anima.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=1e-6)


def scale_primitive() -> core.Primitive:
    """x -> factor * x, with every rule."""
    p = core.Primitive("my_scale")
    p.def_abstract_eval(lambda x, *, factor: core.ShapedArray(x.shape, x.dtype))
    p.def_impl(lambda x, *, factor: np.asarray(x) * np.float32(factor))
    p.def_lowering(lambda x, *, factor: x * factor)
    p.def_jvp(lambda primals, tangents, *, factor: (
        p.bind(*primals, factor=factor), p.bind(core.instantiate(tangents[0]), factor=factor)))
    p.def_transpose(lambda ct, x, *, factor: [p.bind(ct, factor=factor)])
    p.def_batching(lambda args, dims, *, factor: (p.bind(args[0], factor=factor), dims[0]))
    return p


def test_every_transformation() -> None:
    p = scale_primitive()

    def f(x: Any) -> Any:
        return p.bind(jnp.sin(x), factor=3.0).sum()

    for mode in (lambda f: f, anima.jit):
        equal(mode(f)(X), 3 * np.sin(X).sum())
        equal(mode(anima.grad(f))(X), 3 * np.cos(X))
        equal(mode(anima.vmap(anima.grad(f)))(np.stack([X, X])), np.stack([3 * np.cos(X)] * 2))
        equal(mode(lambda x: lax.scan(lambda c, _: (p.bind(c, factor=2.0), None), x, None, length=3)[0])(X), 8 * X)
    assert "my_scale[factor=3.0]" in str(anima.make_jaxpr(f)(X))


def test_two_results() -> None:
    p = core.Primitive("my_split", multiple_results=True)
    p.def_abstract_eval(lambda x: [x, x])
    p.def_lowering(lambda x: (x + 1, x * 2))
    for mode in (lambda f: f, anima.jit):
        equal(mode(lambda x: p.bind(x))(X), [X + 1, X * 2])


def test_impl_with_numpy_alone_runs_outside_of_jit() -> None:
    p = core.Primitive("my_sort")
    p.def_abstract_eval(lambda x: x)
    p.def_impl(np.sort)
    equal(p.bind(X), np.sort(X))
    with pytest.raises(NotImplementedError, match=r"Compilation of 'my_sort' is not implemented\..*def_lowering"):
        anima.jit(p.bind)(X)


def test_rules_that_are_missing_or_wrong() -> None:
    p = core.Primitive("my_op")
    with pytest.raises(NotImplementedError, match=r"Evaluation of 'my_op'.*def_impl"):
        p.bind(1.0)
    with pytest.raises(NotImplementedError, match=r"Type inference of 'my_op'.*def_abstract_eval"):
        anima.jit(p.bind)(1.0)
    p.def_abstract_eval(lambda x: x)
    p.def_impl(lambda x: jnp.ones(3))
    with pytest.raises(TypeError, match=r"'my_op' returned \['float32\[3\]'\].*says \['float32\[\]'\]"):
        p.bind(1.0)
    with pytest.raises(NotImplementedError, match=r"Forward-mode differentiation of 'my_op'.*primitive_jvps"):
        anima.jvp(p.bind, (1.0,), (1.0,))
    with pytest.raises(NotImplementedError, match=r"Batching .vmap. of 'my_op'.*primitive_batchers"):
        anima.vmap(p.bind)(X)


def test_without_types_the_implementation_alone_says_what_comes_out() -> None:
    p = core.Primitive("my_free")
    p.def_impl(lambda x, *, names: dict.fromkeys(names, x))
    assert p.bind(2.0, names="ab") == {"a": 2.0, "b": 2.0}
    with pytest.raises(TypeError, match="not a valid Anima type"):
        p.bind("a", names="ab")


def test_a_tracer_does_not_reach_an_implementation() -> None:
    p = core.Primitive("my_eager")
    p.def_impl(lambda x: x)
    leaked: list[Any] = []
    anima.jit(lambda x: leaked.append(x) or x)(1.0)
    with pytest.raises(anima.errors.UnexpectedTracerError):
        p.bind(leaked[0])


def test_what_has_effects_is_never_dropped() -> None:
    class Note(core.Effect):
        pass

    p = core.Primitive("my_note")
    p.def_effectful_abstract_eval(lambda x, *, quiet: (x, set() if quiet else {Note()}))
    p.def_lowering(lambda x, *, quiet: x)

    def f(x: Any, quiet: bool) -> Any:
        p.bind(x, quiet=quiet)
        return x

    for quiet in (False, True):
        jaxpr = anima.make_jaxpr(f, static_argnums=1)(1.0, quiet).jaxpr
        assert len(jaxpr.effects) == len(jaxpr.eqns[0].effects) == (not quiet)
        assert len(partial_eval.dce_jaxpr(jaxpr, [True])[0].eqns) == (not quiet)
        assert bool(p.abstract_eval(X_TYPE, quiet=quiet)[1]) is not quiet
        equal(anima.jit(f, static_argnums=1)(2.0, quiet), 2.0)


def test_how_an_operation_is_bound_can_be_said() -> None:
    p = core.Primitive("my_bound")
    p.def_abstract_eval(lambda x: x)
    p.def_impl(lambda x: x)
    asked = []
    p.def_bind_with_trace(lambda trace, args, avals, params: asked.append(trace) or
                          core.Primitive.bind_with_trace(p, trace, args, avals, params))
    assert p.bind(1.0) == 1.0
    anima.make_jaxpr(p.bind)(1.0)
    assert [type(t).__name__ for t in asked] == ["EvalTrace", "StageTrace"]


def soft(x: Any) -> Any:
    """x / (1 + |x|)."""
    return x / (1 + np.abs(x))


@pytest.fixture(scope="module")
def soft_p() -> Any:
    return core.elementwise("my_soft", soft, lambda x: x / (x.abs() + 1.0), cost=5.0,
                            jvp=[lambda t, y, x: t * (1 - abs(y)) ** 2])


def slope(x: Any) -> Any:
    return 1 / (1 + np.abs(x)) ** 2

def test_rules_get_tuples_and_may_call_jitted_functions_of_the_operation() -> None:
    """As the derivative of a transform is one: of an operation that is linear in its first operand."""
    @anima.jit
    def turned(x: Any, angle: Any) -> Any:
        return turn_p.bind(x, angle)

    def jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
        kinds.append((type(primals), type(tangents)))
        (x, angle), (dx, da) = primals, tangents
        parts = [] if type(dx) is ad.Zero else [turned(dx, angle)]
        parts += [] if type(da) is ad.Zero else [turned(da * x, angle + np.float32(np.pi / 2))]
        return turn_p.bind(x, angle), sum(parts)

    kinds: list[Any] = []
    turn_p = core.Primitive("tests_turn")
    turn_p.def_impl(lambda x, angle: np.asarray(x) * np.cos(np.asarray(angle)))
    turn_p.def_abstract_eval(lambda x, angle: x)
    turn_p.def_lowering(lambda x, angle: x * jnp.cos(angle))
    turn_p.def_jvp(jvp)
    turn_p.def_transpose(lambda ct, x, angle: [turned(ct, angle), None])
    for run in (lambda f: f, anima.jit, lambda f: anima.jit(anima.jit(f))):
        for _ in range(3):  # what was met before is known
            slopes = run(anima.grad(lambda x, a: turned(x, a) ** 2, argnums=(0, 1)))(2.0, 0.5)
            np.testing.assert_allclose(slopes, [4 * np.cos(0.5) ** 2, -8 * np.cos(0.5) * np.sin(0.5)], rtol=1e-5)
        second = run(anima.grad(anima.grad(lambda a: turned(2.0, a))))(0.5)
        np.testing.assert_allclose(second, -2 * np.cos(0.5), rtol=1e-5)
    assert set(kinds) == {(tuple, tuple)}


def test_sizes_and_dtypes_of_types_may_be_of_other_classes() -> None:
    """NumPy's integers, as computed from shapes, and its scalar types."""
    p = core.Primitive("tests_twice")
    p.def_abstract_eval(lambda x: anima.core.ShapedArray((np.int64(2), *(np.array(x.shape) + 1)), np.float32))
    p.def_lowering(lambda x: jnp.zeros((2, x.shape[0] + 1)) + x[0])
    (eqn,) = anima.make_jaxpr(p.bind)(jnp.ones(3)).eqns
    assert [type(n) for n in eqn.outvars[0].aval.shape] == [int, int] and eqn.outvars[0].aval.dtype == np.dtype("f4")
    big = anima.jit(lambda x: jnp.cumsum(jnp.sort(p.bind(x), 1), 0) @ p.bind(x).T)(jnp.arange(4000.0))
    np.testing.assert_array_equal(big, np.zeros((2, 2)))



@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1000])
@pytest.mark.usefixtures("x64")
def test_an_elementwise_operation_with_instructions_of_its_own(soft_p: Any, size: int, dtype: str) -> None:
    x = jnp.linspace(-3, 3, size).astype(dtype)
    got = anima.jit(soft_p)(x)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(np.asarray(got, float), np.asarray(soft_p(x), float), rtol=4 * jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(soft_p(x), float), soft(np.asarray(x, float)), rtol=4 * jnp.finfo(dtype).eps)


def test_an_elementwise_operation_of_ones_own_is_like_all_others(soft_p: Any) -> None:
    x = jnp.float32(np.linspace(-2, 2, 12).reshape(3, 4))
    equal(anima.jit(anima.vmap(anima.grad(soft_p)))(x[0]), slope(np.asarray(x[0])))
    equal(anima.jit(anima.vmap(soft_p, in_axes=1, out_axes=1))(x), soft(np.asarray(x)))
    equal(anima.jvp(soft_p, (x,), (x,))[1], slope(np.asarray(x)) * np.asarray(x))
    second = anima.jit(anima.grad(anima.grad(soft_p)))(0.5)
    equal(second, np.float32(-2 / 1.5**3))

    def chain(x: Any) -> Any:
        return jnp.sum(soft_p(x * 2) + 1)

    assert anima.jit(chain).lower(x).kernel_count == 1
    dear = core.elementwise("my_dear", soft, lambda x: x / (x.abs() + 1.0), cost=5000.0, jvp=[None])
    seconds = [anima.jit(f).lower(x).compile().cost_analysis()["optimal_seconds"] for f in (soft_p, dear)]
    assert seconds[1] > 100 * seconds[0]
    for taken in ("sin", "my_soft"):
        with pytest.raises(ValueError, match="already"):
            core.elementwise(taken, soft, lambda x: x, jvp=[None])
