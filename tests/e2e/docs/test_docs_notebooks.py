"""The tutorials run, cell by cell, and show what they say that they show."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest

import galileo

pytest.importorskip("geopandas")
pytest.importorskip("matplotlib")

import notebook_runner

ROOT = Path(__file__).parents[3]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
QUICK = "stations"
CHANNELS = "shelters"
"""The one about channels and tables."""
DATASETS = {"nam", "quakes", "stations", "storms"}
BYTES_MAX = 150_000
"""Of one notebook with all its pictures."""
PICTURE_BYTES_MAX = 40_000

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def is_about_the_cluster(cell: dict[str, Any]) -> bool:
    """Whether a cell starts or stops a cluster of its own."""
    return "cluster" in cell["metadata"].get("tags", ())


def kinds(outputs: list[dict[str, Any]]) -> list[list[str]]:
    """What a cell shows, by kind."""
    return [sorted(output.get("data", [output["output_type"]])) for output in outputs]


def test_notebooks_are_the_listed_tutorials() -> None:
    assert NAMES == ["nam_forecast", "quakes", "shelters", "stations", "storms"]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem == QUICK else [pytest.mark.slow])
        for path in NOTEBOOKS
    ],
)
def test_notebook_runs_and_shows_its_stored_outputs(
    path: Path,
    cluster: galileo.LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = notebook_runner.Notebook.read(path)
    with galileo.connect(*cluster.addresses) as client:
        kernel = notebook_runner.Kernel({"__name__": "__main__", "client": client})
        for number, cell in enumerate(notebook.code, start=1):
            if is_about_the_cluster(cell):
                continue
            shown = kernel.run("".join(cell["source"]), name=f"{path.name}, cell {number}")
            assert kinds(shown) == kinds(cell["outputs"]), f"run scripts/notebooks: cell {number}"
    with galileo.connect(*cluster.addresses) as client:
        assert not [one.id for one in client.list_ccqs() if one.dataset in DATASETS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_notebook_is_stored_fully_run_and_small(path: Path) -> None:
    notebook = notebook_runner.Notebook.read(path)
    numbers = [cell["execution_count"] for cell in notebook.code]
    assert numbers == list(range(1, len(numbers) + 1)), "run scripts/notebooks"
    assert path.stat().st_size < BYTES_MAX
    pictures = [
        base64.b64decode(output["data"]["image/png"])
        for cell in notebook.code
        for output in cell["outputs"]
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) >= 2
    assert all(one.startswith(b"\x89PNG") and len(one) < PICTURE_BYTES_MAX for one in pictures)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_notebook_has_all_sections(path: Path) -> None:
    code = "\n".join("".join(cell["source"]) for cell in notebook_runner.Notebook.read(path).code)
    standing = ("subscribe(", "follow(") if path.stem == CHANNELS else ("submit(", "cancel(")
    for part in ("ingest(", *standing, "plot", "to_geopandas(", "LocalCluster("):
        assert part in code, part


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_notebook_links_exist(path: Path) -> None:
    links = [
        one for one in _LINK.findall(notebook_runner.Notebook.read(path).text) if ":" not in one
    ]
    assert [link for link in links if not (path.parent / link.partition("#")[0]).exists()] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_notebook_conforms_to_the_format(path: Path) -> None:
    raw = notebook_runner.Notebook.read(path).raw
    assert (raw["nbformat"], raw["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in raw["cells"]]
    assert len(set(names)) == len(names)
    for cell in raw["cells"]:
        assert set(cell) >= {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            assert set(cell) >= {"execution_count", "outputs"}


# --- what runs them ------------------------------------------------------------------------------


def test_notebook_cell_shows_prints_and_last_value() -> None:
    kernel = notebook_runner.Kernel()
    printed, value = kernel.run("x = 1\nprint('hello')\nx + 1", name="cell")
    assert printed["text"] == "hello\n"
    assert value["data"] == {"text/plain": "2"}
    assert kernel.run("x + 1;", name="cell") == []
    assert kernel.run("y = x", name="cell") == kernel.run("", name="cell") == []


def test_notebook_cell_shows_tables_and_figures() -> None:
    kernel = notebook_runner.Kernel()
    [frame] = kernel.run("import pandas\npandas.DataFrame({'a': [1]})", name="cell")
    assert "<table" in frame["data"]["text/html"]
    [figure] = kernel.run("import matplotlib.pyplot as p\np.plot([1, 2]);", name="cell")
    assert base64.b64decode(figure["data"]["image/png"]).startswith(b"\x89PNG")
    assert kernel.run("1;", name="cell") == [], "a figure is shown once"


def test_notebook_cell_that_fails_is_named() -> None:
    with pytest.raises(ZeroDivisionError) as failed:
        notebook_runner.Kernel().run("1\n1 / 0", name="quakes.ipynb, cell 3")
    assert failed.traceback[-1].path == Path("quakes.ipynb, cell 3") or any(
        "quakes.ipynb, cell 3" in str(entry.path) for entry in failed.traceback
    )
