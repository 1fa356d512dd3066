"""What docs/samplers.md and the README show must run, and the example keep the rule."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from galileo import samplers
from galileo.geo import geohash
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.testing.conformance import verdicts

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "samplers.md"
README = ROOT / "plugins" / "samplers" / "README.md"


def python_blocks(path):
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def humid_labels():
    rng = np.random.default_rng(5)
    schema = Schema("air", [Feature("humidity", "%")])
    size = 400
    columns = {
        "cell": geohash.encode(rng.uniform(30, 40, size), rng.uniform(-100, -90, size), 5),
        "bucket": pa.array(np.zeros(size, dtype=np.int64)).cast(pa.timestamp("us", tz="UTC")),
        "humidity": pa.array(rng.uniform(0, 100, size), mask=rng.random(size) < 0.1),
        "row": np.arange(size, dtype=np.int32) // 4,
        "rows": np.ones(size, dtype=np.int32),
        "partition": np.zeros(size, dtype=np.int32),
        "sequence": 1 + np.arange(size) % 4,
    }
    return LabelSet(schema, pa.table(columns, schema=schema.label_schema))


@pytest.fixture(scope="module")
def guide():
    """The names that the guide's code defines."""
    if not GUIDE.exists():
        pytest.skip("docs/samplers.md is part of the checkout only")
    names = {"humid_labels": humid_labels}
    # Those that ask a cluster are run with one, by the store's own tests.
    for code in (one for one in python_blocks(GUIDE) if "client." not in one):
        exec(compile(code, str(GUIDE), "exec"), names)
    return names


@pytest.mark.parametrize(("name", "skipped"), [("TestDryHours", 4), ("TestLottery", 1)])
def test_sampler_page_examples_conform(guide, name, skipped):
    found = verdicts(guide[name])
    assert len(found) == 12
    assert [one for one in found if one.outcome == "failed"] == []
    assert sum(one.outcome == "skipped" for one in found) == skipped


def test_sampler_page_example_keeps_dry_labels(guide):
    labels = humid_labels()
    mask = guide["DryHours"](below=30.0, fraction=0.2).sample(labels, seed=1)
    dry = labels.table.column("humidity").to_numpy() < 30
    assert mask[dry].all()
    assert 0.1 < mask[~dry].mean() < 0.3


def test_sampler_page_named_samplers_load(guide):
    assert samplers.load(guide["tenth"])
    names = {}
    for code in python_blocks(README):
        exec(compile(code, str(README), "exec"), names)
    for name in ("tenth", "thousand", "spread", "by_warmth", "rainy", "apart", "six_hourly"):
        assert samplers.load(names[name])
