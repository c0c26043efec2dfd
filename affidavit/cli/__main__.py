"""`python -m affidavit.cli`: the command without its script."""

from affidavit.cli import main

main()
