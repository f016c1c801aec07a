"""No credential of a storage URI is in a message, a plan, a repr or an error."""

from __future__ import annotations

import traceback

import pytest

from tidegate import Environment, FileSink, FileSource
from tidegate.core.errors import TidegateError
from tidegate.core.options import Options
from tidegate.core.uris import path_name, without_credentials
from tidegate.storage.locations import resolve

SECRET = "wJalrXUtnFEMI"
URIS = [
    f"s3://AKIAKEY:{SECRET}@bucket/dir",
    f"s3://AKIAKEY:{SECRET}%2Fx@bucket/dir?region=eu-west-1&nonsense=1",
    f"s3://AKIAKEY:{SECRET}/x@bucket/dir",
    f"s3://AKIAKEY:{SECRET}?x@bucket/dir?region=eu-west-1",
    f"s3://bucket/dir?access_key=AKIAKEY&secret_key={SECRET}",
    f"hdfs://AKIAKEY:{SECRET}@host:9/dir?secret={SECRET}",
    f"nothing://AKIAKEY:{SECRET}@host/dir?secret={SECRET}",
    f"s3://AKIAKEY:{SECRET}@[bad/dir",
]


def check(text: str) -> None:
    assert SECRET not in text
    assert "AKIAKEY" not in text


@pytest.mark.parametrize("uri", URIS)
def test_no_credential_is_in_the_representation_or_in_a_refusal_of_options(uri):
    options = Options().with_keywords(checkpoint_dir=uri, resume=uri, spark_staging_dir=uri)
    check(repr(options))
    assert options.checkpoint_dir == uri


@pytest.mark.parametrize("format", ["text", "mermaid", "svg", "json"])
@pytest.mark.parametrize("uri", URIS[:5])
def test_no_credential_is_in_a_plan(uri, format):
    env = Environment(checkpoint_dir=uri, checkpoint_interval="1 s")
    try:
        env.from_source(FileSource(uri, format="text")).sink_to(FileSink(uri, format="json"))
        plan = env.explain(format)
    except TidegateError as e:
        plan = "".join(traceback.format_exception(e))
    check(plan)


@pytest.mark.parametrize("uri", URIS)
def test_no_credential_is_in_the_error_of_a_location(uri):
    try:
        resolve(uri)
    except ValueError as e:
        check("".join(traceback.format_exception(e)))


@pytest.mark.parametrize("uri", URIS)
def test_no_credential_is_left_in_what_a_library_says_of_a_uri(uri):
    for said in (
        f"cannot parse {uri}",
        f"bad '{uri}': {uri[:-2]}",
        f"key AKIAKEY is unknown; {SECRET}/x too",
        uri[8:],
    ):
        check(without_credentials(said, uri))


def test_a_name_for_messages_keeps_what_is_no_secret():
    assert path_name("s3://key:pw@bucket/dir/file?region=x") == "s3://bucket/dir/file"
    assert path_name("/plain/pa@th?x") == "/plain/pa@th?x"
    assert path_name("hdfs://host:9000/a") == "hdfs://host:9000/a"
    assert path_name("hdfs://host:9000/a?user=me@home") == "hdfs://host:9000/a"
    assert path_name("s3://bucket/a?user=me@home") == "s3://bucket/a"
