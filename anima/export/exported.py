"""Exported functions: a program, the structures of its arguments and results, and perhaps its derivatives.

    exported = export(jit(f))(jnp.ones(3))       blob = exported.serialize(vjp_order=1)
    deserialize(blob).call(x)                    in another process, without the source of f

The bytes are described in `docs/export-format.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from anima import errors, tree
from anima.api.autodiff import vjp
from anima.api.pjit import pjit_p
from anima.config import config, enable_x64
from anima.core import dtypes
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.format import Reader, Writer, sealed
from anima.core.jaxpr import ClosedJaxpr
from anima.core.mesh import AbstractMesh, Mesh
from anima.core.shardings import NamedSharding
from anima.core.stage import Traced, trace_to_jaxpr
from anima.core.trace import EVAL, aval_of, under
from anima.export.meshes import Cut, read_cut, write_cut
from anima.export.reading import Programs
from anima.export.trees import read_tree, write_tree
from anima.export.writing import Tables
from anima.transforms.custom import custom_vjp

MAGIC = b"ANIMAEXP"
VERSION = 2  # 1: without meshes; what has none is written so
WHAT = "an exported program"
minimum_supported_calling_convention_version = 9
maximum_supported_calling_convention_version = 10
MOST_VJPS = 16  # orders of derivatives in a file


class DisabledSafetyCheck(str):
    """A check of exported programs that is not to be made: `platform()` is that of the platform of a call.

    >>> DisabledSafetyCheck.platform(), DisabledSafetyCheck.custom_call("f").is_custom_call()
    (platform, 'f')
    """

    __slots__ = ()

    @classmethod
    def platform(cls) -> DisabledSafetyCheck:
        """Allows calls on platforms that the program was not exported for."""
        return cls("platform")

    @classmethod
    def custom_call(cls, target_name: str) -> DisabledSafetyCheck:
        """Would allow calls of a foreign function, which exported programs of Anima's never have."""
        return cls(f"custom_call:{target_name}")

    def is_custom_call(self) -> str | None:
        """The name of the function whose calls are allowed; None for another check."""
        return self.removeprefix("custom_call:") if self.startswith("custom_call:") else None

    def __repr__(self) -> str:
        return str(self)


class Exported:
    """A function as a program that can be written to bytes (`serialize`) and called (`call`).

    Attributes:
      fun_name: the function's name.
      in_tree, out_tree: structures of `(args, kwargs)` and of the result.
      in_avals, out_avals: types of their leaves.
      platforms: those that it may be called on; "cpu" unless others are asked for.
      ordered_effects, unordered_effects: names of what it does beside its results. One that does anything can be
        called, but not serialized.
      disabled_safety_checks: checks that are not made.
      jaxpr: the program; it takes and gives no values of dtype float0.
      cut: how arguments and results are cut over devices (`Cut`); None for a function of one device.
    """

    calling_convention_version = maximum_supported_calling_convention_version
    uses_global_constants = False

    def __init__(self, fun_name: str, in_tree: tree.PyTreeDef, in_avals: Sequence[ShapedArray],
                 out_tree: tree.PyTreeDef, out_avals: Sequence[ShapedArray], jaxpr: ClosedJaxpr,
                 platforms: Sequence[str] = ("cpu",), disabled_safety_checks: Sequence[DisabledSafetyCheck] = (),
                 get_vjp: Callable[[], Exported | None] | None = None, cut: Cut | None = None) -> None:
        self.fun_name, self.jaxpr, self.cut = fun_name, jaxpr, cut
        self.in_tree, self.in_avals = in_tree, tuple(in_avals)
        self.out_tree, self.out_avals = out_tree, tuple(out_avals)
        self.platforms, self.disabled_safety_checks = tuple(platforms), tuple(disabled_safety_checks)
        self._get_vjp = self._exported_vjp if get_vjp is None else get_vjp
        self._over: dict[Any, Callable[..., list[Any]]] = {}  # meshes of calls -> the function of leaves that lie there
        self._options = config.trace_key()  # that the program was traced under: what it becomes depends on them

    @property
    def ordered_effects(self) -> tuple[str, ...]:
        return tuple(sorted(e for e in self.jaxpr.effects if e.startswith("Ordered")))

    @property
    def unordered_effects(self) -> tuple[str, ...]:
        return tuple(sorted(self.jaxpr.effects.difference(self.ordered_effects)))

    @property
    def module_kept_var_idx(self) -> tuple[int, ...]:
        """The numbers of the leaves that the program takes: all but those of dtype float0."""
        return tuple(k for k, a in enumerate(self.in_avals) if a.dtype != dtypes.float0)

    @property
    def nr_devices(self) -> int:
        """Over how many devices the arguments and the results lie."""
        return 1 if self.cut is None else self.cut.mesh.size

    @property
    def in_shardings_hlo(self) -> tuple[None, ...]:
        """None for each argument, as the compiler knows no other shardings than `in_shardings_jax` gives."""
        return (None,) * len(self.in_avals)

    @property
    def out_shardings_hlo(self) -> tuple[None, ...]:
        """None for each result."""
        return (None,) * len(self.out_avals)

    @errors.api_boundary
    def in_shardings_jax(self, mesh: Mesh | AbstractMesh) -> tuple[NamedSharding | None, ...]:
        """How the leaves of the arguments lie on a mesh (None: as they are). ValueError unless it has the axes of that
        which the function was exported for."""
        return self.in_shardings_hlo if self.cut is None else self.cut.shardings(self.cut.ins, mesh)

    @errors.api_boundary
    def out_shardings_jax(self, mesh: Mesh | AbstractMesh) -> tuple[NamedSharding | None, ...]:
        """How the leaves of the results lie on a mesh, as `in_shardings_jax`."""
        return self.out_shardings_hlo if self.cut is None else self.cut.shardings(self.cut.outs, mesh)

    @property
    def mlir_module_serialized(self) -> bytes:
        """The program without its derivatives, in Anima's own format."""
        return self.serialize()

    def mlir_module(self, serialized: bool = True) -> Any:
        """There is none: NotImplementedError."""
        raise NotImplementedError("Anima's compiler does not go through MLIR, so an exported program is no MLIR "
                                  "module. Read `exported.jaxpr`, or `anima.jit(exported.call).lower(...).as_text()`.")

    def __repr__(self) -> str:
        return f"Exported(fun_name={self.fun_name}, ...)"

    # ---------------------------------------------------------------- calls

    @errors.api_boundary
    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The result for arguments of the structure and the types of the exported function's.

        It can be jitted, vmapped, exported again and, where there is a `vjp`, differentiated in reverse mode. A
        function of several devices takes arguments that are on as many, in any order.

        Raises:
          ValueError: for arguments of another structure, shape or dtype, or on another number of devices; on another
            platform; for a derivative that was not exported.
        """
        if "cpu" not in self.platforms and DisabledSafetyCheck.platform() not in self.disabled_safety_checks:
            raise ValueError(f"Function '{self.fun_name}' was exported for platforms '{self.platforms}' but it is used "
                             "on '('cpu',)'.")
        leaves, in_tree = tree.flatten((args, kwargs))
        if in_tree != self.in_tree:
            raise ValueError("The invocation args and kwargs must have the same pytree structure as when the function "
                             f"'{self.fun_name}' was exported, {self.in_tree}, but they have {in_tree}.")
        for k, (x, wanted) in enumerate(zip(leaves, self.in_avals, strict=True)):
            found = _aval(x)
            for what, one, other in (("Shape", wanted.shape, found.shape),
                                     ("Dtype", dtypes.name(wanted.dtype), dtypes.name(found.dtype))):
                if one != other:
                    raise ValueError(f"{what} mismatch for {self._argument(k)}: expected {one} and called with {other}"
                                     f"{_advice(one) if what == 'Dtype' else ''}")
        if self.cut is None:
            return tree.unflatten(self.out_tree, self._leaves(*leaves))
        mesh = self.cut.mesh_of_call(self.fun_name, leaves)
        if mesh not in self._over:
            self._over[mesh] = self.cut.over(mesh, self._leaves)
        return tree.unflatten(self.out_tree, self._over[mesh](*leaves))

    def _leaves(self, *leaves: Any) -> list[Any]:
        """The leaves of the result, for those of the arguments."""
        outs = iter(self._flat(*(leaves[k] for k in self.module_kept_var_idx)))
        return [np.zeros(a.shape, a.dtype) if a.dtype == dtypes.float0 else next(outs) for a in self.out_avals]

    def _argument(self, number: int) -> str:
        """The name of a leaf of the arguments, for errors."""
        path = tree.leaves_with_path(tree.unflatten(self.in_tree, range(len(self.in_avals))))[number][0]
        return f"{('args', 'kwargs')[path[0].idx]}{tree.keystr(path[1:])}"

    @cached_property
    def _flat(self) -> Callable[..., list[Any]]:
        """The program as a function of the leaves that it takes, whose derivatives are those that were exported."""
        def run(*xs: Any) -> list[Any]:
            return pjit_p.bind(*xs, jaxpr=self.jaxpr, name=self.fun_name, inline=False)

        def forward(*xs: Any) -> tuple[list[Any], Any]:
            self.vjp()  # ValueError if there is none
            return run(*xs), xs

        def backward(xs: Any, cts: Any) -> tuple[Any, ...]:
            given = [ct for ct, a in zip(cts, self.jaxpr.out_avals, strict=True) if _is_smooth(a)]
            found = iter(self.vjp()._flat(*xs, *given))
            return tuple(next(found) if _is_smooth(a) else None for a in self.jaxpr.in_avals)

        run.__name__ = self.fun_name
        flat = custom_vjp(run)
        flat.defvjp(forward, backward)
        return flat

    # ---------------------------------------------------------------- derivatives

    def has_vjp(self) -> bool:
        """Whether there is a derivative."""
        return self._vjp is not None

    @errors.api_boundary
    def vjp(self) -> Exported:
        """The derivative, exported: a function of the leaves of the arguments and of cotangents for those of the
        results, which gives cotangents for those of the arguments. ValueError if it was not exported."""
        if self._vjp is None:
            raise ValueError("No VJP is available")
        return self._vjp

    @cached_property
    def _vjp(self) -> Exported | None:
        with config.held(self._options):
            return self._get_vjp()

    def _exported_vjp(self) -> Exported:
        """The derivative of a program of this process."""
        avals = self.jaxpr.in_avals
        smooth = [k for k, a in enumerate(avals) if _is_smooth(a)]
        outs = [k for k, a in enumerate(self.jaxpr.out_avals) if _is_smooth(a)]

        def pull(*flat: Any) -> list[Any]:
            primals, cts = list(flat[:len(avals)]), flat[len(avals):]

            def run(*xs: Any) -> list[Any]:
                for k, x in zip(smooth, xs, strict=True):
                    primals[k] = x
                found = pjit_p.bind(*primals, jaxpr=self.jaxpr, name=self.fun_name, inline=False)
                return [found[k] for k in outs]

            return list(vjp(run, *(primals[k] for k in smooth))[1](list(cts)))

        cts = [tangent_aval(a).strip_weak_type() for a in self.out_avals]
        in_avals = [*(a.strip_weak_type() for a in self.in_avals), *cts]
        name = f"{self.fun_name}_vjp"
        program = ClosedJaxpr(*under(EVAL, trace_to_jaxpr, pull, [a for a in in_avals if a.dtype != dtypes.float0],
                                     Traced(name, by="export")))
        out_avals = [tangent_aval(a).strip_weak_type() for a in self.in_avals]
        return Exported(name, tree.structure(((0,) * len(in_avals), {})), in_avals,
                        tree.structure((0,) * len(out_avals)), out_avals, program, self.platforms,
                        self.disabled_safety_checks, cut=self.cut and self.cut.derivative())

    # ---------------------------------------------------------------- bytes

    @errors.api_boundary
    def serialize(self, vjp_order: int = 0) -> bytes:
        """The function as bytes, with its derivatives up to an order, for `deserialize`.

        Raises:
          NotImplementedError: for programs that call Python, or C functions by their address; the message says where.
          ValueError: for pytree nodes that have no name (`register_pytree_node_serialization`), and for an order
            that is not from 0 to 15.
        """
        if not 0 <= vjp_order < MOST_VJPS:
            raise ValueError(f"vjp_order is from 0 to {MOST_VJPS - 1}, got {vjp_order}.")
        chain = [self]
        for _ in range(vjp_order):
            chain.append(chain[-1].vjp())
        with config.held(self._options):
            return written(MAGIC, [chain])


def written(magic: bytes, chains: Sequence[Sequence[Exported]], more: Writer | None = None) -> bytes:
    """Functions, each with its derivatives, as a file of a kind; `more` stands before them."""
    version = VERSION if any(exported.cut for chain in chains for exported in chain) else 1
    tables, body = Tables(), more or Writer()
    for chain in chains:
        _write_chain(tables, body, chain, version)
    out = Writer()
    out.flag(enable_x64.value)
    tables.write(out)
    out.append(body)
    return sealed(magic, version, out.bytes())


def _write_chain(tables: Tables, body: Writer, chain: Sequence[Exported], version: int) -> None:
    """A function and its derivatives."""
    body.natural(len(chain))
    for exported in chain:
        body.text(exported.fun_name)
        for texts in (exported.platforms, exported.disabled_safety_checks):
            body.natural(len(texts))
            for text in texts:
                body.text(text)
        body.natural(tables.program(exported.jaxpr))
        for treedef, avals in ((exported.in_tree, exported.in_avals), (exported.out_tree, exported.out_avals)):
            write_tree(body, treedef)
            for aval in avals:
                body.natural(tables.type(aval))
        if version > 1:
            write_cut(body, exported.cut)


def read_chain(reader: Reader, programs: Programs) -> list[Exported]:
    """A function and its derivatives."""
    parts = [_read(reader, programs) for _ in range(min(reader.count(), MOST_VJPS))]
    if not parts:
        reader.fail("there is no function")
    chain: list[Exported] = []
    for one in reversed(parts):
        chain.append(Exported(**one, get_vjp=partial(_last, tuple(chain))))
    return chain[::-1]


def _last(chain: Sequence[Exported]) -> Exported | None:
    return chain[-1] if chain else None


def _read(reader: Reader, programs: Programs) -> dict[str, Any]:
    """The arguments of an `Exported`."""
    name, platforms = reader.text(), reader.many(reader.text)
    checks = [DisabledSafetyCheck(text) for text in reader.many(reader.text)]
    parts: dict[str, Any] = {"fun_name": name, "platforms": platforms, "disabled_safety_checks": checks,
                             "jaxpr": programs.program()}
    jaxpr = parts["jaxpr"]
    for side, wanted in (("in", jaxpr.in_avals), ("out", jaxpr.out_avals)):
        treedef = read_tree(reader)
        avals = [programs.type() for _ in range(treedef.num_leaves)]
        kept = [a for a in avals if a.dtype != dtypes.float0]
        if [(a.shape, a.dtype) for a in kept] != [(a.shape, a.dtype) for a in wanted]:
            reader.fail(f"the types of {name}'s {'arguments' if side == 'in' else 'results'} are not those of its "
                        "program")
        parts |= {f"{side}_tree": treedef, f"{side}_avals": avals}
    if reader.version > 1:
        parts["cut"] = read_cut(reader, parts["in_avals"], parts["out_avals"])
    return parts


def _aval(x: Any) -> ShapedArray:
    return ShapedArray(x.shape, x.dtype) if getattr(x, "dtype", None) == dtypes.float0 else aval_of(x)


def _is_smooth(aval: ShapedArray) -> bool:
    return tangent_aval(aval).dtype != dtypes.float0


def _advice(dtype: str) -> str:
    wide = dtype in ("float64", "complex128", "int64", "uint64") and not enable_x64.value
    return ". 64-bit types are off: see anima.enable_x64" if wide else ""
