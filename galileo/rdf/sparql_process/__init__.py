"""SPARQL in processes of its own, which can be ended when a query runs too long.

Other modules use `engine`, which starts, loads and interrupts a `process`. `worker` runs as two
processes: the graph process holds the graph, and its fork, the query process, answers queries.
"""
