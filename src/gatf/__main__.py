"""`python -m gatf` is the command line."""

from gatf.cli import main

main()
