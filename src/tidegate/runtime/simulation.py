"""A whole job in one thread: the real Job, slots, channels, operators and storage on simulated transports and time.

Everything that happens (a message or a frame arrives, a slot takes a step, an upload or a storage order is performed,
time passes) is an event that a seeded scheduler chooses: one seed, one order. Messages and frames are encoded and
decoded as on a real wire. With `SimulatedFaults`, processes also die, stop and lose connections.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from tidegate.core.clock import ManualClock
from tidegate.core.ids import AttemptNumber, JobId, OperatorId, SlotId
from tidegate.core.options import Options
from tidegate.core.states import JobStatus
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.driver import Observer
from tidegate.jobmanager.failover.events import OfAttempt
from tidegate.jobmanager.failover.job import Job
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.resume_point import Beginning
from tidegate.protocol import messages as m
from tidegate.runtime.simulated_driver import SimulatedDriver
from tidegate.runtime.simulated_gang import Choice, SimulatedGang
from tidegate.runtime.simulated_slot import SimulatedSlot, World
from tidegate.storage.job_storage import make_storage

_TICK_NS = 50_000_000
_EVENT_NS = 1_000


class Faults(Protocol):
    """What goes wrong; see `tidegate.testing.simulated_faults`."""

    tick_ns: int
    event_ns: int

    def strike(self, simulation: Simulation) -> str | None:
        """Called before every event: may inject a fault, and returns a line for the trace; None: no fault now."""
        ...

    def choose(self, choices: list[Choice]) -> Choice: ...

    def to_slot(self, message: m.MasterMessage, deliver: Callable[[m.MasterMessage], None]) -> None:
        """Deliver a message of the JobManager: never, once, twice or later."""
        ...

    def from_slot(self, message: m.SlotMessage, deliver: Callable[[m.SlotMessage], None]) -> None: ...


class Simulation:
    """Runs one job. Call `run_one_event` until `status` is terminal; `trace` lists what happened."""

    def __init__(
        self,
        job_graph: JobGraph,
        options: Options,
        seed: int = 0,
        available_slots: int | None = None,
        *,
        begin: Beginning | None = None,
        faults: Faults | None = None,
        observe: Observer = lambda event, actions: None,
        on_end: Callable[[bool], None] = lambda resumable: None,
    ) -> None:
        self.clock = ManualClock(start_ms=1)
        self.job_graph = job_graph
        self.world = World(self.clock, options)
        self.trace: list[str] = []
        self.gangs: list[SimulatedGang] = []
        """The gang of the current attempt, and earlier ones with processes that are still alive."""
        self.random = random.Random(seed)
        self._seed = seed
        self._available = available_slots
        self._faults = faults
        self._observe = observe
        self._on_end = on_end
        self.consumers: dict[OperatorId, Callable[[ev.DeliverCollected], None]] = {}
        """Functions that take the batches of a sink at once (print sinks)."""
        beat_ms = min(options.heartbeat_interval, options.metrics_interval)
        self._beat_ns = beat_ms * 1_000_000
        self._tick_ns = _TICK_NS if faults is None else faults.tick_ns
        self._event_ns = _EVENT_NS if faults is None else faults.event_ns
        self._next_tick_ns = 0
        self._driver_is_down = False
        self.driver = self._new_driver(begin or _new_job(options))

    @property
    def job(self) -> Job:
        return self.driver.job

    @property
    def master(self) -> JobMaster:
        return self.driver.job.master

    @property
    def status(self) -> JobStatus:
        """The job's status; terminal when everything that it ordered is done."""
        return self.driver.job_driver.status

    @property
    def message(self) -> str:
        return self.driver.job_driver.message

    @property
    def reports(self) -> list[str]:
        """What the driver reported to the user: what the job waits for, and trouble."""
        return self.driver.reports

    @property
    def slots(self) -> dict[SlotId, SimulatedSlot]:
        """The slots of the newest attempt."""
        return dict(self.gangs[-1].slots) if self.gangs else {}

    def cancel(self, reason: str = "cancelled by its client") -> None:
        self.driver.post(ev.CancelRequested(reason))

    def run(self) -> JobStatus:
        while not self.status.is_terminal:
            self.run_one_event()
        return self.status

    def run_one_event(self) -> None:
        """Let one event happen, chosen by the seed among all possible ones; if there is none, let time pass."""
        faults = self._faults
        struck = None if faults is None else faults.strike(self)
        if struck is not None:
            self.trace.append(struck)
        else:
            choices = list(self._choices())
            if choices:
                self.clock.advance_ns(self._event_ns)
                chosen = (
                    choices[self.random.randrange(len(choices))] if faults is None else faults.choose(choices)
                )
                detail = chosen.happen()
                self.trace.append(chosen.name if detail is None else f"{chosen.name}: {detail}")
            else:
                self._let_time_pass()
        for gang in self.gangs:
            gang.look()
        if self.driver.killed:
            self.kill_driver()
        self._tick_if_due()

    def take_collected(self, operator: OperatorId) -> ev.DeliverCollected | None:
        """Take the next batch that a sink sent to the driver; None if there is none now."""
        return self.driver.take_collected(operator)

    def kill_driver(self) -> None:
        """Kill the driver. Its slots do not know that yet; Spark kills them later."""
        if not self._driver_is_down:
            self._driver_is_down = self.driver.killed = True
            self.driver.close()
            for gang in self.gangs:
                gang.disconnect_all()
                gang.cancel(gently=False)

    @property
    def driver_is_down(self) -> bool:
        return self._driver_is_down

    def start_driver(self, begin: Beginning) -> None:
        """Run the program again, from what the checkpoint storage has."""
        self.driver = self._new_driver(begin)
        self._driver_is_down = False

    def close(self) -> None:
        """Release files and threads of readers, writers and enumerators."""
        for gang in self.gangs:
            gang.close()
        self.driver.close()

    # ---- what can happen ----

    def _choices(self) -> Iterator[Choice]:
        if not self._driver_is_down:
            yield from self.driver.choices()
        for gang in self.gangs:
            yield from gang.choices()

    def _let_time_pass(self) -> None:
        now = self.clock.monotonic_ns()
        slots = [s for gang in self.gangs for s in gang.slots.values()]
        wakes = [w for s in slots if (w := s.next_wake_ns()) is not None]
        target = min([self._next_tick_ns, *wakes])
        self.clock.advance_ns(max(0, target - now) + 1)

    def _tick_if_due(self) -> None:
        if self.clock.monotonic_ns() < self._next_tick_ns:
            return
        self._next_tick_ns = self.clock.monotonic_ns() + self._tick_ns
        self.gangs = [g for g in self.gangs if g.lives or g.attempt == self.job.attempt]
        for gang in self.gangs:
            for slot in gang.slots.values():
                slot.beat_if_due(self._beat_ns)
        if not self._driver_is_down:
            self.driver.tick()

    # ---- Spark ----

    def _new_driver(self, begin: Beginning) -> SimulatedDriver:
        return SimulatedDriver(
            self.job_graph,
            begin,
            self.world,
            self._seed,
            self,
            self.consumers,
            self._observe,
            self._on_end,
        )

    def available_slots(self) -> int | None:
        return self._available

    def start_gang(self, driver: SimulatedDriver, attempt: AttemptNumber, slots: int) -> SimulatedGang:
        def hear(slot: SimulatedSlot, message: m.SlotMessage) -> None:
            def deliver(message: m.SlotMessage) -> None:
                if driver is self.driver and slot.connected:
                    driver.hear(attempt, ev.MessageReceived(slot.id, message))

            if self._faults is None:
                deliver(message)
            else:
                self._faults.from_slot(message, deliver)

        gang = SimulatedGang(
            driver.job.job_id,
            attempt,
            slots,
            self.world,
            self.random,
            lambda event: driver.post(OfAttempt(attempt, event)),
            hear,
        )
        self.gangs.append(gang)
        return gang

    def cancel_gang(self, gang: SimulatedGang) -> None:
        """End its processes: at once, or with faults at any later time."""
        gang.cancel(gently=self._faults is None)

    def send(self, gang: SimulatedGang, slot: SlotId, message: m.MasterMessage) -> None:
        if self._faults is None:
            gang.send(slot, message)
        else:
            self._faults.to_slot(message, partial(gang.send, slot))


def _new_job(options: Options) -> Beginning:
    job_id = JobId("simulated")
    return Beginning(job_id, make_storage(options, job_id) if options.checkpoint_interval else None)
