"""Arrays exchanged with other libraries: no copies, no writing over what others see, types that cannot be exchanged."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import dlpack
from anima.core import dlpack as interchange

DTYPES = ["bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32", "complex64"]


class OldExporter:
    """A library that knows the first version of DLPack only."""

    def __init__(self, x: Any):
        self.x = x

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.x.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2), (1,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_ways(dtype: str, shape: tuple[int, ...]) -> None:
    x = jnp.asarray(np.arange(np.prod(shape)).reshape(shape)).astype(dtype)
    assert dlpack.is_supported_dtype(dtype)
    for exporter in (OldExporter(x), x):
        back = dlpack.from_dlpack(exporter)
        assert (back.dtype, back.shape) == (x.dtype, x.shape)
        np.testing.assert_array_equal(back, x)
        if x.size and exporter is x:  # the first version cannot say that memory is read-only: a copy
            assert back.unsafe_buffer_pointer() == x.unsafe_buffer_pointer()
    copy = dlpack.from_dlpack(x, copy=True)
    np.testing.assert_array_equal(copy, x)
    assert not x.size or copy.unsafe_buffer_pointer() != x.unsafe_buffer_pointer()
    if dtype != "bfloat16":
        view = np.from_dlpack(x)
        np.testing.assert_array_equal(view, x)
        assert not view.flags.writeable
    del x, exporter  # the memory lives as long as what was taken from it
    np.testing.assert_array_equal(back, copy)


def test_capsules_say_bfloat16() -> None:
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    x = jnp.ones(3, "bfloat16")
    for capsule, offset in ((x.__dlpack__(), 20), (x.__dlpack__(max_version=(1, 0)), 32 + 20)):
        code, bits, *lanes = ctypes.string_at(get(capsule, name(capsule)) + offset, 4)
        assert (code, bits, lanes) == (4, 16, [1, 0])


def test_memory_of_others_is_never_written_over() -> None:
    for size in (4, 1 << 20):  # in small memory, and in blocks that are used again
        theirs = np.arange(size, dtype=np.float32)
        add = anima.jit(lambda x: x + 1, donate_argnums=0)
        for _ in range(3):
            x = dlpack.from_dlpack(theirs)
            assert x.unsafe_buffer_pointer() == theirs.ctypes.data
            np.testing.assert_array_equal(add(x)[:3], [1, 2, 3])
            np.testing.assert_array_equal(theirs[:3], [0, 1, 2])


def test_copies_where_needed() -> None:
    theirs = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(dlpack.from_dlpack(theirs.T), theirs.T)
    np.testing.assert_array_equal(jnp.from_dlpack(theirs[:, ::-1]), theirs[:, ::-1])
    for view in (theirs.T, theirs[:, ::-1]):
        with pytest.raises(BufferError, match="cannot avoid a copy"):
            jnp.from_dlpack(view, copy=False)
    assert jnp.from_dlpack(np.arange(3.0)).dtype == np.float32
    with anima.enable_x64(True):
        assert jnp.from_dlpack(np.arange(3.0)).dtype == np.float64


@pytest.mark.parametrize("dtype", ["int4", "uint2", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_cannot_be_exchanged(dtype: str) -> None:
    assert not dlpack.is_supported_dtype(dtype if not dtype.startswith("f") else getattr(ml_dtypes, dtype))
    with pytest.raises(BufferError, match=dtype):
        jnp.ones(3, dtype).__dlpack__()


def test_errors() -> None:
    with pytest.raises(TypeError, match="__dlpack__"):
        dlpack.from_dlpack(3)
    with pytest.raises(RuntimeError, match="Unknown device"):
        dlpack.from_dlpack(np.ones(3), device="gpu")
    with pytest.raises(TypeError, match="random keys"):
        anima.random.key(0).__dlpack__()
    elsewhere = OldExporter(np.ones(3))
    elsewhere.__dlpack_device__ = lambda: (7, 0)  # type: ignore[method-assign]
    with pytest.raises(BufferError, match="another device"):
        dlpack.from_dlpack(elsewhere)


def test_buffers() -> None:
    x = jnp.arange(6.0).reshape(2, 3)
    view = memoryview(x) if sys.version_info >= (3, 12) else x.__buffer__(0)  # type: ignore[call-overload]
    assert (view.shape, view.format, view.readonly) == ((2, 3), "f", True)
    assert view.tolist() == x.tolist()
    for other in (jnp.ones(2, "bfloat16"), jnp.ones(2, "int4")):
        with pytest.raises(BufferError):
            other.__buffer__(0)


def test_arrays_by_interface_alone() -> None:
    """Steps in bytes are steps in elements there."""
    class Given:
        def __init__(self, **said: Any) -> None:
            self.__cuda_array_interface__ = {"shape": (3, 2), "data": (64, False), "version": 3, **said}

    lent = interchange._by_interface(Given(typestr="<f8", strides=(32, 8)))
    assert (lent.address, lent.shape, lent.dtype, lent.strides) == (64, (3, 2), np.dtype("f8"), (4, 1))
    assert interchange._by_interface(Given(typestr="<i2", strides=None)).strides is None
    for said in ({"typestr": ">f8"}, {"typestr": "<U4"}, {"typestr": "<f8", "mask": 1}):
        with pytest.raises(BufferError, match="__cuda_array_interface__"):
            interchange._by_interface(Given(**said))
