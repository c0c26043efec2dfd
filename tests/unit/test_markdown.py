"""Foreign text on the pages of the Temporal Web UI is shown and not rendered."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from affidavit.markdown import literal

RENDERER = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable(["table", "strikethrough"])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("support agent", "`support agent`"),
        ("", "` `"),
        ("[x](https://evil.example)", "`[x](https://evil.example)`"),
        ("![x](https://evil.example/p.png)", "`![x](https://evil.example/p.png)`"),
        ("` | <script>", "`' ¦ <script>`"),
        ("``` a", "`''' a`"),
        ("a\n\n# b\u202e", r"`a\x0a\x0a# b\u202e`"),
        ("x" * 65, "`" + "x" * 63 + "…`"),
    ],
)
def test_text_stands_in_a_code_span(text: str, shown: str) -> None:
    assert literal(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "[x](https://evil.example)",
        "![x](https://evil.example/p.png)",
        "<https://evil.example>",
        "`<img src=https://evil.example/p.png>`",
        "a|b|<b>c</b>",
        "\\`<b>\\`",
        "\\|<b>",
        "x\\",
        "**bold** ~~gone~~ &lt;b&gt;",
        "a\n\n<script>alert(1)</script>",
        " ",
    ],
)
def test_nothing_of_it_is_rendered_in_a_paragraph_or_a_cell(text: str) -> None:
    paragraph = RENDERER.render(f"charter {literal(text)}, instance {literal(text)}")
    assert paragraph.count("<") == 6  # <p> and two <code>, opened and closed
    assert paragraph.count("<code>") == 2
    row = RENDERER.render(f"| | |\n| --- | --- |\n| agent | {literal(text)} ({literal(text)}) |")
    cells = row.split("<tbody>")[1]
    assert cells.count("<code>") == 2
    assert cells.count("<") == 12  # tr, two td, two code, opened and closed; the ends of tbody and table
    assert ") </td>" not in cells
