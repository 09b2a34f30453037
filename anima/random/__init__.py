"""Random numbers from explicit keys: pure functions of a key, the same on every machine.

    key = anima.random.key(0)
    key, subkey = anima.random.split(key)
    x = anima.random.normal(subkey, (3,))

Each draw needs a key of its own: `split` makes new ones.
"""

from anima.random.distributions import (
    categorical,
    cauchy,
    double_sided_maxwell,
    exponential,
    geometric,
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
from anima.random.shuffle import choice, permutation

__all__ = [
    "PRNGKey", "bernoulli", "bits", "categorical", "cauchy", "choice", "clone", "double_sided_maxwell",
    "exponential", "fold_in", "geometric", "gumbel", "key", "key_data", "key_dtype", "key_impl", "laplace",
    "logistic", "lognormal", "maxwell", "normal", "pareto", "permutation", "rademacher", "randint", "rayleigh",
    "split", "triangular", "truncated_normal", "uniform", "wald", "weibull_min", "wrap_key_data",
]
