"""State that a checkpoint has and the program does not declare any more is never forgotten in silence."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tidegate import ValueState
from tidegate.api.state import OperatorListState
from tidegate.core.clock import ManualClock
from tidegate.core.errors import StateCompatibilityError
from tidegate.core.options import Options
from tidegate.records.types import record_type_of
from tidegate.state.operator_states import OperatorStates, Restored, StatesContext
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.testing.subtasks import subtask_info

KEY = record_type_of(str)


def states(tmp_path: Any, restored: Restored | None = None, **options: Any) -> OperatorStates:
    made = Options().with_keywords(checkpoint_interval="1 s", **options)
    context = StatesContext(
        subtask=subtask_info("spend", operator_id="op"),
        clock=ManualClock(),
        options=made,
        local_directory=lambda: str(tmp_path / "local"),
    )
    return OperatorStates(context, restored)


def stored(tmp_path: Any, **options: Any) -> Restored:
    (tmp_path / "local").mkdir(exist_ok=True)
    first = states(tmp_path, **options)
    backend = first.keyed(KEY)
    total = backend.state(ValueState(int, name="total"))
    backend.current_key = "ann"
    total.update(3)  # type: ignore[attr-defined]
    seen = first.operator_state(OperatorListState(int, name="seen"))
    seen.add(1)  # type: ignore[attr-defined]
    first.put_entries("splits", [b"1"])
    storage = FilesystemStorage(str(tmp_path / "checkpoints"), "job")
    storage.prepare()
    snapshot = first.snapshot(1)(storage.writer(1, 0, "op", 0))
    first.close()
    assert snapshot.keyed is not None
    return Restored((snapshot.keyed,), snapshot.states, storage)


def ask(made: OperatorStates, keyed: str, listed: str) -> None:
    made.entries("splits")
    made.keyed(KEY).state(ValueState(int, name=keyed))
    made.operator_state(OperatorListState(int, name=listed))


@pytest.mark.parametrize("state_backend", ["heap"])
def test_what_is_asked_for_is_fine(tmp_path, state_backend):
    made = states(tmp_path, stored(tmp_path, state_backend=state_backend), state_backend=state_backend)
    ask(made, "total", "seen")
    made.check_claimed()
    made.close()


@pytest.mark.parametrize(("wrote", "reads"), [("heap", "rocksdb"), ("rocksdb", "heap")])
def test_files_of_another_backend_are_refused_with_what_to_do(tmp_path, wrote, reads):
    made = states(tmp_path, stored(tmp_path, state_backend=wrote), state_backend=reads)
    with pytest.raises(
        StateCompatibilityError,
        match=rf"'spend'.*written with state.backend={wrote}, but the job uses {reads}. Set state.backend={wrote}",
    ):
        made.keyed(KEY)
    made.close()


@pytest.mark.parametrize(
    ("keyed", "listed", "lost"), [("sum_", "seen", "'total'"), ("total", "known", "'seen'")]
)
def test_a_renamed_state_is_refused_with_the_name_that_it_had(tmp_path, keyed, listed, lost):
    made = states(tmp_path, stored(tmp_path))
    ask(made, keyed, listed)
    with pytest.raises(
        StateCompatibilityError, match=rf"operator 'spend' has state {lost} in the checkpoint, but"
    ):
        made.check_claimed()
    made.close()


def test_it_can_be_left_behind_on_purpose(tmp_path, caplog):
    made = states(tmp_path, stored(tmp_path), allow_non_restored_state=True)
    ask(made, "sum_", "seen")
    with caplog.at_level(logging.WARNING):
        made.check_claimed()
    assert (
        "'total' in the checkpoint, but the program does not declare it any more; it is left behind"
        in caplog.text
    )
    made.close()
