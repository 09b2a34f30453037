"""Arrays are immutable, whatever is handed out of them and whatever they were made of."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.core import memory
from anima.core.array import ConcreteArray
from anima.experimental import io_callback
from anima.extend.core import Primitive, ShapedArray

LARGE = memory.LEAST // 4 + 5
MADE: dict[str, Callable[[], Any]] = {
    "eager": lambda: jnp.ones((3, 4)) + 1,
    "view": lambda: jnp.reshape(jnp.arange(6), (2, 3)),
    "view of a view": lambda: jnp.squeeze(jnp.reshape(jnp.arange(6.0), (1, 6)))[None],
    "number": lambda: jnp.asarray(2.0),
    "scalar": lambda: jnp.float32(2),
    "of NumPy": lambda: jnp.asarray(np.ones(3)),
    "empty": lambda: jnp.zeros((0, 3)),
    "bfloat16": lambda: jnp.ones((2, 2), "bfloat16"),
    "int4": lambda: jnp.ones(3, "int4"),
    "bool": lambda: jnp.ones(3) > 0,
    "complex": lambda: jnp.ones(3) * 1j,
    "compiled": lambda: anima.jit(lambda x: x + 1)(np.ones(5, np.float32)),
    "compiled 0-d": lambda: anima.jit(lambda x: x + 1)(2.0),
    "compiled, general": lambda: anima.jit(lambda x, n: {"a": x + n}, static_argnums=1)(np.ones(5), 2)["a"],
    "compiled, large": lambda: anima.jit(lambda x: x + 1)(np.ones(LARGE, np.float32)),
    "large": lambda: jnp.ones(LARGE),
    "keys": lambda: anima.random.key_data(anima.random.key(0)),
    "copy": lambda: copy.deepcopy(jnp.ones(3)),
    "pickled": lambda: pickle.loads(pickle.dumps(jnp.ones(3))),
}
OUT: dict[str, Callable[[Any], Any]] = {
    "asarray": np.asarray,
    "copy=False": lambda x: np.array(x, copy=False),
    "__array__": lambda x: x.__array__(),
    "value": lambda x: x.value,
    "device_get": anima.device_get,
    "transposed": lambda x: np.asarray(x).T,
    "slice": lambda x: np.asarray(x).reshape(-1)[:1],
    "bytes": lambda x: np.asarray(x).reshape(-1).view(np.uint8),
    "NumPy's function": lambda x: np.ravel(x),
}


def attack(array: np.ndarray) -> None:
    """Tries to make an array, or what it is a view of, writeable."""
    while isinstance(array, np.ndarray):
        for way in (lambda a: setattr(a.flags, "writeable", True), lambda a: a.setflags(write=True)):
            with pytest.raises(ValueError, match="cannot set WRITEABLE"):
                way(array)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        array = array.base


@pytest.mark.parametrize("out", OUT)
@pytest.mark.parametrize("made", MADE)
def test_memory_handed_out_cannot_be_made_writeable(made: str, out: str) -> None:
    x = MADE[made]()
    attack(OUT[out](x))
    assert x.__array__() is x.__array__()
    assert np.asarray(x).ctypes.data == x.unsafe_buffer_pointer(), "nothing is copied"


@pytest.mark.parametrize("made", ["eager", "compiled", "compiled, large", "number"])
def test_memory_views_are_read_only(made: str) -> None:
    x = MADE[made]()
    assert memoryview(np.asarray(x)).readonly
    again = np.from_dlpack(x)
    assert np.shares_memory(again, np.asarray(x))
    with pytest.raises(ValueError):
        again.flags.writeable = True


def test_copies_may_be_written_to() -> None:
    x = jnp.ones(3)
    for mine in (np.array(x), np.array(x, copy=True), np.asarray(x, np.float64), x.__array__(copy=True)):
        mine[0] = 5
    assert x.tolist() == [1, 1, 1]


def test_views_keep_blocks_of_memory() -> None:
    """As long as there is a view of any kind, its block is not given to others."""
    double = anima.jit(lambda x: x * 2)
    views = [out(double(np.full(LARGE, k, np.float32))) for k, out in enumerate(OUT.values())]
    views += [memoryview(np.asarray(double(np.full(LARGE, 7, np.float32)))), np.from_dlpack(double(np.ones(LARGE)))]
    before = [np.array(v) for v in views]
    gc.collect()
    for _ in range(30):
        double(np.full(LARGE, 99, np.float32))
    assert all((np.asarray(v) == b).all() for v, b in zip(views, before, strict=True))


def test_a_deleted_array_stays_deleted() -> None:
    x = jnp.ones(3)
    x.delete()
    for read in (lambda: x.value, lambda: x.elements(), lambda: np.asarray(x)):
        with pytest.raises(RuntimeError, match="deleted"):
            read()
    assert x.is_deleted()


# ---------------------------------------------------------------- users' arrays


def test_callbacks_get_arrays_that_cannot_be_written_to() -> None:
    seen = []

    def look(x: Any) -> np.ndarray:
        seen.append(np.asarray(x))
        return np.asarray(x)

    def f(x: Any) -> Any:
        anima.debug.callback(look, x)
        return anima.pure_callback(look, anima.ShapeDtypeStruct(x.shape, x.dtype), x)

    for run in (f, anima.jit(f)):
        for x in (jnp.ones(3), np.ones(3, np.float32)):
            run(x)
    assert len(seen) == 8
    for array in seen:
        attack(array)


@pytest.mark.parametrize("frozen", [False, True])
def test_what_callbacks_return_may_be_written_to_later(frozen: bool) -> None:
    mine = np.ones(3, np.float32)

    def give(x: Any) -> np.ndarray:
        view = mine.view()
        view.flags.writeable = not frozen
        return view

    def f(x: Any) -> Any:
        return anima.pure_callback(give, anima.ShapeDtypeStruct((3,), np.float32), x)

    results = [f(1.0), anima.jit(f)(1.0)]
    mine[:] = 5
    assert [r.tolist() for r in results] == [[1, 1, 1]] * 2


def test_operands_of_callbacks_stay_what_they_were() -> None:
    """Views that cannot be written to, of memory that can be."""
    mine, kept = np.ones(3, np.float32), []
    view = mine.view()
    view.flags.writeable = False
    results = anima.ShapeDtypeStruct((), np.float32)

    def f(x: Any) -> Any:
        return io_callback(lambda x: kept.append(x) or np.float32(0), results, x)

    f(view)
    anima.jit(f)(view)
    mine[:] = 5
    assert [x.tolist() for x in kept] == [[1, 1, 1]] * 2


def test_what_implementations_return_may_be_written_to_later() -> None:
    mine = np.ones(3, np.float32)
    give_p = Primitive("give")
    give_p.def_impl(lambda x: mine)
    give_p.def_abstract_eval(lambda x: ShapedArray((3,), np.float32))
    result = give_p.bind(jnp.zeros(3))
    mine[:] = 5
    assert result.tolist() == [1, 1, 1]


class Exporter:
    """Something that NumPy reads as an array, over its own memory."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype, self.shape, self.ndim = array, array.dtype, array.shape, array.ndim

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.array.copy() if copy else self.array


def _frozen_view(a: np.ndarray) -> np.ndarray:
    view = a.view()
    view.flags.writeable = False
    return view


class Special(np.ndarray):
    """A subclass of arrays."""


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda a: a, "view": lambda a: a[:], "frozen view": _frozen_view, "subclass": lambda a: a.view(Special),
    "exporter": Exporter}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "asarray": jnp.asarray, "array": jnp.array, "reshape": lambda x: jnp.reshape(x, (3, 2)), "ravel": jnp.ravel,
    "transpose": jnp.transpose, "expand_dims": lambda x: jnp.expand_dims(x, 0), "device_put": anima.device_put,
    "broadcast_to": lambda x: jnp.broadcast_to(x, (2, 2, 3)), "stop_gradient": anima.lax.stop_gradient,
    "slice": lambda x: anima.lax.slice(x, (0, 0), (2, 2)), "real": jnp.real, "flip": jnp.flip,
    "astype": lambda x: anima.lax.convert_element_type(x, np.float32), "split": lambda x: jnp.split(x, 2)[0],
    "bitcast": lambda x: anima.lax.bitcast_convert_type(x, np.int32), "concatenate": lambda x: jnp.concatenate([x]),
    "identity jit": anima.jit(lambda x: x), "cond": lambda x: anima.lax.cond(True, lambda v: v, lambda v: v, x),
    "scan": lambda x: anima.lax.scan(lambda c, v: (c, v), 0, x)[1], "vmap": anima.vmap(lambda x: x),
    "jvp": lambda x: anima.jvp(lambda v: v, (x,), (x,))[1], "checkpoint": anima.checkpoint(lambda x: x),
    "vjp": lambda x: anima.vjp(lambda v: v, x)[1](x)[0], "where": lambda x: jnp.where(True, x, x)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", VIEWS)
def test_a_users_array_may_be_written_to_later(name: str, kind: str) -> None:
    mine = np.arange(6, dtype=np.float32).reshape(2, 3)
    result = VIEWS[name](KINDS[kind](mine))
    if isinstance(result, ConcreteArray):
        before = np.array(result)
        mine[...] = -1
        np.testing.assert_array_equal(result, before)
        assert mine.flags.writeable


def test_constants_of_programs_are_as_they_were() -> None:
    for kind in KINDS.values():
        mine = np.arange(3, dtype=np.float32)
        constant = kind(mine)
        f = anima.jit(lambda x, c=constant: x + jnp.asarray(c) + jnp.sin(np.asarray(c)))
        g = anima.make_jaxpr(lambda x, c=constant: x + jnp.asarray(c))(1.0)
        first, consts = np.array(f(1.0)), [np.array(c) for c in g.consts]
        mine[:] = -1
        np.testing.assert_array_equal(f(1.0), first)
        assert all((np.asarray(a) == b).all() for a, b in zip(g.consts, consts, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
def test_constants_of_programs_lie_anyhow(dtype: str) -> None:
    x = jnp.arange(24).astype(dtype).reshape(2, 3, 4)
    x = np.array(x)
    for value in (x.T, x[:, ::2], x[::-1], x.transpose(1, 0, 2), np.broadcast_to(x[0, 0], (3, 4)), x[0, 0, ::-1],
                  x[:, :1].T, x[:0].T, np.asfortranarray(x)):
        got = np.asarray(anima.jit(lambda y, value=value: y + value)(np.zeros(value.shape, x.dtype)))
        np.testing.assert_array_equal(got, value)
        held = np.asarray(jnp.asarray(value))
        np.testing.assert_array_equal(held, value)
        with pytest.raises(ValueError, match="WRITEABLE"):
            held.flags.writeable = True


@pytest.mark.parametrize("made", [name for name in MADE if name not in ("bfloat16", "int4")])
@pytest.mark.parametrize("dtype", [None, "float32", "float64", "int32", "complex64", "bool"], ids=str)
def test_arrays_become_numpys_as_numpys_do(made: str, dtype: str | None) -> None:
    """Of every dtype, copied or not: as NumPy's own array of these elements answers."""
    x = MADE[made]()
    plain = np.array(x)
    for copied in (None, True, False):
        for convert in (lambda a, c: a.__array__(dtype, copy=c), lambda a, c: np.array(a, dtype, copy=c),
                        lambda a, c: a.__array__(None if dtype is None else np.dtype(dtype), copy=c)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
                if copied is False and dtype is not None and np.dtype(dtype) != plain.dtype:
                    with pytest.raises(ValueError, match="avoid"):
                        convert(x, copied)
                    continue
                found, want = convert(x, copied), plain.astype(dtype or plain.dtype)
            assert found.dtype == want.dtype and found.tobytes() == want.tobytes()
            assert found.flags.writeable == (not np.may_share_memory(found, x.value)) or not x.size
            if copied:
                assert found.flags.writeable and (not x.size or not np.may_share_memory(found, x.value))


def test_small_facts_of_arrays() -> None:
    x = jnp.arange(6.0).reshape(2, 3)
    assert [float(v) for v in x.flat] == [0, 1, 2, 3, 4, 5]
    assert x.is_ready() is True and x.on_device_size_in_bytes() == 24 and x.traceback is None
    for name, instead in (("device_buffer", r"x\.addressable_data\(0\)"), ("device_buffers", "x.addressable_shards")):
        with pytest.raises(AttributeError, match=f"x.{name} is gone, as in JAX: use .*{instead}"):
            getattr(x, name)


def test_dtypes_without_room_stand_apart_in_their_line() -> None:
    rows = np.float32([[1.7640524, 0.4001572, 0.978738, 2.2408931], [1.5, -0.9772779, 0.95008844, -0.1513572]])
    for joint, values in (("]],      dtype=float32)", rows), ("]], dtype=float32)", rows[:, :3]),
                          ("],      dtype=int32)", np.int32([3, -7, 0, 2**31 - 1, -2**31]))):
        text = repr(jnp.asarray(values))
        assert text.endswith(joint) and text.count("\n") == values.ndim - 1


def test_traced_arrays_are_their_own_copies() -> None:
    def program(x: Any) -> Any:
        assert copy.copy(x) is x and copy.deepcopy(x) is x and x.block_until_ready() is x and x.full_lower() is x
        assert x.to_concrete_value() is None
        return list(reversed(x))

    np.testing.assert_array_equal(anima.jit(program)(np.arange(6.0).reshape(3, 2)), [[4, 5], [2, 3], [0, 1]])
    seen = []
    anima.jvp(lambda x: seen.append(x.to_concrete_value()) or x, (2.5,), (1.0,))  # type: ignore[func-returns-value]
    assert [float(v) for v in seen] == [2.5]


def test_types_of_arrays() -> None:
    aval = ShapedArray((2, 3), np.dtype("float32"))
    assert aval.normalize() is aval and aval.lo_ty() == [aval] and aval.leading_axis_spec() == 0
    assert aval.lower_val(7) == [7] and aval.raise_val(7) == 7 and aval.vspace_add(2, 3) == 5
    assert aval.update(shape=(4,), memory_space=None) == ShapedArray((4,), np.dtype("float32"))
    with pytest.raises(TypeError, match=r"ShapedArray\.update has no argument 'other', 'some'"):
        aval.update(some=1, other=2)


def test_python_types_of_elements() -> None:
    for dtype, kind in (("bool", bool), ("int8", int), ("uint32", int), ("bfloat16", float), ("complex64", complex)):
        assert anima.dtypes.scalar_type_of(jnp.ones(2, dtype)) is kind
    with pytest.raises(TypeError, match="Invalid scalar value"):
        anima.dtypes.scalar_type_of(anima.random.key(0))
