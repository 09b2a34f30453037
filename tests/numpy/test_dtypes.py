"""Result dtypes of functions on each dtype, against the facts recorded from JAX 0.10.2 (data/dtypes.json)."""

from __future__ import annotations

import json
import pathlib
import warnings

import numpy as np
import pytest

import anima
import anima.numpy as jnp

FACTS = json.loads((pathlib.Path(__file__).parent / "data" / "dtypes.json").read_text())
CODES = {name: code for code, name in FACTS["codes"].items()}
WEAK = {"i": 1, "f": 1.0, "c": 1 + 0j}

# Where Anima differs: complex extrema and histograms are refused (they are not ordered), a weak result stays
# weak where JAX's depends on how a number was passed to jit, bools have a Kronecker product, and cumulative products of
# small integers are made in the default int, as the array API standard says.
DIFFERENT = {("argmax", "c"), ("argmin", "c"), ("nanargmax", "c"), ("nanargmin", "c"), ("histogram", "c"),
             ("power", "i*"), ("pow", "i*"), ("kron", "b1"), ("gradient", ""),
             *(("cumulative_prod", code) for code in ("b", "s", "u"))}

ARGUMENTS = {
    "quantile": lambda f, x: f(x, 0.5), "nanquantile": lambda f, x: f(x, 0.5), "percentile": lambda f, x: f(x, 50),
    "nanpercentile": lambda f, x: f(x, 50), "cumulative_sum": lambda f, x: f(x.ravel()),
    "cumulative_prod": lambda f, x: f(x.ravel()), "linspace": lambda f, x: f(x[0, 0], x[0, 0], 3),
    "bincount": lambda f, x: f(x[0]), "histogram": lambda f, x: f(x[0])}


def _operand(code: str, shape: tuple[int, ...]):
    return jnp.full(shape, WEAK[code[0]]) if code.endswith("*") else jnp.ones(shape, FACTS["codes"][code])


def _code(x) -> str:
    code = CODES[x.dtype.name]
    return code if not x.weak_type or code == "b1" else {"s": "i*", "f": "f*", "c": "c*"}[code[0]]


def _result(function, *args) -> str:
    try:
        out = function(*args)
    except TypeError:
        return "-"
    except ValueError:
        return "?ValueError"
    return "+".join(map(_code, out if isinstance(out, (tuple, list)) else [out]))


def _cases():
    for section in ("unary", "reduction", "binary"):
        for mode, x64 in (("x64_off", False), ("x64_on", True)):
            for name, row in FACTS[section][mode].items():
                yield pytest.param(section, x64, name, row, id=f"{name}-{mode}")


def test_powers_of_numbers_to_bools_are_strongly_typed() -> None:
    mask = jnp.array([True, False])
    for run in (lambda f: f, anima.jit):
        out = run(lambda m: 2 ** m)(mask)
        np.testing.assert_array_equal(out, [2, 1])
        assert not out.weak_type and out.dtype == np.int32
    assert jnp.power(2, True).weak_type


@pytest.mark.parametrize(("section", "x64", "name", "row"), list(_cases()))
def test_result_dtypes(section, x64, name, row):
    function = getattr(jnp, name)
    if name == "where":
        call = lambda f, x, y: f(jnp.ones(x.shape, bool), x, y)
    else:
        call = ARGUMENTS.get(name, lambda f, *args: f(*args))
    shape = (3,) if name == "cross" else (4,) if section == "binary" else (4, 4)
    with anima.enable_x64(x64), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for code, want in zip(FACTS["order"]["x64_on" if x64 else "x64_off"].split(), row.split(), strict=True):
            if any(name == n and code.startswith(c) for n, c in DIFFERENT):
                continue
            x = _operand(code, shape)
            got = _result(lambda *args: call(function, *args), *([x, x] if section == "binary" else [x]))
            want = want.replace("b1*", "b1")
            refused = want.startswith(("-", "?")) and got.startswith(("-", "?"))
            assert refused or got == want, f"{name}({code}): {got}, JAX gives {want}"


def test_weak_common_types_of_numpys_arrays(x64: None) -> None:
    """What integers and floats, or integers of both signs, promote to is weak, wherever they come from."""
    for one, other in ((np.ones(2, "int8"), 2.5), (np.ones(2, "int64"), np.ones(2, "uint64")),
                       (np.uint64(1), jnp.ones(2, "int64")), (np.int8(1), 2.5)):
        for y in (jnp.multiply(one, other), jnp.multiply(other, one), jnp.multiply(jnp.asarray(one), other)):
            assert (y.dtype, y.weak_type) == ("float64", True)
    assert not jnp.multiply(np.ones(2, "float32"), 2.5).weak_type


def test_64_bit_arrays_after_their_option() -> None:
    with anima.enable_x64(True):
        whole, real, many, weak = jnp.int64(1), jnp.float64(1.5), jnp.ones(3), jnp.asarray(1.0) * 2
    for made, want in ((whole + 1, "int32"), (real + 1.0, "float32"), (2.0 * many, "float32"), (many > 0, "bool"),
                       (many + jnp.ones(3), "float32"), (anima.jit(lambda x: x + 1)(whole), "int32"),
                       (jnp.maximum(many, 0), "float32"), (weak + 1, "float32"), (many + many, "float64")):
        assert made.dtype == want

    @anima.jit
    def within(x):
        with anima.enable_x64(True):
            return 2 + x
    assert within(1).dtype == "int64" and within(1) == 3


def test_limits_are_of_their_classes() -> None:
    assert all(isinstance(jnp.finfo(t), jnp.finfo) for t in ("float32", "bfloat16"))
    assert all(isinstance(jnp.iinfo(t), jnp.iinfo) for t in ("int32", "int4"))
    assert not isinstance(jnp.iinfo("int32"), jnp.finfo) and not isinstance(1, jnp.iinfo)


def test_further_arguments_take_part_in_the_type_of_results() -> None:
    x = jnp.arange(4.0)
    np.testing.assert_array_equal(jnp.gradient(x, 1j), np.full(4, -1j, np.complex64))
    for values, spacing, wanted in ((x.astype("float16"), x, "float32"), (jnp.arange(4), jnp.float16(2), "float16"),
                                    (x.astype("bfloat16"), jnp.float16(1), "float32"), (x, x * 1j, "complex64")):
        assert jnp.gradient(values, spacing).dtype == wanted
    assert jnp.gradient(jnp.arange(4), 2.0).weak_type
    assert jnp.trapezoid(x, dx=1j) == 4.5j
    assert jnp.interp(jnp.float32(-1), x, x.astype("float16"), left=2j) == 2j
    assert jnp.unwrap(x.astype("float16"), period=jnp.float32(3)).dtype == np.float32
    assert jnp.polyint(x, 1, 1j)[-1] == 1j
    half, single = x.astype("float16"), jnp.float32(0.5)
    assert jnp.interp(half, half, half, period=single).dtype == jnp.interp(
        half, x, x, period=0.5).dtype == np.float32
    assert jnp.interp(half, half, half, period=0.5).dtype == np.float16
    for name in ("mean", "variance", "epsilon"):
        assert anima.nn.standardize(half, **{name: single}).dtype == np.float32
        assert anima.nn.standardize(half, **{name: 0.5}).dtype == np.float16
    np.testing.assert_allclose(anima.nn.standardize(half, variance=jnp.float32(1e5), epsilon=0),
                               (x - 1.5) / 1e5 ** 0.5, rtol=1e-6)
