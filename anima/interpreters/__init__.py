"""The transformations, for those who give primitives rules from outside: `ad`, `batching`, `partial_eval`, and `mlir`,
where compiled programs get theirs."""

from anima.interpreters import (
    ad as ad,
    batching as batching,
    mlir as mlir,
    partial_eval as partial_eval,
    pxla as pxla,
    xla as xla,
)
