"""The evidence store that this machine's settings name, wherever it is; and the check of one that is no directory."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from affidavit.doctor.places import STORE, Place
from affidavit.doctor.report import Verdict
from affidavit.stores.base import EvidenceStore
from affidavit.stores.errors import EvidenceStoreMismatch, StoreDenied, StorePlaceError, StoreUnfit, TransientError
from affidavit.stores.place import StoreOptions, open_store, place_of

REQUEST_S: Final = 3.0
"""A request is repeated twice where it fails, and all of a check has ten seconds."""


def store_of(place: Place) -> EvidenceStore:
    """The store of this machine, which must be there. Raises what `open_store` raises."""
    options = StoreOptions.from_environment()
    patience = replace(options, timeout_s=min(options.timeout_s, REQUEST_S))
    return open_store(place_of(place.text), create=False, options=patience)


def object_store(place: Place) -> Verdict:
    """That it answers, is a store of ours, takes puts from here, and never overwrites; nothing is left in it."""
    try:
        store = store_of(place)
        from affidavit.stores.object import ObjectStore

        assert isinstance(store, ObjectStore)
        store.check_writable()
        store_id = store.store_id
    except StorePlaceError as error:
        return Verdict("failed", f"{STORE}: {error}", "see the settings of an object store in docs/deployment.md")
    except EvidenceStoreMismatch as error:
        return Verdict("failed", str(error), "no worker has opened it; are bucket and prefix right?")
    except StoreUnfit as error:
        return Verdict("failed", str(error), "use another store, or a version of this one that honours it")
    except StoreDenied as error:
        return Verdict("failed", str(error), "a worker needs the rights to read, list and put")
    except TransientError as error:
        return Verdict("failed", str(error), "see its endpoint, its region and the way there; sessions wait for it")
    what = f"{place.text} takes puts and overwrites nothing, id {store_id}; how much room it has, it does not tell"
    return Verdict("ok", what)
