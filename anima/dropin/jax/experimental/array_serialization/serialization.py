"""The interface of what writes arrays while the program goes on; libraries ask whether something is one."""

from __future__ import annotations

import abc
from typing import Any


class GlobalAsyncCheckpointManagerBase(abc.ABC):
    """Writes arrays to storage and reads them, while the program goes on."""

    @abc.abstractmethod
    def check_for_errors(self) -> None:
        """Raises what went wrong in the background."""

    @abc.abstractmethod
    def wait_until_finished(self) -> None:
        """Waits until everything is written."""

    @abc.abstractmethod
    def serialize(self, arrays: Any, tensorstore_specs: Any, *, on_commit_callback: Any) -> Any:
        """Begins to write arrays."""

    @abc.abstractmethod
    def deserialize(self, shardings: Any, tensorstore_specs: Any, global_shapes: Any = None,
                    dtypes: Any = None) -> Any:
        """Reads arrays."""
