"""Random programs on meshes of 4 devices, values and gradients: into a file, from one process or four."""

import sys

import numpy as np

import anima
import anima.numpy as jnp
from anima.experimental.multihost_utils import process_allgather
from tests.laws.device_programs import draw

if "--mpi" in sys.argv:
    anima.distributed.initialize()

found = {}
for number in range(150):
    program = draw(number)
    if np.prod(list(program.sizes.values())) != 4 or not program.results:
        continue
    mapped = program.mapped()

    def loss(*args, mapped=mapped):
        return sum(jnp.sum(jnp.sin(y)) for y in mapped(*args))

    for name, f in (("value", mapped), ("gradient", anima.grad(loss, tuple(range(len(program.args)))))):
        for k, y in enumerate(anima.jit(f)(*program.args)):
            found[f"{number} {name} {k}"] = np.asarray(process_allgather(y, tiled=True))
if anima.process_index() == 0:
    np.savez(sys.argv[1], **found)
