"""Which frames errors show: Anima hides its own, and those of files that ask for it."""

from collections.abc import MutableSequence
from typing import Any

from anima.errors import (
    api_boundary as api_boundary,
    hidden_files,
    hide_files,
    is_internal,
    show_files,
    without_internal as filter_traceback,
)
from anima.extend.source_info_util import register_exclusion as register_exclusion

__all__ = ["_exclude_paths", "api_boundary", "filter_traceback", "include_frame", "register_exclusion"]


class _Hidden(MutableSequence[str]):
    """The files that are hidden besides Anima's: those that are put here are, those that are taken out are not."""

    def __len__(self) -> int:
        return len(hidden_files())

    def __getitem__(self, index: Any) -> Any:
        return hidden_files()[index]

    def __setitem__(self, index: Any, path: Any) -> None:
        del self[index]
        self.insert(index, path)

    def __delitem__(self, index: Any) -> None:
        show_files(self[index])

    def insert(self, index: int, path: str) -> None:
        hide_files(path)


_exclude_paths = _Hidden()


def include_frame(frame: Any) -> bool:
    """Whether errors show a frame."""
    return not is_internal(frame.f_code)
