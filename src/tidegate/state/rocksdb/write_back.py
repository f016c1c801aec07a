"""What is changed and not yet in the database: the write-back caches of one backend, and how they get there.

A store (one per state) keeps its changes in memory. They go to the database together: when there are too many of them,
and for a snapshot. For a snapshot the changes are only *frozen* in the synchronous part, which costs next to nothing;
the asynchronous part writes them, flushes and makes the local checkpoint, while the mailbox thread goes on with fresh
changes and still reads the frozen ones from memory.

So the rule is: while there are frozen writes, nothing newer gets into the database. Whoever needs it (a store that is
full, the next snapshot) settles them first: it does what the asynchronous part has not done yet, or waits for it.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from threading import Lock

from tidegate.state.rocksdb.database import Database, Entry, RocksDBError

FrozenEntries = Callable[[], Iterable[Entry]]
"""Makes the entries to write, on any thread; again after a failure."""


class Store(ABC):
    """The changes of one state. Mailbox thread, except for what `freeze` returns."""

    @abstractmethod
    def freeze(self) -> FrozenEntries | None:
        """Begin with new changes; what there was stays readable until `thaw`. None: there was nothing."""

    @abstractmethod
    def thaw(self) -> None:
        """What was frozen is in the database now."""


class FrozenWrites:
    """The changes up to one moment, on their way to the database, and the local checkpoint behind them."""

    def __init__(
        self, database: Database, entries: list[FrozenEntries], clean_up: Callable[[], Iterable[Entry]] | None
    ) -> None:
        self._database = database
        self._entries = entries
        self._clean_up = clean_up
        self._lock = Lock()
        self._path: str | None = None
        self._failure: RocksDBError | None = None
        self.written = False

    def want_checkpoint(self, path: str) -> None:
        """Make a local checkpoint at this path once they are written. Before any other thread knows of it."""
        self._path = path

    def write(self) -> None:
        """Write them and make the local checkpoint, if that has not been done yet. Any thread.

        A failure to write is raised, and they stay unwritten. A failure of the local checkpoint alone is kept for
        `checkpoint_path`: the state is none the worse for it.
        """
        with self._lock:
            if not self.written:
                for make in self._entries:
                    self._database.write(make())
                if self._clean_up is not None:
                    self._database.write(self._clean_up())
                self.written = True
                self._entries = []
                if self._path is not None:
                    try:
                        self._database.checkpoint(self._path)
                    except RocksDBError as e:
                        self._failure = e

    def checkpoint_path(self) -> str:
        """Where the local checkpoint is; the error if there is none."""
        self.write()
        path, failure = self._path, self._failure
        if failure is not None:
            raise failure
        if path is None:
            raise RocksDBError(f"the local checkpoint of {self._database.path} was given up: it was aborted")
        return path

    def wait(self) -> None:
        """Nobody is writing them afterwards."""
        with self._lock:
            pass

    def discard_checkpoint(self) -> None:
        """The local checkpoint is not needed (any more). One that is just being made is left to its maker."""
        if self._lock.acquire(blocking=False):
            path, self._path = self._path, None
            self._lock.release()
            if path is not None:
                shutil.rmtree(path, ignore_errors=True)


class WriteBack:
    """The stores of one backend."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stores: list[Store] = []
        self._frozen: FrozenWrites | None = None

    def add(self, store: Store) -> None:
        """One more state."""
        self._stores.append(store)

    def freeze(self, clean_up: Callable[[], Iterable[Entry]] | None = None) -> FrozenWrites:
        """Freeze all changes; `clean_up` makes further entries once they are written."""
        self.settle()
        made = [store.freeze() for store in self._stores]
        self._frozen = FrozenWrites(self._database, [m for m in made if m is not None], clean_up)
        return self._frozen

    def settle(self) -> None:
        """What is frozen is in the database afterwards."""
        if self._frozen is not None:
            self._frozen.write()
            self._frozen = None
            for store in self._stores:
                store.thaw()

    def close(self) -> None:
        """Nobody uses the database afterwards, unless a later call fails because it is closed."""
        if self._frozen is not None:
            self._frozen.wait()

    def spill(self) -> None:
        """All changes are in the database afterwards."""
        self.freeze()
        self.settle()
