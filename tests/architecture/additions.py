"""One of each thing that is often added to tidegate, as its author would write it: new files, and edits elsewhere.

`test_where_to_add.py` adds them all to a copy of the source, runs a program that uses each of them, and compares
the places with CONTRIBUTING's page "Where do I add ...?".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """One line or more, put into an existing file right after the first occurrence of `anchor`."""

    file: str
    anchor: str
    text: str

    def apply(self, source: Path) -> None:
        path = source / self.file
        before, anchor, after = path.read_text(encoding="utf-8").partition(self.anchor)
        assert anchor, f"{self.file} has no {self.anchor!r}"
        path.write_text(before + anchor + self.text + after, encoding="utf-8")


@dataclass(frozen=True)
class Addition:
    """What the author of one new thing does."""

    kind: str
    """The first word of its line on the page."""
    new: dict[str, str] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()

    def apply(self, source: Path) -> None:
        for name, text in self.new.items():
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for edit in self.edits:
            edit.apply(source)

    @property
    def other_files(self) -> set[str]:
        """The files that existed before."""
        return {edit.file for edit in self.edits}


CONNECTOR = Addition(
    "Connector",
    new={
        "connectors/tides/__init__.py": '''"""Tide tables as a source."""

import pyarrow as pa

from tidegate.api.source import Boundedness, ReaderContext
from tidegate.program.sequences import SpanReader, SpanSplit, cut_into_spans
from tidegate.api.known_splits import KnownSplitsSource
from tidegate.records.batch import Batch
from tidegate.records.types import RowType


class TideSource(KnownSplitsSource):
    """Heights of the tide in cm, one per hour."""

    boundedness = Boundedness.BOUNDED
    split_type = SpanSplit

    def __init__(self, hours):
        super().__init__(RowType(pa.schema([("at", pa.int64()), ("port", pa.string()), ("height", pa.int64())])))
        self.hours = hours

    def splits(self, parallelism):
        spans = cut_into_spans(self.hours, parallelism)
        return [SpanSplit(id=f"hours {a}", position=a, end=b) for a, b in spans]

    def create_reader(self, context: ReaderContext):
        return TideReader(context, self.record_type)


class TideReader(SpanReader):
    """Reads hours."""

    def __init__(self, context, record_type):
        super().__init__(context)
        self._type = record_type

    def read(self, start, stop, split):
        hours = range(start, stop)
        columns = pa.record_batch(
            [[h * 3_600_000 for h in hours], [f"port {h % 2}" for h in hours], [h % 12 for h in hours]],
            schema=self._type.schema,
        )
        return Batch(self._type, columns=columns)
'''
    },
)

FORMAT = Addition(
    "Format",
    new={
        "formats/loud_lines.py": '''"""Lines of text in capitals."""

from tidegate.formats.text_lines import TextLinesFormat


class LoudLinesFormat(TextLinesFormat):
    """Text that is written in capitals."""

    name = "loud"
    extension = "loud"

    def encode(self, columns):
        return super().encode(columns).upper()
'''
    },
    edits=(
        Edit(
            "connectors/files/format_names.py",
            "from tidegate.core.words import either\n",
            "from tidegate.formats.loud_lines import LoudLinesFormat\n",
        ),
        Edit("connectors/files/format_names.py", "_FORMATS: Final = (", "LoudLinesFormat, "),
    ),
)

WINDOW = Addition(
    "Window",
    new={
        "api/tide_windows.py": '''"""Windows from one high tide to the next."""

from dataclasses import dataclass

from tidegate.api.column_cuts import Slices
from tidegate.api.windows import TimeWindow, WindowAssigner

TIDE_MS = 12 * 3_600_000


@dataclass(frozen=True)
class TideWindows(WindowAssigner):
    """Twelve hours each."""

    def assign_windows(self, element, timestamp_ms):
        start = timestamp_ms - timestamp_ms % TIDE_MS
        return [TimeWindow(start, start + TIDE_MS)]

    def column_cut(self):
        return Slices(TIDE_MS, TIDE_MS)
'''
    },
    edits=(
        Edit(
            "__init__.py",
            "from tidegate.api.streams import DataStream, DataStreamSink\n",
            "from tidegate.api.tide_windows import TideWindows\n",
        ),
    ),
)

AGGREGATE = Addition(
    "Aggregate",
    new={
        "aggregates/spread.py": '''"""`Spread`: the largest value less the smallest."""

from dataclasses import dataclass

import pyarrow as pa

from tidegate.aggregates.aggregate import Aggregate


@dataclass(frozen=True)
class Spread(Aggregate):
    """Of a column of whole numbers."""

    kind = "spread"
    column: str

    def result_type(self, *inputs):
        return pa.int64()

    def partial(self, *inputs):
        return {"least": pa.int64(), "most": pa.int64()}

    def start(self):
        return None, None

    def add(self, kept, value, timestamp_ms):
        return self.merge(kept, (value, value))

    def merge(self, left, right):
        if left[0] is None or right[0] is None:
            return right if left[0] is None else left
        return min(left[0], right[0]), max(left[1], right[1])

    def result(self, kept):
        return None if kept[0] is None else kept[1] - kept[0]
'''
    },
    edits=(
        Edit(
            "__init__.py",
            "from tidegate.aggregates.mean import Avg\n",
            "from tidegate.aggregates.spread import Spread\n",
        ),
    ),
)

OPERATOR = Addition(
    "Operator",
    new={
        "program/sampling.py": '''"""The operation of `DataStream.every`."""

from dataclasses import dataclass

from tidegate.program.operations import Operation


@dataclass(frozen=True)
class TakeEvery(Operation):
    """One record of each n of a subtask."""

    kind = "every"
    keeps_type = True
    keeps_state = True
    n: int

    def detail(self):
        return str(self.n)

    def identity(self):
        return "every", self.n
''',
        "operators/columns/sampling.py": '''"""Takes one record of each n."""

from tidegate.operators.operator import Operator


class SamplingOperator(Operator):
    """Counts records over batches."""

    def open(self):
        self._seen = sum(map(int, self.context.states.entries("seen")))

    def process(self, batch, input_index):
        for i in range(-self._seen % self.operation.n, len(batch), self.operation.n):
            self.context.emit(batch.slice(i, 1))
        self._seen += len(batch)

    def snapshot(self, checkpoint_id):
        self.context.states.put_entries("seen", [str(self._seen).encode()])
''',
    },
    edits=(
        Edit(
            "operators/factory.py",
            "from tidegate.operators.event_time.assigner import AssignTimestampsOperator\n",
            "from tidegate.operators.columns.sampling import SamplingOperator\n"
            "from tidegate.program.sampling import TakeEvery\n",
        ),
        Edit(
            "operators/factory.py",
            "AggregateWindow: aggregate_window_operator,\n",
            "    TakeEvery: lambda o: SamplingOperator,\n",
        ),
        Edit(
            "api/streams.py",
            "    # ---- event time ----\n",
            '''
    def every(self, n: int) -> DataStream[T]:
        """One record of each n of a subtask."""
        from tidegate.program.sampling import TakeEvery

        return self._then(TakeEvery(n), "every", self._type, {})
''',
        ),
    ),
)

BACKEND = Addition(
    "State backend",
    new={
        "state/ledger/__init__.py": '"""A backend of its own."""\n',
        "state/ledger/backend.py": '''"""Keyed state as the heap has it, under a name of its own."""

from tidegate.state.heap.backend import HeapBackend


class LedgerBackend(HeapBackend):
    """Keyed state in a ledger."""

    name = "ledger"
''',
    },
    edits=(
        Edit(
            "core/state_backends.py",
            "STATE_BACKENDS: Final = {\n",
            '    "ledger": StateBackend("tidegate.state.ledger.backend:LedgerBackend", keeps_objects=True),\n',
        ),
    ),
)

OPTION = Addition(
    "Option",
    edits=(
        Edit(
            "core/options.py",
            '    __slots__ = ("_origins", "_values")\n',
            """
    moon_phase = Option("moon.phase", choice("new", "full"), "new", "Which tide is meant.")
""",
        ),
    ),
)

MESSAGE = Addition(
    "Message",
    edits=(
        Edit(
            "protocol/messages.py",
            "# ---- from a slot to the JobManager ----\n",
            '''

class SlotGreeted(msgspec.Struct, frozen=True, tag=True):
    """A slot says hello."""

    words: str
''',
        ),
        Edit("protocol/messages.py", "    | SlotHeartbeat\n", "    | SlotGreeted\n"),
        Edit(
            "jobmanager/job_master.py",
            "        match message:\n",
            """            case m.SlotGreeted(words):
                self._report(words)
""",
        ),
        Edit(
            "taskmanager/slot.py",
            '        """Open every task; reports INITIALIZING, then RUNNING, or the failure."""\n',
            """        self._send_message(m.SlotGreeted(f"the moon is {self._options.moon_phase}"))
""",
        ),
    ),
)

ADDITIONS = (CONNECTOR, FORMAT, WINDOW, AGGREGATE, OPERATOR, BACKEND, OPTION, MESSAGE)

PROGRAM = '''
import json, logging, sys
from tidegate import Count, Environment, FileSink, FileSource, Spread, TideWindows, ValueState, WatermarkStrategy
from tidegate import MapFunction
from tidegate.connectors.tides import TideSource

folder = sys.argv[1]
logging.basicConfig(stream=sys.stdout, format="log: %(message)s")


class Numbered(MapFunction):
    """The how-manieth record of its port."""

    seen = ValueState(int, default=0)

    def map(self, record) -> str:
        self.seen.update(self.seen.value() + 1)
        return f"{record.port}: {self.seen.value()}"


def environment(**options):
    return Environment(
        runtime="in-process", state_backend="ledger", checkpoint_interval="1 s", progress="off",
        checkpoint_dir=folder + "/checkpoints", moon_phase="full", parallelism=2, **options
    )


env = environment()
tides = env.from_source(TideSource(48), WatermarkStrategy.monotonous("at"), uid="tides")
spreads = tides.key_by("port").window(TideWindows()).aggregate(n=Count(), spread=Spread("height"), uid="spreads")
print("spreads", json.dumps(sorted([r.port, r.n, r.spread] for r in spreads.execute_and_collect())))

env = environment()
tides = env.from_source(TideSource(48), uid="tides").every(4)
tides.key_by("port").map(Numbered(), uid="numbered").sink_to(FileSink(folder + "/out", format="loud"), uid="out")
env.execute("numbered")

env = Environment(runtime="in-process", progress="off")
print("lines", json.dumps(sorted(env.from_source(FileSource(folder + "/out/*.loud")).execute_and_collect())))
'''
"""Uses each of them; what it prints is checked."""
