"""Cells of "The Sharp Bits", with the outputs that it shows."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import grad, jit, lax, make_jaxpr, random


def test_side_effects_appear_when_tracing(capsys):
    def impure_print_side_effect(x):
        print("Executing function")
        return x

    print("First call: ", jit(impure_print_side_effect)(4.0))
    print("Second call: ", jit(impure_print_side_effect)(5.0))
    print("Third call, different type: ", jit(impure_print_side_effect)(jnp.array([5.0])))
    assert capsys.readouterr().out == ("Executing function\nFirst call:  4.0\nSecond call:  5.0\n"
                                       "Executing function\nThird call, different type:  [5.]\n")


g = 0.0


def impure_uses_globals(x):
    return x + g


def test_globals_are_captured_at_the_first_run(monkeypatch):
    monkeypatch.setitem(globals(), "g", 0.0)
    assert str(jit(impure_uses_globals)(4.0)) == "4.0"
    monkeypatch.setitem(globals(), "g", 10.0)
    assert str(jit(impure_uses_globals)(5.0)) == "5.0"
    assert str(jit(impure_uses_globals)(jnp.array([4.0]))) == "[14.]"


def test_saving_a_tracer(capsys):
    saved = []

    def impure_saves_global(x):
        saved.append(x)
        return x

    print("First call: ", jit(impure_saves_global)(4.0))
    print("Saved global: ", saved[0])
    assert capsys.readouterr().out == (
        "First call:  4.0\n"
        "Saved global:  Traced<ShapedArray(float32[], weak_type=True)>with<DynamicJaxprTrace(level=1/0)>\n")


def test_internal_state_is_pure():
    def pure_uses_internal_state(x):
        state = {"even": 0, "odd": 0}
        for i in range(10):
            state["even" if i % 2 == 0 else "odd"] += x
        return state["even"] + state["odd"]

    assert str(jit(pure_uses_internal_state)(5.0)) == "50.0"


def test_arrays_are_immutable():
    array = jnp.zeros((3, 3), dtype=jnp.float32)
    with pytest.raises(TypeError, match="Anima arrays are immutable"):
        array[1, :] = 1.0
    updated = array.at[1, :].set(1.0)
    assert str(updated) == "[[0. 0. 0.]\n [1. 1. 1.]\n [0. 0. 0.]]"
    assert str(array) == "[[0. 0. 0.]\n [0. 0. 0.]\n [0. 0. 0.]]"


def test_indexed_add():
    array = jnp.ones((5, 6))
    assert str(array.at[::2, 3:].add(7.0)) == (
        "[[1. 1. 1. 8. 8. 8.]\n [1. 1. 1. 1. 1. 1.]\n [1. 1. 1. 8. 8. 8.]\n [1. 1. 1. 1. 1. 1.]\n"
        " [1. 1. 1. 8. 8. 8.]]")


def test_in_place_update_of_an_argument_inside_jit():
    array = jnp.ones((5, 6))
    assert np.array_equal(jit(lambda x: x.at[::2, 3:].add(7.0))(array), array.at[::2, 3:].add(7.0))
    assert np.array_equal(array, np.ones((5, 6)))


def test_out_of_bounds():
    assert repr(jnp.arange(10)[11]) == "Array(9, dtype=int32)"
    assert repr(jnp.arange(10.0).at[11].get()) == "Array(9., dtype=float32)"
    assert repr(jnp.arange(10.0).at[11].get(mode="fill", fill_value=jnp.nan)) == "Array(nan, dtype=float32)"


def test_nanargmin_of_nans():
    nans = jnp.full((2, 3), jnp.nan)
    assert jnp.nanargmin(nans, axis=1).tolist() == [-1, -1]
    assert jnp.nanargmax(nans, axis=1).tolist() == [-1, -1]


def test_lists_are_refused():
    message = r"sum requires ndarray or scalar arguments, got <class 'list'> at position 0\."
    with pytest.raises(TypeError, match=message):
        jnp.sum([1, 2, 3])
    assert repr(jnp.sum(jnp.array([1, 2, 3]))) == "Array(6, dtype=int32)"


def test_permissive_sum():
    def permissive_sum(x):
        return jnp.sum(jnp.array(x))

    x = list(range(10))
    assert repr(permissive_sum(x)) == "Array(45, dtype=int32)"
    assert str(make_jaxpr(permissive_sum)(x)) == """\
{ lambda ; a:i32[] b:i32[] c:i32[] d:i32[] e:i32[] f:i32[] g:i32[] h:i32[] i:i32[]
    j:i32[]. let
    k:i32[] = convert_element_type[new_dtype=int32 weak_type=False] a
    l:i32[] = convert_element_type[new_dtype=int32 weak_type=False] b
    m:i32[] = convert_element_type[new_dtype=int32 weak_type=False] c
    n:i32[] = convert_element_type[new_dtype=int32 weak_type=False] d
    o:i32[] = convert_element_type[new_dtype=int32 weak_type=False] e
    p:i32[] = convert_element_type[new_dtype=int32 weak_type=False] f
    q:i32[] = convert_element_type[new_dtype=int32 weak_type=False] g
    r:i32[] = convert_element_type[new_dtype=int32 weak_type=False] h
    s:i32[] = convert_element_type[new_dtype=int32 weak_type=False] i
    t:i32[] = convert_element_type[new_dtype=int32 weak_type=False] j
    u:i32[1] = broadcast_in_dim[broadcast_dimensions=() shape=(1,)] k
    v:i32[1] = broadcast_in_dim[broadcast_dimensions=() shape=(1,)] l
    w:i32[1] = broadcast_in_dim[broadcast_dimensions=() shape=(1,)] m
    x:i32[1] = broadcast_in_dim[broadcast_dimensions=() shape=(1,)] n
    y:i32[1] = broadcast_in_dim[broadcast_dimensions=() shape=(1,)] o
    z:i32[1] = broadcast_in_dim[broadcast_dimensions=() shape=(1,)] p
    ba:i32[1] = broadcast_in_dim[broadcast_dimensions=() shape=(1,)] q
    bb:i32[1] = broadcast_in_dim[broadcast_dimensions=() shape=(1,)] r
    bc:i32[1] = broadcast_in_dim[broadcast_dimensions=() shape=(1,)] s
    bd:i32[1] = broadcast_in_dim[broadcast_dimensions=() shape=(1,)] t
    be:i32[10] = concatenate[dimension=0] u v w x y z ba bb bc bd
    bf:i32[] = reduce_sum[axes=(0,)] be
  in (bf,) }"""


def test_random_numbers(capsys):
    key = random.key(0)
    assert repr(key) == "Array((), dtype=key<fry>) overlaying:\n[0 0]"
    for _ in range(2):
        print(random.normal(key, shape=(1,)))
        print(key)
    assert capsys.readouterr().out == "[-0.20584226]\nArray((), dtype=key<fry>) overlaying:\n[0 0]\n" * 2

    print("old key", key)
    key, subkey = random.split(key)
    normal_pseudorandom = random.normal(subkey, shape=(1,))
    print("new key", key)
    print("new subkey", subkey, "--> normal", normal_pseudorandom)
    assert capsys.readouterr().out == (
        "old key Array((), dtype=key<fry>) overlaying:\n[0 0]\n"
        "new key Array((), dtype=key<fry>) overlaying:\n[4146024105  967050713]\n"
        "new subkey Array((), dtype=key<fry>) overlaying:\n[2718843009 1272950319] --> normal [-1.2515389]\n")

    key, subkey = random.split(key)
    print("new key", key)
    print("new subkey", subkey, "--> normal", random.normal(subkey, shape=(1,)))
    assert capsys.readouterr().out == (
        "new key Array((), dtype=key<fry>) overlaying:\n[2384771982 3928867769]\n"
        "new subkey Array((), dtype=key<fry>) overlaying:\n[1278412471 2182328957] --> normal [-0.58665055]\n")

    key, *subkeys = random.split(key, 4)
    for subkey in subkeys:
        print(random.normal(subkey, shape=(1,)))
    assert capsys.readouterr().out == "[-0.37533438]\n[0.98645043]\n[0.14553197]\n"


def test_python_control_flow_and_grad():
    def f(x):
        if x < 3:
            return 3.0 * x**2
        return -4 * x

    assert str(grad(f)(2.0)) == "12.0"
    assert str(grad(f)(4.0)) == "-4.0"


def test_python_loops_under_jit():
    @jit
    def f(x):
        for _ in range(3):
            x = 2 * x
        return x

    assert str(f(3)) == "24"

    @jit
    def g(x):
        y = 0.0
        for i in range(x.shape[0]):
            y = y + x[i]
        return y

    assert str(g(jnp.array([1.0, 2.0, 3.0]))) == "6.0"


def test_python_if_under_jit_fails():
    @jit
    def f(x):
        if x < 3:
            return 3.0 * x**2
        return -4 * x

    with pytest.raises(anima.errors.TracerBoolConversionError) as caught:
        f(2)
    text = str(caught.value)
    assert "Attempted boolean conversion of traced array with shape bool[]." in text
    assert "The error occurred while tracing the function f at" in text and "for jit." in text
    assert ("This concrete value was not available in Python because it depends on the value of the argument x."
            in text)
    assert "if x < 3:" in text and "Fix:" in text


def test_static_arguments():
    def f(x):
        if x < 3:
            return 3.0 * x**2
        return -4 * x

    assert str(jit(f, static_argnums=(0,))(2.0)) == "12.0"

    def g(x, n):
        y = 0.0
        for i in range(n):
            y = y + x[i]
        return y

    assert repr(jit(g, static_argnums=(1,))(jnp.array([2.0, 3.0, 4.0]), 2)) == "Array(5., dtype=float32)"


def test_shapes_that_depend_on_arguments():
    def example_fun(length, val):
        return jnp.ones((length,)) * val

    assert str(example_fun(5, 4)) == "[4. 4. 4. 4. 4.]"
    with pytest.raises(TypeError) as caught:
        jit(example_fun)(10, 4)
    text = str(caught.value)
    assert ("Shapes must be 1D sequences of concrete values of integer type, got "
            "(Traced<ShapedArray(int32[], weak_type=True)>with<DynamicJaxprTrace(level=1/0)>,)." in text)
    assert "If using `jit`, try using `static_argnums` or applying `jit` to smaller subfunctions." in text
    assert "it depends on the value of the argument length." in text
    good = jit(example_fun, static_argnums=(0,))
    assert str(good(10, 4)) == "[4. 4. 4. 4. 4. 4. 4. 4. 4. 4.]"
    assert str(good(5, 4)) == "[4. 4. 4. 4. 4.]"


def test_printing_tracers(capsys):
    @jit
    def f(x):
        print(x)
        y = 2 * x
        print(y)
        return y

    assert repr(f(2)) == "Array(4, dtype=int32, weak_type=True)"
    line = "Traced<ShapedArray(int32[], weak_type=True)>with<DynamicJaxprTrace(level=1/0)>\n"
    assert capsys.readouterr().out == line * 2


def test_dynamic_shapes():
    def nansum(x):
        mask = ~jnp.isnan(x)
        x_without_nans = x[mask]
        return x_without_nans.sum()

    x = jnp.array([1, 2, jnp.nan, 3, 4])
    assert str(nansum(x)) == "10.0"
    with pytest.raises(anima.errors.NonConcreteBooleanIndexError,
                       match=r"Array boolean indices must be concrete; got ShapedArray\(bool\[5\]\)"):
        jit(nansum)(x)

    @jit
    def nansum_2(x):
        mask = ~jnp.isnan(x)
        return jnp.where(mask, x, 0).sum()

    assert str(nansum_2(x)) == "10.0"


def test_nan_checker():
    with anima.debug_nans(True), pytest.raises(FloatingPointError, match="invalid value"):
        jnp.divide(0.0, 0.0)


def test_nan_checker_finds_the_line_under_jit(capsys):
    @jit
    def f(x, y):
        a = x * y
        b = (x + y) / (x - y)
        c = a + 2
        return a + b * c

    x, y = jnp.array([2.0, 0.0]), jnp.array([3.0, 0.0])
    with anima.debug_nans(True), pytest.raises(FloatingPointError, match="invalid value") as caught:
        f(x, y)
    assert "Invalid value encountered in the output of a jit function. Calling the de-optimized version." in (
        capsys.readouterr().out)
    lines = [(t.frame.code.name, str(t.statement).strip()) for t in caught.traceback]
    assert ("f", "b = (x + y) / (x - y)") in lines


def test_double_precision_is_truncated_with_a_warning():
    with pytest.warns(UserWarning, match=r"Explicitly requested dtype .*float64.* is not available, and will be "
                                         r"truncated to dtype float32"):
        x = random.uniform(random.key(0), (1000,), dtype=jnp.float64)
    assert x.dtype == np.dtype("float32")
    with anima.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert random.uniform(random.key(0), (1000,), dtype=jnp.float64).dtype == np.dtype("float64")


def test_unsafe_casts_saturate():
    assert np.arange(254.0, 258.0).astype("uint8").tolist() == [254, 255, 0, 1]
    assert repr(jnp.arange(254.0, 258.0).astype("uint8")) == "Array([254, 255, 255, 255], dtype=uint8)"
    assert jit(lambda x: x.astype("uint8"))(jnp.arange(254.0, 258.0)).tolist() == [254, 255, 255, 255]


def test_select_and_where():
    x = jnp.arange(4.0)
    assert lax.select(x > 1, x, -x).tolist() == [0.0, -1.0, 2.0, 3.0]
    assert jnp.where(x > 1, x, -x).tolist() == [0.0, -1.0, 2.0, 3.0]
    assert jit(partial(jnp.where, x > 1))(x, -x).tolist() == [0.0, -1.0, 2.0, 3.0]
