"""The data source of Spark, `format("galileo")`, for batch and streaming reads and writes.

Planning runs in a Python process of the driver, reading and writing in those of the executors. Each
opens its own channels to the nodes.
"""
