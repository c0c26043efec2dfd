"""Where a process is killed: every stage that a step goes through (behaviours B2), and those of opening and ending.

A place in the evidence store is a file or folder name there, one of the bus a topic, with `before`, `half` or `after`
the write. `half`: the bytes are in a temporary file, or in a transaction that is not committed. The others are places
in workflow code: the worker dies in the middle of a workflow task.
"""

from __future__ import annotations

from typing import Final

OPENING: Final = ("metadata.json before", "metadata.json after", "opening half")
EMBEDDING: Final = ("embed before", "embed after")
"""In the embed activity, which only sessions have that a worker with an embedder of its own has opened."""
REPORTING: Final = (
    "receive",  # a signal is taken into the inbox
    "measure before",  # responses are measured in the workflow task, as shipped
    "measure after",
    *EMBEDDING,
    "number before",  # verdict, sequence, uid, counters
    "number after",
    "captures after",  # captures are there, the segment that commits them is not
    "journal before",
    "journal half",
    "journal after",
    "totals",  # the journal's answer is there, the ledger not yet the new one
    "publish before",
    "publish half",
    "publish after",
    "acknowledge",  # the bus' answer is there, the cursor has not moved
    "attempt closed",
    "rollover",  # the arguments of the next run are being made
)
SEALING: Final = (
    "seal before",  # the signer reads the journal
    "receipt.json before",
    "receipt.json half",
    "receipt.json after",
    "sealed",  # the receipt is back in the workflow
    "lifecycle before",
    "lifecycle half",
    "lifecycle after",
    "agent.receipt after",
    "outcome.json before",
    "outcome.json after",
)
UNSIGNED: Final = ("trajectory.json after", "trajectory.provenance.json after")
STAGES: Final = (*OPENING, *REPORTING, *SEALING, *UNSIGNED)

AT_RANDOM: Final = "at random"
"""A plain `python -m workers`, or the server, killed after a time that the seed gives."""
