"""Programs applied as one operation, under a name of their own.

    closed_call_p.bind(x, call_jaxpr=make_jaxpr(f)(x))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anima.core.jaxpr import ClosedJaxpr
from anima.core.stage import eval_jaxpr
from anima.transforms.composed import Composed


def _run(*args: Any, call_jaxpr: ClosedJaxpr, **params: Any) -> list[Any]:
    return eval_jaxpr(call_jaxpr.jaxpr, call_jaxpr.consts, *args)


class CallPrimitive(Composed):
    """`call_jaxpr(*args)`: a program as one operation, with all rules."""

    call_primitive = True

    def __init__(self, name: str):
        super().__init__(name, _run, multiple_results=True)


def call_impl(f: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """`f(*args)`, now."""
    return f.call_wrapped(*args) if hasattr(f, "call_wrapped") else f(*args)


call_p, closed_call_p = CallPrimitive("call"), CallPrimitive("closed_call")
