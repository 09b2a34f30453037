"""The thread pool: Python threads parked in native code, which compiled programs hand pieces of loops to.

    parallel_for(pool, body, ctx, n, grain)      body(ctx, begin, end) over pieces of 0 <= i < n

The code of the pool is LLVM of ours. A worker is a daemon thread that called `worker` once (ctypes let
the GIL go); it watches the job number for a short while, then sleeps on it. The caller takes pieces
itself and never waits for a worker that has not yet come: whoever arrives late finds the job closed. Workers take over
the caller's mode of arithmetic (whether subnormal results become 0).
A piece is half of a thread's share of what is left: pieces are few, and the last ones small (guided self-scheduling:
Polychronopoulos and Kuck, 1987). Where another program has one of the cores, all threads end at about the same time.
One job runs at a time: a call from inside a job, or from a second thread meanwhile, runs serially.
A worker that finds itself on the caller's core moves to another: Linux may leave both on one for long.

Workers start with the first parallel program, as many as the system gives; a forked child starts its own. Windows has
none of what a pool is made of here: one thread runs everything there.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable

from anima import granted
from anima.compiler.machine import native
from anima.util import fork_safe, logger, once

# Offsets into the pool's memory, in bytes; what different threads write lies on different cache lines.
_FIELDS = {"parallel_for": 0, "threads": 8, "spins": 16, "busy": 128, "generation": 256, "open": 260, "active": 384,
           "sleepers": 388, "stop": 392, "core": 396, "next": 512, "body": 640, "ctx": 648, "n": 656, "least": 664,
           "mode": 672, "mutex": 768, "condition": 896}
_SIZE = 1024
_SPINS = 3000  # about 50 to 100 us of watching before a worker sleeps
_PIECES = 8    # a thread's share of a loop in its least pieces: the last ones even out what is uneven
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_PAUSE = {"x86_64": "call void @llvm.x86.sse2.pause()", "amd64": "call void @llvm.x86.sse2.pause()",
          "aarch64": "call void @llvm.aarch64.hint(i32 1)", "arm64": "call void @llvm.aarch64.hint(i32 1)"}

_CODE = """
declare void @llvm.x86.sse2.pause()
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.aarch64.hint(i32)
declare i32 @sched_yield()

define internal void @drain(ptr %pool) {
  %next = getelementptr i8, ptr %pool, i64 {next}
  %body.at = getelementptr i8, ptr %pool, i64 {body}
  %ctx.at = getelementptr i8, ptr %pool, i64 {ctx}
  %n.at = getelementptr i8, ptr %pool, i64 {n}
  %least.at = getelementptr i8, ptr %pool, i64 {least}
  %threads.at = getelementptr i8, ptr %pool, i64 {threads}
  %body = load ptr, ptr %body.at
  %ctx = load ptr, ptr %ctx.at
  %n = load i64, ptr %n.at
  %least = load i64, ptr %least.at
  %threads = load i64, ptr %threads.at
  %shares = shl i64 %threads, 1
  br label %more
more:
  %begin = load atomic i64, ptr %next monotonic, align 8
  br label %try
try:
  %from = phi i64 [ %begin, %more ], [ %seen, %retry ]
  %left = sub i64 %n, %from
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %take, label %done
take:
  %share = udiv i64 %left, %shares
  %size = call i64 @llvm.smax.i64(i64 %share, i64 %least)
  %past = add i64 %from, %size
  %end = call i64 @llvm.smin.i64(i64 %past, i64 %n)
  %pair = cmpxchg ptr %next, i64 %from, i64 %end monotonic monotonic
  %seen = extractvalue { i64, i1 } %pair, 0
  %ours = extractvalue { i64, i1 } %pair, 1
  br i1 %ours, label %run, label %retry
retry:
  br label %try
run:
  call void %body(ptr %ctx, i64 %from, i64 %end)
  br label %more
done:
  ret void
}
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

define void @parallel_for(ptr %pool, ptr %body, ptr %ctx, i64 %n, i64 %grain) {
  %alone = icmp eq ptr %pool, null
  %little = icmp sle i64 %n, %grain
  %no = or i1 %alone, %little
  br i1 %no, label %serial, label %acquire
serial:
  call void %body(ptr %ctx, i64 0, i64 %n)
  ret void
acquire:
  %busy = getelementptr i8, ptr %pool, i64 {busy}
  %pair = cmpxchg ptr %busy, i32 0, i32 1 acq_rel monotonic
  %ours = extractvalue { i32, i1 } %pair, 1
  br i1 %ours, label %publish, label %serial
publish:
  %threads.at = getelementptr i8, ptr %pool, i64 {threads}
  %threads = load i64, ptr %threads.at
  %shares = mul i64 %threads, {pieces}
  %over = add i64 %n, %shares
  %over1 = sub i64 %over, 1
  %share = udiv i64 %over1, %shares
  %least = call i64 @llvm.smax.i64(i64 %share, i64 %grain)
  %body.at = getelementptr i8, ptr %pool, i64 {body}
  %ctx.at = getelementptr i8, ptr %pool, i64 {ctx}
  %n.at = getelementptr i8, ptr %pool, i64 {n}
  %least.at = getelementptr i8, ptr %pool, i64 {least}
  %next = getelementptr i8, ptr %pool, i64 {next}
  %open = getelementptr i8, ptr %pool, i64 {open}
  %active = getelementptr i8, ptr %pool, i64 {active}
  %generation = getelementptr i8, ptr %pool, i64 {generation}
  %sleepers.at = getelementptr i8, ptr %pool, i64 {sleepers}
  store ptr %body, ptr %body.at
  store ptr %ctx, ptr %ctx.at
  store i64 %n, ptr %n.at
  store i64 %least, ptr %least.at
  store atomic i64 0, ptr %next monotonic, align 8
  %mode = getelementptr i8, ptr %pool, i64 {mode}
  {note mode}
  call void @note_core(ptr %pool)
  store atomic i32 1, ptr %open seq_cst, align 4
  %number = atomicrmw add ptr %generation, i32 1 seq_cst
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %asleep = icmp sgt i32 %sleepers, 0
  br i1 %asleep, label %rouse, label %work
rouse:
  call void @wake(ptr %pool)
  br label %work
work:
  call void @drain(ptr %pool)
  store atomic i32 0, ptr %open seq_cst, align 4
  br label %watch
watch:
  %tries = phi i32 [ 0, %work ], [ %tries1, %again ]
  %left = load atomic i32, ptr %active seq_cst, align 4
  %clear = icmp eq i32 %left, 0
  br i1 %clear, label %release, label %patience
patience:
  %tries1 = add i32 %tries, 1
  %long = icmp ugt i32 %tries1, 2000
  br i1 %long, label %yield, label %pause
pause:
  {pause}
  br label %again
yield:
  %ignored = call i32 @sched_yield()
  br label %again
again:
  br label %watch
release:
  store atomic i32 0, ptr %busy release, align 4
  ret void
}

define void @worker(ptr %pool) {
  %allowed = alloca [1024 x i8], align 8
  call void @learn_cores(ptr %allowed)
  %generation = getelementptr i8, ptr %pool, i64 {generation}
  %open.at = getelementptr i8, ptr %pool, i64 {open}
  %active = getelementptr i8, ptr %pool, i64 {active}
  %stop.at = getelementptr i8, ptr %pool, i64 {stop}
  %sleepers = getelementptr i8, ptr %pool, i64 {sleepers}
  %spins.at = getelementptr i8, ptr %pool, i64 {spins}
  %spins = load i64, ptr %spins.at
  br label %idle
idle:
  %last = phi i32 [ 0, %0 ], [ %number, %leave ]
  br label %watch
watch:
  %count = phi i64 [ 0, %idle ], [ %count1, %pause ], [ 0, %sleep ]
  %number = load atomic i32, ptr %generation seq_cst, align 4
  %new = icmp ne i32 %number, %last
  br i1 %new, label %come, label %wait
wait:
  %count1 = add i64 %count, 1
  %tired = icmp sgt i64 %count1, %spins
  br i1 %tired, label %sleep, label %pause
pause:
  {pause}
  br label %watch
sleep:
  %before = atomicrmw add ptr %sleepers, i32 1 seq_cst
  call void @wait(ptr %pool, i32 %last)
  %after = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %watch
come:
  %stop = load atomic i32, ptr %stop.at seq_cst, align 4
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %end, label %enter
enter:
  %in = atomicrmw add ptr %active, i32 1 seq_cst
  %open = load atomic i32, ptr %open.at seq_cst, align 4
  %work = icmp ne i32 %open, 0
  br i1 %work, label %run, label %leave
run:
  %mode = getelementptr i8, ptr %pool, i64 {mode}
  {take mode}
  call void @drain(ptr %pool)
  br label %leave
leave:
  %out = atomicrmw sub ptr %active, i32 1 seq_cst
  call void @leave_core(ptr %pool, ptr %allowed)
  br label %idle
end:
  ret void
}

define void @shutdown(ptr %pool) {
  %generation = getelementptr i8, ptr %pool, i64 {generation}
  %stop = getelementptr i8, ptr %pool, i64 {stop}
  store atomic i32 1, ptr %stop seq_cst, align 4
  %number = atomicrmw add ptr %generation, i32 1 seq_cst
  call void @wake(ptr %pool)
  ret void
}
"""

_FUTEX_CODE = """
declare i64 @syscall(i64, ...)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

define internal void @note_core(ptr %pool) {
  %core.at = getelementptr i8, ptr %pool, i64 {core}
  %core = call i32 @sched_getcpu()
  store atomic i32 %core, ptr %core.at monotonic, align 4
  ret void
}
define internal void @learn_cores(ptr %allowed) {
  call void @llvm.memset.p0.i64(ptr %allowed, i8 0, i64 1024, i1 false)
  %size = call i32 @sched_getaffinity(i32 0, i64 1024, ptr %allowed)
  ret void
}
define internal void @leave_core(ptr %pool, ptr %allowed) {
  %others = alloca [1024 x i8], align 8
  %core.at = getelementptr i8, ptr %pool, i64 {core}
  %caller = load atomic i32, ptr %core.at monotonic, align 4
  %core = call i32 @sched_getcpu()
  %same = icmp eq i32 %core, %caller
  %known = icmp ult i32 %core, 8192
  %move = and i1 %same, %known
  br i1 %move, label %ask, label %done
ask:
  call void @llvm.memcpy.p0.p0.i64(ptr %others, ptr %allowed, i64 1024, i1 false)
  %byte = lshr i32 %core, 3
  %bit = and i32 %core, 7
  %at = getelementptr i8, ptr %others, i32 %byte
  %old = load i8, ptr %at
  %bit8 = trunc i32 %bit to i8
  %one = shl i8 1, %bit8
  %keep = xor i8 %one, -1
  %new = and i8 %old, %keep
  store i8 %new, ptr %at
  %moved = call i32 @sched_setaffinity(i32 0, i64 1024, ptr %others)
  br label %done
done:
  ret void
}
define internal void @wait(ptr %pool, i32 %last) {
  %generation = getelementptr i8, ptr %pool, i64 {generation}
  %r = call i64 (i64, ...) @syscall(i64 {futex}, ptr %generation, i32 128, i32 %last, ptr null)
  ret void
}
define internal void @wake(ptr %pool) {
  %generation = getelementptr i8, ptr %pool, i64 {generation}
  %r = call i64 (i64, ...) @syscall(i64 {futex}, ptr %generation, i32 129, i32 2147483647)
  ret void
}
"""

# Elsewhere: a mutex and a condition, in room enough for any system's.
_PTHREAD_CODE = """
define internal void @note_core(ptr %pool) {
  ret void
}
define internal void @learn_cores(ptr %allowed) {
  ret void
}
define internal void @leave_core(ptr %pool, ptr %allowed) {
  ret void
}
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
define internal void @wait(ptr %pool, i32 %last) {
  %generation = getelementptr i8, ptr %pool, i64 {generation}
  %mutex = getelementptr i8, ptr %pool, i64 {mutex}
  %condition = getelementptr i8, ptr %pool, i64 {condition}
  %a = call i32 @pthread_mutex_lock(ptr %mutex)
  br label %check
check:
  %number = load atomic i32, ptr %generation seq_cst, align 4
  %same = icmp eq i32 %number, %last
  br i1 %same, label %sleep, label %done
sleep:
  %b = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %check
done:
  %c = call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}
define internal void @wake(ptr %pool) {
  %mutex = getelementptr i8, ptr %pool, i64 {mutex}
  %condition = getelementptr i8, ptr %pool, i64 {condition}
  %a = call i32 @pthread_mutex_lock(ptr %mutex)
  %b = call i32 @pthread_cond_broadcast(ptr %condition)
  %c = call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}
"""


def pool_code(sleep: str) -> str:
    """The LLVM text of the pool, whose workers sleep by "futex" or "pthread"."""
    machine = platform.machine().lower()
    is_x86 = machine in ("x86_64", "amd64")
    code = _CODE + (_FUTEX_CODE if sleep == "futex" else _PTHREAD_CODE)
    unused = "llvm.aarch64" if is_x86 else "llvm.x86"
    lines = [line for line in code.splitlines() if not (line.startswith("declare") and unused in line)]
    pause = _PAUSE.get(machine, "; no pause instruction")
    note, take = (f"call void @llvm.x86.sse.{name}mxcsr(ptr %mode)" if is_x86 else "" for name in ("st", "ld"))
    values = _FIELDS | {"pieces": _PIECES, "pause": pause, "futex": _FUTEX.get(machine, 0), "note mode": note,
                        "take mode": take}
    text = "\n".join(lines)
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return text


def _best_sleep() -> str | None:
    """How workers sleep on this system; None where there can be no workers."""
    if sys.platform == "win32":
        return None
    return "futex" if sys.platform == "linux" and platform.machine().lower() in _FUTEX else "pthread"


@once
def _module(sleep: str) -> native.Module:
    return native.load(pool_code(sleep), level=0)  # the time to compile is all that can be noticed


def _work(worker: Callable[[int], None], pool: Pool) -> None:
    worker(pool.address)  # here is the pool, whose memory has to stay as long as the worker


class Pool:
    """`threads - 1` workers; `address` is what compiled programs take: 0 if there are no workers."""

    def __init__(self, threads: int, sleep: str | None = None, spins: int = _SPINS):
        self.threads = threads
        self.address = 0
        self._workers: list[threading.Thread] = []
        sleep = sleep or _best_sleep()
        if threads == 1 or sleep is None:
            return
        self._module = _module(sleep)
        self._memory = ctypes.create_string_buffer(_SIZE + 128)
        self.address = (ctypes.addressof(self._memory) + 127) // 128 * 128
        if sleep == "pthread":
            system = ctypes.CDLL(None)
            system.pthread_mutex_init(ctypes.c_void_p(self.address + _FIELDS["mutex"]), None)
            system.pthread_cond_init(ctypes.c_void_p(self.address + _FIELDS["condition"]), None)
        self._word("parallel_for", self._module.address("parallel_for"))
        self._word("threads", threads)
        self._word("spins", spins)
        worker = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._module.address("worker"))
        try:
            for i in range(1, threads):
                thread = threading.Thread(target=_work, args=(worker, self), daemon=True, name=f"anima-{i}")
                thread.start()
                self._workers.append(thread)
        except RuntimeError as error:  # the system gives no more threads: those that there are do the work
            logger().warning("%d of %d threads could not be started (%s): programs run without them", threads - i,
                             threads, error)
        except BaseException:  # a signal
            self.close()
            raise

    def _word(self, field: str, value: int) -> None:
        ctypes.c_int64.from_address(self.address + _FIELDS[field]).value = value

    def close(self) -> None:
        """Ends the workers; the pool must be idle."""
        if not self._workers:
            return
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._module.address("shutdown"))(self.address)
        for thread in self._workers:
            thread.join(timeout=1.0)


# --- The process's pool ----------------------------------------------------------------------

_lock = fork_safe(threading.RLock())
_pool: Pool | None = None
_pools: dict[int, Pool] = {}  # by the number of threads; never freed: a program that is running may hold the address
pool_cell = ctypes.c_int64(-1)  # the running pool's address, for native code; -1: `pool_address` has to start one
_wanted: int | None = None


def num_threads() -> int:
    """How many threads programs use: ANIMA_NUM_THREADS, or as many as there are cores for this process."""
    if _wanted is not None:
        return _wanted
    text = os.environ.get("ANIMA_NUM_THREADS")
    if text:
        if not text.isdigit() or int(text) < 1:
            raise ValueError(f"ANIMA_NUM_THREADS must be a positive integer, got {text!r}")
        return int(text)
    return granted.cores()


def set_num_threads(threads: int | None) -> None:
    """Use this many threads from now on; None: as many as there are cores. ValueError if it is not positive."""
    global _wanted, _pool
    if threads is not None and threads < 1:
        raise ValueError(f"the number of threads must be positive, got {threads}")
    with _lock:
        _wanted = threads
        _pool = None
        pool_cell.value = -1


def pool_address() -> int:
    """The address of the running pool, started if need be; 0 (null) where there is one thread only."""
    return (_pool or _start()).address


def _start() -> Pool:
    global _pool
    with _lock:
        if _pool is None:
            threads = num_threads()
            if threads not in _pools:
                _pools[threads] = Pool(threads)
            _pool = _pools[threads]
            pool_cell.value = _pool.address
        return _pool


def _close_at_exit() -> None:
    for pool in _pools.values():
        pool.close()


def _forget_after_fork() -> None:
    # The workers are the parent's. Their memory stays: the fork may have happened inside of a job.
    global _pool
    _of_parents.extend(_pools.values())
    _pools.clear()
    _pool = None
    pool_cell.value = -1


_of_parents: list[Pool] = []
atexit.register(_close_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
