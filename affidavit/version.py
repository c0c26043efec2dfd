"""The product as it names itself in events (formats.md 3.1, ``metadata.product``)."""

from typing import Final

PRODUCT: Final = "affidavit"
VENDOR: Final = "Affidavit"
VERSION: Final = "0.1.0"
