"""What a port logs of those it refuses: the first of each kind at once, the others as a number."""

from __future__ import annotations

import pytest

from tidegate.protocol.refusals import RefusalLog


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture):
    """Everything logged since it was last asked."""

    def take() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    return take


def test_the_first_of_each_reason_and_address_is_logged_at_once_and_the_others_are_counted(said):
    log = RefusalLog("the data port of slot 3")
    for i in range(50):
        log.add(f"10.0.0.1:{40_000 + i}", "no tidegate", now_ms=i)
    log.add("10.0.0.2:40000", "no tidegate", now_ms=60)
    log.add("10.0.0.1:50000", "wrong secret", now_ms=70)
    assert said() == [
        "refused a connection from 10.0.0.1:40000 to the data port of slot 3: no tidegate",
        "refused a connection from 10.0.0.2:40000 to the data port of slot 3: no tidegate",
        "refused a connection from 10.0.0.1:50000 to the data port of slot 3: wrong secret",
    ]
    log.tick(9_999)
    assert said() == []
    log.tick(10_000)
    assert said() == ["refused 49 more connections to the data port of slot 3"]


def test_a_new_window_begins_with_the_next_refusal(said):
    log = RefusalLog("a port")
    for now_ms in (5_000, 14_999, 15_000, 24_999):
        log.add("10.0.0.1:1", "no tidegate", now_ms)
    assert [line.split(" ")[1] for line in said()] == ["a", "1", "a"]
    log.tick(25_000)
    assert said() == ["refused 1 more connections to a port"]
    log.tick(100_000)
    assert said() == []


def test_a_flood_of_many_addresses_and_reasons_is_a_few_lines(said):
    log = RefusalLog("a port")
    for i in range(10_000):
        log.add(f"10.0.{i % 100}.1:1", f"reason {i}", now_ms=i // 10)
    assert len(said()) == RefusalLog.MOST
    log.close()
    assert said() == [f"refused {10_000 - RefusalLog.MOST} more connections to a port"]
