"""Late data: sensors that were offline send their readings much later. No reading is lost silently.

    python examples/late_data.py [--parallelism 2] [any tidegate option]

The mean of each minute is computed when the watermark, five seconds behind the latest reading, says that the minute is
complete. A reading that arrives after that, but within a minute, gives a new mean of its minute. A reading that is even
later goes to a side output, with everything that is needed to correct a table afterwards.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tidegate import Avg, Count, Environment, OutputTag, TumblingEventTimeWindows, WatermarkStrategy


@dataclass
class Reading:
    """A measured value and its second."""

    sensor: str
    celsius: float
    second: int


READINGS = [
    Reading("north", 17.0, 5),
    Reading("north", 18.0, 50),
    Reading("north", 19.0, 66),  # the watermark is at 61 s: the first minute is complete
    Reading("north", 21.0, 58),  # late, but within a minute: computed again
    Reading("north", 19.5, 110),
    Reading("north", 20.0, 190),  # the watermark is at 185 s: the first minute is deleted
    Reading("north", -40.0, 30),  # too late
    Reading("north", 20.5, 200),
]
TOO_LATE: OutputTag[Reading] = OutputTag("too late")


def main(arguments: list[str]) -> None:
    """Print every mean as it is computed, and the readings that were too late."""
    # A watermark after every record, so that a few records show what normally needs many.
    env = Environment(parallelism=1, batch_rows=1, watermark_interval=0, args=arguments)
    readings = env.from_collection(READINGS).assign_timestamps_and_watermarks(
        WatermarkStrategy.bounded("5 s", lambda reading: reading.second * 1000)
    )
    means = (
        readings.key_by("sensor")
        .window(TumblingEventTimeWindows("1 min"))
        .allowed_lateness("1 min")
        .side_output_late_data(TOO_LATE)
        .aggregate(readings=Count(), celsius=Avg("celsius"), name="means", uid="means")
    )
    lines = means.map(
        lambda row: f"minute {row.window_start:%M}: {row.celsius:.2f} from {row.readings} readings",
        returns=str,
    )
    missed = means.get_side_output(TOO_LATE).map(lambda reading: f"too late: {reading}", returns=str)
    for line in lines.union(missed).execute_and_collect("late data"):
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
