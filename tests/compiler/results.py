"""What programs compute, to the last bit: a digest of their results for each width of vectors.

`results.json` has those of the programs in `outlined.py`, on numbers whose sums depend on their order. Who means to
change them runs `python3 -m tests.compiler.results` on a machine with vectors of 64 bytes, and says why.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import anima
from anima.compiler.machine import native
from anima.compiler.machine.target import Target, target_of
from anima.runtime import threads
from anima.runtime.executable import compile_program
from tests.compiler import outlined
from tests.compiler.stages import lowered

FILE = Path(__file__).parent / "data" / "results.json"
PROGRAMS = {f"{theme}: {name}": program for theme, programs in outlined.THEMES.items()
            for name, program in programs.items()
            if theme != "limits"  # too large to run
            and not name.startswith("the gradient of a while")}  # takes tapes
_LACKING = {32: ("avx512",), 16: ("avx512", "avx2")}  # what narrower machines do not have


def targets() -> dict[int, Target]:
    """The targets that this machine can run, by the width of their vectors in bytes."""
    host = native.host()
    found = {host.vector_bytes: host}
    for width, lacking in _LACKING.items():
        if width < host.vector_bytes:
            features = [f"-{f[1:]}" if f[1:].startswith(lacking) else f for f in host.features.split(",")]
            found[width] = target_of(host.triple, host.cpu, ",".join(features))
    return found


def uneven(x: Any) -> Any:
    """Floats, each other than it was by a few per cent and in all its bits, in place of round numbers."""
    x = np.asarray(x)
    if x.dtype.kind != "f":
        return x
    rng = np.random.default_rng(x.size)
    return (x * rng.uniform(0.97, 1.03, x.shape) + rng.uniform(0, 0.01, x.shape)).astype(x.dtype)


def same_for_threads(fun: Callable[..., Any], *args: Any) -> Any:
    """The results of a compiled function, which are the same bits on one, two and five threads."""
    compiled, found = anima.jit(fun), []
    for count in (1, 2, 5):
        threads.set_num_threads(count)
        found.append([np.asarray(x).tobytes() for x in anima.tree.leaves(compiled(*args))])
    threads.set_num_threads(None)
    assert found[0] == found[1] == found[2]
    return compiled(*args)


def digest(program: tuple[Callable[..., Any], tuple[Any, ...]], target: Target) -> str:
    """Of the bytes of all results."""
    fun, args = program
    leaves, tree = anima.tree.flatten(args)
    leaves = [np.asarray(anima.device_put(uneven(x))) for x in leaves]
    stages = lowered(lambda *xs: anima.tree.leaves(fun(*anima.tree.unflatten(tree, xs))), *leaves)
    code = compile_program(stages.loops, target=target)
    found = hashlib.sha256()
    for result in code([x.reshape(-1) for x in leaves]):
        # NaNs are equal, whatever their bits.
        found.update(np.where(result != result, np.full_like(result, np.nan), result).tobytes()
                     if result.dtype.kind in "fc" else result.tobytes())
    return found.hexdigest()[:16]


def read() -> dict[str, dict[str, str]]:
    """The digests in the file, by name and width."""
    return json.loads(FILE.read_text())


if __name__ == "__main__":
    known = read()  # of vectors that this machine does not have, too
    found = {name: known.get(name, {}) | {str(w): digest(program, target) for w, target in targets().items()}
             for name, program in PROGRAMS.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(digests)}" for name, digests in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
