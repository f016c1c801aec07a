"""The registry of options, and their values with the origin of each.

An option has a dotted ``key`` (``network.buffer_timeout``: files and the command line) and a Python ``name``
(``buffer_timeout``: keyword argument and attribute). The class body of `Options` is the registry of the engine's own
options; a connector adds its own with `register`. Values come in layers, and a later layer wins: defaults, file, code,
command line:

>>> options = Options().with_values({"network": {"buffer_timeout": "5 ms"}}, "job.yaml")
>>> options = options.with_keywords(parallelism=2)
>>> options.buffer_timeout, options.parallelism, options.get(Options.heartbeat_timeout)
(5, 2, 10000)

Inside, durations are milliseconds and sizes are bytes. `Options` is immutable and picklable: the driver sends it to the
slots unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeVar

from tidegate.core.errors import ConfigurationError
from tidegate.core.network_options import NetworkOptions
from tidegate.core.option import CODE, REGISTRY, SPELLINGS, Option, describe, find_option, plain, register
from tidegate.core.option_types import BOOLEAN, DURATION, LOCATION, SIZE, TEXT, at_least, choice, integer
from tidegate.core.recovery_options import LATEST, LATEST_OR_NEW, RecoveryOptions
from tidegate.core.state_backends import STATE_BACKENDS

__all__ = [
    "COMMAND_LINE",
    "DEFAULT_ORIGIN",
    "Option",
    "Options",
    "describe",
    "find_option",
    "register",
    "split_arguments",
]

T = TypeVar("T")

DEFAULT_ORIGIN: Final = "default"
COMMAND_LINE: Final = "the command line"


class Options(NetworkOptions, RecoveryOptions):
    """The effective values, each with its origin: an immutable mapping from key to value."""

    __slots__ = ("_origins", "_values")

    parallelism = Option(
        "parallelism",
        integer(1, 32768),
        1,
        "Subtasks of an operator that sets no parallelism of its own.",
        aliases=["parallelism.default"],
    )
    max_parallelism = Option(
        "max_parallelism",
        integer(1, 32768),
        128,
        "Key groups of the job: the most it can ever be rescaled to. Fixed once there is state.",
        aliases=["pipeline.max_parallelism"],
    )
    job_name = Option(
        "job.name",
        TEXT,
        "",
        "Name of the job in logs and in Spark's UI; empty: the name of the program.",
        aliases=["pipeline.name"],
    )
    progress = Option(
        "progress",
        choice("auto", "on", "off"),
        "auto",
        "Live display in the terminal or the notebook; auto: only if the output is one.",
    )

    runtime = Option(
        "runtime",
        choice("spark", "in-process"),
        "spark",
        "Where the job runs: on Spark, or all in one thread of this process (tests, documentation).",
    )
    seed = Option(
        "simulation.seed",
        integer(0),
        0,
        "Seed of the scheduler of the in-process runtime: one seed, one order of events.",
    )
    chaining = Option(
        "pipeline.operator_chaining",
        BOOLEAN,
        True,
        "Call operators directly where no exchange is needed.",
    )
    batch_rows = Option(
        "execution.batch_rows",
        integer(1),
        262144,
        "Most rows that a source puts in one batch; fewer if the operators chained after it are slow.",
    )
    mini_batch = Option(
        "execution.mini_batch",
        BOOLEAN,
        False,
        "Rolling aggregates emit the latest result per key and batch, not one per record.",
        aliases=["table.exec.mini_batch.enabled"],
    )

    state_backend = Option(
        "state.backend",
        choice(*STATE_BACKENDS),
        "heap",
        "Where keyed state lives: in the slots' memory, or in RocksDB on their disks (larger than memory).",
        aliases=["state.backend.type"],
    )
    rocksdb_memory = Option(
        "state.rocksdb.memory",
        at_least(8 << 20, SIZE),
        256 << 20,
        "Memory of a slot for all its RocksDB state: caches and write buffers together.",
        aliases=["state.backend.rocksdb.memory.fixed_per_slot"],
    )

    watermark_interval = Option(
        "watermark.interval",
        DURATION,
        200,
        "Time between the watermarks of a source, and from its first record to the first; 0: one after every batch.",
        aliases=["pipeline.auto_watermark_interval"],
    )

    heartbeat_interval = Option(
        "heartbeat.interval",
        at_least(1, DURATION),
        500,
        "Time between heartbeats of the JobManager and a slot.",
    )
    heartbeat_timeout = Option(
        "heartbeat.timeout",
        at_least(1, DURATION),
        10_000,
        "Silence after which a slot or the JobManager counts as dead.",
    )
    slots_wait_timeout = Option(
        "slots.wait_timeout",
        DURATION,
        300_000,
        "How long an attempt waits for missing slots before it fails; slots that Spark has free get 30 s to start.",
    )
    cancel_grace = Option(
        "cancel.grace",
        DURATION,
        2_000,
        "Time that tasks have to close by themselves when the job is cancelled.",
    )
    metrics_interval = Option(
        "metrics.interval", at_least(1, DURATION), 500, "Time between reports of a slot's metrics."
    )
    spark_staging_dir = Option(
        "spark.staging_dir",
        LOCATION,
        "",
        "Directory for DataFrames on their way in and out; empty: a temporary one on this machine.",
    )
    spark_master = Option(
        "spark.master", TEXT, "local[*]", "Spark master, used only if tidegate starts the session."
    )

    _values: Mapping[str, object]
    _origins: Mapping[str, str]

    def __init__(self) -> None:
        self._keep({}, {})

    def _keep(self, values: dict[str, object], origins: dict[str, str]) -> None:
        object.__setattr__(self, "_values", MappingProxyType(values))
        object.__setattr__(self, "_origins", MappingProxyType(origins))

    def get(self, option: Option[T]) -> T:
        """The effective value, in the option's type."""
        value: T = self._values.get(option.key, option.default)  # type: ignore[assignment]
        return value

    def origin(self, option: Option[Any]) -> str:
        """Where the value comes from: a file's name, the code, the command line, or ``"default"``."""
        return self._origins.get(option.key, DEFAULT_ORIGIN)

    def with_values(self, values: Mapping[str, object], origin: str) -> Options:
        """A layer over this one, keys dotted or nested. Refuses unknown keys and bad values."""
        merged, origins = dict(self._values), dict(self._origins)
        given: dict[str, str] = {}
        for spelling, value in _flatten(values, "", origin):
            option = find_option(spelling, origin)
            if option.key in given:
                raise ConfigurationError(
                    f"option {option.key} is set twice in {origin}: "
                    f"as {given[option.key]} and as {spelling}. Keep one."
                )
            given[option.key] = spelling
            merged[option.key] = option.parse(value, origin, spelling)
            origins[option.key] = origin
        return _restore(merged, origins)

    def with_keywords(self, **keywords: object) -> Options:
        """The layer of code: the keyword arguments of ``Environment``. ``None`` means not given."""
        given = {name: value for name, value in keywords.items() if value is not None}
        return self.with_values(given, CODE)

    def with_arguments(self, arguments: Sequence[str]) -> Options:
        """The layer of the command line; `split_arguments` separates words that are not options."""
        values, rest = split_arguments(arguments)
        if rest:
            raise ConfigurationError(f"cannot use {rest[0]!r} on the command line: write --option key=value.")
        return self.with_values(values, COMMAND_LINE)

    def checked(self) -> Options:
        """These options, after a check that they fit together; called when all layers are in."""
        cls = Options
        derived = self.origin(cls.max_parallelism) == DEFAULT_ORIGIN
        if not derived and self.parallelism > self.max_parallelism:
            self._conflict(cls.parallelism, "at most", cls.max_parallelism)
        if self.heartbeat_timeout <= self.heartbeat_interval:
            self._conflict(cls.heartbeat_timeout, "more than", cls.heartbeat_interval)
        if self.restart_max_backoff < self.restart_initial_backoff:
            self._conflict(cls.restart_max_backoff, "at least", cls.restart_initial_backoff)
        if self.checkpoint_interval and self.checkpoint_mode == "at_most_once":
            self._exclude(cls.checkpoint_interval, cls.checkpoint_mode, "it takes no checkpoints")
        if self.checkpoint_mode == "at_least_once":
            if self.checkpoint_unaligned:
                self._exclude(cls.checkpoint_unaligned, cls.checkpoint_mode, "nothing is aligned in it")
            if self.checkpoint_alignment_timeout:
                self._exclude(
                    cls.checkpoint_alignment_timeout, cls.checkpoint_mode, "nothing is aligned in it"
                )
        if self.checkpoint_max_concurrent > 1:
            reason = (
                "a newer barrier that overtakes ends an older checkpoint, so perhaps none would be complete"
            )
            if self.checkpoint_unaligned:
                self._exclude(cls.checkpoint_unaligned, cls.checkpoint_max_concurrent, reason)
            if self.checkpoint_alignment_timeout:
                self._exclude(cls.checkpoint_alignment_timeout, cls.checkpoint_max_concurrent, reason)
        if self.resume in (LATEST, LATEST_OR_NEW) and not self.checkpoint_dir:
            needed = cls.checkpoint_dir.written(self.origin(cls.resume))
            raise ConfigurationError(
                f"option {self._side(cls.resume)} needs {needed}: the directory of the job's checkpoints."
            )
        return self

    def _conflict(self, one: Option[Any], relation: str, other: Option[Any]) -> NoReturn:
        raise ConfigurationError(
            f"option {self._side(one)} must be {relation} {self._side(other, one)}. Change one of them."
        )

    def _exclude(self, one: Option[Any], other: Option[Any], reason: str) -> NoReturn:
        raise ConfigurationError(
            f"option {self._side(one)} cannot be combined with {self._side(other, one)}: {reason}. Leave out one."
        )

    def _side(self, option: Option[Any], beside: Option[Any] | None = None) -> str:
        """An option with its value, spelled as in its origin; a default is spelled as in the origin of `beside`."""
        origin = self.origin(option)
        name = option.written(origin if beside is None or origin != DEFAULT_ORIGIN else self.origin(beside))
        return f"{name} ({option.type.show(self.get(option))}, set in {origin})"

    def as_dict(self) -> dict[str, object]:
        """Plain values (int, bool, str) of the options that were set, without defaults: for messages and manifests."""
        return dict(self._values)

    def __getitem__(self, spelling: str) -> object:
        return self.get(find_option(spelling))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(REGISTRY))

    def __len__(self) -> int:
        return len(REGISTRY)

    def __contains__(self, spelling: object) -> bool:
        return isinstance(spelling, str) and plain(spelling) in SPELLINGS

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and all(self[key] == other[key] for key in self)

    def __hash__(self) -> int:
        return hash(tuple(self[key] for key in self))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"options are immutable: cannot set {name}")

    def __repr__(self) -> str:
        shown = (f"{key}={REGISTRY[key].type.show(value)}" for key, value in sorted(self._values.items()))
        return f"Options({', '.join(shown)})"

    def __reduce__(self) -> tuple[Callable[..., Options], tuple[dict[str, object], dict[str, str]]]:
        return _restore, (dict(self._values), dict(self._origins))


def split_arguments(
    arguments: Sequence[str], *, known_only: bool = False
) -> tuple[dict[str, object], list[str]]:
    """The options of a command line, and the other words.

    Takes ``--option key=value`` (also ``-o``), ``--key value`` and ``--key=value``; a boolean needs no value. Refuses a
    ``--word`` that is not an option and names the nearest one; if ``known_only``, leaves it to the program. Words after
    ``--`` belong to the program.
    """
    values: dict[str, object] = {}
    rest: list[str] = []
    waiting = list(reversed(arguments))
    while waiting:
        word = waiting.pop()
        if word == "--":
            rest += reversed(waiting)
            break
        flag, equals, value = word.partition("=")
        if flag in ("--option", "-o"):
            pair = value if equals else (waiting.pop() if waiting else "")
            spelling, equals, value = pair.partition("=")
            if not equals:
                raise ConfigurationError(f"{flag} needs key=value, but got {pair!r}.")
        elif word.startswith("--") and not (known_only and flag[2:] not in Options()):
            spelling = flag[2:]
            option = find_option(spelling, COMMAND_LINE)
            if not equals:
                value = _next_value(option, waiting)
        else:
            rest.append(word)
            continue
        key = find_option(spelling.strip(), COMMAND_LINE).key
        if key in values:
            raise ConfigurationError(f"option {key} is set twice on the command line. Keep one.")
        values[key] = value.strip()
    return values, rest


def _next_value(option: Option[Any], waiting: list[str]) -> str:
    """The word after ``--key``; a boolean option takes it only if it is a boolean (not in ``--mini-batch in.json``)."""
    if option.type is BOOLEAN:
        try:
            BOOLEAN.parse(waiting[-1] if waiting else None)
        except ValueError:
            return "true"
    if not waiting or waiting[-1].startswith("--"):
        raise ConfigurationError(
            f"option {option.key} needs a value on the command line. Expected {option.type.form}."
        )
    return waiting.pop()


def _flatten(values: Mapping[str, object], prefix: str, origin: str) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if not isinstance(key, str):
            raise ConfigurationError(
                f"{prefix}{key!r} (set in {origin}) is not the name of an option: quote it."
            )
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.", origin)
        else:
            yield prefix + key, value


def _restore(values: dict[str, object], origins: dict[str, str]) -> Options:
    options = Options.__new__(Options)
    options._keep(values, origins)
    return options


for _owner in Options.__mro__:
    for _option in vars(_owner).copy().values():
        if isinstance(_option, Option):
            register(_option)
