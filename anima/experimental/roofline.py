"""What a program is at least: operations on numbers, and bytes that it moves; nothing is run.

    shapes, result = roofline(f)(x)         result.unfused_flops, result.hbm_bytes, result.peak_hbm_bytes, ...

`unfused_*` count each equation of the program as it was traced, with its operands and results in memory. `hbm_bytes`
is what the kernels of the compiled program move, `flops` the operations of products and convolutions, which no fusion
saves; `peak_hbm_bytes` the most that values which are still needed take, equation by equation. One machine has no wires
between devices: `ici_bytes` and `ici_latency` are empty, unless rules of yours say otherwise. A loop counts as often as
it runs where that is known (`scan`, `fori_loop` between numbers); a `while_loop`, whose steps nobody knows, as one.

Differs from JAX: all of Anima's operations are counted, by what they say of their work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anima.api.autodiff import vjp as _vjp
from anima.api.shard_map import shard_map
from anima.api.tracing import make_jaxpr
from anima.compiler.driver import lower
from anima.compiler.traffic import traffic
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr, Eqn, Literal, Var, subjaxprs, work_of
from anima.core.primitive import Primitive
from anima.core.source import NameStack
from anima.names import access
from anima.transforms.dce import dce_jaxpr
from anima.util import wraps

_PRODUCTS = ("dot_general", "conv_general_dilated")


@dataclass(frozen=True)
class RooflineShape:
    """An array's shape and dtype."""

    shape: tuple[int, ...]
    dtype: Any

    @classmethod
    def from_aval(cls, aval: Any) -> RooflineShape:
        """Of a type; TypeError for what is no array."""
        if not isinstance(aval, ShapedArray):
            raise TypeError(f"Expected ShapedArray, got {type(aval)}.")
        return cls(aval.shape, aval.dtype)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape))

    @property
    def bytes(self) -> int:
        """The bytes of its elements."""
        return self.size * self.dtype.itemsize

    @classmethod
    def total_bytes(cls, avals: Sequence[Any]) -> int:
        """The bytes of several."""
        return sum(cls.from_aval(a).bytes for a in avals)


@dataclass(frozen=True, kw_only=True)
class RooflineResult:
    """Counts; those of two programs, one after the other, are added, but for the peak."""

    flops: int = 0
    unfused_flops: int = 0
    ici_bytes: dict[str, int] = field(default_factory=dict)
    ici_latency: dict[str, int] = field(default_factory=dict)
    hbm_bytes: int = 0
    peak_hbm_bytes: int = 0
    unfused_hbm_bytes: int = 0

    @classmethod
    def zeros(cls) -> RooflineResult:
        """Of a program that does nothing."""
        return cls()

    def __add__(self, other: RooflineResult) -> RooflineResult:
        def both(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
            return dict(Counter(a) + Counter(b))

        return RooflineResult(
            flops=self.flops + other.flops, unfused_flops=self.unfused_flops + other.unfused_flops,
            ici_bytes=both(self.ici_bytes, other.ici_bytes), ici_latency=both(self.ici_latency, other.ici_latency),
            hbm_bytes=self.hbm_bytes + other.hbm_bytes, peak_hbm_bytes=max(self.peak_hbm_bytes, other.peak_hbm_bytes),
            unfused_hbm_bytes=self.unfused_hbm_bytes + other.unfused_hbm_bytes)

    def __mul__(self, constant: float) -> RooflineResult:
        return RooflineResult(**{name: {k: int(v * constant) for k, v in value.items()} if isinstance(value, dict)
                                 else int(value * constant) for name, value in vars(self).items()})

    __rmul__ = __mul__


@dataclass(frozen=True)
class RooflineRuleContext:
    """What a rule knows of an equation beside its operands and parameters."""

    name_stack: NameStack
    primitive: Primitive
    avals_in: Sequence[Any]
    avals_out: Sequence[Any]
    jaxpr_eqn_ctx: Any = None
    mesh: Any = None
    pin_lhs_in_vmem: bool = False
    pin_rhs_in_vmem: bool = False


Rule = Callable[..., RooflineResult]
_rules: dict[Primitive, Rule] = {}


def register_roofline(prim: Primitive) -> Callable[[Rule], Rule]:
    """A decorator for the rule of an operation of yours: `rule(context, *shapes, **parameters) -> RooflineResult`."""
    def register(rule: Rule) -> Rule:
        _rules[prim] = rule
        return rule

    return register


def register_standard_roofline(prim: Primitive) -> None:
    """An operation of yours that costs nothing."""
    _rules[prim] = lambda context, *shapes, **params: RooflineResult()


def roofline(f: Callable[..., Any], mesh: Any = None, in_specs: Any = None, out_specs: Any = None, *,
             pin_lhs_in_vmem: bool = False, pin_rhs_in_vmem: bool = False, vjp: bool = False,
             print_jaxpr: bool = False) -> Callable[..., tuple[Any, RooflineResult]]:
    """A function of arrays, or their types, that gives the types of the results of `f`, and the counts.

    Args:
      f: a function of arrays.
      mesh, in_specs, out_specs: all given: the program of one device of `shard_map(f, ...)` is counted.
      pin_lhs_in_vmem, pin_rhs_in_vmem: for rules that ask.
      vjp: count `f` and its pullback.
      print_jaxpr: print the program that is counted.

    >>> shapes, result = roofline(lambda x, y: jnp.sin(x @ y))(jnp.ones((4, 8)), jnp.ones((8, 4)))
    >>> shapes.shape, result.flops, result.unfused_flops, result.hbm_bytes
    ((4, 4), 256, 272, 320)
    """
    @wraps(f)
    def counted(*args: Any) -> tuple[Any, RooflineResult]:
        fun = f
        if mesh is not None and in_specs is not None and out_specs is not None:
            fun = shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
        whole = _pulled_back(fun) if vjp else fun
        closed, shapes = make_jaxpr(whole, return_shape=True)(*args)
        closed = ClosedJaxpr(dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))[0], closed.consts)
        for eqn in closed.eqns:
            if eqn.primitive.name == "shard_map":
                inner = eqn.params["jaxpr"]
                closed = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
        if print_jaxpr:
            print(closed)
        context = {"mesh": mesh, "pin_lhs_in_vmem": pin_lhs_in_vmem, "pin_rhs_in_vmem": pin_rhs_in_vmem}
        result = _counts(closed, context)
        return shapes, result + RooflineResult(hbm_bytes=_moved(closed))

    return counted


def roofline_and_grad(f: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any, *, pin_lhs_in_vmem: bool = False,
                      pin_rhs_in_vmem: bool = False,
                      print_jaxpr: bool = False) -> Callable[..., tuple[Any, RooflineResult, RooflineResult]]:
    """As `roofline`, with the counts of `f` and its pullback as the third result."""
    options = {"pin_lhs_in_vmem": pin_lhs_in_vmem, "pin_rhs_in_vmem": pin_rhs_in_vmem, "print_jaxpr": print_jaxpr}

    @wraps(f)
    def counted(*args: Any) -> tuple[Any, RooflineResult, RooflineResult]:
        shapes, forward = roofline(f, mesh, in_specs, out_specs, **options)(*args)
        return shapes, forward, roofline(f, mesh, in_specs, out_specs, vjp=True, **options)(*args)[1]

    return counted


def _pulled_back(fun: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any) -> Any:
        out, pull = _vjp(fun, *args)
        return pull(out)

    return both


def _moved(closed: ClosedJaxpr) -> int:
    """Bytes that the kernels of the compiled program move; none that are known for operations that do not compile."""
    if any(_has_rule(e) for e in closed.eqns):
        return 0
    program = lower(closed).loops
    return traffic({b.name: b for b in program.buffers}, *program.body).moved


def _has_rule(eqn: Eqn) -> bool:
    return eqn.primitive in _rules or any(_has_rule(e) for inner in subjaxprs(eqn.params) for e in inner.eqns)


def _counts(closed: ClosedJaxpr, context: dict[str, Any]) -> RooflineResult:
    """The counts of a program but for what kernels move, and the most memory that its values take."""
    jaxpr, result = closed.jaxpr, RooflineResult()
    last = {a: k for k, e in enumerate(jaxpr.eqns) for a in e.invars if isinstance(a, Var)}
    last.update((a, len(jaxpr.eqns)) for a in jaxpr.outvars if isinstance(a, Var))
    now = peak = sum(_size(v) for v in (*jaxpr.constvars, *jaxpr.invars))
    for k, eqn in enumerate(jaxpr.eqns):
        result += _of_equation(eqn, context)
        now += sum(map(_size, eqn.outvars))
        peak = max(peak, now)
        now -= sum(_size(v) for v in {a for a in eqn.invars if isinstance(a, Var)} if last[v] == k)
    return result + RooflineResult(peak_hbm_bytes=peak)


def _of_equation(eqn: Eqn, context: dict[str, Any]) -> RooflineResult:
    primitive, avals, outs = eqn.primitive, [a.aval for a in eqn.invars], [v.aval for v in eqn.outvars]
    if primitive in _rules:
        known = RooflineRuleContext(NameStack(), primitive, avals, outs, **context)
        return _rules[primitive](known, *map(RooflineShape.from_aval, avals), **eqn.params)
    if primitive.body is not None and not primitive.on_words:
        return _counts(primitive.body(eqn.params, avals), context)
    programs = list(subjaxprs(eqn.params))
    work = primitive.work(avals, outs, list(map(work_of, programs)), **eqn.params)
    operations = int(work.flops + work.transcendentals)
    inside = [_counts(p if isinstance(p, ClosedJaxpr) else ClosedJaxpr(p, ()), context) for p in programs]
    total = RooflineResult()
    for one in inside:
        total += one * eqn.params.get("length", 1)
    moved = 0 if programs else sum(map(_size, (*eqn.invars, *eqn.outvars)))
    return RooflineResult(flops=operations if primitive.name in _PRODUCTS else total.flops, unfused_flops=operations,
                          unfused_hbm_bytes=total.unfused_hbm_bytes + moved,
                          peak_hbm_bytes=max((one.peak_hbm_bytes for one in inside), default=0))


def _size(atom: Any) -> int:
    aval = atom.aval
    return 0 if isinstance(atom, Literal) else aval.size * int(getattr(aval.dtype, "itemsize", 0))


globals().update(access(__name__, globals()))
