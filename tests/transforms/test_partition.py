"""Programs of one device: on all devices together they compute what the program on whole arrays does."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import NamedSharding, P, lax
from anima.core.jaxpr import ClosedJaxpr
from anima.core.stage import eval_numpy
from anima.sharding import AxisType, Mesh
from anima.transforms.partition import Cut, partition
from anima.transforms.parts import expanded
from tests.laws.programs import BINARY, UNARY, Program
from tests.test_every_op import EACH, Record, applied

pytestmark = pytest.mark.usefixtures("eight_devices")
SAMPLE = 3  # of the ways to cut operands and results of one program


def mesh_of(*sizes: int) -> Mesh:
    names = ("x", "y")[:len(sizes)]
    return anima.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))


def cuts(shape: Sequence[int], mesh: Mesh) -> list[Cut]:
    """All ways to cut an array of a shape along the axes of a mesh."""
    found = []
    for places in itertools.product(range(-1, len(shape)), repeat=len(mesh.axis_names)):
        for order in itertools.permutations(zip(mesh.axis_names, places, strict=True)):
            cut = tuple(tuple(n for n, at in order if at == d) for d in range(len(shape)))
            parts = [np.prod([mesh.shape[n] for n in axes]) for axes in cut]
            if cut not in found and all(n % p == 0 for n, p in zip(shape, parts, strict=True)):
                found.append(cut)
    return found


def on_devices(closed: ClosedJaxpr, mesh: Mesh, ins: Sequence[Cut], outs: Sequence[Cut],
               args: Sequence[Any]) -> list[np.ndarray]:
    """The results of the program of one device, run on all."""
    in_specs, out_specs = (tuple(P(*c) for c in each) for each in (ins, outs))
    program = partition(closed, mesh, in_specs, out_specs)
    whole = expanded(program, mesh.shape_tuple, in_specs, out_specs)
    return eval_numpy(whole, args)


def assert_same(found: Sequence[Any], expected: Sequence[Any], what: str, rtol: float = 1e-12) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, what
        exact = not np.issubdtype(b.dtype, np.inexact)
        np.testing.assert_allclose(a, b, 0 if exact else rtol, 0 if exact else rtol, err_msg=what)


def ways(shapes: Sequence[Sequence[int]], mesh: Mesh, seed: str) -> Iterator[list[Cut]]:
    """Some ways to cut arrays of these shapes, of which one at least is cut."""
    of_each = [cuts(shape, mesh) for shape in shapes]
    rng = np.random.default_rng(zlib.crc32(f"{seed} {mesh.size}".encode()))
    for _ in range(SAMPLE):
        way = [each[rng.integers(len(each))] for each in of_each]
        if any(axes for cut in way for axes in cut):
            yield way


@pytest.mark.parametrize("record", EACH)
def test_operations(record: Record) -> None:
    name = next((d for d in ("float64", "complex128", "int64") if d in record.dtypes), record.dtypes[0])
    for case in record.cases_for(name):
        with anima.enable_x64(True), np.errstate(all="ignore"):
            args = record.draw(case, name)
            closed = anima.make_jaxpr(applied(record, case, name))(*args)
            expected = eval_numpy(closed, args)
            shapes = [a.shape for a in (*closed.in_avals, *closed.out_avals)]
            mesh = mesh_of(2, 2) if record.cases.index(case) % 2 else mesh_of(2)
            for way in ways(shapes, mesh, f"{record.name} {case}"):
                found = on_devices(closed, mesh, way[:len(args)], way[len(args):], args)
                assert_same(found, expected, f"{case}, cut {way} on {mesh}")


def checked(f: Callable[..., Any], args: Sequence[Any], mesh: Mesh, seed: str, rtol: float = 2e-5) -> None:
    """Compares the programs of one device for some ways to cut arguments and results with the function."""
    closed = anima.make_jaxpr(f)(*args)
    expected = eval_numpy(closed, args)
    for way in ways([a.shape for a in (*closed.in_avals, *closed.out_avals)], mesh, seed):
        found = on_devices(closed, mesh, way[:len(args)], way[len(args):], args)
        assert_same(found, expected, f"cut {way} on {mesh}", rtol)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_and_their_gradients(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=(3, 4)).astype(np.float32) for _ in range(2))
    names = [str(n) for n in rng.choice([*UNARY, *BINARY], 5)]
    program = Program(tuple((n, tuple(map(int, rng.integers(0, 8, 1 if n in UNARY else 2)))) for n in names))
    with np.errstate(all="ignore"):
        checked(anima.value_and_grad(program, (0, 1)), (x, y), (mesh_of(2), mesh_of(4), mesh_of(2, 2))[seed % 3],
                str(seed))


def loops(x: Any, w: Any) -> Any:
    def body(c: Any, a: Any) -> Any:
        c = jnp.tanh(c @ w) + a
        return c, jnp.sum(c, 0)

    c, ys = lax.scan(body, jnp.zeros(x.shape[1:], x.dtype), x)
    turned = lax.cond(ys[0, 0] > 0, lambda c: c.T, lambda c: c * 2, c)
    doubled = lax.while_loop(lambda c: jnp.sum(c) < 100, lambda c: c * 2 + 1, jnp.abs(c))
    return turned, doubled, ys, lax.map(lambda r: jnp.cumsum(r), x[:, 0])


def halves(x: Any, w: Any) -> Any:
    """Calls with rules of their own, a product that is mapped over the devices itself, and numbers from a key."""
    inner = anima.custom_jvp(lambda a: jnp.sin(a))
    inner.defjvps(lambda t, y, a: t * jnp.cos(a))
    mesh = mesh_of(2, 2)
    mapped = anima.shard_map(lambda a: lax.psum(a, "x"), mesh=mesh, in_specs=P("x", "y"), out_specs=P(None, "y"))
    noise = anima.random.uniform(anima.random.key(3), (4,))
    return (anima.jit(inner)(x) @ w, mapped(w), anima.checkpoint(lambda a: jnp.sort(a, 0))(x) + noise,
            jnp.argmax(w, 0), jnp.linalg.solve(w + 4 * jnp.eye(4), x[0]))


@pytest.mark.parametrize("f", [loops, halves, anima.grad(lambda x, w: sum(jnp.sum(o) for o in loops(x, w)[2:])),
                               anima.vmap(lambda x, w: lax.while_loop(lambda c: jnp.sum(c) < 9, lambda c: c @ w + 1, x),
                          (0, None))])
def test_programs_in_programs(f: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 4, 4)).astype(np.float32)
    checked(f, (x, rng.normal(size=(4, 4)).astype(np.float32)), mesh_of(2, 2), "programs")


# ---------------------------------------------------------------- what is read

A, B = np.ones((8, 16), np.float32), np.ones((8, 32), np.float32)


def sent(f: Callable[..., Any], specs: Any, *args: Any) -> list[tuple[str, tuple[str, ...], float]]:
    """The collectives of the program of one device: which, over which axes, and how many bytes each sends."""
    mesh = mesh_of(4, 2)
    jitted = anima.jit(f, in_shardings=tuple(NamedSharding(mesh, s) for s in specs))
    return [(c.name, c.axes, c.sent) for c in jitted.lower(*args).partitioned.collectives]


def test_a_product_of_parts_is_one_product_and_one_sum() -> None:
    assert sent(lambda a, b: a.T @ b, (P("x"), P("x")), A, B) == [("psum", ("x",), 2 * 16 * 32 * 4 * 3 / 4)]


def test_each_device_draws_from_its_own_keys() -> None:
    keys = anima.random.split(anima.random.key(0), 8)

    def f(keys: Any) -> Any:
        return jnp.sum(anima.vmap(lambda k: anima.random.normal(anima.random.fold_in(k, 1), (3,)))(keys), 0)

    assert sent(f, (P("x"),), keys) == [("psum", ("x",), 2 * 3 * 4 * 3 / 4)]
    placed = NamedSharding(mesh_of(4, 2), P("x"))
    found = anima.jit(f, in_shardings=placed).lower(keys).partitioned(anima.device_put(keys, placed))
    np.testing.assert_allclose(found, f(keys), rtol=1e-5)


def test_what_is_wanted_in_parts_is_summed_into_parts() -> None:
    def f(a: Any, b: Any) -> Any:
        return lax.with_sharding_constraint(a.T @ b, NamedSharding(mesh_of(4, 2), P("x")))

    a, b = np.ones((64, 16), np.float32), np.ones((64, 32), np.float32)
    assert sent(f, (P("x"), P("x")), a, b) == [("reduce_scatter", ("x",), 16 * 32 * 4 * 3 / 4)]


def test_data_parallel_training_sums_gradients_and_nothing_else() -> None:
    def step(w: Any, x: Any, y: Any) -> Any:
        return w - anima.grad(lambda w: jnp.sum((jnp.tanh(x @ w) - y) ** 2))(w)

    w = np.ones((16, 32), np.float32)
    assert sent(step, (P(), P("x"), P("x")), w, A, B) == [("psum", ("x",), 2 * w.nbytes * 3 / 4)]


def test_tensor_parallel_layers_need_one_sum() -> None:
    def layers(x: Any, v: Any, w: Any) -> Any:
        return jnp.tanh(x @ v) @ w

    found = sent(layers, (P("x"), P(None, "y"), P("y")), A, np.ones((16, 64), "f"), np.ones((64, 4), "f"))
    assert found == [("psum", ("y",), 2 * (2 * 4 * 4) / 2)]


def test_sums_of_sums_are_taken_once() -> None:
    def inputs(q: Any, k: Any, v: Any, w: Any) -> Any:
        """The gradient of what three layers are applied to, whose columns are cut."""
        return (q @ w.T + k @ w.T - (w @ v.T).T) * 2

    cut, w = np.ones((8, 16), np.float32), np.ones((4, 16), np.float32)
    found = sent(inputs, (P(None, "y"),) * 4, cut, cut, cut, w)
    assert found == [("psum", ("y",), 2 * (8 * 4 * 4) / 2)]


def test_sums_that_go_into_sequences_are_taken_after_the_loop() -> None:
    """The gradients of the weights of layers in a loop, on parts of the batch."""
    def loss(ws: Any, x: Any) -> Any:
        return jnp.sum(lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0] ** 2)

    ws = np.ones((5, 16, 16), np.float32)
    assert sent(anima.grad(loss), (P(), P("x")), ws, A) == [("psum", ("x",), 2 * ws.nbytes * 3 / 4)]


def recurrent(w: Any, xs: Any) -> Any:
    """The gradient of weights that all steps share: it is added up in the loop."""
    def loss(w: Any) -> Any:
        h, ys = lax.scan(lambda h, x: (jnp.tanh(h @ w + x), jnp.sum(h)), jnp.ones(xs.shape[1:], xs.dtype), xs)
        return jnp.sum(h ** 2) + jnp.sum(ys)

    return anima.grad(loss)(w)


def test_sums_that_are_added_up_in_a_loop_are_taken_after_it() -> None:
    w, xs = np.ones((16, 16), np.float32), np.ones((5, 8, 16), np.float32)
    assert sent(recurrent, (P(), P(None, "x")), w, xs) == [("psum", ("x",), 2 * w.nbytes * 3 / 4)]
    rng = np.random.default_rng(0)
    w, xs = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 4), (3, 4, 4)))
    checked(recurrent, (w, xs), mesh_of(2, 2), "recurrent")


def test_carries_that_begin_with_something_keep_it() -> None:
    def f(start: Any, a: Any) -> Any:
        return lax.scan(lambda c, r: (c + r.T @ r, c[0, 0]), start, a)

    rng = np.random.default_rng(0)
    args = [rng.normal(size=shape).astype(np.float32) for shape in ((4, 4), (3, 8, 4))]
    checked(f, args, mesh_of(2, 2), "used")
    checked(lambda *args: f(*args)[0], args, mesh_of(2, 2), "not used")
    checked(lambda *args: lax.scan(lambda c, r: (c + r.T @ r, None), *args)[0], args, mesh_of(4), "only added")


def test_sums_that_are_used_twice_are_taken_before() -> None:
    def f(a: Any, b: Any) -> Any:
        c = a.T @ b
        return c.T + 1, c * 2

    assert [name for name, *_ in sent(f, (P("x"), P("x")), A, B)] == ["psum"]


@pytest.mark.parametrize("f, spec, expected", [
    (lambda a: a + 1, P("x"), []),
    (lambda a: jnp.max(a), P("x"), [("pmax", ("x",), 2 * 4 * 3 / 4)]),
    (lambda a: jnp.prod(a, 0), P("x", "y"), [("all_gather", ("x",), 2 * 8 * 4 * 3)]),
    (lambda a: jnp.cumsum(a, 0), P(None, "y"), []),
    (lambda a: lax.with_sharding_constraint(a * 2, NamedSharding(mesh_of(4, 2), P(None, "x"))), P("x"),
     [("all_to_all", ("x",), 2 * 16 * 4 * 3 / 4)]),
    (lambda a: jnp.fft.fft(a), P("x"), []),
    (lambda a: lax.scan(lambda c, r: (c + jnp.sum(r), None), 0.0, a)[0], P(None, "y"), [("psum", ("y",), 8 * 4.0)]),
])
def test_what_is_sent(f: Callable[..., Any], spec: P, expected: Any) -> None:
    assert sent(f, (spec,), A) == expected


def test_text_tells_bytes_and_lines() -> None:
    def total(a: Any) -> Any:
        return jnp.sum(a)

    mesh = mesh_of(4)
    program = anima.jit(total, in_shardings=NamedSharding(mesh, P("x"))).lower(A).partitioned
    text = str(program)
    assert text.startswith("on each of 4 devices of Mesh('x': 4)\n{ lambda ; a:f32[2,16]. let\n")
    assert "psum over x: 6 bytes  at test_partition.py:" in text and "in total\neach device sends 6 bytes" in text
    assert program.bytes_sent == 6 and float(program(A)) == 128
    with pytest.raises(TypeError, match="partitioned for input pytree"):
        program(A, A)


def test_products_whose_sharding_is_asked_for_are_of_parts() -> None:
    mesh = anima.make_mesh((4, 2), ("x", "y"))
    a, b = (anima.device_put(v, NamedSharding(mesh, s)) for v, s in ((A, P("x", "y")), (A.T, P("y"))))
    product = anima.jit(lambda a, b: jnp.dot(a, b, out_sharding=NamedSharding(mesh, P("x"))))
    program = product.lower(a, b).partitioned
    assert [(c.name, c.axes) for c in program.collectives] == [("psum", ("y",))]
    np.testing.assert_array_equal(program(a, b), A @ A.T)


def test_explicit_axes_are_cut_as_types_say() -> None:
    mesh = anima.make_mesh((4, 2), ("x", "y"))
    a, w = (anima.device_put(v, NamedSharding(mesh, s)) for v, s in ((A, P("x")), (B.T, P("y"))))
    f = anima.jit(lambda a, w: anima.reshard(w, NamedSharding(mesh, P(None, "y"))) @ anima.reshard(a, P()))
    with anima.set_mesh(mesh):
        program = f.lower(a, w).partitioned
        assert [(c.name, c.axes) for c in program.collectives] == [
            ("all_to_all", ("y",)), ("all_gather", ("x",)), ("psum", ("y",))]
        np.testing.assert_array_equal(program(a, w), B.T @ A)


def test_constraints_that_do_not_divide_cut_as_far_as_they_can() -> None:
    mesh = mesh_of(4, 2)

    def f(a: Any) -> Any:
        return lax.with_sharding_constraint(a[:6] * 2, NamedSharding(mesh, P(("y", "x"), None)))

    program = anima.jit(f, in_shardings=NamedSharding(mesh, P("x"))).lower(A).partitioned
    assert program.out_specs == (P("y"),)
    np.testing.assert_array_equal(program(A), A[:6] * 2)


def test_loops_of_unknown_length_backwards() -> None:
    """What is recorded of their steps, every device has whole."""
    def f(x: Any) -> Any:
        return anima.grad(lambda x: jnp.sum(lax.while_loop(lambda c: jnp.sum(c) < 1e3, lambda c: c * 1.5 + x, x)))(x)

    program = anima.jit(f, in_shardings=NamedSharding(mesh_of(4, 2), P("x"))).lower(A).partitioned
    assert {c.name for c in program.collectives} <= {"all_gather", "psum"} and program.bytes_sent > 0
    np.testing.assert_allclose(program(A), f(A), rtol=1e-6)


def test_printing_and_pmap(capsys: pytest.CaptureFixture[str]) -> None:
    def f(a: Any) -> Any:
        anima.debug.print("{}", jnp.sum(a))
        return a

    np.testing.assert_array_equal(
        anima.jit(f, in_shardings=NamedSharding(mesh_of(4), P("x"))).lower(A).partitioned(A), A)
    assert capsys.readouterr().out == "128.0\n"
    g = anima.pmap(lambda a: a - lax.pmean(a, "i"), "i")
    program = g.lower(A).partitioned
    assert [(c.name, c.axes, c.sent) for c in program.collectives] == [("psum", ("i",), 2 * 16 * 4 * 7 / 8)]
    np.testing.assert_array_equal(program(A), g(A))


def test_references_from_outside_are_refused() -> None:
    r = anima.new_ref(jnp.zeros(16))

    def f(a: Any) -> Any:
        r[...] = a[0]
        return a

    with pytest.raises(NotImplementedError, match="f changes mutable references from outside of it"):
        _ = anima.jit(f).lower(A).partitioned


def test_programs_of_no_mesh_have_no_program_of_one_device() -> None:
    with pytest.raises(ValueError, match="Nothing in this program tells how arrays are cut"):
        _ = anima.jit(lambda x: x + 1).lower(A).partitioned
