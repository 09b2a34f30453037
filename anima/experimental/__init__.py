"""What may still change: `io_callback`, and `jet` (Taylor mode) in the module of that name."""

from anima.api.effects import io_callback as io_callback
from anima.experimental import jet as jet
