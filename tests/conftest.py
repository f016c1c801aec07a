"""What every test shares; the fixtures of one kind of test live in that folder's own conftest."""

from hypothesis import settings

pytest_plugins = ["pytester", "tests.plugins.spec_report"]

# A limit per example would measure how busy the machine is; pytest-timeout ends what hangs.
settings.register_profile("tidegate", deadline=None)
settings.load_profile("tidegate")
