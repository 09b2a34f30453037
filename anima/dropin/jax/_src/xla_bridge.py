"""`jax._src.xla_bridge`: the backend, and which have been started, so that how many devices there are is settled."""

from collections.abc import Iterator, Mapping

from anima.config import device_count_is_fixed
from anima.core.device import Client
from anima.extend.backend import get_backend as get_backend

__all__ = ["_backends", "get_backend"]


class _Backends(Mapping[str, Client]):
    """The CPU's, as soon as somebody has asked for a device."""

    def __getitem__(self, platform: str) -> Client:
        if platform != "cpu" or not self:
            raise KeyError(platform)
        return Client(platform)

    def __iter__(self) -> Iterator[str]:
        return iter(("cpu",) if device_count_is_fixed() else ())

    def __len__(self) -> int:
        return int(device_count_is_fixed())


_backends = _Backends()
