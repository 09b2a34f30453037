"""Einstein summation: products of labelled arrays, summed over the labels that the result does not have.

    einsum("ij,jk->ik", a, b)  is  dot_general[dimension_numbers=(([1], [0]), ([], []))] a b

The order in which several arrays are contracted is chosen by `opt_einsum`, from the sizes alone. Each
step is at most: diagonals and sums of single operands, one `dot_general`, one transposition.
"""

from __future__ import annotations

import importlib
import string
from collections.abc import Sequence
from typing import Any

from anima.api.eager import repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.numpy.diagonals import diagonal
from anima.numpy.linear import contract_labels
from anima.numpy.promote import as_arrays, convert_operand, no_out, promote_factors
from anima.ops import reduce as rd, shape as sh
from anima.ops.placing import as_asked

ArrayLike = Any


@repeated
def einsum(subscripts: Any, /, *operands: Any, out: None = None, optimize: Any = "auto", precision: Any = None,
           preferred_element_type: Any = None, _dot_general: Any = None, out_sharding: Any = None) -> Array:
    """The sum of products that `subscripts` says, as in `numpy.einsum`, ellipses and implicit results included.

    ValueError if subscripts and operands do not fit.

    >>> int(jnp.einsum("ii->", jnp.eye(3, dtype=int)))
    3
    """
    if out_sharding is not None:
        return as_asked("einsum", None, out_sharding, einsum, subscripts, *operands, out=out, optimize=optimize,
                        precision=precision, preferred_element_type=preferred_element_type, _dot_general=_dot_general)
    no_out("einsum", out)
    inputs, output, arrays = _parse(subscripts, operands)
    sizes = _label_sizes(inputs, arrays)
    preferred = None if preferred_element_type is None else dtypes.check_user_dtype(preferred_element_type, "einsum")
    arrays = promote_factors("einsum", preferred, *arrays)
    terms = [_drop_stretched(x, labels, sizes) for x, labels in zip(arrays, inputs, strict=True)]
    for pair in _order(inputs, output, sizes, optimize):
        _contract(terms, pair, output, precision, preferred)
    (result, labels) = terms[0]
    result, labels = _simplify(result, labels, output)
    result = sh.transpose(result, [labels.index(label) for label in output])
    wanted = result.dtype if preferred is None else preferred
    return convert_operand(result, wanted, result.weak_type and wanted == result.dtype)


def einsum_path(subscripts: Any, /, *operands: Any, optimize: Any = "auto") -> tuple[list[Any], Any]:
    """The order of contractions that `einsum` takes, as pairs of places among the operands, and its description."""
    inputs, output, arrays = _parse(subscripts, operands)
    path, info = importlib.import_module("opt_einsum").contract_path(
        f"{','.join(inputs)}->{output}", *(x.shape for x in arrays), shapes=True,
        optimize="optimal" if isinstance(optimize, bool) else optimize)
    return path, info


# ---------------------------------------------------------------- subscripts

def _parse(subscripts: Any, operands: Sequence[Any]) -> tuple[list[str], str, list[Array]]:
    """(labels of each operand, labels of the result, operands), one character for each axis."""
    if not isinstance(subscripts, str):
        subscripts, operands = _from_sublists((subscripts, *operands))
    arrays = as_arrays("einsum", *operands)
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(arrays):
        raise ValueError(f"Number of einsum subscripts, {len(terms)}, must be equal to the number of operands, "
                         f"{len(arrays)}.{_told(text, arrays)}")
    for character in text.replace("->", "").replace("...", "").replace(",", ""):
        if not character.isalnum():
            raise ValueError(f"Character '{character}' is not a valid symbol.{_told(text, arrays)}")
    spare = [c for c in string.ascii_letters + "".join(map(chr, range(192, 400))) if c not in text]
    counts = [x.ndim - len(t.replace("...", "")) for t, x in zip(terms, arrays, strict=True)]
    for i, (term, count) in enumerate(zip(terms, counts, strict=True)):
        if count < 0 or (count and "..." not in term):
            raise ValueError(f"Einstein sum subscript '{term}' does not contain the correct number of indices for "
                             f"operand {i}.{_told(text, arrays)}")
    widest = max([c for t, c in zip(terms, counts, strict=True) if "..." in t], default=0)
    hidden = "".join(spare[:widest])
    inputs = [t.replace("...", hidden[widest - c:]) for t, c in zip(terms, counts, strict=True)]
    if arrow:
        output = right.replace("...", hidden)
    else:
        letters = left.replace(",", "").replace("...", "")
        output = hidden + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    for character in output:
        if output.count(character) > 1:
            raise ValueError(f"Output character '{character}' appeared more than once in the output."
                             f"{_told(text, arrays)}")
        if not any(character in labels for labels in inputs):
            raise ValueError(f"Output character '{character}' did not appear in the input.{_told(text, arrays)}")
    return inputs, output, arrays


def _told(text: str, arrays: Sequence[Array]) -> str:
    """What an error says of the subscripts and operands that it is about."""
    return f" The subscripts are {text!r}, of arrays of shapes {', '.join(str(x.shape) for x in arrays)}."


def _from_sublists(args: Sequence[Any]) -> tuple[str, list[Any]]:
    """The form einsum(a, [0, 1], b, [1, 2], [0, 2])."""
    operands, lists = list(args[::2]), list(args[1::2])
    output = operands.pop() if len(operands) > len(lists) else None
    seen = sorted({s for entries in (*lists, *([output] if output is not None else [])) for s in entries
                   if s is not Ellipsis})
    letters = {s: string.ascii_letters[i] for i, s in enumerate(seen)}
    words = ["".join("..." if s is Ellipsis else letters[s] for s in entries) for entries in lists]
    text = ",".join(words)
    if output is not None:
        text += "->" + "".join("..." if s is Ellipsis else letters[s] for s in output)
    return text, operands


def _label_sizes(inputs: Sequence[str], arrays: Sequence[Array]) -> dict[str, int]:
    """The size of each label; 1 stretches to any other."""
    sizes: dict[str, int] = {}
    for i, (labels, x) in enumerate(zip(inputs, arrays, strict=True)):
        for label, n in zip(labels, x.shape, strict=True):
            known = sizes.get(label, 1)
            if 1 not in (n, known) and n != known:
                raise ValueError(f"Size of label '{label}' for operand {i} ({known}) does not match previous terms "
                                 f"({n}).{_told(','.join(inputs), arrays)}")
            sizes[label] = n if known == 1 else known
    return sizes


def _drop_stretched(x: Array, labels: str, sizes: dict[str, int]) -> tuple[Array, str]:
    """`x` without axes of size 1 whose label is larger elsewhere."""
    gone = [i for i, label in enumerate(labels) if x.shape[i] == 1 and sizes[label] != 1]
    return sh.squeeze(x, gone) if gone else x, "".join(s for i, s in enumerate(labels) if i not in gone)


def _order(inputs: Sequence[str], output: str, sizes: dict[str, int], optimize: Any) -> list[tuple[int, ...]]:
    """Which operands to contract, step by step; results are appended to the list of operands."""
    if len(inputs) < 3:
        return [(0, 1)] if len(inputs) == 2 else []
    if optimize is False:
        return [(0, 1)] + [(0, len(inputs) - 1 - i) for i in range(1, len(inputs) - 1)]
    path, _ = importlib.import_module("opt_einsum").contract_path(
        f"{','.join(inputs)}->{output}", *(tuple(sizes[s] for s in labels) for labels in inputs), shapes=True,
        optimize="auto" if optimize is True else optimize)
    return [tuple(step) for step in path]


# ---------------------------------------------------------------- contraction

def _contract(terms: list[tuple[Array, str]], step: Sequence[int], output: str, precision: Any, preferred: Any) -> None:
    """Replaces the operands of one step by their product."""
    parts = [terms.pop(i) for i in sorted(step, reverse=True)][::-1]
    needed = output + "".join(labels for _, labels in terms)
    while len(parts) > 1:
        (a, a_labels), (b, b_labels) = parts[0], parts[1]
        later = needed + "".join(labels for _, labels in parts[2:])
        a, a_labels = _simplify(a, a_labels, later + b_labels)
        b, b_labels = _simplify(b, b_labels, later + a_labels)
        kept = [s for s in a_labels + "".join(s for s in b_labels if s not in a_labels) if s in later]
        both = [s for s in kept if s in a_labels and s in b_labels]
        kept = both + [s for s in kept if s not in both]
        if sorted(kept) == sorted(output) and not terms and len(parts) == 2:
            kept = list(output)
        product = contract_labels(a, a_labels, b, b_labels, kept, precision, preferred)
        parts[:2] = [(product, "".join(kept))]
    terms.append(parts[0])


def _simplify(x: Array, labels: str, needed: str) -> tuple[Array, str]:
    """`x` with each repeated label taken along the diagonal, and labels that nothing needs summed over."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            x = diagonal(x, 0, first, second)
            labels = labels[:first] + labels[first + 1:second] + labels[second + 1:] + label
    gone = [i for i, label in enumerate(labels) if label not in needed]
    if gone:
        x = (rd.reduce_or if x.dtype == dtypes.bool_ else rd.reduce_sum)(x, tuple(gone))
        labels = "".join(s for i, s in enumerate(labels) if i not in gone)
    return x, labels
