"""Random programs of every kind, as data: what they are, how they run, how they print, how they get smaller.

    program = random_operations.draw(7)         # the program of number 7, always the same
    program(*program.inputs())                  # its results
    print(program.source())                     # as Python, nearly

A value is `exact` if all ways to compute it must give the same bits: what only moves data, whole numbers, comparisons
and correctly rounded arithmetic of such. All others are floats of moderate size that may differ by rounding, and go
only into operations that are continuous in them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import anima
from anima.core import dtypes as dt
from tests.op_records import dtype_of, special_values

MOST = 8.0  # no value that is not exact is larger


@dataclass(frozen=True)
class Type:
    """What is known of a value before it is computed."""

    shape: tuple[int, ...]
    dtype: str
    exact: bool = True

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{'' if self.exact else '~'}"


@dataclass(frozen=True)
class Block:
    """A function: steps on the first `around` values outside, on its arguments, and on what earlier steps gave."""

    arguments: tuple[Type, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    around: int = 0

    def __call__(self, outside: Sequence[Any], *arguments: Any) -> list[Any]:
        values = [*outside[:self.around], *arguments]
        for step in self.steps:
            values += step.apply(values)
        return [values[k] for k in self.results]


@dataclass(frozen=True)
class Step:
    """An operation on the values at `operands`; `blocks` are the functions that it calls."""

    name: str
    run: Callable[..., Any]  # of the operands; of (blocks, operands) where there are blocks
    operands: tuple[int, ...]
    types: tuple[Type, ...]
    blocks: tuple[Block, ...] = ()
    smooth: bool = True  # whether both modes of differentiation are defined

    def apply(self, values: list[Any]) -> list[Any]:
        given = [values[k] for k in self.operands]
        if self.blocks:
            return list(self.run([_bound(b, values) for b in self.blocks], *given))
        out = self.run(*given)
        return list(out) if isinstance(out, (list, tuple)) else [out]


def _bound(block: Block, outside: list[Any]) -> Callable[..., list[Any]]:
    here = outside[:block.around]
    return lambda *arguments: block(here, *arguments)


def types_of(block: Block, outside: Sequence[Type]) -> list[Type]:
    """Of the results of a block."""
    known = [*outside[:block.around], *block.arguments]
    for step in block.steps:
        known += step.types
    return [known[k] for k in block.results]


@dataclass(frozen=True)
class Program:
    """A block without surroundings, and under which options it runs."""

    number: int
    x64: bool
    block: Block

    @property
    def types(self) -> tuple[Type, ...]:
        """Of the results."""
        return tuple(types_of(self.block, ()))

    def __call__(self, *inputs: Any) -> list[Any]:
        return self.block((), *inputs)

    @property
    def smooth(self) -> bool:
        return all(s.smooth for s in every_step(self.block))

    @property
    def pure(self) -> bool:
        return all(s.name != "tell" for s in every_step(self.block))

    def inputs(self, lane: int = 0, calm: bool = False) -> list[np.ndarray]:
        """Its arguments: full of special values, unless they are to be differentiated at."""
        rng = np.random.default_rng(zlib.crc32(f"{self.number} {lane} {calm}".encode()))
        return [draw_values(t, rng, calm) for t in self.block.arguments]

    def source(self) -> str:
        return f"# program {self.number}, x64 {self.x64}\n" + "\n".join(_lines(self.block, "program", ""))


def draw_values(t: Type, rng: np.random.Generator, calm: bool) -> np.ndarray:
    """An array of the type; a third of it special values (signed zeros, infinities, NaN, extremes), unless `calm`."""
    dtype = dtype_of(t.dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(t.shape) < 0.5)
    if dtype.kind in "iu":
        low = -9 if dtype.kind == "i" else 0
        out = np.asarray(rng.integers(low, 10, t.shape)).astype(dtype)
    else:
        out = np.asarray(rng.uniform(-3, 3, t.shape) + (1j * rng.uniform(-3, 3, t.shape) if dtype.kind == "c" else 0))
        out = out.astype(dtype)
    if not calm and t.size:
        special = rng.choice(special_values(dtype), t.shape)
        out = np.asarray(np.where(rng.random(t.shape) < rng.choice([0, 0.3, 1]), special, out)).astype(dtype)
    return out


# ---------------------------------------------------------------- showing

def _lines(block: Block, name: str, indent: str) -> Iterator[str]:
    count = block.around
    names = [f"v{count + k}" for k in range(len(block.arguments))]
    yield f"{indent}def {name}({', '.join(f'{n}: {t}' for n, t in zip(names, block.arguments, strict=True))}):"
    count += len(names)
    used = _used(block)
    for step in block.steps:
        if step.name.startswith("constant") and used.isdisjoint(range(count, count + len(step.types))):
            count += len(step.types)
            continue
        functions = [f"{name}_{count}{'abcdefgh'[k]}" for k in range(len(step.blocks))]
        for inner, function in zip(step.blocks, functions, strict=True):
            yield from _lines(inner, function, indent + "    ")
        outs = ", ".join(f"v{count + k}: {t}" for k, t in enumerate(step.types))
        yield f"{indent}    {outs} = {step.name}({', '.join([*functions, *(f'v{k}' for k in step.operands)])})"
        count += len(step.types)
    yield f"{indent}    return {', '.join(f'v{k}' for k in block.results)}"


def every_step(block: Block) -> Iterator[Step]:
    for step in block.steps:
        yield step
        for inner in step.blocks:
            yield from every_step(inner)


# ---------------------------------------------------------------- making smaller

def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A program with fewer results and steps that still fails; steps become the values that they gave."""
    for k in program.block.results:
        alone = replace(program, block=replace(program.block, results=(k,)))
        if fails(alone):
            program = alone
            break
    changed = True
    while changed:
        changed = False
        for smaller in _smaller_blocks(program.block):
            one = replace(program, block=smaller)
            if fails(one):
                program, changed = one, True
                break
    return program


def _smaller_blocks(block: Block) -> Iterator[Block]:
    """The block with one step fewer, the last first; then with smaller blocks inside."""
    for k in reversed(range(len(block.steps))):
        if not block.steps[k].name.startswith("constant"):
            yield replace(block, steps=(*block.steps[:k], _constant(block.steps[k]), *block.steps[k + 1:]))
    for k, step in enumerate(block.steps):
        for j, inner in enumerate(step.blocks):
            for smaller in _smaller_blocks(inner):
                blocks = (*step.blocks[:j], smaller, *step.blocks[j + 1:])
                yield replace(block, steps=(*block.steps[:k], replace(step, blocks=blocks), *block.steps[k + 1:]))


def _used(block: Block) -> set[int]:
    return set(block.results) | {k for s in every_step(block) for k in s.operands}


def _constant(step: Step) -> Step:
    values = [draw_values(t, np.random.default_rng(0), calm=True) for t in step.types]
    return Step("constant" + (f" {values[0].tolist()}" if len(values) == 1 and values[0].size <= 4 else ""),
                lambda: [anima.numpy.asarray(v) for v in values], (), step.types)


def same(got: Any, want: Any, exact: bool) -> str | None:
    """None if two values agree, else what is different: the bits (all NaN are one), or more than rounding does."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    inexact = dt.issubdtype(want.dtype, np.inexact)
    with np.errstate(all="ignore"):
        if not inexact:
            good = got == want
        elif exact:
            parts = [(got.real, want.real), (got.imag, want.imag)] if want.dtype.kind == "c" else [(got, want)]
            good = np.ones(want.shape, bool)
            for a, b in parts:
                bits = f"uint{8 * b.dtype.itemsize}"
                equal = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
                good &= equal.reshape(b.shape) | (np.isnan(a) & np.isnan(b))
        else:
            good = _near(got, want)
    if good.all():
        return None
    bad = np.unravel_index(int(np.argmin(good)), good.shape)
    first = tuple(map(int, bad))
    return f"{(~good).sum()} of {good.size} differ, first at {first}: {got[bad]!r}, expected {want[bad]!r}"


def _near(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    tolerance = tolerance_of(want.dtype)
    a, b = got.astype(wide), want.astype(wide)
    return (np.abs(a - b) <= tolerance * np.maximum(1, np.abs(b))) | (~np.isfinite(a) & ~np.isfinite(b))


def tolerance_of(dtype: np.dtype) -> float:
    """For values of up to `MOST` after some operations, each of which may make errors ten times as large."""
    eps = float(dt.finfo(dtype).eps)
    return eps * (2.0 ** 14 if eps < 1e-4 else 64)
