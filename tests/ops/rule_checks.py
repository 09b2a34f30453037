"""Checks of a primitive's rules against each other and against its own `eval`, without any transform."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.avals import tangent_aval
from anima.core.check import check_jaxpr
from anima.core.primitive import Linear, Primitive, Zero
from anima.core.stage import eval_jaxpr, trace_to_jaxpr
from anima.core.trace import aval_of


def values(out: Any) -> list[np.ndarray]:
    return [np.asarray(v) for v in (out if isinstance(out, (list, tuple)) else [out])]


def numbers(shape: Sequence[int], seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Distinct numbers in no order."""
    n = int(np.prod(shape))
    order = np.random.default_rng(seed).permutation(n)
    return ((order - n // 3) / 2 if np.dtype(dtype).kind in "fc" else order).astype(dtype).reshape(shape)


def is_inexact(x: np.ndarray) -> bool:
    return dtypes.issubdtype(x.dtype, np.inexact)


def check_infer_and_stage(p: Primitive, args: Sequence[np.ndarray], params: dict[str, Any]) -> list[np.ndarray]:
    """`eval` gives what `infer` says, and a staged program is well typed and computes the same."""
    avals = [aval_of(x) for x in args]
    want = p.abstract_out(avals, params)
    got = p.eval(*args, **params)
    got = list(got) if p.multiple_results else [got]
    assert [(g.shape, g.dtype) for g in got] == [(a.shape, a.dtype) for a in want]

    def fun(*xs: Any) -> list[Any]:
        out = p.bind(*xs, **params)
        return list(out) if p.multiple_results else [out]

    jaxpr, consts = trace_to_jaxpr(fun, avals)[:2]
    check_jaxpr(jaxpr)
    for a, b in zip(values(eval_jaxpr(jaxpr, consts, *args)), got, strict=True):
        np.testing.assert_array_equal(a, b)
    return got


def check_linear(p: Primitive, args: Sequence[np.ndarray], linear: Sequence[int], params: dict[str, Any]) -> None:
    """jvp is the operation itself, and `<ct, f(t)> = <transpose(ct), t>` for every choice of linear operands."""
    for k in range(1, len(linear) + 1):
        for chosen in itertools.combinations(linear, k):
            ts = [numbers(x.shape, 7 + i) if i in chosen else None for i, x in enumerate(args)]
            tangents = [Zero(tangent_aval(aval_of(x))) if t is None else t for t, x in zip(ts, args, strict=True)]
            out, out_t = p.jvp(args, tangents, **params)
            zero = [np.zeros_like(x) if i in linear and t is None else t if t is not None else x
                    for i, (x, t) in enumerate(zip(args, ts, strict=True))]
            np.testing.assert_array_equal(np.asarray(out), p.eval(*args, **params))
            np.testing.assert_array_equal(np.asarray(out_t), p.eval(*zero, **params))
            ct = numbers(np.shape(out_t), 3)
            held = [Linear(aval_of(x)) if i in chosen else z for i, (x, z) in enumerate(zip(args, zero, strict=True))]
            cts = p.transpose(ct, *held, **params)
            assert [c is not None for c in cts] == [i in chosen for i in range(len(args))]
            right = sum(np.vdot(np.asarray(cts[i], np.float64), ts[i]) for i in chosen)
            np.testing.assert_allclose(np.vdot(ct.astype(np.float64), np.asarray(out_t)), right, rtol=1e-6)
            assert all(aval_of(cts[i]).shape == args[i].shape for i in chosen)
            zeros = p.transpose(Zero(aval_of(ct)), *held, **params)
            assert [type(z) for z in zeros] == [Zero if i in chosen else type(None) for i in range(len(args))]


def check_derivative(p: Primitive, args: Sequence[np.ndarray], params: dict[str, Any], eps: float = 1e-6) -> None:
    """jvp agrees with finite differences in float64, for each operand alone and for all."""
    places = [i for i, x in enumerate(args) if is_inexact(x)]
    for chosen in [[i] for i in places] + [places]:
        ts = [numbers(x.shape, 5 + i, x.dtype) if i in chosen else None for i, x in enumerate(args)]
        tangents = [Zero(tangent_aval(aval_of(x))) if t is None else t for t, x in zip(ts, args, strict=True)]
        outs, out_ts = p.jvp(args, tangents, **params)
        outs, out_ts = (outs, out_ts) if p.multiple_results else ([outs], [out_ts])
        ends = [p.eval(*[x if t is None else x + s * eps * t for x, t in zip(args, ts, strict=True)], **params)
                for s in (1, -1)]
        ends = ends if p.multiple_results else [[e] for e in ends]
        for out, t, plus, minus in zip(outs, out_ts, *ends, strict=True):
            if is_inexact(np.asarray(out)):
                slope = np.zeros(np.shape(out)) if isinstance(t, Zero) else np.asarray(t)
                np.testing.assert_allclose(slope, (plus - minus) / (2 * eps), rtol=1e-6, atol=1e-8)
            else:
                assert isinstance(t, Zero)


def check_batch(p: Primitive, args: Sequence[np.ndarray], params: dict[str, Any], stacks: Any = None,
                size: int = 3) -> None:
    """A batched call is the stack of single calls, whichever operands have a batch axis, and wherever."""
    stacks = stacks or [[np.roll(x.reshape(-1), i).reshape(x.shape) for i in range(size)] for x in args]
    for dims in itertools.product(*([None, *range(x.ndim + 1)] for x in args)):
        if all(d is None for d in dims):
            continue
        given = [x if d is None else np.stack(s, d) for x, s, d in zip(args, stacks, dims, strict=True)]
        outs, out_dims = p.batch(size, given, dims, **params)
        outs, out_dims = (outs, out_dims) if p.multiple_results else ([outs], [out_dims])
        for i in range(size):
            each = [x if d is None else s[i] for x, s, d in zip(args, stacks, dims, strict=True)]
            want = p.eval(*each, **params)
            want = want if p.multiple_results else [want]
            for out, d, w in zip(outs, out_dims, want, strict=True):
                np.testing.assert_array_equal(np.take(np.asarray(out), i, d), w, err_msg=f"{p} {dims}")
