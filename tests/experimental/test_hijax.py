"""Operations whose rules are methods of a class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.experimental import hijax

X = np.float32([1.0, 2.0, 3.0])


class Times(hijax.VJPHiPrimitive):
    """x * y * k, with a cotangent of x that can be told from the right one."""

    k: float

    def __init__(self, aval: Any, k: float) -> None:
        self.in_avals, self.out_aval, self.params = (aval, aval), aval, {"k": k}
        self.asked: list[Any] = []
        super().__init__()

    def expand(self, x: Any, y: Any) -> Any:
        return x * y * self.k


class WithGradient(Times):
    def vjp_fwd(self, nzs_in: Any, /, *args: Any) -> Any:
        self.asked.append(nzs_in)
        return self.expand(*args), args

    def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
        return 100 * outgrad * res[1], outgrad * res[0] * self.k

    def batch(self, axis_data: Any, args: Any, dims: Any) -> Any:
        self.asked.append((axis_data.size, tuple(dims)))
        return self.expand(*args), 0


class WithTangent(Times):
    def jvp(self, primals: Any, tangents: Any) -> Any:
        return self.expand(*primals), 7.0 * tangents[0]


@pytest.mark.parametrize("mode", [lambda f: f, anima.jit])
def test_rules_are_methods(mode: Any) -> None:
    op = WithGradient(anima.typeof(1.0), 2.0)
    assert repr(op) == "WithGradient[{'k': 2.0}]"
    np.testing.assert_allclose(mode(lambda x, y: op(x, y))(2.0, 3.0), 12.0)
    np.testing.assert_allclose(mode(anima.grad(lambda x, y: op(x, y), (0, 1)))(2.0, 3.0), (300.0, 4.0))
    np.testing.assert_allclose(mode(anima.grad(lambda x: op(x, 3.0)))(2.0), 300.0)
    assert op.asked[0] == (True, True) and op.asked[-1] == (True, False)
    np.testing.assert_allclose(mode(anima.vmap(lambda x: op(x, x)))(X), 2 * X * X)
    np.testing.assert_allclose(mode(anima.vmap(lambda x: op(x, 3.0)))(X), 6 * X)
    assert (3, (0, 0)) in op.asked and (3, (0, None)) in op.asked
    tangent = WithTangent(anima.typeof(1.0), 2.0)
    np.testing.assert_allclose(mode(lambda x: anima.jvp(lambda x: tangent(x, 3.0), (x,), (1.0,))[1])(2.0), 7.0)


def test_what_is_missing() -> None:
    op = Times(anima.typeof(1.0), 2.0)
    np.testing.assert_allclose(anima.grad(lambda x: op(x, 3.0))(2.0), 6.0)  # of what it is made of
    with pytest.raises(TypeError, match=r"Times.*is an operation on"):
        op(2.0, X)
    for name, count in (("expand", 0), ("jvp", 2), ("vjp_fwd", 1), ("vjp_bwd_retval", 2), ("batch", 3)):
        with pytest.raises(NotImplementedError, match=f"Times must implement `{name}`"):
            getattr(hijax.VJPHiPrimitive, name)(op, *[None] * count)

    class Empty(hijax.VJPHiPrimitive):
        pass

    with pytest.raises(AttributeError, match=r"must set self\.in_avals"):
        Empty()


@pytest.mark.parametrize("mode", [lambda f: f, anima.jit])
def test_results_that_are_mapped_in_another_place_or_not(mode: Any) -> None:
    class Both(hijax.VJPHiPrimitive):
        """A row times two, and a number that does not depend on it."""

        def __init__(self) -> None:
            row = anima.typeof(jnp.ones(3))
            self.in_avals, self.out_aval, self.params = (row,), {"row": row, "one": anima.typeof(jnp.float32(1))}, {}
            super().__init__()

        def expand(self, x: Any) -> Any:
            return {"row": x * 2, "one": jnp.float32(1)}

        def batch(self, axis_data: Any, args: Any, dims: Any) -> Any:
            x = jnp.moveaxis(args[0], dims[0], 0)
            return {"row": x.T * 2, "one": jnp.float32(1)}, {"row": 1, "one": None}

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for axis in (0, 1):
        got = mode(anima.vmap(lambda v: Both()(v), in_axes=axis))(x if axis == 0 else x.T)
        np.testing.assert_array_equal(got["row"], 2 * x)
        np.testing.assert_array_equal(got["one"], [1, 1])


def test_primitives_as_classes() -> None:
    class Cube(hijax.HiPrimitive):
        def abstract_eval(self, x: Any) -> Any:
            return x, set()

        def to_lojax(self, x: Any) -> Any:
            return x * x * x

        def jvp(self, primals: Any, tangents: Any) -> Any:
            return self.bind(*primals), 3 * primals[0] ** 2 * tangents[0]

    p = Cube("cube_of_ones_own")
    for mode in (lambda f: f, anima.jit):
        np.testing.assert_allclose(mode(p.bind)(2.0), 8.0)
        np.testing.assert_allclose(mode(anima.grad(p.bind))(2.0), 12.0)


def test_an_operation_with_rules_for_both_modes() -> None:
    class Sine(hijax.VJPHiPrimitive):
        def __init__(self, aval: Any) -> None:
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

        def expand(self, x: Any) -> Any:
            return jnp.sin(x)

        def jvp(self, primals: Any, tangents: Any) -> Any:
            return self(*primals), 3 * jnp.cos(primals[0]) * tangents[0]

        def vjp_fwd(self, nzs_in: Any, /, *args: Any) -> Any:
            return self(*args), args[0]

        def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
            return (5 * outgrad * jnp.cos(res),)

    def f(x: Any) -> Any:
        return Sine(anima.typeof(x))(x)

    for mode in (lambda g: g, anima.jit):
        np.testing.assert_allclose(mode(anima.jacfwd(f))(1.0), 3 * np.cos(1), rtol=1e-6)
        np.testing.assert_allclose(mode(anima.grad(f))(1.0), 5 * np.cos(1), rtol=1e-6)
        np.testing.assert_allclose(mode(anima.vmap(anima.grad(f)))(X), 5 * np.cos(X), rtol=1e-6)


def test_types_of_ones_own_are_named_where_they_are_refused() -> None:
    class Box:
        pass

    class BoxType(hijax.MutableHiType):
        loud = hijax.aval_method(len)
        size = hijax.aval_property(len)

    hijax.register_hitype(Box, lambda box: BoxType())
    with pytest.raises(TypeError, match="Box"):
        jnp.sin(Box())
    assert isinstance(BoxType(), hijax.AbstractValue)
    assert hijax.AvalQDD(1, 2).qdd == hijax.AvalMutableQDD(1, 2).mutable_qdd == 2

    class Note:
        pass

    hijax.control_flow_allowed_effects.add_type(Note)
    note = Note()
    assert hijax.control_flow_allowed_effects.contains(note)
    assert hijax.control_flow_allowed_effects.filter_in([note, 1]) == [note]
    assert hijax.control_flow_allowed_effects.filter_not_in([note, 1]) == [1]


def test_what_may_change_of_a_type() -> None:
    class Box:
        cur_qdd = "now"

    assert anima.experimental.cur_qdd(Box()) == "now"
    with pytest.raises(AttributeError, match="cur_qdd"):
        anima.experimental.cur_qdd(anima.new_ref(1.0))
    with pytest.raises(NotImplementedError, match="cur_qdd"):
        anima.jit(anima.experimental.cur_qdd)(1.0)


def test_extended_dtypes_are_those_of_keys() -> None:
    assert not isinstance(anima.random.key(0), anima.experimental.EArray)
    with pytest.raises(NotImplementedError, match="random keys"):
        anima.experimental.EArray(None, None)
    with pytest.raises(NotImplementedError, match="one dtype"):
        anima.experimental.primal_tangent_dtype("int8", "bfloat16")
