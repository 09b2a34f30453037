"""Draws random programs, by number: every primitive's record, data movement at every size, reductions, linear algebra.

    draw(7).source()        # always the same program

A step finds its operands among the values there are, made to fit (repeated, cut, converted, clamped) where none does;
so every operation can follow every other. `random_control.py` has the steps that hold functions.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import anima
import anima.numpy as jnp
from anima import lax
from anima.core import dtypes as dt
from anima.ops.placing import reshard_p
from tests.laws.random_programs import MOST, Block, Step, Type
from tests.op_records import ALL, BOOL, COMPLEX, ELEMENTWISE, FLOATS, INTS, Arg, Case, Record, dtype_of
from tests.op_records_structural import STRUCTURAL
from tests.op_records_window import WINDOWS

SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
LARGE = (1023, 1025, 4097, 8193, 65537)
MOST_ELEMENTS = 2000  # of a value, but for programs of large ones
# Arrays that are cut have types of their own, which the operations of a whole program would have to be drawn for.
RECORDS: tuple[Record, ...] = (*ELEMENTWISE, *(r for r in STRUCTURAL if r.primitive is not reshard_p), *WINDOWS)
ELEMENTARY = {r.name for r in ELEMENTWISE}

# Operations that are continuous where they take values that are not exact, and do not make errors much larger.
GENTLE = {"neg", "add", "sub", "mul", "sin", "cos", "tanh", "logistic", "max", "min", "abs", "square", "atan",
          "asinh", "erf", "erfc", "select_n", "clamp", "copy", "optimization_barrier", "stop_gradient", "add_any",
          "real", "imag", "conj", "complex", "bessel_i0e", "bessel_i1e", "integer_pow", "cumlogsumexp",
          "reduce_max", "reduce_min", "cummax", "cummin", "reduce_window_max", "reduce_window_min", "dot_general",
          "reduce_sum", "cumsum", "reduce_window_sum", "reshape", "transpose", "rev", "pad", "slice", "concatenate",
          "squeeze", "broadcast_in_dim", "dynamic_slice", "dynamic_update_slice", "gather", "scatter",
          "scatter-add"}
BY_PARTS = {"copy", "optimization_barrier", "stop_gradient", "neg", "add", "sub", "add_any", "real", "imag", "conj",
            "complex", "select_n"}


class Builder:
    """A block in the making: the types of its values, and the steps so far."""

    def __init__(self, rng: random.Random, around: Sequence[Type], arguments: Sequence[Type], depth: int, large: bool):
        self.rng = rng
        self.around = len(around)
        self.types: list[Type] = [*around, *arguments]
        self.arguments = tuple(arguments)
        self.steps: list[Step] = []
        self.depth = depth
        self.large = large
        self.telling = False  # whether there may be effects

    # ------------------------------------------------------------ steps

    def add(self, name: str, run: Callable[..., Any], operands: Sequence[int], exact: bool, *,
            blocks: tuple[Block, ...] = (), types: Sequence[Type] | None = None, smooth: bool = True) -> int:
        """A step; the place of its first result. `types` of results that are not found by tracing."""
        if types is None:
            given = [anima.ShapeDtypeStruct(self.types[k].shape, dtype_of(self.types[k].dtype)) for k in operands]
            out = anima.eval_shape(run, *given)
            outs = list(out) if isinstance(out, (list, tuple)) else [out]
            types = [Type(o.shape, str(o.dtype), exact or not dt.issubdtype(o.dtype, np.inexact)) for o in outs]
        self.steps.append(Step(name, run, tuple(operands), tuple(types), blocks, smooth))
        place = len(self.types)
        self.types += types
        return place

    def finish(self, results: Sequence[int]) -> Block:
        return Block(self.arguments, tuple(self.steps), tuple(results), self.around)

    # ------------------------------------------------------------ values

    def places(self, wanted: Callable[[Type], bool]) -> list[int]:
        return [k for k, t in enumerate(self.types) if wanted(t)]

    def some(self, wanted: Callable[[Type], bool] = lambda t: True) -> int:
        """A value of the wanted kind, later ones more often; one is made if there is none."""
        found = self.places(wanted)
        if found:
            return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]
        for dtype in self.rng.sample(ALL, len(ALL)):
            for shape in [(), *(self.shape() for _ in range(20))]:
                if wanted(Type(shape, dtype)) and dtype in self.dtypes():
                    return self.need(shape, dtype)
        raise AssertionError("nothing is of the kind that is wanted")

    def need(self, shape: tuple[int, ...], dtype: str, exact: bool = True) -> int:
        """A value of this type; if `exact` is not asked for it may be either."""
        found = self.places(lambda t: (t.shape, t.dtype) == (shape, dtype) and (t.exact or not exact))
        if found and self.rng.random() < 0.8:
            return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]
        # A value that rounding made coarse stays so in a finer type, of which more is expected.
        place = self._source(lambda t: t.exact or (not exact and precision(t.dtype) >= precision(dtype)))
        if self.types[place].shape != shape:
            place = self.add(f"fit[{shape}]", partial(fit, shape=shape), [place], self.types[place].exact)
        if self.types[place].dtype != dtype:
            exact_now = self.types[place].exact
            place = self.add(f"convert[{dtype}]", partial(lax.convert_element_type, new_dtype=dtype_of(dtype)), [place],
                             exact_now)
        return place

    def _source(self, wanted: Callable[[Type], bool]) -> int:
        found = self.places(wanted)
        if found:
            return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]
        dtype = self.rng.choice(["float32", "int32", "bool"])
        return self.constant(Type((3,), dtype))

    def constant(self, t: Type, values: Any = None) -> int:
        if values is None:
            values = np.array([1, 0, 2]).astype(dtype_of(t.dtype))
        return self.add(f"array({np.asarray(values).tolist()})", lambda: jnp.asarray(values), [], True)

    def tame(self, place: int, low: float = -MOST, high: float = MOST) -> int:
        """The value between two numbers, ready for what is not exact; NaN stays."""
        t = self.types[place]
        if not dt.issubdtype(dtype_of(t.dtype), np.inexact):
            return place
        return self.add(f"between[{low}, {high}]", partial(between, low=low, high=high), [place], t.exact)

    def rounded(self, name: str, run: Callable[..., Any], operands: Sequence[int], smooth: bool = True) -> int:
        """A step whose floats may differ by rounding; its result is kept of moderate size."""
        place = self.add(name, run, operands, False, smooth=smooth)
        for k in range(place, len(self.types)):
            if not self.types[k].exact and not self.types[k].dtype.startswith(BOOL + INTS):
                place = self.tame(k)
        return place

    # ------------------------------------------------------------ what there is to choose from

    def dtypes(self, among: Sequence[str] = ALL) -> list[str]:
        return [d for d in among if anima.config.enable_x64 or d not in ("int64", "uint64", "float64", "complex128")]

    def dtype(self, among: Sequence[str] = ALL) -> str:
        return self.rng.choice(self.dtypes(among))

    def size(self) -> int:
        return self.rng.choice(LARGE if self.large and self.rng.random() < 0.5 else SIZES)

    def shape(self, least: int = 0, most: int = 3) -> tuple[int, ...]:
        """A shape; often one that a value has."""
        if self.rng.random() < 0.7:
            known = [t.shape for t in self.types if least <= len(t.shape) <= most]
            if known:
                return self.rng.choice(known)
        limit = 70_000 if self.large else MOST_ELEMENTS
        while True:
            shape = tuple(self.size() for _ in range(self.rng.choice([r for r in (0, 1, 1, 2, 2, 3)
                                                                      if least <= r <= most])))
            if math.prod(shape) <= limit:
                return shape


def precision(dtype: str) -> int:
    """Bits of the fraction of floats; 0 of other numbers."""
    return dt.finfo(dtype_of(dtype)).nmant if dt.issubdtype(dtype_of(dtype), np.inexact) else 0


def fit(x: Any, shape: tuple[int, ...]) -> Any:
    """The elements of `x` again and again, or the first ones only; zeros if it has none."""
    size, flat = math.prod(shape), jnp.ravel(x)
    if not flat.size:
        return jnp.zeros(shape, x.dtype)
    if flat.size < size:
        flat = jnp.tile(flat, -(-size // flat.size))
    return lax.slice(flat, (0,), (size,)).reshape(shape)


def between(x: Any, low: float, high: float) -> Any:
    if jnp.iscomplexobj(x):
        return lax.complex(between(jnp.real(x), low, high), between(jnp.imag(x), low, high))
    return lax.clamp(jnp.asarray(low, x.dtype), x, jnp.asarray(high, x.dtype))


# ---------------------------------------------------------------- steps from records

def record_step(b: Builder) -> None:
    """Any primitive, on operands of any shape if it is elementwise, else of those of a case of its record."""
    record = b.rng.choice(RECORDS)
    dtypes = b.dtypes(record.dtypes)
    if not dtypes:
        return
    name = b.rng.choice(dtypes)
    case = b.rng.choice([c for c in record.cases_for(name) if not any(callable(a.values) for a in c.args)])
    if any(a.dtype in ("int64", "uint64", "float64") for a in case.args) and not anima.config.enable_x64:
        return
    params = case.params_for(name)
    if any(isinstance(v, np.dtype) and str(v) not in b.dtypes() for v in params.values()):
        return
    b_exact = exact_record(record, name)
    gentle = record.name in GENTLE and (name not in COMPLEX or record.name in BY_PARTS or record.name not in ELEMENTARY)
    free = record.name in ELEMENTARY and all(a.values is None for a in case.args)
    shape = b.shape() if free else ()
    operands = [_operand(b, record, case, k, name, shape if free else arg.shape, b_exact, gentle)
                for k, arg in enumerate(case.args)]
    exact = b_exact and all(b.types[k].exact for k in operands)

    def run(*args: Any) -> Any:
        return record.primitive.bind(*args, **params)

    if record.name in ("reduce_max", "reduce_min") and name in FLOATS + COMPLEX:
        base = run

        def run(*args: Any) -> Any:
            return base(*args) + 0  # the sign of a zero is free where many are compared in any order

    label = f"{record.name}[{case.params if not callable(case.params) else params}]"
    if exact:
        b.add(label, run, operands, True)
    else:
        b.rounded(label, run, operands)


def exact_record(record: Record, name: str) -> bool:
    """Whether a primitive gives the same bits however it is computed."""
    return record.tolerance(name) == record.tolerance(name, eager=True) == 0 or name in BOOL + INTS


def _operand(b: Builder, record: Record, case: Case, k: int, name: str, shape: tuple[int, ...], exact: bool,
             gentle: bool) -> int:
    arg: Arg = case.args[k]
    dtype = arg.dtype or name
    if arg.values is not None:
        return b.constant(Type(np.shape(arg.values), dtype), np.array(arg.values).astype(dtype_of(dtype)))
    inexact = dt.issubdtype(dtype_of(dtype), np.inexact)
    place = b.need(shape, dtype, exact=not (gentle and inexact))
    if k in record.constant:  # which has no derivative
        place = b.add("stop_gradient", lax.stop_gradient, [place], b.types[place].exact)
    everything = exact and (b.rng.random() < 0.7 or not inexact)
    if everything and b.types[place].exact:
        return place  # with infinities, NaN and all
    if not b.types[place].exact and exact:
        return b.tame(place)
    return b.tame(place, arg.low, arg.high)


# ---------------------------------------------------------------- steps of any size

def move(b: Builder) -> None:
    """Data movement along random axes."""
    k = b.some(lambda t: len(t.shape) > 0)
    t, r = b.types[k], b.rng
    axis = r.randrange(len(t.shape))
    n = t.shape[axis]
    low = r.randint(0, n)
    high = r.randint(low, n)
    step = r.choice((1, 1, 2, 3))
    pads = [(r.randint(-2, 3), r.randint(-2, 3), r.choice((0, 0, 1, 2))) for _ in t.shape]
    pads = [(max(p, -(m // 2)), max(q, -(m // 2)), i) for (p, q, i), m in zip(pads, t.shape, strict=True)]
    order = tuple(r.sample(range(len(t.shape)), len(t.shape)))
    shift = r.randint(-3, n + 3)
    ways: list[tuple[str, Callable[..., Any]]] = [
        (f"slice[{axis}, {low}:{high}:{step}]", lambda x: lax.slice_in_dim(x, low, high, step, axis)),
        (f"reversed_slice[{axis}]", lambda x: jnp.flip(x, axis)[(slice(None),) * axis + (slice(None, None, step),)]),
        (f"transpose[{order}]", lambda x: jnp.transpose(x, order)),
        (f"roll[{shift}, {axis}]", lambda x: jnp.roll(x, shift, axis)),
        (f"pad[{pads}]", lambda x: lax.pad(x, jnp.asarray(1, x.dtype), pads)),
        (f"expand[{axis}]", lambda x: jnp.expand_dims(x, axis)),
        ("ravel", jnp.ravel), (f"flip[{axis}]", lambda x: jnp.flip(x, axis)),
        (f"take_first[{axis}]", lambda x: lax.index_in_dim(x, 0, axis, keepdims=step > 1) if n else x),
        ("tril", lambda x: jnp.tril(x, shift - 2) if x.ndim == 2 else x),
        (f"repeat[{axis}]", lambda x: jnp.repeat(x, 2, axis) if x.size < MOST_ELEMENTS else x),
    ]
    name, run = r.choice(ways)
    b.add(name, run, [k], t.exact)


def join(b: Builder) -> None:
    """Concatenations of up to four values that differ along one axis, and stacks."""
    k = b.some(lambda t: len(t.shape) > 0 and t.size < MOST_ELEMENTS)
    t, r = b.types[k], b.rng
    axis = r.randrange(len(t.shape))
    places = [k]
    for _ in range(r.randint(1, 3)):
        shape = t.shape[:axis] + (r.choice((0, 1, 2, t.shape[axis])),) + t.shape[axis + 1:]
        places.append(b.need(shape, t.dtype, exact=t.exact))
    exact = all(b.types[p].exact for p in places)
    b.add(f"concatenate[{axis}]", lambda *xs: lax.concatenate(xs, axis), places if exact else [
        b.tame(p) for p in places], exact)


def index(b: Builder) -> None:
    """Gathers, scatters and slices at indices that are computed; of small types, as large ones have no meaning."""
    k = b.some(lambda t: len(t.shape) > 0)
    t, r = b.types[k], b.rng
    axis = r.randrange(len(t.shape))
    at = b.need(r.choice([(), (1,), (2,), (7,), (9,)]), r.choice(("int8", "int16", "uint8", "int32")))
    mode = r.choice(("clip", "fill"))
    kind = r.choice(("take", "dynamic_slice", "update", "set", "add", "max", "min", "mul"))
    here: tuple[Any, ...] = (slice(None),) * axis
    n = t.shape[axis]
    if kind == "take":
        if n == 0:
            return
        b.add(f"take[{axis}, {mode}]", lambda x, i: jnp.take(x, i, axis, mode=mode), [k, at], t.exact)
        return
    scalar = b.need((), "int32")
    if kind == "dynamic_slice":
        size = r.randint(0, n)
        b.add(f"dynamic_slice[{axis}, {size}]", lambda x, i: lax.dynamic_slice_in_dim(x, i, size, axis), [k, scalar],
              t.exact)
        return
    if kind == "update":
        new = b.need(t.shape[:axis] + (r.randint(0, n),) + t.shape[axis + 1:], t.dtype, exact=t.exact)
        b.add(f"dynamic_update_slice[{axis}]", lambda x, u, i: lax.dynamic_update_slice_in_dim(x, u, i, axis),
              [k, new, scalar], t.exact and b.types[new].exact)
        return
    if n == 0 or (t.dtype == "bool" and kind != "set") or (t.dtype in COMPLEX and kind in ("min", "max")) or (
            t.dtype not in INTS and kind == "mul"):  # which has no gradient where indices may be equal
        return
    if kind == "set":
        at = scalar  # of equal indices, any may win
    shape = t.shape[:axis] + b.types[at].shape + t.shape[axis + 1:]
    if math.prod(shape) > MOST_ELEMENTS:
        return
    new = b.need(shape, t.dtype, exact=t.exact)
    whole = t.dtype in INTS + BOOL or kind in ("set", "max", "min")
    if not whole or not b.types[new].exact:
        new = b.tame(new, -1, 1)
    operands = [k if whole else b.tame(k, -2, 2), new, at]

    def run(x: Any, u: Any, i: Any) -> Any:
        return getattr(jnp.asarray(x).at[(*here, i)], {"mul": "multiply"}.get(kind, kind))(u, mode=mode)

    if whole:
        b.add(f"at[{axis}].{kind}[{mode}]", run, operands, t.exact and b.types[new].exact)
    else:
        b.rounded(f"at[{axis}].{kind}[{mode}]", run, operands)


def reduction(b: Builder) -> None:
    """Sums, products, extremes and running ones, along any axes."""
    k = b.some(lambda t: len(t.shape) > 0)
    t, r = b.types[k], b.rng
    axes = tuple(r.sample(range(len(t.shape)), r.randint(1, len(t.shape))))
    axis, back = axes[0], r.random() < 0.5
    count = max(1, math.prod(t.shape[a] for a in axes))
    whole, ordered = t.dtype in INTS, t.dtype not in COMPLEX
    kinds = ["sum", "cumsum"] if t.dtype != "bool" else ["any", "all"]
    kinds += ["cummax", "cummin"] if ordered and t.dtype != "bool" else []
    kinds += ["max", "min", "argmax", "argmin"] if ordered and all(t.shape[a] for a in axes) else []
    kinds += ["prod", "cumprod"] if whole else ["logsumexp", "var"] if t.dtype in FLOATS else []
    kind = r.choice(kinds)
    if kind.startswith("arg") and not t.exact:
        return
    runs: dict[str, Callable[[Any], Any]] = {
        "cumsum": lambda x: lax.cumsum(x, axis, back), "cumprod": lambda x: lax.cumprod(x, axis, back),
        "cummax": lambda x: lax.cummax(x, axis, back), "cummin": lambda x: lax.cummin(x, axis, back),
        "argmax": lambda x: jnp.argmax(x, axis), "argmin": lambda x: jnp.argmin(x, axis),
        "sum": lambda x: jnp.sum(x, axes, keepdims=back), "prod": lambda x: jnp.prod(x, axes, keepdims=back),
        "max": lambda x: jnp.max(x, axes) + 0, "min": lambda x: jnp.min(x, axes, keepdims=back) + 0,  # 0 not -0
        "any": lambda x: jnp.any(x, axes), "all": lambda x: jnp.all(x, axes),
        "logsumexp": lambda x: anima.nn.logsumexp(x, axis=axes) if count else x, "var": lambda x: jnp.var(x, axes)}
    label = f"{kind}[{axes}{', back' * back}]"
    if t.exact and (t.dtype in INTS + BOOL or kind in ("cummax", "cummin", "max", "min", "argmax", "argmin")):
        b.add(label, runs[kind], [k], True)
    elif count * (dt.itemsize_bits(dtype_of(t.dtype)) < 32) < 70:  # long sums in 16 bits mean nothing
        if kind in ("var", "logsumexp") and 0 in t.shape:
            return
        part = b.tame(k)
        scaled = b.add("shares", lambda x: x * jnp.asarray(1 / count, x.dtype), [part], False) if kind in (
            "sum", "cumsum") else part
        b.rounded(label, runs[kind], [scaled])


def order(b: Builder) -> None:
    """Sorts of one to three operands by one or two keys, places in order, largest ones, searches."""
    k = b.some(lambda t: len(t.shape) > 0 and t.exact and t.size < 10_000)
    t, r = b.types[k], b.rng
    axis = r.randrange(len(t.shape))
    n = t.shape[axis]
    kind = r.choice(("sort", "sort", "several", "argsort", "top_k", "searchsorted", "unique", "median"))
    if kind == "sort":
        down = r.random() < 0.3
        b.add(f"sort[{axis}, {down}]", lambda x: jnp.sort(x, axis, descending=down), [k], True)
    elif kind == "several":
        others = [b.need(t.shape, b.dtype()) for _ in range(r.randint(1, 2))]
        keys = r.randint(1, 1 + len(others))
        b.add(f"sort[{axis}, keys {keys}]", lambda *xs: list(lax.sort(xs, axis, num_keys=keys)), [k, *others], True)
    elif kind == "argsort":
        b.add(f"argsort[{axis}]", lambda x: jnp.argsort(x, axis), [k], True)
    elif kind == "top_k" and t.dtype not in COMPLEX:
        most = r.randint(0, min(n, 70))
        b.add(f"top_k[{axis}, {most}]", lambda x: list(lax.top_k(x, most, axis=axis)), [k], True)
    elif kind == "searchsorted" and len(t.shape) == 1 and t.dtype not in COMPLEX:
        queries = b.need(b.shape(0, 2), t.dtype)
        b.add("searchsorted", lambda x, v: jnp.searchsorted(jnp.sort(x), v), [k, queries], True)
    elif kind == "unique" and n and len(t.shape) == 1 and t.dtype in INTS:
        b.add("unique", lambda x: jnp.unique(x, size=n, fill_value=1), [k], True)
    elif kind == "median" and n and t.dtype in FLOATS:
        b.rounded(f"median[{axis}]", lambda x: jnp.median(x, axis), [b.tame(k)])


def product(b: Builder) -> None:
    """Matrix products, batched or not, of whole numbers and of floats."""
    r = b.rng
    batch = r.choice([(), (), (2,), (3,)])
    m, n, k = (r.choice((0, 1, 2, 3, 7, 8, 9, 16, 17, 33, 65)) for _ in range(3))
    dtype = b.dtype(("int32", "int8", "uint16", "float32", "float32", "float64", "complex64", "bfloat16", "float16"))
    whole = dtype in INTS
    kind = r.choice(("matrix", "vector", "transposed", "dot"))
    left = (m, k) if kind != "dot" else (k,)
    right = {"matrix": (k, n), "transposed": (n, k)}.get(kind, (k,))
    a, c = (b.need(batch + s, dtype, exact=whole) for s in (left, right))
    axes = ((len(left) - 1 + len(batch),), (len(batch) + (1 if kind == "transposed" else 0),))
    lead = tuple(range(len(batch)))

    def run(x: Any, y: Any) -> Any:
        return lax.dot_general(x, y, (axes, (lead, lead)))

    if whole:
        b.add(f"dot_general[{kind}]", run, [a, c], True)
    elif dtype in ("bfloat16", "float16") and k > 20:
        return
    else:
        bound = 1 / math.sqrt(max(k, 1))
        b.rounded(f"dot_general[{kind}]", run, [b.tame(a, -bound, bound), b.tame(c, -bound, bound)])


def literal(b: Builder) -> None:
    """Arithmetic with Python's numbers, whose types are weak."""
    k = b.some(lambda t: t.dtype != "bool")
    t, r = b.types[k], b.rng
    number = r.choice((0, 1, 2, 3, 7))
    ways: dict[str, Callable[[Any], Any]] = {"+": lambda x: x + number, "*": lambda x: number * x,
                                             "-": lambda x: number - x}
    if t.exact and t.dtype in INTS:
        ways |= {"//": lambda x: x // (number + 1), "%": lambda x: x % (number + 2), "<": lambda x: x < number,
                 "/": lambda x: lax.convert_element_type(x, np.int8)}
    sign = r.choice(sorted(ways))
    if t.exact and t.dtype not in COMPLEX:
        b.add(f"x {sign} {number}", ways[sign], [k], True)
    else:
        b.rounded(f"x {sign} {number}", ways[sign], [b.tame(k, -1, 1)])


def chance(b: Builder) -> None:
    """Keys from whole numbers, random bits, uniform and normal numbers."""
    seed, shape, r = b.need((), "int32"), b.shape(), b.rng
    kind = r.choice(("bits", "uniform", "normal", "split", "permutation", "randint"))
    dtype = b.dtype(("float32", "float64", "bfloat16"))
    runs: dict[str, Callable[[Any], Any]] = {
        "bits": lambda s: anima.random.bits(anima.random.key(s), shape),
        "uniform": lambda s: anima.random.uniform(anima.random.key(s), shape, dtype),
        "normal": lambda s: anima.random.normal(anima.random.key(s), shape, dtype),
        "split": lambda s: anima.random.key_data(anima.random.split(anima.random.fold_in(anima.random.key(s), s), 3)),
        "permutation": lambda s: anima.random.permutation(anima.random.key(s), 9),
        "randint": lambda s: anima.random.randint(anima.random.key(s), shape, -5, 9)}
    if kind == "normal":
        b.rounded(f"random.{kind}[{shape}]", runs[kind], [seed])
    else:
        b.add(f"random.{kind}[{shape}]", runs[kind], [seed], True)


def algebra(b: Builder) -> None:
    """Linear algebra whose results are unique, of matrices that are far from singular."""
    r = b.rng
    n, dtype = r.choice((1, 2, 3, 5, 8, 9)), b.dtype(("float32", "float64"))
    a = b.tame(b.need((n, n), dtype, exact=False), -1, 1)
    v = b.tame(b.need(r.choice([(n,), (n, 2)]), dtype, exact=False), -1, 1)

    def known(x: Any) -> Any:  # LAPACK's routines may stop at a NaN, or step over what is multiplied by zero
        return jnp.where(jnp.isnan(x), jnp.zeros((), x.dtype), x)

    def near_one(x: Any) -> Any:
        return known(x) / (4 * n) + jnp.eye(n, dtype=x.dtype)

    runs: dict[str, Callable[..., Any]] = {
        "solve": lambda x, y: jnp.linalg.solve(near_one(x), known(y)), "inv": lambda x, y: jnp.linalg.inv(near_one(x)),
        "cholesky": lambda x, y: jnp.linalg.cholesky(near_one(x + x.T)),
        "det": lambda x, y: jnp.linalg.det(near_one(x)),
        "triangular": lambda x, y: lax.linalg.triangular_solve(jnp.tril(near_one(x)), known(y).reshape(n, -1),
                                                               left_side=True, lower=True),
        "eigvalsh": lambda x, y: jnp.linalg.eigvalsh(near_one(x + x.T)),
        "singular": lambda x, y: jnp.linalg.svd(near_one(x), compute_uv=False)}
    kind = r.choice(sorted(runs))
    b.rounded(f"linalg.{kind}", runs[kind], [a, v], smooth=kind not in ("eigvalsh", "singular"))


STEPS: tuple[Callable[[Builder], None], ...] = (record_step,) * 8 + (move,) * 3 + (join,) + (index,) * 3 + (
    reduction,) * 3 + (order,) * 2 + (product, literal, chance, algebra)
