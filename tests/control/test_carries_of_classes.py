"""Carries hold objects whose classes check what they are made of."""

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax


class Diagonal:
    def __init__(self, entries):
        if isinstance(entries, int) or np.ndim(entries) < 1:
            raise ValueError("at least one dimension")
        self.entries = entries


anima.tree_util.register_pytree_node(Diagonal, lambda x: ((x.entries,), None), lambda _, children: Diagonal(*children))


def body(carry):
    count, diagonal, total = carry
    return count + 1, Diagonal(diagonal.entries * 2), total + jnp.float32(1)


START = (0, Diagonal(jnp.ones(2)), 0.0)


@pytest.mark.parametrize("run", [
    lambda: lax.while_loop(lambda carry: carry[0] < 3, body, START),
    lambda: lax.fori_loop(0, 3, lambda _, carry: body(carry), START),
    lambda: lax.scan(lambda carry, _: (body(carry), None), START, None, length=3)[0],
    lambda: lax.cond(True, lambda: (3, Diagonal(jnp.full(2, 8.0)), 3.0), lambda: (3, Diagonal(jnp.ones(2)), 3.0))])
def test_checks_of_constructors_see_no_placeholders(run):
    count, diagonal, total = run()
    assert (int(count), float(total)) == (3, 3.0)
    np.testing.assert_array_equal(diagonal.entries, [8, 8])


def test_differences_in_such_are_told_by_number():
    with pytest.raises(TypeError, match=r"leaf 1\) has type float32\[2\] but the corresponding output.*float32\[3\]"):
        lax.while_loop(lambda carry: carry[0] < 3, lambda carry: (carry[0] + 1, Diagonal(jnp.ones(3)), carry[2]), START)
