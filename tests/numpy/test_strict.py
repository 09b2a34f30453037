"""Functions under `anima_numpy_dtype_promotion="strict"` and `anima_numpy_rank_promotion="raise"`: given operands of
one type and rank, none promotes within; given others, functions of several operands refuse.
"""

from __future__ import annotations

import pathlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.image
import anima.numpy as jnp
import anima.ops
from anima import lax

CALLS = [line for line in (pathlib.Path(__file__).parent / "data" / "calls.txt").read_text().splitlines()
         if line and not line.startswith("#")]

# Calls with operands of several types or ranks: promotions that the user wrote, which some functions refuse and others,
# for which the types do not matter, allow.
WRITTEN = {
    "hypot(f,g)", "logaddexp(f,g)", "logaddexp2(f,g)", "add(f,g)", "multiply(f,i)", "floor_divide(f,g)",
    "remainder(f,g)", "divmod(f,g)", "power(f,j)", "maximum(f,g)", "fmax(nf,g)", "fmin(nf,g)", "copysign(f,g)",
    "less(f,g)", "logical_and(f,i)", "arctan2(f,g)", "nextafter(f,g)", "select([b,f>-1],[f,i],9)", "matvec(f3,g)",
    "vecmat(g,f3.swapaxes(1,2))", "percentile(f,[10,50],axis=1)", "cov(f,fweights=j[0])", "trapezoid(f,g)",
    "logical_or(f,i)", "logical_xor(b,i)", "minimum(f,g)"}

NN = ["celu", "elu", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_tanh", "identity", "leaky_relu", "log1mexp",
      "log_sigmoid", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_sign", "softplus", "sparse_plus",
      "sparse_sigmoid", "squareplus", "tanh", "softmax", "log_softmax", "logsumexp", "logmeanexp", "standardize"]
INITIALIZERS = ["glorot_normal()", "glorot_uniform()", "he_normal()", "he_uniform()", "lecun_normal()", "normal()",
                "lecun_uniform()", "uniform()", "truncated_normal()", "orthogonal()", "constant(3)", "zeros", "ones"]
DRAWS = ["ball(key, 3)", "bernoulli(key, 0.3, (3,))", "beta(key, 1.0, 2.0, (3,))", "binomial(key, 5, 0.3, (3,))",
         "bits(key, (3,))", "categorical(key, jnp.ones(3))", "cauchy(key, (3,))", "chisquare(key, 2.0, shape=(3,))",
         "choice(key, 5, (3,))", "choice(key, f[0], (3,), p=p[0] / p[0].sum())", "dirichlet(key, jnp.ones(3), (2,))",
         "double_sided_maxwell(key, 1.0, 2.0, (3,))", "exponential(key, (3,))", "f(key, 2.0, 3.0, shape=(3,))",
         "gamma(key, 2.0, (3,))", "generalized_normal(key, 1.5, (3,))", "geometric(key, 0.3, (3,))",
         "gumbel(key, (3,))", "laplace(key, (3,))", "loggamma(key, 2.0, (3,))", "logistic(key, (3,))",
         "lognormal(key, 1.0, (3,))",
         "maxwell(key, (3,))", "multinomial(key, 5, jnp.ones(3) / 3, shape=(2, 3))", "normal(key, (3,))",
         "multivariate_normal(key, jnp.zeros(3), jnp.eye(3))", "orthogonal(key, 3)", "pareto(key, 2.0, (3,))",
         "permutation(key, f, axis=1)", "poisson(key, 3.0, (3,))", "rademacher(key, (3,))", "randint(key, (3,), 0, 10)",
         "rayleigh(key, 1.0, (3,))", "t(key, 3.0, (3,))", "triangular(key, 0.0, 0.5, 1.0, (3,))",
         "truncated_normal(key, -1.0, 1.0, (3,))", "uniform(key, (3,), minval=1, maxval=3)", "wald(key, 1.0, (3,))",
         "weibull_min(key, 1.0, 2.0, (3,))", "split(key)", "fold_in(key, 3)"]
OTHERS = [
    "jnp.histogram(i, bins=4, density=True)", "jnp.histogram(f, bins=f[0].sort())", "jnp.histogram2d(f[0], g, 3)",
    "jnp.histogramdd(f, 3, density=True)", "jnp.polyfit(g, f[0], 1, w=p[0], cov=True)", "jnp.polyfit(g, f.T, 2)",
    "jnp.polyfit(g, f[0], 1, full=True)", "jnp.corrcoef(f, f)", "jnp.cov(f, f, aweights=p[0])",
    "jnp.linspace(p[0, 0], 1, 3, dtype='float16')",
    "jnp.var(i, dtype=jnp.bfloat16)", "jnp.nanstd(i, axis=1, dtype=jnp.float32)",
    *(f"jnp.linalg.{call}" for c in ("(f @ f.T)", "(f @ f.T).astype('c8')") for call in (
        f"slogdet({c})", f"slogdet({c}, method='qr')", f"det({c})")),
    "anima.grad(lambda x: jnp.linalg.slogdet(x)[1])((f @ f.T).astype('c8'))",
    "jnp.insert(f, 1, 2.5)", "jnp.average(f, axis=1, weights=g)", "jnp.unwrap(i, period=6)", "jnp.tri(3, k=1)",
    "jnp.add.reduceat(f, iv, axis=1)", "nn.one_hot(iv, 4)", "nn.one_hot(iv, 4, axis=0)",
    "nn.dot_product_attention(q, q, q, is_causal=True)",
    "nn.dot_product_attention(q, q, q, bias=q[0, 0, 0, 0], scale=0.5, query_seq_lengths=iv[:2],"
    " key_value_seq_lengths=iv[:2], local_window_size=1)",
    "nn.initializers.glorot_normal()(key, (3, 4), jnp.complex64)",
    "nn.initializers.variance_scaling(1.0, 'fan_avg', 'uniform')(key, (3, 4), jnp.complex64)",
    "nn.initializers.delta_orthogonal()(key, (3, 2, 2))", "nn.gelu(f, approximate=False)",
    "nn.logsumexp(f, axis=0, b=p, return_sign=True)", "nn.logsumexp(c)",
    "nn.softmax(f, where=b)", "nn.standardize(f, algorithm='stable')",
    "anima.image.resize(f, (2, 7), 'cubic')", "anima.image.resize(f, (2, 7), 'area')",
    "anima.image.scale_and_translate(f, (5, 5), (0, 1), g[:2], g[:2], 'lanczos3')", "anima.ops.segment_min(f, iv)",
    "anima.ops.segment_sum(f, iv, 3, bucket_size=2)", "lax.ragged_dot(f, f3.swapaxes(1, 2), iv[1:])",
    "lax.scaled_dot(f, f.T)", "lax.approx_max_k(f, 2)", "lax.mul(f, f, out_dtype=jnp.bfloat16)",
    "f.at[1].multiply(g)", "f.at[:, 1].divide(2)", "f.at[1].power(2)", "f.repeat(repeats=2, axis=1)", "f.byteswap()",
    "anima.test_util.check_grads(jnp.sin, (f,), 2)"]


def operands() -> dict[str, Any]:
    rng = np.random.RandomState(0)
    f, g = rng.randn(3, 4).astype("f"), rng.randn(4).astype("f")
    nf = f.copy()
    nf[1, 2] = nf[0] = np.nan
    i = rng.randint(-5, 9, (3, 4)).astype("i")
    values = {"f": f, "g": g, "p": np.abs(f) + np.float32(0.5), "i": i, "j": rng.randint(1, 5, (3, 4)).astype("i"),
              "b": f > 0, "c": (f + 1j * f[::-1]).astype("c8"), "u": i.astype("u1"), "nf": nf,
              "f3": rng.randn(2, 3, 4).astype("f"), "v": rng.randn(7).astype("f"), "iv": np.array([0, 2, 1], "i"),
              "q": rng.randn(2, 3, 2, 4).astype("f")}
    return {name: jnp.asarray(x) for name, x in values.items()}


OPERANDS = operands()
SCOPE = {"jnp": jnp, "np": np, "nn": anima.nn, "lax": lax, "anima": anima, **OPERANDS}


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    with anima.numpy_dtype_promotion("strict"), anima.numpy_rank_promotion("raise"):
        yield


def run(call: str, **more: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        eval(call, {**SCOPE, **more})


@pytest.mark.parametrize("call", [c for c in CALLS if c not in WRITTEN])
@pytest.mark.parametrize("x64", [False, True])
def test_nothing_is_promoted_within(call: str, x64: bool) -> None:
    if x64 and re.search(r"np.array\(\[[^]]*\d\.", call):  # numbers that are float64 then
        pytest.skip("operands of two types")
    own = {n: jnp.asarray(v) for n, v in OPERANDS.items() if re.search(rf"\b{n}\b", call.partition("(")[2])}
    with anima.enable_x64(x64):
        run("jnp." + call, np=jnp, **own)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", NN)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_functions_of_networks(name: str, dtype: str, x64: bool) -> None:
    with anima.enable_x64(x64):
        x = jnp.asarray(OPERANDS["f"]).astype(dtype)
        assert getattr(anima.nn, name)(x).dtype == dtype


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("call", [*[f"nn.initializers.{i}(key, (3, 4))" for i in INITIALIZERS],
                                  *[f"anima.random.{d}" for d in DRAWS], *OTHERS])
def test_other_functions(call: str, x64: bool) -> None:
    with anima.enable_x64(x64):
        run(call, key=anima.random.key(0))


@pytest.mark.parametrize("call", ["add(f, g)", "multiply(f, i)", "maximum(i, f)", "where(b, f, i)", "less(f, g)",
                                  "concatenate([f, i])", "dot(f, i.T)", "fmax(nf, g)"])
def test_what_the_user_wrote_is_refused(call: str) -> None:
    with pytest.raises((TypeError, ValueError), match=r"promotion|broadcast together"):
        run("jnp." + call)


def test_factors_of_several_types_where_the_products_type_is_said() -> None:
    x, y = jnp.ones((2, 3), "float32"), jnp.ones((3, 2), "int8")
    products = [jnp.dot, jnp.matmul, lambda a, b, **k: jnp.tensordot(a, b, 1, **k),
                lambda a, b, **k: jnp.einsum("ij,jk", a, b, **k), lambda a, b, **k: jnp.inner(a, b.T, **k),
                lambda a, b, **k: jnp.vecdot(a, b.T, **k)]
    with anima.numpy_dtype_promotion("strict"):
        for product in products:
            assert product(x, y, preferred_element_type=np.float32).dtype == np.float32
            with pytest.raises(anima.dtypes.TypePromotionError):
                product(x, y)


def test_outer_functions_do_not_promote_ranks() -> None:
    with anima.numpy_rank_promotion("raise"):
        assert jnp.add.outer(jnp.ones((2, 1)), jnp.ones(3)).shape == (2, 1, 3)


def test_an_array_of_integers_is_no_exponent_of_floats() -> None:
    f, i = OPERANDS["f"], OPERANDS["i"]
    with pytest.raises(anima.dtypes.TypePromotionError):
        f**i
    assert (f**2).dtype == f.dtype and (i ** abs(i)).dtype == i.dtype
