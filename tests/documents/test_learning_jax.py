"""Cells of "On Learning JAX", with the outputs that it shows."""

from __future__ import annotations

import random as python_random

import numpy as np
import pytest

import anima
import anima.numpy as jnp


def test_arrays():
    x = jnp.array([0, 1, 2, 3], dtype=jnp.int32)
    assert repr(x) == "Array([0, 1, 2, 3], dtype=int32)"
    x1 = x * 2
    x2 = x + 1
    x3 = x1 + x2
    assert repr((x1, x2, x3)) == ("(Array([0, 2, 4, 6], dtype=int32), Array([1, 2, 3, 4], dtype=int32), "
                                  "Array([ 1,  4,  7, 10], dtype=int32))")
    assert repr(jnp.dot(x1, x2)) == "Array(40, dtype=int32)"
    assert repr(jnp.outer(x1, x2)) == """\
Array([[ 0,  0,  0,  0],
       [ 2,  4,  6,  8],
       [ 4,  8, 12, 16],
       [ 6, 12, 18, 24]], dtype=int32)"""


def test_random_numbers():
    key = anima.random.PRNGKey(0x123456789)
    key, subkey = anima.random.split(key)
    assert repr(anima.random.uniform(subkey, (5,))) == (
        "Array([0.2918682 , 0.90834665, 0.13555491, 0.08107758, 0.9746183 ], dtype=float32)")
    again = repr(anima.random.normal(key, (2,)))
    assert again == "Array([-0.67039955,  0.02259737], dtype=float32)"
    assert repr(anima.random.normal(key, (2,))) == again
    for _ in range(2):  # the numbers shown are those of the cell's second run
        key, *subkeys = anima.random.split(key, 5)
    draws = np.array([anima.random.normal(s, (2, 2)) for s in subkeys])
    shown = np.array([[[1.0308125, -0.07533383], [-0.36027843, -1.270425]], [[0.34779412, -0.11094793],
                      [1.0509511, 0.52164143]], [[1.5565109, -0.9507161], [1.4706124, 0.25808835]],
                      [[-0.5725152, -1.1480215], [-0.6206856, -0.12488112]]], np.float32)
    np.testing.assert_allclose(draws, shown, rtol=5e-7)


def test_immutability_and_at():
    x1 = jnp.array([0, 2, 4, 6], dtype=jnp.int32)
    with pytest.raises(TypeError, match=r"does not support item assignment|do not support|immutable") as caught:
        x1[0] = 5
    assert "Anima arrays are immutable" in str(caught.value) and "x.at[idx].set(y)" in str(caught.value)
    assert repr((x1, x1.at[0].add(999))) == (
        "(Array([0, 2, 4, 6], dtype=int32), Array([999,   2,   4,   6], dtype=int32))")
    before = x1
    x1 += 5
    assert before.tolist() == [0, 2, 4, 6] and x1.tolist() == [5, 7, 9, 11]


def test_out_of_bounds_is_clamped_or_dropped():
    x1 = jnp.array([0, 2, 4, 6], dtype=jnp.int32)
    assert repr((x1[0], x1[-1], x1[10000])) == "(Array(0, dtype=int32), Array(6, dtype=int32), Array(6, dtype=int32))"
    assert repr(x1.at[10000].set(999)) == "Array([0, 2, 4, 6], dtype=int32)"
    assert anima.jit(lambda x: x[10000])(x1) == 6
    assert anima.jit(lambda x, i: x[i])(x1, 10000) == 6
    assert anima.jit(lambda x, i: x.at[i].set(999))(x1, 10000).tolist() == [0, 2, 4, 6]


def test_jit_of_a_layer():
    def fn(W, b, x):
        return x @ W + b

    W, b, x = jnp.ones((4, 2)), jnp.ones((2,)), jnp.arange(4.0)
    np.testing.assert_allclose(anima.jit(fn)(W, b, x).block_until_ready(), fn(W, b, x))
    assert str(anima.make_jaxpr(fn)(W, b, x)) == """\
{ lambda ; a:f32[4,2] b:f32[2] c:f32[4]. let
    d:f32[2] = dot_general[dimension_numbers=(([0], [0]), ([], []))] c a
    e:f32[2] = add d b
  in (e,) }"""
    assert anima.jit(fn).lower(W, b, x).compile().as_text()


def stupid_fn(x):
    y = jnp.copy(x)
    for _ in range(1000):
        x = x * x
    return y


def test_dead_multiplications():
    x = jnp.arange(4.0)
    lines = str(anima.make_jaxpr(stupid_fn)(x)).split("\n")
    assert lines[:4] == ["{ lambda ; a:f32[4]. let", "    b:f32[4] = copy a", "    c:f32[4] = mul a a",
                         "    d:f32[4] = mul c c"]
    assert lines[-3:] == ["    bmm:f32[4] = mul bml bml", "    _:f32[4] = mul bmm bmm", "  in (b,) }"]
    lowered = anima.jit(stupid_fn).lower(x)
    assert "fmul" not in lowered.llvm and "mul" not in lowered.compile().as_text()
    assert anima.jit(stupid_fn)(x).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_static_shapes():
    def create_filled(val, length):
        return jnp.full((length,), val)

    assert str(create_filled(1.0, 5)) == "[1. 1. 1. 1. 1.]"
    assert str(create_filled(2, 2)) == "[2 2]"
    with pytest.raises(TypeError) as caught:
        anima.jit(create_filled)(2, 5)
    assert "Shapes must be 1D sequences of concrete values of integer type, got (Traced<" in str(caught.value)
    assert "it depends on the value of the argument length." in str(caught.value)
    f = anima.jit(create_filled, static_argnums=(1,))
    assert str(f(2, 5)) == "[2 2 2 2 2]"
    assert str(f(1.0, 10)) == "[1. 1. 1. 1. 1. 1. 1. 1. 1. 1.]"
    assert str(anima.make_jaxpr(create_filled, static_argnums=(1,))(2, 5)) == """\
{ lambda ; a:i32[]. let
    b:i32[5] = broadcast_in_dim[broadcast_dimensions=() shape=(5,)] a
  in (b,) }"""
    assert str(anima.make_jaxpr(create_filled, static_argnums=(1,))(1.6, 10)) == """\
{ lambda ; a:f32[]. let
    b:f32[10] = broadcast_in_dim[broadcast_dimensions=() shape=(10,)] a
  in (b,) }"""


def test_boolean_masks():
    def mask_tensor(x, mask):
        return x.at[mask].set(-100.0)

    key = anima.random.PRNGKey(3)
    key, x_key, mask_key = anima.random.split(key, 3)
    x = anima.random.normal(x_key, (4, 4))
    mask = anima.random.uniform(mask_key, (4, 4)) < 0.5
    np.testing.assert_array_equal(mask_tensor(x, mask), np.where(mask, np.float32(-100), x))
    with pytest.raises(anima.errors.NonConcreteBooleanIndexError) as caught:
        anima.jit(mask_tensor)(x, mask)
    assert "Array boolean indices must be concrete; got ShapedArray(bool[4,4])" in str(caught.value)

    def mask_tensor_2(x, mask):
        return ~mask * x - mask * 100.0

    np.testing.assert_array_equal(anima.jit(mask_tensor_2)(x, mask), mask_tensor_2(x, mask))
    np.testing.assert_array_equal(mask_tensor_2(x, mask), mask_tensor(x, mask))


def test_many_shapes():
    def cube(x):
        return x * x * x

    rng = python_random.Random(0)
    jit_cube = anima.jit(cube)
    for _ in range(5):
        x = jnp.full((rng.randint(1, 1000),), 2.0)
        np.testing.assert_array_equal(jit_cube(x), cube(x))


shift = -1.0


def test_globals(monkeypatch):
    x1, x2, x3 = jnp.array([0, 1, 2]), jnp.array([0, -1, 0]), jnp.array([0, 1, 2, 3])

    def fn(x):
        return x + shift

    def with_shift(value):
        monkeypatch.setitem(globals(), "shift", value)

    assert str(fn(x1)) == "[-1.  0.  1.]"
    with_shift(1.0)
    assert str(fn(x2)) == "[1. 0. 1.]"
    assert str(fn(x3)) == "[1. 2. 3. 4.]"
    with_shift(-1.0)
    jit_fn = anima.jit(fn)
    assert str(jit_fn(x1)) == "[-1.  0.  1.]"
    with_shift(1.0)
    assert str(jit_fn(x2)) == "[-1. -2. -1.]"
    assert str(jit_fn(x3)) == "[1. 2. 3. 4.]"


def test_printing_happens_at_tracing(capsys):
    def fn(x):
        print("called identity function")
        return x

    jit_fn = anima.jit(fn)
    print("called `jit_fn(0.5)`")
    jit_fn(0.5)
    print("called `jit_fn(1.0)`")
    jit_fn(1.0)
    print("called `jit_fn([-1, 1])`")
    jit_fn(jnp.array([-1, 1]))
    assert capsys.readouterr().out == ("called `jit_fn(0.5)`\ncalled identity function\ncalled `jit_fn(1.0)`\n"
                                       "called `jit_fn([-1, 1])`\ncalled identity function\n")


def test_a_global_array_is_an_implicit_argument():
    b = jnp.array([1, 2, 3])

    def fn(x):
        return x + b

    jit_fn = anima.jit(fn)
    x = jnp.array([1, 2, 3])
    assert str(jit_fn(x)) == "[2 4 6]"
    b = jnp.array([0, 0, 0])
    assert str(jit_fn(x)) == "[2 4 6]"


def test_only_the_branch_taken_is_traced():
    config = {"relu": False}

    @anima.jit
    def fn(W, x):
        y = x @ W
        if config["relu"]:
            y = anima.nn.relu(y)
        return y

    W, x = jnp.ones((2, 2)), jnp.ones((2,))
    assert str(anima.make_jaxpr(fn)(W, x)) == """\
{ lambda ; a:f32[2,2] b:f32[2]. let
    c:f32[2] = pjit[
      name=fn
      jaxpr={ lambda ; d:f32[2,2] e:f32[2]. let
          f:f32[2] = dot_general[dimension_numbers=(([0], [0]), ([], []))] e d
        in (f,) }
    ] a b
  in (c,) }"""


DIMS = [784, 64, 10]


def make_params():
    key = anima.random.PRNGKey(0)
    key, *subkeys = anima.random.split(key, len(DIMS))
    return key, [{"W": anima.random.normal(w_key, (out_dim, in_dim)), "b": jnp.zeros((out_dim,))}
                 for w_key, in_dim, out_dim in zip(subkeys, DIMS[:-1], DIMS[1:], strict=True)]


@anima.jit
def feed_forward(params, x):
    for p in params:
        x = anima.nn.tanh(p["W"] @ x + p["b"])
    return x


def test_pytrees_and_an_mlp():
    key, params = make_params()
    assert repr(anima.tree_util.tree_structure(params)) == "PyTreeDef([{'W': *, 'b': *}, {'W': *, 'b': *}])"
    assert anima.tree_util.tree_map(lambda leaf: str(leaf.shape), params) == [
        {"W": "(64, 784)", "b": "(64,)"}, {"W": "(10, 64)", "b": "(10,)"}]
    key, x_key = anima.random.split(key)
    x = anima.random.normal(x_key, (DIMS[0],))
    expected = np.asarray(x)
    for p in params:
        expected = np.tanh(np.asarray(p["W"]) @ expected + np.asarray(p["b"]))
    np.testing.assert_allclose(feed_forward(params, x), expected, atol=2e-5)


def test_grad_and_value_and_grad():
    def fn(x):
        return 2 * x

    assert str(fn(5.0)) == "10.0"
    assert str(anima.grad(fn)(5.0)) == "2.0"
    assert repr(anima.value_and_grad(fn)(5.0)) == (
        "(Array(10., dtype=float32, weak_type=True), Array(2., dtype=float32, weak_type=True))")


def test_grad_of_a_pytree():
    _, params = make_params()

    def dummy_loss_fn(params, x):
        return feed_forward(params, x).sum()

    grads = anima.grad(dummy_loss_fn)(params, jnp.zeros(DIMS[0]))
    assert repr(anima.tree_util.tree_structure(grads)) == "PyTreeDef([{'W': *, 'b': *}, {'W': *, 'b': *}])"

    def loss_and_aux(params, x):
        y = feed_forward(params, x)
        return y.sum(), y

    values, grads = anima.value_and_grad(loss_and_aux, has_aux=True)(params, jnp.zeros(DIMS[0]))
    assert repr(values) == ("(Array(0., dtype=float32), Array([0., 0., 0., 0., 0., 0., 0., 0., 0., 0.], "
                            "dtype=float32))")
    assert repr(anima.tree_util.tree_structure(grads)) == "PyTreeDef([{'W': *, 'b': *}, {'W': *, 'b': *}])"


def test_higher_derivatives():
    def fn(x):
        return 2 * x**3

    grad_fn = anima.grad(fn)
    grad_grad_fn = anima.grad(grad_fn)
    x = 1.0
    assert f"d0x: {fn(x)}, d1x: {grad_fn(x)}, d2x: {grad_grad_fn(x)}" == "d0x: 2.0, d1x: 6.0, d2x: 12.0"
    assert str(anima.jit(anima.grad(fn))(x)) == "6.0"


def test_vmap():
    xs = jnp.arange(6.0).reshape(3, 2)
    W = jnp.ones((2, 4))
    np.testing.assert_array_equal(anima.vmap(lambda x: x @ W)(xs), xs @ W)
