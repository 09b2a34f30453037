"""Places in the user's code, and the backend."""

from __future__ import annotations

import runpy
from typing import Any

import pytest

import anima
import anima.numpy as jnp
from anima import errors, extend
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
        assert str(si.current_name_stack()) == "a/jvp(b)"
        with si.reset_name_stack():
            assert len(si.current_name_stack()) == 0
        with si.user_context(None, name_stack=si.new_name_stack("c")):
            assert str(si.current().name_stack) == "c"
    assert str(si.new_name_stack("a") + si.new_name_stack("b")) == "a/b"


def _names(program: Any) -> list[str]:
    return [f"{e.primitive.name} {e.source_info.name_stack}".strip() for e in program.eqns]


def _scoped(x: Any) -> Any:
    with anima.named_scope("a"):
        y = jnp.sin(x)
        with anima.named_scope("b"):
            y = y * 2
    return anima.lax.exp(y)


def test_equations_tell_of_scopes_and_transformations() -> None:
    x = jnp.ones(3)
    assert _names(anima.make_jaxpr(_scoped)(1.0)) == ["sin a", "mul a/b", "exp"]
    assert _names(anima.make_jaxpr(anima.vmap(_scoped))(x)) == ["sin vmap(a)", "mul vmap(a)/b", "exp vmap()"]
    assert _names(anima.make_jaxpr(anima.grad(_scoped))(1.0)) == [
        "sin jvp(a)", "cos jvp(a)", "mul jvp(a)/b", "exp jvp()",
        "mul transpose(jvp())", "mul transpose(jvp(a))/b", "mul transpose(jvp(a))"]
    assert _names(anima.make_jaxpr(anima.vmap(anima.grad(_scoped)))(x))[-1] == "mul vmap(transpose(jvp(a)))"
    anima.vjp(lambda x: anima.lax.exp(jnp.sin(x) * 2), 1.0)  # the same operations under no names
    assert _names(anima.make_jaxpr(anima.vjp(_scoped, 1.0)[1])(1.0)) == [
        "mul transpose(jvp())", "mul transpose(jvp(a))/b", "mul transpose(jvp(a))"]


def test_programs_within_equations_begin_with_no_names() -> None:
    def outer(x: Any) -> Any:
        with anima.named_scope("o"):
            return anima.jit(_scoped)(x) + anima.lax.fori_loop(0, 2, lambda _, c: _scoped(c), x)

    call, loop, add = anima.make_jaxpr(anima.grad(outer))(1.0).eqns[:3]
    assert [str(e.source_info.name_stack) for e in (call, loop, add)] == ["jvp(o)"] * 3
    assert _names(call.params["jaxpr"])[:3] == ["sin a", "cos a", "mul a/b"]
    with anima.named_scope("z"):
        assert _names(anima.make_jaxpr(_scoped)(1.0)) == ["sin a", "mul a/b", "exp"]


def test_programs_that_are_gone_through_again_keep_their_names() -> None:
    program = anima.make_jaxpr(_scoped)(1.0)

    @anima.custom_jvp
    def scoped(x: Any) -> Any:
        return jnp.sin(x)

    @scoped.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        with anima.named_scope("rule"):
            return scoped(*primals), jnp.cos(*primals) * tangents[0]

    def around(x: Any) -> Any:
        with anima.named_scope("o"):
            return scoped(extend.core.jaxpr_as_fun(program)(x)[0])

    assert _names(anima.make_jaxpr(around)(1.0)) == ["sin o/a", "mul o/a/b", "exp o", "custom_jvp_call o"]
    program = anima.make_jaxpr(around)(1.0)
    again = anima.make_jaxpr(anima.grad(lambda x: extend.core.jaxpr_as_fun(program)(x)[0]))(1.0)
    assert "cos jvp(o)/rule" in _names(again)


def test_names_as_a_decorator_and_in_print() -> None:
    @anima.named_scope("outer")
    def f(x: Any, depth: int = 0) -> Any:
        return jnp.sin(x) if depth else f(x, 1)

    program = anima.make_jaxpr(f)(1.0)
    assert _names(program) == ["sin outer/outer"] and len(si.current_name_stack()) == 0
    assert "# [outer/outer]" in program.jaxpr.pretty_print(name_stack=True)
    info = program.eqns[0].source_info
    changed = program.eqns[0].replace(source_info=info.replace(name_stack=info.name_stack[1:].transform("vmap")))
    assert str(changed.source_info.name_stack) == "outer/vmap()" and changed.source.line == info.traceback.line
    with pytest.raises(KeyError), anima.named_scope("left"):
        raise KeyError
    assert len(si.current_name_stack()) == 0


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
