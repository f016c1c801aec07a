"""Shipped to users: what tests of streaming programs need.

`check_recovery` and `ScriptedSource` test what a program does when its processes die, `OperatorHarness` one operator by
itself; see docs/guide/testing.md.
"""

from tidegate.core.clock import ManualClock
from tidegate.testing.crash_kit import CrashReport, RecoveryMismatch, check_recovery
from tidegate.testing.harness import OperatorHarness
from tidegate.testing.scripted_source import Crash, Pause, ScriptedCrash, ScriptedSource

__all__ = [
    "Crash",
    "CrashReport",
    "ManualClock",
    "OperatorHarness",
    "Pause",
    "RecoveryMismatch",
    "ScriptedCrash",
    "ScriptedSource",
    "check_recovery",
]
