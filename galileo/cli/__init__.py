"""The command line."""

TIMEOUT = "15s"
"""How long a command retries unreachable nodes by default."""
EXIT_INTERRUPTED = 130
"""The exit status after Ctrl-C."""
EXIT_PIPE = 141
"""The exit status when the reader of a pipe has ended, as of a process that SIGPIPE ended."""
