"""What goes wrong with axis names, collectives, pmap and shard_map ends in errors that say what, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P, lax
from anima.sharding import AxisType, Mesh

pytestmark = pytest.mark.usefixtures("eight_devices")
X = np.arange(32, dtype=np.float32).reshape(8, 4)
Fun = Callable[..., Any]
Misuse = tuple[Fun, type[Exception], str]

# Functions of an element of the axis "i" of 4, in vmap, pmap and shard_map alike: an array of shape (4, 2).
COLLECTIVES: list[Misuse] = [
    (lambda a: lax.psum(a, "q"), NameError, "unbound axis name: q.*Names that are bound here: 'i'"),
    (lambda a: lax.psum(a, ("i", "q")), NameError, "unbound axis name: q"),
    (lambda a: lax.pmean(a, "q"), NameError, "unbound axis name: q"),
    (lambda a: lax.pmax(a, "q"), NameError, "call pmax within"),
    (lambda a: lax.pmin(a, "q"), NameError, "call pmin within"),
    (lambda a: lax.all_gather(a, "q"), NameError, "call all_gather within"),
    (lambda a: lax.psum_scatter(a, "q"), NameError, "call psum_scatter within"),
    (lambda a: lax.all_to_all(a, "q", 0, 0), NameError, "call all_to_all within"),
    (lambda a: lax.ppermute(a, "q", [(0, 1)]), NameError, "call ppermute within"),
    (lambda a: lax.pshuffle(a, "q", [0]), NameError, "call ppermute within"),
    (lambda a: lax.pswapaxes(a, "q", 0), NameError, "call all_to_all within"),
    (lambda a: lax.pbroadcast(a, "q", 0), NameError, "call pbroadcast within"),
    (lambda a: lax.pcast(a, "q", to="varying"), NameError, "call pcast within"),
    (lambda a: a * lax.axis_index("q"), NameError, "call axis_index within"),
    (lambda a: a * lax.axis_index(("i", "q")), NameError, "call axis_index within"),
    (lambda a: a * lax.axis_size("q"), NameError, "call axis_size within"),
    (lambda a: jnp.sum(a, axis="q"), NameError, "unbound axis name: q"),
    (lambda a: lax.psum(a, ("i", "i")), ValueError, "an axis name is there twice"),
    (lambda a: lax.pmean(a, ("i", "i")), ValueError, "an axis name is there twice"),
    (lambda a: lax.all_gather(a, ("i", "i")), ValueError, "an axis name is there twice"),
    (lambda a: lax.ppermute(a, ("i", "i"), [(0, 1)]), ValueError, "an axis name is there twice"),
    (lambda a: a * lax.axis_index(("i", "i")), ValueError, "an axis name is there twice"),
    (lambda a: lax.psum(a, 7), ValueError, "out-of-bounds"),
    (lambda a: lax.ppermute(a, "i", [(0, 1), (0, 2)]), ValueError, "must be unique"),
    (lambda a: lax.ppermute(a, "i", [(0, 1), (2, 1)]), ValueError, "must be unique"),
    (lambda a: lax.ppermute(a, "i", [(0, 4)]), ValueError, "less than the size 4"),
    (lambda a: lax.ppermute(a, "i", [(-1, 0)]), ValueError, "less than the size 4"),
    (lambda a: lax.pshuffle(a, "i", [0, 0, 1, 2]), ValueError, "does not represent a permutation"),
    (lambda a: lax.pshuffle(a, "i", range(5)), ValueError, "less than the size 4"),
    (lambda a: lax.pbroadcast(a, "i", 4), ValueError, "no element 4 in an axis of size 4"),
    (lambda a: lax.pbroadcast(a, "i", -1), ValueError, "no element -1"),
    (lambda a: lax.psum_scatter(a, "i", scatter_dimension=1), ValueError, "size 2 must match the size 4"),
    (lambda a: lax.psum_scatter(a, "i", scatter_dimension=1, tiled=True), ValueError, "2 must be divisible"),
    (lambda a: lax.psum_scatter(a, "i", scatter_dimension=2), ValueError, "axis 2 is out of bounds"),
    (lambda a: lax.all_to_all(a, "i", 1, 0), ValueError, "they are 4 and 2"),
    (lambda a: lax.all_to_all(a, "i", 1, 0, tiled=True), ValueError, "has to be divisible"),
    (lambda a: lax.all_to_all(a, "i", 0, 3), ValueError, "axis 3 is out of bounds"),
    (lambda a: lax.pswapaxes(a, "i", 1), ValueError, "they are 4 and 2"),
    (lambda a: lax.all_gather(a, "i", axis=4), ValueError, "axis 4 is out of bounds"),
    (lambda a: lax.all_gather(a, "i", axis=2, tiled=True), ValueError, "axis 2 is out of bounds"),
    (lambda a: lax.all_gather(a, "i", to="everywhere"), ValueError, "Unexpected to='everywhere'"),
    (lambda a: lax.all_gather(a, "i", to="reduced"), NotImplementedError, "sums of parts"),
    (lambda a: lax.pcast(a, "i", to="constant"), ValueError, "Unexpected to='constant'"),
    (lambda a: lax.pcast(a, "i", to="unreduced"), NotImplementedError, "sums of parts"),
    (lambda a: lax.psum(a, "i", axis_index_groups=[[0, 1]]), ValueError, "exactly once"),
    (lambda a: lax.psum(a, "i", axis_index_groups=[[0, 1], [1, 2, 3]]), ValueError, "exactly once"),
    (lambda a: lax.psum(a, "i", axis_index_groups=[[0, 1], [2, 4]]), ValueError, "exactly once"),
    (lambda a: lax.psum(a, ("i", 0), axis_index_groups=[[0, 1], [2, 3]]), ValueError, "just named axes"),
    (lambda a: lax.all_gather(a, "i", axis_index_groups=[[0], [1, 2, 3]]), ValueError, "all be the same size"),
    (lambda a: lax.psum_scatter(a, "i", axis_index_groups=[[0], [1, 2, 3]]), ValueError, "all be the same size"),
    (lambda a: lax.all_to_all(a, "i", 0, 0, axis_index_groups=[[0], [1, 2, 3]]), ValueError, "all be the same size"),
    (lambda a: lax.psum("text", "i"), TypeError, "not a valid Anima type"),
    (lambda a: lax.ragged_all_to_all(a, a, a, a, a, a, axis_name="i"), ValueError, "one integer for each of 4"),
    (lambda a: lax.psend(a, "j", [(0, 1)]), NameError, "unbound axis name: j"),
    (lambda a: lax.precv(lax.psend(a, "i", [(0, 1)]), a, "i", [(1, 0)]), ValueError, "does not belong to psend"),
    (lambda a: lax.precv(lax.psend(a, "i", [(0, 1)]), a[0], "i", [(0, 1)]), TypeError, "what psend has sent"),
    (lambda a: lax.precv(lax.create_token(), a, "i", [(0, 1)]), TypeError, "a token that psend has given"),
]


@pytest.mark.parametrize(("f", "error", "text"), COLLECTIVES)
@pytest.mark.parametrize("way", ["vmap", "pmap", "shard_map"])
def test_collectives(f: Fun, error: type[Exception], text: str, way: str) -> None:
    x = np.arange(32, dtype=np.float32).reshape(4, 4, 2)
    mapped = {"vmap": lambda: anima.vmap(f, axis_name="i"), "pmap": lambda: anima.pmap(f, "i"),
              "shard_map": lambda: anima.shard_map(lambda a: f(a[0]), mesh=Mesh(anima.devices()[:4], "i"),
                                                   in_specs=P("i"), out_specs=P("i"), check_vma=False)}[way]()
    with pytest.raises(error, match=text):
        mapped(x)


@pytest.mark.parametrize(("f", "error", "text"), [
    (lambda: lax.psum(X, "i"), NameError, "unbound axis name: i.*bound here: none"),
    (lambda: lax.axis_index("i"), NameError, "anima.shard_map"),
    (lambda: lax.axis_size("i"), NameError, "unbound"),
    (lambda: anima.jit(lambda a: lax.psum(a, "i"))(X), NameError, "unbound"),
    (lambda: anima.grad(lambda a: lax.psum(a, "i").sum())(X), NameError, "unbound"),
    (lambda: lax.all_gather(X, "i"), NameError, "unbound"),
])
def test_collectives_outside(f: Fun, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        f()


PMAP: list[Misuse] = [
    (lambda: anima.pmap(3), TypeError, "callable"),
    (lambda: anima.pmap(lambda a: (yield a)), TypeError, "generator"),
    (lambda: anima.pmap(lambda a: a, in_axes="0"), TypeError, "in_axes must be an int"),
    (lambda: anima.pmap(lambda a: a, in_axes=(0.5,)), TypeError, "in_axes must be an int"),
    (lambda: anima.pmap(lambda a: a, out_axes="0"), TypeError, "out_axes must be an int"),
    (lambda: anima.pmap(lambda a: a, axis_name=("i", "j")), ValueError, "axis_name must be one name"),
    (lambda: anima.pmap(lambda a: a, axis_name=0), ValueError, "axis_name must be one name"),
    (lambda: anima.pmap(lambda a: a, backend="gpu"), RuntimeError, "Unknown backend: 'gpu'"),
    (lambda: anima.pmap(lambda a: a, devices=[]), ValueError, "devices"),
    (lambda: anima.pmap(lambda a: a, devices=[3]), ValueError, "devices"),
    (lambda: anima.pmap(lambda a: a, devices=anima.devices()[:2] * 4), ValueError, "different ones"),
    (lambda: anima.pmap(lambda a: a, static_broadcasted_argnums=1), ValueError, "static_argnums"),
    (lambda: anima.pmap(lambda a: a, donate_argnums=0, static_broadcasted_argnums=0), ValueError, "cannot intersect"),
    (lambda: anima.pmap(lambda a: a)(np.ones(9)), ValueError, "over 9 elements requires .* there are 8"),
    (lambda: anima.pmap(lambda a: a)(np.ones((0, 2))), ValueError, "over 0 elements"),
    (lambda: anima.pmap(lambda a, b: a)(X, X[:3]), ValueError,
     r"^pmap got inconsistent sizes for array axes to be mapped:[\s\S]*size 8;[\s\S]*size 3;\nin pmap of <lambda>"),
    (lambda: anima.pmap(lambda a: a)(1.0), ValueError, "at least one argument with a mapped axis"),
    (lambda: anima.pmap(lambda: 1)(), ValueError, "at least one argument with a mapped axis"),
    (lambda: anima.pmap(lambda a: a, in_axes=None)(X), ValueError, "at least one argument with a mapped axis"),
    (lambda: anima.pmap(lambda a: a, axis_size=4)(X), ValueError, "axis_size 4 doesn't match"),
    (lambda: anima.pmap(lambda a: a, in_axes=(0, 0))(X), ValueError, "in_axes"),
    (lambda: anima.pmap(lambda a: a, in_axes=2)(X), ValueError, "out of bounds"),
    (lambda: anima.pmap(lambda a: a, in_axes=-3)(X), ValueError, "out of bounds"),
    (lambda: anima.pmap(lambda a: a, in_axes=({"x": 0},))({"y": X}), ValueError, "pmap in_axes"),
    (lambda: anima.pmap(lambda a: a, out_axes=5)(X), ValueError, "out of bounds"),
    (lambda: anima.pmap(lambda a: (a, a), out_axes=(0, 0, 0))(X), ValueError, "pmap out_axes"),
    (lambda: anima.pmap(lambda a: "text")(X), TypeError, "not a valid Anima type"),
    (lambda: anima.pmap(lambda a: a)("text"), TypeError, "abstract array"),
    (lambda: anima.pmap(lambda a, n: a, static_broadcasted_argnums=1)(X, [3]), ValueError, "not hashable"),
    (lambda: anima.pmap(lambda a: float(a))(np.ones(3)), anima.errors.ConcretizationTypeError, "float"),
    (lambda: anima.pmap(lambda a: a if a > 0 else -a)(np.ones(3)), anima.errors.TracerBoolConversionError, "bool"),
    (lambda: anima.pmap(anima.pmap(lambda a: a))(X[:2]), ValueError, "mapped over devices already"),
    (lambda: anima.pmap(anima.pmap(lambda a: a, "j"), "i")(X), ValueError, "one shard_map over a mesh of two axes"),
    (lambda: anima.pmap(lambda a, r: r[...] + a, in_axes=(0, None))(X, anima.new_ref(1.0)), (TypeError, ValueError),
     "ref"),
]


@pytest.mark.parametrize(("f", "error", "text"), PMAP)
def test_pmap(f: Fun, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        f()


def test_donated_arrays_are_gone() -> None:
    f, x = anima.pmap(lambda a: a + 1, donate_argnums=0), anima.pmap(lambda a: a)(X)
    f(x)
    for use in (lambda: f(x), lambda: x + 1, lambda: anima.pmap(lambda a: a)(x)):
        with pytest.raises(RuntimeError, match="deleted"):
            use()
    with pytest.raises(ValueError, match="twice"):
        y = jnp.asarray(X)
        anima.pmap(lambda a, b: a + b, donate_argnums=0)(y, y)


def apply(f: Fun = lambda a: a, x: Any = X, in_specs: Any = P("x"), out_specs: Any = P("x"), **options: Any) -> Fun:
    """shard_map of `f` on a mesh of (4, 2), called with `x`."""
    def call() -> Any:
        mesh = Mesh(np.array(anima.devices()).reshape(4, 2), ("x", "y"))
        args = x if isinstance(x, tuple) else (x,)
        return anima.shard_map(f, **{"mesh": mesh, "in_specs": in_specs, "out_specs": out_specs, **options})(*args)

    return call


def nested() -> Any:
    return apply(lambda a: anima.shard_map(lambda b: b, in_specs=P("x"), out_specs=P("x"))(a))()


SHARD_MAP: list[Misuse] = [
    (lambda: anima.shard_map(3, mesh=anima.make_mesh((4,), "x"), in_specs=P(), out_specs=P()), TypeError, "callable"),
    (apply(mesh=3), TypeError, "requires a `anima.sharding.Mesh`"),
    (apply(mesh=("x", "y")), TypeError, "requires a `anima.sharding.Mesh`"),
    (apply(mesh=None), ValueError, "context mesh cannot be empty"),
    (lambda: anima.shard_map(lambda a: a, anima.make_mesh((4,), "x"), P(), P()), TypeError, "positional"),
    (lambda: anima.shard_map(lambda a: a, mesh=None, in_specs=P()), TypeError, "out_specs"),
    (apply(x=X[:6]), ValueError, "4 does not evenly divide 6"),
    (apply(x=X[:7], in_specs=P(("x", "y"))), ValueError, r"mesh axis \('x', 'y'\) \(of size 8\)"),
    (apply(x=X[:, :3], in_specs=P(None, "y")), ValueError, "array axis 1 .of size 3. to mesh axis 'y'"),
    (apply(lambda first, second: first, (X, X[:6]), (P("x"), P("x"))), ValueError, "parameter 'second'"),
    (apply(x=({"w": X[:6]},), in_specs=({"w": P("x")},)), ValueError, r"args\[0\]\['w'\]"),
    (apply(x=np.ones(8, np.float32), in_specs=P("x", "y")), ValueError, "in_specs entry which is too long"),
    (apply(x=1.0), ValueError, "in_specs entry which is too long"),
    (apply(lambda a: a.sum()), ValueError, r"out_specs entry which is too long.*x\[None\]"),
    (apply(lambda a: a, out_specs=P("x", None, None)), ValueError, "out_specs entry which is too long"),
    (apply(in_specs=P("z")), ValueError,
     "in_specs argument must refer to an axis marked as manual .'x', 'y'.(?s:.*)'z'"),
    (apply(out_specs=P("z")), ValueError, "(?s)out_specs argument must refer to an axis marked as manual.*'z'"),
    (apply(in_specs=P("y"), axis_names={"x"}), ValueError, "refers to 'y'"),
    (apply(out_specs=P("y"), axis_names={"x"}), ValueError, "refers to 'y'"),
    (apply(axis_names={"z"}), ValueError, "subset of mesh.axis_names"),
    (apply(in_specs=P("x", "x")), ValueError, "names an axis twice"),
    (apply(in_specs=P(("x", "x"))), ValueError, "names an axis twice"),
    (apply(out_specs=P("x", "x")), ValueError, "names an axis twice"),
    (apply(in_specs="x"), TypeError, "in_specs is x of type str"),
    (apply(out_specs="x"), TypeError, "out_specs is x of type str"),
    (apply(in_specs=(0,)), TypeError, r"in_specs\[0\] is 0 of type int"),
    (apply(in_specs=(P("x"), P("x"))), ValueError, "shard_map in_specs"),
    (apply(in_specs=[P("x")]), ValueError, "shard_map in_specs"),
    (apply(out_specs=(P("x"), P())), ValueError, "shard_map out_specs"),
    (apply(out_specs=None), ValueError, "shard_map out_specs"),
    (apply(lambda a: {"w": a}, out_specs={"v": P("x")}), ValueError, "shard_map out_specs"),
    (apply(lambda a: (a, None), out_specs=(P("x"), P("x"), P())), ValueError, "shard_map out_specs"),
    (lambda: apply()().no_such, AttributeError, "no_such"),
    (lambda: anima.shard_map(lambda a: a, mesh=anima.make_mesh((4,), "x"), in_specs=P(), out_specs=P())(a=X), TypeError,
     "unexpected keyword"),
    (apply(lambda a: a, out_specs=P()), ValueError, "across the mesh axes 'x'.*float32.2,4.{V:x}.*check_vma=False"),
    (apply(lambda a: lax.all_gather(a, "x"), out_specs=P()), ValueError, "to='invarying'"),
    (apply(lambda a: lax.ppermute(a, "x", [(0, 1)]), out_specs=P()), ValueError, "replicated across"),
    (apply(lambda a: lax.psum(a, "x") * lax.axis_index("y"), out_specs=P()), ValueError, "mesh axes 'y'"),
    (apply(lambda a: [a, lax.psum(a, "x")], out_specs=[P(), P()]), ValueError, r"out_specs\[0\]"),
    (apply(lambda a: lax.psum(a, ("x", "y")), out_specs=P()), ValueError, "varies along x and not along y"),
    (apply(lambda a: lax.pmean(a, ("x", "y")), out_specs=P()), ValueError, "varies along x and not along y"),
    (apply(lambda a: lax.pcast(a, "x", to="varying")), ValueError, "varies along x already"),
    (apply(lambda a: lax.psum(a, "x", axis_index_groups=[[0, 1], [2, 3]])), NotImplementedError, "check_vma=False"),
    (apply(lambda a: lax.psum(a, "z")), NameError, "bound here: 'x', 'y'"),
    (apply(lambda a: lax.psum(a, "y"), axis_names={"x"}), NameError, "bound here: 'x'"),
    (apply(lambda a: "text"), TypeError, "not a valid Anima type"),
    (apply(lambda a: a if a.sum() > 0 else -a), anima.errors.TracerBoolConversionError, "bool"),
    (apply(lambda a: np.asarray(a)), anima.errors.TracerArrayConversionError, "array"),
    (apply(lambda a: (yield a)), TypeError, "generator"),
    (nested, ValueError, "mapped already by an enclosing shard_map"),
    (apply(lambda a: anima.shard_map(lambda b: b, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})(a)), ValueError,
     "over which the function is mapped already"),
    (apply(lambda a: anima.shard_map(lambda b: b, mesh=anima.make_mesh((2,), "z"), in_specs=P(), out_specs=P())(a)),
     ValueError, "should match the mesh passed to shard_map"),
    (apply(lambda a: anima.pmap(lambda b: b)(a)), ValueError, "mapped over devices already"),
    (lambda: anima.shard_map(lambda a: a, mesh=Mesh(anima.devices(), "x", AxisType.Auto), out_specs=P("x"))(X),
     TypeError, "AxisType.Explicit"),
    (apply(in_specs=anima.NamedSharding), TypeError, "PartitionSpec"),
    (lambda: anima.smap(lambda a: a, in_axes=0, out_axes=0, axis_name="x")(X), ValueError, "context mesh"),
    (lambda: anima.smap(lambda a: a, in_axes="0", out_axes=0, axis_name="x"), TypeError, "smap in_axes must be an int"),
    (lambda: anima.smap(lambda a: a, in_axes=0, out_axes=0.5, axis_name="x"), TypeError,
     "smap out_axes must be an int"),
    (lambda: anima.smap(lambda a: a, in_axes=0, out_axes=0, axis_name=("x", "y")), TypeError, "name of one axis"),
    (lambda: anima.smap(lambda a: a, in_axes=0, out_axes=0), TypeError, "axis_name"),
    (lambda: anima.make_mesh((16,), "x"), ValueError, "Number of devices 8 must be >= the product of mesh_shape"),
    (lambda: anima.make_mesh((4, 4), ("x", "y")), ValueError, "Number of devices 8"),
    (lambda: anima.vmap(apply_with_spmd, spmd_axis_name="y")(np.ones((3, 8), np.float32)), ValueError,
     "do not divide into 2"),
]


def apply_with_spmd(a: Any) -> Any:
    return apply(x=a)()


@pytest.mark.parametrize(("f", "error", "text"), SHARD_MAP)
def test_shard_map(f: Fun, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        f()


def test_references_from_outside() -> None:
    r = anima.new_ref(jnp.ones(2))
    with pytest.raises(NotImplementedError, match="mutable array reference"):
        apply(lambda a: a + r[0])()


def test_errors_name_the_users_line() -> None:
    with pytest.raises(NameError) as caught:
        anima.pmap(lambda a: lax.psum(a, "q"), "i")(X)
    assert __file__ in str(caught.traceback[-1].path) and "anima/lax" not in str(caught.traceback[-1].path)
