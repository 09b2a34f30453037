"""Fusion: which equations share a kernel, and that results do not depend on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import debug
from anima.compiler.fusing import fuse as fuse_module
from anima.compiler.fusing.materialise import JOINED
from anima.compiler.ir.show_fused import show_fused
from anima.compiler.ir.show_loops import show
from anima.experimental import checkify, io_callback
from anima.ops import elementwise as el, reduce as rd, shape as sh
from anima.ops.contract import dot_general_p
from tests.compiler.stages import SMALL_CACHES, agree, kernels, lowered

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 20)).astype(np.float32)
V = RNG.normal(size=(20,)).astype(np.float32)


def spread(x: Any, shape: tuple[int, ...], axes: tuple[int, ...]) -> Any:
    """`x`, reduced over `axes`, over the whole shape again."""
    return sh.broadcast_in_dim(x, shape, tuple(d for d in range(len(shape)) if d not in axes))


def softmax(x: Any, axes: tuple[int, ...] = (1,)) -> Any:
    e = el.exp(el.sub(x, spread(rd.reduce_max(x, axes), x.shape, axes)))
    return el.div(e, spread(sh.reduce_sum(e, axes), x.shape, axes))


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    n = x.shape[1]
    mean = el.div(sh.reduce_sum(x, (1,)), float(n))
    centred = el.sub(x, spread(mean, x.shape, (1,)))
    variance = el.div(sh.reduce_sum(el.mul(centred, centred), (1,)), float(n))
    normal = el.mul(centred, spread(el.rsqrt(el.add(variance, 1e-5)), x.shape, (1,)))
    return el.add(el.mul(normal, spread(scale, x.shape, (0,))), spread(shift, x.shape, (0,)))


def logsumexp(x: Any) -> Any:
    m = rd.reduce_max(x, (1,))
    return el.add(m, el.log(sh.reduce_sum(el.exp(el.sub(x, spread(m, x.shape, (1,)))), (1,))))


def test_chain_is_one_kernel() -> None:
    stages = agree(lambda x, v: el.exp(el.mul(el.add(x, spread(v, x.shape, (0,))), 2.0)), X, V)
    assert kernels(stages) == ["map: exp"]
    assert show_fused(stages.fused) == """fused
  map [12,20]:
    c:f32[12,20] = broadcast_in_dim[shape=(12, 20) broadcast_dimensions=(1,)] b
    d:f32[12,20] = add a c
    e:f32[12,20] = mul d 2.0
    f!:f32[12,20] = exp e"""


def test_softmax_is_one_kernel_with_its_row_in_scratch() -> None:
    stages = agree(softmax, X)
    assert stages.kernel_count == 1
    assert kernels(stages) == ["reduce: reduce_max exp reduce_sum div"]


def test_layer_norm_is_one_kernel() -> None:
    stages = agree(layer_norm, X, V, V[::-1].copy())
    assert stages.kernel_count == 1


@pytest.mark.parametrize(("shape", "axes"), [((12, 20), (1,)), ((3, 4, 20), (2,)), ((3, 4, 5), (1, 2)), ((12, 1), (1,)),
                                             ((1, 20), (1,))])
def test_what_there_is_one_of_for_each_row_shares_its_kernel(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """In the shape of the rows with axes of size 1, too: a deviation that several equations read."""
    def standard(x: Any, keepdims: bool) -> list[Any]:
        mean = jnp.mean(x, axes, keepdims=True)
        deviation = jnp.sqrt(jnp.mean((x - mean) ** 2, axes, keepdims=True) + 1.0)
        twice = jnp.exp(deviation * 2)
        return [(x - mean) / deviation + twice, deviation if keepdims else jnp.squeeze(deviation, axes), twice]

    x = RNG.normal(size=shape).astype(np.float32)
    for keepdims in (True, False):
        assert agree(partial(standard, keepdims=keepdims), x).kernel_count == 1


def test_the_check_of_a_rows_divisor_leaves_the_rows_in_one_kernel() -> None:
    def standard(x: Any) -> Any:
        mean = jnp.mean(x, 1, keepdims=True)
        return (x - mean) / jnp.sqrt(jnp.mean((x - mean) ** 2, 1, keepdims=True) + 1.0)

    checked = checkify.checkify(standard, errors=checkify.div_checks)
    stages = agree(lambda x: anima.tree.leaves(checked(x)), X)
    assert kernels(stages)[0] == "reduce: reduce_sum reduce_sum mul"
    assert stages.kernel_count == 2


def test_costly_functions_at_the_ends_of_rows_are_computed_in_vectors() -> None:
    """Once for all rows, unless there is one, it is long, or whole rows depend on it: these would be read again."""
    def both(x: Any) -> list[Any]:
        return [logsumexp(x), el.mul(logsumexp(x), 2.0)]

    rng = np.random.default_rng(0)
    for shape, count in (((12, 20), 2), ((2, 100), 2), ((1, 20), 1), ((2, 1025), 1), ((3, 1024), 2)):
        assert agree(both, rng.normal(size=shape).astype(np.float32)).kernel_count == count
    for shape in ((12, 20), (63, 100), (70, 100)):
        x = rng.normal(size=shape).astype(np.float32)
        assert agree(lambda x: anima.nn.log_softmax(x, 1), x).kernel_count == 1
        assert agree(lambda x: [x / jnp.linalg.norm(x, axis=1, keepdims=True), x.sum(1)], x).kernel_count == 1
    assert agree(lambda x: anima.nn.log_softmax(x, 1), rng.normal(size=(70, 60)).astype(np.float32)).kernel_count > 1


def test_values_of_a_recurrent_network_are_computed_in_vectors() -> None:
    w, h = np.random.default_rng(0).normal(0, 0.05, (300, 200)).astype(np.float32), np.ones(200, np.float32)
    stages = agree(lambda w, h: anima.lax.fori_loop(0, 3, lambda _, h: jnp.tanh(w @ h)[:200], h), w, h)
    lines = [line.split() for line in show(stages.loops).splitlines()]
    (at,) = [n for n, line in enumerate(lines) if line[-1:] and line[-1].startswith("tanh(")]
    assert lines[at - 2][0] == "vector" and "reduce_sum:" in [line[1] for line in lines if line[:1] == ["kernel"]]


def test_variance_is_one_kernel() -> None:
    def variance(x: Any) -> Any:
        centred = el.sub(x, spread(el.div(sh.reduce_sum(x, (1,)), 20.0), x.shape, (1,)))
        return el.div(sh.reduce_sum(el.square(centred), (1,)), 20.0)

    assert agree(variance, X).kernel_count == 1


def test_argmax_is_one_kernel() -> None:
    x = X.copy()
    x[3, 5] = x[4, 0] = x[4, 7] = np.nan
    assert agree(lambda x: rd.argmax(x, 1, np.int32), x).kernel_count == 1


def test_reductions_of_one_operand_share_its_computation() -> None:
    stages = agree(lambda x: [sh.reduce_sum(el.exp(x), (1,)), rd.reduce_max(el.exp(x), (1,))], X)
    assert stages.kernel_count == 1


@pytest.mark.parametrize("first", [0, 1])
def test_of_sums_along_both_axes_the_one_along_memory_shares_the_kernel(first: int) -> None:
    """As the gradient of a function of all pairs leaves them, in either order."""
    def both(x: Any) -> Any:
        y = el.exp(el.sin(x))
        a = sh.reduce_sum(el.neg(y), (first,))
        return a, sh.reduce_sum(y, (1 - first,)), y

    x = RNG.normal(size=(90, 70)).astype(np.float32)
    fused = agree(both, x).fused
    assert [g.axes for g in fused.groups if g.kind == "reduce"] == [(1,), (0,)]
    assert fused.groups[0].roots[0].primitive.name == "exp"


def test_several_results_share_a_kernel() -> None:
    def adam(g: Any, m: Any, v: Any, p: Any) -> list[Any]:
        m = el.add(el.mul(m, 0.9), el.mul(g, 0.1))
        v = el.add(el.mul(v, 0.99), el.mul(el.mul(g, g), 0.01))
        return [m, v, el.sub(p, el.mul(el.div(m, el.add(el.sqrt(v), 1e-8)), 0.1))]

    stages = agree(adam, X, X + 1, X * X, -X)
    assert stages.kernel_count == 1


def test_costly_value_used_by_two_kernels_is_computed_once() -> None:
    stages = agree(lambda x: [sh.reduce_sum(el.exp(x), (0,)), sh.transpose(el.exp(x), (1, 0))], X)
    roots = [e.primitive.name for g in stages.fused.groups for e in g.roots]
    assert roots.count("exp") == 1


def test_cheap_value_is_computed_again() -> None:
    stages = agree(lambda x: [sh.reduce_sum(el.neg(x), (0,)), sh.transpose(el.neg(x), (1, 0))], X)
    assert "neg" not in [e.primitive.name for g in stages.fused.groups for e in g.roots]


def test_costly_row_vector_is_not_computed_for_every_row() -> None:
    stages = agree(lambda x, v: el.add(x, spread(el.exp(v), x.shape, (0,))), X, V)
    assert kernels(stages) == ["map: exp", "map: add"]


def test_costly_column_vector_is_computed_before_the_row() -> None:
    stages = agree(lambda x, v: el.add(x, spread(el.exp(v), x.shape, (1,))), X, V[:12].copy())
    assert kernels(stages) == ["map: add"]


@pytest.mark.parametrize("rows, columns, apart", [(63, 16, False), (64, 16, True), (64, 64, True), (64, 65, False)])
def test_costly_values_of_many_short_rows_are_computed_in_vectors(rows: int, columns: int, apart: bool) -> None:
    """Of given values, and of sums of the rows themselves."""
    x, v = np.linspace(0, 1 / columns, rows * columns, dtype="f").reshape(rows, columns), np.ones(rows, np.float32)
    stages = agree(lambda x, v: el.add(x, spread(el.exp(v), x.shape, (1,))), x, v)
    assert kernels(stages) == (["map: exp", "map: add"] if apart else ["map: add"])

    def of_sums(x: Any) -> Any:
        return el.add(x, spread(el.exp(sh.reduce_sum(x, (1,))), x.shape, (1,)))

    assert len(kernels(agree(of_sums, x))) == (3 if apart else 1)


def test_softmax_over_columns_and_blocks() -> None:
    agree(lambda x: softmax(x, (0,)), X)
    for axes in ((0,), (1,), (0, 1)):
        agree(lambda x, axes=axes: softmax(x, axes), X, target=SMALL_CACHES)


def test_a_kernel_between_two_others_keeps_them_apart() -> None:
    def fun(x: Any) -> Any:
        y = el.exp(x)
        z = dot_general_p.bind(y, y, dimension_numbers=(((1,), (1,)), ((), ())), precision=None,
                               preferred_element_type=None)
        return [el.add(y, el.div(sh.reduce_sum(z, (0, 1)), 100.0)), z]

    stages = agree(fun, X)
    order = kernels(stages)
    assert order.index("map: exp") < order.index("map: add")


def test_number_of_results_of_a_kernel_is_limited() -> None:
    stages = lowered(lambda x: [el.exp(el.mul(x, float(k))) for k in range(60)], X)
    assert max(len(g.roots) for g in stages.fused.groups) <= fuse_module.MOST_ROOTS


def test_log_step_scan_does_not_blow_up() -> None:
    def prefix(x: Any) -> Any:
        step = 1
        while step < 64:
            shifted = sh.pad(x, np.float32(0), [(step, -step, 0)])
            x = el.add(x, el.mul(shifted, el.sin(shifted)))
            step *= 2
        return x

    stages = agree(prefix, np.linspace(0, 1, 64, dtype=np.float32))
    assert len(str(stages.loops)) < 200_000


def pad_edge(x: Any) -> Any:
    """`x` with its first and last rows and columns twice."""
    for axis, n in enumerate(x.shape):
        x = sh.concatenate([sh.slice_in_dim(x, 0, 1, axis=axis), x, sh.slice_in_dim(x, n - 1, n, axis=axis)], axis)
    return x


def test_parts_of_concatenations_are_found_behind_slices() -> None:
    def laplacian(x: Any) -> Any:
        p = pad_edge(x)
        n, m = x.shape
        return el.add(el.add(sh.slice(p, (0, 1), (n, m + 1)), sh.slice(p, (2, 1), (n + 2, m + 1))),
                      el.add(sh.slice(p, (1, 0), (n + 1, m)), sh.slice(p, (1, 2), (n + 1, m + 2))))

    stages = agree(laplacian, X)
    assert stages.kernel_count == 4  # the middle, what is left and right of it, and the first and the last row
    assert show(stages.loops).rindex("select_n") < show(stages.loops).index("  kernel ", 100)  # which of the two rows


@pytest.mark.parametrize("reads", [1, JOINED - 1, JOINED, JOINED + 2, JOINED + 3, 30])
def test_what_is_joined_and_read_often_is_in_memory(reads: int) -> None:
    def smooth(x: Any) -> Any:
        p, n = pad_edge(pad_edge(x)), x.shape[0]
        parts = [sh.slice(p, (k % 5, k // 5 % 3), (k % 5 + n, k // 5 % 3 + x.shape[1])) for k in range(reads)]
        return reduce(el.add, [el.mul(el.sin(part), float(k)) for k, part in enumerate(parts)])

    stages = agree(smooth, np.tile(X, (3, 3)), rtol=1e-4)
    assert (len(stages.fused.groups) > 1) == (reads * 36 * 60 >= JOINED * 40 * 64)


def roll(x: Any, axis: int) -> Any:
    n = x.shape[axis]
    return sh.concatenate([sh.slice_in_dim(x, n - 1, n, axis=axis), sh.slice_in_dim(x, 0, n - 1, axis=axis)], axis)


def test_reduction_does_not_take_in_what_is_computed_in_parts() -> None:
    def step(x: Any) -> Any:
        y = el.add(roll(x, 0), roll(x, 1))
        return [y, sh.reduce_sum(el.mul(y, y), (0, 1))]

    stages = agree(step, np.tile(X, (8, 8)), rtol=1e-4)
    assert [g.kind for g in stages.fused.groups] == ["map", "reduce"]
    assert [g.kind for g in agree(step, X).fused.groups] == ["reduce"]  # a few elements: one kernel


def test_concatenation_becomes_a_kernel_for_each_part() -> None:
    stages = agree(lambda x: el.exp(sh.concatenate([x, el.neg(x), x], 0)), X)
    assert "select_n" not in str(stages.loops)


@pytest.mark.parametrize("shape", [(2,), (9,), (16, 3), (3, 16), (1000,)])
@pytest.mark.parametrize("count", [2, 3, 5, 41])
@pytest.mark.parametrize("axis", [0, -1])
def test_what_parts_of_a_concatenation_share_is_computed_once(shape: tuple[int, ...], count: int, axis: int) -> None:
    def joined(x: Any, y: Any) -> Any:
        e, c = el.exp(x), el.sin(el.exp(y))
        return sh.concatenate([el.mul(el.add(e, float(k)), c) for k in range(count)], axis % x.ndim)

    x, y = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    text = show(agree(joined, x, y, rtol=1e-5).loops)
    assert text.count("exp(") == 2 and text.count("sin(") == 1


@pytest.mark.parametrize("steps", [3, 30, 120, 400])
def test_single_elements_of_what_is_large_share_its_computation(steps: int) -> None:
    def tangle(x: Any) -> Any:
        v = [x[k] for k in range(6)]
        for k in range(steps):
            v.append(el.add(el.mul(el.tanh(v[-3]) if k % 5 == 0 else v[-3], v[-6]), v[-k % 5 - 1]))
        return sh.concatenate([sh.reshape(a, (1,)) for a in v[-6:]], 0)

    text = show(agree(tangle, np.linspace(-0.9, 0.8, 6, dtype=np.float32), rtol=1e-4).loops)
    assert text.count("tanh(") <= -(-steps // 5)


def test_padding_in_one_dimension_needs_no_selects() -> None:
    stages = agree(lambda x: sh.pad(el.exp(x), np.float32(1), [(2, 3, 0), (0, 0, 0)]), X)
    assert "select_n" not in str(stages.loops)


def test_reshape_of_a_result_is_a_view() -> None:
    stages = agree(lambda x: sh.reshape(el.exp(x), (5, 48)), X)
    assert stages.kernel_count == 1


def test_deep_and_wide_programs() -> None:
    def fun(x: Any) -> Any:
        y = x
        for k in range(1500):
            y = el.sub(el.mul(y, 0.5), x) if k % 3 else el.max(y, x)
        return y

    stages = lowered(fun, V)
    assert stages.kernel_count <= 2


@pytest.mark.parametrize("shape", [(5,), (5000,), (90, 70)], ids=str)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("first", ["map", "sum", "update"])
def test_what_needs_a_later_effect_waits_for_what_an_earlier_one_is_given(first: str, ordered: bool, shape: Any
                                                                          ) -> None:
    """The results of the second callback, which is given nothing, are of the space of the first one's operand."""
    seen: list[str] = []
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)

    def say(name: str, *given: Any) -> np.ndarray:
        seen.append(name)
        return np.full(shape, len(seen), np.float32)

    def f(x: Any) -> list[Any]:
        result = anima.ShapeDtypeStruct(shape, np.float32)
        y = {"map": jnp.sin, "sum": lambda x: jnp.cumsum(x, 0), "update": lambda x: x.at[1].mul(3.0)}[first](x)
        a = io_callback(partial(say, "first"), result, jnp.cos(y), ordered=ordered)
        b = io_callback(partial(say, "second"), result, ordered=ordered)
        c = io_callback(partial(say, "third"), result, x * b, ordered=ordered)
        return [y, jnp.cos(x) * b, a * y, jnp.sum(c * x, -1), c + jnp.cos(y)]

    got, order = anima.jit(f)(x), seen.copy()
    seen.clear()
    with anima.disable_jit():
        want = f(jnp.asarray(x))
    assert order == seen == ["first", "second", "third"]
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def random_program(seed: int) -> Callable[..., Any]:
    """Values of a few shapes, each made of earlier ones, some of which callbacks are given."""
    rng = random.Random(seed)
    kinds = ["map", "map", "map", "sum", "row", "mix", "first", "sort", "see"]
    plan = [(rng.choice(kinds), rng.random(), rng.random(), rng.random()) for _ in range(24)]

    def program(see: Callable[..., None], *args: Any) -> list[Any]:
        values = list(args)
        for number, (kind, *chances) in enumerate(plan):
            x, y, z = (values[int(chance * len(values))] for chance in chances)
            if kind == "see":
                debug.callback(partial(see, number), jnp.max(x) if chances[1] < 0.5 else x)
            elif kind == "map":
                values.append(jnp.cos(x) + number)
            elif kind == "sum":
                values.append(jnp.max(x) * jnp.ones_like(y))
            elif kind == "first":
                values.append(jnp.cos(x) * y.ravel()[0])
            elif kind == "sort":
                values.append(jnp.sort(x, -1))
            elif kind == "row":
                values.append(jnp.max(x, -1, keepdims=True) * 0.5 + x)
            else:
                values.append(jnp.where(x > jnp.min(y), x, jnp.max(z) - x))
        return values

    return program


@pytest.mark.parametrize("seed", [*range(30), 292, 728])  # those two have chains of groups that change at both ends
def test_random_programs_keep_values_and_the_order_of_effects(seed: int) -> None:
    """However results are put into kernels, nothing waits in a circle, and callbacks come one after the other."""
    program, seen = random_program(seed), []
    small = seed % 2

    def see(number: int, value: Any) -> None:
        seen.append((number, np.asarray(value).copy()))

    args = [np.random.default_rng(seed + k).normal(size=shape).astype(np.float32)
            for k, shape in enumerate([(3, 5), (3, 5), (15,), (2,)] if small else [(9, 600), (9, 600), (5400,), (40,)])]
    got = anima.jit(partial(program, see))(*args)
    anima.effects_barrier()
    compiled = seen.copy()
    seen.clear()
    with anima.disable_jit():
        want = program(see, *map(jnp.asarray, args))
    assert [number for number, _ in compiled] == [number for number, _ in seen]
    for x, y in zip([*got, *(v for _, v in compiled)], [*want, *(v for _, v in seen)], strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16, 17])
@pytest.mark.parametrize("rows", [1, 5, 15, 16, 17, 100])
def test_what_is_stacked_along_the_last_dimension_shares_a_loop(rows: int, count: int) -> None:
    def stacked(x: Any, y: Any) -> Any:
        parts = [el.add(el.mul(sh.slice(x, (0, k % 5), (rows, k % 5 + 1)), float(k)), y) for k in range(count)]
        return sh.concatenate(parts, 1)

    rng = np.random.default_rng(rows)
    x, y = (rng.normal(size=(rows, n)).astype(np.float32) for n in (5, 1))
    stages = agree(stacked, x, y)
    if rows >= 16 and rows * count > 4 * count:
        assert (stages.kernel_count == 1) == (count <= 16)
    agree(lambda x, y: [el.sin(stacked(x, y)), sh.reduce_sum(stacked(x, y), (1,))], x, y, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float64", "complex64", "bool"])
@pytest.mark.parametrize("shape", [(16,), (33,), (4, 9)])
def test_mapped_rows_of_few_elements(dtype: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 3, (*shape, 3)).astype(dtype)

    def turned(row: Any) -> Any:
        a, b, c = row
        return jnp.array([b, c, a, a & b if row.dtype == bool else a * b])

    mapped = turned
    for _ in shape:
        mapped = anima.vmap(mapped)
    with anima.enable_x64(True):
        got = anima.jit(mapped)(x)
        np.testing.assert_array_equal(got, np.stack([x[..., 1], x[..., 2], x[..., 0], x[..., 0] * x[..., 1]], -1))
        assert got.dtype == x.dtype


def test_rows_of_several_results_are_stored_as_whole_vectors() -> None:
    def step(row: Any) -> tuple[Any, Any]:
        a, b, c = row
        slope = jnp.array([b - a, a * c, c * b])
        return slope, row + 0.5 * slope

    lowered = anima.jit(anima.vmap(step)).lower(np.ones((64, 3), np.float32))
    assert "scatter" not in str(lowered.llvm) and str(lowered.loops).count("kernel") == 1


@pytest.mark.parametrize("rows, apart", [(3, False), (10, True)])
def test_sums_of_arrays_that_many_rows_read_are_in_memory(rows: int, apart: bool) -> None:
    """As weights that were updated just before: each step of an optimiser would be done anew for each row."""
    x, w, slopes = (RNG.normal(size=shape).astype(np.float32) for shape in ((11, rows, 20), (11, 20, 9), (11, 20, 9)))

    def product(x: Any, w: Any) -> Any:
        return (x[..., None] * w[:, None]).sum(2)

    stages = agree(lambda x, w, slopes: product(x, w - 0.1 * slopes), x, w, slopes)
    assert kernels(stages) == (["map: sub", "reduce: reduce_sum"] if apart else ["reduce: reduce_sum"])
    assert kernels(agree(lambda x, w: product(x, 1 - 0.1 * w), x, w)) == ["reduce: reduce_sum"]


@pytest.mark.parametrize("terms", [1, 3])
def test_products_of_products_of_small_matrices_have_no_terms_in_memory(terms: int) -> None:
    """What is too large for one kernel ends in the first products, and not in the 512 terms of the second ones."""
    a, b, c = (RNG.normal(size=(8, 8)) for _ in range(3))

    def chain(x: Any, b: Any, c: Any) -> Any:
        return sum((b @ x @ (c + k).T for k in range(terms)), -x)

    with anima.enable_x64():
        steps = anima.jit(lambda x, b, c: anima.lax.fori_loop(0, 9, lambda _, x: chain(x, b, c), x))
        assert "f64[512]" not in steps.lower(a, b, c).loops
        np.testing.assert_allclose(anima.jit(chain)(a, b, c), chain(a, b, c), rtol=1e-12)
