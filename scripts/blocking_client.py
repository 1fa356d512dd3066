"""galileo/client/blocking_calls.py, from `AsyncClient`.

Each public method of `AsyncClient` becomes one of the blocking client: the same arguments, the same
docstring without `await` and `async`, and a body that waits. docs/dev/decisions/0033 says why.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TARGET = "galileo/client/blocking_calls.py"
OWNED = (TARGET,)
BASE = "from galileo.client.blocking_base import BlockingBase, BlockingLabelBatches, BlockingTables"

BY_HAND = frozenset({"close"})
"""Methods that galileo/client/blocking.py has."""
BODIES = {
    "ingest": "self._run_with(data, lambda data: {call})",
    "query_batches": "self._label_batches({call})",
    "read_batches": "BlockingTables(labels, columns, self._iterate({call}))",
}
"""What a method returns that neither waits for one result nor steps through an iterator."""
BLOCKING = {
    "AsyncIterator": "Iterator",
    "LabelBatches": "BlockingLabelBatches",
    "read_batches": "BlockingTables",
}
"""Return types: of what is awaited, or of the method of that name."""
WORDS = (
    (re.compile(r"\bawait "), ""),
    (re.compile(r"\basync (?=for|with|def)"), ""),
    (re.compile(r"\baclosing\b"), "closing"),
    (re.compile(r"\bAsyncClient\b"), "Client"),
)
"""What a docstring says otherwise for the blocking client."""
HEAD = '''\
"""The calls of `Client`, written by scripts/generate from `AsyncClient`; do not edit.

To add or change a call, edit it in `AsyncClient`, then run `scripts/generate`. Resolve a conflict
in this file by running it, too.
"""

from __future__ import annotations
'''

Method = ast.FunctionDef | ast.AsyncFunctionDef


class Part(NamedTuple):
    """A class that `AsyncClient` is made of, as its file has it; nothing is imported."""

    module: str
    tree: ast.Module
    definition: ast.ClassDef


def files() -> dict[str, str]:
    """The whole module, formatted."""
    parts = list(_parts("galileo.client.async_client", "AsyncClient"))
    methods = [method for part in parts for method in _methods(part.definition)]
    body = "\n\n".join(textwrap.indent(_blocking(method), "    ") for method in methods)
    doc = '    """Every method waits until its call is done; Ctrl-C cancels the call."""'
    imports = "\n".join(sorted(_imports(parts, methods)))
    text = f"{HEAD}\n{imports}\n{BASE}\n\n\nclass BlockingCalls(BlockingBase):\n{doc}\n\n{body}\n"
    return {TARGET: _formatted(text)}


def _parts(module: str, name: str) -> Iterator[Part]:
    """A class, then those that it inherits from."""
    tree = ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text())
    [definition] = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    yield Part(module, tree, definition)
    homes = {
        alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for base in definition.bases:
        home = homes.get(ast.unparse(base)) or ""
        if home.startswith("galileo."):
            yield from _parts(home, ast.unparse(base))


def _methods(definition: ast.ClassDef) -> Iterator[Method]:
    methods = (n for n in definition.body if isinstance(n, Method) and not n.decorator_list)
    return (n for n in methods if not n.name.startswith("_") and n.name not in BY_HAND)


def _blocking(method: Method) -> str:
    """The method of the blocking client, as text."""
    returned = _returned(method)
    signature = ast.unparse(
        ast.FunctionDef(
            method.name, method.args, [ast.Pass()], [], ast.Name(returned), lineno=0, col_offset=0
        )
    ).removesuffix("\n    pass")
    awaited = f"self._client.{method.name}({', '.join(_arguments(method.args))})"
    default = "self._iterate({call})" if returned.startswith("Iterator[") else "self._run({call})"
    body = BODIES.get(method.name, default).format(call=awaited)
    keyword = "" if returned == "None" else "return "
    return "\n".join([signature, *_docstring(method), f"    {keyword}{body}"])


def _returned(method: Method) -> str:
    assert method.returns is not None, f"{method.name} has no return type"
    returned = ast.unparse(method.returns)
    name, bracket, rest = returned.partition("[")
    return BLOCKING.get(method.name) or BLOCKING.get(name, name) + bracket + rest


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    """Of the call that passes all of them on."""
    assert not arguments.kwarg, "name the keywords"
    yield from (one.arg for one in arguments.posonlyargs + arguments.args if one.arg != "self")
    if arguments.vararg:
        yield f"*{arguments.vararg.arg}"
    yield from (f"{one.arg}={one.arg}" for one in arguments.kwonlyargs)


def _docstring(method: Method) -> list[str]:
    text = ast.get_docstring(method)
    if not text:
        return []
    for word, other in WORDS:
        text = word.sub(other, text)
    prefix = "r" if "\\" in text else ""
    end = "\n" if "\n" in text else ""
    return textwrap.indent(f'{prefix}"""{text}{end}"""', "    ").splitlines()


def _imports(parts: list[Part], methods: list[Method]) -> set[str]:
    """Of the names in their signatures, from where the modules of `AsyncClient` have them."""
    homes = {name: home for part in reversed(parts) for name, home in _names(part)}
    homes |= {"AsyncIterator": "from collections.abc import Iterator", "LabelBatches": ""}
    used = {
        node.id
        for method in methods
        for tree in (method.args, method.returns)
        if tree is not None
        for node in ast.walk(tree)
        if isinstance(node, ast.Name)
    }
    return {homes[name] for name in used if name in homes}


def _names(part: Part) -> Iterator[tuple[str, str]]:
    """What a module imports or defines, with the statement that imports it elsewhere."""
    for node in part.tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            begin = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                yield alias.asname or alias.name, f"{begin}import {ast.unparse(alias)}"
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, f"from {part.module} import {node.target.id}"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, f"from {part.module} import {node.targets[0].id}"


def _formatted(text: str) -> str:
    for arguments in (["check", "--select=I", "--fix", "--quiet"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *arguments, f"--stdin-filename={TARGET}", "-"]
        text = subprocess.run(
            command, input=text, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    return text
