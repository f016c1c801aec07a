"""What is said of Spark's errors: the cause, the remedy where there is one, and never only that a call failed."""

from __future__ import annotations

import pytest

from tidegate.jobmanager.events import GangFault
from tidegate.spark.errors import explain_end

CALL = "An error occurred while calling o124.collectToPython.\n"
STAGE = (
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier "
    "ResultStage. Most recent failure reason: Stage failed because barrier task ResultTask(0, 0) finished "
    "unsuccessfully.\n"
)
STACK = "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)\n"


@pytest.mark.parametrize(
    ("text", "said", "fault"),
    [
        (
            CALL
            + STAGE
            + "ExecutorLostFailure (executor 0 exited caused by one of the running tasks) Reason: Command "
            "exited with code 137\n" + STACK,
            "Spark lost its executor 0: Command exited with code 137",
            GangFault.EXECUTOR_LOST,
        ),
        (
            CALL
            + STAGE
            + "ExecutorLostFailure (executor 1 exited unrelated to the running tasks) Reason: worker "
            "lost: Not receiving heartbeat for 60 seconds\n" + STACK,
            "Spark lost its executor 1: worker lost: Not receiving heartbeat for 60 seconds",
            GangFault.EXECUTOR_LOST,
        ),
        (
            CALL + ": org.apache.spark.scheduler.BarrierJobSlotsNumberCheckFailed: [SPARK-24819]: Barrier "
            "mode does not allow a stage\n" + STACK,
            "BarrierJobSlotsNumberCheckFailed: [SPARK-24819]: Barrier mode does not allow a stage",
            GangFault.UNKNOWN,
        ),
        (
            CALL
            + STAGE
            + 'java.io.IOException: Cannot run program "/nope/python": error=2, No such file\n'
            + STACK
            + "Caused by: java.io.IOException: error=2, No such file\n"
            + STACK,
            (
                'Cannot run program "/nope/python": error=2, No such file. Set PYSPARK_PYTHON (or '
                "spark.pyspark.python) to a Python that exists on every executor"
            ),
            GangFault.ENVIRONMENT,
        ),
        (
            CALL
            + STAGE
            + 'java.io.IOException: Cannot run program "python3": error=11, Resource temporarily unavailable\n'
            + STACK
            + "Caused by: java.io.IOException: error=11, Resource temporarily unavailable\n"
            + STACK,
            "IOException: error=11, Resource temporarily unavailable",
            GangFault.UNKNOWN,
        ),
        (
            CALL + STAGE + 'Traceback (most recent call last):\n  File "x"\n'
            "ModuleNotFoundError: No module named 'msgspec'\n" + STACK,
            (
                "ModuleNotFoundError: No module named 'msgspec'. The Python of the executors lacks it: set "
                "PYSPARK_PYTHON (or spark.pyspark.python) to one that has it"
            ),
            GangFault.ENVIRONMENT,
        ),
        (
            CALL
            + STAGE
            + "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in "
            "worker has different version: 3.9 than that in driver: 3.11.\n" + STACK,
            (
                "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11. Set "
                "PYSPARK_PYTHON (or spark.pyspark.python) to a Python of the driver's version on every executor"
            ),
            GangFault.ENVIRONMENT,
        ),
        (
            CALL
            + STAGE
            + "tidegate.taskmanager.control_connection.ControlLost: the JobManager's control port h:1 cannot be "
            "reached from host n1: [Errno 111] Connection refused\n" + STACK,
            "the JobManager's control port h:1 cannot be reached from host n1: [Errno 111] Connection refused",
            GangFault.UNKNOWN,
        ),
        (
            CALL + ": java.lang.InterruptedException\n" + STACK,
            "InterruptedException",
            GangFault.UNKNOWN,
        ),
        (
            CALL
            + ": org.apache.spark.SparkException: Job 3 cancelled because SparkContext was shut down\n"
            + STACK,
            "SparkException: Job 3 cancelled because SparkContext was shut down",
            GangFault.UNKNOWN,
        ),
        ("", "RuntimeError", GangFault.UNKNOWN),
    ],
)
def test_the_cause_is_said_and_told_apart(text, said, fault):
    end = explain_end(RuntimeError(text))
    assert (end.error, end.fault) == (said, fault)
