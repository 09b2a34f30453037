"""Looking into running programs: `debug.print`, `debug.callback`, `debug.breakpoint`.

    @jit
    def f(x):
        debug.print("x = {x}, y = {}", x * 2, x=x)      # prints when f runs, not when it is traced
        return x

They work under every transformation and in compiled loops and branches, in program order. Differentiation
does not see them; under `vmap` they run once for each lane.
"""

from __future__ import annotations

import builtins
import logging
import string
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from anima import errors, names as _names, tree as _tree
from anima.api.debugger import breakpoint as breakpoint
from anima.api.effects import flatten_call
from anima.control.effects import (
    DebugEffect as DebugEffect,
    FlatCallback,
    OrderedDebugEffect as OrderedDebugEffect,
    debug_callback_p,
    debug_print_p,
)
from anima.core.shardings import WHOLE, Sharding
from anima.core.trace import aval_of
from anima.ops.placing import inspect_sharding_p

_logger = logging.getLogger("anima.debug")


@errors.api_boundary
def print(fmt: str | None = None, *args: Any, ordered: bool = False, partitioned: bool = False,
          skip_format_check: bool = False, _use_logging: bool = False, **kwargs: Any) -> Any:
    """Prints `fmt.format(*args, **kwargs)` whenever the program gets here.

    Args:
      fmt: a format string. The format of a number applies to each element of an array: "{:.3f}". Do not use an
        f-string: it would be filled in while tracing.
      args, kwargs: what to format: arrays, pytrees of arrays, and anything that is no array as it is.
      ordered, partitioned: accepted; lines always come in program order.
      skip_format_check: do not check the format against the arguments now.

    Without `fmt`, returns the function for these options: `debug.print(ordered=True)("x = {}", x)`.

    Raises:
      TypeError: if `fmt` is not a string.
      ValueError, IndexError, KeyError: for arguments that the format does not use, or lacks.

    >>> jit(lambda x: debug.print("x = {}", x))(1.5)
    x = 1.5
    """
    if fmt is None:
        return partial(print, ordered=ordered, partitioned=partitioned, skip_format_check=skip_format_check)
    if not isinstance(fmt, str):
        raise TypeError(f"debug.print takes a format string first, got {type(fmt).__name__}. "
                        'Fix: debug.print("{}", x).')
    if not skip_format_check:
        _check_format(fmt, args, kwargs)
    flat, leaves = flatten_call("debug.print", builtins.print, args, kwargs, static=True)
    if _use_logging:
        logs = FlatCallback(_Log(fmt), flat.in_tree, flat.static)
        debug_callback_p.bind(*leaves, callback=logs, ordered=bool(ordered))
    else:
        debug_print_p.bind(*leaves, fmt=fmt, in_tree=flat.in_tree, ordered=bool(ordered), static_args=flat.static)
    return None


def log(fmt: str | None = None, *args: Any, **kwargs: Any) -> Any:
    """Like `print`, to the logger "anima.debug", at level INFO."""
    if fmt is None:
        return partial(log, **kwargs)
    return print(fmt, *args, _use_logging=True, **kwargs)


class _Log:
    """Logs a formatted line."""

    def __init__(self, fmt: str) -> None:
        self.fmt = fmt

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        _logger.info("%s", self.fmt.format(*args, **kwargs))


@errors.api_boundary
def callback(callback: Callable[..., Any] | None = None, *args: Any, ordered: bool = False, partitioned: bool = False,
             **kwargs: Any) -> Any:
    """Calls `callback(*args, **kwargs)` with the arrays' values whenever the program gets here.

    Args:
      callback: a function; what it returns is dropped. What it raises ends the program, and is raised by the call.
      args, kwargs: arrays and pytrees of arrays; anything that is no array is passed as it is.
      ordered, partitioned: accepted; calls always come in program order.

    Without `callback`, returns the function for these options: `debug.callback(ordered=True)(f, x)`.
    """
    if callback is None:
        return partial(globals()["callback"], ordered=ordered, partitioned=partitioned)
    flat, leaves = flatten_call("debug.callback", callback, args, kwargs, static=True)
    debug_callback_p.bind(*leaves, callback=flat, ordered=bool(ordered))
    return None


@errors.api_boundary
def inspect_array_sharding(value: Any, *, callback: Callable[[Sharding], None]) -> None:
    """Calls `callback` with the sharding of every array in `value`: of a traced one when it is known, before the
    program runs for the first time on arguments that lie so.

    >>> jit(lambda x: debug.inspect_array_sharding(x, callback=builtins.print))(1.0)
    SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device)
    """
    for leaf in _tree.leaves(value):
        inspect_sharding_p.bind(leaf, callback=callback)


@errors.api_boundary
def visualize_array_sharding(arr: Any, **kwargs: Any) -> None:
    """Prints which device holds which part of an array of one or two dimensions: `visualize_sharding` of it."""
    visualize_sharding(aval_of(arr).shape, getattr(arr, "sharding", WHOLE), **kwargs)


@errors.api_boundary
def visualize_sharding(shape: Sequence[int], sharding: Sharding, *, use_color: bool = True, scale: float = 1.0,
                       min_width: int = 9, max_width: int = 80, color_map: Any = None) -> None:
    """Prints which device holds which part of an array of this shape.

    Args:
      shape: of one or two dimensions; ValueError for others.
      scale: of the drawing: 1.0 has 10 lines for a square matrix.
      min_width, max_width: bounds of the width in letters.
      use_color, color_map: accepted: it is the numbers that tell devices apart.

    >>> debug.visualize_sharding((2, 8), jnp.ones(()).sharding, scale=0.3, max_width=11)
    ┌─────────┐
    │  CPU 0  │
    └─────────┘
    """
    if len(shape) not in (1, 2):
        raise ValueError("visualize_sharding draws arrays of 1 and 2 dimensions, got the shape "
                         f"{tuple(shape)}.")
    places: dict[tuple[int, int], list[Any]] = {}
    size = (1, *shape) if len(shape) == 1 else tuple(shape)
    for device, index in sharding.devices_indices_map(tuple(shape)).items():
        row, column = ((0, *index) if len(shape) == 1 else index)
        begins = [part if isinstance(part, int) else part.start or 0 for part in (row, column)]
        places.setdefault((begins[0], begins[1]), []).append(device)
    rows, columns = (sorted({place[k] for place in places}) for k in (0, 1))
    height = 3 if len(shape) == 1 else max(3, round(10 * scale), 2 * len(rows) + 1)
    width = min(max(round(2 * height * size[1] / max(size[0], 1)), min_width, 3), max_width)
    width = max((width - 1) // len(columns), 3) - 1
    lines = max((height - 1) // len(rows), 2) - 1
    builtins.print("\n".join(_drawn(
        [[_label(places[r, c]) for c in columns] for r in rows], width, lines)))


def _label(devices: Sequence[Any]) -> str:
    return f"{devices[0].platform.upper()} " + ",".join(str(d.id) for d in devices)


def _drawn(labels: Sequence[Sequence[str]], width: int, height: int) -> Iterator[str]:
    """The lines of a table: each cell has a width, in which its text is broken, and a height at least."""
    count = len(labels[0])
    yield "┌" + "┬".join(["─" * width] * count) + "┐"
    for k, row in enumerate(labels):
        if k:
            yield "├" + "┼".join(["─" * width] * count) + "┤"
        cells = [[text[n:n + width] for n in range(0, len(text), width)] for text in row]
        tall = max(height, *map(len, cells))
        for line in range(tall):
            found = [cell[line - (tall - len(cell)) // 2] if 0 <= line - (tall - len(cell)) // 2 < len(cell) else ""
                     for cell in cells]
            yield "│" + "│".join(f"{text:^{width}}" for text in found) + "│"
    yield "└" + "┴".join(["─" * width] * count) + "┘"


def _check_format(fmt: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Fails now, at the user's line, where the format and the arguments do not go together."""
    used = [*_fields(fmt)]
    plain = sum(name == "" for name in used)
    numbers = {int(name) for name in used if name.isdigit()}
    if plain and numbers:
        raise ValueError("cannot switch from manual field specification to automatic field numbering")
    numbers |= set(range(plain))
    names = {name for name in used if name and not name.isdigit()}
    if any(n >= len(args) for n in numbers):
        raise IndexError(f"debug.print: the format {fmt!r} asks for argument number {max(numbers)}, but there are "
                         f"{len(args)}")
    for name in sorted(names - kwargs.keys()):
        raise KeyError(name)
    unused = [x for k, x in enumerate(args) if k not in numbers]
    if unused:
        raise ValueError(f"Unused positional arguments to `anima.debug.print`: {unused}")
    if kwargs.keys() - names:
        raise ValueError(f"Unused keyword arguments to `anima.debug.print`: {sorted(kwargs.keys() - names)}")


def _fields(fmt: str) -> Iterator[str]:
    """The arguments that a format refers to, nested ones included: names, numbers, or ""."""
    for _, field, spec, _ in string.Formatter().parse(fmt):
        if field is not None:
            yield field.split(".")[0].split("[")[0]
            yield from _fields(spec or "")


globals().update(_names.access(__name__, globals()))

__all__ = ["DebugEffect", "OrderedDebugEffect", "breakpoint", "callback", "inspect_array_sharding", "log", "print",
           "visualize_array_sharding", "visualize_sharding"]
