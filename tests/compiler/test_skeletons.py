"""How operations become loops, in short: kernels and calls, kinds of loops and how often they run, memory.

    sum of rows 17x33: reduce_sum [parallel 17 (vector 33 (add) store)]

Values are tested elsewhere; here it shows which way was taken on each side of a limit. Loops that are chosen anew
on purpose are written down anew: `python -m tests.compiler.test_skeletons`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.ir.loops import Accumulate, Call, Const, For, If, Kernel, Local, Program, Stmt, Store, While
from tests.compiler.stages import WRITTEN, lowered

DATA = Path(__file__).parent / "data" / "skeletons.txt"


def skeleton(stmts: tuple[Stmt, ...]) -> Iterator[str]:
    for stmt in stmts:
        match stmt:
            case Kernel(name=name, body=body):
                yield f"{name} [{' '.join(skeleton(body))}]"
            case For(kind=kind, extent=extent, body=body, width=width):
                count = extent.value if isinstance(extent, Const) else "?"
                inside = " ".join(skeleton(body))
                yield f"{kind}{f'*{width}' if width > 1 else ''} {count} ({inside})"
            case While(before=before, body=body):
                yield f"while ({' '.join([*skeleton(before), *skeleton(body)])})"
            case If(then=then, orelse=orelse):
                yield f"if ({' '.join(skeleton(then))} | {' '.join(skeleton(orelse))})"
            case Call(routine=routine, args=args):
                yield f"{routine} {','.join(map(str, args))}"
            case Local(dtype=dtype, size=size, held=held):
                yield f"local {dtype}*{size}{f' {held}' if held else ''}"
            case Store():
                yield "store"
            case Accumulate(op=op):
                yield op


def text(program: Program) -> str:
    temps = [f"{b.dtype}*{b.size}" for b in program.buffers if b.role == "temp"]
    return " ".join([*skeleton(program.body), *(["temps", *temps] if temps else [])])


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def solve(a: Any, b: Any) -> Any:
    return jnp.linalg.solve(a, b), jnp.linalg.cholesky(a), jnp.linalg.inv(a)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "map": lambda x: jnp.exp(x) * 2 + x,
    "transpose": lambda x: x.T + 1,
    "pad and join": lambda x: jnp.concatenate([jnp.pad(x, 1), jnp.pad(x, ((0, 2), (2, 0)))], 0) * 2,
    "reverse and slice": lambda x: jnp.roll(x[::-1, ::2], 1, 0) * 2,
    "sum of rows": lambda x: x.sum(1),
    "sum of columns": lambda x: x.sum(0),
    "sum": lambda x: x.sum(),
    "largest of rows and columns": lambda x: (x.max(1), x.max(0)),
    "places": lambda x: (jnp.argmax(x, 0), jnp.argmin(x, 1)),
    "softmax": lambda x: anima.nn.softmax(x, axis=1),
    "variance": lambda x: x.var(0),
    "running sums": lambda x: (jnp.cumsum(x, 0), jnp.cumsum(x, 1), lax.cummax(x, 0, reverse=True)),
    "sort": lambda x: (jnp.sort(x, 1), jnp.argsort(x, 0)),
    "sort of two": lambda x: lax.sort((x, x * 2), num_keys=2),
    "first": lambda x: lax.top_k(x, min(x.shape[1], 2)),
    "product": lambda x: x @ x.T,
    "transposed product": lambda x: x.T @ x,
    "product by a vector": lambda x: (x @ x[0], x[:, 0] @ x),
    "products": lambda x: jnp.einsum("ij,kj->ikj", x[:4], x[:3]),
    "batched": lambda x: jnp.einsum("bi,bj->bij", x[:5, :6], x[:5, :7]),
    "rows taken": lambda x: x[jnp.array([0, 0, -1]) + x[0, 0].astype(int)],
    "rows added": lambda x: x.at[jnp.array([0, 0, -1]) + x[0, 0].astype(int)].add(1.0),
    "one row": lambda x: lax.dynamic_slice(x, (x[0, 0].astype(int), 0), (1, x.shape[1])),
    "one row set": lambda x: lax.dynamic_update_slice(x, x[:1] * 2, (x[0, 0].astype(int), 0)),
    "matrices": lambda x: solve(x[:1, :1] * jnp.eye(min(*x.shape, 8)), jnp.ones((min(*x.shape, 8), 2))),
    "factors": lambda x: (jnp.linalg.qr(x[:6, :5]), jnp.linalg.det(jnp.eye(5) * x[0, 0])),
    "callback": lambda x: anima.pure_callback(lambda y: y, anima.ShapeDtypeStruct(x.shape, x.dtype), x * 2) + 1,
    "random bits": lambda x: anima.random.normal(anima.random.key(0), x.shape) + x,
    "conversions": lambda x: (x.astype(jnp.int8), x.astype(jnp.float16) * 2, x > 0, x.astype(complex)),
}
SIZES = ((1, 1), (1, 40), (40, 1), (3, 4), (8, 16), (17, 33), (3, 600), (600, 3), (2, 1025), (70, 70), (1, 5000),
         (5000, 1), (300, 2000), (2, 70_000), (40_000, 5), (1, 300_000))


LARGE = ("sum", "sum of rows", "sum of columns", "largest of rows and columns", "softmax", "sort",
         "running sums", "product", "product by a vector", "transpose", "map", "variance")


def flat(fun: Callable[..., Any]) -> Callable[..., list[Any]]:
    return lambda *args: anima.tree.leaves(fun(*args))


def written(name: str) -> list[str]:
    fun = flat(PROGRAMS[name])
    return [f"{name} {'x'.join(map(str, size))}: {text(lowered(fun, ones(*size), target=WRITTEN).loops)}"
            for size in SIZES if np.prod(size) < 9000 or name in LARGE]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_loops_of_an_operation(name: str) -> None:
    known = [line for line in DATA.read_text().splitlines() if re.match(rf"{name} \d+x\d+:", line)]
    assert written(name) == known


if __name__ == "__main__":
    DATA.write_text("".join(f"{line}\n" for name in PROGRAMS for line in written(name)))
