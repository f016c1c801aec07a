"""The exception tree: every error that tidegate raises on purpose is a `TidegateError`.

An error is a message to an operator: what failed, with names and both values, then what to do. Each class
here is picklable (its arguments are the arguments of its constructor), so it crosses processes unchanged.
"""

from __future__ import annotations


class TidegateError(Exception):
    """Anything that tidegate refuses or reports; catch this to catch them all."""


class ConfigurationError(TidegateError):
    """An option is unknown, has a value of the wrong form, or contradicts another."""


class ProgramError(TidegateError):
    """The user's program cannot become a job: no sink, equal uids, a cycle, a wrong argument."""


class SchemaError(TidegateError):
    """Records do not have the type that the plan says; names the operator, the column and both types."""


class KeyTypeError(SchemaError):
    """A key has a type that cannot be hashed stably (a list, a map, an unknown object)."""


class SerializationError(TidegateError):
    """A user's function or object cannot be sent to the slots, or a value not be stored; names it and what is wrong."""


class ModuleMissingError(SerializationError):
    """What the program needs cannot be imported in a slot: it is not installed there, or in another version."""


class BadRecordError(TidegateError):
    """An input record cannot be parsed; names the file and the line, or the split and the position."""


class ProtocolError(TidegateError):
    """Bytes on a connection are not what the protocol says; the connection is closed, the job goes on."""


class AuthenticationError(ProtocolError):
    """A peer could not prove that it holds the job's secret."""


class IllegalTransitionError(TidegateError):
    """A state machine was asked for a step that its table of legal transitions does not have."""


class JobError(TidegateError):
    """A job ended without finishing; `str()` is the whole message for the user."""


class JobFailedError(JobError):
    """A job failed: the operator, the subtask, the record's position if known and the user's traceback."""


class SlotsUnavailableError(JobFailedError):
    """The cluster did not offer the slots that the job needs within `slots.wait_timeout`."""


class JobFencedError(JobFailedError):
    """Another driver has taken the job over: this one has ended and left everything to the other."""


class JobCanceledError(JobError):
    """A job was cancelled before it finished."""


class StateCompatibilityError(TidegateError):
    """Stored state does not fit the program: names the operator, the state and both types or numbers."""


class TargetLostError(TidegateError):
    """What a sink writes to belongs to another job or driver now: nothing more is written, and no restart helps."""


class CheckpointError(TidegateError):
    """A checkpoint cannot be taken, read or restored; names the checkpoint, the path and the reason."""
