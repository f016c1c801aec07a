"""Spark as resource manager and supervisor: the only folder that imports pyspark."""
