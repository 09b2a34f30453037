"""Primitives: the operations of the language, each an object whose methods are its rules.

    infer      types of the results                  (shapes and dtypes are checked here, once)
    eval       the result, on NumPy arrays           (eager mode, and the oracle of compiled code)
    jvp        how a small change of the arguments changes the result
    transpose  the adjoint, for primitives that are linear in some argument
    batch      the same operation on a stack of arguments

A rule that is missing is missing by name: calling it raises an error that says so. What an operation is besides
its mathematics (what it costs, whether it only moves data, ...) is said here too, once: every pass reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from anima.core.avals import ShapedArray
from anima.core.state import current
from anima.util import record


@record
class Zero:
    """A tangent or cotangent known to be zero, never materialised unless a rule needs it."""

    aval: ShapedArray


@record
class Linear:
    """Stands for an argument that a transpose rule is to find the cotangent of."""

    aval: ShapedArray


class Work(NamedTuple):
    """What a program computes in one run: arithmetic operations on numbers, and values of functions such as `exp`."""

    flops: float = 0.0
    transcendentals: float = 0.0

    def times(self, count: float) -> Work:
        return Work(self.flops * count, self.transcendentals * count)


def total_work(parts: Iterable[Work]) -> Work:
    """The work of all parts."""
    flops, transcendentals = 0.0, 0.0
    for part in parts:
        flops, transcendentals = flops + part.flops, transcendentals + part.transcendentals
    return Work(flops, transcendentals)


class Inner(NamedTuple):
    """A program (a ClosedJaxpr) that an equation runs, and how many values it `carries` from one run to the next: its
    arguments from number `first` on become its first results."""

    program: Any
    first: int = 0
    carries: int = 0


class Primitive:
    """An operation and its rules. Subclasses override the rules; `bind` applies the operation."""

    multiple_results: bool = False

    # What passes ask of an operation.
    cost: float            # nanoseconds of one core for one element, roughly; an addition takes 1
    moves: bool = False    # computes nothing: results are elements of operands, or known ones, in other places
    updates: bool = False  # the result is the first operand, but for some of its elements
    linear: bool = False   # in all operands at once
    makes_nan: bool = True   # a result may be NaN though no operand is
    keeps_nan: bool = False  # a NaN in an operand always gives one in each result that has elements

    # Rules that few operations have; None where there is none.
    body: Callable[..., Any] | None = None       # (params, types of the arguments) -> the program that it stands for
    on_words: bool = False                       # `body` is a program on the words that random keys consist of
    linearize: Callable[..., Any] | None = None  # (parent, recorder, primals, tangents, **params), instead of `jvp`
    taylor: Callable[..., Any] | None = None     # (order, series of the arguments, **params) -> series of the results
    dce: Callable[..., Any] | None = None        # (equation, which results are used) -> a smaller equation
    keep: Callable[..., Any] | None = None       # (equation, policy) -> see `transforms.checkpoint`
    into: Callable[..., None] | None = None      # (arrays for the results, threads, *args, **params): `eval` in place
    axis_names: Callable[..., Any] | None = None  # (params) -> names of the mapped axes that it is about

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def bind(self, *args: Any, **params: Any) -> Any:
        """Applies the operation under the current trace: runs it, records it, or transforms it."""
        return current.trace.process(self, args, params)

    def _missing(self, rule: str, advice: str = "") -> NotImplementedError:
        return NotImplementedError(f"{rule} of '{self.name}' is not implemented.{' ' + advice if advice else ''}")

    def infer(self, *avals: ShapedArray, **params: Any) -> Any:
        """Types of the results for the types of the arguments."""
        raise self._missing("Type inference")

    def eval(self, *args: Any, **params: Any) -> Any:
        """Results on NumPy arrays."""
        raise self._missing("Evaluation")

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        """(results, tangents of the results)."""
        raise self._missing("Forward-mode differentiation")

    def transpose(self, ct: Any, *args: Any, **params: Any) -> Sequence[Any]:
        """Cotangents of the linear arguments, None for the others."""
        raise self._missing("Transposition (reverse-mode differentiation)")

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        """(results, their batch dimensions)."""
        raise self._missing("Batching (vmap)")

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any] | None:
        """Parameters of the same operation on the base elements of extended types (random keys), which
        have the dimensions of one element at the end; None where there is no such thing."""
        return None

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        """`eval` where some argument has an extended element type."""
        base = self.physical(avals, params)
        if base is None:
            raise TypeError(f"{self.name} does not accept dtypes {', '.join(str(a.dtype) for a in avals)}.")
        return self.eval(*args, **base)

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        """What an application computes; `programs` is the work of those in its parameters. Moving data is no work."""
        return total_work(programs)

    def is_view(self, operand: ShapedArray, result: ShapedArray) -> bool:
        """Whether the result is the elements of its one operand in the same order."""
        return False

    def inner(self, params: dict[str, Any]) -> Sequence[Inner]:
        """The programs that an application runs, where lowering makes loops and branches around them."""
        return ()

    def effects_of(self, params: dict[str, Any]) -> frozenset[str]:
        """Names of the effects of an application beyond its results: what has one is never dropped, merged or moved."""
        return frozenset()

    def abstract_out(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> list[ShapedArray]:
        """`infer`, always as a list."""
        out = self.infer(*avals, **params)
        return list(out) if self.multiple_results else [out]
