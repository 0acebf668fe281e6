"""`python -m phasegate`."""

from phasegate.cli import main

main()
