"""Side outputs: lines that cannot be read go to a side output, with the reason; good records continue.

python examples/side_outputs.py [--parallelism 2] [any tidegate option]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate import Environment, OutputTag, ProcessContext, ProcessFunction


@dataclass
class Reading:
    """A measured value."""

    sensor: str
    celsius: float


@dataclass
class BadLine:
    """A line that is not a reading, with the reason."""

    line: str
    reason: str


BAD = OutputTag("bad", BadLine)


class Parse(ProcessFunction[str, Reading]):
    """Reads `sensor,celsius`."""

    def process(self, line: str, context: ProcessContext) -> Iterator[Reading]:
        """Emit a reading for a good line; send a bad line to the side output."""
        sensor, _, celsius = line.partition(",")
        try:
            yield Reading(sensor, float(celsius))
        except ValueError as e:
            context.output(BAD, BadLine(line, str(e)))


LINES = ["north,17.5", "south,21.0", "north,warm", "south", "north,18.0"]


def main(arguments: list[str]) -> None:
    """Print both streams."""
    env = Environment(parallelism=2, progress="off", args=arguments)
    readings = env.from_collection(LINES).process(Parse(), side_outputs=(BAD,))
    readings.key_by("sensor").max("celsius").print("warmest")
    readings.get_side_output(BAD).print("bad")
    env.execute("readings")


if __name__ == "__main__":
    main(sys.argv[1:])
