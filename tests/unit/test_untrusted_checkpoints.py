"""A checkpoint directory holds data, not code: no pickle is read from it unless the program asks for that by name.

The attacker here can write to checkpoint.dir and knows the format: checksums are right, every file is well formed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegate import (
    DataGeneratorSource,
    Environment,
    FileSink,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tidegate.connectors.datagen import sequence
from tidegate.core.errors import JobFailedError, ProgramError
from tidegate.core.ids import ChannelId, EdgeId
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.stream_graph import build_stream_graph
from tidegate.records.batch import Batch
from tidegate.records.types import ObjectType
from tidegate.records.wire import encode_batch
from tidegate.snapshot.handles import InFlightHandle
from tidegate.snapshot.manifest import decode_manifest, manifest_edges
from tidegate.storage import layout
from tidegate.storage.checkpoint_search import find_latest
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.taskmanager.barriers.in_flight import OvertakenBatch, encode_in_flight


class Evil:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def size(numbers: Any) -> int:
    return len(numbers) if isinstance(numbers, set) else 0


def objects_cross_an_exchange(place: Path, **options: Any) -> Environment:
    settings = {"checkpoint_dir": str(place / "checkpoints"), "checkpoint_interval": "10 ms"}
    env = Environment(runtime="in-process", parallelism=1, **{**settings, **options})
    numbers = DataGeneratorSource(fields={"n": sequence()}, count=500, rate=1000)
    sets = env.from_source(numbers, uid="numbers").map(lambda r: {r.n}, uid="sets")
    sets.rebalance().map(size, uid="sizes").sink_to(FileSink(place / "out"), uid="files")
    return env


def with_a_checkpoint(place: Path) -> FilesystemStorage:
    """Run until there is a checkpoint, and stop."""
    client = objects_cross_an_exchange(place).execute_async("objects")
    while not client.checkpoints().completed:
        client.simulation.run_one_event()
    client.cancel()
    return FilesystemStorage(str(place / "checkpoints"), client.job_id)


def put_a_pickle_in_flight(place: Path, storage: FilesystemStorage) -> None:
    """Add a batch to the newest checkpoint, as an unaligned one would have had it."""
    found = find_latest(storage.root, "objects").checkpoint
    assert found is not None
    manifest = found.manifest
    made = objects_cross_an_exchange(place)._program("objects")
    graph = build_job_graph(build_stream_graph(made.name, made.sinks, made.transformations, made.options))
    (edge,) = graph.edges
    batch = Batch(ObjectType(), rows=[Evil(place / "evil")])
    overtaken = OvertakenBatch("in", ChannelId(EdgeId(0), 0, 0), encode_batch(batch).to_pybytes())
    writer = storage.writer(manifest.checkpoint_id, manifest.attempt, "forged", 0)
    file = writer.write("in-flight", encode_in_flight([overtaken]), "exclusive")
    vertices = [
        msgspec.structs.replace(v, in_flight=((0, InFlightHandle(file, 1)),)) if v.id == edge.target else v
        for v in manifest.vertices
    ]
    forged = msgspec.structs.replace(
        manifest,
        vertices=tuple(vertices),
        files=tuple(sorted([*manifest.files, file], key=lambda f: f.path)),
        edges=manifest_edges(graph.edges),
    ).encode()
    decode_manifest(forged)
    Path(storage.place.join(layout.manifest_path(manifest.checkpoint_id))).write_bytes(forged)


def test_a_pickle_that_is_put_in_flight_is_not_read_unless_the_program_asks_for_it(tmp_path):
    storage = with_a_checkpoint(tmp_path)
    put_a_pickle_in_flight(tmp_path, storage)
    with pytest.raises(
        JobFailedError, match=r"without a type that were on their way.*checkpoint\.allow_pickle"
    ):
        objects_cross_an_exchange(tmp_path, resume="latest").execute("objects")
    assert not (tmp_path / "evil").exists()
    asking = objects_cross_an_exchange(tmp_path, resume="latest", checkpoint_allow_pickle=True)
    asking.execute("objects")
    assert (tmp_path / "evil").exists(), "so the forgery was good, and the option is the only guard"


@pytest.mark.parametrize("mode", [{"checkpoint_unaligned": True}, {"checkpoint_alignment_timeout": "1 s"}])
def test_unaligned_checkpoints_of_records_without_a_type_are_refused_before_the_job_starts(tmp_path, mode):
    with pytest.raises(
        ProgramError, match=r"'map <lambda>' sends records without a type to 'map size'.*allow_pickle"
    ):
        objects_cross_an_exchange(tmp_path, **mode).execute("objects")
    assert list(tmp_path.iterdir()) == []
    objects_cross_an_exchange(tmp_path, **mode, checkpoint_allow_pickle=True).execute("objects")
    assert list((tmp_path / "out").glob("part-*"))


def test_a_committable_that_leads_out_of_the_directory_is_refused(tmp_path):
    storage = with_a_checkpoint(tmp_path)
    found = find_latest(storage.root, "objects").checkpoint
    assert found is not None
    (tmp_path / "victim").write_text("precious")
    manifest = found.manifest
    evil = msgspec.Raw(b'{"name":"../victim"}')
    operators = []
    for operator in manifest.operators:
        subtasks = tuple(
            msgspec.structs.replace(
                s,
                states=tuple(
                    msgspec.structs.replace(h, entries=(evil,)) if h.name == "committables" else h
                    for h in s.states
                ),
            )
            for s in operator.subtasks
        )
        operators.append(msgspec.structs.replace(operator, subtasks=subtasks))
    forged = msgspec.structs.replace(manifest, operators=tuple(operators)).encode()
    assert b"victim" in forged
    Path(storage.place.join(layout.manifest_path(manifest.checkpoint_id))).write_bytes(forged)
    with pytest.raises(
        JobFailedError, match=r"cannot restore what it has to commit.*victim.*FileSink has prepared"
    ):
        objects_cross_an_exchange(tmp_path, resume="latest").execute("objects")
    assert (tmp_path / "victim").read_text() == "precious"


def test_windows_of_records_without_a_type_read_no_checkpoint_even_where_none_are_written(tmp_path):
    """Without checkpoints such contents are kept as pickles; a resumed job would read what has their name."""
    with_a_checkpoint(tmp_path)
    env = Environment(
        runtime="in-process",
        checkpoint_dir=str(tmp_path / "checkpoints"),
        resume="latest",
        allow_non_restored_state=True,
        restart_strategy="none",
    )
    sets = env.from_collection(range(50), type=int, uid="numbers").map(lambda n: {n}, uid="sets")
    timed = sets.assign_timestamps_and_watermarks(WatermarkStrategy.monotonous(lambda s: min(s)), uid="times")
    windows = timed.key_by(lambda s: 1, returns=int).window(TumblingEventTimeWindows("1 s"))
    windows.reduce(lambda a, b: a | b, uid="sizes").map(size, uid="size").print()
    with pytest.raises(JobFailedError, match="keeps windows that cannot be stored in a checkpoint"):
        env.execute("objects")
