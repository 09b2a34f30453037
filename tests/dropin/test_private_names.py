"""Names of JAX's private modules that libraries import, with what they rely on of them."""

from collections import OrderedDict, defaultdict, deque

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import tree
from anima.dropin.jax._src import api, api_util, core, dtypes, effects, traceback_util, tree_util, util as sequences
from anima.dropin.jax._src.interpreters import mlir
from anima.dropin.jax._src.lax import lax, linalg
from anima.dropin.jax._src.lax.control_flow.loops import _batch_and_remainder
from anima.dropin.jax._src.nn import initializers
from anima.dropin.jax._src.numpy import array_methods, reductions, util, vectorize
from anima.dropin.jax._src.scipy.sparse import linalg as sparse
from anima.dropin.jax._src.sharding_impls import canonicalize_sharding
from anima.errors import is_internal
from anima.extend.core import Primitive
from anima.extend.linear_util import wrap_init
from anima.interpreters.mlir import register_lowering
from anima.sharding import AxisType, NamedSharding, PartitionSpec as P
from tests.dropin.test_dropin import under_jax


def test_public_things_in_private_files():
    under_jax("""
import jax
from jax._src import config
from jax._src.numpy.setops import _UniqueCountsResult, unique
assert config.config is jax.config and config.numpy_rank_promotion.value == "allow"
assert type(jax.numpy.unique_counts(jax.numpy.ones(2))) is _UniqueCountsResult
assert unique is jax.numpy.unique
""")


def test_public_functions_in_the_files_that_jax_has_them_in():
    under_jax("""
import jax, jax.numpy as jnp
from jax._src import api, basearray, core, debugging, linear_util, mesh_utils, pjit, profiler, shard_map, xla_bridge
from jax._src.callback import io_callback, pure_callback
from jax._src.layout import Format
from jax._src.lax.ann import approx_max_k
from jax._src.lax.control_flow.solves import custom_linear_solve
from jax._src.lax.other import conv_general_dilated_patches
from jax._src.numpy.array import asarray
from jax._src.numpy.indexing import take_along_axis
from jax._src.numpy.polynomial import polyfit
from jax._src.ops.scatter import segment_sum
from jax._src.ops.special import logsumexp
from jax._src.scipy import ndimage, signal
from jax._src.scipy.optimize.minimize import minimize
from jax._src.scipy.spatial.transform import Rotation
from jax._src.scipy.stats import norm
from jax._src.scipy.stats.kde import gaussian_kde
from jax._src.third_party.scipy.interpolate import RegularGridInterpolator
assert basearray.Array is jax.Array and core.typeof is jax.typeof and core.gensym is jax.core.gensym
assert (debugging.debug_print, debugging.debug_callback) == (jax.debug.print, jax.debug.callback)
assert linear_util.wrap_init is jax.extend.linear_util.wrap_init and shard_map.shard_map is jax.shard_map
assert pjit.with_sharding_constraint is jax.lax.with_sharding_constraint and pjit.pjit is jax.experimental.pjit.pjit
assert profiler.StepTraceAnnotation is jax.profiler.StepTraceAnnotation
assert xla_bridge.default_backend() == "cpu" and xla_bridge.device_count() == jax.device_count()
assert pure_callback is jax.pure_callback and io_callback is jax.experimental.io_callback
assert asarray is jnp.asarray and take_along_axis is jnp.take_along_axis and polyfit is jnp.polyfit
assert norm.logpdf is jax.scipy.stats.norm.logpdf and segment_sum is jax.ops.segment_sum
try:
    from jax._src.scipy.stats import nothing_of_this_name
except ImportError:
    print("none")
""")


def test_operands_are_checked_and_promoted():
    ints, floats, flag = np.arange(3, dtype=np.int32), np.ones((2, 3), np.float32), np.bool_(True)
    util.check_arraylike("f", ints, 1.0)
    util.check_arraylike_or_none("f", ints, None)
    with pytest.raises(TypeError, match="f requires ndarray or scalar arguments, got <class 'list'> at position 1"):
        util.check_arraylike("f", ints, [1.0])
    assert [x.shape for x in util.promote_shapes("f", ints, floats)] == [(1, 3), (2, 3)]
    assert [(x.dtype, x.shape) for x in util.promote_args("f", ints, floats, 1)] == \
        [(np.float32, (1, 3)), (np.float32, (2, 3)), (np.float32, ())]
    assert [x.dtype for x in util.promote_args_inexact("f", ints, ints)] == [np.float32] * 2
    assert [x.dtype for x in util.promote_args_numeric("f", flag)] == [np.int32]
    assert [x.dtype for x in util.promote_dtypes_numeric(flag, flag)] == [np.int32] * 2
    assert [x.dtype for x in util.promote_dtypes_numeric(flag, floats)] == [np.float32] * 2
    assert isinstance(util.ensure_arraylike("f", ints), anima.Array)
    assert all(isinstance(x, anima.Array) for x in util.ensure_arraylike("f", ints, 1.0))
    assert reductions._reduction_dims(floats, -1) == ((1,), (1,)) and reductions._reduction_dims(floats, None) == \
        ((0, 1), (0, 1))


def test_numbers_beside_arrays():
    assert lax._const(np.ones(2, np.float32), 1).dtype == np.float32 and lax._const(2.5, 1) == 1.0
    assert type(lax._const(2.5, 1)) is float
    converted = lax._convert_element_type(jnp.arange(3), np.float32, weak_type=True)
    assert converted.dtype == np.float32 and converted.weak_type
    assert lax._convert_element_type(1.0).weak_type is False
    assert lax._convert_element_type(1, np.int32).dtype == np.int32


def test_sequences():
    assert sequences.tuple_insert((1, 2), 1, 9) == (1, 9, 2) and sequences.tuple_delete((1, 2, 3), 1) == (1, 3)
    assert sequences.tuple_update((1, 2, 3), 2, 9) == (1, 2, 9) and sequences.ceil_of_ratio(7, 2) == 4
    assert sequences.concatenate([[1], (2, 3)]) == [1, 2, 3]
    assert sequences.subs_list([1, None, 0], "ab", [7]) == ["b", 7, "a"]
    with pytest.raises(ValueError, match="more other elements"):
        sequences.subs_list([1], "ab", [7])
    seen = []
    sequences.foreach(lambda x, y: seen.append(x + y), [1, 2], [3, 4])
    assert seen == [4, 6]


def test_trees_as_vectors():
    x = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(3j)}
    assert sparse._vdot_tree(x, x) == 14.0 and sparse._vdot_real_tree(x, x).dtype == np.float32
    assert sparse._shapes(x) == {"a": (2,), "b": ()}
    doubled = sparse._sub(sparse._mul(3.0, x), x)
    assert tree.all(tree.map(lambda y, z: bool((y == z).all()), doubled, sparse._add(x, x)))


def test_sizes_behind_weights():
    assert initializers._compute_fans((3, 3, 4, 8)) == (36, 72)


def test_errors_of_prefixes():
    (error,) = tree_util.prefix_errors((1, {"a": (2,)}), (1, {"a": (2, 3)}))
    with pytest.raises(ValueError, match=r"different lengths of tuple at key path\n    in_axes\[1\]\['a'\]"):
        raise error("in_axes")
    assert tree_util.prefix_errors((1, 2), (1, {"a": 2})) == []
    assert len(tree_util.prefix_errors((None, 1), (2, 3))) == 1


@pytest.mark.parametrize("node", [(1, 2), [1, 2], {"b": 1, "a": 2}, None, OrderedDict(b=1, a=2), deque([1, 2]),
                                  defaultdict(int, b=1, a=2), tree.Partial(print, 1, end="")])
def test_registered_types_say_how_nodes_are_taken_apart_and_made(node):
    entry = tree_util._registry[type(node)]
    children, data = entry.to_iter(node)
    made = entry.from_iter(data, list(children))
    assert type(made) is type(node) and tree.structure(made) == tree.structure(node)
    assert tree.leaves(made) == tree.leaves(node)


def test_steps_of_vectorize():
    assert vectorize._parse_gufunc_signature("(n, m),()->(m),(k)") == ([("n", "m"), ()], [("m",), ("k",)])
    with pytest.raises(ValueError, match="not a valid gufunc signature"):
        vectorize._parse_gufunc_signature("(n)")
    x, y = np.ones((2, 1, 3)), np.ones((4, 3))
    assert vectorize._parse_input_dimensions((x, y), [("n",), ("n",)]) == ((2, 4), {"n": 3})
    with pytest.raises(TypeError, match="expected 1, got 2 here"):
        vectorize._parse_input_dimensions((x, y), [("n",)], "here")
    with pytest.raises(ValueError, match="inconsistent size for core dimension 'n'"):
        vectorize._parse_input_dimensions((x, y), [("n",), ("n", "k")])
    with pytest.raises(ValueError):
        vectorize._parse_input_dimensions((x, np.ones((3, 3))), [("n", "k"), ()])
    fun, args, kwargs = vectorize._apply_excluded(lambda *a, **k: (a, k), {1, "z", 9}, (1, 2, 3), {"y": 4, "z": 5})
    assert (list(args), kwargs) == ([1, 3], {"y": 4}) and fun(10, 30, y=40) == ((10, 2, 30), {"y": 40, "z": 5})
    assert vectorize._apply_excluded(len, set(), (1,), {}) == (len, (1,), {})


def test_results_of_vectorized_functions_need_only_have_a_shape():
    class Shaped:
        shape = (3,)

    assert isinstance(vectorize._check_output_dims(Shaped, {"n": 3}, [("n",)])(), Shaped)
    with pytest.raises(ValueError, match="inconsistent size"):
        vectorize._check_output_dims(Shaped, {"n": 4}, [("n",)])()
    with pytest.raises(ValueError, match="does not match core dimensions"):
        vectorize._check_output_dims(Shaped, {}, [()])()
    with pytest.raises(TypeError):
        vectorize._check_output_dims(Shaped, {}, [("n",), ()])()
    assert anima.numpy.vectorize(lambda x: 2.0, signature="()->()")(jnp.ones(2)).shape == (2,)


def test_classes_of_updates_can_be_subclassed():
    class At(array_methods._IndexUpdateHelper):
        def __getitem__(self, index):
            return Doubled(self.array, index)

    class Doubled(array_methods._IndexUpdateRef):
        def set(self, values):
            return super().set(2 * values)

    x = jnp.zeros(3)
    assert isinstance(x.at, array_methods._IndexUpdateHelper) and isinstance(x.at[0], array_methods._IndexUpdateRef)
    assert At(x)[1].set(2.0).tolist() == [0, 4, 0] and At(x)[1].add(2.0).tolist() == [0, 2, 0]


def test_jacobians_a_few_directions_at_a_time():
    def f(x):
        return {"y": jnp.sin(x["a"]).sum(0) * x["b"], "z": x["b"] ** 2}

    x = {"a": jnp.ones((2, 3)), "b": jnp.float32(3.0)}
    api._check_input_dtype_jacfwd(False, x["b"])
    with pytest.raises(TypeError, match="real-valued inputs"):
        api._check_input_dtype_jacfwd(False, 1j)
    with pytest.raises(TypeError, match="complex dtype"):
        api._check_output_dtype_jacrev(True, 1.0)
    api._check_input_dtype_jacrev(False, True, 1)
    api._check_output_dtype_jacfwd(False, 1j)
    fun = wrap_init(f)
    push = anima.vmap(lambda t: api._jvp(fun, (x,), (t,))[1])
    whole, rest = _batch_and_remainder(api._std_basis(x), 3)
    parts = [*(push(anima.tree.map(lambda t, k=k: t[k], whole)) for k in range(2)), push(rest)]
    columns = anima.tree.map(lambda *ts: jnp.moveaxis(jnp.concatenate(ts), 0, -1), *parts)
    out, pull = api._vjp(fun, x)
    wanted = anima.jacfwd(f)(x)
    assert anima.tree.all(anima.tree.map(jnp.array_equal, anima.tree.map(
        lambda y, j: api._jacfwd_unravel(x, y, j), out, columns), wanted))
    by_rows = anima.tree.map(lambda v, j: api._jacrev_unravel(out, v, j), x,
                             anima.vmap(pull)(api._std_basis(out))[0])
    assert jnp.allclose(by_rows["b"]["y"], wanted["y"]["b"]) and by_rows["a"]["y"].shape == (3, 2, 3)


def test_batches_and_what_is_left_over():
    shapes = [anima.tree.map(jnp.shape, _batch_and_remainder({"x": jnp.ones((n, 2))}, 4)) for n in (7, 8, 2)]
    assert _batch_and_remainder({}, 4) == ({}, None)
    assert shapes == [({"x": (1, 4, 2)}, {"x": (3, 2)}), ({"x": (2, 4, 2)}, None), (None, {"x": (2, 2)})]


def test_numbers_of_arguments():
    assert api_util._ensure_index(np.int32(1)) == 1 and api_util._ensure_index([1, np.int64(2)]) == (1, 2)

    def steps():
        yield 1

    for wrong in (1, steps):
        with pytest.raises(TypeError, match="Expected a"):
            api_util.check_callable(wrong)
    api_util.check_callable(len)


def test_libraries_find_files_of_their_own_names():
    under_jax("""
import jax, jax.numpy as jnp
from jax._src import ad_checkpoint, ad_util, checkify, core, dispatch, effects, lib, pjit, source_info_util, test_util
from jax._src.dtypes import dtype, float0, issubdtype, result_type
from jax._src.image.scale import ResizeMethod, _kernels
from jax._src.interpreters import mlir
from jax._src.lax.linalg import cholesky, symmetrize
from jax._src.public_test_util import *
from jax._src.scipy.sparse.linalg import _norm, cg
assert pjit.auto_axes is jax.sharding.auto_axes and test_util.check_grads is check_grads
assert issubclass(checkify.JaxException, Exception) and checkify.checkify is jax.experimental.checkify.checkify
assert "add_any" in str(ad_util.add_any_p) and mlir.register_lowering is jax.interpreters.mlir.register_lowering
assert core.DimSize and core.Shape and isinstance(core.abstract_token, core.AbstractToken)
assert float(_kernels[ResizeMethod.LINEAR](jnp.float32(0.25))) == 0.75
assert float(dispatch.xla_primitive_callable(jax.lax.sin_p)(0.0)) == 0.0 and lib.cuda_versions is None
dispatch.xla_primitive_callable.cache_clear()
dispatch.runtime_tokens.clear()
dispatch.runtime_tokens.block_until_ready()
assert ad_checkpoint.remat_p in {e.primitive for e in jax.make_jaxpr(jax.checkpoint(jnp.sin))(1.0).eqns}
assert isinstance(pjit.UNSPECIFIED, pjit.UnspecifiedValue)
eqn = jax.make_jaxpr(lambda x: jnp.sin(x))(1.0).eqns[0]
frame = source_info_util.user_frame(eqn.source_info.traceback)
assert (frame.file_name, frame.start_line) == ("<string>", 21) and source_info_util.user_frame(None) is None
""")


def test_types_of_values():
    assert [dtypes.dtype(x) for x in (1, 2.0, True, 1j, np.float64(1), np.ones(2), jnp.int8(1), "bfloat16", float)] == [
        np.dtype(t) for t in ("int32", "float32", "bool", "complex64", "float32", "float32", "int8", jnp.bfloat16.dtype,
                              "float32")]
    assert dtypes.result_type(1, np.int8(2)) == np.int8 and dtypes.issubdtype(jnp.bfloat16, np.floating)
    with pytest.raises(ValueError):
        dtypes.dtype(None)
    with pytest.raises(TypeError):
        dtypes.dtype([1])


def test_sizes():
    assert core.canonicalize_shape([np.int32(2), 3]) == (2, 3) and core.canonicalize_shape(4) == (4,)
    with pytest.raises(TypeError):
        core.canonicalize_shape((2.0,))
    with pytest.raises(TypeError):
        anima.jit(lambda n: core.canonicalize_shape((n,)))(3)
    assert core.dimension_as_value(np.int32(3)) == 3


def test_what_an_argument_out_sharding_says():
    mesh = anima.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    asked = canonicalize_sharding(NamedSharding(mesh, P("x")), "f")
    assert asked == NamedSharding(mesh.abstract_mesh, P("x")) and asked.mesh._any_axis_explicit
    assert canonicalize_sharding(None, "f") is None
    assert canonicalize_sharding(anima.typeof(jnp.ones(3)).sharding, "f") is None
    with pytest.raises(ValueError, match="not under a mesh context"):
        canonicalize_sharding(P("x"), "f")
    with pytest.raises(ValueError, match="of type Auto"):
        canonicalize_sharding(NamedSharding(anima.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,)), P("x")), "f")
    with pytest.raises(TypeError, match="`out_sharding` argument of f"):
        canonicalize_sharding("x", "f")
    with anima.set_mesh(mesh):
        assert canonicalize_sharding(P("x"), "f") == asked


def test_effects_of_classes_of_libraries():
    class Told(effects.Effect):
        pass

    for kind in (effects.lowerable_effects, effects.ordered_effects, effects.control_flow_allowed_effects,
                 effects.custom_derivatives_allowed_effects, effects.remat_allowed_effects):
        assert not kind.contains(Told())
        kind.add_type(Told)
        assert kind.contains(Told()) and kind.filter_not_in([Told()]) == []


def test_rules_compute_with_arrays():
    p = Primitive("checked_sqrt")
    p.def_abstract_eval(lambda x: x)

    def rule(ctx, x):
        aval, = ctx.avals_in
        fine = mlir.compare_hlo(x, mlir.full_like_aval(ctx, 0, aval), "GE", "FLOAT")
        two = mlir.broadcast_in_dim(ctx, jnp.float32(2.0), aval, broadcast_dimensions=())
        return [linalg._broadcasting_select_hlo(ctx, fine, aval, two, aval, linalg._nan_like_hlo(ctx, aval), aval)]

    register_lowering(p, rule)
    np.testing.assert_array_equal(anima.jit(p.bind)(jnp.array([1.0, -1.0])), np.array([2.0, np.nan], np.float32))


def test_contexts_of_rules():
    p = Primitive("halves")
    p.multiple_results = True
    p.def_abstract_eval(lambda x: [x, x])

    def rule(ctx, x):
        inner = ctx.replace(avals_out=[*ctx.avals_out, *ctx.avals_in])
        assert (len(ctx.avals_out), len(inner.avals_out), inner.primitive) == (2, 3, p)
        return [x / 2 for _ in inner.avals_out[:2]]

    register_lowering(p, rule)
    assert [float(x) for x in anima.jit(lambda x: p.bind(x))(1.0)] == [0.5, 0.5]
    register_lowering(p, lambda ctx, x: ctx.tokens_in.get("effect"))
    with pytest.raises(NotImplementedError, match="A token of an effect"):
        anima.jit(lambda x: p.bind(x))(2)


def test_matrices_and_solvers():
    a = jnp.array([[2.0, 1j], [3.0, 4.0]], jnp.complex64)
    assert jnp.array_equal(linalg._H(a), jnp.conj(linalg._T(a))) and linalg._T(jnp.ones((5, 2, 3))).shape == (5, 3, 2)
    assert jnp.array_equal(linalg.symmetrize(a), jnp.array([[2.0, 1.5 + 0.5j], [1.5 - 0.5j, 4.0]]))
    assert lax._complex_basetype(np.dtype("complex64")) == lax._complex_basetype(np.dtype("float32")) == np.float32
    assert float(sparse._norm({"a": jnp.ones(4), "b": jnp.ones((3, 4))})) == 4.0
    matrix, b = jnp.array([[2.0, 1.0], [1.0, 3.0]]), {"b": jnp.ones(2)}
    apply = sparse._normalize_matvec(matrix)
    for solve in (sparse._gmres_incremental, sparse._gmres_batched):
        x = sparse._gmres_solve(lambda v: {"b": apply(v["b"])}, b, {"b": jnp.zeros(2)}, 1e-6, 1e-6, 2, 20,
                                sparse._normalize_matvec(sparse._identity), solve)
        np.testing.assert_allclose(x["b"], [0.4, 0.2], rtol=1e-5)


def test_files_are_hidden_and_shown(tmp_path):
    path = str(tmp_path / "hidden.py")
    traceback_util._exclude_paths.append(path)
    code = compile("1", path, "exec")
    assert path in traceback_util._exclude_paths and is_internal(code)
    traceback_util._exclude_paths.remove(path)
    assert path not in traceback_util._exclude_paths and not is_internal(code)


KEYS = """
eNpdU81u00AQjvOjJDQNEVS0SJVAiEMQkoHQQw5wiCKBwCKqonLggFb+2XTdJE60XkN8KFCJpAStkGiHU9+GB4AnQOLCjXeAWTt201iyZ2dmZ3a/7xt/yH
/7nctEzyHUZa5PQ5AbB+ZEJz63dW56zmioj7m3D7Ky2+08NWjY4twM4RTuHIGqKRB3OB4Ay8qS2vBMOadQN7JTkNurnQTjlPZ42Jg8bIBcT1ziU+pgFVuT
1fPYeOCKOLiRBuM+xHKFH6dqaao3GjjE9TAsKxfPyeEKBByBLBN75PnBEE+byzVimT4lZoRHVtO7LgJXCKdqt+CBLRa7EJi85gXDcahjJ071YTAQ7qKgsl
ygrlGIdoIsek5SbmSm0NYsOEaGNMURuykLjgjHVBVkgx2YfzqGLmZzUnsEnU7n+T98oo+REWDN2yWllhINIR0ipLfU7JOow9wXWBpYMo86+sDysUSsyMp1
I496XF3Vg1v7ihQ0qQRNeSn2E/qbshYFVqhvKrwYXqI9p9qxlmKabc3ZdbZdZzfYLYWZ3Y4R54z8DNjdefv+mf351593738m1tgpiC/Vex8T2/hRe/z3e+
MssRFa9iDFuGAN566AQ7mXTiSi3fQtWfKZyR1XDe5mitozUXlyntkigTd27f6AkpWUEno9rRtSn6G+LQu1NW3xQrmoZdbQZiC1Cb4hIKyXstSauP5erKZS
twvstaEpO0PJUa3L5qIHcegb16bQ8U+QODwJm+wqXl9No9+qHHicOoGNotS/4ggtOcEJzoViAQe7J0DW0nsOcBGFik964sI1Av0/6BiScA==
"""  # by JAX 0.10.2, compressed


def test_pickled_keys_and_abstract_meshes_of_jax():
    assert under_jax(f"""
import base64, pickle, zlib
import jax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P
found = pickle.loads(zlib.decompress(base64.b64decode('''{KEYS}''')))
key, keys = found["key"], found["keys"]
print(jax.random.key_data(key).tolist(), jax.random.key_data(keys).tolist()[2], jax.random.key_impl(keys))
print(bool(key == jax.random.key(3)), found["dtype"] == key.dtype == jax.random.key(0).dtype)
print(type(key) is type(keys[0]))
print(jax.random.uniform(key) == jax.random.uniform(jax.random.key(3)), jax.jit(jax.random.bits)(keys[0]).shape)
mesh = AbstractMesh((2, 1), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto))
print(found["sharding"] == jax.sharding.NamedSharding(mesh, P("x")), found["fft"] is jax.lax.FftType.RFFT)
for each in found.values():
    again = pickle.loads(pickle.dumps(each))
    assert bool((again == each).all() if isinstance(each, jax.Array) else again == each)
""") == """[0, 3] [1024511538, 2603795180, 1024511538, 2603795180] rbg
True True
True
True ()
True True
"""
