"""Traces: what is in them, from which threads, in which order; what memory is used for; listeners."""

from __future__ import annotations

import glob
import gzip
import json
import pathlib
import threading
import time
from collections import Counter

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax, monitoring, profiler
from anima.compiler import cache
from anima.config import profiling
from anima.runtime import stamps


def step(x, w):
    y = jnp.tanh(x @ w)
    z = lax.fori_loop(0, 50, lambda i, a: a * 0.5 + jnp.sin(y), y)
    return jnp.sum(z) + anima.pure_callback(lambda v: v * 2, jnp.float32(0), jnp.sum(y))


X, W = np.ones((200, 300), np.float32), np.ones((300, 100), np.float32)


def spans(folder):
    (file,) = glob.glob(f"{folder}/plugins/profile/*/perfetto_trace.json.gz")
    with gzip.open(file) as text:
        rows = json.load(text)["traceEvents"]
    assert all(r["ph"] in "XM" and r["dur"] >= 0 if r["ph"] == "X" else True for r in rows)
    return [r for r in rows if r["ph"] == "X"], {r["tid"]: r["args"]["name"] for r in rows if r["ph"] == "M"}


def inside(inner, outer):
    return outer["ts"] <= inner["ts"] + 1 and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1


@pytest.mark.skipif(not stamps.AVAILABLE, reason="no clock for compiled programs here")
def test_a_trace_has_everything(tmp_path):
    f = anima.jit(step)
    plain = f(X, W)
    with profiler.trace(tmp_path):
        assert profiler.TraceAnnotation.is_enabled() and profiling.value
        for k in range(3):
            with profiler.StepTraceAnnotation("train", step_num=k):
                assert f(X, W) == plain
    assert not profiler.TraceAnnotation.is_enabled() and not profiling.value
    found, _ = spans(tmp_path)
    kinds = Counter(r["cat"] for r in found)
    assert kinds["trace"] == kinds["compile"] == 1 and kinds["step"] == kinds["call"] == kinds["callback"] == 3
    assert {"simplify", "fuse", "lower", "emit_program", "machine code"} <= {
        r["name"] for r in found if r["cat"] == "pass" and r["args"] == {"program": "step"}}
    kernels = Counter(r["name"] for r in found if r["cat"] == "kernel")
    assert kernels["gemm"] == 3 and kernels["lanes"] == 3
    for r in found:
        if r["cat"] in ("kernel", "callback"):
            assert r["args"]["source"].startswith("test_profiler.py:")
            assert any(inside(r, call) for call in found if call["cat"] == "call")
        if r["cat"] in ("call", "compile"):
            assert any(inside(r, one) for one in found if one["cat"] == "step")
    lines = {r["name"]: int(r["args"]["source"].split(":")[1].split(",")[0]) for r in found if r["cat"] == "kernel"}
    assert lines["gemm"] + 1 == lines["lanes"]
    assert [r["args"]["step_num"] for r in found if r["cat"] == "step"] == [0, 1, 2]


@pytest.mark.skipif(not stamps.AVAILABLE, reason="no clock for compiled programs here")
def test_threads_have_rows_of_their_own(tmp_path):
    f = anima.jit(lambda x: jnp.sum(jnp.exp(x)))
    all_there = threading.Barrier(4)  # the number of a thread that is over may be another's

    def work(n):
        all_there.wait()
        with profiler.TraceAnnotation("work", number=n):
            for _ in range(20):
                f(X)

    workers = [threading.Thread(target=work, args=(n,), name=f"worker {n}") for n in range(4)]
    with profiler.trace(tmp_path):
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    found, _ = spans(tmp_path)
    for row in [r for r in found if r["name"] == "work"]:
        calls = [r for r in found if r["cat"] == "call" and r["tid"] == row["tid"]]
        assert len(calls) == 20 and all(inside(c, row) for c in calls)
    assert len({r["tid"] for r in found if r["name"] == "work"}) == 4


def test_a_program_that_fails_leaves_whole_spans(tmp_path):
    def fail(v):
        raise ValueError("no")

    f = anima.jit(lambda x: anima.pure_callback(fail, jnp.float32(0), jnp.sum(x)))
    with profiler.trace(tmp_path):
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                f(X)
        anima.jit(step)(X, W)
    found, names = spans(tmp_path)
    assert Counter(r["cat"] for r in found)["callback"] == 3
    assert "MainThread" in names.values()
    assert [r["name"] for r in found if r["cat"] == "call"] == ["step"] * stamps.AVAILABLE


def test_traces_one_after_the_other(tmp_path):
    f = anima.jit(lambda x: jnp.cumsum(x * 3, axis=1))
    for k in range(2):
        profiler.start_trace(tmp_path / str(k))
        with pytest.raises(RuntimeError, match="Only one profile"):
            profiler.start_trace(tmp_path)
        f(X)
        profiler.stop_trace()
        found, _ = spans(tmp_path / str(k))
        assert Counter(r["cat"] for r in found)["call"] == stamps.AVAILABLE
    with pytest.raises(RuntimeError, match="No profile"):
        profiler.stop_trace()
    assert "stamp" not in f.lower(X).as_text()


def test_annotations(tmp_path):
    @profiler.annotate_function
    def double(x):
        return 2 * x

    named = profiler.annotate_function(double, name="twice", flavour=3)
    assert named(2) == 4  # without a trace, too
    with profiler.trace(tmp_path):
        assert named(4) == 8
        with profiler.TraceAnnotation("late") as late:
            late.set_metadata(found=7)
    found, _ = spans(tmp_path)
    rows = {r["name"]: r for r in found}
    assert rows["twice"]["args"] == {"flavour": 3} and rows["late"]["args"] == {"found": 7}
    assert inside(rows["double"], rows["twice"]) and double.__name__ == "double"


def test_what_there_is_not(tmp_path):
    with pytest.raises(NotImplementedError, match=r"perfetto\.dev"):
        profiler.start_trace(tmp_path, create_perfetto_link=True)
    with pytest.raises(NotImplementedError, match="server"):
        profiler.start_server(9999)
    with pytest.raises(ValueError, match="No active"):
        profiler.stop_server()
    with pytest.raises(NotImplementedError, match="process"):
        profiler.register_subprocess(1, 2)


# ---------------------------------------------------------------- memory


def messages(data):
    """The fields of a message in the encoding of protocol buffers: numbers, and bytes or numbers."""
    at, out = 0, []

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            out.append((key >> 3, number()))
        else:
            assert key & 7 == 2
            size = number()
            out.append((key >> 3, data[at:at + size]))
            at += size
    return out


def test_memory_by_type(tmp_path):
    kept = [jnp.zeros((123, 45), jnp.float32) + k for k in range(3)]
    f = anima.jit(lambda x: x + 1)
    f(kept[0])
    anima.jit(lambda x: x * 3)(kept[0])
    profiler.save_device_memory_profile(tmp_path / "memory.prof")
    fields = messages(gzip.decompress((tmp_path / "memory.prof").read_bytes()))
    texts = [value.decode() for number, value in fields if number == 6]
    assert texts[:5] == ["", "allocations", "count", "space", "bytes"]
    functions = {dict(messages(v))[1]: texts[dict(messages(v))[2]] for n, v in fields if n == 5}
    locations = {dict(messages(v))[1]: functions[dict(messages(dict(messages(v))[4]))[1]] for n, v in fields if n == 4}
    rows = {}
    for n, v in fields:
        if n == 2:
            (_, location), (_, count), (_, size) = messages(v)
            rows[locations[location]] = count, size
    count, size = rows[kept[0].aval.str_short()]
    assert count >= 3 and size == count * 123 * 45 * 4
    assert rows["machine code"][0] == len(cache.alive()) > 1 and rows["machine code"][1] > 500


# ---------------------------------------------------------------- monitoring


def test_listeners_learn_of_compilations():
    durations, times = [], []
    monitoring.register_event_duration_secs_listener(lambda *a, **k: durations.append((*a, k["fun_name"])))
    monitoring.register_event_time_span_listener(lambda *a, **k: times.append((*a, k["fun_name"])))
    try:
        f = anima.jit(lambda x, w: step(x, w))
        start = time.perf_counter()
        f(X, W)
        f(X, W)
        elapsed = time.perf_counter() - start
    finally:
        monitoring.clear_event_listeners()
    f(X[1:], W)
    assert [(name.split("/")[-1], fun) for name, _, fun in durations] == [
        ("jaxpr_trace_duration", "<lambda>"), ("backend_compile_duration", "<lambda>")]
    assert sum(seconds for _, seconds, _ in durations) < elapsed
    for (name, seconds, fun), (event, start, end, of) in zip(durations, times, strict=True):
        assert (name, fun) == (event, of) and 0 < seconds == pytest.approx(end - start, abs=1e-5)


@pytest.mark.parametrize("record,register,unregister,values", [
    (monitoring.record_event, monitoring.register_event_listener, monitoring.unregister_event_listener, ()),
    (monitoring.record_event_duration_secs, monitoring.register_event_duration_secs_listener,
     monitoring.unregister_event_duration_listener, (1.5,)),
    (monitoring.record_event_time_span, monitoring.register_event_time_span_listener,
     monitoring.unregister_event_time_span_listener, (1.0, 2.0)),
    (monitoring.record_scalar, monitoring.register_scalar_listener, monitoring.unregister_scalar_listener, (3,))])
def test_events(record, register, unregister, values):
    seen = []

    def listener(*args, **kwargs):
        seen.append((args, kwargs))

    register(listener)
    register(listener)
    record("/mine", *values, a=1)
    unregister(listener)
    record("/mine", *values)
    unregister(listener)
    record("/mine", *values)
    with pytest.raises(ValueError, match="not registered"):
        unregister(listener)
    assert seen == [(("/mine", *values), {"a": 1})] * 2 + [(("/mine", *values), {})]


def test_options_are_kept(tmp_path: pathlib.Path) -> None:
    options = profiler.ProfileOptions()
    assert (options.host_tracer_level, options.python_tracer_level, options.advanced_configuration) == (2, 0, {})
    options.python_tracer_level = 1
    with profiler.trace(tmp_path, profiler_options=options):
        jnp.sin(X)
    assert options.python_tracer_level == 1 and glob.glob(f"{tmp_path}/**/*.json.gz", recursive=True)
