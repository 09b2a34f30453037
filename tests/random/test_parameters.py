"""Parameters at their limits, shapes and dtypes: what must hold of every draw, however it comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima.numpy as jnp
from anima import random as R

KEY = R.key(3)
INF, NAN = np.inf, np.nan
MANY = (64,)
PLAIN = {"exponential": (), "laplace": (), "logistic": (), "cauchy": (), "maxwell": (), "gumbel": (), "normal": (),
         "uniform": (), "weibull_min": (1.0, 2.0), "double_sided_maxwell": (0.0, 1.0), "generalized_normal": (2.0,),
         "gamma": (1.5,), "loggamma": (1.5,), "beta": (1.0, 2.0), "chisquare": (2.0,), "t": (3.0,), "f": (3.0, 4.0),
         "pareto": (2.0,), "rayleigh": (1.0,), "lognormal": (1.0,), "wald": (1.0,), "triangular": (0.0, 0.5, 1.0),
         "truncated_normal": (-1.0, 1.0)}


@pytest.mark.parametrize("name", PLAIN)
def test_shapes_and_dtypes(name: str) -> None:
    for shape, dtype in (((), "float32"), ((0,), "float32"), ((2, 0, 3), "float32"), ((2, 3), "float16"),
                         ((1, 5), "bfloat16")):
        out = getattr(R, name)(KEY, *PLAIN[name], shape=shape, dtype=dtype)
        assert out.shape == shape and out.dtype == jnp.dtype(dtype)
        assert np.isfinite(np.asarray(out, "float32")).all()
    with pytest.raises(ValueError, match=r"must be a float"):
        getattr(R, name)(KEY, *PLAIN[name], shape=(2,), dtype="int32")


def drawn(name: str, *params: Any, **options: Any) -> np.ndarray:
    return np.asarray(getattr(R, name)(KEY, *params, **options))


# What is drawn, the same number always
CERTAIN: list[tuple[str, tuple[Any, ...], float]] = [
    ("poisson", (0.0,), 0), ("poisson", (-1.0,), -1), ("poisson", (NAN,), -1),
    ("binomial", (10.0, 0.0), 0), ("binomial", (10.0, 1.0), 10), ("binomial", (100.0, 1.0), 100),
    ("binomial", (0.0, 0.5), 0), ("binomial", (INF, 0.5), INF), ("binomial", (-1.0, 0.5), NAN),
    ("binomial", (NAN, 0.5), NAN), ("binomial", (5.0, -0.1), NAN), ("binomial", (5.0, 1.1), NAN),
    ("binomial", (5.0, NAN), NAN), ("binomial", (100.0, NAN), NAN), ("geometric", (1.0,), 1), ("bernoulli", (0.0,), 0),
    ("bernoulli", (1.0,), 1), ("rayleigh", (0.0,), 0), ("lognormal", (0.0,), 1),
    ("weibull_min", (0.0, 2.0), 0), ("double_sided_maxwell", (3.5, 0.0), 3.5),
    ("randint", (5, 5), 5), ("randint", (5, 3), 5), ("randint", (5, 6), 5), ("randint", (-9, -8), -9)]


@pytest.mark.parametrize(("name", "params", "value"), CERTAIN, ids=str)
def test_certain(name: str, params: Any, value: float) -> None:
    out = drawn(name, MANY, *params) if name == "randint" else drawn(name, *params, shape=MANY)
    np.testing.assert_array_equal(out, np.full(MANY, value))


# What is drawn, and the limits that it keeps
WITHIN: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[float, float]]] = [
    ("uniform", (), {"minval": -2.0, "maxval": 5.0}, (-2, 5)),
    ("uniform", (), {"minval": 1e5, "maxval": 1e5 + 1}, (1e5, 1e5 + 1)),
    ("uniform", (), {"dtype": "float16"}, (0, 1)), ("uniform", (), {"dtype": "bfloat16"}, (0, 1)),
    ("truncated_normal", (-1.0, 1.0), {}, (-1, 1)), ("truncated_normal", (-INF, 0.0), {}, (-INF, 0)),
    ("truncated_normal", (2.0, INF), {}, (2, INF)), ("truncated_normal", (3.0, 4.0), {}, (3, 4)),
    ("truncated_normal", (0.5, 0.6), {"dtype": "float16"}, (0.5, 0.6)),
    ("triangular", (0.0, 0.0, 1.0), {}, (0, 1)), ("triangular", (0.0, 1.0, 1.0), {}, (0, 1)),
    ("triangular", (-5.0, 2.0, 3.0), {}, (-5, 3)), ("pareto", (1.0,), {}, (1, INF)), ("pareto", (50.0,), {}, (1, 2)),
    ("beta", (0.1, 0.1), {}, (0, 1)), ("beta", (50.0, 1.0), {}, (0.5, 1)), ("gamma", (1e-3,), {}, (0, INF)),
    ("gamma", (1e4,), {}, (9e3, 1.1e4)), ("geometric", (0.9,), {}, (1, 9)), ("geometric", (1e-3,), {}, (1, 1e5)),
    ("poisson", (9.99,), {}, (0, 40)), ("poisson", (10.0,), {}, (0, 40)), ("poisson", (1e6,), {}, (9.9e5, 1.01e6)),
    ("binomial", (20.0, 0.5), {}, (0, 20)), ("binomial", (21.0, 0.5), {}, (0, 21)),
    ("binomial", (1e6, 0.9), {}, (8.9e5, 9.1e5)), ("binomial", (1e6, 0.1), {}, (0.9e5, 1.1e5)),
    ("wald", (1e-3,), {}, (0, 0.1)), ("chisquare", (1e-2,), {}, (0, INF)), ("chisquare", (1e4,), {}, (9e3, 1.1e4)),
    ("generalized_normal", (50.0,), {}, (-1.3, 1.3)), ("rademacher", (), {}, (-1, 1))]


@pytest.mark.parametrize(("name", "params", "options", "limits"), WITHIN, ids=str)
def test_within(name: str, params: Any, options: Any, limits: tuple[float, float]) -> None:
    out = drawn(name, *params, shape=(500,), **options).astype("float64")
    assert (out >= limits[0]).all() and (out <= limits[1]).all()
    assert len(np.unique(out)) > 1
    if name in ("truncated_normal", "uniform") and "dtype" not in options:
        assert (out < limits[1]).all()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_randint_covers_its_range(dtype: str) -> None:
    info = jnp.iinfo(dtype)
    for low, high in ((0, 3), (int(info.min), int(info.min) + 2), (int(info.max) - 2, int(info.max)),
                      (int(info.min), int(info.max))):
        out = drawn("randint", (4000,), np.array(low, dtype), np.array(high, dtype), dtype).astype("int64")
        assert out.min() >= low and out.max() < high
        if high - low < 300:
            assert set(out.tolist()) == set(range(low, high))
        else:  # both ends' neighbourhoods
            assert out.min() - low < (high - low) / 100 and high - out.max() < (high - low) / 100


def test_what_has_no_probability_is_not_drawn() -> None:
    p = jnp.array([0.0, 0.5, 0.0, 0.5])
    for mode in ("low", "high"):
        assert set(drawn("choice", 4, (200,), p=p, mode=mode).tolist()) == {1, 3}
    assert set(drawn("choice", jnp.array([7, 8, 9, 10]), (2,), False, p=p).tolist()) == {8, 10}
    for replace in (True, False):  # certain, in integers
        assert drawn("choice", 3, (1,), replace, p=np.array([0, 1, 0])).tolist() == [1]
    logits = jnp.log(p)
    assert set(drawn("categorical", logits, shape=(200,)).tolist()) == {1, 3}
    counts = drawn("multinomial", jnp.array([0.0, 7.0, 100.0]), p)
    assert counts.shape == (3, 4) and counts.sum(1).tolist() == [0, 7, 100]
    assert (counts[:, [0, 2]] == 0).all()
    assert drawn("multinomial", 9.0, jnp.array([1.0])).tolist() == [9]
    assert drawn("multinomial", 9.0, jnp.array([0.0, 0.0, 1.0])).tolist() == [0, 0, 9]
    dirichlet = drawn("dirichlet", jnp.array([1e-3, 1.0, 50.0]), (20,))
    assert dirichlet.shape == (20, 3)
    np.testing.assert_allclose(dirichlet.sum(-1), 1, rtol=1e-5)
    assert drawn("dirichlet", jnp.array([2.0]), (3,)).tolist() == [[1], [1], [1]]


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_axes(axis: int) -> None:
    x = jnp.arange(24).reshape(2, 3, 4)
    n = x.shape[axis]
    plain, apart = (drawn("permutation", x, axis, independent=i) for i in (False, True))
    for out in (plain, apart):
        np.testing.assert_array_equal(np.sort(out, axis), x)
    lines = np.moveaxis(plain, axis, 0).reshape(n, -1)
    assert len({tuple(np.argsort(line)) for line in lines.T}) == 1
    parts = np.moveaxis(np.asarray(x), axis, 0).tolist()
    for replace in (False, True):
        chosen = drawn("choice", x, (2,), replace, axis=axis)
        assert chosen.shape == (*x.shape[:axis % 3], 2, *x.shape[axis % 3 + 1:])
        found = [parts.index(c) for c in np.moveaxis(chosen, axis, 0).tolist()]
        assert replace or len(set(found)) == 2
    logits = jnp.where(jnp.arange(n) == n - 1, 0.0, -jnp.inf)
    spread = jnp.moveaxis(jnp.broadcast_to(logits, (*np.delete(x.shape, axis).tolist(), n)), -1, axis)
    np.testing.assert_array_equal(drawn("categorical", spread, axis), np.full(np.delete(x.shape, axis), n - 1))


REFUSED = [
    ("gumbel(KEY, mode='no')", ValueError, "Must provide valid mode for gumbel got: no"),
    ("bernoulli(KEY, mode='no')", ValueError, "got mode='no', expected 'high' or 'low'"),
    ("bernoulli(KEY, 1)", TypeError, "must have a floating dtype, got int32"),
    ("bits(KEY, (), 'int32')", ValueError, "must be an unsigned int dtype, got int32"),
    ("randint(KEY, (), 0, 1, 'float32')", TypeError, "randint only accepts integer dtypes, got float32"),
    ("poisson(KEY, 1.0, (), 'float32')", ValueError, "poisson only accepts integer dtypes, got float32"),
    ("normal(KEY, (), 'int32')", ValueError, "must be a float or complex dtype, got int32"),
    ("gamma(KEY, jnp.ones(3), (2,))", ValueError, "gamma got incompatible shapes for broadcasting"),
    ("dirichlet(KEY, 1.0)", ValueError, "dirichlet requires alpha.ndim >= 1, got alpha.ndim == 0"),
    ("categorical(KEY, jnp.ones((2, 3)), shape=(3,))", ValueError, "incompatible shapes for broadcasting: (3,), (2,)."),
    ("categorical(KEY, jnp.ones(3), shape=(4,), replace=False)", ValueError,
     "(4) cannot exceed number of categories (3)"),
    ("choice(KEY, 3, (4,), False)", ValueError, "Cannot take a larger sample (size 4) than population (size 3)"),
    ("choice(KEY, 0, (1,))", ValueError, "a must be greater than 0 unless no samples are taken"),
    ("choice(KEY, 3, (1,), p=jnp.ones(2))", ValueError, "p must be None or a 1D vector with the same size"),
    ("choice(KEY, [1, 2])", TypeError, "choice requires ndarray or scalar arguments, got <class 'list'>"),
    ("permutation(KEY, [1, 2])", TypeError, "permutation requires ndarray or scalar arguments"),
    ("permutation(KEY, 5, 1)", ValueError, "axis 1 is out of bounds for array of dimension 1"),
    ("permutation(KEY, 5, -2)", ValueError, "axis -2 is out of bounds for array of dimension 1"),
    ("permutation(KEY, 1.5)", TypeError, "x must be an integer or at least 1-dimensional"),
    ("multivariate_normal(KEY, 1.0, jnp.eye(1))", ValueError, "requires mean.ndim >= 1, got mean.ndim == 0"),
    ("multivariate_normal(KEY, jnp.ones(2), jnp.eye(3))", ValueError, "for n=2, got (3, 3)"),
    ("multivariate_normal(KEY, jnp.ones(2), jnp.ones(2))", ValueError, "for n=2, got (2,)"),
    ("multivariate_normal(KEY, jnp.ones(2), jnp.eye(2), method='no')", ValueError, "method must be one of"),
    ("split(KEY, -1)", ValueError, "split takes numbers of keys that are not negative, got -1"),
    ("fold_in(KEY, -1)", OverflowError, "Python integer -1 out of bounds for uint32"),
    ("fold_in(KEY, 2**32)", OverflowError, "Python integer 4294967296 out of bounds for uint32"),
    ("fold_in(KEY, jnp.arange(2))", TypeError, "fold_in accepts a scalar, but was given an array of shape (2,)"),
    ("key(1.5)", TypeError, "PRNG key seed must be an integer"), ("key(KEY)", TypeError, "was given a PRNG key"),
    ("key(jnp.arange(2))", TypeError, "key accepts a scalar seed, but was given an array of shape (2,)"),
    ("key(0, impl='no')", ValueError, 'unrecognized PRNG implementation "no"'),
    ("key(0, impl=1.5)", TypeError, "unrecognized type <class 'float'> for specifying"),
    ("normal(split(KEY, 2))", ValueError, "normal accepts a single key, but was given a key array of shape (2,)"),
    ("normal([1, 2])", TypeError, "unexpected PRNG key type <class 'list'>"),
    ("normal(jnp.zeros(2))", TypeError, "expected key_data.dtype = uint32"),
    ("normal(jnp.zeros(3, 'uint32'))", TypeError, "expected key_data.shape to end with"),
    *((f"{call}, {axis})", ValueError, "out of bounds") for axis in (2, -3) for call in (
        "permutation(KEY, jnp.ones((2, 3))", "choice(KEY, jnp.ones((2, 3)), (), True, None",
        "categorical(KEY, jnp.ones((2, 3))")),
    ("wrap_key_data(jnp.uint32(1))", TypeError, "expected key_data.ndim >= 1"),
    ("key(0, impl='rbg', dtype=key_dtype())", ValueError, "say the same"),
    ("key(0, dtype='uint32')", TypeError, "dtype must be a key dtype"),
    ("dirichlet(KEY, jnp.ones((2, 3)), (3,))", ValueError, "dirichlet got incompatible shapes"),
    ("dirichlet(KEY, jnp.ones((2, 3)), ())", ValueError, "dirichlet got incompatible shapes"),
    ("multinomial(KEY, 3.0, jnp.ones((2, 3)) / 3, shape=(3,))", ValueError, "multinomial got incompatible shapes"),
    *((f"{call}, dtype='int32')", ValueError, "must be a float or complex dtype") for call in (
        "normal(KEY", "orthogonal(KEY, 2")),
    ("triangular(KEY, 0.0, jnp.ones(2), 2.0, (3,))", ValueError, "triangular got incompatible shapes"),
]


@pytest.mark.parametrize(("call", "error", "text"), REFUSED, ids=[r[0] for r in REFUSED])
def test_refused(call: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        eval(f"R.{call}", {"R": R, "jnp": jnp, "KEY": KEY, **vars(R)})
    assert text in str(caught.value)
