"""On a GPU: loops, ensembles, elementwise, reductions, products, sorting and a training step, beside JAX and PyTorch.

    python -m benchmarks.gpu [WORD ...]      only the rows whose names have one of the words

Each library runs in a process of its own, one after the other: `ANIMA_BENCH_JAX` and `ANIMA_BENCH_TORCH` are Pythons
that have it, this one by default. What Anima refuses is shown as refused; a row that takes longer than `LIMIT` seconds
ends its process and is shown as cut. `ANIMA_BENCH_PLATFORM=cpu` runs the rows that a CPU can, to try them.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import seconds

PLATFORM = os.environ.get("ANIMA_BENCH_PLATFORM", "gpu")
LIMIT = 6.0   # seconds for a row of a library, compiling and data included
BUDGET = 0.3  # seconds that are measured
START = 60.0  # seconds until a process has begun
Row = tuple[Callable[..., Any], tuple[Any, ...], float]  # a function, its arguments, bytes that it must move (or 0)
F = np.float32


def scans(m: Any, lib: Any) -> dict[str, Row]:
    """Loops with small states, and their gradients."""
    def lorenz(s: Any, _: Any) -> Any:
        x, y, z = s
        return (x + 0.001 * 10 * (y - x), y + 0.001 * (x * (28 - z) - y), z + 0.001 * (x * y - 8 / 3 * z)), None

    def scalar(x: Any, _: Any) -> Any:
        return 3.5 * x * (1 - x), None

    def matrix(x: Any, _: Any) -> Any:
        return m.tanh(x @ x + 0.1), None

    rows: dict[str, Row] = {}
    for n in (10**3, 10**5, 10**7):
        for name, step, start in (("scalar", scalar, F(0.3)), ("4x4", matrix, np.eye(4, dtype=F) / 9),
                                  ("Lorenz", lorenz, (F(1), F(1), F(1)))):
            def run(s: Any, step: Any = step, n: int = n) -> Any:
                return sum(x.sum() for x in lib.tree_util.tree_leaves(lib.lax.scan(step, s, None, length=n)[0]))

            rows[f"scan {name} {n:.0e}"] = run, (start,), 0.0
            if n < 10**6:
                rows[f"scan {name} {n:.0e} gradient"] = lib.grad(run), (start,), 0.0
    return rows


def ensemble(m: Any, lib: Any) -> dict[str, Row]:
    """Lotka-Volterra with adaptive steps, each of 1e5 on its own: Heun's method with Euler's inside."""
    def solve(a: Any) -> Any:
        def f(u: Any, v: Any) -> Any:
            return a * u - u * v, u * v - v

        def step(s: Any) -> Any:
            t, h, u, v = s
            h = m.minimum(h, 5.0 - t)
            p, q = f(u, v)
            r, w = f(u + h * p, v + h * q)
            error = h / 2 * m.maximum(abs(r - p), abs(w - q)) / 1e-4
            good = error <= 1
            t, u, v = (m.where(good, new, old) for new, old in (
                (t + h, t), (u + h / 2 * (p + r), u), (v + h / 2 * (q + w), v)))
            return t, h * m.clip(0.9 / m.sqrt(error + 1e-9), 0.2, 5.0), u, v

        return lib.lax.while_loop(lambda s: s[0] < 4.9999, step, (0 * a, 0 * a + 0.1, 0 * a + 1, 0 * a + 1))[2]

    return {"1e5 adaptive ODEs": (lib.vmap(solve), (np.linspace(0.5, 2, 10**5, dtype=F),), 0.0)}


def arrays(m: Any, lib: Any) -> dict[str, Row]:
    """What the card's bandwidth limits, and what moves elements about."""
    rng = np.random.default_rng(0)

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1 + m.tanh(0.79788456 * (x + 0.044715 * x * x * x)))

    rows: dict[str, Row] = {"empty call": (lambda x: x, (F(1),), 0.0)}
    for n in (10**3, 10**6, 10**8):
        x = rng.standard_normal(n, F)
        rows[f"add {n:.0e}"] = lambda x: x + 1, (x,), 8.0 * n
        rows[f"gelu {n:.0e}"] = gelu, (x,), 8.0 * n
    rows["sum 1e8"] = lambda x: m.sum(x), (rng.standard_normal(10**8, F),), 4e8
    x = rng.standard_normal((4096, 4096), F)
    size = 4.0 * x.size
    for axis, name in ((1, "rows"), (0, "columns")):
        rows[f"sum of {name} 4096x4096"] = lambda x, axis=axis: m.sum(x, axis), (x,), size
    rows["softmax 4096x4096"] = lambda x: softmax(m, x), (x,), 2 * size
    rows["layer norm 4096x4096"] = lambda x: norm(m, x), (x,), 2 * size
    rows["transpose 4096x4096"] = lambda x: x.T + 1, (x,), 2 * size
    i = rng.integers(0, 10**4, 10**6).astype(np.int32)
    v = rng.standard_normal(10**6, F)
    if lib is not None:
        rows |= {"sort 1e6": (m.sort, (v,), 0.0), "gather 1e6": (lambda v, i: v[i], (v, i), 0.0),
                 "scatter-add 1e6": (lambda i, v: m.zeros(10**4, F).at[i].add(v), (i, v), 0.0),
                 "cumsum 1e7": (m.cumsum, (rng.standard_normal(10**7, F),), 8e7),
                 "normal 1e7": (lambda k: lib.random.normal(lib.random.wrap_key_data(k), (10**7,)),
                                (np.array([0, 1], np.uint32),), 0.0)}
    else:
        rows |= {"sort 1e6": (lambda v: m.sort(v)[0], (v,), 0.0), "gather 1e6": (lambda v, i: v[i], (v, i), 0.0),
                 "cumsum 1e7": (lambda v: m.cumsum(v, 0), (rng.standard_normal(10**7, F),), 8e7)}
    return rows


def softmax(m: Any, x: Any) -> Any:
    e = m.exp(x - m.amax(x, -1)[..., None])
    return e / m.sum(e, -1)[..., None]


def norm(m: Any, x: Any) -> Any:
    c = x - m.mean(x, -1)[..., None]
    return c / m.sqrt(m.mean(c * c, -1)[..., None] + 1e-5)


def products(m: Any, lib: Any) -> dict[str, Row]:
    """Products of matrices, attention, and a training step of a block of a transformer."""
    rng = np.random.default_rng(0)
    rows: dict[str, Row] = {}
    for n in (128, 512, 1024, 2048, 4096, 8192):
        x = rng.standard_normal((n, n), F)
        rows[f"product {n} f32"] = lambda x: x @ x, (x,), 0.0
    rows["products 64 of 256"] = lambda x: x @ x, (rng.standard_normal((64, 256, 256), F),), 0.0

    def attend(q: Any, k: Any, v: Any) -> Any:
        return softmax(m, m.einsum("bhsd,bhtd->bhst", q, k) * 0.125) @ v

    rows["attention 8x16x1024x64"] = attend, tuple(rng.standard_normal((8, 16, 1024, 64), F) for _ in range(3)), 0.0
    if lib is None:
        return rows

    def loss(ws: Any, x: Any) -> Any:
        y = x
        for qkv, out, up, down in ws:
            q, k, v = (t.reshape(8, 256, 4, 64).transpose(0, 2, 1, 3) for t in m.split(norm(m, y) @ qkv, 3, -1))
            y = y + attend(q, k, v).transpose(0, 2, 1, 3).reshape(8, 256, 256) @ out
            y = y + m.tanh(norm(m, y) @ up) @ down
        return ((y - x) ** 2).mean()

    def train(ws: Any, x: Any) -> Any:
        return lib.tree_util.tree_map(lambda w, g: w - 0.01 * g, ws, lib.grad(loss)(ws, x))

    shapes = (256, 768), (256, 256), (256, 1024), (1024, 256)
    ws = [tuple(rng.standard_normal(s, F) / F(16) for s in shapes) for _ in range(4)]
    rows["transformer training step"] = train, (ws, rng.standard_normal((8, 256, 256), F)), 0.0
    return rows


def child(who: str, words: list[str]) -> None:
    """Runs the rows of a library; a line of JSON each: name, seconds of the first call, of a call, bytes."""
    lib = importlib.import_module(who)
    m = lib if who == "torch" else importlib.import_module(f"{who}.numpy")
    if who == "torch":
        device = "cuda" if PLATFORM == "gpu" else "cpu"
    else:
        lib.config.update(f"{who}_default_device", lib.devices(PLATFORM)[0])
    if who == "jax":
        lib.config.update("jax_default_matmul_precision", "highest")  # products of f32 are those of f32, as elsewhere
    skip = json.loads(os.environ.get("ANIMA_BENCH_DONE", "[]"))
    groups = (arrays, products) if who == "torch" else (arrays, scans, ensemble, products)
    for group in groups:
        for name, (fun, args, moved_bytes) in group(m, None if who == "torch" else lib).items():
            if name in skip or (words and not any(w in name for w in words)):
                continue
            print(json.dumps({"begin": name}), flush=True)
            try:
                if who == "torch":
                    placed: Any = [lib.as_tensor(a).to(device) for a in args]
                    wait = lib.cuda.synchronize if device == "cuda" else lambda: None
                    run = lambda fun=fun, placed=placed, wait=wait: (fun(*placed), wait())  # noqa: E731
                else:
                    placed, jitted = lib.device_put(args), lib.jit(fun)
                    run = lambda jitted=jitted, placed=placed: lib.block_until_ready(jitted(*placed))  # noqa: E731
                begin = time.perf_counter()
                run()
                first, times, end = time.perf_counter() - begin, [], time.perf_counter() + BUDGET
                while not times or (time.perf_counter() < end and len(times) < 15):
                    times.append(seconds(run))
                found: dict[str, Any] = {"first": first, "seconds": statistics.median(times), "bytes": moved_bytes}
            except (NotImplementedError, RuntimeError, MemoryError) as error:
                found = {"refused": f"{type(error).__name__}: {error}".splitlines()[0][:90]}
            print(json.dumps({"name": name, **found}), flush=True)


def collect(who: str, python: str, words: list[str]) -> dict[str, dict[str, Any]]:
    """The rows of a library, from processes of its own; another one takes over after a row that is cut."""
    rows: dict[str, dict[str, Any]] = {}
    while True:
        env = {**os.environ, "ANIMA_BENCH_DONE": json.dumps(list(rows))}
        process = subprocess.Popen([python, "-m", "benchmarks.gpu", "--child", who, *words], env=env, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        lines: queue.Queue[str | None] = queue.Queue()
        errors: list[str] = []
        threading.Thread(target=lambda p, q: [*map(q.put, p.stdout), q.put(None)], args=(process, lines),
                         daemon=True).start()
        threading.Thread(target=lambda p, e: e.extend(p.stderr), args=(process, errors), daemon=True).start()
        current = None
        try:
            while (line := lines.get(timeout=START if current is None else LIMIT)) is not None:
                found = json.loads(line)
                if "begin" in found:
                    current = found["begin"]
                else:
                    rows[found.pop("name")] = found
                    print(f"{who}: {current}: {found.get('seconds', found.get('refused'))}", flush=True)
        except queue.Empty:
            process.kill()
            if current is None or current in rows:
                print(f"{who} is silent for {START:.0f} s")
                return rows
            rows[current] = {"cut": LIMIT}
            continue
        if process.wait() == 0:
            return rows
        print(f"{who}: {(errors or ['ended'])[-1].strip()[:200]}", flush=True)
        if current is None or current in rows:
            return rows
        rows[current] = {"refused": "the process ended"}


def cell(row: dict[str, Any] | None, own: float | None) -> str:
    if row is None:
        return "-"
    if "seconds" not in row:
        return "cut" if "cut" in row else "refused"
    more = f" {row['seconds'] / own:6.2f}x" if own else ""
    return f"{row['seconds'] * 1e3:10.4f}{more} ({row['first']:.2f} s)"


def main(words: list[str] | None = None) -> None:
    """Runs all rows; the table comes last."""
    here = sys.executable
    pythons = {"anima": here, "jax": os.environ.get("ANIMA_BENCH_JAX", here),
               "torch": os.environ.get("ANIMA_BENCH_TORCH", here)}
    found = {who: collect(who, python, words or []) for who, python in pythons.items()}
    if not found["anima"]:
        print(f"Nothing measured: Anima has no {PLATFORM} here.")
        return
    bandwidth = max((r["bytes"] / r["seconds"] for n, r in found["jax"].items() if n == "add 1e+08" and "seconds" in r),
                    default=math.nan)
    print("ms of a call, N x = times Anima's; in brackets the first call; share of JAX's bytes a second in add 1e+08")
    for name in dict.fromkeys(n for rows in found.values() for n in rows):
        own = found["anima"].get(name)
        took = own.get("seconds") if own else None
        share = f"{own['bytes'] / took / bandwidth:5.0%}" if own and took and own["bytes"] else ""
        print(f"{name:32} {cell(own, None):>22} jax {cell(found['jax'].get(name), took):>28} "
              f"torch {cell(found['torch'].get(name), took):>28} {share} {(own or {}).get('refused', '')}")
    folder = Path(__file__).resolve().parents[1] / "out"
    folder.mkdir(exist_ok=True)
    (folder / "gpu.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
    else:
        main(sys.argv[1:])
