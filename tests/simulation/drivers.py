"""Several drivers of one program on one storage, each with a cluster of its own, interleaved and stopped by a seed.

Somebody starts a program twice or three times, at once or while it runs. Each driver runs until it has finished, or
until it has learned that another one has the job. A driver, or one of its slots, may stop between any two of its steps
(at any failpoint, also while it begins) while another one goes on, for a moment or to its end; then it wakes and goes
on as if nothing had been. Its own clock has stood still, so no timeout saves anybody. Exactly one history must be
visible in the output. One seed alone: `python -m tests.simulation.drivers <seed>`.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable

from tests.simulation.recovery import graph_of, read_output, workplace
from tests.simulation.recovery_programs import PROGRAMS
from tidegate.api.sink import SinkJob
from tidegate.connectors.files.sink import OutputDirectoryError
from tidegate.core.errors import CheckpointError, JobFencedError
from tidegate.core.failpoints import NAMES, injected
from tidegate.core.options import Options
from tidegate.core.states import JobStatus
from tidegate.jobmanager.resume_point import Prospect, prospect
from tidegate.protocol import messages as m
from tidegate.runtime.simulated_gang import Choice
from tidegate.runtime.simulated_slot import ProcessKilled
from tidegate.runtime.simulation import Simulation
from tidegate.storage.storage import FencedError

MOST_STEPS = 100_000
ENDS = ("fenced", "gone", "refused", "killed", "finished")


class Pace:
    """No fault, but time passes with every event, so that there are checkpoints; killed slots die when Spark likes."""

    tick_ns = 10_000_000

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self.event_ns = rng.choice((100_000, 400_000))

    def strike(self, simulation: Simulation) -> str | None:
        return None

    def choose(self, choices: list[Choice]) -> Choice:
        return self._random.choice(choices)

    def to_slot(self, message: m.MasterMessage, deliver: Callable[[m.MasterMessage], None]) -> None:
        deliver(message)

    def from_slot(self, message: m.SlotMessage, deliver: Callable[[m.SlotMessage], None]) -> None:
        deliver(message)


class Started:
    """One start of the program: a driver with its slots, or the reason why there is none."""

    def __init__(self, number: int, at_step: int) -> None:
        self.number = number
        self.at_step = at_step
        self.ahead: Prospect | None = None
        """What it found before it takes the job."""
        self.simulation: Simulation | None = None
        self.job: SinkJob | None = None
        self.end = ""
        """How it ended, one of `ENDS`; empty while it goes on."""
        self.is_busy = False
        """Whether it is in the middle of something: stopped there, if another one runs."""


class Run:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = rng = random.Random(f"drivers {seed}")
        self.program = PROGRAMS[seed % len(PROGRAMS)]
        self.parallelism = rng.choice((1, 2))
        self.place = os.path.join(workplace(), "drivers")
        shutil.rmtree(self.place, ignore_errors=True)
        self.out, checkpoints = (os.path.join(self.place, name) for name in ("out", "checkpoints"))
        os.makedirs(checkpoints)
        self.options = (
            Options()
            .with_values(
                {
                    "resume": "latest-or-new",
                    "execution.batch_rows": rng.choice((2, 5)),
                    "checkpoint.dir": checkpoints,
                    "checkpoint.interval": 10,
                    "checkpoint.retained": rng.choice((1, 2)),
                    "checkpoint.fsync": False,
                    "checkpoint.max_concurrent": rng.choice((1, 2)),
                    "heartbeat.interval": 100,
                    "heartbeat.timeout": 1000,
                    "cancel.grace": 100,
                    "restart_strategy.type": "fixed-delay",
                    "restart_strategy.fixed_delay.attempts": 5,
                    "restart_strategy.fixed_delay.delay": 20,
                },
                "the seed",
            )
            .checked()
        )
        self.graph, self.sink = graph_of(self.program, self.parallelism, self.out)
        starts = rng.choice((2, 2, 3))
        self.started = [
            Started(i, 0 if i == 0 else rng.choice((0, 0, 0, 30, 100, 300))) for i in range(starts)
        ]
        self.trace: list[str] = []
        self.stops: Counter[str] = Counter()
        """Stops inside something, by failpoint."""
        self._stops_left = rng.choice((1, 2, 4, 8))
        self._kills_left = rng.choice((0, 1, 1, 2))
        self._stop_chance = rng.choice((0.2, 0.05, 0.02))
        self._current: Started | None = None
        self._steps = 0

    def run(self) -> Counter[str]:
        """To the end of all, with every check; returns how they ended."""
        with contextlib.ExitStack() as stack:
            for name in sorted(NAMES):
                stack.enter_context(injected(name, lambda name=name: self._pass(name)))
            while self._going():
                one = self.random.choice(self._going())
                self._go_on(one, self.random.choice((1, 5, 50)))
        for one in self.started:
            if one.simulation is not None:
                one.simulation.close()
        ends = Counter(one.end for one in self.started)
        assert ends["finished"], f"none has finished: {ends}"
        self.program.check(self.program, read_output(self.out), "exactly_once", self.parallelism)
        return ends

    # ---- what happens ----

    def _going(self) -> list[Started]:
        due = [s for s in self.started if not s.end and not s.is_busy and s.at_step <= self._steps]
        if not due and self._current is None:  # the next one is started though it is early
            return [s for s in self.started if not s.end][:1]
        return due

    def _go_on(self, one: Started, events: int) -> None:
        before, self._current = self._current, one
        one.is_busy = True
        try:
            for _ in range(events):
                if one.end:
                    break
                self._steps += 1
                assert self._steps < MOST_STEPS, "it does not end"
                if one.simulation is None:
                    self._begin(one, self._look if one.ahead is None else self._take)
                else:
                    one.simulation.run_one_event()
                    self.trace.append(f"driver {one.number}: {(one.simulation.trace or ['-'])[-1]}")
                    if one.simulation.status.is_terminal:
                        self._end(one, one.simulation)
        finally:
            one.is_busy = False
            self._current = before

    def _begin(self, one: Started, step: Callable[[Started], None]) -> None:
        """A step of the beginning; between the two, and inside each, others go on."""
        try:
            step(one)
        except ProcessKilled:
            self._lose(one)
        except FencedError:
            one.end = "fenced"
        except OutputDirectoryError:  # it found no checkpoint because the job had finished
            one.end = "refused"
        except CheckpointError as e:
            assert "was there a moment ago and is gone" in str(e), e  # noqa: PT017 -- deleted at the other's end
            one.end = "gone"
        self.trace.append(f"driver {one.number} {'begins' if one.simulation else one.end or 'looks'}")

    def _look(self, one: Started) -> None:
        one.ahead = prospect(self.options, self.graph.name, self.graph)

    def _take(self, one: Started) -> None:
        assert one.ahead is not None
        begin = one.ahead.take(lambda: f"{self.random.getrandbits(32):08x}")
        one.job = SinkJob(begin.job_id, begin.first_attempt, self.parallelism, begin.is_resumed)
        self.sink.prepare(one.job)
        pace = Pace(random.Random(f"{self.seed} {one.number}"))
        one.simulation = Simulation(
            self.graph, self.options, self.seed + one.number, begin=begin, faults=pace
        )

    def _end(self, one: Started, simulation: Simulation) -> None:
        if simulation.status is JobStatus.FINISHED:
            one.end = "finished"
        elif isinstance(simulation.driver.job_driver.error, JobFencedError):
            one.end = "fenced"
        else:
            assert "is the storage mounted?" in simulation.message, simulation.message
            one.end = "gone"
        assert one.job is not None
        self.sink.release(one.job, resumable=simulation.driver.may_be_resumed)
        self.trace.append(f"driver {one.number}: {one.end}")

    def _pass(self, name: str) -> None:
        """Perhaps stop here, and let another one go on meanwhile."""
        stopped = self._current
        begins = stopped is not None and stopped.simulation is None
        if begins and self._kills_left and self.random.random() < 0.05:
            self.stops[f"killed at {name}"] += 1
            raise ProcessKilled(name)
        others = self._going()
        if stopped is None or not others or self._stops_left <= 0:
            return
        is_driver = stopped.simulation is None or stopped.simulation.world.actor is stopped.simulation.driver
        if self.random.random() >= self._stop_chance * (4 if is_driver else 1):
            return
        self._stops_left -= 1
        self.stops[name] += 1
        self.trace.append(f"driver {stopped.number} stops at {name}")
        other = self.random.choice(others)
        self._go_on(other, self.random.choice((1, 30, 100, 300, 3_000, MOST_STEPS)))
        if self._kills_left and self.random.random() < 0.5:
            self._kill(other)
        self.trace.append(f"driver {stopped.number} wakes")

    def _kill(self, one: Started) -> None:
        """The machine of a driver and its slots is lost; somebody starts the program again."""
        if one.simulation is not None and not one.end:
            self._lose(one)

    def _lose(self, one: Started) -> None:
        self._kills_left -= 1
        simulation = one.simulation
        # Killed while it cleans up, it has finished all the same.
        has_finished = simulation is not None and simulation.job.status is JobStatus.FINISHED
        one.end = "finished" if has_finished else "killed"
        self.trace.append(f"driver {one.number} is killed")
        self.started.append(Started(len(self.started), self._steps + self.random.choice((0, 30, 300))))


if __name__ == "__main__":
    import sys

    shown = Run(int(sys.argv[1]))
    try:
        sys.stdout.write(f"{dict(shown.run())}\n")
    finally:
        sys.stdout.write("\n".join([*shown.trace, f"{shown.program.name} {shown.options}", ""]))
