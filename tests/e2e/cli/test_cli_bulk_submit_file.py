"""Files of continuous queries: what their lines may say, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from expected_errors import raises

import galileo
from galileo.cli.bulk_submit_file import Defaults, read_submissions
from galileo.cli.main import main
from galileo.errors import InputError


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "queries.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(texts))
    return path


def test_read_submissions_fills_defaults(tmp_path: Path) -> None:
    spec = galileo.sampler("uniform", fraction=0.5, seed=3)
    window = galileo.Window.tumbling("1h")
    path = written(
        tmp_path,
        {
            "dataset": "nam",
            "query": "a > 1",
            "interval": "5s",
            "expiration": 60,
            "sampler": json.loads(spec.to_json()),
            "window": json.loads(window.to_json()),
            "compression": "lz4",
            "id": "mine",
        },
        "",
        {"query": {"op": ">", "args": [{"property": "a"}, 1]}},
    )
    first, second = read_submissions(path, Defaults("gauges", "2s", "3h", "key"))
    assert first == galileo.Submission(
        "nam", "a > 1", "5s", 60, spec, compression="lz4", window=window, id="mine"
    )
    assert (second.dataset, second.interval, second.expiration) == ("gauges", "2s", "3h")
    assert second.id == "key-3"
    assert json.loads(str(second.query))["op"] == ">"


def test_read_submissions_without_a_key_draws_ids(tmp_path: Path) -> None:
    found = read_submissions(written(tmp_path, {}, {}), Defaults("nam"))
    assert len({one.id for one in found}) == 2


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("no JSON", "line 2 of the file"),
        ("[1]", "expected a JSON object"),
        ('{"quary": "a > 1"}', "got quary"),
        ('{"sampler": {"nome": "uniform"}}', "expected a sampler"),
        ('{"window": {"size": 1}}', "expected windows"),
        ('{"compression": 5}', "expected a text as compression, got 5"),
    ],
)
def test_read_submissions_of_an_invalid_line_names_its_number(
    tmp_path: Path, line: str, expected: str
) -> None:
    with raises(InputError, line=2) as caught:
        read_submissions(written(tmp_path, {}, line), Defaults("nam"))
    assert expected in caught.value.message


def test_read_submissions_splits_at_line_feeds_only(tmp_path: Path) -> None:
    """Not where JSON has a separator of lines or paragraphs within a text."""
    path = tmp_path / "queries.jsonl"
    path.write_bytes('{"query": "name = \'a\u2028b\x85c\'"}\r\n{"query": "é > 1"}'.encode())
    first, second = read_submissions(path, Defaults("nam"))
    assert (first.query, second.query) == ("name = 'a\u2028b\x85c'", "é > 1")


def test_read_submissions_of_other_encodings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_bytes('{"query": "é > 1"}'.encode("latin-1"))
    with raises(InputError, file=str(path)):
        read_submissions(path, Defaults("nam"))


def test_read_submissions_without_a_dataset_is_refused(tmp_path: Path) -> None:
    with raises(InputError, line=1):
        read_submissions(written(tmp_path, {}), Defaults())


def test_ccq_submit_many_repeated_changes_nothing(
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    fresh_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    name = fresh_name("lines")
    client.create_dataset(galileo.Schema(name, [galileo.Feature("value")]))
    path = written(tmp_path, *({"query": f"value > {n}"} for n in range(3)), {"query": "valu > 1"})

    def run(*, fails: int) -> Result:
        nodes = [word for address in cluster.addresses for word in ("--node", address)]
        words = ["ccq", "submit-many", str(path), "--dataset", name, "--interval", "1h"]
        done = CliRunner().invoke(
            main, [*nodes, *words, "--expiration", "2h", "--key", name, "--json"]
        )
        assert done.exit_code == fails, done.output
        return done

    first = run(fails=2)
    rows = json.loads(first.stdout)
    assert [row["id"] for row in rows] == [f"{name}-{n}" for n in (1, 2, 3, 4)]
    assert [row["error"] is None for row in rows] == [True, True, True, False]
    assert first.stderr == (
        "galileo: 1 of 4 queries were refused, each with the error that its row has "
        "[unknown_property]\n"
    )
    path.write_text("\n".join(path.read_text().splitlines()[:3]))
    again = json.loads(run(fails=0).stdout)
    assert [(r["id"], r["token"]) for r in again] == [(r["id"], r["token"]) for r in rows[:3]]
    assert sum(one.dataset == name for one in client.list_ccqs()) == 3
    for row in again:
        client.cancel(row["id"])
