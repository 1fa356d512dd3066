from __future__ import annotations

import datetime as dt
import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from expected_errors import raises
from proving import token_file

from galileo.cli.main import main
from galileo.client import Credentials
from galileo.errors import InputError
from galileo.rpc.access import Role
from galileo.rpc.token_store import TokenStore
from galileo.wire.tls_credentials import TlsFiles


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def test_token_commands_create_list_and_revoke(tmp_path: Path) -> None:
    path = tmp_path / "principals.toml"
    made = run(
        *("token", "create", "ann", "--role", "reader", "--role", "sampler-author"),
        *("--dataset", "nam*", "--principals", path),
    )
    assert made.exit_code == 0, made.output
    token = made.stdout.strip()
    found = TokenStore(path).of_token(token)
    assert found is not None
    assert found.roles == {Role.READER, Role.SAMPLER_AUTHOR}
    assert found.datasets == ("nam*",)
    listed = run("token", "list", "--principals", path, "--json")
    assert json.loads(listed.stdout) == [
        {
            "name": "ann",
            "roles": ["reader", "sampler-author"],
            "datasets": ["nam*"],
            "brokers": [],
            "quotas": {},
            "expires": None,
        }
    ]
    assert token not in listed.stdout
    shown = run("token", "list", "--principals", path).stdout
    assert "reader, sampler-author" in " ".join(shown.split())
    out = tmp_path / "bob.token"
    result = run("token", "create", "bob", "--role", "node", "--principals", path, "--output", out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert out.read_text() not in result.output
    assert TokenStore(path).of_token(TlsFiles(token_file=str(out)).read_token()) is not None
    assert run("token", "revoke", "ann", "--principals", path).exit_code == 0
    assert TokenStore(path).of_token(token) is None
    assert run("token", "revoke", "ann", "--principals", path).exit_code == 2


def test_token_create_with_quotas_and_expiration(tmp_path: Path) -> None:
    path = tmp_path / "principals.toml"
    words = ("token", "create", "--role", "reader", "--principals", path)
    quotas = ("--quota", "ccqs_max=5", "--quota", "calls_per_s=2.5")
    done = run(*words, "ann", *quotas, "--days", "2")
    assert done.exit_code == 0, done.output
    [ann] = json.loads(run("token", "list", "--principals", path, "--json").stdout)
    assert ann["quotas"] == {"ccqs_max": 5, "calls_per_s": 2.5}
    until = dt.datetime.fromisoformat(ann["expires"]) - dt.datetime.now(dt.UTC)
    assert dt.timedelta(days=1, hours=23) < until <= dt.timedelta(days=2, minutes=1)
    for wrong in ("ccqs=5", "ccqs_max=1.5", "ccqs_max=0", "calls_per_s", "calls_per_s=-1"):
        refused = run(*words, "bob", "--quota", wrong)
        assert refused.exit_code == 2, wrong
        assert "--quota" in refused.stderr
    misspelt = run(*words, "bob", "--quota", "ccqs_mx=5")
    assert "unknown name in --quota: 'ccqs_mx'; did you mean 'ccqs_max'?" in misspelt.stderr


def test_token_create_with_brokers(tmp_path: Path) -> None:
    path = tmp_path / "principals.toml"
    words = ("token", "create", "--principals", path, "--role")
    subscriber = (*words, "subscriber", "--dataset", "smog")
    done = run(*subscriber, "mail", "--broker", "mail-*", "--broker", "Zürich \U0001f4e0")
    assert done.exit_code == 0, done.output
    assert run(*subscriber, "fax").exit_code == 0
    fax, mail = json.loads(run("token", "list", "--principals", path, "--json").stdout)
    assert (fax["brokers"], mail["brokers"]) == ([], ["mail-*", "Zürich \U0001f4e0"])
    for role in ("writer", "admin", "node"):
        refused = run(*words, role, "--role", "subscriber", "sms", "--broker", "sms")
        assert refused.exit_code == 2
        assert role in refused.stderr
    for broker in ("", "a/b", "a\n", "x" * 201):
        assert run(*subscriber, "sms", "--broker", broker).exit_code == 2, broker
    many = [word for number in range(51) for word in ("--broker", f"b{number}")]
    assert run(*subscriber, "sms", *many).exit_code == 2


def test_token_create_with_a_failed_output_adds_no_principal(tmp_path: Path) -> None:
    path = tmp_path / "principals.toml"
    words = ("token", "create", "ann", "--role", "reader", "--principals", path)
    refused = run(*words, "--output", tmp_path / "nowhere" / "ann.token")
    assert refused.exit_code == 2
    assert "cannot use" in " ".join(refused.stderr.split())
    assert json.loads(run("token", "list", "--principals", path, "--json").stdout) == []
    assert run(*words, "--output", tmp_path / "ann.token").exit_code == 0


def test_token_create_with_too_many_days_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "principals.toml"
    words = ("token", "create", "ann", "--role", "reader", "--principals", path)
    assert run(*words, "--days", "10000000").exit_code == 2
    assert run(*words, "--days", "36500").exit_code == 0


def test_cert_issue_makes_certificates_of_nodes_and_clients(tmp_path: Path) -> None:
    authority = tmp_path / "authority"
    assert run("ca", "create", authority, "--cluster", "plains").exit_code == 0
    done = run("cert", "issue", "node", authority, "n-1", "--host", "127.0.0.1", "--json")
    node = json.loads(done.stdout)
    done = run(
        "cert", "issue", "client", authority, "ann", "--target", tmp_path / "ann", "--days", "9"
    )
    assert "(valid 9 days)" in " ".join(done.stdout.split())
    assert stat.S_IMODE(Path(node["key"]).stat().st_mode) == 0o600
    TlsFiles(node["certificate"], node["key"], node["authority"]).check()
    Credentials(tls=tmp_path / "ann").keys({}).check()
    again = run("ca", "create", authority)
    assert again.exit_code == 2
    assert "expected no authority in" in " ".join(again.stderr.split())


def test_credentials_prefer_arguments_to_the_environment(
    tmp_path: Path,
) -> None:
    known = {"GALILEO_TOKEN": "glt_a", "GALILEO_TLS": str(tmp_path)}
    assert Credentials().keys({}) == TlsFiles()
    assert Credentials().keys(known).token == "glt_a"
    assert Credentials().keys(known).key == str(tmp_path / "key.pem")
    assert Credentials("glt_b").keys(known).token == "glt_b"
    own = Credentials(token_file="mine").keys(known)
    assert (own.token, own.token_file) == ("", "mine")
    both = {**known, "GALILEO_TOKEN_FILE": "theirs"}
    assert (Credentials().keys(both).token, Credentials().keys(both).token_file) == ("", "theirs")
    with raises(InputError):
        Credentials("glt_b", "mine").keys({})
    assert "glt_b" not in repr(Credentials("glt_b"))


def test_serve_for_other_hosts_without_tls_requires_insecure(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text(
        f'[node]\nname = "a"\ndirectory = "{tmp_path / "data"}"\n'
        f'[auth]\ntoken_file = "{tmp_path / "away"}"\n'
        '[cluster]\ngroups = [{name = "g", nodes = [{name = "a", address = "10.0.0.1:1"}]}]\n'
    )
    refused = run("serve", "--config", config)
    assert refused.exit_code == 2
    assert "(--insecure)" in " ".join(refused.stderr.split())
    further = run("serve", "--config", config, "--insecure")
    assert "expected auth.token_file to be a readable file" in " ".join(further.stderr.split())


def test_token_without_tls_to_other_hosts_requires_insecure(tmp_path: Path) -> None:
    path = token_file(tmp_path / "token", "glt_planted")
    words = ("--token-file", path, "--node", "192.0.2.1:1", "--timeout", "10ms", "status")
    refused = run(*words)
    assert refused.exit_code == 2
    assert "add --insecure if the network is trusted" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("words", [[], ["--insecure"]])
def test_option_insecure_is_in_the_credentials(words: list[str]) -> None:
    assert main.callback is not None
    with main.make_context("galileo", [*words, "status"]) as context:
        context.invoke(main.callback, **context.params)
    assert context.obj.proof.keys({}).insecure == bool(words)


def test_token_file_readable_by_others_is_refused(tmp_path: Path) -> None:
    path = token_file(tmp_path / "token", "glt_planted")
    path.chmod(0o644)
    done = run("--token-file", path, "status")
    assert done.exit_code == 2
    assert "got mode 0644" in " ".join(done.stderr.split())
    assert "planted" not in done.output
