"""The documentation leads somewhere: its links, its anchors, and the commands that it shows."""

import copy
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click
import pytest
from checkout import ROOT

from twinlog.interfaces.cli.kafka_mirrors import _parse, mirrors_command
from twinlog.interfaces.cli.main import main

PAGES: Final = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
SHELL: Final = frozenset({"", "sh", "bash", "shell", "console"})
"""Languages of code blocks that may show commands."""

_FENCE: Final = re.compile(r"^ *(```+|~~~+)(.*)$")
_LINK: Final = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_CODE_SPAN: Final = re.compile(r"(`+)(.+?)\1")
_HEADING: Final = re.compile(r"^#{1,6} +(.*?) *#*$")
_COMMAND: Final = re.compile(
    r"(?:^|[|;&(])\s*((?:twinlog|kafka-mirrors)\s.*|twinlog|kafka-mirrors)$"
)
_SEPARATOR: Final = re.compile(r"[();|&]+")
_REDIRECTION: Final = re.compile(r"[<>]+&?")


class Block(NamedTuple):
    """A code block: its language, and its lines with their numbers."""

    language: str
    lines: tuple[tuple[int, str], ...]


class Command(NamedTuple):
    """A command of a code block, in words."""

    line: int
    words: tuple[str, ...]


def split(text: str) -> tuple[list[tuple[int, str]], list[Block]]:
    """A page's prose and its code blocks, with the numbers of the lines."""
    prose: list[tuple[int, str]] = []
    blocks: list[Block] = []
    fence, language, lines = "", "", list[tuple[int, str]]()
    for number, line in enumerate(text.splitlines(), 1):
        marker = _FENCE.match(line)
        if fence:
            if marker and marker[1].startswith(fence) and not marker[2].strip():
                blocks.append(Block(language, tuple(lines)))
                fence = ""
            else:
                lines.append((number, line))
        elif marker:
            fence, language, lines = marker[1], marker[2].strip(), []
        else:
            prose.append((number, line))
    assert not fence, "a code block is not closed"
    return prose, blocks


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    result = set()
    for _, line in split(text)[0]:
        if heading := _HEADING.match(line):
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            count = found[slug] = found.get(slug, -1) + 1
            result.add(f"{slug}-{count}" if count else slug)
    return result


def links(text: str) -> Iterator[tuple[int, str]]:
    """The targets of a page's relative links."""
    for number, line in split(text)[0]:
        for target in _LINK.findall(_CODE_SPAN.sub("code", line)):
            if not re.match(r"[a-z]+:", target):
                yield number, target


def commands(text: str) -> Iterator[Command]:
    """The commands of ours that a page's code blocks show.

    In a block with prompts only these lines are commands, the others are output.
    """
    for block in split(text)[1]:
        if block.language not in SHELL:
            continue
        prompts = any(line.startswith("$ ") for _, line in block.lines)
        for number, line in _whole_lines(block):
            if line.startswith("$ ") or not prompts:
                bare = line.removeprefix("$ ").strip()
                yield from (Command(number, words) for words in _in_line(bare))


def _whole_lines(block: Block) -> Iterator[tuple[int, str]]:
    """Lines that a backslash continues, as one."""
    start, whole = 0, ""
    for number, line in block.lines:
        start, whole = (start, whole + line) if whole else (number, line)
        if whole.endswith("\\"):
            whole = whole[:-1]
        else:
            yield start, whole
            whole = ""


def _in_line(line: str) -> Iterator[tuple[str, ...]]:
    """The commands of ours in a line: each ends where the shell ends it."""
    found = _COMMAND.search(line)
    if found is None:
        return
    lexer = shlex.shlex(found[1], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    skip = False
    for word in lexer:
        if _SEPARATOR.fullmatch(word):
            break
        if skip:
            skip = False
        elif _REDIRECTION.fullmatch(word):
            skip = True
            if words[-1].isdecimal():
                words.pop()
        else:
            words.append(word)
    yield tuple(words)
    yield from _in_line(line[found.end(1) - len(found[1]) + 1 :])


def spans(text: str) -> Iterator[Command]:
    """The commands of ours in a page's prose: shortened, so not all that they need is there."""
    for number, line in split(text)[0]:
        for _, span in _CODE_SPAN.findall(line):
            words = tuple(span.replace("...", " ").split())
            if len(words) > 1 and words[0] in {"twinlog", "kafka-mirrors"}:
                yield Command(number, words)


def unknown_words(words: tuple[str, ...]) -> list[str]:
    """Subcommands and flags of a shortened command that do not exist."""
    command: click.Command = main if words[0] == "twinlog" else mirrors_command
    rest = list(words[1:])
    while isinstance(command, click.Group) and rest:
        if rest[0] not in command.commands:
            return [rest[0]]
        command = command.commands[rest.pop(0)]
    flags = {flag for param in command.params for flag in [*param.opts, *param.secondary_opts]}
    return [word for word in rest if word.startswith("--") and word not in flags | {"--help"}]


def check_command(words: tuple[str, ...]) -> None:
    """Parse a command as its user would have it parsed, without running it.

    Raises:
        click.UsageError: a subcommand, a flag or an argument does not exist, is missing, or does
            not go with the others.
    """
    if words[0] == "kafka-mirrors":
        _parse_mirrors(list(words[1:]))
        return
    command: click.Command = main
    context = None
    rest = list(words[1:])
    while isinstance(command, click.Group):
        context = command.make_context(command.name, rest, parent=context)
        name, found, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert found is not None, name
        command = found
    if command is mirrors_command:
        _parse_mirrors(rest)
    else:
        _without_files(command).make_context(command.name, rest, parent=context)


def _parse_mirrors(rest: list[str]) -> None:
    """Flags, and which of them go together."""
    command = _without_files(mirrors_command)
    parameters = command.make_context("kafka-mirrors", rest).params
    _parse(parameters, as_json=parameters["as_json"])


def _without_files(command: click.Command) -> click.Command:
    """The command, for which no file has to exist."""
    command = copy.copy(command)
    command.params = copy.deepcopy(command.params)
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            parameter.type.exists = False
    return command


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_point_to_existing_files_and_headings(page: Path) -> None:
    """Every relative link, and the heading that it names."""
    for number, target in links(page.read_text()):
        path, _, anchor = target.partition("#")
        file = page if not path else (page.parent / path).resolve()
        where = f"{_name(page)}:{number}: {target}"
        assert file.exists(), where
        if anchor:
            assert anchor in anchors(file.read_text()), where


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_exist(page: Path) -> None:
    """Every command in a code block has a subcommand, flags and arguments that exist."""
    for command in commands(page.read_text()):
        try:
            check_command(command.words)
        except click.exceptions.Exit:  # --help, --version
            continue
        except click.ClickException as error:
            where = f"{_name(page)}:{command.line}: {shlex.join(command.words)}"
            pytest.fail(f"{where}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_in_sentences_exist(page: Path) -> None:
    """Every command in a sentence or a table has a subcommand and flags that exist."""
    for command in spans(page.read_text()):
        where = f"{_name(page)}:{command.line}: {' '.join(command.words)}"
        assert not unknown_words(command.words), where


def test_the_pages_contain_commands_and_links() -> None:
    """The two tests above find what they check."""
    texts = [page.read_text() for page in PAGES]
    words = [command.words for text in texts for command in commands(text)]
    assert {word[0] for word in words} == {"twinlog", "kafka-mirrors"}
    named = {word[1] for word in words if word[0] == "twinlog"}
    assert named >= set(main.commands) - {"mirrors"}
    assert sum(1 for text in texts for _ in links(text)) > 100


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        ("twinlog verfy --bootstrap-server h:1", "No such command"),
        ("twinlog run --bootstrap-server h:1 --lane 2x", "--lane"),
        ("twinlog run", "Missing option"),
        ("twinlog cluster kill source", "Missing argument"),
        ("twinlog verify --bootstrap-server h:1 --patience long", "long"),
        ("kafka-mirrors --bootstrap-server h:1 --list --verbose", "No such option"),
        ("kafka-mirrors --bootstrap-server h:1 --add --mirror m", "--add needs --topic"),
        ("kafka-mirrors --bootstrap-server h:1 --list --mirror m", "cannot be used with --list"),
        ("kafka-mirrors --bootstrap-server h:1 --mirror m", "exactly one action"),
        ("twinlog mirrors --bootstrap-server h:1 --lst", "No such option"),
    ],
)
def test_an_invalid_command_is_detected(line: str, trouble: str) -> None:
    """In a block with a prompt, beside its output."""
    (command,) = commands(f"```\n$ {line} 2> node.log &\ntwinlog said so\n```\n")
    with pytest.raises(click.ClickException) as caught:
        check_command(command.words)
    assert trouble in caught.value.format_message()


@pytest.mark.parametrize(
    ("span", "unknown"),
    [
        ("twinlog verfy", ["verfy"]),
        ("twinlog cluster up NAME --brokers 3 --node 1", ["--node"]),
        ("kafka-mirrors --add ... --rebuild --save-tails", ["--save-tails"]),
        ("twinlog readiness --mirror m --help", []),
    ],
)
def test_an_invalid_command_in_a_sentence_is_detected(span: str, unknown: list[str]) -> None:
    (command,) = spans(f"Use `{span}`, not `{unknown}`.")
    assert unknown_words(command.words) == unknown


def test_commands_are_parsed_as_by_a_shell() -> None:
    """Continued lines, substitutions, pipes, and no output."""
    block = (
        "```\nA=$(twinlog cluster up a)\ntwinlog run \\\n  --once > f | twinlog verify; ls\n```\n"
    )
    assert [command.words for command in commands(block)] == [
        ("twinlog", "cluster", "up", "a"),
        ("twinlog", "run", "--once"),
        ("twinlog", "verify"),
    ]
    assert not list(commands("```python\ntwinlog run\n```\n```\n$ ls\ntwinlog\n```\n"))


def test_anchors_equal_those_of_github() -> None:
    """Case, punctuation, code and repetition."""
    text = "# The `x.y` topic\n## A, b: (c)\n## A, b: (c)\n```\n# no heading\n```\n"
    assert anchors(text) == {"the-xy-topic", "a-b-c", "a-b-c-1"}
