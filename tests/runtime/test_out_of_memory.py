"""Where the system gives no memory there is a MemoryError, not the end of the process; later programs run again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")

_BEGIN = """
import resource
import numpy as np
import anima, anima.numpy as jnp
from anima import lax

def limit(more):
    most = resource.RLIM_INFINITY
    if more is not None:  # to lift it takes no memory
        with open("/proc/self/status") as status:
            now = next(int(line.split()[1]) for line in status if line.startswith("VmSize")) << 10
        most = now + more
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

def attempt(function, *args):
    try:
        return str(np.asarray(function(*args)).flat[0])
    except MemoryError as error:
        return f"MemoryError: {error}"

"""


def _printed(code: str, **options: str) -> list[str]:
    """What a process prints, which may limit its memory."""
    given = {"ANIMA_ENABLE_COMPILATION_CACHE": "0", "ANIMA_CHECK": "0", "ANIMA_NUM_THREADS": "2", **options}
    done = subprocess.run([sys.executable, "-c", _BEGIN + code], capture_output=True, text=True, timeout=300,
                          env=os.environ | given)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# Rows of 200 KB come from the C library, which has pieces of 64 KB alone then; results are blocks used before.
_SCRATCH = """
def rows(x):
    return lax.map(lambda r: jnp.sort(r @ jnp.ones((50000,)) + r)[:30000], x)

def softmax(x):
    return anima.nn.softmax(x, 1)

def softmaxes(x):
    y = x
    for k in range(6):
        y = anima.nn.softmax(jnp.sin(y * (k + 2.0)), 1)
    return y

def loop(x):
    return lax.fori_loop(0, 1 << 30, lambda i, y: anima.nn.softmax(y * 1.5, 1), x)

x = jnp.ones((40, 50000))
lowered = [anima.jit(f).lower(x) for f in (softmax, softmaxes, rows, loop)]
assert all("@malloc(i64 " in one.llvm for one in lowered)
ready = [one.compile() for one in lowered]
before = [attempt(f, x) for f in ready[:-1]]
held, error = [], None
limit(1 << 20)
try:
    while True:
        held.append(bytearray(1 << 16))
except MemoryError:
    del held[::2]
results = [attempt(f, x) for f in ready]
limit(None)
del held
assert [attempt(f, x) for f in ready[:-1]] == before
print("\\n".join(results))
"""


@pytest.mark.parametrize("options", [{}, {"ANIMA_NUM_THREADS": "1"}, {"ANIMA_CHECK": "2"}])
def test_a_program_without_memory_for_its_rows_is_a_memory_error(options: dict[str, str]) -> None:
    results = _printed(_SCRATCH, **options)
    text = "MemoryError: out of memory: a compiled program got none for its intermediate results"
    assert results == [text] * 4 or ("ANIMA_CHECK" in options and {r.split()[0] for r in results} == {"MemoryError:"})


def test_the_stack_is_there_before_memory_is_short() -> None:
    # 124 KB of the stack, which begins with 132 of which half is taken
    code = """
compiled = anima.jit(lambda x: anima.nn.softmax(x, 1)[0, 3]).lower(x := jnp.ones((1, 31000))).compile()
limit(0)
result = attempt(compiled, x)
limit(None)
print(result == attempt(compiled, x) or result)
"""
    assert _printed(code, ANIMA_NUM_THREADS="1") in (["True"], ["MemoryError: "])


@pytest.mark.parametrize("more", [8, 100, 200, 230])
def test_a_compiler_without_memory_is_a_memory_error(more: int) -> None:
    code = f"""
limit({more} << 20)
f = anima.jit(lambda x: jnp.cumsum(jnp.sort(jnp.sin(x))))
results = [attempt(f, jnp.ones(50)) for _ in range(2)]
limit(None)
print(attempt(f, jnp.zeros(50)))
print("\\n".join(r for r in results if r.startswith("MemoryError")))
"""
    last, *errors = _printed(code)
    assert last == "0.0" and (errors or more == 230)


def test_a_library_without_memory_is_a_memory_error() -> None:
    code = """
anima.jit(lambda x: x + 1)(1.0)
limit(100 << 20)
print(attempt(jnp.linalg.norm, jnp.eye(80), 2))
limit(None)
print(attempt(jnp.linalg.norm, jnp.eye(80), 2))
"""
    error, norm = _printed(code)
    assert error.startswith("MemoryError: out of memory: OpenBLAS") and norm == "1.0"
