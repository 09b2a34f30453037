"""Longer programs, each on several libraries at once, trained by Optax. The numbers are JAX's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

eqx = pytest.importorskip("equinox")
hk = pytest.importorskip("haiku")
jraph = pytest.importorskip("jraph")
nn = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")
ocp = pytest.importorskip("orbax.checkpoint")
numpyro = pytest.importorskip("numpyro")
dist = pytest.importorskip("numpyro.distributions")
contrib = pytest.importorskip("numpyro.contrib.module")

POLICY = [36.52898, 8, 28.561802, 12, 33.774544, 7, 35.573143, 9]   # losses and falls of four updates
FLOW = [2.347457, 2.225989, 2.030552, 1.704834, 1.677413]          # losses: the first three, the 21st, the last
GRAPHS = [2.606321, 1.789805, 1.633506, 0.747193, 0.447025]
LANGUAGE = [3.291316, 3.217806, 3.296413, 1.623229, 0.839971]
IMAGES = [1864.2439, 1384.4985, 620.9428, 356.53186]


class Cart(NamedTuple):
    """A pole on a cart: position, speed, angle and its speed; and for how long it stands."""

    state: Any
    age: Any


def stand_up(key: Any) -> Cart:
    return Cart(jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05), jnp.int32(0))


def push(key: Any, cart: Cart, action: Any) -> tuple[Cart, Any]:
    """The cart after a push to the left or to the right, and whether the pole has fallen: then it stands up again."""
    _, v, angle, turning = cart.state
    force = jnp.where(action == 1, 10.0, -10.0)
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    pull = (force + 0.05 * turning**2 * sine) / 1.1
    twist = (9.8 * sine - cosine * pull) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    state = cart.state + 0.02 * jnp.stack([v, pull - 0.05 * twist * cosine / 1.1, turning, twist])
    fallen = (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 0.2095) | (cart.age >= 199)
    return jax.tree.map(lambda a, b: jnp.where(fallen, a, b), stand_up(key), Cart(state, cart.age + 1)), fallen


class ActorCritic(nn.Module):
    """Logits of two actions, and what the state is worth."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for _ in range(2):
            x = nn.tanh(nn.Dense(32, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
        return nn.Dense(2, kernel_init=nn.initializers.orthogonal(0.01))(x), nn.Dense(1)(x)[..., 0]


def chosen(logits: Any, actions: Any) -> Any:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], -1)[..., 0]


def advantages(values: Any, fallen: Any, last: Any) -> Any:
    """Generalised advantages (Schulman et al. 2016) of steps whose reward is 1 each."""

    def back(carry: Any, step: Any) -> Any:
        gain, following = carry
        value, over = step
        gain = 1.0 + 0.99 * following * (1 - over) - value + 0.99 * 0.95 * (1 - over) * gain
        return (gain, value), gain

    return jax.lax.scan(back, (jnp.zeros_like(last), last), (values, fallen), reverse=True, unroll=4)[1]


def test_a_policy_learns_to_balance_a_pole() -> None:
    """Proximal policy optimization (Schulman et al. 2017), all of it one program: episodes, advantages, epochs over
    shuffled parts, of Flax linen's networks."""
    carts, length = 8, 32
    net, optimizer = ActorCritic(), optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-3, eps=1e-5))

    def act(carry: Any, _: Any) -> Any:
        params, cart, key = carry
        key, choice, again = jax.random.split(key, 3)
        logits, value = net.apply(params, cart.state)
        action = jax.random.categorical(choice, logits)
        after, fallen = jax.vmap(push)(jax.random.split(again, carts), cart, action)
        return (params, after, key), (cart.state, action, chosen(logits, action), value, fallen.astype(jnp.float32))

    def loss(params: Any, part: Any) -> Any:
        states, actions, before, gains, worth = part
        logits, value = net.apply(params, states)
        ratio, gains = jnp.exp(chosen(logits, actions) - before), (gains - gains.mean()) / (gains.std() + 1e-8)
        policy = -jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.2) * gains).mean()
        entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
        return policy + 0.5 * ((value - worth) ** 2).mean() - 0.01 * entropy

    def learn(carry: Any, part: Any) -> Any:
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params, part)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), value

    @jax.jit
    def step(params: Any, state: Any, cart: Any, key: Any) -> Any:
        (_, cart, key), (states, actions, logs, values, fallen) = jax.lax.scan(act, (params, cart, key), length=length)
        gains = advantages(values, fallen, net.apply(params, cart.state)[1])
        seen = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (states, actions, logs, gains, gains + values))

        def epoch(carry: Any, key: Any) -> Any:
            order = jax.random.permutation(key, carts * length)
            return jax.lax.scan(learn, carry, jax.tree.map(lambda x: x[order].reshape(4, -1, *x.shape[1:]), seen))

        key, shuffle = jax.random.split(key)
        (params, state), losses = jax.lax.scan(epoch, (params, state), jax.random.split(shuffle, 3))
        return params, state, cart, key, losses.mean(), fallen.sum()

    params = net.init(jax.random.key(0), jnp.zeros(4))
    state, cart = optimizer.init(params), jax.vmap(stand_up)(jax.random.split(jax.random.key(1), carts))
    key, found = jax.random.key(2), []
    for _ in range(4):
        params, state, cart, key, value, falls = step(params, state, cart, key)
        found += [float(value), float(falls)]
    np.testing.assert_allclose(found, POLICY, rtol=1e-3)


class Coupling(eqx.Module):
    """Shifts and stretches one half of a point by what a network says of the other half."""

    net: Any
    flipped: bool = eqx.field(static=True)

    def __call__(self, x: Any) -> Any:
        kept, moved = (x[1:], x[:1]) if self.flipped else (x[:1], x[1:])
        stretch, shift = jnp.split(self.net(kept), 2)
        moved = moved * jnp.exp(jnp.tanh(stretch)) + shift
        return jnp.concatenate([moved, kept] if self.flipped else [kept, moved]), jnp.tanh(stretch).sum()


def test_a_flow_learns_two_moons() -> None:
    """Couplings of Equinox (Dinh et al. 2017), on new points at every step."""
    keys = jax.random.split(jax.random.key(0), 6)
    layers = [Coupling(eqx.nn.MLP(1, 2, 32, 2, activation=jax.nn.silu, key=key), i % 2 == 0)
              for i, key in enumerate(keys)]
    optimizer = optax.chain(optax.adaptive_grad_clip(1.0), optax.adam(optax.cosine_decay_schedule(3e-3, 60)))

    def moons(key: Any) -> Any:
        angle, noise = jax.random.uniform(key, (128,), maxval=jnp.pi), jax.random.normal(key, (128, 2))
        upper, lower = (jnp.cos(angle), jnp.sin(angle)), (1 - jnp.cos(angle), 0.5 - jnp.sin(angle))
        return jnp.where((jnp.arange(128) % 2 == 0)[:, None], jnp.stack(upper, 1), jnp.stack(lower, 1)) + 0.05 * noise

    def log_density(layers: Any, x: Any) -> Any:
        total = 0.0
        for layer in layers:
            x, log_volume = layer(x)
            total = total + log_volume
        return total + jax.scipy.stats.norm.logpdf(x).sum()

    @eqx.filter_jit(donate="all-except-first")
    def step(key: Any, layers: Any, state: Any) -> Any:
        x = moons(key)
        value, grads = eqx.filter_value_and_grad(lambda f: -jax.vmap(lambda x: log_density(f, x))(x).mean())(layers)
        updates, state = optimizer.update(grads, state, eqx.filter(layers, eqx.is_array))
        return eqx.apply_updates(layers, updates), state, value

    state, found = optimizer.init(eqx.filter(layers, eqx.is_array)), []
    for key in jax.random.split(jax.random.key(1), 60):
        layers, state, value = step(key, layers, state)
        found.append(float(value))
    np.testing.assert_allclose([*found[:3], found[20], found[-1]], FLOW, rtol=2e-3)
    area = jax.vmap(lambda x: jnp.exp(log_density(layers, x)))(
        jnp.stack(jnp.meshgrid(jnp.linspace(-4, 5, 150), jnp.linspace(-4, 5, 150)), -1).reshape(-1, 2)).mean() * 81
    np.testing.assert_allclose(area, 1.0, atol=0.02)    # it is a density


def test_graph_networks_count_triangles() -> None:
    """Jraph's networks of Haiku's layers, on graphs of many sizes in one padded batch."""
    rng, graphs, labels = np.random.default_rng(0), [], []
    for n in (4, 5, 6, 7, 8, 6, 5, 7):
        near = np.triu(rng.random((n, n)) < 0.5, 1)
        near = near | near.T
        senders, receivers = np.nonzero(near)
        graphs.append(jraph.GraphsTuple(
            nodes=np.ones((n, 1), np.float32), edges=np.ones((len(senders), 1), np.float32), senders=senders,
            receivers=receivers, n_node=np.array([n]), n_edge=np.array([len(senders)]),
            globals=np.zeros((1, 1), np.float32)))
        labels.append(np.trace(np.linalg.matrix_power(near.astype(int), 3)) / 6)
    batch = jraph.pad_with_graphs(jraph.batch_np(graphs), 64, 256, len(graphs) + 1)
    target, mask = jnp.array([*labels, 0.0]), jraph.get_graph_padding_mask(batch)

    def network(graph: Any) -> Any:
        graph = jraph.GraphMapFeatures(hk.Linear(16), hk.Linear(16), hk.Linear(16))(graph)
        for _ in range(3):
            mlp = jraph.concatenated_args(lambda x: hk.nets.MLP([16, 16])(hk.LayerNorm(-1, True, True)(x)))
            after = jraph.GraphNetwork(mlp, mlp, mlp)(graph)
            graph = after._replace(nodes=graph.nodes + after.nodes, edges=graph.edges + after.edges)
        return hk.Linear(1)(graph.globals)[:, 0]

    net = hk.without_apply_rng(hk.transform(network))
    params = net.init(jax.random.key(0), batch)
    optimizer = optax.lookahead(optax.adam(3e-3), sync_period=5, slow_step_size=0.5)
    params = optax.LookaheadParams.init_synced(params)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        def loss(fast: Any) -> Any:
            return jnp.sum(mask * (net.apply(fast, batch) - target) ** 2) / mask.sum()

        value, grads = jax.value_and_grad(loss)(params.fast)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    state, found = optimizer.init(params), []
    for _ in range(40):
        params, state, value = step(params, state)
        found.append(float(value))
    np.testing.assert_allclose([*found[:3], found[20], found[-1]], GRAPHS, rtol=5e-3)


class Block(nnx.Module):
    """Attention to what came before, then a network for each place."""

    def __init__(self, width: int, heads: int, rngs: Any) -> None:
        self.norms = nnx.List([nnx.RMSNorm(width, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 2 * width, rngs=rngs), nnx.Linear(2 * width, width, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.dropout(self.attention(self.norms[0](x), mask=nnx.make_causal_mask(x[..., 0])))
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class Language(nnx.Module):
    """The next letter."""

    def __init__(self, letters: int, width: int, rngs: Any) -> None:
        self.table, self.head = nnx.Embed(letters, width, rngs=rngs), nnx.Linear(width, letters, rngs=rngs)
        self.places = nnx.Param(0.02 * jax.random.normal(rngs.params(), (32, width)))
        self.blocks = nnx.List([Block(width, 4, rngs) for _ in range(2)])

    def __call__(self, letters: Any) -> Any:
        x = self.table(letters) + self.places[:letters.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_a_language_model_is_trained_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Flax nnx with dropout; after five steps all goes to disk through Orbax, and a new model goes on from there."""
    text = "one ring to rule them all, one ring to find them, one ring to bring them all"
    letters = sorted(set(text))
    numbers = np.array([letters.index(letter) for letter in text[:75]]).reshape(3, 25)
    optimizer = optax.MultiSteps(optax.adamw(optax.warmup_constant_schedule(0.0, 1e-2, 3), weight_decay=0.01), 2)

    def fresh() -> tuple[Any, Any]:
        model = Language(len(letters), 32, nnx.Rngs(params=0, dropout=1))
        return model, nnx.Optimizer(model, optimizer, wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, state: Any) -> Any:
        def loss(model: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(model(numbers[:, :-1]), numbers[:, 1:]).mean()

        value, grads = nnx.value_and_grad(loss)(model)
        state.update(model, grads)
        return value

    trained = fresh()
    found = [float(step(*trained)) for _ in range(5)]
    with ocp.StandardCheckpointer() as checkpoints:
        checkpoints.save(tmp_path / "five", nnx.to_pure_dict(nnx.state(trained)))
    found += [float(step(*trained)) for _ in range(10)]
    np.testing.assert_allclose([*found[:3], found[8], found[-1]], LANGUAGE, rtol=2e-3)

    graph, empty = nnx.split(nnx.eval_shape(fresh))
    with ocp.StandardCheckpointer() as checkpoints:
        nnx.replace_by_pure_dict(empty, checkpoints.restore(tmp_path / "five", nnx.to_pure_dict(empty)))
    again = nnx.merge(graph, empty)
    assert [float(step(*again)) for _ in range(10)] == found[5:]


def test_images_from_few_numbers() -> None:
    """A variational autoencoder (Kingma and Welling 2014): NumPyro's inference, on parts of the data, of Flax's
    networks."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:6, :6]
    centers = rng.uniform(1, 4, (60, 2, 1, 1))
    images = (np.exp(-((rows - centers[:, 0]) ** 2 + (columns - centers[:, 1]) ** 2) / 2) > 0.5).astype(np.float32)
    images = jnp.asarray(images.reshape(60, 36))

    class Net(nn.Module):
        out: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(self.out)(nn.softplus(nn.Dense(24)(x)))

    def model(x: Any) -> None:
        decode = contrib.flax_module("decoder", Net(36), input_shape=(2,))
        with numpyro.plate("images", len(x), subsample_size=20) as some:
            z = numpyro.sample("z", dist.Normal(0, 1).expand([2]).to_event(1))
            numpyro.sample("x", dist.Bernoulli(logits=decode(z)).to_event(1), obs=x[some])

    def guide(x: Any) -> None:
        encode = contrib.flax_module("encoder", Net(4), input_shape=(36,))
        with numpyro.plate("images", len(x), subsample_size=20) as some:
            mean, log_scale = jnp.split(encode(x[some]), 2, -1)
            numpyro.sample("z", dist.Normal(mean, jnp.exp(log_scale)).to_event(1))

    inference = numpyro.infer.SVI(model, guide, optax.adam(2e-2), numpyro.infer.TraceMeanField_ELBO(num_particles=2))
    result = inference.run(jax.random.key(0), 150, images, progress_bar=False)
    np.testing.assert_allclose(np.asarray(result.losses)[[0, 1, 20, -1]], IMAGES, rtol=5e-3)
