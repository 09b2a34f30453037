"""Programs of several processes: `mpirun -n 4 python train.py`.

    import anima
    anima.distributed.initialize()          the first thing in train.py
    anima.devices()                         [CpuDevice(id=0), ..., CpuDevice(id=3)]: one of each process

Each process runs the same program; arrays that lie on a mesh of these devices are cut over the processes, and jitted
functions of them exchange what they need, through MPI. See docs/devices.md.
"""

from __future__ import annotations

from typing import Any

from anima import errors
from anima.config import device_count_is_fixed, fixed_device_count
from anima.core import processes
from anima.core.device import join
from anima.names import access
from anima.util import lazy_module

_mpi = lazy_module("anima.distributed.mpi")
_over_processes = lazy_module("anima.api.over_processes")


@errors.api_boundary
def initialize(coordinator_address: str | None = None, num_processes: int | None = None,
               process_id: int | None = None, local_device_ids: Any = None,
               cluster_detection_method: str | None = None, initialization_timeout: int = 300,
               heartbeat_timeout_seconds: int = 100, shutdown_timeout_seconds: int = 300,
               coordinator_bind_address: str | None = None, slice_index: int | None = None,
               partition_index: int | None = None) -> None:
    """Has this process compute together with the others that `mpirun` started.

    Args:
      num_processes, process_id: how many there are, and which one this is: what MPI says, if they are given.
      coordinator_address, local_device_ids, cluster_detection_method, initialization_timeout,
        heartbeat_timeout_seconds, shutdown_timeout_seconds, coordinator_bind_address, slice_index, partition_index:
        of no effect: MPI knows where processes are, and each has one device.

    Raises:
      ImportError: without mpi4py.
      RuntimeError: where it has been called, and where devices have been asked for already.
      ValueError: where MPI knows of other numbers than are given.
      NotImplementedError: for several devices in one process.
    """
    if is_initialized():
        raise RuntimeError("anima.distributed.initialize should only be called once.")
    if device_count_is_fixed():
        raise RuntimeError("anima.distributed.initialize() must be called before any computation is executed, and "
                           "before anything asks for devices. Fix: make it the first thing that the program does.")
    if fixed_device_count() > 1:
        raise NotImplementedError("anima.distributed: each process has one device, whose threads use all of its cores; "
                                  f"got anima_num_cpu_devices={fixed_device_count()}. Fix: mpirun -n with as "
                                  "many processes.")
    try:
        here = _mpi.Processes()
    except ImportError as error:
        raise ImportError("anima.distributed goes through MPI: pip install 'anima[mpi]' (mpi4py, and an MPI such as "
                          f"that of `pip install mpich`). {error}") from error
    for name, given, found in (("num_processes", num_processes, here.count), ("process_id", process_id, here.index)):
        if given not in (None, found):
            raise ValueError(f"anima.distributed.initialize: {name} is {given}, and MPI says {found}. Fix: start the "
                             f"program by `mpirun -n {num_processes or 4} python ...`, and leave {name} out.")
    if here.count > 1:
        _over_processes.install()
        join(here.index)
        processes.here = here
        here.start()
    _initialized.append(here)


def is_initialized() -> bool:
    """Whether `initialize` has been called."""
    return bool(_initialized)


def shutdown() -> None:
    """Waits until all processes are here, and parts from them; nothing if `initialize` was not called. What ends with
    the program does so by itself."""
    if processes.here.count > 1:
        processes.here.finish()


_initialized: list[Any] = []

globals().update(access(__name__, globals()))
