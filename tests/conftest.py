"""What every test shares; the fixtures of one kind of test live in that folder's own conftest."""

import os
from pathlib import Path

from hypothesis import settings

pytest_plugins = [
    "pytester",
    "tests.plugins.alone",
    "tests.plugins.nexmark",
    "tests.plugins.order",
    "tests.plugins.seeds",
    "tests.plugins.spec_report",
]

# Every Java machine that a test starts, in any process, reads its options there: it lives for seconds, so it compiles
# fast rather than well. This halves the processor time of Spark's start.
os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "spark" / "conf")

# A limit per example would measure how busy the machine is; pytest-timeout ends what hangs.
# Where CI is set, Hypothesis would draw the same examples for ever; ours follow from the run's seeds.
settings.register_profile("tidegate", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("tidegate")
