"""Functions of Python that fill memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
from anima.experimental.buffer_callback import Buffer, ExecutionContext, ExecutionStage, buffer_callback

X = np.float32([1.0, 2.0, 3.0])
LIKE = anima.ShapeDtypeStruct((3,), np.float32)


def double(ctx: ExecutionContext, out: Any, x: Any) -> None:
    assert ctx.stage is ExecutionStage.EXECUTE
    assert (out.writeable, x.writeable, x.shape, x.dtype, x.ndim) == (True, False, (3,), np.float32, 1)
    np.asarray(out)[...] += 2 * np.asarray(x)


@pytest.mark.parametrize("effect", [False, True])
def test_results_are_what_was_written(effect: bool) -> None:
    call = buffer_callback(double, LIKE, has_side_effect=effect)
    np.testing.assert_array_equal(call(X), 2 * X)
    np.testing.assert_array_equal(anima.jit(lambda x: call(x) + 1)(X), 2 * X + 1)
    into = buffer_callback(double, LIKE, has_side_effect=effect, input_output_aliases={0: 0})
    given = anima.numpy.array(X)
    np.testing.assert_array_equal(into(given), 3 * X)
    np.testing.assert_array_equal(given, X)


def test_trees_of_buffers() -> None:
    def fill(ctx: Any, out: Any, tree: Any, number: Any) -> None:
        np.asarray(out["sum"])[...] = np.asarray(tree["a"]) + np.asarray(number)
        assert isinstance(out["kept"][0], Buffer)

    call = buffer_callback(fill, {"sum": LIKE, "kept": [anima.ShapeDtypeStruct((), np.int32)]})
    out = anima.jit(call)({"a": X}, 1.0)
    np.testing.assert_array_equal(out["sum"], X + 1)
    assert int(out["kept"][0]) == 0


def test_batches() -> None:
    call = buffer_callback(double, LIKE, vmap_method="sequential")
    np.testing.assert_array_equal(anima.vmap(call)(np.stack([X, -X])), np.stack([2 * X, -2 * X]))


def test_mistakes() -> None:
    for aliases, match in (({1: 0}, "no argument 1"), ({0: 1}, "no argument 0, or no result 1")):
        with pytest.raises(ValueError, match=match):
            buffer_callback(double, LIKE, input_output_aliases=aliases)(X)
    with pytest.raises(ValueError, match="argument 0 is no float32"):
        buffer_callback(double, LIKE, input_output_aliases={0: 0})(X.astype(np.int32))
    with pytest.raises(ValueError, match="vmap_method"):
        buffer_callback(double, LIKE, has_side_effect=True, vmap_method="sequential")
    with pytest.raises(NotImplementedError, match="stream"):
        ExecutionContext().stream  # noqa: B018
