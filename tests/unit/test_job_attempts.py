"""The sequence of attempts: when a job is restarted and from where, what the user reads, and what zombies cannot do.

Long because it is the whole table of one state machine, with the kit that drives it.
"""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.checkpoint_kit import FakeStorage, completed_checkpoint, snapshot_of
from tests.unit.job_master_kit import address, job_graph
from tidegate.api.restart_strategies import RestartStrategies
from tidegate.core.errors import JobFencedError
from tidegate.core.ids import AttemptNumber, JobId, OperatorId, SlotId, SubtaskId, VertexId
from tidegate.core.options import Options
from tidegate.core.states import JOB_TRANSITIONS, ExecutionState, JobStatus
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.checkpoint import events as ce
from tidegate.jobmanager.checkpoint.completed_checkpoint import CompletedCheckpoint
from tidegate.jobmanager.failover import events as fe
from tidegate.jobmanager.failover.job import Job
from tidegate.protocol import messages as m
from tidegate.snapshot.assignment import Restore, SubtaskRestore, decode_restore
from tidegate.snapshot.handles import StateFile

J = JobStatus
SUBTASKS = [SubtaskId(VertexId(v), i) for v in range(2) for i in range(2)]


def restore_of(checkpoint_id: int) -> Restore:
    subtasks = {id: SubtaskRestore(id.vertex, id.index) for id in SUBTASKS}
    return Restore(checkpoint_id, subtasks, {OperatorId("id-numbers"): msgspec.Raw(b"{}")})


def committing(graph: JobGraph) -> JobGraph:
    """The same, with sinks that commit with checkpoints."""
    vertices = tuple(
        replace(v, operators=tuple(replace(o, commits=o is v.operators[-1]) for o in v.operators))
        for v in graph.vertices
    )
    return replace(graph, vertices=vertices)


class JobKit:
    """A job, its clock, its slots and its storage; a driver in miniature that answers at once unless told otherwise."""

    def __init__(
        self,
        *,
        found: tuple[CompletedCheckpoint, ...] = (),
        commits: bool = False,
        claimed: bool = False,
        **options: object,
    ) -> None:
        given = {"checkpoint_interval": "1 s", "cancel_grace": "1 s", **options}
        self.options = Options().with_keywords(**given).checked()
        graph = committing(job_graph(2)) if commits else job_graph(2)
        self.job = Job(
            JobId("job"),
            graph,
            self.options,
            found=found,
            describe_storage=self.describe,
            claimed=claimed,
        )
        self.fenced = ""
        self.storage = FakeStorage()
        self.now_ms = 1_000
        self.actions: list[fe.JobAction] = []
        self.began: list[fe.BeginAttempt] = []
        self.began_ms: list[int] = []
        self.damaged: set[int] = set()
        self.verifies = True
        self.writes_manifests = True

    @staticmethod
    def describe(files: list[StateFile]) -> bytes:
        return b"storage with %d files" % len(files)

    # ---- the driver ----

    def do(self, *events: fe.JobEvent) -> list[fe.JobAction]:
        new: list[fe.JobAction] = []
        waiting = list(events)
        while waiting:
            actions = self.job.handle(waiting.pop(0), self.now_ms)
            new += actions
            self.actions += actions
            for action in actions:
                waiting += self.perform(action)
        return new

    def perform(self, action: fe.JobAction) -> list[fe.JobEvent]:
        match action:
            case fe.BeginAttempt():
                self.began.append(action)
                self.began_ms.append(self.now_ms)
            case fe.VerifyCheckpoint(checkpoint) if self.verifies:
                id = checkpoint.checkpoint_id
                if id in self.damaged:
                    return [fe.CheckpointDamaged(id, (f"shared/c{id}-x has another checksum.",))]
                return [fe.CheckpointVerified(id, restore_of(id))]
            case fe.CheckClaim():
                return [ev.DriverFenced(self.fenced) if self.fenced else fe.ClaimChecked()]
            case ev.CountSlots():
                return [self.of(ev.SlotsCounted(2))]
            case ev.StartGang():
                return [self.of(ev.GangStarted())]
            case ev.CancelGang():
                return [self.of(ev.GangEnded("cancelled"))]
            case ce.SnapshotEnumerators(id):
                return [ce.EnumeratorsSnapshotted(id, {}, self.now_ms)]
            case ce.WriteManifest(checkpoint):
                self.storage.perform(action)
                if self.writes_manifests:
                    return [ce.ManifestWritten(checkpoint.checkpoint_id, "path")]
            case ce.StoreAttachments() | ce.DiscardCheckpoint() | ce.Sweep():
                self.storage.perform(action)
        return []

    def of(self, event: ev.Event, attempt: int | None = None) -> fe.OfAttempt:
        return fe.OfAttempt(AttemptNumber(self.job.attempt if attempt is None else attempt), event)

    def say(self, slot: int, *messages: m.SlotMessage, attempt: int | None = None) -> list[fe.JobAction]:
        events = (self.of(ev.MessageReceived(SlotId(slot), message), attempt) for message in messages)
        return self.do(*events)

    def pass_ms(self, duration_ms: int, *, beating: bool = True) -> list[fe.JobAction]:
        new: list[fe.JobAction] = []
        for _ in range(duration_ms // 100):
            self.now_ms += 100
            if beating:
                for slot in (0, 1):
                    new += self.say(slot, m.SlotHeartbeat(1))
            new += self.do(ev.Tick())
        return new

    # ---- a job's life ----

    def run(self) -> JobKit:
        """Submit, and let all tasks run."""
        self.do(ev.SubmissionRequested())
        return self.register()

    def register(self) -> JobKit:
        for slot in (0, 1):
            self.say(slot, m.RegisterSlot(address(slot), "executor"))
        for id, state in itertools.product(SUBTASKS, (ExecutionState.INITIALIZING, ExecutionState.RUNNING)):
            execution = self.job.master.graph.find(id.vertex, id.index)
            if execution is not None and execution.machine.can(state):
                self.say(id.index, m.TaskStateChanged(id.vertex, id.index, state))
        assert self.job.status is J.RUNNING
        return self

    def checkpoint(self) -> int:
        """Let the next checkpoint be taken and acknowledged by everybody; returns its id."""
        for _ in range(50):
            for action in self.pass_ms(100):
                if isinstance(action, ce.SnapshotEnumerators):
                    self.acknowledge(action.checkpoint_id)
                    return action.checkpoint_id
        raise AssertionError("no checkpoint was triggered within 5 s")

    def acknowledge(self, id: int, attempt: int | None = None) -> None:
        for subtask in SUBTASKS:
            file = f"shared/c{id}-a{self.job.attempt}-op{subtask.vertex}-{subtask.index}-x"
            self.storage.files.add(file)
            snapshot = m.encode_snapshot(snapshot_of(subtask, file))
            message = m.AcknowledgeCheckpoint(id, subtask.vertex, subtask.index, snapshot)
            self.say(subtask.index, message, attempt=attempt)

    def raise_in_task(
        self, reason: str = "ValueError: bad", position: str = "line 17 of a.jsonl", slot: int = 1
    ) -> None:
        self.say(slot, m.TaskFailed(VertexId(0), slot, "parse", reason, "", position))

    def let_go(self) -> None:
        """All processes of the attempt end."""
        for slot in (0, 1):
            self.do(self.of(ev.SlotDisconnected(SlotId(slot), "eof")))
        self.do(self.of(ev.GangEnded(None)))

    def fail(self, reason: str = "ValueError: bad", position: str = "line 17 of a.jsonl") -> None:
        self.raise_in_task(reason, position)
        self.let_go()

    def restart(self) -> JobKit:
        """Wait for the next attempt and let it run."""
        before = len(self.began)
        for _ in range(1_000):
            if len(self.began) > before:
                return self.register()
            self.pass_ms(100, beating=False)
        raise AssertionError("no attempt began within 100 s")

    def found(self, kind: type) -> list:
        return [a for a in self.actions if isinstance(a, kind)]

    @property
    def end(self) -> fe.EndJob:
        [end] = self.found(fe.EndJob)
        return end

    def reports(self) -> list[str]:
        return [a.text for a in self.found(ev.ReportTrouble)]


# ---- restarts ----


def test_a_failed_attempt_is_followed_by_another_from_the_latest_completed_checkpoint():
    kit = JobKit().run()
    kit.checkpoint()
    kit.checkpoint()
    kit.fail()
    assert kit.job.status is J.RESTARTING
    kit.restart()
    assert [(b.attempt, b.restore and b.restore.checkpoint_id) for b in kit.began] == [(0, None), (1, 2)]
    assert kit.job.status is J.RUNNING
    assert kit.job.restarts == 1
    assert kit.checkpoint() == 3
    assert kit.job.status_history == (
        J.CREATED,
        J.WAITING_FOR_SLOTS,
        J.RUNNING,
        J.FAILING,
        J.RESTARTING,
        J.WAITING_FOR_SLOTS,
        J.RUNNING,
    )


def test_every_slot_gets_what_its_subtasks_restore_and_the_storage_to_find_it_in():
    kit = JobKit().run()
    kit.checkpoint()
    kit.fail()
    kit.restart()
    deploys = [a.message for a in kit.found(ev.SendToSlot) if isinstance(a.message, m.Deploy)]
    first, again = deploys[:2], deploys[2:]
    assert [(d.restore, d.storage) for d in first] == [((), b"storage with 0 files")] * 2
    for slot, deploy in enumerate(again):
        restored = [decode_restore(data) for data in deploy.restore]
        assert [(r.vertex, r.subtask) for r in restored] == [(d.vertex, d.subtask) for d in deploy.subtasks]
        assert {r.subtask for r in restored} == {slot}


def test_without_a_completed_checkpoint_the_next_attempt_begins_from_the_beginning():
    kit = JobKit().run()
    kit.fail()
    kit.restart()
    assert kit.began[1].restore is None
    assert not kit.began[1].continue_sources
    assert "ms from the beginning (restart 1 of an unlimited number)" in kit.reports()[0]


def test_the_seeds_fixed_delay_restarts_three_times_ten_seconds_apart_and_the_fourth_failure_ends_the_job():
    kit = JobKit(restart_strategy=RestartStrategies.fixed_delay(3, "10 s")).run()
    failed_ms = []
    for _ in range(3):
        failed_ms.append(kit.now_ms)
        kit.fail()
        kit.restart()
    assert [began - failed for began, failed in zip(kit.began_ms[1:], failed_ms, strict=True)] == [10_000] * 3
    kit.fail()
    assert kit.end.status is J.FAILED
    assert kit.end.message.endswith(
        "It was not restarted: all 3 restarts of the restart strategy fixed-delay are used up"
    )
    assert len(kit.began) == 4


def test_without_checkpoints_and_without_a_strategy_the_first_failure_ends_the_job_with_its_plain_message():
    kit = JobKit(checkpoint_interval="off").run()
    kit.fail()
    assert kit.end == fe.EndJob(
        J.FAILED,
        "job 'pv' failed: operator 'parse' (subtask 1 of 2) raised ValueError: bad\n  at line 17 of a.jsonl",
    )
    assert kit.job.status_history[-2:] == (J.FAILING, J.FAILED)


def test_with_checkpoints_and_nothing_configured_a_job_restarts_for_ever_and_its_last_error_stays_visible():
    kit = JobKit().run()
    for n in range(1, 30):
        kit.fail(f"ValueError: number {n}")
        assert f"ValueError: number {n}" in kit.job.last_error
        kit.restart()
        overview = kit.job.overview()
        assert (overview.status, overview.restarts, overview.attempt) == (J.RUNNING, n, n)
        assert f"ValueError: number {n}" in overview.last_error
        assert overview.last_error_attempt == n - 1
    assert kit.found(fe.EndJob) == []


def test_a_job_that_waits_for_its_restart_says_so():
    kit = JobKit(restart_strategy=RestartStrategies.fixed_delay(3, "10 s")).run()
    kit.fail()
    assert kit.job.waiting_for == (
        "restarting after attempt 0: job 'pv' failed: operator 'parse' (subtask 1 of 2) raised ValueError: bad"
    )
    [report] = kit.reports()
    assert report.startswith(
        "attempt 0 failed; restarting in 10 s from the beginning (restart 1 of 3). job 'pv' failed"
    )
    kit.restart()
    assert kit.job.waiting_for == ""


def test_missing_slots_at_a_restart_are_waited_for_and_then_a_failure_like_others():
    kit = JobKit(restart_strategy=RestartStrategies.fixed_delay(2, "1 s"), slots_wait_timeout="30 s").run()
    kit.fail()
    kit.pass_ms(1_000, beating=False)
    assert kit.job.status is J.WAITING_FOR_SLOTS
    kit.pass_ms(36_000, beating=False)
    assert kit.job.attempt == 2
    assert "it needs 2 slots but only 0 have registered" in kit.job.last_error


# ---- what the user reads about the cause ----


def test_the_same_error_at_the_same_record_is_told_to_stay():
    kit = JobKit().run()
    kit.fail()
    assert not kit.job.overview().will_come_again, "one failure alone cannot tell"
    assert kit.job.overview().diagnosis.startswith(
        "it was raised by the program's own code without an outside cause"
    )
    kit.restart()
    kit.fail()
    assert kit.job.last_error.endswith(
        "the same error as in attempt 0 at the same record: it will not go away by restarting. "
        "Correct the program, or the record"
    )
    assert kit.job.overview().will_come_again
    kit.restart()
    kit.fail(position="line 99 of a.jsonl")
    assert kit.job.overview().diagnosis == "the same error as in attempt 1, at another record"
    assert not kit.job.overview().will_come_again


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("KeyError: 'user'", "without an outside cause"),
        ("TypeError: unsupported operand", "without an outside cause"),
        ("ConnectionResetError: peer", ""),
        ("psycopg.OperationalError: server closed the connection", ""),
        ("RuntimeError: broker away", ""),
        ("the function called sys.exit(3)", ""),
    ],
)
def test_errors_of_the_program_are_told_apart_from_those_with_an_outside_cause(reason, said):
    kit = JobKit().run()
    kit.fail(reason)
    assert said in kit.job.overview().diagnosis
    assert bool(said) == bool(kit.job.overview().diagnosis)


def test_a_lost_process_is_told_to_be_transient():
    kit = JobKit().run()
    kit.do(kit.of(ev.SlotDisconnected(SlotId(1), "eof")))
    kit.pass_ms(300, beating=False)
    kit.let_go()
    assert kit.job.overview().diagnosis == "a process or a connection was lost: a restart usually helps"
    assert not kit.job.overview().will_come_again


def test_hosts_that_cannot_reach_each_other_are_both_named_and_the_network_is_said_to_be_checked():
    kit = JobKit().run()
    kit.say(0, m.PeerLost(SlotId(1), "nothing has come from host1 to host0 for 15 s", is_cut=True))
    kit.pass_ms(300)
    kit.let_go()
    overview = kit.job.overview()
    assert (
        "slot 0 (pid 100 on host host0) lost its data connection to slot 1 (pid 101 on host host1): nothing has come "
        "from host1"
    ) in overview.last_error
    assert overview.diagnosis.startswith("hosts cannot reach each other: a restart helps once they can")


def start_and_end(kit: JobKit, reason: str, fault: ev.GangFault = ev.GangFault.UNKNOWN) -> None:
    """An attempt that Spark ends before any slot has come up."""
    kit.do(kit.of(ev.GangEnded(reason, fault)))
    kit.pass_ms(300, beating=False)


def await_attempt(kit: JobKit, count: int) -> None:
    while len(kit.began) < count:
        kit.pass_ms(100, beating=False)


def test_a_fault_of_the_environment_ends_the_job_at_once_with_its_remedy():
    kit = JobKit()
    kit.do(ev.SubmissionRequested())
    remedy = "ModuleNotFoundError: No module named 'msgspec'. Set PYSPARK_PYTHON"
    start_and_end(kit, remedy, ev.GangFault.ENVIRONMENT)
    assert kit.end.status is J.FAILED
    assert remedy in kit.end.message
    assert kit.end.message.endswith("It was not restarted: no attempt can succeed in this environment")
    assert "a restart usually helps" not in kit.end.message


def test_the_same_end_three_times_before_any_slot_ever_came_up_ends_the_job():
    kit = JobKit()
    kit.do(ev.SubmissionRequested())
    for attempt in range(3):
        await_attempt(kit, attempt + 1)
        start_and_end(kit, f"the control port h:41000 cannot be reached from host n{attempt}: timed out")
    assert kit.end.status is J.FAILED
    assert kit.end.message.endswith(
        "It was not restarted: 3 attempts in a row ended like this before the job had ever run"
    )


def test_once_a_slot_came_up_the_environment_is_not_blamed_any_more():
    kit = JobKit().run()
    kit.fail()
    for attempt in range(1, 6):
        await_attempt(kit, attempt + 1)
        start_and_end(kit, "ModuleNotFoundError: x", ev.GangFault.ENVIRONMENT)
    assert kit.found(fe.EndJob) == []


def test_slots_that_cannot_come_up_three_times_in_a_row_end_a_job_that_never_ran():
    kit = JobKit()
    kit.do(ev.SubmissionRequested())
    for attempt in range(3):
        await_attempt(kit, attempt + 1)
        kit.say(0, m.RegisterSlot(address(0), "executor"))
        kit.say(1, m.SlotUnusable(f"no port of network.data_ports (40100) is available at 10.0.0.{attempt}"))
        kit.let_go()
    assert kit.end.status is J.FAILED
    assert (
        "slot 1 cannot come up: no port of network.data_ports (40100) is available at 10.0.0.2"
        in kit.end.message
    )
    assert kit.end.message.endswith("3 attempts in a row ended like this before the job had ever run")


MISSING = "tidegate.core.errors.ModuleMissingError: operator 'm' cannot be loaded in the slot: ModuleNotFoundError: x"


def test_a_module_that_the_slots_cannot_import_ends_a_job_that_never_ran():
    kit = JobKit()
    kit.do(ev.SubmissionRequested())
    for slot in (0, 1):
        kit.say(slot, m.RegisterSlot(address(slot), "executor"))
    kit.fail(MISSING, "")
    assert kit.end.status is J.FAILED
    assert "cannot be loaded in the slot: ModuleNotFoundError: x" in kit.end.message
    assert kit.end.message.endswith("It was not restarted: no attempt can succeed in this environment")


def test_a_module_that_a_new_host_lacks_does_not_end_a_job_that_ran():
    kit = JobKit().run()
    kit.fail()
    for _ in range(3):
        kit.restart()
        kit.fail(MISSING, "")
    assert kit.found(fe.EndJob) == []


def test_executors_that_are_lost_before_a_slot_came_up_are_for_the_restart_strategy():
    kit = JobKit()
    kit.do(ev.SubmissionRequested())
    for attempt in range(6):
        await_attempt(kit, attempt + 1)
        start_and_end(kit, f"Spark lost its executor {attempt}: killed", ev.GangFault.EXECUTOR_LOST)
    assert kit.found(fe.EndJob) == []


def test_different_ends_before_a_slot_came_up_are_tried_again():
    kit = JobKit()
    kit.do(ev.SubmissionRequested())
    for attempt in range(6):
        await_attempt(kit, attempt + 1)
        start_and_end(kit, "one" if attempt % 2 else "other")
    assert kit.found(fe.EndJob) == []


def test_an_error_without_a_position_that_comes_twice_is_not_called_the_same_record():
    kit = JobKit().run()
    kit.fail("OSError: disk", "")
    kit.restart()
    kit.fail("OSError: disk", "")
    assert kit.job.overview().diagnosis.startswith("the same error as in attempt 0: it will hardly go away")
    assert kit.job.overview().will_come_again


def test_state_that_does_not_fit_the_program_is_not_tried_again():
    kit = JobKit().run()
    kit.fail("tidegate.core.errors.StateCompatibilityError: state 'seen' is a map but was a list", "")
    assert kit.end.status is J.FAILED
    assert "state 'seen' is a map but was a list" in kit.end.message


# ---- damaged, missing and unfitting checkpoints ----


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_taken():
    kit = JobKit().run()
    kit.checkpoint()
    kit.checkpoint()
    kit.damaged = {2}
    kit.fail()
    kit.restart()
    assert kit.began[1].restore is not None
    assert kit.began[1].restore.checkpoint_id == 1
    [report] = [r for r in kit.reports() if "damaged" in r]
    assert report == (
        "checkpoint 2 of job 'pv' is damaged and cannot be restored: shared/c2-x has another checksum. Falling "
        "back to checkpoint 1: what the job did between the two is done again, also by sinks that had committed it"
    )
    assert kit.checkpoint() == 3
    kit.checkpoint()
    assert [c.checkpoint_id for c in kit.job.coordinator.completed.retained] == [3, 4]
    assert 2 in kit.storage.discarded


def test_a_damaged_checkpoint_that_a_sink_may_have_committed_ends_the_job_unless_the_user_accepts_its_output_twice():
    for fallback in ("refuse", "repeat-output"):
        kit = JobKit(commits=True, checkpoint_fallback=fallback).run()
        kit.checkpoint()
        kit.checkpoint()
        kit.damaged = {2}
        kit.fail()
        if fallback == "repeat-output":
            kit.restart()
            assert kit.began[-1].restore.checkpoint_id == 1
            continue
        assert kit.job.status is J.FAILED
        for words in (
            "checkpoint 2 of job 'pv' is damaged and cannot be restored: shared/c2-x has another checksum.",
            "The newest that is whole is checkpoint 1, and the sinks",
            "commit with checkpoints: what was committed after it would be written a second time.",
            "set checkpoint.fallback=repeat-output to go on from checkpoint 1",
        ):
            assert words in kit.end.message


def test_output_twice_is_advised_only_with_a_checkpoint_that_was_read_and_is_whole():
    """Checkpoints share files: the one before often needs the file that is damaged."""
    kit = JobKit(commits=True, checkpoint_retained=3).run()
    for _ in range(3):
        kit.checkpoint()
    kit.damaged = {2, 3}
    kit.fail()
    assert kit.job.status is J.FAILED
    assert (
        "checkpoint 3 of job 'pv' is damaged and cannot be restored: shared/c3-x has another checksum. "
        "checkpoint 2 of job 'pv' is damaged and cannot be restored: shared/c2-x has another checksum. "
        "The newest that is whole is checkpoint 1"
    ) in kit.end.message
    assert "to go on from checkpoint 1" in kit.end.message

    kit = JobKit(commits=True).run()
    kit.checkpoint()
    kit.checkpoint()
    kit.damaged = {1, 2}
    kit.fail()
    assert "none of its completed checkpoints can be restored" in kit.end.message
    assert "repeat-output" not in kit.end.message


def test_a_checkpoint_that_cannot_be_read_after_a_damaged_one_names_both():
    kit = JobKit(commits=True, restart_strategy=RestartStrategies.fixed_delay(1, "1 s")).run()
    kit.checkpoint()
    kit.checkpoint()
    kit.verifies = False
    kit.fail()
    kit.do(fe.CheckpointDamaged(2, ("shared/c2-x is gone.",)), fe.CheckpointUnavailable(1, "no route"))
    assert (
        "is damaged and cannot be restored: shared/c2-x is gone. Before it, checkpoint 1 cannot be read: no"
        in (kit.end.message)
    )


def test_at_least_once_promises_nothing_that_a_repeated_output_would_break():
    kit = JobKit(commits=True, checkpoint_mode="at_least_once").run()
    kit.checkpoint()
    kit.checkpoint()
    kit.damaged = {2}
    kit.fail()
    kit.restart()
    assert kit.began[-1].restore.checkpoint_id == 1


def test_a_job_whose_checkpoints_are_all_damaged_fails_and_lists_them_rather_than_begin_from_nothing():
    kit = JobKit().run()
    kit.checkpoint()
    kit.checkpoint()
    kit.damaged = {1, 2}
    kit.fail()
    assert kit.end.status is J.FAILED
    assert kit.end.message.startswith(
        "job 'pv' failed: none of its completed checkpoints can be restored:\n"
        "  checkpoint 1: shared/c1-x has another checksum.\n"
        "  checkpoint 2: shared/c2-x has another checksum.\n"
        "Mend or restore the files and resume, or start it without state\n"
        "The failure before it: job 'pv' failed: operator 'parse'"
    )
    assert len(kit.began) == 1
    assert kit.storage.manifests == {1, 2}, "nothing of a failed job is deleted"


def test_storage_that_is_away_is_waited_for_and_no_older_checkpoint_taken():
    kit = JobKit(restart_strategy=RestartStrategies.fixed_delay(3, "10 s")).run()
    kit.checkpoint()
    kit.checkpoint()
    kit.verifies = False
    kit.fail()
    kit.pass_ms(5_000, beating=False)
    kit.do(fe.CheckpointUnavailable(2, "s3://lake: connection refused"))
    assert kit.job.status is J.RESTARTING
    assert kit.reports()[-1] == (
        "checkpoint 2 cannot be read: s3://lake: connection refused. Trying again in 10 s (restart 2 of 3)"
    )
    said = "job 'pv' cannot restart: checkpoint 2 cannot be read: s3://lake: connection refused"
    assert kit.job.overview().last_error.startswith(
        f"{said}\nThe failure before it: job 'pv' failed: operator"
    )
    assert said in kit.job.waiting_for
    kit.verifies = True
    asked = len(kit.found(fe.VerifyCheckpoint))
    kit.pass_ms(9_900, beating=False)
    assert len(kit.found(fe.VerifyCheckpoint)) == asked
    kit.restart()
    assert kit.began[1].restore is not None
    assert kit.began[1].restore.checkpoint_id == 2
    assert kit.job.attempt == 1


def test_storage_that_stays_away_ends_the_job_when_the_strategy_says_so():
    kit = JobKit(restart_strategy=RestartStrategies.fixed_delay(1, "1 s")).run()
    kit.checkpoint()
    kit.verifies = False
    kit.fail()
    kit.do(fe.CheckpointUnavailable(1, "gone"))
    assert kit.end.status is J.FAILED
    assert "checkpoint 1 cannot be read: gone\nIt was not restarted: all 1 restarts" in kit.end.message


def test_a_job_is_resumed_from_the_checkpoints_of_an_earlier_run_with_higher_ids():
    found = (
        completed_checkpoint(41, "shared/c41-a0-op-0-x"),
        completed_checkpoint(42, "shared/c42-a0-op-0-x"),
    )
    kit = JobKit(found=found)
    kit.damaged = {42}
    kit.run()
    assert kit.began[0].restore is not None
    assert kit.began[0].restore.checkpoint_id == 41
    assert kit.job.restarts == 0
    assert kit.job.overview().restored_checkpoint == 41
    assert kit.checkpoint() == 43


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            fe.CheckpointIncompatible(42, "max parallelism is 128 but 256"),
            "cannot be restored: max parallelism is 128",
        ),
        (fe.CheckpointUnavailable(42, "no route"), "cannot be read: no route"),
        (fe.CheckpointDamaged(42, ("truncated",)), "none of its completed checkpoints can be restored"),
    ],
)
def test_a_job_that_cannot_be_resumed_fails_before_it_starts_anything(answer, said):
    kit = JobKit(found=(completed_checkpoint(42, "x"),))
    kit.verifies = False
    kit.do(ev.SubmissionRequested(), answer)
    assert kit.end.status is J.FAILED
    assert said in kit.end.message
    assert kit.began == []
    assert kit.job.status_history == (J.CREATED, J.FAILING, J.FAILED)


def test_answers_about_other_checkpoints_and_repeated_ones_change_nothing():
    kit = JobKit(restart_strategy=RestartStrategies.fixed_delay(3, "10 s")).run()
    kit.checkpoint()
    kit.checkpoint()
    kit.verifies = False
    kit.fail()
    kit.do(fe.CheckpointDamaged(1, ("no",)), fe.CheckpointVerified(1, restore_of(1)))
    assert kit.job.coordinator.completed.damaged == {}
    kit.do(fe.CheckpointVerified(2, restore_of(2)), fe.CheckpointDamaged(2, ("late",)))
    kit.restart()
    kit.do(fe.CheckpointVerified(2, restore_of(2)), fe.CheckpointIncompatible(2, "late"))
    assert kit.job.status is J.RUNNING
    assert [b.attempt for b in kit.began] == [0, 1]


# ---- cancellation ----


TAKEN = "another driver has taken the job over"


def test_the_claim_is_looked_at_before_each_attempt_and_after_each_failure():
    kit = JobKit(claimed=True).run()
    kit.checkpoint()
    kit.fail()
    kit.restart()
    kinds = [type(a) for a in kit.actions if isinstance(a, (fe.CheckClaim, fe.BeginAttempt, fe.EndAttempt))]
    check, begin, end = fe.CheckClaim, fe.BeginAttempt, fe.EndAttempt
    assert kinds == [check, begin, end, check, check, begin]


def test_a_job_that_was_taken_over_while_it_waited_for_its_restart_starts_no_attempt():
    kit = JobKit(claimed=True, restart_strategy=RestartStrategies.fixed_delay(3, "10 s")).run()
    kit.fail()
    kit.fenced = TAKEN
    kit.pass_ms(11_000, beating=False)
    assert len(kit.began) == 1
    assert (kit.end.status, kit.end.error) == (J.FAILED, JobFencedError)


def test_what_fails_because_another_driver_deleted_it_is_reported_as_the_takeover():
    kit = JobKit(claimed=True).run()
    kit.checkpoint()
    kit.fenced = TAKEN
    kit.fail("CorruptFileError: checkpoint file shared/c1-x is missing")
    assert (kit.end.status, kit.end.error) == (J.FAILED, JobFencedError)
    assert kit.end.message.startswith(f"job 'pv' failed: {TAKEN}\nThe failure before it: ")
    assert "CorruptFileError" in kit.end.message
    assert kit.reports() == [], "no restart is announced"


@pytest.mark.parametrize("answer", [fe.ClaimChecked(), ev.DriverFenced(TAKEN)])
def test_a_job_that_is_cancelled_while_its_claim_is_looked_at_ends_at_once(answer):
    """The storage may be away, and may take minutes to say so."""
    kit = JobKit(claimed=True).run()
    kit.perform = lambda action: []  # type: ignore[method-assign] -- no answer yet
    kit.fail()
    assert kit.found(fe.EndJob) == []
    kit.do(ev.CancelRequested("enough"))
    assert kit.end.status is J.CANCELED
    assert kit.do(answer) == []


@pytest.mark.parametrize("moment", ["delay", "verification"])
def test_a_job_that_waits_for_its_restart_can_be_cancelled_at_once(moment):
    kit = JobKit(restart_strategy=RestartStrategies.fixed_delay(3, "10 s")).run()
    kit.checkpoint()
    kit.verifies = moment == "delay"
    kit.fail()
    if moment == "verification":
        kit.pass_ms(20_000, beating=False)
    kit.do(ev.CancelRequested("enough"))
    assert kit.end == fe.EndJob(J.CANCELED, "job 'pv' was cancelled: enough")
    assert kit.job.status is J.CANCELED
    assert kit.pass_ms(20_000, beating=False) == []
    assert "ValueError: bad" in kit.job.last_error


def test_a_cancellation_while_the_attempt_is_failing_prevents_the_restart():
    kit = JobKit().run()
    kit.raise_in_task()
    assert kit.job.status is J.FAILING
    kit.do(ev.CancelRequested("enough"))
    kit.let_go()
    assert kit.end == fe.EndJob(J.CANCELED, "job 'pv' was cancelled: enough")
    assert len(kit.began) == 1


def test_a_running_job_is_cancelled_and_keeps_its_checkpoints():
    kit = JobKit().run()
    kit.checkpoint()
    kit.do(ev.CancelRequested("enough"))
    kit.let_go()
    assert kit.end.status is J.CANCELED
    assert kit.storage.manifests == {1}


def test_a_job_can_be_cancelled_before_its_first_attempt():
    kit = JobKit(found=(completed_checkpoint(42, "x"),))
    kit.verifies = False
    kit.do(ev.SubmissionRequested(), ev.CancelRequested("enough"))
    assert kit.end.status is J.CANCELED
    assert kit.do(fe.CheckpointVerified(42, restore_of(42))) == []
    assert kit.began == []


# ---- checkpoints and the attempt ----


def test_checkpoints_begin_when_all_tasks_run_and_end_the_moment_the_attempt_fails():
    kit = JobKit()
    kit.do(ev.SubmissionRequested())
    for slot in (0, 1):
        kit.say(slot, m.RegisterSlot(address(slot), "executor"))
    for id in SUBTASKS[:3]:
        kit.say(id.index, m.TaskStateChanged(id.vertex, id.index, ExecutionState.INITIALIZING))
        kit.say(id.index, m.TaskStateChanged(id.vertex, id.index, ExecutionState.RUNNING))
    kit.pass_ms(3_000)
    assert kit.found(ce.SnapshotEnumerators) == [], "one task still restores its state"
    kit.register()
    kit.checkpoint()
    kit.pass_ms(1_000)
    assert kit.job.coordinator.pending_ids == (2,)
    kit.raise_in_task()
    assert kit.job.status is J.FAILING
    assert kit.job.coordinator.pending_ids == ()
    kit.acknowledge(2)
    assert kit.storage.discarded == [2]
    assert kit.storage.manifests == {1}


def test_too_many_failed_checkpoints_fail_the_attempt_and_the_job_restarts():
    kit = JobKit(checkpoint_tolerable_failures=0).run()
    kit.pass_ms(1_000)
    kit.say(0, m.DeclineCheckpoint(1, VertexId(0), 0, "disk full"))
    assert kit.job.status is J.FAILING
    kit.let_go()
    assert kit.job.status is J.RESTARTING
    assert "a checkpoint has failed, and checkpoint.tolerable_failures is 0" in kit.job.last_error
    kit.restart()
    assert kit.checkpoint() == 2


@pytest.mark.parametrize(
    ("errors", "is_said"),
    [(("SerializationError",) * 2, True), (("SerializationError", ""), False), (("", ""), False)],
)
def test_checkpoints_that_the_program_makes_fail_in_two_attempts_are_diagnosed(errors, is_said):
    kit = JobKit(checkpoint_tolerable_failures=0).run()
    for checkpoint, error in enumerate(errors, 1):
        kit.pass_ms(1_000)
        reason = f"{error or 'OSError'}: attempt {checkpoint} names another key"
        kit.say(0, m.DeclineCheckpoint(checkpoint, VertexId(0), 0, reason, program_error=error))
        kit.let_go()
        assert kit.job.status is J.RESTARTING
        if checkpoint == 1:
            assert kit.job.overview().diagnosis == ""
            kit.restart()
    assert kit.job.overview().diagnosis.startswith("the same error as in attempt 0") == is_said
    assert kit.job.overview().will_come_again == is_said


@pytest.mark.parametrize("moment", ["running", "failing", "restarting"])
def test_a_driver_that_is_fenced_ends_the_job_at_once_whatever_the_restart_strategy_says(moment):
    kit = JobKit(restart_strategy="fixed-delay", restart_attempts=100).run()
    kit.checkpoint()
    if moment == "failing":
        kit.raise_in_task()
        assert kit.job.status is J.FAILING
    elif moment == "restarting":
        kit.fail()
        assert kit.job.status is J.RESTARTING
    kit.do(ev.DriverFenced("another driver has taken the job over"))
    kit.let_go()
    assert kit.job.status is J.FAILED
    assert "another driver has taken the job over" in kit.job.message
    assert len(kit.began) == 1


def test_a_zombie_of_an_ended_attempt_can_neither_acknowledge_nor_fail_nor_end_the_next_one():
    kit = JobKit().run()
    kit.checkpoint()
    kit.fail()
    kit.restart()
    kit.pass_ms(1_000)
    assert kit.job.coordinator.pending_ids == (2,)
    kit.acknowledge(2, attempt=0)
    kit.say(1, m.TaskFailed(VertexId(0), 1, "parse", "ValueError: old", ""), attempt=0)
    kit.say(0, m.DeclineCheckpoint(2, VertexId(0), 0, "old"), attempt=0)
    for event in (
        ev.GangEnded("old"),
        ev.SlotDisconnected(SlotId(0), "old"),
        ev.MessageMalformed(SlotId(0), "old"),
    ):
        kit.do(kit.of(event, attempt=0))
    kit.do(kit.of(ev.EnumeratorFailed(OperatorId("id-numbers"), "old", ""), attempt=0))
    assert kit.job.status is J.RUNNING
    assert kit.job.coordinator.pending_ids == (2,)
    kit.acknowledge(2)
    assert kit.storage.manifests == {1, 2}


def test_what_a_slot_that_is_gone_says_about_checkpoints_does_not_count():
    kit = JobKit().run()
    kit.pass_ms(1_000)
    kit.do(kit.of(ev.SlotDisconnected(SlotId(1), "eof")))
    kit.acknowledge(1)
    assert kit.found(ce.WriteManifest) == []


def drain_and_finish(kit: JobKit) -> None:
    for id in SUBTASKS:
        kit.say(id.index, m.TaskDrained(id.vertex, id.index))
    [final] = kit.job.coordinator.pending_ids
    kit.acknowledge(final)
    notices = [
        a.message for a in kit.found(ev.SendToSlot) if isinstance(a.message, m.NotifyCheckpointComplete)
    ]
    assert notices[-2:] == [m.NotifyCheckpointComplete(final, True)] * 2
    for id in SUBTASKS:
        kit.say(id.index, m.TaskStateChanged(id.vertex, id.index, ExecutionState.FINISHED))
    for slot in (0, 1):
        kit.say(slot, m.SlotFinished())
    kit.do(kit.of(ev.GangEnded(None)))


def test_a_bounded_job_ends_with_its_final_checkpoint_and_leaves_nothing():
    kit = JobKit(checkpoint_interval="10 min").run()
    drain_and_finish(kit)
    assert kit.end == fe.EndJob(J.FINISHED, "")
    assert (kit.storage.files, kit.storage.manifests) == (set(), set())
    assert kit.actions[-1] == kit.end
    assert kit.job.checkpoints().completed == 1


def test_a_job_that_failed_before_it_finished_says_so_in_the_end_too():
    kit = JobKit().run()
    kit.fail()
    kit.restart()
    drain_and_finish(kit)
    assert kit.end.status is J.FINISHED
    assert "ValueError: bad" in kit.job.last_error
    assert kit.job.restarts == 1


def test_at_most_once_goes_on_behind_what_was_handed_out():
    kit = JobKit(
        checkpoint_interval="off",
        checkpoint_mode="at_most_once",
        restart_strategy=RestartStrategies.fixed_delay(3, "1 s"),
    ).run()
    assert not kit.began[0].continue_sources
    kit.fail()
    kit.restart()
    assert kit.began[1] == fe.BeginAttempt(AttemptNumber(1), None, continue_sources=True)


def test_an_attempt_is_told_to_end_before_the_next_one_begins_and_before_the_job_ends():
    kit = JobKit(restart_strategy=RestartStrategies.fixed_delay(1, "1 s")).run()
    kit.fail()
    kit.restart()
    kit.fail()
    kinds = (fe.BeginAttempt, fe.EndAttempt, fe.EndJob)
    assert [type(a) for a in kit.actions if isinstance(a, kinds)] == [
        fe.BeginAttempt,
        fe.EndAttempt,
        fe.BeginAttempt,
        fe.EndAttempt,
        fe.EndJob,
    ]


# ---- whatever happens ----


def shake(kit: JobKit, chance: random.Random) -> None:
    """One random thing of an attempt, current or not, or of the job."""
    attempt = kit.job.attempt - chance.choice([0, 0, 0, 1])
    slot, id = SlotId(chance.randint(0, 1)), chance.choice(SUBTASKS)
    checkpoint = max(1, max(kit.job.coordinator.pending_ids, default=1) - chance.choice([0, 0, 1]))
    match chance.randint(0, 13):
        case 0:
            kit.say(slot, m.TaskFailed(id.vertex, id.index, "parse", "ValueError: bad", ""), attempt=attempt)
        case 1:
            kit.do(kit.of(ev.SlotDisconnected(slot, "eof"), attempt))
        case 2:
            kit.do(kit.of(ev.GangEnded(chance.choice([None, "stage failed"])), attempt))
        case 3:
            kit.acknowledge(checkpoint, attempt)
        case 4:
            kit.say(slot, m.DeclineCheckpoint(checkpoint, id.vertex, id.index, "full"), attempt=attempt)
        case 5:
            kit.do(ce.ManifestWritten(checkpoint, "path"))
        case 6:
            kit.do(fe.CheckpointDamaged(checkpoint, ("no",)), fe.CheckpointUnavailable(checkpoint, "away"))
        case 7:
            kit.damaged = set(chance.sample(range(1, 20), 5))
        case 8:
            kit.verifies = chance.random() < 0.7
        case 9 if chance.random() < 0.1:
            kit.do(ev.CancelRequested("enough"))
        case 10:
            kit.say(slot, m.TaskDrained(id.vertex, id.index), attempt=attempt)
        case 11:
            kit.writes_manifests = chance.random() < 0.7
        case 12 if kit.job.status is J.WAITING_FOR_SLOTS:
            kit.register()
        case _:
            kit.pass_ms(chance.choice([100, 1_000, 3_000]), beating=chance.random() < 0.9)


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_whatever_happens_attempts_and_ids_increase_and_the_job_ends_exactly_once(seed):
    chance = random.Random(seed)
    kit = JobKit(
        restart_strategy=chance.choice(["auto", "fixed-delay", "failure-rate"]),
        restart_delay="1 s",
        checkpoint_tolerable_failures=1,
        heartbeat_timeout="2 s",
    )
    kit.do(ev.SubmissionRequested())
    for _ in range(chance.randint(1, 60)):
        shake(kit, chance)
    kit.do(ev.CancelRequested("the test is over"))
    kit.pass_ms(10_000, beating=False)
    kit.do(ev.CancelRequested("again"), ev.SubmissionRequested())

    assert kit.end.status is kit.job.status
    assert kit.job.status.is_terminal
    assert bool(kit.end.message) == (kit.end.status is not J.FINISHED)
    after = kit.actions[kit.actions.index(kit.end) + 1 :]
    assert all(isinstance(action, ev.CloseSlot) for action in after)
    assert [b.attempt for b in kit.began] == list(range(len(kit.began)))
    assert kit.job.restarts == max(0, len(kit.began) - 1)
    ids = [a.checkpoint_id for a in kit.found(ce.SnapshotEnumerators)]
    assert ids == sorted(set(ids))
    history = kit.job.status_history
    shown = [action.status for action in kit.found(fe.ShowStatus)]
    assert (J.CREATED, *shown, kit.end.status) == history, "each state is shown, once and in order"
    assert all(b in JOB_TRANSITIONS[a] for a, b in itertools.pairwise(history))
    assert kit.storage.manifests == {c.checkpoint_id for c in kit.job.coordinator.completed.retained}
    for began in kit.began:
        if began.restore is not None:
            at = kit.actions.index(began)
            notified = {
                a.message.checkpoint_id
                for a in kit.actions[:at]
                if isinstance(a, ev.SendToSlot) and isinstance(a.message, m.NotifyCheckpointComplete)
            }
            assert began.restore.checkpoint_id in notified, "only what was completed is restored"
