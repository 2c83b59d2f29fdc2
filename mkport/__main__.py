"""`python -m mkport` is `mkport`; the command line itself lives in mkport.cli."""

from mkport.cli.main import main

main()
