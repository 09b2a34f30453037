"""grad, jvp, vjp, Jacobians and Hessians: known values, arguments, pytrees, complex conventions, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax


def float0_zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, anima.float0)


def equal(actual: Any, expected: Any, rtol: float = 1e-6) -> None:
    """Equal trees of numbers."""
    leaves, structure = anima.tree.flatten(actual)
    wanted, expected_structure = anima.tree.flatten(expected)
    assert structure == expected_structure
    for a, e in zip(leaves, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=rtol, atol=1e-7)


# ---------------------------------------------------------------- grad

@pytest.mark.parametrize("fun, x, slope", [
    (lambda x: x**3, 2.0, 12.0), (jnp.sin, 0.5, np.cos(0.5)), (jnp.tanh, 1.0, 1 - np.tanh(1.0) ** 2),
    (lambda x: jnp.exp(-x * x), 0.7, -1.4 * np.exp(-0.49)), (lambda x: jnp.where(x > 0, x, 0.01 * x), -3.0, 0.01),
    (lambda x: jnp.sqrt(x), 0.0, np.inf), (lambda x: jnp.maximum(x, 0.0), 0.0, 0.5), (jnp.abs, 0.0, 1.0),
    (lambda x: x / (1 + x), 1.0, 0.25), (lambda x: 3.0, 1.0, 0.0), (lambda x: x, 5.0, 1.0),
])
def test_gradients_of_scalars(fun: Callable[..., Any], x: float, slope: float) -> None:
    value, gradient = anima.value_and_grad(fun)(x)
    equal((value, gradient), (fun(x), slope))
    equal(anima.jit(anima.grad(fun))(x), slope)


def test_higher_orders() -> None:
    f = jnp.tanh
    y = np.tanh(0.3)
    for want in (y, 1 - y**2, -2 * y * (1 - y**2), (6 * y**2 - 2) * (1 - y**2)):
        equal(f(0.3), want, 1e-5)
        f = anima.grad(f)
    fifth = jnp.sin
    for _ in range(5):
        fifth = anima.grad(fifth)
    equal(fifth(0.4), np.cos(0.4))
    equal(anima.grad(lambda x: anima.jvp(anima.grad(jnp.exp), (x,), (1.0,))[1])(0.2), np.exp(0.2))


def test_argnums() -> None:
    def f(x: Any, y: Any, z: Any = 3.0) -> Any:
        return x * y**2 * z

    equal(anima.grad(f)(2.0, 5.0), 75.0)
    equal(anima.grad(f, 1)(2.0, 5.0), 60.0)
    equal(anima.grad(f, -1)(2.0, 5.0, 3.0), 50.0)
    equal(anima.grad(f, (0, 1))(2.0, 5.0), (75.0, 60.0))
    equal(anima.grad(f, (1, 0))(2.0, 5.0), (60.0, 75.0))
    equal(anima.grad(f, [0])(2.0, 5.0), (75.0,))
    equal(anima.grad(f)(2.0, 5.0, z=1.0), 25.0)


def test_aux() -> None:
    def f(x: Any) -> Any:
        return x**2, {"twice": 2 * x, "n": 7}

    (value, aux), gradient = anima.value_and_grad(f, has_aux=True)(3.0)
    equal((value, aux, gradient), (9.0, {"twice": 6.0, "n": 7}, 6.0))
    gradient, aux = anima.grad(f, has_aux=True)(3.0)
    equal((gradient, aux), (6.0, {"twice": 6.0, "n": 7}))
    (value, aux), gradient = anima.jit(anima.value_and_grad(f, has_aux=True))(3.0)
    equal((value, aux, gradient), (9.0, {"twice": 6.0, "n": 7}, 6.0))
    # What aux depends on stays differentiable from outside.
    equal(anima.grad(lambda x: anima.grad(lambda y: (y**2, y**3), has_aux=True)(x)[1])(2.0), 12.0)


class Point(NamedTuple):
    x: Any
    y: Any


def test_pytrees() -> None:
    gradient = anima.grad(lambda p: p["a"] * p["b"][0] + jnp.sum(p["c"].x) + p["c"].y)(
        {"a": 2.0, "b": [3.0], "c": Point(jnp.arange(3.0), 1.0), "none": None})
    equal(gradient, {"a": 3.0, "b": [2.0], "c": Point(np.ones(3), 1.0), "none": None})
    assert isinstance(gradient["c"], Point)
    equal(anima.grad(lambda p, q: p["w"] @ q[0], argnums=(0, 1))({"w": jnp.ones(2)}, (jnp.arange(2.0),)),
          ({"w": np.array([0.0, 1.0])}, (np.ones(2),)))


def test_gradients_keep_dtypes() -> None:
    for dtype in (jnp.float16, jnp.bfloat16, jnp.float32):
        x = jnp.ones(3, dtype)
        assert anima.grad(lambda v: (v * v).sum())(x).dtype == x.dtype
    mixed = anima.grad(lambda a, b: (a * b).sum().astype("float32"), (0, 1))(jnp.ones(2, jnp.float16), jnp.ones(2))
    assert [g.dtype for g in mixed] == [np.float16, np.float32]
    assert anima.grad(lambda x: x * np.float32(2))(3.0).weak_type is anima.grad(lambda x: x * 2)(3.0).weak_type is True
    assert not anima.grad(lambda x: x * 2)(np.float32(3)).weak_type


def test_integers() -> None:
    g = anima.grad(lambda x, n: x * n, argnums=(0, 1), allow_int=True)(3.0, 2)
    equal(g[0], 2.0)
    assert g[1].dtype == anima.float0 and g[1].shape == ()
    g = anima.grad(lambda p: p["x"] * p["n"].sum(), allow_int=True)({"x": 2.0, "n": jnp.arange(3)})
    equal(g["x"], 3.0)
    assert g["n"].dtype == anima.float0 and g["n"].shape == (3,)
    equal(anima.grad(lambda x, n: x**n)(2.0, 3), 12.0)  # an integer that is not differentiated needs nothing
    value, tangent = anima.jvp(lambda n: n * 2, (3,), (float0_zeros(),))
    assert value == 6 and tangent.dtype == anima.float0
    equal(anima.jvp(lambda n, x: n * x, (3, 2.0), (float0_zeros(), 1.0)), (6.0, 3.0))
    (ct,) = anima.vjp(lambda n: n * 2, 3)[1](float0_zeros())
    assert ct.dtype == anima.float0


def test_stop_gradient_and_zero_paths() -> None:
    equal(anima.grad(lambda x: x * lax.stop_gradient(x))(3.0), 3.0)
    equal(anima.grad(lambda x: lax.stop_gradient({"a": x})["a"] * 1.0)(3.0), 0.0)
    equal(anima.grad(lambda x: jnp.floor(x) + jnp.sign(x))(1.5), 0.0)
    equal(anima.grad(lambda x: (x > 0).astype("float32") * x)(2.0), 1.0)
    equal(anima.grad(lambda x, y: x)(1.0, 2.0), 1.0)
    equal(anima.grad(lambda x, y: x, argnums=1)(1.0, 2.0), 0.0)
    equal(anima.grad(lambda x: x.astype("int32").astype("float32"))(2.5), 0.0)


def test_what_is_differentiated_runs_once() -> None:
    calls = []

    def f(x: Any) -> Any:
        calls.append(1)
        return x * x

    anima.value_and_grad(f)(2.0)
    anima.jvp(f, (2.0,), (1.0,))
    _, pull = anima.vjp(f, 2.0)
    pull(1.0), pull(2.0)
    assert len(calls) == 3


def test_perturbations_are_not_confused() -> None:
    """The classic: d/dx (x * d/dy (x + y)) = 1, not 2."""
    equal(anima.jvp(lambda x: x * anima.jvp(lambda y: x + y, (1.0,), (1.0,))[1], (1.0,), (1.0,))[1], 1.0)
    equal(anima.grad(lambda x: x * anima.grad(lambda y: x + y)(1.0))(1.0), 1.0)
    equal(anima.grad(lambda x: x * anima.jvp(lambda y: x * y, (1.0,), (1.0,))[1])(3.0), 6.0)
    equal(anima.jvp(lambda x: anima.grad(lambda y: x * y * y)(x), (3.0,), (1.0,)), (18.0, 12.0))


def test_broadcasting_is_summed_back() -> None:
    x, y = jnp.ones((3, 1)), jnp.arange(4.0)
    gx, gy = anima.grad(lambda a, b: (a * b).sum(), (0, 1))(x, y)
    equal((gx, gy), (np.full((3, 1), 6.0), np.full(4, 3.0)))
    equal(anima.grad(lambda a: (a + jnp.zeros((2, 2))).sum())(1.0), 4.0)


# ---------------------------------------------------------------- jvp, vjp

def test_jvp() -> None:
    equal(anima.jvp(lambda x, y: x * y, (2.0, 3.0), (1.0, 10.0)), (6.0, 23.0))
    equal(anima.jvp(lambda x, y: x * y, [2.0, 3.0], [1.0, 10.0]), (6.0, 23.0))
    out, tangent = anima.jvp(lambda d: {"s": d["a"] * 2, "t": (d["b"],)}, ({"a": 1.0, "b": 2.0},),
                             ({"a": 5.0, "b": 7.0},))
    equal((out, tangent), ({"s": 2.0, "t": (2.0,)}, {"s": 10.0, "t": (7.0,)}))
    equal(anima.jvp(lambda x: (x**2, x + 1), (3.0,), (1.0,), has_aux=True), (9.0, 6.0, 4.0))
    out, tangent = anima.jvp(lambda x: (x, 3.0, jnp.arange(2)), (1.0,), (2.0,))
    equal(tangent[:2], (2.0, 0.0))
    assert tangent[2].dtype == anima.float0 and tangent[2].shape == (2,)
    assert all(isinstance(leaf, anima.Array) for leaf in anima.tree.leaves(out))


def test_vjp() -> None:
    out, pull = anima.vjp(lambda x, y: {"p": x * y, "s": x + y}, 2.0, 3.0)
    equal(out, {"p": 6.0, "s": 5.0})
    equal(pull({"p": 1.0, "s": 0.0}), (3.0, 2.0))
    equal(pull({"p": 0.0, "s": 1.0}), (1.0, 1.0))
    out, pull, aux = anima.vjp(lambda x: (x**2, {"x": x}), 3.0, has_aux=True)
    equal((out, pull(1.0), aux), (9.0, (6.0,), {"x": 3.0}))
    x = jnp.arange(3.0)
    equal(anima.vmap(anima.vjp(jnp.sin, x)[1])(jnp.eye(3))[0], np.diag(np.cos(np.arange(3.0))))
    equal(anima.jit(lambda x, ct: anima.vjp(jnp.sin, x)[1](ct))(x, jnp.ones(3))[0], np.cos(np.arange(3.0)))
    out, pull = anima.jit(lambda x: anima.vjp(lambda y: y * x, x)[0])(3.0), None
    equal(out, 9.0)


def test_cotangents_of_another_structure() -> None:
    transposed = anima.linear_transpose(lambda x: {"a": 3 * x}, 1.0)
    equal(transposed({"a": 2.0}), (6.0,))
    for ct in ((2.0,), {"b": 2.0}, 2.0, {"a": (2.0,)}):
        with pytest.raises(TypeError, match="cotangent tree does not match function output"):
            transposed(ct)
    converted, consts = anima.closure_convert(lambda x: 2 * x, 1.0)
    equal(converted(3.0, *consts), 6.0)
    for args in ((1.0, 2.0), ((1.0,),), ()):
        with pytest.raises(TypeError, match="was closure-converted for arguments of structure"):
            converted(*args)


def test_linear_transpose() -> None:
    equal(anima.linear_transpose(lambda x: 3 * x, 1.0)(2.0), (6.0,))
    transposed = anima.linear_transpose(lambda x, y: (x @ np.ones((2, 3), "f4"), y - x), jnp.ones(2), jnp.ones(2))
    equal(transposed((np.ones(3, "f4"), np.array([1.0, 2.0], "f4"))), (np.array([2.0, 1.0]), np.array([1.0, 2.0])))
    struct = anima.ShapeDtypeStruct((3,), jnp.float32)
    equal(anima.linear_transpose(lambda x: x[1:] * 2, struct)(jnp.ones(2)), (np.array([0.0, 2.0, 2.0]),))
    with pytest.raises(Exception, match=r"mul|linear"):
        anima.linear_transpose(lambda x: x * x, 1.0)(1.0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64", "int32"])
def test_linear_functions_take_what_is_of_their_type(dtype: str) -> None:
    """Tangents and cotangents of another type, or shape, are refused by all that takes some."""
    def f(x: Any) -> Any:
        return x.reshape(1, 3)  # which compares no types

    x = jnp.ones(3, "float32" if dtype == "int32" else dtype)
    takers = [(anima.linear_transpose(f, x), x[None]), (anima.vjp(f, x)[1], x[None]), (anima.linearize(f, x)[1], x),
              (lambda t: anima.jvp(f, (x,), (t,)), x)]
    for take, like in takers:
        take(like)
        for other in {"float32", "float16", "bfloat16", "complex64", "int32"} - {x.dtype.name}:
            with pytest.raises((TypeError, ValueError)):
                take(jnp.ones(like.shape, other))
        with pytest.raises((TypeError, ValueError)):
            take(jnp.concatenate([like, like]))


# ---------------------------------------------------------------- Jacobians, Hessians

@pytest.mark.parametrize("jacobian", [anima.jacfwd, anima.jacrev])
def test_jacobians(jacobian: Callable[..., Any]) -> None:
    x = jnp.array([1.0, 2.0, 3.0])
    equal(jacobian(lambda v: jnp.stack([v[0] * v[1], v[2] ** 2]))(x), np.array([[2.0, 1.0, 0.0], [0.0, 0.0, 6.0]]))
    equal(jacobian(lambda v: v.sum())(x), np.ones(3))
    matrix = jnp.arange(6.0).reshape(2, 3)
    assert jacobian(lambda m: m @ m.T)(matrix).shape == (2, 2, 2, 3)
    equal(jacobian(lambda a, b: {"s": a * b}, argnums=(0, 1))(2.0, jnp.array([1.0, 2.0])),
          {"s": (np.array([1.0, 2.0]), np.array([[2.0, 0.0], [0.0, 2.0]]))})
    equal(jacobian(lambda d: (d["a"] @ d["b"], d["a"] * 2))({"a": jnp.ones(2), "b": jnp.arange(2.0)}),
          ({"a": np.array([0.0, 1.0]), "b": np.ones(2)}, {"a": 2 * np.eye(2), "b": np.zeros((2, 2))}))
    equal(jacobian(lambda v: (v**2, v.sum()), has_aux=True)(x), (2 * np.diag([1.0, 2.0, 3.0]), 6.0))
    equal(anima.jit(jacobian(jnp.sin))(x), np.diag(np.cos([1.0, 2.0, 3.0])))
    equal(jacobian(lambda v, k: v * k)(x, k=2.0), 2 * np.eye(3))
    assert jacobian(lambda v: v.astype(jnp.float16))(x).dtype == np.float16 or jacobian is anima.jacrev


def test_jacobians_of_and_by_integers_are_zeros_of_them() -> None:
    x = jnp.ones(2)
    found = anima.jacfwd(lambda v: (v * 2, jnp.argmax(v)))(x)
    equal(found, (2 * np.eye(2), np.zeros(2)))
    assert found[1].dtype == np.int32
    scanned = anima.jacfwd(lambda v: lax.scan(lambda c, _: ((c[0] + 1, c[1] * 2), c[0]), (0, v), None, length=3))(x)
    equal(scanned, ((np.zeros(2), 8 * np.eye(2)), np.zeros((3, 2))))
    by_integers = anima.jacrev(lambda i, v: i * v, argnums=(0, 1), allow_int=True)(jnp.array([2, 3], jnp.int8), x)
    equal(by_integers, (np.zeros((2, 2)), np.diag([2.0, 3.0])))
    assert by_integers[0].dtype == np.int8


def test_hessian() -> None:
    equal(anima.hessian(lambda v: v[0] ** 2 * v[1])(jnp.array([2.0, 3.0])), np.array([[6.0, 4.0], [4.0, 0.0]]))
    equal(anima.hessian(lambda d: d["a"] * d["b"] ** 2)({"a": 1.0, "b": 2.0}),
          {"a": {"a": 0.0, "b": 4.0}, "b": {"a": 4.0, "b": 2.0}})
    equal(anima.hessian(lambda x: (x**2, x), has_aux=True)(2.0), (2.0, 2.0))
    equal(anima.hessian(lambda x, y: x * y**2, argnums=(0, 1))(1.0, 2.0), ((0.0, 4.0), (4.0, 2.0)))
    symmetric = anima.hessian(lambda m: jnp.sum(jnp.tanh(m) ** 3))(jnp.arange(4.0).reshape(2, 2) / 3)
    equal(symmetric, np.transpose(symmetric, (2, 3, 0, 1)))
    for outer in (anima.jacfwd, anima.jacrev):
        for inner in (anima.jacfwd, anima.jacrev):
            equal(outer(inner(lambda v: jnp.prod(v)))(jnp.array([1.0, 2.0, 4.0])),
                  np.array([[0.0, 4.0, 2.0], [4.0, 0.0, 1.0], [2.0, 1.0, 0.0]]))


# ---------------------------------------------------------------- complex numbers

Z = 3.0 + 4.0j


@pytest.mark.parametrize("fun, gradient", [
    (lambda z: z.real, 1), (lambda z: z.imag, -1j), (jnp.abs, 0.6 - 0.8j), (lambda z: jnp.abs(z) ** 2, 6 - 8j),
    (lambda z: jnp.real(z * z), 6 + 8j), (lambda z: jnp.real(jnp.conj(z) * z), 6 - 8j),
])
def test_gradients_of_real_functions_of_complex_numbers(fun: Callable[..., Any], gradient: complex) -> None:
    """The gradient g satisfies df = Re(g dz)."""
    equal(anima.grad(fun)(Z), np.complex64(gradient))
    dz = 0.3 - 0.5j
    _, df = anima.jvp(fun, (Z,), (dz,))
    equal(df, np.float32((gradient * dz).real), 1e-5)


def test_holomorphic() -> None:
    equal(anima.grad(lambda z: z * z, holomorphic=True)(Z), np.complex64(2 * Z))
    equal(anima.grad(jnp.sin, holomorphic=True)(Z), np.complex64(np.cos(Z)), 1e-5)
    equal(anima.jacfwd(lambda z: z * z, holomorphic=True)(Z), np.complex64(2 * Z))
    equal(anima.jacrev(lambda z: jnp.stack([z, z * z]), holomorphic=True)(Z), np.array([1, 2 * Z], np.complex64))
    equal(anima.value_and_grad(lambda z: z * 1j, holomorphic=True)(1 + 1j), (np.complex64(-1 + 1j), np.complex64(1j)))
    equal(anima.grad(jnp.conj, holomorphic=True)(Z), np.complex64(1))  # meaningless, and JAX's answer


def test_complex_conventions() -> None:
    equal(anima.jvp(jnp.conj, (Z,), (1j,)), (np.complex64(3 - 4j), np.complex64(-1j)))
    equal(anima.vjp(jnp.conj, Z)[1](np.complex64(1j)), (np.complex64(-1j),))
    pull = anima.vjp(lambda x: x * (1 + 2j), 3.0)[1]
    equal((pull(np.complex64(1)), pull(np.complex64(1j))), ((1.0,), (-2.0,)))
    equal(anima.jacrev(jnp.abs)(jnp.array([3 + 4j, 1j])), np.array([[0.6 - 0.8j, 0], [0, -1j]], np.complex64))
    equal(anima.jacfwd(lambda x: x * 1j)(2.0), np.complex64(1j))


# ---------------------------------------------------------------- errors

def error(kind: type[Exception], phrase: str, fun: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(kind, match=phrase):
        fun(*args)


def test_errors_of_grad() -> None:
    error(TypeError, r"scalar-output functions. Output had shape: \(3,\)", anima.grad(lambda x: x * 2), jnp.arange(3.0))
    error(TypeError, "scalar-output functions", anima.grad(lambda x: (x, x)), 1.0)
    error(TypeError, "scalar-output functions. Output was None", anima.grad(lambda x: None), 1.0)
    error(TypeError, "grad requires real- or complex-valued inputs.* but got int32", anima.grad(lambda x: x * 2), 3)
    error(TypeError, "but got bool", anima.grad(lambda x: 1.0 * x), True)
    error(TypeError, "grad requires real-valued outputs.* but got int32", anima.grad(lambda x: jnp.int32(3)), 1.0)
    error(TypeError, "but got complex64.*holomorphic=True", anima.grad(lambda x: x + 1j), 1.0)
    error(TypeError, "holomorphic=True requires inputs with complex", anima.grad(lambda x: x * 2, holomorphic=True),
          1.0)
    error(TypeError, "holomorphic=True requires outputs with complex",
          anima.grad(lambda x: jnp.real(x), holomorphic=True), 1.0j)
    error(TypeError, "requires at least 1 positional arguments", anima.grad(lambda x: x))
    error(TypeError, "requires at least 3 positional arguments", anima.grad(lambda x: x, argnums=2), 1.0)
    error(TypeError, "not a valid Anima type", anima.grad(lambda x: 1.0), ["a"])
    error(TypeError, "two-element tuple", anima.grad(lambda x: x, has_aux=True), 1.0)
    error(TypeError, "Expected a callable", anima.grad, 3)
    error(TypeError, "argnums", anima.grad(lambda x: x, argnums=()), 1.0)
    error(TypeError, "jacfwd requires real-valued inputs.* but got int32", anima.jacfwd(lambda x: x * 2), jnp.arange(3))
    error(TypeError, "jacfwd requires real-valued inputs", anima.jacfwd(lambda x: x * 2), 1j)
    error(TypeError, "jacrev requires real-valued outputs", anima.jacrev(lambda x: x * 1j), 2.0)


def test_errors_of_jvp_and_vjp() -> None:
    error(ValueError, "different primal and tangent shapes", anima.jvp, jnp.sin, (jnp.ones(3),), (jnp.ones(4),))
    error(TypeError, "dtypes must be equal", anima.jvp, jnp.sin, (jnp.ones(3),), (jnp.ones(3, jnp.int32),))
    error(TypeError, "float0", anima.jvp, lambda n: n, (3,), (3,))
    error(TypeError, "must be tuples or lists; found float and float", anima.jvp, jnp.sin, 1.0, 1.0)
    error(TypeError, "same tree structure", anima.jvp, lambda d: d["a"], ({"a": 1.0},), ({"b": 1.0},))
    _, pull = anima.vjp(lambda x: x * 2, jnp.ones(3))
    error(ValueError, r"float32\[4\].*expected float32\[3\]", pull, jnp.ones(4))
    error(ValueError, r"int32\[3\]", pull, jnp.ones(3, jnp.int32))
    error(ValueError, "tree structure", anima.vjp(lambda x: (x, x), 1.0)[1], 1.0)
    error(TypeError, "two-element tuple", lambda: anima.jvp(lambda x: x, (1.0,), (1.0,), has_aux=True))


# ---------------------------------------------------------------- aux, derivatives as values

@pytest.mark.parametrize("aux", ["a name", 3, {"a": None, "b": ["text", 2.5]}, np.arange(3), object], ids=str)
def test_aux_that_is_no_array_stays_as_it_is(aux: Any) -> None:
    def f(x: Any) -> Any:
        return x ** 2, (aux, x + 1)

    for got, after in (anima.grad(f, has_aux=True)(3.0)[1], anima.value_and_grad(f, has_aux=True)(3.0)[0][1],
                       anima.vjp(f, 3.0, has_aux=True)[2], anima.linearize(f, 3.0, has_aux=True)[2],
                       anima.jvp(f, (3.0,), (1.0,), has_aux=True)[2], anima.jacrev(f, has_aux=True)(3.0)[1]):
        assert type(got) is type(aux) and anima.tree.all(anima.tree.map(lambda a, b: np.all(a == b), got, aux))
        assert isinstance(after, anima.Array) and after == 4.0


def test_aux_may_come_in_a_list() -> None:
    assert anima.grad(lambda x: [x ** 2, x], has_aux=True)(3.0) == (6.0, 3.0)
    with pytest.raises(TypeError, match="two-element"):
        anima.grad(lambda x: [x, x, x], has_aux=True)(3.0)


@pytest.mark.parametrize("derive, apply", [
    (anima.vjp, lambda pull, t: pull(t)[0]), (anima.linearize, lambda push, t: push(t))], ids=["vjp", "linearize"])
def test_derivatives_are_pytrees(derive: Any, apply: Any) -> None:
    x, t = jnp.array([0.5, 1.0, 2.0]), jnp.array([1.0, 2.0, 3.0])
    slope = np.cos(np.asarray(x)) * np.asarray(t)
    out, derivative = anima.jit(lambda x: derive(jnp.sin, x))(x)                    # out of a jitted function
    equal(out, np.sin(x))
    equal(apply(derivative, t), slope)
    equal(anima.jit(apply)(derivative, t), slope)                                   # into one
    each = anima.vmap(lambda x: derive(jnp.sin, x)[1])(x)                           # one for each lane
    equal(anima.vmap(apply)(each, t), slope)
    _, stacked = lax.scan(lambda c, x: (c, derive(jnp.sin, x)[1]), 0.0, x)
    equal(anima.vmap(apply)(stacked, t), slope)
    doubled = anima.tree.map(lambda residual: 2 * residual, derivative)
    equal(apply(doubled, t), 2 * slope)
    assert "float32[3]" in repr(derivative)


@pytest.mark.parametrize("jitted", [True, False])
def test_fwd_and_bwd(jitted: bool) -> None:
    traced = []

    def f(x: Any, y: Any, *, scale: Any = 1.0) -> Any:
        traced.append(1)
        return jnp.sum(jnp.sin(x) * y * scale)

    fwd, bwd = anima.fwd_and_bwd(f, argnums=(1, 0), jitted=jitted)
    for k in range(1, 4):
        x, y = jnp.arange(3.0) * k, jnp.ones(3) * k
        out, residuals = fwd(x, y, scale=2.0)
        equal(out, np.sum(2 * np.sin(x) * y))
        equal(bwd(residuals, 3.0 * jnp.ones(())), (6 * np.sin(x), 6 * np.cos(x) * y), 1e-5)
    assert len(traced) == (1 if jitted else 3)
    if jitted:
        assert bwd._cache_size() == 1


def test_fwd_and_bwd_of_one_argument_and_with_aux() -> None:
    fwd, bwd = anima.fwd_and_bwd(lambda x: (x ** 2, {"double": 2 * x}), argnums=0, has_aux=True)
    out, residuals, aux = fwd(3.0)
    equal((out, aux, bwd(residuals, 1.0)), (9.0, {"double": 6.0}, 6.0))


def test_weak_types_of_jacobians_are_those_of_the_arguments() -> None:
    for jacobian in (anima.jacfwd, anima.jacrev, anima.jacobian, anima.hessian):
        assert jacobian(lambda x: x ** 3)(2.0).weak_type and not jacobian(lambda x: x ** 3)(jnp.float32(2)).weak_type
    mixed = anima.jacrev(lambda p: p)({"a": 1.0, "b": jnp.ones(2)})
    assert mixed["a"]["a"].weak_type and not mixed["b"]["b"].weak_type


@pytest.mark.parametrize("transform", [anima.grad, anima.value_and_grad, anima.jacfwd, anima.jacrev])
@pytest.mark.parametrize("argnums", [(0, 0), (0, -2), (1, 0, 1)])
def test_an_argument_is_named_once(transform: Any, argnums: Any) -> None:
    with pytest.raises(TypeError, match="each argument once"):
        transform(lambda x, y: x * y, argnums=argnums)(2.0, 3.0)


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("x", [0.5, jnp.float32(0.5), jnp.array([0.5, 2.0]), jnp.float16(0.5)], ids=str)
def test_python_numbers_as_other_operands(wrap: Any, x: Any) -> None:
    log2 = np.log(2.0)
    for fun, slope in ((lambda x: 2.0**x, lambda x: log2 * 2.0**x), (lambda x: 0.0**x, lambda x: 0.0 * x),
                       (lambda x: 2**x, lambda x: log2 * 2.0**x), (lambda x: 3.0 / x, lambda x: -3.0 / x**2),
                       (lambda x: jnp.arctan2(1.0, x), lambda x: -1.0 / (1.0 + x**2)),
                       (lambda x: jnp.float_power(2.0, x), lambda x: log2 * 2.0**x),
                       (lambda x: jnp.hypot(3.0, x), lambda x: x / np.hypot(3.0, x))):
        total = wrap(anima.grad(lambda x, fun=fun: jnp.sum(fun(x)).astype(float)))
        gradient = total(x)
        assert gradient.dtype == jnp.asarray(x).dtype
        np.testing.assert_allclose(gradient, slope(np.asarray(x, np.float64)), rtol=2e-3, atol=1e-6)
    second = wrap(anima.grad(anima.grad(lambda x: 2.0**x)))(1.5)
    np.testing.assert_allclose(second, log2**2 * 2.0**1.5, rtol=1e-5)


@pytest.mark.parametrize("use", [float, complex, math.sin, lambda x: x.tolist()], ids=["float", "complex", "sin",
                                                                                         "list"])
def test_a_derivative_is_not_lost_in_a_python_number(use: Any) -> None:
    def number(x: Any) -> Any:
        return abs(use(x)) * x

    for run in (lambda: anima.grad(number)(2.0), lambda: anima.jvp(number, (2.0,), (1.0,)),
                lambda: anima.jacfwd(number)(2.0), lambda: anima.jit(anima.grad(number))(2.0)):
        with pytest.raises(anima.errors.ConcretizationTypeError):
            run()
    equal(anima.grad(lambda x: abs(use(lax.stop_gradient(x))) * x)(2.0), abs(use(jnp.float32(2.0))))
    equal(anima.grad(lambda x, y: abs(use(y)) * x)(1.0, jnp.float32(2.0)), abs(use(jnp.float32(2.0))))
    equal(anima.grad(lambda x: x * int(x) + x * bool(x))(2.0), 3.0)    # control flow may look


@pytest.mark.parametrize("transform", [
    lambda f, **kw: anima.grad(f, **kw)(2.0), lambda f, **kw: anima.value_and_grad(f, **kw)(2.0),
    lambda f, **kw: anima.vjp(f, 2.0, **kw), lambda f, **kw: anima.linear_transpose(f, 2.0, **kw)])
def test_reduce_axes_is_refused(transform: Any) -> None:
    transform(lambda x: 2.0 * x, reduce_axes=())
    with pytest.raises(NotImplementedError, match="reduce_axes"):
        transform(lambda x: 2.0 * x, reduce_axes=("batch",))


def test_bounds_of_arange_may_be_differentiated_numbers() -> None:
    equal(anima.grad(lambda x: jnp.sum(jnp.arange(x)) * x)(3.0), 3.0)       # 0 + 1 + 2: a shape has no derivative
    with pytest.raises(anima.errors.ConcretizationTypeError, match="arange"):
        anima.jit(anima.grad(lambda x: jnp.sum(jnp.arange(x)) * x))(3.0)


# ---------------------------------------------------------------- weak types

WEAK = {"clip": lambda x: jnp.clip(x, 0.0, 2.0), "minimum": lambda x: jnp.minimum(x, 2.0),
        "maximum": lambda x: jnp.maximum(x, x), "hypot": lambda x: jnp.hypot(x, 2.0), "sinc": jnp.sinc,
        "logaddexp": lambda x: jnp.logaddexp(x, 2.0),
        "logaddexp2": lambda x: jnp.logaddexp2(x, 2.0), "softplus": anima.nn.softplus, "deg2rad": jnp.deg2rad,
        "heaviside": lambda x: jnp.heaviside(x, 0.5), "log_sigmoid": anima.nn.log_sigmoid}


@pytest.mark.parametrize("name", WEAK)
def test_gradients_of_weakly_typed_scalars_are_weakly_typed(name: str) -> None:
    fun = WEAK[name]
    assert anima.grad(fun)(1.5).weak_type
    strong = jnp.float32(1.5)
    assert not fun(strong).weak_type and not anima.grad(fun)(strong).weak_type
