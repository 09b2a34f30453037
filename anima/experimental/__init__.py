"""What may still change: so far `io_callback`."""

from anima.api.effects import io_callback as io_callback
