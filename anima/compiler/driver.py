"""The compiler on one page: every pass from a jaxpr to LLVM text, in order.

    jaxpr   dead_code inline hoist blocks expand simplify   equations on arrays
            postpone known_places conditional accumulate
            together dead_code
    fused   fuse                                            groups of equations, one for each kernel
    loops   lower no_copies_of_parts                        loops over buffers
            interchange tile schedule                       in the order of a target
            registers plan_buffers stamp                    what is where; when, under a profile
            vectorize prefetch parallelize interrupt        lanes and threads
    llvm    emit_program                                    text, of which a backend makes machine code

Passes work on the programs of loops and branches, too. Environment: `ANIMA_CHECK=1` checks the program after each
pass, 2 what its calls do to memory too (`runtime/guards.py`); `ANIMA_SHOW=jaxpr,fused,loops,llvm` prints the levels
named, `ANIMA_TIME=1` prints how long each pass takes; `explain` tells what each one changed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from anima.compiler import cache
from anima.compiler.emitting.emit import Emitted, emit_program
from anima.compiler.fusing.fuse import fuse
from anima.compiler.ir.groups import Fused
from anima.compiler.ir.loops import Again, Call, For, Kernel, Program, statements
from anima.compiler.ir.show_fused import show_fused
from anima.compiler.ir.show_loops import Right, check as check_loops, show as show_loops
from anima.compiler.keys import program_key
from anima.compiler.lowering import lower as lowering
from anima.compiler.machine import native
from anima.compiler.machine.backend import Backend
from anima.compiler.machine.target import Target
from anima.compiler.rewriting.accumulate import accumulate
from anima.compiler.rewriting.blocks import blocks
from anima.compiler.rewriting.conditional import conditional
from anima.compiler.rewriting.expand import expand
from anima.compiler.rewriting.hoist import hoist
from anima.compiler.rewriting.inline import inline
from anima.compiler.rewriting.known import known_places
from anima.compiler.rewriting.postpone import postpone
from anima.compiler.rewriting.simplify import dead_code, simplify
from anima.compiler.rewriting.together import together
from anima.compiler.scheduling.interchange import interchange
from anima.compiler.scheduling.interrupt import interrupt
from anima.compiler.scheduling.parallelize import parallelize
from anima.compiler.scheduling.prefetch import prefetch
from anima.compiler.scheduling.schedule import schedule
from anima.compiler.scheduling.stamp import stamp
from anima.compiler.scheduling.tile import tile
from anima.compiler.scheduling.vectorize import vectorize
from anima.compiler.storage.buffers import plan_buffers
from anima.compiler.storage.parts import no_copies_of_parts
from anima.compiler.storage.proof import check_memory
from anima.compiler.storage.registers import registers
from anima.core.check import check_jaxpr
from anima.core.jaxpr import ClosedJaxpr
from anima.core.show import show_jaxpr
from anima.spans import span
from anima.util import check_level, record, replace


@record
class Pass:
    """A function from program to program, and the level of its result."""

    name: str
    run: Callable[[Any], Any]
    level: str


def to_nests(name: str, donated: Sequence[int], target: Target) -> list[Pass]:
    """The passes for a program of this name, whose inputs at `donated` may be overwritten, down to plain nests."""
    return [
        Pass("dead_code", dead_code, "jaxpr"),           # no unused equations
        Pass("inline", inline, "jaxpr"),                 # no calls
        Pass("hoist", hoist, "jaxpr"),                   # no products in scans that could be done at once
        Pass("blocks", blocks, "jaxpr"),                 # no large arrays between products that could be in parts
        Pass("expand", partial(expand, target=target), "jaxpr"),  # no random keys, no composite operations
        Pass("simplify", simplify, "jaxpr"),             # nothing computed twice
        Pass("postpone", postpone, "jaxpr"),             # no transpositions before what can be done as arrays lie
        Pass("known_places", known_places, "jaxpr"),     # no reads at places that are known and in order
        Pass("conditional", conditional, "jaxpr"),       # no choices between an array and itself but for some places
        Pass("accumulate", accumulate, "jaxpr"),         # no sums of arrays that are zero but in a window
        Pass("together", together, "jaxpr"),             # no costly functions of single values alike
        Pass("dead_code_again", dead_code, "jaxpr"),
        Pass("fuse", partial(fuse, target=target), "fused"),  # equations in groups, one for each kernel
        Pass("lower", partial(lowering.lower, name=name, target=target, donated=tuple(donated)), "loops"),  # no arrays
    ]


def to_loops(name: str, donated: Sequence[int], target: Target) -> list[Pass]:
    """All passes down to loops in the order of a CPU."""
    return [
        *to_nests(name, donated, target),
        Pass("no_copies_of_parts", no_copies_of_parts, "loops"),  # parts of arrays are where they belong
        Pass("interchange", partial(interchange, target=target), "loops"),  # no steps of lanes, one after the other
        Pass("tile", partial(tile, target=target), "loops"),  # no loops that step across memory
        Pass("schedule", partial(schedule, target=target), "loops"),  # an order for all loops
        Pass("registers", partial(registers, target=target), "loops"),  # small arrays in loops are not in memory
        Pass("plan_buffers", plan_buffers, "loops"),     # temps have places
        Pass("stamp", stamp, "loops"),                   # under a profile, times are noted
    ]


def to_text(target: Target) -> list[Pass]:
    """The passes of a loop program whose equal was not compiled yet."""
    return [
        Pass("vectorize", partial(vectorize, target=target), "loops"),  # vector loops have lanes
        Pass("prefetch", partial(prefetch, target=target), "loops"),  # rows that are looked up are fetched early
        Pass("parallelize", parallelize, "loops"),       # parallel loops have a grain
        Pass("interrupt", interrupt, "loops"),           # long loops notice Ctrl-C
        Pass("emit_program", partial(emit_program, target=target), "llvm"),  # no loops: blocks
    ]


@dataclass(frozen=True)
class Stages:
    """A program at every level down to loops. `kernel_count` is how many kernels and routines it consists of."""

    jaxpr: ClosedJaxpr
    fused: Fused
    loops: Program

    @property
    def kernel_count(self) -> int:
        return sum(isinstance(s, (Kernel, Again, Call)) for s in statements(*self.loops.body))


def compile(closed: ClosedJaxpr, name: str, donated: Sequence[int], backend: Backend) -> tuple[Program, cache.Code]:
    """The loops of a program, with its constants and callbacks, and its code on a machine.

    NotImplementedError for what there are no instructions for, naming it.
    """
    run = PassRun(name)
    program = run.through(to_loops(name, donated, backend.target), closed)
    return program, _code(program, backend, run)


def assemble(program: Program, backend: Backend) -> cache.Code:
    """`compile`, from loops on."""
    return _code(program, backend, PassRun(program.name))


def lower(closed: ClosedJaxpr, name: str = "program", donated: Sequence[int] = (),
          target: Target | None = None) -> Stages:
    """The program at every level, down to loops; `donated` are positions of inputs that may be overwritten."""
    run = PassRun(name)
    run.through(to_loops(name, donated, target or native.host()), closed)
    return Stages(run.levels["jaxpr"], run.levels["fused"], run.levels["loops"])


def texts(closed: ClosedJaxpr, target: Target, name: str = "program") -> Emitted:
    """The LLVM texts of a program for any target, which need not be a machine like this one."""
    return PassRun(name).through([*to_loops(name, (), target), *to_text(target)], closed)


def explain(closed: ClosedJaxpr, name: str, donated: Sequence[int], backend: Backend) -> str:
    """What each pass makes of a program, and how long it takes, as a table."""
    run, target = PassRun(name, measuring=True), backend.target
    emitted = run.through([*to_loops(name, donated, target), *to_text(target)], closed)
    start = time.perf_counter()
    size = sum(len(m.object_bytes()) for m in backend.load(emitted.texts, emitted.shared))
    run.steps.append(("machine code", time.perf_counter() - start, f"{size} bytes"))
    return "\n".join(f"{step:16} {1e3 * seconds:8.2f} ms   {size}" for step, seconds, size in run.steps)


def _code(program: Program, backend: Backend, run: PassRun) -> cache.Code:
    key = program.name, program_key(program), backend.target
    code = cache.find(key)
    if code is None:
        *passes, emission = to_text(backend.target)
        last = run.through(passes, program)
        # Programs that differ in constants and callbacks alone share the code, which keeps none of these alive.
        bare = replace(last, buffers=tuple(replace(b, value=None) if b.role == "const" else b for b in last.buffers),
                       callbacks=())
        equal = cache.of_another_name(key)
        if equal is not None:
            code = replace(equal, program=bare)
        else:
            emitted = run.through([emission], last)
            with span("machine code", "pass", program=run.name):
                modules = backend.load(emitted.texts, emitted.shared)
            code = cache.Code(bare, emitted.texts, modules, emitted.callees, emitted.parallel)
        code = cache.keep(key, code)
    return code


class PassRun:
    """One way of a program through passes. `levels` has its last form at each level, `steps` what passes did."""

    def __init__(self, name: str, measuring: bool = False):
        self.name = name
        self.measuring = measuring
        self.checking = check_level() > 0
        self.timing = os.environ.get("ANIMA_TIME", "0") not in ("", "0")
        self.showing = set(os.environ.get("ANIMA_SHOW", "").split(",")) - {""}
        self.levels: dict[str, Any] = {}
        self.steps: list[tuple[str, float, str]] = []
        self.checked: Any = None
        self.right: Right = {}

    def through(self, passes: Sequence[Pass], program: Any) -> Any:
        """The program after these passes."""
        self.levels.setdefault("jaxpr", program)
        for step in passes:
            start = time.perf_counter()
            with span(step.name, "pass", program=self.name):
                result = step.run(program)
            seconds = time.perf_counter() - start
            if self.timing:
                print(f"{self.name}: {step.name:16} {1e3 * seconds:8.2f} ms", file=sys.stderr)
            if self.measuring:
                size = _SIZE[step.level](result)
                self.steps.append((step.name, seconds, "(unchanged)" if result is program else size))
            if step.level in self.showing:
                _print(step, result, result is program)
            if self.checking and result is not self.checked:
                _check(step, result, self.right)
                self.checked = result
            program = self.levels[step.level] = result
        return program


def _print(step: Pass, program: Any, unchanged: bool) -> None:
    print(f"--- {step.name}{' (unchanged)' if unchanged else ''}", file=sys.stderr)
    if not unchanged:
        print(_SHOW[step.level](program), file=sys.stderr)


_SHOW: dict[str, Callable[[Any], str]] = {
    "jaxpr": show_jaxpr, "fused": show_fused, "loops": show_loops, "llvm": lambda emitted: "\n".join(emitted.texts)}


def _check(step: Pass, program: Any, right: Right) -> None:
    """Raises if the program breaks a rule of its level, naming the pass to blame."""
    try:
        if step.level == "jaxpr":
            check_jaxpr(program.jaxpr)
        elif step.level == "loops":
            check_loops(program, right)
            if step.name == "plan_buffers":
                check_memory(program)
    except Exception as error:
        error.add_note(f"after the compiler pass '{step.name}'")
        raise


# ---------------------------------------------------------------- what `explain` says


def _equations(closed: ClosedJaxpr) -> int:
    return sum(1 + sum(_equations(i.program) for i in e.primitive.inner(e.params)) for e in closed.eqns)


def _groups(fused: Fused) -> int:
    return len(fused.groups) + sum(map(_groups, (f for inner in fused.inner.values() for f in inner)))


def _loops(program: Program) -> str:
    kinds = [s.kind for s in statements(*program.body) if isinstance(s, For)]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("serial", "vector", "parallel") if kind in kinds)
    kernels = sum(isinstance(s, (Kernel, Again)) for s in statements(*program.body))
    return f"{kernels} kernels, {len(program.buffers)} buffers, loops: {counts or 'none'}"


_SIZE: dict[str, Callable[[Any], str]] = {
    "jaxpr": lambda closed: f"{_equations(closed)} equations", "fused": lambda fused: f"{_groups(fused)} groups",
    "loops": _loops, "llvm": lambda emitted: f"{sum(map(len, emitted.texts))} characters"}
