"""Convolutions in terms of other operations, where that is how they run best.

    1x1:                                              dot_general
    few terms for each output (depthwise, 3 taps):    x[0:n] * w[0] + x[1:n+1] * w[1] + ...
    few outputs in each group, of long sums:          reduce_sum(x[0:n] * w), reduce_sum(x[1:n+1] * w), ...

What is left are convolutions of f32 and f64 with at most three dimensions of space, and those of integers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from anima.compiler.lowering.along import along_lines, lies_along
from anima.compiler.lowering.channels import in_channels, in_groups
from anima.compiler.lowering.convolution import cycles, is_product
from anima.compiler.lowering.problem import Problem, problems
from anima.compiler.machine.target import Target
from anima.compiler.rewriting.rewrites import rewrite
from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray
from anima.core.jaxpr import Eqn
from anima.ops import elementwise as el
from anima.ops.broadcast import broadcast_in_dim, zeros
from anima.ops.contract import dot_general_p, working_dtype
from anima.ops.convolution import ConvDimensionNumbers, conv_general_dilated_p
from anima.ops.family import constant
from anima.ops.reduce import reduce_or_p
from anima.ops.shape import (
    concatenate,
    expand_dims,
    moveaxis,
    pad,
    reduce_sum_p,
    reshape,
    slice as sliced,
    squeeze,
    transpose,
)
from anima.ops.window import dilated
from anima.util import record

_FEW_TERMS = 12      # of a sum that is written out
_FEW_SINGLE = 64     # of a sum over one feature, where every group has one output
_FEW_PLACES = 64     # sums of a group that are written out
_SINGLE_OUTPUTS = 4  # a quarter of a vector: outputs of which products are spread ...
_MANY_FEATURES = 8   # ... if they are sums over so many features
_FEW_TERMS_SPREAD = 32  # ... for no more places in the kernel
_MOST_SPACE = 3
_TURN = 2.0          # cycles to move an element of a transposed array
_MOVE = 0.25         # ... that moves with others


@record
class Form:
    """Sizes of a convolution: of groups, of batch, features and outputs in a group, and of space; its parameters."""

    groups: int
    batch: int
    features: int
    outputs: int
    sizes: Shape
    taps: Shape
    places: Shape
    shapes: tuple[Shape, Shape, Shape]
    params: dict[str, Any]

    @classmethod
    def of(cls, x: ShapedArray, w: ShapedArray, out: ShapedArray, params: dict[str, Any]) -> Form:
        lhs, rhs, res = params["dimension_numbers"]
        groups = params["feature_group_count"] * params["batch_group_count"]
        return cls(groups, out.shape[res[0]], w.shape[rhs[1]], w.shape[rhs[0]] // groups,
                   tuple(x.shape[d] for d in lhs[2:]), tuple(w.shape[d] for d in rhs[2:]),
                   tuple(out.shape[d] for d in res[2:]), (x.shape, w.shape, out.shape), params)

    @property
    def terms(self) -> int:
        return self.features * math.prod(self.taps)

    def problems(self) -> list[Problem]:
        """The convolutions without gaps that it is made of."""
        return list(problems(*self.shapes, self.params))

    def get(self, name: str) -> Any:
        return self.params[name]


def _form(eqn: Eqn) -> Form:
    x, w = (v.aval for v in eqn.invars)
    return Form.of(x, w, eqn.outvars[0].aval, eqn.params)


def _how(f: Form, dtype: Any, size: int) -> str:
    """How a convolution of numbers of a type runs best."""
    if f.terms == 0 or 0 in f.sizes or not size:
        return "zeros"
    if dtypes.issubdtype(dtype, np.complexfloating):
        return "parts"
    if _is_whole(f):
        return "whole"
    if _is_product(f) and not (f.groups == 1 and any(map(is_product, f.problems()))
                               and dtypes.issubdtype(dtype, np.floating)):
        return "product"
    if _stays(f):
        return "windows"
    if dtypes.issubdtype(dtype, np.floating) and _pays_along(f):
        return "along"
    few = _FEW_SINGLE if f.features == f.outputs == 1 < f.groups else _FEW_TERMS
    if f.terms <= few:
        return "taps"
    if f.groups > 1 == f.outputs and f.batch * math.prod(f.places) <= _FEW_PLACES and f.groups >= 8:
        return "places"
    if dtypes.issubdtype(dtype, np.floating) and _pays_to_spread(f):
        return "spread"
    if dtypes.issubdtype(dtype, np.floating) and _pays_together(f):
        return "together"
    return "space" if len(f.taps) > _MOST_SPACE else "windows"


def _stays(f: Form) -> bool:
    """Whether there is a better way than to write it out: channels by themselves, or few, that come last in memory."""
    return len(f.taps) <= _MOST_SPACE and all(in_channels(p) or in_groups(p) or along_lines(p) for p in f.problems())


def _is_product(f: Form) -> bool:
    """Whether every output is a sum over the features at its own place."""
    return (all(n == 1 for n in (*f.taps, *f.get("window_strides"), *f.get("lhs_dilation")))
            and not any(map(any, f.get("padding"))))


def _is_whole(f: Form) -> bool:
    """Whether every output is a sum over all of space, which lies alike in x and in the kernel, before the rest."""
    lhs, rhs, _ = f.get("dimension_numbers")
    apart = (*f.get("rhs_dilation"), *f.get("lhs_dilation"))
    return (f.taps == f.sizes and f.groups == 1 and all(n == 1 for n in apart) and not any(map(any, f.get("padding")))
            and lhs[0] == rhs[0] == len(lhs) - 1 and lhs[1:] == rhs[1:])


def _wants_others(eqn: Eqn, target: Target) -> bool:
    """Whether a convolution is better written in terms of other operations."""
    x, w, out = eqn.invars[0].aval, eqn.invars[1].aval, eqn.outvars[0].aval
    work = working_dtype(x.dtype, out.dtype)
    f = _form(eqn)
    return (not x.dtype == work == out.dtype or _how(f, work, x.size * w.size * out.size) != "windows"
            or _turned(f, x.shape, w.shape, out) is not None)


@rewrite("conv_general_dilated", where=_wants_others, again=True)
def _in_others(eqn: Eqn, target: Target, x: Any, w: Any) -> Any:
    """The convolution in terms of other operations."""
    aval = eqn.outvars[0].aval
    work = working_dtype(x.aval.dtype, aval.dtype)
    f = _form(eqn)
    params = {**f.params, "precision": None, "preferred_element_type": None}
    out = _convolve(el.convert(x, work), el.convert(w, work), params)
    return el.convert(out, aval.dtype)


def _convolve(x: Any, w: Any, params: dict[str, Any]) -> Any:
    """The convolution of two arrays of one type."""
    lhs, rhs = (ShapedArray(tuple(v.shape), v.dtype) for v in (x, w))
    aval = conv_general_dilated_p.infer(lhs, rhs, **params)
    f = Form.of(lhs, rhs, aval, params)
    match _how(f, aval.dtype, lhs.size * rhs.size * aval.size):
        case "zeros":
            return zeros(aval)
        case "parts":
            return _in_parts(x, w, params)
        case "whole":
            return _whole(x, w, f)
        case "product":
            return _product(x, w, f)
        case "taps" | "places" as how:
            if _has_gaps(f):
                return _phases(x, w, f)
            return (_by_taps if how == "taps" else _by_places)(x, w, f)
        case "together":
            return _together(x, w, f)
        case "spread":
            return _spread(x, w, f)
        case "along":
            return _along_lines(x, w, f)
        case "space":
            return _by_space(x, w, f)
    last = _turned(f, lhs.shape, rhs.shape, aval)
    if last is not None:
        x, params = _with_last(x, params, last)
    return conv_general_dilated_p.bind(x, w, **params)


def _turned(f: Form, x: Shape, w: Shape, aval: ShapedArray) -> int | None:
    """The axis of x (that of features, or of the batch) that is worth having last in memory."""
    numbers = f.get("dimension_numbers")
    if not dtypes.issubdtype(aval.dtype, np.floating) or _stays(f) or _is_product(f):
        return None
    costs = {None: cycles(x, w, aval.shape, f.params)}
    for axis in numbers.lhs_spec[:2]:
        if axis != len(x) - 1 and x[axis] > 1:
            order, params = _order(f.params, axis)
            costs[axis] = cycles(tuple(x[d] for d in order), w, aval.shape, params) + math.prod(x) * _TURN
    return min(costs, key=costs.__getitem__)


def _order(params: dict[str, Any], last: int) -> tuple[list[int], dict[str, Any]]:
    """The order of x's axes with one of them last, and the parameters of a convolution of x in this order."""
    numbers = params["dimension_numbers"]
    order = [*(d for d in range(len(numbers.lhs_spec)) if d != last), last]
    return order, {**params, "dimension_numbers": numbers._replace(lhs_spec=tuple(map(order.index, numbers.lhs_spec)))}


def _with_last(x: Any, params: dict[str, Any], last: int) -> tuple[Any, dict[str, Any]]:
    order, params = _order(params, last)
    return transpose(x, tuple(order)), params


def _in_parts(x: Any, w: Any, params: dict[str, Any]) -> Any:
    """A convolution of complex numbers as four of real ones."""
    (a, b), (c, d) = ((el.real(v), el.imag(v)) for v in (x, w))
    real = el.sub(_convolve(a, c, params), _convolve(b, d, params))
    return el.complex(real, el.add(_convolve(a, d, params), _convolve(b, c, params)))


# ---------------------------------------------------------------- operands by dimension


def _canonical(x: Any, f: Form) -> tuple[Any, Any]:
    """x as (group, batch, feature, space), padded."""
    lhs = f.get("dimension_numbers").lhs_spec
    config = [(0, 0, 0)] * len(lhs)
    for d, (low, high), apart in zip(lhs[2:], f.get("padding"), f.get("lhs_dilation"), strict=True):
        config[d] = (low, high, apart - 1)
    x = pad(x, constant(0, x.dtype), config) if any(map(any, config)) else x
    x = transpose(x, tuple(lhs)) if list(lhs) != sorted(lhs) else x
    if f.get("batch_group_count") > 1:
        return reshape(x, (f.groups, f.batch, *x.shape[1:]))
    return moveaxis(reshape(x, (f.batch, f.groups, f.features, *x.shape[2:])), 1, 0)


def _kernel(w: Any, f: Form) -> Any:
    """w as (group, output, feature, space)."""
    rhs = f.get("dimension_numbers").rhs_spec
    w = transpose(w, tuple(rhs)) if list(rhs) != sorted(rhs) else w
    return reshape(w, (f.groups, f.outputs, *w.shape[1:]))


def _result(out: Any, f: Form) -> Any:
    """(group, batch, output, space) in the output's layout: groups and outputs next to each other, then merged."""
    res = f.get("dimension_numbers").out_spec
    axes: list[int] = []
    for d in np.argsort(res):  # of batch, feature, space
        axes += [1] if d == 0 else [0, 2] if d == 1 else [int(d) + 1]
    if axes != sorted(axes):
        out = transpose(out, tuple(axes))
    at = axes.index(0)
    return reshape(out, (*out.shape[:at], out.shape[at] * out.shape[at + 1], *out.shape[at + 2:]))


def _seen(x: Any, start: tuple[int, ...], counts: Shape, steps: Shape) -> Any:
    """Of a canonical x, `counts` elements by dimension of space, `steps` apart."""
    first = (0, 0, 0, *start)
    last = (*x.shape[:3], *(s + (n - 1) * step + 1 for s, n, step in zip(start, counts, steps, strict=True)))
    return sliced(x, first, last, (1, 1, 1, *steps))


def _pays_to_spread(f: Form) -> bool:
    """Whether outputs are too few for vectors, and their products, at all places of x and of the kernel, are not."""
    steps = (*f.get("window_strides"), *(f.get("rhs_dilation") if _has_gaps(f) else ()))
    return (f.groups == 1 and f.outputs <= _SINGLE_OUTPUTS and f.features >= _MANY_FEATURES
            and 1 < math.prod(f.taps) <= _FEW_TERMS_SPREAD and all(n == 1 for n in steps)
            and math.prod(f.sizes) <= 2 * math.prod(f.places))


def _has_gaps(f: Form) -> bool:
    """Whether there are gaps between the elements of x."""
    return any(d > 1 for d in f.get("lhs_dilation"))


def _pays_along(f: Form) -> bool:
    """Whether it is worth while to pad x, for what lies along lines of memory."""
    return (len(f.taps) in range(1, _MOST_SPACE + 1) and all(n == 1 for n in f.get("lhs_dilation"))
            and all(map(lies_along, f.problems())))


# ---------------------------------------------------------------- the ways


def _product(x: Any, w: Any, f: Form) -> Any:
    """A product of matrices at every place."""
    lhs, rhs, res = f.get("dimension_numbers")
    if f.groups == 1:
        w = squeeze(w, tuple(rhs[2:]))
        contract = 1 if rhs[1] > rhs[0] else 0
        out = dot_general_p.bind(x, w, dimension_numbers=(((lhs[1],), (contract,)), ((), ())), precision=None,
                                 preferred_element_type=None)
        axes = [d for d in range(len(lhs)) if d != lhs[1]]  # of the result's dimensions but the last one, in x
        order = (axes.index(lhs[0]), len(axes), *(axes.index(d) for d in lhs[2:]))
        return transpose(out, tuple(order[int(d)] for d in np.argsort(res)))
    x, w = _canonical(x, f), _kernel(w, f)
    w = squeeze(w, tuple(range(3, w.ndim)))
    out = dot_general_p.bind(x, w, dimension_numbers=(((2,), (2,)), ((0,), (0,))), precision=None,
                             preferred_element_type=None)
    return _result(moveaxis(out, out.ndim - 1, 2), f)


def _whole(x: Any, w: Any, f: Form) -> Any:
    """One product of matrices, over features and space."""
    lhs, rhs, res = f.get("dimension_numbers")
    out = dot_general_p.bind(x, w, dimension_numbers=((tuple(lhs[1:]), tuple(rhs[1:])), ((), ())), precision=None,
                             preferred_element_type=None)
    places = (res[0], res[1])
    out = out if places[0] < places[1] else transpose(out, (1, 0))
    return expand_dims(out, tuple(sorted(res[2:])))


def _spread(x: Any, w: Any, f: Form) -> Any:
    """One product of matrices, of every place in x by every place in the kernel; then sums of what belongs together:
    with gaps between the elements of x, for each phase of the output."""
    lhs, rhs, res = f.get("dimension_numbers")
    n = len(f.taps)
    w = transpose(w, tuple(rhs))  # (output, feature, taps)
    every = dot_general_p.bind(w, x, dimension_numbers=(((1,), (lhs[1],)), ((), ())), precision=None,
                               preferred_element_type=None)  # (output, taps, x without features)
    rest = [d for d in range(n + 2) if d != lhs[1]]
    apart = f.get("lhs_dilation")
    counts = [-(-size // k) for size, k in zip(f.places, apart, strict=True)]
    terms: dict[tuple[int, ...], list[Any]] = {phase: [] for phase in np.ndindex(*apart)}
    for tap in np.ndindex(*f.taps):
        start = (0, *map(int, tap), *(0,) * (n + 1))
        stop = (f.outputs, *(int(k) + 1 for k in tap), *every.shape[n + 1:])
        term = squeeze(sliced(every, start, stop), tuple(range(1, n + 1)))
        config = [(0, 0, 0)] * term.ndim
        phase = []
        for d in range(n):
            low, at = divmod(f.get("padding")[d][0] - int(tap[d]) * f.get("rhs_dilation")[d], apart[d])
            config[1 + rest.index(lhs[2 + d])] = (low, counts[d] - low - f.sizes[d], 0)
            phase.append(at)
        terms[tuple(phase)].append(pad(term, constant(0, x.dtype), config))
    order = [1 + rest.index(lhs[0]), 0, *(1 + rest.index(d) for d in lhs[2:])]  # of batch, outputs, space
    order = [order[int(d)] for d in np.argsort(res)]
    phases = [transpose(_total(some), tuple(order)) if some else zeros(ShapedArray(_with(f, counts), x.dtype))
              for some in terms.values()]
    return _woven_of(phases, list(apart), f) if len(phases) > 1 else phases[0]


def _along_lines(x: Any, w: Any, f: Form) -> Any:
    """A convolution that sees only what lies in the array, which is padded."""
    config = [(0, 0, 0)] * x.ndim
    for axis, (low, high) in zip(f.get("dimension_numbers").lhs_spec[2:], f.get("padding"), strict=True):
        config[axis] = (low, high, 0)
    x = pad(x, constant(0, x.dtype), config)
    return _convolve(x, w, {**f.params, "padding": ((0, 0),) * len(f.taps)})


def _terms(x: Any, w: Any) -> Any:
    return el.and_(x, w) if x.dtype == dtypes.bool_ else el.mul(x, w)


def _total(terms: list[Any]) -> Any:
    """The sum of terms by pairs, and pairs of pairs: one after the other, each would wait for the sum before it."""
    while len(terms) > 1:
        add = el.or_ if terms[0].dtype == dtypes.bool_ else el.add
        terms = [reduce(add, terms[k:k + 2]) for k in range(0, len(terms), 2)]
    return terms[0]


def _by_taps(x: Any, w: Any, f: Form) -> Any:
    """The sum over places in the kernel, and features, written out."""
    x, w = _canonical(x, f), _kernel(w, f)
    shape = (f.groups, f.batch, f.outputs, *f.places)
    terms = []
    for tap in np.ndindex(*f.taps):
        start = tuple(int(k) * gap for k, gap in zip(tap, f.get("rhs_dilation"), strict=True))
        seen = _seen(x, start, f.places, f.get("window_strides"))
        for c in range(f.features):
            row = squeeze(sliced(seen, (0, 0, c, *(0,) * len(tap)), (*seen.shape[:2], c + 1, *seen.shape[3:])), (2,))
            at = (c, *map(int, tap))
            factor = sliced(w, (0, 0, *at), (*w.shape[:2], *(k + 1 for k in at)))
            factor = squeeze(factor, tuple(range(2, w.ndim)))
            terms.append(_terms(broadcast_in_dim(row, shape, (0, 1, *range(3, len(shape)))),
                                broadcast_in_dim(factor, shape, (0, 2))))
    return _result(_total(terms), f)


def _by_places(x: Any, w: Any, f: Form) -> Any:
    """The sums for all places of the output, written out; each in the order of x in memory."""
    memory = list(f.get("dimension_numbers").lhs_spec)
    x, w = _canonical(x, f), _kernel(w, f)
    n = len(f.taps)
    if f.get("batch_group_count") > 1:  # (group, batch) were one dimension
        places = {0: memory[0] * 2, 1: memory[0] * 2 + 1, 2: memory[1] * 2}
    else:
        places = {0: memory[1] * 2, 1: memory[0] * 2, 2: memory[1] * 2 + 1}
    places |= {3 + d: memory[2 + d] * 2 for d in range(n)}
    order = sorted(range(3 + n), key=places.__getitem__)
    summed = tuple(k for k, d in enumerate(order) if d >= 2)
    kept = tuple(d for d in order if d < 2)
    w = squeeze(w, (1,))  # (group, feature, space): one output
    total = reduce_or_p if x.dtype == dtypes.bool_ else reduce_sum_p
    outs = []
    for place in np.ndindex(*f.places):
        start = tuple(int(y) * step for y, step in zip(place, f.get("window_strides"), strict=True))
        seen = _seen(x, start, f.taps, f.get("rhs_dilation"))
        factor = broadcast_in_dim(w, seen.shape, (0, *range(2, 3 + n)))
        product = transpose(_terms(seen, factor), tuple(order))
        sums = total.bind(product, axes=summed)
        outs.append(expand_dims(transpose(sums, tuple(np.argsort(kept).tolist())), (2,)))
    out = concatenate(outs, 2) if len(outs) > 1 else outs[0]
    return _result(reshape(out, (f.groups, f.batch, 1, *f.places)), f)


@record
class Phase:
    """What one place in every `every` of the output sees along one dimension: of the kernel, `taps` places from `first`
    on, `some` apart; of x, elements from `start` on, `gap` apart, `stride` from window to window."""

    every: int
    count: int
    first: int
    some: int
    taps: int
    start: int
    gap: int
    stride: int


def _along(f: Form, d: int) -> list[Phase]:
    """The phases along a dimension of space."""
    apart, step, gap, (low, _) = (f.get(k)[d] for k in ("lhs_dilation", "window_strides", "rhs_dilation", "padding"))
    every, some = apart // math.gcd(step, apart), apart // math.gcd(gap, apart)
    phases = []
    for y in range(every):
        base = y * step - low
        first = next((k for k in range(min(some, f.taps[d])) if (base + k * gap) % apart == 0), f.taps[d])
        phases.append(Phase(every, -(-f.places[d] // every), first, some, -(-(f.taps[d] - first) // some),
                            (base + first * gap) // apart, some * gap // apart, every * step // apart))
    return phases


def _phases(x: Any, w: Any, f: Form) -> Any:
    """With gaps between the elements of x: each phase of the output by the part of the kernel that meets elements."""
    parts = []
    every = [_along(f, d) for d in range(len(f.taps))]
    for phase in itertools.product(*every):
        if any(not p.taps for p in phase):
            parts.append(zeros(ShapedArray(_with(f, [p.count for p in phase]), x.dtype)))
        else:
            starts, taps = [p.start for p in phase], [p.taps for p in phase]
            parts.append(_convolve(x, _part(w, f, phase), _without_gaps(f, phase, starts, taps)))
    return _woven_of(parts, [len(phases) for phases in every], f)


def _together(x: Any, w: Any, f: Form) -> Any:
    """The same at once, where all phases see the same elements: theirs are the outputs of one convolution."""
    rhs, res = f.get("dimension_numbers")[1:]
    every = [_along(f, d) for d in range(len(f.taps))]
    merged = concatenate([_part(w, f, phase) for phase in itertools.product(*every)], rhs[0])
    out = _convolve(x, merged, _of_all(f, every))
    c, n = res[1], len(every)
    out = reshape(out, (*out.shape[:c], *map(len, every), f.outputs, *out.shape[c + 1:]))
    order = [*range(c, c + n), *(d for d in range(out.ndim) if not c <= d < c + n)]
    return _woven(transpose(out, tuple(order)), f)


def _of_all(f: Form, every: Sequence[Sequence[Phase]]) -> dict[str, Any]:
    """The parameters of any phase, where all see the same."""
    first = [phases[0] for phases in every]
    return _without_gaps(f, first, [p.start for p in first], [p.taps for p in first])


def _part(w: Any, f: Form, phase: Sequence[Phase]) -> Any:
    """The part of the kernel that meets elements."""
    for axis, p in zip(f.get("dimension_numbers").rhs_spec[2:], phase, strict=True):
        w = _strided(w, axis, p.first, p.some)
    return w


def _without_gaps(f: Form, phase: Sequence[Phase], starts: Sequence[int], taps: Sequence[int]) -> dict[str, Any]:
    """The parameters of a phase, or of several that begin at `starts`."""
    pads = []
    for p, start, size, k in zip(phase, starts, f.sizes, taps, strict=True):
        pads.append((-start, start + (p.count - 1) * p.stride + dilated(k, p.gap) - size))
    return {**f.params, "window_strides": tuple(p.stride for p in phase), "rhs_dilation": tuple(p.gap for p in phase),
            "padding": tuple(pads), "lhs_dilation": (1,) * len(pads)}


def _pays_together(f: Form) -> bool:
    """Whether all phases see the same elements (kernels as long as the gaps), and one convolution that has all their
    outputs takes less than one for each."""
    if f.groups > 1 or not _has_gaps(f):
        return False
    every = [_along(f, d) for d in range(len(f.taps))]
    if any(len({(p.start, p.taps) for p in phases}) > 1 or not phases[0].taps for phases in every):
        return False
    _, rhs, res = f.get("dimension_numbers")
    w, out = (list(shape) for shape in f.shapes[1:])
    w[rhs[0]] = out[res[1]] = f.outputs * math.prod(map(len, every))
    for d, phases in enumerate(every):
        w[rhs[2 + d]], out[res[2 + d]] = phases[0].taps, phases[0].count
    row = f.outputs if res[1] == len(res) - 1 else 1  # of elements that move together
    once = cycles(f.shapes[0], tuple(w), tuple(out), _of_all(f, every)) + math.prod(out) * max(_TURN / row, _MOVE)
    return once < cycles(*f.shapes, f.params)


def _with(f: Form, places: list[int]) -> Shape:
    """The shape of the output with other sizes in space."""
    shape = [0] * (2 + len(places))
    for d, n in zip(f.get("dimension_numbers").out_spec, (f.batch, f.groups * f.outputs, *places), strict=True):
        shape[d] = n
    return tuple(shape)


def _strided(w: Any, axis: int, first: int, step: int) -> Any:
    start = [first if d == axis else 0 for d in range(w.ndim)]
    return sliced(w, tuple(start), tuple(w.shape), tuple(step if d == axis else 1 for d in range(w.ndim)))


def _woven_of(phases: Sequence[Any], counts: Sequence[int], f: Form) -> Any:
    """The output from its phases, one after the other."""
    whole = concatenate([expand_dims(p, (0,)) for p in phases], 0) if len(phases) > 1 else expand_dims(phases[0], (0,))
    return _woven(reshape(whole, (*counts, *phases[0].shape)), f)


def _woven(whole: Any, f: Form) -> Any:
    """The output from its phases, whose numbers are the first dimensions."""
    res = f.get("dimension_numbers").out_spec
    n, ndim = len(res) - 2, len(res)
    order: list[int] = []
    for d in range(ndim):
        order += [n + d, *([res[2:].index(d)] if d in res[2:] else [])]
    shape = tuple(size * (whole.shape[res[2:].index(d)] if d in res[2:] else 1)
                  for d, size in enumerate(whole.shape[n:]))
    return sliced(reshape(transpose(whole, tuple(order)), shape), (0,) * ndim, _with(f, list(f.places)))


def _by_space(x: Any, w: Any, f: Form) -> Any:
    """More dimensions of space than there are coordinates: the sum over the first one's places in the kernel."""
    lhs, rhs, res = f.get("dimension_numbers")
    x, w = transpose(x, tuple(lhs)), transpose(w, tuple(rhs))
    (low, high), apart = f.get("padding")[0], f.get("lhs_dilation")[0]
    x = pad(x, constant(0, x.dtype), [(0, 0, 0), (0, 0, 0), (low, high, apart - 1), *[(0, 0, 0)] * (x.ndim - 3)])
    step, gap, count = f.get("window_strides")[0], f.get("rhs_dilation")[0], f.places[0]
    axes = tuple(range(x.ndim - 1))
    params = {**f.params, "dimension_numbers": ConvDimensionNumbers(axes, axes, axes)}
    params |= {k: params[k][1:] for k in ("window_strides", "padding", "lhs_dilation", "rhs_dilation")}
    total: Any = None
    for k in range(f.taps[0]):
        start = [k * gap if d == 2 else 0 for d in range(x.ndim)]
        stop = [k * gap + (count - 1) * step + 1 if d == 2 else n for d, n in enumerate(x.shape)]
        seen = sliced(x, tuple(start), tuple(stop), tuple(step if d == 2 else 1 for d in range(x.ndim)))
        seen = moveaxis(seen, 2, 1)  # (batch, place, ...): groups of batches stay outermost
        seen = reshape(seen, (seen.shape[0] * count, *seen.shape[2:]))
        tap = squeeze(_strided(sliced(w, (0,) * w.ndim, tuple(w.shape)), 2, k, f.taps[0]), (2,))
        term = _convolve(seen, tap, params)
        total = term if total is None else (el.or_ if x.dtype == dtypes.bool_ else el.add)(total, term)
    total = reshape(total, (f.batch, count, *total.shape[1:]))
    return transpose(moveaxis(total, 1, 2), tuple(np.argsort(res).tolist()))
