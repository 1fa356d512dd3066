"""What is told of the parts that the paper has, too: its figures 6 and 7, its tables I and II."""

from __future__ import annotations

import statistics

from benchmarks.figures import digits, quantity

from evaluation import published
from evaluation.page import plots
from evaluation.page.plots import Axes, Line
from evaluation.page.section import (
    Compared,
    Section,
    extent,
    interval,
    percent,
    picture,
    seconds,
    table,
    times,
)
from evaluation.parts.label_sizes import AllSizes, LabelSizes
from evaluation.parts.node_memory import ClusterMemory, NodeMemory
from evaluation.parts.retrieval import Retrieval
from evaluation.parts.streamed import Standing, Streaming

COMPACTED, COMPRESSED = "the cache, compacted", "the cache, compressed with lz4"
NOT_STATED = "not stated as a number"
NONE = "not stated"


def tell_retrieval(taken: Retrieval) -> Section:
    median = statistics.median
    most = taken.points[-1]
    rows = [
        (
            f"{one.results:,}",
            seconds(one.standard_s),
            extent(one.standard_s),
            seconds(one.continuous_s),
            extent(one.continuous_s),
            digits(median(one.standard_s) / median(one.continuous_s)),
        )
        for one in taken.points
    ]
    head = ("results", "standard", "lowest to highest", "continuous", "lowest to highest", "ratio")
    results = [float(one.results) for one in taken.points]
    drawn = [
        _milliseconds("standard query", results, [one.standard_s for one in taken.points]),
        _milliseconds("continuous query", results, [one.continuous_s for one in taken.points]),
    ]
    axes = Axes(f"{taken.stored:,} stored observations", "results", "ms, median")
    return Section(
        [
            f"{taken.nodes} nodes store {taken.stored:,} observations of random weather, so that "
            "nothing but looking finds what matches. For each number of results there is a query. "
            "The *standard* query is asked anew; the *continuous* one was submitted before "
            "anything was stored, and is fetched from its cache. Both are timed in turn, call to "
            "unpacked labels, in one client process.",
            "",
            *table(head, rows, left=0),
            "",
            picture("paper-retrieval.svg", "Retrieval time by the number of results"),
            "",
            f"At {most.results:,} results the standard query takes "
            f"{times(median(most.standard_s), median(most.continuous_s))} what the fetch takes. "
            f"A fetch that brings nothing takes {seconds(most.nothing_s)}: what a call costs. "
            "The paper shows these as curves (Fig. 6); it is not read off here.",
        ],
        {"paper-retrieval.svg": lambda: plots.lines(axes, drawn)},
        (
            Compared(
                f"Fig. 6: continuous query, {most.results:,} results",
                NOT_STATED,
                f"{seconds(most.continuous_s)}; the standard query {seconds(most.standard_s)}",
            ),
        ),
    )


def _milliseconds(name: str, x: list[float], runs: list[tuple[float, ...]]) -> Line:
    return Line(
        name,
        x,
        [1e3 * statistics.median(one) for one in runs],
        [1e3 * min(one) for one in runs],
        [1e3 * max(one) for one in runs],
    )


def tell_labels(taken: AllSizes) -> Section:
    names = [form.name for form in taken.sizes[0].forms]
    counts = [f"{one.labels:,}" for one in taken.sizes]
    sizes = [[digits(form.bytes_per_label) for form in one.forms] for one in taken.sizes]
    papers = {COMPACTED: published.COMPACTED_B, COMPRESSED: published.COMPRESSED_B}
    rows = [
        (
            name,
            *(column[number] for column in sizes),
            digits(papers[name]) if name in papers else NONE,
            *_speeds(taken.sizes[-1], number),
        )
        for number, name in enumerate(names)
    ]
    head = (
        "bytes of a label",
        *counts,
        f"the paper, {published.LABELS:,}",
        f"{counts[-1]} into it",
        "out of it",
    )
    most = taken.sizes[-1]
    by_name = {form.name: form.bytes_per_label for form in most.forms}
    axes = Axes(f"{most.labels:,} results of `{taken.query}`".replace("`", ""), "", "bytes a label")
    short = ["text", "deflated", "Arrow", "Arrow lz4", "Arrow zstd", "cache", "cache lz4"]
    return Section(
        [
            f"Labels are the matches of `{taken.query}` in a generated forecast, in the order in "
            "which they were committed. The paper compacts the time and the values of each label "
            "and compresses the rest with LZW. Here labels are packed column by column: "
            "differences of neighbours, in as few bits as they need; LZ4 after that where a query "
            "asks for it. *Deflated* is zlib over all texts at once, nearest to the paper's way.",
            "",
            *table(head, rows),
            "",
            picture("paper-labels.svg", "Bytes of a label in each form"),
            "",
            f"At {most.labels:,} results the cache takes "
            f"{times(by_name[COMPACTED], by_name[names[0]])} what the texts take, and with LZ4 "
            f"{times(by_name[COMPRESSED], by_name[names[0]])}. "
            + _beside_the_paper(most, by_name)
            + "The labels are not the paper's, though: other features, other places.",
        ],
        {
            "paper-labels.svg": lambda: plots.bars(
                axes,
                short,
                {"bytes": [form.bytes_per_label for form in most.forms]},
                marked=_marks(most),
            )
        },
        (
            Compared(
                f"Table I: a label, compacted, {most.labels:,} results",
                f"{digits(published.COMPACTED_B)} B ({published.LABELS:,} results)",
                f"{digits(by_name[COMPACTED])} B",
            ),
            Compared(
                f"Table I: a label, compressed, {most.labels:,} results",
                f"{digits(published.COMPRESSED_B)} B, LZW ({published.LABELS:,} results)",
                f"{digits(by_name[COMPRESSED])} B, LZ4",
            ),
        ),
    )


def _speeds(sizes: LabelSizes, number: int) -> tuple[str, str]:
    form = sizes.forms[number]
    return (
        quantity(statistics.median(form.into_per_s), "labels/s"),
        quantity(statistics.median(form.out_of_per_s), "labels/s"),
    )


def _marks(sizes: LabelSizes) -> dict[str, float]:
    """The paper's own sizes, where there are as many labels."""
    if sizes.labels != published.LABELS:
        return {}
    return {
        "the paper, compacted": published.COMPACTED_B,
        "the paper, compressed": published.COMPRESSED_B,
    }


def _beside_the_paper(sizes: LabelSizes, by_name: dict[str, float]) -> str:
    """Only as many results as the paper has can stand beside its own."""
    if sizes.labels != published.LABELS:
        return ""
    return (
        f"That is {times(by_name[COMPACTED], published.COMPACTED_B)} what the paper's compacted "
        f"labels take, and {times(by_name[COMPRESSED], published.COMPRESSED_B)} its compressed "
        "ones. "
    )


def tell_memory(taken: ClusterMemory) -> Section:
    without = sum(node.without for node in taken.nodes)
    beside = sum(node.beside for node in taken.nodes)
    shares = [_more(node) for node in taken.nodes]
    rows = [
        (
            node.node,
            quantity(node.without, "B"),
            quantity(node.beside, "B"),
            percent(_more(node)),
            f"{node.ccqs}",
        )
        for node in taken.nodes
    ]
    whole = percent(beside / without - 1)
    rows.append(("together", quantity(without, "B"), quantity(beside, "B"), whole, f"{taken.ccqs}"))
    head = ("node", "without", "with", "more", "runs")
    axes = Axes(f"{taken.blocks:,} blocks, {taken.ccqs} continuous queries", "", "MB")
    groups = {
        "without": [node.without / 1e6 for node in taken.nodes],
        "with continuous queries": [node.beside / 1e6 for node in taken.nodes],
    }
    busy = sum(1 for node in taken.nodes if node.ccqs)
    return Section(
        [
            f"A cluster of {len(taken.nodes)} nodes takes {taken.blocks:,} blocks; another one, of "
            "the same names and partitions, takes the same while "
            f"{taken.ccqs} continuous queries stand, each of which finds another "
            f"{taken.results:,} of them, about. Nobody fetches, so all labels are in caches when "
            "the memory is read off, ten seconds after the last were cached: what each process "
            "has of its own, and its part of what it shares (PSS), medians of five looks. What "
            "was cached is counted afterwards.",
            "",
            *table(head, rows),
            "",
            picture("paper-memory.svg", "Memory of each node without and with queries"),
            "",
            f"All nodes together change by {whole} (the paper: {percent(published.MEMORY_MORE)} "
            f"with {published.CCQS}), single ones by {percent(min(shares))} to "
            f"{percent(max(shares))}; the standard deviation between nodes is "
            f"{digits(100 * statistics.pstdev(shares))} percentage points. The labels in all "
            f"caches are {quantity(taken.cached, 'B')} as the nodes count them, "
            f"{digits(100 * taken.cached / without)} % of what the nodes take without; the rest of "
            "the growth is what processing cycles leave behind, and the difference between any two "
            "processes.",
            "",
            f"The election put the queries on {busy} of {len(taken.nodes)} nodes: "
            f"{_places(taken)}. It polls the nodes of the groups that can hold matches and offers "
            "a query to the one with the least burden: the share of the free memory that its "
            "caches would take, processors in use, load, queries that it runs, and how long its "
            "answer took. Nodes of one machine see the same memory and the same processors, at "
            "different moments, so that little but chance tells them apart here.",
            "",
            f"The evaluator's processes, a JVM among them, are not nodes: "
            f"{quantity(taken.evaluator_without, 'B')} without queries, "
            f"{quantity(taken.evaluator_beside, 'B')} with them.",
        ],
        {"paper-memory.svg": lambda: plots.bars(axes, [node.node for node in taken.nodes], groups)},
        (
            Compared(
                f"Fig. 7: memory of all nodes with {taken.ccqs} continuous queries",
                f"{percent(published.MEMORY_MORE)} ({published.CCQS} queries)",
                f"{whole}; single nodes {percent(min(shares))} to {percent(max(shares))}",
            ),
        ),
    )


def _more(node: NodeMemory) -> float:
    return node.beside / node.without - 1


def _places(taken: ClusterMemory) -> str:
    return ", ".join(f"{node.node} runs {node.ccqs}" for node in taken.nodes)


def tell_streaming(taken: Streaming) -> Section:
    return Section(
        [
            f"A process of its own streams blocks into {taken.nodes} nodes, evenly over "
            f"{taken.meant_s:g} s where the machine can take that many. A block here is a single "
            "observation, a grid point of a forecast at one hour, so that a million of them fit "
            "the time and the disk; its label is as large as that of any block. Continuous queries "
            "that find every block stand meanwhile, one for each interval, and each has a reader "
            "that comes once an interval and takes what is new. A *retrieval* is timed from the "
            "call to the unpacked labels, and only those count that bring something. At the end "
            "each reader has to have every block once, and the full query as many; else the "
            "part fails.",
            "",
            *_streaming_table(taken),
            "",
            picture("paper-streaming.svg", "Retrieval time by the number of streamed blocks"),
            "",
            "The paper's retrieval times are those that stand beside its numbers of blocks; we "
            "have no record of the interval that each belongs to, nor of its blocks per update, so "
            "they are repeated for each interval and compared with none. Readers, source, nodes "
            "and Spark share the cores of one machine and take time from each other, the more "
            "the faster blocks come.",
        ],
        {"paper-streaming.svg": lambda: _streaming_plot(taken)},
        tuple(
            Compared(
                f"Table II: retrieval, {stream.blocks:,} streamed blocks",
                _paper_retrieval(stream.blocks),
                ", ".join(
                    f"{quantity(_retrieval_s(query), 's')} at {interval(query.interval_s)}"
                    for query in stream.queries
                ),
            )
            for stream in taken.streams
        ),
    )


def _streaming_table(taken: Streaming) -> list[str]:
    rows = [
        (
            f"{stream.blocks:,}",
            interval(query.interval_s),
            quantity(stream.blocks / stream.sent_s, "blocks/s"),
            f"{len(query.retrievals)}",
            f"{statistics.median(one.blocks for one in query.retrievals):,.0f}",
            seconds([one.seconds for one in query.retrievals]),
            extent([one.seconds for one in query.retrievals]),
            _paper_retrieval(stream.blocks),
        )
        for stream in taken.streams
        for query in stream.queries
    ]
    head = (
        *("streamed", "interval", "sent", "updates", "blocks per update", "retrieval"),
        *("lowest to highest", "the paper"),
    )
    return table(head, rows, left=2)


def _streaming_plot(taken: Streaming) -> bytes:
    axes = Axes(
        f"sent over {taken.meant_s:g} s or more", "blocks", "ms, median", log_x=True, log_y=True
    )
    blocks = [float(stream.blocks) for stream in taken.streams]
    drawn = [
        Line(
            f"interval {interval(taken.streams[0].queries[number].interval_s)}",
            blocks,
            [1e3 * _retrieval_s(stream.queries[number]) for stream in taken.streams],
        )
        for number in range(len(taken.streams[0].queries))
    ]
    theirs = published.RETRIEVAL_S
    drawn.append(
        Line(
            f"the paper, {published.NODES} nodes",
            [float(count) for count in theirs],
            [1e3 * taken_s for taken_s in theirs.values()],
            dashed=True,
        )
    )
    return plots.lines(axes, drawn)


def _retrieval_s(query: Standing) -> float:
    return statistics.median(one.seconds for one in query.retrievals)


def _paper_retrieval(blocks: int) -> str:
    found = published.RETRIEVAL_S.get(blocks)
    return NONE if found is None else quantity(found, "s")
