"""Tools for users' tests of streaming programs.

`check_recovery` and `ScriptedSource` test a program whose processes die, `OperatorHarness` tests one operator alone;
see docs/guide/testing.md.
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
