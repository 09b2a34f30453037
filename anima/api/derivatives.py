"""Derivatives at a point, as functions that users call: what `linearize` and `vjp` return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from anima import errors, tree
from anima.core import dtypes
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.jaxpr import Jaxpr
from anima.core.primitive import Zero
from anima.core.refs import AbstractRef, Ref
from anima.core.source import Transform, within
from anima.core.stage import eval_jaxpr
from anima.core.trace import aval_of
from anima.ops.broadcast import as_array, instantiate
from anima.transforms.dce import live_part
from anima.transforms.eager import backward_again
from anima.transforms.refs import addupdate_p


def float0_zeros(aval: ShapedArray) -> np.ndarray:
    """The tangents of what has none."""
    return np.zeros(aval.shape, dtypes.float0)


def user_tangent(t: Any) -> Any:
    """A tangent or cotangent as users see it: zeros written out, float0 ones as NumPy arrays."""
    if isinstance(t, Zero):
        return float0_zeros(t.aval) if t.aval.dtype == dtypes.float0 else instantiate(t)
    return t


class Derivative:
    """The derivative of a function at a point: a linear program, and the values (residuals) that it needs.

    It is a pytree of its residuals, so that programs can return it and take it as an argument.
    """

    def __init__(self, jaxpr: Jaxpr, in_tree: Any, out_tree: Any, in_avals: Sequence[ShapedArray],
                 out_avals: Sequence[ShapedArray], mask: Sequence[bool], consts: Sequence[Any]):
        self.jaxpr, self.in_tree, self.out_tree, self.consts = jaxpr, in_tree, out_tree, consts
        self.in_avals, self.out_avals, self.mask = tuple(in_avals), tuple(out_avals), tuple(mask)

    def parts(self) -> tuple[Sequence[Any], tuple[Any, ...]]:
        """(residuals, all else), for pytrees."""
        return self.consts, (self.jaxpr, self.in_tree, self.out_tree, self.in_avals, self.out_avals, self.mask)

    def __repr__(self) -> str:
        types = [", ".join(a.str_short() for a in avals) for avals in (self.in_avals, self.out_avals)]
        return f"<{type(self).__name__} of ({types[0]}) -> ({types[1]})>"


class Pushforward(Derivative):
    """What `linearize` returns: tangents of the arguments -> tangents of the results."""

    @errors.api_boundary
    def __call__(self, *tangents: Any) -> Any:
        flat, tangent_tree = tree.flatten(tangents)
        if tangent_tree != self.in_tree:
            raise TypeError(f"linearized function called with arguments of structure {tangent_tree}, but the "
                            f"function was linearized at arguments of structure {self.in_tree}.")
        for aval, t in zip(self.in_avals, flat, strict=True):
            _check_linear_input(aval, t)
        given = [as_array(t) for t, a in zip(flat, self.in_avals, strict=True) if has_tangent(a)]
        found = iter(eval_jaxpr(live_part(self.jaxpr), self.consts, *given))
        full = [next(found) if m else Zero(tangent_aval(a)) for m, a in zip(self.mask, self.out_avals, strict=True)]
        return tree.unflatten(self.out_tree, map(user_tangent, full))


def has_tangent(aval: ShapedArray) -> bool:
    return tangent_aval(aval).dtype != dtypes.float0


def _check_linear_input(aval: ShapedArray, tangent: Any) -> None:
    expected = tangent_aval(aval)
    if expected.dtype == dtypes.float0:
        return
    got = aval_of(tangent)
    if (got.shape, got.dtype) != (expected.shape, expected.dtype):
        raise ValueError(f"linearized function called on tangent values inconsistent with the original primal "
                         "values: got "
                         f"tangent aval {got} for primal aval {aval} but expected {expected}.")


class GradRef:
    """In the place of a cotangent that was added to a reference."""

    def __repr__(self) -> str:
        return "GradRef()"


class DidntWant:
    """In the place of a cotangent that was not wanted."""

    def __repr__(self) -> str:
        return "DidntWant()"


class DontWant:
    """An argument of `with_refs`: that this cotangent is not wanted."""

    def __repr__(self) -> str:
        return "DontWant()"


class GradValue:
    """An argument of `with_refs`: that this cotangent is returned, as None is."""

    def __repr__(self) -> str:
        return "GradValue()"


class NotNeeded:
    """Among the arguments that a derivative keeps, in the place of one that it has no need of."""

    def __repr__(self) -> str:
        return "NotNeeded()"


for _mark in (GradRef, DidntWant, NotNeeded):  # they hold no arrays
    tree.register_pytree_node(_mark, lambda mark: ((), None), lambda _, __, mark=_mark: mark())
references = SimpleNamespace(DontWant=DontWant, DidntWant=DidntWant, GradRef=GradRef, GradValue=GradValue)


class VJP(Derivative):
    """What `vjp` returns: cotangent of the result -> tuple of cotangents of the arguments.

    Attributes:
      args_res: the arguments as far as they are residuals, `NotNeeded()` for others. An entry may be taken out, so that
        its memory is free, and be put back before the call.
      opaque_residuals: the other residuals.
    """

    def __init__(self, *rest: Any) -> None:
        *rest, self.places, consts = rest  # of each residual, which leaf of the arguments it is; None: none of them
        super().__init__(*rest, consts)
        self._lists: tuple[list[Any], list[Any]] | None = None  # the residuals since they were asked for

    def parts(self) -> tuple[Sequence[Any], tuple[Any, ...]]:
        _, rest = super().parts()
        return self._residuals(), (*rest, self.places)

    def _asked(self) -> tuple[list[Any], list[Any]]:
        if self._lists is None:
            leaves: list[Any] = [NotNeeded() for _ in self.in_avals]
            for k, const in zip(self.places, self.consts, strict=True):
                if k is not None:
                    leaves[k] = const
            others = [c for k, c in zip(self.places, self.consts, strict=True) if k is None]
            self._lists, self.consts = ([*tree.unflatten(self.in_tree, leaves)], others), ()
        return self._lists

    args_res = property(lambda self: self._asked()[0],
                        lambda self, new: self._asked()[0].__setitem__(slice(None), new))
    opaque_residuals = property(lambda self: self._asked()[1],
                                lambda self, new: self._asked()[1].__setitem__(slice(None), new))

    def _residuals(self) -> Sequence[Any]:
        """What the linear program takes first; ValueError if some are missing."""
        if self._lists is None:
            return self.consts
        leaves, others = self.in_tree.flatten_up_to(tuple(self.args_res)), iter(self.opaque_residuals)
        found = [next(others, None) if k is None else leaves[k] for k in self.places]
        if any(x is None or isinstance(x, NotNeeded) for x in found):
            raise ValueError("A residual of this derivative was taken out of `args_res` or `opaque_residuals`. Put it "
                             "back before the derivative is used.")
        return found

    @errors.api_boundary
    def with_refs(self, *refs: Any) -> Callable[[Any], Any]:
        """The same function, which adds cotangents to references.

        Args:
          refs: for each argument, or each leaf of one, a reference to an array of its type; `ad.GradValue()` or None
            for a cotangent that is returned, `ad.DontWant()` for one that is not.

        Returns:
          A function from a cotangent of the result to cotangents of the arguments, where `GradRef()` stands for one
          that was added to a reference, `DidntWant()` for one that was not wanted.

        >>> total = anima.new_ref(jnp.zeros(2))
        >>> for x in jnp.array([[1., 2.], [3., 4.]]):
        ...     _ = vjp(lambda x: jnp.sum(x ** 2), x)[1].with_refs(total)(1.0)
        >>> total
        Ref([ 8., 12.], dtype=float32)
        """
        places = tree.broadcast_prefix(refs, tree.unflatten(self.in_tree, range(self.in_tree.num_leaves)),
                                       is_leaf=lambda x: x is None, what="with_refs")
        self._refuse_refs([isinstance(ref, DontWant) for ref in places])
        for ref, aval in zip(places, self.in_avals, strict=True):
            if isinstance(ref, Ref) and (ref.shape, ref.dtype) != (aval.shape, tangent_aval(aval).dtype):
                raise ValueError(f"with_refs: a cotangent of type {tangent_aval(aval).str_short()} cannot be added to "
                                 f"a reference of type {ref.aval!r}.")

        @errors.api_boundary
        def pull(ct: Any) -> Any:
            grads, in_tree = tree.flatten(self._pulled((ct,)))
            for ref, grad in zip(places, grads, strict=True):
                if isinstance(ref, Ref):
                    addupdate_p.bind(ref, grad, levels=())
            return tree.unflatten(in_tree, [GradRef() if isinstance(r, Ref) else DidntWant() if isinstance(r, DontWant)
                                            else g for r, g in zip(places, grads, strict=True)])

        return pull

    def flat(self, cts: Sequence[Any]) -> list[Any]:
        """Flat cotangents of the arguments, `Zero` where they are."""
        given = [ct for ct, m in zip(cts, self.mask, strict=True) if m]
        with within(Transform("transpose")):
            found = iter(backward_again(self.jaxpr, self._residuals(), given))
        return [next(found) if has_tangent(a) else Zero(tangent_aval(a)) for a in self.in_avals]

    def _refuse_refs(self, unwanted: Sequence[bool]) -> None:
        """ValueError for cotangents of references, which are not among what is given back."""
        for aval, leave in zip(self.in_avals, unwanted, strict=True):
            if isinstance(aval, AbstractRef) and has_tangent(aval.inner_aval) and not leave:
                raise ValueError(f"vjp with respect to a reference of type {aval!r}: only arrays have cotangents. Say "
                                 "with_refs(ad.DontWant()) of the reference, or differentiate with respect to its "
                                 "value.")

    @errors.api_boundary
    def __call__(self, *out_cts: Any) -> Any:
        self._refuse_refs([False] * len(self.in_avals))
        return self._pulled(out_cts)

    def _pulled(self, out_cts: Sequence[Any]) -> Any:
        if len(out_cts) != 1:
            raise TypeError(f"The function returned by vjp takes one argument, with the structure of the function's "
                            f"output, but got {len(out_cts)}.")
        cts, ct_tree = tree.flatten(out_cts[0])
        if ct_tree != self.out_tree:
            raise ValueError(f"unexpected tree structure of argument to vjp function: got {ct_tree}, but expected to "
                             "match "
                             f"{self.out_tree}")
        checked = []
        for ct, aval in zip(cts, self.out_avals, strict=True):
            expected = tangent_aval(aval)
            if expected.dtype == dtypes.float0:
                checked.append(Zero(expected))
                continue
            got = aval_of(ct)
            if (got.shape, got.dtype) != (expected.shape, expected.dtype):
                raise ValueError(f"unexpected Anima type (e.g. shape/dtype) for argument to vjp function: got {got}, "
                                 f"but expected {expected} because the corresponding output of the function had type "
                                 f"{aval}")
            checked.append(as_array(ct))
        return tree.unflatten(self.in_tree, map(user_tangent, self.flat(checked)))


for _kind in (Pushforward, VJP):
    tree.register_pytree_node(_kind, _kind.parts, lambda rest, consts, kind=_kind: kind(*rest, consts))
