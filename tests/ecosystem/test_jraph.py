"""Jraph: networks on graphs. The numbers are JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jraph
import numpy as np

GRAPHS = [-9.5716362, -8.9636793, 1.4280472, 0.97752094]
SLOPES = [0.73603392, 0.40286511, 0.066111356, 0.0013035259]
ATTENTION = [13.655728, 0.95352566, -0.00028925139, 3.0787621, 0.7650125, 3.9414036]


def ring(n: int, key: Any) -> Any:
    """A directed ring with a chord, of features by node and edge."""
    senders = jnp.concatenate([jnp.arange(n), jnp.array([0])])
    receivers = jnp.concatenate([(jnp.arange(n) + 1) % n, jnp.array([n // 2])])
    return jraph.GraphsTuple(
        nodes=jax.random.normal(key, (n, 4)), edges=jnp.linspace(0, 1, n + 1)[:, None], senders=senders,
        receivers=receivers, n_node=jnp.array([n]), n_edge=jnp.array([n + 1]), globals=jnp.ones((1, 2)))


def batch() -> Any:
    graphs = [ring(n, jax.random.key(n)) for n in (3, 5)]
    return jraph.pad_with_graphs(jraph.batch(graphs), n_node=12, n_edge=16, n_graph=4)


def test_a_graph_network_on_a_padded_batch() -> None:
    weights = jax.random.normal(jax.random.key(0), (11, 4)) / 3

    def update_edge(edges: Any, sent: Any, received: Any, globals_: Any) -> Any:
        return jnp.tanh(jnp.concatenate([edges, sent, received, globals_], axis=1) @ weights)

    def update_node(nodes: Any, sent: Any, received: Any, globals_: Any) -> Any:
        return nodes + jnp.tanh(received - sent)

    def update_global(nodes: Any, edges: Any, globals_: Any) -> Any:
        return nodes.sum(1, keepdims=True) * edges[:, :1]

    network = jraph.GraphNetwork(update_edge, update_node, update_global)
    found = jax.jit(network)(batch())
    np.testing.assert_allclose(found.globals.ravel()[:2], GRAPHS[:2], rtol=1e-4)
    assert jraph.get_graph_padding_mask(found).tolist() == [True, True, False, False]
    np.testing.assert_allclose([g.nodes.std() for g in jraph.unbatch(jraph.unpad_with_graphs(found))], GRAPHS[2:],
                               rtol=1e-4)


def test_training_a_convolution() -> None:
    """A layer that learns to tell the two graphs apart: what it loses, at each step."""
    graph = batch()
    mask = jraph.get_graph_padding_mask(graph)

    def loss(weights: Any) -> Any:
        layer = jraph.GraphConvolution(lambda nodes: jnp.tanh(nodes @ weights["in"]), add_self_edges=True)
        nodes = layer(graph).nodes
        ids = jnp.repeat(jnp.arange(4), graph.n_node, total_repeat_length=12)
        scores = jraph.segment_mean(nodes, ids, 4) @ weights["out"]
        return jnp.sum(jnp.where(mask, (scores - jnp.arange(4)) ** 2, 0))

    weights = {"in": jax.random.normal(jax.random.key(1), (4, 8)) / 2, "out": jnp.ones(8) / 8}
    step = jax.jit(lambda w: (loss(w), jax.tree.map(lambda x, g: x - 0.1 * g, w, jax.grad(loss)(w))))
    losses = []
    for _ in range(20):
        value, weights = step(weights)
        losses.append(float(value))
    np.testing.assert_allclose([losses[0], losses[1], losses[5], losses[-1]], SLOPES, rtol=1e-3)


def test_attention() -> None:
    """Softmax over the edges that meet in a node, and its derivative."""
    graph = batch()
    network = jraph.GAT(attention_query_fn=lambda nodes: nodes,
                        attention_logit_fn=lambda sent, received, edges: (sent * received).sum(1, keepdims=True))

    def total(nodes: Any) -> Any:
        return jnp.sum(network(graph._replace(nodes=nodes)).nodes ** 2)

    value, slope = jax.jit(jax.value_and_grad(total))(graph.nodes)
    np.testing.assert_allclose([value, slope.std(), *slope[0]], ATTENTION, rtol=1e-3)
