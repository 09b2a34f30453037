"""Kernels on blocks of arrays, as `jax.experimental.pallas`: run as loops of the compiled program.

    >>> from anima.experimental import pallas as pl
    >>> def add(x, y, z):
    ...     z[...] = x[...] + y[...]
    >>> pl.pallas_call(add, jnp.zeros(3))(jnp.ones(3), jnp.arange(3.))
    Array([1., 2., 3.], dtype=float32)

What is there for several cores of an accelerator and the copies between its memories (`core_map`, `kernel`,
semaphores) is not.
"""

from collections.abc import Callable as _Callable
from typing import Any as _Any, NoReturn as _NoReturn

from anima import debug as _debug, errors as _errors, lax as _lax, numpy as _jnp
from anima.api.refs import new_ref as _new_ref
from anima.config import pallas_enable_debug_checks as enable_debug_checks
from anima.core.array import Array as _Array
from anima.core.windows import Slice as Slice, ds as ds
from anima.experimental import checkify as _checkify
from anima.experimental.pallas.calls import (
    estimate_cost as estimate_cost,
    loop as loop,
    num_programs as num_programs,
    pallas_call as pallas_call,
    program_id as program_id,
    run_scoped as run_scoped,
    run_state as run_state,
    when as when,
    with_scoped as with_scoped,
)
from anima.experimental.pallas.specs import (
    BlockDim as BlockDim,
    Blocked as Blocked,
    BlockSpec as BlockSpec,
    Buffered as Buffered,
    CompilerParams as CompilerParams,
    CostEstimate as CostEstimate,
    Element as Element,
    GridSpec as GridSpec,
    MemoryRef as MemoryRef,
    MemorySpace as MemorySpace,
    Squeezed as Squeezed,
    align_to as align_to,
    cdiv as cdiv,
    next_power_of_2 as next_power_of_2,
    no_block_spec as no_block_spec,
    squeezed as squeezed,
    strides_from_shape as strides_from_shape,
    uninitialized as _uninitialized,
)
from anima.names import refusing as _refusing

dslice = ds
ANY, HOST = MemorySpace.ANY, MemorySpace.HOST


def empty(shape: _Any, dtype: _Any, *, out_sharding: _Any = None) -> _Array:
    """An array that nobody has written to: NaN, least integers."""
    return _uninitialized(shape, dtype)


def empty_like(x: _Any) -> _Array:
    """As `empty`, of the type of another."""
    return _uninitialized(x.shape, x.dtype)


def empty_ref_like(x: _Any) -> _Any:
    """A reference to an `empty` array."""
    return _new_ref(empty_like(x))


def broadcast_to(a: _Any, shape: _Any) -> _Array:
    """As `anima.numpy.broadcast_to`."""
    return _jnp.broadcast_to(a, shape)


def multiple_of(x: _Any, values: _Any) -> _Any:
    """`x`, said to be a multiple: of which nothing here makes use."""
    return x


def reciprocal(x: _Any, *, approx: bool = False, full_range: bool = True) -> _Array:
    """1 / x, exact."""
    return _lax.reciprocal(x)


def dot(a: _Any, b: _Any, trans_a: bool = False, trans_b: bool = False, allow_tf32: bool | None = None,
        precision: _Any = None) -> _Array:
    """The product of two matrices, of which each may be transposed: in float32 or int32, unless they are wider.

    `allow_tf32` makes no difference. ValueError for what is no matrix.
    """
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError("`a` and `b` must be 2D arrays.")
    least = _jnp.int32 if _jnp.issubdtype(a.dtype, _jnp.integer) else _jnp.float32
    return _lax.dot_general(a, b, (((0 if trans_a else 1,), (1 if trans_b else 0,)), ((), ())), precision=precision,
                            preferred_element_type=_jnp.promote_types(_jnp.promote_types(a.dtype, b.dtype), least))


def debug_print(fmt: str, *args: _Any) -> None:
    """Prints values from within a kernel, in the order of its steps."""
    _debug.print(fmt, *args, ordered=True)


def debug_check(condition: _Any, message: str) -> None:
    """A check of `checkify`, where the option `pallas_enable_debug_checks` asks for them."""
    if enable_debug_checks.value:
        _checkify.check(condition, message)


def _accelerators(name: str, what: str) -> _Callable[..., _NoReturn]:
    return _refusing(name, f"pallas.{name} is not implemented: it is about {what}, which CPUs do not have.",
                     f"NotImplementedError: it is about {what}.")


core_map = _accelerators("core_map", "the cores of an accelerator")
kernel = _accelerators("kernel", "the cores of an accelerator")
semaphore = _accelerators("semaphore", "copies between the memories of an accelerator")
semaphore_read = _accelerators("semaphore_read", "copies between the memories of an accelerator")
semaphore_signal = _accelerators("semaphore_signal", "copies between the memories of an accelerator")
semaphore_wait = _accelerators("semaphore_wait", "copies between the memories of an accelerator")

globals().update(_errors.public_face(__name__, globals(), ("tpu", "triton")))
