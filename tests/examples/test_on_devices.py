"""The example's three ways to cut a network give the weights of one device, as jitted and as programs of one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import on_devices as example
import pytest

import anima

pytestmark = pytest.mark.usefixtures("eight_devices")


def test_weights_are_those_of_one_device() -> None:
    reports = example.main(["--steps", "20"])
    assert list(reports) == ["data", "tensor", "pipeline"]
    for name, report in reports.items():
        assert report.difference < 1e-5 and 0 < report.loss < 2.2, name


@pytest.mark.parametrize(("way", "collectives"), [
    (example.data_parallel, {"psum"}), (example.tensor_parallel, {"psum"}),
    (example.pipeline, {"ppermute", "psum_invariant"})])
def test_programs_of_one_device(way: Callable[[Any], Any], collectives: set[str]) -> None:
    mesh = anima.make_mesh((8,), ("x",), axis_types=(anima.sharding.AxisType.Auto,))
    data, _ = example.load_digits(0.2, anima.random.key(0))
    args = example.init(anima.random.key(1)), data.images[:64], data.labels[:64]
    program = way(mesh).lower(*args).partitioned
    assert {c.name for c in program.collectives} == collectives
    assert all(c.source.file.endswith("on_devices.py") for c in program.collectives)
    found, expected = program(*args), anima.jit(example.make_step())(*args)
    for a, b in zip(*map(anima.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
