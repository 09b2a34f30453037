"""Places in the user's code, and the backend."""

from __future__ import annotations

import runpy
from typing import Any

import pytest

import anima
import anima.numpy as jnp
from anima import errors
from anima.extend import backend, source_info_util as si


def test_the_users_line() -> None:
    info = si.current()
    assert info.traceback is not None and info.traceback.file == __file__
    assert si.summarize(info) == f"{__file__}:{info.traceback.line} (test_the_users_line)"
    assert si.summarize(si.new_source_info()) == "unknown"
    with si.user_context(info.traceback):
        eqn = anima.make_jaxpr(lambda x: x * 2)(1.0).eqns[0]
    assert eqn.source_info.traceback == info.traceback


def test_names() -> None:
    assert len(si.current_name_stack()) == 0
    with si.extend_name_stack("a"), si.transform_name_stack("jvp"), si.extend_name_stack("b"):
        assert str(si.current_name_stack()) == "a/jvp()/b"
        with si.reset_name_stack():
            assert len(si.current_name_stack()) == 0
        with si.user_context(None, name_stack=si.new_name_stack("c")):
            assert str(si.current().name_stack) == "c"
    assert str(si.new_name_stack("a") + si.new_name_stack("b")) == "a/b"


def test_files_of_a_library_can_be_hidden(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_hidden", list(errors._hidden))
    library = tmp_path / "library.py"
    library.write_text("def twice(x):\n    return x * 2\n")
    twice = runpy.run_path(str(library))["twice"]

    def place() -> Any:
        return anima.make_jaxpr(lambda x: twice(x))(1.0).eqns[0].source_info.traceback.file

    assert place() == str(library)
    si.register_exclusion(str(library))
    assert place() == __file__
    errors._internal_code.clear()


def test_the_backend() -> None:
    cpu = backend.get_backend()
    assert backend.backends() == {"cpu": cpu} and cpu == backend.get_backend("cpu")
    x = jnp.arange(3.0)
    assert any(y is x for y in cpu.live_arrays())
    assert cpu.devices() == cpu.local_devices() == anima.devices() == [backend.get_default_device()]
    assert (cpu.device_count(), cpu.local_device_count(), cpu.process_index()) == (1, 1, 0)
    assert backend.backend_xla_version() is None
    with pytest.raises(RuntimeError, match="Unknown backend tpu"):
        backend.get_backend("tpu")
    emptied: list[int] = []

    class Cache:
        cache_clear = staticmethod(lambda: emptied.append(1))

    assert isinstance(backend.register_backend_cache(Cache(), "a test"), Cache)
    backend.clear_backends()
    backend.clear_in_memory_compilation_cache()
    assert len(emptied) == 2
    for refused in (lambda: backend.get_compile_options(1, 1), lambda: backend.register_backend_factory("b", Cache)):
        with pytest.raises(NotImplementedError):
            refused()
