"""`galileo sampler`, and `galileo query --sampler` against a real cluster."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from expected_errors import raises

import galileo
from galileo import samplers
from galileo.cli.main import main
from galileo.errors import SamplerRevoked
from galileo.model.schema import Feature, Schema
from galileo.sampler_runtime import unavailable_reason

ROWS = 400
BROKEN = """
import numpy as np

class ByPlace:
    def __init__(self, *, every=3):
        self.every = every

    def sample(self, labels, *, seed):
        return np.arange(len(labels)) % self.every == 0
"""
KEEPING = """
from galileo.testing.conformance import SamplerConformance

class EvenRows:
    def sample(self, labels, *, seed):
        return labels.rows % 2 == 0
"""
OF_ITS_OWN = """
class TestEvenRows(SamplerConformance):
    seed_matters = False

    def make(self):
        return EvenRows()
"""


def run(*words: str, fails: int = 0) -> Result:
    done = CliRunner().invoke(main, [*words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == fails, done.output
    return done


def run_json(*words: str, fails: int = 0) -> Any:
    return json.loads(run(*words, "--json", fails=fails).stdout)


@pytest.fixture(autouse=True)
def _own_paths(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is tested is imported from its own directory, and forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("galileo_checked_", "galileo_sampler_")):
            del sys.modules[name]


# --- what is installed -----------------------------------------------------------------------


def test_sampler_list_names_installed_samplers() -> None:
    rows = {row["name"]: row for row in run_json("sampler", "list")}
    assert set(rows) == set(samplers.installed())
    assert rows["reservoir"]["distribution"] == "galileo-samplers"
    assert rows["reservoir"]["about"].startswith("Keeps `n` labels")
    assert "galileo-samplers" in run("sampler", "list").stdout


def test_sampler_list_of_a_failing_import_gives_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "lost-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lost\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{samplers.ENTRY_POINTS}]\nlost = not_there:Lost\n")
    monkeypatch.syspath_prepend(tmp_path)
    [row] = [row for row in run_json("sampler", "list") if row["name"] == "lost"]
    assert row["about"] == "cannot be imported: ModuleNotFoundError: No module named 'not_there'"


@pytest.mark.parametrize(
    ("name", "options", "skipped"),
    [
        ("reservoir", ["n=20"], 1),
        pytest.param("thinning", ["distance_m=100000"], 2, marks=pytest.mark.slow),
        ("stratified", ["by=cell", "precision=2", "per_stratum=3"], 1),
        pytest.param("uniform", ["fraction=0.1"], 4, marks=pytest.mark.slow),
    ],
)
def test_sampler_test_of_an_installed_sampler_passes(
    name: str, options: list[str], skipped: int
) -> None:
    words = [word for option in options for word in ("--option", option)]
    rows = run_json("sampler", "test", name, *words)
    assert {row["sampler"] for row in rows} == {name}
    assert [row["verdict"] for row in rows].count("skipped") == skipped
    assert [row["verdict"] for row in rows].count("passed") == len(rows) - skipped


# --- a new one -------------------------------------------------------------------------------


def test_sampler_new_passes_its_tests(tmp_path: Path) -> None:
    made = run_json("sampler", "new", "dry_hours", "--directory", str(tmp_path))
    home = tmp_path / "dry_hours"
    assert made["directory"] == str(home)
    assert sorted(made["files"]) == sorted(str(p) for p in home.rglob("*") if p.is_file())
    project = tomllib.loads((home / "pyproject.toml").read_text())
    points = project["project"]["entry-points"][samplers.ENTRY_POINTS]
    assert points == {"dry_hours": "galileo_sampler_dry_hours:DryHours"}
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [
        "galileo_sampler_dry_hours"
    ]
    rows = run_json("sampler", "test", str(home))
    assert {row["sampler"] for row in rows} == {"TestDryHours"}
    assert {row["verdict"] for row in rows} == {"passed", "skipped"}
    module = sys.modules["galileo_sampler_dry_hours"]
    assert Path(module.__file__ or "").parent == home / "galileo_sampler_dry_hours"
    lines = [line for line in Path(module.__file__ or "").read_text().splitlines() if line.strip()]
    assert len(lines) <= 12


def test_sampler_test_of_a_wrong_sampler_fails(tmp_path: Path) -> None:
    run("sampler", "new", "worse", "--directory", str(tmp_path))
    code = tmp_path / "worse" / "galileo_sampler_worse" / "__init__.py"
    text = code.read_text()
    broken = text.replace(
        "label_uniforms(labels, seed=seed)", "label_uniforms(labels, seed=id([]))"
    )
    assert broken != text
    code.write_text(broken)
    done = run("sampler", "test", str(tmp_path / "worse"), fails=1)
    assert "\nfailed: it is deterministic: " in done.stdout
    assert "checks failed" in done.stdout


@pytest.mark.parametrize("name", ["Dry", "9th", "../up", "dry-hours", ""])
def test_sampler_new_with_an_invalid_name_is_refused(name: str, tmp_path: Path) -> None:
    done = run("sampler", "new", name, "--directory", str(tmp_path), fails=2)
    assert "expected a name of small letters" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_sampler_new_with_observations_passes_its_tests(tmp_path: Path) -> None:
    run_json("sampler", "new", "steep", "--directory", str(tmp_path), "--observations")
    home = tmp_path / "steep"
    assert "needs_observations = True" in (home / "galileo_sampler_steep/__init__.py").read_text()
    rows = run_json("sampler", "test", str(home))
    assert {row["sampler"] for row in rows} == {"TestSteep"}
    verdicts = {row["check"]: row["verdict"] for row in rows}
    assert verdicts["labels may have no observations"] == "passed"
    assert "failed" not in verdicts.values()
    assert galileo.sampler_archive(home).name == "steep", "it can be sent as it is"


def test_sampler_new_in_a_missing_directory_is_refused(tmp_path: Path) -> None:
    done = run("sampler", "new", "mine", "--directory", str(tmp_path / "no"), fails=2)
    assert "expected a directory" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_sampler_new_over_an_existing_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    done = run("sampler", "new", "mine", "--directory", str(tmp_path), fails=2)
    assert "exists already" in done.stderr
    assert list((tmp_path / "mine").iterdir()) == []


# --- files -----------------------------------------------------------------------------------


def test_sampler_test_of_a_file_uses_the_options(tmp_path: Path) -> None:
    path = tmp_path / "by_place.py"
    path.write_text(BROKEN)
    rows = run_json("sampler", "test", str(path), "--option", "every=2", "--ignores-seed", fails=1)
    verdicts = {row["check"]: row["verdict"] for row in rows}
    assert {row["sampler"] for row in rows} == {"ByPlace"}
    assert verdicts["the order of the labels does not matter"] == "failed"
    assert verdicts["the seed matters or is declared not to"] == "passed"
    whole = run_json("sampler", "test", str(path), "--option", "every=1", "--ignores-seed")
    assert {row["verdict"] for row in whole} == {"passed", "skipped"}
    done = run("sampler", "test", str(path), "--option", "some=1", fails=2)
    assert "has no option 'some'" in done.stderr


def test_sampler_test_of_a_file_prefers_its_own_checks(tmp_path: Path) -> None:
    path = tmp_path / "even_rows.py"
    path.write_text(KEEPING)
    rows = run_json("sampler", "test", str(path), fails=1)
    assert {row["sampler"] for row in rows} == {"EvenRows"}
    path.write_text(KEEPING + OF_ITS_OWN)
    rows = run_json("sampler", "test", str(path))
    assert {row["sampler"] for row in rows} == {"TestEvenRows"}


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("empty", "expected subclasses of SamplerConformance in"),
        ("plain.py", "expected a class with a method sample in"),
        ("wrong.py", "cannot be imported: SyntaxError"),
        ("reservior", "did you mean 'reservoir'?"),
    ],
)
def test_sampler_test_of_a_wrong_file_names_the_mistake(
    target: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "plain.py").write_text("x = 1\n")
    (tmp_path / "wrong.py").write_text("def:\n")
    assert words in run("sampler", "test", target, fails=2).stderr


# --- queries ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dataset(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    name, rng = fresh_name("thinned"), np.random.default_rng(2)
    client.create_dataset(Schema(name, [Feature("temperature", "K")], geohash_precision=4))
    frame = pd.DataFrame(
        {
            "latitude": rng.uniform(-60, 60, ROWS),
            "longitude": rng.uniform(-180, 180, ROWS),
            "time": "2014-03-01T06:30:00Z",
            "temperature": rng.normal(285, 9, ROWS),
        }
    )
    client.ingest(name, frame, batch_rows=100)
    return name


def test_query_with_a_sampler_is_the_same_at_every_node(
    client: galileo.Client, dataset: str, cluster: galileo.LocalCluster, tmp_path: Path
) -> None:
    spec = galileo.sampler("reservoir", n=30, seed=7)
    everything = client.query(dataset)
    expected = samplers.merged(spec, everything).texts().to_pylist()
    assert len(everything) == ROWS
    assert len(expected) == 30
    for address in cluster.addresses:
        with galileo.connect(address) as there:
            assert sorted(there.query(dataset, sampler=spec).texts().to_pylist()) == sorted(
                expected
            )
    with client.query_batches(dataset, sampler=spec) as batches:
        texts = [text for batch in batches for text in batch.texts().to_pylist()]
        assert batches.end is not None
        assert batches.end.frontier == everything.frontier
    assert sorted(texts) == sorted(expected)

    node = ("--node", cluster.addresses[0])
    words = (dataset, "--sampler", "reservoir", "--option", "n=30", "--seed", "7")
    found = run_json(*node, "query", *words)
    assert sorted(row["label"] for row in found["labels"]) == sorted(expected)
    target = tmp_path / "labels.parquet"
    run(*node, "query", *words, "--output", str(target))
    assert sorted(pd.read_parquet(target)["label"]) == sorted(expected)


def test_query_with_a_sampler_file_sends_it(
    client: galileo.Client, dataset: str, cluster: galileo.LocalCluster, tmp_path: Path
) -> None:
    if unavailable_reason() is not None:
        pytest.skip(f"sent code cannot be contained here: {unavailable_reason()}")
    path = tmp_path / "even.py"
    path.write_text(
        f"# {tmp_path}\nclass Even:\n    def sample(self, labels, *, seed):\n"
        "        assert seed < 9, 'no luck'\n        return labels.rows % 2 == 0\n"
    )
    node = ("--node", cluster.addresses[0])
    found = run_json(*node, "query", dataset, "--sampler-file", str(path), "--seed", "1")["labels"]
    everything = client.query(dataset)
    assert len(found) == int((everything.rows % 2 == 0).sum())
    done = run(*node, "query", dataset, "--sampler-file", str(path), "--seed", "9", fails=4)
    assert "line 4, in sample" in done.stderr, "its own traceback"
    assert "AssertionError: no luck [sampler_failed]" in done.stderr
    digest = galileo.sampler_archive(path).digest
    shown = run(*node, "sampler", "upload", str(path)).stdout
    assert shown.startswith(f"{digest}  even, ")
    assert "even" in run(*node, "sampler", "uploads").stdout
    assert "is revoked" in run(*node, "sampler", "revoke", digest[:8]).stdout
    done = run(*node, "query", dataset, "--sampler-file", str(path), fails=4)
    assert "[sampler_revoked]" in done.stderr
    batches = client.query_batches(dataset, sampler=galileo.sampler_archive(path))
    with batches, raises(SamplerRevoked, digest=digest):
        next(iter(batches))


def test_merged_labels_of_a_ccq_equal_a_query(client: galileo.Client, dataset: str) -> None:
    spec = galileo.sampler("stratified", by="cell", precision=1, per_stratum=2, seed=3)
    ccq = client.submit(dataset, interval="1h", expiration="1h", sampler=spec)
    try:
        delivered = client.fetch(ccq.id).labels
        expected = client.query(dataset, sampler=spec).texts().to_pylist()
        assert sorted(delivered.texts().to_pylist()) == sorted(ccq.initial.texts().to_pylist())
        assert len(expected) < len(delivered) < ROWS
        left = samplers.merged(spec, delivered).texts().to_pylist()
        assert sorted(left) == sorted(expected)
    finally:
        client.cancel(ccq.id)
