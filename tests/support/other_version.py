"""`python -m workers` as another version of the product: the environment's PRODUCT_VERSION in place of its own."""

from __future__ import annotations

import os
import sys

from affidavit import version

if __name__ == "__main__":
    version.VERSION = os.environ["PRODUCT_VERSION"]  # type: ignore[misc]  # before anything else takes it from there
    from workers import running

    sys.exit(running.main())
