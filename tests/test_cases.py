"""The table of cases and the tests that carry their ids say the same."""

import ast
import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parent


def marked() -> dict[str, set[str]]:
    """Case to the tests that are marked with it."""
    found = defaultdict(set)
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.case":
                    for case in ast.literal_eval(ast.Tuple(decorator.args, ast.Load())):
                        found[case].add(f"{path.relative_to(TESTS).as_posix()}::{node.name}")
    return dict(found)


def table() -> list[tuple[str, str, str]]:
    """Rows of `cases.md`: id, promise, and the tests or why there are none."""
    rows = re.findall(
        r"^\| ([A-Z]\d+) \| (.+?) \| (.+?) \|$", (TESTS / "cases.md").read_text("utf-8"), re.MULTILINE
    )
    return [(case, promise, shown) for case, promise, shown in rows]


def test_every_case_is_shown_or_says_why_it_does_not_apply() -> None:
    """The tests that a row names are those that carry its id; a row without tests gives its reason."""
    listed = {case: set(re.findall(r"`([^`]+::\w+)`", shown)) for case, _, shown in table()}
    assert {case: tests for case, tests in listed.items() if tests} == marked()
    for case, _, shown in table():
        assert listed[case] or shown.startswith("does not apply: "), case


def test_a_case_stands_in_the_table_once() -> None:
    """In order, group by group."""
    cases = [case for case, _, _ in table()]
    assert cases == sorted(set(cases), key=lambda case: (case[0], int(case[1:])))
