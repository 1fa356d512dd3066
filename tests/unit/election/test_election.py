"""Which nodes are polled, when enough have answered, and which are elected."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from galileo.election.election import (
    POLLED_FIRST,
    Candidacy,
    choose,
    is_decided,
    rounds,
)
from galileo.election.ranking import CCQS_MAX, Candidate, UsageStatistics, rank

GIB = 1 << 30
NODES = [f"n{number:02}" for number in range(20)]
ONE = Candidacy("q", count=1)
THREE = Candidacy("q", count=3)


def candidate(**usage) -> Candidate:
    return Candidate(UsageStatistics(**({"memory_free_bytes": 4 * GIB} | usage)), 0.01)


def busy(share: float = 0.95) -> Candidate:
    return candidate(cpu_share=share)


# --- rounds --------------------------------------------------------------------------------------


def test_rounds_have_twice_as_many_nodes_as_the_one_before() -> None:
    polled = list(rounds(ONE, [NODES], ()))
    assert [len(one) for one in polled] == [POLLED_FIRST, 2 * POLLED_FIRST, 8]
    assert sorted(node for one in polled for node in one) == NODES


def test_rounds_begin_with_the_groups_that_can_have_matches() -> None:
    groups = [NODES[:3], NODES[3:8], NODES[8:]]
    polled = list(rounds(Candidacy("q", count=1, nearby=(NODES[5],)), groups, ()))
    assert [{*one} <= {*groups[1]} for one in polled[:2]] == [True, True]
    assert not {*polled[2]} & {*groups[1]}


def test_rounds_leave_out_dead_and_excluded_nodes() -> None:
    excluded = Candidacy("q", count=1, excluded=("n01", "n02"))
    polled = {node for one in rounds(excluded, [NODES], ("n03",)) for node in one}
    assert polled == {*NODES} - {"n01", "n02", "n03"}
    assert list(rounds(ONE, [["a"]], ("a",))) == []


def test_rounds_are_the_same_at_every_node_and_differ_between_queries() -> None:
    first = Counter(next(rounds(Candidacy(f"q{i}", count=1), [NODES], ()))[0] for i in range(400))
    assert list(rounds(ONE, [NODES], ())) == list(rounds(ONE, [list(reversed(NODES))], ()))
    assert len(first) == len(NODES)
    assert max(first.values()) < 45, "each is first about twenty times"


@given(st.sets(st.sampled_from(NODES)), st.sets(st.sampled_from(NODES)))
def test_rounds_poll_each_living_node_once_in_the_same_order_everywhere(
    dead: set[str], excluded: set[str]
) -> None:
    seeking = Candidacy("q", count=1, nearby=("n01",), excluded=tuple(excluded))
    groups = [NODES[:3], NODES[3:8], NODES[8:]]
    polled = [node for one in rounds(seeking, groups, dead) for node in one]
    assert sorted(polled) == sorted({*NODES} - dead - excluded)
    near = len({*groups[0]} - dead - excluded)
    assert {*polled[:near]} <= {*groups[0]}
    mirrored = [group[::-1] for group in groups[::-1]]
    assert [node for one in rounds(seeking, mirrored, dead) for node in one] == polled


# --- enough answers ------------------------------------------------------------------------------


def test_election_is_decided_by_as_many_answers_as_nodes_and_a_suitable_one() -> None:
    assert not is_decided(ONE, {})
    assert is_decided(ONE, {"a": candidate()})
    assert not is_decided(ONE, {"a": busy()})
    assert not is_decided(THREE, {"a": candidate(), "b": candidate()})
    assert is_decided(THREE, {"a": candidate(), "b": busy(), "c": busy()})


# --- the elected nodes -------------------------------------------------------------------------


def test_choose_prefers_suitable_nodes_then_the_least_loaded() -> None:
    candidates = {"a": busy(1.0), "b": candidate(), "c": busy(0.92)}
    assert choose(THREE, candidates, {}) == ("b", "c", "a")
    assert choose(ONE, {"a": busy(1.0), "c": busy(0.92)}, {}) == ("c",)
    assert choose(ONE, {}, {}) == ()


def test_choose_never_names_a_draining_node() -> None:
    candidates = {"a": candidate(is_draining=True), "b": busy(1.0)}
    assert choose(THREE, candidates, {}) == ("b",)


def test_choose_spreads_nodes_over_racks_while_there_are_others() -> None:
    racks = {"a": "r1", "b": "r1", "c": "r1", "d": "r2"}
    candidates = {name: candidate(ccq_count=n) for n, name in enumerate("abcd")}
    assert choose(THREE, candidates, racks) == ("a", "d", "b")
    assert choose(THREE, candidates, {}) == ("a", "b", "c")


def test_choose_only_suitable_nodes_for_a_cache_that_is_handed_off() -> None:
    small, large = candidate(memory_free_bytes=GIB), candidate(memory_free_bytes=3 * GIB)
    seeking = Candidacy("q", count=1, need_bytes=2 * GIB, only_suitable=True)
    assert choose(seeking, {"a": small, "b": large}, {}) == ("b",)
    assert choose(seeking, {"a": small}, {}) == ()
    assert choose(Candidacy("q", count=1, need_bytes=2 * GIB), {"a": small}, {}) == ("a",)


def test_choose_takes_a_node_as_busy_as_the_one_that_hands_off() -> None:
    seeking = Candidacy("q", count=1, only_suitable=True, cpu_share=0.97)
    assert choose(seeking, {"a": busy(0.96)}, {}) == ("a",)
    assert choose(seeking, {"a": busy(0.98)}, {}) == ()
    idler = Candidacy("q", count=1, only_suitable=True, cpu_share=0.1)
    assert choose(idler, {"a": busy(0.85)}, {}) == ("a",)
    assert choose(seeking, {"a": candidate(ccq_count=CCQS_MAX)}, {}) == ()


usages = st.builds(
    UsageStatistics,
    cpu_share=st.sampled_from([0.1, 0.5, 0.95]),
    memory_free_bytes=st.sampled_from([0, GIB, 4 * GIB]),
    load=st.sampled_from([0.0, 2.0]),
    ccq_count=st.integers(0, 3),
    is_draining=st.booleans(),
)
polls = st.dictionaries(
    st.sampled_from(NODES[:8]), st.builds(Candidate, usages, st.sampled_from([0.01, 0.2]))
)


@given(polls, st.integers(1, 4), st.integers(1, 4))
def test_choose_random_answers_agree_with_a_search_of_all(
    candidates: dict[str, Candidate], count: int, racks_count: int
) -> None:
    """Of the nodes of racks that are not used yet, or else of all, the best one is next."""
    racks = {node: f"r{int(node[1:]) % racks_count}" for node in NODES}
    elected = choose(Candidacy("q", count=count), candidates, racks)
    left = {name: one for name, one in candidates.items() if not one.usage.is_draining}
    expected: list[str] = []
    while left and len(expected) < count:
        used = {racks[node] for node in expected}
        some = {name: one for name, one in left.items() if racks[name] not in used} or left
        fit = {
            name: one
            for name, one in some.items()
            if one.usage.cpu_share < 0.9 and one.usage.memory_free_bytes
        }
        best = rank(fit or some, need_bytes=0)[0]
        expected.append(best)
        del left[best]
    assert elected == tuple(expected)


# --- the spread --------------------------------------------------------------------------------


def test_elections_that_count_their_choices_spread_queries_over_nodes() -> None:
    groups = [NODES[start:12:3] for start in range(3)]
    shares = {node: 0.1 + 0.03 * number for number, node in enumerate(NODES[:12])}
    runs, stands_by = Counter[str](), Counter[str]()
    for number in range(5_000):
        seeking, candidates = Candidacy(f"q{number}", count=3), dict[str, Candidate]()
        for nodes in rounds(seeking, groups, ()):
            candidates |= {
                node: candidate(cpu_share=shares[node], ccq_count=runs[node]) for node in nodes
            }
            if is_decided(seeking, candidates):
                break
        coordinator, *standbys = choose(seeking, candidates, {})
        runs[coordinator] += 1
        stands_by.update(standbys)
    assert max(runs.values()) < 1.3 * 5_000 / 12
    assert max(stands_by.values()) < 1.3 * 10_000 / 12
    assert len(runs) == len(stands_by) == 12
