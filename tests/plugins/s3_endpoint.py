"""An S3 endpoint on loopback for tests: moto's server, in this process, for as long as the tests that want it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator

import pyarrow.fs as pa_fs
import pytest


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """`host:port` of the endpoint."""
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def s3_bucket(s3_endpoint: str) -> str:
    """The URI of a directory in a new bucket, credentials and endpoint included."""
    bucket = f"lake-{secrets.token_hex(4)}"
    pa_fs.S3FileSystem(
        access_key="test",
        secret_key="test",
        endpoint_override=s3_endpoint,
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    ).create_dir(bucket)
    return f"s3://test:test@{bucket}/checkpoints?endpoint_override={s3_endpoint}&scheme=http&region=us-east-1"
