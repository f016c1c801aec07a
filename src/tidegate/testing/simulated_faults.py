"""The faults of a simulation, all from one seed: of processes, connections, messages, storage and files.

| fault | what happens |
|---|---|
| kill | a slot, several slots, or the driver dies: at any event, or inside a call at a failpoint |
| stop | a slot pauses until the others take it for dead, then continues: a zombie |
| cut | a control or a data connection breaks, and both ends live |
| message | an acknowledgement or notification is lost, repeated or delayed |
| error | a failpoint raises: storage is full or missing, a commit fails |
| damage | a file of the newest completed checkpoint is changed, truncated or deleted |
| slow | some actors take far longer than others, for the whole run |

The number of faults is limited, so that every run ends.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tidegate.core.failpoints import NAMES, injected
from tidegate.jobmanager.resume_point import Beginning
from tidegate.protocol import messages as m
from tidegate.runtime.simulated_driver import SimulatedDriver
from tidegate.runtime.simulated_gang import Choice
from tidegate.runtime.simulated_slot import ProcessKilled
from tidegate.runtime.simulation import Simulation
from tidegate.storage import layout
from tidegate.storage.filesystem import FilesystemStorage
from tidegate.storage.storage import StorageError

_REORDERED = (m.NotifyCheckpointComplete, m.NotifyCheckpointAborted)
_DAMAGES = ("flip", "cut", "delete")


class InjectedError(Exception):
    """A failpoint raised on purpose."""


class SimulatedFaults:
    """The faults of one run. `resume` makes the beginning of a new driver; without it the driver is never killed."""

    def __init__(
        self,
        seed: int,
        *,
        resume: Callable[[], Beginning] | None = None,
        damages: bool = False,
    ) -> None:
        self._random = rng = random.Random(f"faults {seed}")
        self.tick_ns = 10_000_000
        self.event_ns = rng.choice((50_000, 150_000, 400_000))
        self.passed: Counter[str] = Counter()
        """Failpoints that were passed, by name."""
        self.struck: Counter[str] = Counter()
        """The faults that occurred, by kind; at failpoints also by name."""
        self._resume = resume
        self._damages = damages
        self._strikes_left = rng.choice((0, 1, 2, 3, 4, 6))
        self._strike_chance = 1 / rng.choice((50, 150, 400))
        self._message_chance = rng.choice((0.0, 0.0, 0.03, 0.15))
        self._messages_left = 12
        self._points = {name: rng.choice((0.05, 0.3)) for name in sorted(NAMES) if rng.random() < 0.25}
        self._points_left = rng.choice((0, 1, 3, 5))
        self._held: list[tuple[int, Callable[[], None]]] = []
        self._events = 0
        self._speeds: dict[str, float] = {}
        self._speed_choice = rng.choice(((1.0,), (1.0, 1.0, 0.2), (1.0, 0.3, 0.05)))
        self._simulation: Simulation | None = None

    # ---- what the simulation asks ----

    def choose(self, choices: list[Choice]) -> Choice:
        """Choose the next event; each kind of event has its own speed for the whole run."""
        rng, speeds = self._random, self._speeds
        chosen = choices[0]
        for _ in range(8):
            chosen = choices[int(rng.random() * len(choices))]
            speed = speeds.get(chosen.name)
            if speed is None:
                slow = chosen.name.startswith(("kill", "control lost", "gang ends"))
                speed = speeds[chosen.name] = rng.choice((0.3, 0.02) if slow else self._speed_choice)
            if speed == 1.0 or rng.random() < speed:
                break
        return chosen

    def strike(self, simulation: Simulation) -> str | None:
        """Deliver delayed messages that are due; sometimes cause another fault, and return its description."""
        self._simulation = simulation
        self._events += 1
        self._release_held()
        rng = self._random
        if simulation.driver_is_down:
            if self._resume is None or rng.random() > 0.03:
                return None
            simulation.start_driver(self._resume())
            return "the driver starts again"
        for gang in simulation.gangs:
            for slot in gang.slots.values():
                if slot.paused and rng.random() < 0.005:
                    slot.paused = False
                    return f"slot {slot.name} continues"
        if self._strikes_left <= 0 or rng.random() >= self._strike_chance:
            return None
        struck = self._strike_now(simulation)
        if struck is not None:
            self._strikes_left -= 1
            self.struck[struck.partition(" ")[0]] += 1
        return struck

    def to_slot(self, message: m.MasterMessage, deliver: Callable[[m.MasterMessage], None]) -> None:
        """Delay, lose or repeat notifications. A trigger is not delayed: TCP keeps its place among the splits."""
        if isinstance(message, m.TriggerCheckpoint):
            self._disturb(message, deliver, ("lose", "repeat"))
        elif isinstance(message, _REORDERED):
            final = isinstance(message, m.NotifyCheckpointComplete) and message.final
            self._disturb(message, deliver, ("delay", "repeat") if final else ("lose", "repeat", "delay"))
        else:
            deliver(message)

    def from_slot(self, message: m.SlotMessage, deliver: Callable[[m.SlotMessage], None]) -> None:
        """Delay, lose or repeat acknowledgements and declines."""
        if isinstance(message, (m.AcknowledgeCheckpoint, m.DeclineCheckpoint)):
            self._disturb(message, deliver, ("lose", "repeat", "delay"))
        else:
            deliver(message)

    @contextlib.contextmanager
    def at_failpoints(self) -> Iterator[None]:
        """Inject faults at all failpoints of this process."""
        with contextlib.ExitStack() as stack:
            for name in sorted(NAMES):
                stack.enter_context(injected(name, partial(self._pass, name)))
            yield

    # ---- messages ----

    def _disturb(self, message: Any, deliver: Callable[[Any], None], kinds: tuple[str, ...]) -> None:
        rng = self._random
        if self._messages_left <= 0 or rng.random() >= self._message_chance:
            deliver(message)
            return
        self._messages_left -= 1
        kind = rng.choice(kinds)
        self.struck[kind] += 1
        if kind == "repeat":
            deliver(message)
        if kind != "lose":
            later = self._events + rng.choice((5, 60, 400))
            self._held.append((later, lambda: deliver(message)))

    def _release_held(self) -> None:
        if self._held:
            due = [deliver for at, deliver in self._held if at <= self._events]
            self._held = [(at, deliver) for at, deliver in self._held if at > self._events]
            for deliver in due:
                deliver()

    # ---- failpoints ----

    def _pass(self, name: str) -> None:
        actor = None if self._simulation is None else self._simulation.world.actor
        if actor is None or actor.killed:
            return
        self.passed[name] += 1
        chance = self._points.get(name)
        if chance is None or self._points_left <= 0 or self._random.random() >= chance:
            return
        self._points_left -= 1
        may_die = self._resume is not None or not isinstance(actor, SimulatedDriver)
        if may_die and self._random.random() < 0.5:
            self.struck[f"kill at {name}"] += 1
            actor.killed = True
            if name == "storage.write":
                self._leave_torn_file()
            raise ProcessKilled(name)
        self.struck[f"error at {name}"] += 1
        if name.startswith("storage."):
            raise StorageError(f"injected at {name}: no space left")
        raise InjectedError(f"injected at {name}")

    def _leave_torn_file(self) -> None:
        """Leave what a process leaves that dies while it writes a file."""
        simulation = self._simulation
        assert simulation is not None
        storage = simulation.driver.storage
        if isinstance(storage, FilesystemStorage):
            ids = simulation.job.coordinator.pending_ids
            path = layout.file_path(ids[-1] if ids else 1, simulation.job.attempt, "torn", 0, "x", "shared")
            torn = os.path.join(storage.place.path, layout.temporary_path(path, "0badf00d"))
            os.makedirs(os.path.dirname(torn), exist_ok=True)
            with open(torn, "wb") as file:
                file.write(b"half of")

    # ---- strikes ----

    def _strike_now(self, simulation: Simulation) -> str | None:
        rng = self._random
        living = [
            (gang, slot)
            for gang in simulation.gangs
            for slot in gang.slots.values()
            if not slot.ended and gang.attempt == simulation.job.attempt
        ]
        kind = rng.choices(
            ("kill", "kill several", "stop", "cut control", "cut data", "driver", "damage"),
            (5, 2, 1, 1, 1, 2 if self._resume is not None else 0, 3 if self._damages else 0),
        )[0]
        if kind == "driver":
            simulation.kill_driver()
            return "driver is killed"
        if kind == "damage":
            return self._damage(simulation)
        if not living:
            return None
        gang, slot = rng.choice(living)
        if kind == "kill several":
            victims = rng.sample(living, rng.randint(1, len(living)))
            for gang, slot in victims:
                gang.kill(slot)
            return f"kill slots {', '.join(slot.name for _, slot in victims)}"
        if kind == "stop":
            slot.paused = True
            return f"stop slot {slot.name}"
        if kind == "cut control":
            gang.cut_control(slot)
            return f"cut the control connection of slot {slot.name}"
        if kind == "cut data":
            peer = rng.choice(list(gang.slots.values()))
            if peer is slot or slot.slot is None or peer.slot is None:  # there is no connection yet
                return None
            gang.break_frames(slot.id, peer.id)
            gang.break_frames(peer.id, slot.id)
            return f"cut the data connection of slots {slot.name} and {peer.name}"
        gang.kill(slot)
        return f"kill slot {slot.name}"

    def _damage(self, simulation: Simulation) -> str | None:
        storage = simulation.driver.storage
        retained = simulation.job.coordinator.completed.retained
        if not retained or not isinstance(storage, FilesystemStorage):
            return None
        rng = self._random
        newest = retained[-1]
        paths = [layout.manifest_path(newest.checkpoint_id), *sorted(newest.files)]
        name = rng.choice(paths)
        path = os.path.join(storage.place.path, name)
        how = rng.choice(_DAMAGES)
        if not os.path.exists(path):
            return None
        with open(path, "rb") as file:
            data = bytearray(file.read())
        if how == "delete" or not data:
            os.unlink(path)
        else:
            if how == "cut":
                del data[rng.randrange(len(data)) :]
            else:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            with open(path, "wb") as file:
                file.write(data)
        return f"damage {name} ({how})"
