"""Continuous queries with parameters, and the index of their subscriptions.

One query has subscriptions by the million: rows with a value for each parameter (*channels* of
Wang, Carey and Tsotras, "Subscribing to Big Data at Scale", 2020).
"""

from galileo.query.subscriptions.parameter_query import ParameterQuery
from galileo.query.subscriptions.row_index import RowIndex
from galileo.query.subscriptions.subscription_index import MATCH_SCHEMA, SubscriptionIndex

__all__ = ["MATCH_SCHEMA", "ParameterQuery", "RowIndex", "SubscriptionIndex"]
