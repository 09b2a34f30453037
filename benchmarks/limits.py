"""What this machine can do: seconds for reading and writing so many bytes, and for so many multiplications.

Measured by a small C program, where there is a compiler for it: every thread streams its part of the arrays by vectors,
with ordinary stores and with those past the caches, and the quicker counts; arrays that fit a cache stay in it, as
those of a benchmark do. Operations are independent multiply-adds in registers. Without a compiler there are no limits.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

PROGRAM = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef float V __attribute__((vector_size(WIDTH), aligned(WIDTH)));
enum { LANES = WIDTH / 4, SUMS = 12, ROUNDS = 7, CHUNK = 16 };
static size_t reads, writes;                 /* vectors of each array */
static V *source, *target;
static int threads, past, work;
static double operations;
static volatile float kept[256];
static double begun[256], ended[256];
static pthread_barrier_t barrier;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static V streamed(size_t r0, size_t r1, size_t w0, size_t w1) {
    V sums[4] = {{0}};
    size_t r = r0, w = w0, n = r1 - r0, m = w1 - w0, steps = (n > m ? n : m) / CHUNK + 1;
    for (size_t s = 1; s <= steps; s++) {    /* reading and writing go on side by side */
        size_t re = r0 + n * s / steps, we = w0 + m * s / steps;
        for (; r + 4 <= re; r += 4)
            for (int i = 0; i < 4; i++) sums[i] += source[r + i];
        for (; r < re; r++) sums[0] += source[r];
        V x = sums[0];
        if (past) for (; w < we; w++) STREAM(target + w, x);
        else for (; w < we; w++) target[w] = x;
    }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

static V multiplied(long steps) {
    V sums[SUMS] = {{0}}, x, y;
    for (int i = 0; i < LANES; i++) x[i] = 0.5f + i, y[i] = 0.999f;
    for (int i = 0; i < SUMS; i++) sums[i][0] = i;   /* equal sums would be one to the compiler */
    for (long s = 0; s < steps; s++) {
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++) sums[i] = sums[i] * y + x;
    }
    for (int i = 1; i < SUMS; i++) sums[0] += sums[i];
    return sums[0];
}

static void *worker(void *at) {
    long k = (long)at;
    for (int round = 0; round < work; round++) {
        pthread_barrier_wait(&barrier);
        begun[k] = now();
        V got = operations > 0 ? multiplied((long)(operations / (2.0 * LANES * SUMS) / threads) + 1)
                               : streamed(reads * k / threads, reads * (k + 1) / threads,
                                          writes * k / threads, writes * (k + 1) / threads);
        kept[k] = got[0];
        ended[k] = now();
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);      /* the times have been read */
    }
    return 0;
}

static double measured(void) {
    pthread_t others[256];
    double best = 1e30;
    pthread_barrier_init(&barrier, 0, threads + 1);
    for (long k = 0; k < threads; k++) pthread_create(&others[k], 0, worker, (void *)k);
    for (int round = 0; round < work; round++) {
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        double first = begun[0], last = ended[0];
        for (int k = 1; k < threads; k++) {
            if (begun[k] < first) first = begun[k];
            if (ended[k] > last) last = ended[k];
        }
        if (last - first < best) best = last - first;
        pthread_barrier_wait(&barrier);
    }
    for (long k = 0; k < threads; k++) pthread_join(others[k], 0);
    return best;
}

int main(int count, char **given) {          /* bytes read, bytes written, operations, threads */
    reads = strtoull(given[1], 0, 10) / sizeof(V), writes = strtoull(given[2], 0, 10) / sizeof(V);
    operations = atof(given[3]), threads = atoi(given[4]);
    if (count != 5 || threads < 1 || threads > 256) return 2;
    source = aligned_alloc(4096, (reads * sizeof(V) / 4096 + 1) * 4096);
    target = aligned_alloc(4096, (writes * sizeof(V) / 4096 + 1) * 4096);
    memset(source, 0, reads * sizeof(V)), memset(target, 0, writes * sizeof(V));
    work = 3 * ROUNDS;
    double best = measured();
    if (operations <= 0) {
        past = 1;
        double streaming = measured();
        if (streaming < best) best = streaming;
    }
    printf("%.9g\n", best);
    return 0;
}
"""
_FOLDER = tempfile.TemporaryDirectory(prefix="limits-")  # as long as this process
WIDTHS = {"avx512f": 64, "avx2": 32}


def _width() -> int:
    """Bytes of this machine's vectors, as its kernel tells; 16 where it does not."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return 16
    return next((width for flag, width in WIDTHS.items() if flag in flags), 16)


@cache
def _program() -> str | None:
    """The compiled program; None where there is no C compiler, or it cannot compile this."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    folder = Path(_FOLDER.name)
    (folder / "limits.c").write_text(PROGRAM)
    width = _width()
    stream = "*(p) = (x)"
    head = ""
    if platform.machine() in ("x86_64", "AMD64"):
        name = {64: "_mm512_stream_ps", 32: "_mm256_stream_ps", 16: "_mm_stream_ps"}[width]
        kind = {64: "__m512", 32: "__m256", 16: "__m128"}[width]
        stream, head = f"{name}((float *)(p), ({kind})(x))", "#include <immintrin.h>\n"
    (folder / "head.h").write_text(f"{head}#define STREAM(p, x) {stream}\n")
    done = subprocess.run([compiler, "-O3", "-march=native", f"-DWIDTH={width}", "-include", str(folder / "head.h"),
                           str(folder / "limits.c"), "-o", str(folder / "limits"), "-pthread"], capture_output=True)
    return str(folder / "limits") if done.returncode == 0 else None


def _seconds(read: int, written: int, operations: float, threads: int) -> float | None:
    program = _program()
    if program is None:
        return None
    done = subprocess.run([program, str(read), str(written), str(operations), str(threads)],
                          capture_output=True, text=True)
    return float(done.stdout) if done.returncode == 0 else None


@cache
def streaming(read: int, written: int) -> float | None:
    """Seconds for reading and writing so many bytes, with one thread or one a core, whichever is quicker."""
    found = [_seconds(read, written, 0, n) for n in {1, cores()}]
    return min((s for s in found if s is not None), default=None)


@cache
def operations_in_a_second() -> float | None:
    """Additions and multiplications of float32, all cores at work."""
    count = 2e9 * cores()
    found = _seconds(0, 0, count, cores())
    return None if found is None else count / found


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def least(read: int, written: int, operations: float) -> float | None:
    """The least seconds that work can take here: bytes read and written once, operations on float32 done."""
    moving, peak = streaming(read, written), operations_in_a_second()
    return None if moving is None or peak is None else max(moving, operations / peak)
