"""The documents' two tables of loop constructs, row by row; where they say that something has no gradient, it has."""

from __future__ import annotations

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

N = 6


def python_if(x):
    return x * x if x > 1.0 else -x


def python_for(x):
    for _ in range(N):
        x = jnp.sin(x) * 1.5
    return x


def python_while(x):
    k = 0
    while k < N:
        x, k = jnp.sin(x) * 1.5, k + 1
    return x


def with_cond(x):
    return lax.cond(x > 1.0, lambda x: x * x, lambda x: -x, x)


def with_while(x):
    return lax.while_loop(lambda c: c[0] < N, lambda c: (c[0] + 1, jnp.sin(c[1]) * 1.5), (0, x))[1]


def with_fori(x):
    return lax.fori_loop(0, N, lambda i, x: jnp.sin(x) * 1.5, x)


def with_dynamic_fori(x, n=N):
    return lax.fori_loop(0, n, lambda i, x: jnp.sin(x) * 1.5, x)


def with_scan(x):
    return lax.scan(lambda c, _: (jnp.sin(c) * 1.5, None), x, None, length=N)[0]


@pytest.mark.parametrize("construct", [python_for, python_while, with_while, with_fori, with_scan])
def test_loops_are_jittable_and_differentiable(construct):
    expected = anima.grad(python_for)(0.4)
    np.testing.assert_allclose(anima.jit(construct)(0.4), python_for(0.4), rtol=1e-6)
    np.testing.assert_allclose(anima.grad(construct)(0.4), expected, rtol=1e-5)
    np.testing.assert_allclose(anima.jit(anima.grad(construct))(0.4), expected, rtol=1e-5)
    np.testing.assert_allclose(anima.jvp(construct, (0.4,), (1.0,))[1], expected, rtol=1e-5)


def test_fori_loop_with_bounds_that_are_traced_has_both_modes():
    run = anima.jit(with_dynamic_fori)
    np.testing.assert_allclose(run(0.4, N), python_for(0.4), rtol=1e-6)
    np.testing.assert_allclose(anima.jit(anima.grad(with_dynamic_fori))(0.4, N), anima.grad(python_for)(0.4), rtol=1e-5)


@pytest.mark.parametrize("x", [0.4, 2.0])
def test_if_is_not_jittable_but_cond_is(x):
    with pytest.raises(anima.errors.TracerBoolConversionError):
        anima.jit(python_if)(x)
    assert anima.grad(python_if)(x) == anima.grad(with_cond)(x) == anima.jit(anima.grad(with_cond))(x)


def test_a_python_loop_is_unrolled_and_the_others_are_one_equation():
    count = {f.__name__: len(anima.make_jaxpr(f)(0.4).eqns)
             for f in (python_for, python_while, with_while, with_fori, with_scan)}
    assert count["python_for"] == count["python_while"] == 2 * N
    assert count["with_while"] == count["with_fori"] == count["with_scan"] == 1


def test_while_stops_early_and_scan_does_not():
    steps = lax.while_loop(lambda c: c[1] < 10.0, lambda c: (c[0] + 1, c[1] * 2.0), (0, 1.0))
    assert (int(steps[0]), float(steps[1])) == (4, 16.0)
    assert lax.scan(lambda c, _: (c + 1, c), 0, None, length=5)[1].tolist() == [0, 1, 2, 3, 4]


def test_the_three_versions_of_one_loop_agree():
    def python_loop(x, n=50):
        carry = 0.0
        for _ in range(n):
            carry = carry * x + 1
        return carry

    def scan_version(x, n=50):
        return lax.scan(lambda carry, _: (carry * x + 1, None), 0.0, jnp.arange(n))[0]

    def fori_version(x, n=50):
        return lax.fori_loop(0, n, lambda i, carry: carry * x + 1, 0.0)

    for f in (scan_version, fori_version):
        np.testing.assert_allclose(anima.jit(f)(0.9), python_loop(0.9), rtol=1e-5)
        np.testing.assert_allclose(anima.grad(f)(0.9), anima.grad(python_loop)(0.9), rtol=1e-4)


def test_fori_and_while_keep_nothing_going_forward():
    def forward(x):
        return lax.fori_loop(0, 1000, lambda i, x: jnp.sin(x), x)

    memory = anima.jit(forward).lower(jnp.ones(100)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 4 * 100 * 4


def test_stages_of_a_less_stupid_function():
    def less_stupid_fn(x):
        y = jnp.copy(x)
        x = lax.fori_loop(start=0, stop=1000, body_fun=lambda i, x: x * x, init_val=x)
        return y

    x = jnp.array([1.1, -1.1])
    assert str(anima.make_jaxpr(less_stupid_fn)(x)) == """\
{ lambda ; a:f32[2]. let
    b:f32[2] = copy a
    _:i32[] _:f32[2] = scan[
      jaxpr={ lambda ; c:i32[] d:f32[2]. let
          e:i32[] = add c 1
          f:f32[2] = mul d d
        in (e, f) }
      length=1000
      linear=(False, False)
      num_carry=2
      num_consts=0
      reverse=False
      unroll=1
    ] 0 a
  in (b,) }"""
    assert "mul" not in anima.jit(less_stupid_fn).lower(x).compile().as_text()


def test_while_version_of_it():
    def less_stupid_fn(x):
        y = jnp.copy(x)
        x = lax.while_loop(cond_fun=lambda ix: ix[0] < 1000, body_fun=lambda ix: (ix[0] + 1, ix[1] * ix[1]),
                           init_val=(0, x))
        return y

    assert str(anima.make_jaxpr(less_stupid_fn)(jnp.array([1.1, -1.1]))) == """\
{ lambda ; a:f32[2]. let
    b:f32[2] = copy a
    _:i32[] _:f32[2] = while[
      body_jaxpr={ lambda ; c:i32[] d:f32[2]. let
          e:i32[] = add c 1
          f:f32[2] = mul d d
        in (e, f) }
      body_nconsts=0
      cond_jaxpr={ lambda ; g:i32[] h:f32[2]. let i:bool[] = lt g 1000 in (i,) }
      cond_nconsts=0
    ] 0 a
  in (b,) }"""


def test_cond_fn(capsys):
    @anima.jit
    def cond_fn(x):
        pred = jnp.abs(x.max() - x.min()) <= 1.0
        return lax.cond(pred, lambda x: x, lambda x: x / 2, x)

    print(cond_fn(jnp.array([0.1, 0.2])))
    print(cond_fn(jnp.array([-0.5, 0.5])))
    print(cond_fn(jnp.array([1.0, -1.0])))
    assert capsys.readouterr().out == "[0.1 0.2]\n[-0.5  0.5]\n[ 0.5 -0.5]\n"
    assert str(anima.make_jaxpr(cond_fn)(jnp.array([1.0, -1.0]))) == """\
{ lambda ; a:f32[2]. let
    b:f32[2] = pjit[
      name=cond_fn
      jaxpr={ lambda ; c:f32[2]. let
          d:f32[] = reduce_max[axes=(0,)] c
          e:f32[] = reduce_min[axes=(0,)] c
          f:f32[] = sub d e
          g:f32[] = abs f
          h:bool[] = le g 1.0
          i:i32[] = convert_element_type[new_dtype=int32 weak_type=False] h
          j:f32[2] = cond[
            branches=(
              { lambda ; k:f32[2]. let l:f32[2] = div k 2.0 in (l,) }
              { lambda ; m:f32[2]. let in (m,) }
            )
            linear=(False,)
          ] i c
        in (j,) }
    ] a
  in (b,) }"""


def test_is_even_by_switch():
    is_even_fast = anima.jit(lambda x: lax.switch(x, [lambda k=k: k % 2 == 0 for k in range(64)]))
    assert repr(is_even_fast(12)) == "Array(True, dtype=bool)"
    assert not is_even_fast(11)


def test_iterators_and_fori_loop_of_the_sharp_bits(capsys):
    array = jnp.arange(10)
    print(lax.fori_loop(0, 10, lambda i, x: x + array[i], 0))  # expected result 45
    iterator = iter(range(10))
    print(lax.fori_loop(0, 10, lambda i, x: x + next(iterator), 0))  # unexpected result 0
    assert capsys.readouterr().out == "45\n0\n"
    with anima.disable_jit():  # Python's own loop
        iterator = iter(range(10))
        assert lax.fori_loop(0, 10, lambda i, x: x + next(iterator), 0) == 45


def test_iterators_and_scan_of_the_sharp_bits():
    def func11(arr, extra):
        ones = jnp.ones(arr.shape)

        def body(carry, aelems):
            ae1, ae2 = aelems
            return (carry + ae1 * ae2 + extra, carry)

        return lax.scan(body, 0.0, (arr, ones))

    anima.make_jaxpr(func11)(jnp.arange(16), 5.0)
    with pytest.raises((TypeError, AttributeError)):
        anima.make_jaxpr(func11)(iter(range(16)), 5.0)
    with pytest.raises(TypeError):
        lax.cond(True, lambda x: next(x) + 1, lambda x: next(x) - 1, iter(range(10)))
