"""Single operations that were applied to operands of such types before: how to apply them again, quickly.

On small arrays NumPy adds in a third of a microsecond, and to find out what is to be added takes ten times that: who
traces, what operands may be, to which type they are promoted, what type the result has. For operands of the same
types, under the same options, the answers are the same. So an operation that comes again gets a *way*. For those that
are one loop of NumPy's it is native code, which looks at the types of the operands and calls this loop, the one that
the operation's own rule comes to (see `runtime.single`), with the same bits; what it does not know it refuses, and the
general way is taken. For others it is `Same`: the rule is evaluated at once, and types are not looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anima.core.avals import ShapedArray

_OFTEN = 500       # operations that come again, after which native code is loaded if it is not there already
_MOST_KNOWN = 4096

Maker = Callable[[Any, dict[str, Any], Sequence[ShapedArray], Sequence[type | None], ShapedArray],
                 Callable[..., Any] | None]


class Same:
    """Operands of the types `avals`, which live as long as this, give results of the types `out`."""

    __slots__ = ("avals", "large", "out", "settled")

    def __init__(self, avals: Sequence[ShapedArray], out: Any, large: bool, settled: bool) -> None:
        self.avals, self.out = avals, out
        self.large = large      # compiled code does it
        self.settled = settled  # there is no native code for it


def _operands(key: Any, avals: Sequence[ShapedArray]) -> list[Any]:
    """What native code knows the operands by: the types of arrays, and the classes of numbers."""
    return [aval if type(mark) is int else mark for aval, mark in zip(avals, key[1:], strict=True)]


def _refuse(*args: Any) -> Any:
    return NotImplemented


class Ways:
    """The ways under one setting of the options, by operation and operands: types by identity, classes of numbers."""

    __slots__ = ("_found", "_met", "get", "learns", "options")
    make: Maker = staticmethod(lambda *described: None)          # the run time's, where that is loaded
    chain: Callable[..., Any] = staticmethod(lambda *tape: None)  # what plays a tape: `runtime.several`
    can_chain: Callable[..., bool] = staticmethod(lambda step: False)  # whether it plays this step
    is_loaded: Callable[[], bool] = staticmethod(lambda: False)
    keep: Callable[..., None] = staticmethod(lambda *described: None)  # finds a way by native code: `runtime.again`
    forget: Callable[[], None] = staticmethod(lambda: None)            # finds none of them any more
    is_native = False  # whether functions may be found by native code
    again = 0

    def __init__(self, options: Any, learns: bool) -> None:
        self.options = options
        self.learns = learns  # else every application has to go the general way
        self._found: dict[Any, Any] = {}
        self._met: set[Any] = set()
        self.get = self._found.get

    @staticmethod
    def often() -> bool:
        """Whether native code is worth its while, when one more operation has come again."""
        Ways.again += 1
        return Ways.again >= _OFTEN or Ways.is_loaded()

    def meet(self, key: Any, primitive: Any, params: dict[str, Any], avals: Sequence[ShapedArray], out: Any,
             numbers: Sequence[type | None] = ()) -> None:
        """Notes that `primitive` gave results of the types `out` for operands of the types `avals`; with `numbers`, a
        function of arrays and of Python's numbers of these classes came to that."""
        if not self.learns:
            return
        if key not in self._met:
            if len(self._met) >= _MOST_KNOWN:
                self._met.clear()
                self._found.clear()
                Ways.forget()
            self._met.add(key)
            return
        found = self._found.get(key)
        if numbers and found is not None:  # native code does not find it any more: others took its place
            Ways.keep(self.options, key[0], _operands(key, avals), len(avals), found)
            return
        large = primitive.is_large(avals, params)
        settled = large or primitive.as_ufunc is None
        if Ways.often() and not settled:
            way = Ways.make(primitive, params, avals, numbers or [None] * len(avals), out)
            if way is not None:
                self._found[key] = way
                if numbers:
                    Ways.keep(self.options, key[0], _operands(key, avals), len(avals), way)
                return
            settled = True
        if not numbers:
            self._found[key] = Same(avals, out, large, settled)
        elif settled:
            self._found[key] = _refuse
