"""The manifest: deterministic bytes, everything back as it was, and a named error for anything else."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.manifest_kit import CLICKS, Contents, manifest, snapshots, vertices
from tidegate.core.ids import JobId
from tidegate.snapshot.checksums import checksum
from tidegate.snapshot.manifest import (
    DamagedManifestError,
    ForeignManifestError,
    ManifestError,
    NewerManifestError,
    TruncatedManifestError,
    UnreadableManifestError,
    decode_manifest,
    make_manifest,
)
from tidegate.storage.checkpoint_search import find_at

GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoints-v1"
GOLDEN_MANIFEST = GOLDEN / "9c02d1e0aa55f011" / "chk-42" / "_metadata"


def signed(text: str) -> bytes:
    """A document with the right checksum, whatever else it says."""
    before, key, rest = text.partition('"checksum": "')
    after = '"' + rest.partition('"')[2]
    return (before + key + checksum((before + key + after).encode()) + after).encode()


def test_what_is_encoded_comes_back_equal():
    for in_flight in (False, True):
        made = manifest(in_flight=in_flight)
        assert decode_manifest(made.encode()) == made


def test_the_golden_manifest_is_written_byte_for_byte():
    assert manifest(in_flight=True).encode() == GOLDEN_MANIFEST.read_bytes()


def test_the_golden_checkpoint_is_read_and_verified():
    found = find_at(str(GOLDEN_MANIFEST))
    assert found.unusable == ()
    assert found.checkpoint is not None
    assert found.checkpoint.manifest == manifest(in_flight=True)
    assert len(found.checkpoint.manifest.files) == 12


def test_the_order_of_acknowledgements_does_not_matter():
    contents = Contents()
    acknowledged = snapshots(contents, 4)
    documents = set()
    for seed in range(5):
        random.Random(seed).shuffle(acknowledged)
        made = make_manifest(
            job_id=JobId("9c02"),
            job_name="pv",
            attempt=1,
            checkpoint_id=42,
            triggered_ms=1,
            completed_ms=2,
            vertices=vertices(4),
            snapshots=acknowledged,
            enumerators={},
        )
        documents.add(made.encode())
    assert len(documents) == 1


def test_it_is_json_that_others_can_read_with_positions_in_plain_sight():
    document = json.loads(manifest().encode())
    assert (document["format"], document["version"]) == ("tidegate-checkpoint", 1)
    assert (document["job_name"], document["checkpoint_id"], document["attempt"]) == ("pv count", 42, 0)
    [clicks] = [o for o in document["operators"] if o["name"] == "clicks"]
    assert document["enumerators"][clicks["id"]] == {"pending": ["clicks.json:9"], "found": 10}
    assert clicks["subtasks"][1]["states"][0]["entries"] == [{"id": "clicks.json:1", "position": 1017}]
    [dedupe] = [o for o in document["operators"] if o["name"] == "dedupe"]
    assert [s["keyed"]["key_groups"] for s in dedupe["subtasks"]] == [[0, 63], [64, 127]]
    assert dedupe["subtasks"][0]["keyed"]["states"][0]["name"] == "seen"
    assert document["vertices"][0]["finished"] == [1]


def test_bytes_count_shared_files_once_and_new_ones_apart():
    made = manifest()
    assert made.bytes_full == sum(f.size for f in made.files)
    assert made.bytes_new == made.bytes_full - 2 * len(b"base" * 50)
    assert made.duration_ms == 250


def test_raw_values_that_are_no_json_are_refused_when_written():
    with pytest.raises(ManifestError, match="checkpoint 42 cannot be described"):
        make_manifest(
            job_id=JobId("9c02"),
            job_name="pv",
            attempt=1,
            checkpoint_id=42,
            triggered_ms=1,
            completed_ms=2,
            vertices=vertices(),
            snapshots=[],
            enumerators={CLICKS.id: b"{not json"},
        ).encode()


# ---- what is not a manifest ----


@pytest.mark.parametrize(
    "data", [b"PAR1\x15\x00", b"{}", b'{"version": 1}', b"\x80\x05\x95", b"[1, 2]" * 100]
)
def test_foreign_bytes_are_named_as_such(data):
    with pytest.raises(ForeignManifestError, match=r"^s3://lake/_metadata is not a checkpoint of tidegate"):
        decode_manifest(data, "s3://lake/_metadata")


def test_every_truncation_is_found():
    data = manifest().encode()
    for length in [*range(200), *range(200, len(data) - 1, 37), len(data) - 2, len(data) - 1]:
        with pytest.raises((TruncatedManifestError, DamagedManifestError), match=rf"chk-42.* {length} bytes"):
            decode_manifest(data[:length], "chk-42")
    with pytest.raises(TruncatedManifestError):
        decode_manifest(b"")
    with pytest.raises(TruncatedManifestError):
        decode_manifest(data[: len(data) // 2])


def test_a_newer_version_says_who_can_read_it():
    text = manifest().encode().decode().replace('"version": 1,', '"version": 2,').replace("0.1.0", "0.9.2")
    with pytest.raises(
        NewerManifestError,
        match=r"format version 2, but this tidegate reads up to version 1.* tidegate 0\.9\.2",
    ):
        decode_manifest(signed(text))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"attempt": 0', '"attempt": "none"', "Expected `int`, got `str`"),
        ('"job_name": "pv count",\n', "", "missing required field `job_name`"),
        ('"kind": "checkpoint"', '"kind": "picnic"', "Invalid enum value"),
        ('"version": 1,', '"version": 0,', "version 0, which does not exist"),
        ('"key_groups":[64,127]', '"key_groups":[64,128]', "'dedupe' has key groups 64-128 of 128"),
        ('"subtask":1,"keyed"', '"subtask":7,"keyed"', "has a subtask 7 of 2"),
        ('"parallelism":2', '"parallelism":0', "parallelism 0 of at most 128"),
        (',"size":5,', ',"size":6,', "the file list does not"),
        ('"backend":"heap"', '"backend":"heap. Set\\u001b[2J"', "'dedupe' names a state backend 'heap. Set"),
    ],
)
def test_a_whole_document_of_the_wrong_form_is_unreadable(old, new, says):
    text = manifest().encode().decode()
    assert old in text
    count = 1 if "size" in old else -1
    with pytest.raises(UnreadableManifestError, match=says):
        decode_manifest(signed(text.replace(old, new, count)))


# ---- any damage at all ----

DATA = manifest(in_flight=True).encode()


@given(position=st.integers(0, len(DATA) - 1), bit=st.integers(0, 7))
def test_every_flipped_bit_is_a_named_error(position, bit):
    flipped = DATA[:position] + bytes([DATA[position] ^ (1 << bit)]) + DATA[position + 1 :]
    with pytest.raises(ManifestError):
        decode_manifest(flipped)


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    data = DATA
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = draw(st.integers(start, min(len(data), start + 200)))
        data = data[:start] + draw(st.binary(max_size=20)) + data[stop:]
    return data


@given(mutations())
def test_random_mutations_give_the_manifest_or_a_named_error(data):
    try:
        assert decode_manifest(data) == decode_manifest(DATA)
    except ManifestError:
        assert data != DATA


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*json.loads(DATA)][3:]), json_values, max_size=4))
def test_wrong_values_under_a_right_checksum_give_only_named_errors(changes):
    document = json.loads(DATA) | changes
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
    try:
        again = decode_manifest(signed("{\n" + lines + "\n}\n"))
    except ManifestError:
        assert changes
    else:
        assert msgspec.json.decode(again.encode())["format"] == "tidegate-checkpoint"
