"""`breakpoint`: a prompt in the middle of a running program, at the values it has there.

    > train.py:14, in loss
      loss = jnp.mean(error ** 2)
    (adb) p error.max()

The values that the user's functions held when the program was traced are operands of a callback; the
prompt shows each function's lines and evaluates expressions among its names.
"""

from __future__ import annotations

import bdb
import linecache
import sys
from cmd import Cmd
from collections.abc import Sequence
from types import FrameType
from typing import Any, TextIO

from anima import errors, tree
from anima.api.effects import flatten_call
from anima.control.effects import debug_callback_p
from anima.core.trace import is_array_like
from anima.util import record

_CONTEXT = 5  # lines shown around the current one


@record
class Frame:
    """A function of the user's: where it stood, the names it held and, for those that are no arrays, their values."""

    file: str
    line: int
    function: str
    fixed: dict[str, Any]
    globals: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, in {self.function}"

    def text(self, before: int = 0, after: int = 0) -> str:
        """The lines of source around the current one."""
        numbers = range(max(self.line - before, 1), self.line + after + 1)
        lines = [(n, linecache.getline(self.file, n).rstrip("\n")) for n in numbers]
        return "\n".join(f"{'->' if n == self.line else '  '} {n:4} {line}" for n, line in lines)


@errors.api_boundary
def breakpoint(*, backend: str | None = None, filter_frames: bool = True, num_frames: int | None = None,
               ordered: bool = False, token: Any = None, stdin: TextIO | None = None, stdout: TextIO | None = None,
               **kwargs: Any) -> Any:
    """Stops the program here, whenever it runs, at a prompt (`help` lists the commands).

    Args:
      backend: "cli", or None: the same.
      filter_frames: leave Anima's own functions out.
      num_frames: how many of the calling functions to offer; all, by default.
      ordered: accepted; effects always come in program order.
      token: a pytree that is returned as it is.
      stdin, stdout: where commands come from and answers go, if not the terminal. Without a terminal the values are
        printed, and the program goes on.

    Raises:
      bdb.BdbQuit: from the call of the program, where the user quits.
    """
    if backend not in (None, "cli"):
        raise ValueError(f"unknown debugger backend {backend!r}; there is 'cli'")
    frames, values = _frames(filter_frames, num_frames)
    flat, leaves = flatten_call("debug.breakpoint", _Prompt(frames, stdin, stdout), values, {}, static=True)
    debug_callback_p.bind(*leaves, callback=flat, ordered=bool(ordered))
    return token


def _frames(filter_frames: bool, num_frames: int | None) -> tuple[list[Frame], list[dict[str, Any]]]:
    """The functions on the stack, innermost first, and of each the names that hold arrays."""
    frames: list[Frame] = []
    values: list[dict[str, Any]] = []
    at: FrameType | None = errors.user_frame()
    while at is not None and (num_frames is None or len(frames) < num_frames):
        if not (filter_frames and errors.is_internal(at.f_code)):
            names = at.f_locals if at.f_locals is not at.f_globals else {}
            arrays = {k: v for k, v in names.items() if _holds_arrays(v)}
            fixed = {k: v for k, v in names.items() if k not in arrays}
            frames.append(Frame(at.f_code.co_filename, at.f_lineno, at.f_code.co_name, fixed, at.f_globals))
            values.append(arrays)
        at = at.f_back
    return frames, values


def _holds_arrays(value: Any) -> bool:
    """Whether a value is a pytree of arrays (and at least one)."""
    try:
        leaves = tree.leaves(value)
    except (TypeError, ValueError):
        return False
    return bool(leaves) and all(hasattr(x, "dtype") and is_array_like(x) for x in leaves)


class _Prompt:
    """What a breakpoint calls."""

    def __init__(self, frames: Sequence[Frame], stdin: TextIO | None, stdout: TextIO | None) -> None:
        self.frames, self.stdin, self.stdout = frames, stdin, stdout

    def __call__(self, *values: dict[str, Any]) -> None:
        Debugger(self.frames, values, self.stdin, self.stdout).run()


class Debugger(Cmd):
    """The prompt. Up and down go through the functions; anything that is no command is evaluated."""

    prompt = "(adb) "

    def __init__(self, frames: Sequence[Frame], values: Sequence[dict[str, Any]], stdin: TextIO | None,
                 stdout: TextIO | None) -> None:
        super().__init__(stdin=stdin, stdout=stdout)
        self.use_rawinput = stdin is None
        self.interactive = stdin is not None or sys.stdin.isatty()
        self.frames, self.values, self.at = frames, values, 0

    def run(self) -> None:
        """Until the user continues."""
        self.do_where("", everything=False)
        if self.interactive:
            self.cmdloop()
        else:
            self.do_locals("")

    def say(self, text: str) -> None:
        self.stdout.write(text + "\n")

    def names_now(self) -> dict[str, Any]:
        """The names of the current function."""
        return {**self.frames[self.at].fixed, **self.values[self.at]} if self.frames else {}

    def do_p(self, line: str) -> None:
        """p expression: its value."""
        try:
            value = eval(line, self.frames[self.at].globals if self.frames else {}, self.names_now())
        except Exception as error:
            self.say(f"*** {type(error).__name__}: {error}")
        else:
            self.say(repr(value))

    do_pp = do_p

    def default(self, line: str) -> bool | None:  # type: ignore[override]
        if line == "EOF":
            return self.do_quit("")
        self.do_p(line)
        return None

    def emptyline(self) -> bool:
        return False

    def do_locals(self, line: str) -> None:
        """locals (a): the arrays of this function."""
        for name, value in (self.values[self.at] if self.frames else {}).items():
            self.say(f"{name} = {value!r}")

    do_a = do_args = do_locals

    def do_list(self, line: str) -> None:
        """list (l): the source around the current line."""
        if self.frames:
            self.say(self.frames[self.at].text(_CONTEXT, _CONTEXT))

    do_l = do_list

    def do_where(self, line: str, everything: bool = True) -> None:
        """where (w, bt): the functions that led here, outermost first; > marks the current one."""
        for k in reversed(range(len(self.frames))):
            if everything or k == self.at:
                self.say(f"{'>' if k == self.at else ' '} {self.frames[k]}\n{self.frames[k].text()}")

    do_w = do_bt = do_where

    def do_up(self, line: str) -> None:
        """up (u): to the caller."""
        self._go(self.at + 1, "*** Oldest frame")

    do_u = do_up

    def do_down(self, line: str) -> None:
        """down (d): to the function that was called."""
        self._go(self.at - 1, "*** Newest frame")

    do_d = do_down

    def _go(self, to: int, otherwise: str) -> None:
        if 0 <= to < len(self.frames):
            self.at = to
            self.do_where("", everything=False)
        else:
            self.say(otherwise)

    def do_continue(self, line: str) -> bool:
        """continue (c): go on with the program."""
        return True

    do_c = do_cont = do_continue

    def do_quit(self, line: str) -> bool:
        """quit (q): end the program."""
        raise bdb.BdbQuit

    do_q = do_exit = do_quit
