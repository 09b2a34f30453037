"""Arrays between processes that do not compute together: refused. Processes that do exchange them by collectives."""

from __future__ import annotations

from typing import Any, NoReturn

from anima.names import access


def start_transfer_server(client: Any, address: str = "", transport_addresses: Any = (), *args: Any,
                          **kwargs: Any) -> NoReturn:
    """NotImplementedError: there is no server of arrays."""
    raise NotImplementedError("transfer.start_transfer_server: Anima has no server that other programs pull arrays "
                              "from. Processes that compute together (docs/devices.md) exchange arrays by collectives, "
                              "device_put and multihost_utils.process_allgather; others, by "
                              "experimental.array_serialization.")


globals().update(access(__name__, globals()))
