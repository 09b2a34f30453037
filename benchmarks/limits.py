"""What this machine can do: a contestant that only reads and writes so many bytes, or only multiplies and adds.

A small C program, where there is a compiler for it: every thread streams its part of the arrays by vectors, with
ordinary stores or with those past the caches; operations are independent multiply-adds in registers. It is measured in
turn with what is compared to it, so that both find the caches, the clock and the neighbours' load as they are.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

PROGRAM = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef float V __attribute__((vector_size(WIDTH), aligned(WIDTH)));
enum { LANES = WIDTH / 4, SUMS = 12, CHUNK = 16, SPINS = 20000, HUGE = 1 << 21 };

typedef struct {
    V *source, *target;
    size_t reads, writes;                    /* vectors of each array */
    double operations;
    int threads, past;
    atomic_int round, left;                  /* begun so far; threads that are not done with it */
    pthread_mutex_t lock;
    pthread_cond_t begun;
    pthread_t others[256];
    volatile float kept[256];
} Work;
typedef struct { Work *work; int number; } Part;

static V streamed(Work *w, size_t r, size_t re, size_t t, size_t te) {
    V sums[4] = {{0}};
    size_t r0 = r, t0 = t, n = re - r, m = te - t, steps = (n > m ? n : m) / CHUNK + 1;
    for (size_t s = 1; s <= steps; s++) {    /* reading and writing go on side by side */
        size_t rs = r0 + n * s / steps, ts = t0 + m * s / steps;
        for (; r + 4 <= rs; r += 4)
            for (int i = 0; i < 4; i++) sums[i] += w->source[r + i];
        for (; r < rs; r++) sums[0] += w->source[r];
        V x = sums[0];
        if (w->past) for (; t < ts; t++) STREAM(w->target + t, x);
        else for (; t < ts; t++) w->target[t] = x;
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

static void part(Work *w, size_t k) {
    size_t n = w->threads;
    V got = w->operations > 0 ? multiplied((long)(w->operations / (2.0 * LANES * SUMS) / n) + 1)
                              : streamed(w, w->reads * k / n, w->reads * (k + 1) / n,
                                         w->writes * k / n, w->writes * (k + 1) / n);
    w->kept[k] = got[0];
}

static void *worker(void *given) {
    Part *own = given;
    Work *w = own->work;
    for (int seen = 0;; seen++) {
        for (int k = 0; atomic_load(&w->round) == seen && k < SPINS; k++) RELAX;
        pthread_mutex_lock(&w->lock);
        while (atomic_load(&w->round) == seen) pthread_cond_wait(&w->begun, &w->lock);
        pthread_mutex_unlock(&w->lock);
        if (atomic_load(&w->round) < 0) break;
        part(w, own->number);
        atomic_fetch_sub(&w->left, 1);
    }
    free(own);
    return 0;
}

static void begin(Work *w, int round) {
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->left, w->threads - 1);
    atomic_store(&w->round, round);
    pthread_cond_broadcast(&w->begun);
    pthread_mutex_unlock(&w->lock);
}

void run(Work *w) {
    begin(w, atomic_load(&w->round) + 1);
    part(w, 0);
    while (atomic_load(&w->left)) RELAX;
}

static V *array(size_t bytes) {
    void *found = aligned_alloc(HUGE, (bytes / HUGE + 1) * HUGE);
#ifdef MADV_HUGEPAGE
    madvise(found, (bytes / HUGE + 1) * HUGE, MADV_HUGEPAGE);
#endif
    return memset(found, 0, bytes);
}

Work *start(size_t read, size_t written, double operations, int threads, int past) {
    if (threads < 1 || threads > 256) return 0;
    Work *w = calloc(1, sizeof(Work));
    w->reads = read / sizeof(V), w->writes = written / sizeof(V);
    w->operations = operations, w->threads = threads, w->past = past;
    w->source = array(read), w->target = array(written);
    pthread_mutex_init(&w->lock, 0), pthread_cond_init(&w->begun, 0);
    for (int k = 1; k < threads; k++) {
        Part *own = malloc(sizeof(Part));
        *own = (Part){w, k};
        pthread_create(&w->others[k], 0, worker, own);
    }
    return w;
}

void stop(Work *w) {
    begin(w, -1);
    for (int k = 1; k < w->threads; k++) pthread_join(w->others[k], 0);
    free(w->source), free(w->target), free(w);
}
"""
_FOLDER = tempfile.TemporaryDirectory(prefix="limits-")  # as long as this process
WIDTHS = {"avx512f": 64, "avx2": 32}
ROUNDS = 21


def _width() -> int:
    """Bytes of this machine's vectors, as its kernel tells; 16 where it does not."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return 16
    return next((width for flag, width in WIDTHS.items() if flag in flags), 16)


@cache
def _library() -> ctypes.CDLL | None:
    """The compiled program; None where there is no C compiler, or it cannot compile this."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    source, built = Path(_FOLDER.name, "limits.c"), Path(_FOLDER.name, "limits.so")
    width = _width()
    stream, relax, head = "*(p) = (x)", "", ""
    if platform.machine() in ("x86_64", "AMD64"):
        name = {64: "_mm512_stream_ps", 32: "_mm256_stream_ps", 16: "_mm_stream_ps"}[width]
        kind = {64: "__m512", 32: "__m256", 16: "__m128"}[width]
        stream, relax, head = f"{name}((float *)(p), ({kind})(x))", "_mm_pause()", "#include <immintrin.h>\n"
    source.write_text(f"{head}#define STREAM(p, x) {stream}\n#define RELAX {relax}\n{PROGRAM}")
    done = subprocess.run([compiler, "-O3", "-march=native", f"-DWIDTH={width}", "-shared", "-fPIC", str(source),
                           "-o", str(built), "-pthread"], capture_output=True)
    if done.returncode:
        return None
    library = ctypes.CDLL(str(built))
    library.start.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_double, ctypes.c_int, ctypes.c_int]
    library.start.restype = ctypes.c_void_p
    library.run.argtypes = library.stop.argtypes = [ctypes.c_void_p]
    library.run.restype = library.stop.restype = None
    return library


class Bare:
    """Work of so many bytes or operations, without what it is for: each call does it once."""

    def __init__(self, read: int, written: int, operations: float, threads: int, past: bool) -> None:
        library = _library()
        assert library is not None
        self._run, self._stop = library.run, library.stop
        self._work = library.start(read, written, operations, threads, past)

    def __call__(self) -> None:
        self._run(self._work)

    def __del__(self) -> None:
        self._stop(self._work)


def _seconds(work: Bare) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _streaming(read: int, written: int) -> dict[Bare, float]:
    """With one thread or one a core, with ordinary stores or those past the caches: seconds of each."""
    ways = [Bare(read, written, 0, n, past) for n in sorted({1, cores()}) for past in (False, True)]
    return {way: _seconds(way) for way in ways}


@cache
def streaming(read: int, written: int) -> float | None:
    """Seconds for reading and writing so many bytes; None where no limits can be measured."""
    return None if _library() is None else min(_streaming(read, written).values())


def bare(read: int, written: int, operations: float) -> list[list[Bare]]:
    """What a piece of work cannot do without: its bytes, its operations on float32. It takes as long as the longest of
    these, each done in the quickest of some ways; ways that are clearly not are left out. Nothing where no limits can
    be measured."""
    if _library() is None:
        return []
    needs = [_streaming(read, written)]
    if operations:
        way = Bare(0, 0, operations, cores(), False)
        needs.append({way: _seconds(way)})
    longest = max(min(need.values()) for need in needs)
    return [[way for way, seconds in need.items() if seconds < 3 * min(need.values())]
            for need in needs if min(need.values()) > longest / 3]


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
