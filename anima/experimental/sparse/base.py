"""What all sparse arrays share: their base class, warnings and errors.

What operators mean is said by the modules above this one, which call `install`: a class without a meaning for one
raises NotImplementedError.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from anima import errors, tree
from anima.core.array import Array, ConcreteArray
from anima.core.avals import Shape

_meanings: dict[tuple[type, str], Callable[..., Any]] = {}


class SparseEfficiencyWarning(UserWarning):
    """A sparse array that takes far more memory, or time, than it needs."""


class CuSparseEfficiencyWarning(SparseEfficiencyWarning):
    """As SparseEfficiencyWarning, of cuSPARSE; never given, as there is no GPU."""


class SparseEfficiencyError(ValueError):
    """What would take far more memory, or time, than it needs, and was not asked for in so many words."""


def install(kind: type, meanings: Mapping[str, Callable[..., Any]]) -> None:
    """Gives operators and methods of a class their meaning, by name."""
    _meanings.update({(kind, name): function for name, function in meanings.items()})


def meaning(kind: type, name: str) -> Callable[..., Any]:
    """What an operator or method of a class means."""
    found = _meanings.get((kind, name))
    if found is None:
        raise NotImplementedError(f"{kind.__name__}.{name} is not implemented.")
    return found


def _operator(name: str) -> Any:
    @errors.api_boundary
    def operator(self: Any, *args: Any, **kwargs: Any) -> Any:
        return meaning(type(self), name)(self, *args, **kwargs)

    operator.__name__ = operator.__qualname__ = name
    return operator


class JAXSparse(abc.ABC):
    """A sparse array: a shape, stored elements (`data`), and where they are.

    Sparse arrays are pytrees of their data and indices: they are arguments and results of `jit`, `vmap` and loops;
    `anima.experimental.sparse.grad` differentiates by their data. Functions of `anima.numpy` take them under
    `sparsify`.
    """

    data: Any
    shape: Shape
    __array_ufunc__ = None  # NumPy's arrays leave operators to these

    def __init__(self, args: tuple[Any, ...], *, shape: Any):
        self.shape = tuple(int(n) for n in shape)

    @property
    @abc.abstractmethod
    def nse(self) -> int:
        """The number of stored elements, of each matrix of a batch."""

    @property
    @abc.abstractmethod
    def dtype(self) -> Any:
        """The dtype of the elements."""

    @property
    def size(self) -> int:
        """The number of elements, stored or not."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __repr__(self) -> str:
        try:
            text = f"{type(self).__name__}({self.dtype}{list(self.shape)}, nse={self.nse}{self._layout_text()})"
        except (AttributeError, TypeError, IndexError):  # of a pytree whose leaves are no arrays
            return f"{type(self).__name__}(<invalid>)"
        return text if isinstance(self.data, ConcreteArray) else f"{type(self.data).__name__}[{text}]"

    def _layout_text(self) -> str:
        return ""

    @abc.abstractmethod
    def tree_flatten(self) -> tuple[Any, Any]:
        """(arrays, all else), for pytrees."""

    @classmethod
    @abc.abstractmethod
    def tree_unflatten(cls, aux_data: Any, children: Any) -> JAXSparse:
        """The array of which `tree_flatten` gave these."""

    @abc.abstractmethod
    def transpose(self, axes: Any = None) -> Any:
        """The array with its dimensions in another order; by default, in reverse."""

    @property
    def T(self) -> Any:
        """The transpose."""
        return self.transpose()

    def block_until_ready(self) -> JAXSparse:
        """The array itself, once it is computed."""
        for leaf in tree.leaves(self):
            leaf.block_until_ready()
        return self

    @abc.abstractmethod
    def todense(self) -> Array:
        """The dense array with these elements."""

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter([self[k] for k in range(len(self))])

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        """The sum of the elements, of all or along axes; see `anima.numpy.sum`."""
        return meaning(type(self), "sum")(self, *args, **kwargs)

    __getitem__ = _operator("__getitem__")
    __neg__, __pos__, __abs__ = _operator("__neg__"), _operator("__pos__"), _operator("__abs__")
    __matmul__, __rmatmul__ = _operator("__matmul__"), _operator("__rmatmul__")
    __mul__, __rmul__ = _operator("__mul__"), _operator("__rmul__")
    __add__, __radd__ = _operator("__add__"), _operator("__radd__")
    __sub__, __rsub__ = _operator("__sub__"), _operator("__rsub__")
    __truediv__, __rtruediv__ = _operator("__truediv__"), _operator("__rtruediv__")
    __floordiv__, __mod__, __pow__ = _operator("__floordiv__"), _operator("__mod__"), _operator("__pow__")
    __eq__, __ne__ = _operator("__eq__"), _operator("__ne__")
    __lt__, __le__ = _operator("__lt__"), _operator("__le__")
    __gt__, __ge__ = _operator("__gt__"), _operator("__ge__")
    __hash__ = None


def shape_with_batch(shape: Shape, own: int, *batched: tuple[Any, int]) -> Shape:
    """The shape of an array that was put together of arrays again, where `vmap` gave these a batch dimension more or
    took one away. `own` dimensions are not of the batch; `batched`: an array, and its rank without a batch."""
    try:
        parts = [x.shape[: len(x.shape) - rank] for x, rank in batched]
    except (AttributeError, TypeError):  # what holds the place of arrays in a pytree
        return shape
    if len(parts[0]) + own == len(shape):
        return shape
    try:
        return (*np.broadcast_shapes(*parts), *shape[len(shape) - own:])
    except ValueError:
        return shape


def rebuilt(kind: Any, names: tuple[str, ...], children: Any, aux: Any) -> Any:
    """A sparse array of these parts, unchecked."""
    out = object.__new__(kind)
    for name, value in (*zip(names, children, strict=True), *aux.items()):
        setattr(out, name, value)
    return out
