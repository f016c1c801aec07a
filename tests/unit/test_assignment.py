"""Who gets what on a restore: nothing lost, nothing twice, and what does not fit is refused by name."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.manifest_kit import (
    CLICKS,
    DEDUPE,
    OUT,
    RULES,
    Contents,
    Vertex,
    manifest,
    operator,
    state_file,
    vertices,
)
from tidegate.core.errors import ProtocolError, StateCompatibilityError
from tidegate.core.ids import EdgeId, JobId, SubtaskId, VertexId
from tidegate.core.key_groups import key_group_range
from tidegate.graph.job_graph import JobEdge
from tidegate.snapshot.assignment import OperatorRestore, Restore, assign, decode_restore, encode_restore
from tidegate.snapshot.handles import OperatorSnapshot, OperatorStateHandle, SubtaskSnapshot
from tidegate.snapshot.manifest import Manifest, decode_manifest, make_manifest, manifest_edges


def restored(restore: Restore, vertex: int, operator_id: str) -> list[OperatorRestore]:
    """What each subtask gets for an operator."""
    subtasks = [s for id, s in sorted(restore.subtasks.items()) if id.vertex == vertex]
    return [next(o for o in s.operators if o.operator == operator_id) for s in subtasks]


def entries(restore: OperatorRestore, name: str) -> list[object]:
    return [msgspec.json.decode(e) for s in restore.states if s.name == name for e in s.entries]


def rows(restore: OperatorRestore, name: str) -> list[tuple[str, int]]:
    """(file, row) of each entry."""
    return [
        (s.file.path, s.first_row + i)
        for s in restore.states
        if s.name == name and s.file is not None
        for i in range(s.rows)
    ]


def list_manifest(lists: list[list[int]], redistribution: str = "split") -> Manifest:
    """The checkpoint of an operator whose subtasks hold these lists, once as plain entries and once in files."""
    snapshots = []
    for i, values in enumerate(lists):
        path = f"chk-1/a0-rules-{i}-rows"
        states = (
            OperatorStateHandle(
                "plain", redistribution, tuple(msgspec.Raw(b"%d" % v) for v in values), rows=len(values)
            ),
            OperatorStateHandle(
                "typed", redistribution, (), state_file(path, b"x") if values else None, len(values)
            ),
        )
        snapshots.append(SubtaskSnapshot(VertexId(0), i, (OperatorSnapshot(RULES.id, None, states),)))
    return make_manifest(
        job_id=JobId("9c02"),
        job_name="pv",
        attempt=0,
        checkpoint_id=1,
        triggered_ms=0,
        completed_ms=1,
        vertices=[Vertex(VertexId(0), "rules", (RULES,), len(lists))],
        snapshots=snapshots,
        enumerators={},
    )


def rules_vertex(parallelism: int) -> list[Vertex]:
    return [Vertex(VertexId(0), "rules", (RULES,), parallelism)]


# ---- the same program, the same parallelism ----


def test_unchanged_every_subtask_gets_its_own_back():
    stored = manifest()
    restore = assign(stored, vertices())

    clicks, dedupe = restored(restore, 0, CLICKS.id), restored(restore, 1, DEDUPE.id)
    assert [entries(c, "splits") for c in clicks] == [
        [{"id": "clicks.json:0", "position": 17}],
        [{"id": "clicks.json:1", "position": 1017}],
    ]
    assert [[k.key_groups for k in d.keyed] for d in dedupe] == [[(0, 63)], [(64, 127)]]
    assert [len(o.states) for o in restored(restore, 1, RULES.id)] == [4, 4]  # pending, 2 × all, rules
    assert restored(restore, 1, OUT.id) == [OperatorRestore(OUT.id)] * 2
    assert bytes(restore.enumerators[CLICKS.id]) == b'{"pending":["clicks.json:9"],"found":10}'
    assert [s.finished for _, s in sorted(restore.subtasks.items())] == [False, True, False, False]
    assert restore.left_behind == ()


def test_what_a_subtask_gets_crosses_the_wire():
    for restore in assign(manifest(in_flight=True), vertices()).subtasks.values():
        assert decode_restore(encode_restore(restore)) == restore
    with pytest.raises(ProtocolError, match="not a restored state"):
        decode_restore(b"\x00")


def test_the_files_of_all_subtasks_are_those_of_the_checkpoint():
    stored = manifest(in_flight=True)
    restore = assign(stored, vertices())
    assert {f for s in restore.subtasks.values() for f in s.files()} == set(stored.files)


# ---- another parallelism ----


def test_three_list_entries_over_four_subtasks_leave_one_empty():
    restore = assign(list_manifest([[1, 2], [3]]), rules_vertex(4))
    assert [entries(o, "plain") for o in restored(restore, 0, RULES.id)] == [[1], [2], [3], []]


@given(
    lists=st.lists(st.lists(st.integers(0, 99), max_size=9), min_size=1, max_size=6), now=st.integers(1, 8)
)
def test_list_entries_are_dealt_out_evenly_and_exactly_once(lists, now):
    dealt = restored(assign(list_manifest(lists), rules_vertex(now)), 0, RULES.id)

    plain = [entries(o, "plain") for o in dealt]
    typed = [rows(o, "typed") for o in dealt]
    everything = [v for values in lists for v in values]
    assert [v for share in plain for v in share] == everything
    assert [r for share in typed for r in share] == [
        (f"chk-1/a0-rules-{i}-rows", row) for i, values in enumerate(lists) for row in range(len(values))
    ]
    if now == len(lists):
        assert plain == lists
    else:
        sizes = [len(share) for share in plain]
        assert max(sizes) - min(sizes) <= 1
    assert [len(share) for share in typed] == [len(share) for share in plain]


@pytest.mark.parametrize("now", [1, 2, 5])
def test_every_subtask_sees_the_union_of_a_union_list(now):
    dealt = restored(assign(list_manifest([[1, 2], [], [3]], "union"), rules_vertex(now)), 0, RULES.id)
    assert [entries(o, "plain") for o in dealt] == [[1, 2, 3]] * now
    assert [len(rows(o, "typed")) for o in dealt] == [3] * now


@pytest.mark.parametrize("now", [1, 2, 5])
def test_every_subtask_gets_one_copy_of_a_broadcast_state(now):
    dealt = restored(
        assign(list_manifest([[1, 2], [1, 2], [1, 2]], "broadcast"), rules_vertex(now)), 0, RULES.id
    )
    assert [entries(o, "plain") for o in dealt] == [[1, 2]] * now


@given(before=st.integers(1, 9), now=st.integers(1, 20))
def test_every_key_group_is_found_by_the_subtask_that_owns_it_now(before, now):
    dealt = restored(assign(manifest(parallelism=before), vertices(now)), 1, DEDUPE.id)
    for subtask, restore in enumerate(dealt):
        mine = key_group_range(subtask, now, 128)
        for group in mine:
            assert sum(group in handle.range for handle in restore.keyed) == 1
        assert all(len(handle.range.intersection(mine)) for handle in restore.keyed)


def test_source_splits_are_dealt_out_over_more_and_fewer_readers():
    for now in (1, 2, 3, 7):
        dealt = restored(assign(manifest(parallelism=3), vertices(now)), 0, CLICKS.id)
        ids = [split["id"] for o in dealt for split in entries(o, "splits")]
        assert ids == ["clicks.json:0", "clicks.json:1", "clicks.json:2"]


def test_a_finished_subtask_is_not_taken_for_finished_under_another_parallelism():
    assert not any(s.finished for s in assign(manifest(), vertices(3)).subtasks.values())


# ---- a changed program ----


def test_operators_are_found_in_other_chains_and_new_ones_begin_without_state():
    new = operator("enrich")
    changed = [
        Vertex(VertexId(0), "clicks -> enrich", (CLICKS, new), 2),
        Vertex(VertexId(1), "dedupe", (DEDUPE,), 3),
        Vertex(VertexId(2), "rules -> out", (RULES, OUT), 1),
    ]
    restore = assign(manifest(), changed)
    assert [o.operator for o in restore.subtasks[SubtaskId(VertexId(0), 0)].operators] == [CLICKS.id]
    assert [len(o.keyed) for o in restored(restore, 1, DEDUPE.id)] == [1, 2, 1]
    assert len(rows(restored(restore, 2, RULES.id)[0], "pending")) == 6


def test_another_max_parallelism_is_refused_with_both_numbers():
    with pytest.raises(
        StateCompatibilityError,
        match=re.escape(
            "operator 'dedupe' cannot restore: max parallelism is 128 in checkpoint 42 but 256 in the job. "
            "Set max_parallelism=128, or start without state."
        ),
    ):
        assign(manifest(), vertices(max_parallelism=256))


def test_max_parallelism_may_change_where_no_state_is_keyed():
    changed = [Vertex(VertexId(0), "rules", (RULES,), 2, max_parallelism=256)]
    assert len(assign(list_manifest([[1], [2]]), changed).subtasks) == 2


def test_state_without_its_operator_is_refused_unless_that_is_allowed():
    without = [vertices()[0], Vertex(VertexId(1), "dedupe -> out", (DEDUPE, OUT))]
    with pytest.raises(
        StateCompatibilityError,
        match=r"operator 'rules' \(uid 'r-1'\) has state in checkpoint 42 but is not in the job\. "
        r"Give the operator its uid back, or set allow_non_restored_state",
    ):
        assign(manifest(), without)
    assert assign(manifest(), without, allow_non_restored_state=True).left_behind == ("'rules' (uid 'r-1')",)


def test_an_operator_of_the_same_name_under_another_uid_is_pointed_at():
    renamed = [vertices()[0], Vertex(VertexId(1), "x", (operator("dedupe", "d-2"), RULES, OUT))]
    with pytest.raises(
        StateCompatibilityError, match="The job's operator 'dedupe' has another uid or place than it had"
    ):
        assign(manifest(), renamed)


def test_an_operator_that_had_no_state_may_go():
    without = [vertices()[0], Vertex(VertexId(1), "dedupe -> rules", (DEDUPE, RULES))]
    assert assign(manifest(), without).left_behind == ()


# ---- in-flight batches ----


def test_in_flight_batches_go_back_to_their_subtasks():
    restore = assign(manifest(in_flight=True), vertices())
    handles = {id: s.in_flight.file.path for id, s in restore.subtasks.items() if s.in_flight is not None}
    assert handles == {SubtaskId(VertexId(1), i): f"chk-42/a0-v1-{i}-in-flight" for i in (0, 1)}


def test_in_flight_batches_forbid_another_parallelism():
    with pytest.raises(
        StateCompatibilityError,
        match=r"checkpoint 42 holds in-flight batches .*task 'clicks' is 2 in the checkpoint but 4 in the job\. "
        r"Set parallelism=2, or restore an aligned checkpoint",
    ):
        assign(manifest(in_flight=True), vertices(4))


def test_in_flight_batches_forbid_other_tasks():
    changed = [
        vertices()[0],
        Vertex(VertexId(1), "dedupe", (DEDUPE,)),
        Vertex(VertexId(2), "rest", (RULES, OUT)),
    ]
    with pytest.raises(
        StateCompatibilityError, match=r"the tasks must be the same: .*'dedupe -> rules -> out' but"
    ):
        assign(manifest(Contents(), in_flight=True), changed)


def edge(**changes: object) -> JobEdge:
    made = JobEdge(EdgeId(0), VertexId(0), 0, None, VertexId(1), 0, "hash", False, b"", ("app", "n"))
    return msgspec.structs.replace(made, **changes)


def test_in_flight_batches_forbid_other_exchanges():
    stored = msgspec.structs.replace(manifest(in_flight=True), edges=manifest_edges([edge()]))
    stored = decode_manifest(stored.encode())
    assign(stored, vertices(), [edge(blob=b"pickled in another way")])
    for changed, said in (
        (
            [edge(partitioning="rebalance")],
            r"'clicks' -rebalance of app, n-> input 0 of 'dedupe -> rules -> out'",
        ),
        ([edge(tag="late")], r"'clicks' side output 'late' -hash"),
        ([edge(input=1)], r"input 1 of 'dedupe"),
        ([edge(columns=("app",))], r"-hash of app->"),
        ([edge(), edge(id=EdgeId(1))], r"; 'clicks' -hash"),
    ):
        with pytest.raises(
            StateCompatibilityError, match=rf"it has 'clicks' -hash of app, n-> .* but the job has .*{said}"
        ):
            assign(stored, vertices(), changed)


def test_an_aligned_checkpoint_names_no_exchanges_and_takes_any():
    assert b'"edges"' not in manifest().encode()
    assign(manifest(), vertices(), [edge(partitioning="rebalance")])


def test_an_operator_that_stored_nothing_may_leave_the_job():
    """A sink without committables, or what the runtime itself keeps with the head of a task."""
    nothing = OperatorStateHandle("committables", "split", (), rows=0)
    clock = OperatorStateHandle("$watermark", "union", (msgspec.Raw(b"7"),), rows=1)
    pending = OperatorStateHandle("committables", "split", (msgspec.Raw(b"{}"),), rows=1)
    for states, has_state in (((nothing, clock), False), ((nothing, pending), True)):
        snapshot = SubtaskSnapshot(VertexId(0), 0, (OperatorSnapshot(RULES.id, None, states),))
        stored = make_manifest(
            job_id=JobId("9c02"),
            job_name="pv",
            attempt=0,
            checkpoint_id=1,
            triggered_ms=0,
            completed_ms=1,
            vertices=rules_vertex(1),
            snapshots=[snapshot],
            enumerators={},
        )
        assert stored.has_state(stored.operators[0]) is has_state
        if has_state:
            with pytest.raises(
                StateCompatibilityError, match="has state in checkpoint 1 but is not in the job"
            ):
                assign(stored, vertices()[:1])
        else:
            assert assign(stored, vertices()[:1]).left_behind == ()
