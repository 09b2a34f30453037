"""The cross product of operands and arguments against NumPy, for functions of several operands.

A row of the table is a call with holes, and what may stand in each of them. What NumPy refuses must be refused, and
the rest have its shapes and values; elements are small whole numbers with ties, so that most results are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from tests.grids import Row, calls, check_row


def operands() -> dict[str, np.ndarray]:
    """`f234` has that shape and dtype; `f0` is empty, `f_` a scalar, `s5` sorted with ties."""
    random_ = np.random.RandomState(0)
    shapes = ["_", "0", "1", "2", "3", "4", "5", "22", "23", "33", "34", "43", "03", "234", "243", "143", "134", "2144"]
    out = {}
    for shape in shapes:
        sizes = () if shape == "_" else tuple(map(int, shape))
        out[f"i{shape}"] = random_.randint(-3, 4, sizes).astype("int32") if sizes else np.int32(-2)
        out[f"f{shape}"] = np.float32(random_.randint(-3, 4, sizes))
        out[f"c{shape}"] = np.complex64(random_.randint(-3, 4, sizes) + 1j * random_.randint(-3, 4, sizes))
    out["s5"], out["s1"], out["s0"] = np.float32([-2, 0, 0, 0, 3]), np.float32([1]), np.float32([])
    out["u5"] = np.float32([0, 3, -2, 0, 0])
    out["order5"] = np.argsort(out["u5"], kind="stable").astype("int32")
    out["n5"] = np.int32([0, 2, 2, 5, 1])
    out["nan5"] = np.float32([np.nan, 1, np.nan, 1, -1])
    out["odd7"] = np.float32([-9, -2, 0, 0.5, 3, 9, np.nan])
    out["b4"], out["b34"] = np.array([True, False, True, True]), np.arange(12).reshape(3, 4) % 5 < 2
    return out


OPERANDS = operands()
ANY = ["f_", "f0", "f1", "f3", "f4", "f23", "f33", "f34", "f43", "f03", "f234", "f243", "f143", "f134", "i34", "c43",
"c3"]
FEW = ["f_", "f0", "f3", "f34", "f43", "f234", "i43", "c34"]
VECTORS = ["f0", "f1", "f2", "f3", "f5", "i4", "c3"]
FLAGS = ["False", "True"]
CROSS: list[Row] = [
    ("cross({a}, {b})", {"a": ["f2", "f3", "f4", "f23", "f33", "f43", "f03"], "b": ["f2", "f3", "c3", "f23", "f143"]}),
    ("cross({a}, {b}, axisa={x}, axisb={y}, axisc={z})",
     {"a": ["f33", "f243"], "b": ["f33", "c43"], "x": [0, -1], "y": [0, 1, -1], "z": [0, -1]}),
    ("cross({a}, {a} + 1, axis={x})", {"a": ["f33", "f234", "f23"], "x": [0, 1, 2, -1]}),
] if np.lib.NumpyVersion(np.__version__) < "2.5.0" else [  # of vectors of two elements, too
    ("cross({a}, {b})", {"a": ["f3", "f4", "f23", "f33", "f43", "f03"], "b": ["f3", "c3", "f23", "f143"]}),
]
ROWS: list[Row] = [
    ("dot({a}, {b})", {"a": ANY, "b": ANY}),
    ("matmul({a}, {b})", {"a": ANY, "b": ANY}),
    ("vdot({a}, {b})", {"a": FEW, "b": FEW}),
    ("inner({a}, {b})", {"a": ANY, "b": ANY}),
    ("outer({a}, {b})", {"a": FEW, "b": FEW}),
    ("kron({a}, {b})", {"a": FEW, "b": FEW}),
    ("vecdot({a}, {b})", {"a": FEW, "b": FEW}),
    ("vecdot({a}, {b}, axis={axis})", {"a": ["f234", "c34"], "b": ["f234", "f134"], "axis": [-2, -1]}),
    ("matvec({a}, {b})", {"a": FEW, "b": FEW}),
    ("vecmat({a}, {b})", {"a": FEW, "b": FEW}),
    ("tensordot({a}, {b}, {n})", {"a": FEW, "b": FEW, "n": [0, 1, 2, 3]}),
    ("tensordot({a}, {b}, ({m}, {n}))", {"a": ["f234", "f34"], "b": ["f243", "c43"],
                                         "m": ["-1", "[1]", "[1, 0]", "[-1, -2]"],
                                         "n": ["0", "[-1]", "[0, 1]", "[-2, -1]"]}),
    *CROSS,
    ("einsum('{labels}', f34, c43)", {"labels": [
        "ij,jk", "ij,jk->ki", "ij,ji", "ij,ji->i", "ij,ji->ij", "ij,kl->", "ij,kl->li", "ij,jk->j", "ij,kl->jk",
        "...,...j->...j", "ij,jk->kij", "ji,kj->ik", "ij,k...->i...k"]}),
    ("einsum('{labels}', f234)", {"labels": ["ijk->kij", "ijk->j", "ijk->", "...k->k...", "i...->...", "ijk", "kji"]}),
    ("einsum('{labels}', f33)", {"labels": ["ii", "ii->i", "ij->ji", "...ii->...i", "ij->", "ii->", "ji"]}),
    ("einsum('{labels}', f23, i34, c4)", {"labels": ["ij,jk,k", "ij,jk,k->i", "ij,jk,k->kji", "ij,jk,k->",
     "ij,jl,k->jk"]}),
    ("linalg.multi_dot([{a}, {b}, f33, {c}])", {"a": ["f3", "f23", "f43"], "b": ["f33", "f34"], "c": ["f3", "f34"]}),
    ("searchsorted({a}, {v}, side='{side}')", {"a": ["s0", "s1", "s5"], "v": ["odd7", "f_", "f34"],
                                                "side": ["left", "right", "nope"]}),
    ("searchsorted(u5, {v}, side='{side}', sorter=order5)", {"v": ["odd7", "f_"], "side": ["left", "right"]}),
    ("digitize({x}, {bins}, right={right})", {"x": ["odd7", "f34", "i34"], "bins": ["s5", "s5[::-1]", "s1"],
                                               "right": FLAGS}),
    ("histogram({x}, bins={bins}, range={range}, weights={w}, density={density})",
     {"x": ["f5", "i5", "s5"], "bins": [1, 4, "s5[np.array([0, 1, 4])]"], "range": ["None", "(-1, 3)", "(0, 0)"],
      "w": ["None", "s5"], "density": FLAGS}),
    ("histogram_bin_edges({x}, {bins}, range={range})", {"x": ["f5", "f0", "i34"], "bins": [1, 4, "s5"],
                                                          "range": ["None", "(-1, 2)", "(1, 1)"]}),
    ("histogram2d(f5, i5, bins={bins}, range={range}, weights={w}, density={density})",
     {"bins": [2, "[2, 3]", "[np.float32([-3, 0, 3]), 2]"], "range": ["None", "[[-2, 2], [0, 3]]"],
      "w": ["None", "s5"], "density": FLAGS}),
    ("bincount({x}, weights={w}, minlength={n})", {"x": ["n5", "n5[:4]"], "w": ["None", "u5"], "n": [0, 3, 9]}),
    ("bincount(n5[:0], minlength={n})", {"n": [0, 3]}),
    ("indices({d}, sparse={s})", {"d": ["()", "(2,)", "(2, 3)", "(0, 2)"], "s": FLAGS}),
    ("interp({x}, {xp}, {fp}, left={left}, right={right})",
     {"x": ["odd7", "f_", "f34", "f0"], "xp": ["np.float32([-2, 0, 1, 3])", "i_ + np.arange(4)"], "fp": ["f4", "i4"],
      "left": ["None", 7], "right": ["None", -8.5]}),
    ("interp(odd7, {xp}, f4, period={p})", {"xp": ["np.float32([0, 1, 2, 3])", "np.float32([7, -3, 1, 2.5])"],
                                             "p": [4, 7.5, -5]}),
    ("convolve({a}, {v}, '{mode}')", {"a": VECTORS, "v": VECTORS, "mode": ["full", "same", "valid"]}),
    ("correlate({a}, {v}, '{mode}')", {"a": VECTORS, "v": VECTORS, "mode": ["full", "same", "valid"]}),
    ("insert({a}, {obj}, {v}, axis={axis})",
     {"a": ["f34", "f5"], "obj": [0, -1, 2, "[1]", "[0, 2]", "[2, 0]", "slice(1, 3)", 9], "v": [7, "f1", "f2[:, None]"],
      "axis": ["None", 0, 1, -1]}),
    ("delete({a}, {obj}, axis={axis})",
     {"a": ["f34", "f5"], "obj": [0, -1, 2, "[1]", "[0, 2, 2]", "[-1, 0]", "slice(1, 3)", "slice(None, None, -2)", 9,
                                  "[]"], "axis": ["None", 0, 1, -1]}),
    ("append({a}, {b}, axis={axis})", {"a": ["f34", "f5", "f_"], "b": ["f34", "f4[None]", "f3[:, None]", "i5"],
                                       "axis": ["None", 0, 1, -1]}),
    ("pad({a}, {w}, mode='{mode}')", {
        "a": ["f5", "f34", "f1", "i234"], "w": [0, 1, 7, "(2, 1)", "[(9, 1)]"],
        "mode": ["constant", "edge", "linear_ramp", "maximum", "mean", "minimum", "reflect", "symmetric", "wrap",
                 "median"]}),
    ("pad({a}, {w}, mode='{mode}', reflect_type='{kind}')", {
        "a": ["f5", "f34"], "w": ["(2, 1)", "(9, 10)"], "mode": ["reflect", "symmetric"], "kind": ["even", "odd"]}),
    ("pad({a}, {w}, mode='{mode}', stat_length={n})", {
        "a": ["f5", "f34"], "w": ["(2, 1)", 3], "mode": ["maximum", "minimum", "mean"], "n": ["None", 1, "(2, 3)", 9]}),
    ("pad(f34, ((1, 0), (2, 3)), mode='{mode}', {name}={v})", {"mode": ["constant"], "name": ["constant_values"],
                                                               "v": [5, "(1, 2)", "((1, 2), (3, 4))"]}),
    ("pad({x}, 2, mode='{m}', {name}={v})", {
        "x": ["f5", "f34"], "m": ["constant"], "name": ["constant_values"],
        "v": ["(5,)", "[[5]]", "((5,),)", "(1, 2)", "((1, 2),)", "((1,), (2,))"]}),
    ("pad({x}, 2, mode='linear_ramp', end_values={v})", {
        "x": ["f5", "f34"], "v": ["(5,)", "[[5]]", "(1, 2)", "((1, 2),)", "((1,), (2,))"]}),
    ("signbit(lib.pad({x}, 2, constant_values={v}))", {
        "x": ["f5", "f34"], "v": ["0.0", "-0.0", "(0.0, -0.0)", "(-0.0, 0.0)", "(0, -0.0)"]}),
    ("pad(f34, ((1, 0), (2, 3)), mode='linear_ramp', end_values={v})", {"v": [5, "(1, 2)", "((1, 2), (3, 4))"]}),
    ("meshgrid({a}, {b}, {c}, sparse={sparse}, indexing='{indexing}')",
     {"a": ["f0", "f3"], "b": ["f_", "f2"], "c": ["i4"], "sparse": FLAGS, "indexing": ["xy", "ij", "no"]}),
    ("meshgrid({a}, sparse={sparse}, indexing='{indexing}')", {"a": ["f3", "f3, f4"], "sparse": FLAGS,
                                                                "indexing": ["xy", "ij"]}),
    ("indices({n}, sparse={sparse})", {"n": ["(2, 3)", "(4,)", "(0, 2)", "(2, 1, 3)"], "sparse": FLAGS}),
    ("union1d({a}, {b})", {"a": ["f0", "f5", "u5", "nan5"], "b": ["f0", "i4", "s5", "nan5"]}),
    *((f"{f}({{a}}, {{b}})", {
        "a": ["np.float32([np.nan, 1, np.nan, 2, 1])", "np.float32([0.0, np.nan, np.inf, np.inf])", "np.float32([])"],
        "b": ["np.float32([2])", "np.float32([np.nan, 0.0, np.nan])", "np.float32([])"]})
      for f in ("setdiff1d", "setxor1d", "intersect1d", "union1d", "isin")),
    ("setdiff1d({a}, {b}, assume_unique={u})", {"a": ["f0", "f5", "u5"], "b": ["f0", "i4", "s5"], "u": ["False"]}),
    ("setxor1d({a}, {b})", {"a": ["f0", "f5", "u5"], "b": ["f0", "i4", "s5"]}),
    ("intersect1d({a}, {b}, return_indices={r})", {"a": ["f0", "f5", "u5"], "b": ["f0", "i4", "s5"], "r": FLAGS}),
    ("isin({a}, {b}, invert={r})", {"a": ["f0", "f34", "nan5", "b4"], "b": ["f0", "i4", "nan5", "b34"], "r": FLAGS}),
    ("array_equal({a}, {b}, equal_nan={r})", {"a": ["nan5", "f5", "f34"], "b": ["nan5", "s5", "f34"], "r": FLAGS}),
    ("array_equiv({a}, {b})", {"a": ["f_ * 0", "f34", "f0"], "b": ["f_ * 0", "f34", "np.zeros((3, 4), 'f')", "f3"]}),
    ("diff({a}, n={n}, axis={axis})", {"a": ["f34", "b34"], "n": [0, 1, 2, 5, -1], "axis": [0, -1]}),
    ("diff(f34, axis={axis}, prepend={p}, append={q})", {"axis": [0, 1], "p": [1, "f34"], "q": [2.0, "f34"]}),
    ("ediff1d({a}, to_end={e}, to_begin={b})", {"a": ["f34", "i5", "f1", "f0"], "e": ["None", "7", "i2"],
                                                "b": ["None", "-7", "i3"]}),
    ("gradient({a}, {h})", {"a": ["f5", "np.float32([1, 4, 9, 9, 2])"], "h": ["1", "2.5",
     "np.float32([0, 1, 3, 4, 7])"]}),
    ("gradient(f34, {h}, axis={axis})", {"h": ["1", "0.5"], "axis": ["None", 0, -1, "(1, 0)", "(0,)"]}),
    ("gradient(f34, 2.0, np.float32([0, 1, 3, 7]))", {}),
    ("trapezoid({y}, {x}, axis={axis})", {"y": ["f34", "f43"], "x": ["None", "f34", "f4", "f3"], "axis": [0, 1, -1]}),
    ("trapezoid({y}, dx={x}, axis={axis})", {"y": ["f34", "i5", "f0", "f34[:, :1]"], "x": [2, 0.5], "axis": [0, -1]}),
    ("unwrap({p}, discont={d}, axis={axis}, period={t})", {"p": ["f34", "np.float32([0, 4, 9, -3, 20])", "i34"],
                                                            "d": ["None", 4], "axis": [0, -1], "t": [6, 2.5]}),
    ("polyval({p}, {x})", {"p": ["f0", "f1", "f5", "i4", "c3"], "x": ["f_", "f34", "c3"]}),
    ("{name}({a}, {b})", {"name": ["polyadd", "polysub"], "a": VECTORS[1:], "b": VECTORS[1:]}),
    ("polymul({a}, {b})", {"a": ["s1", "s5", "c3"], "b": ["s1", "s5", "c2"]}),
    ("polyder({p}, {m})", {"p": ["f1", "f5", "i4"], "m": [0, 1, 2, 4, 6, -1]}),
    ("polyint({p}, {m}, {k})", {"p": ["f1", "f5"], "m": [0, 1, 2, 3, -1], "k": ["None", "2"]}),
    ("polyint(f5, {m}, i2)", {"m": [2, 3]}),
    ("polydiv({u}, {v})[0]", {"u": ["f5", "f1", "f2"], "v": ["np.float32([2, 1])", "np.float32([2])",
                                                          "np.float32([1, 2, 3])"]}),
    ("polyfit(s5, {y}, {deg}, w={w})", {"y": ["f5", "f5[:, None] * f2"], "deg": [0, 1, 2], "w": ["None", "u5 + 4"]}),
    ("polyfit(np.arange(5.), {y}, {deg}, cov={cov})", {"y": ["f5", "f5[:, None] * f2"], "deg": [0, 1], "cov": [
        "True", "'unscaled'"]}),
    ("polyfit(s5, f5, {deg}, w={w})", {"deg": [1, -1], "w": ["f4", "s5[:1]", "f34", "f5[:, None]", "2.0", "u5 + 4"]}),
    ("polyfit({x}, {y}, 1)", {"x": ["s5", "f34", "f0"], "y": ["f5", "f4", "f234", "f0"]}),
    ("poly({z})", {"z": ["f3", "f1", "f33", "c3", "f34"]}),
    ("sort(lib.roots({p}))", {"p": ["f1", "f0", "np.float32([1, -3, 2])", "np.float32([0, 0, 1, -3, 2, 0])", "f34"]}),
    ("trim_zeros({x}, '{trim}')", {"x": ["np.int32([0, 0, 1, 0, 2, 0])", "np.zeros(3)", "f0", "np.int32([1, 2])"],
                                   "trim": ["fb", "f", "b"]}),
    ("vander({x}, {n}, increasing={r})", {"x": ["f3", "i4", "f0"], "n": ["None", 0, 1, 5], "r": FLAGS}),
    ("cov({m}, rowvar={r}, bias={bias}, ddof={ddof})", {"m": ["f34", "f4", "c34"], "r": FLAGS, "bias": FLAGS,
                                                        "ddof": ["None", 0, 2]}),
    ("cov({m}, {y}, rowvar={r})", {"m": ["f34", "f4"], "y": ["f4", "f34"], "r": FLAGS}),
    ("cov(f34, fweights={f}, aweights={a}, ddof={ddof})", {"f": ["None", "np.int32([1, 2, 0, 3])"],
                                                           "a": ["None", "np.float32([1, 2, 0.5, 3])"],
                                                           "ddof": ["None", 0]}),
    ("average({a}, axis={axis}, weights={w}, returned={r}, keepdims={k})", {
        "a": ["f34", "i34"], "axis": ["None", 0, 1, "(0, 1)"], "w": ["None", "abs(f34) + 1", "abs(f4) + 1",
        "abs(f3) + 1"],
        "r": FLAGS, "k": FLAGS}),
    ("choose({a}, [f4, 2 * f4, 3 * f4], mode='{mode}')", {"a": ["np.int32([2, 0, 1, 1])", "np.int32([3, -1, 7, -5])"],
                                                         "mode": ["raise", "wrap", "clip", "no"]}),
    ("select([{c}, f34 > 1], [f34, {x}], {d})", {"c": ["b34", "b4", "f34 < 0"], "x": ["i34", "7"], "d": [0, 5]}),
    ("compress({c}, {a}, axis={axis})", {"c": ["b4[:3]", "b4[1:3]", "b4", "b4[:0]"], "a": ["f34", "f5"],
                                         "axis": ["None", 0, 1, -1]}),
    ("extract({c}, {a})", {"c": ["b34", "f34"], "a": ["f34", "i34"]}),
    ("take_along_axis(f34, {i}, axis={axis})", {"i": ["np.int32([[1, -1, 0, 2]])", "np.int32([[0], [1], [-3]])"],
                                                "axis": [0, 1, -1, -2]}),
    ("ravel_multi_index(({i}, {j}), (3, 4), mode='{mode}', order='{order}')", {
        "i": ["np.int32([0, 2, 1])", "np.int32([-1, 5, 3])"], "j": ["np.int32([0, 3, 2])", "1"],
        "mode": ["raise", "wrap", "clip", "no"], "order": ["C", "F", "K"]}),
    ("unravel_index({i}, {shape})", {"i": ["np.int32([0, 5, 11])", "7"], "shape": ["(3, 4)", "(12,)", "(2, 3, 2)"]}),
    ("packbits({a}, axis={axis}, bitorder='{order}')", {
        "a": ["b34", "np.arange(34).reshape(2, 17) % 3 == 0", "b4[:0]"], "axis": ["None", 0, -1],
        "order": ["big", "little", "no"]}),
    ("unpackbits(np.uint8([[1, 200, 7], [9, 80, 255]]), axis={axis}, count={n}, bitorder='{order}')", {
        "axis": ["None", 0, 1, -1], "n": ["None", 0, 5, 16, 99, -3], "order": ["big", "little"]}),
    ("{name}({n})", {"name": ["bartlett", "blackman", "hamming", "hanning"], "n": [-1, 0, 1, 2, 5, 5.0]}),
    ("kaiser({n}, {beta})", {"n": [-1, 0, 1, 2, 5, 5.0], "beta": [0, 2.5, 14]}),
    ("tile({a}, {reps})", {"a": ["f_", "f3", "f34", "f0"], "reps": [0, 2, "(2, 3)", "(2, 1, 2)", "()"]}),
    ("resize({a}, {shape})", {"a": ["f3", "f34", "f0"], "shape": [0, 2, "(2, 4)", "(5, 3)"]}),
    ("array_split(f34, {n}, axis={axis})", {"n": [1, 2, 3, 5, "[1, 2]", "[0, 9]", "[-1]"], "axis": [0, 1, -1]}),
    ("split(f34, {n}, axis={axis})", {"n": [1, 2, 3, 4, 5, "[1, 2]", "[2, 2]"], "axis": [0, 1, -1]}),
    ("{name}(f34, {n})", {"name": ["hsplit", "vsplit"], "n": [1, 2, 3, 4]}),
    ("dsplit({a}, {n})", {"a": ["f234", "f34"], "n": [2, 4, 3]}),
    ("hsplit(i4, {n})", {"n": [2, 4, 3]}),
    ("stack([{a}, {b}], axis={axis})", {"a": ["f34", "f3", "f_"], "b": ["i34", "f3", "f_"], "axis": [0, 1, 2, -1, 3]}),
    ("concatenate([{a}, {b}], axis={axis})", {"a": ["f34", "f3", "f03"], "b": ["i34", "f3", "f33"],
                                              "axis": [0, 1, -1, "None"]}),
    ("{name}([{a}, {b}])", {"name": ["vstack", "hstack", "dstack", "column_stack"], "a": ["f34", "f3", "f_"],
                            "b": ["i34", "f3", "f_"]}),
    ("rollaxis(f234, {a}, {s})", {"a": [0, 1, 2, -1, 3], "s": [0, 1, 2, 3, -1, 4]}),
    ("linspace({a}, {b}, {n}, endpoint={e}, axis={axis})", {"a": ["0", "f3"], "b": ["7", "f3 + 2"], "n": [0, 1, 2, 5],
                                                            "e": FLAGS, "axis": [0, -1]}),
    ("{name}(1, 16, {n}, endpoint={e})", {"name": ["geomspace", "logspace"], "n": [0, 1, 3, 5], "e": FLAGS}),
    ("arange({a}, {b}, {step})", {"a": [0, 5, -2.5], "b": [0, 4, 4.5], "step": [1, 2, -1, -0.5, 3]}),
    ("eye({n}, {m}, {k})", {"n": [0, 1, 3], "m": ["None", 0, 2, 5], "k": [-4, -1, 0, 1, 2, 9]}),
    ("tri({n}, {m}, {k})", {"n": [0, 1, 3], "m": ["None", 0, 2, 5], "k": [-4, -1, 0, 1, 2, 9]}),
    ("{name}({n}, {k}, {m})", {"name": ["tril_indices", "triu_indices"], "n": [0, 1, 3], "m": ["None", 2, 5],
                               "k": [-2, 0, 1, 9]}),
    ("{name}(f34, {k})", {"name": ["tril_indices_from", "triu_indices_from"], "k": [-1, 0, 2]}),
    ("diag({a}, {k})", {"a": ["f3", "f34", "f43", "f0"], "k": [-9, -2, -1, 0, 1, 3, 9]}),
    ("diagflat({a}, {k})", {"a": ["f3", "f23", "f_"], "k": [-2, 0, 1]}),
    ("heaviside({a}, {h})", {"a": ["odd7", "i5"], "h": [0.5, "f_"]}),
    ("nan_to_num({a}, nan={n}, posinf={p}, neginf={q})", {
        "a": ["np.float32([np.nan, np.inf, -np.inf, 2])", "i4"], "n": [0.0, 7], "p": ["None", 8], "q": ["None", -9]}),
    ("round({a}, {n})", {"a": ["np.float32([0.5, 1.5, -2.5, 1.25, 125.0])"], "n": [0, 1, -1, -2]}),
    ("clip({a}, {lo}, {hi})", {"a": ["f34", "i5"], "lo": ["None", -1, 2], "hi": ["None", 1, 0]}),
    ("isclose({a}, {a} + {d}, rtol={r}, atol={t}, equal_nan={e})", {
        "a": ["nan5", "np.float32([np.inf, 0, 100])"], "d": [0, 0.5, -0.01], "r": [0, 0.001, 0.1], "t": [0, 0.02, 1],
        "e": FLAGS}),
    ("count_nonzero({a}, axis={axis})", {"a": ["nan5", "f34", "b34"], "axis": ["None", 0, -1]}),
    ("nan{name}({a}, axis={axis})", {"name": ["argmax", "argmin"], "a": ["nan5[1:]", "f34",
     "np.float32([[np.nan, 1], [2, 0]])"],
                                     "axis": ["None", 0, -1]}),
    ("apply_along_axis(lambda v: {f}, {axis}, f234)", {"f": ["v.sum()", "v[::-1]", "v[:, None] * v[:2]"],
                                                       "axis": [0, 1, -1]}),
    ("piecewise({x}, {x} < 0, {f})", {"x": ["f5", "i4", "u5"], "f": ["[1]", "[1, 2]", "[lambda x: -x]"]}),
    ("piecewise(f34, [f34 < -1, f34 > 1], {f})", {"f": ["[1, 2]", "[1, 2, 3]", "[lambda x: -x, 5, lambda x: x * x]",
                                                        "[1]", "[1, 2, 3, 4]"]}),
    ("cumulative_{name}(f34, axis={axis}, include_initial={e})", {"name": ["sum", "prod"], "axis": [0, 1, -1],
                                                                  "e": FLAGS}),
    ("cumulative_sum({a}, include_initial={e})", {"a": ["f5", "f0", "f34"], "e": FLAGS}),
    ("lexsort({keys}, axis={axis})", {"keys": ["(f5, u5)", "(u5, f5)", "(u5,)", "(f34, i34)"], "axis": [0, -1]}),
    ("partition({a}, {k}, axis={axis}).sum()", {"a": ["f34", "f5"], "k": [0, 1, -1], "axis": [0, -1]}),
    ("round({a}.astype('{t}'), {n})", {"a": ["odd7", "(f34 * 123.4)"], "t": ["float16", "float32"],
                                       "n": [0, 1, 2, -1]}),
    ("array({a}, ndmin={n})", {"a": ["f_", "f3", "f23", "f0", "[[1, 2]]", 7], "n": [0, 1, 2, 3, 5]}),
    ("{name}({a}, order='{o}', copy={c})", {"name": ["array", "asarray"], "a": ["f34", "i3"], "o": ["K", "C"],
                                            "c": ["True", "None"]}),
    ("linalg.cross({a}, {b}, axis={axis})", {"a": ["f3", "f2", "f33", "f23"], "b": ["f3", "f2", "f33"],
                                             "axis": [0, -1]}),
    ("angle({a}, deg={d})", {"a": ["c5", "c34", "f5", "f_"], "d": FLAGS}),
    ("{name}({m}, rowvar={r})", {"name": ["cov", "corrcoef"], "m": ["f03", "f0", "f234", "f1", "f43", "f_"],
                                 "r": FLAGS}),
    ("corrcoef({m}, {y}, rowvar={r})", {"m": ["f34", "f4"], "y": ["f4", "f34", "f43"], "r": FLAGS}),
    ("vander({a}, {n}, increasing={i})", {"a": ["f3", "f0", "c3"], "n": ["None", 0, 1, 2, 5], "i": FLAGS}),
    ("diag_indices({n}, {k})", {"n": [0, 1, 3], "k": [1, 2, 3]}),
    ("linspace({a}, 7, {n}, retstep=True, endpoint={e})", {"a": [0, "f3"], "n": [2, 3, 5], "e": FLAGS}),
    ("{name}_like({a}, shape={s})", {"name": ["ones", "zeros"], "a": ["f34", "i3"],
                                     "s": ["None", "(2, 2)", "()", "(0, 3)"]}),
    ("full_like({a}, {v}, shape={s})", {"a": ["f3", "i3"], "v": [7, "f_"], "s": ["None", "(2, 3)", "()"]}),
    ("unique({a}, equal_nan={e})", {"a": ["nan5", "f5", "odd7"], "e": FLAGS}),
    *((f"unique_{what}({{a}})", {"a": ["nan5", "f5", "odd7"]}) for what in ("values", "counts", "inverse")),
    ("nan{name}({a}, {q}, axis={axis}, keepdims={k}, method='{m}')", {
        "name": ["percentile", "quantile"], "a": ["nan5", "np.float32([[1, np.nan, 3], [5, 4, 2], [9, 7, np.nan]])"],
        "q": [0.3, "[0.6, 1.0]"], "axis": ["None", 0, -1], "k": FLAGS,
        "m": ["linear", "lower", "higher", "nearest", "midpoint"]}),
    ("percentile({a}, {q}, axis={axis}, method='{m}')", {
        "a": ["f34", "i5"], "q": [27, "[0, 37.3, 100]"], "axis": ["None", 0],
        "m": ["linear", "lower", "higher", "nearest", "midpoint"]}),
    ("frombuffer(b'abcdefgh', dtype='{t}', count={n}, offset={o})", {"t": ["uint8", "int16"], "n": [-1, 0, 2, 9],
                                                                     "o": [0, 2, 3]}),
    ("fromstring('1 2 3', sep=' ', count={n})", {"n": [-1, 2, 3]}),
    ("histogram_bin_edges({a}, {b}, {r})", {"a": ["f34", "f5", "f0", "f1"], "b": [1, 3, "[0.0, 1.0, 4.0]"],
                                            "r": ["None", "(-1, 1)"]}),
    ("linalg.norm({a}, {o}, {axis}, {k})", {"a": ["f5", "f34", "f234", "c34", "f0"],
                                            "o": ["None", 0, 1, 2, -1, 3, "np.inf", "'fro'", "'nuc'"],
                                            "axis": ["None", 0, -1, "(0, 1)", "(1, 0)"], "k": FLAGS}),
    ("linalg.matrix_norm({a}, ord={o}, keepdims={k})", {"a": ["f34", "f234"], "k": FLAGS,
                                                        "o": ["'fro'", "'nuc'", 1, -1, 2, -2, "np.inf"]}),
    ("linalg.vector_norm({a}, ord={o}, axis={axis}, keepdims={k})", {
        "a": ["f5", "f34"], "o": [0, 1, 2, 3, "np.inf"], "axis": ["None", 0, -1], "k": FLAGS}),
    ("linalg.cond({a}, p={p})", {"a": ["f33 + 9 * np.eye(3, dtype='f')", "f34"],
                                 "p": ["None", 1, -1, 2, -2, "np.inf", "'fro'"]}),
    ("linalg.eigvalsh(f33 + f33.T, UPLO={u})", {"u": ["'L'", "'U'"]}),
    ("linalg.qr({a}, mode='r').shape", {"a": ["f34", "f43", "f234"]}),
    ("linalg.matrix_power({a}, {n})", {"a": ["f33", "f234[:, :, :3]"], "n": [0, 1, 2, 3, 5, 8]}),
    ("bitwise_count({a})", {"a": ["i34", "np.uint8([0, 255, 7])"]}),
    ("unstack({a}, axis={axis})", {"a": ["f34", "f234"], "axis": [0, 1, -1]}),
]
# What needs the values of its operands: not compiled.
KNOWN = ("union1d", "unique", "setdiff1d", "setxor1d", "intersect1d", "bincount", "trim_zeros", "choose",
         "ravel_multi_index", "extract", "compress", "sort(lib.roots", "polyfit", "histogram", "insert", "select")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", ROWS, ids=[r[0] for r in ROWS])
def test_every_combination_is_as_in_numpy(row: Row) -> None:
    check_row(row, np, jnp, OPERANDS, KNOWN)


IN_PLACE = {
    "put(a, {i}, {v}, mode={m!r})": {
        "i": [0, -1, "i2[:0]", "np.int32([3, 0, 3])", "np.int32([[1], [2]])", "np.int32([99])"],
        "v": [7, "np.int32([7, 8])"], "m": ["wrap", "clip"]},
    "place(a, {c}, {v})": {"c": ["a > 0", "a > 9", "a == a"], "v": ["f1", "f2", "s5"]},
    "put_along_axis(a, {i}, {v}, {axis})": {"i": ["np.int32([[0, 1, 2, 1]])", "np.int32([[0], [2], [1]])"],
                                            "v": [7, "np.ones((1, 1))"], "axis": [0, 1, -1]},
    "put_along_axis(a, np.int32([5, 0]), {v}, None)": {"v": [7, "np.int32([8, 9])"]},
    "fill_diagonal(a, {v})": {"v": [7, "np.arange(2)", "np.arange(5)"]},
}


@pytest.mark.parametrize("call", [call for row in IN_PLACE.items() for call in calls(row)])
def test_functions_that_write_to_their_operand_in_numpy(call: str) -> None:
    want, before = OPERANDS["f34"].copy(), OPERANDS["f34"].copy()
    values = {**OPERANDS, "jnp": jnp, "np": np, "a": jnp.asarray(before)}
    copying = f"jnp.{call[:-1]}, inplace=False)"
    try:
        eval(f"np.{call}", {**OPERANDS, "np": np, "a": want})
    except (ValueError, IndexError) as error:  # indices that do not broadcast with the operand
        with pytest.raises((ValueError, TypeError, IndexError)):
            pytest.fail(f"NumPy: {error!r}, but {eval(copying, values)}")
        return
    np.testing.assert_array_equal(eval(copying, values), want)
    np.testing.assert_array_equal(values["a"], before)


def test_what_fills_symmetric_differences() -> None:
    """The first element that there is; 0 if there is none."""
    x = jnp.array([3, 1, 2])
    assert jnp.setxor1d(x, jnp.array([1, 9]), size=5).tolist() == [2, 3, 9, 2, 2]
    assert jnp.setxor1d(x, x, size=2).tolist() == [0, 0]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (1,), (5,)])
@pytest.mark.parametrize("size", [0, 1, 4])
def test_sets_of_a_given_size(shape: tuple[int, ...], size: int, compiled: bool) -> None:
    """With `size` results have that size, whatever there is: cut, or padded."""
    x = np.float32([3, 1, 3, 2, 1])[:shape[0]] if len(shape) == 1 else np.zeros(shape, "f")
    other = np.float32([1, 2, 9])

    def functions(x: Any) -> list[Any]:
        options = {"size": size, "fill_value": -1}
        return [jnp.unique(x, True, True, True, **options), jnp.unique(x, return_inverse=True, **options),
                jnp.union1d(x, other, **options), jnp.intersect1d(x, other, return_indices=True, **options),
                jnp.setdiff1d(x, other, **options), jnp.setxor1d(x, other, **options)]

    got = (anima.jit(functions) if compiled else functions)(jnp.asarray(x))

    def padded(values: Any, fill: int = -1) -> np.ndarray:
        return np.append(values, np.full(size, fill))[:size]

    values, first, inverse, counts = np.unique(x, True, True, True)
    np.testing.assert_array_equal(got[0][0], padded(values))
    np.testing.assert_array_equal(got[0][1][:len(values)], first[:size])
    np.testing.assert_array_equal(got[0][2], inverse)
    np.testing.assert_array_equal(got[0][3], padded(counts, 0))
    np.testing.assert_array_equal(got[1][1], inverse)
    np.testing.assert_array_equal(got[2], padded(np.union1d(x, other)))
    common, left, right = np.intersect1d(x, other, return_indices=True)
    for a, b in zip(got[3], (padded(common), padded(left, x.size), padded(right, other.size)), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(got[4], padded(np.setdiff1d(x, other)))
    np.testing.assert_array_equal(got[5], padded(np.setxor1d(x, other)))
