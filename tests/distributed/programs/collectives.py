"""Collectives, gradients, random numbers and operations on arrays that are cut over 4 devices; writes their results.

    ANIMA_NUM_CPU_DEVICES=4 python collectives.py FILE
    mpirun -n 4 python collectives.py FILE --mpi             the same numbers
"""

import sys

import numpy as np

import anima
import anima.numpy as jnp
from anima import NamedSharding, P, lax
from anima.sharding import AxisType

if "--mpi" in sys.argv:
    anima.distributed.initialize()
mesh = anima.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
rng = np.random.default_rng(0)
A, B = rng.normal(size=(8, 12)).astype("f"), rng.normal(size=(12, 4)).astype("f")
CUT = P("x", "y")
found = {}


def put(x, *spec):
    return anima.device_put(x, NamedSharding(mesh, P(*spec)))


def whole(x):
    if not x.is_fully_addressable:
        x = anima.device_put(x, NamedSharding(mesh, P()))
    value = np.asarray(x)
    return value.astype("f") if value.dtype == jnp.bfloat16 else value


def keep(name, tree):
    for k, x in enumerate(anima.tree.leaves(tree)):
        found[f"{name}.{k}"] = whole(x)


def mapped(fun, spec):
    return anima.shard_map(fun, mesh=mesh, in_specs=CUT, out_specs=spec, check_vma=False)


a, b = put(A, "x", "y"), put(B, "y")
MAPPED = {
    "psum": (lambda v: lax.psum(v, "x"), P(None, "y")),
    "psum of both": (lambda v: lax.psum(v, ("x", "y")), P()),
    "psum of bfloat16": (lambda v: lax.psum(v.astype(jnp.bfloat16), "x"), P(None, "y")),
    "psum of complex": (lambda v: lax.psum(v + 1j * v, "x"), P(None, "y")),
    "psum of bytes": (lambda v: lax.psum((40 * v).astype("int8"), "x"), P(None, "y")),
    "psum in groups": (lambda v: lax.psum(v, "y", axis_index_groups=[[0], [1]]), CUT),
    "pmax": (lambda v: lax.pmax(v, "y"), P("x")),
    "pmax of NaN": (lambda v: lax.pmax(jnp.where(v > 1, jnp.nan, v), "x"), P(None, "y")),
    "pmin of NaN": (lambda v: lax.pmin(jnp.where(v > 1, jnp.nan, v), "x"), P(None, "y")),
    "pmin of integers": (lambda v: lax.pmin((9 * v).astype("int32"), ("y", "x")), P()),
    "pmax of bools": (lambda v: lax.pmax(v > 0, "x"), P(None, "y")),
    "all_gather": (lambda v: lax.all_gather(v, "x", axis=1), P(None, None, "y")),
    "all_gather, tiled": (lambda v: lax.all_gather(v, ("y", "x"), axis=0, tiled=True), P()),
    "psum_scatter": (lambda v: lax.psum_scatter(v, "x", scatter_dimension=1, tiled=True), P(None, ("y", "x"))),
    "all_to_all, tiled": (lambda v: lax.all_to_all(v, "x", 0, 1, tiled=True), P(None, ("y", "x"))),
    "all_to_all": (lambda v: lax.all_to_all(v[:2], "x", 0, 1), CUT),
    "ppermute to one": (lambda v: lax.ppermute(v, "x", [(0, 1)]), CUT),
    "ppermute around": (lambda v: lax.ppermute(v, ("x", "y"), [(k, (k + 1) % 4) for k in range(4)]), CUT),
    "pbroadcast": (lambda v: lax.pbroadcast(v, "x", 1), CUT),
    "axis_index": (lambda v: v + lax.axis_index("y") * 10 + lax.axis_index(("y", "x")), CUT),
    "scan": (lambda v: lax.scan(lambda c, k: (lax.psum(0.3 * c, "x") + k, lax.pmean(c, "y")), v, jnp.arange(5.0))[1],
             P(None, "x")),
    "while": (lambda v: lax.while_loop(lambda c: lax.psum(c.sum(), ("x", "y")) < 1e3,
                                       lambda c: 1.1 + lax.ppermute(c, "x", [(0, 1), (1, 0)]), v), CUT),
    "cond": (lambda v: lax.cond(lax.psum(v.sum(), ("x", "y")) > 0, lambda v: lax.psum(v, "x"),
                                lambda v: -lax.psum(v, "x"), v), P(None, "y")),
    "gradient": (anima.grad(lambda v: lax.psum(jnp.sum(jnp.sin(v)), "x")), CUT),
}
for name, (fun, spec) in MAPPED.items():
    keep(name, mapped(fun, spec)(a))
    keep(name + ", jitted", anima.jit(mapped(fun, spec))(a))


def tree(v):
    """Small sums, of which some are one message; some need others, and something large needs them all."""
    first = {"scalar": lax.psum(v.sum(), "x"), "rows": [lax.psum(2 * v[k], ("x", "y")) for k in range(3)],
             "half": lax.psum(v.astype(jnp.bfloat16), "x"), "none": lax.psum(v[:0], "x"), "most": lax.pmax(v, "x")}
    second = anima.tree.map(lambda x: lax.psum(x + first["scalar"], "y") * 2, first)
    large = jnp.zeros((300, 300)) + second["scalar"]
    return first, second, lax.psum(large[0, :2] + v[0, 0], ("x", "y")), large[5, :4]


for name, fun in (("together", tree), ("together, in a loop", lambda v: lax.fori_loop(
        0, 3, lambda k, c: tree(v + c)[2].sum(), jnp.float32(0)))):
    keep(name, anima.jit(anima.shard_map(fun, mesh=mesh, in_specs=CUT, out_specs=P(), check_vma=False))(a))


def loss(a, b):
    return jnp.sum(jnp.tanh(a @ b) ** 2)


keep("product", a @ b)
keep("gradients", anima.jit(anima.grad(loss, (0, 1)))(a, b))
keep("gradients, not jitted", anima.grad(loss, (0, 1))(a, b))
keep("sort", [jnp.sort(a, axis=0), jnp.cumsum(a, 1), a[2:5, ::3], lax.top_k(a, 3), a.at[3, 5].set(7.0)])
keep("lanes", anima.vmap(jnp.linalg.norm)(a))
keep("scalars", [put(jnp.float32(3.0)) * 2, a.sum(), put(jnp.ones((0, 4)), None, "y")])
keep("other cuts", [anima.device_put(a, NamedSharding(mesh, P("y", "x"))), put(A, ("y", "x"))])
keep("constraint", anima.jit(lambda a: lax.with_sharding_constraint(a * 2, NamedSharding(mesh, P(None, "x"))))(a))
cut = NamedSharding(mesh, CUT)
keep("random", anima.jit(lambda key: anima.random.normal(key, (8, 8)), out_shardings=cut)(anima.random.key(0)))
keys = put(anima.random.split(anima.random.key(1), 8), "x")
keep("keys", anima.jit(anima.vmap(lambda key: anima.random.normal(key, (3,))))(keys))
keep("donated", anima.jit(lambda a: a * 2, donate_argnums=0)(put(A, "x", "y")))
keep("a mesh of one axis", anima.pmap(lambda v: v / lax.psum(v, "i"), axis_name="i")(A[:4]))
keep("from parts", anima.make_array_from_callback((8, 12), cut, lambda index: A[index]))
keep("closed over", anima.jit(lambda a: a + B.sum() + jnp.asarray(B)[0, 0])(a))

if anima.process_index() == 0:
    np.savez(sys.argv[1], **found)
