"""Random numbers from explicit keys: pure functions of a key, the same on every machine.

    key = anima.random.key(0)
    key, subkey = anima.random.split(key)
    x = anima.random.normal(subkey, (3,))

Each draw needs a key of its own: `split` makes new ones.
"""

from anima import errors as _errors
from anima.random.counts import binomial, geometric, multinomial, poisson
from anima.random.distributions import (
    categorical,
    cauchy,
    double_sided_maxwell,
    exponential,
    gumbel,
    laplace,
    logistic,
    lognormal,
    maxwell,
    pareto,
    rayleigh,
    triangular,
    truncated_normal,
    wald,
    weibull_min,
)
from anima.random.draws import bernoulli, bits, normal, rademacher, randint, uniform
from anima.random.gamma import (
    ball,
    beta,
    chisquare,
    dirichlet,
    f,
    gamma,
    generalized_normal,
    loggamma,
    random_gamma_p,
    t,
)
from anima.random.keys import (
    PRNGKey,
    clone,
    fold_in,
    key,
    key_data,
    key_dtype,
    key_impl,
    split,
    wrap_key_data,
)
from anima.random.matrix import multivariate_normal, orthogonal
from anima.random.shuffle import choice, permutation

globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = [
    "PRNGKey", "ball", "bernoulli", "beta", "binomial", "bits", "categorical", "cauchy", "chisquare", "choice",
    "clone", "dirichlet", "double_sided_maxwell", "exponential", "f", "fold_in", "gamma", "generalized_normal",
    "geometric", "gumbel", "key", "key_data", "key_dtype", "key_impl", "laplace", "loggamma", "logistic",
    "lognormal", "maxwell", "multinomial", "multivariate_normal", "normal", "orthogonal", "pareto",
    "permutation", "poisson", "rademacher", "randint", "random_gamma_p", "rayleigh", "split", "t", "triangular",
    "truncated_normal", "uniform", "wald", "weibull_min", "wrap_key_data",
]
