"""Interpreters that libraries write as subclasses of `jax.core.Trace`: what they are told, and of what kind."""

import copy

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.core.trace import EVAL, aval_of
from anima.dropin.jax import core
from anima.dropin.tracing import Trace
from anima.extend.core import Primitive, jaxpr_as_fun, set_current_trace, take_current_trace
from anima.extend.core.primitives import call_p, jit_p
from anima.extend.linear_util import merge_linear_aux, transformation_with_aux2


class Held(core.Tracer):
    def __init__(self, trace, value):
        super().__init__(trace, aval_of(value))
        self.value = value


class Telling(Trace):
    """Does what its parent would, and keeps the names of the operations."""

    def __init__(self, parent_trace):
        super().__init__()
        self.parent_trace, self.told = parent_trace, []

    def plain(self, x):
        return x.value if isinstance(x, Held) else x

    def process_primitive(self, primitive, tracers, params):
        self.told.append(str(primitive))
        if primitive is jit_p:
            return jaxpr_as_fun(params["jaxpr"])(*tracers)
        values = [self.plain(t) for t in tracers]
        out = primitive.bind_with_trace(self.parent_trace, values, [aval_of(t) for t in tracers], params)
        return [Held(self, o) for o in out] if primitive.multiple_results else Held(self, out)


class TellingOfCalls(Telling):
    def process_call(self, primitive, f, tracers, params):
        self.told.append(f"{primitive}:")
        return f.call_wrapped(*tracers)

    def process_custom_jvp_call(self, primitive, fun, jvp, tracers, *, symbolic_zeros):
        self.told.append(f"{primitive}:")
        values = list(map(self.plain, tracers))
        with set_current_trace(self.parent_trace):
            _, tangent = jvp.call_wrapped(*values, *map(jnp.ones_like, values))
        self.tangent = float(tangent)
        return fun.call_wrapped(*tracers)

    def process_custom_vjp_call(self, primitive, fun, fwd, bwd, tracers, out_trees, symbolic_zeros):
        self.told.append(f"{primitive}:")
        with set_current_trace(self.parent_trace):
            flat = fwd.call_wrapped(*(x for t in tracers for x in (self.plain(t), True)))
            out_tree, res_tree, _ = out_trees()
            assert len(flat) == out_tree.num_leaves + res_tree.num_leaves
            residuals, outs = flat[:res_tree.num_leaves], flat[res_tree.num_leaves:]
            self.cotangents = list(map(float, bwd(*residuals, *map(jnp.ones_like, outs))))
        return outs


def interpreted(fun, *args, kind=Telling):
    with take_current_trace() as parent:
        trace = kind(parent)
        with set_current_trace(trace):
            out = fun(*(Held(trace, x) for x in args))
    return trace.plain(out), trace


def test_operations_come_by_their_names():
    out, trace = interpreted(lambda x: jnp.sin(x) * 2.0 + 1.0, jnp.float32(0.5))
    assert float(out) == float(jnp.sin(jnp.float32(0.5)) * 2.0 + 1.0)
    assert trace.told == ["sin", "mul", "add"]
    assert isinstance(trace, core.Trace) and isinstance(EVAL, core.Trace) and not isinstance(EVAL, Telling)
    assert not isinstance(1, core.Trace)


def test_under_a_transformation_the_parent_does_the_work():
    told = []

    def fun(x):
        out, trace = interpreted(lambda x: anima.jit(jnp.sin)(x) * x, x)
        told.extend(trace.told)
        return out

    assert float(anima.grad(fun)(2.0)) == float(anima.grad(lambda x: jnp.sin(x) * x)(2.0))
    assert [name for name in told if name != str(jit_p)] == ["sin", "mul"]
    assert str(anima.make_jaxpr(fun)(2.0)).count("sin") == 1


def test_functions_with_derivatives_of_their_own():
    @anima.custom_jvp
    def f(x):
        return jnp.sin(x)

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 7.0))
    out, trace = interpreted(lambda x: f(x) + 1.0, jnp.float32(0.5), kind=TellingOfCalls)
    assert trace.told == ["custom_jvp_call:", "sin", "add"] and trace.tangent == 7.0
    assert float(out) == float(jnp.sin(jnp.float32(0.5)) + 1.0)

    @anima.custom_vjp
    def g(x, y):
        return x * y

    g.defvjp(lambda x, y: (x * y, (x, y)), lambda res, ct: (ct * res[1] * 10.0, ct * res[0] * 100.0))
    out, trace = interpreted(lambda x, y: g(x, y), jnp.float32(2.0), jnp.float32(3.0), kind=TellingOfCalls)
    assert float(out) == 6.0 and trace.cotangents == [30.0, 200.0] and trace.told[0] == "custom_vjp_call:"


@transformation_with_aux2
def anew(f, store, *flat):
    with take_current_trace() as parent:
        trace = Handing(parent)
        with set_current_trace(trace):
            outs = [trace.plain(o) for o in f(*(Held(trace, x) for x in flat))]
    store.store(len(outs))
    return outs


class Handing(Telling):
    """Hands functions with derivatives of their own to its parent, which may differentiate them."""

    def process_custom_jvp_call(self, primitive, fun, jvp, tracers, *, symbolic_zeros):
        (fun, count), (jvp, both) = anew(fun), anew(jvp)
        outs = self.handed(primitive, tracers, (fun, jvp), symbolic_zeros=symbolic_zeros)
        was_fun, number = merge_linear_aux(count, both)
        assert number == len(outs) * (1 if was_fun else 2)
        return outs

    def process_custom_vjp_call(self, primitive, fun, fwd, bwd, tracers, out_trees, symbolic_zeros):
        return self.handed(primitive, tracers, (fun, fwd, bwd), out_trees=out_trees, symbolic_zeros=symbolic_zeros)

    def handed(self, primitive, tracers, subfuns, **params):
        values = list(map(self.plain, tracers))
        outs = primitive.bind_with_trace(self.parent_trace, values, list(map(aval_of, values)),
                                         {"subfuns": subfuns, **params})
        return [Held(self, o) for o in outs]


@pytest.mark.parametrize("around", [lambda f: f, anima.jit, lambda f: lambda x: anima.vmap(f)(x[None])[0]])
def test_functions_with_derivatives_of_their_own_are_handed_on(around):
    @anima.custom_jvp
    def f(x):
        return jnp.sin(x)

    @anima.custom_vjp
    def g(x, y):
        return x * y

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 7.0))
    g.defvjp(lambda x, y: (x * y, (x, y)), lambda res, ct: (ct * res[1] * 10.0, ct * res[0] * 100.0))
    one = around(lambda x: interpreted(f, x, kind=Handing)[0])
    two = around(lambda x: interpreted(lambda x: g(x, x + 1.0), x, kind=Handing)[0])
    x = jnp.float32(2.0)
    assert float(one(x)) == float(jnp.sin(x)) and float(two(x)) == 6.0
    assert float(anima.grad(one)(x)) == float(anima.jvp(one, (x,), (x / 2,))[1]) == 7.0
    assert float(anima.grad(around(anima.grad(one)))(x)) == 0.0
    assert float(anima.grad(two)(x)) == 230.0


def test_calls_under_a_name_of_their_own():
    program = anima.make_jaxpr(lambda x: jnp.cos(x))(1.0)
    out, trace = interpreted(lambda x: call_p.bind(x, call_jaxpr=program)[0], jnp.float32(1.0), kind=TellingOfCalls)
    assert trace.told == ["call:", "cos"] and float(out) == float(jnp.cos(jnp.float32(1.0)))


def test_operations_of_other_libraries():
    double_p = Primitive("double")
    double_p.def_abstract_eval(lambda x: x)
    double_p.def_lowering(lambda x: 2 * x)
    out, trace = interpreted(double_p.bind, jnp.float32(4.0))
    assert float(out) == 8.0 and trace.told == ["double"]


@pytest.mark.parametrize("fun, method", [
    (anima.nn.relu, "process_custom_jvp_call"),
    (lambda x: call_p.bind(x, call_jaxpr=anima.make_jaxpr(jnp.cos)(1.0)), "process_call"),
])
def test_what_an_interpreter_does_not_have_says_so(fun, method):
    with pytest.raises(NotImplementedError, match=f"Telling must override {method}"):
        interpreted(fun, jnp.float32(1.0))
    with pytest.raises(NotImplementedError, match="Trace must override process_primitive"), \
            set_current_trace(Trace()):
        jnp.sin(1.0)


def test_numbers_of_pythons_are_given_as_such():
    given = []

    class Keeping(Telling):
        def process_primitive(self, primitive, tracers, params):
            given.extend(tracers)
            return super().process_primitive(primitive, tracers, params)

    with take_current_trace() as parent:
        trace = Keeping(parent)
        held = Held(trace, jnp.array([0.5, 1.0]))
        with set_current_trace(trace):
            results = [lax.add(0.1, held), lax.igamma(1.0, held), lax.betainc(1.0, 2, held), lax.clamp(0.0, held, 0.75),
                       jnp.add(held, np.float32(2))]
    numbers = [x for x in given if isinstance(x, float)]
    assert numbers == [0.1, 1.0, 1.0, 2.0, 0.0, 0.75] and all(x.dtype == jnp.float32 for x in numbers)
    assert isinstance(given[-1], anima.Array) and not isinstance(given[-1], Held)
    assert copy.deepcopy(numbers[0]).dtype == jnp.float32
    for result, plain in zip(results, (held.value + 0.1, lax.igamma(1.0, held.value), lax.betainc(1.0, 2, held.value),
                                       lax.clamp(0.0, held.value, 0.75), held.value + 2), strict=True):
        np.testing.assert_array_equal(result.value, plain)
