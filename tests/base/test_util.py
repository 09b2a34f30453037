"""The small tools: strict zips, splitting, merging, names."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from anima import util


def test_splitting():
    assert util.split_list([1, 2, 3, 4], [1, 2]) == [[1], [2, 3], [4]]
    assert util.split_list((), []) == [[]]
    with pytest.raises(ValueError, match="cannot split 2 items"):
        util.split_list([1, 2], [3])


def test_names():
    class Callable:
        def __call__(self):
            pass

    assert util.fun_name(functools.partial(functools.partial(max, 1), 2)) == "max"
    assert util.fun_name(lambda: 0) == "<lambda>"
    assert util.fun_name(Callable()) == "Callable"
    assert util.fun_name(str.upper) == "upper"


def test_by_identity():
    one, other = [1], [1]
    assert util.ByIdentity(one) == util.ByIdentity(one)
    assert util.ByIdentity(one) != util.ByIdentity(other)
    assert len({util.ByIdentity(one), util.ByIdentity(one), util.ByIdentity(other)}) == 2


@util.record
class Point:
    """A point with a note."""

    x: int
    y: Any = 2
    note: str = field(default="", compare=False)
    hidden: int = field(default=0, repr=False)

    def norm(self) -> int:
        return abs(self.x) + abs(self.y)


@util.record
class Point3(Point):
    z: int = 0


@util.record(eq=False)
class Node:
    next: Any


@dataclass(frozen=True, slots=True)
class Twin:
    """A point with a note."""

    x: int
    y: Any = 2
    note: str = field(default="", compare=False)
    hidden: int = field(default=0, repr=False)


def test_records_are_as_frozen_dataclasses_with_slots():
    for made in (Point, Twin):
        p = made(1, note="a")
        assert p == made(1, 2, "b") and hash(p) == hash(made(1)) and p != made(2) and p != (1, 2)
        assert repr(p) == f"{made.__name__}(x=1, y=2, note='a')"
        assert replace(p, x=5, hidden=3) == made(5, 2, "a", 3) and [f.name for f in fields(p)] == [
            "x", "y", "note", "hidden"]
        assert made.__match_args__ == ("x", "y", "note", "hidden") and made.__doc__ == "A point with a note."
        assert not hasattr(p, "__dict__") and is_dataclass(made)
        for other in (copy.copy(p), copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
            assert other == p and other.note == "a" and type(other) is made
        with pytest.raises(FrozenInstanceError):
            p.x = 3
        with pytest.raises(FrozenInstanceError):
            del p.x
        with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument: 'x'"):
            made()
        with pytest.raises(TypeError, match="unexpected keyword argument 'w'"):
            made(1, w=2)
    match Point(3, 4):
        case Point(x, y):
            assert (x, y) == (3, 4)
    assert Point(-3, 4).norm() == 7 and Point.__init__.__qualname__ == "Point.__init__"


def test_records_inherit():
    p = Point3(1, z=4)
    assert (p.x, p.y, p.z, p.norm()) == (1, 2, 4, 3) and p == Point3(1, 2, z=4) and p != Point(1)
    assert repr(p) == "Point3(x=1, y=2, note='', z=4)" and not hasattr(p, "__dict__")


def test_records_by_identity():
    a = Node(None)
    assert a == a and a != Node(None) and weakref.ref(a)() is a and {a: 1}[a] == 1


def test_records_have_no_factories():
    with pytest.raises(TypeError, match="no default factories"):
        @util.record
        class Bad:
            items: list = field(default_factory=list)


def test_fields_with_defaults_come_last():
    with pytest.raises(TypeError, match="without a default follows"):
        @util.record
        class Bad:
            a: int = 1
            b: int


def test_lazy_modules_load_late_and_stay_current():
    code = ("import sys; from anima.util import lazy_module; late = lazy_module('wave')\n"
            "assert 'wave' not in sys.modules\n"
            "import_error = late.Error; import wave; wave.extra = 3; assert late.extra == 3; wave.extra = 4\n"
            "assert late.extra == 4\n"
            "try: late.nothing\n"
            "except AttributeError as e: assert 'nothing' in str(e)\n"
            "else: raise SystemExit(1)")
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


def test_what_import_anima_does_not_load():
    late = ["optree", "llvmlite", "scipy", "anima.numpy", "anima.lax", "anima.random", "anima.compiler.driver"]
    code = (f"import sys, anima; late = {late}; assert not [m for m in late if m in sys.modules]\n"
            "y = anima.jit(lambda x: x)(1.0); assert 'anima.numpy' not in sys.modules; assert float(y + 1) == 2.0\n"
            "assert anima.lax.sin and 'random' in dir(anima) and not hasattr(anima, 'nothing')")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_locks_are_free_in_a_child() -> None:
    code = """
import os, threading, warnings
from anima import util
warnings.simplefilter("ignore")
lock = util.fork_safe(threading.Lock())
lock.acquire()
child = os.fork()
if child == 0:
    os._exit(0 if lock.acquire(blocking=False) else 3)
assert lock.locked() and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_once_makes_one_for_all_threads() -> None:
    made, barrier = [], threading.Barrier(8)

    @util.once
    def thing(key: str) -> object:
        made.append(key)
        time.sleep(0.02)
        return object()

    def ask() -> tuple[object, object]:
        barrier.wait()
        return thing("a"), thing("b")

    with ThreadPoolExecutor(8) as pool:
        found = [future.result() for future in [pool.submit(ask) for _ in range(8)]]
    assert len(set(found)) == 1 and sorted(made) == ["a", "b"]
    thing.cache_clear()  # type: ignore[attr-defined]
    assert thing("a") is not found[0][0]


def test_once_within_itself_and_after_an_exception() -> None:
    calls: list[int] = []

    @util.once
    def thing(depth: int = 0) -> list[int]:
        calls.append(depth)
        if len(calls) == 1:
            raise ValueError("not yet")
        return thing() if len(calls) == 2 else [len(calls)]

    with pytest.raises(ValueError, match="not yet"):
        thing()
    first = thing()
    assert first == [3] and thing() is first and len(calls) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_once_in_a_child_of_fork() -> None:
    code = """
import os, threading, time, warnings
from anima import util
warnings.simplefilter("ignore")
begun = threading.Event()
@util.once
def thing():
    begun.set()
    time.sleep(0.3)
    return os.getpid()
threading.Thread(target=thing).start()
begun.wait()
child = os.fork()
if child == 0:
    os._exit(0 if thing() == os.getpid() else 3)
assert os.waitpid(child, 0)[1] == 0 and thing() == os.getpid()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_lazy_module_is_whole_for_every_thread() -> None:
    code = """
import sys, threading
from anima.util import lazy_module
late, barrier, found = lazy_module("xml.dom.minidom"), threading.Barrier(8), []
def read():
    barrier.wait()
    found.append(late.parseString)
workers = [threading.Thread(target=read) for _ in range(8)]
for w in workers: w.start()
for w in workers: w.join()
assert len(found) == 8 and len(set(found)) == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_room_for_nested_calls_is_given_back_and_ends() -> None:
    before = sys.getrecursionlimit()
    with ExitStack() as blocks:
        limits = [blocks.enter_context(util.deeper()) or sys.getrecursionlimit() for _ in range(2000)]
    assert limits == sorted(limits) and limits[1000] == limits[-1] > before  # recursion without end meets a limit
    assert sys.getrecursionlimit() == before


def test_types_tell_zeros_of_every_sign_apart() -> None:
    zeros = [0, False, 0.0, -0.0, 0j, complex(0, -0.0), complex(-0.0, 0), complex(-0.0, -0.0),
             np.float32(0), np.float32(-0.0), np.float64(0), np.complex64(complex(0, -0.0)), np.int8(0),
             ml_dtypes.bfloat16(0), ml_dtypes.bfloat16(-0.0)]
    assert len({util.exact_type(z) for z in zeros}) == len(zeros)
    assert len({util.exact_type((1, (z,))) for z in zeros}) == len(zeros)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Ctrl-C is not a signal there")
@pytest.mark.parametrize("name", ["optree._C", "optree.ops", "optree.dataclasses"])
def test_an_interrupt_waits_for_a_module(name: str) -> None:
    code = f"""
import os, signal, sys
import anima
def interrupt(event, args):
    if event == "import" and args[0] == "{name}" and not came:
        came.append(args[0])
        os.kill(os.getpid(), signal.SIGINT)
came = []
sys.addaudithook(interrupt)
try:
    anima.tree.leaves([1, 2])
except KeyboardInterrupt:
    print(came, anima.tree.leaves([1, 2]), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"['{name}'] [1, 2] True\n", done.stderr
