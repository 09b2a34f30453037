"""`jax._src.public_test_util`: the public checks, and the comparison that they make."""

from typing import Any

from anima import test_util
from anima.test_util import *  # noqa: F403


def check_close(xs: Any, ys: Any, atol: float | None = None, rtol: float | None = None, err_msg: str = "") -> None:
    """AssertionError unless the leaves of two trees agree, to the tolerances of their types if none are given."""
    test_util.check_close(xs, ys, atol, rtol, err_msg)
