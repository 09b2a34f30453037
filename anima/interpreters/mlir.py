"""How compiled programs get the operations of others: as functions made of other operations.

    mlir.register_lowering(p, mlir.lower_fun(lambda x, y: x * y + y, multiple_results=False))

Programs are compiled without MLIR here. What makes or reads its objects says so when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from anima.extend.core.operation import Primitive
from anima.extend.core.types import EffectTypeSet
from anima.util import clear_all, record

DEVICE_TO_DEVICE_TYPE, SEND_TO_HOST_TYPE, RECV_FROM_HOST_TYPE = 1, 2, 3


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(f"{what}: programs are compiled without MLIR here, and have none of its objects. An "
                              "operation is lowered as a function of others: register_lowering(p, lower_fun(f)).")


@record
class LoweredFunction:
    """`fun(*operands, **parameters)`, in the place of an operation in compiled programs."""

    fun: Callable[..., Any]
    multiple_results: bool = True

    def __call__(self, ctx: Any, *args: Any, **params: Any) -> NoReturn:
        _refuse("A lowering applied to MLIR's values")


LoweringRule = Callable[..., Any]
lowerable_effects = EffectTypeSet()  # effects of every class are
ir_type_handlers: dict[type, Callable[..., Any]] = {}  # of libraries that make MLIR: never asked


def lower_fun(fun: Callable[..., Any], multiple_results: bool = True) -> LoweredFunction:
    """A lowering rule: `fun`, made of other operations, which returns a sequence with `multiple_results`."""
    return LoweredFunction(fun, multiple_results)


def register_lowering(prim: Primitive, rule: LoweringRule, platform: str | None = None, inline: bool = True,
                      cacheable: bool = True) -> LoweringRule:
    """Sets what compiled programs have in the place of an operation (of one's own: `extend.core.Primitive`).

    A rule other than one of `lower_fun` would make MLIR: NotImplementedError, when such a program is compiled. Rules
    for another `platform` than "cpu" are never asked.

    Raises:
      NotImplementedError: for one of Anima's own operations.
    """
    if platform not in (None, "cpu"):
        return rule
    if not isinstance(prim, Primitive):
        raise NotImplementedError(f"'{prim.name}' has a lowering of its own, which cannot be replaced.")
    if prim.lowering is not None:
        clear_all()  # programs remember what came of the rule before
    if not isinstance(rule, LoweredFunction):
        prim.lowering = lambda *args, **params: _refuse(f"The lowering of '{prim.name}'")
        return rule

    def lowering(*args: Any, **params: Any) -> Any:
        out = rule.fun(*args, **params)
        if rule.multiple_results == prim.multiple_results:
            return out
        if prim.multiple_results:
            return [out]
        (result,) = out
        return result

    prim.lowering = lowering
    return rule


def core_call_lowering(ctx: Any, *args: Any, name: str, backend: Any = None, call_jaxpr: Any) -> NoReturn:
    """Not available: calls are inlined."""
    _refuse("core_call_lowering")


class _Refused:
    """A class of MLIR's: there are no instances."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse(type(self).__name__)


def _refused(*names: str) -> Sequence[Any]:
    return [type(name, (_Refused,), {"__doc__": _Refused.__doc__, "__module__": __name__}) for name in names]


def _refusing(*names: str) -> Sequence[Any]:
    def make(name: str) -> Callable[..., NoReturn]:
        def refusing(*args: Any, **kwargs: Any) -> NoReturn:
            _refuse(name)

        refusing.__name__ = refusing.__qualname__ = name
        refusing.__doc__ = "Not available: about objects of MLIR."
        return refusing

    return list(map(make, names))


(ConstantHandler, LoweringParameters, LoweringResult, LoweringRuleContext, Mesh, ModuleContext, SPMDAxisContext,
 ShapePolyLoweringState, ShardingContext, Token, TokenSet, Value) = _refused(
    "ConstantHandler", "LoweringParameters", "LoweringResult", "LoweringRuleContext", "Mesh", "ModuleContext",
    "SPMDAxisContext", "ShapePolyLoweringState", "ShardingContext", "Token", "TokenSet", "Value")
AxisContext = SPMDAxisContext | ShardingContext

(aval_to_ir_type, aval_to_ir_types, dense_int_array, dense_int_elements, dtype_to_ir_type, emit_python_callback,
 flatten_ir_types, flatten_ir_values, i32_attr, i64_attr, ir_attribute, ir_constant, ir_constants, jaxpr_subcomp,
 lower_jaxpr_to_fun, lower_jaxpr_to_module, make_ir_context, merge_mlir_modules, module_to_bytecode, module_to_string,
 register_constant_handler, shape_tensor, token_type, unflatten_ir_values_like_types) = _refusing(
    "aval_to_ir_type", "aval_to_ir_types", "dense_int_array", "dense_int_elements", "dtype_to_ir_type",
    "emit_python_callback", "flatten_ir_types", "flatten_ir_values", "i32_attr", "i64_attr", "ir_attribute",
    "ir_constant", "ir_constants", "jaxpr_subcomp", "lower_jaxpr_to_fun", "lower_jaxpr_to_module", "make_ir_context",
    "merge_mlir_modules", "module_to_bytecode", "module_to_string", "register_constant_handler", "shape_tensor",
    "token_type", "unflatten_ir_values_like_types")
