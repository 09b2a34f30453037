"""The stages of compilation: trace, lower, compile; what each shows; shapes without values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax


def f(x: Any, d: dict[str, Any], n: int = 2) -> Any:
    return {"y": jnp.sin(x) * n + d["k"], "s": (x.sum(),)}


X = np.arange(6, dtype=np.float32).reshape(2, 3)
ARGS = X, {"k": 1.0}
WANT = {"y": np.sin(X) * 2 + 1, "s": (15.0,)}


def equal(actual: Any, expected: Any) -> None:
    leaves, structure = anima.tree.flatten(actual)
    wanted, expected_structure = anima.tree.flatten(expected)
    assert structure == expected_structure
    for a, e in zip(leaves, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=1e-6, atol=1e-7)


# ---------------------------------------------------------------- traced

def test_traced() -> None:
    traced = anima.jit(f).trace(*ARGS)
    assert traced.fun_name == "f"
    assert traced.jaxpr.eqns[0].primitive.name == "sin"
    assert [a.str_short(short_dtypes=True) for a in traced.jaxpr.in_avals] == ["f32[2,3]", "f32[]"]
    assert traced.out_info["y"].shape == (2, 3) and traced.out_info["s"][0].dtype == np.float32
    (x_info, d_info), kwargs_info = traced.args_info
    assert x_info.shape == (2, 3) and d_info["k"].shape == () and kwargs_info == {}
    assert traced.in_avals[0][0].shape == (2, 3) and traced.out_avals["y"].shape == (2, 3)
    assert traced.in_avals[0][1]["k"].weak_type
    equal(traced.lower().compile()(*ARGS), WANT)


def test_make_jaxpr() -> None:
    closed = anima.make_jaxpr(f)(*ARGS)
    assert "sin" in str(closed) and len(closed.in_avals) == 2
    closed, shapes = anima.make_jaxpr(f, return_shape=True)(*ARGS)
    assert shapes["y"] == anima.ShapeDtypeStruct((2, 3), np.float32)
    static = anima.make_jaxpr(lambda x, n: x * n, static_argnums=1)(1.0, 3)
    assert str(static).count("mul") == 1 and "3.0" in str(static)
    assert str(anima.make_jaxpr(lambda x: 2 * jnp.sin(x))(1.0)) == str(anima.make_jaxpr(lambda x: 2 * jnp.sin(x))(5.0))
    with pytest.raises(TypeError, match="callable"):
        anima.make_jaxpr(3)


def test_eval_shape() -> None:
    out = anima.eval_shape(f, anima.ShapeDtypeStruct((2, 3), jnp.float16), {"k": 1.0})
    assert out["y"].shape == (2, 3) and out["y"].dtype == np.float16
    assert anima.eval_shape(lambda: 3.0).weak_type
    assert anima.jit(f).eval_shape(*ARGS)["s"][0].shape == ()
    calls = []
    anima.eval_shape(lambda x: calls.append(type(x)) or x @ x, anima.ShapeDtypeStruct((10**5, 10**5), "float32"))
    assert len(calls) == 1  # nothing was computed, or this would need 40 GB
    with pytest.raises(TypeError, match="contracting dimensions"):
        anima.eval_shape(lambda x: x @ x, anima.ShapeDtypeStruct((2, 3), "float32"))


# ---------------------------------------------------------------- lowered

def test_every_form_of_a_lowered_program() -> None:
    lowered = anima.jit(f).lower(*ARGS)
    assert "sin" in str(lowered.jaxpr) and "sin" in str(lowered.fused)
    assert "sin" in str(lowered.loops) and "kernel" in str(lowered.loops)
    assert "define" in lowered.llvm and lowered.asm.strip()
    assert lowered.kernel_count >= 1
    for dialect in ("jaxpr", "fused", "loops", "llvm", "asm"):
        assert lowered.as_text(dialect) == str(getattr(lowered, dialect))
    assert lowered.as_text() == str(lowered.loops)
    with pytest.raises(NotImplementedError, match="as_text: programs are compiled without stablehlo"):
        lowered.as_text("stablehlo")
    with pytest.raises(ValueError, match="Unknown dialect 'latin'"):
        lowered.as_text("latin")
    assert lowered.out_info["y"].shape == (2, 3) and lowered.in_avals[0][0].shape == (2, 3)
    assert lowered.in_tree == anima.tree.structure((ARGS, {})) and lowered.out_tree == anima.tree.structure(WANT)
    assert lowered.cost_analysis()["bytes accessed"] > 0


def test_lowering_from_shapes() -> None:
    struct = anima.ShapeDtypeStruct((2, 3), jnp.float32)
    compiled = anima.jit(f).lower(struct, {"k": anima.ShapeDtypeStruct((), "float32")}).compile()
    equal(compiled(jnp.asarray(X), {"k": jnp.float32(1)}), WANT)
    by_keyword = anima.jit(lambda *, x: x * 2).lower(x=struct).compile()
    equal(by_keyword(x=X), X * 2)
    static = anima.jit(f, static_argnames="n").lower(X, {"k": 0.0}, n=3).compile()
    equal(static(X, {"k": 0.0})["y"], np.sin(X) * 3)


# ---------------------------------------------------------------- compiled

def test_compiled() -> None:
    compiled = anima.jit(f).lower(*ARGS).compile()
    equal(compiled(*ARGS), WANT)
    equal(compiled.call(*ARGS), WANT)
    assert "kernel" in compiled.as_text() or "vector" in compiled.as_text()
    assert compiled.in_tree == anima.tree.structure((ARGS, {})) and compiled.out_tree == anima.tree.structure(WANT)
    assert compiled.out_info["y"].shape == (2, 3)
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    assert cost["bytes accessed"] == (24 + 4) + (24 + 4 + 24)  # what each of the two kernels loads and stores
    assert (memory.argument_size_in_bytes, memory.output_size_in_bytes) == (28, 28)
    assert memory.temp_size_in_bytes >= 0 and memory.alias_size_in_bytes == 0
    assert memory.generated_code_size_in_bytes > 0
    assert compiled.runtime_executable() is compiled.executable


def test_compiled_takes_its_own_signature_only() -> None:
    compiled = anima.jit(lambda x: x).lower(jnp.ones(3)).compile()
    with pytest.raises(TypeError, match="Argument types differ from the types for which this computation was compiled"):
        compiled(jnp.ones(4))
    with pytest.raises(TypeError, match="Argument types differ"):
        compiled(jnp.arange(3))
    with pytest.raises(TypeError, match="input pytree does not match"):
        compiled([jnp.ones(3)])
    with pytest.raises(TypeError, match=r"input pytree does not match|positional"):
        compiled(jnp.ones(3), jnp.ones(3))
    equal(compiled(jnp.ones(3)), np.ones(3))


def test_compiled_under_transformations() -> None:
    compiled = anima.jit(lambda x: x.sum()).lower(jnp.ones(3)).compile()
    for transform in (anima.grad, anima.jit, anima.vmap):
        with pytest.raises(TypeError, match="transformation"):
            transform(compiled)(jnp.ones((3, 3))[0] if transform is not anima.vmap else jnp.ones((3, 3)))


# ---------------------------------------------------------------- ShapeDtypeStruct, small things on arrays

def test_shape_dtype_struct() -> None:
    struct = anima.ShapeDtypeStruct((2, 3), "float32")
    assert (struct.shape, struct.dtype, struct.ndim, struct.size, len(struct)) == ((2, 3), np.float32, 2, 6, 2)
    assert struct == anima.ShapeDtypeStruct((2, 3), jnp.float32) != anima.ShapeDtypeStruct((2, 3), jnp.int32)
    assert hash(struct) == hash(anima.ShapeDtypeStruct([2, 3], np.dtype("float32")))
    assert repr(struct) == "ShapeDtypeStruct(shape=(2, 3), dtype=float32)"
    with pytest.raises(ValueError, match="dtype must be specified"):
        anima.ShapeDtypeStruct((2,), None)
    with pytest.raises(TypeError, match="unsized"):
        len(anima.ShapeDtypeStruct((), "float32"))


def test_small_things() -> None:
    assert str(anima.typeof(1.0)) == "~float32[]" and anima.typeof(X).shape == (2, 3)
    tree = {"a": jnp.ones(2), "b": (1, X)}
    assert anima.block_until_ready(tree) is tree
    put = anima.device_put(tree)
    assert all(isinstance(leaf, anima.Array) for leaf in anima.tree.leaves(put)) and put["b"][0].weak_type
    got = anima.device_get(tree)
    assert all(isinstance(leaf, (np.ndarray, int)) for leaf in anima.tree.leaves(got))
    assert anima.device_count() == len(anima.devices()) == 1 and anima.default_backend() == "cpu"
    with pytest.raises(RuntimeError, match=r"Unknown backend nothing. Available backends are"):
        anima.devices("nothing")
    with pytest.raises(TypeError, match="not a valid Anima type"):
        anima.device_put("hello")
@pytest.mark.filterwarnings("ignore:Some donated buffers:UserWarning")
def test_every_stage_tells_arguments_results_and_what_is_donated() -> None:
    traced = anima.jit(lambda x, y, *, k: {"a": x + y["b"] + k}, donate_argnums=0, donate_argnames="k").trace(
        1.0, {"b": jnp.ones(2)}, k=jnp.int32(3))
    for stage in (traced, traced.lower(), traced.lower().compile()):
        (x, y), named = stage.args_info
        assert (x.donated, y["b"].donated, named["k"].donated) == (True, False, True)
        assert (x.shape, y["b"].shape, named["k"].dtype) == ((), (2,), np.int32)
        assert anima.tree.structure(stage.args_info) == stage.in_tree and stage.donate_argnums == (0, 2)
        assert stage.out_info == {"a": anima.ShapeDtypeStruct((2,), np.float32)}
        assert anima.tree.structure(stage.out_info) == stage.out_tree
        assert stage.in_avals[0][1]["b"].str_short(short_dtypes=True) == "f32[2]"


def test_a_compiled_program_deletes_what_is_donated_to_it() -> None:
    x, y = jnp.ones(4), jnp.ones(4)
    compiled = anima.jit(lambda x, y: x + y, donate_argnums=1).lower(x, y).compile()
    equal(compiled(x, y), np.full(4, 2.0))
    assert y.is_deleted() and not x.is_deleted()


def test_a_compiled_program_spares_what_others_see() -> None:
    """Memory of NumPy's, of views of an array, and of arrays with the same memory."""
    compiled = anima.jit(lambda x: x.at[1].set(x[0] * 7.0), donate_argnums=0).lower(jnp.ones(4)).compile()
    want = [1.0, 7.0, 1.0, 1.0]
    for _ in range(2):
        given = np.ones(4, np.float32)
        assert compiled(given).tolist() == want and given.tolist() == [1.0] * 4
        x = jnp.ones(4)
        view, again = np.asarray(x), x.reshape(2, 2).reshape(4)
        assert compiled(x).tolist() == want and x.is_deleted()
        assert view.tolist() == [1.0] * 4 == again.tolist()


DTYPES = ["bool", "int8", "int16", "int32", "uint8", "uint32", "float16", "bfloat16", "float32", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_compiled_program_takes_arrays_of_its_type_alone(dtype: str) -> None:
    compiled = anima.jit(lambda x: x).lower(jnp.zeros(3, dtype)).compile()
    for other in DTYPES:
        if other == dtype:
            assert compiled(jnp.zeros(3, other)).dtype == dtype
            continue
        with pytest.raises(TypeError, match="Argument types differ"):
            compiled(jnp.zeros(3, other))


def test_structs_keep_64_bits_and_stand_for_what_arrays_have() -> None:
    struct = anima.ShapeDtypeStruct((2,), np.float64)
    assert struct.dtype == np.float64 and struct != anima.ShapeDtypeStruct((2,), np.float32)
    assert anima.eval_shape(lambda x: x * 2, struct).dtype == np.float32
    assert anima.jit(jnp.sin).lower(struct).compile()(np.zeros(2)).dtype == np.float32
    assert anima.linear_transpose(lambda x: x * 2, struct)(jnp.ones(2))[0].dtype == np.float32


GRID = jnp.ones((20, 30))
COSTS = {
    "product": (lambda x: x @ x.T, 2 * 20 * 20 * 30, 0),
    "elements": (lambda x: jnp.exp(x) * 2 + x, 2 * 600, 600),
    "moved": (lambda x: x.T[::2, 3:].reshape(-1), 0, 0),
    "rounded": (jnp.floor, 600, 0),
    "sum": (jnp.sum, 599, 0),
    "rows": (lambda x: x.max(1), 600 - 20, 0),
    "running": (lambda x: jnp.cumsum(x, 0), 600 - 30, 0),
    "windows": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 3), (1, 1), "VALID"), 20 * 28 * 2 + 19 * 28, 0),
    "sorted": (lambda x: jnp.sort(x, 1), 600 * 5, 0),
    "scattered": (lambda x: x.at[jnp.array([1, 1])].add(2.0), 60, 0),
    "loop": (lambda x: lax.scan(lambda c, _: (jnp.tanh(c * 2), None), x, None, 7)[0], 7 * 600, 7 * 600),
    "loops": (lambda x: lax.scan(lambda c, _: (lax.scan(lambda d, _: (d * 2, None), c, None, 3)[0], None), x, None,
                                 4)[0], 12 * 600, 0),
    "until": (lambda x: lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c * 2, x), 601, 0),
    "branch": (lambda x: lax.cond(x[0, 0] > 0, lambda c: c * 2 + 3, jnp.negative, x), 1202, 0),
    "nested": (lambda x: anima.jit(anima.jit(lambda y: y * 2 + 1))(x), 1200, 0),
    "nothing": (lambda x: x[:0] * 2 + jnp.exp(x[:0]), 0, 0),
}


@pytest.mark.parametrize("name", COSTS)
def test_costs_as_counted_by_hand(name: str) -> None:
    function, flops, transcendentals = COSTS[name]
    lowered = anima.jit(function).lower(GRID)
    for cost in (lowered.cost_analysis(), lowered.compile().cost_analysis()):
        assert abs(cost["flops"] - flops) <= 2, cost  # the condition of a branch is one or two
        assert cost["transcendentals"] == transcendentals
        assert (cost["bytes accessed"] > 0) == (name != "nothing")


def test_work_of_a_loop_of_unknown_length_is_that_of_a_step() -> None:
    def f(x: Any) -> Any:
        return jnp.sum(anima.lax.while_loop(lambda c: jnp.sum(c) < 1e3, lambda c: c * 1.5 + 1, x))

    forward, back = (anima.jit(g).lower(jnp.ones(8)).compile().cost_analysis()["flops"] for g in (f, anima.grad(f)))
    assert 16 <= forward < 100 and 24 <= back < 100



def test_costs_of_a_product() -> None:
    cost = anima.jit(jnp.matmul).lower(*[jnp.ones((100, 100))] * 2).cost_analysis()
    assert cost["flops"] == 2e6 and cost["bytes accessed"] == 3 * 40_000


@pytest.mark.parametrize("n", [10, 100, 3000])
def test_the_seconds_of_a_sort_are_of_the_order_of_its_comparisons(n: int) -> None:
    cost = anima.jit(jnp.sort).lower(jnp.ones((100, n))).compile().cost_analysis()
    assert 1e-10 < cost["optimal_seconds"] / (100 * n * max(1, (n - 1).bit_length())) < 1e-7


def test_explain_tells_of_every_pass() -> None:
    def f(x: Any) -> Any:
        return anima.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y) @ y, x)

    said = anima.jit(f).lower(jnp.ones((8, 8))).explain().splitlines()
    steps = [line.split()[0] for line in said]
    assert steps[:2] == ["dead_code", "inline"] and steps[-2:] == ["emit_program", "machine"]
    for line in said:
        assert float(line.split(" ms")[0].split()[-1]) >= 0.0
    assert "equations" in said[1] and "groups" in said[steps.index("fuse")] and said[-1].endswith("bytes")


# ---------------------------------------------------------------- as other tools ask for them

def test_a_traced_function_can_be_called_and_transformed() -> None:
    traced = anima.jit(f).trace(*ARGS)
    assert traced.lojax is traced
    equal(traced(*ARGS), WANT)
    equal(anima.jit(lambda x: traced(x, {"k": 1.0}))(X), WANT)
    equal(anima.grad(lambda x: traced(x, {"k": 1.0})["s"][0])(X), np.ones_like(X))
    with pytest.raises(TypeError, match="input pytree"):
        traced(X)
    with pytest.raises(TypeError, match=r"Argument 0 .* traced for f\w+\[2,3\] is f\w+\[3,2\]"):
        traced(X.T, {"k": 1.0})


def test_one_platform_and_one_device() -> None:
    traced = anima.jit(f).trace(*ARGS)
    equal(traced.lower(lowering_platforms=("cpu",)).compile(device_assignment=anima.devices())(*ARGS), WANT)
    with pytest.raises(NotImplementedError, match="tpu"):
        traced.lower(lowering_platforms=("tpu",))
    with pytest.raises(ValueError, match="alone"):
        traced.lower().compile(device_assignment=["elsewhere"])


def test_programs_as_objects() -> None:
    lowered = anima.jit(f).lower(*ARGS)
    assert lowered.compiler_ir("jaxpr") is lowered.jaxpr
    assert type(lowered.compiler_ir()) is type(lowered.compiler_ir("loops")) is type(lowered.stages.loops)
    for dialect in ("stablehlo", "hlo"):
        with pytest.raises(NotImplementedError, match=dialect):
            lowered.compiler_ir(dialect)
    with pytest.raises(ValueError, match="Unknown dialect"):
        lowered.compiler_ir("latin")


def test_arrays_lie_row_major() -> None:
    compiled = anima.jit(f).lower(*ARGS).compile()
    (x, _), _ = compiled.input_formats
    assert x.layout.major_to_minor == (0, 1)
    assert compiled.output_formats["s"][0].layout.major_to_minor == ()


def test_shapes_and_dtypes_by_themselves() -> None:
    struct = anima.ShapeDtypeStruct((2, 3), "float32")
    assert struct.update(shape=(4,)).shape == (4,) and struct.update(dtype="int8", weak_type=True).weak_type
    assert struct.update() == struct == anima.ShapeDtypeStruct.like(X)
    assert anima.ShapeDtypeStruct.like(1.0).weak_type
    assert struct.format.layout is None and struct.manual_axis_type is None
    with pytest.raises(TypeError, match="unknown fields size"):
        struct.update(size=3)


def test_references_that_are_closed_over() -> None:
    ref = anima.new_ref(jnp.zeros(3))

    def add(x: Any) -> Any:
        ref[...] += x
        return ref[...] * 2
    compiled = anima.jit(add).lower(1.0).compile()
    assert compiled(1.0).tolist() == [2.0] * 3 and compiled(2.0).tolist() == [6.0] * 3
    assert ref[...].tolist() == [3.0] * 3 and len(compiled.args_info[0]) == 1
    assert anima.jit(add).trace(1.0)(1.0).tolist() == [8.0] * 3
    with pytest.raises(TypeError, match="argument 0"):
        compiled(jnp.ones(3))
