import numpy as np

from galileo.dht.node_states import (
    ENTRY_BYTES,
    RUN_BITS,
    Digest,
    NodeStates,
    StateDelta,
    StateEntry,
)

RUN = 5 << RUN_BITS


def states(me: str, *, run: int = RUN) -> NodeStates:
    return NodeStates(me, "abc", run=run)


def values(known: NodeStates, node: str) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in known.delta(node, base=0).entries}


def test_node_states_same_value_written_again_changes_nothing():
    a = states("a")
    for value in (b"1", b"1", b"2"):
        a.write("k", value)
    assert a.delta("a", base=0) == StateDelta("a", RUN, 0, 2, (StateEntry("k", 2, b"2"),))


def test_node_states_delta_with_a_gap_is_not_applied():
    a, b = states("a"), states("b")
    a.write("k", b"1")
    a.write("l", b"1")
    assert b.apply(a.delta("a", base=1)) == ()
    assert b.apply(a.delta("a", base=0)) == a.delta("a", base=0).entries
    assert b.apply(a.delta("a", base=0)) == (), "it is known"


def test_node_states_delta_of_an_earlier_run_is_not_applied():
    b, earlier, later = states("b"), states("a"), states("a", run=RUN + (1 << RUN_BITS))
    earlier.write("k", b"earlier")
    later.write("l", b"later")
    b.apply(earlier.delta("a", base=0))
    b.apply(later.delta("a", base=0))
    assert b.apply(earlier.delta("a", base=0)) == ()
    assert values(b, "a") == {"l": b"later"}
    b.check()


def test_node_states_node_that_lost_its_disk_outruns_its_last_life():
    b, last, fresh = states("b"), states("a"), states("a", run=(1 << RUN_BITS) + 7)
    last.write("k", b"last")
    b.apply(last.delta("a", base=0))
    fresh.write("k", b"fresh")
    assert b.apply(fresh.delta("a", base=0)) == ()
    assert not fresh.merge(b.digest())[0], "no sign of another node's life"
    assert fresh.run == RUN + (1 << RUN_BITS) + 7
    b.apply(fresh.delta("a", base=0))
    assert values(b, "a") == {"k": b"fresh"}


def test_node_states_deltas_are_bounded_in_bytes_and_follow_later():
    a, b = states("a"), states("b")
    c = states("c")
    for known in (a, c):
        known.write("k", bytes(100))
    a.apply(c.delta("c", base=0))
    for expected in (["a"], ["c"], []):
        deltas = a.deltas(b.digest(), bytes_max=50)
        assert [delta.node for delta in deltas] == expected
        for delta in deltas:
            b.apply(delta)


def test_node_states_delta_above_its_bound_has_the_first_entries():
    a, b = states("a"), states("b")
    for number in range(9):
        a.write(f"k{number % 4}", b"%d" % number)
    sent = list[str]()
    while deltas := a.deltas(b.digest(), bytes_max=ENTRY_BYTES + 4):
        (delta,) = deltas
        assert len(delta.entries) <= 2
        assert b.apply(delta) == delta.entries
        sent += [entry.key for entry in delta.entries]
        if len(sent) == 2:
            a.write("k2", b"late")
            a.write("k1", b"later")
    assert sent == ["k1", "k2", "k3", "k0", "k2", "k1"]
    assert values(a, "a") == values(b, "a")
    assert a.versions[0] == b.versions[0]


def test_node_states_digest_of_other_nodes_is_aligned():
    a, b = states("a"), NodeStates("b", "bd", run=RUN)
    b.write("k", b"1")
    signs = a.merge(b.digest())
    assert signs.tolist() == [False, True, False]
    a.write("k", b"1")
    deltas = a.deltas(b.digest(), bytes_max=1 << 20)
    assert [delta.node for delta in deltas] == [], "b does not know that there is a node a"


def test_node_states_nodes_added_and_removed_keep_the_others():
    a, b = states("a"), states("b")
    b.write("k", b"1")
    a.merge(b.digest())
    a.apply(b.delta("b", base=0))
    a.set_nodes(["a", "b", "aa"])
    assert (a.names, a.versions.tolist()) == (("a", "aa", "b"), [0, 0, 1])
    assert values(a, "b") == {"k": b"1"}
    a.set_nodes(["a", "aa"])
    a.set_nodes(["a", "b"])
    assert (a.versions.tolist(), values(a, "b")) == ([0, 0], {})
    a.check()


def test_node_states_digest_is_a_copy_with_another_beat():
    a = states("a")
    first, second = a.digest(), a.digest()
    assert isinstance(first, Digest)
    assert (first.beats[0], second.beats[0]) == (1, 2)
    assert second.beats.dtype == np.uint32
