"""Orbax: trees of arrays written to files and read again."""

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest


def tree():
    return {"weights": [jnp.arange(6.0).reshape(2, 3), jnp.ones(4, jnp.bfloat16)], "step": 7,
            "nested": {"b": jnp.array([1, 2], jnp.int32), "a": np.full(3, 2.5)}}


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a, np.float64), np.asarray(b, np.float64))
        assert jnp.asarray(a).dtype == jnp.asarray(b).dtype


def test_a_tree_is_read_as_it_was_written(tmp_path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(tmp_path / "tree", tree())
    same(checkpointer.restore(tmp_path / "tree"), tree())


def test_arrays_are_restored_as_types_say(tmp_path):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", tree())
        checkpointer.wait_until_finished()
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, tree())
        restored = checkpointer.restore(tmp_path / "tree", target)
    same(restored, tree())
    assert isinstance(restored["weights"][0], jax.Array)


def test_a_manager_keeps_the_last_steps_of_a_training(tmp_path):
    options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
    with ocp.CheckpointManager(tmp_path / "run", options=options) as manager:
        for step in range(4):
            manager.save(step, args=ocp.args.StandardSave({"w": jnp.full(3, float(step)), "step": step}))
        manager.wait_until_finished()
        assert manager.all_steps() == [2, 3]
        restored = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(
            {"w": jnp.zeros(3), "step": 0}))
    np.testing.assert_array_equal(restored["w"], np.full(3, 3.0))
    assert restored["step"] == 3


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError):
        ocp.PyTreeCheckpointer().restore(tmp_path / "none")
