"""What the compiler decided for a program, in a few lines: its groups, its loops and kernels, what memory it takes.

    map [12,20] flat: exp add                          one group, each array read element by element
    exp_add[parallel 12{vector 20{l2 o3 s1}}]          one kernel: in its innermost block 2 loads, 3 operations, 1 store
    arena 0

`outlines.txt` has those of many programs; `python3 -m tests.compiler.outlines` writes it anew, and the difference
is what a change of the compiler changed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anima
from anima.compiler.driver import Stages
from anima.compiler.ir.groups import Fused
from anima.compiler.ir.loops import (
    INDEX,
    Affine,
    Call,
    Const,
    For,
    If,
    Kernel,
    Load,
    Local,
    Op,
    Stmt,
    Store,
    While,
    WindowAt,
    walk,
)
from anima.compiler.storage.buffers import own_bytes
from tests.compiler.outlined import THEMES
from tests.compiler.stages import WRITTEN, lowered

FILE = Path(__file__).parent / "outlines.txt"


def outline(stages: Stages) -> str:
    """The outline of a program."""
    loops = stages.loops
    aliases = "".join(f" {b.name}={b.alias}" for b in loops.buffers if b.alias is not None and b.role == "output")
    consts = f" consts {' '.join(str(b.size) for b in loops.with_role('const'))}" if loops.with_role("const") else ""
    own = f" own {own_bytes(loops.buffers)}" if loops.with_role("own") else ""
    return "\n".join([*_groups(stages.fused), _block(loops.body), f"arena {loops.arena}{own}{aliases}{consts}"])


def _groups(fused: Fused) -> Iterator[str]:
    for g in fused.groups:
        shape = f"[{','.join(map(str, g.shape))}]" + (f" over {g.axes}" if g.axes else "")
        cuts = "".join(f" cut {d}: {places}" for d, places in g.cuts)
        flags = " flat" * g.flat + " paired" * g.paired + cuts
        over = sum(v in fused.over for e in g.roots for v in e.outvars)
        reads = f" reads {len(g.reads)} moved {len(g.moved)}" + f" over {over}" * bool(over)
        yield f"{g.kind} {shape}{flags}{reads}: {' '.join(e.primitive.name for e in g.roots)}"


def _block(stmts: Sequence[Stmt]) -> str:
    """The loops, branches and kernels of a block, after a count of its other statements."""
    parts: list[str] = []
    counts: Counter[str] = Counter()
    for s in stmts:
        match s:
            case Kernel(name=name, body=body, inline=inline):
                parts.append(f"{name}{'*' * inline}[{_block(body)}]")
            case For(extent=extent, body=body, kind=kind, width=width):
                trips = str(extent.value) if isinstance(extent, Const) else "?"
                parts.append(f"{kind}{width if width > 1 else ''} {trips}{{{_block(body)}}}")
            case While(before=before, body=body):
                parts.append(f"while{{{_block(before)}}}{{{_block(body)}}}")
            case If(then=then, orelse=orelse):
                parts.append(f"if{{{_block(then)}}}{{{_block(orelse)}}}")
            case Call(routine=routine):
                parts.append(routine)
            case Local(size=size, held=held):
                parts.append(f"local {size} {held or ''}".rstrip())
            case _:
                for node in walk(s):
                    counts[_kind(node)] += node.operations if isinstance(node, Affine) else 1
    counts.pop("", None)
    return " ".join(([" ".join(f"{k}{n}" for k, n in sorted(counts.items()))] if counts else []) + parts)


def _kind(node: Any) -> str:
    match node:
        case Load():
            return "l"
        case Store():
            return "s"
        case WindowAt():
            return "w"
        case Affine():
            return "i"
        case Op(dtype=dtype):
            return "i" if dtype == INDEX else "o"
    return ""


def read() -> dict[str, str]:
    """The outlines in the file, by name."""
    parts = FILE.read_text().split("== ")[1:]
    return {name: text.rstrip("\n") for name, _, text in (part.partition("\n") for part in parts)}


def stages_of(fun: Callable[..., Any], args: tuple[Any, ...]) -> Stages:
    """Every level of a program of trees of arrays."""
    leaves, tree = anima.tree.flatten(args)
    return lowered(lambda *xs: anima.tree.leaves(fun(*anima.tree.unflatten(tree, xs))), *leaves, target=WRITTEN)


if __name__ == "__main__":
    os.environ["ANIMA_CHECK"] = "0"
    FILE.write_text("".join(f"== {theme}: {name}\n{outline(stages_of(*program))}\n\n"
                            for theme, programs in THEMES.items() for name, program in programs.items()))
