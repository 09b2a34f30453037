"""Rules of primitives from outside: every transformation and the compiler honour them, and say which one is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.extend import core
from anima.extend.core import primitives
from anima.interpreters import ad, batching, mlir, xla

X, Y = np.float32([2.0, 3.0]), np.float32([10.0, 20.0])


def equal(actual: Any, expected: Any) -> None:
    for a, e in zip(anima.tree.leaves(actual), anima.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=1e-6)


class MultiplyAdd:
    """x * y + z, whose rules are given one after the other."""

    def __init__(self) -> None:
        self.p = core.Primitive("multiply_add")

    def __call__(self, x: Any, y: Any, z: Any) -> Any:
        return self.p.bind(x, y, z)

    def square_add(self, a: Any, b: Any) -> Any:
        return self(a, a, b)

    def give_impl(self) -> None:
        self.p.def_impl(lambda x, y, z: np.add(np.multiply(x, y), z))

    def give_types(self) -> None:
        self.p.def_abstract_eval(lambda x, y, z: core.ShapedArray(x.shape, x.dtype))

    def give_lowering(self) -> None:
        mlir.register_lowering(self.p, mlir.lower_fun(lambda x, y, z: x * y + z, multiple_results=False))

    def give_jvp(self) -> None:
        def jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
            (x, y, z), (dx, dy, dz) = primals, map(ad.instantiate_zeros, tangents)
            return self(x, y, z), self(dx, y, self(x, dy, dz))

        ad.primitive_jvps[self.p] = jvp

    def give_transpose(self) -> None:
        def transpose(ct: Any, x: Any, y: Any, z: Any) -> Any:
            zero = jnp.zeros_like(ct)
            if ad.is_undefined_primal(x):
                return self(ct, y, zero), None, ct
            return None, self(ct, x, zero), ct

        ad.primitive_transposes[self.p] = transpose

    def give_batch(self) -> None:
        def batch(args: Any, dims: Any) -> tuple[Any, Any]:
            size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
            return self(*(batching.bdim_at_front(a, d, size) for a, d in zip(args, dims, strict=True))), 0

        batching.primitive_batchers[self.p] = batch

    def give_all(self) -> None:
        for name in ("impl", "types", "lowering", "jvp", "transpose", "batch"):
            getattr(self, f"give_{name}")()


@pytest.fixture
def op() -> MultiplyAdd:
    return MultiplyAdd()


def test_one_rule_after_the_other(op: MultiplyAdd) -> None:
    f = op.square_add
    steps: list[tuple[Callable[[], Any], str, Callable[[], None], Any]] = [
        (lambda: f(2.0, 10.0), "Evaluation of 'multiply_add'", op.give_impl, 14.0),
        (lambda: anima.make_jaxpr(f)(2.0, 10.0).out_avals[0].ndim, "Type inference of 'multiply_add'", op.give_types,
         0),
        (lambda: anima.jit(f)(2.0, 10.0), "Compilation of 'multiply_add'", op.give_lowering, 14.0),
        (lambda: anima.jvp(f, (2.0, 10.0), (1.0, 1.0)), "Forward-mode differentiation of 'multiply_add'", op.give_jvp,
         (14.0, 5.0)),
        (lambda: anima.grad(f)(2.0, 10.0), "Transposition .* of 'multiply_add'.*primitive_transposes",
         op.give_transpose, 4.0),
        (lambda: anima.vmap(f)(X, Y), "Batching .vmap. of 'multiply_add'", op.give_batch, X * X + Y)]
    for run, missing, give, expected in steps:
        with pytest.raises(NotImplementedError, match=missing):
            run()
        give()
        equal(run(), expected)


@pytest.mark.parametrize("mode", [lambda f: f, anima.jit])
def test_every_transformation(op: MultiplyAdd, mode: Any) -> None:
    op.give_all()
    f = op.square_add
    equal(mode(f)(2.0, 10.0), 14.0)
    equal(mode(anima.grad(f, (0, 1)))(2.0, 10.0), (4.0, 1.0))
    equal(mode(anima.grad(anima.grad(f)))(2.0, 10.0), 2.0)
    equal(mode(anima.hessian(f))(2.0, 10.0), 2.0)
    equal(mode(anima.vmap(f, in_axes=(0, None)))(X, np.float32(1.0)), X * X + 1)
    equal(mode(anima.vmap(anima.grad(f)))(X, Y), 2 * X)
    equal(mode(anima.checkpoint(f))(2.0, 10.0), 14.0)
    equal(mode(anima.grad(anima.checkpoint(f)))(2.0, 10.0), 4.0)

    def loop(x: Any) -> Any:
        return lax.scan(lambda c, y: (f(c, y), None), x, np.float32([1.0, 2.0]))[0]

    equal(mode(loop)(np.float32(1.0)), 6.0)
    equal(mode(anima.grad(loop))(np.float32(1.0)), 8.0)
    equal(mode(anima.vmap(loop))(X), (X * X + 1) ** 2 + 2)
    equal(mode(lambda x: lax.cond(x > 0, lambda x: f(x, x), lambda x: x, x))(np.float32(2.0)), 6.0)
    equal(mode(lambda x: lax.while_loop(lambda x: x < 50, lambda x: f(x, x), x))(np.float32(2.0)), 1806.0)


def test_tables_are_views_of_the_primitives(op: MultiplyAdd) -> None:
    assert op.p not in ad.primitive_jvps
    with pytest.raises(KeyError):
        ad.primitive_jvps[op.p]
    op.give_all()
    assert op.p in ad.primitive_jvps
    assert op.p in list(ad.primitive_jvps)
    assert primitives.sin_p in ad.primitive_jvps
    assert len(batching.primitive_batchers) > 100
    own = ad.primitive_jvps[op.p]
    own_batch = batching.primitive_batchers[op.p]
    equal(own_batch((X, X, Y), (0, 0, 0))[0], X * X + Y)
    ad.primitive_jvps[op.p] = lambda primals, tangents: (op(*primals), 7.0 * tangents[0])
    assert ad.primitive_jvps[op.p] is not own
    equal(anima.jvp(lambda x: op(x, 3.0, 4.0), (2.0,), (1.0,))[1], 7.0)
    del ad.primitive_jvps[op.p]
    with pytest.raises(NotImplementedError, match="Forward-mode"):
        anima.jvp(op.square_add, (1.0, 1.0), (1.0, 1.0))
    with pytest.raises(KeyError):
        del ad.primitive_jvps[op.p]


def test_rules_of_animas_own_primitives_can_be_called_and_replaced() -> None:
    undefined = ad.UndefinedPrimal(core.ShapedArray((), np.dtype(np.float32)))
    equal(ad.primitive_transposes[primitives.mul_p](2.0, undefined, 3.0)[0], 6.0)
    equal(ad.get_primitive_transpose(primitives.neg_p)(2.0, undefined), [-2.0])
    out, dim = batching.primitive_batchers[primitives.reduce_sum_p]((np.ones((2, 3), np.float32),), (1,), axes=(0,))
    equal(out, np.full(3, 2.0))
    assert dim == 0
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for found, dim in (
            batching.fancy_primitive_batchers[primitives.reduce_sum_p](
                batching.AxisData(None, 3), (x,), (1,), axes=(0,)),
            batching.axis_primitive_batchers[primitives.reduce_sum_p](3, None, None, (x,), (1,), axes=(0,))):
        equal(found, x.sum(0))
        assert dim == 0
    ad.primitive_jvps[primitives.cos_p] = lambda primals, tangents, **params: (jnp.cos(*primals), 5.0 * tangents[0])
    try:
        equal(anima.grad(jnp.cos)(1.0), 5.0)
    finally:
        del ad.primitive_jvps[primitives.cos_p]
    equal(anima.grad(jnp.cos)(1.0), -np.sin(1.0))
    ad.primitive_jvps[primitives.scan_p] = lambda primals, tangents, **params: ([5.0], [7.0])
    try:
        loop = anima.grad(lambda x: lax.scan(lambda c, _: (c * x, None), x, None, length=2)[0])
        equal(loop(1.0), 0.0)  # not by the loop's own linearisation: 7 does not depend on the tangent
    finally:
        del ad.primitive_jvps[primitives.scan_p]
    equal(loop(2.0), 12.0)


def test_symbolic_zeros_are_trees_without_leaves() -> None:
    aval = core.ShapedArray((2,), np.dtype(np.float32))
    for x in (ad.Zero(aval), ad.UndefinedPrimal(aval)):
        leaves, structure = anima.tree.flatten(x)
        assert (leaves, structure.unflatten([])) == ([], x)
    equal(ad.instantiate_zeros(ad.Zero(aval)), ad.zeros_like_aval(aval))
    assert ad.add_tangents(ad.Zero(aval), ad.Zero(aval)) == ad.Zero(aval)
    equal(ad.add_tangents(ad.Zero(aval), X), X)
    equal(ad.add_jaxvals(X, X), 2 * X)


def test_operations_without_a_rule() -> None:
    p = core.Primitive("without_rules")
    with pytest.raises(NotImplementedError, match=r"Transposition .* of 'without_rules' is not implemented"):
        ad.get_primitive_transpose(p)


def test_one_operation_as_a_program() -> None:
    """Parameters may be what has no hash."""
    x = np.float32([[1, 2], [3, 4]])
    equal(xla.apply_primitive(primitives.reduce_sum_p, x, axes=(0,)), x.sum(0))
    p = core.Primitive("listed")
    p.def_impl(lambda x, *, factors: x * sum(factors))
    mlir.register_lowering(p, mlir.lower_fun(lambda x, *, factors: x * sum(factors), multiple_results=False))
    p.def_abstract_eval(lambda x, *, factors: x)
    for factors, total in (([1, 2], 3), ([4, 5], 9), ((4, 5), 9)):
        equal(xla.apply_primitive(p, x, factors=factors), total * x)
    for value in (np.float64(1.5), np.arange(3)):
        found = xla.canonicalize_dtype_handlers[type(value)](value)
        assert isinstance(found, np.ndarray) and found.dtype == anima.dtypes.canonicalize_dtype(value.dtype)
        equal(found, value)


def made(name: str, fun: Callable[..., Any], many: bool = False) -> core.Primitive:
    p = core.Primitive(name)
    p.multiple_results = many
    p.def_impl(fun)
    mlir.register_lowering(p, mlir.lower_fun(fun, multiple_results=many))
    return p


def test_linear_operations() -> None:
    p = made("turn", lambda x, y: [x + y, x - y], many=True)
    p.def_abstract_eval(lambda x, y: (x, y))
    ad.deflinear2(p, lambda cts, x, y: p.bind(*map(ad.instantiate_zeros, cts)))
    assert ad.is_undefined_primal(ad.UndefinedPrimal(core.ShapedArray((), np.dtype(np.float32))))
    for mode in (lambda f: f, anima.jit):
        equal(mode(anima.grad(lambda x, y: p.bind(x, y)[1], (0, 1)))(3.0, 4.0), (1.0, -1.0))
        equal(mode(lambda x: anima.vjp(p.bind, x, x)[1]([1.0, 2.0]))(3.0), (3.0, -1.0))
    q = made("twice", lambda x: x * 2)
    q.def_abstract_eval(lambda x: x)
    ad.deflinear(q, lambda ct: [q.bind(ct)])
    equal(anima.jit(anima.grad(lambda x: q.bind(q.bind(x))))(1.0), 4.0)
    equal(anima.linear_transpose(q.bind, 1.0)(3.0), (6.0,))


def test_bilinear_operations() -> None:
    p = made("times", lambda x, y: x * y)
    p.def_abstract_eval(lambda x, y: x)
    ad.defbilinear(p, lambda ct, x, y: p.bind(ct, y), lambda ct, x, y: p.bind(x, ct))
    batching.defvectorized(p)

    def cube(x: Any) -> Any:
        return p.bind(x, p.bind(x, x))

    undefined = ad.UndefinedPrimal(core.ShapedArray((), np.dtype(np.float32)))
    for both in ((undefined, undefined), (2.0, 3.0)):
        with pytest.raises(TypeError, match="'times' is linear in one operand at a time"):
            ad.primitive_transposes[p](1.0, *both)
    for mode in (lambda f: f, anima.jit):
        equal(mode(anima.grad(cube))(3.0), 27.0)
        equal(mode(anima.hessian(cube))(3.0), 18.0)
        equal(mode(anima.vmap(p.bind, in_axes=(0, None)))(X, np.float32(3.0)), 3 * X)


def test_rules_operand_by_operand() -> None:
    p = made("weighed", lambda x, y: x * jnp.sin(y))
    p.def_abstract_eval(lambda x, y: x)
    ad.defjvp(p, lambda t, x, y: t * jnp.sin(y), lambda t, x, y: t * x * jnp.cos(y))
    equal(anima.jit(anima.grad(p.bind, (0, 1)))(2.0, 1.0), (np.sin(1.0), 2 * np.cos(1.0)))
    ad.defjvp2(p, lambda t, out, x, y: t * out / x, None)
    equal(anima.grad(p.bind, (0, 1))(2.0, 1.0), (np.sin(1.0), 0.0))


ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize("dim", range(3))
def test_reducers(dim: int) -> None:
    p = core.Primitive("total")
    p.def_impl(lambda x, *, axes: jnp.sum(x, axes))
    batching.defreducer(p)
    for axes in ((0,), (1,), (0, 1)):
        equal(anima.vmap(lambda x, axes=axes: p.bind(x, axes=axes), in_axes=dim)(ARRAY),
              np.moveaxis(ARRAY, dim, 0).sum(tuple(a + 1 for a in axes)))


@pytest.mark.parametrize(("x", "y", "axes"), [(ARRAY, ARRAY[0], (0, None)), (ARRAY, np.float32([1, 2, 3, 4]), (2, 0)),
                                              (np.float32([1, 2]), ARRAY, (0, 0)), (np.float32(3), ARRAY, (None, 1))])
def test_broadcasting_operations(x: Any, y: Any, axes: Any) -> None:
    p = core.Primitive("spread")
    p.def_impl(jnp.multiply)
    batching.defbroadcasting(p)
    equal(anima.vmap(p.bind, in_axes=axes)(x, y), anima.vmap(jnp.multiply, in_axes=axes)(x, y))


@pytest.mark.parametrize(("table", "rule"), [
    (batching.fancy_primitive_batchers, lambda seen: lambda axis, args, dims: (seen.append((axis.size, axis.name)),
                                                                               (args[0], dims[0]))[1]),
    (batching.axis_primitive_batchers, lambda seen: lambda size, name, kind, args, dims: (seen.append((size, name)),
                                                                                          (args[0], dims[0]))[1])])
def test_rules_that_are_told_of_the_axis_are_asked_where_nothing_is_mapped(table: Any, rule: Any) -> None:
    p = made("told", lambda x: x)
    seen: list[Any] = []
    table[p] = rule(seen)
    assert p in table
    equal(anima.vmap(p.bind)(X), X)
    equal(anima.vmap(lambda x: p.bind(5.0) + x, axis_name="i")(X), 5 + X)
    assert seen == [(2, None), (2, "i")]
    p.def_abstract_eval(lambda x: x)
    equal(anima.vmap(lambda x: anima.jit(p.bind)(5.0) + x)(X), 5 + X)
    assert seen[2:] == [(2, None)]
    del seen[2:]
    batching.primitive_batchers[p] = lambda args, dims: (args[0], dims[0])
    anima.vmap(lambda x: x)(X)
    assert len(seen) == 2


def test_custom_derivatives_of_what_is_not_mapped() -> None:
    """A function with a rule of its own, of an operation that is asked where nothing is mapped: its results are those
    of all, and so are the values beside a Jacobian."""
    p = made("told", lambda x: 2 * x)
    p.def_abstract_eval(lambda x: x)
    batching.axis_primitive_batchers[p] = lambda size, name, kind, args, dims: (p.bind(*args), dims[0])

    @anima.custom_jvp
    def doubled(x: Any) -> Any:
        return p.bind(x), jnp.sin(x)

    @doubled.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return doubled(*primals), (3 * tangents[0], 4 * tangents[0])

    both = anima.vmap(lambda t: (doubled(5.0), t), out_axes=(None, 0))(X)
    equal(both[0][0], 10.0)
    for call in (doubled, anima.jit(doubled)):
        for transform in (anima.jacfwd, anima.jacrev):
            equal(transform(lambda x, call=call: call(x))(5.0), (3.0, 4.0))
        equal(anima.vmap(lambda t, call=call: anima.jvp(call, (5.0,), (t,)), out_axes=(None, 0))(X)[1][1], 4 * X)
        equal(anima.jvp(lambda x, call=call: anima.vmap(lambda t: (call(x), t), out_axes=(None, 0))(X)[0],
                        (5.0,), (1.0,))[1], (3.0, 4.0))


def test_lowerings() -> None:
    p = made("plain", lambda x: x + 1)
    p.def_abstract_eval(lambda x: x)
    mlir.register_lowering(p, lambda ctx, x: None, platform="tpu")
    equal(xla.apply_primitive(p, 1.0), 2.0)
    call = anima.jit(p.bind)
    equal(call(1.0), 2.0)
    mlir.register_lowering(p, mlir.lower_fun(lambda x: x + 2, multiple_results=False))
    equal((xla.apply_primitive(p, 1.0), call(1.0)), (3.0, 3.0))
    mlir.register_lowering(p, lambda ctx, x: None)
    equal(p.bind(1.0), 2.0)
    with pytest.raises(NotImplementedError, match="'plain': programs are compiled without MLIR"):
        anima.jit(p.bind)(3.0)
    with pytest.raises(NotImplementedError, match="'sin' has a lowering of its own"):
        mlir.register_lowering(primitives.sin_p, mlir.lower_fun(jnp.cos))
    single, several = made("single", lambda x: x), made("several", lambda x: [x], many=True)
    single.def_abstract_eval(lambda x: x)
    several.def_abstract_eval(lambda x: [x])
    mlir.register_lowering(single, mlir.lower_fun(lambda x: [x * 2]))
    mlir.register_lowering(several, mlir.lower_fun(lambda x: x * 2, multiple_results=False))
    equal(anima.jit(lambda x: (single.bind(x), several.bind(x)))(3.0), (6.0, [6.0]))


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("effect", [False, True])
def test_lowerings_that_call_python(many: bool, effect: bool) -> None:
    p, calls = made("called", lambda x: [np.sin(x)] if many else np.sin(x), many=many), []
    p.def_abstract_eval(lambda x: [x] if many else x)
    if effect:
        p.def_effectful_abstract_eval(lambda x: ([x] if many else x, {"IO"}))

    def rule(ctx: Any, x: Any) -> Any:
        def sine(x: Any) -> Any:
            calls.append(type(x).__name__)
            return (np.sin(x),)

        assert [a.shape for a in ctx.avals_in] == [a.shape for a in ctx.avals_out] == [(2,)]
        found, _, kept = mlir.emit_python_callback(ctx, sine, None, [x], ctx.avals_in, ctx.avals_out,
                                                       has_side_effect=effect)
        ctx.module_context.add_keepalive(kept)
        return found if many else found[0]

    mlir.register_lowering(p, rule)
    out = anima.jit(p.bind)(np.float32([0.0, 1.0]))
    np.testing.assert_allclose(out[0] if many else out, np.sin(np.float32([0.0, 1.0])), rtol=1e-6)
    assert len(calls) == 1
    if effect:
        p.def_effectful_abstract_eval(lambda x: ([x] if many else x, ()))
        with pytest.raises(NotImplementedError, match="'called' calls a function with a side effect"):
            anima.jit(lambda x: p.bind(x))(np.float32([0.0, 1.0]))


@pytest.mark.parametrize("name", ["ir_constant", "aval_to_ir_type", "core_call_lowering", "make_ir_context"])
def test_what_is_about_mlir_says_so(name: str) -> None:
    with pytest.raises(NotImplementedError, match="compiled without MLIR"):
        getattr(mlir, name)(*([None] if name != "core_call_lowering" else []),
                            **({"name": "f", "call_jaxpr": None, "ctx": None} if name == "core_call_lowering" else {}))
    with pytest.raises(NotImplementedError, match="compiled without MLIR"):
        mlir.lower_fun(jnp.sin)(None, 1.0)


def test_types_with_hooks_are_not_mapped() -> None:
    class Ragged(dict):
        pass

    anima.tree_util.register_pytree_node(Ragged, lambda r: ((r["a"],), None), lambda _, xs: Ragged(a=xs[0]))
    x = anima.numpy.arange(2)
    batching.register_vmappable(Ragged, int, int, lambda *a: a, lambda *a: a, None)
    with pytest.raises(NotImplementedError, match="no hooks for Ragged"):
        anima.vmap(lambda r: r["a"])(Ragged(a=x))
    with pytest.raises(NotImplementedError, match="no hooks for Ragged"):
        anima.vmap(lambda x: [Ragged(a=x)])(x)
    assert anima.vmap(lambda x: x + 1)(x).tolist() == [1, 2]
    batching.unregister_vmappable(Ragged)
    assert anima.vmap(lambda r: r["a"] + 1)(Ragged(a=x)).tolist() == [1, 2]


def test_jvp_and_linearize_of_flat_functions() -> None:
    def f(x: Any, y: Any) -> Any:
        return {"a": x * y, "b": 3.0}, "said"

    out, moved, said = ad.jvp(f, (2.0, 5.0), (1.0, 0.0), has_aux=True)
    equal((out, moved), ({"a": 10.0, "b": 3.0}, {"a": 5.0, "b": 0.0}))
    assert said == "said"
    assert isinstance(ad.jvp(f, (2.0, 5.0), (1.0, 0.0), has_aux=True, instantiate=False)[1]["b"], ad.Zero)
    out, tangents, said = ad.linearize(f, (2.0, 5.0), has_aux=True)
    equal(tangents(1.0, 1.0), {"a": 7.0, "b": 0.0})
