"""The commands and code of docs/samplers.md about uploading work as written."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from expected_errors import raises

import galileo
from galileo.cli.main import main
from galileo.errors import SamplerRevoked
from galileo.sampler_runtime import unavailable_reason

pytestmark = pytest.mark.skipif(
    unavailable_reason() is not None,
    reason=f"sent code cannot be contained here: {unavailable_reason()}",
)

HOURS = 24


@pytest.fixture
def soundings(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    """The dataset that the page calls so: one label an hour, every second one above 290 K."""
    name = fresh_name("soundings")
    client.create_dataset(galileo.Schema(name, [galileo.Feature("temperature", "K")]))
    times = pd.date_range("2014-06-01", periods=HOURS, freq="1h", tz="UTC")
    warmth = [280.0 + 20 * (hour % 2) for hour in range(HOURS)]
    columns = {"latitude": 10.0, "longitude": 20.0, "time": times, "temperature": warmth}
    client.ingest(name, pd.DataFrame(columns))
    return name


@pytest.mark.slow
def test_samplers_page_section_on_sending_runs(
    page: Callable[[str], Any],
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    soundings: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = page("docs/samplers.md").text
    section = text[text.index("## Send it") :]
    [code] = re.findall(
        r"^```python\n(# warm_hours\.py\n.*?)^```", section, re.MULTILINE | re.DOTALL
    )
    code = f"{code}# for {tmp_path}\n"  # A digest of this test alone.
    Path("warm_hours.py").write_text(code)
    lines = [line[2:] for line in section.splitlines() if line.startswith("$ galileo")]
    assert [line.split()[1:3] for line in lines] == [
        ["up", "--set"],
        ["sampler", "test"],
        ["query", "soundings"],
        ["ccq", "submit"],
        ["sampler", "uploads"],
        ["sampler", "revoke"],
    ]

    def follow(line: str, **placeholders: str) -> Any:
        words = shlex.split(line.replace("soundings", soundings))[1:]
        words = [placeholders.get(word, word) for word in words]
        done = CliRunner().invoke(main, ["--node", cluster.addresses[0], *words, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    _, test, query, submit, sent, revoke = lines
    assert {row["verdict"] for row in follow(test)} == {"passed", "skipped"}
    labels = follow(query)["labels"]
    warm = [label for label in labels if label["temperature"] > 290]
    assert len(warm) == HOURS // 2 <= len(labels) < HOURS
    made = follow(submit)
    assert made["labels"] >= HOURS // 2
    digest = galileo.sampler_archive("warm_hours.py").digest
    [row] = [row for row in follow(sent) if row["digest"] == digest]
    assert (row["name"], row["ccqs"], row["revoked_at"]) == ("warm_hours", made["id"], None)
    gone = follow(revoke, DIGEST=digest[:10])
    assert gone["digest"] == digest
    with raises(SamplerRevoked) as refused:
        client.fetch(made["id"])
    assert refused.value.kind == "sampler_revoked"
    client.cancel(made["id"])
