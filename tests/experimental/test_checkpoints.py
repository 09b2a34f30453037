"""Checkpoints in one process: what is written is read, damage and mistakes are errors, and nothing is lost."""

from __future__ import annotations

import collections
import json
import pathlib
import random

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import NamedSharding, P
from anima.experimental.array_serialization import pytree_serialization as checkpoints

Point = collections.namedtuple("Point", "x y")


def same(found: object, expected: object) -> None:
    assert anima.tree.structure(found) == anima.tree.structure(expected)
    for a, b in zip(anima.tree.leaves(found), map(jnp.asarray, anima.tree.leaves(expected)), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        if a.dtype == anima.random.key(0).dtype:
            a, b = anima.random.key_data(a), anima.random.key_data(b)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


DTYPES = ["float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "uint8", "int16", "uint16", "int32", "uint32",
          "bool", "complex64"]


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (17,), (4, 5)])
def test_all_types(tmp_path: pathlib.Path, shape: tuple[int, ...]) -> None:
    tree = {name: (jnp.arange(int(np.prod(shape))).reshape(shape) % 5).astype(name) for name in DTYPES}
    tree["keys"] = anima.random.split(anima.random.key(3), shape)
    checkpoints.save(tree, tmp_path / "c")
    same(checkpoints.load(tmp_path / "c"), tree)


def test_wide_types(tmp_path: pathlib.Path) -> None:
    with anima.enable_x64(True):
        tree = [jnp.arange(5, dtype=t) for t in ("float64", "int64", "uint64", "complex128")]
        checkpoints.save(tree, tmp_path / "c")
        same(checkpoints.load(tmp_path / "c"), tree)


def test_structures(tmp_path: pathlib.Path) -> None:
    tree = {"a": [1.5, (jnp.ones(3), None)], 2: {}, "c/d": 3, "": [np.float32(2.0)]}
    checkpoints.save({k: v for k, v in tree.items() if isinstance(k, str)}, tmp_path / "c")
    same(checkpoints.load(tmp_path / "c"), {k: v for k, v in tree.items() if isinstance(k, str)})
    checkpoints.save(jnp.arange(3), tmp_path / "c")  # over what was there
    same(checkpoints.load(tmp_path / "c"), jnp.arange(3))
    checkpoints.save([], tmp_path / "deep" / "er" / "c")
    assert checkpoints.load(tmp_path / "deep" / "er" / "c") == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "deep"]
    told = checkpoints.load_pytreedef(tmp_path / "c")
    assert told.shape == (3,) and told.dtype == jnp.int32


def test_types_of_the_user(tmp_path: pathlib.Path) -> None:
    tree = {"p": Point(jnp.ones(2), [jnp.zeros(3)])}
    checkpoints.save(tree, tmp_path / "c")
    with pytest.raises(ValueError, match="like="):
        checkpoints.load(tmp_path / "c")
    same(checkpoints.load(tmp_path / "c", like={"p": Point(0, [0])}), tree)
    with pytest.raises(ValueError, match="another structure"):
        checkpoints.load(tmp_path / "c", like={"p": Point(0, 0)})
    assert checkpoints.load_pytreedef(tmp_path / "c", like={"p": Point(0, [0])})["p"].x.shape == (2,)


def test_cut_arrays(tmp_path: pathlib.Path, eight_devices: list[anima.Device]) -> None:
    mesh = anima.make_mesh((4, 2), ("x", "y"), axis_types=(anima.sharding.AxisType.Auto,) * 2)
    x = anima.device_put(jnp.arange(64.0).reshape(8, 8), NamedSharding(mesh, P("x", "y")))
    scalar = anima.device_put(jnp.float32(2), NamedSharding(mesh, P()))
    assert [np.shape(s.data) for s in scalar.addressable_shards] == [()] * 8
    checkpoints.save({"x": x, "s": scalar}, tmp_path / "c")
    for shardings in ({"x": NamedSharding(mesh, P("y")), "s": None}, NamedSharding(mesh, P())):
        found = checkpoints.load(tmp_path / "c", shardings)
        np.testing.assert_array_equal(np.asarray(found["x"]), np.asarray(x))
        wanted = shardings if isinstance(shardings, NamedSharding) else shardings["x"]
        assert found["x"].sharding == wanted and float(found["s"]) == 2


def test_mistakes(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        checkpoints.load(tmp_path / "nothing")
    checkpoints.save([jnp.ones(2)], tmp_path / "c")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        checkpoints.save([jnp.ones(2)], tmp_path / "c", overwrite=False)
    with pytest.raises(TypeError):
        checkpoints.save(["text"], tmp_path / "c")
    same(checkpoints.load(tmp_path / "c"), [jnp.ones(2)])
    with pytest.raises(ValueError, match="shardings"):
        checkpoints.load(tmp_path / "c", [None, None])
    (tmp_path / "c" / "process-0.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="not complete"):
        checkpoints.load(tmp_path / "c")
    index = tmp_path / "c" / "index.json"
    for text, error in (("{", "damaged"), ("[]", "does not say"), ('{"format": "other"}', "does not say"),
                        ('{"format": "anima-checkpoint", "version": 2, "leaves": []}', "version 2"),
                        ('{"format": "anima-checkpoint", "version": 1, "tree": "00", "leaves": [{}]}', "checksum")):
        index.write_text(text)
        with pytest.raises(ValueError, match=error):
            checkpoints.load(tmp_path / "c")


def test_files_stay_within_the_folder(tmp_path: pathlib.Path) -> None:
    checkpoints.save([jnp.ones(2)], tmp_path / "c")
    checkpoints.save([jnp.zeros(2)], tmp_path / "other")
    index = json.loads((tmp_path / "c" / "index.json").read_text())
    index["leaves"][0]["parts"][0]["file"] = "../other/process-0.safetensors"
    del index["checksum"]
    index["checksum"] = checkpoints._checksum_of(index)
    (tmp_path / "c" / "index.json").write_text(json.dumps(index))
    same(checkpoints.load(tmp_path / "c"), [jnp.ones(2)])


def test_damage_is_an_error_or_of_no_effect(tmp_path: pathlib.Path) -> None:
    tree = {"w": jnp.arange(40.0), "b": [jnp.ones((2, 3), jnp.bfloat16)], "k": anima.random.key(2)}
    checkpoints.save(tree, tmp_path / "c")
    rng = random.Random(7)
    for name in ("index.json", "process-0.safetensors"):
        path = tmp_path / "c" / name
        whole = path.read_bytes()
        for trial in range(150):
            damaged = bytearray(whole)
            at = rng.randrange(len(whole))
            if trial % 3:
                damaged[at] ^= 1 << rng.randrange(8)
            else:
                del damaged[at:at + rng.choice((1, 7, len(whole)))]
            path.write_bytes(damaged)
            try:
                found = checkpoints.load(tmp_path / "c")
            except (ValueError, FileNotFoundError):
                continue
            same(found, tree)
        path.write_bytes(whole)
    same(checkpoints.load(tmp_path / "c"), tree)
