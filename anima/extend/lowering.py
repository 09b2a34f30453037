"""Lowering to MLIR, of which there is none: `anima.interpreters.mlir` says what there is instead."""

from __future__ import annotations

from typing import Any, NoReturn

from anima.interpreters.mlir import LoweringRuleContext as LoweringRuleContext
from anima.names import access

upstream_dialects: tuple[str, ...] = ()  # of MLIR that programs are written in


class JaxIrContext:
    """The context of MLIR's objects: NotImplementedError, as there are none."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("JaxIrContext: programs are compiled without MLIR here.")

globals().update(access(__name__, globals()))
