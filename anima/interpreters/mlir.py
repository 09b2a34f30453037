"""How compiled programs get the operations of others: as functions made of other operations.

    mlir.register_lowering(p, mlir.lower_fun(lambda x, y: x * y + y, multiple_results=False))

Programs are compiled without MLIR here. What makes or reads its objects says so when it is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from anima.api.effects import io_callback, pure_callback
from anima.api.stages import ShapeDtypeStruct
from anima.core.avals import ShapedArray
from anima.core.trace import aval_of, is_array_like
from anima.extend.core.operation import Primitive
from anima.extend.core.types import EffectTypeSet
from anima.names import access, refusing
from anima.util import clear_all, record

DEVICE_TO_DEVICE_TYPE, SEND_TO_HOST_TYPE, RECV_FROM_HOST_TYPE = 1, 2, 3


_WHY = ("{}: programs are compiled without MLIR here, and have none of its objects. An operation is lowered as a "
        "function of others: register_lowering(p, lower_fun(f)).")


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(_WHY.format(what))


@record
class LoweredFunction:
    """`fun(*operands, **parameters)`, in the place of an operation in compiled programs."""

    fun: Callable[..., Any]
    multiple_results: bool = True

    def __call__(self, ctx: Any, *args: Any, **params: Any) -> NoReturn:
        _refuse("A lowering applied to MLIR's values")


class ModuleContext:
    """The program around an operation that is lowered."""

    platforms = ("cpu",)

    def add_keepalive(self, keepalive: Any) -> None:
        """Nothing to do: programs keep the functions that they call."""


@record
class LoweringRuleContext:
    """What a lowering rule gets besides its operands: their types, and those that its results must have."""

    primitive: Primitive
    avals_in: Sequence[ShapedArray]
    avals_out: Sequence[ShapedArray]
    module_context: ModuleContext = ModuleContext()

    def replace(self, **changes: Any) -> LoweringRuleContext:
        """The context of a part of the operation, with operands or results of other types."""
        return replace(self, **changes)

    @property
    def tokens_in(self) -> NoReturn:
        """Not available: effects stay in the order of the program without tokens."""
        _refuse("A token of an effect")

    def set_tokens_out(self, tokens_out: Any) -> NoReturn:
        """Not available, as `tokens_in`."""
        _refuse("A token of an effect")


def emit_python_callback(ctx: LoweringRuleContext, callback: Callable[..., Any], token: Any, operands: Sequence[Any],
                         operand_avals: Sequence[ShapedArray], result_avals: Sequence[ShapedArray], *,
                         has_side_effect: bool, returns_token: bool = True, partitioned: bool = False,
                         sharding: Any = None) -> tuple[Sequence[Any], Any, Any]:
    """`callback(*arrays) -> sequence of arrays` in the place of an operation: (results, token, what to keep).

    Raises:
      NotImplementedError: for a side effect of an operation whose types tell of none: it might be dropped or merged.
    """
    if has_side_effect and not ctx.primitive.effects_of({}):
        raise NotImplementedError(f"The lowering of '{ctx.primitive.name}' calls a function with a side effect, which "
                                  "programs do not know of. Set it by def_effectful_abstract_eval, with the effect "
                                  "\"IO\".")
    types = [ShapeDtypeStruct(a.shape, a.dtype) for a in result_avals]

    def call(*arrays: Any) -> list[Any]:
        return list(callback(*arrays))

    if has_side_effect:
        return io_callback(call, types, *operands), token, None
    return pure_callback(call, types, *operands, vmap_method="sequential"), token, None


def _lower_by_context(prim: Primitive, rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """The results of a rule that was written for MLIR, where it makes nothing of MLIR's objects."""
    avals = list(map(aval_of, args))
    out = rule(LoweringRuleContext(prim, avals, prim.abstract_out(avals, params)), *args, **params)
    outs = [out] if is_array_like(out) else out
    if not isinstance(outs, (list, tuple)) or not all(map(is_array_like, outs)):
        _refuse(f"The lowering of '{prim.name}'")
    return outs if prim.multiple_results else outs[0]


LoweringRule = Callable[..., Any]
lowerable_effects = EffectTypeSet()  # effects of every class are
ir_type_handlers: dict[type, Callable[..., Any]] = {}  # of libraries that make MLIR: never asked


def lower_fun(fun: Callable[..., Any], multiple_results: bool = True) -> LoweredFunction:
    """A lowering rule: `fun`, made of other operations, which returns a sequence with `multiple_results`."""
    return LoweredFunction(fun, multiple_results)


def register_lowering(prim: Primitive, rule: LoweringRule, platform: str | None = None, inline: bool = True,
                      cacheable: bool = True) -> LoweringRule:
    """Sets what compiled programs have in the place of an operation (of one's own: `extend.core.Primitive`).

    A rule other than one of `lower_fun` gets a context and what stands for values, and may make nothing of these but
    calls of Python functions (`emit_python_callback`): NotImplementedError, when such a program is compiled. Rules for
    another `platform` than "cpu" are never asked.

    Raises:
      NotImplementedError: for one of Anima's own operations.
    """
    if platform not in (None, "cpu"):
        return rule
    if not issubclass(type(prim), Primitive):  # `isinstance` counts ours, too
        raise NotImplementedError(f"'{prim.name}' has a lowering of its own, which cannot be replaced.")
    if prim.lowering is not None:
        clear_all()  # programs remember what came of the rule before
    if not isinstance(rule, LoweredFunction):
        prim.lowering = partial(_lower_by_context, prim, rule)
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


def _signature(parameters: str) -> inspect.Signature:
    """The signature of "x, *rest, y=, *, z=": with `=`, a parameter may be left out."""
    out: list[inspect.Parameter] = []
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for word in filter(None, parameters.split(", ")):
        if word.startswith("*"):
            kind = inspect.Parameter.KEYWORD_ONLY
            if word != "*":
                out.append(inspect.Parameter(word[1:], inspect.Parameter.VAR_POSITIONAL))
            continue
        out.append(inspect.Parameter(word.rstrip("="), kind, default=None if word.endswith("=") else inspect._empty))
    return inspect.Signature(out)


def _refusing(name: str, parameters: str = "") -> Callable[..., NoReturn]:
    refuse = refusing(name, _WHY.format(name), "Not available: about objects of MLIR.")
    refuse.__signature__ = _signature(parameters)  # type: ignore[attr-defined]
    return refuse


(ConstantHandler, LoweringParameters, LoweringResult, Mesh, SPMDAxisContext, ShapePolyLoweringState, ShardingContext,
 Token, TokenSet, Value) = _refused(
    "ConstantHandler", "LoweringParameters", "LoweringResult", "Mesh", "SPMDAxisContext", "ShapePolyLoweringState",
    "ShardingContext", "Token", "TokenSet", "Value")
AxisContext = SPMDAxisContext | ShardingContext

aval_to_ir_type = _refusing("aval_to_ir_type", "ctx, aval")
aval_to_ir_types = _refusing("aval_to_ir_types", "ctx, aval")
dense_int_array = _refusing("dense_int_array", "xs")
dense_int_elements = _refusing("dense_int_elements", "xs")
dtype_to_ir_type = _refusing("dtype_to_ir_type", "dtype")
flatten_ir_types = _refusing("flatten_ir_types", "xs")
flatten_ir_values = _refusing("flatten_ir_values", "xs")
i32_attr = _refusing("i32_attr", "i")
i64_attr = _refusing("i64_attr", "i")
ir_attribute = _refusing("ir_attribute", "val")
ir_constant = _refusing("ir_constant", "val, *, const_lowering=, aval=")
ir_constants = _refusing("ir_constants", "val, *, const_lowering=, aval=")
jaxpr_subcomp = _refusing(
    "jaxpr_subcomp",
    "ctx, jaxpr, name_stack, tokens, consts_for_constvars, *args, dim_var_values, const_lowering, "
    "outer_traceback")
lower_jaxpr_to_fun = _refusing(
    "lower_jaxpr_to_fun",
    "ctx, name, jaxpr, effects, *, num_const_args, main_function=, replicated_args=, in_avals, arg_shardings=, "
    "result_shardings=, use_sharding_annotations=, input_output_aliases=, xla_donated_args=, arg_names=, "
    "result_names=, arg_memory_kinds=, result_memory_kinds=, arg_layouts=, result_layouts=, "
    "propagated_out_mem_kinds=")
lower_jaxpr_to_module = _refusing(
    "lower_jaxpr_to_module",
    "module_name, jaxpr, *, num_const_args, in_avals, ordered_effects, platforms, backend, axis_context, "
    "donated_args, replicated_args=, arg_shardings=, result_shardings=, in_layouts=, out_layouts=, arg_names=, "
    "result_names=, num_partitions=, all_default_mem_kind=, input_output_aliases=, propagated_out_mem_kinds=, "
    "lowering_parameters")
make_ir_context = _refusing("make_ir_context")
merge_mlir_modules = _refusing("merge_mlir_modules", "dst_module, sym_name, src_module, dst_symtab=")
module_to_bytecode = _refusing("module_to_bytecode", "module")
module_to_string = _refusing("module_to_string", "module, enable_debug_info=")
register_constant_handler = _refusing("register_constant_handler", "type_, handler_fun")
shape_tensor = _refusing("shape_tensor", "ctx, sizes")
token_type = _refusing("token_type")
unflatten_ir_values_like_types = _refusing("unflatten_ir_values_like_types", "xs, ys")

globals().update(access(__name__, globals()))
