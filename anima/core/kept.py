"""Programs of users' functions that are kept for as long as the functions live: a function is called once for arguments
of equal types.

Programs written for JAX expect that (`remembers`). Elsewhere it is so for `jit` alone: other functions are called each
time, and read what they read now.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from anima.config import config
from anima.core.refs import EagerCell, Ref
from anima.core.state import current
from anima.core.trace import Tracer
from anima.util import cleared, fork_safe

remembers = False
_FUNCTIONS = 512  # that are known


class ByFunction:
    """What is known of users' functions, for as long as these live. It may refer to its function, so that neither would
    ever be given back: the oldest of many are forgotten."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, dict[Hashable, Any]] = weakref.WeakKeyDictionary()
        self._lock = fork_safe(threading.RLock())
        cleared(self._clear)

    def _clear(self) -> None:
        with self._lock:
            self._known.clear()

    def of(self, fun: Any) -> dict[Hashable, Any] | None:
        """What is known of a function, to be added to; None for one without hash, equality or weak references."""
        try:
            with self._lock:
                while len(self._known) > _FUNCTIONS:
                    self._known.pop(next(iter(self._known)), None)
                return self._known.setdefault(fun, {})
        except Exception:
            return None


_programs = ByFunction()


def kept(fun: Callable[..., Any], key: tuple[Any, ...], make: Callable[[], tuple[Any, Any, Any]]) -> Any:
    """What `make()` gives, a tuple whose second item has the values that a program of `fun` closes over: of an earlier
    call with an equal key, if nothing that tracing depends on has changed.

    It is made anew where somebody watches how values are used while functions are traced.
    """
    if not remembers or config.debug_key_reuse or config.check_tracer_leaks:
        return make()
    options = config.trace_key()
    whole, programs = (key, options, current.axes, current.manual), _programs.of(fun)
    try:
        known = None if programs is None else programs.get(whole)
    except Exception:  # of arguments without hash or equality
        programs = known = None
    if programs is None:
        return make()
    if known is not None and (values := held(known[1])) is not None:
        return known[0], values, known[2]
    with config.held(options):
        made = make()
    if (loose := loosened(made[1])) is not None:
        programs[whole] = made[0], loose, made[2]
    return made


def loosened(values: Sequence[Any]) -> list[Any] | None:
    """Values that a program closes over, as what is kept of them: of tracers weak references, as these end with the
    function that is transformed. None if nothing may be kept of the program."""
    out = []
    for x in values:
        if isinstance(x, Ref) and not isinstance(x, EagerCell):
            return None
        out.append(weakref.ref(x) if isinstance(x, Tracer) else x)
    return out


def held(loose: Sequence[Any]) -> list[Any] | None:
    """The values of `loosened`; None if they are not all there any more, or belong to other transformations."""
    values = [x() if isinstance(x, weakref.ref) else x for x in loose]
    owners = [v.owner for v, x in zip(values, loose, strict=True) if isinstance(v, Tracer)]
    return None if any(v is None for v in values) or not _are_around(owners) else values


def _are_around(owners: list[Any]) -> bool:
    """Whether these traces are those under which operations run now."""
    around, trace = set(), current.trace
    while trace is not None:
        around.add(id(trace))
        trace = trace.parent
    return around.issuperset(map(id, owners))
