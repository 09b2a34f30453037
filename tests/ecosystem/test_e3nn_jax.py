"""e3nn: functions of vectors and tensors that turn with space. The numbers are JAX's."""

from __future__ import annotations

from typing import Any

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

HARMONICS = [1.0, 0.755928874, -1.511857748, 0.377964437, 0.36885547638, -1.47542190552, 1.43747198582, -0.73771095276]
SLOPES = [[-11.791682, 19.018878, -8.748651], [-1.3693576, -1.5215073, -3.3473217]]
V = jnp.array([[0.1, 0.2, 0.3], [1.0, -2.0, 0.5]])


def test_tensor_products_turn_with_their_arguments() -> None:
    x = e3nn.normal("2x0e + 1x1o + 1x2e", jax.random.key(0), (3,))
    turn = e3nn.rand_matrix(jax.random.key(1), ())
    product = e3nn.tensor_product(x, x)
    turned = x.transform_by_matrix(turn)
    assert str(product.irreps) == "6x0e+6x1o+2x1e+6x2e+2x2o+2x3o+1x3e+1x4e"
    np.testing.assert_allclose(product.transform_by_matrix(turn).array, e3nn.tensor_product(turned, turned).array,
                               atol=1e-4)
    np.testing.assert_allclose(jnp.sum(product.array ** 2), 513.65839, rtol=1e-5)


def test_spherical_harmonics() -> None:
    np.testing.assert_allclose(e3nn.spherical_harmonics("0e+1o+2e+3o", V, True).array[1][:8], HARMONICS, rtol=1e-5)


def test_derivatives_of_invariants() -> None:
    def energy(v: Any) -> Any:
        one, other = (e3nn.spherical_harmonics("1o+2e", x, True) for x in (v, v[::-1]))
        return e3nn.norm(e3nn.tensor_product(one, other)).array.sum()

    np.testing.assert_allclose(jax.jit(jax.grad(energy))(V), SLOPES, rtol=1e-4)
