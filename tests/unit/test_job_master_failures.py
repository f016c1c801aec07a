"""Which of several reports is taken for the cause, how long the job waits to know, and what the user reads."""

from __future__ import annotations

import itertools

import pytest

from tests.unit.job_master_kit import MasterKit, registration
from tidegate.core.ids import OperatorId, SlotId, VertexId
from tidegate.core.states import ExecutionState as E
from tidegate.core.states import JobStatus as J
from tidegate.jobmanager import events as ev
from tidegate.protocol import messages as m


def ended_message(kit: MasterKit) -> str:
    """Let every slot and the gang go, and return what the user reads."""
    kit.pass_ms(400, beating=False)
    for slot in kit.slots:
        kit.do(ev.SlotDisconnected(SlotId(slot), ""))
    kit.do(ev.GangEnded(None))
    [end] = kit.ends()
    assert end.status is J.FAILED
    return end.message


def test_a_failed_task_is_shown_with_operator_subtask_position_record_and_the_users_traceback():
    kit = MasterKit(parallelism=4).to_running()
    trace = 'Traceback (most recent call last):\n  File "job.py", line 3, in parse\nValueError: bad'
    kit.say(
        2,
        m.TaskFailed(
            VertexId(0),
            2,
            "parse",
            "ValueError: bad",
            trace,
            "line 17 of clicks-0.jsonl",
            "Click(app_id='a')",
        ),
    )
    assert kit.master.status is J.FAILING
    assert ended_message(kit) == (
        "job 'pv' failed: operator 'parse' (subtask 2 of 4) raised ValueError: bad\n"
        "  at line 17 of clicks-0.jsonl, record Click(app_id='a')\n"
        "  Traceback (most recent call last):\n"
        '    File "job.py", line 3, in parse\n'
        "  ValueError: bad"
    )


@pytest.mark.parametrize(
    ("reason", "trace", "expected"),
    [
        (
            "the function called sys.exit(3)",
            "",
            "operator 'parse' (subtask 1 of 2): the function called sys.exit(3)",
        ),
        ("KeyError", "KeyError", "operator 'parse' (subtask 1 of 2) raised KeyError"),
        (
            "tidegate.core.errors.SchemaError: column 'a' is int",
            "SchemaError: column 'a' is int",
            "operator 'parse' (subtask 1 of 2) raised tidegate.core.errors.SchemaError: column 'a' is int",
        ),
    ],
)
def test_a_reason_is_said_once(reason, trace, expected):
    kit = MasterKit().to_running()
    kit.say(1, m.TaskFailed(VertexId(0), 1, "parse", reason, trace))
    assert ended_message(kit) == f"job 'pv' failed: {expected}"


def test_a_failing_job_tells_all_slots_to_stop_and_ends_when_they_are_gone():
    kit = MasterKit().to_running()
    actions = kit.say(1, kit.failed_task(1))
    assert [(a.slot, type(a.message)) for a in actions] == [(0, m.Cancel), (1, m.Cancel)]
    kit.say(1, m.SlotFinished())
    kit.states(0, E.CANCELED)
    assert kit.say(0, m.SlotFinished()) == [ev.CloseSlot(SlotId(0)), ev.CancelGang()]
    assert kit.ends() == []
    kit.do(ev.GangEnded(None))
    assert len(kit.ends()) == 1
    assert [s.state for s in kit.master.graph.describe().subtasks()] == [
        E.CANCELED,
        E.FAILED,
        E.CANCELED,
        E.CANCELED,
    ]


def test_a_failing_job_ends_after_a_bound_even_if_nobody_answers():
    kit = MasterKit(cancel_grace="2 s").to_running()
    kit.say(1, kit.failed_task(1))
    kit.pass_ms(4_900)
    assert kit.ends() == []
    kit.pass_ms(100)
    assert len(kit.ends()) == 1


def test_the_first_failed_task_is_the_one_that_is_shown():
    kit = MasterKit().to_running()
    kit.say(1, kit.failed_task(1, "ValueError: first"))
    kit.say(0, kit.failed_task(0, "ValueError: second"))
    assert "first" in ended_message(kit)


def test_a_lost_process_is_shown_with_pid_host_and_what_it_ran():
    kit = MasterKit().to_running()
    kit.do(ev.SlotDisconnected(SlotId(1), "reset"))
    assert kit.master.status is J.RUNNING, "a better report may be on its way"
    kit.pass_ms(300)
    assert kit.master.status is J.FAILING
    assert ended_message(kit) == (
        "job 'pv' failed: the process of slot 1 (pid 101 on host host1) ended without a word while running "
        "'numbers', 'parse', 'count', 'sink'; it was killed (out of memory, perhaps) or called os._exit"
    )


def test_what_spark_knows_of_a_lost_executor_takes_the_place_of_a_guess_also_when_it_comes_later():
    kit = MasterKit().to_running()
    kit.do(ev.SlotDisconnected(SlotId(1), "reset"))
    kit.pass_ms(300)
    assert kit.master.status is J.FAILING
    kit.do(ev.SlotDisconnected(SlotId(0), ""))
    said = "Spark lost its executor 1: worker lost: Not receiving heartbeat for 60 seconds"
    kit.do(ev.GangEnded(said, ev.GangFault.EXECUTOR_LOST))
    [end] = kit.ends()
    assert "out of memory" not in end.message
    assert end.message.startswith("job 'pv' failed: the process of slot 1 (pid 101 on host host1) ended")
    assert end.message.endswith(f"; {said}")


def test_a_process_that_goes_before_the_deployment_is_named():
    kit = MasterKit().to_starting()
    kit.do(registration(0), ev.SlotDisconnected(SlotId(0), "reset"))
    assert (
        "the process of slot 0 (pid 100 on host host0) ended without a word; it was killed"
        in ended_message(kit)
    )


def test_a_connection_that_goes_before_it_registered_may_come_again():
    kit = MasterKit().to_starting()
    kit.do(ev.SlotDisconnected(SlotId(0), "reset"), registration(0), registration(1))
    assert kit.master.status is J.RUNNING


REPORTS = {
    "task": lambda kit: kit.say(1, kit.failed_task(1)),
    "slot": lambda kit: kit.do(ev.SlotDisconnected(SlotId(2), "")),
    "state": lambda kit: kit.say(3, m.TaskStateChanged(VertexId(0), 3, E.FAILED)),
    "peer": lambda kit: kit.say(0, m.PeerLost(SlotId(1), "Connection reset by peer")),
    "gang": lambda kit: kit.do(ev.GangEnded("Job aborted due to stage failure")),
}
WORDS = {
    "task": "raised ValueError: bad",
    "slot": "the process of slot 2",
    "state": "operator 'numbers -> parse' (subtask 3 of 4) failed",
    "peer": "slot 0 (pid 100 on host host0) lost its data connection to slot 1 (pid 101 on host host1): "
    "Connection reset by peer",
    "gang": "Spark ended the job's tasks: Job aborted due to stage failure",
}


@pytest.mark.parametrize("reports", list(itertools.permutations(REPORTS, 2)), ids="-then-".join)
def test_the_report_nearest_to_the_cause_wins_in_whatever_order_they_come(reports):
    kit = MasterKit(parallelism=4).to_running()
    for report in reports:
        REPORTS[report](kit)
        kit.now_ms += 100
    best = min(reports, key=list(REPORTS).index)
    assert WORDS[best] in ended_message(kit)


@pytest.mark.parametrize("report", REPORTS)
def test_every_report_alone_fails_the_job(report):
    kit = MasterKit(parallelism=4).to_running()
    REPORTS[report](kit)
    assert WORDS[report] in ended_message(kit)


def test_a_report_that_comes_too_late_changes_nothing():
    kit = MasterKit(parallelism=4).to_running()
    REPORTS["peer"](kit)
    kit.pass_ms(300)
    REPORTS["task"](kit)
    assert WORDS["peer"] in ended_message(kit)


def test_a_failure_that_is_not_yet_decided_wins_over_a_cancellation():
    kit = MasterKit(parallelism=4).to_running()
    REPORTS["slot"](kit)
    kit.do(ev.CancelRequested("enough"))
    assert WORDS["slot"] in ended_message(kit)


def test_sparks_own_stack_is_left_out_of_its_words():
    kit = MasterKit().to_starting()
    kit.do(
        ev.GangEnded("Job aborted\nCaused by: x\n\tat org.apache.spark.A.b(C.scala:1)\n    at d.E.f(G.java)")
    )
    kit.pass_ms(300)
    assert kit.ends() == [
        ev.AttemptEnded(J.FAILED, "job 'pv' failed: Spark ended the job's tasks: Job aborted\n  Caused by: x")
    ]


def test_tasks_that_return_too_early_fail_the_job():
    kit = MasterKit().to_running()
    kit.finish_slot(0)
    kit.do(ev.GangEnded(None))
    assert "Spark's tasks returned before the job had finished" in ended_message(kit)


def test_an_enumerator_that_raises_fails_the_job_by_the_sources_name():
    kit = MasterKit().to_waiting()
    kit.do(ev.EnumeratorFailed(OperatorId("id-numbers"), "FileNotFoundError: no clicks.jsonl", ""))
    assert kit.ends() == [
        ev.AttemptEnded(
            J.FAILED,
            "job 'pv' failed: source 'numbers' cannot be read: FileNotFoundError: no clicks.jsonl",
        )
    ]


# ---- heartbeats ----


def test_the_master_beats_at_its_interval_to_every_living_slot():
    kit = MasterKit(heartbeat_interval="500 ms").to_running()
    kit.finish_slot(0)
    kit.pass_ms(2_000)
    assert kit.sent(m.MasterHeartbeat, 0) == []
    assert [a.message.sequence for a in kit.sent(m.MasterHeartbeat, 1)] == [1, 2, 3, 4]


def test_a_silent_slot_fails_the_job_with_its_process_and_what_it_ran():
    kit = MasterKit(heartbeat_timeout="10 s").to_running()
    kit.say(1, m.SlotHeartbeat(1, (), 900, "parse"))
    for _ in range(103):
        kit.now_ms += 100
        kit.say(0, m.SlotHeartbeat(1))
        kit.do(ev.Tick())
    assert kit.master.status is J.FAILING
    assert ended_message(kit) == (
        "job 'pv' failed: slot 1 (pid 101 on host host1) has been silent for 10 s while running 'numbers', "
        "'parse', 'count', 'sink'; when last heard it was inside 'parse'; its process is stopped or cut off"
    )


def test_any_word_of_a_slot_counts_as_a_heartbeat():
    kit = MasterKit(heartbeat_timeout="1 s").to_running()
    for _ in range(50):
        kit.now_ms += 100
        kit.say(0, m.RequestSplit(OperatorId("id-numbers"), 0))
        kit.say(1, m.SlotHeartbeat(1))
        kit.do(ev.Tick())
    assert kit.master.status is J.RUNNING


def test_a_slot_that_registered_and_fell_silent_while_others_are_awaited_fails_the_job():
    kit = MasterKit(heartbeat_timeout="1 s").to_starting()
    kit.do(registration(0))
    kit.pass_ms(1_400, beating=False)
    assert "slot 0 (pid 100 on host host0) has been silent for 1 s; its process" in ended_message(kit)


def test_a_driver_that_was_itself_held_up_does_not_blame_the_slots():
    kit = MasterKit(heartbeat_timeout="10 s").to_running()
    kit.pass_ms(1_000)
    kit.now_ms += 60_000
    kit.do(ev.Tick())
    kit.pass_ms(1_000)
    assert kit.master.status is J.RUNNING


def test_slots_that_do_not_listen_lose_their_processes_without_the_grace():
    kit = MasterKit(parallelism=1, heartbeat_timeout="1 s", cancel_grace="1 min").to_running()
    kit.pass_ms(1_400, beating=False)
    assert kit.actions[-1] == ev.CancelGang()


def test_a_stopped_process_does_not_hold_up_the_end_once_spark_has_let_go_of_it():
    kit = MasterKit(parallelism=1, heartbeat_timeout="1 s", cancel_grace="1 min").to_running()
    kit.pass_ms(1_400, beating=False)
    kit.do(ev.GangEnded("cancelled"))
    assert "has been silent for 1 s" in kit.ends()[0].message


# ---- broken protocol ----


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (m.TaskStateChanged(VertexId(0), 1, E.DEPLOYING), "cannot go from running to deploying"),
        (m.TaskStateChanged(VertexId(0), 0, E.FINISHED), "subtask 0 of vertex 0, which it does not run"),
        (m.TaskStateChanged(VertexId(7), 1, E.FINISHED), "subtask 1 of vertex 7, which it does not run"),
        (m.RequestSplit(OperatorId("id-numbers"), 0), "asks for a split of operator id-numbers/0"),
        (m.RequestSplit(OperatorId("nothing"), 1), "asks for a split of operator nothing/1"),
        (m.CollectedBatch(OperatorId("id-sink"), 0, 1, b""), "sends records of operator id-sink/0"),
        (
            m.SlotFinished(),
            "says that it has finished, but subtask 1 of 2 of 'numbers -> parse' is running",
        ),
    ],
)
def test_a_slot_that_breaks_the_protocol_fails_the_job_by_name(message, words):
    kit = MasterKit().to_running()
    kit.say(1, message)
    assert kit.master.status is J.FAILING
    text = ended_message(kit)
    assert text.startswith("job 'pv' failed: slot 1 (pid 101 on host host1) broke the protocol: ")
    assert words in text


def test_a_malformed_message_fails_the_job_by_the_slots_name():
    kit = MasterKit().to_running()
    kit.do(ev.MessageMalformed(SlotId(1), "not a message from a slot"))
    assert "slot 1 (pid 101 on host host1) broke the protocol: not a message" in ended_message(kit)


def test_a_slot_may_beat_but_not_speak_before_it_registers():
    kit = MasterKit().to_starting()
    assert kit.say(1, m.SlotHeartbeat(1)) == []
    kit.say(1, m.SlotFinished())
    assert "slot 1 broke the protocol: it sent SlotFinished before it registered" in ended_message(kit)


def test_a_failed_task_of_an_unknown_vertex_is_still_shown():
    kit = MasterKit().to_running()
    kit.say(1, m.TaskFailed(VertexId(9), 0, "the slot", "ImportError: no module", ""))
    assert ended_message(kit) == "job 'pv' failed: operator 'the slot' raised ImportError: no module"
