"""`tidegate checkpoints` on real directories: what it shows, and that damage is in the text and in the exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from tests.unit.manifest_kit import Contents, manifest
from tidegate.cli.main import app
from tidegate.storage.filesystem import FilesystemStorage

GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoints-v1"
JOB = "9c02d1e0aa55f011"


def run(*words: object, columns: int = 200) -> Result:
    env = {"COLUMNS": str(columns), "NO_COLOR": "1"}
    return CliRunner().invoke(app, ["checkpoints", *map(str, words)], env=env)


def text(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A checkpoint directory with two jobs: checkpoints 42 and 43 of one, 7 of the other."""
    root = tmp_path / "checkpoints"
    shutil.copytree(GOLDEN, root)
    for id, job_id, name in ((43, JOB, "pv count"), (7, "aaaa", "[bold]odd\x1b[31m name")):
        contents = Contents()
        made = manifest(contents, job_id=job_id, job_name=name, checkpoint_id=id)
        for path, data in contents.files.items():
            (root / job_id / path).parent.mkdir(parents=True, exist_ok=True)
            (root / job_id / path).write_bytes(data)
        FilesystemStorage(str(root), job_id).write_manifest(id, 0, made.encode())
    return root


def test_all_jobs_and_checkpoints_are_listed(stored):
    result = run(stored)
    assert result.exit_code == 0, result.output
    assert f"pv count job {JOB}" in text(result)
    assert "42 0 2026-11-14 23:46:41 250 ms 440 B 40 B 3 of 4 complete" in text(result)
    assert "43 0" in text(result)
    assert "7 0" in text(result)


def test_a_name_cannot_paint_the_terminal(stored):
    output = run(stored).output
    assert "\x1b" not in output
    assert "[bold]odd\N{REPLACEMENT CHARACTER}[31m name" in output


def test_the_directory_of_a_job_and_the_path_of_a_checkpoint_are_understood(stored):
    assert "odd" not in run(stored / JOB).output
    assert "43 0" in text(run(stored / JOB))
    assert "43 0" not in text(run(stored / JOB / "chk-42"))
    assert "odd" not in run(stored, "--job", "pv count").output
    assert "pv count" not in run(stored, "--job", "aa").output


def test_one_checkpoint_is_shown_with_states_schemas_ranges_positions_and_files(stored):
    result = run(stored, "--id", 42)
    assert result.exit_code == 0, result.output
    for expected in (
        "seen: value of bool by Row(app: string)",
        "heap, 408 B (8 B new), key groups 0-63, 64-127",
        "pending: split list of int64, 6 entries",
        "rules: broadcast map of string, int64, 1 entry",
        '{"id":"clicks.json:1","position":1017}',
        'enumerator {"pending":["clicks.json:9"],"found":10}',
        "8 in-flight batches",
        "shared/c41-a0-xdedupe-0-base.parquet",
    ):
        assert expected in text(result)


def test_only_verify_sees_a_flipped_byte_and_it_ends_with_1(stored):
    damaged = stored / JOB / "shared" / "c42-a0-xdedupe-0-inc.parquet"
    damaged.write_bytes(b"INC0")
    assert run(stored).exit_code == 0

    result = run(stored, "--verify")

    assert result.exit_code == 1
    assert "42 0 2026-11-14 23:46:41 250 ms 440 B 40 B 3 of 4 damaged: 1 file" in text(result)
    assert f"{damaged.name} is damaged: its checksum is" in text(result)
    assert "verified" in text(result)


@pytest.mark.parametrize("options", [[], ["--id", 42], ["--json"], ["--plot"]])
def test_a_missing_file_and_a_damaged_manifest_are_named_and_end_with_1(stored, options):
    (stored / JOB / "chk-42" / "a0-xrules-0-all.parquet").unlink()
    result = run(stored, *options)
    assert result.exit_code == 1
    assert "a0-xrules-0-all.parquet is missing" in text(result)

    manifest_file = stored / JOB / "chk-42" / "_metadata"
    manifest_file.write_bytes(manifest_file.read_bytes()[:-100])
    result = run(stored, *options)
    assert result.exit_code == 1
    assert "chk-42/_metadata is truncated" in text(result)


@pytest.mark.parametrize("below", ["", JOB])
def test_a_damaged_inheritance_is_shown_beside_what_other_jobs_have(stored, below):
    claims = stored / JOB / "claims"
    claims.mkdir(exist_ok=True)
    (claims / "a0-00c0ffee.json").write_bytes(b"{}")
    for words in ([stored / below], ["verify", stored / below], [stored / below, "--json"]):
        result = run(*words)
        assert result.exit_code == 1
        assert "claims/a0-00c0ffee.json is damaged: its 2 bytes have no checksum" in text(result)
        assert ("odd" in result.output) == (not below)


def test_json_is_for_programs(stored):
    rows = json.loads(run(stored, "--json").stdout)
    assert [(r["job_name"], r["checkpoint_id"], r["damage"]) for r in rows][:2] == [
        ("pv count", 42, []),
        ("pv count", 43, []),
    ]
    [whole] = json.loads(run(stored, "--id", 43, "--json", "--verify").stdout)
    assert whole["verified"] is True
    assert len(whole["files"]) == 10


def test_duration_and_size_are_drawn(stored):
    result = run(stored, "--plot")
    assert result.exit_code == 0
    assert "42 2026-11-14 23:46:41 250 ms ████████████ 440 B ████████████ 40 B █▏" in text(result)


@pytest.mark.parametrize("columns", [72, 80, 100])
def test_a_plot_keeps_one_line_for_each_checkpoint_in_a_narrow_terminal(stored, columns):
    lines = run(stored / JOB, "--plot", columns=columns).output.rstrip().splitlines()
    assert len(lines) == 4, "the job, the head, two checkpoints"
    assert all(len(line) <= columns for line in lines)
    assert "█" in lines[2]


def test_an_attempt_of_a_driver_that_resumed_is_told_with_its_driver(stored):
    made = manifest(Contents(), job_id="bbbb", job_name="resumed", checkpoint_id=9)
    made = msgspec.structs.replace(made, attempt=2_000_001)
    FilesystemStorage(str(stored), "bbbb").write_manifest(9, 0, made.encode())
    assert "9 3/1" in text(run(stored / "bbbb"))
    assert "driver 3, attempt 1" in text(run(stored / "bbbb", "--id", 9))


def test_nothing_there_is_said(tmp_path, stored):
    (tmp_path / "empty").mkdir()
    assert "No completed checkpoint" in run(tmp_path / "empty").output
    for words in ([tmp_path / "empty", "--verify"], ["verify", tmp_path / "empty"]):
        verified = run(*words)
        assert verified.exit_code == 0, "nothing is damaged"
        assert text(verified) == "No completed checkpoint is stored there. There is nothing to verify."
    assert json.loads(run("verify", tmp_path / "empty", "--json").stdout) == []
    for words in ([tmp_path / "nowhere"], ["verify", tmp_path / "nowhere"]):
        missing = run(*words)
        assert (missing.exit_code, "there is no checkpoint directory" in missing.output) == (1, True)
    for words in ([stored], ["verify", stored]):
        unknown = run(*words, "--id", 5)
        assert (unknown.exit_code, "there is no completed checkpoint 5" in unknown.output) == (1, True)
        unknown = run(*words, "--job", "pvcount")
        assert (unknown.exit_code, "no completed checkpoint of a job 'pvcount'" in unknown.output) == (
            1,
            True,
        )


def test_verify_reads_every_file_and_says_that_all_can_be_restored(stored):
    result = run("verify", stored)
    assert result.exit_code == 0, result.output
    assert "verified" in text(result)
    assert "3 checkpoints, 32 files, " in text(result)
    assert "read: all can be restored" in text(result)


def test_verify_names_a_damaged_file_who_needs_it_and_what_can_still_be_restored(stored):
    file = stored / JOB / json.loads((stored / JOB / "chk-42" / "_metadata").read_bytes())["files"][0]["path"]
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    result = run("verify", stored)
    assert result.exit_code == 1
    assert text(result).count(file.name) == 1
    assert "It is needed by checkpoint 42." in text(result)
    assert "1 cannot be restored" in text(result)
    assert f"the newest of job {JOB} that can be restored: {stored / JOB / 'chk-43'}" in text(result)
    assert run(stored).exit_code == 0, "the size is the same: only reading shows it"


def test_verify_of_one_checkpoint(stored):
    manifest_of_43 = stored / JOB / "chk-43" / "_metadata"
    manifest_of_43.write_bytes(b"{")
    sound = run("verify", stored, "--id", 42, "--job", JOB)
    assert sound.exit_code == 0
    assert "1 checkpoint, " in text(sound)
    broken = run("verify", stored, "--id", 43)
    assert broken.exit_code == 1
    assert "chk-43/_metadata is truncated" in text(broken)


def test_two_directories_are_refused_and_one_of_the_name_verify_is_a_directory(stored, monkeypatch):
    assert run(stored, stored).exit_code == 2
    stored.rename(stored.parent / "verify")
    monkeypatch.chdir(stored.parent)
    assert "pv count" in text(run("verify"))
