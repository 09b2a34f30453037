"""A small, fast writer of LLVM assembly text.

LLVM reads a textual language, so that is what the compiler writes: no graph of instruction
objects, one formatted line for each instruction. A `ModuleBuilder` collects functions, constants
and declarations; a `Builder` writes one function. Values carry a name and a `Type` (a scalar kind
and a vector width); Python numbers stand for constants of the other operand's type.

    >>> m = ModuleBuilder()
    >>> b = m.function("double", [Type("float", 4)], Type("float", 4))
    >>> b.ret(b.op("fmul", b.params[0], 2.0))
    >>> print(b.lines[0])
      %v1 = fmul <4 x float> %p0, splat (float 0x4000000000000000)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar, Self

_MANGLED = {"i1": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "i128": "i128", "half": "f16",
            "float": "f32", "double": "f64", "ptr": "p0"}
_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128, "half": 16,
         "float": 32, "double": 64, "ptr": 64}
_FLOATS = frozenset(("half", "float", "double"))


class Type:
    """An LLVM type: a scalar kind, alone (`width` 1) or in a vector. Equal types are identical.

    >>> str(Type("float", 16)), Type("float", 16).bits, Type("i32") is Type("i32", 1)
    ('<16 x float>', 32, True)
    """

    __slots__ = ("bits", "is_float", "mangled", "scalar", "text", "width")
    _known: ClassVar[dict[tuple[str, int], Any]] = {}

    scalar: str
    width: int
    text: str
    mangled: str
    bits: int
    is_float: bool

    def __new__(cls, scalar: str, width: int = 1) -> Self:
        known = cls._known.get((scalar, width))
        if known is not None:
            return known
        if scalar not in _BITS or width < 1:
            raise ValueError(f"no LLVM type <{width} x {scalar}>")
        self = object.__new__(cls)
        self.scalar, self.width = scalar, width
        self.text = scalar if width == 1 else f"<{width} x {scalar}>"
        self.mangled = _MANGLED[scalar] if width == 1 else f"v{width}{_MANGLED[scalar]}"
        self.bits = _BITS[scalar]
        self.is_float = scalar in _FLOATS
        return cls._known.setdefault((scalar, width), self)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def __reduce__(self) -> tuple[type[Type], tuple[str, int]]:
        return Type, (self.scalar, self.width)

    def of(self, scalar: str) -> Type:
        """The type of the same width over another scalar kind."""
        return Type(scalar, self.width)

    @property
    def element(self) -> Type:
        """The scalar type of one lane."""
        return Type(self.scalar)


class Value:
    """A typed operand: `name` is what LLVM text calls it (`%v3`, `true`, `splat (float 0x...)`)."""

    __slots__ = ("name", "type")

    def __init__(self, name: str, type: Type) -> None:
        self.name = name
        self.type = type

    def __str__(self) -> str:
        return f"{self.type.text} {self.name}"

    __repr__ = __str__


Operand = Value | int | float
_SPILLS = 100  # lines of a function that may need more registers than there are
_ACCESSES = 50  # loads and stores of vectors that LLVM may look at together
_PERMUTED = {"float": "ps", "double": "pd", "i32": "d", "i64": "q"}  # what instructions call elements


def literal(scalar: str, number: float) -> str:
    """The exact text of a Python number as an LLVM constant of kind `scalar` (rounded to nearest even).

    >>> literal("float", 0.1), literal("i8", 255), literal("i1", 1)
    ('0x3FB99999A0000000', '-1', 'true')
    """
    if scalar == "double":
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    if scalar == "float":
        rounded = struct.unpack("<f", _pack_float(number))[0]
        return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
    if scalar == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', number))[0]:04X}"
    if scalar == "i1":
        return "true" if number else "false"
    if scalar == "ptr":
        return f"inttoptr (i64 {int(number)} to ptr)" if number else "null"
    bits = _BITS[scalar]
    wrapped = int(number) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def _pack_float(number: float) -> bytes:
    try:
        return struct.pack("<f", number)
    except OverflowError:
        return struct.pack("<f", float("inf") if number > 0 else float("-inf"))


class Builder:
    """Writes one function: every method appends a line and returns the `Value` it defines.

    `params` are the function's parameters, `result` is the type of what it returns; `block` is the label of the block
    being written, `start` the end of the function's first lines, if they may jump elsewhere.
    """

    __slots__ = ("_accesses", "_allocas", "_count", "_header", "_phis", "block", "lines", "module", "name", "params",
                 "result", "start")

    def __init__(self, module: ModuleBuilder, name: str, header: tuple[str, str], params: list[Value]) -> None:
        self.module = module
        self.name = name
        self.params = params
        self.lines: list[str] = []
        self.block = "entry"
        self._header = header
        self.result: Type | None = None
        self.start: list[str] = []
        self._allocas: list[str] = []
        self._phis: list[tuple[int, Phi]] = []
        self._count = 0
        self._accesses = 0

    def text(self) -> str:
        """The function's LLVM text."""
        for index, phi in self._phis:
            self.lines[index] = phi.text()
        # Vectors for which there are no registers left would be put across two lines of the cache.
        align = ' "stackrealign"' if self.module.vector_bits > 128 and len(self.lines) >= _SPILLS else ""
        before, after = self._header
        lines = ["start:", *self._allocas, *self.start, "entry:"] if self.start else ["entry:", *self._allocas]
        result = self.result.text if self.result else "void"
        return "\n".join([f"{before}{result}{after}{align} {{", *lines, *self.lines, "}"])

    # -- raw lines: what every other method is made of ------------------------------------------

    def line(self, text: str) -> None:
        """Append an instruction that defines nothing."""
        self.lines.append("  " + text)

    def assign(self, text: str, type: Type) -> Value:
        """Append the instruction `text`, which defines a value of `type`."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        return Value(name, type)

    def first(self, text: str, type: Type) -> Value:
        """Write the instruction `text` at the function's start, before all others."""
        self._count += 1
        name = f"%s{self._count}"
        self._allocas.append(f"  {name} = {text}")
        return Value(name, type)

    # -- constants ------------------------------------------------------------------------------

    @staticmethod
    def const(type: Type, number: float) -> Value:
        """The constant `number` of `type`, in every lane."""
        text = literal(type.scalar, number)
        return Value(text if type.width == 1 else f"splat ({type.scalar} {text})", type)

    @staticmethod
    def const_lanes(type: Type, numbers: Sequence[float]) -> Value:
        """The vector constant with one number for each lane."""
        if len(numbers) != type.width or type.width == 1:
            raise ValueError(f"{len(numbers)} numbers for {type}")
        lanes = ", ".join(f"{type.scalar} {literal(type.scalar, n)}" for n in numbers)
        return Value(f"<{lanes}>", type)

    def step(self, type: Type, start: float = 0, stride: float = 1) -> Value:
        """`<start, start + stride, ...>`: the lane numbers; for a scalar type, `start`."""
        if type.width == 1:
            return self.const(type, start)
        return self.const_lanes(type, [start + stride * lane for lane in range(type.width)])

    def first_lanes(self, count: int, width: int) -> Value:
        """A mask with the first lanes on, as a number that the code generator does not know.

        Where it knows which lanes of a masked store are on, it rewrites the store; and for AVX-512 LLVM 22 writes a
        single lane of a `trunc` as wide as before the truncation, over what lies behind.
        """
        bits = Type("i64" if width > 32 else "i32")
        value = self.assign(f'call {bits.text} asm "", "=r,0"({bits.text} {(1 << count) - 1})', bits)
        mask = self.cast("bitcast", value, Type("i1", bits.bits))
        return self.shuffle(mask, self.undef(mask.type), range(width)) if width < bits.bits else mask

    @staticmethod
    def undef(type: Type) -> Value:
        """A value nobody may depend on."""
        return Value("poison", type)

    # -- arithmetic -----------------------------------------------------------------------------

    def _alike(self, what: str, a: Operand, b: Operand) -> tuple[Value, Value]:
        """Two operands of one type; a Python number is a constant of the other's."""
        if not isinstance(a, Value):
            assert isinstance(b, Value), "two Python numbers have no LLVM type"
            a = self.const(b.type, a)
        elif not isinstance(b, Value):
            b = self.const(a.type, b)
        if a.type is not b.type:
            raise TypeError(f"{what} of {a} and {b}")
        return a, b

    def op(self, opcode: str, a: Operand, b: Operand, flags: str = "") -> Value:
        """`opcode` (`fadd`, `mul`, `lshr`, ...) of two operands of one type; `flags` as `"contract"`."""
        if not (isinstance(a, Value) and isinstance(b, Value) and a.type is b.type):
            a, b = self._alike(opcode, a, b)
        return self.assign(f"{opcode} {flags + ' ' if flags else ''}{a.type.text} {a.name}, {b.name}", a.type)

    def fneg(self, a: Value) -> Value:
        """The operand with its sign bit flipped."""
        return self.assign(f"fneg {a.type.text} {a.name}", a.type)

    def cmp(self, predicate: str, a: Operand, b: Operand) -> Value:
        """Compare: `fcmp` or `icmp` by the operands' type (`olt`, `une`, `slt`, `eq`, ...); i1 lanes."""
        if not (isinstance(a, Value) and isinstance(b, Value) and a.type is b.type):
            a, b = self._alike(predicate, a, b)
        opcode = "fcmp" if a.type.is_float else "icmp"
        return self.assign(f"{opcode} {predicate} {a.type.text} {a.name}, {b.name}", a.type.of("i1"))

    def select(self, condition: Value, x: Operand, y: Operand) -> Value:
        """`x` where `condition`, else `y`, lane by lane (a scalar condition chooses whole vectors)."""
        if not (isinstance(x, Value) and isinstance(y, Value) and x.type is y.type):
            x, y = self._alike("select", x, y)
        return self.assign(f"select {condition}, {x}, {y}", x.type)

    def cast(self, opcode: str, x: Value, type: Type) -> Value:
        """`fptosi`, `sitofp`, `bitcast`, `trunc`, `zext`, `sext`, `fpext`, `fptrunc`, ... to `type`."""
        return self.assign(f"{opcode} {x} to {type.text}", type)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Value:
        """`a * b + c`, rounded once."""
        type = next(v.type for v in (a, b, c) if isinstance(v, Value))
        a, b, c = (v if isinstance(v, Value) else self.const(type, v) for v in (a, b, c))
        return self.intrinsic("fma", a, b, c)

    # -- calls ----------------------------------------------------------------------------------

    def intrinsic(self, name: str, *args: Operand, result: Type | None = None,
                  suffix: str | None = None) -> Value:
        """Call `llvm.<name>`, declared once a module; `result` defaults to the first argument's type.

        Overloads are named by the result, or as the intrinsic needs (`ldexp`: result and exponent;
        `vector.reduce.*`: the vector). `suffix` gives the name's end outright. Python numbers among the
        arguments take the first argument's type.
        """
        first = args[0]
        if not isinstance(first, Value):
            raise TypeError(f"llvm.{name}: the first argument must be a Value")
        values = [a if isinstance(a, Value) else self.const(first.type, a) for a in args]
        result = result or first.type
        if suffix is None:
            if name == "ldexp":
                suffix = f"{result.mangled}.{values[1].type.mangled}"
            elif name.startswith("vector.reduce."):
                suffix = values[-1].type.mangled
            else:
                suffix = result.mangled
        full = f"llvm.{name}.{suffix}" if suffix else f"llvm.{name}"
        self.module.declare(full, [v.type for v in values], result)
        return self.assign(f"call {result.text} @{full}({', '.join(map(str, values))})", result)

    def flagged(self, name: str, *args: Operand) -> Value:
        """An intrinsic with a trailing `i1 false` flag (`ctlz`, `cttz`, `abs`): defined for every input."""
        first = args[0]
        assert isinstance(first, Value)
        full = f"llvm.{name}.{first.type.mangled}"
        self.module.declare(full, [first.type, Type("i1")], first.type)
        return self.assign(f"call {first.type.text} @{full}({first}, i1 false)", first.type)

    def call(self, function: str | Value, args: Sequence[Value], result: Type | None = None) -> Value | None:
        """Call a function of this module by name, or through a `ptr` value; `result` None is void."""
        callee = function.name if isinstance(function, Value) else "@" + function
        text = f"call {result.text if result else 'void'} {callee}({', '.join(map(str, args))})"
        if result is None:
            self.line(text)
            return None
        return self.assign(text, result)

    # -- memory ---------------------------------------------------------------------------------

    def gep(self, scalar: str | Type, pointer: Value, index: Value | int) -> Value:
        """The address of element `index` from `pointer`; a vector of indices gives a vector of addresses."""
        if isinstance(index, int):
            index = Value(str(index), Type("i64"))
        width = max(index.type.width, pointer.type.width)
        return self.assign(f"getelementptr {scalar}, {pointer}, {index}", Type("ptr", width))

    def load(self, type: Type, pointer: Value, align: int | None = None, meta: str = "") -> Value:
        """Load; `align` in bytes defaults to one element's size; `meta` as `"!alias.scope !1"`."""
        align = align or max(type.bits // 8, 1)
        self._accessed(type)
        return self.assign(f"load {type.text}, {pointer}, align {align}{', ' + meta if meta else ''}", type)

    def store(self, value: Value, pointer: Value, align: int | None = None, meta: str = "") -> None:
        """Store; `align` in bytes defaults to one element's size."""
        align = align or max(value.type.bits // 8, 1)
        self._accessed(value.type)
        self.line(f"store {value}, {pointer}, align {align}{', ' + meta if meta else ''}")

    def masked_load(self, type: Type, pointer: Value, mask: Value, other: Operand = 0,
                    align: int | None = None) -> Value:
        """Load the lanes where `mask`; `other` in the rest. Masked lanes touch no memory."""
        other = other if isinstance(other, Value) else self.const(type, other)
        full = f"llvm.masked.load.{type.mangled}.p0"
        self.module.declare(full, [Type("ptr"), Type("i32"), mask.type, type], type)
        args = f"{pointer}, i32 {align or max(type.bits // 8, 1)}, {mask}, {other}"
        self._accessed(type)
        return self.assign(f"call {type.text} @{full}({args})", type)

    def masked_store(self, value: Value, pointer: Value, mask: Value, align: int | None = None) -> None:
        """Store the lanes where `mask`."""
        full = f"llvm.masked.store.{value.type.mangled}.p0"
        self.module.declare(full, [value.type, Type("ptr"), Type("i32"), mask.type], None)
        self._accessed(value.type)
        self.line(f"call void @{full}({value}, {pointer}, i32 {align or max(value.type.bits // 8, 1)}, {mask})")

    def _accessed(self, type: Type) -> None:
        """Before a load or a store: cuts long blocks into parts of which none has many of them. The time that LLVM
        takes to find what may be in which order grows with the square of their number."""
        size = type.width * type.bits
        self._accesses += max(size // self.module.vector_bits, 1) if self.module.vector_bits else 0
        if self._accesses >= _ACCESSES:
            self._accesses = 0
            self.line('call void asm sideeffect "", ""()')

    def prefetch(self, pointer: Value) -> None:
        """Bring near what is at an address that will be read, if there is anything."""
        self.module.declare("llvm.prefetch.p0", [Type("ptr"), Type("i32"), Type("i32"), Type("i32")], None)
        self.line(f"call void @llvm.prefetch.p0({pointer}, i32 0, i32 3, i32 1)")

    def gather(self, type: Type, pointers: Value, mask: Value | None = None, other: Operand = 0,
               align: int | None = None) -> Value:
        """Load each lane from its own address; `other` where not `mask`."""
        other = other if isinstance(other, Value) else self.const(type, other)
        mask = mask or self.const(type.of("i1"), 1)
        full = f"llvm.masked.gather.{type.mangled}.{pointers.type.mangled}"
        self.module.declare(full, [pointers.type, Type("i32"), mask.type, type], type)
        args = f"{pointers}, i32 {align or max(type.bits // 8, 1)}, {mask}, {other}"
        return self.assign(f"call {type.text} @{full}({args})", type)

    def scatter(self, value: Value, pointers: Value, mask: Value | None = None, align: int | None = None) -> None:
        """Store each lane to its own address, in lane order, where `mask`."""
        mask = mask or self.const(value.type.of("i1"), 1)
        full = f"llvm.masked.scatter.{value.type.mangled}.{pointers.type.mangled}"
        self.module.declare(full, [value.type, pointers.type, Type("i32"), mask.type], None)
        self.line(f"call void @{full}({value}, {pointers}, i32 {align or max(value.type.bits // 8, 1)}, {mask})")

    def alloca(self, type: Type, count: int = 1, align: int = 64) -> Value:
        """Stack room for `count` values of `type`, in the entry block."""
        self._count += 1
        name = f"%s{self._count}"
        self._allocas.append(f"  {name} = alloca {type.text}, i64 {count}, align {align}")
        return Value(name, Type("ptr"))

    # -- lanes ----------------------------------------------------------------------------------

    def extract(self, vector: Value, lane: int | Value) -> Value:
        """One lane of a vector."""
        index = lane if isinstance(lane, Value) else Value(str(lane), Type("i64"))
        return self.assign(f"extractelement {vector}, {index}", vector.type.element)

    def insert(self, vector: Value, element: Value, lane: int | Value) -> Value:
        """The vector with one lane replaced."""
        index = lane if isinstance(lane, Value) else Value(str(lane), Type("i64"))
        return self.assign(f"insertelement {vector}, {element}, {index}", vector.type)

    def splat(self, value: Value, width: int) -> Value:
        """The scalar in every lane (the scalar itself for width 1)."""
        if width == 1:
            return value
        type = Type(value.type.scalar, width)
        if not value.name.startswith(("%", "@")):
            return Value(f"splat ({value})", type)
        first = self.insert(self.undef(type), value, 0)
        return self.shuffle(first, self.undef(type), [0] * width)

    def shuffle(self, a: Value, b: Value, mask: Sequence[int]) -> Value:
        """Lanes chosen from `a` and `b` by constant index (`b`'s count on from `a`'s; -1: any)."""
        if not any(mask):
            lanes = "zeroinitializer"
        else:
            lanes = "<" + ", ".join(f"i32 {i}" if i >= 0 else "i32 poison" for i in mask) + ">"
        type = Type(a.type.scalar, len(mask))
        return self.assign(f"shufflevector {a}, {b}, <{len(mask)} x i32> {lanes}", type)

    def permute(self, a: Value, b: Value, order: Sequence[int]) -> Value:
        """`shuffle` to a vector of the same width, by the one instruction of AVX-512 that takes any order, from memory:
        for what there is no shorter instruction, LLVM tries many others, and takes up to ten times as long."""
        type, kind = a.type, _PERMUTED.get(a.type.scalar)
        size = type.width * type.bits
        if kind is None or size not in (256, 512) or not {"+avx512f", "+avx512vl"} <= self.module.features:
            return self.shuffle(a, b, order)
        places = [max(place, 0) for place in order]
        index = Type(f"i{type.bits}", type.width)
        table = self.module.constant(f"order.{index.mangled}.{bytes(places).hex()}", index.scalar, places)
        return self.intrinsic(f"x86.avx512.vpermi2var.{kind}.{size}", a, self.load(index, table), b, suffix="")

    # -- control --------------------------------------------------------------------------------

    def label(self, hint: str = "block") -> str:
        """A fresh label, to be placed later."""
        self._count += 1
        return f"{hint}.{self._count}"

    def place(self, label: str) -> None:
        """Start the block `label` here."""
        self.lines.append(f"{label}:")
        self.block = label
        self._accesses = 0

    def branch(self, label: str) -> None:
        """Jump."""
        self.line(f"br label %{label}")

    def branch_if(self, condition: Value, then: str, other: str, likely: bool | None = None) -> None:
        """Jump to `then` if the scalar `condition`, else to `other`; `likely` says which is usual."""
        weights = ""
        if likely is not None:
            weights = f", !prof {self.module.metadata('branch_weights', likely)}"
        self.line(f"br {condition}, label %{then}, label %{other}{weights}")

    def phi(self, type: Type, *incoming: tuple[Operand, str]) -> Phi:
        """A value that depends on the block we come from; `phi.add(value, label)` adds edges later."""
        self._count += 1
        phi = Phi(f"%v{self._count}", type)
        for value, label in incoming:
            phi.add(value, label)
        self._phis.append((len(self.lines), phi))
        self.lines.append("")
        return phi

    def ret(self, value: Value | None = None) -> None:
        """Return."""
        self.line(f"ret {value}" if value is not None else "ret void")


class Phi(Value):
    """A phi node under construction."""

    __slots__ = ("edges",)

    def __init__(self, name: str, type: Type) -> None:
        super().__init__(name, type)
        self.edges: list[str] = []

    def add(self, value: Operand, label: str) -> None:
        """The phi is `value` when control comes from block `label`."""
        value = value if isinstance(value, Value) else Builder.const(self.type, value)
        if value.type is not self.type:
            raise TypeError(f"phi of {self.type} from {value}")
        self.edges.append(f"[ {value.name}, %{label} ]")

    def text(self) -> str:
        """The instruction's line."""
        return f"  {self.name} = phi {self.type.text} {', '.join(self.edges)}"


class ModuleBuilder:
    """Collects the functions, constants and declarations of one LLVM module.

    `vector_bits` sets `prefer-vector-width` on every function (0: leave it to LLVM). `features` is the
    target's (`"+avx512f,+fma,..."`): it lets `scalars` use single instructions where there are any.
    """

    def __init__(self, triple: str = "", vector_bits: int = 0, features: str = "") -> None:
        self.triple = triple
        self.vector_bits = vector_bits
        self.features = frozenset(features.split(","))
        self._functions: dict[str, Builder] = {}
        self._declared: dict[str, str] = {}
        self._globals: dict[str, str] = {}
        self._metadata: dict[tuple[str, object], int] = {}
        self._metadata_lines: list[str] = []
        width = f' "prefer-vector-width"="{vector_bits}" "min-legal-vector-width"="{vector_bits}"'
        self._attributes = f"nounwind{width if vector_bits else ''}"

    def function(self, name: str, params: Sequence[Type | tuple[str, Type] | tuple[str, Type, str]],
                 result: Type | None = None, linkage: str = "", attributes: str = "") -> Builder:
        """Start a function. A parameter is a Type, `(name, Type)` or `(name, Type, attributes)`.

        `linkage` as `"internal"`, `attributes` as `"alwaysinline"`, `"noinline cold"`.
        """
        values, texts = [], []
        for i, param in enumerate(params):
            label, type, extra = f"p{i}", param, ""
            if isinstance(param, tuple):
                label, type = param[0], param[1]
                extra = param[2] + " " if len(param) > 2 else ""  # type: ignore[misc]
            assert isinstance(type, Type)
            values.append(Value("%" + label, type))
            texts.append(f"{type.text} {extra}%{label}")
        header = (f"define {linkage + ' ' if linkage else ''}",
                  f" @{name}({', '.join(texts)}) #0{' ' + attributes if attributes else ''}")
        builder = Builder(self, name, header, values)
        builder.result = result
        self._functions[name] = builder
        return builder

    @property
    def converts_halves(self) -> bool:
        """Whether the target has instructions that convert between half and float."""
        return "+f16c" in self.features or self.triple.startswith(("aarch64", "arm64"))

    def defines(self, name: str) -> bool:
        """Whether there is a function of this name."""
        return name in self._functions

    @property
    def has_functions(self) -> bool:
        """Whether there is any."""
        return bool(self._functions)

    @property
    def size(self) -> int:
        """The number of lines so far."""
        return sum(len(f.lines) for f in self._functions.values())

    def declare(self, name: str, params: Sequence[Type], result: Type | None = None) -> None:
        """Declare an external function (an intrinsic), once, unless the module defines it."""
        if name not in self._declared and name not in self._functions:
            types = ", ".join(t.text for t in params)
            self._declared[name] = f"declare {result.text if result else 'void'} @{name}({types})"

    @property
    def declared(self) -> list[str]:
        """The names of external functions that are called."""
        return list(self._declared)

    def undeclare(self, name: str) -> None:
        """Forgets that a function is external: the module defines it."""
        del self._declared[name]

    def constant(self, name: str, scalar: str, numbers: Sequence[float], align: int = 64) -> Value:
        """A constant array in the module's read-only data; the value is its address."""
        if name not in self._globals:
            items = ", ".join(f"{scalar} {literal(scalar, n)}" for n in numbers)
            self._globals[name] = (f"@{name} = internal unnamed_addr constant [{len(numbers)} x {scalar}] "
                                   f"[{items}], align {align}")
        return Value("@" + name, Type("ptr"))

    def variable(self, name: str, type: Type, initial: float = 0, align: int = 64) -> Value:
        """A mutable global of the module; the value is its address."""
        if name not in self._globals:
            self._globals[name] = f"@{name} = internal global {Builder.const(type, initial)}, align {align}"
        return Value("@" + name, Type("ptr"))

    def exported(self, name: str) -> Value:
        """The address of a pointer, null at first, that other code can find by its name."""
        self._globals[name] = f"@{name} = global ptr null, align 8"
        return Value("@" + name, Type("ptr"))

    def metadata(self, kind: str, key: object) -> str:
        """The reference `!n` of a metadata node, made once: `branch_weights` (key: likely?) or raw text."""
        known = self._metadata.get((kind, key))
        if known is None:
            text = str(key)
            if kind == "branch_weights":
                text = f'!{{!"branch_weights", i32 {2000 if key else 1}, i32 {1 if key else 2000}}}'
            known = self._metadata[kind, key] = len(self._metadata_lines)
            self._metadata_lines.append(f"!{known} = {text}")
        return f"!{known}"

    def text(self) -> str:
        """The module's LLVM text."""
        head = [f'target triple = "{self.triple}"'] if self.triple else []
        functions = [f.text() for f in self._functions.values()]
        tail = [f"attributes #0 = {{ {self._attributes} }}"]
        return "\n".join([*head, *self._globals.values(), *self._declared.values(), *functions, *tail,
                          *self._metadata_lines, ""])
