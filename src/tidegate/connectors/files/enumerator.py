"""Finds files and assigns their splits; when watching, lists again at an interval and remembers the files seen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tidegate.api.source import EnumeratorContext, SourceSplit, SplitEnumerator
from tidegate.connectors.files.paths import FoundFile, Location, list_files

_LOG = logging.getLogger(__name__)
_STATE_VERSION = 1


class FileEnumerator(SplitEnumerator):
    """Assigns one split per request, files in the order of their paths and then of discovery."""

    def __init__(
        self,
        context: EnumeratorContext,
        location: Location,
        make_splits: Callable[[FoundFile], Iterable[SourceSplit]],
        watch_interval_ms: int | None,
        split_type: type[SourceSplit],
        state: Any = None,
    ) -> None:
        self._context = context
        self._location = location
        self._make_splits = make_splits
        self.poll_interval_ms = watch_interval_ms
        self._pending: list[SourceSplit] = []
        self._seen: dict[str, tuple[int, int]] = {}
        self._waiting: list[int] = []
        self._restored = state is not None
        if state is not None:
            if state["version"] != _STATE_VERSION:
                raise ValueError(f"enumerator state of version {state['version']}, expected {_STATE_VERSION}")
            self._pending = [msgspec.convert(s, split_type) for s in state["pending"]]
            self._seen = {path: (size, mtime) for path, (size, mtime) in state["seen"].items()}

    def start(self) -> None:
        if not self._restored or self.poll_interval_ms is not None:
            self.poll()

    def poll(self) -> None:
        watching = self.poll_interval_ms is not None
        for file in list_files(self._location, may_be_empty=watching):
            now = (file.size, file.mtime_ns)
            before = self._seen.get(file.path)
            if before is None:
                if watching and file.size == 0:
                    continue  # perhaps just created: its contents may follow
                self._seen[file.path] = now
                self._pending += self._make_splits(file)
            elif before != now:
                _LOG.warning(
                    "%s changed after it was read: the change is ignored. Write new data to new files.",
                    self._location.show(file.path),
                )
                self._seen[file.path] = now
        self._serve()

    def handle_split_request(self, subtask: int) -> None:
        if subtask not in self._waiting:
            self._waiting.append(subtask)
        self._serve()

    def snapshot(self) -> Any:
        return {
            "version": _STATE_VERSION,
            "pending": [msgspec.to_builtins(s) for s in self._pending],
            "seen": {path: list(stamp) for path, stamp in self._seen.items()},
        }

    def _serve(self) -> None:
        while self._waiting and self._pending:
            self._context.assign([self._pending.pop(0)], self._waiting.pop(0))
        if self.poll_interval_ms is None:
            for subtask in self._waiting:
                self._context.no_more_splits(subtask)
            self._waiting.clear()
