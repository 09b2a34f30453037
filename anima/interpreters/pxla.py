"""Options of compilation across devices: there is one device, and nothing to choose."""

from __future__ import annotations

from typing import Any, NoReturn

from anima.names import access


def create_compile_options(computation: Any, tuple_args: Any, allow_prop_to_inputs: Any, allow_prop_to_outputs: Any,
                           backend: Any, np_dev: Any, compiler_options: Any) -> NoReturn:
    """Not available: programs are not compiled by XLA."""
    raise NotImplementedError("create_compile_options: programs are not compiled by XLA, and have none of its options.")

globals().update(access(__name__, globals()))
