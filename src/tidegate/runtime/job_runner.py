"""JobRunner: a `JobDriver` whose ports are threads and sockets.

Threads of a running job, all gone when it has ended: `tidegate-control` (the server's loop; the only one that touches
the driver), `tidegate-enumerators` (the sources' I/O, one per attempt), `tidegate-storage` (the I/O of checkpoints),
`tidegate-host` (calls to the host, which may be slow).
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tidegate.core.clock import Clock, SystemClock
from tidegate.core.ids import AttemptNumber, OperatorId
from tidegate.core.options import Options
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager import events as ev
from tidegate.jobmanager.driver import JobDriver
from tidegate.jobmanager.ports import DriverEvent, Ports
from tidegate.jobmanager.resume_point import Beginning, beginning
from tidegate.protocol.bootstrap import SlotBootstrap
from tidegate.protocol.handshake import new_secret
from tidegate.protocol.tls import identity_for
from tidegate.runtime.collected_results import CollectedBuffer, CollectedBuffers
from tidegate.runtime.control_server import ControlServer
from tidegate.runtime.port_threads import EnumeratorThreads, GangHost, GangThread, StorageThread


class JobRunner:
    """Runs a job. Made and started by one thread; everything else is safe from any."""

    def __init__(
        self,
        job_graph: JobGraph,
        options: Options,
        host: GangHost,
        *,
        begin: Beginning | None = None,
        clock: Clock | None = None,
        keeps: object = None,
        on_end: Callable[[bool], None] = lambda resumable: None,
    ) -> None:
        """`on_end` as for the `JobDriver`, on the job's thread. `keeps` lives as long as the runner."""
        begin = begin or beginning(options, job_graph.name, job_graph)
        clock = clock or SystemClock()
        bind_host, advertised_host = host.control_host()
        secret = new_secret()
        tls = identity_for(options, begin.job_id, bind_host)
        self._keeps = keeps
        self._server = ControlServer(
            bind_host,
            secret,
            begin.job_id,
            begin.first_attempt,
            job_graph.slots_needed,
            options.handshake_timeout,
            clock=clock,
            ports=options.control_port,
            tls=tls,
        )

        def bootstrap(attempt: AttemptNumber) -> SlotBootstrap:
            return SlotBootstrap(
                begin.job_id,
                job_graph.name,
                attempt,
                secret,
                advertised_host,
                self._server.port,
                job_graph.slots_needed,
                options.as_dict(),
                tls,
            )

        self._gang = GangThread(host, bootstrap, self.post)
        self._enumerators = EnumeratorThreads(job_graph, clock, self.post)
        try:
            orders = begin.storage_orders(job_graph, options)
            self._storage = None if orders is None else StorageThread(orders, self.post)
            self._collected = CollectedBuffers(job_graph, self.post)
            self.driver = JobDriver(
                job_graph,
                options,
                begin,
                Ports(self._server, self._gang, self._enumerators, self._storage, self._collected),
                clock,
                seed=random.SystemRandom().randrange(1 << 32),
                on_end=on_end,
            )
        except BaseException:  # for example, a source of the user's raised
            self._server.close_unstarted()
            raise

    def start(self) -> None:
        """Submit the job and return at once."""
        self._gang.start_thread()
        if self._storage is not None:
            self._storage.start()
        self._server.start(self._handle, self._crash)
        self.post(ev.SubmissionRequested())

    def close_unstarted(self) -> None:
        """Release the control port of a runner that was never started."""
        self._server.close_unstarted()

    def post(self, event: DriverEvent) -> None:
        """Queue an event for the job's thread."""
        self._server.post(event)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the job has ended and nothing of it is left; False after the timeout."""
        if not self._server.join(timeout_s):
            return False
        for thread in (self._gang, self._enumerators, self._storage):
            if thread is not None:
                thread.join()
        return True

    def collected(self, operator: OperatorId) -> CollectedBuffer:
        """What a sink operator sends to the driver."""
        return self._collected[operator]

    # ---- on the server's thread ----

    def _handle(self, event: DriverEvent) -> None:
        self.driver.handle(event)
        self._stop_if_over()

    def _crash(self, error: BaseException) -> None:
        self.driver.crash(error)
        self._stop_if_over()

    def _stop_if_over(self) -> None:
        if self.driver.is_over:
            self._server.stop()
