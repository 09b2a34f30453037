"""Kernels over grids do what NumPy does block by block."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.experimental import checkify, pallas as pl
from anima.experimental.pallas import tpu
from anima.test_util import check_grads

close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def float32(*shape: int) -> Any:
    return anima.ShapeDtypeStruct(shape, np.float32)


def product(x: Any, y: Any, m: int, n: int, k: int) -> Any:
    """Sums in scratch memory, which the first step along the last axis clears."""
    def kernel(x: Any, y: Any, out: Any, sums: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            sums[...] = jnp.zeros_like(sums)

        sums[...] += x[...] @ y[...]

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _() -> None:
            out[...] = sums[...]

    return pl.pallas_call(
        kernel, float32(x.shape[0], y.shape[1]), grid=(x.shape[0] // m, y.shape[1] // n, x.shape[1] // k),
        in_specs=[pl.BlockSpec((m, k), lambda i, j, l: (i, l)), pl.BlockSpec((k, n), lambda i, j, l: (l, j))],
        out_specs=pl.BlockSpec((m, n), lambda i, j, l: (i, j)), scratch_shapes=[tpu.VMEM((m, n), jnp.float32)])(x, y)


def softmax(x: Any) -> Any:
    """Rows without their axis."""
    def kernel(x: Any, out: Any) -> None:
        assert x.shape == out.shape == (9,)
        e = jnp.exp(x[...] - jnp.max(x[...]))
        out[...] = e / jnp.sum(e)

    row = pl.BlockSpec((None, 9), lambda i: (i, 0))
    return pl.pallas_call(kernel, x, grid=x.shape[0], in_specs=[row], out_specs=row)(x)


def attention(q: Any, k: Any, v: Any, size: int) -> Any:
    """Blocks of rows, and a loop over blocks of keys inside of a step."""
    def kernel(q: Any, k: Any, v: Any, out: Any) -> None:
        def more(j: Any, state: Any) -> Any:
            total, highest, weight = state
            score = q[...] @ k[pl.ds(j * size, size), :].T
            new = jnp.maximum(highest, score.max(1))
            p, old = jnp.exp(score - new[:, None]), jnp.exp(highest - new)
            return total * old[:, None] + p @ v[pl.ds(j * size, size), :], new, weight * old + p.sum(1)

        start = jnp.zeros(q.shape), jnp.full(size, -jnp.inf), jnp.zeros(size)
        total, _, weight = lax.fori_loop(0, k.shape[0] // size, more, start)
        out[...] = total / weight[:, None]

    whole, block = pl.BlockSpec(k.shape, lambda i: (0, 0)), pl.BlockSpec((size, q.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(kernel, q, grid=(q.shape[0] // size,), in_specs=[block, whole, whole], out_specs=block)(
        q, k, v)


def softmax_of(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("compiled", [False, True])
def test_kernels(compiled: bool) -> None:
    way: Any = anima.jit if compiled else lambda f: f
    x, y, q = some(24, 16), some(16, 12), some(16, 8)
    close(way(lambda x, y: product(x, y, 8, 4, 4))(x, y), x @ y)
    close(way(softmax)(some(5, 9)), softmax_of(some(5, 9)))
    close(way(lambda *a: attention(*a, 4))(q, q * 2, q + 1), softmax_of(q @ q.T * 2) @ (q + 1))


def test_transformed() -> None:
    x, y = some(3, 8, 8), some(3, 8, 8) + 1
    close(anima.vmap(lambda x, y: product(x, y, 4, 4, 4))(x, y), x @ y)
    close(anima.jit(anima.vmap(softmax))(some(2, 3, 9)), softmax_of(some(2, 3, 9)))
    check_grads(lambda x, y: product(x, y, 4, 4, 4), (x[0], y[0]), 2, atol=3e-2, rtol=3e-2)
    check_grads(softmax, (some(2, 9),), 1, atol=1e-2, rtol=1e-2)


def test_blocks_that_reach_beyond_the_array() -> None:
    """They have NaN there; what is written there is dropped. The block of one operand stands for all rows."""
    def kernel(x: Any, y: Any, out: Any, outside: Any) -> None:
        out[...] = x[...] * 2 + y[...]
        outside[...] = jnp.sum(jnp.isnan(x[...]))[None, None]

    x, y = some(10, 13), some(1, 13)
    block = pl.BlockSpec((4, 8), lambda i, j: (i, j))
    out, outside = pl.pallas_call(
        kernel, [float32(10, 13), anima.ShapeDtypeStruct((3, 2), np.int32)], grid=(3, 2),
        in_specs=[block, pl.BlockSpec((1, 8), lambda i, j: (0, j))],
        out_specs=[block, pl.BlockSpec((1, 1), lambda i, j: (i, j))])(x, y)
    close(out, x * 2 + y)
    assert outside.tolist() == [[0, 12], [0, 12], [16, 22]]


def test_elements_number_blocks_in_the_padded_array() -> None:
    got = pl.pallas_call(lambda x, y: y.__setitem__(..., jnp.nan_to_num(x[...], nan=-1)), float32(6), grid=2,
                         in_specs=[pl.BlockSpec((pl.Element(3, (1, 0)),), lambda i: (i,))],
                         out_specs=pl.BlockSpec((3,), lambda i: i))(jnp.arange(6.0))
    assert got.tolist() == [-1, 0, 1, 0, 1, 2]


def test_results_that_several_steps_write() -> None:
    """What a step left is what the next one finds, in the order of the grid: the last axis is the fastest."""
    def kernel(x: Any, total: Any, order: Any) -> None:
        @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += x[...].sum(keepdims=True)
        order[...] = jnp.full(1, pl.program_id(0) * 10 + pl.program_id(1))

    total, order = pl.pallas_call(
        kernel, (float32(1), anima.ShapeDtypeStruct((6,), np.int32)), grid=(2, 3),
        in_specs=[pl.BlockSpec((2,), lambda i, j: (3 * i + j,))],
        out_specs=(pl.BlockSpec((1,), lambda i, j: (0,)), pl.BlockSpec((1,), lambda i, j: (3 * i + j,))))(
            jnp.arange(12.0))
    assert total.tolist() == [66] and order.tolist() == [0, 1, 2, 10, 11, 12]


def test_scalars_that_index_maps_see() -> None:
    idx, x = np.array([3, 0, 2, 2, 1], np.int32), some(6, 4)
    spec = tpu.PrefetchScalarGridSpec(1, grid=(5,), in_specs=[pl.BlockSpec((1, 4), lambda i, idx: (idx[i], 0))],
                                      out_specs=pl.BlockSpec((1, 4), lambda i, idx: (i, 0)))
    got = pl.pallas_call(lambda idx, x, out: out.__setitem__(..., x[...] + idx[pl.program_id(0)]), float32(5, 4),
                         grid_spec=spec)(idx, x)
    close(got, x[idx] + idx[:, None])


def test_what_results_begin_as() -> None:
    def nothing(*refs: Any) -> None:
        pass

    a, b, c = pl.pallas_call(nothing, [float32(2), anima.ShapeDtypeStruct((1,), np.int8),
                                       anima.ShapeDtypeStruct((1,), bool)])()
    assert np.isnan(a).all() and b.tolist() == [-128] and c.tolist() == [False]
    x = jnp.arange(4.0)
    got = pl.pallas_call(lambda x, y: y.__setitem__(pl.ds(1, 2), x[pl.ds(0, 2)] * 10), x,
                         input_output_aliases={0: 0})(x)
    assert got.tolist() == [0, 0, 10, 3] and x.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"operand 0 of type float32\[4\] cannot be result 0 of type float32\[2\]"):
        pl.pallas_call(nothing, float32(2), input_output_aliases={0: 0})(x)


def test_trees_loops_and_memory_of_ones_own() -> None:
    def kernel(x: Any, out: Any, *, kept: Any) -> None:
        @pl.loop(0, 4)
        def _(i: Any) -> None:
            kept[i] = x["a"][3 - i] + x["b"][0]

        pl.run_scoped(lambda tmp: (tmp.__setitem__(..., kept[...] * 2), out.__setitem__(..., tmp[...]))[2:] or None,
                      pl.ANY((4,), jnp.float32))

        @pl.loop(0, 4, step=3, init_carry=jnp.float32(0))
        def total(i: Any, c: Any) -> Any:
            return c + x["a"][i]

        out[0] = total

    got = pl.pallas_call(kernel, float32(4), scratch_shapes={"kept": pl.ANY((4,), jnp.float32)}, interpret=True)(
        {"a": jnp.arange(4.0), "b": jnp.ones(1)})
    assert got.tolist() == [3, 6, 4, 2]
    assert pl.run_state(lambda refs: refs["x"].addupdate(1.0))({"x": jnp.zeros(2)})["x"].tolist() == [1, 1]
    assert pl.with_scoped(pl.ANY((2,), jnp.int8))(lambda y, ref: ref[...] + y)(1).tolist() == [-127, -127]


def test_debug_checks() -> None:
    def kernel(x: Any, out: Any) -> None:
        pl.debug_check(x[0] < 2, "too large")
        out[...] = x[...]

    block = pl.BlockSpec((1,), lambda i: (i,))
    run = anima.jit(checkify.checkify(pl.pallas_call(kernel, float32(3), grid=3, in_specs=[block], out_specs=block)))
    assert run(jnp.arange(3.0))[0].get() is None
    with pl.enable_debug_checks(True):
        assert "too large" in run(jnp.arange(3.0))[0].get()
        assert run(jnp.zeros(3))[0].get() is None


def test_errors() -> None:
    def copy(x: Any, y: Any) -> None:
        y[...] = x[...]

    def call(kernel: Any, *specs: Any, grid: Any = 2) -> Any:
        return pl.pallas_call(kernel, float32(6), grid=grid, in_specs=list(specs) or pl.no_block_spec)(
            jnp.arange(6.0))

    with pytest.raises(ValueError, match=r"Block shape for args\[0\] \(= \(4, 1\)\) must have the same number of dim"):
        call(copy, pl.BlockSpec((4, 1), lambda i: (i, 0)))
    with pytest.raises(ValueError, match=r"Block shape for args\[0\] .* positive"):
        call(copy, pl.BlockSpec((0,), lambda i: (i,)))
    with pytest.raises(ValueError, match=r"Index map function <lambda> for args\[0\] must return 1 values .* 2"):
        call(copy, pl.BlockSpec((3,), lambda i: (i, 0)))
    with pytest.raises(ValueError, match="Pytree for `in_specs` and its values do not match"):
        call(copy, pl.BlockSpec(), pl.BlockSpec())
    with pytest.raises(ValueError, match=r"in the pallas_call <lambda> should return None\. It returns"):
        call(lambda x, y: x[...])
    with pytest.raises(ValueError, match=r"Axis 1 is out of bounds for grid \(2,\)"):
        call(lambda x, y: y.__setitem__(0, pl.program_id(1)))
    with pytest.raises(ValueError, match=r"program_id\(0\): there is no grid outside of kernels"):
        pl.program_id(0)
    with pytest.raises(NotImplementedError, match=r"pallas\.semaphore_wait is not implemented: it is about copies"):
        pl.semaphore_wait(None)


def test_numbers() -> None:
    assert [pl.cdiv(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2] and pl.cdiv(jnp.int32(9), 4) == 3
    assert [pl.next_power_of_2(n) for n in (0, 1, 3, 8, 9)] == [1, 1, 4, 8, 16] and pl.align_to(9, 8) == 16
    assert pl.strides_from_shape((2, 3, 4)) == (12, 4, 1)
    with pytest.raises(ValueError, match="non-negative"):
        pl.next_power_of_2(-1)
    cost = pl.estimate_cost(lambda x: jnp.sin(x) @ x, jnp.ones(6))
    assert (cost.flops, cost.transcendentals, cost.bytes_accessed) == (11, 6, 28)
    product = pl.estimate_cost(jnp.matmul, *(anima.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((40, 70), (70, 9))))
    assert (product.flops, product.bytes_accessed) == (50400, 2 * (40 * 70 + 70 * 9 + 40 * 9))
    assert pl.reciprocal(jnp.float32(4)) == 0.25 and pl.multiple_of(3, 1) == 3
    assert np.isnan(pl.empty((2,), jnp.float32)).all() and pl.empty_ref_like(float32(2)).shape == (2,)
    assert pl.BlockSpec((1,)).replace(block_shape=(2,)).block_shape == (2,)
    assert "VMEM" in dir(tpu) and "tpu" in dir(pl) and "calls" not in dir(pl)
    spec = pl.BlockSpec((2,), lambda i: (i,), pipeline_mode=pl.Buffered(buffer_count=3))
    assert spec.pipeline_mode == pl.Buffered(3) != pl.Buffered(3, use_lookahead=True)
    from anima.experimental.pallas import triton
    assert repr(triton.CompilerParams(num_warps=4)) == "CompilerParams(num_warps=4)" and "triton" in dir(pl)
    with pytest.raises(NotImplementedError, match=r"triton\.load is not implemented: it is part of kernels for GPUs"):
        triton.load(None)


def test_what_is_about_accelerators_names_itself() -> None:
    refusing = {name: x for name, x in vars(pl).items()
                if callable(x) and (x.__doc__ or "").startswith("NotImplementedError: it is")}
    assert {"core_map", "kernel", "semaphore"} <= refusing.keys()
    for name, refuse in refusing.items():
        assert refuse.__name__ == refuse.__qualname__ == name
        with pytest.raises(NotImplementedError, match=rf"pallas\.{name} is not implemented: it is about .* CPUs"):
            refuse(1, x=2)


@pytest.mark.parametrize("condition", [True, False, np.bool_(True), np.bool_(False)])
@pytest.mark.parametrize("traced", [False, True])
def test_conditions_that_are_known_or_not(condition: Any, traced: bool) -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...]

        @pl.when((x[0] > -1) == bool(condition) if traced else condition)
        def _() -> None:
            out[...] = pl.broadcast_to(x[1], (3,)) * 2

    x = np.float32([1, 2, 3])
    got = pl.pallas_call(kernel, out_shape=float32(3))(x)
    np.testing.assert_array_equal(got, [4, 4, 4] if condition else x)


def test_texts_of_specs() -> None:
    assert repr(pl.no_block_spec) == "NoBlockSpec" and str(pl.MemorySpace.ANY) == "any" and str(tpu.VMEM) == "vmem"
    assert repr(pl.GridSpec(grid=(2, 3))) == ("GridSpec(grid=(2, 3), in_specs=NoBlockSpec, out_specs=NoBlockSpec, "
                                              "scratch_shapes=())")
    assert repr(tpu.CompilerParams(vmem_limit_bytes=7)) == "CompilerParams(vmem_limit_bytes=7)"
    assert tpu.CompilerParams(vmem_limit_bytes=7).vmem_limit_bytes == 7
    aval = tpu.VMEM((2, 3), np.float32).get_array_aval()
    assert (aval.shape, aval.dtype) == ((2, 3), np.float32)


def test_prints_within_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(x: Any, out: Any) -> None:
        pl.debug_print("step {} has {}", pl.program_id(0), x[0])
        out[...] = x[...]

    pl.pallas_call(kernel, grid=(3,), in_specs=[pl.BlockSpec((1,), lambda i: (i,))],
                   out_specs=pl.BlockSpec((1,), lambda i: (i,)), out_shape=float32(3))(np.float32([1, 2, 3]))
    assert capsys.readouterr().out.splitlines() == [f"step {k} has {k + 1}.0" for k in range(3)]


def test_products_within_kernels() -> None:
    a, b = some(2, 3), some(3, 4)

    def kernel(x: Any, y: Any, z: Any) -> None:
        z[...] = pl.dot(x[...], y[...], trans_a=True, trans_b=True)

    close(pl.pallas_call(kernel, float32(2, 4))(a.T, b.T), a @ b)
    for dtype, wanted in (("bfloat16", "float32"), ("int8", "int32"), ("float16", "float32")):
        assert pl.dot(jnp.ones((2, 3), dtype), jnp.ones((3, 4), dtype)).dtype == wanted
    with pytest.raises(ValueError, match="must be 2D"):
        pl.dot(jnp.ones(3), jnp.ones(3))


def copied(x: Any, y: Any) -> None:
    y[...] = x[...]


def of_two(index: Any) -> pl.BlockSpec:
    return pl.BlockSpec((4,), index)


@pytest.mark.parametrize("options,message", [
    ({"in_specs": of_two(lambda i: i)}, "`in_specs` must be a tuple or a list"),
    ({"in_specs": [of_two(lambda i: i * 1.0)]}, r"must return integer scalars. Output\[0\] has type float32"),
    ({"in_specs": [of_two(lambda i: jnp.arange(2))]}, r"integer scalars. Output\[0\] has type int32\[2\]"),
    ({"input_output_aliases": {2: 0}}, r"mapping '2:0' with input index 2 outside the range \[0, 1\)"),
    ({"input_output_aliases": {0: 1}}, r"mapping '0:1' with output index 1 outside the range \[0, 1\)"),
    ({"grid": "a"}, "tuple of integers"), ({"grid": (1.5,)}, "tuple of integers"), ({"out_shape": 3}, "out_shape")])
def test_calls_that_are_no_kernels(options: dict[str, Any], message: str) -> None:
    given = {"out_shape": float32(8), "grid": 2, "out_specs": of_two(lambda i: i), **options}
    if "in_specs" not in given:
        given["in_specs"] = [of_two(lambda i: i)]
    with pytest.raises(ValueError, match=message):
        pl.pallas_call(copied, **given)(jnp.arange(8.0))


def test_references_in_other_forms_and_masked_stores() -> None:
    x, mask = jnp.arange(16.0).reshape(2, 8), jnp.arange(8) % 2 == 0

    def kernel(x: Any, mask: Any, out: Any, bits: Any) -> None:
        out[...] = x.reshape(4, 4).at[pl.ds(1, 2)][...].reshape(1, 8) * jnp.ones((2, 1))
        tpu.store(out.at[1], -tpu.load(x.at[0], mask=mask[...]), mask=mask[...])
        tpu.store(out.at[0, pl.ds(0, 2)], jnp.zeros(2))
        bits[...] = x.bitcast(jnp.int16)[...]

    results = float32(2, 8), anima.ShapeDtypeStruct((4, 8), jnp.int16)
    out, bits = pl.pallas_call(kernel, results, interpret=True)(x, mask)
    np.testing.assert_array_equal(out, [[0, 0, 6, 7, 8, 9, 10, 11], [0, 5, -2, 7, -4, 9, -6, 11]])
    np.testing.assert_array_equal(bits, np.asarray(x).view(np.int16).reshape(2, 8, 2).swapaxes(1, 2).reshape(4, 8))
