"""Products of operands that are rounded to blocks of numbers with a scale each."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax, nn

NUMBERS = (((2,), (2,)), ((0,), (0,)))
BLOCKS = {"mxfp8": (32, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu),
          "nvfp4": (16, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn)}


def rounded(x: Any, mode: str, scale: float = 1.0) -> np.ndarray:
    """What blocks keep of `x`, along its last axis."""
    size, data, kind = BLOCKS[mode]
    parts = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, size) / np.float32(scale)
    largest = float(ml_dtypes.finfo(data).max)
    needed = np.abs(parts).max(-1, keepdims=True) / np.float32(largest)
    if mode == "mxfp8":
        factors = np.float32(2.0) ** np.clip(np.ceil(np.log2(np.maximum(needed, 1e-45))), -127, 127)
    else:
        factors = np.minimum(needed, 448).astype(kind).astype(np.float32)
    kept = np.clip(parts / np.where(factors == 0, 1, factors), -largest, largest).astype(data).astype(np.float32)
    return (kept * factors * np.float32(scale)).reshape(x.shape)


def operands(k: int = 64) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(2, 32, k)).astype(np.float32) * 10.0 ** rng.integers(-3, 3, (2, 32, 1))
    b = rng.normal(size=(2, 64, k)).astype(np.float32)
    a[0, 0] = 0
    return jnp.asarray(a, "float32"), jnp.asarray(b)


@pytest.mark.parametrize("mode", BLOCKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_against_rounded_operands(mode: str, dtype: str) -> None:
    a, b = operands()
    config = nn.get_scaled_dot_general_config(mode)
    assert (config.mode, config.block_size) == (mode, BLOCKS[mode][0])
    expected = np.einsum("bik,bjk->bij", rounded(a, mode), rounded(b, mode))
    f = lambda a, b: nn.scaled_dot_general(a, b, NUMBERS, dtype, [config] * 3)
    for run in (f, anima.jit(f)):
        out = run(a, b)
        assert out.dtype == dtype
        np.testing.assert_allclose(out.astype("float32"), expected, rtol=1e-5 if dtype == "float32" else 1e-2,
                                   atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("mode", BLOCKS)
def test_derivatives_round_cotangents(mode: str) -> None:
    a, b = operands()
    config = nn.get_scaled_dot_general_config(mode)
    ct = jnp.asarray(np.random.default_rng(1).normal(size=(2, 32, 64)), "float32")
    _, pull = anima.vjp(lambda a, b: nn.scaled_dot_general(a, b, NUMBERS, configs=[config] * 3), a, b)
    da, db = anima.jit(pull)(ct)
    turn = lambda x: np.swapaxes(np.asarray(x), 1, 2)
    for got, left, right in ((da, ct, turn(b)), (db, turn(ct), turn(a))):
        expected = np.einsum("bik,bjk->bij", rounded(left, mode), rounded(right, mode))
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_a_global_scale() -> None:
    a, b = operands()
    configs = [nn.get_scaled_dot_general_config("nvfp4", jnp.full((1,), s)) for s in (0.25, 4.0, 1.0)]
    expected = np.einsum("bik,bjk->bij", rounded(a, "nvfp4", 0.25), rounded(b, "nvfp4", 4.0))
    got = nn.scaled_dot_general(a, b, NUMBERS, configs=configs)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_axes_and_no_configurations() -> None:
    a, b = operands()
    config = nn.get_scaled_dot_general_config("mxfp8")
    numbers = (((1, 2), (0, 3)), ((), ()))  # contracted: an axis of 2 and one of 32
    left, right = a[0, :4].reshape(4, 2, 32), jnp.moveaxis(b[:, :3].reshape(2, 3, 2, 32), 2, 0)
    got = nn.scaled_dot_general(left, right, numbers, configs=[config] * 3)
    assert got.shape == (4, 2, 3)
    expected = np.einsum("iac,abjc->ibj", rounded(left, "mxfp8"), rounded(right, "mxfp8"))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(nn.scaled_dot_general(a, b, NUMBERS), lax.dot_general(a, b, NUMBERS))
    np.testing.assert_allclose(anima.vmap(lambda x: nn.scaled_dot_general(x, b[0], (((1,), (1,)), ((), ())),
                                                                          configs=[config] * 3))(a),
                               [nn.scaled_dot_general(x, b[0], (((1,), (1,)), ((), ())), configs=[config] * 3)
                                for x in a], rtol=1e-5)


def test_what_is_refused() -> None:
    a, b = operands(48)
    config = nn.get_scaled_dot_general_config("mxfp8")
    with pytest.raises(ValueError, match="blocks of 32 do not divide"):
        nn.scaled_dot_general(a, b, NUMBERS, configs=[config] * 3)
    with pytest.raises(TypeError, match="preferred_element_type"):
        nn.scaled_dot_general(a, b, NUMBERS, jnp.int32)
    with pytest.raises(ValueError, match="Unsupported mode"):
        nn.get_scaled_dot_general_config("fp2")


def test_infinite_blocks() -> None:
    config = nn.get_scaled_dot_general_config("mxfp8")
    x = jnp.ones((2, 32)).at[1, 3].set(jnp.inf)
    out = nn.scaled_dot_general(x, x, (((1,), (1,)), ((), ())), configs=[config] * 3)
    assert out[0, 0] == 32 and jnp.isnan(out[1]).all()


def test_the_choice_of_kernels_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="chooses nothing"):
        anima.nn.scaled_dot_general(jnp.ones((2, 32)), jnp.ones((2, 32)), (((1,), (1,)), ((), ())),
                                    implementation="cudnn")
