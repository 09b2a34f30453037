"""What functions record: the equations that one expects to read, no more."""

from __future__ import annotations

import re

import numpy as np
import pytest

import anima
import anima.numpy as jnp

X = jnp.ones((2, 3))
I32 = jnp.arange(3)

CASES = [
    (lambda x: x + 1, (X,), "add a 1.0"),
    (lambda x: 2 * x, (X,), "mul 2.0 a"),
    (lambda x: x + np.float32(1), (X,), "add a 1.0"),
    (lambda x: x + jnp.asarray(1), (X,), "add a 1.0"),
    (lambda n: n + 1, (I32,), "add a 1"),
    (lambda n: n / 2, (I32,), "convert_element_type[new_dtype=float32 weak_type=False] a; div b 2.0"),
    (lambda x, y: x + y, (X, jnp.ones(3)), "broadcast_in_dim[broadcast_dimensions=(1,) shape=(1, 3)] b; add a c"),
    (lambda x, y: x + y, (X, jnp.ones((2, 1))), "add a b"),
    (lambda x, y: x * y, (X, jnp.float32(2)), "mul a b"),
    (lambda x: x**2, (X,), "integer_pow[y=2] a"),
    (lambda x: x**0, (X,), "integer_pow[y=0] a"),
    (lambda x: x**0.5, (X,), "pow a 0.5"),
    (lambda x: -x, (X,), "neg a"),
    (lambda x: x > 0, (X,), "gt a 0.0"),
    (jnp.sin, (I32,), "convert_element_type[new_dtype=float32 weak_type=False] a; sin b"),
    (lambda x: jnp.log(2.0), (X,), "log 2.0"),
    (lambda x: jnp.clip(x, 0, 1), (X,), "max 0.0 a; min 1.0 b"),
    (lambda x: jnp.stack([x, x], 1), (X,), "stack[axis=1] a a"),
    (lambda x: jnp.tile(x, 2), (X,), "tile[reps=(1, 2)] a"),
    (lambda x: x.sum(), (X,), "reduce_sum[axes=(0, 1)] a"),
    (lambda x: x.mean(0), (X,), "reduce_sum[axes=(0,)] a; div b 2.0"),
    (lambda x: x.max(axis=1, keepdims=True), (X,),
     "reduce_max[axes=(1,)] a; broadcast_in_dim[broadcast_dimensions=(0,) shape=(2, 1)] b"),
    (lambda x: x[0], (X,),
     "slice[limit_indices=(1, 3) start_indices=(0, 0) strides=None] a; squeeze[dimensions=(0,)] b"),
    (lambda x: x[-1, 1], (X,),
     "slice[limit_indices=(2, 2) start_indices=(1, 1) strides=None] a; squeeze[dimensions=(0, 1)] b"),
    (lambda x: x[:, ::2], (X,), "slice[limit_indices=(2, 3) start_indices=(0, 0) strides=(1, 2)] a"),
    (lambda x: x[::-1], (X,), "rev[dimensions=(0,)] a"),
    (lambda x: x[:], (X,), ""),
    (lambda x: x[..., None], (X,), "broadcast_in_dim[broadcast_dimensions=(0, 1) shape=(2, 3, 1)] a"),
    (lambda x: x.T, (X,), "transpose[permutation=(1, 0)] a"),
    (lambda x: x.reshape(-1), (X,), "reshape[new_sizes=(6,)] a"),
    (lambda x: x.reshape(2, 3), (X,), ""),
    (lambda x: x.astype("float32"), (X,), ""),
    (lambda x: x @ jnp.swapaxes(x, 0, 1), (X,),
     "transpose[permutation=(1, 0)] a; dot_general[dimension_numbers=(([1], [0]), ([], []))] a b"),
    (lambda x: jnp.einsum("bi,bi->b", x, x), (X,), "dot_general[dimension_numbers=(([1], [1]), ([0], [0]))] a a"),
    (lambda v: jnp.full((5,), v), (1.6,), "broadcast_in_dim[broadcast_dimensions=() shape=(5,)] a"),
    (lambda x: jnp.zeros((2,)), (X,), "broadcast_in_dim[broadcast_dimensions=() shape=(2,)] 0.0"),
    (lambda x: jnp.arange(4), (X,), "iota[dimension=0 dtype=int32 shape=(4,)]"),
    (lambda a, b: jnp.array([a, b]), (1, 2),
     "convert_element_type[new_dtype=int32 weak_type=False] a; "
     "convert_element_type[new_dtype=int32 weak_type=False] b; "
     "broadcast_in_dim[broadcast_dimensions=() shape=(1,)] c; broadcast_in_dim[broadcast_dimensions=() shape=(1,)] d; "
     "concatenate[dimension=0] e f"),
    (lambda x: jnp.where(x > 0, x, 0.0), (X,), "gt a 0.0; pjit[name=_where"),
]


def _equations(text: str) -> list[str]:
    """The right-hand sides of the equations of a printed program."""
    body = text.partition("let")[2].rpartition(" in ")[0]
    parts = re.split(r"(?:^|;|\s)\s*[a-z_]+:[a-z0-9]+\[[0-9,]*\] = ", " ".join(body.split()))
    return [e.strip() for e in parts if e.strip()]


@pytest.mark.parametrize(("function", "args", "want"), CASES, ids=[c[2][:60] + f" {i}" for i, c in enumerate(CASES)])
def test_equations(function, args, want):
    got = [e.rstrip("; ") for e in _equations(str(anima.make_jaxpr(function)(*args)))]
    wanted = [e for e in want.split("; ") if e]
    if want.endswith("pjit[name=_where"):
        assert got[0] == wanted[0] and got[1].startswith("pjit[ name=_where")
    else:
        assert got == wanted


def test_closed_over_numpy_array_is_one_constant():
    table = np.arange(3, dtype="f")
    program = anima.make_jaxpr(lambda x: x * table + table)(X)
    assert len(program.consts) == 1


def test_weak_types_survive_arithmetic_with_numbers():
    assert (jnp.asarray(1.0) * 2).weak_type and not (jnp.float32(1) * 2).weak_type


@pytest.mark.parametrize(("function", "name"), [
    (lambda x: jnp.split(x, [1], 1), "split"), (lambda x: jnp.array_split(x, 2, 1), "split"),
    (lambda x: jnp.unstack(x, axis=1), "unstack")])
def test_arrays_cut_up_are_one_equation(function, name):
    (eqn,) = anima.make_jaxpr(function)(X).eqns
    assert eqn.primitive.name == name
