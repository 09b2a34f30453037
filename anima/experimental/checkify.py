"""Checks in compiled and transformed programs: errors as values.

    def f(x, i):
        checkify.check(i >= 0, "index needs to be non-negative, got {i}", i=i)
        return jnp.log(x[i])

    err, y = jit(checkify.checkify(f, errors=checkify.all_checks))(x, i)
    err.throw()                                # JaxRuntimeError, if a check failed; its message says at which line

`checkify` makes of a function one that returns the first failure beside its results. What is checked: `user_checks`
(calls of `check`), `index_checks`, `nan_checks`, `div_checks`; `float_checks` are the last two, `automatic_checks` all
but the user's. Transformations may stand on either side: `checkify(vmap(f))`, `vmap(checkify(f))`.

Differs from JAX: the first failure that happens is told, of whatever kind; a NaN that is only passed on is none; a
message ends with the user's line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from anima import errors as _errors, tree
from anima.api.later import later
from anima.api.pjit import pjit_p
from anima.config import config
from anima.control.checks import (
    BatchedError,
    DivisionByZeroError,
    ErrorLayout,
    FailedCheckError,
    JaxException,
    JaxRuntimeError as JaxRuntimeError,
    NaNError,
    OOBError,
    Site,
    check_p,
    first_where,
    part,
)
from anima.control.functionalize import first_failure, run
from anima.core import dtypes
from anima.core.array import Array
from anima.core.intern import interned
from anima.core.jaxpr import ClosedJaxpr
from anima.core.source import here
from anima.core.stage import Traced, close, hoisted, trace_pytrees, trace_to_jaxpr
from anima.core.trace import Tracer, aval_of, is_tracing
from anima.names import access
from anima.ops.broadcast import scalar
from anima.ops.elementwise import convert, ge, select_n, stop_gradient
from anima.ops.shape import reshape
from anima.random.keys import key_data, key_impl, wrap_key_data
from anima.tree_util import register_pytree_node_class
from anima.util import fun_name, wraps

__all__ = ["Error", "ErrorCategory", "JaxRuntimeError", "all_checks", "automatic_checks", "check", "check_error",
           "checkify", "debug_check", "div_checks", "float_checks", "index_checks", "init_error", "nan_checks",
           "user_checks"]

ErrorCategory = type[JaxException]

user_checks: frozenset[ErrorCategory] = frozenset({FailedCheckError})
nan_checks: frozenset[ErrorCategory] = frozenset({NaNError})
index_checks: frozenset[ErrorCategory] = frozenset({OOBError})
div_checks: frozenset[ErrorCategory] = frozenset({DivisionByZeroError})
float_checks = nan_checks | div_checks
automatic_checks = float_checks | index_checks
all_checks = automatic_checks | user_checks

_CODE = np.dtype(np.int32)


@register_pytree_node_class
class Error:
    """The first failure of a function's checks, or none: a pytree, which jitted and mapped functions may return.

    Mapped over lanes, it has one for each.
    """

    __slots__ = ("_code", "_metadata", "_payload", "_pred")

    def __init__(self, _pred: Any, _code: Any, _metadata: ErrorLayout, _payload: Sequence[Any]):
        self._pred, self._code, self._metadata, self._payload = _pred, _code, _metadata, _payload

    def get_exception(self) -> JaxException | None:
        """The failure as an exception; None if nothing failed. Of lanes, one that has the exception of each.

        Raises:
          ConcretizationTypeError: while a function is traced, which does not know yet.
        """
        if self._pred is None:
            return None
        if isinstance(self._pred, Tracer) and self._pred.concrete() is None:
            raise _errors.ConcretizationTypeError(
                self._pred, "Whether a check failed is not known yet.", "return the error, or use checkify.check_error")
        failed, codes, payload = np.asarray(self._pred), np.asarray(self._code), list(map(np.asarray, self._payload))
        if not failed.any():
            return None
        if not failed.ndim:
            return self._metadata.error(int(codes), payload)
        return BatchedError({index: self._metadata.error(int(codes[index]), [p[index] for p in payload])
                             for index in map(tuple, np.argwhere(failed).tolist())})

    def get(self) -> str | None:
        """The message of the failure, None if nothing failed; of lanes, a line or more for each that failed."""
        error = self.get_exception()
        return None if error is None else str(error)

    def throw(self) -> None:
        """Raises JaxRuntimeError (a ValueError) with the message, if something failed; see `check_error`."""
        check_error(self)

    def tree_flatten(self) -> tuple[Any, ErrorLayout]:
        return (self._pred, self._code, self._payload), self._metadata

    @classmethod
    def tree_unflatten(cls, metadata: ErrorLayout, data: Any) -> Error:
        pred, code, payload = data
        return cls(pred, code, metadata, payload)

    def __repr__(self) -> str:
        if isinstance(self._pred, Tracer):
            return f"Error({self._pred})"
        return f"Error({self.get()})"


init_error = Error(None, None, ErrorLayout(), ())


@_errors.api_boundary
def check(pred: Any, msg: str, *fmt_args: Any, debug: bool = False, **fmt_kwargs: Any) -> None:
    """Fails unless `pred` holds when the program gets here.

    Where nothing is traced, a check that fails raises at once. Functions that are compiled have to be transformed by
    `checkify`, which makes failures results.

    Args:
      pred: a scalar bool.
      msg: the message, a format string.
      fmt_args, fmt_kwargs: what to format: pytrees of arrays. (In a loop, what is formatted is stored in each step.)
      debug: do nothing where `checkify` does not look: see `debug_check`.

    Raises:
      TypeError: for a predicate that is not a scalar bool, or arguments that are not arrays.
      JaxRuntimeError: if it fails and nothing is traced.
      ValueError: where a function is compiled and nothing makes its checks results.

    >>> err, _ = checkify(lambda x: check(x > 0, "{x} is not positive", x=x))(jnp.float32(-3.))
    >>> print(err.get().splitlines()[0])
    -3.0 is not positive (`check` failed)
    """
    if not _is_scalar_bool(pred):
        raise TypeError(f"check takes a scalar pred as argument, got {pred}")
    leaves, structure = tree.flatten(tree.map(_words_of_keys, (fmt_args, fmt_kwargs)))
    for leaf in leaves:
        if not isinstance(leaf, (Array, np.ndarray, np.generic)):
            raise TypeError("Formatting arguments to checkify.check need to be PyTrees of arrays, but got "
                            f"{leaf!r} of type {type(leaf)}.")
    values = [convert(stop_gradient(x), aval_of(x).dtype) for x in leaves]
    site = Site(FailedCheckError, f"{msg} (`check` failed)", here(), structure, tuple(map(aval_of, values)))
    code = select_n(pred, scalar(0, _CODE), scalar(-1, _CODE))
    check_p.bind(code, *values, layout=ErrorLayout((site,), site.avals), debug=bool(debug))


@register_pytree_node_class
class _Keys:
    """Random keys as their words, which an error state can hold; put together again, they are keys."""

    def __init__(self, keys: Any):
        self.keys = keys

    def tree_flatten(self) -> tuple[Any, str]:
        return (key_data(self.keys),), key_impl(self.keys)

    @classmethod
    def tree_unflatten(cls, implementation: str, words: Any) -> Any:
        return wrap_key_data(*words, impl=implementation)


def _words_of_keys(x: Any) -> Any:
    return _Keys(x) if isinstance(x, Array) and dtypes.is_extended(x.dtype) else x


def _is_scalar_bool(pred: Any) -> bool:
    return isinstance(pred, bool) or (isinstance(pred, (Array, np.bool_)) and pred.shape == ()
                                      and pred.dtype == np.dtype(bool))


def debug_check(pred: Any, msg: str, *fmt_args: Any, **fmt_kwargs: Any) -> None:
    """A `check` in functions that `checkify` transforms, and nothing elsewhere: compiled code may hold it.

    >>> jit(lambda x: debug_check(x > 0, "negative"))(-1.)
    """
    check(pred, msg, *fmt_args, debug=True, **fmt_kwargs)


@_errors.api_boundary
def check_error(error: Error) -> None:
    """Fails as `error` says: the inverse of `checkify`, whose errors become checks again.

    Raises:
      TypeError: for what is not an `Error`.
      JaxRuntimeError: if something failed and nothing is traced; of lanes, with the messages of all that failed
        (where functions are traced, with that of the first).
    """
    if not isinstance(error, Error):
        raise TypeError(f"check_error takes an Error as argument, got type {type(error)} instead.")
    if error._pred is None:
        return
    code, payload = error._code, error._payload
    if not (is_tracing() or any(isinstance(x, Tracer) for x in (code, *payload))):
        found = error.get_exception()
        if found is not None:
            raise JaxRuntimeError(str(found))
        return
    lanes = aval_of(code).shape
    if lanes:  # the first that failed
        size = math.prod(lanes)
        if not size:
            return
        flat = [reshape(x, (size, *aval_of(x).shape[len(lanes):])) for x in (code, *payload)]
        lane = first_where(ge(flat[0], scalar(0, _CODE)))[1]
        code, *payload = [part(x, lane) for x in flat]
    check_p.bind(code, *payload, layout=error._metadata, debug=False)


def checkify(f: Callable[..., Any],
             errors: Collection[ErrorCategory] = user_checks) -> Callable[..., tuple[Error, Any]]:
    """A function that returns `(error, f(...))`: what checks of `f` failed, and its results.

    The error is that of the first check that failed; what comes after it runs all the same. Without `jit`, loops and
    branches alone are compiled.

    Args:
      f: a function of arrays and pytrees of them, and of anything else, which it gets as it is.
      errors: what is checked: `user_checks`, `nan_checks`, `div_checks`, `float_checks`, `index_checks`,
        `automatic_checks`, `all_checks`, or a union of such sets.

    >>> err, y = jit(checkify(jnp.log, errors=nan_checks))(-1.)
    >>> print(err.get().splitlines()[0])
    nan generated by primitive: log.
    >>> checkify(jnp.log, errors=nan_checks)(1.)
    (Error(None), Array(0., dtype=float32, weak_type=True))
    """
    kinds = frozenset(errors)

    @wraps(f)
    @_errors.api_boundary
    def checked(*args: Any, **kwargs: Any) -> tuple[Error, Any]:
        leaves, in_tree = tree.flatten((args, kwargs))
        where = [k for k, x in enumerate(leaves) if isinstance(x, (Array, np.ndarray))]
        arrays = [leaves[k] for k in where]

        def whole(*xs: Any) -> Any:
            given = dict(zip(where, xs, strict=True))
            positional, named = tree.unflatten(in_tree, [given.get(k, x) for k, x in enumerate(leaves)])
            return f(*positional, **named)

        jaxpr, consts, out_tree = trace_pytrees(whole, tree.structure(tuple(arrays)), list(map(aval_of, arrays)),
                                                Traced(fun_name(f), by="checkify"))
        closed, outer = close(jaxpr, consts)
        layout, outs = _applied(closed, [*outer, *arrays], kinds)
        code, payload = (outs[0], outs[1:layout.size]) if layout.sites else (None, [])
        pred = None if code is None else ge(code, scalar(0, _CODE))
        return Error(pred, code, layout, tuple(payload)), tree.unflatten(out_tree, outs[layout.size:])

    return checked


def _applied(closed: ClosedJaxpr, args: Sequence[Any],
             kinds: frozenset[ErrorCategory]) -> tuple[ErrorLayout, list[Any]]:
    """The error state and results of a program; one with loops or branches that would run now is compiled."""
    if is_tracing():
        return first_failure(closed, args, kinds, later)
    if config.disable_jit or not any(e.primitive.inner(e.params) for e in closed.eqns):
        state, outs = run(closed, args, kinds)
        return state.layout, [*state.values, *outs]
    found: list[ErrorLayout] = []

    def fun(*xs: Any) -> list[Any]:
        layout, outs = first_failure(closed, xs, kinds, later)
        found.append(layout)
        return outs

    with config.held(config.trace_key()):
        jaxpr, consts = trace_to_jaxpr(fun, list(map(aval_of, args)), Traced("checkify", by="checkify"))
    return found[0], pjit_p.bind(*consts, *args, jaxpr=interned(hoisted(jaxpr)), name="checkify", inline=False)

globals().update(access(__name__, globals()))
