"""What the control flow operators share: tracing their functions, checking types leaf by leaf."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from anima import errors, tree
from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.axes import manual_names, varying
from anima.core.explicit import cut_of
from anima.core.jaxpr import ClosedJaxpr, Var
from anima.core.kept import kept
from anima.core.refs import AbstractRef, Ref
from anima.core.stage import Traced, eval_jaxpr, hoisted, trace_pytrees, trace_to_jaxpr
from anima.core.trace import aval_of, is_array_like
from anima.ops.elementwise import convert
from anima.transforms.discharge import without_refs
from anima.util import calling, fun_name, name_and_place, place_of


def trace_function(fun: Callable[..., Any], in_tree: Any, avals: Sequence[ShapedArray], by: str,
                   users: Callable[..., Any] | None = None) -> tuple[ClosedJaxpr, list[Any], Any]:
    """Traces `fun(*args)`: (program with what it closes over as leading arguments, those values, output tree).

    `users` is the user's function that it is made of, which errors name, if it is not `fun` itself; the program is kept
    with it.
    """
    users = users or fun
    return kept(users, (by, in_tree, tuple(avals)), lambda: _traced(fun, in_tree, avals, by, users))


def _traced(fun: Callable[..., Any], in_tree: Any, avals: Sequence[ShapedArray], by: str,
            users: Callable[..., Any]) -> tuple[ClosedJaxpr, list[Any], Any]:

    def check(result: Any, outs: list[Any]) -> list[Any]:
        if not all(is_array_like(x) or isinstance(x, Ref) for x in outs):
            path, x = next((p, x) for p, x in tree.leaves_with_path(result) if not is_array_like(x))
            where = f" at output component {tree.keystr(path)}" if path else ""
            raise TypeError(f"function {name_and_place(users)} traced for {by} returned a value of type {type(x)}"
                            f"{where}, which is not a valid Anima type.")
        return outs

    traced = Traced(fun_name(users), place_of(users), by)
    with calling(by, users, _CALLS.get(by) or [f"operand {k}" for k in range(len(in_tree.children()))]):
        jaxpr, consts, out_tree = trace_pytrees(fun, in_tree, avals, traced, check)
    return hoisted(jaxpr), consts, out_tree


_CALLS = {"scan": ("carry", "x"), "fori_loop": ("i", "carry"), "while_loop": ("carry",)}


def trace_pure(fun: Callable[..., Any], in_tree: Any, avals: Sequence[ShapedArray],
               by: str) -> tuple[ClosedJaxpr, list[Any], Any]:
    """`trace_function`, for operations that know nothing of references: the program has none of its own."""
    closed, consts, out_tree = _traced(fun, in_tree, avals, by, fun)
    return without_refs(closed), consts, out_tree


def argument_name(fun: Callable[..., Any], position: int) -> str:
    """What a function calls one of its arguments."""
    try:
        return list(inspect.signature(fun).parameters)[position]
    except (ValueError, TypeError, IndexError):
        return "carry"


def reorder(closed: ClosedJaxpr, invars: Sequence[int], outvars: Sequence[int] | None = None) -> ClosedJaxpr:
    """The same program with its arguments, and its results, in another order."""
    jaxpr = closed.jaxpr
    outs = jaxpr.outvars if outvars is None else [jaxpr.outvars[k] for k in outvars]
    return ClosedJaxpr(jaxpr.replace(invars=[jaxpr.invars[k] for k in invars], outvars=outs), closed.consts)


def strong_like(values: Sequence[Any], avals: Sequence[ShapedArray]) -> list[Any]:
    """Weakly typed values of other dtypes than those given converted, where promotion allows it; all declared to vary
    along the axes of a mesh that the given types do. Others as they are."""
    out = []
    for value, target in zip(values, avals, strict=True):
        aval = aval_of(value)
        if aval.weak_type and aval.dtype != target.dtype:
            value = convert(value, dtypes.lattice_result_type((aval.dtype, True), (target.dtype, target.weak_type))[0])
        out.append(varying(value, target.vma))
    return out


def differences(in_tree: Any, expected: Sequence[ShapedArray], got: Sequence[ShapedArray], what: str,
                other: str = "the corresponding output") -> list[str]:
    """A line for each leaf whose type differs, with the path to it."""
    lines = []
    for k, (a, b) in enumerate(zip(expected, got, strict=True)):
        cut = a.shape == b.shape and cut_of(a) != cut_of(b) and _all_explicit(a) and _all_explicit(b)
        differ = {"shapes": a.shape != b.shape, "dtypes": a.dtype != b.dtype, "shardings": cut}
        kinds = [kind for kind, apart in differ.items() if apart]
        if kinds:
            lines.append(f"  * the {what}{_path(in_tree, k)} has type {errors.describe(a)} but {other} has type "
                         f"{errors.describe(b)}, so the {' and '.join(kinds)} do not match")
    return lines


def _path(in_tree: Any, number: int) -> str:
    """Where a leaf is; how many are before it, if nodes cannot be made of what is not theirs."""
    try:
        return tree.keystr(tree.leaves_with_path(tree.unflatten(in_tree, range(in_tree.num_leaves)))[number][0])
    except Exception:
        return f" (leaf {number})"


def _all_explicit(aval: ShapedArray) -> bool:
    """Whether the type says all of how a value is cut: where no mesh is set, those of whole values do not."""
    return aval.sharding.mesh.are_all_axes_explicit


def structure_difference(one: Any, other: Any) -> tuple[str, str, str]:
    """Where two structures first differ: the path, and what each has there."""
    trees = [tree.unflatten(t, range(t.num_leaves)) for t in (one, other)]
    return _first_difference(*trees, ()) or ("", repr(one), repr(other))


def _first_difference(a: Any, b: Any, path: tuple[Any, ...]) -> tuple[str, str, str] | None:
    if tree.structure(a) == tree.structure(b):
        return None
    children = [None if tree.all_leaves([x]) else dict(tree.flatten_one_level_with_keys(x)[0]) for x in (a, b)]
    first, second = children
    if first is not None and second is not None and type(a) is type(b) and list(first) == list(second):
        found = (_first_difference(first[k], second[k], (*path, k)) for k in first)
        deeper = next((f for f in found if f), None)
        if deeper:
            return deeper
    return tree.keystr(path), *(_described(x, c) for x, c in zip((a, b), children, strict=True))


def _described(x: Any, children: dict[Any, Any] | None) -> str:
    if children is None:
        return "an array"
    if x is None:
        return "None"
    keys = f" with the keys {', '.join(map(repr, x))}" if isinstance(x, dict) else f" of {len(children)}"
    return f"a {type(x).__name__}{keys}"


def check_carry(loop: str, fun: Callable[..., Any], position: int, trees: tuple[Any, Any],
                expected: Sequence[ShapedArray], got: Sequence[ShapedArray] | None = None) -> None:
    """TypeError unless a loop's carry keeps its structure and, if they are known, its types.

    `fun` is the user's function, whose argument number `position` the carry is.
    """
    body = f"{loop} body function carry input and carry output must have"
    name = argument_name(fun, position)
    if trees[0] != trees[1]:
        path, one, other = structure_difference(*trees)
        raise TypeError(f"{body} the same pytree structure, but they differ:\n\nThe input carry component {name}{path} "
                        f"is {one} but the corresponding component of the carry output is {other}.\n\nRevise "
                        f"{name_and_place(fun)} so that the carry output has the same pytree structure as the carry "
                        "input.")
    lines = [] if got is None else differences(trees[0], expected, got, f"input carry component {name}",
                                               "the corresponding output carry component")
    if lines:
        raise TypeError(f"{body} equal types, but they differ:\n\n" + "\n".join(lines) + f"\n\nRevise "
                        f"{name_and_place(fun)} so that all output types match the corresponding input types.")


def share_consts(programs: Sequence[tuple[ClosedJaxpr, Sequence[Any]]]) -> tuple[list[ClosedJaxpr], list[Any]]:
    """Programs whose leading arguments are values that they close over, as programs of the values of all of them.

    Returns them, and those values: each as often as one program has it.
    """
    shared = {key: c for _, consts in programs for key, c in _occurrences(consts).items()}
    out: dict[int, ClosedJaxpr] = {}
    for closed, consts in programs:
        if id(closed) not in out:
            own = dict(zip(_occurrences(consts), closed.jaxpr.invars, strict=False))
            invars = [own.get(key) or Var(aval_of(c)) for key, c in shared.items()]
            invars += closed.jaxpr.invars[len(consts):]
            out[id(closed)] = closed.replace(jaxpr=closed.jaxpr.replace(invars=invars))
    return [out[id(closed)] for closed, _ in programs], list(shared.values())


def _occurrences(values: Sequence[Any]) -> dict[tuple[int, int], Any]:
    """Values by their identity, and how often they stand before."""
    count: dict[int, int] = {}
    found: dict[tuple[int, int], Any] = {}
    for value in values:
        number = count[id(value)] = count.get(id(value), -1) + 1
        found[id(value), number] = value
    return found


def steady(attempt: int, before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether the first carry of a loop, promoted to what its body makes of it, is what that was traced for. Weak types
    are promoted once; what varies along axes of a mesh may make more of the carry vary at the next step."""
    return (attempt > 0 and not manual_names()) or all(a is b for a, b in zip(before, after, strict=True))


def all_varying(closed: ClosedJaxpr, names: frozenset[Any], results: Sequence[ShapedArray] = ()) -> ClosedJaxpr:
    """The program whose arguments and results all vary along these axes of a mesh; results as these types do, too."""
    more = [a.vma for a in results] or [names] * len(closed.out_avals)

    def fun(*args: Any) -> list[Any]:
        outs = eval_jaxpr(closed.jaxpr, closed.consts, *args)
        return [varying(x, names | vma) for x, vma in zip(outs, more, strict=True)]

    avals = [a if isinstance(a, AbstractRef) else a.update(vma=a.vma | names) for a in closed.in_avals]
    return ClosedJaxpr(*trace_to_jaxpr(fun, avals))
