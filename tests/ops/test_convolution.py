"""Convolutions: against their definition and SciPy; derivatives and maps; other forms; errors."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.signal

import anima
from anima import lax, numpy as jnp
from anima.ops.window import padtype_to_pads
from tests.op_records_convolution import by_hand, params

NHWC = ("NHWC", "HWIO", "NHWC")


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * np.random.default_rng(seed + 1).normal(size=shape)
    return x.astype(dtype)


def both(function: Any, *args: Any) -> Any:
    """The function's result, the same eagerly and compiled."""
    eager, compiled = function(*args), anima.jit(function)(*args)
    assert eager.dtype == compiled.dtype and eager.shape == compiled.shape
    wide = np.complex128 if np.iscomplexobj(eager) else np.float64
    np.testing.assert_allclose(np.asarray(eager).astype(wide), np.asarray(compiled).astype(wide), rtol=2e-5, atol=2e-5)
    return eager


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("layout", [("".join(a), "".join(b), "".join(c)) for a, b, c in zip(
    itertools.permutations("NCHW"), itertools.permutations("OIHW"), reversed(list(itertools.permutations("NCHW"))),
    strict=True)], ids="-".join)
def test_every_layout(layout: tuple[str, str, str]) -> None:
    sizes = {"N": 2, "C": 3, "I": 3, "O": 4}
    x = normal(*({**sizes, "H": 5, "W": 6}[d] for d in layout[0]))
    w = normal(*({**sizes, "H": 2, "W": 3}[d] for d in layout[1]))
    got = both(lambda x, w: lax.conv_general_dilated(x, w, (2, 1), [(1, 0), (2, 1)], dimension_numbers=layout), x, w)
    want = by_hand(x, w, **params(x.shape, w.shape, layout, window_strides=(2, 1), padding=((1, 0), (2, 1))))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", ["SAME", "SAME_LOWER", "VALID", "same", ((2, 3),), ((-1, 2),), ((0, -3),)], ids=str)
@pytest.mark.parametrize(("n", "k", "stride", "gap"), [
    (9, 3, 1, 1), (8, 3, 2, 1), (7, 2, 3, 2), (10, 4, 2, 3), (3, 1, 5, 1)])
def test_padding(padding: Any, n: int, k: int, stride: int, gap: int) -> None:
    x, w = normal(2, 3, n), normal(4, 3, k)
    pads = padding
    if isinstance(padding, str):
        pads = padtype_to_pads((n,), ((k - 1) * gap + 1,), (stride,), padding)
    got = both(lambda x, w: lax.conv_general_dilated(x, w, (stride,), padding, None, (gap,)), x, w)
    want = by_hand(x, w, **params(x.shape, w.shape, window_strides=(stride,), padding=tuple(pads), rhs_dilation=(gap,)))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    if isinstance(padding, str) and padding.upper() != "VALID":
        assert got.shape[2] == -(-n // stride)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.int32])
def test_correlation_is_scipys(mode: str, dtype: Any) -> None:
    x, w = (normal(9, 11, dtype=np.complex64) * 8, normal(4, 3, dtype=np.complex64, seed=5) * 8)
    x, w = ((v if np.dtype(dtype).kind == "c" else v.real).astype(dtype) for v in (x, w))
    pads = {"full": [(3, 3), (2, 2)], "same": [(1, 2), (1, 1)], "valid": "VALID"}[mode]
    got = both(lambda x, w: lax.conv_general_dilated(x[None, None], w[None, None], (1, 1), pads)[0, 0], x, w)
    want = scipy.signal.correlate2d(x, np.conj(w), mode)
    if mode == "same":
        want = scipy.signal.correlate2d(x, np.conj(w), "full")[2:-1, 1:-1]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dimensions", [0, 1, 2, 3, 4, 5])
def test_any_number_of_dimensions(dimensions: int) -> None:
    x, w = normal(2, 3, *(4, 3, 3, 2, 2)[:dimensions]), normal(4, 3, *(2, 2, 1, 2, 1)[:dimensions])
    pads = ((1, 0), (0, 1), (1, 1), (0, 0), (1, 0))[:dimensions]
    got = both(lambda x, w: lax.conv_general_dilated(x, w, (1,) * dimensions, pads), x, w)
    np.testing.assert_allclose(got, by_hand(x, w, **params(x.shape, w.shape, padding=pads)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_add_up_in_single_precision(dtype: str) -> None:
    x, w = jnp.full((1, 4096, 1), 1.0, dtype), jnp.full((2, 4096, 1), 1.0, dtype)
    assert np.all(np.asarray(both(lambda x, w: lax.conv(x, w, (1,), "VALID"), x, w)).astype(np.float32) == 4096)
    wide = lax.conv_general_dilated(x, w * 0.001, (1,), "VALID", preferred_element_type=jnp.float32)
    assert wide.dtype == jnp.float32


def test_weak_types() -> None:
    x, w = (jnp.broadcast_to(jnp.asarray(1.0), (1, 1, n)) for n in (5, 2))
    for call in (lax.conv, anima.jit(lax.conv, static_argnums=(2, 3))):
        assert call(x, w, (1,), "SAME").weak_type and not call(x, jnp.ones((1, 1, 2)), (1,), "SAME").weak_type


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(("n", "k"), [(300, 9), (40, 64), (1000, 700)])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_vectors_are_convolved_as_numpy_does(n: int, k: int, mode: Any, dtype: Any) -> None:
    x, w = normal(n, dtype=dtype), normal(k, dtype=dtype, seed=3)
    got = both(lambda x, w: jnp.convolve(x, w, mode), x, w)
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    np.testing.assert_allclose(got, np.convolve(x.astype(wide), w.astype(wide), mode), atol=1e-4 * np.sqrt(k))


def test_integers_wrap_unless_a_wider_result_is_asked_for() -> None:
    x, w = jnp.full((1, 2, 5), 100, jnp.int8), jnp.full((1, 2, 5), 100, jnp.int8)
    assert both(lambda x, w: lax.conv(x, w, (1,), "VALID"), x, w).item() == -96
    for wide in (jnp.int32, jnp.float32):
        out = both(lambda x, w, wide=wide: lax.conv(x, w, (1,), "VALID", preferred_element_type=wide), x, w)
        assert out.dtype == wide and out.item() == 100_000


@pytest.mark.parametrize(("x", "w", "pads"), [
    ((0, 2, 5), (3, 2, 2), ((0, 0),)), ((2, 2, 0), (3, 2, 2), ((2, 1),)), ((2, 2, 5), (0, 2, 2), ((0, 0),)),
    ((2, 0, 5), (3, 0, 2), ((0, 0),)), ((2, 2, 5), (3, 2, 9), ((0, 0),)), ((2, 2, 5), (3, 2, 2), ((-3, -2),))], ids=str)
def test_empty(x: tuple[int, ...], w: tuple[int, ...], pads: Any) -> None:
    a, b = normal(*x), normal(*w)
    got = both(lambda x, w: lax.conv_general_dilated(x, w, (1,), pads), a, b)
    np.testing.assert_array_equal(got, by_hand(a, b, **params(x, w, padding=pads)))
    grads = anima.grad(lambda x, w: lax.conv_general_dilated(x, w, (1,), pads).sum(), (0, 1))(a, b)
    assert [g.shape for g in grads] == [x, w]


# ---------------------------------------------------------------- derivatives and maps


FORMS = [
    ((2, 3, 6), (4, 3, 3), {"window_strides": (2,), "padding": ((1, 2),)}),
    ((1, 4, 4, 3), (3, 2, 3, 4), {"window_strides": (1, 2), "padding": "SAME", "dimension_numbers": NHWC}),
    ((2, 4, 5), (6, 2, 2), {"window_strides": (1,), "padding": ((0, 1),), "feature_group_count": 2,
                            "rhs_dilation": (2,)}),
    ((4, 3, 5), (6, 3, 2), {"window_strides": (2,), "padding": ((1, 1),), "batch_group_count": 2,
                            "lhs_dilation": (3,)}),
    ((1, 3, 4, 8), (2, 3, 1, 8), {"window_strides": (1, 2), "padding": "SAME", "dimension_numbers": NHWC,
                                  "feature_group_count": 8}),
    ((2, 3), (4, 3), {"window_strides": (), "padding": ()}),
    ((1, 2, 7), (2, 2, 3), {"window_strides": (1,), "padding": ((-1, -2),), "lhs_dilation": (2,),
                            "rhs_dilation": (2,)}),
]


@pytest.mark.parametrize(("x", "w", "given"), FORMS, ids=lambda v: str(v)[:30])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_derivatives_to_second_order(x: Any, w: Any, given: dict[str, Any], dtype: Any) -> None:
    """A convolution is linear in each argument: differences are exact up to rounding, and adjoints are adjoint."""
    with anima.enable_x64(True):
        a, b, s, t = (jnp.asarray(normal(*shape, dtype=dtype, seed=k)) for k, shape in enumerate((x, w, x, w)))

        def f(x: Any, w: Any) -> Any:
            return lax.conv_general_dilated(x, w, **given)

        ct = jnp.asarray(normal(*f(a, b).shape, dtype=dtype, seed=9))
        for wrap in (lambda g: g, anima.jit):
            _, tangent = wrap(lambda: anima.jvp(f, (a, b), (s, t)))()
            np.testing.assert_allclose(tangent, f(s, b) + f(a, t), atol=1e-10)
            grads = wrap(lambda: anima.vjp(f, a, b)[1](ct))()
            np.testing.assert_allclose(jnp.sum(ct * tangent), jnp.sum(grads[0] * s) + jnp.sum(grads[1] * t), atol=1e-9)
            _, second = wrap(lambda: anima.jvp(lambda x, w: anima.vjp(f, x, w)[1](ct), (a, b), (s, t)))()
            np.testing.assert_allclose(jnp.sum(second[0] * s), jnp.sum(ct * f(s, t)), atol=1e-9)
            np.testing.assert_allclose(jnp.sum(second[1] * t), jnp.sum(ct * f(s, t)), atol=1e-9)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_cotangents_have_the_arguments_types(dtype: str) -> None:
    x, w = jnp.ones((1, 2, 5), dtype), jnp.ones((3, 2, 2), dtype)

    def total(x: Any, w: Any) -> Any:
        return lax.conv(x, w, (1,), "VALID", preferred_element_type=jnp.float32).sum()

    grads = anima.grad(total, (0, 1))(x, w)
    assert [g.dtype for g in grads] == [x.dtype, w.dtype]


@pytest.mark.parametrize(("x", "w", "given"), FORMS, ids=lambda v: str(v)[:30])
@pytest.mark.parametrize(("dx", "dw"), [(0, None), (1, None), (None, 0), (None, 2), (0, 0), (2, 1)])
def test_a_map_is_a_loop(x: Any, w: Any, given: dict[str, Any], dx: int | None, dw: int | None) -> None:
    def led(shape: tuple[int, ...], d: int | None) -> tuple[int, ...]:
        return shape if d is None else (*shape[:d], 3, *shape[d:])

    a, b = normal(*led(x, dx)), normal(*led(w, dw), seed=1)

    def f(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, **given)

    want = np.stack([f(a if dx is None else a.take(k, dx), b if dw is None else b.take(k, dw)) for k in range(3)])
    for wrap in (lambda g: g, anima.jit):
        np.testing.assert_allclose(wrap(anima.vmap(f, (dx, dw)))(a, b), want, rtol=1e-4, atol=1e-4)
    twice = anima.vmap(anima.vmap(f, (None, dw)), (dx, None))(a, b) if dx is not None and dw is not None else None
    if twice is not None:
        np.testing.assert_allclose(twice[1, 2], f(a.take(1, dx), b.take(2, dw)), rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- other forms


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("n", "k", "stride"), [(5, 3, 2), (4, 3, 1), (3, 2, 4), (6, 5, 3), (4, 1, 2)])
def test_a_transposed_convolution_is_the_adjoint(padding: str, n: int, k: int, stride: int) -> None:
    layout = ("NHC", "HIO", "NHC")
    y, w = normal(2, n, 4), normal(k, 3, 4, seed=1)
    out = both(lambda y, w: lax.conv_transpose(y, w, (stride,), padding, transpose_kernel=True), y, w)
    x = normal(*out.shape, seed=2)
    forward = lax.conv_general_dilated(x, w, (stride,), padding, dimension_numbers=layout)
    assert forward.shape == y.shape
    np.testing.assert_allclose(np.sum(forward * y), np.sum(out * x), rtol=1e-3, atol=1e-3)
    assert lax.conv_transpose_shape_tuple((2, n, 4), (k, 4, 3), (stride,), padding, layout) == out.shape


def test_padding_of_transposed_convolutions() -> None:
    x, w = normal(1, 5, 2), normal(3, 2, 4)
    plain = lax.conv_transpose(x, w, (2,), [(1, 2)])
    assert plain.shape == (1, 10, 4)
    assert lax.conv_transpose(x, w, (2,), [(1, 2)], use_consistent_padding=True).shape == (1, 8, 4)
    with pytest.raises(ValueError, match="dimension_numbers"):
        lax.conv_transpose(np.ones((1,) * 6), np.ones((1,) * 6), (1,) * 4, "SAME")
    with pytest.raises(ValueError, match="SAME"):
        lax.conv_transpose(x, w, (2,), "SOME")


@pytest.mark.parametrize("layout", [None, NHWC, ("NHWC", "OIHW", "NCHW")])
def test_patches_and_local_kernels(layout: Any) -> None:
    x = normal(2, 3, 5, 6)
    want = np.stack([x[:, :, i:i + 4, j:j + 4:1][:, :, ::1, ::1] for i in range(2) for j in range(3)], 2)
    want = want.reshape(2, 3 * 2 * 3, 4, 4)
    shaped = x if layout is None else x.transpose(0, 2, 3, 1)
    got = both(lambda x: lax.conv_general_dilated_patches(x, (2, 3), (1, 1), "VALID", dimension_numbers=layout), shaped)
    last = layout is NHWC
    np.testing.assert_array_equal(got if not last else np.moveaxis(got, -1, 1), want)
    w = normal(7, 18, 4, 4)
    local = np.einsum("nkhw,okhw->nohw", want, w)
    kernel = w.transpose(2, 3, 1, 0) if last else w
    out = both(lambda x, w: lax.conv_general_dilated_local(x, w, (1, 1), "VALID", (2, 3), dimension_numbers=layout),
               shaped, kernel)
    np.testing.assert_allclose(np.moveaxis(out, -1, 1) if last else out, local, rtol=1e-4, atol=1e-4)


def test_shapes_and_layouts() -> None:
    assert lax.conv_general_permutations(("NHWC", "HWIO", "NCHW")) == ((0, 3, 1, 2), (3, 2, 0, 1), (0, 1, 2, 3))
    numbers = lax.conv_dimension_numbers((1, 2, 3), (1, 2, 3), ("NWC", "WIO", "NWC"))
    assert str(numbers) == "ConvDimensionNumbers(lhs_spec=(0, 2, 1), rhs_spec=(2, 1, 0), out_spec=(0, 2, 1))"
    assert lax.conv_dimension_numbers((), (), numbers) is numbers
    assert lax.conv_shape_tuple((2, 3, 5, 5), (7, 3, 3, 3), (1, 2), "SAME") == (2, 7, 5, 3)
    assert lax.conv_shape_tuple((2, 3, 5, 5), (7, 3, 3, 3), (1, 2), [(0, 0), (1, 1)], 2) == (1, 7, 3, 3)
    assert lax.conv_general_shape_tuple((2, 5, 5, 3), (3, 3, 3, 7), (1, 2), "SAME", NHWC) == (2, 5, 3, 7)
    assert lax.conv_transpose_shape_tuple((2, 5, 5, 3), (3, 3, 3, 7), (1, 2), "VALID", NHWC) == (2, 7, 11, 7)


def test_the_equation_has_all_parameters() -> None:
    text = str(anima.make_jaxpr(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC))(
        jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 5))))
    for part in ("c:f32[1,4,4,5] = conv_general_dilated[", "batch_group_count=1", "feature_group_count=1",
                 "dimension_numbers=ConvDimensionNumbers(lhs_spec=(0, 3, 1, 2), rhs_spec=(3, 2, 0, 1), "
                 "out_spec=(0, 3, 1, 2))", "lhs_dilation=(1, 1)", "padding=((1, 1), (1, 1))", "rhs_dilation=(1, 1)",
                 "window_strides=(1, 1)", "] a b"):
        assert part in text


# ---------------------------------------------------------------- errors


X, W = np.ones((1, 2, 5), np.float32), np.ones((3, 2, 2), np.float32)


@pytest.mark.parametrize(("call", "error", "match"), [
    (lambda: lax.conv(X, W, (1, 1), "SAME"), ValueError, "window_strides must have the same number"),
    (lambda: lax.conv(X, W, (1,), "FOO"), RuntimeError, "Unrecognized padding type"),
    (lambda: lax.conv(X, W, (0,), "SAME"), ValueError, "window_strides must be positive"),
    (lambda: lax.conv(X, W, (1,), [1]), ValueError, "pairs"),
    (lambda: lax.conv(X, W, (1,), ((1.0, 2.0),)), ValueError, "pairs"),
    (lambda: lax.conv(X, W, (0,), "VALID"), ValueError, "must be positive"),
    (lambda: lax.conv(X, W[:, :1], (1,), "VALID"), ValueError, "2 // 1 != 1"),
    (lambda: lax.conv(X, W[0], (1,), "VALID"), TypeError, "ndim to be equal"),
    (lambda: lax.conv(X, W.astype(np.int32), (1,), "VALID"), TypeError, "same dtypes"),
    (lambda: lax.conv(X, W, (1,), "VALID", precision="foo"), ValueError, "Precision"),
    (lambda: lax.conv(X, W, (1,), "VALID", preferred_element_type=np.int8), TypeError, "preferred_element_type"),
    (lambda: lax.conv(X, W, (1,), "VALID", preferred_element_type=np.float16), TypeError, "narrower"),
    (lambda: lax.conv_general_dilated(X, W, (1,), "SAME", (2,)), ValueError, "conv_transpose"),
    (lambda: lax.conv_general_dilated(X, W, (1,), "VALID", (0,)), ValueError, "conv_transpose"),
    (lambda: lax.conv_general_dilated(X, W, (1,), [(0, 0)], (0,)), TypeError, "dilations must be positive"),
    (lambda: lax.conv_general_dilated(X, W, (1,), [(0, 0)], None, (1, 1)), ValueError, "rhs_dilation"),
    (lambda: lax.conv_general_dilated(X, W, (1,), [(-3, -3)]), ValueError, "Negative padding"),
    (lambda: lax.conv_general_dilated(X, W, (1,), "VALID", feature_group_count=2), ValueError, "2 // 2 != 2"),
    (lambda: lax.conv_general_dilated(X, W[:, :1], (1,), "VALID", feature_group_count=2), ValueError,
     "multiple of feature"),
    (lambda: lax.conv_general_dilated(X, W, (1,), "VALID", feature_group_count=0), ValueError, "positive integer"),
    (lambda: lax.conv_general_dilated(X, W, (1,), "VALID", batch_group_count=2), ValueError, "must divide"),
    (lambda: lax.conv_general_dilated(X, W, (1,), "VALID", dimension_numbers=("NWC", "WIO")), TypeError, "length 3"),
    (lambda: lax.conv_dimension_numbers((1, 2, 3), (1, 2, 3), ("NXC", "WIO", "NWC")), TypeError, "same set of spatial"),
    (lambda: lax.conv_dimension_numbers((1, 2, 3), (1, 2, 3), ("NXX", "WIO", "NWC")), TypeError, "exactly once"),
    (lambda: lax.conv_dimension_numbers((1, 2, 3), (1, 2, 3), (1, 2, 3)), TypeError, "must be strings"),
    (lambda: lax.conv_dimension_numbers((1, 2, 3), (1, 2, 3), ("NWCD", "WIO", "NWC")), TypeError, "must have len"),
    (lambda: lax.conv_shape_tuple((2, 3, 5), (7, 3, 3), (1,), [(0, 0)] * 2), TypeError, "Wrong number"),
    (lambda: lax.conv_shape_tuple((2, 3, 5), (7, 3, 3), (1, 1), [(0, 0)]), TypeError, "a stride for each dimension"),
    (lambda: lax.conv_shape_tuple((2, 3, 5), (7, 3, 3, 3), (1,), [(0, 0)]), TypeError, "shapes of one rank"),
    (lambda: lax.conv_shape_tuple((3, 3, 5), (7, 3, 3), (1,), "SAME", 2), ValueError, "2 does not divide 3"),
    (lambda: lax.conv_dimension_numbers((1, 2, 3), (1, 2, 3), "NWC"), TypeError, "or None, got <class 'str'>"),
    (lambda: lax.conv_general_dilated(X[[0, 0]], W, (1,), "VALID", feature_group_count=2, batch_group_count=2),
     ValueError, "At most one of batch_group_count and feature_group_count"),
    (lambda: lax.conv_general_dilated(X, W, (1,), "VALID", dimension_numbers=lax.ConvDimensionNumbers(
        (0, 0, 1), (0, 1, 2), (0, 1, 2))), ValueError, "must permute the axes"),
    (lambda: lax.conv_general_dilated(X, W[..., None], (1,), "VALID", dimension_numbers=lax.ConvDimensionNumbers(
        (0, 1, 2), (0, 1, 2), (0, 1, 2))), ValueError, "must have the same number of dimensions"),
], ids=lambda v: v if isinstance(v, str) else "")
def test_errors(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_work_is_counted() -> None:
    cost = anima.jit(lambda x, w: lax.conv(x, w, (1, 1), "SAME")).lower(
        np.ones((1, 8, 6, 6), np.float32), np.ones((5, 8, 3, 3), np.float32)).cost_analysis()
    assert cost["flops"] == 2 * math.prod((5, 6, 6, 8, 3, 3))


@pytest.mark.parametrize("padding", [[(1, 2), (0, 3)], [(0, 0), (0, 0)]])
def test_shapes_of_adjoints_with_padding_in_pairs(padding: list[tuple[int, int]]) -> None:
    """As many places as there are for the kernel in the padded and spread array."""
    got = lax.conv_transpose_shape_tuple((2, 4, 5, 3), (3, 2, 3, 16), (2, 3), padding, ("NHWC", "HWIO", "NHWC"))
    want = [(n - 1) * s + 1 + sum(p) - k + 1 for n, s, p, k in zip((4, 5), (2, 3), padding, (3, 2), strict=True)]
    assert got == (2, *want, 16)


@pytest.mark.parametrize("dtype", ["int32", "float32", "bool"])
def test_truth_values_are_convolved_in_the_type_that_is_asked_for(dtype: str) -> None:
    x, w = np.array([[[True, True, False, True]]]), np.array([[[True, True]]])
    for run in (lax.conv, anima.jit(lax.conv, static_argnums=(2, 3), static_argnames="preferred_element_type")):
        got = run(x, w, (1,), "VALID", preferred_element_type=np.dtype(dtype))
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, np.array([[[2, 1, 1]]]).astype(dtype))
