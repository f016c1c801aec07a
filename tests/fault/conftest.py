"""The same Spark as the tests of the runtime, and no thread left behind."""

from tests.spark.conftest import make_env, make_spark_env, no_thread_is_left, spark  # noqa: F401 -- fixtures
