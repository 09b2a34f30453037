"""What starting costs: importing, and first calls in processes of their own, cold and with what another has compiled.

    python -m benchmarks.start [ROUNDS]            milliseconds, medians; beside JAX where it is installed
    python -m benchmarks.start facade [ROUNDS]     `import jax` that finds Anima beside `import anima`, and calls
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import HAVE_JAX

FOLDERS = [str(Path(__file__).resolve().parents[1] / "dropin" / folder) for folder in ("src", "jaxlib/src")]

PROGRAM = """
import sys, time
start = time.perf_counter()
if sys.argv[1] == "jax":
    import jax as m, jax.numpy as jnp
else:
    import anima as m, anima.numpy as jnp
imported = time.perf_counter()
import numpy as np
rng = np.random.default_rng(0)
def normal(*shape):
    return (rng.standard_normal(shape) * 0.1).astype(np.float32)
def trivial():
    return m.jit(lambda x: x * 2 + 1), (np.ones(10, np.float32),)
def mlp():
    weights = [(normal(a, b), normal(b)) for a, b in ((64, 128), (128, 128), (128, 10))]
    def loss(weights, x, y):
        for w, b in weights[:-1]:
            x = jnp.tanh(x @ w + b)
        return jnp.mean((x @ weights[-1][0] + weights[-1][1] - y) ** 2)
    def step(weights, x, y):
        gradient = m.grad(loss)(weights, x, y)
        return m.tree_util.tree_map(lambda w, g: w - 0.1 * g, weights, gradient)
    return m.jit(step), (weights, normal(128, 64), normal(128, 10))
def transformer():
    width, heads, length = 64, 4, 32
    layers = [[normal(width, 3 * width), normal(width, width), normal(width, 4 * width), normal(4 * width, width)]
              for _ in range(2)]
    def norm(x):
        x = x - x.mean(-1, keepdims=True)
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    def loss(weights, tokens):
        embedding, layers = weights
        x = embedding[tokens]
        for qkv, out, up, down in layers:
            q, k, v = (jnp.moveaxis(a.reshape(4, length, heads, -1), 2, 1) for a in jnp.split(norm(x) @ qkv, 3, -1))
            scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), q @ jnp.swapaxes(k, -1, -2) / 4, -1e9)
            mixed = jnp.moveaxis(m.nn.softmax(scores) @ v, 1, 2).reshape(x.shape)
            x = x + mixed @ out
            x = x + m.nn.gelu(norm(x) @ up) @ down
        logits = m.nn.log_softmax((x @ embedding.T)[:, :-1])
        return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()
    return m.jit(m.value_and_grad(loss)), ((normal(100, width), layers), rng.integers(0, 100, (4, length)))
fun, args = globals()[sys.argv[2]]()
args = m.tree_util.tree_map(jnp.asarray, args)
begun = time.perf_counter()
m.block_until_ready(fun(*args))
print(1e3 * (imported - start), 1e3 * (time.perf_counter() - begun))
"""


IMPORTS = {"import anima": "import anima as m, anima.numpy as jnp",
           "import jax, installed": "import anima.dropin; anima.dropin.install(); import jax as m, jax.numpy as jnp",
           "import jax, packages": f"sys.path[:0] = {FOLDERS}; import jax as m, jax.numpy as jnp"}
FACADE = """
import sys, time
start = time.process_time()
{}
imported = time.process_time()
f = m.jit(lambda x, y: x * y + 1)
x = jnp.ones(10)
times = []
for _ in range(40):
    begun = time.perf_counter()
    for _ in range(1000):
        f(x, x)
    times.append(time.perf_counter() - begun)
print(1e3 * (imported - start), 1e3 * min(times))
"""


def run(library: str, program: str, folder: str) -> tuple[float, float]:
    """Milliseconds that importing and the first call take in a new process; `folder` "": nothing is kept."""
    kept = {"ANIMA_ENABLE_COMPILATION_CACHE": str(int(bool(folder))), "ANIMA_CACHE_DIR": folder}
    if library == "jax" and folder:
        kept = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    settings = {**os.environ, **kept}
    settings.pop("PYTHONDONTWRITEBYTECODE", None)  # or modules that nobody installed are compiled again each time
    out = subprocess.run([sys.executable, "-c", PROGRAM, library, program], check=True, capture_output=True, text=True,
                         env=settings).stdout.split()
    return float(out[0]), float(out[1])


def main(rounds: int = 7) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ways = [(f"{library}, {what}", library, os.path.join(folder, library) if kept else "")
                for library in ("anima", *(["jax"] if HAVE_JAX else []))
                for what, kept in (("nothing compiled before", False), ("compiled before", True))]
        for program in ("trivial", "mlp", "transformer"):
            times: dict[str, list[tuple[float, float]]] = {name: [] for name, *_ in ways}
            for k in range(rounds + 1):  # the first fills the folders
                for name, library, kept in ways:
                    found = run(library, program, kept)
                    if k:
                        times[name].append(found)
            for name, found_ in times.items():
                imports, first = (statistics.median(t) for t in zip(*found_, strict=True))
                print(f"{program:12s} {name:32s} import {imports:7.1f} ms   first call {first:8.1f} ms", flush=True)


def facade(rounds: int = 25) -> None:
    """Prints what `import jax` costs that finds Anima, and a call: processes in turn, least and median."""
    settings = {**os.environ}
    settings.pop("PYTHONDONTWRITEBYTECODE", None)
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in IMPORTS}
    for k in range(rounds + 1):  # the first compiles modules
        for name, imports in IMPORTS.items():
            out = subprocess.run([sys.executable, "-c", FACADE.format(imports)], check=True, capture_output=True,
                                 text=True, env=settings).stdout.split()
            if k:
                times[name].append(tuple(map(float, out)))
    base = [(min(t), statistics.median(t)) for t in zip(*times["import anima"], strict=True)]
    for name, found in times.items():
        text = f"{name:24s}"
        for what, unit, t, (least, median) in zip(("import", "call"), ("ms", "us"), zip(*found, strict=True), base,
                                                  strict=True):
            text += (f"  {what} {min(t):8.3f} {unit} {100 * min(t) / least - 100:+5.1f} %"
                     f" (medians {100 * statistics.median(t) / median - 100:+5.1f} %)")
        print(text, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["facade"]:
        facade(*map(int, sys.argv[2:]))
    else:
        main(*map(int, sys.argv[1:]))
