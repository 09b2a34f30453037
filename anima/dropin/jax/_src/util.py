"""`jax._src.util`: functions of sequences, which libraries borrow."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from anima.core.avals import canonicalize_axis as canonicalize_axis
from anima.numpy import moveaxis as moveaxis
from anima.util import split_list as split_list, wraps as wraps

__all__ = ["HashablePartial", "canonicalize_axis", "ceil_of_ratio", "concatenate", "foreach", "merge_lists", "moveaxis",
           "partition_list", "safe_map", "safe_zip", "split_list", "subs_list", "tuple_delete", "tuple_insert",
           "tuple_update", "unzip2", "unzip3", "wraps"]


def ceil_of_ratio(x: int, y: int) -> int:
    """The quotient of whole numbers, rounded up."""
    return -(-x // y)


def foreach(function: Callable[..., Any], *sequences: Iterable[Any]) -> None:
    """Calls a function for the elements of sequences; ValueError for sequences of several lengths."""
    safe_map(function, *sequences)


def concatenate(sequences: Iterable[Iterable[Any]]) -> list[Any]:
    """The elements of all sequences, in a list."""
    return list(chain.from_iterable(sequences))


def subs_list(places: Iterable[int | None], source: Sequence[Any], others: Iterable[Any]) -> list[Any]:
    """The elements of `source` at places; where there is no place, the next of the others, all of which are taken."""
    rest = iter(others)
    found = [next(rest) if place is None else source[place] for place in places]
    if next(rest, rest) is not rest:
        raise ValueError("There are more other elements than places for them.")
    return found


def tuple_insert(t: tuple[Any, ...], idx: int, val: Any) -> tuple[Any, ...]:
    """The tuple with one element more, which is at `idx` then."""
    return (*t[:idx], val, *t[idx:])


def tuple_delete(t: tuple[Any, ...], idx: int) -> tuple[Any, ...]:
    """The tuple without the element at `idx`, which counts from 0."""
    return (*t[:idx], *t[idx + 1:])


def tuple_update(t: tuple[Any, ...], idx: int, val: Any) -> tuple[Any, ...]:
    """The tuple with another element at `idx`, which counts from 0."""
    return (*t[:idx], val, *t[idx + 1:])


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
