"""Optax: gradient descent of many kinds. The numbers are JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

TRAINING = [0.752173245, 0.752173245, 0.73941648, 0.545992732, 0.044181682]  # losses of the first steps, 40th and last
BITS = [1.408002496, 1.404931426, 0.91896838, 0.725635290]  # the last losses, with a variable and with an argument
LINE_SEARCH = [335.5, 90.434082031, 16.020494461, 3.675969124]
LOSSES = [0.234712362, 0.876153708, 1.375]
OPTIMIZERS = {  # w, b, and the average of b after ten steps
    "sgd": [0.553687036, 0.661061287, 0.768435419, 0.875809729, -2.694028139, -2.478778124],
    "adagrad": [0.628464758, 1.534539104, 2.518857241, 3.512552738, -2.457506657, -2.33638525],
    "rmsprop": [0.500000119, 0.74703598, 1.522273779, 2.438054562, -3.092850685, -2.898211479],
    "lion": [0.39939037, 0.998450935, 1.997451305, 2.996451616, -2.997551203, -2.633860111],
    "novograd": [0.562298417, 0.686895311, 0.811492324, 0.936089516, -3.42128396, -3.237826824],
    "yogi": [0.297487229, 1.039573312, 2.01946497, 3.0130229, -2.951999903, -2.617499828],
    "lamb": [0.532356739, 0.175383896, 0.932693005, 1.872945666, -3.47261405, -3.40985775],
    "adafactor": [0.5, 0.658374369, 1.358028531, 2.245399475, -3.141259432, -2.939227819],
}


def fit_to_bits(optimizer: Any, factors: Any, is_argument: bool) -> list[float]:
    """The documents' question: a fit of bits to their products, whose updates are multiplied by a variable of the
    function around the step, or by an argument of it; the losses."""
    rng = np.random.default_rng(0)
    bits = (rng.random((8, 16, 8)) > 0.5).astype("float32")
    params = {"hidden": jnp.asarray(rng.normal(0, 1, (8, 32)), "float32"),
              "output": jnp.asarray(rng.normal(0, 1, (32, 2)), "float32")}
    state, losses, factor = optimizer.init(params), [], factors[0]

    def loss(params: Any, batch: Any, labels: Any) -> Any:
        logits = jnp.tanh(batch @ params["hidden"]) @ params["output"]
        return optax.sigmoid_binary_cross_entropy(logits, labels).mean()

    @jax.jit
    def step(params: Any, state: Any, batch: Any, labels: Any, argument: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch, labels)
        updates, state = optimizer.update(grads, state, params)
        updates = jax.tree.map(lambda u: u * (argument if is_argument else factor), updates)
        return optax.apply_updates(params, updates), state, value

    for i, batch in enumerate(np.tile(bits, (2, 1, 1))):
        factor = factors[i % 2]
        labels = jax.nn.one_hot(batch.sum(1) % 2, 2)
        params, state, value = step(params, state, batch, labels, factor)
        losses.append(float(value))
    return losses


def test_the_documents_question() -> None:
    """What a step reads from around it is read once; what it takes as an argument, at each call."""
    closed, passed = (fit_to_bits(optax.adam(1e-2), (0.1, 10.0), argument) for argument in (False, True))
    np.testing.assert_allclose([*closed[-2:], *passed[-2:]], BITS, rtol=1e-4)
    assert closed == fit_to_bits(optax.adam(1e-2), (0.1, 0.1), True)


def test_the_documents_errors() -> None:
    """An optimizer is no argument of a jitted function, and its updates are a tree."""
    optimizer, params = optax.adam(1e-2), {"w": jnp.ones(2)}
    with pytest.raises(TypeError, match=r"passed to the function at path optimizer\.init"):
        jax.jit(lambda optimizer, params: optimizer.init(params))(optimizer, params)
    init = jax.jit(lambda optimizer, params: optimizer.init(params), static_argnums=0)
    assert optax.tree.get(init(optimizer, params), "mu")["w"].tolist() == [0.0, 0.0]

    @jax.jit
    def step(params: Any) -> Any:
        updates, _ = optimizer.update(params, optimizer.init(params), params)
        updates *= 0.1
        return updates

    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \*=: 'dict' and 'float'"):
        step(params)


def test_training_a_network() -> None:
    """Adam with weight decay, a schedule and clipping, on a classifier of two spirals."""
    t = jnp.linspace(0.5, 3.0, 60)
    spiral = jnp.stack([t * jnp.cos(3 * t), t * jnp.sin(3 * t)], axis=1)
    x, y = jnp.concatenate([spiral, 0.3 - 0.9 * spiral]), jnp.repeat(jnp.arange(2), 60)
    keys = jax.random.split(jax.random.key(0), 2)
    params = {"in": jax.random.normal(keys[0], (2, 32)), "bias": jnp.zeros(32),
              "out": jax.random.normal(keys[1], (32, 2)) / 8}
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.05, 20, 200)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-4))

    def loss(params: Any) -> Any:
        logits = jnp.tanh(x @ params["in"] + params["bias"]) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    state, losses = optimizer.init(params), []
    for _ in range(200):
        params, state, value = step(params, state)
        losses.append(float(value))
    np.testing.assert_allclose(losses[:3] + losses[40:41], TRAINING[:4], rtol=1e-4)
    np.testing.assert_allclose(losses[-1], TRAINING[4], rtol=0.05)
    assert int(optax.tree.get(state, "count", filtering=lambda path, _: "Adam" in str(path))) == 200


def test_line_search() -> None:
    """L-BFGS with a zoom line search, all in one loop, on Rosenbrock's function."""
    solver = optax.lbfgs(linesearch=optax.scale_by_zoom_linesearch(max_linesearch_steps=15))

    def rosenbrock(x: Any) -> Any:
        return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    value_and_grad = optax.value_and_grad_from_state(rosenbrock)

    def step(carry: Any, _: Any) -> Any:
        x, state = carry
        value, grad = value_and_grad(x, state=state)
        updates, state = solver.update(grad, state, x, value=value, grad=grad, value_fn=rosenbrock)
        return (optax.apply_updates(x, updates), state), value

    x = jnp.array([-1.0, 1.5, 0.5])
    (x, _), values = jax.jit(lambda c: jax.lax.scan(step, c, length=120))((x, solver.init(x)))
    np.testing.assert_allclose(values[:4], LINE_SEARCH, rtol=1e-3)
    np.testing.assert_allclose(x, np.ones(3), atol=1e-4)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rmsprop", "lion", "novograd", "yogi", "lamb", "adafactor"])
def test_optimizers(name: str) -> None:
    """Ten steps of each on a quadratic function, with an average of the parameters beside them."""
    optimizer = getattr(optax, name)(learning_rate=0.1)
    params = {"w": jnp.arange(1.0, 5.0), "b": jnp.array(-2.0)}
    state = optimizer.init(params)
    average = optax.ema(0.9)
    averages = average.init(params)

    @jax.jit
    def step(params: Any, state: Any, averages: Any) -> Any:
        grads = jax.grad(lambda p: jnp.sum((p["w"] - 0.5) ** 2) + jnp.cos(p["b"]))(params)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        mean, averages = average.update(params, averages)
        return params, state, averages, mean

    for _ in range(10):
        params, state, averages, mean = step(params, state, averages)
    found = [*map(float, params["w"]), float(params["b"]), float(mean["b"])]
    np.testing.assert_allclose(found, OPTIMIZERS[name], rtol=2e-4, atol=1e-5)


def test_implicit_layers_of_losses() -> None:
    """Gradients through a projection, a perturbed maximum, CTC and assignment."""
    x = jnp.array([0.4, -1.0, 2.0, 0.3])
    simplex = jax.jacrev(optax.projections.projection_simplex)(x)
    logits = jax.random.normal(jax.random.key(3), (2, 6, 4))
    labels = jnp.array([[1, 2, 0], [3, 1, 2]])
    ctc = jax.grad(lambda z: optax.ctc_loss(z, jnp.zeros((2, 6)), labels, jnp.array([[0, 0, 1.0], [0, 0, 0]])).sum())
    cost = jax.random.uniform(jax.random.key(4), (5, 5))
    rows, columns = optax.assignment.hungarian_algorithm(cost)
    np.testing.assert_allclose(simplex.sum(1), np.zeros(4), atol=1e-6)
    np.testing.assert_allclose(ctc(logits).std(), LOSSES[0], rtol=1e-4)
    np.testing.assert_allclose(cost[rows, columns].sum(), LOSSES[1], rtol=1e-5)
    np.testing.assert_allclose(optax.huber_loss(x, delta=0.5).sum(), LOSSES[2], rtol=1e-6)
