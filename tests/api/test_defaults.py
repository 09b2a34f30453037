"""What arguments that are not given mean: part of what users rely on, and of no other test where both ways agree."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import anima
from anima import debug, lax
from anima.experimental import io_callback

JIT = {"static_argnums": None, "static_argnames": None, "donate_argnums": None, "donate_argnames": None,
       "keep_unused": False, "inline": False, "device": None, "backend": None}
GRAD = {"argnums": 0, "has_aux": False, "holomorphic": False, "allow_int": False}
DEFAULTS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (anima.jit, JIT),
    (anima.vmap, {"in_axes": 0, "out_axes": 0, "axis_name": None, "axis_size": None, "spmd_axis_name": None}),
    (anima.grad, GRAD), (anima.value_and_grad, GRAD), (anima.jacrev, GRAD),
    (anima.jacfwd, {"argnums": 0, "has_aux": False, "holomorphic": False}),
    (anima.hessian, {"argnums": 0, "has_aux": False, "holomorphic": False}),
    (anima.jvp, {"has_aux": False}), (anima.vjp, {"has_aux": False}), (anima.linearize, {"has_aux": False}),
    (anima.fwd_and_bwd, {"has_aux": False, "jitted": True}),
    (anima.checkpoint, {"prevent_cse": True, "policy": None, "static_argnums": (), "static_argnames": ()}),
    (anima.make_jaxpr, {"static_argnums": (), "return_shape": False}),
    (anima.custom_jvp, {"nondiff_argnums": ()}), (anima.custom_vjp, {"nondiff_argnums": ()}),
    (lax.scan, {"xs": None, "length": None, "reverse": False, "unroll": 1}),
    (lax.fori_loop, {"unroll": None}), (lax.map, {"batch_size": None}),
    (lax.associative_scan, {"reverse": False, "axis": 0}), (lax.custom_root, {"has_aux": False}),
    (lax.custom_linear_solve, {"transpose_solve": None, "symmetric": False, "has_aux": False}),
    (anima.ShapeDtypeStruct, {"sharding": None, "weak_type": False}),
    (anima.print_environment_info, {"return_string": False}), (anima.devices, {"backend": None}),
    (anima.local_devices, {"process_index": None, "backend": None, "host_id": None}),
    (debug.print, {"ordered": False, "skip_format_check": False}), (debug.callback, {"ordered": False}),
    (debug.breakpoint, {"backend": None, "filter_frames": True, "num_frames": None, "ordered": False}),
    (anima.pure_callback, {"vmap_method": None}), (io_callback, {"ordered": False}),
]


@pytest.mark.parametrize("function, defaults", DEFAULTS, ids=lambda x: getattr(x, "__name__", ""))
def test_defaults(function: Callable[..., Any], defaults: dict[str, Any]) -> None:
    parameters = inspect.signature(function).parameters
    found = {name: parameters[name].default for name in defaults}
    assert found == defaults and list(map(type, found.values())) == list(map(type, defaults.values()))


# By the name in Anima: the parameters that may be given by position, in order, and the defaults as they are written,
# of those that JAX 0.10.2 has too.
SIGNATURES = json.loads((Path(__file__).parent / "data" / "signatures.json").read_text())


@pytest.mark.parametrize("module", sorted({name.rpartition(".")[0] for name in SIGNATURES}))
def test_signatures(module: str) -> None:
    functions = importlib.import_module(f"anima.{module}".rstrip("."))
    for name, (positional, defaults) in SIGNATURES.items():
        if name.rpartition(".")[0] != module:
            continue
        fun = getattr(functions, name.rpartition(".")[2])
        fun = fun.__call__ if isinstance(fun, enum.Enum) else fun
        parameters = inspect.signature(fun).parameters
        given = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        assert [p for p in given if p in positional] == positional, name
        for parameter, text in defaults.items():
            default, expected = parameters[parameter].default, ast.literal_eval(text)
            assert type(default) is type(expected) and default == expected, f"{name}: {parameter}={default!r}"
