"""Scenario files: what is done to a small cluster of machines, and the trace that follows.

A file is a list of steps. A step is a command line, a line of dashes, and the trace that the
command leaves, up to an empty line. Lines that begin with `#` say what it is about.

    limits cache=900 [...]    of the machines that begin from here on: bytes of caches and of
                              files (spill), seconds until they are used (idle), held (hold)
    nodes a b | c             groups of nodes; each begins its life
    usage b cpu=0.9 free=0    what b measures of itself
    submit a q [group=c]      a client submits the CCQ q at node a
    fetch a q 0:3 [wait=5]    a client that has commits up to 3 of partition 0 asks a
    cancel a q                a client cancels q at a
    commit 0:4 [at=a]         commits up to 4 of partition 0 become known, everywhere or at a
    find b 2 [reach=0:3]      the evaluator of b finishes a cycle and finds two labels in it
    fail b                    the evaluator of b fails a cycle
    write b [lost] / load b [lost]   the next file of b is written or loaded, or cannot be
    hold a                    the next question of a to a holder is answered
    deliver [a b]             all messages under way arrive, and what they cause; or from a to b
    lose a b                  what is under way from a to b is lost
    tick 0.5                  time passes, and every node looks at its clock
    flush b                   b announces retrieved cursors
    run 3                     time passes in steps of a tenth; messages arrive at once
    crash b / suspect b       b ends; all others take b for dead (whether or not it is)
    drain b / undrain b       b gives away what it coordinates, or takes on again
    restart b                 b begins again with the records that it saved
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
from galileo.cursor import Cursor
from galileo.dht.membership import PeerDied, PeerRevived
from galileo.election import events as duties
from galileo.election import messages as msg
from galileo.election.messages import Poll, PollAnswer, UsageStatistics
from galileo.election.model import NODES_MAX

WALL = 1_000_000.0
EXPIRES_AT = WALL + 3600.0
SELDOM = 1e9
STEP_S = 0.1
DELIVERIES_MAX = 1_000


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
    """The machines, the messages between them, and the trace of the present step."""

    def __init__(self) -> None:
        self._now = 0.0
        self._groups: tuple[tuple[str, ...], ...] = ()
        self._machines: dict[str, Continuous] = {}
        self._saved: dict[str, dict[str, Record]] = {}
        self._cycles: dict[str, list[ev.StartCycle]] = {}
        self._mail: list[tuple[str, str, msg.Message]] = []
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
                self._saved[name] = {}
                self._begin(name)

    def _do_usage(self, node: str, *, cpu: str = "0", free: str = "8", load: str = "0") -> None:
        usage = UsageStatistics(float(cpu), int(free) << 30, float(load))
        self._feed(node, duties.UsageMeasured(usage))

    def _do_submit(self, node: str, ccq_id: str, *, interval: str = "1", group: str = "") -> None:
        ccq = Ccq(ccq_id, "d", "", float(interval), EXPIRES_AT)
        request = self._request(f"submit {ccq_id}")
        candidates = tuple(group.split(",")) if group else ()
        self._feed(node, ev.SubmitRequested(request, ccq, Cursor(), 1 << 20, candidates))

    def _do_fetch(self, node: str, ccq_id: str, cursor: str = "", *, wait: str = "") -> None:
        until = self._now + float(wait) if wait else None
        request = self._request(f"fetch {ccq_id}")
        self._feed(node, ev.FetchRequested(request, ccq_id, _cursor(cursor), until))

    def _do_cancel(self, node: str, ccq_id: str) -> None:
        self._feed(node, ev.CancelRequested(self._request(f"cancel {ccq_id}"), ccq_id))

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
        failure = ev.Failure("unavailable", "the job failed")
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

    def _do_deliver(self, sender: str = "", to: str = "") -> None:
        for _ in range(DELIVERIES_MAX):
            due = [m for m in self._mail if not sender or m[:2] == (sender, to)]
            if not due:
                return
            self._mail.remove(due[0])
            self._arrive(*due[0])
        raise AssertionError("the nodes do not stop talking")

    def _do_lose(self, sender: str, to: str) -> None:
        self._mail = [m for m in self._mail if m[:2] != (sender, to)]

    def _do_tick(self, seconds: str) -> None:
        self._now += float(seconds)
        for node in list(self._machines):
            self._feed(node, duties.Ticked(WALL + self._now))

    def _do_run(self, seconds: str) -> None:
        for _ in range(round(float(seconds) / STEP_S)):
            self._do_tick(str(STEP_S))
            self._do_deliver()

    def _do_flush(self, node: str) -> None:
        self._machines[node]._sync_at = 0.0
        self._feed(node, duties.Ticked(WALL + self._now))

    def _do_drain(self, node: str) -> None:
        self._feed(node, duties.DrainRequested())

    def _do_undrain(self, node: str) -> None:
        self._feed(node, duties.DrainRequested(is_on=False))

    def _do_crash(self, node: str) -> None:
        del self._machines[node]
        self._mail = [m for m in self._mail if m[0] != node]

    def _do_suspect(self, node: str) -> None:
        for other in [name for name in self._machines if name != node]:
            self._feed(other, PeerDied(node))

    def _do_restart(self, node: str) -> None:
        self._begin(node)
        for other in [name for name in self._machines if name != node]:
            self._feed(other, PeerRevived(node))

    # --- inside -----------------------------------------------------------------------------

    def _begin(self, name: str) -> None:
        names = [one for group in self._groups for one in group]
        base = ContinuousOptions(names.index(name), self._groups, sync_interval_s=SELDOM)
        self._machines[name] = Continuous(name, replace(base, **self._limits))
        self._cycles[name] = []
        self._writes[name], self._loads[name], self._asked[name] = [], [], []
        self._feed(name, duties.RecordsLoaded(tuple(self._saved[name].values()), WALL + self._now))
        self._feed(name, duties.UsageMeasured(UsageStatistics(memory_free_bytes=8 << 30)))
        self._feed(name, duties.Ticked(WALL + self._now))

    def _request(self, what: str) -> int:
        self._requests[len(self._requests)] = what
        return len(self._requests) - 1

    def _arrive(self, sender: str, to: str, message: msg.Message) -> None:
        if to in self._machines:
            self._feed(to, duties.MessageArrived(sender, message))

    def _feed(self, node: str, event: ev.ContinuousEvent) -> None:
        effects = self._machines[node].step(event, self._now)
        self._machines[node].check()
        for effect in effects:
            self._carry_out(node, effect)

    def _carry_out(self, node: str, effect: ev.ContinuousEffect) -> None:
        match effect:
            case duties.Send(to, message):
                if not isinstance(message, msg.Digest):
                    self._tell(f"{node} -> {to}: {_message(message)}")
                    self._mail.append((node, to, message))
            case duties.SaveRecord(record, durable):
                self._saved[node][record.ccq.id] = record
                self._tell(f"{node} saves {_record(record)}{' at once' if durable else ''}")
            case duties.PurgeRecord(ccq_id):
                self._saved[node].pop(ccq_id, None)
                self._tell(f"{node} purges {ccq_id}")
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
                what = f"{ccq.id} of term {_term(term)} after {_places(after)}"
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
            case duties.AnswerSubmit(_, _, coordinator, term):
                return f"answers {request}: {coordinator} coordinates in term {_term(term)}"
            case ev.AnswerFetch():
                count = 0 if effect.labels is None else len(effect.labels)
                until = _places(effect.cursor)
                return f"answers {request}: {count} labels, the token says {until}"
            case ev.RedirectFetch(_, coordinator):
                return f"answers {request}: ask {coordinator}"
            case ev.AnswerCancel():
                return f"answers {request}: it is done"
            case duties.RefuseSubmit(_, failure) | ev.RefuseFetch(_, failure):
                return f"refuses {request}: {failure.kind}"
            case ev.RefuseCancel(_, failure):
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


def _message(message: msg.Message) -> str:
    match message:
        case Poll():
            return "poll"
        case PollAnswer(_, usage):
            return f"cpu {usage.cpu_share:g}, {usage.memory_free_bytes >> 30} GiB free"
        case msg.AssignCoordinator(record):
            return f"take {_record(record)}"
        case msg.AssignmentAccepted(ccq_id, term):
            return f"took {ccq_id} in term {_term(term)}"
        case msg.AssignmentRefused(ccq_id, term):
            return f"no, not {ccq_id} in term {_term(term)}"
        case msg.RecordUpdate(records, note):
            response = ", ".join(map(_record, records))
            return f"know {response}{', and say so' if note else ''}"
        case msg.RecordAck(entries):
            return "noted " + ", ".join(f"{ccq_id} in term {_term(t)}" for ccq_id, t in entries)
        case msg.RecordRequest(ccq_ids):
            return f"what of {', '.join(ccq_ids)}?"
        case msg.RecordNotFound(ccq_ids):
            return f"nothing of {', '.join(ccq_ids)}"
        case _:
            return type(message).__name__.lower()


def _record(record: Record) -> str:
    ended = f", {record.ended}" if record.ended else ""
    retrieved = f", read up to {_places(record.retrieved)}" if record.retrieved else ""
    where = f"{record.ccq.id} at {record.coordinator} in term {_term(record.term)}"
    held = "".join(
        f", {one.node} holds {_places(one.after)} to {_places(one.until)}" for one in record.holders
    )
    return f"[{where}{retrieved}{held}{ended}]"


def _term(term: int) -> str:
    """Its round and who began it."""
    return f"{term // NODES_MAX}.{term % NODES_MAX}"


def _cursor(text: str) -> Cursor:
    pairs = [pair.split(":") for pair in text.split(",") if pair]
    return Cursor({int(partition): int(sequence) for partition, sequence in pairs})


def _places(cursor: Cursor) -> str:
    return ",".join(f"{p}:{s}" for p, s in sorted(cursor.items())) or "the beginning"
