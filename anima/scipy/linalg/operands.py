"""What all functions of matrices do with their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from anima.api.eager import compiled
from anima.numpy.creation import of_sequences

F = TypeVar("F", bound=Callable[..., Any])


def of_matrices(fun: F) -> F:
    """`fun`, compiled: arguments that are annotated as arrays are the program's, which may be nested lists and tuples
    of numbers, too."""
    parameters = inspect.signature(fun).parameters.values()
    return of_sequences(compiled(fun, [p.name for p in parameters if "ArrayLike" not in str(p.annotation)]))
