"""The training step of train_digits.py by hand, in NumPy: what one writes without a compiler of derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

Params = list[dict[str, np.ndarray]]


def loss_and_grads(params: Params, images: np.ndarray, labels: np.ndarray) -> tuple[np.float32, Params]:
    """The mean cross-entropy of a perceptron with relu layers, and its gradient."""
    inputs = [images]
    for layer in params[:-1]:
        inputs.append(np.maximum(inputs[-1] @ layer["w"] + layer["b"], 0))
    scores = inputs[-1] @ params[-1]["w"] + params[-1]["b"]
    scores -= scores.max(axis=-1, keepdims=True)
    exps = np.exp(scores)
    sums = exps.sum(axis=-1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.mean(scores[rows, labels] - np.log(sums[:, 0]))

    delta = exps / sums
    delta[rows, labels] -= 1
    delta /= np.float32(len(labels))
    grads = []
    for layer, x in zip(reversed(params), reversed(inputs), strict=True):
        grads.append({"w": x.T @ delta, "b": delta.sum(axis=0)})
        if x is not images:
            delta = (delta @ layer["w"].T) * (x > 0)
    return loss, grads[::-1]


def step(params: Params, state: tuple[Any, Params, Params], images: np.ndarray, labels: np.ndarray,
         rate: float) -> tuple[Params, tuple[Any, Params, Params], np.float32]:
    """Forward, backward, Adam; returns new arrays, as the compiled step does."""
    b1, b2, eps = np.float32(0.9), np.float32(0.999), np.float32(1e-8)
    count, means, squares = state
    loss, grads = loss_and_grads(params, images, labels)
    count = count + 1
    scale1 = np.float32(1 / (1 - b1 ** np.float32(count)))
    scale2 = np.float32(1 / (1 - b2 ** np.float32(count)))
    new: tuple[Params, Params, Params] = ([], [], [])
    for layer, grad, mean, square in zip(params, grads, means, squares, strict=True):
        m = {k: b1 * mean[k] + (1 - b1) * grad[k] for k in layer}
        s = {k: b2 * square[k] + (1 - b2) * grad[k] * grad[k] for k in layer}
        p = {k: layer[k] - np.float32(rate) * (m[k] * scale1) / (np.sqrt(s[k] * scale2) + eps) for k in layer}
        for part, value in zip(new, (p, m, s), strict=True):
            part.append(value)
    return new[0], (count, new[1], new[2]), loss
