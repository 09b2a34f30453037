"""Options that mean nothing on one CPU, and what options about logs, tracing and the cache on disk do."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import config, random
from anima.ad_checkpoint import checkpoint_name
from anima.compiler.machine.folder import on_disk
from anima.other_options import OTHER_OPTIONS, TRANSFER_GUARDS


@pytest.mark.parametrize("name", OTHER_OPTIONS)
def test_they_are_read_and_set(name: str) -> None:
    default, choices, _ = OTHER_OPTIONS[name]
    other = next((c for c in choices if c != default), None) or (not default if isinstance(default, bool) else 7)
    assert getattr(config, "jax_" + name) == config.read("anima_" + name) == default
    with config.option(name)(other):
        assert getattr(config, name) == other
    config.update("jax_" + name, other)
    assert config.values["anima_" + name] == config.values["jax_" + name] == other
    config.update(name, default)
    if choices:
        with pytest.raises(ValueError, match="is not a valid"):
            config.update(name, "no such word")


def test_transfer_guards() -> None:
    with anima.transfer_guard("disallow"):
        assert {config.read(name) for name in TRANSFER_GUARDS} == {"disallow"}
    assert config.jax_transfer_guard is None
    config.update("jax_transfer_guard", "log")
    assert {config.read(name) for name in TRANSFER_GUARDS} == {"log"}
    config.update("jax_transfer_guard", None)
    with pytest.raises(ValueError, match="'foo' is not a valid"), anima.transfer_guard("foo"):
        pass


def test_the_environment() -> None:
    code = "import anima; print(anima.config.jax_use_magma, anima.config.jax_random_seed_offset)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         env={**os.environ, "JAX_USE_MAGMA": "off", "JAX_RANDOM_SEED_OFFSET": "3"})
    assert out.stdout.split() == ["off", "3"]


def test_seed_offset() -> None:
    for x64 in (False, True):
        with anima.enable_x64(x64):
            seeds = [0, -7, np.uint32(2**32 - 1), np.int64(5), jnp.int32(3)]
            with np.errstate(over="ignore"):
                expected = [random.key_data(random.key(s + np.asarray(s).dtype.type(5))) for s in seeds]
            with config.option("random_seed_offset")(5):
                got = [random.key_data(random.key(s)) for s in seeds]
            np.testing.assert_array_equal(got, expected)


def test_no_tracing_and_no_execution() -> None:
    f = anima.jit(lambda x: x + 1)
    f(jnp.ones(2))
    with anima.no_tracing(True):
        np.testing.assert_array_equal(f(jnp.ones(2)), [2, 2])
        for call in (lambda: f(jnp.ones(3)), lambda: anima.make_jaxpr(f)(1.0), lambda: anima.eval_shape(f, 1.0)):
            with pytest.raises(RuntimeError, match="was to be traced, but the option no_tracing is set"):
                call()
    x = jnp.ones(2)
    with anima.no_execution(True):
        compiled = f.lower(x).compile()
        for call in (lambda: f(x), lambda: x + 1, lambda: compiled(x), lambda: jnp.sin(x)):
            with pytest.raises(RuntimeError, match="was to be computed, but the option no_execution is set"):
                call()
        assert len(anima.make_jaxpr(f)(x).eqns) == 1
    np.testing.assert_array_equal(f(x), [2, 2])


def test_softmax_needs_its_result_alone(x64: None) -> None:
    x, where = jnp.array([[0.5, -1.0, 2.0], [3.0, 0.0, 1.0]]), jnp.array([True, False, True])
    for kept in (None, where):
        def loss(x: Any, kept: Any = kept) -> Any:
            return jnp.sum(anima.nn.softmax(x, where=kept) ** 3)

        expected = [anima.value_and_grad(loss)(x), anima.hessian(loss)(x)]
        with anima.softmax_custom_jvp(True):
            got = [anima.jit(anima.value_and_grad(loss))(x), anima.hessian(loss)(x)]
        anima.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13), got, expected)
    with anima.softmax_custom_jvp(True):
        kept_values = anima.ad_checkpoint.saved_residuals(anima.nn.softmax, x)
    assert len(kept_values) < len(anima.ad_checkpoint.saved_residuals(anima.nn.softmax, x))


def test_what_reductions_of_halves_raise() -> None:
    x = jnp.ones(3, "bfloat16")
    with anima.allow_f16_reductions(False):
        assert jnp.sum(x) == 3  # in float32
        with pytest.raises(ValueError, match="reduce_sum on operand bfloat16"):
            anima.grad(lambda a: jnp.broadcast_to(a, (3,))[0])(x[0])


def test_what_is_refused() -> None:
    for name, value in (("error_checking_behavior_nan", "raise"), ("explicit_x64_dtypes", "allow")):
        with pytest.raises(NotImplementedError, match=f"anima_{name}='{value}'"):
            config.update(name, value)
    with config.option("explicit_x64_dtypes")("error"), pytest.raises(ValueError, match="float64"):
        jnp.zeros(3, "float64")


def test_contexts_of_users() -> None:
    unit = anima.make_user_context(3)
    seen = []
    f = anima.jit(lambda x: seen.append(unit.value) or x)
    f(1.0)
    with unit(4):
        f(1.0), f(1.0)
    f(1.0)
    assert seen == [3, 4] and unit.value == 3
    with pytest.raises(TypeError, match="needs a value"):
        unit()
    with pytest.raises(TypeError, match="unhashable"):
        unit([])


def test_logging(capfd: pytest.CaptureFixture[str]) -> None:
    config.update("jax_logging_level", "DEBUG")
    assert logging.getLogger("anima").level == logging.DEBUG
    config.update("jax_logging_level", None)
    assert logging.getLogger("anima").level == logging.NOTSET
    config.update("jax_debug_log_modules", "anima")
    anima.jit(lambda x: x + 1)(1.0)
    assert "Finished tracing" in capfd.readouterr().err
    config.update("jax_debug_log_modules", "")
    anima.jit(lambda x: x + 2)(1.0)
    assert not capfd.readouterr().err and not logging.getLogger("anima").handlers


CACHED = """
import json, sys, anima
for name, value in json.loads(sys.argv[1]).items():
    anima.config.update(name, value)
for n in range(1, 5):
    anima.jit(lambda x: anima.numpy.sin(x) * n + anima.numpy.exp(x))(anima.numpy.ones(100 * n))
"""


def _stored(folder: pathlib.Path, **options: Any) -> dict[str, int]:
    given = json.dumps({"jax_enable_compilation_cache": True, "jax_compilation_cache_dir": str(folder), **options})
    subprocess.run([sys.executable, "-c", CACHED, given], check=True)
    return {p.name: p.stat().st_size for p in folder.glob("*.anima")} if folder.exists() else {}


def test_what_is_put_on_disk(tmp_path: pathlib.Path) -> None:
    every = _stored(tmp_path / "all")
    assert len(every) >= 4
    assert not _stored(tmp_path / "off", jax_enable_compilation_cache=False)
    assert not _stored(tmp_path / "slow", jax_persistent_cache_min_compile_time_secs=100.0)
    assert not _stored(tmp_path / "large", jax_persistent_cache_min_entry_size_bytes=1 << 24)
    room = sum(map(on_disk, every.values())) - 1
    for path in (tmp_path / "all").glob("*.anima"):
        os.utime(path, (time.time() - 1e5,) * 2)
    few = _stored(tmp_path / "few", jax_compilation_cache_max_size=room)
    assert 0 < len(few) < len(every) and sum(map(on_disk, few.values())) <= room


def test_errors_of_the_cache(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("no folder")
    _stored(tmp_path / "file" / "in")
    with pytest.raises(subprocess.CalledProcessError):
        _stored(tmp_path / "file" / "in", jax_raise_persistent_cache_errors=True)


def test_what_checkpoints_keep_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def f(x: Any) -> Any:
        return jnp.sin(checkpoint_name(jnp.sin(x), "s") * x)

    with config.option("log_checkpoint_residuals")(True):
        anima.grad(anima.checkpoint(f, policy=anima.checkpoint_policies.save_only_these_names("s")))(1.0)
        anima.grad(anima.checkpoint(f))(1.0)
    anima.grad(anima.checkpoint(f))(1.0)
    some, nothing = [r.getMessage() for r in caplog.records]
    head = "remat-decorated function saving inputs with shapes:\n  float32[]"
    assert some.startswith(f"{head}\nand saving these intermediates:\n  float32[] from named 's' at "
                           "test_other_options.py:")
    assert nothing == head


def test_large_constants_are_told() -> None:
    table = jnp.arange(1000.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for limit in (-1, 4001):
            with config.option("captured_constants_warn_bytes")(limit):
                anima.jit(lambda x: x + table)(1.0)
    with config.option("captured_constants_warn_bytes")(4000):
        with pytest.warns(UserWarning, match="were captured by <lambda>"):
            anima.jit(lambda x: x + table)(1.0)
        with config.option("captured_constants_report_frames")(-1), \
                pytest.warns(UserWarning, match=r"float32\[1000\], 0.004 MB, used at test_other_options.py:\d+"):
            anima.jit(lambda x: x * table)(1.0)
