"""Activation functions: maps of one number to one number that networks put between layers.

Integers are taken as floats where the result is not an integer. Derivatives at kinks follow JAX:
relu'(0) = 0, relu6'(0) = relu6'(6) = 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima.api.eager import repeated
from anima.numpy.promote import inexact_array
from anima.ops import special
from anima.ops.elementwise import logistic
from anima.transforms.custom import custom_jvp


def _floating(x: Any) -> Any:
    """`x` as an array of an inexact type; weak types stay weak."""
    return inexact_array("activation", jnp.asarray(x))


@repeated
def identity(x: Any) -> Any:
    """The array itself."""
    return jnp.asarray(x)


@custom_jvp
def relu(x: Any) -> Any:
    """Rectified linear unit, max(x, 0), with derivative 0 at 0.

    >>> anima.nn.relu(jnp.array([-2., 0., 3.]))
    Array([0., 0., 3.], dtype=float32)
    """
    return jnp.maximum(x, 0)


@relu.defjvp
def _relu_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    # max alone would share the derivative between its operands at 0.
    return relu(x), jnp.where(x > 0, t, jnp.zeros_like(t))


@custom_jvp
@repeated
def relu6(x: Any) -> Any:
    """min(max(x, 0), 6), with derivative 0 at 0 and 6."""
    return jnp.minimum(jnp.maximum(x, 0), 6.0)


@relu6.defjvp
def _relu6_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    return relu6(x), jnp.where((x > 0) & (x < 6), t, jnp.zeros_like(t))


@repeated
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return logistic(_floating(x))


@repeated
def softplus(x: Any) -> Any:
    """log(1 + exp(x)), without overflow."""
    return jnp.logaddexp(jnp.asarray(x), 0)


@repeated
def silu(x: Any) -> Any:
    """x * sigmoid(x), also known as swish."""
    x = _floating(x)
    return x * sigmoid(x)


swish = silu


@repeated
def mish(x: Any) -> Any:
    """x * tanh(softplus(x))."""
    x = jnp.asarray(x)
    return x * jnp.tanh(softplus(x))


@repeated
def log_sigmoid(x: Any) -> Any:
    """log(sigmoid(x)), without overflow."""
    return -softplus(-_floating(x))


@repeated
def soft_sign(x: Any) -> Any:
    """x / (|x| + 1)."""
    x = jnp.asarray(x)
    return x / (jnp.abs(x) + 1)


def tanh(x: Any, /) -> Any:
    """Hyperbolic tangent."""
    return jnp.tanh(x)


@repeated
def elu(x: Any, alpha: Any = 1.0) -> Any:
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""
    x = jnp.asarray(x)
    positive = x > 0
    # exp of a large number that is not used would make the gradient NaN.
    return jnp.where(positive, x, alpha * jnp.expm1(jnp.where(positive, 0.0, x)))


@repeated
def selu(x: Any) -> Any:
    """Scaled elu, whose outputs keep mean 0 and variance 1 (Klambauer et al., 2017)."""
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


@repeated
def celu(x: Any, alpha: Any = 1.0) -> Any:
    """max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1): elu with a continuous derivative."""
    return jnp.maximum(x, 0.0) + alpha * jnp.expm1(jnp.minimum(x, 0.0) / alpha)


@repeated
def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    """x where it is not negative, negative_slope * x elsewhere."""
    x = jnp.asarray(x)
    return jnp.where(x >= 0, x, negative_slope * x)


@repeated
def gelu(x: Any, approximate: bool = True) -> Any:
    """x times the standard normal distribution function at x; by tanh if approximate."""
    x = _floating(x)
    if approximate:
        inner = np.sqrt(2 / np.pi).astype(x.dtype) * (x + 0.044715 * x**3)
        return x * (0.5 * (1.0 + jnp.tanh(inner)))
    return 0.5 * x * special.erfc(-x * np.sqrt(0.5).astype(x.dtype))


@repeated
def glu(x: Any, axis: int = -1) -> Any:
    """The first half of `x` along `axis`, times the sigmoid of the second; ValueError if the size is odd."""
    x = jnp.asarray(x)
    size = x.shape[axis]
    if size % 2:
        raise ValueError(f"glu: the axis size must be divisible by 2, got {size}")
    first, second = jnp.split(x, 2, axis)
    return first * sigmoid(second)


@repeated
def hard_tanh(x: Any) -> Any:
    """x cut off at -1 and 1."""
    x = jnp.asarray(x)
    return jnp.where(x > 1, 1, jnp.where(x < -1, -1, x))


@repeated
def hard_sigmoid(x: Any) -> Any:
    """relu6(x + 3) / 6."""
    return relu6(jnp.asarray(x) + 3.0) / 6.0


@repeated
def hard_silu(x: Any) -> Any:
    """x * hard_sigmoid(x), also known as hard swish."""
    x = jnp.asarray(x)
    return x * hard_sigmoid(x)


hard_swish = hard_silu


@repeated
def squareplus(x: Any, b: Any = 4) -> Any:
    """(x + sqrt(x**2 + b)) / 2: a smooth relu without exponentials."""
    x = jnp.asarray(x)
    return (x + jnp.sqrt(jnp.square(x) + b)) / 2


@repeated
def sparse_plus(x: Any) -> Any:
    """0 below -1, x above 1, (x + 1)**2 / 4 between them."""
    x = jnp.asarray(x)
    return jnp.where(x <= -1.0, 0.0, jnp.where(x >= 1.0, x, (x + 1.0)**2 / 4))


@repeated
def sparse_sigmoid(x: Any) -> Any:
    """The derivative of `sparse_plus`: 0 below -1, 1 above 1, (x + 1) / 2 between them."""
    return 0.5 * jnp.clip(jnp.asarray(x) + 1.0, 0.0, 2.0)


@custom_jvp
def log1mexp(x: Any) -> Any:
    """log(1 - exp(-x)) for x > 0, precise for small and large x (Maechler, 2012)."""
    x = _floating(x)
    return jnp.where(x < math.log(2.0), jnp.log(-jnp.expm1(-x)), jnp.log1p(-jnp.exp(-x)))


@log1mexp.defjvp
def _log1mexp_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    return log1mexp(x), t * jnp.exp(-x) / -jnp.expm1(-x)
