"""Functions that take functions, against NumPy's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp

LOOPS = [(), (1,), (3,), (1, 3), (2, 1), (2, 3), (3, 1), (4, 2, 3), (1, 1, 1), (4, 1, 1), (0,)]
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[int, int]]] = {
    "(),()->()": (lambda x, y: x - 2 * y, (0, 0)),
    "(n),(n)->()": (lambda x, y: (x * y).sum(), (1, 1)),
    "(n),()->(n)": (lambda x, y: x[::-1] - 2 * y, (1, 0)),
    "(),(n)->(n),()": (lambda x, y: (x - 2 * y, x + y.max()), (0, 1)),
    "(n),(m)->(m,n)": (lambda x, y: y[:, None] - 2 * x, (1, 1))}


@pytest.mark.parametrize("signature", FUNCTIONS)
def test_vectorize_broadcasts_what_it_maps_over(signature: str) -> None:
    """Axes of size 1, and axes that are not there, of either argument."""
    function, ranks = FUNCTIONS[signature]
    core = (4, 2) if "m" in signature else (4, 4)
    for loops in itertools.product(LOOPS, repeat=2):
        try:
            whole = np.broadcast_shapes(*loops)
        except ValueError:
            continue
        args = [np.random.default_rng(k).normal(size=(*loop, *(core[k],) * rank)).astype("f")
                for k, (loop, rank) in enumerate(zip(loops, ranks, strict=True))]
        got = jnp.vectorize(function, signature=signature)(*args)
        full = [np.broadcast_to(a, (*whole, *a.shape[len(loop):])) for a, loop in zip(args, loops, strict=True)]
        places = [function(*(a[place] for a in full)) for place in np.ndindex(whole)]
        for k, out in enumerate(got if isinstance(got, tuple) else (got,)):
            assert out.shape[:len(whole)] == whole
            want = [p[k] if isinstance(p, tuple) else p for p in places]
            np.testing.assert_allclose(np.reshape(out, (len(places), *out.shape[len(whole):])),
                                       np.reshape(want, (len(places), *out.shape[len(whole):])), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("excluded", [(), (0,), (1,), ("k",), (0, "k"), (1, "k")], ids=str)
def test_excluded_arguments_are_passed_as_they_are(excluded: tuple[Any, ...]) -> None:
    seen = {}

    def function(x: Any, y: Any, k: Any = 0.0) -> Any:
        seen.update({0: np.shape(x), 1: np.shape(y), "k": np.shape(k)})
        return sum(jnp.sum(v) for v in (x, 2 * y, 3 * k))

    x, y, k = (np.arange(3.0, dtype="f") + n for n in range(3))
    got = anima.jit(lambda x, y, k: jnp.vectorize(function, excluded=excluded)(x, y, k=k))(x, y, k)
    assert seen == {name: (3,) if name in excluded else () for name in (0, 1, "k")}
    want = sum((v.sum() if name in excluded else v) * factor for name, v, factor in ((0, x, 1), (1, y, 2), ("k", k, 3)))
    np.testing.assert_allclose(got, want)
