"""Rules that keep the code easy to navigate: sizes, names, cycles, unit tests, words.

Each rule has a list of what does not follow it yet. The lists may only become shorter: an entry
that is no longer needed fails the test, and so does a size above the one in the list.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest
from checkout import DOCS, ROOT

SOURCES: Final = ROOT / "src" / "twinlog"
MODULES: Final = {
    str(path.relative_to(SOURCES)): path.read_text() for path in sorted(SOURCES.rglob("*.py"))
}
TREES: Final = {name: ast.parse(text) for name, text in MODULES.items()}
PAGES: Final = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

MAX_LINES: Final = 600
LONG_MODULES: Final = {
    "kafka/client/connection.py": 639,
}

MAX_METHODS: Final = 25
LARGE_CLASSES: Final = {
    "kafka/client/connection.py:Connection": 38,
}

LAZY_IMPORTS: Final = "__init__.py"
"""It imports the public names when they are first used; type checkers see the imports."""

PURE_FOLDERS: Final = ("mirror", "kafka/log", "kafka/protocol")

BANNED: Final = (
    "a person has to",
    "by and by",
    "file-map.md",
    "in silence",
    "leads nowhere",
    "nobody says",
    "who may write cannot be denied",
)
"""Phrases that readers did not understand, and names of pages that are gone."""

OLD_NAMES: Final = {"CHANGELOG.md", "docs/decisions/0009-layout.md"}
"""Pages that are about former names of files."""
_FILE: Final = re.compile(r"(?<![\w{.-])((?:[\w-]+/)*\w+\.py)\b")


def test_modules_are_short() -> None:
    """Goal: a module is read in one sitting; those in the list do not grow."""
    lines = {name: text.count("\n") for name, text in MODULES.items()}
    _hold(lines, MAX_LINES, LONG_MODULES)


def test_classes_are_small() -> None:
    """Goal: a class has one task."""
    methods = {
        f"{name}:{node.name}": sum(
            isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body
        )
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    _hold(methods, MAX_METHODS, LARGE_CLASSES)


def test_class_names_are_unique() -> None:
    """Goal: the name of a class says which one it is."""
    places: defaultdict[str, set[str]] = defaultdict(set)
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(name)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_the_import_graph_has_no_hidden_cycle() -> None:
    """Goal: the import graph has no cycle, also not one that only type checkers see."""
    hidden = {
        name
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in ast.walk(node)
        if isinstance(part, ast.ImportFrom) and (part.module or "").startswith("twinlog")
    }
    assert hidden == {LAZY_IMPORTS}


def test_pure_modules_have_a_unit_test() -> None:
    """Goal: a pure module has a test file of its name, without brokers."""
    without = {
        name
        for name in MODULES
        if name.startswith(tuple(f"{folder}/" for folder in PURE_FOLDERS))
        and not name.endswith("__init__.py")
        and not (ROOT / "tests" / Path(name).with_name(f"test_{Path(name).name}")).exists()
    }
    assert without == set()


@pytest.mark.parametrize("phrase", BANNED)
def test_banned_phrases_are_not_used(phrase: str) -> None:
    """Goal: these phrases do not come back, in code or on pages."""
    texts = {**MODULES, **{str(page.relative_to(ROOT)): page.read_text() for page in PAGES}}
    assert [name for name, text in texts.items() if phrase in text] == []


def test_referenced_files_exist() -> None:
    """Goal: a docstring, comment or page that names a file leads to one."""
    folders = [ROOT / name for name in ("src", "tests", "bench", "docs")]
    paths = [*ROOT.glob("*.*"), *(path for folder in folders for path in folder.rglob("*.*"))]
    files = [path.relative_to(ROOT).as_posix() for path in paths]
    texts = [name for name in files if name.endswith((".py", ".md")) and name not in OLD_NAMES]
    dangling = {
        (text, named)
        for text in texts
        for named in _FILE.findall((ROOT / text).read_text())
        if not any(f"/{file}".endswith(f"/{named}") for file in files)
    }
    assert dangling == set()


def _hold(sizes: dict[str, int], most: int, known: dict[str, int]) -> None:
    """No size is above `most`, except for those that are known, which do not grow."""
    above = {name: size for name, size in sizes.items() if size > most}
    assert above.keys() == known.keys(), "delete entries that are not needed any more"
    assert {name: size for name, size in above.items() if size > known[name]} == {}
