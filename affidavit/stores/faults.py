"""What an object store's library raises, in our own words.

Its texts quote URLs, bodies and headers, so none of them is repeated: an answer of the store is told by its status and
its error code, which are words of a protocol (behaviours I5).
"""

from __future__ import annotations

import re
from typing import Final

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from affidavit.stores.base import base_name
from affidavit.stores.errors import EvidenceStoreMismatch, StoreDenied, StoreUnavailable, TransientError

_CODE: Final = re.compile(r"<Code>([A-Za-z][A-Za-z0-9]{0,63})</Code>")
_STATUS: Final = re.compile(r"status code: ([1-5][0-9]{2})\b")
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})


def bucket_is_gone(error: Exception) -> bool:
    """Whether a "not found" is not about the object, but about all of the bucket."""
    return _first(_CODE, error) in _NO_BUCKET


def translated(error: Exception, name: str) -> TransientError:
    """The error to raise instead.

    Args:
        error: what the library has raised.
        name: of the object or the directory that was asked for.

    Returns:
        `EvidenceStoreMismatch` without a bucket, `StoreDenied` for bad credentials, `StoreUnavailable` for all
        else. All of them may pass, or be mended while sessions wait: none is a fault of the evidence.
    """
    if bucket_is_gone(error):
        return EvidenceStoreMismatch("the evidence store's bucket is not there")
    told = " ".join(found for found in (_first(_STATUS, error), _first(_CODE, error)) if found)
    what = base_name(name.removesuffix("/")) or "a listing"
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return StoreDenied(f"the evidence store refuses the credentials ({told or 'no reason given'}): {what}")
    return StoreUnavailable(f"the evidence store {f'answered {told}' if told else 'does not answer'}: {what}")


def _first(pattern: re.Pattern[str], error: Exception) -> str:
    match = pattern.search(str(error))
    return match[1] if match else ""
