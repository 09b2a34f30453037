"""`jax._src.checkify`: the base of errors, and what stands for results in annotations; else the public module."""

from typing import TypeVar

from anima.control.checks import JaxException as JaxException

Out = TypeVar("Out")
