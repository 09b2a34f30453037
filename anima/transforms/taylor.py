"""Taylor mode: a value with the coefficients of its power series, pushed through a program (jets).

For y = p(x) along a curve x(s), the rule `p.jvp(x, t) = (y, J(x) t)` is a differential equation,

    y' = J(x) x',    so that    y[k] = (J(x) x')[k - 1] / k.

The rule runs once, on series that compute a coefficient when one is asked for. Where it applies `p` to `x`
again it gets y itself, and the classic recurrences come out: exp'(x) = y x' reads lower coefficients of y.
So every primitive with a `jvp` rule has a Taylor rule of polynomial cost. Only products and quotients are
written down; programs (calls, conditionals, loops) carry the coefficients along with the values.

A. Griewank, A. Walther, "Evaluating Derivatives", 2nd ed. 2008, chapter 13; M. D. McIlroy, "Squinting at
power series", 1990; J. Bettencourt, M. J. Johnson, D. Duvenaud, "Taylor-mode automatic differentiation", 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import chain
from typing import Any

from anima.core.avals import tangent_aval
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Primitive, Zero
from anima.core.stage import eval_jaxpr, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import Trace, Tracer, aval_of, check_leaks, under
from anima.ops.broadcast import instantiate
from anima.ops.contract import dot_general_p
from anima.ops.elementwise import div, mul, neg, sub
from anima.ops.family import add_any
from anima.transforms.custom_calls import CustomVJPCall
from anima.transforms.forward import JVPTracer
from anima.util import ByIdentity, exact_type, split_list, weak_cache

Term = list[Any]  # a value and its coefficients: [x0] for a constant, or [x0, ..., x_order]


class Series(Tracer):
    """A value with its Taylor coefficients; those that are known to be zero are None, but for the first."""

    __slots__ = ("known", "scaled")
    linear_in: Application | None = None

    def __init__(self, owner: Trace, coefficients: Sequence[Any]):
        super().__init__(owner, aval_of(coefficients[0]))
        self.known: dict[int, Any] = dict(enumerate(coefficients))
        self.scaled: dict[int, Any] = {}

    __float__ = __complex__ = tolist = item = JVPTracer._number

    def concrete(self) -> Any:
        primal = self.known[0]
        return primal.concrete() if isinstance(primal, Tracer) else primal

    def origin_text(self) -> str:
        primal = self.known[0]
        return primal.origin_text() if isinstance(primal, Tracer) else ""

    def made_text(self) -> str:
        return "It was made while the Taylor series of a function was being computed (by jet)."

    def coefficient(self, k: int) -> Any:
        """The coefficient of s^k."""
        if k not in self.known:
            self.known[k] = self.compute(k)
        return self.known[k]

    def compute(self, k: int) -> Any:
        raise IndexError(f"coefficient {k} of a series of order {len(self.known) - 1}")

    def slope(self, k: int) -> Any:
        """The coefficient of s^(k - 1) in the derivative."""
        if k not in self.scaled:
            x = self.coefficient(k)
            self.scaled[k] = x if x is None or k == 1 else mul(x, float(k))
        return self.scaled[k]


class SeriesDerivative(Series):
    """The derivative of a series: what stands for the tangent of an operand of `app`."""

    __slots__ = ("linear_in", "of")

    def __init__(self, app: Application, of: Series):
        first = of.coefficient(1)
        super().__init__(of.owner, [instantiate(Zero(of.aval)) if first is None else first])
        self.of = of
        self.linear_in = app

    def compute(self, k: int) -> Any:
        return self.of.slope(k + 1)

    def antiderivative(self, k: int) -> Any:
        return self.of.coefficient(k)


class Result(Series):
    """Result number `index` of an application."""

    __slots__ = ("app", "index")

    def __init__(self, owner: Trace, primal: Any, app: Application, index: int):
        super().__init__(owner, [primal])
        self.app, self.index = app, index

    @property
    def linear_in(self) -> Application | None:  # type: ignore[override]
        return self.app.linear_in

    def compute(self, k: int) -> Any:
        return self.app.coefficients(k)[self.index]

    def antiderivative(self, k: int) -> Any:
        """The coefficient of s^k in the antiderivative, where this is linear in the derivatives of operands."""
        return self.known[0] if k == 1 else self.app.antiderivatives(k)[self.index]


class Application:
    """A primitive applied to series. Its `linear_in` is the application whose tangents it is a linear function of."""

    def __init__(self, trace: TaylorTrace, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]):
        self.trace, self.primitive, self.args, self.params = trace, primitive, args, params
        outs = under(trace.parent, primitive.bind, *[x.known[0] if trace.owns(x) else x for x in args], **params)
        self.primals: list[Any] = outs if primitive.multiple_results else [outs]
        above = [x.linear_in for x in args if trace.owns(x)]
        self.linear_in = above[0] if all(a is above[0] for a in above) else None
        self.known: dict[int, list[Any]] = {}
        self.anti: dict[int, list[Any]] = {}
        self.slopes: list[Any] | None = None

    def coefficients(self, k: int) -> list[Any]:
        """Coefficients of s^k of the results, for k >= 1."""
        if k not in self.known:
            under(self.trace.parent, self._find, k)
        return self.known[k]

    def _find(self, k: int) -> None:
        primitive = self.primitive
        rule = primitive.taylor
        if rule is not None:
            outs = rule(k, self.trace.terms(self.args, k), **self.params)
            self.known = {j: [t[j] if len(t) > 1 else None for t in outs] for j in range(1, k + 1)}
        elif primitive is mul or primitive is dot_general_p:
            self.known[k] = [self._product(k)]
        elif primitive is div:
            self.known[k] = [self._quotient(k)]
        elif primitive.linear:
            self.known[k] = self._apply([self._part(x, k) for x in self.args])
        else:
            self.known[k] = [self._integral(t, k) for t in self._tangents()]

    def _part(self, x: Any, k: int) -> Any:
        """The coefficient of s^k of an operand, which may be a constant."""
        return x.coefficient(k) if self.trace.owns(x) else None if k else x

    @staticmethod
    def _convolution(multiply: Callable[..., Any], pairs: Sequence[tuple[Any, Any]]) -> Any:
        terms = [multiply(a, b) for a, b in pairs if a is not None and b is not None]
        return reduce(add_any, terms) if terms else None

    def _product(self, k: int) -> Any:
        """The sum of x[j] y[k - j] over j <= k (Cauchy's product)."""
        x, y = self.args
        return self._convolution(partial(self.primitive.bind, **self.params),
                                 [(self._part(x, j), self._part(y, k - j)) for j in range(k + 1)])

    def _quotient(self, k: int) -> Any:
        """z[k] from x[k] = sum of y[j] z[k - j] over j <= k."""
        x, y = self.args
        found = [self.primals[0], *(self.coefficients(j)[0] for j in range(1, k))]
        moved = self._convolution(mul, [(self._part(y, j), found[k - j]) for j in range(1, k + 1)])
        top = self._part(x, k)
        if moved is not None:
            top = neg(moved) if top is None else sub(top, moved)
        return None if top is None else div(top, self._part(y, 0))

    def _apply(self, values: Sequence[Any]) -> list[Any]:
        """The primitive, linear in its series, on coefficients of these."""
        if all(v is None for x, v in zip(self.args, values, strict=True) if self.trace.owns(x)):
            return [None] * len(self.primals)
        full = [instantiate(Zero(aval_of(x))) if v is None else v for x, v in zip(self.args, values, strict=True)]
        outs = self.primitive.bind(*full, **self.params)
        return outs if self.primitive.multiple_results else [outs]

    def antiderivatives(self, k: int) -> list[Any]:
        """Coefficients of s^k of the results' antiderivatives: what is linear in x', with constants, is that of x."""
        if k not in self.anti:
            self.anti[k] = self._apply([x.antiderivative(k) if self.trace.owns(x) else x for x in self.args])
        return self.anti[k]

    def _tangents(self) -> list[Any]:
        """The derivatives of the results, by the primitive's `jvp` rule."""
        if self.slopes is None:
            tangents = [SeriesDerivative(self, x) if self.trace.owns(x) else Zero(tangent_aval(aval_of(x)))
                        for x in self.args]
            _, slopes = under(self.trace, self.primitive.jvp, self.args, tangents, **self.params)
            self.slopes = list(slopes) if self.primitive.multiple_results else [slopes]
        return self.slopes

    def _integral(self, t: Any, k: int) -> Any:
        """The coefficient of s^k of the result whose derivative is `t`."""
        if isinstance(t, Zero):
            return None
        if not self.trace.owns(t):
            return t if k == 1 else None
        if t.linear_in is self:
            return t.antiderivative(k)
        x = t.coefficient(k - 1)
        return x if x is None or k == 1 else div(x, float(k))


class TaylorTrace(Trace):
    """Pairs values with their coefficients up to s^order.

    Applications are computed to the end, one after the other. Those that a `jvp` rule makes are in `scope`
    instead, by what they apply to what: they are computed as far as they are asked for.
    """

    label = "TaylorTrace"

    def __init__(self, parent: Trace, order: int):
        super().__init__(parent)
        self.order = order
        self.scope: dict[Any, tuple[Application, Any]] | None = None

    def owns(self, x: Any) -> bool:
        return isinstance(x, Series) and x.owner is self

    def join(self, term: Term) -> Any:
        return Series(self, term) if any(c is not None for c in term[1:]) else term[0]

    def terms(self, args: Sequence[Any], order: int) -> list[Term]:
        """Operands with their coefficients up to s^order, zeros written out."""
        return [padded([x.coefficient(k) for k in range(order + 1)], order) if self.owns(x) else [x] for x in args]

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if not any(map(self.owns, args)):
            return under(self.parent, primitive.bind, *args, **params)
        rule, body = primitive.taylor, primitive.body
        # A reverse rule says nothing of the way forward; calls in rules would be computed again for each order.
        if body is not None and (isinstance(primitive, CustomVJPCall) or (rule is not None and self.scope is not None)):
            program = body(params, list(map(aval_of, args)))
            return eval_jaxpr(program.jaxpr, program.consts, *args)
        if self.scope is not None:
            return self._apply(primitive, args, params)
        if rule is not None:
            found = under(self.parent, rule, self.order, self.terms(args, self.order), **params)
            outs = list(map(self.join, found))
            return outs if primitive.multiple_results else outs[0]
        self.scope = {}
        try:
            outs = self._apply(primitive, args, params)
            return list(map(self._finish, outs)) if primitive.multiple_results else self._finish(outs)
        finally:
            for app, _ in self.scope.values():
                app.slopes = None  # breaks circles, which would keep arrays alive
            self.scope = None

    def _finish(self, x: Any) -> Any:
        return self.join([x.coefficient(k) for k in range(self.order + 1)]) if self.owns(x) else x

    def _apply(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        assert self.scope is not None
        key = primitive, tuple(map(id, args)), _key({n: v for n, v in params.items() if n != "call_jaxpr"})
        if key not in self.scope:
            app = Application(self, primitive, args, params)
            outs = [Result(self, p, app, k) if tangent_aval(a := aval_of(p)) is a or primitive.taylor is not None else p
                    for k, p in enumerate(app.primals)]
            self.scope[key] = app, outs if primitive.multiple_results else outs[0]
        return self.scope[key][1]


def _key(value: Any) -> Any:
    """What parameters are looked up by: custom derivatives make their rules, and trace their functions, each time."""
    if isinstance(value, dict):
        return tuple((n, _key(v)) for n, v in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    if isinstance(value, partial):
        return value.func, _key(value.args), _key(value.keywords)
    try:
        hash(value)
    except TypeError:
        return ByIdentity(value)
    return value, exact_type(value)


def padded(term: Term, order: int) -> Term:
    """The term with zeros for the coefficients that are None or missing."""
    zero = Zero(aval_of(term[0]))
    return [instantiate(zero) if c is None else c for c in [*term, *(None,) * (order + 1 - len(term))]]


def taylor_flat(fun: Callable[..., Sequence[Any]], order: int, terms: Sequence[Term]) -> list[Term]:
    """Results of `fun` (a flat list) with their coefficients, zeros written out."""
    trace = TaylorTrace(current.trace, order)
    try:
        outs = trace.terms(under(trace, fun, *map(trace.join, terms)), order)
    finally:
        trace.alive = False
    check_leaks(trace)
    return outs


def flat(terms: Sequence[Term]) -> list[Any]:
    return list(chain.from_iterable(terms))


def grouped(values: Sequence[Any], mask: Sequence[bool], order: int) -> list[Term]:
    """The inverse of `flat`: `mask` tells which values have coefficients."""
    return split_list(values, [order + 1 if m else 1 for m in mask])[:-1]


@weak_cache
def taylor_jaxpr(closed: ClosedJaxpr, order: int, mask: tuple[bool, ...],
                 force: tuple[bool, ...] | None = None) -> tuple[ClosedJaxpr, list[bool]]:
    """The program on flat terms, those of arguments that `mask` marks with coefficients; which results have them.

    Those that `force` marks are made so.
    """
    found: list[bool] = []

    def fun(*args: Any) -> list[Any]:
        outs = taylor_flat(lambda *xs: eval_jaxpr(closed.jaxpr, closed.consts, *xs), order,
                           grouped(args, mask, order))
        if force is not None:
            outs = [padded(t, order) if f else t for t, f in zip(outs, force, strict=True)]
        found.extend(len(t) > 1 for t in outs)
        return flat(outs)

    avals = [a for a, m in zip(closed.in_avals, mask, strict=True) for _ in range(order + 1 if m else 1)]
    return ClosedJaxpr(*trace_to_jaxpr(fun, avals)), found


def taylor_loop(body: ClosedJaxpr, order: int, terms: Sequence[Term], num_consts: int,
                num_carry: int) -> tuple[ClosedJaxpr, list[Term], list[bool]]:
    """A loop's body on terms, its operands with coefficients for all carries that get some; which results have them."""
    mask, carry = [len(t) > 1 for t in terms], slice(num_consts, num_consts + num_carry)
    while True:
        force = (*mask[carry], *(False,) * (len(body.out_avals) - num_carry))
        new, out_mask = taylor_jaxpr(body, order, tuple(mask), force)
        if out_mask[:num_carry] == mask[carry]:
            return new, [padded(t, order) if m else t for t, m in zip(terms, mask, strict=True)], out_mask
        mask[carry] = out_mask[:num_carry]
