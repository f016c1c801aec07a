"""Shipped to users: what tests of streaming programs need.

`check_recovery` and `ScriptedSource` test what a program does when its processes die; see docs/guide/testing.md.
"""

from tidegate.testing.crash_kit import CrashReport, RecoveryMismatch, check_recovery
from tidegate.testing.scripted_source import Crash, Pause, ScriptedCrash, ScriptedSource

__all__ = [
    "Crash",
    "CrashReport",
    "Pause",
    "RecoveryMismatch",
    "ScriptedCrash",
    "ScriptedSource",
    "check_recovery",
]
