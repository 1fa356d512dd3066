"""A program that uses Galileo is checked by mypy as strictly as its author likes."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


@pytest.mark.slow
def test_typed_program_wrong_types_are_reported(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # With the project's own settings, so that what was checked before is not checked again.
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context"]
    done = subprocess.run(
        [*command, str(program)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    messages = [line.partition("program.py:")[2] for line in done.stdout.splitlines()]
    first = PROGRAM.splitlines().index("reveal_type(f.temperature > 290)") + 1
    assert [line.partition(":")[0] for line in messages] == [str(first + n) for n in range(5)], (
        messages
    )
    assert 'Revealed type is "galileo.query.builder.Condition"' in messages[0]
    assert 'Revealed type is "galileo.client.blocking.Client"' in messages[1]
    assert "[arg-type]" in messages[2]
    assert "[arg-type]" in messages[3]
    assert "[assignment]" in messages[4]


# As a stranger would write it, who has installed the package and knows nothing of its settings.
STRANGERS_PROGRAM = """
from collections.abc import Iterator

import galileo
from galileo.errors import TransientError
from galileo.generate import QuakesLike

f = galileo.f


def warm(client: galileo.Client) -> int:
    labels: galileo.Labels = client.query("nam", (f.temperature > 290) & f.station.is_not_null())
    rows: int = client.read(labels).num_rows
    return rows + client.count("nam")


def follow(client: galileo.Client, ccq: galileo.Ccq) -> Iterator[str]:
    with galileo.Spool("x.spool") as spool:
        try:
            for update in client.watch(ccq.id, spool=spool):
                yield update.token
        except TransientError as error:
            print(error.kind, error.details)


async def both() -> None:
    async with galileo.AsyncClient("127.0.0.1:7701") as client:
        async for update in client.watch("ccq-1"):
            print(len(update.labels), update.windows)


with galileo.LocalCluster(nodes=3) as cluster:
    reports = [bulletin.reports for bulletin in QuakesLike().bulletins("2014", days=1)]
    receipt: galileo.Receipt = cluster.client().ingest("quakes", reports)
    print(receipt.rows, warm(cluster.client()))
"""
WRONG = "number: int = galileo.connect('127.0.0.1:7701').query('nam')\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    [made] = target.glob("*.whl")
    return made


@pytest.mark.slow
def test_wheel_has_py_typed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        assert "galileo/py.typed" in packed.namelist()


@pytest.mark.slow
def test_typed_program_against_wheel_is_strict(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own, which has the wheel before all that this one has."""
    home = tmp_path / "environment"
    venv.EnvBuilder(with_pip=False).create(home)
    [packages] = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(packages)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    (tmp_path / "program.py").write_text(STRANGERS_PROGRAM)
    (tmp_path / "wrong.py").write_text(f"import galileo\n\n{WRONG}")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
    command += ["--python-executable", str(home / "bin" / "python"), "program.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    [messages] = done.stdout.splitlines()
    assert messages.startswith("wrong.py:3: error: Incompatible types in assignment"), done.stdout
