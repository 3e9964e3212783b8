"""The shape of the tree, as far as no other tool checks it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "producer", "worker")
FILE_LINES = 400
TEST_LINES = 650
"""A suite is a list of promises, read one at a time."""
FUNCTION_LINES = 40

LONG_FILES: dict[str, int] = {}
"""Files above the ceiling and their length. Entries may shrink and go, never grow or come."""


def sources(*folders: str) -> list[Path]:
    """Python files under the folders."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def name(path: Path) -> str:
    """A path as it is written in a test's name."""
    return path.relative_to(ROOT).as_posix()


def strings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Literal strings but docstrings."""
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node


@pytest.mark.parametrize("folder", PACKAGES)
def test_a_top_level_folder_holds_one_package_of_the_namespace(folder: str) -> None:
    """`laneway` is a namespace over three folders: an `__init__.py` in it would hide two of them."""
    kept = [
        entry.name for entry in (ROOT / folder).iterdir() if entry.name not in {"README.md", "__pycache__"}
    ]
    assert kept == ["laneway"]
    inside = [entry.name for entry in (ROOT / folder / "laneway").iterdir() if entry.name != "__pycache__"]
    assert inside == [folder]
    assert (ROOT / folder / "laneway" / folder / "py.typed").is_file()


def test_files_stay_short() -> None:
    """A file that does not fit in a head is two files."""
    files = [
        *sources(*PACKAGES, "tests"),
        *(ROOT / "worker").rglob("*.lua"),
        *(ROOT / "producer").rglob("*.lua"),
    ]
    lengths = {name(path): len(path.read_text().splitlines()) for path in files}
    most = {path: TEST_LINES if path.startswith("tests/") else FILE_LINES for path in lengths}
    long = {path: length for path, length in lengths.items() if length > most[path]}
    assert {path: length for path, length in long.items() if length > LONG_FILES.get(path, 0)} == {}
    assert set(LONG_FILES) <= set(long), "a file has shrunk: take it off the list"


def test_functions_stay_short() -> None:
    """Forty lines without the docstring show on one screen."""
    long = []
    for path in sources(*PACKAGES):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                length = (node.end_lineno or 0) - first.lineno + 1
                if length > FUNCTION_LINES:
                    long.append(f"{name(path)}:{node.lineno} {node.name} has {length} lines")
    assert long == []


def test_keys_are_made_in_one_file() -> None:
    """A key written elsewhere would escape the namespace and the hash tags."""
    key = re.compile(
        r":(lane|job|body|result|kept|cancel|idem|bell|control|held|dead|models|out|worker)(:|$)"
    )
    found = [
        f"{name(path)}:{node.lineno} {node.value!r}"
        for path in sources(*PACKAGES)
        if path.name != "keys.py"
        for node in strings(ast.parse(path.read_text()))
        if key.search(str(node.value))
    ]
    assert found == []


def test_the_environment_is_read_where_a_process_begins() -> None:
    """Settings, commands and the engine's own variables: everything else is told what it needs."""
    allowed = re.compile(r"settings\.py$|__main__\.py$|/cli/|/bench/|/engine/")
    found = [
        f"{name(path)}:{node.lineno}"
        for path in sources(*PACKAGES)
        if not allowed.search(name(path))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "putenv"}
    ]
    assert found == []


def test_a_job_is_called_a_job() -> None:
    """Neither functions nor classes speak of tasks or messages: the glossary has one word."""
    found = [
        f"{name(path)}:{node.lineno} {node.name}"
        for path in sources(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if re.search(r"task|message", node.name, re.IGNORECASE) and not node.name.startswith("_")
        if node.name != "ChatMessage"  # OpenAI's word for a turn of a conversation
    ]
    assert found == []


def test_modules_and_public_names_say_what_they_are() -> None:
    """Each module, and each public class and function at its top, has a docstring."""
    found = []
    for path in sources(*PACKAGES):
        tree = ast.parse(path.read_text())
        if tree.body and not ast.get_docstring(tree):
            found.append(name(path))
        found += [
            f"{name(path)}:{node.lineno} {node.name}"
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if not node.name.startswith("_") and not ast.get_docstring(node)
        ]
    assert found == []


def test_decisions_are_dated_and_complete() -> None:
    """A decision that a reader would question has a note: when, why, what, and what follows."""
    notes = sorted((ROOT / "deploy" / "decisions").iterdir())
    assert notes
    for note in notes:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z0-9-]+\.md", note.name), note.name
        text = note.read_text()
        assert text.startswith("# "), note.name
        assert [line for line in text.splitlines() if line.startswith("**")], note.name
        for part in ("**Context.**", "**Decision.**", "**Consequence.**"):
            assert part in text, f"{note.name} lacks {part}"


def test_links_in_the_documents_lead_somewhere() -> None:
    """Relative links name files that exist."""
    broken = [
        f"{name(document)}: {target}"
        for document in [
            *ROOT.glob("*.md"),
            *(ROOT / "deploy").rglob("*.md"),
            *(ROOT / "tests").rglob("*.md"),
        ]
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
        if "://" not in target and not (document.parent / target).exists()
    ]
    assert broken == []
