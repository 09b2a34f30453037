"""`jax._src.distributed`: which of the processes this one is. MPI brings them together: there is no service of
one's own, and no client of it."""

from anima.core import processes


class State:
    """What `anima.distributed` knows."""

    client = service = coordinator_address = None

    @property
    def process_id(self) -> int:
        """Which process this is."""
        return processes.here.index

    @property
    def num_processes(self) -> int:
        """How many there are."""
        return processes.here.count


global_state = State()
