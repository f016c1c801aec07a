"""State: what functions declare, and below it the backends that keep it, serializers and time to live.

The names here are for users: `from tidegate.state import ValueState`.
"""

from tidegate.api.state import (
    AggregateFunction,
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    OperatorListState,
    PickleSerializer,
    ReducingState,
    StateAccessError,
    StateSerializer,
    StateTtl,
    UnionListState,
    ValueState,
)

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "BroadcastState",
    "ListState",
    "MapState",
    "OperatorListState",
    "PickleSerializer",
    "ReducingState",
    "StateAccessError",
    "StateSerializer",
    "StateTtl",
    "UnionListState",
    "ValueState",
]
