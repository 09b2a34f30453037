"""Operations outside of `jit` on arrays that are cut over several processes: each is a program of its own.

Loaded by `anima.distributed.initialize()`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

from anima.api.jit import JitFunction
from anima.core.primitive import Primitive
from anima.core.trace import EvalTrace
from anima.util import exactly

_KEPT = 1024
_functions: OrderedDict[Hashable, JitFunction] = OrderedDict()  # the one that was used last is the last


def on_parts(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Applies an operation to arrays, of which each process has its part."""
    def apply(*args: Any) -> Any:
        return primitive.bind(*args, **params)

    key = primitive, exactly(params)
    try:
        function = _functions.pop(key, None)
    except TypeError:  # a parameter that cannot be hashed
        return _function(primitive, apply)(*args)
    if function is None:
        function = _function(primitive, apply)
    _functions[key] = function
    if len(_functions) > _KEPT:
        _functions.popitem(last=False)
    return function(*args)


def _function(primitive: Primitive, apply: Any) -> JitFunction:
    apply.__name__ = primitive.name
    return JitFunction(apply)


def install() -> None:
    """Has operations on such arrays come here."""
    EvalTrace.on_parts = staticmethod(on_parts)  # type: ignore[method-assign]


