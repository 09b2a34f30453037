"""The stages of compilation, for those who want to look: traced, lowered, compiled.

    >>> lowered = anima.jit(lambda x: jnp.sin(x) * 2).lower(jnp.ones(3))
    >>> lowered.jaxpr
    { lambda ; a:f32[3]. let b:f32[3] = sin a; c:f32[3] = mul b 2.0 in (c,) }

and likewise `.fused`, `.loops`, `.llvm`, `.asm`, and `.compile().as_text()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from anima import errors, tree
from anima.api import spread
from anima.api.partitioned import Partitioned, partitioned
from anima.api.pjit import driver, executable_of, pjit_p, run_on_refs
from anima.api.placed_calls import check_same, in_places, warn_of_unusable
from anima.config import config, profiling
from anima.core import dtypes, processes, transfers
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray, ShardedArray, sharded
from anima.core.device import devices
from anima.core.dims import Dim, SymbolicDim
from anima.core.explicit import erased
from anima.core.jaxpr import ClosedJaxpr, work_of
from anima.core.layout import Format, row_major
from anima.core.mesh import current_mesh, get_abstract_mesh
from anima.core.partition import PartitionSpec
from anima.core.placement import mesh_of
from anima.core.refs import AbstractRef, Ref, check_given_once
from anima.core.shardings import WHOLE, NamedSharding, Sharding
from anima.core.trace import Tracer, aval_of, numpy_value
from anima.ops.placing import on_current_mesh
from anima.runtime import cpu
from anima.transforms.discharge import discharged
from anima.util import lazy_module, record

notebook = lazy_module("anima.core.notebook")
reporting = lazy_module("anima.api.report")


def _described(given: Any, shape: tuple[Any, ...]) -> Sharding:
    """The sharding of a described array; TypeError for a spec without a mesh, ValueError for what cannot be one."""
    sharding = given.sharding if isinstance(given, Format) else given
    if isinstance(sharding, PartitionSpec):
        if current_mesh().empty and get_abstract_mesh().empty:
            raise TypeError("When specifying PartitionSpec to `ShapeDtypeStruct`, the context mesh cannot be empty. "
                            "Fix: anima.set_mesh(mesh), or a NamedSharding.")
        sharding = on_current_mesh("ShapeDtypeStruct", sharding, "sharding")
    if not isinstance(sharding, Sharding):
        raise ValueError("ShapeDtypeStruct: sharding should be an instance of Sharding, PartitionSpec or Format, got "
                         f"{given!r} of type {type(given)}.")
    sharding.check_compatible_aval(shape)
    return sharding


class ShapeDtypeStruct:
    """The shape and dtype of an array, without the array. Where it stands for one, 64-bit dtypes are as
    `enable_x64` has them. Sizes may be those of `export.symbolic_shape`."""

    __slots__ = ("aval", "is_ref", "sharding")

    def __init__(self, shape: Sequence[int], dtype: Any, *, sharding: Any = None, weak_type: bool = False,
                 is_ref: bool = False, **_: Any):
        if dtype is None:
            raise ValueError("ShapeDtypeStruct: dtype must be specified.")
        self.aval: Any = ShapedArray(tuple(d if isinstance(d, (Dim, SymbolicDim)) else int(d) for d in shape),
                                     dtypes.np_dtype(dtype), weak_type)
        self.is_ref = is_ref
        if is_ref:
            self.aval = AbstractRef(self.aval)
        self.sharding = None if sharding is None else _described(sharding, self.aval.shape)

    def __getstate__(self) -> dict[str, Any]:
        return {"shape": self.shape, "dtype": self.dtype, "_sharding": self.sharding, "weak_type": self.weak_type,
                "is_ref": self.is_ref}

    def __setstate__(self, state: Any) -> None:
        """From what this, or JAX, has pickled."""
        given = dict(state[1] if isinstance(state, tuple) else state)
        self.__init__(sharding=given.pop("_sharding"), **given)  # type: ignore[misc]

    shape = property(lambda self: self.aval.shape)
    dtype = property(lambda self: self.aval.dtype)
    ndim = property(lambda self: self.aval.ndim)
    size = property(lambda self: self.aval.size)
    weak_type = property(lambda self: self.aval.weak_type)

    manual_axis_type = None  # nothing is mapped over devices

    @property
    def format(self) -> Format:
        """The order of the axes in memory, which is not said, and the sharding."""
        return Format(None, self.sharding)

    @staticmethod
    def like(x: Any) -> ShapeDtypeStruct:
        """The shape, dtype and weak type of an array."""
        aval = aval_of(x)
        return ShapeDtypeStruct(aval.shape, aval.dtype, sharding=getattr(x, "sharding", None), weak_type=aval.weak_type)

    def update(self, **kwargs: Any) -> ShapeDtypeStruct:
        """A copy with some of the fields changed."""
        fields = {"shape": self.shape, "dtype": self.dtype, "sharding": self.sharding, "weak_type": self.weak_type,
                  "is_ref": self.is_ref}
        if wrong := sorted(set(kwargs) - {*fields, "manual_axis_type"}):
            raise TypeError(f"ShapeDtypeStruct.update: unknown fields {', '.join(wrong)}")
        return ShapeDtypeStruct(**{**fields, **kwargs})

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeDtypeStruct) and self.aval == other.aval and self.sharding == other.sharding

    def __hash__(self) -> int:
        return hash((self.aval, self.sharding))

    def __repr__(self) -> str:
        weak = f", sharding={self.sharding}" if self.sharding is not None else ""
        weak += (", weak_type=True" if self.weak_type else "") + (", is_ref=True" if self.is_ref else "")
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={dtypes.name(self.dtype)}{weak})"


def type_of(x: Any) -> ShapedArray:
    """The aval of an array-like or of anything with a shape and a dtype."""
    if hasattr(x, "aval"):
        for n in x.aval.shape:
            if type(n) is SymbolicDim:
                raise NotImplementedError(
                    f"The size {n} of {x} is not known: there are programs for such in export.export and eval_shape "
                    "alone. Export the function, and call what is exported with arrays of any of these sizes.")
        aval = x.aval.update(dtype=dtypes.canonicalize_dtype(x.aval.dtype))
        return sharded(aval, x.sharding) if isinstance(x, ShapeDtypeStruct) and not x.is_ref else aval
    if hasattr(x, "shape") and hasattr(x, "dtype") and not hasattr(x, "__array__"):
        return sharded(ShapedArray(tuple(x.shape), dtypes.canonicalize_dtype(x.dtype, True)),
                       getattr(x, "sharding", None))
    return aval_of(x)


def struct_of(aval: ShapedArray, asked: Any = None) -> ShapeDtypeStruct:
    sharding = aval.sharding if asked is None and type(aval) is ShardedArray else asked
    return ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)


@record
class ArgInfo:
    """An argument of a program: its type, and whether it is donated."""

    _aval: ShapedArray
    donated: bool

    shape = property(lambda self: self._aval.shape)
    dtype = property(lambda self: self._aval.dtype)


@dataclass(frozen=True)
class TracedFunction:
    """A function traced for one signature."""

    jaxpr: ClosedJaxpr
    in_tree: Any
    out_tree: Any
    fun_name: str
    donate_argnums: tuple[int, ...] = ()  # of the leaves
    places: Any = None                    # `Places`: where results are, on several devices
    shardings: tuple[Any, ...] = ()       # of the leaves, where they are known
    outer: tuple[Any, ...] = ()           # what it closes over that can change: the first operands

    @property
    def input_shardings(self) -> list[Any]:
        """How each leaf of the arguments lies; None where that is not said."""
        return self.places.arguments(self.shardings) if self.places else [None] * self.in_tree.num_leaves

    @property
    def output_shardings(self) -> tuple[Sequence[Any], bool]:
        """How each leaf of the result lies (None: as arrays do by default), and whether it has to stay there."""
        if self.places is None:
            return [None] * len(self.jaxpr.out_avals), False
        return self.places.results_of(self.leaf_avals, self.shardings)

    @property
    def leaf_avals(self) -> Sequence[ShapedArray]:
        return self.jaxpr.in_avals[len(self.outer):]

    @property
    def in_avals(self) -> Any:
        return tree.unflatten(self.in_tree, self.leaf_avals)

    @property
    def args_info(self) -> Any:
        """The type of each argument and whether it is donated (`ArgInfo`), in the structure of (args, kwargs)."""
        return tree.unflatten(self.in_tree, [ArgInfo(a, k in self.donate_argnums)
                                             for k, a in enumerate(self.leaf_avals)])

    @property
    def out_info(self) -> Any:
        """The types of the results, with the shardings that were asked for."""
        asked = (self.places and self.places.outs) or [None] * len(self.jaxpr.out_avals)
        return tree.unflatten(self.out_tree, map(struct_of, self.jaxpr.out_avals, asked))

    @property
    def out_avals(self) -> Any:
        return tree.unflatten(self.out_tree, self.jaxpr.out_avals)

    def _repr_html_(self) -> str:
        return notebook.folded(f"{self.fun_name}, traced", notebook.program_html(self.jaxpr), opened=True)

    @property
    def lojax(self) -> TracedFunction:
        """The program on arrays: there are no other types."""
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Applies the program; TypeError for arguments of another structure or types than it was traced for."""
        leaves, in_tree = tree.flatten((args, kwargs))
        if in_tree != self.in_tree:
            raise TypeError(f"Function traced with input pytree {self.in_tree} was called with {in_tree}.")
        for k, (got, expected) in enumerate(zip(map(aval_of, leaves), self.leaf_avals, strict=True)):
            if (got.shape, got.dtype) != (expected.shape, expected.dtype):
                raise TypeError(f"Argument {k} of a function traced for {expected.str_short()} is {got.str_short()}.")
        return tree.unflatten(self.out_tree, pjit_p.bind(*self.outer, *leaves, jaxpr=self.jaxpr, name=self.fun_name,
                                                         inline=False))

    def lower(self, *, lowering_platforms: Sequence[str] | None = None, **_: Any) -> Lowered:
        """The program on its way to machine code; NotImplementedError for a platform other than "cpu"."""
        if lowering_platforms is not None and tuple(lowering_platforms) != ("cpu",):
            raise NotImplementedError(f"Programs are lowered for the CPU alone, not for {tuple(lowering_platforms)}.")
        warn_of_unusable(self.jaxpr, self.donate_argnums)
        return Lowered(self)


class _OfTraced:
    """What later stages know of the function that they come from."""

    __slots__ = ()
    in_tree = property(lambda self: self.traced.in_tree)
    out_tree = property(lambda self: self.traced.out_tree)
    in_avals = property(lambda self: self.traced.in_avals)
    args_info = property(lambda self: self.traced.args_info)
    out_info = property(lambda self: self.traced.out_info)
    donate_argnums = property(lambda self: self.traced.donate_argnums)


@dataclass(frozen=True)
class Lowered(_OfTraced):
    """A program on its way to machine code, every form of it."""

    traced: TracedFunction

    @cached_property
    def stages(self) -> Any:
        """The program at every level (`compiler.driver.Stages`)."""
        closed, changed = discharged(erased(self.traced.jaxpr))
        return driver.lower(closed, self.traced.fun_name, (*self.donate_argnums, *changed))

    @property
    def jaxpr(self) -> ClosedJaxpr:
        return self.traced.jaxpr

    @cached_property
    def in_process(self) -> spread.SpreadProgram | None:
        """What runs the program in this process, where it is on devices of several."""
        traced = self.traced
        if traced.places is None or processes.here.count == 1:
            return None
        return spread.program(traced.fun_name, traced.jaxpr, traced.places, traced.jaxpr.in_avals, traced.shardings,
                              traced.donate_argnums)

    @cached_property
    def partitioned(self) -> Partitioned:
        """The program of one device, where arguments lie on a mesh: with explicit collectives, what each of them moves,
        and the line that it is for.

        Raises:
          ValueError: where nothing tells of a mesh.
          NotImplementedError: for a program that changes mutable references from outside of it.
        """
        traced = self.traced
        closed, changed = discharged(traced.jaxpr)
        if changed:
            raise NotImplementedError(f"{traced.fun_name} changes mutable references from outside of it: there is no "
                                      "program of one device. Fix: pass what they hold, and return it.")
        pins = [s for _, s in traced.places.pins] if traced.places else []
        return partitioned(closed, traced.input_shardings, traced.output_shardings[0], pins, self.in_tree,
                           self.out_tree)

    @property
    def fused(self) -> str:
        """The jaxpr after simplification and the grouping of its equations into kernels, as text."""
        return driver.show_fused(self.stages.fused)

    @property
    def loops(self) -> str:
        """The loop program, as text."""
        return driver.show_loops(self.stages.loops)

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

    def explain(self) -> str:
        """What each pass of the compiler makes of the program, and how long it takes, as a table."""
        closed, changed = discharged(erased(self.traced.jaxpr))
        return driver.explain(closed, self.traced.fun_name, (*self.donate_argnums, *changed), cpu.here())

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """The program as text: `dialect` is "jaxpr", "fused", "loops" (default), "llvm" or "asm".

        Raises:
          NotImplementedError: for "stablehlo" and "hlo", which programs never are here: what is looked for in such
            text is in "jaxpr", by the names of operations that JAX has.
        """
        forms = ("jaxpr", "fused", "loops", "llvm", "asm")
        _refuse_hlo("as_text", dialect)
        if dialect not in (None, *forms):
            raise ValueError(f"Unknown dialect {dialect!r}; expected one of {', '.join(forms)}.")
        return str(getattr(self, dialect or "loops"))

    def _repr_html_(self) -> str:
        forms = [("jaxpr", notebook.program_html(self.jaxpr)), *(
            (form, notebook.verbatim(self.as_text(form))) for form in ("fused", "loops"))]
        body = "".join(notebook.folded(form, html) for form, html in forms)
        return notebook.folded(f"{self.traced.fun_name}, lowered to {self.kernel_count} kernels", body, opened=True)

    def cost_analysis(self) -> dict[str, float]:
        """Estimates for one call, as those of `Compiled.cost_analysis`."""
        return self.compile().cost_analysis()

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """The program as an object: of loops, or, for the `dialect` "jaxpr", a `ClosedJaxpr`.

        Raises:
          NotImplementedError: for "stablehlo" and "hlo", which are not on the way to machine code here.
        """
        _refuse_hlo("compiler_ir", dialect)
        forms = {None: lambda: self.stages.loops, "loops": lambda: self.stages.loops, "jaxpr": lambda: self.jaxpr}
        if dialect not in forms:
            raise ValueError(f"Unknown dialect {dialect!r}; expected one of jaxpr, loops.")
        return forms[dialect]()

    def compile(self, compiler_options: Any = None, *, device_assignment: Any = None) -> Compiled:
        """Machine code, for the one device; ValueError for others in `device_assignment`."""
        if device_assignment is not None and [d for d in device_assignment if d not in devices()]:
            raise ValueError(f"Programs run on {devices()} alone, not on {device_assignment}.")
        return Compiled(self, executable_of(self.traced.jaxpr, self.traced.fun_name, self.donate_argnums))


def _refuse_hlo(method: str, dialect: str | None) -> None:
    if dialect in ("stablehlo", "hlo", "mhlo"):
        raise NotImplementedError(f"{method}: programs are compiled without {dialect}; ask for \"jaxpr\", which "
                                  "has the operations by JAX's names, or \"loops\", what is compiled.")


@record
class MemoryAnalysis:
    """Bytes that one call needs."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    temp_size_in_bytes: int
    alias_size_in_bytes: int
    generated_code_size_in_bytes: int

    @property
    def peak_memory_in_bytes(self) -> int:
        """Bytes of arrays that are there at once: arguments, results that take no argument's place, scratch memory."""
        return (self.argument_size_in_bytes + self.output_size_in_bytes - self.alias_size_in_bytes
                + self.temp_size_in_bytes)


@record
class Compiled(_OfTraced):
    """A program as machine code, callable with arguments of its own signature only."""

    lowered: Lowered
    executable: Any

    traced = property(lambda self: self.lowered.traced)

    @property
    def input_shardings(self) -> Any:
        """How each argument lies on devices, in the structure of (args, kwargs)."""
        known = self.traced.input_shardings
        mesh = mesh_of([*known, *self.traced.output_shardings[0]])
        rest = WHOLE if mesh is None else NamedSharding(mesh, PartitionSpec())
        return tree.unflatten(self.in_tree, [s or rest for s in known])

    @property
    def output_shardings(self) -> Any:
        """How each result lies on devices, in the structure of the results."""
        return tree.unflatten(self.out_tree, [s or WHOLE for s in self.traced.output_shardings[0]])

    @property
    def out_info(self) -> Any:  # type: ignore[override]
        """The shape and dtype of each result, and its sharding where something says so, in the results' structure."""
        return tree.unflatten(self.out_tree, map(struct_of, self.traced.jaxpr.out_avals,
                                                 self.traced.output_shardings[0]))

    def as_text(self) -> str:
        """The optimised loop program that the machine code was made from."""
        return self.executable.loops

    def cost_analysis(self) -> dict[str, float]:
        """Estimates for one call: "flops", "transcendentals" (values of `exp` and such), "bytes accessed" (what
        kernels load and store), "optimal_seconds" on one core, "operations" in the text of the program.

        A branch counts as the most expensive one; a loop of unknown length as one step.
        """
        work = work_of(self.lowered.stages.jaxpr)
        return {"flops": work.flops, "transcendentals": work.transcendentals, **self.executable.cost_analysis()}

    def memory_analysis(self) -> MemoryAnalysis:
        """Bytes of arguments, results, temporaries and code."""
        return MemoryAnalysis(**self.executable.memory_analysis())

    def _repr_html_(self) -> str:
        measures = {**self.cost_analysis(), **self.executable.memory_analysis()}
        costs = notebook.table(("one call", ""), [(name, f"{value:,.6g}") for name, value in measures.items()])
        body = notebook.folded("costs", costs) + notebook.folded("code", notebook.verbatim(self.as_text()))
        return notebook.folded(f"{self.traced.fun_name}, compiled", body + self.lowered._repr_html_(), opened=True)

    def report(self, *args: Any, **kwargs: Any) -> Any:
        """What each kernel does: the line that asked for it, bytes that it moves, operations, the time estimated for
        one core; and which values go through memory between kernels, and why. A table, as text and in notebooks.

        With the arguments of a call, the program is compiled once more, in a form that notes times, and called six
        times: the shortest time of each kernel stands beside the share of the machine's limit that it reaches. No
        argument is donated then; kernels of less than some microseconds are not timed.
        """
        fused, executable = self.lowered.stages.fused, self.executable
        if not args and not kwargs:
            return reporting.report(getattr(executable, "compiled", executable).code.program, fused)
        closed = self.traced.jaxpr
        traced = replace(self.traced, jaxpr=ClosedJaxpr(closed.jaxpr, closed.consts), donate_argnums=())
        with profiling(True):
            made = Compiled(Lowered(traced), executable_of(traced.jaxpr, traced.fun_name))
        events = reporting.noted(lambda: made(*args, **kwargs))
        return reporting.report(made.executable.code.program, fused, events)

    def runtime_executable(self) -> Any:
        return self.executable

    @property
    def input_formats(self) -> Any:
        """How each argument lies in memory (row-major) and on devices, in the structure of (args, kwargs)."""
        return tree.unflatten(self.in_tree, map(row_major, self.traced.leaf_avals,
                                                tree.leaves(self.input_shardings)))

    @property
    def output_formats(self) -> Any:
        """How each result lies in memory (row-major) and on devices, in the structure of the results."""
        return tree.unflatten(self.out_tree, map(row_major, self.traced.jaxpr.out_avals,
                                                 tree.leaves(self.output_shardings)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        jaxpr = self.traced.jaxpr
        return call_compiled(self, self.traced.leaf_avals, jaxpr.out_avals, args, kwargs, self.traced)

    call = __call__


def call_compiled(compiled: Any, in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray], args: Any,
                  kwargs: Any, traced: TracedFunction | None = None) -> Any:
    """The result of what has an `executable`, for arguments that must be of its types and in its structure, and lie as
    those that it was `traced` for."""
    if config.no_execution:
        raise RuntimeError(errors.no_execution_message("a compiled program"))
    leaves, in_tree = tree.flatten((args, kwargs))
    if in_tree != compiled.in_tree:
        raise TypeError(f"Function compiled with input pytree does not match the input pytree it was called with. "
                        f"Expected {compiled.in_tree}, got {in_tree}.")
    if any(isinstance(x, Tracer) for x in leaves):
        raise TypeError("Cannot apply Anima transformations to a function lowered and compiled for a particular "
                        "signature. Detected an argument that is being traced. Transform the function itself, "
                        "before `lower`.")
    avals = list(map(aval_of, leaves))
    for k, (got, expected) in enumerate(zip(avals, in_avals, strict=True)):
        if (type(got), got.shape, got.dtype) != (type(expected), expected.shape, expected.dtype):
            raise TypeError(f"Argument types differ from the types for which this computation was compiled: "
                            f"argument {k} was compiled with {expected.str_short()} and called with "
                            f"{got.str_short()}.")
    outer = () if traced is None else traced.outer
    if outer or any(isinstance(x, Ref) for x in leaves):
        name = compiled.traced.fun_name
        check_given_once(leaves, lambda k: f"argument {k}", f"when calling {name}")
        return tree.unflatten(compiled.out_tree, run_on_refs(*discharged(compiled.traced.jaxpr), name,
                                                              [*outer, *leaves]))
    transfers.operands(leaves)
    check_same(leaves, [None] * len(leaves) if traced is None else traced.input_shardings)
    program = None if traced is None else compiled.lowered.in_process
    if program is not None:
        return tree.unflatten(compiled.out_tree, program(leaves))
    values: list[np.ndarray] = [numpy_value(x, a) for x, a in zip(leaves, avals, strict=True)]
    for k in compiled.executable.donors:  # others may see them
        values[k] = values[k].copy()
    outs = compiled.executable(values)
    shardings, stays = ([None] * len(outs), False) if traced is None else traced.output_shardings
    for k in compiled.donate_argnums if traced is None else traced.places.taken(
            tuple(compiled.donate_argnums), in_avals, traced.input_shardings, shardings):
        if isinstance(leaves[k], ConcreteArray):
            leaves[k].delete(compiled.executable.program.name)
    return tree.unflatten(compiled.out_tree, in_places(outs, out_avals, shardings, stays))
