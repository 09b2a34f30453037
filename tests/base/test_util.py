"""The small tools: strict zips, splitting, merging, names."""

from __future__ import annotations

import functools

import pytest

from anima import util


def test_strict_zip_and_map():
    assert util.safe_zip([1, 2], "ab") == [(1, "a"), (2, "b")]
    assert util.safe_map(lambda x, y: x + y, [1, 2], [10, 20]) == [11, 22]
    assert util.safe_map(str, [1, 2]) == ["1", "2"]
    with pytest.raises(ValueError, match="shorter"):
        util.safe_zip([1, 2], [1])
    with pytest.raises(ValueError, match="longer"):
        util.safe_map(max, [1], [1, 2])


def test_splitting():
    assert util.split_list([1, 2, 3, 4], [1, 2]) == [[1], [2, 3], [4]]
    assert util.split_list((), []) == [[]]
    with pytest.raises(ValueError, match="cannot split 2 items"):
        util.split_list([1, 2], [3])
    assert util.unzip2([(1, "a"), (2, "b")]) == ([1, 2], ["a", "b"])
    assert util.unzip2([]) == ([], [])


def test_partition_and_merge_are_inverse():
    mask = [True, False, True]
    assert util.partition(mask, "abc") == (["b"], ["a", "c"])
    assert util.merge(mask, *util.partition(mask, "abc")) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="more items"):
        util.merge(mask, [1, 2], [3, 4])


def test_names():
    class Callable:
        def __call__(self):
            pass

    assert util.fun_name(functools.partial(functools.partial(max, 1), 2)) == "max"
    assert util.fun_name(lambda: 0) == "<lambda>"
    assert util.fun_name(Callable()) == "Callable"
    assert util.fun_name(str.upper) == "upper"


def test_by_identity():
    one, other = [1], [1]
    assert util.ByIdentity(one) == util.ByIdentity(one)
    assert util.ByIdentity(one) != util.ByIdentity(other)
    assert len({util.ByIdentity(one), util.ByIdentity(one), util.ByIdentity(other)}) == 2
