"""The fenced blocks of a document, and the marks that say what becomes of them. Runs nothing: `test_docs.py` does.

A mark is an HTML comment on the line above the fence, so that readers never see it:

    <!-- run -->                    python: a program; console: what stands after `$ ` is typed into a shell, the rest
                                    is what it prints; sh: typed as it stands. The exit code is 0.
    <!-- run: WORD, WORD -->        the words are those of `WORDS`
    <!-- output -->                 what the block before it printed; `…` stands for anything
    <!-- goes on -->                what the last command that `serves` printed next, waited for; a last line of `^C` is
                                    typed into it then, and it ends
    <!-- file: NAME -->             saved under that name in the document's folder, for the commands after it
    <!-- not run: REASON -->
    <!-- tested by: tests/FILE.py::test_NAME -->    that test runs it, or proves what it shows

Blocks that hold data or drawings (`DATA`) need no mark; JSON and TOML must parse.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: What a `run` may ask for. `pair`: two namespaces, contoso and backup, are served, and PAIRBUS_PRIMARY,
#: PAIRBUS_SECONDARY, the files `primary`, `secondary` and `ca.pem` in the folder, and PRIMARY, SECONDARY and CA_FILE in
#: Python, name them. `serves`: it goes on until the document's end. `continues`: the block goes on where the Python
#: block before it ended. `pytest`: the block is a file of tests. `slow`: only in `make test-slow`. `exit N`: its code.
WORDS = re.compile(r"pair|serves|continues|pytest|slow|exit \d+")
DATA = {"json", "toml", "mermaid", "text", "xml", "ini", "csv", "sql", "yaml"}
RUNNABLE = {"python", "console", "sh"}
ANYTHING = "…"
INTERRUPT = "^C"

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- *(?P<verb>run|output|goes on|file|not run|tested by)(?:: *(?P<rest>[^>]*?))? *-->\s*\Z")
_NAME = re.compile(r"\w[\w.-]*")


class Unmarked(ValueError):
    """A block without a mark, or with one that means nothing."""


@dataclass(frozen=True)
class Block:
    document: str
    line: int
    language: str
    text: str
    verb: str  # run, output, goes on, file, not run, tested by, data
    rest: str = ""

    def __repr__(self) -> str:
        return f"<Block {self.document}:{self.line} {self.language or 'plain'}: {self.verb} {self.rest}>"

    @property
    def words(self) -> set[str]:
        return {word.strip() for word in self.rest.split(",") if word.strip()} if self.verb == "run" else set()

    @property
    def exit_code(self) -> int:
        return next((int(word.split()[1]) for word in self.words if word.startswith("exit ")), 0)


def find(document: str, text: str) -> list[Block]:
    """The blocks in order. Raises Unmarked with the line and what would be right."""
    found: list[Block] = []
    for fence in _FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        language, indent = fence["language"], len(fence["indent"])
        body = "".join(each[indent:] for each in fence["text"].splitlines(keepends=True))
        mark = _MARK.search(text, 0, fence.start())
        block = Block(document, line, language, body, "data" if mark is None else mark["verb"], _rest(mark))
        if problem := _problem(block, found, marked=mark is not None):
            raise Unmarked(f"{document}:{line}: {problem}")
        found.append(block)
    return found


def _rest(mark: re.Match[str] | None) -> str:
    return " ".join((mark["rest"] or "").split()) if mark is not None else ""


def _problem(block: Block, before: list[Block], *, marked: bool) -> str:
    if not marked:
        if block.language in DATA:
            return ""
        return "a block needs a mark above it: run, output, not run: REASON, or tested by: tests/FILE.py::test_NAME"
    if block.verb in ("not run", "tested by") and not block.rest:
        return f"`{block.verb}:` wants its {'reason' if block.verb == 'not run' else 'test'}"
    if block.verb == "file" and not _NAME.fullmatch(block.rest):
        return "`file:` wants the name that it is saved under, of letters, digits, `_`, `-` and dots"
    if block.verb == "goes on" and not any("serves" in each.words for each in before):
        return "`goes on` wants a block before it that `serves`"
    if block.verb == "output" and not (before and before[-1].verb in ("run", "not run", "tested by")):
        return "`output` is that of the block before it"
    if block.verb == "run":
        if block.language not in RUNNABLE:
            return f"to be run, a block is {', '.join(sorted(RUNNABLE))}, not {block.language or 'plain'}"
        if unknown := sorted(word for word in block.words if not WORDS.fullmatch(word)):
            return f"unknown after `run:`: {', '.join(unknown)}"
        if "continues" in block.words and not any(each.verb == "run" and each.language == "python" for each in before):
            return "`continues` wants a Python block before it that is run"
    return ""


def commands(text: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a console block; a command goes on in lines after a backslash."""
    found: list[tuple[str, str]] = []
    going_on = False
    for line in text.splitlines():
        if going_on:
            command, shown = found[-1]
            found[-1] = (f"{command}\n{line.removeprefix('> ')}", shown)
        elif line.startswith("$ "):
            found.append((line[2:], ""))
        elif found:
            command, shown = found[-1]
            found[-1] = (command, f"{shown}{line}\n")
            continue
        else:
            raise ValueError(f"a console block starts with `$ `, not with {line!r}")
        going_on = line.endswith("\\")
    return found


def shows(expected: str, printed: str) -> bool:
    """Whether that was printed. `…` is any text, within a line or across lines; alone on a line, for none too."""
    return re.fullmatch(_pattern(expected), printed.rstrip("\n"), re.DOTALL) is not None


def shown(expected: str, printed: str) -> int | None:
    """Where, at the end of a line, that has been printed, if it has; more may follow."""
    found = re.match(_pattern(expected) + "\n", printed, re.DOTALL)
    return None if found is None else found.end()


def typed_at_the_end(text: str) -> tuple[str, bool]:
    """What a terminal shows before `^C`, and whether that was typed."""
    before = text.rstrip("\n").removesuffix(INTERRUPT)
    return before, before != text.rstrip("\n")


def _pattern(expected: str) -> str:
    text = re.escape(expected.rstrip("\n"))
    text = re.sub(rf"^{ANYTHING}\\?\n", r"(?:.*?\\n)?", text, flags=re.MULTILINE)  # alone on a line: lines, or none
    return text.replace(ANYTHING, ".*?")
