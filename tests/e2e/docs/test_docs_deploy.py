"""The container file and the unit name what there is, and run what the command line takes."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from galileo import config
from galileo.cli.main import main
from galileo.cluster import LocalCluster

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
INSTRUCTIONS = {
    "ARG",
    "FROM",
    "WORKDIR",
    "COPY",
    "RUN",
    "ENV",
    "USER",
    "VOLUME",
    "EXPOSE",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "ENTRYPOINT",
    "CMD",
}


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((DEPLOY / "galileo.service").read_text())
    return parser


def instructions() -> list[tuple[str, str]]:
    """Those of the container file in order, continued lines joined."""
    text = (DEPLOY / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(w[0], w[2]) for line in joined.splitlines() if line for w in [line.partition(" ")]]


def of(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def parses(words: list[str]) -> None:
    """Whether the command line takes these words."""
    command: Any = main
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    context = main.make_context("galileo", [], resilient_parsing=True)
    _, rest, _ = command.make_parser(context).parse_args(words)
    assert all(one.startswith("/etc/") for one in rest)


def test_systemd_unit_of_the_page_is_the_file(page: Callable[[str], Any]) -> None:
    [(_, shown)] = page("docs/cluster.md").blocks("ini")
    assert shown == (DEPLOY / "galileo.service").read_text()


def test_systemd_unit_runs_valid_commands() -> None:
    service = unit()["Service"]
    for key in ("ExecStartPre", "ExecStart"):
        program, *words = service[key].split()
        assert program == "/opt/galileo/bin/galileo"
        parses(words)
    directory = f"/var/lib/{service['StateDirectory']}"
    assert f'directory = "{directory}"' in (ROOT / "docs" / "cluster.md").read_text()


def test_systemd_unit_is_verified_by_systemd(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    text = (DEPLOY / "galileo.service").read_text()
    text = text.replace("/opt/galileo/bin/galileo", "/bin/true")
    path = tmp_path / "galileo.service"
    path.write_text(text.replace("User=galileo", "User=root"))
    done = subprocess.run([analyze, "verify", str(path)], capture_output=True, text=True)
    if "galileo.service" not in done.stderr + done.stdout and done.returncode:
        pytest.skip(f"systemd-analyze does not run here: {done.stderr}")
    messages = [line for line in done.stderr.splitlines() if "galileo.service" in line]
    assert (done.returncode, messages) == (0, [])


def test_containerfile_has_known_instructions_only() -> None:
    names = [name for name, _ in instructions()]
    assert names[:2] == ["ARG", "FROM"]
    assert set(names) == INSTRUCTIONS
    assert names.count("ENTRYPOINT") == names.count("CMD") == 1


def test_containerfile_copies_existing_files() -> None:
    for line in of("COPY"):
        *sources, _ = line.split()
        if not line.startswith("--from="):
            assert all((ROOT / source).exists() for source in sources), line
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [install] = [line for line in of("RUN") if "--no-index" in line]
    for plugin in (ROOT / "plugins").glob("*/pyproject.toml"):
        assert f"./{plugin.parent.relative_to(ROOT)}" in install
    assert {"readme", "license-files"} <= set(built), "the files that a build needs are copied"


def pins(path: str) -> dict[str, str]:
    """The versions of a lock file."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;]+)", (ROOT / path).read_text(), re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in found}


def test_containerfile_has_images_by_digest_and_packages_by_the_lock() -> None:
    assert set(of("ARG")) == {"PYTHON_IMAGE"}, "without a default, which would be a tag"
    assert all(line.startswith("${PYTHON_IMAGE}") for line in of("FROM"))
    [check] = [line for line in of("RUN") if line.startswith("case")]
    for image, status in (("python:3.12", 1), (f"python@sha256:{'0' * 64}", 0)):
        done = subprocess.run(["sh", "-c", check], env={"PYTHON_IMAGE": image}, check=False)
        assert done.returncode == status
    commands = [part for line in of("RUN") for part in line.split("&&") if "pip install" in part]
    assert len(commands) == 3
    assert all("--require-hashes" in one or "--no-index" in one for one in commands)
    of_image, of_all = pins("deploy/requirements.lock"), pins("requirements.lock")
    assert of_image.items() <= of_all.items()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = extras["dependencies"] + [
        one
        for extra in ("formats", "otel", "rdf", "server", "spark")
        for one in extras["optional-dependencies"][extra]
    ]
    names = {re.split(r"[\[<>=!~]", one)[0].lower() for one in needed} - {"galileo-store"}
    assert names <= of_image.keys()


def test_first_packages_of_the_containerfile_are_those_that_others_are_built_with(
    tmp_path: Path,
) -> None:
    [install] = [line for line in of("RUN") if "awk" in line]
    [command] = [part.strip() for part in install.split("&&") if "awk" in part]
    shutil.copy(ROOT / "deploy" / "requirements.lock", tmp_path)
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    first = (tmp_path / "build.lock").read_text()
    assert re.findall(r"^(\S+)==", first, re.MULTILINE) == ["setuptools"]
    assert "--hash=sha256:" in first


def test_containerfile_runs_a_valid_command() -> None:
    [entry], [words] = of("ENTRYPOINT"), of("CMD")
    assert json.loads(entry) == ["galileo"]
    parses(json.loads(words))


def test_containerfile_environment_is_a_valid_configuration(cluster: LocalCluster) -> None:
    made = dict(pair.split("=", 1) for line in of("ENV") for pair in line.split())
    loaded = config.load(cluster.directory / "node-1.toml", environment=made)
    assert loaded.logging.format == "json"
    [health] = of("HEALTHCHECK")
    assert f"http://{loaded.metrics.address}/live" in health
    assert set(config.NODE_ENVIRONMENT.items()) <= set(made.items())
