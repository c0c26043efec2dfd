"""The table of limits in the README says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from affidavit import contract
from affidavit.evidence import capture
from workflows import producers

README = Path(__file__).parents[2] / "README.md"


def rows() -> dict[str, list[int]]:
    """First column -> the numbers of the second one."""
    table = README.read_text().split("## Limits", 1)[1].split("##", 1)[0]
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and re.search(r"\d", cells[1]):
            found[cells[0].split(":")[0].strip("`")] = [int(number) for number in re.findall(r"\d+", cells[1])]
    return found


def test_the_limits_of_a_session_are_the_defaults_of_its_spec() -> None:
    table = rows()
    named = contract.Limits().model_dump()
    assert {name: table[name] for name in named} == {name: [value] for name, value in named.items()}


def test_the_other_limits_are_those_of_the_contract() -> None:
    table = rows()
    assert table["updates waiting at once"] == [contract.WAITING_UPDATES]
    assert table["one message, encoded"] == [contract.MESSAGE_BYTES]
    assert table["the same, from a client with the workers' store"] == [contract.STORED_MESSAGE_BYTES]
    assert table["a payload in Temporal's history"] == [contract.OFFLOAD_BYTES]
    assert table["steps in one message"] == [contract.RECORD_STEPS]
    assert table["a batch"] == [contract.BATCH_STEPS, contract.BATCH_BYTES]
    assert table["nesting of a message"] == [contract.NESTING]
    assert table["a session's spec"] == [contract.SPEC_BYTES, contract.SPEC_NESTING]
    assert table["producers of a session"] == [producers.PRODUCERS]
    assert table["gaps of a producer, a jump in its numbers"] == [producers.RANGES, producers.JUMP]
    assert table["signals, updates of one run"] == [contract.ROLLOVER_SIGNALS, contract.ROLLOVER_UPDATES]
    assert f"over {capture.MAX_NESTING} a value" in README.read_text()
    assert f"at most {contract.MESSAGE_VALUES} values" in README.read_text()
