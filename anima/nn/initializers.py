"""Initial weights: each function here returns, or is, `init(key, shape, dtype)`.

Scaled ones keep the variance of signals from layer to layer, by the number of inputs ("fan in") and of
outputs ("fan out") of a unit: lecun 1 / in, he (kaiming) 2 / in, glorot (xavier) 2 / (in + out).

    >>> anima.nn.initializers.he_normal()(anima.random.key(0), (256, 128)).std()
    Array(0.08856061, dtype=float32)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

import anima.numpy as jnp
from anima import errors, random
from anima.core import dtypes
from anima.core.avals import Shape, canonicalize_axes, canonicalize_axis
from anima.names import access
from anima.ops.broadcast import as_shape
from anima.ops.elementwise import complex as _complex
from anima.ops.placing import as_asked


@runtime_checkable
class Initializer(Protocol):
    """A function of a key, a shape and a dtype that returns an array of them."""

    def __call__(self, key: Any, shape: Any, dtype: Any = None, out_sharding: Any = None) -> Any:
        raise NotImplementedError


def _as_initializer(fill: Callable[[Any, Shape, Any], Any], default: Any) -> Initializer:
    """`fill(key, shape, dtype)` with checked arguments."""
    @errors.api_boundary
    def init(key: Any, shape: Any, dtype: Any = default, out_sharding: Any = None) -> Any:
        if out_sharding is not None:
            return as_asked("initializer", None, out_sharding, init, key, shape, dtype)
        return fill(key, as_shape(shape), dtypes.check_user_dtype(dtype, "initializer"))

    return init


zeros = _as_initializer(lambda key, shape, dtype: jnp.zeros(shape, dtype), None)
zeros.__name__ = zeros.__qualname__ = "zeros"
zeros.__doc__ = "Zeros; the key is not used."
ones = _as_initializer(lambda key, shape, dtype: jnp.ones(shape, dtype), None)
ones.__name__ = ones.__qualname__ = "ones"
ones.__doc__ = "Ones; the key is not used."


def constant(value: Any, dtype: Any = None) -> Initializer:
    """All elements `value` (which broadcasts to the shape); the key is not used."""
    return _as_initializer(lambda key, shape, dtype: jnp.full(shape, value, dtype), dtype)


def uniform(scale: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Uniform in [0, scale)."""
    return _as_initializer(
        lambda key, shape, dtype: random.uniform(key, shape, dtype) * jnp.asarray(scale, dtype), dtype)


def normal(stddev: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Normal of mean 0."""
    return _as_initializer(
        lambda key, shape, dtype: random.normal(key, shape, dtype) * jnp.asarray(stddev, dtype), dtype)


def truncated_normal(stddev: Any = 1e-2, dtype: Any = None, lower: Any = -2.0, upper: Any = 2.0) -> Initializer:
    """`stddev` times a standard normal number given that it lies in (lower, upper)."""
    return _as_initializer(
        lambda key, shape, dtype: random.truncated_normal(key, lower, upper, shape, dtype)
        * jnp.asarray(stddev, dtype), dtype)


# ---------------------------------------------------------------- scaled by fan in and fan out

def _fans(shape: Shape, in_axis: Any, out_axis: Any, batch_axis: Any) -> tuple[float, float]:
    """The numbers of inputs and of outputs of a unit; the axes left over are the window of a convolution."""
    axes = [in_axis, out_axis]
    if len(shape) <= 1 and all(isinstance(a, int) and not -len(shape) <= a < len(shape) for a in axes):
        raise ValueError(f"Can't compute input and output sizes of a {len(shape)}-dimensional weights tensor "
                         "with default in_axis. Must be at least 2D or specify in_axis explicitly.")
    if len(shape) <= 1 and in_axis == -2:
        raise ValueError(f"Can't compute input and output sizes of a {len(shape)}-dimensional weights tensor "
                         "with default in_axis. Must be at least 2D or specify in_axis explicitly.")
    size_in, size_out, size_batch = (math.prod(shape[a] for a in canonicalize_axes(x, len(shape)))
                                     for x in (in_axis, out_axis, batch_axis))
    window = math.prod(shape) / size_in / size_out / size_batch
    return size_in * window, size_out * window


def variance_scaling(scale: Any, mode: str, distribution: str, in_axis: Any = -2, out_axis: Any = -1,
                     batch_axis: int | Sequence[int] = (), dtype: Any = None) -> Initializer:
    """Numbers of variance `scale / fan`, where `mode` chooses the fan ("fan_in", "fan_out", "fan_avg",
    "fan_geo_avg") and `distribution` is "truncated_normal", "normal" or "uniform".
    """
    def fill(key: Any, shape: Shape, dtype: Any) -> Any:
        fan_in, fan_out = _fans(shape, in_axis, out_axis, batch_axis)
        fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2,
                "fan_geo_avg": math.sqrt(fan_in * fan_out)}
        if mode not in fans:
            raise ValueError(f"invalid mode for variance scaling initializer: {mode}")
        variance = np.asarray(scale / fans[mode], dtypes.to_real(dtype))
        return _scaled(key, shape, dtype, variance, distribution)

    return _as_initializer(fill, dtype)


def _scaled(key: Any, shape: Shape, dtype: Any, variance: np.ndarray, distribution: str) -> Any:
    """Numbers of this variance."""
    real, is_real = variance.dtype, dtypes.issubdtype(dtype, np.floating)
    root = np.sqrt(variance)
    if distribution == "normal":
        return random.normal(key, shape, dtype) * root.astype(dtype)
    if distribution == "uniform":
        if is_real:
            return random.uniform(key, shape, dtype, -1) * np.sqrt(np.asarray(3, real) * variance)
        return _complex_disc(key, shape, real, None) * root.astype(dtype)
    if distribution == "truncated_normal":
        # The truncated distributions have standard deviations below 1: that of a real number cut off at
        # 2, and that of a complex number whose absolute value is.
        if is_real:
            return random.truncated_normal(key, -2, 2, shape, dtype) * (root / np.asarray(.87962566103423978, real))
        return _complex_disc(key, shape, real, 2) * (root / np.asarray(.95311164380491208, real)).astype(dtype)
    raise ValueError(f"invalid distribution for variance scaling initializer: {distribution}")


def _complex_disc(key: Any, shape: Shape, real: Any, upper: float | None) -> Any:
    """Complex numbers uniform on the disc of variance 1; with `upper`, normal ones cut off at that absolute value."""
    key_radius, key_angle = random.split(key)
    u = random.uniform(key_radius, shape, real)
    if upper is None:
        radius = jnp.sqrt(2 * u)
    else:
        radius = jnp.sqrt(-jnp.log(1 - np.asarray(1 - math.exp(-upper**2), real) * u))
    angle = np.asarray(2 * np.pi, real) * random.uniform(key_angle, shape, real)
    return _complex(radius * jnp.cos(angle), radius * jnp.sin(angle))


def _family(name: str, scale: float, mode: str, distribution: str, doc: str) -> Callable[..., Initializer]:
    def make(in_axis: Any = -2, out_axis: Any = -1, batch_axis: Any = (), dtype: Any = None) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis, batch_axis, dtype)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = doc
    return make


glorot_uniform = _family("glorot_uniform", 1.0, "fan_avg", "uniform", "Uniform of variance 2 / (in + out).")
glorot_normal = _family("glorot_normal", 1.0, "fan_avg", "truncated_normal",
                        "Truncated normal of variance 2 / (in + out) (Glorot and Bengio, 2010).")
lecun_uniform = _family("lecun_uniform", 1.0, "fan_in", "uniform", "Uniform of variance 1 / in.")
lecun_normal = _family("lecun_normal", 1.0, "fan_in", "truncated_normal", "Truncated normal of variance 1 / in.")
he_uniform = _family("he_uniform", 2.0, "fan_in", "uniform", "Uniform of variance 2 / in.")
he_normal = _family("he_normal", 2.0, "fan_in", "truncated_normal",
                    "Truncated normal of variance 2 / in (He et al., 2015).")
xavier_uniform, xavier_normal = glorot_uniform, glorot_normal
kaiming_uniform, kaiming_normal = he_uniform, he_normal


# ---------------------------------------------------------------- orthogonal

def orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """`scale` times a random matrix with orthonormal rows or columns, whichever are fewer (Saxe et al., 2013).

    The columns run along `column_axis`; all other axes together are the rows.
    """
    def fill(key: Any, shape: Shape, dtype: Any) -> Any:
        if len(shape) < 2:
            raise ValueError("orthogonal initializer requires at least a 2D shape")
        axis = canonicalize_axis(column_axis, len(shape))
        rest = shape[:axis] + shape[axis + 1:]
        q = jnp.reshape(random.orthogonal(key, math.prod(rest), dtype=dtype, m=shape[axis]), (*rest, shape[axis]))
        return jnp.asarray(scale, dtype) * jnp.moveaxis(q, -1, axis)

    return _as_initializer(fill, dtype)


def delta_orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """Convolution kernels that are an orthogonal matrix in the middle and 0 elsewhere (Xiao et al., 2018).

    The last two dimensions are input and output channels, of which the output has at least as many.
    """
    def fill(key: Any, shape: Shape, dtype: Any) -> Any:
        if len(shape) not in (3, 4, 5):
            raise ValueError("Delta orthogonal initializer requires a 3D, 4D or 5D shape.")
        if shape[-1] < shape[-2]:
            raise ValueError("`fan_in` must be less or equal than `fan_out`.")
        middle = tuple((n - 1) // 2 for n in shape[:-2])
        matrix = orthogonal(scale, column_axis, dtype)(key, shape[-2:])
        return jnp.zeros(shape, dtype).at[middle].set(matrix)

    return _as_initializer(fill, dtype)

globals().update(access(__name__, globals()))
