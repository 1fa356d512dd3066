"""Runs notebooks without a notebook server, and puts what their cells show into the files.

What a cell shows is what Jupyter would show of it: what it prints, the value of its last line
(unless that ends in a semicolon), and the figures that it drew. Pictures are stored small.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from PIL import Image

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "docs" / "notebooks"
DPI = 72
COLOURS = 64
"""Of a picture's palette."""

Output = dict[str, Any]


@dataclass(slots=True)
class Notebook:
    """A notebook file.

    Attributes:
        path: of it.
        raw: nbformat 4, as JSON has it.
    """

    path: Path
    raw: dict[str, Any]

    @staticmethod
    def read(path: Path) -> Notebook:
        return Notebook(path, json.loads(path.read_text(encoding="utf-8")))

    def write(self) -> None:
        text = json.dumps(self.raw, indent=1, ensure_ascii=False)
        self.path.write_text(f"{text}\n", encoding="utf-8")

    @property
    def code(self) -> list[dict[str, Any]]:
        return [cell for cell in self.raw["cells"] if cell["cell_type"] == "code"]

    @property
    def text(self) -> str:
        """All words between the code."""
        cells = (cell for cell in self.raw["cells"] if cell["cell_type"] == "markdown")
        return "\n\n".join("".join(cell["source"]) for cell in cells)


@dataclass(slots=True)
class Kernel:
    """One namespace in which cells run one after the other."""

    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    def run(self, source: str, *, name: str) -> list[Output]:
        """What a cell shows; `name` stands in tracebacks."""
        statements, last = _parts(source, name)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(statements, name, "exec"), self.names)
            value = None if last is None else eval(compile(last, name, "eval"), self.names)
        outputs: list[Output] = []
        if printed.getvalue():
            outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
        if value is not None and not source.rstrip().endswith(";"):
            outputs.append(_shown(value))
        return [*outputs, *_figures()]


def _parts(source: str, name: str) -> tuple[ast.Module, ast.Expression | None]:
    """The statements of a cell, and apart from them the expression that it ends with."""
    tree = ast.parse(source, name)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        return tree, ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    return tree, None


def _shown(value: Any) -> Output:
    data = {"text/plain": repr(value)}
    html = getattr(value, "_repr_html_", None)
    if html is not None:
        data["text/html"] = html()
    return {"output_type": "execute_result", "metadata": {}, "execution_count": None, "data": data}


def _figures() -> Iterator[Output]:
    for number in plt.get_fignums():
        figure = plt.figure(number)
        data = {"image/png": base64.b64encode(picture(figure)).decode("ascii")}
        words = {"text/plain": f"<Figure with {len(figure.axes)} axes>"}
        yield {"output_type": "display_data", "metadata": {}, "data": data | words}
    plt.close("all")


def picture(figure: Any) -> bytes:
    """A figure as PNG with few colours."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=DPI, bbox_inches="tight")
    with Image.open(full) as image:
        image.convert("RGB").quantize(COLOURS).save(small, format="png", optimize=True)
    return small.getvalue()


def execute(notebook: Notebook) -> None:
    """Runs all cells and puts what they show into the notebook."""
    kernel = Kernel()
    for number, cell in enumerate(notebook.code, start=1):
        outputs = kernel.run("".join(cell["source"]), name=f"{notebook.path.name}, cell {number}")
        for output in outputs:
            if "execution_count" in output:
                output["execution_count"] = number
        cell["outputs"], cell["execution_count"] = outputs, number


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/notebooks", description=__doc__)
    parser.add_argument("notebook", nargs="*", type=Path, help="all of docs/notebooks if absent")
    for path in parser.parse_args().notebook or sorted(NOTEBOOKS.glob("*.ipynb")):
        print(f"running {path}", file=sys.stderr, flush=True)
        notebook = Notebook.read(path)
        execute(notebook)
        notebook.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
