"""One mistake in one of 3 processes, by name: each ends the job with an error that names the process and the line."""

import sys
import time

import numpy as np

import anima
import anima.numpy as jnp
from anima import NamedSharding, P
from anima.experimental import multihost_utils
from anima.sharding import AxisType

anima.distributed.initialize()
me = anima.process_index()
mesh = anima.make_mesh((3,), ("x",), axis_types=(AxisType.Auto,))
x = anima.device_put(np.arange(12.0), NamedSharding(mesh, P("x")))


@anima.jit
def total(x):
    return x.sum()


@anima.jit
def double(x):
    return (2 * x).sum()


@anima.jit
def table(x):
    return (x * jnp.ones((3, 1))).sum(1)


total(x)
match sys.argv[1]:
    case "exception":
        if me == 1:
            raise ValueError("of one process alone")
        total(x)
    case "other program":
        (double if me == 1 else total)(x)
        time.sleep(5)
        total(x)
    case "other order":
        for f in (total, table) if me == 1 else (table, total):
            f(x)
    case "later":
        for _ in range(3000):
            total(x), double(x)
        (double if me == 1 else total)(x)
        time.sleep(2)
    case "at the end":
        (double if me == 1 else total)(x)
    case "one call too many":
        for _ in range(2 + (me == 0)):
            total(x)
    case "exit":
        if me == 1:
            sys.exit(3)
        total(x)
    case "killed":
        if me == 1:
            import os
            os.kill(os.getpid(), 9)
        total(x)
    case "other lengths":
        total(anima.device_put(np.arange(12.0 + 3 * me), NamedSharding(mesh, P("x"))))
    case "other mesh":
        turned = anima.sharding.Mesh(np.array(anima.devices())[:: -1 if me == 1 else 1], "x")
        total(anima.device_put(np.arange(12.0), NamedSharding(turned, P("x"))))
    case "other parts":
        multihost_utils.process_allgather(np.ones(2 + me))
    case "sync":
        multihost_utils.sync_global_devices("one" if me == 1 else "another")
print("process", me, "has ended as if nothing were")
