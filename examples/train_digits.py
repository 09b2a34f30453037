#!/usr/bin/env python3
"""Learns to read handwritten digits, and shows what the compiler made of the training step.

    python examples/train_digits.py                 20 seconds; 97 % or more of unseen digits are read right
    python examples/train_digits.py --help

The whole step - forward, backward, Adam - is one function of arrays, compiled once. It is compared with
the same step written by hand in NumPy (digits_numpy.py). Figures are written to out/.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]  # a bare clone: nothing need be installed

import digits_numpy

import anima
import anima.numpy as jnp

DATA = ROOT / "examples" / "data" / "digits.csv.gz"
CLASSES = 10

Params = list[dict[str, Any]]


# ---------------------------------------------------------------- data

class Digits(NamedTuple):
    """Images as rows of 64 numbers in [0, 1], float32, and their labels, int32."""

    images: np.ndarray
    labels: np.ndarray


def load_digits(test_share: float, key: Any) -> tuple[Digits, Digits]:
    """The 1,797 digits, shuffled and cut into a training and a test set."""
    with gzip.open(DATA, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    table = table[np.asarray(anima.random.permutation(key, len(table)))]
    images, labels = table[:, :-1] / 16, table[:, -1].astype(np.int32)
    test = round(test_share * len(table))
    return Digits(images[test:], labels[test:]), Digits(images[:test], labels[:test])


@anima.jit
def with_noise(key: Any, images: Any, strength: Any) -> Any:
    """The images with normal noise: new ones every epoch, so that the network does not learn them by heart."""
    return images + strength * anima.random.normal(key, images.shape)


def batches(data: Digits, size: int, epochs: int, noise: float, key: Any) -> Iterator[tuple[Any, Any]]:
    """(images, labels) in batches of equal size, in a new random order every epoch."""
    for _ in range(epochs):
        key, key_order, key_noise = anima.random.split(key, 3)
        order = np.asarray(anima.random.permutation(key_order, len(data.labels)))
        images = np.asarray(with_noise(key_noise, data.images[order], noise))
        labels = data.labels[order]
        for start in range(0, len(order) - size + 1, size):
            yield images[start:start + size], labels[start:start + size]


# ---------------------------------------------------------------- model and training step

def init_mlp(key: Any, sizes: list[int]) -> Params:
    """Weights of a multi-layer perceptron: He-normal, biases 0."""
    he = anima.nn.initializers.he_normal()
    keys = anima.random.split(key, len(sizes) - 1)
    return [{"w": he(k, (n, m), jnp.float32), "b": jnp.zeros(m)}
            for k, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True)]


def mlp(params: Params, x: Any) -> Any:
    """Scores of the classes, `[batch, 10]`, for images `[batch, 64]`."""
    for layer in params[:-1]:
        x = anima.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss(params: Params, images: Any, labels: Any) -> Any:
    """The mean cross-entropy."""
    scores = anima.nn.log_softmax(mlp(params, images))
    return -jnp.mean(jnp.sum(scores * anima.nn.one_hot(labels, CLASSES), axis=-1))


class Adam(NamedTuple):
    """The state of Adam: step number, running means of the gradient and of its square."""

    count: Any
    mean: Params
    square: Params

    @staticmethod
    def init(params: Params) -> Adam:
        zeros = anima.tree.map(jnp.zeros_like, params)
        return Adam(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(self, grads: Params, params: Params, rate: float) -> tuple[Params, Adam]:
        """New parameters and state. Kingma and Ba, "Adam: a method for stochastic optimization", 2015."""
        b1, b2, eps = 0.9, 0.999, 1e-8
        count = self.count + 1
        mean = anima.tree.map(lambda m, g: b1 * m + (1 - b1) * g, self.mean, grads)
        square = anima.tree.map(lambda s, g: b2 * s + (1 - b2) * g * g, self.square, grads)
        scale1, scale2 = 1 / (1 - b1**count), 1 / (1 - b2**count)
        params = anima.tree.map(lambda p, m, s: p - rate * (m * scale1) / (jnp.sqrt(s * scale2) + eps),
                                params, mean, square)
        return params, Adam(count, mean, square)


def make_step(rate: float) -> Callable[..., tuple[Params, Adam, Any]]:
    """One training step: forward, backward, Adam."""

    def step(params: Params, state: Adam, images: Any, labels: Any) -> tuple[Params, Adam, Any]:
        value, grads = anima.value_and_grad(loss)(params, images, labels)
        params, state = state.update(grads, params, rate)
        return params, state, value

    return step


@anima.jit
def predict(params: Params, images: Any) -> Any:
    """The most likely digit of each image."""
    return jnp.argmax(mlp(params, images), axis=-1)


def accuracy(params: Params, data: Digits) -> float:
    """The share of images read right."""
    return float(np.mean(np.asarray(predict(params, data.images)) == data.labels))


class Trained(NamedTuple):
    """What training leaves: the step is the jitted one, and `compile_ms` what its first compilation took."""

    params: Params
    state: Adam
    step: Any
    compile_ms: float
    losses: list[float]
    training: Digits
    test: Digits


# ---------------------------------------------------------------- what the compiler did

@dataclass
class Report:
    """The numbers printed at the end."""

    accuracy: float
    equations: int
    kernels: int
    compile_ms: float
    step_us: float
    numpy_us: float
    difference: float


def count_equations(jaxpr: Any) -> int:
    """The equations of a program, those of the programs inside it included."""
    total = 0
    for eqn in jaxpr.eqns:
        inner = [p for p in eqn.params.values() if hasattr(p, "eqns")]
        total += sum(map(count_equations, inner)) if inner else 1
    return total


def microseconds(call: Callable[[], Any], seconds: float = 0.5) -> float:
    """The median time of a call."""
    call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def largest_difference(a: Any, b: Any) -> float:
    """The largest difference between two trees of arrays."""
    pairs = zip(anima.tree.leaves(a), anima.tree.leaves(b), strict=True)
    return max(float(np.max(np.abs(np.asarray(x) - np.asarray(y)))) for x, y in pairs)


def examine(trained: Trained, batch: tuple[Any, Any], rate: float) -> Report:
    """Times the step beside the one in NumPy, on the same batch."""
    params, state, step = trained.params, trained.state, trained.step
    traced = anima.make_jaxpr(make_step(rate))(params, state, *batch)
    plain = anima.tree.map(lambda x: np.array(x), (params, tuple(state)))
    ours = step(params, state, *batch)
    theirs = digits_numpy.step(*plain, *batch, rate)
    return Report(
        accuracy=accuracy(params, trained.test), equations=count_equations(traced),
        kernels=step.lower(params, state, *batch).kernel_count, compile_ms=trained.compile_ms,
        step_us=microseconds(lambda: anima.block_until_ready(step(params, state, *batch))),
        numpy_us=microseconds(lambda: digits_numpy.step(*plain, *batch, rate)),
        difference=largest_difference(ours[0], theirs[0]))


def show(report: Report) -> None:
    """Prints the report."""
    print(f"""
Test accuracy                      {report.accuracy:8.2%}

The training step (forward, backward, Adam)
  equations traced                 {report.equations:8d}
  kernels after fusion             {report.kernels:8d}
  time to trace and compile        {report.compile_ms:8.1f} ms   (the first compilation of the process)
  time of a step, compiled         {report.step_us:8.1f} us
  time of a step, NumPy by hand    {report.numpy_us:8.1f} us   ({report.numpy_us / report.step_us:.2f} x)
  largest difference in weights    {report.difference:8.1e}      (after one step, against NumPy)
""")


# ---------------------------------------------------------------- pictures

def draw(losses: list[float], params: Params, test: Digits, folder: Path) -> list[Path]:
    """Writes the loss curve and a grid of test digits with what was read; wrong ones are red."""
    import matplotlib  # only for the figures, which --no-figures leaves out

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.semilogy(losses, lw=0.8, color="tab:blue")
    axes.set(xlabel="step", ylabel="cross-entropy of the batch", title="Training on 8x8 handwritten digits")
    axes.grid(alpha=0.3)
    figure.savefig(folder / "digits_loss.png", dpi=150)
    plt.close(figure)

    read = np.asarray(predict(params, test.images))
    wrong_first = np.argsort(read == test.labels, kind="stable")[:60]
    figure, grid = plt.subplots(6, 10, figsize=(8, 5.6), layout="constrained")
    for axes in grid.flat:
        axes.axis("off")
    for axes, i in zip(grid.flat, wrong_first, strict=False):
        axes.imshow(test.images[i].reshape(8, 8), cmap="gray_r")
        right = read[i] == test.labels[i]
        title = f"{read[i]}" if right else f"{read[i]}, not {test.labels[i]}"
        axes.set_title(title, fontsize=8, color="black" if right else "tab:red")
    figure.suptitle(f"Unseen digits, misread ones first ({int(np.sum(read != test.labels))} of {len(read)})")
    figure.savefig(folder / "digits_predictions.png", dpi=150)
    plt.close(figure)
    return [folder / "digits_loss.png", folder / "digits_predictions.png"]


# ---------------------------------------------------------------- command line

def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", choices=["mlp"], default="mlp", help="mlp: a multi-layer perceptron")
    parser.add_argument("--hidden", type=int, nargs="*", default=[128, 64], help="sizes of the hidden layers")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64, help="images a step")
    parser.add_argument("--rate", type=float, default=1e-3, help="Adam's learning rate")
    parser.add_argument("--noise", type=float, default=0.15, help="standard deviation added to the pixels")
    parser.add_argument("--test-share", type=float, default=0.2, help="share of the images held back for testing")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights and the order of batches")
    parser.add_argument("--out", type=Path, default=ROOT / "out", help="folder of the figures")
    parser.add_argument("--no-figures", action="store_true")
    parser.add_argument("--no-progress", action="store_true")
    return parser.parse_args(arguments)


def train(options: argparse.Namespace) -> Trained:
    """Trains the network."""
    key_split, key_weights, key_order = anima.random.split(anima.random.key(options.seed), 3)
    training, test = load_digits(options.test_share, key_split)
    params = init_mlp(key_weights, [64, *options.hidden, CLASSES])
    state = Adam.init(params)
    step = anima.jit(make_step(options.rate))
    start = time.perf_counter()
    step.lower(params, state, training.images[:options.batch], training.labels[:options.batch]).compile()
    compile_ms = 1e3 * (time.perf_counter() - start)
    total = options.epochs * (len(training.labels) // options.batch)
    losses = []
    with tqdm(total=total, unit=" steps", disable=options.no_progress) as bar:
        for batch in batches(training, options.batch, options.epochs, options.noise, key_order):
            params, state, value = step(params, state, *batch)
            losses.append(value)
            bar.update()
            if len(losses) % 100 == 0:
                bar.set_postfix_str(f"loss {float(value):.4f}")
    return Trained(params, state, step, compile_ms, [float(x) for x in losses], training, test)


def main(arguments: list[str] | None = None) -> Report:
    options = parse(arguments)
    trained = train(options)
    batch = trained.training.images[:options.batch], trained.training.labels[:options.batch]
    report = examine(trained, batch, options.rate)
    show(report)
    if not options.no_figures:
        for path in draw(trained.losses, trained.params, trained.test, options.out):
            print(f"Written: {os.path.relpath(path)}")
    return report


if __name__ == "__main__":
    main()
