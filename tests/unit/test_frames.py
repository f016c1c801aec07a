"""Frames survive any cut of the byte stream, and nothing absurd is believed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import ProtocolError
from tidegate.core.ids import ChannelId, EdgeId
from tidegate.protocol import frames


def cut(data: bytes, places: list[int]) -> list[bytes]:
    borders = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(borders)]


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 1_000), max_size=12))
def test_control_frames_come_out_whole_however_the_bytes_are_cut(bodies, places):
    stream = b"".join(map(frames.control_frame, bodies))
    decoder = frames.ControlDecoder()
    assert [body for piece in cut(stream, places) for body in decoder.feed(piece)] == bodies


def test_a_control_frame_arrives_byte_by_byte():
    decoder = frames.ControlDecoder()
    stream = frames.control_frame(b"one") + frames.control_frame(b"") + frames.control_frame(b"three")
    assert [body for i in range(len(stream)) for body in decoder.feed(stream[i : i + 1])] == [
        b"one",
        b"",
        b"three",
    ]


def test_a_length_over_the_limit_is_refused_before_its_body_is_read():
    decoder = frames.ControlDecoder(limit=10)
    assert list(decoder.feed(frames.control_frame(b"x" * 10))) == [b"x" * 10]
    with pytest.raises(ProtocolError, match="11 bytes is announced, at most 10"):
        list(decoder.feed(frames.CONTROL_HEADER.pack(11)))


def test_frames_before_a_bad_length_are_delivered():
    decoder = frames.ControlDecoder(limit=10)
    bodies = decoder.feed(frames.control_frame(b"good") + frames.CONTROL_HEADER.pack(99))
    assert next(bodies) == b"good"
    with pytest.raises(ProtocolError):
        next(bodies)


@given(
    st.sampled_from([frames.BATCH, frames.EVENT]),
    st.integers(0, 65_535),
    st.integers(0, 65_535),
    st.integers(0, 65_535),
    st.integers(0, frames.MAX_DATA_BYTES),
    st.integers(0, 2**32 - 1),
)
def test_a_data_header_is_read_as_it_was_written(kind, edge, producer, consumer, length, extra):
    channel = ChannelId(EdgeId(edge), producer, consumer)
    raw = frames.data_header(kind, channel, length, extra)
    assert len(raw) == frames.DATA_HEADER.size
    assert frames.parse_data_header(raw) == (kind, channel, length, extra)


@pytest.mark.parametrize(
    ("kind", "length", "words"),
    [
        (0, 0, "unknown kind of data frame: 0"),
        (9, 0, "unknown kind of data frame: 9"),
        (frames.BATCH, frames.MAX_DATA_BYTES + 1, "announces"),
        (frames.CREDIT, 1, "announces 1 bytes"),
    ],
)
def test_an_absurd_data_header_is_refused(kind, length, words):
    raw = frames.DATA_HEADER.pack(kind, 0, 0, 0, length, 0)
    with pytest.raises(ProtocolError, match=words):
        frames.parse_data_header(raw)


def test_a_frame_that_the_receiver_would_refuse_is_refused_where_it_is_made():
    with pytest.raises(ProtocolError, match="too large to go to another slot"):
        frames.data_header(frames.BATCH, ChannelId(EdgeId(0), 0, 0), frames.MAX_DATA_BYTES + 1, 0)


@given(st.binary(min_size=frames.DATA_HEADER.size, max_size=frames.DATA_HEADER.size))
def test_garbage_for_a_data_header_is_an_error_or_a_header_within_bounds(raw):
    try:
        header = frames.parse_data_header(raw)
    except ProtocolError:
        return
    assert header.length <= frames.MAX_DATA_BYTES
