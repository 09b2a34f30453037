"""Which frames errors show: Anima hides its own, and those of files that ask for it."""

from typing import Any

from anima.errors import api_boundary as api_boundary, is_internal, without_internal as filter_traceback
from anima.extend.source_info_util import register_exclusion as register_exclusion

__all__ = ["api_boundary", "filter_traceback", "include_frame", "register_exclusion"]


def include_frame(frame: Any) -> bool:
    """Whether errors show a frame."""
    return not is_internal(frame.f_code)
