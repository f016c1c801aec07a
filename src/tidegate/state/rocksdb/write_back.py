"""Write-back: the changes of one backend that are not in the database yet, and how they get there.

A store (one per state) keeps its changes in memory. They are written together: when there are too many, and for a
snapshot. For a snapshot the synchronous part only *freezes* the changes, which costs almost nothing. The asynchronous
part writes them, flushes and makes the local checkpoint, while the mailbox thread continues with new changes and still
reads the frozen ones from memory.

So the rule is: while there are frozen writes, nothing newer gets into the database. A store that is full, or the next
snapshot, settles them first: it does what the asynchronous part has not done yet, or waits for it.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from threading import Lock

from tidegate.state.rocksdb.database import Database, Entry, RocksDBError

FrozenEntries = Callable[[], Iterable[Entry]]
"""Makes the entries to write, on any thread; called again after a failure."""


class Store(ABC):
    """The changes of one state. Mailbox thread, except for what `freeze` returns."""

    @abstractmethod
    def freeze(self) -> FrozenEntries | None:
        """Start with new changes; the old ones stay readable until `thaw`. None: there were none."""

    @abstractmethod
    def thaw(self) -> None:
        """The database has the frozen changes now."""


class FrozenWrites:
    """The changes up to one moment, being written to the database, and the local checkpoint that follows them."""

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
        """Make a local checkpoint at this path after the writes. Call it before another thread knows of them."""
        self._path = path

    def write(self) -> None:
        """Write them and make the local checkpoint, unless that was done already. Any thread.

        If writing fails, the error is raised and they stay unwritten. If only the local checkpoint fails, the error is
        kept for `checkpoint_path`: the state is not affected.
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
        """The path of the local checkpoint; raises the error if there is none."""
        self.write()
        path, failure = self._path, self._failure
        if failure is not None:
            raise failure
        if path is None:
            raise RocksDBError(f"the local checkpoint of {self._database.path} was given up: it was aborted")
        return path

    def wait(self) -> None:
        """Wait until no thread is writing them."""
        with self._lock:
            pass

    def discard_checkpoint(self) -> None:
        """The local checkpoint is not needed (any more). One that is just being made is left to its thread."""
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
        self._stores.append(store)

    def freeze(self, clean_up: Callable[[], Iterable[Entry]] | None = None) -> FrozenWrites:
        """Freeze all changes; `clean_up` makes further entries after they are written."""
        self.settle()
        made = [store.freeze() for store in self._stores]
        self._frozen = FrozenWrites(self._database, [m for m in made if m is not None], clean_up)
        return self._frozen

    def settle(self) -> None:
        """Make sure that the database has what is frozen."""
        if self._frozen is not None:
            self._frozen.write()
            self._frozen = None
            for store in self._stores:
                store.thaw()

    def close(self) -> None:
        """Wait until no thread uses the database. A call that comes later fails, because the database is closed."""
        if self._frozen is not None:
            self._frozen.wait()

    def spill(self) -> None:
        """Write all changes to the database."""
        self.freeze()
        self.settle()
