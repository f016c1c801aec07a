"""Programs are planned on several threads at once: the blobs are those of one thread, and no registry changes."""

from __future__ import annotations

import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest
from cloudpickle import cloudpickle as reducers

from tidegate.graph import struct_classes
from tidegate.graph.blobs import dump_blob, load_blob

MODULE = "orders_of_two_threads"


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / f"{MODULE}.py").write_text("def times(n):\n    return n * 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield __import__(MODULE)
    del sys.modules[MODULE]


def test_blobs_made_on_two_threads_at_once_are_as_made_on_one(orders: Any) -> None:
    alone = dump_blob(orders.times, "map")
    start = threading.Barrier(2)

    def many() -> set[bytes]:
        start.wait()
        return {dump_blob(orders.times, "map") for _ in range(200)}

    with ThreadPoolExecutor(2) as pool:
        made = [future.result() for future in [pool.submit(many), pool.submit(many)]]
    assert made == [{alone}, {alone}]
    assert MODULE.encode() in alone
    assert len(alone) > len(cloudpickle.dumps(orders.times))  # by value


class Looks:
    """Sees, while it is pickled, what others would see who use cloudpickle at that moment."""

    seen: frozenset[str] = frozenset()

    def __reduce__(self) -> Any:
        Looks.seen = frozenset(cloudpickle.list_registry_pickle_by_value())
        return str, ()


def test_whoever_uses_cloudpickle_meanwhile_finds_its_registry_as_it_was(orders: Any) -> None:
    before = frozenset(cloudpickle.list_registry_pickle_by_value())
    Looks.seen = frozenset({"not called"})
    dump_blob((orders.times, Looks()), "map")
    assert Looks.seen == before


class Pair(msgspec.Struct):
    left: int
    right: int = 2

    def total(self) -> int:
        return self.left + self.right


def test_a_struct_that_two_threads_load_at_once_is_one_complete_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = dump_blob(Pair, "split")
    start = threading.Barrier(2)

    def load() -> Any:
        start.wait()
        cls = load_blob(data)
        return cls, cls(1).total()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            for _ in range(50):
                # As in another process, which has not seen the class.
                monkeypatch.setattr(struct_classes, "_names", weakref.WeakKeyDictionary())
                monkeypatch.setattr(struct_classes, "_classes", weakref.WeakValueDictionary())
                one, other = [future.result() for future in [pool.submit(load), pool.submit(load)]]
                assert one == other
                assert one[0] is not Pair
                assert one[1] == 3
    finally:
        sys.setswitchinterval(interval)


def test_a_class_that_is_being_loaded_is_complete_for_a_second_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Order:
        def total(self) -> int:
            return 3

    data = dump_blob(Order, "map")
    # As in another process, which has not seen the class.
    monkeypatch.setattr(reducers, "_DYNAMIC_CLASS_TRACKER_BY_ID", weakref.WeakValueDictionary())
    monkeypatch.setattr(reducers, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", weakref.WeakKeyDictionary())
    known, second_done = threading.Event(), threading.Event()
    make = reducers._make_skeleton_class

    def made_slowly(*description: Any) -> type:
        cls = make(*description)
        if not known.is_set():
            known.set()
            second_done.wait(0.2)  # it ends where the second thread does not wait for this one
        return cls

    monkeypatch.setattr(reducers, "_make_skeleton_class", made_slowly)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(load_blob, data)
        assert known.wait(10)
        second = pool.submit(lambda: load_blob(data)().total())
        second.add_done_callback(lambda _: second_done.set())
        assert second.result() == 3
        assert first.result()().total() == 3
