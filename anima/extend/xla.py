"""Changes to XLA's programs, of which there are none."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from anima.names import access


class PipelineStage(enum.Enum):
    """Where XLA would change a program."""

    PRE_SCHEDULER = "pre_scheduler"
    POST_SCHEDULER = "post_scheduler"


def register_hlo_module_transformation(callback: Callable[..., Any], *, name: str,
                                       stage: PipelineStage = PipelineStage.PRE_SCHEDULER,
                                       platforms: Sequence[str] | None = None) -> NoReturn:
    """Not available: programs are not compiled by XLA."""
    raise NotImplementedError(f"{name}: programs are not compiled by XLA, and are no HLO modules.")


def clear_hlo_module_transformation(name: str, stage: PipelineStage = PipelineStage.PRE_SCHEDULER,
                                    platforms: Sequence[str] | None = None) -> None:
    """ValueError: no change has been registered, of whatever name."""
    raise ValueError(f"No transformation {name!r} is registered: programs are not compiled by XLA.")

globals().update(access(__name__, globals()))
