"""`python -m affidavit.cli`: the command without its script."""

from affidavit.cli.app import main

main()
