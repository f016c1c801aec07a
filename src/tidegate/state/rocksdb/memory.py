"""The memory that all RocksDB state of a slot shares: `state.rocksdb.memory`.

A slot is a process, so this module holds what is shared, per bound. One half is for RocksDB: a block cache that is also
charged for the write buffers, the index and the filter blocks of every database. The other half is for the write-back
caches in front of the databases, in equal parts for those that are open.
"""

from __future__ import annotations

from threading import Lock
from weakref import WeakValueDictionary

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    UniversalCompactOptions,
    WriteBufferManager,
)
from rocksdict import Options as DatabaseOptions

from tidegate.state.rocksdb.compaction import FEWEST_SORTED_RUNS, MOST_SORTED_RUNS, NEWER_PERCENT

_SHARED: WeakValueDictionary[int, RocksDBMemory] = WeakValueDictionary()
_LOCK = Lock()
_LARGEST_WRITE_BUFFER = 32 << 20


class RocksDBMemory:
    """A bound on memory, shared by all its holders. Any thread."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._members = 0
        self._cache = Cache(bound // 2)
        self._write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            bound // 4, False, self._cache
        )

    @classmethod
    def shared(cls, bound: int) -> RocksDBMemory:
        """The one of this process for this bound; it lives as long as somebody holds it."""
        with _LOCK:
            memory = _SHARED.get(bound)
            if memory is None:
                memory = _SHARED[bound] = cls(bound)
            return memory

    def join(self) -> None:
        """Count one more backend."""
        with _LOCK:
            self._members += 1

    def leave(self) -> None:
        """Count one backend less."""
        with _LOCK:
            self._members -= 1

    @property
    def write_back_bytes(self) -> int:
        """The memory that the write-back caches of one backend may use now."""
        return self.bound // 2 // max(1, self._members)

    def database_options(self) -> DatabaseOptions:
        """Options for a database that uses this memory.

        Universal compaction, late; see `compaction` for the reasons.
        """
        options = DatabaseOptions(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(min(_LARGEST_WRITE_BUFFER, max(self.bound // 16, 1 << 20)))
        options.set_max_write_buffer_number(4)
        options.set_write_buffer_manager(self._write_buffers)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_compaction_style(DBCompactionStyle.universal())
        compaction = UniversalCompactOptions()
        compaction.min_merge_width = MOST_SORTED_RUNS
        compaction.max_merge_width = MOST_SORTED_RUNS
        compaction.max_size_amplification_percent = NEWER_PERCENT
        options.set_universal_compaction_options(compaction)
        options.set_level_zero_file_num_compaction_trigger(FEWEST_SORTED_RUNS)
        options.set_level_zero_slowdown_writes_trigger(2 * MOST_SORTED_RUNS)
        options.set_level_zero_stop_writes_trigger(3 * MOST_SORTED_RUNS)
        options.set_target_file_size_base(32 << 20)
        options.set_max_background_jobs(2)
        options.set_max_open_files(512)
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(1 << 20)
        options.set_stats_dump_period_sec(0)
        options.set_manifest_preallocation_size(64 << 10)
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        # Partitioned, because the cache is split into shards, and a filter larger than a shard would never be cached.
        table.set_index_type(BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_metadata_block_size(16 << 10)
        table.set_pin_top_level_index_and_filter(True)
        table.set_bloom_filter(10, False)
        table.set_format_version(5)
        options.set_block_based_table_factory(table)
        return options
