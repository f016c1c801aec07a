"""The log of checkpoints at DEBUG as a trace: what each subtask did, in its order."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from tidegate import MapFunction


class Step(NamedTuple):
    """A line of the log of a slot."""

    at: float
    process: int
    subtask: tuple[int, int]
    what: str
    detail: str


class Trace:
    """The log of checkpoints at DEBUG, of all slots with a `Traced` function, in a file per process."""

    LOGGER = "tidegate.taskmanager.barriers"
    LINE = re.compile(r"(\S+) (\d+) checkpoint (\d+): subtask (\d+) of vertex (\d+): (.*)")
    WORDS = re.compile(r"(.*?)(?: (?:on|to|of|by) (.*))?")

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = str(directory)

    def begin(self) -> logging.Handler:
        """Write the log of this process from now on, in the order in which things happen."""
        handler = logging.FileHandler(f"{self.directory}/{os.getpid()}.log")
        handler.setFormatter(logging.Formatter("%(created).6f %(process)d %(message)s"))
        log = logging.getLogger(self.LOGGER)
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)
        return handler

    def end(self, handler: logging.Handler) -> None:
        """Write no more."""
        log = logging.getLogger(self.LOGGER)
        log.removeHandler(handler)
        if not log.handlers:
            log.setLevel(logging.NOTSET)
        handler.close()

    def lines(self, process: int) -> list[str]:
        """Everything that one process wrote."""
        return (Path(self.directory) / f"{process}.log").read_text("utf-8").splitlines()

    def process_that_wrote(self, message: str) -> int:
        """The one process with this line, which must be there."""
        files = Path(self.directory).glob("*.log")
        (process,) = (
            int(f.stem) for f in files if any(x.endswith(f" {message}") for x in self.lines(int(f.stem)))
        )
        return process

    def has_begun(self, checkpoint_id: int, process: int) -> bool:
        """Whether the sources of this process have taken their part in the checkpoint."""
        steps = self.read(checkpoint_id)
        return any(step.process == process and step.what == "triggered" for step in steps)

    def read(self, checkpoint_id: int) -> list[Step]:
        """Every step of one checkpoint: those of one process in their order."""
        found = []
        for file in sorted(Path(self.directory).glob("*.log")):
            for line in file.read_text("utf-8").splitlines():
                match = self.LINE.fullmatch(line)
                if match is not None and int(match[3]) == checkpoint_id:
                    words_of_step = self.WORDS.fullmatch(match[6])
                    assert words_of_step is not None
                    found.append(
                        Step(
                            float(match[1]),
                            int(match[2]),
                            (int(match[5]), int(match[4])),
                            words_of_step[1],
                            words_of_step[2] or "",
                        )
                    )
        return found


class Traced(MapFunction):
    """Passes records on; its slot writes the trace while it is open."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def open(self, context: Any) -> None:
        self.handler = self.trace.begin()

    def close(self) -> None:
        self.trace.end(self.handler)

    def map(self, value: Any) -> Any:
        logging.getLogger(Trace.LOGGER).debug("read %s", value)
        return value
