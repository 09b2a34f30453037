"""Orbax: trees of arrays written to files and read again."""

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax.training import checkpoints
from jax.experimental.array_serialization.serialization import GlobalAsyncCheckpointManager, get_tensorstore_spec


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


def test_older_checkpoints_of_flax(tmp_path):
    wanted = {"a": jnp.array([1, 2, 3], jnp.int32), "b": jnp.ones((2, 3), jnp.bfloat16)}
    path = checkpoints.save_checkpoint(tmp_path, target=wanted, step=0, prefix="test_", keep=1)
    same(checkpoints.restore_checkpoint(path, target=None), wanted)


def test_arrays_are_written_in_a_thread(tmp_path):
    manager, done = GlobalAsyncCheckpointManager(), []
    arrays = [jnp.arange(6.0).reshape(2, 3), jnp.ones(4, jnp.bfloat16), jnp.float32(3)]
    specs = [get_tensorstore_spec(str(tmp_path / str(k))) for k in range(3)]
    manager.serialize(arrays, specs, on_commit_callback=lambda: done.append(True))
    manager.wait_until_finished()
    assert done == [True]
    shardings = [x.sharding for x in arrays]
    same(manager.deserialize(shardings, specs), arrays)
    larger, part, one = manager.deserialize(shardings, specs, [(3, 3), (2,), ()], [None, np.float32, None])
    np.testing.assert_array_equal(larger, [[0, 1, 2], [3, 4, 5], [0, 0, 0]])
    assert part.dtype == np.float32 and part.shape == (2,) and one == 3
    manager.serialize(arrays, specs, on_commit_callback=lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        manager.wait_until_finished()
    manager.check_for_errors()
    with pytest.raises(ValueError, match="absolute"):
        get_tensorstore_spec("a/b")
