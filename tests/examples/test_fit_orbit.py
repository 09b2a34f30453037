"""The example does what it says: gradients through an adaptive solver are right, and the rates are found."""

from __future__ import annotations

import fit_orbit as example
import numpy as np

import anima


def test_rates_are_found() -> None:
    report = example.main(["--points", "20"])
    assert report.forward_difference < 1e-10 and report.finite_difference < 1e-4
    assert np.max(np.abs(report.rates / example.RATES - 1)) < 0.02
    assert report.losses[-1] < report.losses[0] / 10


def test_solver_on_an_equation_with_a_known_solution() -> None:
    with anima.enable_x64(True):
        y = example.solve(lambda t, y, rates: -rates * y, anima.numpy.ones(3), 0.0, 2.0, np.array([0.5, 1.0, 2.0]))
        np.testing.assert_allclose(y, np.exp(-2.0 * np.array([0.5, 1.0, 2.0])), rtol=1e-6)
