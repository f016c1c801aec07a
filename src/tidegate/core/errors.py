"""The exception tree: every error that tidegate raises on purpose is a `TidegateError`.

An error is a message to an operator: what failed, with names and both values, then what to do. Each class is picklable
(`args` are the constructor's arguments), so it crosses processes unchanged.
"""

from __future__ import annotations


class TidegateError(Exception):
    """The base of all errors that tidegate raises."""


class ConfigurationError(TidegateError):
    """An option is unknown, has a value of the wrong form, or contradicts another."""


class ProgramError(TidegateError):
    """The user's program cannot become a job: no sink, equal uids, a cycle, a wrong argument."""


class SchemaError(TidegateError):
    """Records do not have the type that the plan expects; names the operator, the column and both types."""


class KeyTypeError(SchemaError):
    """A key has a type that cannot be hashed stably (a list, a map, an unknown object)."""


class SerializationError(TidegateError):
    """A function or object cannot be sent to the slots, or a value cannot be stored; names it and the reason."""


class ModuleMissingError(SerializationError):
    """A slot cannot import a module that the program needs: it is missing there, or has another version."""


class BadRecordError(TidegateError):
    """An input record cannot be parsed; names the file and the line, or the split and the position."""


class ProtocolError(TidegateError):
    """Bytes on a connection break the protocol; the receiver closes the connection, the job continues."""


class AuthenticationError(ProtocolError):
    """A peer could not prove that it holds the job's secret."""


class IllegalTransitionError(TidegateError):
    """A step is not in a state machine's table of legal transitions."""


class JobError(TidegateError):
    """A job ended without finishing; `str()` is the whole message for the user."""


class JobFailedError(JobError):
    """A job failed: the operator, the subtask, the record's position if known and the user's traceback."""


class SlotsUnavailableError(JobFailedError):
    """The cluster did not offer the slots that the job needs within `slots.wait_timeout`."""


class JobFencedError(JobFailedError):
    """Another driver has taken the job over, and this driver has ended."""


class JobCanceledError(JobError):
    """A job was cancelled before it finished."""


class StateCompatibilityError(TidegateError):
    """Stored state does not fit the program: names the operator, the state and both types or numbers."""


class TargetLostError(TidegateError):
    """The target of a sink now belongs to another job or driver: the sink writes nothing more, and no restart helps."""


class CheckpointError(TidegateError):
    """A checkpoint cannot be taken, read or restored; names the checkpoint, the path and the reason."""
