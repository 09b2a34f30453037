"""Windows that updates write: whether what an update reads of its array is what it writes over, element by element.

    b = slice[1:5] a;  c = mul 0.9 b;  d = dynamic_update_slice a c 1      a[1 + i] = 0.9 * a[1 + i], in place
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from anima.compiler.fusing.materialise import acts_elementwise, is_view
from anima.core.avals import Shape
from anima.core.jaxpr import Atom, Eqn, Literal, Var
from anima.ops.gather import window_sizes

Window = tuple[tuple[int | Var, ...], Shape]  # where it starts, and its size in each dimension


def written(eqn: Eqn, producers: Mapping[Var, Eqn]) -> Window | None:
    """The one window that an update writes, in the order of its elements; None if there are several, or it may lie
    outside of the array."""
    array = eqn.invars[0].aval
    if eqn.primitive.name == "dynamic_update_slice":
        return _clamped(eqn.invars[2:], array.shape, eqn.invars[1].aval.shape)
    dims = eqn.params["dimension_numbers"]
    places = _numbers(eqn.invars[1], producers) if eqn.invars[1].aval.ndim == 1 else None
    if places is None or dims.operand_batching_dims:
        return None
    start = dict(zip(dims.scatter_dims_to_operand_dims, places, strict=True))
    sizes = window_sizes(array.ndim, eqn.invars[2].aval.shape, dims)
    first = tuple(start.get(d, 0) for d in range(array.ndim))
    inside = all(0 <= at <= n - size for at, n, size in zip(first, array.shape, sizes, strict=True))
    return (first, tuple(sizes)) if inside else None


def reads_what_it_writes(eqn: Eqn, array: Var, producers: Mapping[Var, Eqn], stored: Container[Var],
                         home: Callable[[Atom], Atom]) -> bool:
    """Whether an update reads of its array, through what is folded into its kernel, at most the elements that it
    writes, each where it writes that."""
    window = written(eqn, producers)
    if window is None:
        return False
    stack: list[tuple[Atom, bool]] = [(v, v.aval.ndim > 0) for v in eqn.invars[1:]]  # elements in the window's order?
    seen = set(stack)
    while stack:
        atom, in_step = stack.pop()
        atom = home(atom)
        if atom is array:
            return False
        if type(atom) is not Var or atom in stored or atom not in producers:
            continue
        made = producers[atom]
        if in_step and read(made, array, home) == window:
            continue
        for v in made.invars:
            entry = v, in_step and follows(made, v)
            if type(v) is Var and entry not in seen:
                seen.add(entry)
                stack.append(entry)
    return True


def read(eqn: Eqn, array: Var, home: Callable[[Atom], Atom]) -> Window | None:
    """The window of an array that an equation reads in order; None if it does something else."""
    operand = eqn.invars[0] if eqn.invars else None
    if operand is None or home(operand) is not array or operand.aval.shape != array.aval.shape:
        return None
    sizes = eqn.outvars[0].aval.shape
    if eqn.primitive.name == "dynamic_slice":
        return _clamped(eqn.invars[1:], array.aval.shape, sizes)
    plain = eqn.primitive.name == "slice" and not any(s != 1 for s in eqn.params["strides"] or ())
    return (tuple(eqn.params["start_indices"]), sizes) if plain else None


def follows(eqn: Eqn, operand: Atom) -> bool:
    """Whether each element of a result is made of the same one of an operand, as these lie in order."""
    return (is_view(eqn) or acts_elementwise(eqn)) and eqn.outvars[0].aval.size == operand.aval.size


def _clamped(starts: Sequence[Atom], shape: Shape, sizes: Shape) -> Window:
    return tuple([min(max(int(s.val), 0), n - size) if type(s) is Literal else s  # type: ignore[misc]
                  for s, n, size in zip(starts, shape, sizes, strict=True)]), tuple(sizes)


def _numbers(atom: Atom, producers: Mapping[Var, Eqn]) -> list[int] | None:
    """The elements of a vector that is made of literals."""
    if type(atom) is Literal:
        return [int(atom.val)] * atom.aval.size
    made = producers.get(atom)  # type: ignore[arg-type]
    if made is None or made.primitive.name not in ("broadcast_in_dim", "concatenate", "reshape"):
        return None
    if made.primitive.name != "concatenate" and type(made.invars[0]) is not Literal:
        return None
    parts = [_numbers(v, producers) for v in made.invars]
    return None if any(p is None for p in parts) else [n for p in parts for n in p or ()] * (
        made.outvars[0].aval.size if made.primitive.name == "broadcast_in_dim" else 1)
