"""Functions that are transformed may be objects whose names are no text, and whose annotations are no dictionary."""

import numpy as np
import pytest

import anima
import anima.numpy as jnp


class Twice:
    @property
    def __name__(self):
        return None

    def __call__(self, x):
        return x * 2


class Marked:
    """As modules of Equinox that have been through a pytree: a mark stands for what they do not have."""

    def __init__(self):
        for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
            self.__dict__[name] = type

    def __call__(self, x):
        return x * 2


@pytest.mark.parametrize("make", [Twice, Marked])
@pytest.mark.parametrize("transform, expected", [
    (anima.jit, 2), (anima.grad, 2), (anima.value_and_grad, (2, 2)), (anima.jacfwd, 2), (anima.jacrev, 2),
    (anima.hessian, 0), (anima.checkpoint, 2), (jnp.vectorize, 2), (anima.named_call, 2)])
def test_names_that_are_no_text(transform, expected, make):
    np.testing.assert_array_equal(transform(make())(1.0), expected)
    for mapped in anima.vmap, anima.pmap:
        np.testing.assert_array_equal(mapped(make())(jnp.ones(1)), [2])
    for custom in anima.custom_jvp, anima.custom_vjp:
        assert custom(make()).fun(1.0) == 2
