"""Writes and reads a checkpoint on as many devices as there are, cut as on no other number of them.

    mpirun -n 4 python checkpoints.py FOLDER --mpi --save        python checkpoints.py FOLDER
"""

import sys

import numpy as np

import anima
import anima.numpy as jnp
from anima import NamedSharding, P
from anima.experimental.array_serialization import pytree_serialization as checkpoints
from anima.sharding import AxisType

if "--mpi" in sys.argv:
    anima.distributed.initialize()
count = anima.device_count()
mesh = anima.make_mesh((max(1, count // 2), min(2, count)), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
TREE = {"w": jnp.arange(96.0).reshape(8, 12), "bf16": [jnp.arange(8).astype(jnp.bfloat16), 3.0, None],
        "complex": jnp.arange(8) * (1 + 2j), "keys": anima.random.split(anima.random.key(1), 8),
        "none": jnp.zeros((0, 3)), "scalar": jnp.float32(2.5), "bools": jnp.arange(8) > 3}
SPECS = {"w": P("x", "y"), "bf16": [P("y"), P(), None], "complex": P(("y", "x")), "keys": P("x"), "none": P(),
         "scalar": P(), "bools": P("x")}


def numbers(x):
    x = anima.random.key_data(x) if x.dtype == TREE["keys"].dtype else x
    return np.asarray(x if x.is_fully_addressable else anima.device_put(x, NamedSharding(mesh, P())))


if "--save" in sys.argv:
    put = anima.tree.map(lambda x, s: anima.device_put(x, NamedSharding(mesh, s)), TREE, SPECS)
    checkpoints.save(put, sys.argv[1])
other = anima.tree.map(lambda x: NamedSharding(mesh, P("y", "x") if x.ndim == 2 and x.size else P("y") if x.ndim == 1
                                               else P()), anima.tree.map(jnp.asarray, {**TREE, "keys": jnp.zeros(8)}))
for shardings in (None, NamedSharding(mesh, P()), other):
    found = checkpoints.load(sys.argv[1], shardings)
    assert anima.tree.structure(found) == anima.tree.structure(TREE)
    for x, expected in zip(anima.tree.leaves(found), map(jnp.asarray, anima.tree.leaves(TREE)), strict=True):
        assert x.dtype == expected.dtype and x.shape == expected.shape, (x, expected)
        np.testing.assert_array_equal(numbers(x), numbers(expected))
print("all well")
