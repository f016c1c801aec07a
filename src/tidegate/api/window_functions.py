"""What computes a window: `ProcessWindowFunction` gets all its elements, reduce and aggregate are incremental.

reduce(function)                      one value of the records' type per window, updated record by record
aggregate(AggregateFunction())        an accumulator per window, updated record by record
process(ProcessWindowFunction())      all elements of the window, kept until the window is cleaned up
reduce / aggregate(f, window_function=ProcessWindowFunction())
                                      incremental; the process function gets the one result and the window
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any, Generic, Protocol

from tidegate.api.functions import Function, OutputTag
from tidegate.api.windows import TimeWindow
from tidegate.records.type_variables import IN, KEY, OUT, T


class WindowContext(Protocol):
    """What a process window function gets with the elements. It belongs to one key and one window."""

    @property
    def window(self) -> TimeWindow:
        """The window that is computed, or (in `clear`) cleaned up."""
        ...

    @property
    def current_watermark(self) -> int:
        """The operator's event time; -2^63 before the first watermark."""
        ...

    @property
    def current_processing_time(self) -> int:
        """The wall clock, in milliseconds since 1970 (UTC)."""
        ...

    @property
    def window_state(self) -> MutableMapping[str, Any]:
        """What the function remembers of this key and window, from one firing to the next.

        A map of names to numbers, texts, bytes, None, and lists and dicts of these. It is part of checkpoints, and is
        deleted when the window is cleaned up. Session windows refuse it, as in Flink, because they merge.
        """
        ...

    @property
    def global_state(self) -> MutableMapping[str, Any]:
        """What the function remembers of this key over all windows, as do states declared on the class."""
        ...

    def output(self, tag: OutputTag[T], value: T) -> None:
        """Emit a value to a side output, with the timestamp of the window's results."""
        ...


class ProcessWindowFunction(Function, Generic[KEY, IN, OUT]):
    """Computes a window from all its elements: `class Median(ProcessWindowFunction[str, Click, float])`.

    States declared on the class (`seen = ValueState(int)`) belong to the key, over all windows.
    """

    @abstractmethod
    def process(self, key: KEY, context: WindowContext, elements: Sequence[IN]) -> Iterable[OUT] | None:
        """Return or yield the results of the window (None: nothing). Without keys (`window_all`) the key is None.

        After reduce or aggregate, `elements` has exactly one element: the result so far.
        """

    def clear(self, context: WindowContext) -> None:
        """Called when the window is cleaned up, before `context.window_state` is deleted; it cannot emit."""
