"""Solutions of equations, differentiated by what they solve and not by how: `custom_linear_solve`, `custom_root`.

    A x = b         dx solves  A dx = db - dA x        the transpose of the solution operator solves  A' y = ct
    f(a, x) = 0     dx solves  (df/dx) dx = -(df/da) da

The solver is any function: a loop, a factorisation, a callback. (Griewank and Walther, Evaluating Derivatives, 2008,
chapter 15; Christianson, Reverse accumulation and attractive fixed points, 1994.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anima import tree
from anima.control.common import share_consts, strong_like, trace_pure
from anima.core.avals import ShapedArray, tangent_aval
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Linear, Primitive, Zero
from anima.core.stage import eval_jaxpr, eval_numpy
from anima.core.trace import aval_of
from anima.ops.broadcast import as_array, instantiate
from anima.ops.elementwise import neg, sub
from anima.transforms.custom_calls import custom_jvp_call_p
from anima.transforms.forward import jvp_flat
from anima.transforms.linearize import linearize_flat
from anima.transforms.transpose import backward
from anima.transforms.vmap import batch_jaxpr, move_to


class Solvers(NamedTuple):
    """Programs of (constants of all of them, a vector). Those of the transpose are None where nobody said how."""

    matvec: ClosedJaxpr
    vecmat: ClosedJaxpr | None
    solve: ClosedJaxpr
    transpose_solve: ClosedJaxpr | None

    def transposed(self) -> Solvers:
        if self.vecmat is None or self.transpose_solve is None:
            raise TypeError("transpose_solve required for backwards mode automatic differentiation of "
                            "custom_linear_solve")
        return Solvers(self.vecmat, self.matvec, self.transpose_solve, self.solve)


class LinearSolve(Primitive):
    """Operands: constants, then b. Results: the solution, like b, then what else the solver returns."""

    multiple_results = True

    def infer(self, *avals: ShapedArray, jaxprs: Solvers, num_consts: int) -> list[ShapedArray]:
        return jaxprs.solve.out_avals

    def eval(self, *args: np.ndarray, jaxprs: Solvers, num_consts: int) -> list[np.ndarray]:
        return eval_numpy(jaxprs.solve, args)

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        return self.eval(*args, **params)

    def body(self, params: dict[str, Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The program that an equation stands for."""
        return params["jaxprs"].solve

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, jaxprs: Solvers,
            num_consts: int) -> tuple[list[Any], list[Any]]:
        outs = self.bind(*primals, jaxprs=jaxprs, num_consts=num_consts)
        consts, x = primals[:num_consts], outs[: len(primals) - num_consts]
        zeros = [Zero(tangent_aval(aval_of(o))) for o in outs]
        moved = jvp_flat(partial(eval_jaxpr, jaxprs.matvec.jaxpr, jaxprs.matvec.consts), [*consts, *x],
                         [*tangents[:num_consts], *zeros[: len(x)]])[1]
        rhs = [_difference(db, m) for db, m in zip(tangents[num_consts:], moved, strict=True)]
        if all(isinstance(r, Zero) for r in rhs):
            return outs, zeros
        found = self.bind(*consts, *map(instantiate, rhs), jaxprs=jaxprs, num_consts=num_consts)
        return outs, [*found[: len(x)], *zeros[len(x):]]

    def transpose(self, cts: Sequence[Any], *args: Any, jaxprs: Solvers, num_consts: int) -> list[Any]:
        b = args[num_consts:]
        given = [instantiate(ct) for ct in cts[: len(b)]]
        found = self.bind(*args[:num_consts], *given, jaxprs=jaxprs.transposed(), num_consts=num_consts)
        return [None] * num_consts + [ct if isinstance(a, Linear) else None for ct, a in zip(found, b, strict=False)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, jaxprs: Solvers,
              num_consts: int) -> tuple[list[Any], list[int | None]]:
        """The solvers, batched: every vector is stacked along axis 0."""
        b = [move_to(v, d, 0, size) for v, d in zip(args[num_consts:], dims[num_consts:], strict=True)]
        in_dims = (*dims[:num_consts], *(0 for _ in b))

        def stacked(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[int | None]]:
            return batch_jaxpr(closed, size, in_dims, (0,) * len(b) + (None,) * (len(closed.out_avals) - len(b)))

        programs = Solvers._make(p and stacked(p)[0] for p in jaxprs)
        return self.bind(*args[:num_consts], *b, jaxprs=programs, num_consts=num_consts), stacked(jaxprs.solve)[1]


linear_solve_p = LinearSolve("custom_linear_solve")


def _difference(a: Any, b: Any) -> Any:
    if isinstance(b, Zero):
        return a
    return neg(b) if isinstance(a, Zero) else sub(a, b)


def _check_like(what: str, got_tree: Any, got: Sequence[ShapedArray], expected_tree: Any,
                expected: Sequence[ShapedArray], name: str) -> None:
    """TypeError unless the results of `what` have the structure and the types of `name`."""
    if got_tree != expected_tree:
        raise TypeError(f"{what}() output pytree structure must match {name}, got {got_tree} and {expected_tree}.")
    if [a.shape for a in got] != [a.shape for a in expected]:
        raise ValueError(f"{what}() output shapes must match {name}, got {[a.shape for a in got]} and "
                         f"{[a.shape for a in expected]}")
    if [a.dtype for a in got] != [a.dtype for a in expected]:
        raise ValueError(f"{what}() output dtypes must match {name}, got {[a.str_short() for a in got]} and "
                         f"{[a.str_short() for a in expected]}")


def _pair_checked(what: str, fun: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    """`fun` returning (solution, auxiliary values or None)."""
    def checked(*args: Any) -> Any:
        out = fun(*args)
        if not has_aux:
            return out, None
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            raise TypeError(f"{what}() must return a pair (solution, auxiliary values) with has_aux=True, got {out}.")
        return tuple(out)

    return checked


def custom_linear_solve(matvec: Callable[[Any], Any], b: Any, solve: Callable[[Callable[[Any], Any], Any], Any],
                        transpose_solve: Callable[[Callable[[Any], Any], Any], Any] | None = None,
                        symmetric: bool = False, has_aux: bool = False) -> Any:
    """The solution x of `matvec(x) == b` that `solve` finds, differentiated as what it is and not by how it is found.

    Args:
      matvec: a linear function; what it closes over is differentiated.
      b: a pytree of arrays.
      solve: `solve(matvec, b) -> x`, any function; x has the structure, shapes and dtypes of b.
      transpose_solve: likewise for the transpose of `matvec`, which it is given: `transpose_solve(vecmat, ct)`.
        Reverse mode needs it.
      symmetric: `matvec` is its own transpose, so that `solve` solves both.
      has_aux: the solvers return (x, auxiliary values), and so does this function; those are constants to
        derivatives.

    Raises:
      TypeError, ValueError: where the results of the functions are not like b; TypeError for reverse mode without
        `transpose_solve`.

    >>> solve = lambda matvec, b: b / matvec(jnp.ones_like(b))
    >>> grad(lambda a: jnp.sum(lax.custom_linear_solve(lambda x: a * x, jnp.ones(2), solve, symmetric=True)))(2.0)
    Array(-0.5, dtype=float32, weak_type=True)
    """
    leaves, in_tree = tree.flatten(b)
    leaves = list(map(as_array, leaves))
    avals = list(map(aval_of, leaves))
    vector = tree.treedef_tuple((in_tree,))

    def traced(what: str, fun: Callable[..., Any], has_aux: bool) -> tuple[ClosedJaxpr, list[Any], Any]:
        closed, consts, out_tree = trace_pure(_pair_checked(what, fun, has_aux), vector, avals,
                                                  "custom_linear_solve")
        solution, aux = out_tree.children()
        _check_like(what, solution, closed.out_avals[: solution.num_leaves], in_tree, avals, "b")
        return closed, consts, aux

    def transposed(ct: Any) -> Any:
        closed, consts, _ = forward
        found = backward(closed.jaxpr, closed.consts, [*consts, *map(Linear, avals)], tree.leaves(ct))
        return tree.unflatten(in_tree, map(instantiate, found[len(consts):]))

    forward = traced("matvec", matvec, False)
    solver = traced("solve", partial(solve, matvec), has_aux)
    backward_solver = solver if symmetric else None
    if transpose_solve is not None:
        vecmat = matvec if symmetric else transposed
        backward_solver = traced("transpose_solve", partial(transpose_solve, vecmat), has_aux)
    programs = [forward, solver]
    if backward_solver is not None:
        programs += [forward if symmetric else traced("matvec", transposed, False), backward_solver]
    (a, a_solver, *back), consts = share_consts([p[:2] for p in programs])
    jaxprs = Solvers(a, back[0] if back else None, a_solver, back[1] if back else None)
    outs = linear_solve_p.bind(*consts, *leaves, jaxprs=jaxprs, num_consts=len(consts))
    x = tree.unflatten(in_tree, outs[: len(leaves)])
    return (x, tree.unflatten(solver[2], outs[len(leaves):])) if has_aux else x


def custom_root(f: Callable[[Any], Any], initial_guess: Any, solve: Callable[[Callable[[Any], Any], Any], Any],
                tangent_solve: Callable[[Callable[[Any], Any], Any], Any], has_aux: bool = False) -> Any:
    """The root x of `f` that `solve` finds, differentiated by the implicit function theorem.

    Args:
      f: a function whose results are like its argument; derivatives are with respect to what it closes over.
      initial_guess: a pytree of arrays, where the search starts. Its derivative is zero.
      solve: `solve(f, initial_guess) -> x` with `f(x) == 0`, any function; x is like the guess.
      tangent_solve: `tangent_solve(g, y) -> x` with `g(x) == y`, for the linear function g that `f` is near its
        root; linear in y. For scalars `lambda g, y: y / g(1.0)`.
      has_aux: `solve` returns (x, auxiliary values), and so does this function; those are constants to derivatives.

    Raises:
      TypeError, ValueError: where the results of the functions are not like the guess.

    >>> newton = lambda f, x: lax.fori_loop(0, 8, lambda i, x: x - f(x) / grad(f)(x), x)
    >>> root = lambda a: lax.custom_root(lambda x: x * x - a, 1.0, newton, lambda g, y: y / g(1.0))
    >>> root(9.0), grad(root)(9.0)
    (Array(3., dtype=float32, weak_type=True), Array(0.1666..., dtype=float32, weak_type=True))
    """
    leaves, in_tree = tree.flatten(initial_guess)
    leaves = list(map(as_array, leaves))
    avals = list(map(aval_of, leaves))
    count, vector = len(leaves), tree.treedef_tuple((in_tree,))
    fun, fun_consts, fun_tree = trace_pure(f, vector, avals, "custom_root")
    _check_like("f", fun_tree, fun.out_avals, in_tree, avals, "initial_guess")
    solver, solver_consts, out_tree = trace_pure(_pair_checked("solve", partial(solve, f), has_aux), vector, avals,
                                                     "custom_root")
    solution, aux_tree = out_tree.children()
    _check_like("solve", solution, solver.out_avals[: solution.num_leaves], in_tree, avals, "initial_guess")

    def tangent(x: Any, y: Any) -> Any:
        return tangent_solve(_linear_part(f, in_tree, x), y)

    linear, linear_consts, linear_tree = trace_pure(
        tangent, tree.treedef_tuple((in_tree, in_tree)), [*solver.out_avals[:count], *fun.out_avals], "custom_root")
    _check_like("tangent_solve", linear_tree, linear.out_avals, in_tree, avals, "x")
    (fun, solver, linear), consts = share_consts(
        [(fun, fun_consts), (solver, solver_consts), (linear, linear_consts)])
    outs = _root([*consts, *leaves], fun, solver, linear, len(consts))
    x = tree.unflatten(in_tree, outs[:count])
    return (x, tree.unflatten(aux_tree, outs[count:])) if has_aux else x


def _root(operands: Sequence[Any], fun: ClosedJaxpr, solver: ClosedJaxpr, linear: ClosedJaxpr,
          num_consts: int) -> list[Any]:
    """Applies the solver, as a function with derivatives of its own: those of the guess are zero."""
    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outs = _root(primals, fun, solver, linear, num_consts)
        consts, x = primals[:num_consts], outs[: len(primals) - num_consts]
        zeros = [Zero(tangent_aval(aval_of(o))) for o in outs]
        moved = jvp_flat(partial(eval_jaxpr, fun.jaxpr, fun.consts), [*consts, *x],
                         [*tangents[:num_consts], *zeros[: len(x)]])[1]
        if all(isinstance(m, Zero) for m in moved):
            return outs, zeros
        found = eval_jaxpr(linear.jaxpr, linear.consts, *consts, *x, *map(instantiate, moved))
        return outs, [*map(neg, found), *zeros[len(x):]]

    return custom_jvp_call_p.bind(*operands, call_jaxpr=solver, jvp=rule, num_consts=0, name="custom_root",
                                  symbolic_zeros=False)


def _linear_part(f: Callable[[Any], Any], in_tree: Any, x: Any) -> Callable[[Any], Any]:
    """The linear function that `f`, whose results are like its argument, is near x."""
    leaves = tree.leaves(x)
    avals = list(map(aval_of, leaves))
    outs, mask, jaxpr, residuals = linearize_flat(
        lambda *xs: tree.leaves(f(tree.unflatten(in_tree, xs))), leaves, [True] * len(leaves))

    def linear(t: Any) -> Any:
        flat, got_tree = tree.flatten(t)
        given = strong_like(list(map(as_array, flat)), avals)
        _check_like("argument of the linearized f", got_tree, list(map(aval_of, given)), in_tree, avals, "x")
        found = iter(eval_jaxpr(jaxpr, residuals, *given))
        return tree.unflatten(in_tree, [next(found) if m else instantiate(Zero(tangent_aval(aval_of(o))))
                                        for m, o in zip(mask, outs, strict=True)])

    return linear
