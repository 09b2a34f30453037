"""Neural networks as pairs of functions, and ways to combine them.

    init, apply = serial(Dense(100), Relu, Dense(10), LogSoftmax)
    out_shape, params = init(random.key(0), (-1, 784))
    predictions = apply(params, images)

A layer is (init, apply): `init(rng, input_shape) -> (output_shape, params)`, `apply(params, inputs, **kwargs)`. A
shape's size of the batch may be -1. Layers that draw random numbers need `rng=key` when they are applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anima.numpy as jnp
from anima import lax, nn, random
from anima.api.stages import ShapeDtypeStruct
from anima.api.tracing import eval_shape
from anima.names import access
from anima.nn import initializers
from anima.nn.initializers import glorot_normal as glorot, normal as randn

_Layer = tuple[Callable[..., Any], Callable[..., Any]]

logsoftmax = nn.log_softmax


def Dense(out_dim: int, W_init: Any = glorot(), b_init: Any = randn()) -> _Layer:
    """A matrix product and a bias."""
    def init(rng: Any, input_shape: Sequence[int]) -> tuple[Any, Any]:
        k1, k2 = random.split(rng)
        return (*input_shape[:-1], out_dim), (W_init(k1, (input_shape[-1], out_dim)), b_init(k2, (out_dim,)))

    def apply(params: Any, inputs: Any, **kwargs: Any) -> Any:
        weights, bias = params
        return jnp.dot(inputs, weights) + bias

    return init, apply


# ---------------------------------------------------------------- convolutions

def _out_shape(fun: Callable[..., Any], input_shape: Sequence[int], *shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape of a result, -1 for the size of the batch if that is not known."""
    known = [1 if d == -1 else d for d in input_shape]
    out = eval_shape(fun, *(ShapeDtypeStruct(s, jnp.float32) for s in (known, *shapes))).shape
    return tuple(-1 if given == -1 else d for given, d in zip(input_shape, out, strict=True))


def _convolution(convolve: Callable[..., Any], dimension_numbers: Sequence[str], out_chan: int,
                 filter_shape: Sequence[int], W_init: Any, b_init: Any) -> _Layer:
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    make = W_init or glorot(rhs_spec.index("O"), rhs_spec.index("I"))

    def init(rng: Any, input_shape: Sequence[int]) -> tuple[Any, Any]:
        sizes = iter(filter_shape)
        of = {"O": out_chan, "I": input_shape[lhs_spec.index("C")]}
        kernel = tuple(of[c] if c in of else next(sizes) for c in rhs_spec)
        k1, k2 = random.split(rng)
        bias = tuple(out_chan if c == "C" else 1 for c in out_spec)
        return _out_shape(convolve, input_shape, kernel), (make(k1, kernel), b_init(k2, bias))

    def apply(params: Any, inputs: Any, **kwargs: Any) -> Any:
        weights, bias = params
        return convolve(inputs, weights) + bias

    return init, apply


def GeneralConv(dimension_numbers: Sequence[str], out_chan: int, filter_shape: Sequence[int],
                strides: Sequence[int] | None = None, padding: Any = "VALID", W_init: Any = None,
                b_init: Any = randn(1e-6)) -> _Layer:
    """A convolution, and a bias for each channel; `dimension_numbers` say what the axes are, as ("NHWC", ...)."""
    steps = tuple(strides or (1,) * len(filter_shape))
    numbers = tuple(dimension_numbers)
    return _convolution(lambda x, w: lax.conv_general_dilated(x, w, steps, padding, dimension_numbers=numbers),
                        numbers, out_chan, filter_shape, W_init, b_init)


def GeneralConvTranspose(dimension_numbers: Sequence[str], out_chan: int, filter_shape: Sequence[int],
                         strides: Sequence[int] | None = None, padding: Any = "VALID", W_init: Any = None,
                         b_init: Any = randn(1e-6)) -> _Layer:
    """A transposed convolution, and a bias for each channel."""
    steps = tuple(strides or (1,) * len(filter_shape))
    numbers = tuple(dimension_numbers)
    return _convolution(lambda x, w: lax.conv_transpose(x, w, steps, padding, dimension_numbers=numbers),
                        numbers, out_chan, filter_shape, W_init, b_init)


def Conv(out_chan: int, filter_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Any = "VALID",
         W_init: Any = None, b_init: Any = randn(1e-6)) -> _Layer:
    """A convolution of images, channels last."""
    return GeneralConv(("NHWC", "HWIO", "NHWC"), out_chan, filter_shape, strides, padding, W_init, b_init)


def ConvTranspose(out_chan: int, filter_shape: Sequence[int], strides: Sequence[int] | None = None,
                  padding: Any = "VALID", W_init: Any = None, b_init: Any = randn(1e-6)) -> _Layer:
    """A transposed convolution of images, channels last."""
    return GeneralConvTranspose(("NHWC", "HWIO", "NHWC"), out_chan, filter_shape, strides, padding, W_init, b_init)


def Conv1DTranspose(out_chan: int, filter_shape: Sequence[int], strides: Sequence[int] | None = None,
                    padding: Any = "VALID", W_init: Any = None, b_init: Any = randn(1e-6)) -> _Layer:
    """A transposed convolution of sequences, channels last."""
    return GeneralConvTranspose(("NHC", "HIO", "NHC"), out_chan, filter_shape, strides, padding, W_init, b_init)


# ---------------------------------------------------------------- layers without weights

def BatchNorm(axis: int | Sequence[int] = (0, 1, 2), epsilon: float = 1e-5, center: bool = True, scale: bool = True,
              beta_init: Any = initializers.zeros, gamma_init: Any = initializers.ones) -> _Layer:
    """Inputs with mean 0 and variance 1 along axes, then scaled and shifted (Ioffe and Szegedy, 2015)."""
    axes = (axis,) if isinstance(axis, int) else tuple(axis)

    def init(rng: Any, input_shape: Sequence[int]) -> tuple[Any, Any]:
        shape = tuple(d for i, d in enumerate(input_shape) if i not in axes)
        k1, k2 = random.split(rng)
        return input_shape, (beta_init(k1, shape) if center else (), gamma_init(k2, shape) if scale else ())

    def apply(params: Any, x: Any, **kwargs: Any) -> Any:
        beta, gamma = (jnp.expand_dims(p, axes) if used else None for p, used in zip(params, (center, scale),
                                                                                    strict=True))
        z = nn.standardize(x, axes, epsilon=epsilon)
        z = z if gamma is None else z * gamma
        return z if beta is None else z + beta

    return init, apply


def elementwise(fun: Callable[..., Any], **fun_kwargs: Any) -> _Layer:
    """A layer that applies a function that keeps shapes."""
    return (lambda rng, input_shape: (input_shape, ())), (lambda params, inputs, **kwargs: fun(inputs, **fun_kwargs))


Tanh = elementwise(jnp.tanh)
Relu = elementwise(nn.relu)
Exp = elementwise(jnp.exp)
LogSoftmax = elementwise(nn.log_softmax, axis=-1)
Softmax = elementwise(nn.softmax, axis=-1)
Softplus = elementwise(nn.softplus)
Sigmoid = elementwise(nn.sigmoid)
Elu = elementwise(nn.elu)
LeakyRelu = elementwise(nn.leaky_relu)
Selu = elementwise(nn.selu)
Gelu = elementwise(nn.gelu)
Identity = elementwise(lambda x: x)


def _pooling(pool: Callable[..., Any]) -> Callable[..., _Layer]:
    """`pool(inputs, window, strides, padding)`, for images with channels last unless `spec` says what the axes are."""
    def layer(window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Any = "VALID",
              spec: str | None = None) -> _Layer:
        """Pools images over windows; `spec` says what the axes are, as "NHWC" (N and C are left alone)."""
        given = strides or (1,) * len(window_shape)
        axes = spec or "N" + "W" * len(window_shape) + "C"

        def along(sizes: Sequence[int]) -> tuple[int, ...]:
            left = iter(sizes)
            return tuple(1 if c in "NC" else next(left) for c in axes)

        def run(inputs: Any) -> Any:
            return pool(inputs, along(window_shape), along(given), padding)

        return (lambda rng, shape: (_out_shape(run, shape), ())), (lambda params, inputs, **kwargs: run(inputs))

    return layer


def _sums(inputs: Any, window: Sequence[int], strides: Sequence[int], padding: Any) -> Any:
    return lax.reduce_window(inputs, 0.0, lax.add, window, strides, padding)


def _means(inputs: Any, window: Sequence[int], strides: Sequence[int], padding: Any) -> Any:
    """Means of the elements that there are: those beyond the edge do not count."""
    return _sums(inputs, window, strides, padding) / _sums(jnp.ones_like(inputs), window, strides, padding)


def _maxima(inputs: Any, window: Sequence[int], strides: Sequence[int], padding: Any) -> Any:
    return lax.reduce_window(inputs, -jnp.inf, lax.max, window, strides, padding)


MaxPool, SumPool, AvgPool = _pooling(_maxima), _pooling(_sums), _pooling(_means)


def _flatten_shape(rng: Any, input_shape: Sequence[int]) -> tuple[Any, Any]:
    size = 1
    for d in input_shape[1:]:
        size *= d
    return (input_shape[0], size), ()


Flatten: _Layer = (_flatten_shape, lambda params, inputs, **kwargs: jnp.reshape(inputs, (inputs.shape[0], -1)))


def Dropout(rate: Any, mode: str = "train") -> _Layer:
    """Keeps each element with probability `rate`, and divides it by that, if `mode` is "train".

    ValueError if it is applied without `rng=key`.
    """
    def apply(params: Any, inputs: Any, **kwargs: Any) -> Any:
        rng = kwargs.get("rng")
        if rng is None:
            raise ValueError("Dropout layer requires apply_fun to be called with a PRNG key argument: "
                             "apply_fun(params, inputs, rng=key).")
        if mode != "train":
            return inputs
        return jnp.where(random.bernoulli(rng, rate, inputs.shape), inputs / rate, 0)

    return (lambda rng, input_shape: (input_shape, ())), apply


# ---------------------------------------------------------------- combining layers

def FanOut(num: int) -> _Layer:
    """`num` copies of the inputs."""
    return (lambda rng, shape: ([shape] * num, ())), (lambda params, inputs, **kwargs: [inputs] * num)


FanInSum: _Layer = (lambda rng, shapes: (shapes[0], ())), (lambda params, inputs, **kwargs: sum(inputs))


def FanInConcat(axis: int = -1) -> _Layer:
    """The inputs, one after the other along an axis."""
    def init(rng: Any, input_shape: Sequence[Sequence[int]]) -> tuple[Any, Any]:
        shape = list(input_shape[0])
        shape[axis] = sum(s[axis] for s in input_shape)
        return tuple(shape), ()

    return init, lambda params, inputs, **kwargs: jnp.concatenate(inputs, axis)


def _keys(kwargs: dict[str, Any], count: int) -> Any:
    rng = kwargs.pop("rng", None)
    return (None,) * count if rng is None else random.split(rng, count)


def serial(*layers: _Layer) -> _Layer:
    """One layer after the other."""
    def init(rng: Any, input_shape: Any) -> tuple[Any, Any]:
        params = []
        for make, _ in layers:
            rng, own = random.split(rng)
            input_shape, made = make(own, input_shape)
            params.append(made)
        return input_shape, params

    def apply(params: Any, inputs: Any, **kwargs: Any) -> Any:
        for (_, run), own, rng in zip(layers, params, _keys(kwargs, len(layers)), strict=True):
            inputs = run(own, inputs, rng=rng, **kwargs)
        return inputs

    return init, apply


def parallel(*layers: _Layer) -> _Layer:
    """Layers beside each other, one for each of the inputs (as `FanOut` makes them)."""
    def init(rng: Any, input_shape: Any) -> tuple[Any, Any]:
        made = [make(own, shape) for (make, _), own, shape in zip(layers, random.split(rng, len(layers)), input_shape,
                                                                   strict=True)]
        return [shape for shape, _ in made], [params for _, params in made]

    def apply(params: Any, inputs: Any, **kwargs: Any) -> Any:
        return [run(own, x, rng=rng, **kwargs) for (_, run), own, x, rng in zip(
            layers, params, inputs, _keys(kwargs, len(layers)), strict=True)]

    return init, apply


def shape_dependent(make_layer: Callable[[Any], _Layer]) -> _Layer:
    """The layer that `make_layer(input_shape)` returns, for the shape of the inputs."""
    return (lambda rng, input_shape: make_layer(input_shape)[0](rng, input_shape),
            lambda params, inputs, **kwargs: make_layer(inputs.shape)[1](params, inputs, **kwargs))

globals().update(access(__name__, globals()))
