"""Programs on libraries: each gives a step, its first state, and the number that a state amounts to.

    python benchmarks/libraries/programs.py optax_mlp

They are written for JAX, and import it when they run: what that is, is their caller's to say.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

Program = tuple[Callable[[Any], Any], Any, Callable[[Any], Any]]


def _trained(loss: Callable[[Any], Any], params: Any, optimizer: Any) -> Program:
    """Gradient descent on a tree of arrays."""
    import jax
    import jax.numpy as jnp
    import optax

    @jax.jit
    def step(state: Any) -> Any:
        params, opt, _ = state
        value, grads = jax.value_and_grad(loss)(params)
        updates, opt = optimizer.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, value

    return step, (params, optimizer.init(params), jnp.zeros(())), lambda state: state[2]


def _trained_module(loss: Callable[[Any], Any], model: Any, optimizer: Any) -> Program:
    """Gradient descent on the arrays of an Equinox module."""
    import equinox as eqx

    params, rest = eqx.partition(model, eqx.is_inexact_array)
    return _trained(lambda params: loss(eqx.combine(params, rest)), params, optimizer)


def optax_mlp() -> Program:
    import jax
    import jax.numpy as jnp
    import optax

    sizes = (32, 128, 128, 1)
    keys = jax.random.split(jax.random.key(0), len(sizes))
    params = [(jax.random.normal(k, (m, n)) / m ** 0.5, jnp.zeros(n))
              for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=False)]
    x = jax.random.normal(keys[-1], (256, 32))
    y = jnp.sin(x.sum(1, keepdims=True))

    def loss(params: Any) -> Any:
        h = x
        for w, b in params[:-1]:
            h = jnp.tanh(h @ w + b)
        w, b = params[-1]
        return jnp.mean((h @ w + b - y) ** 2)

    return _trained(loss, params, optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)))


def equinox_rnn() -> Program:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import optax

    class RNN(eqx.Module):
        cell: eqx.nn.GRUCell
        out: eqx.nn.Linear

        def __init__(self, key: Any) -> None:
            a, b = jax.random.split(key)
            self.cell = eqx.nn.GRUCell(2, 32, key=a)
            self.out = eqx.nn.Linear(32, 1, key=b)

        def __call__(self, xs: Any) -> Any:
            h, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(32), xs)
            return jax.nn.sigmoid(self.out(h))

    key = jax.random.key(1)
    model = RNN(key)
    xs = jax.random.normal(key, (64, 20, 2))
    ys = (xs.sum((1, 2)) > 0).astype(jnp.float32)

    def loss(model: Any) -> Any:
        p = jax.vmap(model)(xs)[:, 0]
        return -jnp.mean(ys * jnp.log(p) + (1 - ys) * jnp.log(1 - p))

    return _trained_module(loss, model, optax.adam(3e-3))


def _sequences() -> Any:
    import jax

    return jax.random.randint(jax.random.key(2), (8, 32), 0, 64)


def linen_transformer() -> Program:
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
            x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x), mask=mask)
            return x + nn.Dense(64)(nn.gelu(nn.Dense(256)(nn.LayerNorm()(x))))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            x = nn.Embed(64, 64)(tokens)
            for _ in range(2):
                x = Block()(x)
            return nn.Dense(64)(x)

    model, tokens = Model(), _sequences()
    params = jax.jit(model.init)(jax.random.key(3), tokens)

    def loss(params: Any) -> Any:
        logits = model.apply(params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    return _trained(loss, params, optax.adam(1e-3))


def nnx_transformer() -> Program:
    import jax.numpy as jnp
    import optax
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm1, self.norm2 = nnx.LayerNorm(64, rngs=rngs), nnx.LayerNorm(64, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(4, 64, decode=False, rngs=rngs)
            self.up, self.down = nnx.Linear(64, 256, rngs=rngs), nnx.Linear(256, 64, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x), mask=nnx.make_causal_mask(jnp.ones(x.shape[:2])))
            return x + self.down(nnx.gelu(self.up(self.norm2(x))))

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.embed = nnx.Embed(64, 64, rngs=rngs)
            self.first, self.second = Block(rngs), Block(rngs)
            self.out = nnx.Linear(64, 64, rngs=rngs)

        def __call__(self, tokens: Any) -> Any:
            return self.out(self.second(self.first(self.embed(tokens))))

    tokens = _sequences()
    model = Model(nnx.Rngs(3))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    def loss(model: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:]).mean()

    @nnx.jit
    def update(model: Any, optimizer: Any) -> Any:
        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    return lambda state: update(model, optimizer), jnp.zeros(()), lambda state: state


def diffrax_neural_ode() -> Program:
    import diffrax
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import optax

    ts = jnp.linspace(0.0, 2.0, 20)
    y0s = jax.random.normal(jax.random.key(4), (32, 2))
    true = jax.vmap(lambda y: jnp.stack([y[0] * jnp.cos(ts) - y[1] * jnp.sin(ts),
                                         y[0] * jnp.sin(ts) + y[1] * jnp.cos(ts)], 1))(y0s)
    model = eqx.nn.MLP(2, 2, 32, 2, activation=jax.nn.softplus, key=jax.random.key(5))

    def loss(model: Any) -> Any:
        def solve(y0: Any) -> Any:
            return diffrax.diffeqsolve(
                diffrax.ODETerm(lambda t, y, args: model(y)), diffrax.Tsit5(), 0.0, 2.0, 0.1, y0,
                stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-4), saveat=diffrax.SaveAt(ts=ts)).ys

        return jnp.mean((jax.vmap(solve)(y0s) - true) ** 2)

    return _trained_module(loss, model, optax.adam(3e-3))


def numpyro_nuts() -> Program:
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    j = 8
    y = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def model() -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("J", j):
            theta = numpyro.sample("theta", dist.TransformedDistribution(
                dist.Normal(0.0, 1.0), dist.transforms.AffineTransform(mu, tau)))
            numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)

    def step(state: Any) -> Any:
        mcmc.run(jax.random.key(state[0]))
        return state[0] + 1, mcmc.get_samples()["mu"].mean()

    mcmc = MCMC(NUTS(model), num_warmup=200, num_samples=200, progress_bar=False)
    return step, (0, jnp.zeros(())), lambda state: state[1]


def blackjax_hmc() -> Program:
    import blackjax
    import jax
    import jax.numpy as jnp

    x = jax.random.normal(jax.random.key(6), (200, 5))
    y = (x @ jnp.arange(5.0) > 0).astype(jnp.float32)

    def logdensity(w: Any) -> Any:
        logits = x @ w
        return -jnp.sum(jnp.logaddexp(0.0, logits) - y * logits) - 0.5 * jnp.sum(w ** 2)

    hmc = blackjax.hmc(logdensity, step_size=0.05, inverse_mass_matrix=jnp.ones(5), num_integration_steps=10)

    @jax.jit
    def step(state: Any) -> Any:
        key, chain = state
        key, own = jax.random.split(key)
        chain, _ = jax.lax.scan(lambda s, k: (hmc.step(k, s)[0], None), chain, jax.random.split(own, 100))
        return key, chain

    return step, (jax.random.key(7), hmc.init(jnp.zeros(5))), lambda state: state[1].logdensity


def optimistix_least_squares() -> Program:
    import jax
    import jax.numpy as jnp
    import optimistix as optx

    t = jnp.linspace(0.0, 5.0, 100)
    data = 2.5 * jnp.exp(-1.3 * t) + 0.5 + 0.01 * jax.random.normal(jax.random.key(8), (100,))

    def residuals(params: Any, args: Any) -> Any:
        return params["a"] * jnp.exp(-params["k"] * t) + params["c"] - data

    solver = optx.LevenbergMarquardt(rtol=1e-5, atol=1e-5)

    @jax.jit
    def step(state: Any) -> Any:
        start, _ = state
        found = optx.least_squares(residuals, solver, {"a": start, "k": start, "c": 0.0 * start})
        return start, found.value["k"]

    return step, (jnp.array(1.0), jnp.zeros(())), lambda state: state[1]


def jaxley_gradient() -> Program:
    import jax
    import jax.numpy as jnp
    import jaxley as jx
    from jaxley.channels import HH

    cell = jx.Cell(jx.Branch(jx.Compartment(), ncomp=4), parents=[-1, 0, 0])
    cell.insert(HH())
    cell.branch(0).loc(0.0).stimulate(jx.step_current(1.0, 2.0, 0.1, 0.025, 10.0))
    cell.branch(2).loc(1.0).record()
    cell.make_trainable("HH_gNa")
    params = cell.get_parameters()

    @jax.jit
    def step(state: Any) -> Any:
        params, _ = state
        value, grads = jax.value_and_grad(lambda p: jnp.mean(jx.integrate(cell, params=p, delta_t=0.025)))(params)
        return jax.tree.map(lambda p, g: p - 1e-6 * g, params, grads), value

    return step, (params, jnp.zeros(())), lambda state: state[1]


def jnkepler_orbit() -> Program:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jnkepler.jaxttv import JaxTTV

    periods = [45.155305, 85.31646]
    observed = [np.arange(159.11, 2950, periods[0]), np.arange(295.32, 2950, periods[1])]
    jttv = JaxTTV(140.0, 2960.0, 1.0, observed, periods, errorobs=[np.full(len(t), 1e-3) for t in observed],
                  print_info=False)
    params = {name: jnp.array(value) for name, value in {
        "period": periods, "ecosw": [0.02, -0.01], "esinw": [0.01, 0.03], "cosi": [0.0, 0.0], "lnode": [0.0, 0.0],
        "tic": [159.11, 295.32], "pmass": [2e-5, 3e-5], "smass": 1.0}.items()}

    @jax.jit
    def step(state: Any) -> Any:
        params, _ = state
        value, grads = jax.value_and_grad(lambda p: jnp.mean(jttv.get_transit_times_obs(p)[0]))(params)
        return jax.tree.map(lambda p, g: p - 1e-12 * g, params, grads), value

    return step, (params, jnp.zeros(())), lambda state: state[1]


def pyhgf_filter() -> Program:
    import jax.numpy as jnp
    from pyhgf import load_data
    from pyhgf.model import HGF

    u, _ = load_data("binary")
    hgf = HGF(n_levels=2, model_type="binary", initial_mean={"1": 0.0, "2": 0.5},
              initial_precision={"1": 0.0, "2": 1e4}, tonic_volatility={"2": -3.0})

    def step(state: Any) -> Any:
        hgf.input_data(input_data=u)
        return jnp.asarray(hgf.surprise().sum())

    return step, jnp.zeros(()), lambda state: state


PROGRAMS: dict[str, Callable[[], Program]] = {f.__name__: f for f in (
    optax_mlp, equinox_rnn, linen_transformer, nnx_transformer, diffrax_neural_ode, numpyro_nuts, blackjax_hmc,
    optimistix_least_squares, jaxley_gradient, jnkepler_orbit, pyhgf_filter)}


def run(name: str) -> dict[str, float]:
    """Seconds from a program's definition to its first step, of one step after it, and the number it arrives at.

    The program is made once before, which loads its libraries; it shares nothing compiled with the one that is timed.
    """
    import jax

    PROGRAMS[name]()
    jax.clear_caches()
    start = time.perf_counter()
    step, state, value = PROGRAMS[name]()
    state = jax.block_until_ready(step(state))
    first = time.perf_counter() - start
    state = jax.block_until_ready(step(state))
    found = float(value(state))
    times: list[float] = []
    end = time.perf_counter() + 2.0
    while time.perf_counter() < end or len(times) < 3:
        before = time.perf_counter()
        state = jax.block_until_ready(step(state))
        times.append(time.perf_counter() - before)
    return {"first": first, "step": statistics.median(times), "value": found}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
