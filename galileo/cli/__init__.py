"""The command line."""

TIMEOUT = "15s"
"""How long a command retries unreachable nodes by default."""
EXIT_INTERRUPTED = 130
"""The exit status after Ctrl-C."""
