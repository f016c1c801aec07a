"""The life of a job: slots, deployment, the end; and what the job does with messages that make no sense."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.job_master_kit import MasterKit, address, registration
from tidegate.core.errors import SlotsUnavailableError
from tidegate.core.ids import AttemptNumber, JobId, OperatorId, SlotId, VertexId
from tidegate.core.states import ExecutionState as E
from tidegate.core.states import JobStatus as J
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.slots import SlotState
from tidegate.protocol import messages as m

SOURCE, SINK = OperatorId("id-numbers"), OperatorId("id-sink")


# ---- slots ----


def test_submission_starts_the_enumerators_and_asks_for_slots():
    kit = MasterKit()
    assert kit.do(ev.SubmissionRequested()) == [ev.StartEnumerators(), ev.CountSlots()]
    assert kit.master.status is J.WAITING_FOR_SLOTS
    assert kit.do(ev.SubmissionRequested()) == []


@pytest.mark.parametrize("available", [2, 5, None])
def test_the_gang_starts_when_there_are_enough_slots_or_nobody_can_know(available):
    kit = MasterKit().to_waiting()
    assert kit.do(ev.SlotsCounted(available)) == [ev.StartGang(2)]
    assert kit.do(ev.SlotsCounted(available)) == []


def test_too_few_slots_are_reported_at_once_with_both_numbers_and_asked_for_again():
    kit = MasterKit(parallelism=4).to_waiting()
    assert kit.do(ev.SlotsCounted(3)) == [
        ev.ReportWaiting(
            "job 'pv' needs 4 slots but Spark offers 3; waiting up to 5 min. Add executors, or lower the parallelism"
        )
    ]
    assert kit.master.waiting_for.startswith("job 'pv' needs 4 slots but Spark offers 3")
    assert kit.pass_ms(400) == []
    assert kit.pass_ms(200) == [ev.CountSlots()]
    assert kit.pass_ms(5_000) == [], "one question at a time"
    assert kit.do(ev.SlotsCounted(3)) == [], "the same number is not reported again"
    kit.pass_ms(600)
    assert isinstance(kit.do(ev.SlotsCounted(2))[0], ev.ReportWaiting)
    kit.pass_ms(600)
    assert kit.do(ev.SlotsCounted(4)) == [ev.StartGang(4)]


def test_slots_that_other_jobs_hold_are_reported_with_all_numbers_once_they_had_time_to_give_them_back():
    kit = MasterKit(parallelism=4).to_waiting()
    assert kit.do(ev.SlotsCounted(6, busy=3)) == []
    kit.pass_ms(600)
    assert kit.do(ev.SlotsCounted(6, busy=4)) == []
    kit.pass_ms(600)
    assert kit.do(ev.SlotsCounted(6, busy=3)) == [
        ev.ReportWaiting(
            "job 'pv' needs 4 slots but Spark offers 3 (other jobs hold 3 of its 6); waiting up to 5 min. "
            "End other jobs, add executors, or lower the parallelism"
        )
    ]
    kit.pass_ms(600)
    assert kit.do(ev.SlotsCounted(6, busy=5)) == [], "others start and end tasks all the time"
    assert "offers 1 (other jobs hold 5 of its 6)" in kit.master.waiting_for
    kit.pass_ms(600)
    assert kit.do(ev.SlotsCounted(6, busy=2)) == [ev.StartGang(4)]


def test_slots_that_other_jobs_keep_fail_the_job_after_the_configured_time():
    kit = MasterKit(parallelism=4, slots_wait_timeout="2 s").to_waiting()
    kit.do(ev.SlotsCounted(4, busy=1))
    kit.pass_ms(2_000)
    assert [end.error for end in kit.ends()] == [SlotsUnavailableError]
    assert "offers 3 (other jobs hold 1 of its 4) after 2 s (slots.wait_timeout)" in kit.ends()[0].message


def test_slots_that_do_not_come_in_time_fail_the_job_with_both_numbers():
    kit = MasterKit(parallelism=4, slots_wait_timeout="2 s").to_waiting()
    kit.do(ev.SlotsCounted(3))
    kit.pass_ms(1_900)
    assert kit.ends() == []
    kit.pass_ms(100)
    assert kit.ends() == [
        ev.AttemptEnded(
            J.FAILED,
            "job 'pv' failed: it needs 4 slots but Spark offers 3 after 2 s (slots.wait_timeout). "
            "Add executors, or lower the parallelism",
            SlotsUnavailableError,
        )
    ]


def test_a_host_that_never_answers_fails_the_job():
    kit = MasterKit(slots_wait_timeout="1 s").to_waiting()
    kit.pass_ms(29_900)
    assert kit.ends() == []
    kit.pass_ms(100)
    assert "did not say how many it offers" in kit.ends()[0].message


def test_a_host_that_cannot_count_fails_the_job():
    kit = MasterKit().to_waiting()
    kit.do(ev.CountingFailed("Py4JError: gone"))
    assert kit.ends() == [
        ev.AttemptEnded(J.FAILED, "job 'pv' failed: Spark cannot be asked for its slots: Py4JError: gone")
    ]


def test_processes_that_never_register_fail_the_job_with_numbers_after_the_gang_is_cancelled():
    kit = MasterKit(parallelism=3, slots_wait_timeout="1 min").to_starting()
    kit.do(registration(1))
    kit.pass_ms(60_000)
    assert kit.master.status is J.FAILING
    assert kit.actions.count(ev.CancelGang()) == 1
    kit.do(ev.SlotDisconnected(SlotId(1), ""), ev.GangEnded("cancelled"))
    message = kit.ends()[0].message
    assert "needs 3 slots but only 1 have registered within 1 min; missing: 0, 2." in message


def test_a_job_whose_slots_went_to_one_that_started_at_the_same_time_says_so_within_five_seconds():
    kit = MasterKit().to_waiting()
    kit.do(ev.SlotsCounted(3))
    assert kit.pass_ms(3_900) == []
    assert kit.pass_ms(100) == [ev.CountSlots()]
    [report] = kit.do(ev.SlotsCounted(3, busy=2))
    assert isinstance(report, ev.ReportWaiting)
    assert report.text.startswith("job 'pv' needs 2 slots but Spark offers 1 ")
    assert "(other jobs hold 2 of its 3)" in report.text
    assert kit.pass_ms(10_000) == [ev.CountSlots()], "that is not a slow start"
    kit.do(registration(0), registration(1))
    assert kit.master.status is J.RUNNING


def test_the_time_for_slots_counts_once_and_the_reason_that_is_known_is_given():
    kit = MasterKit(slots_wait_timeout="15 s").to_waiting()
    kit.do(ev.SlotsCounted(2))  # the other job has not taken them yet, so the gang is started
    kit.pass_ms(4_000)
    kit.do(ev.SlotsCounted(2, busy=1))
    kit.pass_ms(10_900)
    assert kit.ends() == []
    kit.pass_ms(100)
    kit.do(ev.GangEnded("cancelled"))
    [end] = kit.ends()
    assert end.error is SlotsUnavailableError
    assert "needs 2 slots but Spark offers 1 (other jobs hold 1 of its 2) after 15 s" in end.message


def test_slots_that_come_free_late_leave_only_what_is_left_of_the_time():
    kit = MasterKit(slots_wait_timeout="40 s").to_waiting()
    kit.do(ev.SlotsCounted(2, busy=1))
    for _ in range(18):
        kit.pass_ms(500)
        kit.do(ev.SlotsCounted(2, busy=1))
    kit.pass_ms(500)
    assert kit.do(ev.SlotsCounted(2)) == [ev.StartGang(2)]
    kit.pass_ms(30_400)
    assert kit.master.status is J.WAITING_FOR_SLOTS
    kit.pass_ms(200)
    kit.do(ev.GangEnded("cancelled"))
    assert "only 0 have registered within 40 s" in kit.ends()[0].message


def test_slots_of_an_earlier_attempt_on_a_host_that_is_cut_off_are_said_to_be_its():
    kit = MasterKit()
    kit.master = JobMaster(
        JobId("job"),
        AttemptNumber(1),
        kit.graph,
        kit.options,
        unreachable=["slot 1 (pid 7 on host n2)"],
    )
    kit.to_waiting()
    assert kit.do(ev.SlotsCounted(2, busy=1, own=1)) == [ev.StartGang(2)], "they are told to end"
    kit.pass_ms(1_000)
    [report] = kit.do(ev.SlotsCounted(2, busy=1, own=1))
    assert isinstance(report, ev.ReportWaiting)
    assert "(tasks of an earlier attempt of this one that have not ended hold 1 of its 2)" in report.text
    assert "slot 1 (pid 7 on host n2) did not answer: if the host is cut off, Spark keeps" in report.text


@pytest.mark.parametrize(("counted", "after_ms"), [(None, 4_000), (2, 10_000)])
def test_a_slow_start_is_reported_once(counted, after_ms):
    kit = MasterKit().to_waiting()
    kit.do(ev.SlotsCounted(counted), registration(0))
    kit.pass_ms(after_ms - 100)
    assert not any(isinstance(a, ev.ReportWaiting) for a in kit.actions)
    kit.pass_ms(5_000)
    reports = [a.text for a in kit.actions if isinstance(a, ev.ReportWaiting)]
    assert len(reports) == 1
    assert reports[0].startswith("job 'pv' needs 2 slots and 1 have started so far")


# ---- registration and deployment ----


def test_every_slot_is_deployed_with_all_addresses_once_the_last_has_registered():
    kit = MasterKit().to_starting()
    assert kit.do(registration(1)) == []
    actions = kit.do(registration(0))
    assert kit.master.status is J.RUNNING
    assert [type(a) for a in actions] == [ev.SendToSlot, ev.SendToSlot]
    for slot in (0, 1):
        [deploy] = [a.message for a in kit.sent(m.Deploy, slot)]
        assert deploy.addresses == (address(0), address(1))
        assert deploy.placement == ((0, 1), (0, 1))
        assert deploy.subtasks == (
            m.SubtaskDeployment(VertexId(0), slot),
            m.SubtaskDeployment(VertexId(1), slot),
        )
        assert JobGraph.decode(deploy.job_graph) == kit.graph


def test_a_repeated_registration_changes_nothing():
    kit = MasterKit().to_starting()
    assert kit.do(registration(1), registration(1)) == []
    kit.do(registration(0))
    assert kit.do(registration(0)) == []
    assert kit.master.status is J.RUNNING


def test_a_slot_that_registers_again_with_another_address_fails_the_job():
    kit = MasterKit().to_running()
    kit.say(1, m.RegisterSlot(m.SlotAddress(SlotId(1), "elsewhere", 1, 2), ""))
    assert kit.master.message == (
        "job 'pv' failed: slot 1 (pid 101 on host host1) broke the protocol: "
        "it registered twice, with different addresses"
    )


@pytest.mark.parametrize("slot", [-1, 2, 99])
def test_a_registration_of_no_slot_of_the_job_is_refused(slot):
    kit = MasterKit().to_starting()
    assert kit.do(registration(slot)) == [ev.CloseSlot(SlotId(slot))]


def test_a_registration_for_another_slot_than_the_connection_is_refused():
    kit = MasterKit().to_starting()
    assert kit.say(0, m.RegisterSlot(address(1), "")) == [ev.CloseSlot(SlotId(0))]


def test_a_registration_before_there_is_a_gang_or_after_the_end_is_refused():
    kit = MasterKit().to_waiting()
    assert kit.do(registration(0)) == [ev.CloseSlot(SlotId(0))]
    kit.do(ev.CancelRequested("test"))
    assert kit.master.status is J.CANCELED
    assert kit.do(registration(0)) == [ev.CloseSlot(SlotId(0))]


def test_a_slot_that_registers_while_the_job_stops_is_told_to_stop():
    kit = MasterKit().to_starting()
    kit.do(ev.CancelRequested("enough"))
    assert kit.do(registration(0)) == [ev.SendToSlot(SlotId(0), m.Cancel("enough"))]


# ---- the good end ----


def test_a_job_finishes_when_all_slots_have_and_the_gang_has_ended():
    kit = MasterKit().to_running()
    assert kit.finish_slot(0) == [ev.CloseSlot(SlotId(0))]
    kit.do(ev.SlotDisconnected(SlotId(0), "closed"))
    assert kit.finish_slot(1) == [ev.CloseSlot(SlotId(1))]
    assert kit.master.status is J.RUNNING
    assert kit.do(ev.GangEnded(None)) == [ev.AttemptEnded(J.FINISHED, "")]
    assert kit.master.status_history == (J.CREATED, J.WAITING_FOR_SLOTS, J.RUNNING, J.FINISHED)
    assert {e.state for e in kit.master.graph} == {E.FINISHED}


def test_the_news_of_the_gangs_end_may_overtake_the_last_words_of_a_slot():
    kit = MasterKit().to_running()
    kit.finish_slot(0)
    kit.do(ev.GangEnded(None))
    kit.pass_ms(200)
    kit.finish_slot(1)
    assert kit.ends() == [ev.AttemptEnded(J.FINISHED, "")]


def test_what_spark_says_after_all_work_is_done_does_not_fail_the_job():
    kit = MasterKit().to_running()
    kit.finish_slot(0)
    kit.finish_slot(1)
    kit.do(ev.GangEnded("executor lost"))
    assert kit.ends() == [ev.AttemptEnded(J.FINISHED, "")]


def test_a_gang_that_does_not_end_after_all_work_is_done_is_cancelled():
    kit = MasterKit().to_running()
    kit.finish_slot(0)
    kit.finish_slot(1)
    assert not any(isinstance(a, (ev.AttemptEnded, ev.CancelGang)) for a in kit.pass_ms(4_900))
    assert kit.pass_ms(200) == [ev.CancelGang(), ev.AttemptEnded(J.FINISHED, "")]


def test_a_job_that_has_done_all_its_work_can_no_longer_be_cancelled():
    kit = MasterKit().to_running()
    kit.finish_slot(0)
    kit.finish_slot(1)
    assert kit.do(ev.CancelRequested("too late")) == []
    kit.do(ev.GangEnded(None))
    assert kit.ends() == [ev.AttemptEnded(J.FINISHED, "")]


# ---- cancellation ----


def test_cancel_tells_the_slots_and_ends_when_all_are_gone():
    kit = MasterKit().to_running()
    assert kit.do(ev.CancelRequested("enough")) == [
        ev.SendToSlot(SlotId(0), m.Cancel("enough")),
        ev.SendToSlot(SlotId(1), m.Cancel("enough")),
    ]
    assert kit.master.status is J.CANCELLING
    kit.states(0, E.CANCELING, E.CANCELED)
    kit.say(0, m.SlotFinished())
    kit.do(ev.SlotDisconnected(SlotId(1), ""))
    assert kit.actions[-1] == ev.CancelGang()
    kit.do(ev.GangEnded("cancelled"))
    assert kit.ends() == [ev.AttemptEnded(J.CANCELED, "job 'pv' was cancelled: enough")]
    assert all(e.state.is_terminal for e in kit.master.graph)


def test_slots_that_do_not_heed_a_cancellation_lose_their_processes_after_the_grace():
    kit = MasterKit(cancel_grace="1 s").to_running()
    kit.do(ev.CancelRequested("enough"))
    assert ev.CancelGang() not in kit.pass_ms(900)
    assert ev.CancelGang() in kit.pass_ms(100)
    assert kit.ends() == []
    kit.pass_ms(3_000)
    assert [e.status for e in kit.ends()] == [J.CANCELED]
    assert kit.actions.count(ev.CancelGang()) == 1


def test_cancel_before_the_deployment_ends_the_gang_at_once():
    kit = MasterKit().to_starting()
    kit.do(registration(0))
    actions = kit.do(ev.CancelRequested("enough"))
    assert actions == [ev.SendToSlot(SlotId(0), m.Cancel("enough")), ev.CancelGang()]


@pytest.mark.parametrize("submitted", [True, False])
def test_cancel_without_a_gang_ends_the_job_at_once(submitted):
    kit = MasterKit()
    if submitted:
        kit.to_waiting()
    kit.do(ev.CancelRequested("enough"))
    assert [e.status for e in kit.ends()] == [J.CANCELED]
    assert kit.do(ev.SubmissionRequested(), ev.SlotsCounted(9), ev.Tick()) == []


def test_a_second_cancel_or_a_failure_while_cancelling_changes_nothing():
    kit = MasterKit().to_running()
    kit.do(ev.CancelRequested("first"))
    assert kit.do(ev.CancelRequested("second")) == []
    kit.say(1, kit.failed_task())
    kit.do(ev.SlotDisconnected(SlotId(0), ""), ev.SlotDisconnected(SlotId(1), ""), ev.GangEnded("x"))
    assert kit.ends() == [ev.AttemptEnded(J.CANCELED, "job 'pv' was cancelled: first")]


# ---- splits and collected records ----


def test_a_request_for_a_split_goes_to_the_enumerator_and_its_answer_to_the_readers_slot():
    kit = MasterKit().to_running()
    assert kit.say(1, m.RequestSplit(SOURCE, 1)) == [ev.AskEnumerator(SOURCE, 1)]
    assert kit.do(ev.SplitsAssigned(SOURCE, 1, (b"{}",)), ev.SplitsExhausted(SOURCE, 1)) == [
        ev.SendToSlot(SlotId(1), m.AssignSplits(SOURCE, 1, (b"{}",))),
        ev.SendToSlot(SlotId(1), m.NoMoreSplits(SOURCE, 1)),
    ]


def test_splits_that_are_assigned_before_the_deployment_follow_it():
    kit = MasterKit().to_starting()
    assert kit.do(ev.SplitsAssigned(SOURCE, 1, (b"{}",))) == []
    kit.do(registration(0), registration(1))
    to_slot = [a.message for a in kit.actions if isinstance(a, ev.SendToSlot) and a.slot == 1]
    assert [type(message) for message in to_slot] == [m.Deploy, m.AssignSplits]


def test_collected_records_are_delivered_once_and_acknowledged_when_taken():
    kit = MasterKit().to_running()
    batch = m.CollectedBatch(SINK, 1, 1, b"arrow")
    assert kit.say(1, batch, batch) == [ev.DeliverCollected(SINK, 1, 1, b"arrow")]
    assert kit.do(ev.CollectedConsumed(SINK, 1, 1)) == [
        ev.SendToSlot(SlotId(1), m.CollectedTaken(SINK, 1, 1))
    ]


# ---- what a user can read ----


def test_the_slot_table_shows_processes_states_and_subtasks():
    kit = MasterKit().to_starting()
    kit.do(registration(1))
    awaited, registered = kit.master.slot_table()
    assert (awaited.state, awaited.pid) == (SlotState.AWAITED, 0)
    assert (registered.state, registered.host, registered.pid, registered.executor) == (
        SlotState.REGISTERED,
        "host1",
        101,
        "executor 1",
    )
    assert registered.subtasks == ("numbers -> parse (1/2)", "count -> sink (1/2)")
    kit.do(registration(0))
    kit.say(0, m.SlotHeartbeat(1, (), 1_500, "parse"))
    row = kit.master.slot_table()[0]
    assert (row.state, row.stuck_ms, row.inside) == (SlotState.RUNNING, 1_500, "parse")
    assert msgspec.json.encode(kit.master.slot_table())


def test_metrics_are_the_latest_of_every_slot_also_after_its_end():
    kit = MasterKit().to_running()
    kit.say(0, m.SlotHeartbeat(1, ((VertexId(0), b"old"),)), m.SlotHeartbeat(2, ((VertexId(0), b"new"),)))
    kit.say(0, m.SlotHeartbeat(3))
    kit.say(1, m.SlotHeartbeat(1, ((VertexId(1), b"other"),)))
    kit.finish_slot(0)
    assert kit.master.subtask_metrics() == [(0, b"new"), (1, b"other")]
