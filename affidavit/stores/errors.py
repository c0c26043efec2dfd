"""What an evidence store can fail with. What may succeed later is a `TransientError`, or an `OSError` as it comes."""


class IntegrityError(Exception):
    """Evidence differs from what it must be; no retry mends it. The session is poisoned."""


class TransientError(Exception):
    """A collaborator is out of order for now (busy, full, unreachable); the same call may succeed later."""


class EvidenceStoreMismatch(TransientError):
    """This store is not the session's. A worker of the other store, or this one once mended, can do it."""


class StoreUnavailable(TransientError):
    """The store does not answer, or not as it should: network, time-out, throttling, an error of its own."""


class StoreDenied(TransientError):
    """The store refuses these credentials. Sessions wait until the operator has mended that."""


class StoreUnfit(Exception):
    """This place cannot keep evidence, whatever is retried: it would overwrite what is to be created once."""


class StorePlaceError(ValueError):
    """What names the store, or says how to reach it, is not usable; one line without what was given."""
