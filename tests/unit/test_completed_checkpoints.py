"""Which checkpoints are retained, and that a file goes with the last one that refers to it, never before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.checkpoint_kit import completed_checkpoint, snapshot_of
from tests.unit.job_master_kit import job_graph
from tidegate.core.ids import AttemptNumber, JobId, OperatorId, SubtaskId, VertexId
from tidegate.jobmanager.checkpoint.completed_checkpoint import AcknowledgedCheckpoint, checkpoint_of
from tidegate.jobmanager.checkpoint.retention import CompletedCheckpoints, writer_of
from tidegate.snapshot.assignment import assign
from tidegate.snapshot.handles import SubtaskCheckpointMetrics
from tidegate.snapshot.manifest import decode_manifest

A0 = SubtaskId(VertexId(0), 0)


@pytest.mark.parametrize(
    ("path", "writer"),
    [
        ("chk-42/_metadata", 42),
        ("chk-42/a0-op-0-positions", 42),
        ("shared/c42-a0-op-0-base", 42),
        ("shared/c7-a3-op-1-x.sst", 7),
        ("shared/0f3a.sst", None),
        ("elsewhere/chk-42/_metadata", None),
    ],
)
def test_a_files_name_says_for_which_checkpoint_it_was_written(path, writer):
    assert writer_of(path) == writer


def test_the_newest_sound_one_is_used_and_damaged_ones_go_with_the_next_completion():
    completed = CompletedCheckpoints(2, [completed_checkpoint(i, f"shared/c{i}-x") for i in (1, 2, 3)])
    completed.mark_damaged(3, ("shared/c3-x: checksum",))
    usable = completed.usable()
    assert usable is not None
    assert usable.checkpoint_id == 2
    gone = completed.add(completed_checkpoint(4, "shared/c4-x", "shared/c2-x"), ())
    assert [d.checkpoint_id for d in gone] == [1, 3]
    assert [c.checkpoint_id for c in completed.retained] == [2, 4]
    assert completed.damaged == {}


def test_nothing_is_usable_when_all_are_damaged():
    completed = CompletedCheckpoints(2, [completed_checkpoint(1, "x")])
    completed.mark_damaged(1, ("missing",))
    assert completed.usable() is None
    assert len(completed.retained) == 1


def test_an_old_shared_file_is_named_for_deletion_by_the_last_checkpoint_that_referred_to_it():
    completed = CompletedCheckpoints(1)
    completed.add(completed_checkpoint(1, "shared/c1-base"), ())
    [first] = completed.add(completed_checkpoint(2, "shared/c1-base", "shared/c2-inc"), ())
    assert "shared/c1-base" in first.keep
    assert "shared/c1-base" not in first.delete
    [second] = completed.add(completed_checkpoint(3, "shared/c3-base"), ())
    assert set(second.delete) == {"shared/c1-base", "shared/c2-inc"}


def test_what_a_pending_checkpoint_has_acknowledged_is_held_until_it_ends():
    completed = CompletedCheckpoints(1)
    completed.add(completed_checkpoint(1, "shared/c1-base"), ())
    completed.hold(3, snapshot_of(A0, "shared/c1-base", "shared/c3-inc"))
    [gone] = completed.add(completed_checkpoint(2, "shared/c2-base"), ())
    assert "shared/c1-base" in gone.keep
    [own] = completed.abort(3)
    assert set(own.delete) == {"shared/c1-base", "shared/c3-inc"}
    assert completed.live_paths() == {"shared/c2-base"}


def test_an_acknowledged_checkpoint_becomes_a_manifest_that_can_be_dealt_out_again():
    graph = job_graph(2)
    subtasks = tuple(
        snapshot_of(SubtaskId(v.id, i), f"shared/c7-a3-x-{i}-{v.id}", operator=v.operators[0].id)
        for v in graph.vertices
        for i in range(2)
    )
    metrics = tuple(SubtaskCheckpointMetrics(sync_ms=float(n)) for n in range(4))
    enumerators = {OperatorId("id-numbers"): b'{"next":3}'}
    acknowledged = AcknowledgedCheckpoint(7, AttemptNumber(3), 1_000, 250, subtasks, metrics, enumerators)

    manifest = decode_manifest(acknowledged.manifest(JobId("job"), graph).encode())
    assert (manifest.checkpoint_id, manifest.attempt, manifest.job_name) == (7, 3, "pv")
    assert (manifest.triggered_ms, manifest.completed_ms) == (1_000, 1_250)
    assert [(s.vertex, s.subtask, s.metrics.sync_ms) for s in manifest.statistics] == [
        (0, 0, 0.0),
        (0, 1, 1.0),
        (1, 0, 2.0),
        (1, 1, 3.0),
    ]
    assert checkpoint_of(manifest, "path") == acknowledged.completed("path")
    restore = assign(manifest, graph.vertices)
    assert set(restore.subtasks) == {SubtaskId(VertexId(v), i) for v in range(2) for i in range(2)}
    assert bytes(restore.enumerators[OperatorId("id-numbers")]) == b'{"next":3}'


names = st.integers(0, 5)


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.sampled_from(["complete", "hold", "abort"]), st.sets(names, max_size=4)), max_size=25
    ),
)
def test_no_path_that_something_refers_to_is_ever_deleted(limit, steps):
    completed = CompletedCheckpoints(limit)
    held: dict[int, set[str]] = {}
    retained: list[tuple[int, frozenset[str]]] = []
    for id, (step, picked) in enumerate(steps, start=1):
        paths = {f"shared/c0-a0-op-0-{n}" for n in picked} | {f"shared/c{id}-a0-op-0-own"}
        gone = []
        if step == "hold":
            completed.hold(id, snapshot_of(A0, *sorted(paths)))
            held[id] = paths
        elif step == "abort" and held:
            ended = min(held)
            del held[ended]
            gone = completed.abort(ended)
        else:
            checkpoint = completed_checkpoint(id, *sorted(paths))
            gone = completed.add(checkpoint, tuple(held))
            retained = [*retained, (id, checkpoint.files)][-limit:]
        assert [c.checkpoint_id for c in completed.retained] == [i for i, _ in retained]
        needed = set().union(*(p for _, p in retained), *held.values())
        assert needed <= completed.live_paths()
        for discard in gone:
            assert not needed & set(discard.delete)
            assert needed <= discard.keep | {p for p in needed if writer_of(p) != discard.checkpoint_id}
