"""Functions that say how they are cut into parts for several devices: on one device, they are called as they are.

    @custom_partitioning
    def f(x): ...
    f.def_partition(partition=..., sharding_rule="i j -> i")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

from anima import tree
from anima.api.tracing import make_jaxpr
from anima.core.jaxpr import ClosedJaxpr
from anima.core.stage import close, eval_jaxpr
from anima.names import access
from anima.transforms.composed import Composed

BATCHING = "…"  # any number of axes, in a rule


class CompoundFactor(tuple[str, ...]):
    """An axis that is made of several factors, the first one with the longest steps; ValueError for fewer than two."""

    __slots__ = ()

    def __new__(cls, *factors: str) -> CompoundFactor:
        if len(factors) < 2:
            raise ValueError("A compound factor should contain at least two factors")
        for factor in factors:
            if not isinstance(factor, str):
                raise ValueError(f"Each element of CompoundFactor must be a str, but got {type(factor)}")
        return super().__new__(cls, factors)


class ArrayMapping(tuple[Any, ...]):
    """The factors of each axis of an array; ValueError for what is neither a name nor a `CompoundFactor`."""

    __slots__ = ()

    def __new__(cls, *dim_mappings: str | CompoundFactor) -> ArrayMapping:
        for mapping in dim_mappings:
            if not isinstance(mapping, (str, CompoundFactor)):
                raise ValueError("Each element of ArrayMapping must be a str or CompoundFactor, but got "
                                 f"{type(mapping)}")
        return super().__new__(cls, dim_mappings)


class SdyShardingRule:
    """Which axes of operands and results go together: named by factors, whose sizes are given for parts of axes.

    ValueError for the size of a factor that is a whole axis, or of one that no axis has; for none of a factor that is a
    part of axes alone; for a factor of two kinds. TypeError for sizes that are no whole numbers.
    """

    def __init__(self, operand_mappings: Sequence[ArrayMapping], result_mappings: Sequence[ArrayMapping], *,
                 reduction_factors: Sequence[str] = (), need_replication_factors: Sequence[str] = (),
                 permutation_factors: Sequence[str] = (), **factor_sizes: int) -> None:
        axes = [axis for mapping in (*operand_mappings, *result_mappings) for axis in mapping]
        whole = {axis for axis in axes if isinstance(axis, str)}
        parts = {factor for axis in axes if not isinstance(axis, str) for factor in axis}
        for name, size in factor_sizes.items():
            if not isinstance(size, int):
                raise TypeError(f"The size of factor {name} must be an int, but got {size!r}")
            if name in whole:
                raise ValueError(f"Factor {name} represents a whole dimension; do not specify its size")
            if name not in parts:
                raise ValueError(f"Factor {name} is not used in the rule")
        for name in sorted(parts - whole - {*factor_sizes}):
            raise ValueError(f"Factor {name} is only used in compound factors; specify its size")
        kinds = (*reduction_factors, *need_replication_factors, *permutation_factors)
        for name in kinds:
            if name not in whole | parts:
                raise ValueError(f"Factor {name} is not used in the rule")
            if kinds.count(name) > 1:
                raise ValueError(f"Factor {name} can be named once, as one of reduction, replication or permutation")
        self.operand_mappings, self.result_mappings = tuple(operand_mappings), tuple(result_mappings)
        self.reduction_factors, self.permutation_factors = tuple(reduction_factors), tuple(permutation_factors)
        self.need_replication_factors, self.factor_sizes = tuple(need_replication_factors), factor_sizes

    def __repr__(self) -> str:
        return f"SdyShardingRule({self.operand_mappings}, {self.result_mappings}, {self.factor_sizes})"


_TOKEN = re.compile(r"\.\.\.[A-Za-z0-9_]*|[A-Za-z][A-Za-z0-9_]*|\S")


def _read_mapping(text: str) -> ArrayMapping:
    axes: list[str | CompoundFactor] = []
    parts: list[str] | None = None  # of an axis in brackets
    for token in _TOKEN.findall(text):
        if token[0].isalpha() and token.isascii():
            (axes if parts is None else parts).append(token)
        elif token.startswith("...") and not axes and parts is None:
            axes.append(BATCHING + token[3:])
        elif token == "(" and parts is None:
            parts = []
        elif token == ")" and parts is not None:
            axes.append(CompoundFactor(*parts))
            parts = None
        else:
            raise ValueError(f"{token!r} cannot stand where it does in {text!r}, a part of a sharding rule: names of "
                             "factors start with a letter, brackets hold factors, and '...' comes first.")
    if parts is not None:
        raise ValueError(f"Brackets are not balanced in {text!r}, a part of a sharding rule.")
    return ArrayMapping(*axes)


def _read_rule(rule: Any, **factors: Any) -> SdyShardingRule:
    """The rule that a text as "i j, j k -> i k" stands for."""
    if not isinstance(rule, str):
        raise TypeError(f"A sharding rule must be a str, but got {type(rule)}")
    sides = rule.split("->")
    if len(sides) != 2:
        raise ValueError(f"There is no -> in rule, or more than one: {rule!r}")
    operands, results = ([_read_mapping(part) for part in side.split(",")] for side in sides)
    return SdyShardingRule(operands, results, **factors)


def _run(*args: Any, call: ClosedJaxpr, **params: Any) -> list[Any]:
    return eval_jaxpr(call.jaxpr, call.consts, *args)


custom_partitioning_p = Composed("custom_partitioning", _run, multiple_results=True)


class custom_partitioning:
    """`fun`, which says how it is cut into parts (`def_partition`); `static_argnums` are arguments taken by value.

    On one device nothing is cut: it is `fun`, as one operation in programs, with derivatives and batches of its own.
    """

    def __init__(self, fun: Callable[..., Any], static_argnums: Sequence[int] = ()) -> None:
        self.fun, self.static_argnums = fun, tuple(static_argnums)
        self.rules: dict[str, Any] = {}
        update_wrapper(self, fun)

    def def_partition(self, partition: Callable[..., Any],
                      infer_sharding_from_operands: Callable[..., Any] | None = None,
                      propagate_user_sharding: Callable[..., Any] | None = None, decode_shardings: bool = True,
                      sharding_rule: Any = None, *, reduction_factors: Sequence[str] = (),
                      need_replication_factors: Sequence[str] = (), permutation_factors: Sequence[str] = (),
                      **factor_sizes: int) -> None:
        """Says how `fun` is cut into parts: what several devices would ask.

        ValueError for factors beside a `SdyShardingRule`, which has its own, and for a rule that cannot be read.
        """
        factors = (reduction_factors, need_replication_factors, permutation_factors, factor_sizes)
        if any(factors) and not isinstance(sharding_rule, str):
            raise ValueError("Factors and their sizes go with a sharding_rule that is a string.")
        if not (sharding_rule is None or callable(sharding_rule) or isinstance(sharding_rule, SdyShardingRule)):
            _read_rule(sharding_rule, reduction_factors=reduction_factors, permutation_factors=permutation_factors,
                       need_replication_factors=need_replication_factors, **factor_sizes)
        self.rules = {"partition": partition, "infer_sharding_from_operands": infer_sharding_from_operands,
                      "propagate_user_sharding": propagate_user_sharding, "decode_shardings": decode_shardings,
                      "sharding_rule": sharding_rule}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.rules:
            raise AttributeError("custom_partitioning: def_partition says how the function is cut into parts; call it "
                                 "first.")
        closed, shapes = make_jaxpr(self.fun, self.static_argnums, return_shape=True)(*args, **kwargs)
        closed, consts = close(closed.jaxpr, closed.consts)
        dynamic = [x for k, x in enumerate(args) if k not in {n % len(args) for n in self.static_argnums}]
        leaves = tree.leaves((tuple(dynamic), kwargs))
        outs = custom_partitioning_p.bind(*consts, *leaves, call=closed, **self.rules)
        return tree.unflatten(tree.structure(shapes), outs)

globals().update(access(__name__, globals()))
