"""Messages arrive whole, in order, with their descriptors, however they are cut on the way."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.worker import wire

TEXT = st.text() | st.just("\udcff of a name that is no text")


@given(st.lists(st.dictionaries(TEXT, TEXT | st.integers()), max_size=5), st.integers(1, 7))
def test_a_stream_in_pieces_gives_the_messages(messages, size):
    stream = b"".join(map(wire.encode, messages))
    decoder = wire.Decoder()
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [message for piece in pieces for message in decoder.feed(piece)] == messages


def test_descriptors_ride_along():
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    wire.send(ours, {"op": "fork"}, (write,))
    received = wire.receive(theirs)
    assert received is not None
    message, (copy,) = received
    assert message == {"op": "fork"}
    os.write(copy, b"through")
    assert os.read(read, 10) == b"through"
    for fd in (read, write, copy):
        os.close(fd)
    ours.close()
    assert wire.receive(theirs) is None
    theirs.close()


def test_a_message_beyond_the_limit_is_refused():
    decoder = wire.Decoder()
    with pytest.raises(ValueError, match="limit"):
        list(decoder.feed((wire.LIMIT_BYTES + 1).to_bytes(4, "big") + b"{}"))
