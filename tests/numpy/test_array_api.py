"""The Python array API standard, 2024.12: its names and arguments, and what its functions give, with array-api-strict
as the reference: shapes, element types and values, run and compiled. Without that package, nothing is tested.
"""

from __future__ import annotations

import inspect
from typing import Any

import array_api_strict as xp
import numpy as np
import pytest

import anima
import anima.numpy as jnp

xp.set_array_api_strict_flags(api_version="2024.12")

pytestmark = pytest.mark.usefixtures("x64")

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS, COMPLEX = ["float32", "float64"], ["complex64", "complex128"]
NUMERIC = [*INTEGERS, *FLOATS, *COMPLEX]
KINDS = {"all": ["bool", *NUMERIC], "numeric": NUMERIC, "real": [*INTEGERS, *FLOATS], "integer": INTEGERS,
         "float": FLOATS, "inexact": [*FLOATS, *COMPLEX], "bits": ["bool", *INTEGERS], "bool": ["bool"],
         "complex": COMPLEX}
SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (2, 3), (3, 1, 2), (2, 0)]
OF_NAMESPACE = {"Device", "ArrayAPIStrictFlags", "set_array_api_strict_flags", "get_array_api_strict_flags",
                "reset_array_api_strict_flags", "__version__", "linalg", "fft"}  # extensions are tested apart


def values(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    x = rng.integers(0 if dtype.startswith("u") else -4, 5, shape)
    if dtype.startswith("complex"):
        return (x / 2 + 1j * rng.integers(-4, 5, shape)).astype(dtype)
    return (x / 2 if dtype.startswith("float") else x).astype(dtype)


# A call with holes: `x` and `y` are arrays of one type (of the shapes of SHAPES, and such as broadcast against them).
UNARY = {
    "numeric": ["abs({x})", "negative({x})", "positive({x})", "square({x})", "sign({x})", "isfinite({x})", "isinf({x})",
                "isnan({x})", "sum({x})", "prod({x})", "sum({x}, axis=-1)", "cumulative_sum({x}, axis=-1)",
                "cumulative_prod({x}, axis=-1, include_initial=True)", "cumulative_sum({x}, axis=0, dtype=xp.float64)",
                "cumulative_prod({x}, axis=-1)", "diff({x}, axis=-1)", "diff({x}, prepend={x})"],
    "real": ["ceil({x})", "floor({x})", "round({x})", "trunc({x})", "max({x})", "min({x}, axis=-1, keepdims=True)",
             "argmax({x}, axis=-1)", "argmin({x})", "argmax({x}, keepdims=True)", "sort({x})", "sort({x}, axis=0, "
             "descending=True)", "argsort({x}, stable=True)", "argsort({x}, descending=True)", "clip({x}, 1, 3)",
             "clip({x}, max=2)", "searchsorted(xp.sort(xp.reshape({x}, (-1,))), {x}, side='right')",
             "searchsorted({x}, {x}, sorter=xp.argsort({x}))"],
    "inexact": ["acos({x} / 5)", "acosh({x})", "asin({x} / 5)", "asinh({x})", "atan({x})", "atanh({x} / 5)", "cos({x})",
                "cosh({x})", "exp({x})", "expm1({x})", "log({x})", "log1p({x})", "log2({x})", "log10({x})", "sin({x})",
                "sinh({x})", "sqrt({x})", "tan({x})", "tanh({x})", "mean({x})", "reciprocal({x} + 0.25)"],
    "float": ["signbit({x})", "std({x}, correction=1)", "var({x}, axis=-1)"],
    "complex": ["real({x})", "imag({x})", "conj({x})"],
    "bool": ["logical_not({x})"],
    "bits": ["bitwise_invert({x})"],
    "all": ["all({x})", "any({x}, axis=-1)", "count_nonzero({x}, axis=-1, keepdims=True)", "nonzero({x})",
            "expand_dims({x}, axis=-1)", "flip({x})", "flip({x}, axis=-1)", "reshape({x}, (-1,))",
            "reshape({x}, (1, *{x}.shape), copy=True)", "roll({x}, 2)", "roll({x}, -1, axis=-1)",
            "tile({x}, (2, 1, 2))",
            "stack([{x}, {x}], axis=-1)", "concat([{x}, {x}])", "concat([{x}, {x}], axis=None)",
            "unstack({x}, axis=-1)",
            "squeeze(xp.expand_dims({x}, axis=0), axis=0)", "moveaxis({x}, 0, -1)", "matrix_transpose({x})",
            "permute_dims({x}, tuple(range({x}.ndim))[::-1])", "broadcast_to({x}, (2, *{x}.shape))", "tril({x})",
            "triu({x}, k=1)", "repeat({x}, 2)", "repeat({x}, 2, axis=-1)",
            "repeat({x}, xp.asarray([3] * {x}.shape[0]), axis=0)", "repeat({x}, xp.asarray(3), axis=0)",
            "repeat({x}, xp.asarray([2]), axis=0)", "take({x}, xp.asarray([0, 0]), axis=-1)", "zeros_like({x})",
            "ones_like({x}, dtype=xp.int8)", "full_like({x}, 1)", "empty_like({x}).shape", "unique_values({x})",
            "unique_counts({x})", "unique_inverse({x})", "take_along_axis({x}, xp.zeros({x}.shape, dtype=xp.int64))",
            "unique_all({x})", "asarray({x}, copy=True)",
            "astype({x}, xp.complex128)", "meshgrid(*[xp.reshape({x}, (-1,))] * 2, indexing='ij')"],
}
BINARY = {
    "numeric": ["add({x}, {y})", "subtract({x}, {y})", "multiply({x}, {y})", "equal({x}, {y})", "not_equal({x}, {y})",
                "tensordot({x}, {x}, axes=0)", "vecdot({x}, {x})", "matmul({x}, xp.matrix_transpose({x}))",
                "add({x}, 2)", "multiply(2, {x})"],
    "real": ["maximum({x}, {y})", "minimum({x}, {y})", "less({x}, {y})", "less_equal({x}, {y})", "greater({x}, {y})",
             "greater_equal({x}, {y})", "floor_divide({x}, abs_({y}) + 1)", "remainder({x}, abs_({y}) + 1)"],
    "float": ["atan2({x}, {y})", "copysign({x}, {y})", "hypot({x}, {y})", "logaddexp({x}, {y})", "nextafter({x}, {y})"],
    "inexact": ["divide({x}, {y})", "pow({x}, 2)", "pow({x} + 5, {y})"],
    "bits": ["bitwise_and({x}, {y})", "bitwise_or({x}, {y})", "bitwise_xor({x}, {y})"],
    "integer": ["bitwise_left_shift({x}, abs_({y}))", "bitwise_right_shift({x}, abs_({y}))", "pow({x}, abs_({y}))"],
    "bool": ["logical_and({x}, {y})", "logical_or({x}, {y})", "logical_xor({x}, {y})"],
    "all": ["where({x} == {x}, {x}, {y})"],
}
CREATION = [
    "arange(5)", "arange(2, 7)", "arange(2, 7, 2)", "arange(7, 2, -2)", "arange(0, 3, 0.5)", "arange(5.0)",
    "arange(3, dtype=xp.float32)", "arange(3, 3)", "arange(-1)", "arange(10, 0)", "arange(1, 2, 0.3)",
    "arange(2**40, 2**40 + 3)", "arange(0, 10, 3, dtype=xp.uint8)", "arange(1.5, -2.5, -1)",
    "arange(0, dtype=xp.int8)", "arange(-9.5, 3.25, 1.5, dtype=xp.float32)",
    "empty((2, 3)).shape", "eye(3)", "eye(2, 4)", "eye(4, 2, k=-1)", "eye(3, k=5)", "eye(0)", "eye(2, 0, k=1)",
    "eye(3, k=-7, dtype=xp.int16)", "eye(2, None, k=1)", "eye(3, 4, dtype=xp.complex64)", "eye(2, 3, k=2**40)",
    "full((2, 2), 3)", "full(3, 2.5)", "full((), True)", "full((2,), 1j)", "full((2,), 3, dtype=xp.float32)",
    "linspace(0, 1, 5)", "linspace(0, 1, 5, endpoint=False)", "linspace(3, -2, 4, dtype=xp.float32)",
    "linspace(0, 5, 1)", "linspace(0, 1j, 3)", "linspace(1, 2, 0)", "ones((2, 0))", "zeros(3, dtype=xp.bool)",
    "zeros((), dtype=xp.complex64)", "asarray([1, 2])", "asarray([[1.5], [2]])", "asarray(True)",
    "asarray([1, 2j])", "asarray([1, 2], dtype=xp.float32)", "asarray([])", "isdtype(xp.int8, 'integral')",
    "isdtype(xp.float32, ('bool', 'numeric'))", "isdtype(xp.bool, 'numeric')", "can_cast(xp.int8, xp.int16)",
    "can_cast(xp.float64, xp.float32)", "iinfo(xp.int8).max", "finfo(xp.float64).eps", "finfo(xp.complex64).bits",
    "result_type(xp.int8, xp.int16)", "result_type(xp.asarray([1.5]), xp.float32)"]


def leaves(out: Any) -> list[Any]:
    return [z for y in out for z in leaves(y)] if isinstance(out, (tuple, list)) else [out]


def run(call: str, module: Any, x: np.ndarray, y: np.ndarray) -> list[Any]:
    names = {"xp": module, "X": module.asarray(x), "Y": module.asarray(y),
             "abs_": lambda v: v if str(v.dtype).split(".")[-1].strip("')>").startswith(("u", "b")) else module.abs(v)}
    return leaves(eval(f"xp.{call}".format(x="X", y="Y"), names))


def check(got: list[Any], want: list[Any], message: str) -> None:
    assert len(got) == len(want), message
    for a, b in zip(got, want, strict=True):
        if hasattr(b, "shape"):
            expected = np.asarray(b)
            assert (np.asarray(a).dtype, tuple(a.shape)) == (expected.dtype, expected.shape), message
            rtol = 2e-5 if expected.dtype in (np.float32, np.complex64) else 1e-12
            np.testing.assert_allclose(np.asarray(a), expected, rtol=rtol, atol=rtol, err_msg=message)
        else:
            assert str(a).split(".")[-1].strip("')>") == str(b).split(".")[-1].strip("')>"), message


VALUES_NEEDED = ("nonzero", "unique", "repeat({x}, xp.asarray")


ROWS = [(row, kind) for table in (UNARY, BINARY) for kind, rows in table.items() for row in rows]


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
@pytest.mark.parametrize("row, kind", ROWS)
def test_function(row: str, kind: str) -> None:
    """On every shape that the reference takes; where it refuses one, nothing is said. One call is compiled, too."""
    compiled = row.startswith(VALUES_NEEDED)
    for dtype in KINDS[kind]:
        compared = 0
        for number, shape in enumerate(SHAPES):
            if not shape and ("axis=" in row or row.startswith(("cumulative", "argsort"))):  # beyond the standard
                continue
            x = values(shape, dtype)
            y = values(shape if number % 2 or not shape else (*shape[:-1], 1), dtype, 1)
            try:
                with np.errstate(all="ignore"):
                    want = run(row, xp, x, y)
            except (ValueError, TypeError, IndexError):
                continue
            compared += 1
            message = f"{row} of {dtype}{list(shape)}"
            check(run(row, jnp, x, y), want, message)
            if len(shape) == 2 and not compiled and dtype != KINDS[kind][0]:
                compiled = True
                arrays = anima.jit(lambda x, y: [v for v in run(row, jnp, x, y) if hasattr(v, "shape")])(x, y)
                check(arrays, [v for v in want if hasattr(v, "shape")], f"jit of {message}")
        assert compared, f"the reference takes none of the shapes of {dtype} in {row}"


@pytest.mark.parametrize("call", CREATION)
def test_creation(call: str) -> None:
    check(run(call, jnp, np.zeros(1), np.zeros(1)), run(call, xp, np.zeros(1), np.zeros(1)), call)


def test_names_and_arguments() -> None:
    """Every name is there, and takes the standard's arguments by name where they have one, in its order otherwise."""
    for name in set(xp.__all__) - OF_NAMESPACE:
        assert hasattr(jnp, name), name
        theirs = getattr(xp, name)
        if not inspect.isfunction(theirs):
            continue
        ours = inspect.signature(getattr(jnp, name)).parameters
        for key, parameter in inspect.signature(theirs).parameters.items():
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                assert key in ours, f"{name} does not take {key!r}"


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "//", "%", "**", "@", "&", "|", "^", "<<", ">>", "<", "<=",
                                      ">", ">=", "==", "!="])
@pytest.mark.parametrize("dtype", ["bool", *NUMERIC])
def test_operators(operator: str, dtype: str) -> None:
    """What the reference allows; in place, too: `x += y` is `x = x + y` of arrays that never change."""
    x, y = np.abs(values((2, 2), dtype)) + np.ones((), dtype), np.abs(values((2, 2), dtype, 1)) + np.ones((), dtype)
    x, y = x.astype(dtype), y.astype(dtype)
    for right in (y, True if dtype == "bool" else 2)[: 1 + (operator != "@")]:
        names = [{"x": m.asarray(x), "y": m.asarray(right) if right is y else right} for m in (xp, jnp)]
        try:
            want = eval(f"x {operator} y", names[0])
        except TypeError:
            continue
        check([eval(f"x {operator} y", names[1])], [want], f"{operator} of {dtype}")
        if operator not in ("<", "<=", ">", ">=", "==", "!="):
            before = names[1]["x"]
            exec(f"x {operator}= y", names[1])
            check([names[1]["x"]], [want], f"{operator}= of {dtype}")
            np.testing.assert_array_equal(before, x)


def test_indexing() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    for index in ((0, ...), (-1, ...), (0, 1, ...), (slice(None), 1, ...), (..., 0),
                  (slice(None, None, -1), ..., slice(1, 3)), (0, None, ..., None), ..., (slice(1, 1), ...), (1, 2, 3)):
        np.testing.assert_array_equal(jnp.asarray(x)[index], np.asarray(xp.asarray(x)[index]))
    mask = x % 3 == 0
    np.testing.assert_array_equal(jnp.asarray(x)[jnp.asarray(mask)], np.asarray(xp.asarray(x)[xp.asarray(mask)]))


def test_inspection() -> None:
    info, reference = jnp.__array_namespace_info__(), xp.__array_namespace_info__()
    assert jnp.asarray(1).__array_namespace__(api_version="2024.12") is jnp
    assert jnp.__array_api_version__ == "2024.12"
    assert set(info.capabilities()) == set(reference.capabilities())
    assert info.default_device() in info.devices()
    names = {k: str(v).split(".")[-1].strip("')>") for k, v in reference.default_dtypes().items()}
    assert {k: v.name for k, v in info.default_dtypes().items()} == names
    for kind in (None, "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating",
                 "numeric", ("bool", "integral"), ()):
        assert set(info.dtypes(kind=kind)) == set(reference.dtypes(kind=kind))
    with anima.enable_x64(False):
        assert "float64" not in info.dtypes() and info.default_dtypes()["indexing"] == np.int32


def test_dtypes_are_told_from_names() -> None:
    assert jnp.float32 != "float32" and jnp.float32 != "any text" and jnp.float32 == np.dtype("float32")
    for name in KINDS["all"]:
        assert getattr(jnp, name) == jnp.zeros(1, dtype=getattr(jnp, name)).dtype
