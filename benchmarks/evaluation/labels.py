"""Bytes of a result's labels in the forms that they take (paper, Table I)."""

from __future__ import annotations

import statistics
import zlib
from dataclasses import dataclass

from benchmarks import label_size
from benchmarks.evaluation import plots
from benchmarks.evaluation.page import Block, picture, table, times
from benchmarks.evaluation.plots import Axes
from benchmarks.evaluation.sizes import Sizes
from benchmarks.figures import digits, in_turn, quantity
from benchmarks.sizes import Bench
from galileo.labels import LabelSet

RUN_S = 0.02
ZLIB = "path labels as text, all together deflated"


@dataclass(frozen=True, slots=True)
class Form:
    """One form of the same labels.

    Attributes:
        bytes_per_label: its size.
        into_per_s, out_of_per_s: labels a second that go into it and come out of it again, of
            each run.
    """

    name: str
    bytes_per_label: float
    into_per_s: tuple[float, ...]
    out_of_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LabelSizes:
    """The forms of so many labels, the texts first."""

    labels: int
    forms: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class AllSizes:
    query: str
    sizes: tuple[LabelSizes, ...]


def measure(sizes: Sizes, bench: Bench) -> AllSizes:
    found = label_size.nam_result(bench.sizes.stride, least=max(sizes.labels))
    bench.say(f"{len(found):,} paths match {label_size.QUERY!r}")
    taken = [_sizes(found.slice(0, count), runs=bench.sizes.runs) for count in sizes.labels]
    return AllSizes(label_size.QUERY, tuple(taken))


def _sizes(labels: LabelSet, *, runs: int) -> LabelSizes:
    forms = label_size.forms_of(labels)
    forms.insert(1, _deflated(labels))
    makes = in_turn(*(form.make for form in forms), runs=runs, run_s=RUN_S)
    undoes = in_turn(*(form.undo for form in forms), runs=runs, run_s=RUN_S)
    count = len(labels)
    taken = [
        Form(
            form.name,
            form.size / count,
            make.per_second(count).values,
            undo.per_second(form.undone).values,
        )
        for form, make, undo in zip(forms, makes, undoes, strict=True)
    ]
    return LabelSizes(count, tuple(taken))


def _deflated(labels: LabelSet) -> label_size.Form:
    """A general compressor over the texts, which is the paper's way, if not its compressor."""
    text = "\n".join(labels.texts().to_pylist()).encode()
    data = zlib.compress(text)
    return label_size.Form(
        ZLIB,
        len(data),
        lambda: zlib.compress(text),
        lambda: zlib.decompress(data),
        undone=len(labels),
    )


PAPER_LABELS = 100_000
PAPER_B = {"the cache, compacted": 27.4, "the cache, compressed with lz4": 7.2}
"""Table I: bytes of a label whose time and values are compacted, and compressed with LZW."""
SHORT_NAMES = ("text", "deflated", "Arrow", "Arrow lz4", "Arrow zstd", "cache", "cache lz4")


def tell(taken: AllSizes) -> Block:
    counts = [f"{one.labels:,}" for one in taken.sizes]
    most = taken.sizes[-1]
    rows = [
        (
            form.name,
            *(digits(one.forms[number].bytes_per_label) for one in taken.sizes),
            digits(PAPER_B[form.name]) if form.name in PAPER_B else "not stated",
            quantity(statistics.median(form.into_per_s), "labels/s"),
            quantity(statistics.median(form.out_of_per_s), "labels/s"),
        )
        for number, form in enumerate(most.forms)
    ]
    head = (
        *("bytes of a label", *counts, f"the paper, {PAPER_LABELS:,}"),
        *(f"{counts[-1]} into it", "out of it"),
    )
    bytes_of = {form.name: form.bytes_per_label for form in most.forms}
    compacted, compressed = (bytes_of[name] for name in PAPER_B)
    text = most.forms[0].bytes_per_label
    axes = Axes(f"{most.labels:,} results of {taken.query}", "", "bytes a label")
    sentences = [
        f"At {most.labels:,} results the cache takes {times(compacted, text)} what the texts take, "
        f"and with LZ4 {times(compressed, text)}."
    ]
    marked = {}
    if most.labels == PAPER_LABELS:  # Other numbers of results cannot be compared.
        paper_compacted, paper_compressed = PAPER_B.values()
        marked = {
            "the paper, compacted": paper_compacted,
            "the paper, compressed": paper_compressed,
        }
        sentences.append(
            f"That is {times(compacted, paper_compacted)} what the paper's compacted labels take, "
            f"and {times(compressed, paper_compressed)} its compressed ones."
        )
    return Block(
        [
            *table(head, rows),
            "",
            picture("paper-labels.svg", "Bytes of a label in each form"),
            "",
            " ".join(sentences),
        ],
        {
            "paper-labels.svg": lambda: plots.bars(
                axes, SHORT_NAMES, {"bytes": list(bytes_of.values())}, marked=marked
            )
        },
        [
            (
                f"Table I: a label, {how}, {most.labels:,} results",
                f"{digits(paper_b)} B ({PAPER_LABELS:,} results)",
                f"{digits(bytes_of[name])} B",
            )
            for how, (name, paper_b) in zip(
                ("compacted", "compressed (LZW there, LZ4 here)"), PAPER_B.items(), strict=True
            )
        ],
    )
