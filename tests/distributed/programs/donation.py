"""Donated arrays over several processes: which go, whose memory results take over, and what is left alone.

    mpirun -n 2 python donation.py
"""

import warnings

import numpy as np

import anima
import anima.numpy as jnp
from anima import NamedSharding, P, lax
from anima.sharding import AxisType

anima.distributed.initialize()
warnings.filterwarnings("ignore", "Some donated buffers")
count = anima.process_count()
mesh = anima.make_mesh((count,), ("x",), axis_types=(AxisType.Auto,))
cut, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
host = np.arange(16, dtype=np.float32)

# What runs, where its arguments lie, options of jit, and which arguments go: those of the same program in one process.
CASES = [
    (lambda x: x + 1, cut, {}, [True]), (lambda x: x + 1, whole, {}, [True]), (lambda x: x.sum(), cut, {}, [False]),
    (lambda x: x > 0, cut, {}, [False]), (lambda x: x.astype("int32"), cut, {}, [True]),
    (lambda x: x.reshape(4, 4) + 1, whole, {}, [True]), (lambda x: (x, x + 1), cut, {}, [True]),
    (lambda x: jnp.concatenate([x, x]), cut, {}, [False]), (lambda x: lax.sort(x), cut, {}, [True]),
    (lambda x, y: y + 1, cut, {}, [False, False]), (lambda x, y: y + 1, cut, {"keep_unused": True}, [True, False]),
    (lambda x, y: x + y, cut, {"donate_argnums": (0, 1)}, [True, False]),
    (lambda x, y: (y * 2, x * 3), cut, {"donate_argnums": (0, 1)}, [True, True]),
    (lambda x: x + 1, cut, {"out_shardings": whole}, [False]), (lambda x: x + 1, cut, {"out_shardings": cut}, [True]),
    (lambda x: x + 1, whole, {"out_shardings": cut}, [False]),
    (lambda x: lax.fori_loop(0, 3, lambda i, c: c * 2 + c.sum(), x), cut, {}, [True]),
]


def part(x):
    """The elements that this process has, and where."""
    (shard,) = x.addressable_shards
    return np.asarray(shard.data), shard.index


def equals(x, want):
    values, index = part(x)
    np.testing.assert_array_equal(values, np.asarray(want)[index])


def address(x):
    return x.addressable_data(0).unsafe_buffer_pointer()


def donated_arrays_go_in_every_process():
    for fun, lies, options, gone in CASES:
        f = anima.jit(fun, **{"donate_argnums": 0, **options})
        want = anima.tree.leaves(fun(*[jnp.asarray(host)] * len(gone)))
        for _ in range(3):
            args = [anima.device_put(host, lies) for _ in gone]
            found = anima.tree.leaves(f(*args))
            assert [a.is_deleted() for a in args] == gone
            for a, b in zip(found, want, strict=True):
                equals(a, b)
            for a in args:
                if not a.is_deleted():
                    equals(a, host)
        args = [anima.device_put(host, lies) for _ in gone]
        f.lower(*args).compile()(*args)
        assert [a.is_deleted() for a in args] == gone


def results_take_the_memory_over():
    step = anima.jit(lambda w, g: w - g.sum() * w, donate_argnums=0)
    g, want = anima.device_put(host / 100, cut), host
    w = anima.device_put(host, cut)
    place = address(w)
    for _ in range(4):
        before, w = w, step(w, g)
        want = want - np.float32(1.2) * want
        assert before.is_deleted() and address(w) == place
    values, index = part(w)
    np.testing.assert_allclose(values, want[index], rtol=1e-5)


def parts_have_memory_of_their_own():
    step = anima.jit(lambda x: x + 1, donate_argnums=0)
    for given in (host, jnp.asarray(host), lambda index: host[index]):
        make = anima.make_array_from_callback if callable(given) else None
        x = anima.device_put(given, cut) if make is None else make(host.shape, cut, given)
        place = address(x)
        assert x.addressable_data(0).shape == (16 // count,) and x.part().base is None
        y = step(x)
        assert address(y) == place
        equals(y, host + 1)
    np.testing.assert_array_equal(host, np.arange(16))


def memory_that_others_see_is_left_alone():
    f = anima.jit(lambda x: x + 1, donate_argnums=0)
    x = anima.device_put(host, cut)
    seen, index = part(x)
    y = f(x)
    assert x.is_deleted()
    np.testing.assert_array_equal(seen, host[index])
    equals(y, host + 1)


def what_is_gone_cannot_be_used():
    def step(x):
        return x + 1

    f, x = anima.jit(step, donate_argnums=0), anima.device_put(host, cut)
    y = f(x)
    for use in (f, lambda x: x + 1, lambda x: np.asarray(x.addressable_shards[0].data), anima.jit(jnp.sum)):
        try:
            use(x)
        except RuntimeError as error:
            assert "deleted" in str(error) or "donated" in str(error), error
        else:
            raise AssertionError("a deleted array was used")
    equals(y, host + 1)
    both = anima.jit(lambda a, b: a + b, donate_argnums=0)
    try:
        both(y, y)
    except ValueError as error:
        assert "twice" in str(error), error
    else:
        raise AssertionError("a donated array was given twice")
    assert not y.is_deleted()
    equals(both(y, anima.device_put(host, cut)), 2 * host + 1)


donated_arrays_go_in_every_process()
results_take_the_memory_over()
parts_have_memory_of_their_own()
memory_that_others_see_is_left_alone()
what_is_gone_cannot_be_used()
print("all well")
