"""What every test shares; the fixtures of one kind of test live in that folder's own conftest."""

pytest_plugins = ["pytester", "tests.plugins.spec_report"]
