"""Random programs on meshes, as text: functions of parts, with collectives along the axes of the mesh.

    draw(3).text    ->    def f(x0, x1):
                              v2 = lax.psum(x0, 'x')
                              v3 = jnp.tanh(v2 * x1)
                              return (v3,)

Each value has a shape on a device and the axes along which it may vary, so that specs of results can name these.
Meshes have 1 to 3 axes; a program may map over some of them only, and be checked or not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import anima
import anima.numpy as jnp
from anima import P, lax
from anima.sharding import AxisType

MESHES = (((8,), "x"), ((4,), "x"), ((4, 2), "xy"), ((2, 4), "xy"), ((2, 2, 2), "xyz"), ((1, 4, 2), "xyz"))
LARGEST = 300  # elements of a value


@dataclass(frozen=True)
class Value:
    """A name in the text, its shape on each device, and the axes along which it may vary."""

    name: str
    shape: tuple[int, ...]
    varies: frozenset[str]


@dataclass
class Program:
    """A function of parts: its text, the mesh, what of arguments and results the devices have."""

    sizes: dict[str, int]
    manual: tuple[str, ...]
    check: bool
    in_specs: list[tuple[Any, ...]] = field(default_factory=list)
    out_specs: list[tuple[Any, ...]] = field(default_factory=list)
    args: list[np.ndarray] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        names = [f"x{k}" for k in range(len(self.args))]
        body = "".join(f"    {line}\n" for line in self.lines)
        return f"def f({', '.join(names)}):\n{body}    return ({', '.join(self.results)},)\n"

    def mapped(self) -> Callable[..., Any]:
        """The function of whole arrays, over the first of the devices that there are."""
        scope: dict[str, Any] = {"lax": lax, "jnp": jnp}
        exec(self.text, scope)
        mesh = anima.make_mesh(tuple(self.sizes.values()), tuple(self.sizes),
                               axis_types=(AxisType.Auto,) * len(self.sizes))
        ins, outs = (tuple(P(*(names or None for names in spec)) for spec in specs)
                     for specs in (self.in_specs, self.out_specs))
        return anima.shard_map(scope["f"], mesh=mesh, in_specs=ins, out_specs=outs, axis_names=set(self.manual),
                               check_vma=self.check)


class Writer:
    """Writes one program, step by step."""

    def __init__(self, number: int) -> None:
        self.r = random.Random(number)
        shape, names = self.r.choice(MESHES)
        sizes = dict(zip(names, shape, strict=True))
        some = len(names) > 1 and self.r.random() < 0.2
        manual = tuple(sorted(self.r.sample(names, self.r.randrange(1, len(names))) if some else names))
        self.program = Program(sizes, manual, self.r.random() < 0.6)
        self.values: list[Value] = []

    def write(self) -> Program:
        for _ in range(self.r.randrange(1, 4)):
            self.argument()
        given = len(self.values)
        for _ in range(self.r.randrange(2, 8)):
            self.r.choice(STEPS)(self)
        made = self.values[given:]
        for value in self.r.sample(made, min(len(made), self.r.randrange(1, 4))):
            self.result(value)
        return self.program

    def argument(self) -> None:
        """An argument, some of its dimensions cut."""
        local = tuple(self.r.choice((1, 2, 3, 4, 8)) for _ in range(self.r.randrange(3)))
        axes = [a for a in self.program.manual if local and self.r.random() < 0.7]
        spec = self.spread(axes, len(local))
        whole = tuple(n * math.prod(self.program.sizes[a] for a in entry) for n, entry in zip(local, spec, strict=True))
        numbers = np.arange(math.prod(whole), dtype=np.float32) * self.r.uniform(1, 50)
        self.values.append(Value(f"x{len(self.program.args)}", local, frozenset(axes)))
        self.program.in_specs.append(spec)
        self.program.args.append(np.sin(numbers).astype(np.float32).reshape(whole))

    def result(self, value: Value) -> None:
        """A result, cut along all axes along which it varies; of a number, the mean."""
        if value.varies and not value.shape:
            self.add(f"lax.pmean({value.name}, {tuple(sorted(value.varies))})", (), ())
            value = self.values[-1]
        self.program.results.append(value.name)
        self.program.out_specs.append(self.spread(sorted(value.varies), len(value.shape)))

    def spread(self, axes: Sequence[str], rank: int) -> tuple[Any, ...]:
        """A spec of a given rank that names these axes, in random order."""
        spec: list[tuple[str, ...]] = [()] * rank
        for axis in self.r.sample(list(axes), len(axes)):
            k = self.r.randrange(rank)
            spec[k] = (*spec[k], axis)
        return tuple(spec)

    def add(self, text: str, shape: Iterable[int], varies: Iterable[str]) -> None:
        value = Value(f"v{len(self.values)}", tuple(shape), frozenset(varies))
        self.values.append(value)
        self.program.lines.append(f"{value.name} = {text}")

    def value(self, wanted: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """One of the values, rather a late one."""
        found = [v for v in self.values if wanted(v)]
        return found[-1 - min(self.r.randrange(len(found)), self.r.randrange(len(found)))] if found else None

    def varying(self, wanted: Callable[[Value], bool] = lambda v: True) -> tuple[Value, str] | None:
        """A value and an axis along which a collective can exchange it."""
        value = self.value(lambda v: wanted(v) and bool(v.varies or not self.program.check))
        if value is None:
            return None
        return value, self.r.choice(sorted(value.varies) if self.program.check else self.program.manual)

    def size(self, axis: str) -> int:
        return self.program.sizes[axis]

    # ------------------------------------------------------------ steps

    def elementwise(self) -> None:
        a = self.value()
        assert a is not None
        b = self.value(lambda v: v.shape in (a.shape, ())) or a
        text = self.r.choice(("jnp.sin({a})", "jnp.tanh({a} * {b})", "{a} - {b}", "jnp.where({b} > 0, {a}, 0.5)",
                              "jnp.maximum({a}, {b})", "jnp.exp(-{a} * {a})",
                              f"{{a}} * lax.axis_size('{self.program.manual[0]}')"))
        self.add(text.format(a=a.name, b=b.name), a.shape, a.varies | (b.varies if "{b}" in text else frozenset()))

    def shaped(self) -> None:
        a = self.value(lambda v: bool(v.shape))
        if a is None:
            return
        n, *rest = a.shape
        text, shape = self.r.choice((
            (f"jnp.sum({a.name}, 0)", rest), (f"{a.name}.reshape(-1)", (math.prod(a.shape),)),
            (f"jnp.concatenate([{a.name}, 2 * {a.name}])", (2 * n, *rest)), (f"{a.name}.T", a.shape[::-1]),
            (f"jnp.cumsum({a.name}, 0)", a.shape), (f"jnp.flip({a.name}, 0)", a.shape),
            (f"jnp.sort({a.name}, 0)", a.shape), (f"{a.name}.at[{n - 1}].multiply(0.25)", a.shape),
            (f"jnp.max({a.name}, 0, keepdims=True)", (1, *rest))))
        self.add(text, shape, a.varies)

    def product(self) -> None:
        a = self.value(lambda v: len(v.shape) == 2)
        if a is not None:
            self.add(f"jnp.tanh({a.name} @ {a.name}.T)", (a.shape[0],) * 2, a.varies)

    def summed(self) -> None:
        found = self.varying()
        if found is not None:
            a, axis = found
            self.add(f"lax.{self.r.choice(('psum', 'pmean', 'pmax', 'pmin'))}({a.name}, '{axis}')", a.shape,
                     a.varies - {axis})

    def gathered(self) -> None:
        found = self.varying(lambda v: 0 < math.prod(v.shape) * 8 <= LARGEST)
        if found is None:
            return
        a, axis = found
        d, n = self.r.randrange(len(a.shape) + 1), self.size(axis)
        if d < len(a.shape):
            self.add(f"lax.all_gather({a.name}, '{axis}', axis={d}, tiled=True)",
                     (*a.shape[:d], a.shape[d] * n, *a.shape[d + 1:]), a.varies | {axis})
        else:
            self.add(f"lax.all_gather({a.name}, '{axis}', axis={d})", (*a.shape, n), a.varies | {axis})

    def divided(self) -> None:
        """Each device gets a part: of the sum, or one from every other."""
        axis = self.r.choice(self.program.manual)
        n = self.size(axis)
        a = self.value(lambda v: any(k % n == 0 for k in v.shape) and (axis in v.varies or not self.program.check))
        if a is None:
            return
        d = self.r.choice([d for d, k in enumerate(a.shape) if k % n == 0])
        shape = [k // n if i == d else k for i, k in enumerate(a.shape)]
        if self.r.random() < 0.5:
            text = f"lax.psum_scatter({a.name}, '{axis}', scatter_dimension={d}, tiled=True)"
        else:
            e = self.r.randrange(len(shape))
            shape[e] *= n
            text = f"lax.all_to_all({a.name}, '{axis}', {d}, {e}, tiled=True)"
        self.add(text, shape, a.varies | {axis})

    def moved(self) -> None:
        found = self.varying()
        if found is None:
            return
        a, axis = found
        to = self.r.sample(range(self.size(axis)), self.size(axis))
        pairs = list(enumerate(to))[self.r.randrange(2):]
        text = self.r.choice((f"lax.ppermute({a.name}, '{axis}', {pairs})", f"lax.pshuffle({a.name}, '{axis}', {to})",
                              f"lax.pbroadcast({a.name}, '{axis}', {to[0]})"))
        self.add(text, a.shape, a.varies | {axis})

    def numbered(self) -> None:
        a, axis = self.value(), self.r.choice(self.program.manual)
        assert a is not None
        self.add(f"{a.name} * lax.axis_index('{axis}')", a.shape, a.varies | {axis})

    def looped(self) -> None:
        """A collective in each step of a loop, or in a branch that all devices take alike."""
        found = self.varying()
        if found is None:
            return
        a, axis = found
        next_one = [(k, (k + 1) % self.size(axis)) for k in range(self.size(axis))]
        moved = f"lax.ppermute(c, '{axis}', {next_one})"
        self.add(self.r.choice((
            f"lax.fori_loop(0, 3, lambda i, c: jnp.sin({moved}) + 0.1 * i, {a.name})",
            f"lax.scan(lambda c, t: ({moved} * 0.5, None), {a.name}, jnp.arange(2))[0]",
            f"lax.cond(lax.axis_size('{axis}') > 1, lambda c: {moved}, lambda c: c, {a.name})")), a.shape,
            a.varies | {axis})


STEPS: tuple[Callable[[Writer], None], ...] = (
    Writer.elementwise, Writer.elementwise, Writer.shaped, Writer.shaped, Writer.product, Writer.summed, Writer.summed,
    Writer.gathered, Writer.divided, Writer.divided, Writer.moved, Writer.numbered, Writer.looped)


def draw(number: int) -> Program:
    """The program of this number."""
    return Writer(number).write()
