"""Bytes of a result's labels in the forms that they take (paper, Table I)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from benchmarks import label_size
from benchmarks.measure import in_turn
from benchmarks.sizes import Bench

from evaluation.sizes import Sizes
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
