"""The HTTP gateway: a process without state that turns HTTP into calls of the client.

It passes the token of each caller on to the nodes, which decide what the caller may do; see
docs/http.md.
"""
