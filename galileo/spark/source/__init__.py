"""Galileo as a data source of Spark: `spark.read.format("galileo")`, and the other three ways.

Planning runs in a Python process beside the driver, reading and writing in those of the executors.
Each opens channels of its own to the nodes, for as long as its work takes.
"""
