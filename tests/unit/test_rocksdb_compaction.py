from __future__ import annotations

from tidegate.state.rocksdb.compaction import BulkLoads, is_merged


def test_a_bulk_load_is_over_with_the_first_checkpoint_after_few_changes() -> None:
    loads = BulkLoads(writes=0)
    assert not loads.checkpointed(writes=60_000, entries=60_000)
    assert not loads.checkpointed(writes=100_000, entries=100_000)
    assert loads.checkpointed(writes=101_000, entries=100_000)


def test_it_is_over_once() -> None:
    loads = BulkLoads(writes=0)
    loads.checkpointed(writes=100_000, entries=100_000)
    assert [loads.checkpointed(writes=100_000 + n, entries=100_000) for n in range(3)] == [True, False, False]


def test_checkpoints_after_few_changes_are_no_bulk_load_however_many_they_are() -> None:
    loads = BulkLoads(writes=0)
    writes = range(1_000, 1_000_000, 1_000)
    assert not any(loads.checkpointed(writes=n, entries=100_000) for n in writes)


def test_a_burst_that_is_small_beside_the_whole_is_left_to_the_rule_of_every_day() -> None:
    loads = BulkLoads(writes=0)
    loads.checkpointed(writes=20_000, entries=100_000)
    assert not loads.checkpointed(writes=21_000, entries=100_000)


def test_bursts_add_up_until_they_are_worth_merging() -> None:
    loads, writes, merged = BulkLoads(writes=0), 0, []
    for _ in range(6):
        loads.checkpointed(writes=writes + 20_000, entries=100_000)
        writes += 21_000
        merged.append(loads.checkpointed(writes=writes, entries=100_000))
    assert merged == [False, False, True, False, False, True]


def test_what_was_written_before_a_restore_is_no_bulk_load() -> None:
    loads = BulkLoads(writes=5_000_000)
    assert not loads.checkpointed(writes=5_001_000, entries=100_000)
    assert not loads.checkpointed(writes=5_002_000, entries=100_000)


def test_few_entries_are_never_a_bulk_load() -> None:
    loads = BulkLoads(writes=0)
    loads.checkpointed(writes=1_000, entries=1_000)
    assert not loads.checkpointed(writes=1_000, entries=1_000)


def test_merged_is_what_is_nearly_all_in_one_sorted_run():
    def file(name: str, level: int, size: int) -> dict[str, object]:
        return {"name": name, "level": level, "size": size}

    assert is_merged([])
    assert is_merged([file("a", 6, 50), file("b", 6, 50), file("c", 0, 5)]), "a level is one run"
    assert not is_merged([file("a", 0, 50), file("b", 0, 50)]), "of level 0 each file is one"
    assert not is_merged([file("a", 6, 80), file("b", 5, 20)])
