from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo import config
from galileo.dht.topology import even_ranges
from galileo.errors import ConfigError

BASE: dict[str, dict[str, Any]] = {
    "node": {"name": "node-1", "directory": "/data"},
    "cluster": {
        "groups": [
            {
                "name": "g",
                "nodes": [
                    {"name": "node-1", "address": "127.0.0.1:7701"},
                    {"name": "node-2", "address": "127.0.0.1:7702"},
                ],
            }
        ]
    },
}
PROVING = {
    **BASE,
    "tls": {"certificate": "/c", "key": "/k", "authority": "/a"},
    "spark": {"secret_file": "/s"},
}
"""Some keys want others beside them."""
TEXTS = {
    "node.name": "node-2",
    "node.listen": "127.0.0.1:7999",
    "node.address": "127.0.0.1:7998",
    "node.rack": "room-2",
    "storage.durability": "none",
    "samplers.uploads": "sandboxed",
    "metrics.address": "127.0.0.1:9701",
    "tracing.endpoint": "http://127.0.0.1:4317",
    "logging.format": "json",
    "logging.level": "debug",
    "spark.master": "spark://there:7077",
}
KEYS = [
    f"{section}.{field.name}"
    for section, cls in config.SECTIONS.items()
    for field in dataclasses.fields(cls)
    if (section, field.name) != ("node", "join")  # It excludes a [cluster] table.
]

Write = Callable[[Mapping[str, Any]], Path]


def other_value(key: str) -> Any:
    """A value of the key's type that is not its default."""
    section, name = key.split(".")
    default = getattr(config.SECTIONS[section](), name)
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default * 2 or 3
    if isinstance(default, dict):
        return {"spark.task.maxFailures": "8"}
    return TEXTS.get(key, f"other {name}")


def value_of(loaded: config.Config, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(loaded, section), name)


def with_key(
    key: str, value: Any, *, base: dict[str, dict[str, Any]] = BASE
) -> dict[str, dict[str, Any]]:
    section, name = key.split(".")
    return {**base, section: {**base.get(section, {}), name: value}}


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(raw: Mapping[str, Any]) -> Path:
        path = tmp_path / "node.toml"
        path.write_text("\n".join(f"{key} = {toml(value)}" for key, value in raw.items()))
        return path

    return written


# --- every key, every way ------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_config_key_in_file_is_used(key: str, write: Write) -> None:
    wanted = other_value(key)
    loaded = config.load(write(with_key(key, wanted, base=PROVING)), environment={})
    assert value_of(loaded, key) == wanted
    assert type(value_of(loaded, key)) is type(wanted)


@pytest.mark.parametrize("key", KEYS)
def test_config_key_in_environment_is_used(key: str, write: Write) -> None:
    wanted = other_value(key)
    name = "GALILEO_" + key.upper().replace(".", "__")
    text = wanted if isinstance(wanted, str) else toml(wanted)
    variables = {name: text, "HOME": "/", "GALILEO_NODES": "h:1"}
    loaded = config.load(write(PROVING), environment=variables)
    assert value_of(loaded, key) == wanted


@pytest.mark.parametrize("key", KEYS)
def test_config_key_in_override_is_used(key: str, write: Write) -> None:
    wanted = other_value(key)
    text = wanted if isinstance(wanted, str) else toml(wanted)
    loaded = config.load(write(PROVING), environment={}, overrides=[f"{key}={text}"])
    assert value_of(loaded, key) == wanted


JOINING = {"node": {"name": "n", "directory": "/data", "listen": "127.0.0.1:7709"}}


def test_config_rack_that_is_no_name_raises_config_error() -> None:
    with raises(ConfigError, expected="name", name="rack"):
        config.from_dict(with_key("node.rack", "Room 2"))
    with raises(ConfigError, expected="name", name="rack"):
        config.from_dict({"node": {**JOINING["node"], "join": "h:7701", "rack": "Room 2"}})


@pytest.mark.parametrize("given", ["h:7701, h", ["h:7701", "h"]])
def test_load_node_join_without_cluster_makes_a_joining_configuration(given: Any) -> None:
    loaded = config.from_dict(with_key("node.join", given, base=JOINING))
    assert loaded.node.join == ("h:7701", "h:7701")
    assert loaded.is_joining
    assert loaded.listen == "127.0.0.1:7709"


@pytest.mark.parametrize(
    "raw",
    [
        with_key("node.join", "h:7701"),
        with_key("node.join", "h:x", base=JOINING),
        with_key("node.join", 3, base=JOINING),
        {"node": {"name": "n", "directory": "/data", "join": ["h:7701"]}},
        JOINING,
    ],
    ids=["beside a cluster", "no address", "a number", "nowhere to listen", "nothing to join"],
)
def test_load_node_join_wrong_raises_config_error(raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        config.from_dict(raw)


def test_config_override_precedes_environment_and_file(write: Write) -> None:
    path = write(with_key("limits.ccqs_max", 1))
    environment = {"GALILEO_LIMITS__CCQS_MAX": "2"}
    assert config.load(path, environment={}).limits.ccqs_max == 1
    assert config.load(path, environment=environment).limits.ccqs_max == 2
    flags = ["limits.ccqs_max=3", "limits.ccqs_max=4"]
    assert config.load(path, environment=environment, overrides=flags).limits.ccqs_max == 4


def test_config_process_environment_is_read(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALILEO_SPARK__HEAP_MB", "777")
    assert config.load(write(BASE)).spark.heap_mb == 777


def test_config_missing_key_has_default(write: Write) -> None:
    loaded = config.load(write(BASE), environment={})
    for key in KEYS:
        if key not in ("node.name", "node.directory"):
            section, name = key.split(".")
            assert value_of(loaded, key) == getattr(config.SECTIONS[section](), name)


def test_config_integer_seconds_become_float(write: Write) -> None:
    loaded = config.load(write(with_key("membership.failure_timeout_s", 3)), environment={})
    assert loaded.membership.failure_timeout_s == 3.0
    assert isinstance(loaded.membership.failure_timeout_s, float)


# --- the cluster ---------------------------------------------------------------------------------


def test_config_cluster_table_gives_topology(write: Write) -> None:
    raw = {**BASE, "cluster": {**BASE["cluster"], "name": "weather", "partitions_per_group": 7}}
    loaded = config.load(write(raw), environment={})
    assert loaded.topology.cluster == "weather"
    assert loaded.topology.partitions_per_group == 7
    assert loaded.topology.ranges == even_ranges(1)
    assert list(loaded.topology.by_name) == ["node-1", "node-2"]


def test_config_listen_default_is_address_of_node(write: Write) -> None:
    assert config.load(write(BASE), environment={}).listen == "127.0.0.1:7701"
    loaded = config.load(write(with_key("node.listen", "[::1]:7999")), environment={})
    assert loaded.listen == "[::1]:7999"


def test_config_evaluator_directory_is_shared_by_nodes_of_cluster() -> None:
    one = config.from_dict(BASE)
    two = config.from_dict(with_key("node.name", "node-2"))
    other = config.from_dict({**BASE, "cluster": {**BASE["cluster"], "name": "other"}})
    assert one.evaluator_directory == two.evaluator_directory != other.evaluator_directory
    loaded = config.from_dict(with_key("evaluator.directory", "/run/galileo"))
    assert loaded.evaluator_directory == Path("/run/galileo")


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "expected", "key"),
    [
        ({**BASE, "storag": {}}, "known_key", "storag"),
        ({**BASE, "qqq": {}}, "known_key", "qqq"),
        (with_key("storage.segment_bytes", 1), "known_key", "segment_bytes"),
        (with_key("cluster.partitions", 3), "known_key", "partitions"),
        ({"node": BASE["node"]}, "table", "cluster"),
        ({**BASE, "cluster": 3}, "table", "cluster"),
        ({**BASE, "limits": [1]}, "table", "limits"),
        ({**BASE, "node": {"name": "node-1"}}, "directory", "node.directory"),
        (with_key("node.listen", "127.0.0.1"), "address", "listen"),
    ],
)
def test_config_invalid_table_raises_with_key(raw: dict[str, Any], expected: str, key: str) -> None:
    with raises(ConfigError, expected=expected, key=key):
        config.from_dict(raw)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("limits.ccqs_max", "many", "int"),
        ("limits.ccqs_max", 1.5, "int"),
        ("limits.ccqs_max", True, "int"),
        ("limits.ccqs_max", 0, "positive"),
        ("membership.failure_timeout_s", True, "float"),
        ("membership.failure_timeout_s", -1.0, "positive"),
        ("membership.failure_timeout_s", float("nan"), "positive"),
        ("membership.heartbeat_interval_s", 2.0, "below_timeout"),
        ("security.insecure", 1, "bool"),
        ("node.directory", 1, "str"),
        ("node.name", "node-3", "node_of_topology"),
        ("samplers.uploads", "trusted", "one_of"),
        ("storage.durability", "maybe", "durability"),
        ("storage.compaction_bytes_min", 2 << 30, "up_to_maximum"),
    ],
)
def test_config_invalid_value_raises_with_key(key: str, value: Any, expected: str) -> None:
    with raises(ConfigError, expected=expected, key=key):
        config.from_dict(with_key(key, value))


@pytest.mark.parametrize(
    "assignment", ["limits", "limits.ccqs_max", "ccqs_max=3", "cluster.name=x", "other.key=1", "=1"]
)
def test_config_invalid_override_raises(assignment: str, write: Write) -> None:
    with raises(ConfigError, expected="assignment"):
        config.load(write(BASE), environment={}, overrides=[assignment])


def test_config_override_of_other_than_table_raises(write: Write) -> None:
    with raises(ConfigError, expected="table", key="limits"):
        config.load(write({**BASE, "limits": 3}), environment={}, overrides=["limits.ccqs_max=3"])


def test_config_unknown_key_in_environment_raises(write: Write) -> None:
    with raises(ConfigError, expected="known_key", key="ccq_max", nearest="ccqs_max"):
        config.load(write(BASE), environment={"GALILEO_LIMITS__CCQ_MAX": "3"})


def test_config_missing_file_raises(tmp_path: Path) -> None:
    with raises(ConfigError, expected="configuration_file"):
        config.load(tmp_path / "absent.toml", environment={})


@pytest.mark.parametrize("content", [b"[node", b"a = ", b"\xff\xfe"])
def test_config_invalid_toml_raises(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_bytes(content)
    with raises(ConfigError, expected="toml"):
        config.load(tmp_path / "node.toml", environment={})


@given(
    st.sampled_from([*config.SECTIONS, "cluster"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=4,
    ),
)
def test_config_random_section_is_accepted_or_raises(section: str, value: Any) -> None:
    try:
        config.from_dict({**BASE, section: value})
    except ConfigError as error:
        assert error.message.startswith(("expected", "unknown"))  # noqa: PT017


# --- strangers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", ["0.0.0.0:7701", "10.0.0.1:7701", "[::]:7701", "galileo.example:7701", "127.1:7701"]
)
def test_config_listen_beyond_loopback_raises_unless_insecure(address: str) -> None:
    with raises(ConfigError, expected="loopback", key="listen"):
        config.from_dict(with_key("node.listen", address))
    loaded = config.from_dict({**with_key("node.listen", address), "security": {"insecure": True}})
    assert loaded.listen == address


def test_config_listen_beyond_loopback_with_tls_is_accepted() -> None:
    tls = {"certificate": "c.pem", "key": "k.pem", "authority": "a.pem"}
    loaded = config.from_dict({**with_key("node.listen", "10.0.0.1:7701"), "tls": tls})
    assert loaded.keys.is_tls
    assert not loaded.security.insecure


def test_config_error_hides_tokens(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        '[node]\nname = "glt_planted-here"\n'
        '[cluster]\ngroups = [{name = "g", nodes = [{name = "a", address = "127.0.0.1:1"}]}]\n'
    )
    with pytest.raises(ConfigError) as loaded:
        config.load(path, environment={}, overrides=["node.listen=glt_planted-there"])
    assert "planted" not in str(loaded.value)


def test_config_topology_address_beyond_loopback_raises() -> None:
    nodes = [{"name": "node-1", "address": "10.0.0.1:7701"}]
    raw = {**BASE, "cluster": {"groups": [{"name": "g", "nodes": nodes}]}}
    with raises(ConfigError, expected="loopback", key="listen"):
        config.from_dict(raw)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "localhost:1"])
def test_config_loopback_address_is_accepted(address: str) -> None:
    assert config.is_loopback(address)
    assert config.from_dict(with_key("node.listen", address)).listen == address


# --- Spark ---------------------------------------------------------------------------------------


def test_load_spark_settings_nested_or_dotted_are_the_same(tmp_path: Path, write: Write) -> None:
    path = write(BASE)
    text = path.read_text()
    forms = (
        "[spark.settings]\nspark.task.maxFailures = 8\nspark.speculation = true\n",
        '[spark.settings]\n"spark.task.maxFailures" = "8"\n"spark.speculation" = "true"\n',
        '[spark]\nsettings = {spark.task.maxFailures = 8, "spark.speculation" = true}\n',
    )
    for form in forms:
        path.write_text(f"{text}\n{form}")
        wanted = {"spark.task.maxFailures": "8", "spark.speculation": "true"}
        assert config.load(path, environment={}).spark.settings == wanted


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("spark.master", "yarn", "spark://host:7077"),
        ("spark.master", "spark://host", "spark://host:7077"),
        ("spark.heap_mb", 100, "at least 450"),
        ("spark.cores_max", 0, "1 or more"),
        ("spark.tasks", -1, "0 or more"),
        ("spark.settings", {"spark.cores.max": "4"}, r"spark\.cores_max"),
        ("spark.settings", {"spark.authenticate.secret": "planted"}, r"spark\.secret_file"),
        ("spark.settings", {"executor.memory": "1g"}, "names of Spark"),
        ("spark.settings", {"spark.jars": ["a"]}, "a text or number"),
        ("spark.settings", "1g", "a table"),
    ],
)
def test_check_spark_wrong_value_names_what_was_expected(key: str, value: Any, wanted: str) -> None:
    with pytest.raises(ConfigError):
        config.from_dict(with_key(key, value))
    [message] = config.problems(with_key(key, value))
    assert re.search(wanted, message)
    assert "planted" not in message


@pytest.mark.parametrize("section", ["tls", "auth"])
def test_check_spark_protected_cluster_without_secret_is_refused(section: str) -> None:
    protection = {"tls": PROVING["tls"], "auth": {"token_file": "/t", "node_token_file": "/n"}}
    open_ = {**BASE, section: protection[section], "spark": {"master": "spark://h:7077"}}
    with raises(ConfigError, expected="secret_file", key="spark.secret_file"):
        config.from_dict(open_)
    config.from_dict({**open_, "security": {"insecure": True}})
    config.from_dict({**open_, "spark": {"master": "spark://h:7077", "secret_file": "/s"}})
    config.from_dict({**open_, "spark": {"master": "local[2]"}})


# --- the documentation ---------------------------------------------------------------------------


def test_configuration_page_has_every_key() -> None:
    path = Path(__file__).parents[2] / "docs" / "configuration.md"
    if not path.exists():
        pytest.skip("docs/configuration.md is not written yet")
    text = path.read_text(encoding="utf-8")
    parts = re.split(r"^#+ \W*(\w+)\W*$", text, flags=re.MULTILINE)
    about = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert set(config.SECTIONS) <= set(about), "each section has a heading of its own"
    missing = []
    for key in KEYS:
        section, name = key.split(".")
        if f"`{name}`" not in about[section]:
            missing.append(key)
    assert not missing, f"docs/configuration.md lacks {', '.join(missing)}"


# --- metrics and logs ------------------------------------------------------------------------


def test_config_metrics_beyond_loopback_raises_unless_insecure() -> None:
    with raises(ConfigError, expected="loopback", key="metrics.address"):
        config.from_dict(with_key("metrics.address", "10.0.0.1:9701"))
    said = {**BASE, "metrics": {"address": "10.0.0.1:9701", "insecure": True}}
    assert config.from_dict(said).metrics.address == "10.0.0.1:9701"
    with raises(ConfigError, expected="address", key="metrics.address"):
        config.from_dict(with_key("metrics.address", "9701"))


def test_config_metrics_ccq_ids_are_split_at_commas() -> None:
    assert config.from_dict(BASE).metrics.ccq_id_list == ()
    assert config.from_dict(with_key("metrics.ccq_ids", "a, b,,c ")).metrics.ccq_id_list == (
        "a",
        "b",
        "c",
    )


@pytest.mark.parametrize(("key", "value"), [("format", "xml"), ("level", "loud")])
def test_config_invalid_logging_value_raises(key: str, value: str) -> None:
    with raises(ConfigError, expected="one_of"):
        config.from_dict(with_key(f"logging.{key}", value))


# --- all problems at once --------------------------------------------------------------------


def test_problems_valid_configuration_is_empty() -> None:
    assert config.problems(BASE) == []


def test_problems_several_mistakes_are_all_reported() -> None:
    raw = {
        **BASE,
        "node": {"name": "unknown"},
        "storge": {},
        "limits": {"ccqs_max": 0, "ccq_max": 5, "batch_rows_max": "many"},
        "logging": {"format": "xml", "level": "loud"},
        "storage": 7,
    }
    found = config.problems(raw)
    for said in (
        "'storge'; did you mean 'storage'?",
        "'ccq_max'; did you mean 'ccqs_max'?",
        "expected int for limits.batch_rows_max, got 'many'",
        "[storage] to be a table, got 7",
        "node.name to be one of",
        "expected node.directory",
        "expected limits.ccqs_max above zero",
        "logging.format",
        "logging.level",
    ):
        assert sum(said in one for one in found) == 1, (said, found)
    assert len(found) == 9


def test_problems_of_addresses_and_of_the_cluster_table_are_all_reported() -> None:
    nodes = [
        {"name": "a", "address": "127.0.0.1:78110"},
        {"name": "b", "address": "b:1", "weight": "heavy"},
        {"name": "c", "adress": "c:1"},
        {"name": "d", "address": "d:port"},
    ]
    cluster = {"groups": [{"name": "g", "nodes": nodes}]}
    cluster |= {"partitions_per_group": "many", "replicas": "three"}
    raw = {
        "node": {"name": "a", "directory": "/d", "listen": "h:78110"},
        "metrics": {"address": "h:0"},
        "cluster": cluster,
    }
    found = config.problems(raw)
    for said in (
        "host:port as node.listen, got 'h:78110'",
        "metrics.address as host:port or empty, got 'h:0'",
        "a whole number for partitions_per_group, got 'many'",
        "a whole number for replicas, got 'three'",
        "address of node 'a', got '127.0.0.1:78110'",
        "'weight': 'heavy'",
        "'adress': 'c:1'",
        "address of node 'd', got 'd:port'",
    ):
        assert sum(said in one for one in found) == 1, (said, found)
    assert len(found) == 8
    without = config.problems({key: value for key, value in raw.items() if key != "cluster"})
    assert any("node.listen, got 'h:78110'" in one for one in without)


def test_problems_missing_node_credentials_are_reported() -> None:
    alone = config.problems({**BASE, "tls": {"certificate": "/a", "key": "/b"}})
    assert alone == [
        "expected tls.certificate, tls.key and tls.authority together, got no tls.authority"
    ]
    several = {**BASE, "auth": {"token_file": "/p"}}
    assert "expected auth.node_token_file" in "".join(config.problems(several))
    named = {**BASE, "auth": {"token_file": "/p", "node_token_file": "/t"}}
    assert config.problems(named) == []


def test_problems_missing_cluster_reports_others_too() -> None:
    found = config.problems({"node": {"nam": "a"}})
    assert "'nam'; did you mean 'name'?" in found[0]
    assert "[cluster]" in found[1]
    assert "expected node.directory" in found[2]
    assert len(found) == 3


def test_problems_invalid_address_reports_others_too() -> None:
    nodes = [{"name": "a", "address": "h:78110"}, {"name": "b", "address": "h"}]
    raw = {
        **BASE,
        "storge": {},
        "node": {**BASE["node"], "lisen": "h:1"},
        "metrics": {"address": "127.0.0.1:78110"},
        "cluster": {"groups": [{"name": "g", "nodes": nodes}]},
    }
    found = config.problems(raw)
    for said in ("'storge'", "'lisen'", "'h:78110'", "node 'b', got 'h'", "metrics.address"):
        assert sum(said in one for one in found) == 1, (said, found)
    assert len(found) == 5


@pytest.mark.parametrize("key", KEYS)
def test_problems_any_value_agree_with_from_dict(key: str) -> None:
    for value in (other_value(key), "", -1, [], True):
        raw = with_key(key, value)
        refused = False
        try:
            config.from_dict(raw)
        except ConfigError:
            refused = True
        assert bool(config.problems(raw)) is refused
