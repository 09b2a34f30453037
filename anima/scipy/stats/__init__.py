"""Statistics, as `scipy.stats`: a module for each distribution, ranks, modes, and densities estimated from samples.

    >>> anima.scipy.stats.norm.cdf(jnp.array([0.0, jnp.inf]))
    Array([0.5, 1. ], dtype=float32)

Densities are -inf (or 0) outside of a distribution's support, all is NaN for parameters that are none.
"""

from anima import errors as _errors
from anima.scipy.stats import (
    bernoulli,
    beta,
    betabinom,
    binom,
    cauchy,
    chi2,
    dirichlet,
    expon,
    gamma,
    gennorm,
    geom,
    gumbel_l,
    gumbel_r,
    laplace,
    logistic,
    multinomial,
    multivariate_normal,
    nbinom,
    norm,
    pareto,
    poisson,
    t,
    truncnorm,
    uniform,
    vonmises,
    wrapcauchy,
)
from anima.scipy.stats.kde import gaussian_kde
from anima.scipy.stats.summary import mode, rankdata, sem

globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = [
    "bernoulli", "beta", "betabinom", "binom", "cauchy", "chi2", "dirichlet", "expon", "gamma", "gaussian_kde",
    "gennorm", "geom", "gumbel_l", "gumbel_r", "laplace", "logistic", "mode", "multinomial", "multivariate_normal",
    "nbinom", "norm", "pareto", "poisson", "rankdata", "sem", "t", "truncnorm", "uniform", "vonmises", "wrapcauchy"]
