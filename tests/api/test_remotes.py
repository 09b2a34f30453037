"""Arrays on a device whose memory is not this machine's: an emulated one, whose programs run by the CPU's compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.api import remotes
from anima.core.array import PlacedArray
from anima.core.device import machines
from anima.core.remote import Remote
from anima.core.trace import EvalTrace
from anima.runtime import programs


class Elsewhere(Remote):
    """Elements that are looked at by `host` alone, which counts."""

    looked = 0

    def __init__(self, value: np.ndarray) -> None:
        self._elements = value

    def host(self) -> np.ndarray:
        Elsewhere.looked += 1
        return self._elements.copy()

    def wait(self) -> None:
        pass

    def is_ready(self) -> bool:
        return True

    @property
    def address(self) -> int:
        return self._elements.ctypes.data


class Emulated:
    """A device that runs programs on its own memory."""

    kind = "an emulated device"

    def put(self, array: np.ndarray) -> Elsewhere:
        return Elsewhere(array.copy())

    def program(self, closed: Any, name: str, donated: Sequence[int] = ()
                ) -> Callable[[Sequence[Remote]], list[Remote]]:
        executable = programs.executable_of(closed, name, donated)

        def run(given: Sequence[Remote]) -> list[Remote]:
            return [Elsewhere(v) for v in executable([x._elements for x in given])]  # type: ignore[attr-defined]

        return run


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[anima.Device]:
    """A device that is no CPU."""
    found = anima.Device(0, "emulated")
    monkeypatch.setattr(EvalTrace, "on_remote", None)
    remotes.enter_device(found, Emulated())
    Elsewhere.looked = 0
    yield found
    del machines[found]
    anima.clear_caches()


def is_there(x: Any) -> bool:
    return type(x) is PlacedArray and isinstance(x.remote, Elsewhere) and x.platform() == "emulated"


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "float32", "complex64"])
def test_there_and_back(there: anima.Device, dtype: str) -> None:
    x = jnp.arange(6).reshape(2, 3).astype(dtype)
    y = anima.device_put(x, there)
    assert y.devices() == {there} and y.dtype == x.dtype and y.committed
    z = anima.device_put(y + y, anima.devices()[0])
    assert z.platform() == "cpu"
    np.testing.assert_array_equal(np.asarray(z), np.asarray(x + x))


def test_calls_stay_there(there: anima.Device) -> None:
    f = anima.jit(lambda x, w: jnp.tanh(x @ w) + 1.0)
    x, w = np.ones((3, 4), np.float32), np.full((4, 4), 0.1, np.float32)
    y = anima.device_put(x, there)
    for _ in range(4):
        y = f(y, w)
    y = y * 2 - y[0]
    assert is_there(y) and not Elsewhere.looked
    want = x
    for _ in range(4):
        want = np.tanh(want @ w) + 1
    np.testing.assert_allclose(np.asarray(y), want * 2 - want[0], rtol=1e-5)
    assert Elsewhere.looked == 1
    assert y.block_until_ready() is y and y.is_ready() and y.unsafe_buffer_pointer()


def test_transformations(there: anima.Device) -> None:
    x = anima.device_put(np.linspace(0, 1, 5).astype(np.float32), there)

    def f(x: Any) -> Any:
        return lax.scan(lambda c, t: (jnp.sin(c) + t, c), 0.0, x)[0]

    for transformed in (f, anima.grad(f), anima.jit(anima.hessian(f)), lambda x: anima.vmap(f)(x[None])):
        got = transformed(x)
        assert is_there(got)
        np.testing.assert_allclose(np.asarray(got), np.asarray(transformed(np.asarray(x))), rtol=1e-5)


def test_arguments_on_two_devices(there: anima.Device) -> None:
    x, y = anima.device_put(1.0, there), anima.device_put(2.0, anima.devices()[0])
    for call in (lambda: x + y, lambda: anima.jit(jnp.add)(x, y)):
        with pytest.raises(ValueError, match=r"incompatible devices.*EMULATED.*CPU"):
            call()
    mesh = anima.make_mesh((1,), ("a",))
    z = anima.device_put(jnp.ones(1), anima.NamedSharding(mesh, anima.P("a")))
    assert float(x + 2.0) == 3.0 == float(anima.device_put(x, anima.devices()[0]) + y)
    with pytest.raises(ValueError, match=r"incompatible devices.*CPU|incompatible devices.*EMULATED"):
        anima.jit(jnp.add)(x, z)


def test_default_device(there: anima.Device) -> None:
    with anima.default_device(there):
        x = jnp.ones((2, 2)) + jnp.arange(2)
        key = anima.random.key(3)
        r = anima.random.normal(key, (4,))
        assert is_there(x) and is_there(r)
        assert anima.jit(lambda: jnp.zeros(3))().platform() == "emulated"
        y = anima.device_put(np.ones(3, np.float32))
        z = y + 1
    assert y.platform() == "emulated" and not y.committed and is_there(y) and is_there(z)
    np.testing.assert_array_equal(np.asarray(r), np.asarray(anima.random.normal(anima.random.key(3), (4,))))
    assert jnp.ones(2).platform() == "cpu"


def test_what_is_asked_for_is_brought_here(there: anima.Device) -> None:
    x = anima.device_put(jnp.arange(3.0), there)
    assert repr(x) == "Array([0., 1., 2.], dtype=float32)" and float(x[1]) == 1.0 and x.tolist() == [0.0, 1.0, 2.0]
    assert bool((x < 5).all()) and len(list(x)) == 3
    assert [s.data is x for s in x.addressable_shards] == [True]


def test_donated_arrays_are_deleted(there: anima.Device) -> None:
    x = anima.device_put(jnp.arange(3.0), there)
    y = anima.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted() and is_there(y)
    with pytest.raises(RuntimeError, match="deleted"):
        x + 1


def test_without_jit_operations_run_there(there: anima.Device) -> None:
    x = anima.device_put(jnp.arange(3.0), there)
    with anima.disable_jit():
        y = anima.jit(lambda x: jnp.sin(x) * 2 + x)(x)
    assert is_there(y)
    np.testing.assert_allclose(np.asarray(y), 2 * np.sin(np.arange(3)) + np.arange(3), rtol=1e-6)


@pytest.mark.parametrize("where", ["there", "second core"])
@pytest.mark.parametrize("donate", [(), 0])
def test_what_made_a_nan_is_found(there: anima.Device, where: str, donate: Any,
                                  eight_devices: list[anima.Device]) -> None:
    x = anima.device_put(jnp.zeros(3), there if where == "there" else eight_devices[1])
    with anima.debug_nans(True):
        with pytest.raises(FloatingPointError, match=r"encountered in log: .*\n.*test_remotes.py:\d+, in bad"):
            anima.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: bad(c), x), donate_argnums=donate)(x)
        y = anima.device_put(jnp.zeros(3), there)
        for _ in range(3):
            np.testing.assert_array_equal(anima.jit(lambda x: x + 1)(y), 1)


def bad(x: Any) -> Any:
    return jnp.log(x - 1)


def test_a_tracer_that_is_over_is_named(there: anima.Device) -> None:
    kept: list[Any] = []
    anima.jit(lambda x: (kept.append(x), x)[1])(1.0)
    with anima.default_device(there), pytest.raises(anima.errors.UnexpectedTracerError):
        jnp.sin(kept[0])


def test_random_keys(there: anima.Device) -> None:
    keys = anima.device_put(anima.random.split(anima.random.key(0), 3), there)
    got = anima.jit(anima.vmap(lambda k: anima.random.uniform(anima.random.fold_in(k, 1))))(keys)
    want = anima.vmap(lambda k: anima.random.uniform(anima.random.fold_in(k, 1)))(
        anima.random.split(anima.random.key(0), 3))
    assert is_there(got)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
