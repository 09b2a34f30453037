"""Calls of one function again and again, which are machine code from the second on: what they take, give and refuse."""

import numpy as np
from mpi4py import MPI

import anima
import anima.numpy as jnp
from anima import NamedSharding, P, lax
from anima.core import processes
from anima.core.array import PlacedArray
from anima.distributed import messages
from anima.sharding import AxisType

anima.distributed.initialize()
me, count = anima.process_index(), anima.process_count()
mesh = anima.make_mesh((count,), ("x",), axis_types=(AxisType.Auto,))
rows, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
host = np.arange(4 * count, dtype="f")
x, everywhere = anima.device_put(host, rows), anima.device_put(host[:4], whole)


def mapped(f, ins, outs, **options):
    return anima.jit(anima.shard_map(f, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False), **options)


def native(f):
    """Results of calls in machine code, of which the log is told."""
    (way,) = next(iter(f.simple.values()))
    return way.run


def own(x):
    return np.asarray(x.addressable_shards[0].data)


def results_are_those_of_the_first_call():
    f = mapped(lambda a, b, c: (lax.psum(a, "x") + b, {"c": a * c}), (P("x"), P(), P()), (P(), P("x")))
    for scale in (2.0, 3.0, 4.0):
        total, parts = f(x, everywhere, scale)
        np.testing.assert_array_equal(np.asarray(total), host.reshape(count, 4).sum(0) + host[:4])
        np.testing.assert_array_equal(own(parts["c"]), scale * own(x))
        assert type(total) is PlacedArray and total.committed and not total.is_cut
        assert parts["c"].is_cut and parts["c"].sharding == rows and parts["c"].shape == x.shape
    begun = processes.here.log.begun
    found = native(f)(x, everywhere, 5.0)
    assert found is not NotImplemented and processes.here.log.begun == begun + 1 and not processes.here.log.inside
    (_, record), = processes.here.log.last(1).values()
    assert b"<lambda> at calls.py:" in record


def other_arguments_are_refused():
    f = mapped(lambda a, b: lax.psum(a, "x") + b, (P("x"), P()), P())
    f(x, everywhere)
    run, begun = native(f), processes.here.log.begun
    turned = anima.device_put(host, NamedSharding(mesh, P()))
    uncommitted = PlacedArray(x.part(), x.aval, x.sharding, committed=False)
    wide = anima.device_put(np.arange(8.0 * count, dtype="f"), rows)
    for a in (host, host[:4], jnp.asarray(host[:4]), turned, uncommitted, wide, 1.0, None,
              anima.device_put(host.astype(int), rows)):
        assert run(a, everywhere) is NotImplemented, a
    assert run(x) is NotImplemented and run(x, host[:4]) is NotImplemented and run(x, x) is NotImplemented
    gone = anima.device_put(host, rows)
    gone.delete()
    assert processes.here.log.begun == begun
    try:
        f(gone, everywhere)
    except RuntimeError as error:
        assert "deleted" in str(error)
    else:
        raise AssertionError("a deleted array was taken")


def every_kind_of_message_goes_again():
    ring = [(k, (k + 1) % count) for k in range(count)]
    kinds = {
        "psum": (lambda v: lax.psum(v, "x"), P()), "pmax": (lambda v: lax.pmax(v, "x"), P()),
        "gather": (lambda v: lax.all_gather(v, "x", tiled=True), P()),
        "scatter": (lambda v: lax.psum_scatter(v, "x", tiled=True), P("x")),
        "all_to_all": (lambda v: lax.all_to_all(v, "x", 0, 0, tiled=True), P("x")),
        "ring": (lambda v: lax.ppermute(v, "x", ring), P("x")),
        "line": (lambda v: lax.ppermute(v, "x", ring[:-1]), P("x"))}
    for name, (f, spec) in kinds.items():
        for dtype in ("f", "d", "i4", "u1", "F", "f2"):
            with anima.enable_x64(dtype == "d"):
                y = anima.device_put(np.arange(count * count).astype(dtype), rows)
                f_ = mapped(f, P("x"), spec)
                first = f_(y).part().copy()
                for _ in range(3):
                    np.testing.assert_array_equal(f_(y).part(), first, err_msg=f"{name} {dtype}")


def loops_exchange_without_python():
    f = mapped(lambda v: lax.fori_loop(0, 50, lambda i, s: (lax.psum(s, "x") + i) / count, v), P("x"), P("x"))
    asked, ask = [], messages.Message.__call__
    messages.Message.__call__ = lambda self, *args: (asked.append(self), ask(self, *args))[1]
    y = x
    for _ in range(2):
        y = f(y)
    messages.Message.__call__ = ask
    assert len(asked) == 1
    assert y.shape == x.shape


def errors_of_machine_code_are_raised():
    made, exchange = [], processes.here.exchange

    def remembered(*args):
        made.append(exchange(*args))
        made[-1].patience = 0
        return made[-1]

    processes.here.exchange = remembered
    f = mapped(lambda v: lax.psum(v, "x") + 1, P("x"), P())
    expected = f(x)
    (message,) = made
    place = messages._FIELDS["op"] // 8
    right, message.record[place] = message.record[place], MPI._handleof(MPI.BAND)
    for _ in range(2):
        try:
            f(x)
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_OP
        else:
            raise AssertionError("MPI took bits of floating-point numbers")
    message.record[place] = right
    np.testing.assert_array_equal(f(x), expected)
    processes.here.exchange = exchange


results_are_those_of_the_first_call()
other_arguments_are_refused()
every_kind_of_message_goes_again()
loops_exchange_without_python()
errors_of_machine_code_are_raised()
print("all well")
