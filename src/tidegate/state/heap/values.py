"""The generations of one row state on the heap: what changed since the last snapshot, what is frozen, what is settled.

    reads:   changed → frozen, newest first → settled          writes: changed
    snapshot(m): changed becomes the newest frozen generation (no copy), a new dict takes its place
    checkpoint m completed: generations up to m are merged into `settled`, a bounded part at each call

The thread that writes a snapshot reads frozen generations and `settled` between `hold` and `release`; merging waits as
long. Where there is a time to live, a queue finds what has expired. Mailbox thread, except `release`.
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
    """What changed between two snapshots; never changed again."""

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
    """Whether a generation can become the settled state as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen: list[Generation] = []
        self.settled: Entries = {}
        """Keys that were removed are simply absent."""
        self.has_removals = False
        """Whether `REMOVED` was put into `changed`."""
        self._holders: set[object] = set()

    @property
    def has_older(self) -> bool:
        """Whether something is frozen or settled."""
        return bool(self.frozen or self.settled)

    def load(self, key: Any) -> Any:
        """The cell of a key that is not in `changed`, or `REMOVED`."""
        for generation in reversed(self.frozen):
            if key in generation.entries:
                return generation.entries[key]
        return self.settled.get(key, REMOVED)

    def known_keys(self) -> Entries:
        """All keys that there may be, each once; some have been removed."""
        found = dict.fromkeys(self.settled)
        for generation in self.frozen:
            found.update(dict.fromkeys(generation.entries))
        found.update(dict.fromkeys(self.changed))
        return found

    def remove(self, key: Any) -> None:
        """Forget a key."""
        self.changed[key] = REMOVED
        self.has_removals = True

    def __len__(self) -> int:
        """About how many keys there are: one that is in several generations counts several times."""
        return len(self.changed) + len(self.settled) + sum(len(g.entries) for g in self.frozen)

    def sweep(self) -> None:
        """Remove what has expired, a bounded part; at each snapshot."""

    def expect(self, item: Hashable, written_ms: int) -> None:
        """An item was restored that was written then: it may expire one day."""

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
        """This checkpoint is complete: what it covers becomes settled, now or bit by bit at later calls."""
        for generation in self.frozen:
            generation.completed |= generation.checkpoint_id <= checkpoint_id
        self._merge()

    def hold(self, holder: object) -> None:
        """Somebody reads frozen generations or `settled` on another thread from now on."""
        self._holders.add(holder)

    def release(self, holder: object) -> None:
        """... and has finished. Any thread, any number of times."""
        self._holders.discard(holder)

    def merged(self, generations: list[Generation]) -> Entries:
        """What several generations amount to, oldest first; any thread. May be the entries of one of them."""
        if len(generations) == 1:
            return generations[0].entries
        together: Entries = {}
        for generation in generations:
            for keys, values in chunks(generation.entries):
                self.compose(together, zip(keys, values, strict=True))
        return together

    def compose(self, entries: Entries, newer: Iterable[tuple[Any, Any]]) -> None:
        """Bring newer changes into changes."""
        entries.update(newer)

    def settle(self, changes: Iterable[tuple[Any, Any]]) -> None:
        """Bring changes into `settled`."""
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
            changes = islice(first.merging, size)  # no list: its tuples would set off the garbage collector
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
        """Many aborted checkpoints in a row would make reads slow: their generations become one."""
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

    Two lists and not one of pairs: millions of new tuples would set off the garbage collector again and again.
    """
    keys, values = iter(entries), iter(entries.values())
    while portion := list(islice(keys, CHUNK)):
        yield portion, list(islice(values, CHUNK))


class ExpiringTable(HeapTable):
    """The same with a time to live: a cell is the time of the last write and the kept value."""

    def __init__(self, clock: TtlClock) -> None:
        super().__init__()
        self.clock = clock
        self._queue = ExpiryQueue(clock)
        self._writes = 0
        self.expect = self._queue.add  # type: ignore[method-assign]

    def put(self, key: Any, cell: Any) -> None:
        """Change a cell; it is due one day, and so may be others by now."""
        self.changed[key] = cell
        self._wrote(key, cell[0])

    def sweep(self) -> None:
        """Remove what has expired, a bounded part; at each snapshot."""
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
        """Remove an item that is due, unless it was written again."""
        cell = self.find(item)
        if cell is not REMOVED and self.clock.is_expired(cell[0], now):
            self.remove(item)
