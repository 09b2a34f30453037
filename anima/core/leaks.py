"""Who still holds an object: for the error about a tracer that outlives its trace.

    holder(tracer)  ->  "an element of a list, the global `box` of train.py"
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any

_DEPTH = 3     # containers within containers
_SEARCHES = 5  # each looks at every object there is


def holder(x: Any) -> str:
    """What refers to `x`, in words; "" if only running functions do."""
    return ", ".join(_chain(x, _DEPTH, {id(x)}, iter(range(_SEARCHES))))


def _chain(x: Any, depth: int, seen: set[int], searches: Iterator[int]) -> list[str]:
    """From `x` outwards to a name that the user gave, if there is one."""
    best: list[str] = []
    if next(searches, None) is None:
        return best
    for referrer in gc.get_referrers(x):
        if isinstance(referrer, FrameType) or id(referrer) in seen or type(referrer).__name__ == "list_iterator":
            continue
        words = _named(x, referrer)
        if words:
            return [words]
        kind = type(referrer).__name__
        if depth > 1 and isinstance(referrer, (list, tuple, dict, set, CellType)) and not best:
            found = _chain(referrer, depth - 1, {*seen, id(referrer)}, searches)
            if found:
                best = found if isinstance(referrer, CellType) else [f"an element of a {kind}", *found]
    return best


def _named(x: Any, referrer: Any) -> str:
    """A referrer that says all: a module's, a class's or an object's attribute, or a function's closure."""
    if isinstance(referrer, FunctionType):
        cells = dict(zip(referrer.__code__.co_freevars, referrer.__closure__ or (), strict=True))
        names = [name for name, cell in cells.items() if cell is x]
        return f"the variable `{names[0]}` that the function {referrer.__name__} closes over" if names else ""
    if not isinstance(referrer, dict):
        slots = [n for n in getattr(type(referrer), "__slots__", ()) if getattr(referrer, n, None) is x]
        if slots or (hasattr(referrer, "__dict__") and not isinstance(referrer, (type, ModuleType))):
            names = slots or [n for n, v in vars(referrer).items() if v is x]
            return f"the attribute `{names[0]}` of {_a(referrer)}" if names else ""
        return ""
    names = [k for k, v in referrer.items() if v is x and isinstance(k, str)]
    if not names:
        return ""
    if "__name__" in referrer and "__builtins__" in referrer:
        return f"the global `{names[0]}` of {referrer['__name__']}"
    for owner in gc.get_referrers(referrer):
        if getattr(owner, "__dict__", None) is referrer:
            return f"the attribute `{names[0]}` of {_a(owner)}"
    return ""


def _a(x: Any) -> str:
    return f"an object of class {type(x).__name__}"
