"""Exported functions compute what the functions do: called, transformed, written and read, in another process."""

from __future__ import annotations

import collections
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import export as ex, lax, tree
from anima.config import threefry_partitionable
from anima.export import primitives as table
from anima.export.writing import WHY
from tests.export.programs import CASES, DTYPES, SMOOTH, X, constant
from tests.test_house import primitives

ROOT = pathlib.Path(anima.__file__).parents[1]


def same(found: Any, wanted: Any, exact: bool = True) -> None:
    assert tree.structure(found) == tree.structure(wanted)
    for a, b in zip(tree.leaves(found), tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if anima.dtypes.issubdtype(a.dtype, anima.dtypes.prng_key):
            a, b = anima.random.key_data(a), anima.random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype == anima.float0:
            continue
        if exact:
            assert a.tobytes() == b.tobytes()
        else:
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def again(exported: ex.Exported, vjp_order: int = 0) -> ex.Exported:
    return ex.deserialize(exported.serialize(vjp_order=vjp_order))


def exported_of(name: str, vjp_order: int = 0) -> ex.Exported:
    fun, args = CASES[name]
    return again(ex.export(anima.jit(fun))(*args), vjp_order)


@pytest.mark.parametrize("name", CASES)
def test_the_values_are_those_of_the_function(name: str) -> None:
    fun, args = CASES[name]
    wanted = anima.jit(fun)(*args)
    exported = exported_of(name)
    same(exported.call(*args), wanted)
    same(anima.jit(exported.call)(*args), wanted)
    assert [a.weak_type for a in exported.out_avals] == [a.weak_type for a in anima.make_jaxpr(fun)(*args).out_avals]


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_are_those_of_the_function(name: str) -> None:
    fun, args = CASES[name]
    exported = exported_of(name, vjp_order=1)

    def pulled(f: Any) -> Any:
        def total(*xs: Any) -> Any:
            leaves = [x for x in tree.leaves(f(*xs)) if jnp.issubdtype(x.dtype, jnp.inexact)]
            return sum(jnp.sum(jnp.cos(x)) for x in leaves)
        return anima.grad(total, allow_int=True)

    same(pulled(exported.call)(*args), pulled(fun)(*args), exact=False)


def test_derivatives_of_derivatives() -> None:
    fun = lambda x: jnp.sum(jnp.sin(x) * newtons(x))
    newtons = CASES["while"][0]
    x = jnp.asarray([1.0, 2.0])
    wanted = anima.grad(lambda y: jnp.sum(anima.grad(fun)(y) ** 2))(x)
    exported = again(ex.export(anima.jit(fun))(x), 2)
    same(anima.grad(lambda y: jnp.sum(anima.grad(exported.call)(y) ** 2))(x), wanted, exact=False)
    assert exported.vjp().has_vjp() and not exported.vjp().vjp().has_vjp()


def test_rules_of_users_are_what_is_exported() -> None:
    fun, (x,) = CASES["rules"]
    exported = exported_of("rules", vjp_order=1)
    same(anima.grad(lambda y: exported.call(y).sum())(x), anima.grad(lambda y: fun(y).sum())(x), exact=False)


def test_vmap_jit_and_another_export() -> None:
    exported = exported_of("products", vjp_order=1)
    a = CASES["products"][1][1]
    many = jnp.stack([X, 2 * X])
    wanted = anima.vmap(CASES["products"][0], (0, None))(many, a)
    same(anima.vmap(exported.call, (0, None))(many, a), wanted, exact=False)
    outer = again(ex.export(anima.jit(lambda x: exported.call(x, a).sum()))(X), 1)
    same(outer.call(X), exported.call(X, a).sum(), exact=False)
    same(anima.grad(outer.call)(X), anima.grad(lambda x: exported.call(x, a).sum())(X), exact=False)
    stepped = lax.scan(lambda c, _: (exported.call(c, a), ()), X, None, length=2)[0]
    same(stepped, exported.call(exported.call(X, a), a), exact=False)
    slopes = anima.vmap(anima.grad(lambda x: exported.call(x, a).sum()))(many)
    same(slopes[1], anima.grad(lambda x: exported.call(x, a).sum())(many[1]), exact=False)


@pytest.mark.parametrize("name", DTYPES)
def test_constants_of_every_dtype(name: str) -> None:
    value = constant(name)
    fun = anima.jit(lambda n: (jnp.asarray(value), jnp.asarray(value)[n], n))
    same(again(ex.export(fun)(1)).call(1), fun(1))


@pytest.mark.parametrize("value", [2.5, np.float32(2.5), np.int32(7), -7, 1 + 2j, np.complex64(1 - 2j), float("inf"),
                                   -0.0, True])
def test_numbers_among_parameters(value: Any) -> None:
    """Python's and NumPy's, of every kind, are the same in a file."""
    kind = complex if np.iscomplexobj(value) else np.float32
    x = np.arange(1, 5).astype(kind)

    def fun(x: Any) -> Any:
        return x.at[jnp.array([1, 9, -9])].get(mode="fill", fill_value=value)

    exported = ex.export(anima.jit(fun))(x)
    again = ex.deserialize(exported.serialize())
    for call in (exported.call, again.call):
        got = np.asarray(call(x))
        np.testing.assert_array_equal(got, np.array([2, value, value], got.dtype))
        np.testing.assert_array_equal(np.signbit(got.real), np.signbit(np.real([2, value, value])))


def test_keys_are_constants_too() -> None:
    keys = anima.random.split(anima.random.key(3), 2)
    fun = anima.jit(lambda n: anima.random.normal(keys[n], (3,)))
    same(again(ex.export(fun)(1)).call(1), fun(1))


def test_64_bits() -> None:
    with anima.enable_x64(True):
        fun = anima.jit(lambda x: (jnp.sum(x * np.pi), jnp.argmax(x), jnp.arange(3)))
        args = (jnp.asarray([1.0, 1e-12]),)
        wanted, exported = fun(*args), ex.export(fun)(*args)
    exported = again(exported, 1)
    with pytest.raises(ValueError, match=r"Dtype mismatch for args.0.: expected float64 and called with float32. 64"):
        exported.call(jnp.ones(2))
    with anima.enable_x64(True):
        same(exported.call(*args), wanted)


def test_random_streams_are_those_of_the_process_that_exports() -> None:
    fun = anima.jit(lambda seed: anima.random.uniform(anima.random.key(seed), (3, 5)))
    for new in (False, True):
        with threefry_partitionable(new):
            exported, wanted = ex.export(fun)(1), fun(1)
        with threefry_partitionable(not new):
            same(ex.deserialize(exported.serialize()).call(1), wanted)


def test_every_primitive_is_exported_stands_for_a_program_or_says_why_not() -> None:
    refused = {p.name for p in primitives() if not table.is_exported(p) and p.body is None}
    assert refused == set(WHY)


@pytest.mark.parametrize("path", sorted((pathlib.Path(__file__).parent / "data").glob("*.anima")), ids=lambda p: p.stem)
def test_files_of_earlier_versions_are_read(path: pathlib.Path) -> None:
    """`NAME-VERSION.anima` is the function of that name, as it was written in that version of the format."""
    name, version = path.stem.split("-")
    blob = path.read_bytes()
    assert int.from_bytes(blob[8:12], "little") == int(version)
    fun, args = CASES[name]
    same(ex.deserialize(blob).call(*args), anima.jit(fun)(*args), exact=False)


OTHER = """
import sys, pathlib
import numpy as np
from anima import export, grad
folder = pathlib.Path(sys.argv[1])
for path in sorted(folder.glob("*.anima")):
    exported = export.deserialize(path.read_bytes())
    args = np.load(folder / (path.stem + ".npz"))
    given = [args[k] for k in args.files if k.startswith("in")]
    found = exported.call(*given)
    assert found.tobytes() == args["out"].tobytes(), path
    slope = grad(lambda *xs: exported.call(*xs).sum())(*given)
    np.testing.assert_allclose(slope, args["slope"], rtol=1e-5, atol=1e-5)
print("all well")
"""


def test_another_process_without_the_source(tmp_path: pathlib.Path) -> None:
    for name in ("products", "while", "rules"):
        fun, args = CASES[name]
        (tmp_path / f"{name}.anima").write_bytes(ex.export(anima.jit(fun))(*args).serialize(vjp_order=1))
        np.savez(tmp_path / f"{name}.npz", out=anima.jit(fun)(*args),
                 slope=anima.grad(lambda *xs, f=fun: f(*xs).sum())(*args),
                 **{f"in{k}": np.asarray(a) for k, a in enumerate(args)})
    done = subprocess.run([sys.executable, "-c", OTHER, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "all well\n", done.stderr


# ---------------------------------------------------------------- what is said of an exported function

def test_attributes() -> None:
    exported = ex.export(anima.jit(lambda x, y=None, *, z: {"a": jnp.sin(x) + z}))(jnp.ones(3), z=2.0)
    for e in (exported, again(exported)):
        assert e.fun_name == "<lambda>" and repr(e) == "Exported(fun_name=<lambda>, ...)"
        assert [str(a) for a in e.in_avals] == ["float32[3]", "~float32[]"]
        assert [str(a) for a in e.out_avals] == ["float32[3]"]
        assert str(e.in_tree) == "PyTreeDef(((*,), {'z': *}))" and str(e.out_tree) == "PyTreeDef({'a': *})"
        assert e.platforms == ("cpu",) and e.nr_devices == 1 and e.calling_convention_version == 10
        assert e.ordered_effects == e.unordered_effects == e.disabled_safety_checks == ()
        assert e.module_kept_var_idx == (0, 1) and e.uses_global_constants is False
        assert e.in_shardings_hlo == e.in_shardings_jax(None) == (None, None)
        assert e.out_shardings_hlo == e.out_shardings_jax(None) == (None,)
        assert isinstance(e.mlir_module_serialized, bytes)
        with pytest.raises(NotImplementedError, match="does not go through MLIR"):
            e.mlir_module()


def test_types_of_derivatives() -> None:
    exported = ex.export(anima.jit(lambda x, n: (x * n, n)))(jnp.ones(3), 2)
    for e in (exported, again(exported, 1)):
        assert [str(a) for a in e.vjp().in_avals] == ["float32[3]", "int32[]", "float32[3]", "float0[]"]
        assert [str(a) for a in e.vjp().out_avals] == ["float32[3]", "float0[]"]
        x, n = e.vjp().call(jnp.ones(3), 2, jnp.ones(3), np.zeros((), anima.float0))
        assert np.array_equal(x, [2, 2, 2]) and n.dtype == anima.float0
    assert exported.has_vjp() and not again(exported).has_vjp()


@pytest.mark.parametrize("call,message", [
    (lambda e: e.call(jnp.ones(4), z=2.0), r"Shape mismatch for args\[0\]: expected \(3,\) and called with \(4,\)"),
    (lambda e: e.call(jnp.ones(3, int), z=2.0), r"Dtype mismatch for args\[0\]: expected float32 and called with int"),
    (lambda e: e.call(jnp.ones(3), z=2), r"Dtype mismatch for kwargs\['z'\]: expected float32 and called with int32"),
    (lambda e: e.call(jnp.ones(3), y=2.0), "must have the same pytree structure as when the function 'f' was exported"),
    (lambda e: again(e).vjp(), "No VJP is available"),
    (lambda e: anima.grad(lambda x: again(e).call(x, z=1.0).sum())(jnp.ones(3)), "No VJP is available"),
    (lambda e: ex.export(lambda x: x), "must be the result of `jit`"),
    (lambda e: e.serialize(vjp_order=16), "vjp_order is from 0 to 15, got 16"),
], ids=range(8))
def test_wrong_calls(call: Any, message: str) -> None:
    def f(x: Any, *, z: Any) -> Any:
        return x * z

    with pytest.raises(ValueError, match=message) as info:
        call(ex.export(anima.jit(f))(jnp.ones(3), z=2.0))
    assert not any("anima/export" in str(entry.path) for entry in info.traceback)


def test_forward_mode_is_refused() -> None:
    exported = ex.export(anima.jit(jnp.sin))(1.0)
    with pytest.raises(TypeError, match="forward-mode"):
        anima.jvp(exported.call, (1.0,), (1.0,))


def test_platforms() -> None:
    fun = ex.export(anima.jit(jnp.sin), platforms=("tpu",))
    with pytest.raises(ValueError, match=r"was exported for platforms '.'tpu',.' but it is used on"):
        again(fun(1.0)).call(1.0)
    allowed = ex.export(anima.jit(jnp.sin), platforms=("tpu",), disabled_checks=[ex.DisabledSafetyCheck.platform()])
    same(again(allowed(0.0)).call(0.0), anima.jit(jnp.sin)(0.0))
    with pytest.raises(TypeError, match="DisabledSafetyCheck"):
        ex.export(anima.jit(jnp.sin), disabled_checks=[3])
    assert ex.default_export_platform() == "cpu"
    assert ex.minimum_supported_calling_convention_version <= ex.maximum_supported_calling_convention_version


def _prints(x: Any) -> Any:
    anima.debug.print("{}", x)
    return x


@pytest.mark.parametrize("fun,why", [
    (lambda x: anima.pure_callback(np.sin, x, x), "'pure_callback' at test_exported.py:.*: it calls Python"),
    (lambda x: lax.fori_loop(0, 2, lambda i, c: _prints(c), x), "'debug_print' at test_exported.py:.*: it calls"),
    (lambda x: anima.vmap(lambda y: lax.all_gather(y, "i"), axis_name="i")(x), None),
])
def test_what_calls_python_is_refused(fun: Any, why: str | None) -> None:
    exported = ex.export(anima.jit(fun))(jnp.ones(3))
    if why is None:
        again(exported)
        return
    with pytest.raises(NotImplementedError, match=why):
        exported.serialize()


def test_effects_are_told() -> None:
    assert ex.export(anima.jit(_prints))(1.0).unordered_effects == ("Debug",)


def test_places_in_the_source_are_kept_for_errors() -> None:
    def f(x: Any) -> Any:
        return jnp.sin(x)

    (eqn,) = (e for e in again(ex.export(anima.jit(f))(1.0)).jaxpr.eqns)
    assert str(eqn.source).startswith("test_exported.py:") and str(eqn.source).endswith("in f")


# ---------------------------------------------------------------- trees

Pair = collections.namedtuple("Pair", "x y")


class Box:
    def __init__(self, content: Any, label: str) -> None:
        self.content, self.label = content, label


@pytest.mark.parametrize("key", [1.5, (1, 2), b"x"])
def test_keys_that_cannot_be_written(key: Any) -> None:
    exported = ex.export(anima.jit(lambda d: d[key]))({key: 1.0})
    assert float(exported.call({key: 2.0})) == 2
    with pytest.raises(ValueError, match=r"Cannot serialize a dict with the key .*: keys are texts, integers or bools"):
        exported.serialize()


def test_there_are_no_lowering_rules() -> None:
    with pytest.raises(NotImplementedError, match="no lowering rules to override"):
        ex.export(anima.jit(jnp.sin), _override_lowering_rules=())


def test_nodes_need_names() -> None:
    exported = ex.export(anima.jit(lambda p: p))(Pair(1.0, 2.0))
    with pytest.raises(ValueError, match=r"unregistered type `<class .*Pair"):
        exported.serialize()
    with pytest.raises(ValueError, match="is no type of pytree nodes"):
        ex.register_pytree_node_serialization(Box, serialized_name="box", serialize_auxdata=str.encode,
                                              deserialize_auxdata=bytes.decode)
    with pytest.raises(ValueError, match="for types other than"):
        ex.register_namedtuple_serialization(dict, serialized_name="d")
    assert ex.register_namedtuple_serialization(Pair, serialized_name="tests.Pair") is Pair
    with pytest.raises(ValueError, match="Duplicate serialization registration for type"):
        ex.register_namedtuple_serialization(Pair, serialized_name="tests.Pair2")
    tree.register_pytree_node(Box, lambda b: ((b.content,), b.label), lambda label, c: Box(*c, label))
    with pytest.raises(ValueError, match=r"for serialized_name `tests.Pair`"):
        ex.register_pytree_node_serialization(Box, serialized_name="tests.Pair", serialize_auxdata=str.encode,
                                              deserialize_auxdata=bytes.decode)
    ex.register_pytree_node_serialization(Box, serialized_name="tests.Box", serialize_auxdata=str.encode,
                                          deserialize_auxdata=bytes.decode)
    given = Pair(Box(1.0, "é"), collections.OrderedDict(b=(2.0, None), a={"k": [3.0], "": ()}))
    exported = again(ex.export(anima.jit(lambda p: p))(given))
    found = exported.call(given)
    assert tree.structure(found) == tree.structure(given) and found.x.label == "é" and list(found.y) == ["b", "a"]
    blob = ex.export(anima.jit(lambda p: p))(given).serialize()
    ex_trees = sys.modules["anima.export.trees"]
    node = ex_trees._by_name.pop("tests.Box")  # type: ignore[attr-defined]
    try:
        with pytest.raises(ex.FormatError, match=r"unregistered type `tests.Box`"):
            ex.deserialize(blob)
    finally:
        ex_trees._by_name["tests.Box"] = node  # type: ignore[attr-defined]


# ---------------------------------------------------------------- sizes with names

def test_symbolic_shapes() -> None:
    assert ex.symbolic_shape("2, 3") == ex.symbolic_shape("(2, _)", like=(2, 3)) == (2, 3)
    assert ex.symbolic_shape("2,...", like=(2, 3, 4)) == ex.symbolic_shape(None, like=(2, 3, 4)) == (2, 3, 4)
    assert not ex.is_symbolic_dim(3)
    for spec, like in (("4", (3,)), ("_", None), ("...", None), ("2,3", (2,)), ("-1", None), ("?", None)):
        with pytest.raises(ValueError, match="symbolic shape"):
            ex.symbolic_shape(spec, like=like)
    specs = ex.symbolic_args_specs({"x": jnp.ones((2, 3)), "n": 1}, "...")
    assert specs["x"].shape == (2, 3) and specs["n"].dtype == np.int32
    with pytest.raises(ValueError, match="different from"):
        ex.symbolic_args_specs((jnp.ones(3),), "4")


def test_what_is_deep() -> None:
    f = anima.jit(lambda x: x + 1.0)
    for _ in range(300):
        f = anima.jit(lambda x, f=f: f(x) * 1.0)
    same(again(ex.export(f)(1.0)).call(1.0), jnp.float32(2.0) + jnp.zeros(()))
    tree_of_depth = [1.0]
    for _ in range(70):
        tree_of_depth = [tree_of_depth]
    with pytest.raises(ValueError, match="more than 64 nodes deep"):
        ex.export(anima.jit(lambda x: x))(tree_of_depth).serialize()


def test_references_are_part_of_a_program_or_refused() -> None:
    def running(x: Any) -> Any:
        total = anima.new_ref(jnp.zeros(3))

        def step(i: Any, _: Any) -> None:
            total[i % 3] += x[i]

        lax.fori_loop(0, len(x), step, None)
        return anima.freeze(total)

    x = jnp.arange(7.0)
    same(again(ex.export(anima.jit(running))(x)).call(x), anima.jit(running)(x))
    with pytest.raises(NotImplementedError, match="it takes references"):
        ex.export(anima.jit(lambda r: r[...] + 1))(anima.new_ref(x))
    outside = anima.new_ref(x)
    with pytest.raises((ValueError, NotImplementedError), match="cannot be exported"):
        ex.export(anima.jit(lambda x: outside[...] + x))(x)


def test_closed_over_tracers_are_refused() -> None:
    def outer(x: Any) -> Any:
        return ex.export(anima.jit(lambda y: x * y))(1.0)

    with pytest.raises(ValueError, match="closes over values that are being traced"):
        anima.jit(outer)(2.0)


def test_functions_of_the_library_need_no_jit() -> None:
    exported = ex.export(jnp.sin)(jnp.ones(4))
    assert exported.in_avals[0].shape == (4,)
    np.testing.assert_array_equal(exported.call(jnp.ones(4)), jnp.sin(jnp.ones(4)))
    with pytest.raises(ValueError, match="must be the result of `jit`"):
        ex.export(lambda x: x)
