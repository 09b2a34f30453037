"""`jax._src.util`: functions of sequences, which libraries borrow."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from anima.core.avals import canonicalize_axis as canonicalize_axis
from anima.util import split_list as split_list, wraps as wraps

__all__ = ["HashablePartial", "canonicalize_axis", "merge_lists", "partition_list", "safe_map", "safe_zip",
           "split_list", "unzip2", "unzip3", "wraps"]


def safe_map(function: Callable[..., Any], *sequences: Iterable[Any]) -> list[Any]:
    """What `map` gives, as a list; ValueError for sequences of several lengths."""
    return [function(*each) for each in zip(*sequences, strict=True)]


def safe_zip(*sequences: Iterable[Any]) -> list[tuple[Any, ...]]:
    """What `zip` gives, as a list; ValueError for sequences of several lengths."""
    return list(zip(*sequences, strict=True))


def unzip2(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The first elements of pairs, and the second ones."""
    pairs = list(pairs)
    return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)


def unzip3(triples: Iterable[tuple[Any, Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """The first elements of triples, the second, and the third ones."""
    triples = list(triples)
    return tuple(a for a, _, _ in triples), tuple(b for _, b, _ in triples), tuple(c for _, _, c in triples)


def partition_list(chosen: Sequence[bool], elements: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The elements that are not chosen, and those that are."""
    pairs = list(zip(chosen, elements, strict=True))
    return [x for c, x in pairs if not c], [x for c, x in pairs if c]


def merge_lists(chosen: Sequence[bool], others: Sequence[Any], those: Sequence[Any]) -> list[Any]:
    """The elements that `partition_list` took apart; ValueError if there are more or fewer."""
    if (len(others), len(those)) != (len(chosen) - sum(map(bool, chosen)), sum(map(bool, chosen))):
        raise ValueError(f"{len(others)} and {len(those)} elements are not those of {[*chosen]}.")
    left, right = iter(others), iter(those)
    return [next(right) if c else next(left) for c in chosen]


class HashablePartial(partial[Any]):
    """A `functools.partial` that is equal to others of the same function and arguments, all of which have a hash."""

    def _parts(self) -> tuple[Any, ...]:
        return self.func, self.args, tuple(self.keywords.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashablePartial) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())
