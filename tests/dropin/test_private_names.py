"""Names of JAX's private modules that libraries import, with what they rely on of them."""

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.dropin.jax._src import api, api_util
from anima.dropin.jax._src.lax.control_flow.loops import _batch_and_remainder
from anima.dropin.jax._src.numpy import array_methods, vectorize
from anima.extend.linear_util import wrap_init
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
    assert shapes == [({"x": (1, 4, 2)}, {"x": (3, 2)}), ({"x": (2, 4, 2)}, None), (None, {"x": (2, 2)})]


def test_numbers_of_arguments():
    assert api_util._ensure_index(np.int32(1)) == 1 and api_util._ensure_index([1, np.int64(2)]) == (1, 2)

    def steps():
        yield 1

    for wrong in (1, steps):
        with pytest.raises(TypeError, match="Expected a"):
            api_util.check_callable(wrong)
    api_util.check_callable(len)
