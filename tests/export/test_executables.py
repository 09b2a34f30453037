"""Compiled programs as bytes: the same values, without tracing or compiling; only for the machine they are for."""

from __future__ import annotations

import pathlib
import pickle
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler import driver
from anima.compiler.machine import native
from anima.experimental import checkify
from anima.experimental.serialize_executable import deserialize_and_load, serialize
from anima.export import FormatError, executables
from anima.runtime.cpu import Cpu
from anima.version import __version__
from tests.export.programs import CASES
from tests.export.test_exported import same

ROOT = pathlib.Path(anima.__file__).parents[1]


def compiled(fun: Any, *args: Any, **options: Any) -> Any:
    return anima.jit(fun, **options).lower(*args).compile()


@pytest.mark.parametrize("name", CASES)
def test_the_values_are_those_of_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fun, args = CASES[name]
    program = compiled(fun, *args)
    saved = serialize(program)
    wanted = program(*args)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was compiled")

    for module, function in ((native, "_generate"), (driver, "compile"), (driver, "assemble")):
        monkeypatch.setattr(module, function, refuse)
    loaded = deserialize_and_load(*saved)
    same(loaded(*args), wanted)
    assert loaded.in_avals == program.in_avals and loaded.out_info == program.out_info
    assert loaded.args_info == program.args_info and loaded.memory_analysis() == program.memory_analysis()


def test_donated_arguments(unchecked: None) -> None:
    program = compiled(lambda x, y: (x + y, y), jnp.ones(100_000), jnp.ones(100_000), donate_argnums=0)
    loaded = deserialize_and_load(*serialize(program))
    x, y = jnp.full(100_000, 2.0), jnp.ones(100_000)
    out, kept = loaded(x, y)
    assert x.is_deleted() and not y.is_deleted() and out[0] == 3.0 and kept[0] == 1.0
    assert loaded.memory_analysis().alias_size_in_bytes == 400_000


OTHER = """
import pathlib, pickle, sys
import numpy as np
from anima.experimental.serialize_executable import deserialize_and_load
from anima.compiler import driver
driver.compile = driver.assemble = None
folder = pathlib.Path(sys.argv[1])
loaded = deserialize_and_load((folder / "code").read_bytes(), *pickle.loads((folder / "trees").read_bytes()))
data = np.load(folder / "data.npz")
assert np.array_equal(loaded(data["x"], data["a"]), data["out"])
print("all well")
"""


def test_another_process(tmp_path: pathlib.Path) -> None:
    fun, args = CASES["products"]
    program = compiled(fun, *args)
    blob, *trees = serialize(program)
    (tmp_path / "code").write_bytes(blob)
    (tmp_path / "trees").write_bytes(pickle.dumps(trees))
    np.savez(tmp_path / "data.npz", x=args[0], a=args[1], out=program(*args))
    done = subprocess.run([sys.executable, "-c", OTHER, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "all well\n", done.stderr


def test_equal_parts_products_and_threads(unchecked: None) -> None:
    """Kernels that stand several times, code that products of all programs share, and threads."""
    def fun(x: Any, big: Any) -> Any:
        for _ in range(3):
            x = jnp.tanh(x @ x.T @ x) + 1.0
        return x, jnp.sum(jnp.sin(big) * big), jnp.exp(big)

    args = jnp.cos(jnp.arange(70.0 * 70).reshape(70, 70)) / 70, jnp.linspace(0.0, 1.0, 1_000_000)
    program = compiled(fun, *args)
    assert program.executable.code.parallel and len(program.executable.code.modules) > 1
    same(deserialize_and_load(*serialize(program))(*args), program(*args))


def test_float0_goes_into_loaded_programs_and_out() -> None:
    nothing = np.zeros(2, anima.float0)
    x, z = deserialize_and_load(*serialize(compiled(lambda x, z: (2 * x, z), 1.0, nothing)))(3.0, nothing)
    assert x == 6.0 and z.dtype == anima.float0 and z.shape == (2,)


def test_functions_called_apart_come_along() -> None:
    program = compiled(lambda x: jnp.tan(x) + lax.lgamma(x), jnp.linspace(0.1, 3.0, 37))
    blob, *trees = serialize(program)
    assert b"anima.support.tan" in blob
    same(deserialize_and_load(blob, *trees)(jnp.linspace(0.1, 3.0, 37)), program(jnp.linspace(0.1, 3.0, 37)))


def test_functions_that_are_applied_often_come_along() -> None:
    def fun(x: Any, z: Any) -> Any:
        return [jnp.sin(k * x) for k in range(30)], [jnp.exp(k * z) for k in range(9)]

    args = jnp.linspace(0.1, 3.0, 37), jnp.linspace(0.1, 3.0, 21) * (1 + 2j)
    program = compiled(fun, *args)
    blob, *trees = serialize(program)
    assert b"anima.support.sin" in blob and b"anima.support.exp.c64" in blob
    same(deserialize_and_load(blob, *trees)(*args), program(*args))


def test_wrong_arguments() -> None:
    loaded = deserialize_and_load(*serialize(compiled(lambda x: x * 2, jnp.ones(3))))
    with pytest.raises(TypeError, match=r"argument 0 was compiled with float32\[3\] and called with float32\[4\]"):
        loaded(jnp.ones(4))
    with pytest.raises(TypeError, match="does not match the input pytree"):
        loaded(jnp.ones(3), 1.0)
    with pytest.raises(TypeError, match="Cannot apply Anima transformations"):
        anima.jit(loaded)(jnp.ones(3))
    runs = loaded.runtime_executable()
    for what in (loaded.as_text, loaded.cost_analysis, runs.cost_analysis, *(
            lambda name=name: getattr(runs, name) for name in ("loops", "llvm", "asm"))):
        with pytest.raises(NotImplementedError, match="loaded as machine code"):
            what()
    blob, in_tree, _ = serialize(compiled(lambda x: x * 2, jnp.ones(3)))
    with pytest.raises(ValueError, match="out_tree has 0 leaves, but the program 1"):
        deserialize_and_load(blob, in_tree, anima.tree.structure(()))
    with pytest.raises(NotImplementedError, match="one device"):
        deserialize_and_load(blob, in_tree, in_tree, backend="tpu")


def test_checks_tell_what_failed_there_too() -> None:
    checked = checkify.checkify(lambda x, i: lax.fori_loop(0, 3, lambda k, s: s + jnp.log(x[i[k]]), 0.0),
                                errors=checkify.all_checks)
    x, i = jnp.array([1.0, 2.0, 3.0]), jnp.array([2, 0, 1])
    loaded = deserialize_and_load(*serialize(compiled(checked, x, i)))
    assert loaded(x, i)[0].get() is None
    for args in ((x, i + 1), (x - 2, i)):
        assert loaded(*args)[0].get() == checked(*args)[0].get() is not None


def _steps(x: Any) -> Any:
    return lax.while_loop(lambda c: c < 100.0, lambda c: c * c + 1.0, x)


@pytest.mark.parametrize("fun,message", [
    (lambda x: anima.pure_callback(np.sin, x, x), "calls Python at test_executables.py"),
    (anima.grad(_steps), "records the steps of loops"),
])
def test_what_cannot_be_serialized(fun: Any, message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        serialize(compiled(fun, 1.0))
    with pytest.raises(TypeError, match="compile"):
        serialize(anima.jit(fun))


def test_other_versions_and_other_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled(lambda x: x * 2, jnp.ones(3))
    host = native.host()
    richer = type(host)(host.triple, "imagined", host.features + ",+imaginary", host.vector_bytes, host.registers)
    other = type(host)("imagined-unknown-none", host.cpu, host.features, host.vector_bytes, host.registers)
    for target, message in ((richer, "is for imagined .*, which has not imaginary"), (other, "imagined-unknown-none")):
        with monkeypatch.context() as patch:
            patch.setattr(program.executable, "backend", Cpu(target))
            patch.setattr(native, "support_objects", lambda *_: {})
            saved = serialize(program)
        with pytest.raises(FormatError, match=message):
            deserialize_and_load(*saved)
    with monkeypatch.context() as patch:
        patch.setattr(executables, "__version__", "0.0.9")
        saved = serialize(program)
    with pytest.raises(FormatError, match=f"made by Anima 0.0.9 .*; this is Anima {__version__}"):
        deserialize_and_load(*saved)


def test_damage_is_seen() -> None:
    blob, *trees = serialize(compiled(*[CASES["products"][0], *CASES["products"][1]]))
    rng = random.Random(0)
    for k in range(200):
        data = bytearray(blob)
        if k % 2:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        else:
            del data[rng.randrange(len(data)):]
        with pytest.raises(FormatError):
            deserialize_and_load(bytes(data), *trees)
    exported = anima.export.export(anima.jit(lambda x: x))(1.0).serialize()
    with pytest.raises(FormatError, match="not a compiled program"):
        deserialize_and_load(exported, *trees)
    with pytest.raises(FormatError, match="not an exported program"):
        anima.export.deserialize(blob)
