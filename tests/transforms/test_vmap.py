"""vmap: axes of arguments and results, pytrees, nesting with every transformation, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

A = np.arange(12, dtype=np.float32).reshape(3, 4)
B = np.arange(12, dtype=np.float32).reshape(4, 3) / 7


def equal(actual: Any, expected: Any, rtol: float = 1e-6) -> None:
    leaves, structure = anima.tree.flatten(actual)
    wanted, expected_structure = anima.tree.flatten(expected)
    assert structure == expected_structure
    for a, e in zip(leaves, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=rtol, atol=1e-6)


# ---------------------------------------------------------------- axes

@pytest.mark.parametrize("in_axes, x, y, want", [
    (0, A, A, A * 2), (1, A, A, A.T * 2), (-1, A, A, A.T * 2), ((0, 1), A, B, A + B.T), ((0, None), A, A[0], A + A[0]),
    ((None, 0), A[0], A, A + A[0]), ((1, 0), A, B, A.T + B), ((-2, -1), A, B, A + B.T), ([0, 0], A, A, A * 2),
])
def test_in_axes(in_axes: Any, x: np.ndarray, y: np.ndarray, want: np.ndarray) -> None:
    equal(anima.vmap(lambda a, b: a + b, in_axes=in_axes)(x, y), want)


@pytest.mark.parametrize("out_axes, shape",
                         [(0, (3, 4, 2)), (1, (4, 3, 2)), (2, (4, 2, 3)), (-1, (4, 2, 3)), (-3, (3, 4, 2))])
def test_out_axes(out_axes: int, shape: tuple[int, ...]) -> None:
    x = np.arange(24.0, dtype=np.float32).reshape(3, 4, 2)
    out = anima.vmap(lambda v: v * 2, out_axes=out_axes)(x)
    assert out.shape == shape
    equal(np.moveaxis(np.asarray(out), out_axes, 0), x * 2)


class Row:
    """A pytree that takes only arrays of a shape."""

    def __init__(self, x: Any) -> None:
        if np.shape(x)[-2:] not in ((5, 1), ()):
            raise ValueError(f"shape {np.shape(x)}")
        self.x = x


anima.tree_util.register_pytree_node(Row, lambda row: ((row.x,), None), lambda _, xs: Row(*xs))


def test_trees_are_made_of_results_in_their_place() -> None:
    """Stacked along the second dimension, the product is put in order before a `Row` is made of it."""
    w = jnp.arange(25.0).reshape(5, 5)
    rows = anima.vmap(lambda v: Row(lax.dot_general(w, v[:, None], (((0,), (0,)), ((), ())))))(jnp.ones((7, 5)))
    equal(rows.x, np.broadcast_to(np.asarray(w).sum(0)[:, None], (7, 5, 1)))


def test_out_axes_of_trees() -> None:
    out = anima.vmap(lambda v: {"a": v, "b": (v, v.sum())}, out_axes={"a": 1, "b": (0, 0)})(A)
    equal(out, {"a": A.T, "b": (A, A.sum(1))})
    equal(anima.vmap(lambda v: {"a": v, "b": v}, out_axes=-1)(A), {"a": A.T, "b": A.T})
    equal(anima.vmap(lambda v, c: (v, c), in_axes=(0, None), out_axes=(0, None))(A, 5.0), (A, 5.0))
    # A result that no argument reaches is repeated, unless out_axes says None.
    equal(anima.vmap(lambda v: (v, 7.0))(A), (A, np.full(3, 7.0)))
    equal(anima.vmap(lambda v: (v, jnp.arange(2)), out_axes=(0, 1))(A), (A, np.array([[0] * 3, [1] * 3])))


class Pair(NamedTuple):
    first: Any
    second: Any


def test_in_axes_of_trees() -> None:
    d = {"w": A, "b": np.float32(2)}
    equal(anima.vmap(lambda p, x: p["w"] * p["b"] + x, in_axes=({"w": 0, "b": None}, None))(d, 1.0), A * 2 + 1)
    equal(anima.vmap(lambda p: p["w"].sum() * p["b"][0], in_axes=({"w": 0, "b": [None]},))({"w": A, "b": [2.0]}),
          A.sum(1) * 2)
    equal(anima.vmap(lambda p: p.first + p.second, in_axes=(Pair(0, 1),))(Pair(A, B)), A + B.T)
    equal(anima.vmap(lambda p: p["w"] + p["v"][0])({"w": A, "v": (A,), "none": None}), A * 2)
    equal(anima.vmap(lambda p, q: p[0] + p[1] + q, in_axes=((0, None), 0))((A, A[0]), A), 2 * A + A[0])
    equal(anima.vmap(lambda x, y, z: x + y * z, in_axes=(0, None, None))(A, 2.0, 3.0), A + 6)


def test_keywords_are_mapped_over_their_first_axis() -> None:
    equal(anima.vmap(lambda x, k: x * k)(A, k=A), A * A)
    equal(anima.vmap(lambda x, *, k: x * k["c"], in_axes=1)(A, k={"c": B}), A.T * B)


def test_axis_size() -> None:
    equal(anima.vmap(lambda: 3.0, axis_size=4)(), np.full(4, 3.0))
    equal(anima.vmap(lambda x: x, in_axes=None, axis_size=2)(A), np.stack([A, A]))
    equal(anima.vmap(lambda x: x, axis_size=3)(A), A)
    assert anima.vmap(lambda x: x * 2)(jnp.zeros((0, 3))).shape == (0, 3)


def test_the_function_sees_one_element() -> None:
    seen = []

    def f(x: Any) -> Any:
        seen.append((x.shape, x.ndim, x.size, x.dtype))
        return x

    anima.vmap(anima.vmap(f, in_axes=1))(np.zeros((2, 3, 4), np.float16))
    assert seen == [((3,), 1, 3, np.float16)]


# ---------------------------------------------------------------- nesting

def test_nested() -> None:
    outer = anima.vmap(anima.vmap(lambda a, b: a * b, in_axes=(None, 0)), in_axes=(0, None))
    equal(outer(A[0], B[0]), np.outer(A[0], B[0]))
    matmul = anima.vmap(anima.vmap(jnp.dot, in_axes=(None, 1)), in_axes=(0, None))
    equal(matmul(A, B), A @ B)
    equal(anima.vmap(matmul)(np.stack([A, A + 1]), np.stack([B, B])), np.stack([A @ B, (A + 1) @ B]))
    equal(anima.vmap(anima.vmap(lambda x: x.sum(), in_axes=1, out_axes=0), in_axes=2)(np.ones((2, 3, 4))),
          np.full((4, 3), 2.0))


def test_per_example_gradients() -> None:
    def loss(w: Any, x: Any, y: Any) -> Any:
        return jnp.sum((jnp.tanh(x @ w) - y) ** 2)

    w, xs, ys = np.float32([0.1, -0.2, 0.3, 0.4]), A / 5, A[:, 0]
    per_example = anima.vmap(anima.grad(loss), in_axes=(None, 0, 0))(w, xs, ys)
    equal(per_example, np.stack([anima.grad(loss)(w, x, y) for x, y in zip(xs, ys, strict=True)]))
    total = anima.grad(lambda w: anima.vmap(loss, in_axes=(None, 0, 0))(w, xs, ys).sum())(w)
    equal(total, np.asarray(per_example).sum(0), 1e-5)
    equal(anima.jit(anima.vmap(anima.jit(anima.grad(loss)), in_axes=(None, 0, 0)))(w, xs, ys), per_example, 1e-5)


def test_with_jit_inside_and_outside() -> None:
    f = anima.jit(lambda x, y: (jnp.sin(x) * y, x.sum()))
    want = np.sin(A) * A[0], A.sum(1)
    equal(anima.vmap(f, in_axes=(0, None))(A, A[0]), want, 1e-5)
    equal(anima.jit(anima.vmap(f, in_axes=(0, None)))(A, A[0]), want, 1e-5)
    equal(anima.jit(anima.vmap(f, in_axes=(1, None), out_axes=(1, 0)))(A.T, A[0]), (want[0].T, want[1]), 1e-5)


def test_closing_over_outer_values() -> None:
    """jit inside grad inside vmap, each closing over the tracers outside of it."""
    def f(x: Any) -> Any:
        return anima.grad(lambda y: anima.jit(lambda z: z * x * y)(y))(x)

    equal(anima.vmap(f)(A[1]), 2 * A[1] ** 2)
    equal(anima.jit(anima.vmap(f))(A[1]), 2 * A[1] ** 2)
    equal(anima.vmap(lambda x: anima.vmap(lambda y: x * y)(A[0]))(A[1]), np.outer(A[1], A[0]))
    equal(anima.vmap(lambda x: anima.jvp(lambda y: y * x, (x,), (1.0,))[1])(A[1]), A[1])


def test_derivatives_of_vmap() -> None:
    f = anima.vmap(lambda x: x[0] * x[1])
    x = np.stack([A[0], A[1]], 1)
    equal(anima.jacrev(f)(x)[0, 0], np.array([A[1, 0], A[0, 0]]))
    equal(anima.hessian(lambda v: anima.vmap(jnp.sin)(v).sum())(A[0]), np.diag(-np.sin(A[0])))


def test_operations_with_indices() -> None:
    rows = np.array([2, 0, 1], np.int32)
    equal(anima.vmap(lambda x, i: x[i])(A, rows), A[np.arange(3), rows])
    equal(anima.vmap(lambda x, i: x.at[i].set(0.0))(A, rows), np.where(np.arange(4) == rows[:, None], 0, A))
    equal(anima.vmap(lambda x, i: lax.dynamic_slice(x, (i,), (2,)))(A, rows),
          np.stack([A[k, r:r + 2] for k, r in enumerate(rows)]))
    equal(anima.vmap(lambda i: jnp.asarray(A)[i])(rows), A[rows])
    equal(anima.vmap(lambda x: jnp.sort(x)[::-1])(B), np.sort(B, 1)[:, ::-1])
    equal(anima.vmap(lambda x: jnp.cumsum(x), in_axes=1, out_axes=1)(A), np.cumsum(A, 0))
    equal(anima.vmap(lambda p, x, y: jnp.where(p, x, y), in_axes=(0, None, 0))(rows > 0, 1.0, rows * 1.0),
          np.where(rows > 0, 1.0, rows))


def test_broadcasting_inside() -> None:
    x = np.ones((3, 2), np.float32)
    equal(anima.vmap(lambda s, v: s * v, in_axes=(0, 0))(np.arange(3.0, dtype=np.float32), x),
          np.arange(3)[:, None] * x)
    equal(anima.vmap(lambda v: v[:, None] + jnp.arange(4.0))(x), np.broadcast_to(1 + np.arange(4.0), (3, 2, 4)))
    equal(anima.vmap(lambda s: jnp.full((2,), s))(np.arange(3.0)), np.repeat(np.arange(3.0), 2).reshape(3, 2))


# ---------------------------------------------------------------- errors

@pytest.mark.parametrize("kind, phrase, fun", [
    (ValueError, r"^vmap got inconsistent sizes for array axes to be mapped:\n[\s\S]*in vmap of <lambda>",
     lambda: anima.vmap(lambda x, y: x + y)(np.ones(3), np.ones(4))),
    (ValueError, r"inconsistent sizes[\s\S]*\['a'\][\s\S]*size 3[\s\S]*\['b'\][\s\S]*size 4",
     lambda: anima.vmap(lambda d: d["a"])({"a": np.ones(3), "b": np.ones(4)})),
    (ValueError, r"len\(in_axes\)=1, len\(args\)=2", lambda: anima.vmap(lambda x, y: x, in_axes=(0,))(A, A)),
    (TypeError, "in_axes must be an int, None, or a tuple", lambda: anima.vmap(lambda x: x, in_axes="a")(A)),
    (TypeError, "in_axes must be an int, None", lambda: anima.vmap(lambda x: x, in_axes=(0.5,))(A)),
    (TypeError, "out_axes must be an int, None", lambda: anima.vmap(lambda x: x, out_axes="a")(A)),
    (ValueError, "at least one non-None value in in_axes", lambda: anima.vmap(lambda x: x, in_axes=None)(A)),
    (ValueError, r"rank should be at least 1, but is only 0", lambda: anima.vmap(lambda x: x)(1.0)),
    (ValueError, r"rank should be at least 3, but is only 2", lambda: anima.vmap(lambda x: x, in_axes=2)(A)),
    (ValueError, r"rank should be at least 3, but is only 2", lambda: anima.vmap(lambda x: x, in_axes=-3)(A)),
    (ValueError, "at vmap out_axes, got axis spec None but output was batched on axis 0",
     lambda: anima.vmap(lambda x: x, out_axes=None)(A)),
    (ValueError, r"out_axes\['b'\]\[0\], got axis spec None but output was batched on axis 1",
     lambda: anima.vmap(lambda x: {"a": x, "b": (x,)}, in_axes=1, out_axes={"a": 0, "b": None})(A)),
    (ValueError, "out of bounds", lambda: anima.vmap(lambda x: x, out_axes=2)(A)),
    (ValueError, "out_axes specification must be a tree prefix", lambda: anima.vmap(lambda x: x, out_axes=(0, 0))(A)),
    (ValueError, "in_axes specification must be a tree prefix",
     lambda: anima.vmap(lambda d: d["a"], in_axes=({"b": 0},))({"a": A})),
    (ValueError, r"must be passed at least one argument containing an array", lambda: anima.vmap(lambda: 1)()),
    (TypeError, "Expected a callable", lambda: anima.vmap(3)),
    (ValueError, "inconsistent sizes", lambda: anima.vmap(lambda x: x, axis_size=5)(A)),
    (TypeError, "not a valid Anima type", lambda: anima.vmap(lambda x: "text")(A)),
    (TypeError, "not a valid Anima type", lambda: anima.vmap(lambda x: x)("text")),
])
def test_errors(kind: type[Exception], phrase: str, fun: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=phrase):
        fun()


def test_branching_on_a_mapped_value() -> None:
    with pytest.raises(anima.errors.TracerBoolConversionError, match="bool"):
        anima.vmap(lambda x: x if x > 0 else -x)(A[0])


def test_in_axes_is_not_a_dictionary() -> None:
    with pytest.raises(TypeError, match="in_axes must be an int, None, or a tuple"):
        anima.vmap(lambda d: d["a"], in_axes={"a": 0})({"a": jnp.ones(2)})


def test_scalars_of_lanes_are_broadcast_beside_arrays():
    """Tracers of libraries know `add` of one shape and `broadcast_in_dim`, as vmap has both in JAX; not `reshape`."""
    jaxpr = anima.make_jaxpr(anima.vmap(lax.add_p.bind, in_axes=(None, 0)))(np.ones(2, "f"), np.ones(3, "f")).jaxpr
    assert [eqn.primitive.name for eqn in jaxpr.eqns].count("reshape") == 0
    equal(anima.vmap(lambda a, b: a + b, in_axes=(None, 0))(A[0], B[:, 0]), A[0] + B[:, :1])
