"""The generations of one row state on the heap: changed since the last snapshot, frozen, and settled.

    reads:   changed → frozen, newest first → settled          writes: changed
    snapshot(m): changed becomes the newest frozen generation (no copy), a new dict takes its place
    checkpoint m completed: generations up to m are merged into `settled`, a bounded part at each call

The thread that writes a snapshot reads frozen generations and `settled` between `hold` and `release`; during that time
nothing is merged. With a time to live, a queue finds expired cells. Mailbox thread, except `release`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar, Final

from tidegate.state.generations import REMOVED, Entries, ValueGenerations
from tidegate.state.ttl import ExpiryQueue, TtlClock

CHUNK: Final = 1 << 16
_LEAST_MERGED: Final = 1 << 14  # a few milliseconds
_MOST_ABORTED: Final = 8
_WRITES_PER_SWEEP: Final = 64
_SWEPT: Final = 256
_SWEPT_AT_SNAPSHOT: Final = 10_000


class Generation:
    """What changed between two snapshots; immutable."""

    __slots__ = ("checkpoint_id", "completed", "entries", "has_removals", "left", "merging")

    def __init__(self, checkpoint_id: int, entries: Entries, has_removals: bool) -> None:
        self.checkpoint_id = checkpoint_id
        self.entries = entries
        self.has_removals = has_removals
        self.completed = False
        self.merging: Iterator[tuple[Any, Any]] | None = None
        self.left = len(entries)


class HeapTable(ValueGenerations):
    """One cell per key: the table of value, list, reducing and aggregating states without a time to live."""

    settles_whole: ClassVar[bool] = True
    """Whether a generation can become the settled state unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen: list[Generation] = []
        self.settled: Entries = {}
        """Removed keys are absent."""
        self.has_removals = False
        """Whether `REMOVED` was put into `changed`."""
        self._holders: set[object] = set()

    @property
    def has_older(self) -> bool:
        return bool(self.frozen or self.settled)

    def load(self, key: Any) -> Any:
        for generation in reversed(self.frozen):
            if key in generation.entries:
                return generation.entries[key]
        return self.settled.get(key, REMOVED)

    def known_keys(self) -> Entries:
        """All keys that may exist, each once; some have been removed."""
        found = dict.fromkeys(self.settled)
        for generation in self.frozen:
            found.update(dict.fromkeys(generation.entries))
        found.update(dict.fromkeys(self.changed))
        return found

    def remove(self, key: Any) -> None:
        self.changed[key] = REMOVED
        self.has_removals = True

    def __len__(self) -> int:
        """Roughly the number of keys: one in several generations counts several times."""
        return len(self.changed) + len(self.settled) + sum(len(g.entries) for g in self.frozen)

    def sweep(self) -> None:
        """Remove a bounded number of expired cells. Called at each snapshot."""

    def expect(self, item: Hashable, written_ms: int) -> None:
        """Queue a restored item for expiry, with the time when it was written."""

    # ---- snapshots ----

    def freeze(self, checkpoint_id: int) -> list[Generation]:
        """Close the current generation; returns all that no completed checkpoint covers, oldest first."""
        self._merge()
        if self.changed:
            self.frozen.append(Generation(checkpoint_id, self.changed, self.has_removals))
            self.changed = {}
            self.has_removals = False
            self.on_freeze(self.changed)
        self._join_aborted()
        return [g for g in self.frozen if not g.completed]

    def complete(self, checkpoint_id: int) -> None:
        """Settle what this checkpoint covers, now or step by step in later calls."""
        for generation in self.frozen:
            generation.completed |= generation.checkpoint_id <= checkpoint_id
        self._merge()

    def hold(self, holder: object) -> None:
        """Note that another thread starts to read frozen generations or `settled`."""
        self._holders.add(holder)

    def release(self, holder: object) -> None:
        """Note that it has finished. Any thread, any number of times."""
        self._holders.discard(holder)

    def merged(self, generations: list[Generation]) -> Entries:
        """Several generations, oldest first, as one; any thread. May be the entries of one of them."""
        if len(generations) == 1:
            return generations[0].entries
        together: Entries = {}
        for generation in generations:
            for keys, values in chunks(generation.entries):
                self.compose(together, zip(keys, values, strict=True))
        return together

    def compose(self, entries: Entries, newer: Iterable[tuple[Any, Any]]) -> None:
        """Apply newer changes to changes."""
        entries.update(newer)

    def settle(self, changes: Iterable[tuple[Any, Any]]) -> None:
        """Apply changes to `settled`."""
        settled = self.settled
        for key, value in changes:
            if value is REMOVED:
                settled.pop(key, None)
            else:
                settled[key] = value

    def _merge(self) -> None:
        if self._holders:
            return
        done = 0
        waiting = sum(len(g.entries) for g in self.frozen if g.completed)
        budget = max(_LEAST_MERGED, waiting // 4)
        while done < budget and self.frozen and self.frozen[0].completed:
            first = self.frozen[0]
            if self.settles_whole and not self.settled and not first.has_removals and first.merging is None:
                self.settled = first.entries
                self.frozen.pop(0)
                continue
            if first.merging is None:
                first.merging = iter(first.entries.items())
            size = min(CHUNK, budget - done, first.left)
            changes = islice(first.merging, size)  # no list: its tuples would trigger the garbage collector
            if first.has_removals:
                self.settle(changes)
            else:
                self._settle_values(changes)
            done += size
            first.left -= size
            if not first.left:
                self.frozen.pop(0)

    def _settle_values(self, changes: Iterable[tuple[Any, Any]]) -> None:
        self.settled.update(changes)

    def _join_aborted(self) -> None:
        """Join the generations of many aborted checkpoints in a row, which would make reads slow."""
        open_ones = [g for g in self.frozen if not g.completed]
        if len(open_ones) <= _MOST_ABORTED:
            return
        newest = open_ones[-1]
        joined = Generation(
            newest.checkpoint_id, self.merged(open_ones), any(g.has_removals for g in open_ones)
        )
        self.frozen = [g for g in self.frozen if g.completed] + [joined]


def chunks(entries: Entries) -> Iterator[tuple[list[Any], list[Any]]]:
    """Keys and values in portions, so that no other thread waits long for the interpreter.

    Two lists instead of one of pairs: millions of new tuples would trigger the garbage collector again and again.
    """
    keys, values = iter(entries), iter(entries.values())
    while portion := list(islice(keys, CHUNK)):
        yield portion, list(islice(values, CHUNK))


class ExpiringTable(HeapTable):
    """A table with a time to live: a cell is the time of the last write and the kept value."""

    def __init__(self, clock: TtlClock) -> None:
        super().__init__()
        self.clock = clock
        self._queue = ExpiryQueue(clock)
        self._writes = 0
        self.expect = self._queue.add  # type: ignore[method-assign]

    def put(self, key: Any, cell: Any) -> None:
        """Change a cell and queue it for expiry; now and then remove some that have expired."""
        self.changed[key] = cell
        self._wrote(key, cell[0])

    def sweep(self) -> None:
        self._sweep(self.clock.now(), _SWEPT_AT_SNAPSHOT)

    def _wrote(self, item: Hashable, now: int) -> None:
        self._queue.add(item, now)
        self._writes += 1
        if self._writes >= _WRITES_PER_SWEEP:
            self._writes = 0
            self._sweep(now, _SWEPT)

    def _sweep(self, now: int, limit: int) -> None:
        for item in self._queue.take_due(now, limit):
            self._drop_if_expired(item, now)

    def _drop_if_expired(self, item: Any, now: int) -> None:
        """Remove a due item, unless it was written again."""
        cell = self.find(item)
        if cell is not REMOVED and self.clock.is_expired(cell[0], now):
            self.remove(item)
