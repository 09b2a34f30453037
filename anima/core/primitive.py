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

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

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
    arguments from number `first` on become its first results. `given` is the place of its first argument among the
    equation's operands, where what it makes of these (of what it carries, if anything) may take over their memory."""

    program: Any
    first: int = 0
    carries: int = 0
    given: int | None = None


class ShardingRule(NamedTuple):
    """Which dimensions of operands and results go together, for cutting them along the axes of a mesh.

    For each operand and result, of each dimension, the factors that it consists of, the major ones first: dimensions
    that share a factor are cut in the same way; one without factors is not cut, or no other with it. Each device needs
    the others' parts of a factor in `whole`; what results lack is summed, or whatever the operation makes of it.
    Factors in `resized` are of dimensions of which a part is taken, from a place that scalars among the operands say:
    types go along with them, propagation only where these are numbers in the program.
    `summed` are those that may be cut in the types of operands, but not in two of them, as the sum could be cut too.
    Along factors in `exchanged`, results go together with operands, but have elements that other devices have.
    What results lack is computed of the parts' results as `combines` says ("add", "max" or "min"), None: of all parts.
    """

    operands: Sequence[Sequence[tuple[Any, ...]]]
    results: Sequence[Sequence[tuple[Any, ...]]]
    whole: frozenset[Any] = frozenset()
    resized: frozenset[Any] = frozenset()
    summed: frozenset[Any] = frozenset()
    exchanged: frozenset[Any] = frozenset()
    combines: str | None = None

    def without(self, factors: frozenset[Any]) -> ShardingRule:
        """The rule that says nothing of some factors."""
        operands, results = ([[tuple([f for f in dim if f not in factors]) for dim in dims] for dims in terms]
                             for terms in (self.operands, self.results))
        return self._replace(operands=operands, results=results)


LARGE = 1 << 18  # elements from which most operations take less time in compiled code


class Primitive:
    """An operation and its rules. Subclasses override the rules; `bind` applies the operation."""

    multiple_results: bool = False
    call_primitive: bool = False  # the parameter `call_jaxpr` is a program that it applies to its operands

    # What passes ask of an operation.
    large: int | None = None  # elements from which outside of `jit`, too, compiled code does it; None: it never does
    cost: float            # nanoseconds of one core for one element, roughly; an addition takes 1
    gathers: bool = False  # takes operands as wholes, however they are cut: results are whole
    moves: bool = False    # computes nothing: results are elements of operands, or known ones, in other places
    exact: bool = False    # see `is_exact`
    updates: bool = False  # the result is the first operand, but for some of its elements
    linear: bool = False   # in all operands at once
    makes_nan: bool = True   # a result may be NaN though no operand is
    keeps_nan: bool = False  # a NaN in an operand always gives one in each result that has elements
    of_users: bool = False   # its rules are not Anima's: `jvp` may apply it, and programs with it, to tangents
    uses_keys: bool = False  # draws from the random keys that are operands: none should be drawn from twice
    takes_refs: bool = False  # mutable references may be operands
    takes_zeros: bool = False  # its transpose may give something for cotangents that are zero
    reads_numbers: bool = False  # `jvp` looks at operands that are single numbers and known

    # Rules that few operations have; None where there is none.
    body: Callable[..., Any] | None = None       # (params, types of the arguments) -> the program that it stands for
    on_call: bool = False  # what `body` gives, in the parameter `program`, is compiled when it is called, if ever
    on_words: bool = False                       # `body` is a program on the words that random keys consist of
    linearize: Callable[..., Any] | None = None  # (parent, recorder, primals, tangents, **params), instead of `jvp`
    in_tangents: Callable[..., Any] | None = None  # (params) -> the program in its place for tangents, if any
    taylor: Callable[..., Any] | None = None     # (order, series of the arguments, **params) -> series of the results
    dce: Callable[..., Any] | None = None        # (equation, which results are used) -> a smaller equation
    keep: Callable[..., Any] | None = None       # (equation, policy) -> see `transforms.checkpoint`
    into: Callable[..., Any] | None = None       # (**params) -> `eval` in place: (arrays for results, threads, *args)
    as_ufunc: Callable[..., Any] | None = None   # (types of operands, params) -> ufunc, or its `reduce`, that `eval` is
    aligned: Callable[..., Any] | None = None  # (the operand's shape, **params) -> the shape that `eval` stretches
    distribute: Callable[..., Any] | None = None  # for programs in parameters: see `transforms.partition`
    axis_names: Callable[..., Any] | None = None  # (params) -> names of the mapped axes that it is about
    typed: bool = True  # `manual` says along which axes of a mesh values vary; otherwise, and of programs, `infer` does
    maps_all: bool = False  # `batch` is asked where no operand is mapped, too
    on_each_device: bool = False  # each device of a mesh does it, whatever they have alike
    maps_freely: bool = False  # `batch` is a rule of users, which may exchange values between lanes
    closes_over: bool = False  # rules in its parameters may hold mapped values: `batch` is told the trace, `within`

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def bind(self, *args: Any, **params: Any) -> Any:
        """Applies the operation under the current trace: runs it, records it, or transforms it."""
        return current.trace.process(self, args, params)

    def bind_with_trace(self, trace: Any, args: Sequence[Any], avals: Any, params: dict[str, Any], /) -> Any:
        """`bind` under another trace; `avals`, the types of the arguments, are known without being told."""
        before = current.trace
        current.trace = trace
        try:
            return self.bind(*args, **params)
        finally:
            current.trace = before

    def get_bind_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """What an equation's parameters are to `bind`, for readers of programs: the same."""
        return dict(params)

    def _missing(self, rule: str, advice: str = "") -> NotImplementedError:
        return NotImplementedError(f"{rule} of '{self.name}' is not implemented.{' ' + advice if advice else ''}")

    def is_exact(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> bool:
        """Whether compiled code gives the very bits of `eval`, for operands and results of these types."""
        return self.moves or self.exact

    def is_large(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> bool:
        """Whether operands of these types are so large that compiled code does better than `eval`."""
        dtype = avals[0].dtype if avals else None
        if self.large is None or not isinstance(dtype, np.dtype):
            return False
        weight = 4 if dtype.kind in "cV" or dtype.char == "e" else 1  # NumPy takes longer for complex and 16-bit floats
        sizes = map(max, itertools.zip_longest(*[a.shape[::-1] for a in avals], fillvalue=1))  # stretched
        return math.prod(sizes) * weight >= self.large

    def refusal(self, params: dict[str, Any]) -> Exception | None:
        """Why an application is never to run, in a compiled program neither; None: it may."""
        return None

    def infer(self, *avals: ShapedArray, **params: Any) -> Any:
        """Types of the results for the types of the arguments."""
        raise self._missing("Type inference")

    def eval(self, *args: Any, **params: Any) -> Any:
        """Results on NumPy arrays."""
        raise self._missing("Evaluation")

    def called_back(self, *args: Any, **params: Any) -> Any:
        """The same, for compiled programs, of what they call back for."""
        return self.eval(*args, **params)

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

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      **params: Any) -> ShardingRule | None:
        """How cut dimensions pass through; None: by the program that it stands for, or not at all."""
        return None

    def on_parts(self, params: dict[str, Any], avals: Sequence[ShapedArray],
                 outs: Sequence[ShapedArray]) -> dict[str, Any]:
        """The parameters of the same operation on parts, of these types, that are cut as `sharding_rule` allows."""
        return params

    def sent(self, size: float, count: int) -> float:
        """How many bytes each of so many devices sends to others, where its operand has so many bytes."""
        return 0.0

    def places(self, params: dict[str, Any]) -> Sequence[Any]:
        """Shardings that an application gives its results, None where it does not say."""
        return ()

    places_all = True  # or only what the results' types tell of `places`

    def takes(self, params: dict[str, Any]) -> Sequence[Any]:
        """Shardings under which an application takes its operands, None where it does not say."""
        return ()

    def apart(self, params: dict[str, Any], mesh: Any) -> frozenset[Any]:
        """The axes of this mesh along which alone `takes` and `places` say how operands and results are cut, where the
        program that it stands for may cut them along others; none where they say all."""
        return frozenset()

    def pins(self, params: dict[str, Any]) -> Sequence[tuple[str, Any]]:
        """Shardings that an application, or one in a program that it holds, gives values, with what does so."""
        return [(self.name, s) for s in self.places(params) if s is not None]

    def watches(self, params: dict[str, Any]) -> Callable[[Any], None] | None:
        """What wants to be told the sharding of the operand, once it is known."""
        return None

    def inner(self, params: dict[str, Any]) -> Sequence[Inner]:
        """The programs that an application runs, where lowering makes loops and branches around them."""
        return ()

    def manual(self, vma: frozenset[Any], names: frozenset[Any],
               params: dict[str, Any]) -> tuple[frozenset[Any], frozenset[Any]]:
        """Along which manual axes of a mesh (out of `names`) every operand is to vary, and the results do, where some
        operand varies along `vma`."""
        return vma, vma

    def transposes_zeros(self, params: dict[str, Any]) -> bool:
        """Whether the transpose of an application may give something for cotangents that are zero."""
        return self.takes_zeros

    def binds(self, params: dict[str, Any]) -> Sequence[tuple[Any, int]]:
        """Names and sizes of the mapped axes that the programs of an application are within, and others are not."""
        return ()

    def effects_of(self, params: dict[str, Any]) -> frozenset[str]:
        """Names of the effects of an application beyond its results: what has one is never dropped, merged or moved."""
        return frozenset()

    def abstract_out(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> list[ShapedArray]:
        """`infer`, always as a list."""
        out = self.infer(*avals, **params)
        return list(out) if self.multiple_results else [out]

    def abstract_eval(self, *avals: ShapedArray, **params: Any) -> tuple[Any, frozenset[Any]]:
        """(types of the results, effects), for the types of the arguments."""
        return self.infer(*avals, **params), self.effects_of(params)
