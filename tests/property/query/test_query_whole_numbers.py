from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from galileo.query.columns import IntColumn
from galileo.query.feature_predicates import COMPARE, NumberIs

WHOLE = st.integers(-5, 5) | st.integers(2**53 - 3, 2**53 + 3) | st.integers(-(2**63), 2**63 - 1)
BOUNDS = st.integers(-50, 50).map(lambda n: n / 10) | WHOLE.map(float)


@given(values=st.lists(WHOLE, min_size=1), bound=BOUNDS, sign=st.sampled_from(sorted(COMPARE)))
@example(values=[2**53, 2**53 + 1], bound=2.0**53 - 1, sign=">")
@example(values=[2**53 + 1], bound=2.0**53, sign="=")
def test_number_is_random_integers_compare_as_doubles(values, bound, sign):
    valid = np.arange(len(values)) % 3 != 1
    column = IntColumn(np.array(values, dtype=np.int64), valid)
    expected = COMPARE[sign](np.array(values, dtype=np.int64).astype(np.float64), bound) & valid
    assert NumberIs("gusts", sign, bound).match(column).tolist() == expected.tolist()
