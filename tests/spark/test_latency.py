"""A record does not wait for others: at a low rate it is through the whole job in milliseconds, one by one."""

from __future__ import annotations

import pytest

from tests.spark.latency import NoteLatency, NoteSizes, bystander
from tidegate.connectors.datagen import DataGeneratorSource, created_at_ns, sequence


@pytest.mark.alone
@pytest.mark.spec("S2-11")
@pytest.mark.parametrize("buffer_timeout", ["10ms", 0])
def test_at_a_low_rate_latency_is_far_below_the_floor_of_micro_batches(make_env, tmp_path, buffer_timeout):
    rate, count = 200, 600
    note, sizes = NoteLatency(tmp_path), NoteSizes(tmp_path)
    env = make_env(parallelism=2, buffer_timeout=buffer_timeout)
    source = DataGeneratorSource(fields={"n": sequence(), "sent": created_at_ns()}, rate=rate, count=count)
    stream = env.from_source(source)
    stream.key_by("n").map_batches(sizes, returns=stream.record_type).rebalance().sink_to(note)
    with bystander(tmp_path) as machine:
        env.execute()
    latencies = note.read()
    assert set(latencies) == set(range(count)), "every record came, once"
    settled = [ms for n, ms in latencies.items() if n >= rate]
    machine.check(settled, sizes.read(), rate)
