"""Scenario files: what is done to a small cluster of machines, and the trace that follows.

A file is a list of steps. A step is a command line, a line of dashes, and the trace that the
command leaves, up to an empty line. Lines that begin with `#` say what it is about.

    limits cache=900 [...]    of the machines that begin from here on: bytes of caches and of
                              files (spill), seconds until they are used (idle), held (hold)
    nodes a b | c             groups of nodes; each begins its life
    usage b cpu=0.9 free=0    what b measures of itself
    submit a q                a client submits the CCQ q at node a, which elects its nodes
    fetch a q 0:3 [wait=5]    a client that has commits up to 3 of partition 0 asks a
    cancel a q                a client cancels q at a
    commit 0:4 [at=a]         commits up to 4 of partition 0 become known, everywhere or at a
    find b 2 [reach=0:3]      the evaluator of b finishes a cycle and finds two labels in it
    fail b                    the evaluator of b fails a cycle
    write b [lost] / load b [lost]   the next file of b is written or loaded, or cannot be
    hold a                    the next question of a to a holder is answered
    deliver [a]               what a node (or each) asks is done: elections, changes at the leader
                              of the system partition; then it hears of the records that name it
    lose a                    the leader does not answer what a asks
    tick 0.5                  time passes, and every node looks at its clock
    flush b                   b saves retrieved cursors
    run 3                     time passes in steps of a tenth; all is delivered at once
    crash b / suspect b       b ends; all others take b for dead (whether or not it is)
    trust b                   all others take b for living again
    drain b / undrain b       b gives away what it coordinates, or takes on again
    restart b                 b begins again, and knows nothing
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from simulator.logs import to_labels

from galileo.ccq import events
from galileo.ccq import events as ev
from galileo.ccq.machine import Continuous
from galileo.ccq.model import Ccq, Record
from galileo.ccq.options import ContinuousOptions
from galileo.ccq.packs import PackedLabels
from galileo.ccq.placement import CcqChange, EndCcq, MoveCcq, PlaceCcq, SaveProgress, moved_to
from galileo.ccq.records import CCQ_ROWS, NODES_MAX, NOTHING, decode, encode, topic_of
from galileo.cursor import Cursor
from galileo.dht.membership import PeerDied, PeerRevived
from galileo.election.election import Candidacy, ElectionOptions, choose, rounds
from galileo.election.ranking import Candidate, UsageStatistics
from galileo.errors import Failure, GalileoError
from galileo.model.system_rows import Draft, Position, Rows

WALL = 1_000_000.0
EXPIRES_AT = WALL + 3600.0
SELDOM = 1e9
STEP_S = 0.1
DELIVERIES_MAX = 100
CCQS_MAX = 10


@dataclass(frozen=True, slots=True)
class Step:
    comments: tuple[str, ...]
    command: str
    trace: tuple[str, ...]

    def text(self) -> str:
        return "\n".join([*self.comments, self.command, "----", *self.trace])


def read(path: Path) -> list[Step]:
    return [_step(part.splitlines()) for part in path.read_text().strip().split("\n\n")]


def replay(steps: list[Step]) -> Iterator[Step]:
    """The same steps with the present traces."""
    stage = Stage()
    for step in steps:
        yield Step(step.comments, step.command, tuple(stage.play(step.command)))


def _step(lines: list[str]) -> Step:
    comments = tuple(line for line in lines if line.startswith("#"))
    command, dashes, *trace = lines[len(comments) :] + ["----"][len(lines) - len(comments) - 1 :]
    assert dashes == "----", f"expected dashes below {command!r}, got {dashes!r}"
    return Step(comments, command, tuple(trace))


class Stage:
    """The machines, the records at the leader, and the trace of the present step."""

    def __init__(self) -> None:
        self._now = 0.0
        self._groups: tuple[tuple[str, ...], ...] = ()
        self._machines: dict[str, Continuous] = {}
        self._rows = Rows(CCQ_ROWS)
        self._commits = 0
        self._positions: dict[str, Position] = {}
        self._asks: dict[str, list[ev.ChangeRecords | ev.ElectNodes]] = {}
        self._cycles: dict[str, list[ev.StartCycle]] = {}
        self._requests: dict[int, str] = {}
        self._trace: list[str] = []
        self._limits: dict[str, float] = {}
        self._files: dict[tuple[str, int], PackedLabels] = {}
        self._writes: dict[str, list[events.SpillPacks]] = {}
        self._loads: dict[str, list[events.LoadPacks]] = {}
        self._asked: dict[str, list[events.ReadHandedOffCache]] = {}
        self._askers: dict[int, str] = {}

    def play(self, command: str) -> list[str]:
        word, *rest = command.split()
        words = [one for one in rest if "=" not in one]
        named = dict(one.split("=") for one in rest if "=" in one)
        self._trace = []
        getattr(self, f"_do_{word}")(*words, **named)
        return self._trace

    # --- commands ---------------------------------------------------------------------------

    def _do_limits(
        self, *, cache: str, spill: str = "1", idle: str = "60", hold: str = "3600"
    ) -> None:
        self._limits = {
            "cache_bytes_max": int(cache),
            "spill_bytes_max": int(spill),
            "spill_idle_s": float(idle),
            "handed_off_cache_ttl_s": float(hold),
        }

    def _do_nodes(self, *names: str) -> None:
        text = " ".join(names)
        self._groups = tuple(tuple(group.split()) for group in text.split("|"))
        for group in self._groups:
            for name in group:
                self._begin(name)

    def _do_usage(self, node: str, *, cpu: str = "0", free: str = "8", load: str = "0") -> None:
        usage = UsageStatistics(float(cpu), int(free) << 30, float(load))
        self._feed(node, ev.UsageMeasured(usage))

    def _do_submit(self, node: str, ccq_id: str, *, interval: str = "1") -> None:
        ccq = Ccq(ccq_id, "d", "", float(interval), EXPIRES_AT)
        nodes = self._elected(node, Candidacy(ccq_id, NODES_MAX, need_bytes=1 << 20))
        placed = encode(moved_to(Record(ccq), nodes))
        outcome = self._changed(PlaceCcq(ccq_id, placed, CCQS_MAX, CCQS_MAX))
        assert isinstance(outcome, Record)
        self._tell(f"{node}: answers submit {ccq_id}: {outcome.coordinator} coordinates")

    def _do_fetch(self, node: str, ccq_id: str, cursor: str = "", *, wait: str = "") -> None:
        until = self._now + float(wait) if wait else None
        request = self._request(f"fetch {ccq_id}")
        self._feed(node, ev.FetchRequested(request, ccq_id, _cursor(cursor), until))

    def _do_cancel(self, node: str, ccq_id: str) -> None:
        outcome = self._changed(EndCcq(ccq_id, "cancelled", WALL + self._now))
        assert isinstance(outcome, Record)
        self._tell(f"{node}: answers cancel {ccq_id}: it is done")

    def _do_commit(self, cursor: str, *, at: str = "") -> None:
        for node in [at] if at else list(self._machines):
            self._feed(node, ev.CommitsObserved("d", _cursor(cursor)))

    def _do_find(self, node: str, count: str, *, reach: str = "") -> None:
        cycle = self._cycles[node].pop(0)
        results = []
        for item in cycle.items:
            reached = _cursor(reach) if reach else self._machines[node].state.known["d"]
            paths = [(p, s, row, 7) for p, s in reached.items() for row in range(int(count))]
            labels = to_labels([path for path in paths if path[1] > item.after[path[0]]])
            results.append(ev.CycleResult(item.ccq.id, item.term, item.after, labels, reached))
        self._feed(node, ev.CycleFinished(cycle.cycle_id, tuple(results)))

    def _do_fail(self, node: str) -> None:
        failure = Failure("unavailable", "the job failed")
        self._feed(node, ev.CycleFailed(self._cycles[node].pop(0).cycle_id, failure))

    def _do_write(self, node: str, how: str = "") -> None:
        effect = self._writes[node].pop(0)
        if not how:
            self._files[node, effect.number] = effect.labels
        size = None if how else effect.labels.size
        self._feed(node, events.PacksSpilled(effect.number, size))

    def _do_load(self, node: str, how: str = "") -> None:
        effect = self._loads[node].pop(0)
        found = None if how else self._files.get((node, effect.number))
        self._feed(node, events.PacksLoaded(effect.number, effect.ccq.id, found))

    def _do_hold(self, node: str) -> None:
        asked = self._asked[node].pop(0)
        if asked.node not in self._machines:
            self._feed(node, events.CacheReadFailed(asked.request))
            return
        self._askers[asked.request] = node
        wanted = asked.ccq.id, asked.term, asked.after, asked.labels_max
        self._feed(asked.node, events.CacheReadRequested(asked.request, *wanted))

    def _do_deliver(self, node: str = "") -> None:
        for _ in range(DELIVERIES_MAX):
            names = [node] if node else list(self._machines)
            asking = [name for name in names if self._asks[name]]
            for name in asking:
                self._answer(name, self._asks[name].pop(0))
            if not asking and not [name for name in names if self._follow(name)]:
                return
        raise AssertionError("the nodes do not stop asking")

    def _do_lose(self, node: str) -> None:
        asks, self._asks[node] = self._asks[node], []
        for one in asks:
            if isinstance(one, ev.ChangeRecords):
                names = tuple(change.name for change in one.changes)
                self._feed(node, ev.RecordsChanged(names))

    def _do_tick(self, seconds: str) -> None:
        self._now += float(seconds)
        for node in list(self._machines):
            self._feed(node, ev.Ticked(WALL + self._now))

    def _do_run(self, seconds: str) -> None:
        for _ in range(round(float(seconds) / STEP_S)):
            self._do_tick(str(STEP_S))
            self._do_deliver()

    def _do_flush(self, node: str) -> None:
        self._machines[node]._save_at = 0.0
        self._feed(node, ev.Ticked(WALL + self._now))

    def _do_drain(self, node: str) -> None:
        self._feed(node, ev.DrainRequested())

    def _do_undrain(self, node: str) -> None:
        self._feed(node, ev.DrainRequested(is_on=False))

    def _do_crash(self, node: str) -> None:
        del self._machines[node]

    def _do_suspect(self, node: str) -> None:
        for other in [name for name in self._machines if name != node]:
            self._feed(other, PeerDied(node))

    def _do_trust(self, node: str) -> None:
        for other in [name for name in self._machines if name != node]:
            self._feed(other, PeerRevived(node))

    def _do_restart(self, node: str) -> None:
        self._begin(node)
        self._do_trust(node)

    # --- inside -----------------------------------------------------------------------------

    def _begin(self, name: str) -> None:
        options = ContinuousOptions(self._groups, save_interval_s=SELDOM, save_after_s=0.0)
        self._machines[name] = Continuous(
            name, replace(options, **self._limits), wall=WALL + self._now
        )
        self._asks[name], self._positions[name] = [], Position()
        self._cycles[name] = []
        self._writes[name], self._loads[name], self._asked[name] = [], [], []
        self._feed(name, ev.UsageMeasured(UsageStatistics(memory_free_bytes=8 << 30)))
        self._feed(name, ev.Ticked(WALL + self._now))

    def _request(self, what: str) -> int:
        self._requests[len(self._requests)] = what
        return len(self._requests) - 1

    # --- the leader and its followers -------------------------------------------------------

    def _changed(self, change: CcqChange) -> Record | GalileoError:
        """Have the leader make a change."""
        draft = Draft(self._rows)
        try:
            change.apply(draft)
        except GalileoError as error:
            return error
        for name, record in draft.changed.items():
            self._commits += 1
            self._rows.put(name, record, self._commits)
            self._tell(f"the leader has {_record(record)}")
        return self._rows[change.name]

    def _answer(self, node: str, ask: ev.ChangeRecords | ev.ElectNodes) -> None:
        if isinstance(ask, ev.ElectNodes):
            elected = {one.key: self._elected(node, one) for one in ask.candidacies}
            for ccq_id, nodes in elected.items():
                self._tell(f"{node} elects {' '.join(nodes) or 'no node'} for {ccq_id}")
            self._feed(node, ev.NodesElected(elected))
            return
        names = tuple(change.name for change in ask.changes)
        outcomes = [self._changed(change) for change in ask.changes]
        records = tuple(one for one in outcomes if isinstance(one, Record) and one != NOTHING)
        self._feed(node, ev.RecordsChanged(names, records))

    def _elected(self, node: str, candidacy: Candidacy) -> tuple[str, ...]:
        """The best of all nodes that live, as far as one node knows."""
        is_gone = self._machines[node].state.is_gone
        polled = [one for some in rounds(candidacy, self._groups, ()) for one in some]
        usages = {n: self._machines[n].usage for n in polled if n in self._machines}
        candidates = {n: Candidate(one, 0.0) for n, one in usages.items() if not is_gone(n)}
        return choose(candidacy, candidates, ElectionOptions(), {})

    def _follow(self, node: str) -> bool:
        """Whether a node learns anything."""
        after, topic = self._positions[node], topic_of(node=node)
        page = self._rows.page(after, topic, until=self._commits, term=1)
        self._positions[node] = page.reached
        records = tuple(CCQ_ROWS.values(page.rows).values())
        if records:
            self._tell(f"{node} hears of {', '.join(record.id for record in records)}")
            self._feed(node, ev.RecordsLearned(records))
        return bool(records)

    # --- effects ----------------------------------------------------------------------------

    def _feed(self, node: str, event: ev.ContinuousEvent) -> None:
        effects = self._machines[node].step(event, self._now)
        self._machines[node].check()
        for effect in effects:
            self._carry_out(node, effect)

    def _carry_out(self, node: str, effect: ev.ContinuousEffect) -> None:
        match effect:
            case ev.ChangeRecords(changes):
                self._asks[node].append(effect)
                for change in changes:
                    self._tell(f"{node} asks the leader to {_change(change)}")
            case ev.ElectNodes(candidacies):
                self._asks[node].append(effect)
                wanted = ", ".join(f"{one.count} for {one.key}" for one in candidacies)
                self._tell(f"{node} seeks nodes: {wanted}")
            case ev.StartCycle(_, items):
                self._cycles[node].append(effect)
                asked = ", ".join(f"{i.ccq.id} after {_places(i.after)}" for i in items)
                self._tell(f"{node} evaluates {asked}")
            case (
                events.SpillPacks()
                | events.LoadPacks()
                | events.DropSpills()
                | events.ReadHandedOffCache()
            ):
                self._work(node, effect)
            case events.AnswerCacheRead() | events.RefuseCacheRead():
                self._answer_held(node, effect)
            case _:
                self._tell(f"{node}: {self._reply(effect)}")

    def _work(
        self,
        node: str,
        effect: events.SpillPacks
        | events.LoadPacks
        | events.DropSpills
        | events.ReadHandedOffCache,
    ) -> None:
        match effect:
            case events.SpillPacks(number, ccq, labels):
                self._writes[node].append(effect)
                self._tell(f"{node} writes file {number} of {ccq.id}: {len(labels)} labels")
            case events.LoadPacks(number, ccq):
                self._loads[node].append(effect)
                self._tell(f"{node} loads file {number} of {ccq.id}")
            case events.DropSpills(numbers):
                for number in numbers:
                    self._files.pop((node, number), None)
                    self._tell(f"{node} deletes file {number}")
            case events.ReadHandedOffCache(_, ccq, holder, term, after):
                self._asked[node].append(effect)
                what = f"{ccq.id} of term {term} after {_places(after)}"
                self._tell(f"{node} asks the holder {holder} for {what}")

    def _answer_held(
        self, node: str, effect: events.AnswerCacheRead | events.RefuseCacheRead
    ) -> None:
        asker = self._askers.pop(effect.request)
        if isinstance(effect, events.RefuseCacheRead):
            self._tell(f"{node} does not hold that")
            self._feed(asker, events.CacheReadFailed(effect.request))
            return
        count = 0 if effect.labels is None else len(effect.labels)
        self._tell(f"{node} holds {count} labels up to {_places(effect.reached)}")
        result = effect.labels, effect.reached, effect.gone
        self._feed(asker, events.CacheReadAnswered(effect.request, *result))

    def _reply(self, effect: ev.ContinuousEffect) -> str:
        request = self._requests.get(getattr(effect, "request", -1), "")
        match effect:
            case ev.AnswerFetch():
                count = 0 if effect.labels is None else len(effect.labels)
                until = _places(effect.cursor)
                return f"answers {request}: {count} labels, the token says {until}"
            case ev.RedirectFetch(_, coordinator):
                return f"answers {request}: ask {coordinator}"
            case ev.RefuseFetch(_, failure):
                return f"refuses {request}: {failure.kind}"
            case ev.Backfill(_, ccq, after, until):
                return f"rescans {ccq.id} after {_places(after)} until {_places(until)}"
            case ev.ConfirmSequences(_, _, partitions):
                return f"asks the owners of {list(partitions)} how far they are"
            case ev.AbandonCycle():
                return "abandons its cycle"
            case _:
                raise AssertionError(f"a scenario has no words for {effect}")

    def _tell(self, line: str) -> None:
        self._trace.append(f"{self._now:.1f} {line}")


def _change(change: CcqChange) -> str:
    match change:
        case SaveProgress(ccq_id, data):
            record = decode(data)
            return f"save that {ccq_id} is read up to {_places(record.retrieved)}"
        case MoveCcq(_, data):
            return f"make it {_record(decode(data))}"
        case EndCcq(ccq_id, ending):
            return f"end {ccq_id}: {ending}"
        case _:
            raise AssertionError(f"a scenario has no words for {change}")


def _record(record: Record) -> str:
    ended = f", {record.ended}" if record.ended else ""
    retrieved = f", read up to {_places(record.retrieved)}" if record.retrieved else ""
    standbys = f", then {' '.join(record.nodes[1:])}" if record.nodes[1:] else ""
    where = f"{record.id}.{record.revision} at {record.coordinator}{standbys}"
    held = "".join(
        f", {one.node} holds {_places(one.after)} to {_places(one.until)}" for one in record.holders
    )
    return f"[{where}{retrieved}{held}{ended}]"


def _cursor(text: str) -> Cursor:
    pairs = [pair.split(":") for pair in text.split(",") if pair]
    return Cursor({int(partition): int(sequence) for partition, sequence in pairs})


def _places(cursor: Cursor) -> str:
    return ",".join(f"{p}:{s}" for p, s in sorted(cursor.items())) or "the beginning"
