"""What JAX does in another way than Anima's documents: adopted by programs that were written for JAX."""

from __future__ import annotations

import inspect
import os
from functools import cache
from typing import Any

from anima import tree_engine, util
from anima.api.pjit import pjit_p
from anima.config import config
from anima.control.effects import Callback
from anima.core import dtypes, kept
from anima.core.array import Array, ConcreteArray, PlacedArray
from anima.core.primitive import Primitive
from anima.core.state import current
from anima.core.trace import Tracer
from anima.numpy import creation, elementwise, operators, spaces
from anima.runtime import logs
from anima.transforms.checkpoint import checkpoint_p


def adopt() -> None:
    """The newer stream of random numbers, unless the environment names one; `jit` and `remat2` as the names of calls;
    dicts that come back with their keys in order; functions that are called once for arguments of equal types, by
    loops, branches, `checkpoint` and the like; arrays that `array` makes as values of the program being recorded;
    failures of functions that programs call back as `JaxRuntimeError`s; names of classes, and of the module of
    functions on arrays; parameters of operations that wish for nothing; numbers times truth values as choices; the
    roundings of ranges of floats; the words of `log_compiles` that tests look for; logs that handlers of the logger
    "jax" see."""
    if not {"ANIMA_THREEFRY_PARTITIONABLE", "JAX_THREEFRY_PARTITIONABLE"} & set(os.environ):
        config.update("anima_threefry_partitionable", True)
    pjit_p.name, checkpoint_p.name = "jit", "remat2"
    tree_engine.sort_keys = True
    Callback.errors_as_text = True
    kept.remembers = True
    creation.stages_numbers = True
    spaces.steps_in_type = True
    elementwise.chooses = True
    operators.namespace = "jax.numpy"
    name_classes()
    Primitive.bind = _bind  # type: ignore[method-assign]
    _, event = logs.kinds["compile"]
    logs.kinds["compile"] = "XLA compilation of jit({})", event
    util.above_logger = "jax"


def name_classes() -> None:
    """Arrays and tracers, which libraries that have several kinds of arrays tell by the modules of their classes, and
    types of keys, which are printed by theirs."""
    Array.__module__ = "jax"
    for concrete in (ConcreteArray, PlacedArray):
        concrete.__module__, concrete.__name__, concrete.__qualname__ = "jaxlib._jax", *["ArrayImpl"] * 2
    for scalar in (dtypes.extended, dtypes.prng_key):
        scalar.__module__ = "jax.dtypes"
    waiting = [Tracer]
    while waiting:
        waiting += (tracer := waiting.pop()).__subclasses__()
        tracer.__module__ = "jax._src.core"


_WISHES = frozenset(("accuracy", "out_sharding", "sharding"))  # parameters that operations have in JAX only, mostly


def _bind(self: Primitive, *args: Any, **params: Any) -> Any:
    """As `Primitive.bind`, which takes no parameters that are not the operation's: wishes for nothing are left out."""
    for name in _WISHES.intersection(params):
        if params[name] is None and not _has(type(self), name):
            del params[name]
    return current.trace.process(self, args, params)


@cache
def _has(kind: type[Primitive], name: str) -> bool:
    return name in inspect.signature(kind.infer).parameters
