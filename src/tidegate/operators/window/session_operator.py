"""Session windows of built-in aggregates by columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.api.column_cuts import SessionGap
from tidegate.operators.failures import OperatorError, batch_position, blame
from tidegate.operators.window.column_operators import MOST_ROWS, KeepingWindowOperator
from tidegate.operators.window.session_pool import Sessions
from tidegate.operators.window.sessions import SessionState
from tidegate.records.batch import Batch
from tidegate.state.backend import PaneRows


class SessionColumnsOperator(KeepingWindowOperator):
    """Keeps sessions. A pane in checkpoints is the start of a session; its end is the first value."""

    def open(self) -> None:
        self._state: SessionState | None = None
        super().open()
        self._windows.set(len(self.state))

    @property
    def state(self) -> SessionState:
        """The live state; made on first use, which may be to restore it."""
        if self._state is None:
            cut = self.operation.column_cut
            assert isinstance(cut, SessionGap)
            self._state = SessionState(cut.gap_ms, self.aggregates, self.operation.allowed_lateness_ms)
        return self._state

    def process(self, batch: Batch, input_index: int) -> None:
        """Add a batch to the sessions, and emit again those that it changes."""
        state = self.state
        timestamps = self.timestamps(batch)
        keys = self.key_columns(batch)
        with blame(self.name, batch_position(batch)):
            ids = state.index.ids(keys)
        late = state.late(ids, timestamps)
        found = self.without_late(batch, late)
        if found is None:
            return
        if late is not None:
            ids, timestamps = ids[~late], timestamps[~late]
        try:
            self._emit(state.add(ids, timestamps, self.inputs(found)))
        except (OverflowError, ValueError) as e:
            raise OperatorError(self.name, batch_position(batch)) from self.refusal(e)
        self._windows.set(len(state))

    def fire(self, clock_ms: int) -> None:
        self._emit(self.state.advance(clock_ms))
        self.state.forget_keys()
        self._windows.set(len(self.state))

    def _emit(self, found: Sessions | None) -> None:
        if found is None:
            return
        for start in range(0, len(found), MOST_ROWS):
            part = slice(start, start + MOST_ROWS)
            columns = [c[part] for c in found.columns]
            self.emit_windows(
                self.state.index, found.ids[part], found.starts[part], found.ends[part], columns
            )

    # ---- snapshots ----

    def pane_values(self) -> pa.Schema:
        return pa.schema([pa.field("end", pa.int64(), False), *self.aggregates.schema])

    def restore(self, rows: PaneRows) -> None:
        ids = self.state.index.ids(rows.keys)
        end, *values = rows.values
        known = np.ones(len(ids), np.bool_)
        sessions = Sessions(
            ids, rows.panes, end.to_numpy(), self.aggregates.from_arrow(values), ~known, known
        )
        self.state.restore(sessions)

    def recover_clock(self, clock_ms: int) -> None:
        self.state.recover_clock(clock_ms)
        self._windows.set(len(self.state))

    def changed_rows(self) -> PaneRows:
        """The sessions that have changed since the last snapshot."""
        return self._pane_rows(self.state.take_changes())

    def removed_rows(self) -> PaneRows:
        """The sessions that are over, or now begin earlier, since the last snapshot."""
        removed = self.state.take_removed()
        return self.rows_of_keys([keys for keys, _ in removed], [starts for _, starts in removed])

    def all_rows(self) -> PaneRows:
        return self._pane_rows(self.state.everything())

    def _pane_rows(self, sessions: Sessions) -> PaneRows:
        keys = self.keys_of_rows(self.state.index, sessions.ids)
        values = [pa.array(sessions.ends), *self.aggregates.to_arrow(sessions.columns)]
        return PaneRows(keys, sessions.starts, values)
