"""`jax.experimental.colocated_python`: Python functions run on the host of the devices, which is this process.

    >>> colocated_python(lambda x: x + 1)(1)
    2
"""

from anima.dropin.jax.experimental.colocated_python.api import (
    colocated_cpu_devices as colocated_cpu_devices,
    colocated_python as colocated_python,
    colocated_python_class as colocated_python_class,
)
