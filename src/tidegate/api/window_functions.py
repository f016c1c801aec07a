"""What computes a window: `ProcessWindowFunction` sees all its elements, reduce and aggregate work as they come.

reduce(function)                      one value of the records' type per window, updated record by record
aggregate(AggregateFunction())        an accumulator per window, updated record by record
process(ProcessWindowFunction())      all elements of the window, kept until it is over
reduce / aggregate(f, window_function=ProcessWindowFunction())
                                      incremental, and the process function sees the one result with the window
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any, Generic, Protocol

from tidegate.api.functions import Function, OutputTag
from tidegate.api.windows import TimeWindow
from tidegate.records.type_variables import IN, KEY, OUT, T


class WindowContext(Protocol):
    """What a process window function gets beside the elements; it is about one key and one window."""

    @property
    def window(self) -> TimeWindow:
        """The window that is computed (or, in `clear`, that is over)."""
        ...

    @property
    def current_watermark(self) -> int:
        """The operator's event time; -2^63 before the first watermark."""
        ...

    @property
    def current_processing_time(self) -> int:
        """The wall clock."""
        ...

    @property
    def window_state(self) -> MutableMapping[str, Any]:
        """What the function remembers of this key and window, from one firing to the next.

        Names to numbers, texts, bytes, None, and lists and dicts of these. It is in checkpoints, and gone when the
        window is cleaned up. Refused with session windows, as in Flink: they merge.
        """
        ...

    @property
    def global_state(self) -> MutableMapping[str, Any]:
        """What the function remembers of this key, over all windows. States declared on the class are such too."""
        ...

    def output(self, tag: OutputTag[T], value: T) -> None:
        """Emit a value to a side output; its timestamp is that of the window's results."""
        ...


class ProcessWindowFunction(Function, Generic[KEY, IN, OUT]):
    """Computes a window from all its elements: `class Median(ProcessWindowFunction[str, Click, float])`.

    States declared on the class (`seen = ValueState(int)`) are those of the key, over all windows.
    """

    @abstractmethod
    def process(self, key: KEY, context: WindowContext, elements: Sequence[IN]) -> Iterable[OUT] | None:
        """Return or yield the results of the window (None: nothing). Without keys (`window_all`) the key is None.

        Behind reduce or aggregate, `elements` has exactly one: the result so far.
        """

    def clear(self, context: WindowContext) -> None:
        """The window is over and about to be forgotten, `context.window_state` with it; nothing can be emitted."""
