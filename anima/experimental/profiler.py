"""Profiles of XLA's: refused. Anima's own are files of events, which `anima.profiler.ProfileData` reads."""

from __future__ import annotations

from typing import NoReturn

from anima.names import access


def get_profiled_instructions_proto(tensorboard_dir: str) -> NoReturn:
    """NotImplementedError: there are no instructions of XLA's in Anima's traces."""
    raise NotImplementedError(f"profiler.get_profiled_instructions_proto({tensorboard_dir!r}): that is about "
                              "XLA's instructions. anima.profiler.ProfileData.from_file reads what "
                              "anima.profiler.trace wrote.")


globals().update(access(__name__, globals()))
