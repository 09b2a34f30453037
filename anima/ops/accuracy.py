"""How accurate functions are asked to be; what that means here: every result is within 2 ulp already."""

from __future__ import annotations

import enum
from typing import Any


class AccuracyMode(enum.Enum):
    """What a function may trade for speed: nothing is traded here."""

    DEFAULT = 0
    HIGHEST = 1


class Tolerance:
    """Errors that are allowed: absolute, relative, in units of the last place; ValueError for negative ones or none."""

    def __init__(self, atol: float = 0.0, rtol: float = 0.0, ulps: int = 0):
        if min(atol, rtol, ulps) < 0:
            raise ValueError("Tolerances must be non-negative.")
        if not (atol or rtol or ulps):
            raise ValueError("At least one of atol, rtol, or ulps must be set.")
        self.atol, self.rtol, self.ulps = atol, rtol, ulps

    def __repr__(self) -> str:
        return f"Tolerance(atol={self.atol}, rtol={self.rtol}, ulps={self.ulps})"


def check_accuracy(accuracy: Any) -> None:
    """NotImplementedError for what does not say how accurate a function is to be."""
    if not (accuracy is None or isinstance(accuracy, (AccuracyMode, Tolerance))):
        raise NotImplementedError(f"Accuracy {accuracy!r} not supported: give an AccuracyMode or a Tolerance.")
