"""Arrays: immutable, NumPy-backed values, and the operators that they share with tracers.

`Array` is the type users test against; `ConcreteArray` holds a value, a tracer stands for one. What `x + y`, `x.sum()`
or `x.at[i]` mean is decided in the NumPy face, above this layer: it fills the one table below by `install_operators`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from anima import errors
from anima.core import dlpack, dtypes
from anima.core.avals import ShapedArray, sharded
from anima.core.device import CPU, Device
from anima.core.layout import Format, row_major
from anima.core.remote import Located
from anima.core.shardings import WHOLE, Shard, Sharding, SingleDeviceSharding, spreads
from anima.core.state import current


class _Table(dict[str, Callable[..., Any]]):
    """The meaning of operators and methods; what fills it is loaded when the first is used."""

    load: Callable[[], Any]

    def __missing__(self, name: str) -> Callable[..., Any]:
        self.load()
        if name not in self:
            raise KeyError(name)
        return self[name]


_table = _Table()


def install_operators(table: Mapping[str, Callable[..., Any]]) -> None:
    """Gives operators and methods of arrays their meaning; called once, by the NumPy face."""
    _table.update(table)
    for special, method in [*vars(Array).items()]:
        name, reflected = _operators.pop(method, ("", False)) if isinstance(method, FunctionType) else ("", False)
        if name:
            _specials[special] = name, reflected
            if not reflected:  # from now on without a look into the table
                setattr(Array, special, table[name])
    for method, name in _methods.items():  # what `help` shows
        first, *rest = inspect.signature(table[name]).parameters.values()
        method.__signature__ = inspect.Signature([first.replace(name="self"), *rest])


_methods: dict[Any, str] = {}    # the methods of arrays, and what each is called in the table
_operators: dict[Any, tuple[str, bool]] = {}  # operators of two operands; whether the array is the one on the right
_specials: dict[str, tuple[str, bool]] = {}   # the same by their names in classes, when they have their meaning


def operators() -> list[tuple[str, Any, Callable[..., Any], tuple[str, ...]]]:
    """Operators that functions are behind: what a class has them under, the function, what they mean in Python, and
    what of the array itself and of the other operand that takes."""
    found: list[tuple[str, Any, Callable[..., Any], tuple[str, ...]]] = [
        (special, _table[name].__wrapped__, _table[name],  # type: ignore[attr-defined]
         ("other", "self") if reflected else ("self", "other")) for special, (name, reflected) in _specials.items()]
    for special, name in ("__neg__", "negative"), ("__abs__", "abs"), ("__invert__", "invert"):
        found.append((special, _table[name], vars(Array)[special], ("self",)))
    return [*found, ("__getitem__", _table["getitem"].__wrapped__, Array.__getitem__, ("self", "other"))]  # type: ignore[attr-defined]


def operator(name: str) -> Callable[..., Any]:
    """The meaning of an operator or method."""
    return _table[name]


def load_operators_by(load: Callable[[], Any]) -> None:
    """Says what is to be called when the first operator is used, and has it install them."""
    _table.load = load


def _method(name: str) -> Callable[..., Any]:
    def method(self: Array, *args: Any, **kwargs: Any) -> Any:
        try:  # as `errors.api_boundary` does, without the cost of one more call
            return _table[name](self, *args, **kwargs)
        except Exception as error:
            errors.filter_traceback(error)
            raise

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"See `anima.numpy.{name}`; the array is the first argument."
    _methods[method] = name
    return method


def _binary(name: str, reflected: bool = False) -> Callable[[Any, Any], Any]:
    def operator(self: Array, other: Any) -> Any:
        try:
            return _table[name](other, self) if reflected else _table[name](self, other)
        except Exception as error:
            errors.filter_traceback(error)
            raise

    _operators[operator] = name, reflected
    return operator


def _reflected(name: str) -> Callable[[Any, Any], Any]:
    return _binary(name, True)


class Array:
    """An immutable n-dimensional array, or a tracer standing for one.

    Made by `anima.numpy.array` and friends. Operators promote as `anima.numpy` functions do;
    `x.at[i].set(y)` gives an updated copy.
    """

    __slots__ = ()
    __array_priority__ = 100
    __module__ = "anima"

    aval: ShapedArray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        return self.aval.size

    @property
    def weak_type(self) -> bool:
        return self.aval.weak_type

    @property
    def itemsize(self) -> int:
        return self.aval.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.aval.size * self.aval.dtype.itemsize

    @property
    def T(self) -> Any:
        return _table["transpose"](self)

    @property
    def mT(self) -> Any:
        return _table["matrix_transpose"](self)

    @property
    def real(self) -> Any:
        return _table["real"](self)

    @property
    def imag(self) -> Any:
        return _table["imag"](self)

    @property
    def at(self) -> Any:
        """Indexed updates: `x.at[i].set(y)`, `add`, `multiply`, `min`, `max`, `apply`, `get`, ..."""
        return _table["at"](self)

    @property
    def pprint(self) -> Callable[[], str]:
        """Of random keys: what gives a text of the generator that they belong to; other arrays have none."""
        if not isinstance(self.dtype, dtypes.KeyDType):
            raise AttributeError("Only random keys have pprint: print(x) shows the elements of other arrays.")
        return partial(_table["pprint"], self)

    @property
    def flat(self) -> Iterator[Any]:
        return iter(_table["ravel"](self))

    @errors.api_boundary
    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError("len() of unsized object")
        return self.aval.shape[0]

    @errors.api_boundary
    def __iter__(self) -> Iterator[Any]:
        if not self.aval.shape:
            raise TypeError("iteration over a 0-d array")
        return iter(_table["unstack"](self))

    @errors.api_boundary
    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(errors.immutable_message(type(self)))

    def __getitem__(self, index: Any) -> Any:
        try:
            return _table["getitem"](self, index)
        except Exception as error:
            errors.filter_traceback(error)
            raise

    @errors.api_boundary
    def to_device(self, device: Any, *, stream: Any = None) -> Array:
        """The array on a device, or under a sharding: see `anima.device_put`."""
        return _table["to_device"](self, device)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return _table["array_namespace"](api_version)

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _binary("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _binary("true_divide"), _reflected("true_divide")
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _reflected("floor_divide")
    __mod__, __rmod__ = _binary("remainder"), _reflected("remainder")
    __divmod__, __rdivmod__ = _binary("divmod"), _reflected("divmod")
    __pow__, __rpow__ = _binary("power"), _reflected("power")
    __matmul__, __rmatmul__ = _binary("matmul"), _reflected("matmul")
    __and__, __rand__ = _binary("bitwise_and"), _reflected("bitwise_and")
    __or__, __ror__ = _binary("bitwise_or"), _reflected("bitwise_or")
    __xor__, __rxor__ = _binary("bitwise_xor"), _reflected("bitwise_xor")
    __lshift__, __rlshift__ = _binary("left_shift"), _reflected("left_shift")
    __rshift__, __rrshift__ = _binary("right_shift"), _reflected("right_shift")
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __eq__ = _binary("equal")  # type: ignore[assignment]
    __ne__ = _binary("not_equal")  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    __neg__ = _method("negative")
    __pos__ = _method("positive")
    __abs__ = _method("abs")
    __invert__ = _method("invert")
    __round__ = _method("round_method")

    all = _method("all")
    any = _method("any")
    argmax = _method("argmax")
    argmin = _method("argmin")
    argpartition = _method("argpartition")
    argsort = _method("argsort")
    astype = _method("astype")
    byteswap = _method("byteswap")
    choose = _method("choose")
    clip = _method("clip")
    compress = _method("compress")
    conj = _method("conj")
    conjugate = _method("conj")
    copy = _method("copy")
    cumprod = _method("cumprod")
    cumsum = _method("cumsum")
    diagonal = _method("diagonal")
    dot = _method("dot")
    flatten = _method("flatten")
    item = _method("item")
    max = _method("max")
    mean = _method("mean")
    min = _method("min")
    nonzero = _method("nonzero")
    prod = _method("prod")
    ptp = _method("ptp")
    ravel = _method("ravel")
    repeat = _method("repeat")
    reshape = _method("reshape_method")
    round = _method("round")
    searchsorted = _method("searchsorted")
    sort = _method("sort")
    squeeze = _method("squeeze")
    std = _method("std")
    sum = _method("sum")
    swapaxes = _method("swapaxes")
    take = _method("take")
    trace = _method("trace")
    transpose = _method("transpose_method")
    var = _method("var")
    view = _method("view")


def _sealed(value: np.ndarray) -> np.ndarray:
    """The same memory as an array that cannot be made writeable: NumPy asks the base of its base, a `memoryview`."""
    if type(getattr(value.base, "base", None)) is memoryview or value.dtype.hasobject or not value.itemsize:
        return value
    if not value.flags.c_contiguous:  # what is sealed is one piece, row-major
        order = sorted(range(value.ndim), key=lambda axis: -value.strides[axis])
        return _sealed(np.ascontiguousarray(value.transpose(order))).transpose(np.argsort(order))
    exporter = value if value.dtype.isbuiltin == 1 else value.reshape(-1).view(np.uint8)
    return np.frombuffer(exporter.data, value.dtype).reshape(value.shape)


class ConcreteArray(Array):
    """An array with a value, held as a read-only NumPy array (`_value`), which is sealed before anyone else sees it.
    In its place a deleted array has the name of the function that it was donated to, if it was.

    Arrays of extended element types (random keys) hold their base elements, one more dimension.
    """

    __slots__ = ("__weakref__", "_value", "aval")
    __module__ = "anima"

    def __init__(self, value: np.ndarray, aval: ShapedArray):
        value.flags.writeable = False
        self._value = value
        self.aval = aval

    @property
    def value(self) -> np.ndarray:
        """The elements, read-only for ever; RuntimeError if the array was deleted or donated."""
        value = _sealed(self.elements())
        if not self.is_deleted():  # another thread may have deleted it meanwhile
            self._value = value
        return value

    def elements(self) -> np.ndarray:
        """The elements for code of Anima's, which neither writes to them nor hands them on."""
        value = self._value
        if current.recording is not None:
            current.recording.look_into(self)
        if value.__class__ is str:
            by = f" It was donated to a call of {value}." if len(value) else ""
            raise RuntimeError(f"Array has been deleted with shape={self.aval.str_short()}.{by}")
        return value

    def delete(self, by: str = "") -> None:
        """Frees the array's memory now; later use raises RuntimeError, which names the function `by` that took it."""
        self._value = by  # type: ignore[assignment]

    def is_deleted(self) -> bool:
        return self._value.__class__ is str

    def block_until_ready(self) -> ConcreteArray:
        """The array itself: on a CPU results are ready when a call returns."""
        return self

    copy_to_host_async = block_until_ready

    def clone(self) -> ConcreteArray:
        """An array of the same elements in memory of its own."""
        return self.__deepcopy__({})
    __copy__ = clone

    committed = False  # to where it lies: operations may take it elsewhere

    def platform(self) -> str:
        """What kind of device the elements are on."""
        return CPU.platform

    def is_ready(self) -> bool:
        return True

    def unsafe_buffer_pointer(self) -> int:
        """The address of the elements; writing there breaks what immutability promises."""
        return self.elements().ctypes.data

    def on_device_size_in_bytes(self) -> int:
        return self.value.nbytes

    @property
    def sharding(self) -> Sharding:
        """On which devices the array lies, and which part of it on which."""
        return WHOLE

    @property
    def device(self) -> Any:
        """The device that it lies on; its sharding if there are several."""
        devices = self.devices()
        return next(iter(devices)) if len(devices) == 1 else self.sharding

    def devices(self) -> set[Device]:
        return set(self.sharding.device_set)

    @property
    def format(self) -> Format:
        """How the array lies in memory, and where."""
        return row_major(self.aval, self.sharding)

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts of the array on this process's devices: on one device the whole, which is itself."""
        return [Shard(CPU, WHOLE, self.shape, self)]

    @property
    def global_shards(self) -> list[Shard]:
        """The parts of the array on all devices."""
        return self.addressable_shards

    @errors.api_boundary
    def addressable_data(self, index: int) -> ConcreteArray:
        """`addressable_shards[index].data`."""
        return self.addressable_shards[index].data

    @property
    def device_buffer(self) -> Any:
        raise AttributeError("x.device_buffer is gone, as in JAX: use x.addressable_data(0).")

    @property
    def device_buffers(self) -> Any:
        raise AttributeError("x.device_buffers is gone, as in JAX: use [s.data for s in x.addressable_shards].")

    @property
    def traceback(self) -> None:
        """Where the array was made: None, as that is not recorded."""
        return None

    @property
    def is_fully_addressable(self) -> bool:
        return self.sharding.is_fully_addressable

    @property
    def is_fully_replicated(self) -> bool:
        return self.sharding.is_fully_replicated

    @errors.api_boundary
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if isinstance(self.aval.dtype, dtypes.ExtendedDType):
            raise TypeError("An array of random keys cannot be converted to a NumPy array. "
                            "Use anima.random.key_data(arr) to get the underlying integers.")
        value = self.value
        if dtype is not None and value.dtype != dtype:
            if copy is False:
                raise ValueError(f"Unable to avoid copy while converting {value.dtype} to {dtype}.")
            return value.astype(dtype)
        return value.copy() if copy else value

    @errors.api_boundary
    def __dlpack__(self, **kwargs: Any) -> Any:
        return dlpack.exported(self.__array__(), **kwargs)

    def __buffer__(self, flags: int) -> memoryview:
        """The elements as others read buffers: `memoryview(x)`, from Python 3.12 on."""
        value = self.__array__()
        if value.dtype.type.__module__ != "numpy":
            raise BufferError(f"Python's buffer protocol cannot express arrays of dtype {value.dtype}.")
        return value.data

    def __bytes__(self) -> bytes:
        return self.__array__().tobytes()

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU_DEVICE

    def __reduce__(self) -> Any:
        return _rebuild, (self.value.copy(), self.aval.shape, self.aval.dtype, self.aval.weak_type)

    def __deepcopy__(self, memo: Any) -> ConcreteArray:
        return ConcreteArray(self.value.copy(), self.aval)

    def _scalar(self, target: type) -> Any:
        if self.aval.size != 1 or self.aval.ndim > 0:
            raise TypeError(f"Only scalar arrays can be converted to Python scalars; got arr.ndim={self.ndim}")
        return target(self.__array__().item())  # Python has no float of a complex number

    @errors.api_boundary
    def __bool__(self) -> bool:
        if self.aval.size != 1:
            raise ValueError(errors.ambiguous_truth_message(self.aval.size))
        return bool(self.__array__().reshape(())[()])

    @errors.api_boundary
    def __int__(self) -> int:
        return self._scalar(int)

    @errors.api_boundary
    def __float__(self) -> float:
        return self._scalar(float)

    @errors.api_boundary
    def __complex__(self) -> complex:
        return self._scalar(complex)

    @errors.api_boundary
    def __index__(self) -> int:
        if self.aval.shape or self.aval.dtype.kind not in "iu":
            raise TypeError("Only integer scalar arrays can be converted to a scalar index.")
        return int(self.value[()])

    @errors.api_boundary
    def tolist(self) -> Any:
        """The elements as nested Python lists (a scalar for a 0-d array)."""
        return self.__array__().tolist()

    @errors.api_boundary
    def tobytes(self, order: str = "C") -> bytes:
        return self.__array__().tobytes(order)  # type: ignore[arg-type]

    @errors.api_boundary
    def __format__(self, spec: str) -> str:
        return format(str(self) if self._is_key() else self.value[()], spec)

    def _is_key(self) -> bool:
        return isinstance(self.aval.dtype, dtypes.ExtendedDType)

    def __str__(self) -> str:
        return repr(self) if self._is_key() else str(self.value)

    def __repr__(self) -> str:
        if self.is_deleted():
            return f"Array({self.aval.str_short()}, deleted)"
        if self._is_key():
            return f"Array({self.shape}, dtype={self.dtype}) overlaying:\n{self.value}"
        kind = f"dtype={dtypes.name(self.dtype)}{', weak_type=True' if self.weak_type else ''})"
        if self.size == 0:
            return f"Array([], {'shape=' + str(self.shape) + ', ' if self.ndim != 1 else ''}{kind}"
        text = np.array2string(self.value, prefix="Array(", separator=", ", suffix=",")
        last = len(text) - text.rfind("\n") + 1
        # What does not fit stands apart; a single line may be a little longer than NumPy's, as the documents print it.
        width = np.get_printoptions()["linewidth"] + (1 if "\n" in text else 5)
        return f"Array({text},{' ' if last + len(kind) + 2 <= width else '      '}{kind}"


def _rebuild(value: np.ndarray, shape: tuple[int, ...], dtype: Any, weak_type: bool) -> ConcreteArray:
    return ConcreteArray(value, ShapedArray(shape, dtype, weak_type))


class PlacedArray(Located, ConcreteArray):  # type: ignore[misc]
    """An array that somebody, or an option, put somewhere: it knows its sharding. Its elements are one piece of memory
    as those of others are, since devices of one process share it; if `committed`, operations on it run where it is.

    Of an array that is cut over several processes (`is_cut`), the memory here is the part of this process's device.
    """

    __slots__ = ("_sharding", "committed", "is_cut")
    __module__ = "anima"

    def __init__(self, value: np.ndarray, aval: ShapedArray, sharding: Sharding, committed: bool = True):
        super().__init__(value, sharded(aval, sharding))
        self._sharding = sharding
        self.committed = committed  # type: ignore[misc]
        self.is_cut = spreads(sharding) and not sharding.is_fully_replicated

    def with_part(self, value: np.ndarray) -> PlacedArray:
        """An array like this one, over these elements; quickly."""
        value.flags.writeable = False
        new = object.__new__(PlacedArray)
        new._value, new.aval, new._sharding = value, self.aval, self._sharding
        new.committed, new.is_cut = self.committed, self.is_cut  # type: ignore[misc]
        return new

    @property
    def sharding(self) -> Sharding:
        return self._sharding

    def elements(self) -> np.ndarray:
        if self.is_cut and not self.is_deleted():
            raise RuntimeError(
                f"An array of shape {self.aval.str_short()} that spans non-addressable (non process local) devices has "
                f"no value here: process {CPU.process_index} has the part of its own device. Fix: "
                "anima.experimental.multihost_utils.process_allgather(x, tiled=True), or x.addressable_shards; an "
                "array that a jitted function closes over: pass it as an argument.")
        return self.part()

    def part(self) -> np.ndarray:
        """The elements that this process has of an array over several; of one elsewhere, a copy."""
        value = ConcreteArray.elements(self)
        return value if value.__class__ is np.ndarray else value.host()  # type: ignore[attr-defined]

    @property
    def value(self) -> np.ndarray:
        return super().value if self.remote is None else _sealed(self.elements())

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts of the array on this process's devices, in their order in the sharding: views of its memory."""
        indices = self._sharding.addressable_devices_indices_map(self.shape)
        return [Shard(d, self._sharding, self.shape, lambda d=d, i=i: self._part(d, i)) for d, i in indices.items()]

    @property
    def global_shards(self) -> list[Shard]:
        """The parts of the array on all devices; those of other processes have no `data`."""
        own = {s.device: s for s in self.addressable_shards}
        return [own.get(d) or Shard(d, self._sharding, self.shape)
                for d in self._sharding.devices_indices_map(self.shape)]

    def _part(self, device: Device, index: tuple[slice, ...]) -> PlacedArray:
        if self.remote is not None:
            return self
        value = self.part() if self.is_cut else np.asarray(self.elements()[index], order="C")
        shape = value.shape[:len(self.shape)]  # random keys have one more dimension
        return PlacedArray(value.view(), ShapedArray(shape, self.aval.dtype, self.aval.weak_type),
                           SingleDeviceSharding(device, memory_kind=self._sharding.memory_kind))

    def __deepcopy__(self, memo: Any) -> PlacedArray:
        return PlacedArray(self.part().copy(), self.aval, self._sharding, self.committed)

    def __repr__(self) -> str:
        if self.is_cut and not self.is_deleted():
            return f"Array(shape={self.shape}, dtype={dtypes.name(self.dtype)})"
        return super().__repr__()

    def __str__(self) -> str:
        return repr(self) if self.is_cut else super().__str__()


for _class in (ConcreteArray, PlacedArray):
    _class.__name__ = _class.__qualname__ = "Array"  # to users there is one kind: errors call it so
