"""`python -m galileo`: the command line."""

from galileo.cli.main import main

main()
