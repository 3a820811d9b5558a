"""`python -m dlbench`: the command line."""

from dlbench.cli.main import main

main()
