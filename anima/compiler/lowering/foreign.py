"""C functions: a call on arrays in memory, or a function of numbers inside of a loop."""

from __future__ import annotations

from typing import Any

from anima.compiler.ir.loops import Call, Const, Expr
from anima.compiler.lowering.array import Indices, Scope, at, scalar_type
from anima.compiler.lowering.callback import call_in_place
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.core import foreign
from anima.core.handlers import Handler
from anima.core.jaxpr import Eqn


@call("ffi_call")
def _ffi_call(builder: ProgramBuilder, eqn: Eqn) -> None:
    if isinstance(eqn.params["target"], Handler):
        call_in_place(builder, eqn)
        return
    layout = eqn.primitive.layout([v.aval for v in eqn.invars], **eqn.params)  # type: ignore[attr-defined]
    results = [builder.result(v) for v in eqn.outvars]
    aliases = dict(eqn.params["input_output_aliases"])
    for operand, result in aliases.items():
        builder.copy(builder.memory(eqn.invars[operand]), results[result], eqn.outvars[result].aval.size)
    reads = [builder.memory(v) for k, v in enumerate(eqn.invars) if k not in aliases]
    target = eqn.params["target"]
    builder.emit(Call("foreign", (target.address, layout, len(reads), *reads, *results)))


@at("ffi_elementwise")
def _ffi_elementwise(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    target = eqn.params["target"]
    operands = [scope.at(v, i) for v, i in scope.operands(eqn, index)]
    given = foreign.arguments_of(target, len(operands), dict(eqn.params["attributes"]))
    types = tuple(p.type for p in target.signature.parameters)
    args = [scope.cast(operands[word], type) if isinstance(word, int) else _constant(word)
            for word, type in zip(given, types, strict=True)]
    params: tuple[tuple[str, Any], ...] = (("address", target.address), ("types", types))
    value = scope.op("foreign", args, target.signature.returns, params)
    return scope.cast(value, scalar_type(eqn.outvars[0].aval))


def _constant(word: str) -> Const:
    type, value = foreign.value_of(word)
    return Const(bool(value) if type == "bool" else value, type)
