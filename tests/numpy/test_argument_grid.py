"""The cross product of arguments against NumPy: every function of the tables with every combination of its options.

Elements are small whole numbers, with many ties, so that nearly all results are exact.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp

SHAPES = [(), (0,), (1,), (17,), (3, 4), (1, 5), (0, 3), (3, 0), (2, 3, 9)]
# Options choose the code for a shape, whatever the dtype: of a function's first dtype all combinations are tried, of
# the others half of those that are more than a few; and so many are compiled. Which ones differs from one to the next.
FEW, COMPILED, COMPILED_OF_OTHERS = 24, 12, 5
Grid = Callable[[np.ndarray], Iterator[dict[str, Any]]]


def operand(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Whole numbers from -3 (0, if unsigned) to 3, so that there are ties along every axis."""
    numbers = np.random.RandomState(sum(shape)).randint(-3, 4, shape)
    return (np.abs(numbers) if dtype in ("uint8", "bool") else numbers).astype(dtype)


def product(**options: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """All combinations; the value `...` stands for an argument that is not given."""
    for values in itertools.product(*options.values()):
        yield {k: v for k, v in zip(options, values, strict=True) if v is not ...}


def single_axes(x: np.ndarray) -> list[Any]:
    return [*range(-x.ndim, x.ndim)]


def axes(x: np.ndarray) -> list[Any]:
    """None, every axis, counted from both ends, and tuples of axes in every order."""
    pairs = [p for n in range(2, x.ndim + 1) for p in itertools.permutations(range(x.ndim), n)]
    return [..., None, (), *single_axes(x), *((p[0] - x.ndim * (i % 2), *p[1:]) for i, p in enumerate(pairs))]


def masks(x: np.ndarray) -> list[Any]:
    every = np.arange(x.size).reshape(x.shape) % 3 != 1
    return [..., every[..., :1] if x.ndim > 1 else every, np.zeros((), bool)]


def reductions(x: np.ndarray) -> Iterator[dict[str, Any]]:
    return product(axis=axes(x), keepdims=[..., True], initial=[..., 2], where=masks(x))


def extremes(x: np.ndarray) -> Iterator[dict[str, Any]]:
    for options in reductions(x):
        if "where" not in options or "initial" in options:
            yield options


def logical(x: np.ndarray) -> Iterator[dict[str, Any]]:
    return product(axis=axes(x), keepdims=[..., True], where=masks(x))


def moments(x: np.ndarray) -> Iterator[dict[str, Any]]:
    return product(axis=axes(x), keepdims=[..., True], ddof=[..., 1], where=masks(x))


def places(x: np.ndarray) -> Iterator[dict[str, Any]]:
    return product(axis=[..., None, *single_axes(x)], keepdims=[..., True])


def along(x: np.ndarray) -> Iterator[dict[str, Any]]:
    return product(axis=[..., None, *single_axes(x)])


def along_one(x: np.ndarray) -> Iterator[dict[str, Any]]:
    return product(axis=single_axes(x))


def several(x: np.ndarray) -> Iterator[dict[str, Any]]:
    return product(axis=[a for a in axes(x) if a != ()])


def orders(x: np.ndarray) -> Iterator[dict[str, Any]]:
    return product(axes=[None, *itertools.permutations(range(x.ndim)),
                         *(tuple(a - x.ndim for a in p) for p in itertools.permutations(range(x.ndim)))])


def quantiles(x: np.ndarray) -> Iterator[dict[str, Any]]:
    if x.size:
        yield from product(q=[0.0, 0.3, 1.0, np.array([0.5, 0.1])], axis=[a for a in axes(x) if a != ()],
                           keepdims=[..., True], method=["linear", "lower", "higher", "midpoint"])


def percentages(x: np.ndarray) -> Iterator[dict[str, Any]]:
    return product(q=[0.0, 25.0, 100.0], axis=[..., *single_axes(x)], keepdims=[..., True])


def medians(x: np.ndarray) -> Iterator[dict[str, Any]]:
    if x.size:  # the median of nothing is an error
        yield from product(axis=[a for a in axes(x) if a != ()], keepdims=[..., True])


def differences(x: np.ndarray) -> Iterator[dict[str, Any]]:
    return product(n=[..., 0, 2], axis=single_axes(x))


def turns(x: np.ndarray) -> Iterator[dict[str, Any]]:
    if x.ndim >= 2:
        yield from product(k=[-1, 0, 1, 2, 3], axes=[*itertools.permutations(range(x.ndim), 2), (-1, 0)])


def shifts(x: np.ndarray) -> Iterator[dict[str, Any]]:
    yield from product(shift=[0, 1, -7], axis=[..., *single_axes(x)])
    if x.ndim >= 2:
        yield from product(shift=[(1, -2), 3], axis=[(0, 1), (1, 0), (-1, 0), (0, 0)])


def pads(x: np.ndarray) -> Iterator[dict[str, Any]]:
    return product(pad_width=[0, 2, (1, 2), [(1, 0)] * x.ndim], mode=["constant"] if 0 in x.shape else [
        "constant", "edge", "wrap", "symmetric", "reflect", "empty" if not x.size else "edge"])


def diagonals(x: np.ndarray) -> Iterator[dict[str, Any]]:
    if x.ndim >= 2:
        yield from product(offset=[-2, 0, 1, 9], axis1=[0, -1], axis2=[1])


def triangles(x: np.ndarray) -> Iterator[dict[str, Any]]:
    if x.ndim >= 2:
        yield from product(k=[-9, -1, 0, 2, 9])


def nothing(x: np.ndarray) -> Iterator[dict[str, Any]]:
    yield {}


def layouts(x: np.ndarray) -> Iterator[dict[str, Any]]:
    return product(order=[..., "C", "F"])


def shapes(x: np.ndarray) -> Iterator[dict[str, Any]]:
    return product(shape=[(x.size,), x.shape[::-1], (1, *x.shape, 1)], order=["C", "F"])


def uniques(x: np.ndarray) -> Iterator[dict[str, Any]]:
    flags = [False, True]
    return product(return_index=flags, return_inverse=flags, return_counts=flags,
                   axis=[..., *(a for a in single_axes(x) if x.size)])


def chosen(x: np.ndarray) -> Iterator[dict[str, Any]]:
    for axis in [None, *single_axes(x)]:
        size = x.size if axis is None else x.shape[axis]
        yield from product(indices=[np.zeros(0, "int32")], axis=[axis])
        if size:
            inside = [np.array([0, -1, size - 1]), np.array([[0], [size - 1]], "uint8")]
            yield from product(indices=inside, axis=[axis])
        yield from product(indices=[np.array([-1, size, 3 * size + 1, -size - 2])], axis=[axis],
                           mode=["clip", "wrap"] if size else [])


def repeats(x: np.ndarray) -> Iterator[dict[str, Any]]:
    for axis in [..., None, *single_axes(x)]:
        size = x.size if axis in (..., None) else x.shape[axis]
        yield from product(repeats=[0, 1, 3, np.arange(size) % 3], axis=[axis])


NUMERIC, ORDERED = ("float32", "int32", "uint8", "complex64", "bool"), ("float32", "int32", "uint8", "bool")
GRIDS: Mapping[str, tuple[Grid, Sequence[str]]] = {
    "sum": (reductions, NUMERIC), "prod": (reductions, NUMERIC), "max": (extremes, ORDERED), "min": (extremes, ORDERED),
    "any": (logical, NUMERIC), "all": (logical, NUMERIC), "mean": (logical, NUMERIC), "var": (moments, NUMERIC),
    "std": (moments, NUMERIC), "nansum": (reductions, ("float32",)), "nanprod": (reductions, ("float32",)),
    "nanmax": (extremes, ("float32",)), "nanmin": (extremes, ("float32",)), "nanmean": (logical, ("float32",)),
    "nanvar": (moments, ("float32",)), "nanstd": (moments, ("float32",)), "count_nonzero": (several, NUMERIC),
    "argmax": (places, ORDERED), "argmin": (places, ORDERED), "ptp": (medians, ("float32", "int32")),
    "median": (medians, ("float32", "int32")), "quantile": (quantiles, ("float32",)),
    "percentile": (percentages, ("float32", "int32")),
    "sort": (along, ORDERED), "argsort": (lambda x: product(axis=[None, *single_axes(x)], stable=[True]), ORDERED),
    "cumsum": (along, NUMERIC), "cumprod": (along, ("float32", "int32", "bool", "complex64")),
    "nancumsum": (along, ("float32",)),
    "diff": (differences, ("float32", "int32", "bool")), "flip": (several, NUMERIC), "transpose": (orders, NUMERIC),
    "rot90": (turns, ("float32",)), "roll": (shifts, ("float32", "uint8")), "pad": (pads, ("float32",)),
    "expand_dims": (lambda x: product(axis=[0, -1, (0, -1), (-1, 0), x.ndim]), ("float32",)),
    "squeeze": (lambda x: product(axis=[..., *(a for a in single_axes(x) if x.shape[a] == 1)]), ("float32",)),
    "diagonal": (diagonals, ("float32",)), "trace": (diagonals, ("float32", "int32")), "tril": (triangles, NUMERIC),
    "triu": (triangles, NUMERIC), "ravel": (layouts, NUMERIC), "reshape": (shapes, ("float32", "complex64")),
    "moveaxis": (lambda x: product(source=single_axes(x), destination=single_axes(x)), ("float32",)),
    "swapaxes": (lambda x: product(axis1=single_axes(x), axis2=single_axes(x)), ("float32",)),
    "take": (chosen, ("float32", "uint8")), "repeat": (repeats, ("float32", "bool")),
    "unique": (uniques, ("float32", "int32")), "atleast_3d": (nothing, ("float32",)),
}
KEYED = {"unique", "repeat"}  # results whose size depends on values, or arguments that must be known: not compiled


def cases(name: str) -> Iterator[tuple[np.ndarray, list[dict[str, Any]], int]]:
    """Operands, options to try and how many of them to compile."""
    grid, dtypes = GRIDS[name]
    for shape, dtype in itertools.product(SHAPES, dtypes):
        x = operand(shape, dtype)
        options = list(grid(x))
        if dtype == dtypes[0]:
            yield x, options, COMPILED
        else:
            count = max(len(options) // 2, min(len(options), FEW))
            yield x, random.Random(f"{dtype} {name} {shape}").sample(options, count), COMPILED_OF_OTHERS


def numpy_result(name: str, x: np.ndarray, options: dict[str, Any]) -> Any:
    """NumPy's result, or the error that it raises, of which only the kind counts."""
    with np.errstate(all="ignore"):
        try:
            return getattr(np, name)(x, **options)
        except Exception as error:
            return error


def compare(got: Any, want: Any, message: str) -> None:
    got, want = ([np.asarray(a) for a in (r if isinstance(r, tuple) else (r,))] for r in (got, want))
    assert len(got) == len(want), message
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape, f"{message}: shape {a.shape}, not {b.shape}"
        np.testing.assert_allclose(a.astype("complex128"), b.astype("complex128"), rtol=3e-6, atol=3e-6,
                                   err_msg=message)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", GRIDS)
def test_every_combination_is_as_in_numpy(name: str) -> None:
    function = getattr(jnp, name)
    for x, grid, compiled in cases(name):
        wanted = [(options, numpy_result(name, x, options)) for options in grid]
        for options, want in wanted:
            message = f"{name} of {x.dtype}{list(x.shape)} with {options}"
            if isinstance(want, Exception):
                with pytest.raises((TypeError, ValueError, IndexError, ZeroDivisionError)):
                    pytest.fail(f"{message} gives {function(jnp.asarray(x), **options)}, NumPy: {want!r}")
            else:
                compare(function(jnp.asarray(x), **options), want, message)
        fine = [(o, w) for o, w in wanted if not isinstance(w, Exception)]
        fine = random.Random(f"{name} {x.dtype} {x.shape}").sample(fine, min(compiled, len(fine)))
        if name not in KEYED and fine:
            everything = anima.jit(lambda x, fine=fine: [function(x, **options) for options, _ in fine])(x)
            for got, (options, want) in zip(everything, fine, strict=True):
                compare(got, want, f"compiled {name} of {x.dtype}{list(x.shape)} with {options}")


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32"])
@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.usefixtures("x64")
def test_extremes_of_nothing_are_where_they_start(name: str, dtype: str) -> None:
    """Also from the smallest and the largest number on, which are what nothing has as its extremes."""
    kind = np.dtype(dtype)
    info = None if kind.kind == "b" else jnp.iinfo(kind) if kind.kind in "iu" else jnp.finfo(kind)
    ends = [-np.inf, np.inf] if kind.kind == "f" else []
    starts = [False, True] if info is None else [info.min, info.max, 1, *ends]
    for shape, axis in (((3,), None), ((2, 0), 1), ((0,), 0), ((2, 3), (0, 1))):
        x = jnp.ones(shape, dtype)
        for start in starts:
            for where in (jnp.zeros(shape, bool), jnp.zeros((), bool)):
                got = getattr(jnp, name)(x, axis=axis, initial=kind.type(start), where=where)
                assert got.dtype == kind and (np.asarray(got) == kind.type(start)).all()
