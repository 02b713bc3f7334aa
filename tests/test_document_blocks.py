from __future__ import annotations

import pytest

from tests.document_blocks import Unmarked, commands, find, shown, shows, typed_at_the_end


def one(text: str) -> object:
    (block,) = find("x.md", text)
    return block


def test_marks_are_read() -> None:
    first, second, third = find(
        "x.md",
        "a\n<!-- run: pair, exit 3 -->\n```console\n$ x\n```\n\n<!-- output -->\n\n```text\ny\n```\n```json\n{}\n```\n",
    )
    assert (first.line, first.verb, first.words, first.exit_code) == (3, "run", {"pair", "exit 3"}, 3)
    assert (second.verb, second.text, third.verb) == ("output", "y\n", "data")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```python\n```", "x.md:1: a block needs a mark"),
        ("```\n$ x\n```", "a block needs a mark"),
        ("<!-- run -->\nprose between\n```python\n```", "a block needs a mark"),
        ("<!-- not run -->\n```python\n```", "wants its reason"),
        ("<!-- tested by: -->\n```python\n```", "wants its test"),
        ("<!-- output -->\n```text\n```", "is that of the block before"),
        ("<!-- run -->\n```text\n```", "to be run, a block is console, python, sh, not text"),
        ("<!-- run: pears -->\n```sh\n```", "unknown after `run:`: pears"),
        ("<!-- file: -->\n```python\n```", "wants the name"),
        ("<!-- file: ../x.py -->\n```python\n```", "wants the name"),
        ("<!-- run -->\n```sh\na\n```\n<!-- goes on -->\n```text\n```", "wants a block before it that `serves`"),
        ("<!-- run: continues -->\n```python\n```", "wants a Python block before it"),
    ],
)
def test_a_block_without_a_true_mark_is_refused(text: str, says: str) -> None:
    with pytest.raises(Unmarked, match=says):
        find("x.md", text)


def test_a_file_and_what_a_command_that_serves_prints_later() -> None:
    file, _, later = find(
        "x.md",
        "<!-- file: x.py -->\n```python\na\n```\n<!-- run: serves -->\n```sh\nx\n```\n"
        "<!-- goes on -->\n```text\ny\n```\n",
    )
    assert (file.verb, file.rest, file.words, later.verb, later.text) == ("file", "x.py", set(), "goes on", "y\n")


def test_an_indented_block_is_read_without_its_indent() -> None:
    (block,) = find("x.md", "- item\n\n  <!-- run -->\n  ```sh\n  a\n    b\n  ```\n")
    assert block.text == "a\n  b\n"


def test_commands_and_what_they_print() -> None:
    text = "$ one \\\n    --more\nprinted\n\n$ two\n"
    assert commands(text) == [("one \\\n    --more", "printed\n\n"), ("two", "")]
    with pytest.raises(ValueError, match="starts with"):
        commands("printed\n")


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\n", "a\n\n", True),
        ("a … c\n", "a b c", True),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a\n…\nd", "a\nd", True),
        ("…\nd", "d", True),
        ("…\nd", "c d", False),
        ("a\n…\n", "a\nb\nc", True),
        ("a.c", "abc", False),
        ("a", "a\nb", False),
    ],
)
def test_what_was_shown(expected: str, printed: str, same: bool) -> None:
    assert shows(expected, printed) is same


@pytest.mark.parametrize(
    ("expected", "printed", "end"),
    [
        ("a\n", "a\nb\n", 2),
        ("a\n", "a", None),  # the line may go on
        ("a … c\n", "a b c\nd c\n", 6),
        ("a\n…\nd\n", "a\nb\nc\nd\ne\n", 8),
        ("b\n", "a\nb\n", None),  # from the start: nothing is passed over unsaid
    ],
)
def test_what_was_shown_so_far(expected: str, printed: str, end: int | None) -> None:
    assert shown(expected, printed) == end


@pytest.mark.parametrize(("text", "parts"), [("a\n^C\n", ("a\n", True)), ("a\n", ("a", False)), ("^C\n", ("", True))])
def test_what_is_typed_at_the_end(text: str, parts: tuple[str, bool]) -> None:
    assert typed_at_the_end(text) == parts
