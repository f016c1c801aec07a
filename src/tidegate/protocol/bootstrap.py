"""SlotBootstrap: what a process needs to become a slot of a job attempt; it travels inside the Spark closure."""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.core.ids import AttemptNumber, JobId
from tidegate.protocol.tls import TlsIdentity


class SlotBootstrap(msgspec.Struct, frozen=True):
    """Where the JobManager is and how to authenticate. `repr` hides the secret, so logs and errors do too."""

    job_id: JobId
    job_name: str
    attempt: AttemptNumber
    secret: bytes
    control_host: str
    control_port: int
    num_slots: int
    options: dict[str, Any]
    """`Options.as_dict()`: the options that were set, without defaults."""
    tls: TlsIdentity | None = None
    """None: connections are not encrypted."""

    def __repr__(self) -> str:
        return (
            f"SlotBootstrap(job {self.job_id} {self.job_name!r}, attempt {self.attempt}, "
            f"control {self.control_host}:{self.control_port}, {self.num_slots} slots)"
        )

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        # Rich uses this in tracebacks; the default of msgspec would show every field.
        return [("job", self.job_id), ("attempt", self.attempt), ("slots", self.num_slots)]

    def encode(self) -> bytes:
        """MessagePack bytes; they hold the secret, so they go only into the closure that starts the slots."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> SlotBootstrap:
        return msgspec.msgpack.decode(data, type=SlotBootstrap)
