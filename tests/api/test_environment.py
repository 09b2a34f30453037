"""Devices, caches, logs and what is done at compile time: the names of `anima` around the transformations."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.errors import JaxprTypeError
from anima.extend.core import Primitive


def test_one_process_and_one_device() -> None:
    assert anima.local_devices() == anima.devices() == anima.devices("cpu")
    (device,) = anima.devices()
    assert (device.id, device.local_hardware_id, device.process_index, device.host_id) == (0, 0, 0, 0)
    assert device.platform == device.device_kind == "cpu" and device.memory_stats() is None
    assert anima.device_count() == anima.local_device_count() == anima.process_count() == anima.host_count() == 1
    assert anima.process_index() == anima.host_id() == 0
    assert anima.process_indices() == anima.host_ids() == [0]
    with pytest.raises(ValueError, match="Unknown process_index 3"):
        anima.local_devices(process_index=3)
    with pytest.raises(RuntimeError, match="Unknown backend"):
        anima.process_count("tpu")


def test_default_device() -> None:
    with anima.default_device(anima.devices()[0]):
        assert jnp.ones(2).device == anima.devices()[0]
    with anima.default_device("cpu"):
        assert anima.config.default_device == "cpu"
    with pytest.raises(RuntimeError, match="gpu"):
        anima.default_device("gpu")


MAKERS = {
    "device_put": lambda d: anima.device_put({"a": 1.0}, d), "array": lambda d: jnp.array([1], device=d),
    "asarray": lambda d: jnp.asarray([1], device=d), "zeros": lambda d: jnp.zeros(2, device=d),
    "ones": lambda d: jnp.ones(2, device=d), "empty": lambda d: jnp.empty(2, device=d),
    "full": lambda d: jnp.full(2, 1, device=d), "zeros_like": lambda d: jnp.zeros_like(jnp.ones(2), device=d),
    "full_like": lambda d: jnp.full_like(jnp.ones(2), 1, device=d), "arange": lambda d: jnp.arange(3, device=d),
    "linspace": lambda d: jnp.linspace(0, 1, 3, device=d), "eye": lambda d: jnp.eye(3, device=d),
    "astype": lambda d: jnp.astype(jnp.ones(2), int, device=d), "to_device": lambda d: jnp.ones(2).to_device(d),
    "each leaf": lambda d: anima.device_put([1.0, 2.0], [None, d]),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_device_that_is_not_there(make: Any) -> None:
    for there in (anima.devices()[0], None):
        assert all(a.device == anima.devices()[0] for a in anima.tree.leaves(make(there)))
    with pytest.raises((RuntimeError, ValueError), match=r"Unknown device 'gpu'|Received invalid value: gpu"):
        make("gpu")
    with pytest.raises(ValueError, match="A device is one of"):
        make(3.5)


def test_platforms() -> None:
    for name in ("platforms", "platform_name"):
        with anima.config.option(name)("cpu"):
            assert anima.device_count() == 1
        with anima.config.option(name)("cuda"), pytest.raises(RuntimeError, match="Unknown backend cuda"):
            anima.devices()
    with anima.config.option("platforms")("cuda,cpu"):
        assert anima.devices() == anima.devices("cpu")
    with pytest.raises(RuntimeError, match="should be updated before backends are initialized"):
        anima.config.update("anima_num_cpu_devices", 8)
    with pytest.raises(ValueError, match="at least 1"):
        anima.config.update("anima_num_cpu_devices", 0)


def test_enable_checks() -> None:
    """A rule of an operation that does not keep to the types it promises is found out."""
    wrong = Primitive("wrong")
    types = iter((np.float32, np.int32))
    wrong.def_abstract_eval(lambda x: x.update(dtype=np.dtype(next(types))))
    with anima.enable_checks(True), pytest.raises(JaxprTypeError, match="wrong"):
        anima.make_jaxpr(wrong.bind)(1.0)


def test_live_arrays() -> None:
    x = jnp.ones((3, 5)) + 1
    assert any(a is x for a in anima.live_arrays())
    x.delete()
    assert not any(a is x for a in anima.live_arrays())


def test_live_arrays_leaves_other_threads_alone() -> None:
    """A tuple that is being made must have no other owner: its thread would get a SystemError."""
    failed: list[BaseException] = []
    done = threading.Event()

    def make_tuples() -> None:
        while not done.is_set():
            try:
                assert tuple(k for k in range(50))[-1] == 49
                jnp.asarray(np.ones(3))
            except BaseException as error:
                failed.append(error)

    interval = sys.getswitchinterval()
    threads = [threading.Thread(target=make_tuples) for _ in range(2)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(30):
            anima.live_arrays()
    finally:
        sys.setswitchinterval(interval)
        done.set()
        for thread in threads:
            thread.join()
    assert not failed


def test_environment_info(capsys: Any) -> None:
    text = anima.print_environment_info(return_string=True)
    assert anima.__version__ in text and np.__version__ in text and "CpuDevice" in text
    assert anima.print_environment_info() is None
    assert capsys.readouterr().out.strip() == text


def test_clear_caches_forgets_programs_and_results_stay_right() -> None:
    traced = []

    @anima.jit
    def f(x: Any) -> Any:
        traced.append(1)
        return anima.grad(lambda y: y ** 3)(x)

    assert f(2.0) == f(2.0) == 12.0 and len(traced) == 1
    anima.clear_caches()
    assert f._cache_size() == 0
    assert f(2.0) == 12.0 and len(traced) == 2


# ---------------------------------------------------------------- compile time

@pytest.mark.parametrize("wrap", [anima.jit, lambda f: anima.jit(anima.grad(f)), anima.grad,
                                  lambda f: lambda x: anima.vmap(f)(jnp.stack([x, x]))[0]],
                         ids=["jit", "jit grad", "grad", "vmap"])
def test_known_values_are_computed_while_tracing(wrap: Any) -> None:
    def f(x: Any) -> Any:
        with anima.ensure_compile_time_eval():
            total = jnp.sum(jnp.arange(4))
            n = int(total)                                # 6, where jit alone would record a sum
            y = anima.jit(lambda a: 2 * a)(x)             # tracers stay what they are
            scanned = anima.lax.scan(lambda c, i: (c + i, c), 0, jnp.arange(3))[0]
        return x * n * int(scanned) + 0 * y

    assert wrap(f)(1.0) == 18.0


def test_without_it_the_value_is_not_known() -> None:
    with pytest.raises(anima.errors.ConcretizationTypeError):
        anima.jit(lambda x: x * float(jnp.sum(jnp.arange(4))))(1.0)


def test_it_decorates_and_does_nothing_outside_of_tracing() -> None:
    @anima.ensure_compile_time_eval()
    def f(x: Any) -> Any:
        return jnp.sin(x)

    assert isinstance(f(1.0), anima.Array) and float(f(1.0)) == pytest.approx(np.sin(1.0))


# ---------------------------------------------------------------- logs

def test_log_compiles(caplog: Any) -> None:
    f = anima.jit(lambda x: x * 3 + jnp.float32(0.125))
    with anima.log_compiles(True), caplog.at_level(logging.WARNING, "anima"):
        f(jnp.ones(7))
        count = len(caplog.records)
        f(jnp.ones(7))
    assert [r.getMessage().split(" in ")[0] for r in caplog.records] == [
        "Finished tracing <lambda> for jit", "Finished compilation of jit(<lambda>)"]
    assert len(caplog.records) == count


@pytest.mark.parametrize("second, told", [
    (lambda f: f(jnp.ones(4)), "x: f32[4]; the nearest of 1 known signatures has f32[3]."),
    (lambda f: f(jnp.ones(3, "int32")), "x: i32[3]; the nearest of 1 known signatures has f32[3]."),
    (lambda f: f(2.5), "x: f32[] (weakly typed); the nearest of 1 known signatures has f32[3]."),
    (lambda f: f(jnp.ones(3), n=2), "static n=2; the nearest of 1 known signatures has none."),
    (lambda f: f([jnp.ones(3)]), "arguments of the structure PyTreeDef((([*],), {}))"),
    (lambda f: anima.numpy_rank_promotion("warn")(f)(jnp.ones(3)),
     "numpy_rank_promotion = warn; the nearest of 1 known signatures has allow."),
])
def test_explain_cache_misses(second: Any, told: str, caplog: Any) -> None:
    f = anima.jit(lambda x, n=1: anima.tree.map(lambda v: v * n, x), static_argnames="n")
    with anima.explain_cache_misses(True), caplog.at_level(logging.WARNING, "anima"):
        f(jnp.ones(3))
        f(jnp.ones(3))
        assert [r.getMessage().split("\n")[0] for r in caplog.records] == [
            "TRACING CACHE MISS: <lambda> was never called before"]
        second(f)
    assert len(caplog.records) == 2
    assert told in caplog.records[1].getMessage()


# ---------------------------------------------------------------- faces

def test_stages_and_typing() -> None:
    f = anima.jit(jnp.sin)
    assert isinstance(f, anima.stages.Wrapped)
    assert isinstance(f.trace(1.0), anima.stages.Traced)
    assert isinstance(f.lower(1.0), anima.stages.Lowered)
    assert isinstance(f.lower(1.0).compile(), anima.stages.Compiled)
    assert isinstance(jnp.ones(2), anima.typing.ArrayLike) and isinstance(2.0, anima.typing.ArrayLike)
    assert not isinstance("a", anima.typing.ArrayLike)
