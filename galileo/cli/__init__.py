"""The command line."""

PATIENCE = "15s"
"""How long a command goes on trying where nothing else is said."""
EXIT_INTERRUPTED = 130
"""The exit status after Ctrl-C."""
