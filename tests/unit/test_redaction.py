from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from galileo.cli.main import main
from galileo.redaction import SECRET_CHARACTERS_MAX, redacted, redacted_start

KEY = "-----BEGIN PRIVATE KEY-----\nMIGHplanted+/\nAgEA==\n-----END PRIVATE KEY-----\n"
CRASH = """
import sys, threading
from galileo.logging_setup import start_logging
start_logging(sys.argv[1])
def fail():
    raise RuntimeError(sys.argv[2])
if sys.argv[3] == "main":
    fail()
thread = threading.Thread(target=fail)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("got 'glt_planted-_9' here", "got '(a token)' here"),
        (f"got {KEY}", "got (a key)\n"),
        (f"got {KEY!r}", "got '(a key)\\n'"),
        ("-----BEGIN EC PRIVATE KEY-----\nplanted", "(a key)"),
        ("https://ann:planted@host:4317/x", "https://(a password)@host:4317/x"),
        ("https://ann:pl@nt@ed@host/x", "https://(a password)@host/x"),
        (
            "'sc://host:15002/;token=planted;user_id=ann'",
            "'sc://host:15002/;token=(a token);user_id=ann'",
        ),
    ],
)
def test_redacted_text_with_secret_hides_it(text: str, clean: str) -> None:
    assert redacted(text) == clean


@given(st.text(alphabet="ab c:/@;=-\n'\"{}0"))
def test_redacted_random_text_without_secret_is_unchanged(text: str) -> None:
    if "://" not in text:
        assert redacted(text) == text


SECRETS = {
    "token": "glt_planted",
    "key": KEY,
    "password": "https://ann:planted@host",
    "bearer": ";token=planted",
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize("size", [10, 100])
def test_redacted_start_shows_no_part_of_secret(secret: str, size: int) -> None:
    """Wherever the text is cut, in or beside a secret."""
    for cut in (size, size + SECRET_CHARACTERS_MAX):
        for place in range(cut - len(secret) - 1, cut + 1):
            text = "." * place + secret + " ." * 5_000
            start = redacted_start(text, size)
            assert redacted(text).startswith(start), place
            assert len(start) > size - len(secret), place


def test_redacted_start_short_text_is_redacted() -> None:
    assert redacted_start("got glt_planted here", 100) == "got (a token) here"


def test_redacted_start_does_not_search_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()
    monkeypatch.setattr("galileo.redaction.redacted", lambda text: sizes.append(len(text)) or text)
    redacted_start("x" * 1_000_000, 100)
    assert sizes == [100 + SECRET_CHARACTERS_MAX]


@pytest.mark.parametrize("kind", ["text", "json"])
@pytest.mark.parametrize("where", ["main", "thread"])
def test_uncaught_exception_is_logged_without_secrets(kind: str, where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASH, kind, f"glt_planted {KEY}", where],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == (1 if where == "main" else 0)
    assert "RuntimeError: (a token) (a key)" in done.stderr
    assert "unhandled exception" in done.stderr
    assert "planted" not in done.stderr
    if kind == "json":
        [line] = done.stderr.splitlines()
        assert json.loads(line)["error"].startswith("Traceback")


BROKEN = {
    "a token where there is a name": '[node]\nname = "glt_planted"\ndirectory = "d"\n',
    "a key where there is a switch": f"[security]\ninsecure = '''{KEY}'''\n",
    "a password in an address": '[tracing]\nendpoint = "ftp://ann:planted@host:1"\n',
    "a token as a key": '[auth]\nglt_planted = "x"\n',
    "a table twice": "[glt_planted]\n[glt_planted]\n",
    "no TOML": '[auth]\nnode_token_file = "glt_planted\ntoken_file = glt_planted"\n',
}


@pytest.mark.parametrize("wrong", BROKEN)
def test_config_check_of_invalid_file_hides_secrets(wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    cluster = (
        '[cluster]\ngroups = [{name = "g", nodes = [{name = "a", address = "127.0.0.1:1"}]}]\n'
    )
    path.write_text(BROKEN[wrong] + cluster)
    for words in (["config", "check"], ["doctor", "--config"], ["serve", "--config"]):
        for more in ([], ["--json"]):
            done = CliRunner().invoke(main, [*more, *words, str(path)])
            assert done.exit_code == 2, done.output
            assert "expected" in done.output or "unknown" in done.output
            assert "planted" not in done.output
