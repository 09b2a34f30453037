"""Every option that a traced program depends on: call, change it, call, and compare with functions never called before.

A function that reads the option while it is traced shows whether a program of the other value was taken from a cache;
witnesses, one for each option, show that the option has its effect through the cache, too.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax, random
from anima.config import OPTIONS, config
from anima.core.trace import Tracer
from anima.experimental import checkify, pallas

KEYED = sorted(name for name, option in OPTIONS.items() if option.in_trace_key)
# What a program means does not depend on these: they log, check, show, or say where things are stored and run.
NEUTRAL = {"log_checkpoint_residuals", "captured_constants_warn_bytes", "captured_constants_report_frames",
           "enable_checks", "log_compiles", "explain_cache_misses", "traceback", "compilation_cache_dir", "platforms",
           "platform_name", "tape_budget", "num_cpu_devices", "no_tracing", "traceback_filtering", "logging_level",
           "debug_log_modules", "enable_compilation_cache", "persistent_cache_min_compile_time_secs",
           "persistent_cache_min_entry_size_bytes", "compilation_cache_max_size", "raise_persistent_cache_errors",
           "error_checking_behavior_nan", "error_checking_behavior_divide", "error_checking_behavior_oob"}
OTHERS: dict[str, list[Any]] = {
    "numpy_dtype_promotion": ["strict"], "numpy_rank_promotion": ["warn", "raise"],
    "default_matmul_precision": ["highest", "bfloat16"], "default_prng_impl": ["rbg"], "default_device": ["cpu"],
    "random_seed_offset": [3], "legacy_prng_key": ["warn", "error"], "explicit_x64_dtypes": ["error"]}
FORBIDS = {"no_execution"}  # nothing can be called under it

X = np.arange(3, dtype=np.float32)


def values(name: str) -> list[Any]:
    """The option's value now, and others."""
    now = config.read(name)
    return [now, *OTHERS.get(name, [not now])]


WAYS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "jit": anima.jit,
    "jit in jit": lambda f: anima.jit(lambda x, g=anima.jit(f): g(x)),
    "jvp of jit": lambda f: lambda x, g=anima.jit(f): anima.jvp(g, (x,), (x,))[0],
    "grad of jit": lambda f: lambda x, g=anima.jit(f): anima.vjp(g, x)[0],
    "vmap of jit": lambda f: lambda x, g=anima.jit(f): anima.vmap(g)(x[None])[0],
    "jit of vmap": lambda f: lambda x, g=anima.jit(anima.vmap(f)): g(x[None])[0],
    "checkpoint": lambda f: lambda x, g=anima.checkpoint(f): anima.vjp(g, x)[0],
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (c, f(c)), jnp.asarray(x), None, length=1)[1][0],
    "while_loop": lambda f: lambda x: lax.while_loop(
        lambda c: c[0] < 1, lambda c: (c[0] + 1, jnp.asarray(f(c[1]), np.float32)), (0, jnp.asarray(x)))[1],
    "cond": lambda f: lambda x: lax.cond(True, f, f, jnp.asarray(x)),
    "map": lambda f: lambda x: lax.map(f, jnp.asarray(x)[None])[0],
    "custom_jvp": lambda f: anima.jit(_custom(f)),
    "donating": lambda f: lambda x, g=anima.jit(f, donate_argnums=0): g(jnp.array(x)),
}


def _custom(f: Callable[..., Any]) -> Callable[..., Any]:
    wrapped = anima.custom_jvp(f)
    wrapped.defjvp(lambda primals, tangents: (wrapped(*primals), tangents[0]))
    return wrapped


def test_every_option_is_of_one_kind() -> None:
    """A new option needs a place here: in a key, with a witness, or neutral."""
    assert set(KEYED) | NEUTRAL == set(OPTIONS) and not set(KEYED) & NEUTRAL
    assert set(WITNESSES) == set(KEYED)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted({*KEYED} - FORBIDS))
def test_no_program_of_another_value_is_taken(name: str, way: str) -> None:
    """Back and forth between all values of the option, within a `with` and for good."""
    choices = values(name)

    def reads(x: Any) -> Any:
        return x + np.float32(choices.index(config.read(name)))

    called = WAYS[way](reads)
    for value in [*choices, *choices[::-1], *choices]:
        with config.option(name)(value):
            np.testing.assert_array_equal(called(X), X + choices.index(value))
    try:
        for value in [*choices, choices[0]]:
            config.update(name, value)
            np.testing.assert_array_equal(called(X), X + choices.index(value))
    finally:
        config.update(name, choices[0])


# ---------------------------------------------------------------- what each option does

def _is_traced(x: Any) -> Any:
    return jnp.float32(isinstance(x, Tracer))


def _checks(x: Any) -> Any:
    error, _ = checkify.checkify(lambda x: pallas.debug_check(x[0] > 5, "small"))(x)
    return jnp.float32(len(anima.tree.leaves(error)))


def _reused(x: Any) -> Any:
    key = random.key(0)
    return random.uniform(key) + random.uniform(key) + x[0]


_kept: list[Any] = []


def _leaks(x: Any) -> Any:
    _kept[:] = [x]
    return x


WITNESSES: dict[str, Callable[[Any], Any]] = {
    "enable_x64": lambda x: jnp.arange(3) + 1,
    "debug_nans": lambda x: jnp.log(x - 5),
    "debug_infs": lambda x: 1 / (x - x),
    "disable_jit": _is_traced,
    "threefry_partitionable": lambda x: random.bits(random.key(7), (5,)),
    "numpy_dtype_promotion": lambda x: x + jnp.ones(3, "int32"),
    "numpy_rank_promotion": lambda x: x + jnp.ones((2, 3)),
    "default_matmul_precision": lambda x: jnp.dot(x, x),
    "default_prng_impl": lambda x: random.key_data(random.key(7)),
    "enable_custom_prng": lambda x: jnp.float32(np.dtype("uint32") == random.PRNGKey(3).dtype),
    "debug_key_reuse": _reused,
    "check_tracer_leaks": _leaks,
    "default_device": lambda x: x + 1,
    "profiling": lambda x: x + 1,
    "flush_subnormals": lambda x: lax.fori_loop(0, 1, lambda _, x: x * 1e-39, x),
    "random_seed_offset": lambda x: random.key_data(random.key(7)),
    "legacy_prng_key": lambda x: random.uniform(np.array([0, 1], np.uint32)),
    "high_dynamic_range_gumbel": lambda x: random.gumbel(random.key(7)),
    "allow_f16_reductions": lambda x: lax.reduce_sum_p.bind(x.astype("float16"), axes=(0,)),
    "softmax_custom_jvp": anima.nn.softmax,
    "check_static_indices": lambda x: x[7],
    "no_execution": lambda x: x + 1,
    "explicit_x64_dtypes": lambda x: x.astype("float64"),
    "pallas_enable_debug_checks": _checks,
}
WITHOUT_EFFECT = {"default_matmul_precision", "default_device", "profiling",
                  "softmax_custom_jvp"}  # on the values of a CPU
if platform.machine().lower() not in ("x86_64", "amd64"):
    WITHOUT_EFFECT.add("flush_subnormals")


def outcome(fun: Callable[[Any], Any]) -> tuple[str, ...]:
    """The result with its type and bits, or the error; and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            out = np.asarray(fun(X))
            result = str(out.dtype), str(out.shape), out.tobytes().hex()
        except Exception as error:  # of any kind: whether there is one is what is compared
            result = type(error).__name__, "", ""
        finally:
            _kept.clear()
    return (*result, *sorted({type(w.message).__name__ for w in caught}))


@pytest.mark.parametrize("name", KEYED)
def test_a_change_has_its_effect(name: str) -> None:
    witness, choices = WITNESSES[name], values(name)
    fresh = {}
    for value in choices:
        with config.option(name)(value):
            fresh[value] = outcome(anima.jit(lambda x: witness(x)))
    different = len(set(fresh.values())) > 1
    assert different != (name in WITHOUT_EFFECT), "a witness has to tell the values of its option apart"
    called = anima.jit(witness)
    for value in [*choices, *choices[::-1]]:
        with config.option(name)(value):
            got = outcome(called)
        if value != "warn":  # warned of when it is traced
            assert got == fresh[value], value


@pytest.mark.parametrize("name", sorted(
    name for name in NEUTRAL - {"platforms", "platform_name", "num_cpu_devices", "no_tracing"} if "error_" not in name))
def test_neutral_options_change_no_program(name: str) -> None:
    others: dict[str, Any] = {"traceback": "full", "compilation_cache_dir": None, "tape_budget": 1 << 20,
                              "traceback_filtering": "off", "logging_level": "ERROR", "debug_log_modules": "other"}
    called = anima.jit(lambda x: jnp.sin(x) + anima.grad(lambda y: lax.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * y), (0, y))[1])(x[0]))
    before, text = np.asarray(called(X)), str(called.lower(X).jaxpr)
    with config.option(name)(others.get(name, True)):
        np.testing.assert_array_equal(called(X), before)
        assert str(called.lower(X).jaxpr) == text
