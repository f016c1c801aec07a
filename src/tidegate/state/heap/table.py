"""The generations of one row state: what changed since the last snapshot, what is frozen, what is settled.

    reads:   changed → frozen, newest first → settled          writes: changed
    snapshot(m): changed becomes the newest frozen generation (no copy), a new dict takes its place
    checkpoint m completed: generations up to m are merged into `settled`, a bounded part at each call

What is not in `changed` is never changed in place: whoever wants another value puts a new object there. The thread that
writes a snapshot reads frozen generations and `settled` between `hold` and `release`; merging waits as long.

A hot loop may use the table itself instead of a live state, for values that need no `adopt`:

    try:
        so_far = table.changed[key]
    except KeyError:
        so_far = table.load(key)        # REMOVED if the key has none; copy it if its type can change
    table.changed[key] = result         # `table.changed` is another dict after each snapshot: fetch it per batch

What lies in `changed` belongs to the loop, which may let a function change it in place; what `load` returns may just be
on its way into a file.

Mailbox thread, except `release`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar, Final

Entries = dict[Any, Any]


class Removed:
    """The type of `REMOVED`."""

    def __repr__(self) -> str:
        return "REMOVED"


REMOVED: Final = Removed()
"""In a table: the key has no value (any more). Not in `settled`, where such keys are simply absent."""

CLEARED: Final = Removed()
"""As a key of a map's changes: entries that are older than these changes are gone."""

CHUNK: Final = 1 << 16
_LEAST_MERGED: Final = 1 << 14  # a few milliseconds
_MOST_ABORTED: Final = 8


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


class HeapTable:
    """One value per key: the table of value, list, reducing and aggregating states."""

    settles_whole: ClassVar[bool] = True
    """Whether a generation can become the settled state as it is."""

    def __init__(self) -> None:
        self.changed: Entries = {}
        self.frozen: list[Generation] = []
        self.settled: Entries = {}
        self.has_removals = False
        """Whether `REMOVED` was put into `changed`: whoever does sets it."""
        self.on_freeze: Callable[[Entries], None] = lambda changed: None
        """Called with the new `changed`, for a live state that keeps a reference to it."""
        self._holders: set[object] = set()

    def load(self, key: Any) -> Any:
        """The value of a key that is not in `changed`, or `REMOVED`."""
        for generation in reversed(self.frozen):
            if key in generation.entries:
                return generation.entries[key]
        return self.settled.get(key, REMOVED)

    def find(self, key: Any) -> Any:
        """The value of a key, or `REMOVED`."""
        changed = self.changed
        return changed[key] if key in changed else self.load(key)

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
