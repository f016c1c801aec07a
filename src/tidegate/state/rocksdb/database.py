"""One RocksDB database: bytes to bytes in a local directory. Without a write-ahead log: checkpoints are durable.

The mailbox thread may read while another thread writes. RocksDB reports errors as plain exceptions; here they become
`RocksDBError`s that name the directory. An iterator ends silently at a damaged block, so every scan checks its status
at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from rocksdict import AccessType, Checkpoint, Rdict, ReadOptions, WriteBatch, WriteOptions

from tidegate.core.errors import TidegateError
from tidegate.state.rocksdb.compaction import LATE, NOW, BulkLoads, is_merged
from tidegate.state.rocksdb.memory import RocksDBMemory
from tidegate.storage.storage import StorageError

Entry = tuple[bytes, bytes | None]
"""A key and its value; None deletes it."""

_key_of: Final = itemgetter(0)
_BATCH_ENTRIES: Final = 4096
"""How many entries are written at once: RocksDB holds the GIL while it writes, about 1 us per entry."""


class RocksDBError(StorageError):
    """RocksDB cannot read or write its local directory; names the operator, the directory and the reason."""


class Database:
    """An open database."""

    def __init__(self, path: str, memory: RocksDBMemory, owner: str, *, read_only: bool = False) -> None:
        self.path = path
        self._owner = owner
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        try:
            self._db = Rdict(path, memory.database_options(), access_type=access)
        except Exception as e:
            raise self._error("cannot open", e) from e
        write_options = WriteOptions()
        write_options.disable_wal = True  # type: ignore[assignment, method-assign]
        write_options.memtable_insert_hint_per_batch = True
        self._db.set_write_options(write_options)
        self._bulk_loads = BulkLoads(self._db.latest_sequence_number())
        self._is_merging_all = False

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._db.get(key)
        except Exception as e:
            raise self._error("cannot read", e) from e

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of many keys; faster if the keys are sorted."""
        try:
            return self._db.get(keys)  # type: ignore[return-value, arg-type]
        except Exception as e:
            raise self._error("cannot read", e) from e

    def write(self, entries: Iterable[Entry]) -> None:
        """Write entries, a few thousand at a time, so that other threads get the interpreter in between.

        Each portion is sorted, which RocksDB prefers; of two entries for one key the later one counts.
        """
        waiting = iter(entries)
        try:
            while chunk := list(islice(waiting, _BATCH_ENTRIES)):
                chunk.sort(key=_key_of)
                batch = WriteBatch(raw_mode=True)
                put = batch.put
                for key, value in chunk:
                    if value is None:
                        batch.delete(key)
                    else:
                        put(key, value)
                self._db.write(batch)
        except TidegateError:
            raise
        except Exception as e:
            raise self._error("cannot write", e) from e

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries from `start` to before `end`, in order, at this moment: later writes do not show."""
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        try:
            rows = self._db.iter(options)
            rows.seek(start)
        except Exception as e:
            raise self._error("cannot scan", e) from e
        return self._rows(rows, options)

    def _rows(self, rows: Any, options: ReadOptions) -> Iterator[tuple[bytes, bytes]]:
        # RocksDB reads the bound from the memory of the options, which only this frame keeps alive.
        bound = options
        valid, key, value, step = rows.valid, rows.key, rows.value, rows.next
        try:
            while valid():
                yield key(), value()
                step()
            rows.status()
        except Exception as e:
            raise self._error("cannot scan", e) from e
        finally:
            del valid, key, value, step, rows, bound

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete all entries from `start` to before `end`."""
        try:
            self._db.delete_range(start, end)
        except Exception as e:
            raise self._error("cannot delete in", e) from e

    def checkpoint(self, path: str) -> None:
        """Make a database of hard links at a new path. Any thread; nothing may be written meanwhile.

        The write buffers are flushed first, because RocksDB releases the GIL during a flush but not during a
        checkpoint.
        """
        try:
            self._db.flush()
            self._choose_compaction()
            Checkpoint(self._db).create_checkpoint(path)
        except Exception as e:
            raise self._error(f"cannot make a local checkpoint {path} of", e) from e

    def _choose_compaction(self) -> None:
        is_over = self._bulk_loads.checkpointed(self._db.latest_sequence_number(), self.key_count)
        # RocksDB merges later, on its own thread, with the options of that time.
        merge_all = is_over or (self._is_merging_all and not is_merged(self._db.live_files()))
        if merge_all != self._is_merging_all:
            self._db.set_options(NOW if merge_all else LATE)
            self._is_merging_all = merge_all

    @property
    def key_count(self) -> int:
        """Roughly the number of entries."""
        return self._db.property_int_value("rocksdb.estimate-num-keys") or 0

    def close(self) -> None:
        """Close it without writing its buffers. Nothing may use it afterwards."""
        self._db.close()

    def _error(self, what: str, reason: Exception) -> RocksDBError:
        text = str(reason)
        advice = (
            "Free space on the slot's disk"
            if "No space left" in text
            else "The job restarts from its latest checkpoint; if it happens again, check the slot's disk"
        )
        return RocksDBError(f"{self._owner}: RocksDB {what} {self.path}: {text}. {advice}")
