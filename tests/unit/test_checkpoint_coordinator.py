"""When checkpoints are triggered, complete, aborted and discarded; what the slots hear and what the user can read.

Long because it is the whole table of one state machine.
"""

from __future__ import annotations

import pytest

from tests.unit.checkpoint_kit import CELLS, CoordinatorKit, completed_checkpoint, shared, snapshot_of
from tidegate.core.ids import SubtaskId, VertexId
from tidegate.core.states import JobStatus
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.events import ReportTrouble, SendToSlot, Tick
from tidegate.protocol import messages as m

A0, A1, B0, B1 = sorted(CELLS)


# ---- triggers ----


def test_checkpoints_are_triggered_at_a_fixed_interval_once_all_tasks_run():
    kit = CoordinatorKit().begin(start=False)
    assert kit.pass_ms(5_000) == []
    kit.do(ce.TasksStarted())
    times = []
    for _ in range(3):
        kit.complete(kit.trigger())
        times.append(kit.now_ms)
    assert times == [7_000, 8_000, 9_000]


def test_without_an_interval_there_are_no_checkpoints_not_even_a_final_one():
    kit = CoordinatorKit(checkpoint_interval="off").begin()
    kit.drain()
    kit.pass_ms(60_000)
    assert kit.actions == []


def test_enumerators_are_asked_first_and_the_trigger_goes_to_every_slot_with_id_and_wall_clock():
    kit = CoordinatorKit().begin()
    id = kit.trigger()
    assert kit.actions == [ce.SnapshotEnumerators(1)]
    timestamp_ms = 1_700_000_000_000 + kit.now_ms
    assert kit.enumerators_answer(id) == [
        SendToSlot(0, m.TriggerCheckpoint(1, timestamp_ms)),
        SendToSlot(1, m.TriggerCheckpoint(1, timestamp_ms)),
    ]


def test_the_minimum_pause_counts_from_the_end_of_a_checkpoint_whether_it_was_complete_or_failed():
    kit = CoordinatorKit(checkpoint_min_pause="3 s").begin()
    kit.trigger()
    kit.pass_ms(500)
    kit.complete(1)
    ended_ms = kit.now_ms
    assert kit.trigger() == 2
    assert kit.now_ms - ended_ms == 3_000
    kit.do(ce.EnumeratorSnapshotFailed(2, "broker away"))
    ended_ms = kit.now_ms
    kit.trigger()
    assert kit.now_ms - ended_ms == 3_000


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_than_the_configured_number_are_under_way(limit):
    kit = CoordinatorKit(checkpoint_max_concurrent=limit).begin()
    kit.pass_ms(10_000)
    assert kit.coordinator.pending_ids == tuple(range(1, limit + 1))
    kit.complete(1)
    assert kit.triggered()[-1] == limit + 1, "a place is free and one is overdue"


def test_after_a_delay_the_interval_is_kept_and_nothing_is_caught_up():
    kit = CoordinatorKit().begin()
    kit.trigger()
    kit.pass_ms(7_500)
    kit.complete(1)
    assert kit.triggered() == [1, 2]
    kit.complete(2)
    kit.pass_ms(900)
    assert kit.triggered() == [1, 2]
    kit.pass_ms(100)
    assert kit.triggered() == [1, 2, 3]


def test_a_driver_can_sleep_until_the_next_deadline():
    kit = CoordinatorKit(checkpoint_timeout="5 s").begin()
    assert kit.coordinator.next_deadline_ms() == kit.now_ms + 1_000
    kit.trigger()
    assert kit.coordinator.next_deadline_ms() == kit.now_ms + 5_000
    kit.complete(1)
    assert kit.coordinator.next_deadline_ms() == kit.now_ms + 1_000


# ---- completion ----


def test_four_subtasks_are_four_cells_and_only_the_last_one_makes_the_manifest():
    kit = CoordinatorKit().begin()
    kit.enumerators_answer(kit.trigger())
    for id in (B1, A0, B0):
        assert kit.found(ce.WriteManifest, kit.ack(1, id)) == []
    [write] = kit.found(ce.WriteManifest, kit.ack(1, A1))
    checkpoint = write.checkpoint
    assert checkpoint.checkpoint_id == 1
    assert [(s.vertex, s.subtask) for s in checkpoint.subtasks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert checkpoint.enumerators == {"op0": b'{"next":3}'}
    assert checkpoint.triggered_ms == 1_700_000_000_000 + kit.now_ms
    assert kit.sent(m.NotifyCheckpointComplete) == []
    assert kit.retained_ids() == []


def test_only_a_written_manifest_completes_a_checkpoint_and_then_all_slots_hear_it():
    kit = CoordinatorKit().begin()
    kit.enumerators_answer(kit.trigger())
    kit.ack_all(1)
    kit.pass_ms(500)
    assert kit.status(1) == "pending"
    actions = kit.manifest(1)
    assert kit.sent(m.NotifyCheckpointComplete, actions) == [(0, 1), (1, 1)]
    assert kit.retained_ids() == [1]
    assert kit.completed.retained[0].path == "chk-1/_metadata"
    assert kit.status(1) == "completed"


def test_an_acknowledgement_may_come_before_that_of_a_task_further_up():
    kit = CoordinatorKit().begin()
    kit.enumerators_answer(kit.trigger())
    for id in (B0, B1, A1, A0):
        kit.ack(1, id)
    kit.manifest(1)
    assert kit.retained_ids() == [1]


def test_attachments_are_stored_before_the_manifest_and_only_those_that_count():
    kit = CoordinatorKit().begin()
    kit.enumerators_answer(kit.trigger())

    def acknowledge(id: SubtaskId, checkpoint_id: int = 1) -> list[ce.CheckpointAction]:
        snapshot = m.encode_snapshot(snapshot_of(id))
        files = {f"chk-1/a0-{id.index}": b"bytes"}
        return kit.say(
            CELLS[id],
            m.AcknowledgeCheckpoint(checkpoint_id, id.vertex, id.index, snapshot, attachments=files),
        )

    assert acknowledge(A0) == [ce.StoreAttachments(1, {"chk-1/a0-0": b"bytes"})]
    assert acknowledge(A0) == []
    assert acknowledge(A1, checkpoint_id=7) == []
    acknowledge(A1)
    acknowledge(B0)
    assert [type(a) for a in acknowledge(B1)] == [ce.StoreAttachments, ce.WriteManifest]


# ---- what changes nothing ----


def test_late_repeated_and_foreign_messages_change_nothing():
    kit = CoordinatorKit(checkpoint_tolerable_failures=0).begin()
    kit.trigger()
    assert kit.ack(1, A0) == [], "it was not triggered yet"
    kit.enumerators_answer(1)
    kit.ack(1, A0)
    said = [
        kit.ack(1, A0),
        kit.ack(1, A1, slot=0),
        kit.ack(1, A1, slot=9),
        kit.ack(99, A1),
        kit.say(0, m.AcknowledgeCheckpoint(1, VertexId(5), 0, b"")),
        kit.say(0, m.DeclineCheckpoint(1, A0.vertex, A0.index, "it has acknowledged already")),
        kit.say(0, m.DeclineCheckpoint(1, A1.vertex, A1.index, "not its slot")),
        kit.say(1, m.DeclineCheckpoint(7, A1.vertex, A1.index, "no such checkpoint")),
        kit.enumerators_answer(1),
        kit.manifest(1),
        kit.do(
            ce.ManifestFailed(1, "it is not being written"), ce.EnumeratorSnapshotFailed(1, "it has answered")
        ),
    ]
    assert said == [[]] * len(said)
    assert len(kit.coordinator.overview().history[0].subtasks) == 1
    for id in (A1, B0, B1):
        kit.ack(1, id)
    kit.manifest(1)
    assert kit.retained_ids() == [1]
    assert kit.manifest(1) == kit.ack(1, B1) == kit.do(ce.ManifestFailed(1, "late")) == []
    assert kit.retained_ids() == [1]


def test_an_acknowledgement_after_the_abort_changes_nothing():
    kit = CoordinatorKit().begin()
    kit.enumerators_answer(kit.trigger())
    kit.say(1, m.DeclineCheckpoint(1, B1.vertex, B1.index, "OSError: no space left"))
    assert kit.ack_all(1) == []
    assert kit.status(1) == "failed"
    assert kit.retained_ids() == []


def test_what_slots_of_an_ended_attempt_say_changes_nothing():
    kit = CoordinatorKit().begin()
    kit.enumerators_answer(kit.trigger())
    kit.do(ce.TasksStopped("slot 1 was lost"))
    assert kit.ack_all(1) == []
    assert kit.drain() == []
    kit.begin()
    assert kit.ack_all(1) == []
    assert kit.triggered() == [1]


# ---- failures ----


def test_a_declined_checkpoint_fails_as_a_whole_and_everything_written_for_it_goes():
    kit = CoordinatorKit().begin()
    kit.enumerators_answer(kit.trigger())
    kit.ack(1, A0)
    kit.ack(1, B0)
    actions = kit.say(
        1, m.DeclineCheckpoint(1, B1.vertex, B1.index, "OSError: no space left on /data, 4096 bytes")
    )
    assert kit.sent(m.NotifyCheckpointAborted, actions) == [(0, 1), (1, 1)]
    assert kit.storage.files == set()
    assert kit.storage.discarded == [1]
    [report] = kit.found(ReportTrouble, actions)
    assert report.text == (
        "checkpoint 1 failed (1 in a row, 10 are tolerated), the job goes on: "
        "'count' (subtask 1) declined it: OSError: no space left on /data, 4096 bytes"
    )
    assert kit.coordinator.overview().history[0].reason.endswith("no space left on /data, 4096 bytes")


def test_a_checkpoint_that_takes_too_long_fails_and_the_missing_subtasks_are_named():
    kit = CoordinatorKit(checkpoint_timeout="2 s").begin()
    kit.enumerators_answer(kit.trigger())
    for id in (A0, A1, B0):
        kit.ack(1, id)
    kit.pass_ms(1_900)
    assert kit.status(1) == "pending"
    kit.pass_ms(100)
    assert kit.status(1) == "failed"
    assert kit.storage.files == set(), "no orphans"
    [report] = kit.found(ReportTrouble)
    assert (
        "not complete within 2 s (checkpoint.timeout): 1 of 4 subtasks are missing: 'count' (subtask 1)"
        in report.text
    )


def test_silent_enumerators_and_a_hanging_storage_are_found_by_the_timeout_too():
    kit = CoordinatorKit(checkpoint_timeout="2 s").begin()
    kit.trigger()
    kit.pass_ms(2_000)
    assert "the enumerators of the sources have not answered" in kit.found(ReportTrouble)[0].text
    assert kit.sent(m.NotifyCheckpointAborted) == [], "no slot has heard of it"
    second = kit.coordinator.pending_ids[-1]
    kit.enumerators_answer(second)
    kit.ack_all(second)
    kit.pass_ms(2_000)
    assert "its manifest is still being written" in kit.found(ReportTrouble)[1].text


def test_a_manifest_that_appears_after_the_abort_is_deleted_again():
    kit = CoordinatorKit(checkpoint_timeout="2 s").begin()
    kit.enumerators_answer(kit.trigger())
    kit.ack_all(1)
    kit.pass_ms(2_000)
    assert kit.status(1) == "failed"
    kit.storage.manifests.add(1)
    assert [type(a) for a in kit.manifest(1)] == [ce.DiscardCheckpoint]
    assert kit.storage.manifests == set()
    assert kit.manifest(1) == []
    assert kit.retained_ids() == []


def test_a_manifest_that_cannot_be_written_fails_the_checkpoint():
    kit = CoordinatorKit().begin()
    kit.enumerators_answer(kit.trigger())
    kit.ack_all(1)
    actions = kit.do(ce.ManifestFailed(1, "s3://bucket: 503"))
    assert "its manifest could not be written: s3://bucket: 503" in kit.found(ReportTrouble, actions)[0].text
    assert kit.storage.files == set()
    assert kit.manifest(1) == []


def fail_next(kit: CoordinatorKit) -> list[ce.CheckpointAction]:
    id = kit.trigger()
    kit.enumerators_answer(id)
    return kit.say(0, m.DeclineCheckpoint(id, A0.vertex, A0.index, "disk full"))


def test_n_failures_in_a_row_are_tolerated_and_one_more_fails_the_attempt():
    kit = CoordinatorKit(checkpoint_tolerable_failures=2).begin()
    for _ in range(2):
        assert kit.found(ce.FailAttempt, fail_next(kit)) == []
    [failed] = kit.found(ce.FailAttempt, fail_next(kit))
    assert failed.reason == (
        "3 checkpoints in a row have failed, and checkpoint.tolerable_failures is 2. "
        "The last one, checkpoint 3: 'source' (subtask 0) declined it: disk full"
    )
    assert kit.pass_ms(10_000) == [], "an attempt that is given up takes no checkpoints"


def test_a_completed_checkpoint_ends_the_row_of_failures():
    kit = CoordinatorKit(checkpoint_tolerable_failures=1).begin()
    for _ in range(3):
        fail_next(kit)
        kit.complete(kit.trigger())
    assert kit.found(ce.FailAttempt) == []
    fail_next(kit)
    assert kit.found(ce.FailAttempt) == []
    fail_next(kit)
    assert len(kit.found(ce.FailAttempt)) == 1


def test_a_new_attempt_begins_a_new_row_of_failures():
    kit = CoordinatorKit(checkpoint_tolerable_failures=1).begin()
    fail_next(kit)
    kit.do(ce.TasksStopped("lost"))
    kit.begin()
    assert kit.found(ce.FailAttempt, fail_next(kit)) == []


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\x93nonsense", "acknowledged it with something else: not a snapshot of a subtask"),
        (m.encode_snapshot(snapshot_of(B1)), "acknowledged it with the snapshot of 'count' (subtask 1)"),
    ],
)
def test_an_acknowledgement_with_the_wrong_content_fails_the_checkpoint_by_name(raw, said):
    kit = CoordinatorKit().begin()
    kit.enumerators_answer(kit.trigger())
    kit.say(0, m.AcknowledgeCheckpoint(1, A0.vertex, A0.index, raw))
    assert f"'source' (subtask 0) {said}" in kit.found(ReportTrouble)[0].text
    assert kit.status(1) == "failed"


# ---- several at once, subsumption, retention ----


def test_a_newer_completed_checkpoint_aborts_older_pending_ones_without_counting_them_as_failures():
    kit = CoordinatorKit(checkpoint_max_concurrent=3, checkpoint_tolerable_failures=0).begin()
    for _ in range(3):
        kit.enumerators_answer(kit.trigger())
    kit.ack(1, A0)
    kit.ack_all(2)
    actions = kit.manifest(2)
    assert kit.sent(m.NotifyCheckpointComplete, actions) == [(0, 2), (1, 2)]
    assert kit.sent(m.NotifyCheckpointAborted, actions) == [(0, 1), (1, 1)]
    assert kit.storage.discarded == [1]
    assert kit.found(ce.FailAttempt) == []
    assert kit.coordinator.pending_ids == (3,)
    assert kit.retained_ids() == [2]
    kit.ack_all(3)
    kit.manifest(3)
    assert kit.retained_ids() == [3]


@pytest.mark.parametrize("retained", [1, 2, 3])
def test_the_last_n_checkpoints_are_retained_and_older_ones_deleted_with_files_nobody_needs(retained):
    kit = CoordinatorKit(checkpoint_retained=retained).begin()
    for id in range(1, 7):
        assert kit.trigger() == id
        kit.complete(id)
    assert kit.retained_ids() == list(range(7 - retained, 7))
    assert kit.storage.discarded == list(range(1, 7 - retained))
    assert kit.storage.files == {shared(id, cell) for id in kit.retained_ids() for cell in CELLS}
    assert kit.storage.manifests == set(kit.retained_ids())


def test_a_shared_file_stays_as_long_as_a_retained_checkpoint_refers_to_it_and_goes_with_the_last():
    kit = CoordinatorKit().begin()
    kit.complete(kit.trigger())
    base = shared(1, A0)
    for id in (2, 3, 4):
        kit.trigger()
        kit.enumerators_answer(id)
        kit.ack(id, A0, base)
        for cell in (A1, B0, B1):
            kit.ack(id, cell)
        kit.manifest(id)
        assert base in kit.storage.files
    kit.complete(kit.trigger())
    assert base not in kit.storage.files
    assert len(kit.storage.files) == 4


def test_a_checkpoint_that_others_under_way_may_build_on_is_deleted_only_when_they_have_ended():
    kit = CoordinatorKit(checkpoint_max_concurrent=2).begin()
    kit.complete(kit.trigger())
    kit.enumerators_answer(kit.trigger())
    kit.enumerators_answer(kit.trigger())
    kit.ack_all(2)
    kit.manifest(2)
    assert 1 not in kit.storage.discarded, "checkpoint 3 was triggered when 1 was the newest complete one"
    kit.ack_all(3, shared(1, A0))
    kit.manifest(3)
    assert shared(1, A0) in kit.storage.files
    assert kit.storage.discarded == [1, 2]


def test_what_a_checkpoint_under_way_has_acknowledged_stays_though_its_owner_goes():
    kit = CoordinatorKit(checkpoint_max_concurrent=2).begin()
    kit.complete(kit.trigger())
    kit.enumerators_answer(kit.trigger())
    kit.enumerators_answer(kit.trigger())
    kit.ack_all(2)
    kit.manifest(2)
    kit.enumerators_answer(kit.trigger())
    assert kit.coordinator.pending_ids == (3, 4)
    kit.ack(4, A0, shared(1, A0))
    kit.say(0, m.DeclineCheckpoint(3, A0.vertex, A0.index, "disk full"))
    assert kit.storage.discarded == [3, 1]
    assert shared(1, A0) in kit.storage.files
    assert shared(1, A1) not in kit.storage.files
    for id in (A1, B0, B1):
        kit.ack(4, id)
    kit.manifest(4)
    assert kit.completed.retained[-1].files <= kit.storage.files


def test_a_subtask_that_builds_on_a_deleted_checkpoint_ends_the_new_one_which_is_not_counted_as_a_failure():
    kit = CoordinatorKit(checkpoint_tolerable_failures=0).begin()
    kit.complete(kit.trigger())
    kit.complete(kit.trigger())
    assert kit.storage.discarded == [1]
    kit.enumerators_answer(kit.trigger())
    kit.ack(3, A0, shared(1, A0))
    assert kit.status(3) == "failed"
    failed = kit.coordinator.overview().latest_failed
    assert failed is not None
    assert "built on an older checkpoint that was deleted meanwhile (1 file," in failed.reason
    assert kit.retained_ids() == [2]
    assert kit.coordinator.failures_in_a_row == 0
    assert kit.found(ce.FailAttempt) == []
    kit.complete(kit.trigger())
    assert kit.retained_ids() == [4]


def test_a_subtask_that_goes_on_building_on_a_deleted_checkpoint_fails_the_attempt():
    """Its slot has lost a message; without a limit no checkpoint would ever be complete again."""
    kit = CoordinatorKit(checkpoint_tolerable_failures=0).begin()
    kit.complete(kit.trigger())
    kit.complete(kit.trigger())
    for checkpoint_id in (3, 4):
        assert kit.found(ce.FailAttempt) == []
        kit.enumerators_answer(kit.trigger())
        kit.ack(checkpoint_id, A0, shared(1, A0))
    assert len(kit.found(ce.FailAttempt)) == 1


def test_files_that_late_writers_leave_behind_are_swept_after_an_abort():
    kit = CoordinatorKit().begin()
    for _ in range(2):
        kit.complete(kit.trigger())
    assert len(kit.found(ce.Sweep)) == 2, "what earlier attempts left"
    kit.complete(kit.trigger())
    assert len(kit.found(ce.Sweep)) == 2, "no listing without need"
    fail_next(kit)
    kit.storage.files.add("shared/c4-a0-op-0-late")
    kit.complete(kit.trigger())
    assert "shared/c4-a0-op-0-late" not in kit.storage.files


# ---- attempts and the end ----


def test_the_end_of_an_attempt_aborts_and_discards_all_that_is_pending_and_ids_go_on():
    kit = CoordinatorKit(checkpoint_max_concurrent=2).begin()
    kit.enumerators_answer(kit.trigger())
    kit.trigger()
    kit.ack(1, A0)
    actions = kit.do(ce.TasksStopped("slot 0 was lost"))
    assert kit.storage.discarded == [1, 2]
    assert kit.found(SendToSlot, actions) == [], "its slots are being stopped"
    assert kit.coordinator.pending_ids == ()
    assert kit.pass_ms(5_000) == []
    kit.begin()
    for id in (3, 4):
        assert kit.trigger() == id
        kit.complete(id)
    assert [(s.checkpoint_id, s.attempt, s.status) for s in kit.coordinator.overview().history] == [
        (1, 0, "failed"),
        (2, 0, "failed"),
        (3, 1, "completed"),
        (4, 1, "completed"),
    ]


def test_ids_begin_above_everything_that_an_earlier_run_left():
    found = (
        completed_checkpoint(41, "shared/c41-a0-op-0-x"),
        completed_checkpoint(42, "shared/c42-a0-op-0-x"),
    )
    assert CoordinatorKit(found=found).begin().trigger() == 43
    assert CoordinatorKit(found=found, first_id=50).begin().trigger() == 50


def test_two_jobs_have_two_coordinators_with_independent_ids():
    one, two = CoordinatorKit().begin(), CoordinatorKit().begin()
    for _ in range(3):
        one.complete(one.trigger())
    assert two.trigger() == 1
    assert one.trigger() == 4


@pytest.mark.parametrize(
    ("status", "options", "kept"),
    [
        (JobStatus.FINISHED, {}, False),
        (JobStatus.FINISHED, {"checkpoint_keep_on_finish": True}, True),
        (JobStatus.CANCELED, {}, True),
        (JobStatus.CANCELED, {"checkpoint_keep_on_cancel": False}, False),
        (JobStatus.FAILED, {}, True),
        (JobStatus.FAILED, {"checkpoint_keep_on_cancel": False}, True),
    ],
)
def test_what_remains_of_a_job_that_has_ended(status, options, kept):
    kit = CoordinatorKit(checkpoint_retained=2, **options).begin()
    for _ in range(3):
        kit.complete(kit.trigger())
    kit.enumerators_answer(kit.trigger())
    kit.ack(4, A0)
    kit.do(ce.TasksStopped("over"))
    kit.storage.files.add("shared/c4-a0-op-0-late")
    kit.do(ce.JobEnded(status))
    assert kit.retained_ids() == ([2, 3] if kept else [])
    assert kit.storage.manifests == ({2, 3} if kept else set())
    assert not any("c4-" in path for path in kit.storage.files)
    if not kept:
        assert kit.storage.files == set()


def test_a_checkpoint_of_somebody_else_is_never_deleted():
    external = completed_checkpoint(7, "/elsewhere/shared/c7-base", external=True)
    kit = CoordinatorKit(found=(external,)).begin()
    kit.storage.files.add("/elsewhere/shared/c7-base")
    kit.complete(kit.trigger(), "/elsewhere/shared/c7-base")
    kit.complete(kit.trigger())
    kit.do(ce.TasksStopped("over"), ce.JobEnded(JobStatus.FINISHED))
    assert 7 not in kit.storage.discarded
    assert all("/elsewhere/shared/c7-base" not in a.delete for a in kit.found(ce.DiscardCheckpoint))


# ---- the end of bounded input ----


def test_the_final_checkpoint_is_triggered_at_once_when_the_last_task_has_drained():
    kit = CoordinatorKit(checkpoint_interval="10 min", checkpoint_min_pause="10 min").begin()
    kit.pass_ms(1_000)
    assert kit.drain(A0, A1, B0) == []
    assert kit.drain(A0) == []
    assert kit.drain(B1) == [ce.SnapshotEnumerators(1)]
    kit.enumerators_answer(1)
    kit.ack_all(1)
    actions = kit.manifest(1)
    notices = [s.message for s in kit.found(SendToSlot, actions)]
    assert notices == [m.NotifyCheckpointComplete(1, True)] * 2
    assert kit.completed.retained[0].final
    assert kit.triggered(kit.pass_ms(1_200_000)) == [], "it was the last one"


def test_the_final_checkpoint_waits_neither_for_the_pause_nor_for_one_that_is_under_way():
    kit = CoordinatorKit(checkpoint_min_pause="1 h").begin()
    kit.complete(kit.trigger())
    kit.drain()
    assert kit.triggered() == [1, 2]
    kit = CoordinatorKit().begin()
    kit.enumerators_answer(kit.trigger())
    kit.drain()
    assert kit.coordinator.pending_ids == (1, 2)
    kit.complete(2)
    assert kit.status(1) == "failed"
    assert kit.retained_ids() == [2]


def test_a_checkpoint_that_was_triggered_before_the_last_task_had_drained_is_not_the_final_one():
    kit = CoordinatorKit().begin()
    kit.drain(A0, A1, B0)
    kit.enumerators_answer(kit.trigger())
    kit.drain(B1)
    kit.ack_all(1)
    assert all(not s.message.final for s in kit.found(SendToSlot, kit.manifest(1)))
    kit.complete(2)
    assert kit.completed.retained[-1].final


def test_a_failed_final_checkpoint_is_tried_again_after_the_interval():
    kit = CoordinatorKit(checkpoint_interval="5 s").begin()
    kit.drain()
    kit.enumerators_answer(1)
    kit.say(0, m.DeclineCheckpoint(1, A0.vertex, A0.index, "disk full"))
    assert kit.pass_ms(4_900) == []
    assert kit.pass_ms(100) == [ce.SnapshotEnumerators(2)]
    kit.complete(2)
    assert kit.completed.retained[-1].final


def test_tasks_that_drain_before_all_others_have_started_are_not_forgotten():
    kit = CoordinatorKit().begin(start=False)
    kit.drain()
    assert kit.actions == []
    kit.now_ms += 50
    assert kit.do(ce.TasksStarted(), Tick()) == [ce.SnapshotEnumerators(1)]


# ---- what the user can read ----


def test_every_number_of_a_checkpoint_is_kept_per_subtask():
    kit = CoordinatorKit().begin()
    kit.enumerators_answer(kit.trigger())
    timestamp_ms = 1_700_000_000_000 + kit.now_ms
    kit.pass_ms(30)
    kit.ack(1, B0, finished=True)
    [pending] = kit.coordinator.overview().history
    assert (pending.status, len(pending.subtasks), pending.subtasks_total) == ("pending", 1, 4)
    assert pending.end_to_end_ms == 30
    kit.pass_ms(20)
    for id in (A0, A1, B1):
        kit.ack(1, id)
    kit.pass_ms(10)
    kit.manifest(1)
    [done] = kit.coordinator.overview().history
    assert (done.status, done.triggered_ms, done.end_to_end_ms) == ("completed", timestamp_ms, 60)
    first = done.subtasks[0]
    assert (first.vertex, first.name, first.subtask, first.end_to_end_ms) == (1, "count", 0, 30)
    assert first.finished
    assert (first.metrics.alignment_ms, first.metrics.sync_ms, first.metrics.async_ms) == (1.5, 2.0, 3.0)
    assert (done.bytes_full, done.bytes_new, done.bytes_in_flight) == (40, 40, 16)
    assert (done.alignment_ms, done.sync_ms, done.async_ms) == (1.5, 2.0, 3.0)
    assert done.path == "chk-1/_metadata"


def test_the_history_is_bounded_and_the_counts_are_not():
    kit = CoordinatorKit(checkpoint_history=3, checkpoint_tolerable_failures=100).begin()
    for _ in range(5):
        kit.complete(kit.trigger())
        fail_next(kit)
    overview = kit.coordinator.overview()
    assert [s.checkpoint_id for s in overview.history] == [8, 9, 10]
    assert (overview.triggered, overview.completed, overview.failed) == (10, 5, 5)
    assert overview.latest_completed is not None
    assert overview.latest_completed.checkpoint_id == 9
    assert overview.latest_failed is not None
    assert "disk full" in overview.latest_failed.reason


def test_a_restored_checkpoint_is_told():
    kit = CoordinatorKit().begin()
    assert (kit.coordinator.overview().restored, kit.coordinator.overview().restored_checkpoint) == (0, None)
    kit.complete(kit.trigger())
    kit.do(ce.TasksStopped("lost"), ce.AttemptBegan(1, CELLS, {}, restored_checkpoint=1))
    assert (kit.coordinator.overview().restored, kit.coordinator.overview().restored_checkpoint) == (1, 1)
