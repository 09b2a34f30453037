"""The stages of compilation, for those who want to look: traced, lowered, compiled.

    >>> lowered = anima.jit(lambda x: jnp.sin(x) * 2).lower(jnp.ones(3))
    >>> lowered.jaxpr
    { lambda ; a:f32[3]. let b:f32[3] = sin a; c:f32[3] = mul b 2.0 in (c,) }

and likewise `.fused`, `.loops`, `.llvm`, `.asm`, and `.compile().as_text()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from anima import tree
from anima.api.pjit import executable_of, pipeline
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr
from anima.core.trace import Tracer, aval_of, numpy_value
from anima.util import record


class ShapeDtypeStruct:
    """The shape and dtype of an array, without the array."""

    __slots__ = ("aval", "sharding")

    def __init__(self, shape: Sequence[int], dtype: Any, *, sharding: Any = None, weak_type: bool = False, **_: Any):
        if dtype is None:
            raise ValueError("ShapeDtypeStruct: dtype must be specified.")
        self.aval = ShapedArray(tuple(int(d) for d in shape), dtypes.canonicalize_dtype(dtype, True), weak_type)
        self.sharding = sharding

    shape = property(lambda self: self.aval.shape)
    dtype = property(lambda self: self.aval.dtype)
    ndim = property(lambda self: self.aval.ndim)
    size = property(lambda self: self.aval.size)
    weak_type = property(lambda self: self.aval.weak_type)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeDtypeStruct) and self.aval == other.aval

    def __hash__(self) -> int:
        return hash(self.aval)

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={dtypes.name(self.dtype)}{weak})"


def type_of(x: Any) -> ShapedArray:
    """The aval of an array-like or of anything with a shape and a dtype."""
    if hasattr(x, "aval"):
        return x.aval
    if hasattr(x, "shape") and hasattr(x, "dtype") and not hasattr(x, "__array__"):
        return ShapedArray(tuple(x.shape), dtypes.canonicalize_dtype(x.dtype, True))
    return aval_of(x)


def struct_of(aval: ShapedArray) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


@dataclass(frozen=True)
class TracedFunction:
    """A function traced for one signature."""

    jaxpr: ClosedJaxpr
    in_tree: Any
    out_tree: Any
    fun_name: str

    @property
    def in_avals(self) -> Any:
        return tree.unflatten(self.in_tree, self.jaxpr.in_avals)

    @property
    def args_info(self) -> Any:
        return tree.unflatten(self.in_tree, map(struct_of, self.jaxpr.in_avals))

    @property
    def out_info(self) -> Any:
        return tree.unflatten(self.out_tree, map(struct_of, self.jaxpr.out_avals))

    @property
    def out_avals(self) -> Any:
        return tree.unflatten(self.out_tree, self.jaxpr.out_avals)

    def lower(self, **_: Any) -> Lowered:
        return Lowered(self)


@dataclass(frozen=True)
class Lowered:
    """A program on its way to machine code, every form of it."""

    traced: TracedFunction

    @cached_property
    def stages(self) -> Any:
        """The program at every level (`compiler.pipeline.Stages`)."""
        return pipeline.lower(self.traced.jaxpr, self.traced.fun_name)

    @property
    def jaxpr(self) -> ClosedJaxpr:
        return self.traced.jaxpr

    @property
    def fused(self) -> str:
        """The jaxpr after simplification and the grouping of its equations into kernels, as text."""
        return pipeline.show_fused(self.stages.fused)

    @property
    def loops(self) -> str:
        """The loop program, as text."""
        return pipeline.show_loops(self.stages.loops)

    @property
    def kernel_count(self) -> int:
        """How many kernels run at each call."""
        return self.stages.kernel_count

    @property
    def llvm(self) -> str:
        """The LLVM text that is compiled."""
        return self.compile().executable.llvm

    @property
    def asm(self) -> str:
        """The machine code, as assembly text."""
        return self.compile().executable.asm

    @property
    def in_tree(self) -> Any:
        return self.traced.in_tree

    @property
    def out_tree(self) -> Any:
        return self.traced.out_tree

    @property
    def in_avals(self) -> Any:
        return self.traced.in_avals

    @property
    def args_info(self) -> Any:
        return self.traced.args_info

    @property
    def out_info(self) -> Any:
        return self.traced.out_info

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """The program as text: `dialect` is "jaxpr", "fused", "loops" (default), "llvm" or "asm"."""
        forms = ("jaxpr", "fused", "loops", "llvm", "asm")
        if dialect not in (None, *forms):
            raise ValueError(f"Unknown dialect {dialect!r}; expected one of {', '.join(forms)}.")
        return str(getattr(self, dialect or "loops"))

    def cost_analysis(self) -> dict[str, float]:
        """Estimates for one call: "optimal_seconds" on one core, scalar "operations", "bytes accessed"."""
        return self.compile().cost_analysis()

    def compile(self, compiler_options: Any = None) -> Compiled:
        """Machine code."""
        return Compiled(self, executable_of(self.traced.jaxpr, self.traced.fun_name))


@record
class MemoryAnalysis:
    """Bytes that one call needs."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    temp_size_in_bytes: int
    alias_size_in_bytes: int
    generated_code_size_in_bytes: int


@record
class Compiled:
    """A program as machine code, callable with arguments of its own signature only."""

    lowered: Lowered
    executable: Any

    @property
    def in_tree(self) -> Any:
        return self.lowered.in_tree

    @property
    def out_tree(self) -> Any:
        return self.lowered.out_tree

    @property
    def in_avals(self) -> Any:
        return self.lowered.in_avals

    @property
    def args_info(self) -> Any:
        return self.lowered.args_info

    @property
    def out_info(self) -> Any:
        return self.lowered.out_info

    def as_text(self) -> str:
        """The optimised loop program that the machine code was made from."""
        return self.executable.loops

    def cost_analysis(self) -> dict[str, float]:
        """Estimates for one call: "optimal_seconds" on one core, scalar "operations", "bytes accessed"."""
        return self.executable.cost_analysis()

    def memory_analysis(self) -> MemoryAnalysis:
        """Bytes of arguments, results, temporaries and code."""
        return MemoryAnalysis(**self.executable.memory_analysis())

    def runtime_executable(self) -> Any:
        return self.executable

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten((args, kwargs))
        if in_tree != self.in_tree:
            raise TypeError(f"Function compiled with input pytree does not match the input pytree it was called with. "
                            f"Expected {self.in_tree}, got {in_tree}.")
        jaxpr = self.lowered.traced.jaxpr
        if any(isinstance(x, Tracer) for x in leaves):
            raise TypeError("Cannot apply Anima transformations to a function lowered and compiled for a particular "
                            "signature. Detected an argument that is being traced. Transform the function itself, "
                            "before `lower`.")
        avals = list(map(aval_of, leaves))
        for k, (got, expected) in enumerate(zip(avals, jaxpr.in_avals, strict=True)):
            if (got.shape, got.dtype) != (expected.shape, expected.dtype):
                raise TypeError(f"Argument types differ from the types for which this computation was compiled: "
                                f"argument {k} was compiled with {expected.str_short()} and called with "
                                f"{got.str_short()}.")
        values: list[np.ndarray] = [numpy_value(x, a) for x, a in zip(leaves, avals, strict=True)]
        outs = self.executable(values)
        return tree.unflatten(self.out_tree, [ConcreteArray(v, a) for v, a in zip(outs, jaxpr.out_avals, strict=True)])

    call = __call__
