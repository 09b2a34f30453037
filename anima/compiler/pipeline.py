"""The compiler's passes, in order, on one page.

    jaxpr   dead_code inline hoist expand simplify dead_code equations on arrays
    fused   fuse                                            groups of equations, one for each kernel
    loops   lower registers plan_buffers                    loops over buffers
            vectorize parallelize emit                      for one machine, when it is compiled (`cache.py`)

Environment: `ANIMA_CHECK=1` checks the program after each pass, 2 what its calls do to memory too
(`runtime/guards.py`); `ANIMA_SHOW=jaxpr,fused,loops` prints the levels named, `ANIMA_TIME=1` prints how long
each pass takes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from anima.compiler.fusing.fuse import fuse
from anima.compiler.ir.groups import Fused
from anima.compiler.ir.loops import Again, Call, Kernel, Program, statements
from anima.compiler.ir.show_fused import show_fused
from anima.compiler.ir.show_loops import check as check_loops, show as show_loops
from anima.compiler.lowering import lower as lowering
from anima.compiler.rewriting.expand import expand
from anima.compiler.rewriting.hoist import hoist
from anima.compiler.rewriting.inline import inline
from anima.compiler.rewriting.simplify import dead_code, simplify
from anima.compiler.storage import buffers
from anima.compiler.storage.registers import registers
from anima.core.check import check_jaxpr
from anima.core.jaxpr import ClosedJaxpr
from anima.core.show import show_jaxpr
from anima.util import check_level, record


@record
class Pass:
    """A function from program to program, and the level of its result."""

    name: str
    run: Callable[[Any], Any]
    level: str


@dataclass(frozen=True)
class Stages:
    """A program at every level. `kernel_count` is how many kernels and routines it consists of."""

    jaxpr: ClosedJaxpr
    fused: Fused
    loops: Program
    times: dict[str, float] = field(default_factory=dict)

    @property
    def kernel_count(self) -> int:
        return sum(isinstance(s, (Kernel, Again, Call)) for s in statements(*self.loops.body))


def passes(name: str, donated: Sequence[int]) -> list[Pass]:
    """The passes for a program of this name, whose inputs at `donated` may be overwritten."""
    return [
        Pass("dead_code", dead_code, "jaxpr"),           # no unused equations
        Pass("inline", inline, "jaxpr"),                 # no calls
        Pass("hoist", hoist, "jaxpr"),                   # no products in scans that could be done at once
        Pass("expand", expand, "jaxpr"),                 # no random keys, no composite operations
        Pass("simplify", simplify, "jaxpr"),             # nothing computed twice
        Pass("dead_code_again", dead_code, "jaxpr"),
        Pass("fuse", fuse, "fused"),                     # equations in groups, one for each kernel
        Pass("lower", partial(lowering.lower, name=name, donated=tuple(donated)), "loops"),  # no arrays
        Pass("registers", registers, "loops"),           # small arrays in loops are not in memory
        Pass("plan_buffers", buffers.plan_buffers, "loops"),  # temps have places
    ]


def lower(closed_jaxpr: ClosedJaxpr, name: str = "program", donated: Sequence[int] = ()) -> Stages:
    """The program at every level, down to loops; `donated` are positions of inputs that may be overwritten."""
    checking, timing = check_level() > 0, os.environ.get("ANIMA_TIME", "0") not in ("", "0")
    showing = set(os.environ.get("ANIMA_SHOW", "").split(",")) - {""}
    levels: dict[str, Any] = {"jaxpr": closed_jaxpr}
    times: dict[str, float] = {}
    program: Any = closed_jaxpr
    checked: Any = None
    for step in passes(name, donated):
        start = time.perf_counter()
        result = step.run(program)
        times[step.name] = time.perf_counter() - start
        if showing and step.level in showing:
            _print(step, result, result is program)
        if checking and result is not checked:
            _check(step, result)
            checked = result
        program = levels[step.level] = result
    if timing:
        for step_name, seconds in times.items():
            print(f"{name}: {step_name:16} {1e3 * seconds:8.2f} ms", file=sys.stderr)
    return Stages(levels["jaxpr"], levels["fused"], levels["loops"], times)


def _print(step: Pass, program: Any, unchanged: bool) -> None:
    print(f"--- {step.name}{' (unchanged)' if unchanged else ''}", file=sys.stderr)
    if not unchanged:
        shown: dict[str, Callable[[Any], str]] = {"jaxpr": show_jaxpr, "fused": show_fused, "loops": show_loops}
        print(shown[step.level](program), file=sys.stderr)


def _check(step: Pass, program: Any) -> None:
    """Raises if the program breaks a rule of its level, naming the pass to blame."""
    try:
        if step.level == "jaxpr":
            check_jaxpr(program.jaxpr)
        elif step.level == "loops":
            check_loops(program)
            if step.name == "plan_buffers":
                buffers.check_memory(program)
    except Exception as error:
        error.add_note(f"after the compiler pass '{step.name}'")
        raise
