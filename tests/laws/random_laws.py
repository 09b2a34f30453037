"""The laws that every random program keeps. Its reference: each operation by itself on NumPy, loops as Python's own.

`broken(program)` gives what does not hold, as `(law, what differs)`; nothing, if all is well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np

import anima
from anima.compiler.driver import lower
from anima.compiler.ir.interpret import run as interpret
from anima.compiler.scheduling import parallelize
from anima.compiler.storage import apart
from anima.runtime import threads
from tests.laws.random_control import told
from tests.laws.random_programs import Program, every_step, same, tolerance_of

Broken = Iterator[tuple[str, str]]
LANES = 2
INTERPRETED = 600  # elements of the values of programs that run one scalar at a time


def broken(program: Program, counts: Sequence[int] = (1, 2), only: str | None = None) -> list[tuple[str, str]]:
    """What does not hold of a program; an exception is the failure of the law that raised it."""
    out: list[tuple[str, str]] = []
    with anima.enable_x64(program.x64), np.errstate(all="ignore"):
        for law in LAWS:
            if only is None or only == law.__name__:
                try:
                    out += [(law.__name__, what) for what in law(program, counts)]
                except Exception as error:  # of any kind: it is what is looked for
                    out.append((law.__name__, f"{type(error).__name__}: {error}"))
    return out


def reference(program: Program, inputs: Sequence[Any]) -> list[np.ndarray]:
    with anima.disable_jit():
        return [np.asarray(v) for v in program(*inputs)]


def compare(program: Program, got: Sequence[Any], want: Sequence[Any], what: str) -> Iterator[str]:
    for k, (a, b, t) in enumerate(zip(got, want, program.types, strict=True)):
        different = same(a, b, t.exact)
        if different:
            yield f"{what}, result {k}: {different}"


def bits(values: Sequence[Any]) -> list[bytes]:
    return [np.asarray(v).tobytes() for v in values]


@contextlib.contextmanager
def many_threads(program: Program) -> Iterator[None]:
    """Every fourth program shares out whatever it can: most are too small to be worth threads."""
    if program.number % 4:
        yield
    else:
        with mock.patch.multiple(parallelize, WORTH=1.0, PIECE=1.0), mock.patch.multiple(apart, LEAST=1.0, SHARE=1e12):
            yield


# ---------------------------------------------------------------- values

def compiled(program: Program, counts: Sequence[int]) -> Iterator[str]:
    """Compiled is the reference; the bits are the same for any number of threads, donated or not."""
    inputs = program.inputs()
    told.clear()
    want = reference(program, inputs)
    said = list(told)
    with many_threads(program):
        run = anima.jit(program)
        told.clear()
        first = run(*inputs)
        anima.effects_barrier()
        yield from compare(program, first, want, "compiled")
        if told != said:
            yield f"effects {told}, expected {said}"
        for count in counts:
            threads.set_num_threads(count)
            try:
                if bits(run(*inputs)) != bits(first):
                    yield f"other bits with {count} threads"
            finally:
                threads.set_num_threads(None)
    if program.number % 3 == 0:
        given = [anima.numpy.asarray(x) for x in inputs]
        again = anima.jit(program, donate_argnums=tuple(range(len(given))))(*given)
        yield from compare(program, again, want, "donated")
    if program.number % 3 == 1:
        yield from compare(program, program(*inputs), want, "eager")


def mapped(program: Program, counts: Sequence[int]) -> Iterator[str]:
    """Over lanes is lane by lane; some arguments are the same for all."""
    if not program.pure:
        return
    lanes = [program.inputs(lane) for lane in range(LANES)]
    shared = [program.number >> k & 3 == 0 for k in range(len(lanes[0]))]
    if all(shared):
        shared[0] = False
    mixed = [[lanes[0][k] if one else row[k] for k, one in enumerate(shared)] for row in lanes]
    stacked = [lanes[0][k] if one else np.stack([row[k] for row in lanes]) for k, one in enumerate(shared)]
    run = anima.vmap(program, in_axes=tuple(None if one else 0 for one in shared))
    outs = (anima.jit(run) if program.number % 2 else run)(*stacked)
    for lane, inputs in enumerate(mixed):
        yield from compare(program, [o[lane] for o in outs], reference(program, inputs), f"lane {lane}")


def interpreted(program: Program, counts: Sequence[int]) -> Iterator[str]:
    """Loops, one scalar at a time and in either order, compute the reference."""
    if not program.pure or sum(t.size for s in every_step(program.block) for t in s.types) > INTERPRETED:
        return
    inputs = program.inputs()
    loops = lower(anima.make_jaxpr(program)(*inputs)).loops
    try:
        outs = interpret(loops, inputs, ("forward", "backward")[program.number % 2])
    except NotImplementedError:  # of routines that are machine code: sorts, random numbers, LAPACK's
        return
    want = reference(program, inputs)
    yield from compare(program, [o.reshape(w.shape) for o, w in zip(outs, want, strict=True)], want, "interpreted")


# ---------------------------------------------------------------- derivatives

def differentiated(program: Program, counts: Sequence[int]) -> Iterator[str]:
    """Both modes are transposes of each other; compiled, and with all steps remembered or not, the same."""
    if not program.pure:
        return
    inputs = program.inputs(calm=True)
    places = [k for k, x in enumerate(inputs) if _real(x)]
    outs = [k for k, t in enumerate(program.types) if t.dtype in ("float32", "float64") and t.size]
    if not places or not outs:
        return

    def chosen(*xs: Any) -> list[Any]:
        given = dict(zip(places, xs, strict=True))
        results = program(*(given.get(k, x) for k, x in enumerate(inputs)))
        return [results[k] for k in outs]

    rng = np.random.default_rng(program.number)
    primals = [inputs[k] for k in places]
    tangents = [rng.uniform(-1, 1, x.shape).astype(x.dtype) for x in primals]
    cts = [rng.uniform(-1, 1, program.types[k].shape).astype(program.types[k].dtype) for k in outs]

    def forward(xs: Any, ts: Any) -> Any:
        return anima.jvp(chosen, xs, ts)[1]

    def reverse(xs: Any, cts: Any) -> Any:
        return anima.vjp(chosen, *xs)[1](cts)

    way = (reverse, anima.jit(reverse))[program.number % 2]
    gradients = way(primals, cts)
    coarse = tolerance_of_slopes(program)
    if program.number % 5 == 0:
        again = (anima.jit(reverse), reverse)[program.number % 2](primals, cts)
        yield from _agree(gradients, again, coarse, "gradients compiled and not")
    if program.number % 5 == 1:
        kept = anima.vjp(anima.checkpoint(chosen), *primals)[1](cts)
        yield from _agree(gradients, kept, coarse, "gradients with and without checkpoint")
    if program.number % 5 == 2:
        inside = anima.vjp(anima.jit(chosen), *primals)[1](cts)
        yield from _agree(gradients, inside, coarse, "gradients of a compiled function")
    if program.smooth:
        slopes = (forward, anima.jit(forward))[program.number % 2](primals, tangents)
        yield from _transposed(slopes, cts, gradients, tangents, coarse)


def tolerance_of_slopes(program: Program) -> float:
    """That of the coarsest floats on the way, whatever the type of the result."""
    dtypes = {t.dtype for s in every_step(program.block) for t in s.types}
    if dtypes & {"bfloat16", "float16"}:
        return 0.1
    return tolerance_of(np.dtype("float32" if dtypes & {"float32", "complex64"} else "float64"))


def _real(x: np.ndarray) -> bool:
    return x.dtype in (np.float32, np.float64) and x.size > 0


def _transposed(slopes: Any, cts: Any, gradients: Any, tangents: Any, coarse: float) -> Iterator[str]:
    left = [np.asarray(a, np.float64) * np.asarray(b, np.float64) for a, b in zip(slopes, cts, strict=True)]
    right = [np.asarray(a, np.float64) * np.asarray(b, np.float64) for a, b in zip(gradients, tangents, strict=True)]
    one, other = (sum(float(p.sum()) for p in part) for part in (left, right))
    scale = 1 + sum(float(np.abs(p).sum()) for p in left + right)
    if np.isfinite(scale) and scale < 1e12 and abs(one - other) > max(1e-3, coarse / 2) * scale:
        yield f"<ct, J t> = {one!r}, <J' ct, t> = {other!r}"


def _agree(got: Any, want: Any, coarse: bool, what: str) -> Iterator[str]:
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        tolerance = max(coarse, tolerance_of(np.asarray(want[k]).dtype))
        size = 1 + float(np.max(np.abs(b), initial=0, where=np.isfinite(b)))
        good = (np.abs(a - b) <= tolerance * size) | (~np.isfinite(a) & ~np.isfinite(b))
        if size < 1e6 and not good.all():
            yield f"{what}, {k}: {a[~good][0]!r}, expected {b[~good][0]!r}"


LAWS: tuple[Callable[[Program, Sequence[int]], Iterator[str]], ...] = (compiled, mapped, interpreted, differentiated)
