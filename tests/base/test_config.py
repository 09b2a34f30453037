"""Options: spellings, environment, flags, thread-local overrides, cache keys."""
from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

import anima
from anima import config as config_module
from anima.config import (
    OTHER_OPTIONS,
    check_tracer_leaks,
    config,
    debug_nans,
    default_matmul_precision,
    disable_jit,
    enable_x64,
    log_compiles,
    numpy_rank_promotion,
)


@pytest.fixture(autouse=True)
def restored():
    """Global values as they were, whatever a test sets."""
    options = sys.modules["anima.config"].OPTIONS
    before = {name: option.value for name, option in options.items()}
    yield
    for name, value in before.items():
        options[name].set(value)


@pytest.mark.parametrize("spelling", ["enable_x64", "anima_enable_x64", "jax_enable_x64"])
def test_spellings_are_one_option(spelling):
    assert getattr(config, spelling) is False
    config.update(spelling, True)
    assert config.enable_x64 is config.anima_enable_x64 is config.jax_enable_x64 is True
    assert config.read(spelling) is True
    assert config.values["anima_enable_x64"] is True
    assert enable_x64.value is True


def test_unknown_options():
    assert config.option("jax_enable_x64") is enable_x64
    with pytest.raises(AttributeError, match="Unrecognized config option: jax_no_such_flag"):
        config.update("jax_no_such_flag", True)
    with pytest.raises(AttributeError, match="Unrecognized config option: nope"):
        _ = config.nope
    with pytest.raises(AttributeError, match=r"config.update\('anima_enable_x64', True\)"):
        config.jax_enable_x64 = True


def test_bad_values():
    with pytest.raises(
        ValueError, match=r"'sometimes' is not a valid NumpyDtypePromotion.*'standard' or 'strict'"
    ):
        config.update("jax_numpy_dtype_promotion", "sometimes")
    with pytest.raises(ValueError, match="'yes please' is not a valid truth value for anima_enable_x64"):
        config.update("jax_enable_x64", "yes please")
    with pytest.raises(ValueError, match="MatmulPrecision"):
        config.update("jax_default_matmul_precision", "exact")
    with pytest.raises(ValueError, match="NumpyRankPromotion"):
        numpy_rank_promotion("never")
    with pytest.raises(TypeError, match="needs a value"):
        numpy_rank_promotion()
    config.update("jax_default_matmul_precision", None)
    config.update("jax_enable_x64", "true")
    assert config.enable_x64 is True


def test_enum_members_are_values():
    class Precision:
        name = "HIGHEST"
    with default_matmul_precision(Precision()):
        assert config.default_matmul_precision == "highest"


def test_overrides_nest_and_restore():
    with enable_x64(True):
        assert config.enable_x64
        with enable_x64(False):
            assert not config.enable_x64
            config.update("enable_x64", True)
            assert not config.enable_x64
        assert config.enable_x64
    assert config.enable_x64
    with pytest.raises(KeyError), enable_x64(False):
        raise KeyError
    assert enable_x64.value is True
    assert enable_x64._overrides == 0


def test_overrides_are_of_one_thread():
    seen = []
    with debug_nans(True):
        thread = threading.Thread(target=lambda: seen.append((debug_nans.value, config.trace_key())))
        thread.start()
        thread.join()
        assert debug_nans.value
        assert seen[0][0] is False
        assert seen[0][1] != config.trace_key()
    assert seen[0][1] == config.trace_key()


def test_override_as_decorator_and_defaults():
    @enable_x64(True)
    def double():
        return config.enable_x64
    assert double()
    assert not config.enable_x64
    with disable_jit(), check_tracer_leaks():
        assert config.disable_jit
        assert config.check_tracer_leaks
    with disable_jit(), disable_jit(False):
        assert not config.disable_jit


def test_one_override_object_entered_twice():
    override = enable_x64(True)
    with override, override:
        assert config.enable_x64
    assert not config.enable_x64


def test_trace_key():
    key = config.trace_key()
    assert hash(key) == hash(config.trace_key())
    assert key == config.trace_key()
    config.update("log_compiles", not log_compiles.value)
    assert config.trace_key() == key
    with enable_x64(True):
        assert config.trace_key() != key
        inner = config.trace_key()
        with numpy_rank_promotion("raise"):
            assert config.trace_key() not in (key, inner)
        assert config.trace_key() == inner
        config.update("numpy_dtype_promotion", "strict")
        assert config.trace_key() != inner
        config.update("numpy_dtype_promotion", "standard")
    assert config.trace_key() == key
    config.update("enable_x64", True)
    assert config.trace_key() != key
    assert config.trace_key() == inner


def test_flags():
    config.parse_flags(
        [
            "train.py",
            "--jax_enable_x64",
            "--anima_debug_nans=true",
            "--other=1",
            "--nojax_disable_jit",
            "--anima_numpy_rank_promotion",
            "warn",
            "--batch",
            "--",
            "--jax_debug_infs",
        ]
    )
    assert config.enable_x64
    assert config.debug_nans
    assert not config.disable_jit
    assert not config.debug_infs
    assert config.numpy_rank_promotion == "warn"
    with pytest.raises(ValueError, match="--jax_platforms needs a value"):
        config.parse_flags(["--jax_platforms"])


def test_flags_from_the_command_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["prog", "--jax_enable_x64=1"])
    config.config_with_absl()
    assert config.enable_x64


@pytest.mark.parametrize("environment, wanted", [
    ({"ANIMA_ENABLE_X64": "1"}, "True"), ({"JAX_ENABLE_X64": "True"}, "True"),
    ({"ANIMA_ENABLE_X64": "0", "JAX_ENABLE_X64": "1"}, "False"), ({"JAX_ENABLE_X64": ""}, "False")])
def test_environment(environment, wanted):
    clean = {k: v for k, v in os.environ.items() if not k.endswith("_ENABLE_X64")}
    # the file alone: what the rest of the package does at import is not the matter here
    code = "import runpy, sys; print(runpy.run_path(sys.argv[1])['config'].enable_x64)"
    file = (
        config_module.__file__ if hasattr(config_module, "__file__") else sys.modules["anima.config"].__file__
    )
    output = subprocess.run([sys.executable, "-c", code, file], env=clean | environment, capture_output=True,
                            text=True, check=True)
    assert output.stdout.strip() == wanted


def test_every_option_is_documented_and_reads():
    options = sys.modules["anima.config"].OPTIONS
    assert config.threefry_partitionable is False
    for name, option in options.items():
        assert option.doc.endswith(".")
        assert getattr(config, name) == option.value


@pytest.mark.parametrize("name", [3, None, [], "nope", "anima_nope"], ids=repr)
def test_names_that_no_option_has(name):
    for use in (lambda: config_module.config.update(name, 4), lambda: config_module.config.read(name)):
        with pytest.raises(AttributeError, match="Unrecognized config option"):
            use()


def test_switches_are_turned_on_by_a_bare_call() -> None:
    for switch in (anima.enable_x64, anima.log_compiles, anima.debug_nans):
        with switch():
            assert getattr(config, switch.name) is True
        assert getattr(config, switch.name) is False


def test_tests_put_their_own_functions_in_place_of_its(monkeypatch) -> None:
    called = []
    with monkeypatch.context() as patch:
        patch.setattr(config, "update", lambda *args: called.append(args))
        config.update("no_such_option", 1)
        assert called == [("no_such_option", 1)]
    with pytest.raises(AttributeError, match="no_such_option"):
        config.update("no_such_option", 1)
    with pytest.raises(AttributeError, match="updates"):
        config.updates = print


def test_options_are_shown_by_both_names() -> None:
    shown = dir(config)
    assert {"enable_x64", "update"} <= {*shown} and len(shown) == len(set(shown))
    for name in OTHER_OPTIONS:
        assert {f"jax_{name}", f"anima_{name}"} <= {*shown}


def test_names_are_texts() -> None:
    for name in (3, None, b"anima_enable_x64"):
        with pytest.raises(AttributeError, match="Unrecognized config option"):
            config.update(name, True)


def test_options_as_texts() -> None:
    with enable_x64(True):
        assert repr(enable_x64) == "<option enable_x64 = True>"
    assert repr(enable_x64) == "<option enable_x64 = False>"
