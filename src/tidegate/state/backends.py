"""From the option `state.backend` to the backend."""

from __future__ import annotations

from tidegate.state.backend import BackendContext, KeyedStateBackend


def make_backend(context: BackendContext) -> KeyedStateBackend:
    """The backend that the options name, empty. RocksDB is imported only where it is used."""
    if context.options.state_backend == "rocksdb":
        from tidegate.state.rocksdb.backend import RocksDBBackend

        return RocksDBBackend(context)
    from tidegate.state.heap.backend import HeapBackend

    return HeapBackend(context)
