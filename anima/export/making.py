"""Exporting functions, and reading what was exported.

exported = export(jit(f))(x);  deserialize(exported.serialize()).call(x)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anima import errors, tree
from anima.api.jit import JitFunction, jit
from anima.api.points import is_symbolic
from anima.api.stages import TracedFunction
from anima.config import enable_x64
from anima.core.avals import ShardedArray
from anima.core.explicit import erased
from anima.core.format import Reader, opened, version_of
from anima.core.placement import pins
from anima.core.refs import AbstractRef
from anima.export.exported import MAGIC, VERSION, WHAT, DisabledSafetyCheck, Exported, read_chain
from anima.export.meshes import Cut, said_cut
from anima.export.polymorphic import FAMILY, export_at_points, read_family
from anima.export.reading import Programs
from anima.transforms.discharge import discharged


def export(
    fun_jit: Any,
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[DisabledSafetyCheck] = (),
    _override_lowering_rules: Any = None,
) -> Callable[..., Exported]:
    """Exports a jitted function, as a program that other processes can load.

    Args:
      fun_jit: what `jit` made of a function.
      platforms: those that it may be called on, ("cpu",) by default. The program is the same for all.
      disabled_checks: checks that are not made.

    Returns:
      A function of arrays or `ShapeDtypeStruct`s that traces the function for them, and gives an `Exported`; with
      sizes of `symbolic_shape`, one for all sizes. How arguments and results are cut over devices is kept, what else
      the function says of places is not.

    Raises:
      ValueError: for a function that is neither jitted nor Anima's own.
      InconclusiveDimensionOperation: where the program depends on the values of sizes that are not known.

    >>> exported = export(jit(lambda x, y: x @ y))(ShapeDtypeStruct((2, 3), "float32"), jnp.ones(3))
    >>> exported.in_avals, exported.out_avals
    ((ShapedArray(float32[2,3]), ShapedArray(float32[3])), (ShapedArray(float32[2]),))
    >>> from anima.export import symbolic_shape
    >>> exported = export(jit(lambda x: x.sum(0)))(ShapeDtypeStruct(symbolic_shape("b, 2*n"), "float32"))
    >>> exported.out_avals, exported.call(jnp.ones((5, 4)))
    ((ShapedArray(float32[2*n]),), Array([5., 5., 5., 5.], dtype=float32))
    """
    if not isinstance(fun_jit, JitFunction) and str(getattr(fun_jit, "__module__", None)).startswith("anima."):
        fun_jit = jit(fun_jit)  # the library's own functions need no jit around them
    if not isinstance(fun_jit, JitFunction):
        raise ValueError(f"Function to be exported must be the result of `jit` but is: {fun_jit}")
    if _override_lowering_rules is not None:
        raise NotImplementedError("Exported programs are not lowered: there are no lowering rules to override.")
    checks = tuple(disabled_checks)
    for check in checks:
        if not isinstance(check, DisabledSafetyCheck):
            raise TypeError(f"disabled_checks are of type DisabledSafetyCheck, got {check!r}")

    @errors.api_boundary
    def do_export(*args: Any, **kwargs: Any) -> Exported:
        if any(map(is_symbolic, tree.leaves((args, kwargs)))):
            return export_at_points(do_export, args, kwargs)
        traced = fun_jit.trace(*args, **kwargs)
        if len(traced.jaxpr.in_avals) != traced.in_tree.num_leaves:
            raise ValueError(
                f"Function '{traced.fun_name}' cannot be exported here: it closes over values that are "
                "being traced. Pass them as arguments."
            )
        if any(isinstance(a, AbstractRef) for a in traced.jaxpr.in_avals):
            raise NotImplementedError(
                f"Function '{traced.fun_name}' cannot be exported: it takes references. Export "
                "one that takes and gives the arrays."
            )
        closed, _ = discharged(erased(traced.jaxpr))
        return Exported(traced.fun_name, traced.in_tree, closed.in_avals, traced.out_tree, closed.out_avals, closed,
                        tuple(platforms) if platforms else ("cpu",), checks, cut=_cut_of(traced))

    return do_export


def _cut_of(traced: TracedFunction) -> Cut | None:
    avals = traced.jaxpr.out_avals
    asked = (traced.places and traced.places.outs) or [None] * len(avals)
    outs = [a.sharding if s is None and type(a) is ShardedArray else s for s, a in zip(asked, avals, strict=True)]
    return said_cut(traced.input_shardings, outs, [s for _, s in pins(traced.jaxpr)])


def default_export_platform() -> str:
    """The platform that programs are exported for: "cpu"."""
    return "cpu"


def deserialize(blob: bytes | bytearray) -> Exported:
    """The function in bytes that `Exported.serialize` made, in this or an earlier version of Anima.

    Nothing in the bytes is run, imported or looked up by name: they are data, of which programs are made and checked.
    Users' functions for pytree nodes are called where `register_pytree_node_serialization` has them.

    Raises:
      FormatError: a ValueError, for bytes that are damaged, of another format, or of a later version.

    >>> exported = export(jit(lambda x: 2 * x))(1.0)
    >>> deserialize(exported.serialize()).call(21.0)
    Array(42., dtype=float32, weak_type=True)
    """
    data = bytes(blob)
    magic, read = (FAMILY, read_family) if data.startswith(FAMILY) else (MAGIC, _read_one)
    content = opened(magic, VERSION, data, WHAT)
    reader = Reader(content, version_of(data))
    with enable_x64(reader.flag()):  # types are those of the options that the programs were traced under
        found = read(reader, Programs(reader))
    reader.end()
    return found


def _read_one(reader: Reader, programs: Programs) -> Exported:
    return read_chain(reader, programs)[0]
