"""What the compiler decides, program by program, and that what it makes of them computes what eager evaluation does.

These see what changes in any pass down to loops: anima.compiler.storage.accesses, anima.compiler.storage.buffers,
anima.compiler.ir.costs, anima.compiler.lowering.elements, anima.compiler.rewriting.expand,
anima.compiler.fusing.fuse, anima.compiler.ir.groups, anima.compiler.rewriting.hoist, anima.compiler.rewriting.inline,
anima.compiler.rewriting.invariant, anima.compiler.lowering.lower, anima.compiler.lowering.control,
anima.compiler.lowering.tape, anima.compiler.fusing.materialise, anima.compiler.fusing.overwrite,
anima.compiler.driver, anima.compiler.scheduling.schedule, anima.compiler.scheduling.reductions,
anima.compiler.storage.registers, anima.compiler.storage.rows, anima.compiler.rewriting.simplify.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import anima
from tests.compiler import outlined, outlines

KNOWN = outlines.read()
PROGRAMS = {f"{theme}: {name}": program for theme, programs in outlined.THEMES.items()
            for name, program in programs.items()}


@pytest.mark.parametrize("name", [*PROGRAMS])
@pytest.mark.usefixtures("unchecked")
def test_outline(name: str) -> None:
    """Where this fails because the compiler is better now: `python3 -m tests.compiler.outlines`."""
    assert outlines.outline(outlines.stages_of(*PROGRAMS[name])) == KNOWN.get(name)


def test_every_process_makes_the_same_programs() -> None:
    """What is compiled is known by its text, on disk too: no order may come from that of a set."""
    code = ("import zlib\nfrom anima.compiler.keys import program_key\nfrom tests.compiler.outlines import *\n"
            "print([zlib.crc32(program_key(stages_of(*program).loops).encode())"
            "       for theme in THEMES.values() for program in theme.values()])")
    runs = [subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed},
                             stdout=subprocess.PIPE, text=True) for seed in ("1", "2", "3")]
    first, *others = (dict(zip(PROGRAMS, json.loads(run.communicate()[0]), strict=True)) for run in runs)
    assert all(other == first for other in others)


@pytest.mark.parametrize("name", [n for n in PROGRAMS if not n.startswith(outlined.LOWERED_ONLY)])
def test_results(name: str) -> None:
    fun, args = PROGRAMS[name]
    args = anima.device_put(args)
    got = anima.jit(fun)(*args)
    with anima.disable_jit():
        want = fun(*args)

    def same(g: Any, w: Any) -> None:
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=1e-5, atol=1e-5)

    anima.tree.map(same, got, want)
