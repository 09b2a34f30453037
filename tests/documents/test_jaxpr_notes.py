"""Cells of the notebook on jaxprs and jit, and of the question on implicit arguments."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import anima
import anima.numpy as jnp


def test_log2_is_traced_without_its_side_effect():
    seen = []

    def log2(x):
        seen.append(x)
        ln_x = jnp.log(x)
        ln_2 = jnp.log(2.0)
        return ln_x / ln_2

    assert str(anima.make_jaxpr(log2)(3.0)) == """\
{ lambda ; a:f32[]. let
    b:f32[] = log a
    c:f32[] = log 2.0
    d:f32[] = div b c
  in (d,) }"""
    assert len(seen) == 1


def selu(x, alpha=1.67, lmbda=1.05):
    if x.ndim < 2:
        return lmbda * jnp.where(x > 0, x, alpha * jnp.exp(x) - alpha)


def test_selu_of_a_million():
    x = jnp.arange(1_000_000)
    shown = """\
Array([0.0000000e+00, 1.0500000e+00, 2.0999999e+00, ..., 1.0499968e+06,
       1.0499979e+06, 1.0499989e+06], dtype=float32)"""
    a = selu(x)
    assert repr(a) == shown
    assert a.block_until_ready() is a
    selu_jit = anima.jit(selu)
    assert repr(selu_jit(x).block_until_ready()) == shown
    assert str(anima.make_jaxpr(selu_jit)(x)) == """\
{ lambda ; a:i32[1000000]. let
    b:f32[1000000] = pjit[
      name=selu
      jaxpr={ lambda ; c:i32[1000000]. let
          d:bool[1000000] = gt c 0
          e:f32[1000000] = convert_element_type[
            new_dtype=float32
            weak_type=False
          ] c
          f:f32[1000000] = exp e
          g:f32[1000000] = mul 1.6699999570846558 f
          h:f32[1000000] = sub g 1.6699999570846558
          i:f32[1000000] = pjit[
            name=_where
            jaxpr={ lambda ; j:bool[1000000] k:i32[1000000] l:f32[1000000]. let
                m:f32[1000000] = convert_element_type[
                  new_dtype=float32
                  weak_type=False
                ] k
                n:f32[1000000] = select_n j l m
              in (n,) }
          ] d c h
          o:f32[1000000] = mul 1.0499999523162842 i
        in (o,) }
    ] a
  in (b,) }"""


def test_conditions_on_traced_values(capsys):
    def f(x):
        print(x)
        if x > 10:
            return x
        return x * 2

    with pytest.raises(anima.errors.TracerBoolConversionError) as caught:
        anima.jit(f)(2)
    assert "Traced<ShapedArray(int32[], weak_type=True)>with<DynamicJaxprTrace" in capsys.readouterr().out
    assert "Attempted boolean conversion of traced array with shape bool[]." in str(caught.value)
    assert "depends on the value of the argument x" in str(caught.value)

    def g(x, n):
        i = 0
        while i < n:
            i += 1
        return 1

    with pytest.raises(anima.errors.TracerBoolConversionError, match="depends on the value of the argument n"):
        anima.jit(g)(10, 20)


def test_static_arguments():
    def f(x):
        return x if x > 0 else 2 * x

    assert str(anima.jit(f, static_argnums=0)(10)) == "10"
    assert str(anima.jit(f, static_argnames=["x"])(10)) == "10"
    assert str(partial(anima.jit, static_argnums=0)(f)(-3)) == "-6"


def test_functions_made_in_a_loop_are_compiled_each_time():
    def f(x):
        return x + 1

    functions = [anima.jit(lambda x: f(x)) for _ in range(3)]
    assert [h(1.0).tolist() for h in functions] == [2.0] * 3
    assert [h._cache_size() for h in functions] == [1] * 3


def test_implicit_arguments():
    a_global = jnp.arange(5.0)
    b = jnp.ones(5)

    def f_explicit(a, b):
        return a + b

    def f_implicit(b):
        return a_global + b

    assert str(anima.make_jaxpr(f_explicit)(a_global, b)) == (
        "{ lambda ; a:f32[5] b:f32[5]. let c:f32[5] = add a b in (c,) }")
    assert str(anima.make_jaxpr(f_implicit)(b)) == "{ lambda a:f32[5]; b:f32[5]. let c:f32[5] = add a b in (c,) }"
    a_global = 1.0
    assert str(anima.make_jaxpr(f_implicit)(b)) == "{ lambda ; a:f32[5]. let b:f32[5] = add 1.0 a in (b,) }"

    f_static = partial(anima.jit, static_argnames=["a"])(f_explicit)
    np.testing.assert_array_equal(f_static(a=1.0, b=b), np.full(5, 2.0, np.float32))


def test_closed_over_values_of_a_step_function():
    def fit(scale):
        rate = 0.1

        @anima.jit
        def step(params):
            return params - rate * scale

        first = step(jnp.ones(2))
        rate = 100.0
        return first, step(first)

    first, second = fit(1.0)
    np.testing.assert_allclose(first, [0.9, 0.9], rtol=1e-6)
    np.testing.assert_allclose(second, [0.8, 0.8], rtol=1e-6)
