"""What a worker on this machine would be told: its environment, and the embedded mode's data folder where it is silent.

The settings of `workers.settings`, read without that package, because a machine without workers has a doctor too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from affidavit.evidence.keys import JOURNAL_KEY_FILE, PUBLIC_FILE, SEED_FILE

STORE: Final = "AFFIDAVIT_STORE"
BUS: Final = "AFFIDAVIT_BUS"
KAFKA: Final = "AFFIDAVIT_KAFKA_BOOTSTRAP"
ROLES: Final = "AFFIDAVIT_ROLES"
JOURNAL_KEY_FILES: Final = "AFFIDAVIT_JOURNAL_KEY_FILES"
JOURNAL_KEY: Final = "AFFIDAVIT_JOURNAL_KEY"
SEED_FILE_VARIABLE: Final = "AFFIDAVIT_SIGNING_SEED_FILE"
SEED: Final = "AFFIDAVIT_SIGNING_SEED"
PUBLIC_KEYS: Final = "AFFIDAVIT_PUBLIC_KEYS"


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is: as a setting says, or where the embedded mode would have it (`setting` is None then).

    `text` is what the setting says; it may name another kind of place than a path.
    """

    text: str
    setting: str | None = None

    @property
    def path(self) -> Path:
        """The place as a path."""
        return Path(self.text)

    @property
    def elsewhere(self) -> bool:
        """Whether it is no path but an address, `kind://…`."""
        return "://" in self.text


@dataclass(frozen=True, slots=True)
class Places:
    """All of them. Secrets that stand in the environment itself are kept out of `repr`."""

    store: Place
    bus: Place
    journal_keys: tuple[Place, ...]
    seed: Place | None
    public_keys: Place | None
    signs: bool
    kafka: bool = False
    """Whether events go to Kafka, and not to `bus`."""
    journal_key: str | None = field(default=None, repr=False)
    seed_text: str | None = field(default=None, repr=False)

    @classmethod
    def told(cls, environment: Mapping[str, str], data_dir: Path) -> Places:
        """As the environment says, else as they lie in the data folder."""
        keys = data_dir / "keys"
        own_keys = not any(environment.get(name) for name in (JOURNAL_KEY_FILES, JOURNAL_KEY))
        own_seed = not any(environment.get(name) for name in (SEED_FILE_VARIABLE, SEED))
        files = [Place(text, JOURNAL_KEY_FILES) for text in environment.get(JOURNAL_KEY_FILES, "").split(":") if text]
        return cls(
            store=_told(environment, STORE, data_dir / "evidence"),
            bus=_told(environment, BUS, data_dir / "bus.sqlite"),
            journal_keys=(Place(str(keys / JOURNAL_KEY_FILE)),) if own_keys else tuple(files),
            seed=(Place(str(keys / SEED_FILE)) if own_seed else _named(environment, SEED_FILE_VARIABLE)),
            public_keys=_named(environment, PUBLIC_KEYS) or (Place(str(keys / PUBLIC_FILE)) if own_seed else None),
            kafka=bool(environment.get(KAFKA)),
            signs="signing" in environment.get(ROLES, "session,signing").replace(",", " ").split(),
            journal_key=environment.get(JOURNAL_KEY) or None,
            seed_text=environment.get(SEED) or None,
        )


def _named(environment: Mapping[str, str], name: str) -> Place | None:
    text = environment.get(name)
    return Place(text, name) if text else None


def _told(environment: Mapping[str, str], name: str, default: Path) -> Place:
    return _named(environment, name) or Place(str(default))
