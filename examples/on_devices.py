#!/usr/bin/env python3
"""Trains one network on several devices in three ways: its batch, its matrices or its blocks are cut.

    python examples/on_devices.py                       5 seconds; the weights are those that one device computes
    python examples/on_devices.py --steps 50
    mpirun -n 4 python examples/on_devices.py --mpi     the same in 4 processes, each of which has one device

Otherwise the devices are 8 of one CPU. Of each way, the program says how many bytes a device sends to others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]  # a bare clone: nothing need be installed

import numpy as np
from train_digits import CLASSES, load_digits

import anima
import anima.numpy as jnp
from anima import NamedSharding, P, lax

COUNT, BLOCKS, WIDTH, HIDDEN, PIECES = 8, 8, 32, 64, 4
Params = dict[str, Any]
Step = Callable[[Params, Any, Any], tuple[Params, Any]]


def init(key: Any) -> Params:
    """A layer from images to `WIDTH` numbers, blocks, each of two matrices, and a layer to the scores."""
    shapes = {"first": (64, WIDTH), "up": (BLOCKS, WIDTH, HIDDEN), "down": (BLOCKS, HIDDEN, WIDTH),
              "last": (WIDTH, CLASSES)}
    keys = anima.random.split(key, len(shapes))
    return {name: anima.random.normal(k, shape) / (2 * np.sqrt(shape[-2]))
            for k, (name, shape) in zip(keys, shapes.items(), strict=True)}


def block(h: Any, up: Any, down: Any) -> Any:
    """What a block adds to its operand, `[batch, WIDTH]`."""
    return h + jnp.tanh(h @ up) @ down


def blocks(h: Any, up: Any, down: Any) -> Any:
    """All blocks, one after the other."""
    return lax.scan(lambda h, w: (block(h, *w), None), h, (up, down))[0]


def loss(params: Params, images: Any, labels: Any, middle: Callable[..., Any]) -> Any:
    """The mean cross-entropy, with `middle` for the blocks."""
    h = middle(images @ params["first"], params["up"], params["down"])
    scores = anima.nn.log_softmax(h @ params["last"])
    return -jnp.mean(jnp.sum(scores * anima.nn.one_hot(labels, CLASSES), axis=-1))


def make_step(middle: Callable[..., Any] = blocks, rate: float = 0.05) -> Step:
    """A step of gradient descent."""
    def step(params: Params, images: Any, labels: Any) -> tuple[Params, Any]:
        value, grads = anima.value_and_grad(loss)(params, images, labels, middle)
        return anima.tree.map(lambda p, g: p - rate * g, params, grads), value

    return step


# ---------------------------------------------------------------- the three ways

def data_parallel(mesh: Any) -> Any:
    """Each device has a part of the batch, and all weights."""
    whole, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("x"))
    return anima.jit(make_step(), in_shardings=(whole, cut, cut))


def tensor_parallel(mesh: Any) -> Any:
    """Each device has columns of the first matrix of each block, and the same rows of the second."""
    whole = NamedSharding(mesh, P())
    places = {"first": whole, "up": NamedSharding(mesh, P(None, None, "x")),
              "down": NamedSharding(mesh, P(None, "x")), "last": whole}
    return anima.jit(make_step(), in_shardings=(places, whole, whole), out_shardings=(places, whole))


def pipeline(mesh: Any) -> Any:
    """Each device has some of the blocks; pieces of the batch go from one to the next (Huang et al., "GPipe", 2019)."""
    def stages(h: Any, up: Any, down: Any) -> Any:
        here, last = lax.axis_index("x"), lax.axis_size("x") - 1
        pieces = h.reshape(PIECES, -1, WIDTH)

        def tick(given: Any, piece: Any) -> tuple[Any, Any]:
            made = blocks(jnp.where(here == 0, piece, given), up, down)
            return lax.ppermute(made, "x", [(k, k + 1) for k in range(last)]), made

        waiting = jnp.concatenate([pieces, jnp.zeros((last, *pieces.shape[1:]))])
        start = lax.pcast(jnp.zeros_like(pieces[0]), "x", to="varying")
        made = lax.scan(tick, start, waiting)[1]
        return lax.psum(jnp.where(here == last, made[last:], 0.0), "x").reshape(h.shape)

    middle = anima.shard_map(stages, mesh=mesh, in_specs=(P(), P("x"), P("x")), out_specs=P())
    cut, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    places = {"first": whole, "up": cut, "down": cut, "last": whole}
    return anima.jit(make_step(middle), in_shardings=(places, whole, whole), out_shardings=(places, whole))


WAYS: dict[str, Callable[[Any], Any]] = {"data": data_parallel, "tensor": tensor_parallel, "pipeline": pipeline}


class Report(NamedTuple):
    """Of a way: the largest difference of a weight from that of one device, the last loss, and the bytes that a device
    sends in a step."""

    difference: float
    loss: float
    sent: float


def train(step: Any, params: Params, data: Any, steps: int) -> tuple[Params, float]:
    """The weights and the loss after some steps."""
    value = np.nan
    for k in range(steps):
        images, labels = (x[k % 20 * 64:][:64] for x in data)
        params, value = step(params, images, labels)
    return params, float(value)


def main(argv: list[str] | None = None) -> dict[str, Report]:
    """Trains in each way and compares the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps of training")
    parser.add_argument("--mpi", action="store_true", help="one device in each of the processes that mpirun started")
    args = parser.parse_args(argv)
    steps = args.steps
    if args.mpi:
        anima.distributed.initialize()
    say = print if anima.process_index() == 0 else lambda *text: None
    count = anima.device_count() if args.mpi else COUNT
    mesh = anima.make_mesh((count,), ("x",), axis_types=(anima.sharding.AxisType.Auto,))
    data, _ = load_digits(0.2, anima.random.key(0))
    start = init(anima.random.key(1))
    expected, value = train(anima.jit(make_step()), start, data, steps)
    say(f"one device: loss {value:.4f}")
    reports = {}
    for name, way in WAYS.items():
        step = way(mesh)
        params, value = train(step, start, data, steps)
        apart = max(float(jnp.max(jnp.abs(a - b))) for a, b in zip(*map(anima.tree.leaves, (params, expected)),
                                                                  strict=True))
        sent = step.lower(start, data.images[:64], data.labels[:64]).partitioned.bytes_sent
        reports[name] = Report(apart, value, sent)
        say(f"{name}: loss {value:.4f}, weights within {apart:.1e} of those of one device; each of {count} "
            f"devices sends {sent:,.0f} bytes a step")
    return reports


if __name__ == "__main__":
    if "--mpi" not in sys.argv:
        anima.config.update("anima_num_cpu_devices", COUNT)
    main()
