"""Printing fused programs: the groups of equations in order, with what is folded into each.

    fused
      map f32[8]: c
        b:f32[8] = sin a
        c:f32[8] = mul b 2.0
"""

from __future__ import annotations

from anima.compiler.ir.groups import Fused, Group
from anima.core.jaxpr import Eqn, Var
from anima.core.show import letters


def show_fused(fused: Fused, margin: str = "") -> str:
    """The groups as text; results in memory are marked with `!`. Below an equation stand the programs that it runs."""
    names: dict[Var, str] = {}
    for var in (*fused.closed.jaxpr.constvars, *fused.closed.jaxpr.invars):
        names[var] = letters(len(names))
    for eqn in fused.closed.eqns:
        for var in eqn.outvars:
            names[var] = letters(len(names))
    lines = [f"{margin}fused"]
    for group in fused.groups:
        shape = ",".join(map(str, group.shape))
        over = f" over ({','.join(map(str, group.axes))})" if group.axes else ""
        lines.append(f"{margin}  {group.kind} [{shape}]{over}:")
        for eqn in _equations(group, fused):
            lines.append(f"{margin}    {_equation(eqn, names, fused)}")
            lines += [show_fused(inner, margin + " " * 6) for inner in fused.inner.get(eqn, ())]
    return "\n".join(lines)


def _equations(group: Group, fused: Fused) -> list[Eqn]:
    """A group's roots and the equations folded into them, in the program's order."""
    wanted: set[Var] = set()
    stack = [v for eqn in group.roots for v in eqn.invars if type(v) is Var]
    roots = {v for g in fused.groups for eqn in g.roots for v in eqn.outvars}
    while stack:
        var = stack.pop()
        if var in wanted or var in roots or var not in fused.producers:
            continue
        wanted.add(var)
        stack.extend(v for v in fused.producers[var].invars if type(v) is Var)
    mine = {id(eqn) for eqn in group.roots}
    return [eqn for eqn in fused.closed.eqns if id(eqn) in mine or any(v in wanted for v in eqn.outvars)]


def _equation(eqn: Eqn, names: dict[Var, str], fused: Fused) -> str:
    outs = " ".join(f"{names[v]}{'!' if v in fused.stored else ''}:{v.aval.str_short(short_dtypes=True)}"
                    for v in eqn.outvars)
    ins = " ".join(names[v] if type(v) is Var else str(v.val) for v in eqn.invars)  # type: ignore[union-attr]
    params = {k: v for k, v in eqn.params.items() if isinstance(v, (int, tuple, str)) and v is not None}
    shown = f"[{' '.join(f'{k}={v}' for k, v in params.items())}]" if params else ""
    return f"{outs} = {eqn.primitive.name}{shown} {ins}"
