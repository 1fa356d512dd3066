"""The messages of replicas on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.node.replication.protocol import Envelope
from galileo.replication import messages
from galileo.replication.values import Epochs, Member, ReplicaSet
from galileo.rpc.replication import envelopes_from_pb, envelopes_to_pb
from galileo.wire.internal.v1 import replication_pb2 as pb

TERMS = st.integers(0, 2**63 - 1)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
MEMBERS = st.builds(Member, NAMES, NAMES)
EPOCHS = st.builds(
    Epochs,
    st.lists(st.tuples(TERMS, TERMS), max_size=3).map(tuple),
    TERMS,
    TERMS,
)
SETS = st.builds(ReplicaSet, TERMS, TERMS, st.frozensets(MEMBERS), st.frozensets(MEMBERS))
NUMBERS = st.dictionaries(NAMES, TERMS, max_size=3)
LOGS = st.dictionaries(NAMES, EPOCHS, max_size=3)
TIMES = st.floats(0, 1e9)
MESSAGES = st.one_of(
    st.builds(messages.RequestPreVote, TERMS, SETS, TERMS),
    st.builds(messages.PreVote, TERMS),
    st.builds(messages.RequestVote, TERMS, SETS, TERMS),
    st.builds(messages.Vote, TERMS, TERMS, LOGS, NUMBERS),
    st.builds(messages.Refused, TERMS),
    st.builds(messages.NewerSet, SETS),
    st.builds(messages.Fetch, TERMS, NAMES, TERMS, TERMS),
    st.builds(messages.Fetched, TERMS, NAMES, TERMS, EPOCHS, TERMS),
    st.builds(messages.StartTerm, TERMS, SETS, NUMBERS, LOGS),
    st.builds(messages.Append, TERMS, NAMES, TERMS, TERMS, EPOCHS, TERMS, TERMS, TERMS),
    st.builds(
        messages.Acknowledged,
        TERMS,
        st.tuples(TERMS, TERMS),
        st.booleans(),
        st.booleans(),
        NUMBERS,
        NUMBERS,
    ),
    st.builds(messages.NotFollowing, TERMS),
    st.builds(messages.Beat, TERMS, TIMES),
    st.builds(messages.Support, TERMS, TIMES),
    st.builds(messages.Resigned, TERMS, st.one_of(st.none(), MEMBERS)),
)
HAVE_FRAMES = (messages.Append, messages.Fetched)


@given(st.lists(st.tuples(st.integers(0, 2**31), MESSAGES, st.binary(max_size=99)), max_size=4))
def test_envelopes_round_trip_in_order(
    sent: list[tuple[int, messages.Message, bytes]],
) -> None:
    sender, to = Member("a", "disk of a"), Member("b", "disk of b")
    envelopes = [
        Envelope(
            partition,
            sender,
            to,
            message,
            frames if isinstance(message, HAVE_FRAMES) else None,
            frames if isinstance(message, HAVE_FRAMES) else b"",
        )
        for partition, message, frames in sent
    ]
    received = [
        envelope
        for request in envelopes_to_pb(envelopes)
        for envelope in envelopes_from_pb(
            pb.ReplicateRequest.FromString(request.SerializeToString()), to="b"
        )
    ]
    assert received == envelopes


def test_envelopes_to_two_directories_of_a_node_travel_apart() -> None:
    sender = Member("a", "disk")
    envelopes = [Envelope(1, sender, Member("b", disk), messages.PreVote(7)) for disk in "xyx"]
    requests = envelopes_to_pb(envelopes)
    assert [(one.to_disk, len(one.messages)) for one in requests] == [("x", 2), ("y", 1)]


def test_envelopes_from_a_message_of_no_kind_raise_input_error() -> None:
    request = pb.ReplicateRequest(node="a", messages=[pb.ReplicaMessage(partition=1)])
    with pytest.raises(InputError):
        envelopes_from_pb(request, to="b")


def test_envelopes_from_epochs_of_unequal_columns_raise_input_error() -> None:
    epochs = pb.LogEpochs(firsts=[1, 2], epochs=[5], end=3)
    fetched = pb.FetchedFrames(term=1, log="nam", epochs=epochs)
    request = pb.ReplicateRequest(messages=[pb.ReplicaMessage(partition=1, fetched=fetched)])
    with pytest.raises(InputError):
        envelopes_from_pb(request, to="b")
