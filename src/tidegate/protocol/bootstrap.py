"""SlotBootstrap: all that a process needs to become a slot of a job attempt; it travels inside the Spark closure."""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.core.ids import AttemptNumber, JobId
from tidegate.core.options import Options
from tidegate.protocol.tls import TlsIdentity


class SlotBootstrap(msgspec.Struct, frozen=True):
    """Whom to call and how to prove oneself. The secret is never shown: not in `repr`, so not in logs or errors."""

    job_id: JobId
    job_name: str
    attempt: AttemptNumber
    secret: bytes
    control_host: str
    control_port: int
    num_slots: int
    options: dict[str, Any]
    """`Options.as_dict()`: what was set, without the defaults."""
    tls: TlsIdentity | None = None
    """None: connections are not encrypted."""

    def job_options(self) -> Options:
        """The job's options, as the driver has them."""
        return Options().with_values(self.options, "the job")

    def __repr__(self) -> str:
        return (
            f"SlotBootstrap(job {self.job_id} {self.job_name!r}, attempt {self.attempt}, "
            f"control {self.control_host}:{self.control_port}, {self.num_slots} slots)"
        )

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        # msgspec's own, which rich uses in tracebacks, would show every field.
        return [("job", self.job_id), ("attempt", self.attempt), ("slots", self.num_slots)]

    def encode(self) -> bytes:
        """As MessagePack; holds the secret, so it goes only into the closure that starts the slots."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> SlotBootstrap:
        """Back from `encode`."""
        return msgspec.msgpack.decode(data, type=SlotBootstrap)
