"""External routines: what a `Call` statement may name, and what its arguments mean.

    Call("gemm", ("f32", "N", "T", 128, 64, 32, 1.0, "x", 0, 32, "w", 0, 32, 0.0, "y", 0, 64, 1, 0, 0, 0))

A call stands directly in a program's body (or in that of a loop there), never inside a kernel. Its
arguments are names of whole buffers, names of dtypes or flags, and numbers; offsets, leading dimensions
and strides count elements, and matrices are row-major: element (i, j) of a matrix at `x, offset, ld` is
`x[offset + i*ld + j]`.

| routine | arguments in order | meaning |
|---|---|---|
| gemm | dtype (f32 f64 c64 c128), transa, transb ("N" or "T"), m, n, k, alpha, a, a_offset, lda, b, b_offset, ldb, beta, c, c_offset, ldc, batch, a_stride, b_stride, c_stride | for each t < batch: C = alpha * op(A) op(B) + beta * C, where op(A) is m x k, op(B) is k x n, C is m x n; A is at a_offset + t*a_stride, and so on. "T": the matrix is stored transposed (A as k x m with rows lda apart). beta = 0 means that C is not read. m, n, batch >= 1, k >= 1. C overlaps neither A nor B. Strides of A and B may be 0 (one matrix for the whole batch). |

What lowering promises the passes after it:

- Every loop is `serial`, or (innermost, independent but for `Accumulate`) `vector` with width 1, or (outermost in a
  kernel, independent) `parallel` with grain 1. `vectorize` chooses widths or turns a vector loop serial;
  `parallelize` chooses grains, turns a parallel loop serial, or cuts a kernel's lone vector loop into parallel blocks.
- A kernel's body is a sequence of statements; a kernel with several loops side by side runs them in order.
- Names (indices, lets, vars, locals) are unique within a kernel. Index expressions are sums of products
  `index*constant` first, whatever is not affine (`div`, `rem`, casts of loaded integers) after; a `Let` may be of type index.
- `cast` converts between `index` and any integer type or bool.
- Values that do not depend on a loop's index are computed before the loop.
- A multiple-result scalar operation (threefry) is written out in single-result operations.
"""  # noqa: E501  (a table)

from __future__ import annotations

GEMM_ARGUMENTS = ("dtype", "transa", "transb", "m", "n", "k", "alpha", "a", "a_offset", "lda", "b", "b_offset", "ldb",
                  "beta", "c", "c_offset", "ldc", "batch", "a_stride", "b_stride", "c_stride")

# Of each routine: names of its arguments, which of them are buffers that it reads, and which it writes.
ROUTINES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "gemm": (GEMM_ARGUMENTS, ("a", "b"), ("c",)),
}


def arguments(routine: str, args: tuple[object, ...]) -> dict[str, object]:
    """The arguments of a call, by name; NotImplementedError for a routine that does not exist."""
    if routine not in ROUTINES:
        raise NotImplementedError(f"there is no external routine '{routine}'")
    return dict(zip(ROUTINES[routine][0], args, strict=True))


def buffers_read(routine: str, args: tuple[object, ...]) -> list[str]:
    """Names of the buffers that a call reads."""
    named = arguments(routine, args)
    return [str(named[n]) for n in ROUTINES[routine][1]]


def buffers_written(routine: str, args: tuple[object, ...]) -> list[str]:
    """Names of the buffers that a call writes."""
    named = arguments(routine, args)
    return [str(named[n]) for n in ROUTINES[routine][2]]
