"""Random conditions, observations that tell them apart, and two simple evaluators."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros

duckdb = pytest.importorskip("duckdb", reason="needs duckdb, of the dev extra")

FEATURES = (
    Feature("t", "K"),
    Feature("n", type="int"),
    Feature("s", type="text"),
    Feature("b", type="bool"),
    Feature("m", type="int"),
    Feature("u", type="text"),
    Feature("c", type="bool"),
)

# --- conditions, each as CQL2, as SQL and as a function of a row with three truth values ---------


@dataclass(frozen=True)
class Condition:
    """A condition or a tree of them; `truth` gives True, False or None for unknown."""

    cql2: str
    sql: str
    truth: object


@cache
def regex(pattern):
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    return re.compile("".join(wild.get(p) or re.escape(p[-1]) for p in parts), re.DOTALL)


def leaf(cql2, sql, name, test):
    return Condition(cql2, sql, lambda row: None if row[name] is None else test(row[name]))


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


def escaped(text):
    """A text of CQL2, in which a backslash begins an escape."""
    return quoted(text.replace("\\", "\\\\"))


def double(number):
    return f"CAST({number!r} AS DOUBLE)"


SIGNS = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
TEXTS = ["", "", "a", "a", "A", "ab", "É", "é", "a%", "_", "a\\b", "it's", "x\ny", "😀"]
PIECES = ["%", "%", "_", "_", "a", "a", "A", "b", "é", "'", "\\%", "\\_", "\\\\", "😀"]


class Maker:
    """Conditions and observations at random; a seed says which."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.leaves = (
            self.comparison,
            self.between,
            self.listed,
            self.text_comparison,
            self.text_listed,
            self.like,
            self.null,
            self.flag,
            self.arithmetic,
            self.features,
        )

    def condition(self, depth=3):
        kind = self.random.random()
        if depth == 0 or kind < 0.3:
            return self.random.choice(self.leaves)()
        if kind < 0.33:
            return constant(self.random.random() < 0.5)
        if kind < 0.5:
            return negated(self.condition(depth - 1))
        parts = [self.condition(depth - 1) for _ in range(self.random.randint(2, 3))]
        return joined(self.random.choice(["AND", "OR"]), parts)

    def comparison(self):
        name, sign, value = self.name(), self.sign(), self.number()
        if self.random.random() < 0.3:
            return leaf(
                f"{value!r} {sign} {name}",
                f"{double(value)} {sign} {name}",
                name,
                lambda found: SIGNS[sign](value, float(found)),
            )
        return leaf(
            f"{name} {sign} {value!r}",
            f"{name} {sign} {double(value)}",
            name,
            lambda found: SIGNS[sign](float(found), value),
        )

    def between(self):
        name, but, lo, hi = self.name(), self.but(), self.number(), self.number()
        if self.random.random() < 0.8:
            lo, hi = sorted([lo, hi])
        return leaf(
            f"{name} {but}BETWEEN {lo!r} AND {hi!r}",
            f"{name} {but}BETWEEN {double(lo)} AND {double(hi)}",
            name,
            lambda found: (lo <= float(found) <= hi) != bool(but),
        )

    def listed(self):
        name, but, some = self.name(), self.but(), self.several(self.number)
        return leaf(
            f"{name} {but}IN ({', '.join(map(repr, some))})",
            f"{name} {but}IN ({', '.join(map(double, some))})",
            name,
            lambda found: (float(found) in some) != bool(but),
        )

    def text_comparison(self):
        sign, value, folded = self.sign(), self.text(), self.folded()
        cql2, sql = operands(folded)
        return leaf(
            f"{cql2('s')} {sign} {cql2(escaped(value))}",
            f"{sql('s')} {sign} {sql(quoted(value))}",
            "s",
            lambda found: SIGNS[sign](fold(found, folded).encode(), fold(value, folded).encode()),
        )

    def text_listed(self):
        but, folded, some = self.but(), self.folded(), self.several(self.text)
        cql2, sql = operands(folded)
        return leaf(
            f"{cql2('s')} {but}IN ({', '.join(cql2(escaped(x)) for x in some)})",
            f"{sql('s')} {but}IN ({', '.join(sql(quoted(x)) for x in some)})",
            "s",
            lambda found: (fold(found, folded) in [fold(x, folded) for x in some]) != bool(but),
        )

    def like(self):
        but, folded = self.but(), self.folded()
        pattern = "".join(self.random.choices(PIECES, k=self.random.randint(0, 3)))
        cql2, sql = operands(folded)
        wanted = regex(fold(pattern, folded))
        return leaf(
            f"{cql2('s')} {but}LIKE {cql2(quoted(pattern))}",
            f"{sql('s')} {but}LIKE {sql(quoted(pattern))} ESCAPE '\\'",
            "s",
            lambda found: (wanted.fullmatch(fold(found, folded)) is not None) != bool(but),
        )

    def null(self):
        name, but = self.random.choice("tnsb"), self.but()
        text = f"{name} IS {but}NULL"
        return Condition(text, text, lambda row: (row[name] is None) != bool(but))

    def flag(self):
        value, sign = self.random.random() < 0.5, self.random.choice(["=", "<>", None])
        if sign is None:
            return leaf("b", "b", "b", bool)
        text = f"b {sign} {str(value).lower()}"
        return leaf(text, text, "b", lambda found: (found == value) == (sign == "="))

    def arithmetic(self):
        """Arithmetic, compared with a number or with other arithmetic."""
        left, sign = self.expression(), self.sign()
        kind = self.random.random()
        if kind < 0.2:
            but = self.but()
            texts = (f"({left.cql2}) IS {but}NULL", f"({left.sql}) IS {but}NULL")
            return Condition(*texts, lambda row: (left.truth(row) is None) != bool(but))
        right = self.operand() if kind < 0.5 else self.expression()

        def truth(row):
            values = left.truth(row), right.truth(row)
            return None if None in values else SIGNS[sign](*values)

        return Condition(
            f"{left.cql2} {sign} {right.cql2}", f"{left.sql} {sign} {right.sql}", truth
        )

    def expression(self, depth=1):
        """A number of a row, in doubles; None where SQL has an error."""
        deep = depth and self.random.random() < 0.4
        left = self.expression(depth - 1) if deep else self.named()
        right, op = self.operand(), self.random.choice("+-*/%")
        if self.random.random() < 0.3:
            left, right = right, left

        def value(row):
            values = left.truth(row), right.truth(row)
            return None if None in values else calculated(op, *values)

        sql = f"({left.sql} {op} {right.sql})"
        finite = f"isfinite({left.sql}) AND isfinite({right.sql}) AND NOT isfinite({sql})"
        wrong = f"isnan({sql}) OR ({finite})" + f" OR {right.sql} = 0" * (op in "/%")
        guarded = f"(CASE WHEN {wrong} THEN NULL ELSE {sql} END)"
        return Condition(f"({left.cql2} {op} {right.cql2})", guarded, value)

    def operand(self):
        if self.random.random() < 0.5:
            return self.named()
        number = self.number()
        return Condition(repr(number), double(number), lambda row: number)

    def named(self):
        name = self.name()
        return Condition(
            name,
            f"CAST({name} AS DOUBLE)",
            lambda row: None if row[name] is None else float(row[name]),
        )

    def features(self):
        """Two features of one type, compared with each other."""
        sign, folded = self.sign(), self.folded()
        pair = self.random.choice(["tn", "nm", "mn", "su", "us", "bc"])
        cql2, sql = operands(folded and pair in ("su", "us"))
        if pair == "bc":
            sign = self.random.choice(["=", "<>"])
        left, right = pair
        cast = (lambda name: f"CAST({name} AS DOUBLE)") if pair == "tn" else sql

        def plain(value):
            if isinstance(value, str):
                return fold(value, folded).encode()
            return float(value) if pair == "tn" else value

        def truth(row):
            values = row[left], row[right]
            return None if None in values else SIGNS[sign](*map(plain, values))

        return Condition(
            f"{cql2(left)} {sign} {cql2(right)}", f"{cast(left)} {sign} {cast(right)}", truth
        )

    def name(self):
        return self.random.choice("tn")

    def sign(self):
        return self.random.choice(list(SIGNS))

    def but(self):
        return self.random.choice(["", "NOT "])

    def folded(self):
        return self.random.random() < 0.3

    def several(self, make):
        return [make() for _ in range(self.random.randint(1, 4))]

    def number(self):
        if self.random.random() < 0.8:
            return float(self.random.randint(-1, 3))
        return self.random.choice([-0.5, 0.5, 1e-9, 2.0**53, self.random.uniform(-1e6, 1e6)])

    def measured(self):
        """A number as observations have them: they may be infinite, literals may not."""
        if self.random.random() < 0.1:
            return self.random.choice([math.inf, -math.inf])
        return self.number()

    def text(self):
        return self.random.choice(TEXTS)

    def world(self):
        """A schema with its features in any order, and observations with their number as `id`."""
        order = self.random.sample(FEATURES, len(FEATURES))
        schema = Schema("world", [*order, Feature("id", type="int", indexed=False)])
        return schema, self.observations(schema)

    def observations(self, schema):
        """Some observations of such a schema, numbered from 0."""
        count = self.random.randint(1, 30)
        makers = {
            "t": self.measured,
            "n": lambda: self.random.choice([self.random.randint(-1, 3), 2**53 + 1, -(2**62)]),
            "s": self.text,
            "b": lambda: self.random.random() < 0.5,
        }
        makers |= {"m": makers["n"], "u": makers["s"], "c": makers["b"]}
        columns = {
            "latitude": [float(self.random.randint(0, 1)) for _ in range(count)],
            "longitude": [float(self.random.randint(0, 1)) for _ in range(count)],
            "time": times_from_micros(np.arange(count) % 2 * 3_600_000_000),
            "id": list(range(count)),
        }
        for feature in FEATURES:
            share = self.random.choice([0.0, 0.2, 0.2, 1.0])
            values = [makers[feature.name]() for _ in range(count)]
            missing = [self.random.random() < share for _ in range(count)]
            columns[feature.name] = [
                None if gone else value for value, gone in zip(values, missing, strict=True)
            ]
        arrays = [
            columns[field.name]
            if field.name == "time"
            else pa.array(columns[field.name], field.type)
            for field in schema.observation_schema
        ]
        return pa.table(arrays, schema=schema.observation_schema)


def calculated(op, left, right):
    """The result of arithmetic on doubles; None where it is an error in PostgreSQL."""
    if op in "/%" and right == 0:
        return None
    if op == "%" and math.isinf(left):
        return None
    functions = {"+": float.__add__, "-": float.__sub__, "*": float.__mul__, "/": float.__truediv__}
    value = functions.get(op, math.fmod)(left, right)
    is_error = math.isinf(value) and math.isfinite(left) and math.isfinite(right)
    return None if is_error or math.isnan(value) else value


def constant(value):
    return Condition(str(value).lower(), str(value).lower(), lambda row: value)


def negated(part):
    def truth(row):
        inner = part.truth(row)
        return None if inner is None else not inner

    return Condition(f"NOT ({part.cql2})", f"NOT ({part.sql})", truth)


def joined(word, parts):
    decisive = word == "OR"

    def truth(row):
        found = [part.truth(row) for part in parts]
        if decisive in found:
            return decisive
        return None if None in found else not decisive

    cql2 = f" {word} ".join(f"({part.cql2})" for part in parts)
    return Condition(cql2, f" {word} ".join(f"({part.sql})" for part in parts), truth)


def operands(folded):
    """How an operand is written in CQL2 and in SQL."""
    if not folded:
        return str, str
    return (lambda operand: f"CASEI({operand})"), (lambda operand: f"lower({operand})")


def fold(text, folded):
    return text.lower() if folded else text


# --- the rows that each of the three selects -----------------------------------------------------


def by_duckdb(condition, table):
    connection = database()
    connection.register("world", table)
    found = connection.execute(f"SELECT id FROM world WHERE {condition.sql}").fetchall()
    connection.unregister("world")
    return sorted(number for (number,) in found)


@cache
def database():
    return duckdb.connect(config={"threads": 1})


def by_row(condition, table):
    return [row["id"] for row in table.to_pylist() if condition.truth(row) is True]
