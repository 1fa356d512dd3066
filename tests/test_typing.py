"""A program that uses Galileo is checked by mypy as strictly as its author likes."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
import pyarrow as pa

import galileo

f = galileo.f


def warm(client: galileo.Client) -> int:
    condition: galileo.Condition = (f.temperature > 290) & ~f.station.isin(["KDEN"])
    region = galileo.within((-110, 35, -100, 42)) | galileo.near(40, -105, 5e4)
    labels: galileo.Labels = client.query("nam", condition & region, progress=print)
    for batch in client.query_batches("nam", "temperature > 290"):
        labels = batch
    update: galileo.Update = client.fetch("ccq-1")
    text: str = galileo.to_geojson(labels) + update.token
    return len(labels) + len(text) + client.count("nam", galileo.during("2012", None))


reveal_type(f.temperature > 290)
reveal_type(galileo.connect("127.0.0.1:7701"))
client = galileo.connect(7701)
client.query("nam", 290)
labels: str = client.query("nam")
"""


def test_a_program_is_checked(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # With the project's own settings, so that what was checked before is not checked again.
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context"]
    done = subprocess.run(
        [*command, str(program)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    told = [line.partition("program.py:")[2] for line in done.stdout.splitlines()]
    first = PROGRAM.splitlines().index("reveal_type(f.temperature > 290)") + 1
    assert [line.partition(":")[0] for line in told] == [str(first + n) for n in range(5)], told
    assert 'Revealed type is "galileo.query.builder.Condition"' in told[0]
    assert 'Revealed type is "galileo.client.blocking.Client"' in told[1]
    assert "[arg-type]" in told[2]
    assert "[arg-type]" in told[3]
    assert "[assignment]" in told[4]


def test_the_wheel_says_that_it_is_typed(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert "galileo/py.typed" in packed.namelist()
