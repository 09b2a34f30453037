"""Where time goes: traces that https://ui.perfetto.dev opens, and what memory is used for.

    with anima.profiler.trace("/tmp/profile"):
        with anima.profiler.StepTraceAnnotation("train", step_num=0):
            step(batch)

A trace has, for each thread, what is traced and compiled (pass by pass), each call of a compiled program, its kernels
and loops with the line that asked for them, callbacks, and what annotations name. While one is taken, programs are
compiled in a form that notes times: functions that were compiled before are traced and compiled once more, at their
first call under the trace. Kernels of less than some microseconds, and those in loops, count as what is around them.
"""
from __future__ import annotations

import functools
import gzip
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from anima import errors as _errors
from anima.api.devices import devices, live_arrays
from anima.compiler import cache
from anima.config import profiling
from anima.runtime import stamps
from anima.spans import Event, recorder, span
from anima.util import fork_safe, record

F = TypeVar("F", bound=Callable[..., Any])
_lock = fork_safe(threading.Lock())


class _Profile:
    """One trace while it is taken."""

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self.folder = Path(log_dir) / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.events: list[Event] = []
        self.profiled = profiling.value
        self.notes = stamps.Notes() if stamps.AVAILABLE else None
        self.start = time.perf_counter_ns()
        profiling.set(stamps.AVAILABLE)
        recorder.events = self.events

    def stop(self) -> None:
        recorder.events = None
        profiling.set(self.profiled)
        more, lost = self.notes.stop() if self.notes is not None else ([], 0)
        with gzip.open(self.folder / "perfetto_trace.json.gz", "wt", compresslevel=4) as file:
            json.dump(self._trace([*self.events, *more], lost), file)

    def _trace(self, events: list[Event], lost: int) -> dict[str, Any]:
        """The trace in the format of Chrome's trace viewer, times in microseconds."""
        process = os.getpid()
        rows: list[dict[str, Any]] = [_meta("process_name", process, 0, f"anima {process}")]
        rows += [_meta("thread_name", process, thread.ident, thread.name) for thread in threading.enumerate()]
        rows += [{"ph": "X", "name": e.name, "cat": e.kind, "pid": process, "tid": e.thread,
                  "ts": (e.start - self.start) / 1e3, "dur": e.duration / 1e3, "args": e.details} for e in events]
        return {"displayTimeUnit": "ns", "traceEvents": rows, "otherData": {"notes without room": lost}}


def _meta(what: str, process: int, thread: int | None, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


_current: list[_Profile] = []


class ProfileOptions:
    """What a trace is to have. Anima's have everything: these options are kept, and have nothing to choose."""

    def __init__(self) -> None:
        self.host_tracer_level = 2
        self.python_tracer_level = 0
        self.start_timestamp_ns = 0
        self.duration_ms = 0
        self.session_id = self.repository_path = ""
        self.enable_hlo_proto = self.include_dataset_ops = self.raise_error_on_start_failure = False
        self.advanced_configuration: dict[str, Any] = {}


def start_trace(log_dir: str | os.PathLike[str], create_perfetto_link: bool = False,
                create_perfetto_trace: bool = False, profiler_options: ProfileOptions | None = None) -> None:
    """Starts a trace, which `stop_trace` writes to `log_dir/plugins/profile/TIME/perfetto_trace.json.gz`.

    Raises:
      RuntimeError: if one is being taken.
      NotImplementedError: for `create_perfetto_link`, which would need a server: open the file instead.
    """
    if create_perfetto_link:
        raise NotImplementedError("start_trace(create_perfetto_link=True): there is no server behind Anima's traces. "
                                  "Open the file that stop_trace writes at https://ui.perfetto.dev.")
    with _lock:
        if _current:
            raise RuntimeError("Profile has already been started. Only one profile may be run at a time.")
        _current.append(_Profile(log_dir))


def stop_trace() -> None:
    """Ends the trace and writes it; RuntimeError if none was started."""
    with _lock:
        if not _current:
            raise RuntimeError("No profile started")
        _current.pop().stop()


@contextmanager
def trace(log_dir: str | os.PathLike[str], create_perfetto_link: bool = False, create_perfetto_trace: bool = False,
          profiler_options: ProfileOptions | None = None) -> Iterator[None]:
    """`start_trace` before what is inside of the `with`, `stop_trace` after it."""
    start_trace(log_dir, create_perfetto_link, create_perfetto_trace, profiler_options)
    try:
        yield
    finally:
        stop_trace()


class TraceAnnotation(span):
    """A context manager that names what is in it in a trace, with details: numbers, texts."""

    __slots__ = ()
    _kind = "annotation"

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name, self._kind, **kwargs)

    @staticmethod
    def is_enabled() -> bool:
        """Whether a trace is being taken."""
        return recorder.events is not None

    def set_metadata(self, **kwargs: Any) -> None:
        """Adds details."""
        self.details.update(kwargs)


class StepTraceAnnotation(TraceAnnotation):
    """A `TraceAnnotation` for a step of a program, such as one of training: `step_num=3`."""

    __slots__ = ()
    _kind = "step"


def annotate_function(func: F, name: str | None = None, **decorator_kwargs: Any) -> F:
    """`func`, whose calls are in traces under its name, or `name`, with the details `decorator_kwargs`."""
    @functools.wraps(func)
    def annotated(*args: Any, **kwargs: Any) -> Any:
        with TraceAnnotation(name or getattr(func, "__name__", repr(func)), **decorator_kwargs):
            return func(*args, **kwargs)
    return annotated  # type: ignore[return-value]


# ---------------------------------------------------------------- traces as data


@record
class ProfileEvent:
    """Something that took time: nanoseconds from the start of the trace on, and details."""

    name: str
    start_ns: float
    duration_ns: float
    stats: tuple[tuple[str, Any], ...]

    @property
    def end_ns(self) -> float:
        """When it ended."""
        return self.start_ns + self.duration_ns


@record
class ProfileLine:
    """What a thread did, in order."""

    name: str
    events: tuple[ProfileEvent, ...]


@record
class ProfilePlane:
    """The threads of a process."""

    name: str
    lines: tuple[ProfileLine, ...]
    stats: tuple[tuple[str, Any], ...] = ()


class ProfileData:
    """A trace that `trace` or `stop_trace` wrote, to be looked through."""

    def __init__(self, planes: tuple[ProfilePlane, ...]) -> None:
        self.planes = planes

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> ProfileData:
        """Reads a file, or the newest one below the folder that `trace` was given.

        Raises:
          FileNotFoundError: if there is none.
          ValueError: for a file of another format.
        """
        files = sorted(Path(path).glob("plugins/profile/*/*.json.gz")) if Path(path).is_dir() else [Path(path)]
        if not files:
            raise FileNotFoundError(f"There is no trace in {path}")
        try:
            with gzip.open(files[-1], "rt") as file:
                rows = json.load(file)["traceEvents"]
        except (gzip.BadGzipFile, EOFError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{files[-1]} is no trace of Anima's: {error}") from error
        return cls((ProfilePlane("/host:CPU", tuple(_lines(rows))),))

    @classmethod
    def from_serialized_xspace(cls, serialized: bytes) -> ProfileData:
        """NotImplementedError: that is XLA's format."""
        raise NotImplementedError("ProfileData.from_serialized_xspace: Anima's traces are not in XLA's format. Use "
                                  "ProfileData.from_file with the file, or folder, that profiler.trace wrote.")

    def find_plane_with_name(self, name: str) -> ProfilePlane | None:
        """The plane of this name."""
        return next((p for p in self.planes if p.name == name), None)


def _lines(rows: list[dict[str, Any]]) -> Iterator[ProfileLine]:
    """Of each thread of a trace, its name and what it did."""
    names = {r["tid"]: r["args"]["name"] for r in rows if r["name"] == "thread_name"}
    threads: dict[Any, list[ProfileEvent]] = {tid: [] for tid in names}
    for r in rows:
        if r["ph"] == "X":
            threads.setdefault(r["tid"], []).append(ProfileEvent(
                r["name"], r["ts"] * 1e3, r["dur"] * 1e3, (("kind", r["cat"]), *r["args"].items())))
    for tid, events in threads.items():
        yield ProfileLine(names.get(tid, str(tid)), tuple(sorted(events, key=lambda e: (e.start_ns, -e.duration_ns))))


# ---------------------------------------------------------------- memory


def device_memory_profile(backend: str | None = None) -> bytes:
    """What memory is used for now, in pprof's format: bytes and numbers of the arrays of each type, and machine code.

    `go tool pprof`, and other readers of https://github.com/google/pprof's profile.proto, open it.
    """
    devices(backend)
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for x in live_arrays():
        counts[x.aval.str_short()] += 1
        sizes[x.aval.str_short()] += x.nbytes
    for code in cache.alive():
        counts["machine code"] += 1
        sizes["machine code"] += sum(len(m.object_bytes()) for m in code.modules)
    return gzip.compress(_pprof([(name, count, sizes[name]) for name, count in counts.items()]))


def save_device_memory_profile(filename: str | os.PathLike[str], backend: str | None = None) -> None:
    """Writes `device_memory_profile(backend)` to a file."""
    Path(filename).write_bytes(device_memory_profile(backend))


def _pprof(rows: list[tuple[str, int, int]]) -> bytes:
    """A message Profile: samples (count, bytes), each at a location of its own whose function has the row's name."""
    texts = ["", "allocations", "count", "space", "bytes", *(name for name, _, _ in rows)]
    out = [_field(1, _field(1, 1) + _field(2, 2)), _field(1, _field(1, 3) + _field(2, 4))]
    for k, (_, count, size) in enumerate(rows):
        out += [_field(2, _field(1, k + 1) + _field(2, count) + _field(2, size)),
                _field(4, _field(1, k + 1) + _field(4, _field(1, k + 1))),
                _field(5, _field(1, k + 1) + _field(2, 5 + k))]
    return b"".join([*out, *(_field(6, text.encode()) for text in texts)])


def _field(number: int, value: int | bytes) -> bytes:
    """A field of a message in the encoding of protocol buffers: a number, or bytes with their length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


# ---------------------------------------------------------------- what belongs to other profilers


def start_server(port: int, requires_backend: bool = True) -> Any:
    """NotImplementedError: traces are taken in the process itself."""
    raise NotImplementedError("profiler.start_server: Anima has no profiling server. Use profiler.trace(log_dir) in "
                              "the program, and open the file at https://ui.perfetto.dev.")


def stop_server() -> None:
    """ValueError: none was started."""
    raise ValueError("No active profiler server.")


def register_subprocess(pid: int, port: int) -> None:
    """NotImplementedError: each process takes its own traces."""
    raise NotImplementedError("profiler.register_subprocess: each process takes its own trace, with profiler.trace.")


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = ["ProfileData", "ProfileEvent", "ProfileLine", "ProfileOptions", "ProfilePlane", "StepTraceAnnotation",
           "TraceAnnotation", "annotate_function", "device_memory_profile", "register_subprocess",
           "save_device_memory_profile", "start_server", "start_trace", "stop_server", "stop_trace", "trace"]
