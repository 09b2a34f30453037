"""Dtypes: the whole promotion table of JAX 0.10, canonical types, names, keys, and what users are told."""
from __future__ import annotations

import copy
import json
import pathlib
import pickle
import types
import warnings

import ml_dtypes
import numpy as np
import pytest

import anima.dtypes as public
from anima.config import enable_x64, numpy_dtype_promotion
from anima.core import dtypes

FACTS = json.loads((pathlib.Path(__file__).parent / "data" / "promotion.json").read_text())
CODES = FACTS["codes"]
WEAK = {"i*": int, "f*": float, "c*": complex}


def operand(code):
    """What stands for a code of the table: an array of its dtype, or a weakly typed one."""
    if code in WEAK:
        return types.SimpleNamespace(dtype=dtypes.dtype_of(WEAK[code](1)), weak_type=True)
    return np.ones((), dtypes.np_dtype(CODES[code]))


def expected(code):
    if code in WEAK:
        return dtypes.dtype_of(WEAK[code](1)), True
    return dtypes.np_dtype(CODES[code]), False


def outcome(*args):
    try:
        return dtypes.result_type(*args, return_weak_type_flag=True)
    except dtypes.TypePromotionError:
        return "!"


def mode_context(mode):
    _, x64, promotion = mode.split("_")
    return enable_x64(x64 == "on"), numpy_dtype_promotion(promotion)


@pytest.mark.parametrize("mode", list(FACTS["tables"]))
def test_promotion_table(mode):
    x64, promotion = mode_context(mode)
    columns = FACTS["order"][mode].split()
    with x64, promotion:
        for row, cells in FACTS["tables"][mode].items():
            for column, cell in zip(columns, cells.split(), strict=True):
                wanted = "!" if cell == "!" else expected(cell)
                assert outcome(operand(row), operand(column)) == wanted, (mode, row, column)


@pytest.mark.parametrize("mode", list(FACTS["python_scalars"]))
def test_python_scalars(mode):
    x64, promotion = mode_context(mode)
    scalars = {"True": True, "1": 1, "1.0": 1.0, "1j": 1j}
    with x64, promotion:
        for text, cells in FACTS["python_scalars"][mode].items():
            for column, cell in zip(FACTS["order"][mode].split(), cells.split(), strict=True):
                wanted = "!" if cell == "!" else expected(cell)
                assert outcome(scalars[text], operand(column)) == wanted, (mode, text, column)
                assert outcome(operand(column), scalars[text]) == wanted, (mode, column, text)


def test_promotion_is_associative_over_three():
    some = [operand(code) for code in ("b1", "u8", "s16", "u32", "bf16", "f16", "f32", "c64", "i*", "f*")]
    for a in some:
        for b in some:
            for c in some:
                ab, weak = dtypes.result_type(a, b, return_weak_type_flag=True)
                left = types.SimpleNamespace(dtype=ab, weak_type=weak)
                assert dtypes.result_type(left, c) == dtypes.result_type(a, b, c)


def test_result_type_of_dtypes_types_and_names():
    assert dtypes.result_type(np.int8, "float16") == np.float16
    assert dtypes.result_type(1, 2.0, return_weak_type_flag=True) == (np.float32, True)
    assert dtypes.result_type(float) == np.float32
    assert dtypes.result_type(np.float64(3)) == np.float32
    assert dtypes.result_type(np.arange(3), 3.0) == np.float32
    assert dtypes.promote_types(float, "bfloat16") == dtypes.bfloat16
    assert dtypes.promote_types(np.uint8, np.int8) == np.int16
    with enable_x64(True):
        assert dtypes.result_type(np.float64(3)) == np.float64
        assert dtypes.promote_types("uint64", "int64") == np.float64


def test_result_type_refuses_what_has_no_dtype():
    with pytest.raises(TypeError, match=r"Cannot determine dtype of \[1, 2\]"):
        dtypes.result_type([1, 2])
    with pytest.raises(TypeError, match="data type 'hello' not understood"):
        dtypes.result_type("hello")
    with pytest.raises(ValueError, match="at least one array or dtype"):
        dtypes.result_type()
    with pytest.raises(TypeError, match="Cannot determine dtype of None"):
        dtypes.promote_types(None, np.int8)


def test_promotion_errors_say_what_to_do():
    with pytest.raises(
        dtypes.TypePromotionError, match=r"8-bit floats do not support implicit promotion.*astype"
    ):
        dtypes.promote_types("float8_e4m3fn", "float16")
    with pytest.raises(dtypes.TypePromotionError, match=r"'uint4', 'float32'.*astype"):
        dtypes.promote_types("uint4", "float32")
    with numpy_dtype_promotion("strict"), pytest.raises(
            ValueError, match=r"Input dtypes \('int32', 'float32'\).*anima_numpy_dtype_promotion=strict"):
        dtypes.promote_types("int32", "float32")
    with pytest.raises(TypeError, match="float0 does not promote"):
        dtypes.promote_types(dtypes.float0, "float32")
    with pytest.raises(TypeError, match="key<fry> does not promote"):
        dtypes.promote_types(dtypes.KeyDType(), "uint32")
    assert dtypes.promote_types(dtypes.KeyDType(), dtypes.KeyDType()) == dtypes.KeyDType()
    assert dtypes.promote_types(dtypes.float0, dtypes.float0) == dtypes.float0


@pytest.mark.parametrize("wide, narrow", [
    ("int64", "int32"), ("uint64", "uint32"), ("float64", "float32"), ("complex128", "complex64")])
def test_canonical_dtypes(wide, narrow):
    assert dtypes.canonicalize_dtype(wide) == np.dtype(narrow)
    assert dtypes.canonicalize_dtype(narrow) == np.dtype(narrow)
    with enable_x64(True):
        assert dtypes.canonicalize_dtype(wide) == np.dtype(wide)
        assert dtypes.canonicalize_dtype(narrow) == np.dtype(narrow)


def test_canonical_dtype_of_python_types_and_extended():
    assert [dtypes.canonicalize_dtype(t) for t in (bool, int, float, complex)] == [
        np.bool_, np.int32, np.float32, np.complex64]
    key = dtypes.KeyDType()
    assert dtypes.canonicalize_dtype(key) is key
    assert public.canonicalize_dtype(key, allow_extended_dtype=True) is key
    with pytest.raises(ValueError, match="extended dtype key<fry>"):
        public.canonicalize_dtype(key)


def test_user_dtypes():
    assert dtypes.check_user_dtype(None, "zeros") == np.float32
    assert dtypes.check_user_dtype(float, "zeros") == np.float32
    assert dtypes.check_user_dtype("bfloat16", "zeros") == dtypes.bfloat16
    assert dtypes.check_user_dtype("int4", "zeros") == np.dtype(ml_dtypes.int4)
    assert dtypes.check_user_dtype(">f4", "zeros").isnative
    key = dtypes.KeyDType()
    assert dtypes.check_user_dtype(key, "zeros") is key
    assert dtypes.check_user_dtype(dtypes.float0, "zeros") == dtypes.float0
    with enable_x64(True):
        assert dtypes.check_user_dtype("float64", "zeros") == np.float64
        assert dtypes.check_user_dtype(None, "zeros") == np.float64


def test_truncation_warns_at_the_users_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert dtypes.check_user_dtype(np.float64, "zeros") == np.float32
    assert len(caught) == 1
    assert caught[0].filename == __file__
    text = str(caught[0].message)
    assert text.startswith(
        "Explicitly requested dtype float64 requested in zeros is not available, and will be "
        "truncated to dtype float32. To enable more dtypes, set the anima_enable_x64"
    )
    assert "jax_enable_x64" in text
    assert "ANIMA_ENABLE_X64" in text


@pytest.mark.parametrize("bad, message", [
    ("O", "supports only number and bool dtypes, got dtype O in zeros"), ("S3", "got dtype S3"),
    ("datetime64[s]", "got dtype datetime64"), (object, "got dtype"), (str, "got dtype"),
    ("floot32", "data type 'floot32' not understood"), (3, "Cannot interpret '3' as a data type")])
def test_user_dtypes_refused(bad, message):
    with pytest.raises(TypeError, match=message.replace("[", r"\[")):
        dtypes.check_user_dtype(bad, "zeros")


def test_defaults_follow_x64():
    defaults = (dtypes.default_int, dtypes.default_uint, dtypes.default_float, dtypes.default_complex)
    assert [f().name for f in defaults] == ["int32", "uint32", "float32", "complex64"]
    with enable_x64(True):
        assert [f().name for f in defaults] == ["int64", "uint64", "float64", "complex128"]


def test_weak_types():
    assert [dtypes.is_weakly_typed(x) for x in (1, 1.0, 1j, True, np.float64(1), np.ones(2))] == [
        True, True, True, False, False, False]
    weak = types.SimpleNamespace(dtype=np.dtype("float32"), weak_type=True)
    assert dtypes.is_weakly_typed(weak)
    assert dtypes.is_weakly_typed(types.SimpleNamespace(aval=weak))
    strong = types.SimpleNamespace(dtype=np.dtype("float32"), weak_type=False)
    assert not dtypes.is_weakly_typed(strong)


def test_dtype_of():
    assert [dtypes.dtype_of(x).name for x in (True, 1, 1.0, 1j, np.ones(2), np.int8(1))] == [
        "bool", "int32", "float32", "complex64", "float32", "int8"]
    with pytest.raises(TypeError, match="Cannot determine dtype"):
        dtypes.dtype_of([1])
    assert [dtypes.scalar_type_of(x) for x in (True, 1, np.ones(2), 1j, "bfloat16")] == [
        bool, int, float, complex, float]


@pytest.mark.parametrize("a, b, wanted", [
    ("bfloat16", np.floating, True), ("bfloat16", np.inexact, True), ("bfloat16", np.number, True),
    ("bfloat16", np.generic, True), ("bfloat16", np.float16, False), ("bfloat16", "bfloat16", True),
    ("int4", np.integer, True), ("int4", np.signedinteger, True), ("int4", np.unsignedinteger, False),
    ("uint4", np.unsignedinteger, True), ("int4", "int2", False), ("float8_e5m2", np.floating, True),
    ("float32", float, False), (float, np.floating, True), (int, np.integer, True), (bool, np.number, False),
    (dtypes.float0, np.bool_, False), (dtypes.float0, np.generic, True), ("complex64", np.inexact, True),
    (dtypes.KeyDType(), dtypes.prng_key, True), (dtypes.KeyDType(), dtypes.extended, True),
    (dtypes.prng_key, dtypes.extended, True), (dtypes.KeyDType(), np.generic, True),
    (dtypes.KeyDType(), np.number, False), ("float32", dtypes.extended, False)])
def test_issubdtype(a, b, wanted):
    assert dtypes.issubdtype(a, b) is wanted


def test_isdtype():
    names = ("bool", "int4", "uint8", "bfloat16", "float32", "complex64")
    table = {
        "bool": 1,
        "integral": 2,
        "numeric": 5,
        "real floating": 2,
        "signed integer": 1,
        "unsigned integer": 1,
        "complex floating": 1,
    }
    for kind, count in table.items():
        assert sum(dtypes.isdtype(name, kind) for name in names) == count
    assert dtypes.isdtype("float32", ("integral", np.float32))
    assert not dtypes.isdtype("float32", ("integral", "float16"))
    with pytest.raises(ValueError, match="Unrecognized kind"):
        dtypes.isdtype("float32", "foo")


@pytest.mark.parametrize("dtype, short", [
    ("float32", "f32"), ("bfloat16", "bf16"), ("int32", "i32"), ("uint8", "u8"), ("bool", "bool"),
    ("complex64", "c64"), ("float8_e4m3fn", "f8_e4m3fn"), ("int4", "i4"), (dtypes.KeyDType(), "key<fry>"),
    (dtypes.float0, "float0"), ("float64", "f64")])
def test_short_names(dtype, short):
    assert dtypes.short_name(dtype) == short


def test_conversions():
    assert [
        dtypes.to_inexact(d).name for d in ("int8", "bool", "bfloat16", "complex64", "int4", "uint2")
    ] == ["float32", "float32", "bfloat16", "complex64", "float32", "float32"]
    assert [dtypes.to_complex(d).name for d in ("int8", "bfloat16", "float32", "complex64")] == [
        "complex64"
    ] * 4
    assert [dtypes.to_real(d).name for d in ("complex64", "float16")] == ["float32", "float16"]
    with enable_x64(True):
        assert (dtypes.to_inexact("int8"), dtypes.to_inexact("int64")) == (np.float32, np.float64)
        assert dtypes.to_complex("float64") == np.complex128
        assert dtypes.to_complex("float32") == np.complex64
        assert dtypes.to_real("complex128") == np.float64


def test_limits():
    assert dtypes.finfo("bfloat16").bits == 16
    assert dtypes.finfo(np.float32).eps == np.float32(2**-23)
    assert dtypes.finfo("complex64").dtype == np.float32
    assert (dtypes.iinfo("int4").min, dtypes.iinfo("int4").max, dtypes.iinfo(np.uint8).max) == (-8, 7, 255)
    with pytest.raises(ValueError, match="not inexact"):
        dtypes.finfo("int4")
    assert [dtypes.itemsize_bits(d) for d in ("int4", "bool", "float8_e5m2", "float64")] == [4, 8, 8, 64]


def test_python_int_range():
    dtypes.check_python_int(2**31 - 1)
    dtypes.check_python_int(-2**31)
    for value in (2**40, 2**31, -2**31 - 1):
        with pytest.raises(OverflowError, match=f"Python int {value} too large to convert to int32"):
            dtypes.check_python_int(value)
    with enable_x64(True):
        dtypes.check_python_int(2**40)
    for value, dtype in ((300, "uint8"), (-1, "uint32"), (128, "int8")):
        with pytest.raises(OverflowError, match=f"Python int {value} too large to convert to {dtype}"):
            dtypes.check_python_int(value, np.dtype(dtype))
    dtypes.check_python_int(2**32 - 1, np.dtype("uint32"))


def test_key_dtype():
    key = dtypes.KeyDType()
    assert repr(key) == str(key) == key.name == "key<fry>"
    assert key == dtypes.KeyDType("fry", np.uint32, (2,))
    assert hash(key) == hash(dtypes.KeyDType())
    other = dtypes.KeyDType("rbg", np.uint32, (4,))
    assert key != other
    assert key != np.dtype("uint32")
    assert (key.itemsize, other.itemsize, key.kind, key.type) == (8, 16, "K", dtypes.prng_key)
    assert pickle.loads(pickle.dumps(key)) == copy.deepcopy(key) == key
    with pytest.raises(AttributeError, match="immutable"):
        key.tag = "x"


def test_scalar_types():
    made = []
    float32 = dtypes.make_scalar_type("float32", lambda x, dtype: made.append((x, dtype)) or "array")
    bfloat16 = dtypes.make_scalar_type("bfloat16", lambda x, dtype: x)
    assert repr(float32) == "<class 'anima.numpy.float32'>"
    assert float32(3) == "array"
    assert made == [(3, np.dtype("float32"))]
    assert float32 == np.float32
    assert float32 == np.dtype("float32")
    assert np.dtype("float32") == float32
    assert float32 != np.float64
    assert float32 != bfloat16
    assert float32 != 3
    assert hash(float32) == hash(np.float32)
    assert {np.float32: 1}[float32] == 1
    assert np.dtype(float32) == np.float32
    assert np.zeros(2, bfloat16).dtype == dtypes.bfloat16
    assert isinstance(np.float32(1), float32)
    assert not isinstance(np.float64(1), float32)
    assert dtypes.np_dtype(float32) == np.float32
    assert dtypes.result_type(float32, bfloat16) == np.float32
    assert dtypes.issubdtype(bfloat16, np.floating)
    assert dtypes.short_name(bfloat16) == "bf16"


def test_public_names():
    assert public.bfloat16 is ml_dtypes.bfloat16
    assert public.float0 == dtypes.float0
    assert dtypes.float0.itemsize == 0
    assert public.result_type(1, 1.0) == np.float32
