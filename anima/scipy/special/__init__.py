"""Special functions, as `scipy.special`: differentiated, batched and compiled; how accurate, see docs/accuracy.md.

    >>> anima.scipy.special.gammaln(jnp.array([1., 10.]))
    Array([ 0.      , 12.801827], dtype=float32)
"""

from anima import errors as _errors
from anima.scipy.special.entropy import (
    boxcox,
    boxcox1p,
    entr,
    expit,
    kl_div,
    log_softmax,
    logit,
    logsumexp,
    rel_entr,
    softmax,
    xlog1py,
    xlogy,
)
from anima.scipy.special.factorials import (
    bernoulli,
    beta,
    betainc,
    betaln,
    comb,
    digamma,
    factorial,
    gamma,
    gammainc,
    gammaincc,
    gammaln,
    gammasgn,
    loggamma,
    multigammaln,
    poch,
    polygamma,
    zeta,
)
from anima.scipy.special.integrals import (
    dawsn,
    erf,
    erfc,
    erfcx,
    erfinv,
    exp1,
    expi,
    expn,
    fresnel,
    log_ndtr,
    ndtr,
    ndtri,
    owens_t,
    sici,
    spence,
    wofz,
)
from anima.scipy.special.legendre import lpmn, lpmn_values
from anima.scipy.special.orthogonal import (
    bessel_jn,
    hyp1f1,
    hyp2f1,
    i0,
    i0e,
    i1,
    i1e,
    sph_harm_y,
)

globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = [
    "bernoulli", "bessel_jn", "beta", "betainc", "betaln", "boxcox", "boxcox1p", "comb", "dawsn", "digamma", "entr",
    "erf", "erfc", "erfcx", "erfinv", "exp1", "expi", "expit", "expn", "factorial", "fresnel", "gamma", "gammainc",
    "gammaincc", "gammaln", "gammasgn", "hyp1f1", "hyp2f1", "i0", "i0e", "i1", "i1e", "kl_div", "log_ndtr",
    "log_softmax", "loggamma", "logit", "logsumexp", "lpmn", "lpmn_values", "multigammaln", "ndtr", "ndtri",
    "owens_t", "poch", "polygamma", "rel_entr", "sici", "softmax", "spence", "sph_harm_y", "wofz", "xlog1py", "xlogy",
    "zeta"]
