"""What an evidence store can fail with. What may succeed later is raised as it comes (`OSError`)."""


class IntegrityError(Exception):
    """Evidence differs from what it must be; no retry mends it. The session is poisoned."""


class TransientError(Exception):
    """A collaborator is out of order for now (busy, full, unreachable); the same call may succeed later."""


class EvidenceStoreMismatch(TransientError):
    """This store is not the session's. A worker of the other store, or this one once mended, can do it."""
