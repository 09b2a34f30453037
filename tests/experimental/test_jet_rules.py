"""Rules of Taylor mode from outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.experimental.jet import jet, jet_rules
from anima.extend import core
from anima.extend.core import primitives
from anima.interpreters import ad, mlir


def made(name: str, fun: Any, many: bool = False) -> core.Primitive:
    p = core.Primitive(name)
    p.multiple_results = many
    p.def_abstract_eval(lambda x: [x, x] if many else x)
    mlir.register_lowering(p, mlir.lower_fun(fun, multiple_results=many))
    return p


@pytest.mark.parametrize("mode", [lambda f: f, anima.jit])
def test_a_rule_is_one_of_derivatives(mode: Any) -> None:
    p = made("my_square", lambda x: x * x)
    assert p not in jet_rules

    def rule(primals: Any, series: Any) -> Any:
        (x,), ((d1, d2, d3),) = primals, series
        return p.bind(x), [2 * x * d1, 2 * d1 * d1 + 2 * x * d2, 6 * d1 * d2 + 2 * x * d3]

    jet_rules[p] = rule
    ad.primitive_jvps[p] = lambda primals, tangents: (p.bind(*primals), tangents[0])
    assert p in jet_rules and jet_rules[p] is rule

    def f(op: Any) -> Any:
        return mode(lambda x, s: jet(lambda x: jnp.sin(op(3 * x)), (x,), (s,)))(0.5, [1.0, 2.0, 3.0])

    (value, series), (expected, terms) = f(p.bind), f(lambda x: x * x)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(series, terms, rtol=1e-5)
    del jet_rules[p]
    assert jet_rules[p] is not rule
    del ad.primitive_jvps[p]
    assert p not in jet_rules
    with pytest.raises(KeyError):
        jet_rules[p]


def test_several_results() -> None:
    p = made("my_pair", lambda x: [x + 1, 2 * x], many=True)
    jet_rules[p] = lambda primals, series: (p.bind(*primals), [series[0], [2 * c for c in series[0]]])
    values, series = jet(lambda x: p.bind(x), (1.0,), ([3.0, 4.0],))
    np.testing.assert_allclose(values, [2.0, 2.0])
    np.testing.assert_allclose(series, [[3.0, 4.0], [6.0, 8.0]])


def test_rules_of_animas_own_primitives() -> None:
    assert primitives.exp_p in jet_rules
    value, series = jet_rules[primitives.exp_p]((0.0,), ([1.0, 0.0, 0.0],))
    np.testing.assert_allclose([value, *series], np.ones(4))
