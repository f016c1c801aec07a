"""State: the declarations of functions, and the backends, serializers and time to live that implement them.

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
