"""The README and the docs run: every Python block of a page is executed, in order, in one process per page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from litestar.handlers import HTTPRouteHandler

from llog.http.routes import app
from llog.listener.tokens import Access

ROOT = Path(__file__).parents[2]
PAGES = [p for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if "```python" in p.read_text()]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_python_block_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    code = "\n".join(BLOCK.findall(page.read_text()))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, "of a process that a reader would wonder about"


def test_the_readme_has_an_example() -> None:
    assert ROOT / "README.md" in PAGES


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    links = [(page, target) for page in pages for target in re.findall(r"\]\(([^)#]+)", page.read_text())]
    local = [(page, target) for page, target in links if not target.startswith(("http://", "https://"))]
    assert [(page, target) for page, target in local if not (page.parent / target).exists()] == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop().resolve()
        if page.suffix == ".md" and page not in reached:
            reached.add(page)
            todo += [page.parent / target for target in re.findall(r"\]\(([^)#:]+)", page.read_text())]
    assert {page.resolve() for page in (ROOT / "docs").rglob("*.md")} <= reached


def test_make_help_names_every_verb() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=540, check=True)
    verbs = {line.split()[0] for line in done.stdout.splitlines()}
    assert verbs >= {"setup", "servers", "run", "demo", "test", "soak", "check", "bench", "sim", "fmt"}


def test_the_architecture_page_has_a_row_for_every_folder() -> None:
    rows = re.findall(r"^\| `([a-z]+)/` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    folders = {place.parent.name for place in (ROOT / "src" / "llog").glob("*/__init__.py")}
    assert folders == set(rows)


def test_the_http_page_has_a_row_for_every_request_with_the_token_it_needs() -> None:
    page = (ROOT / "docs" / "reference" / "http.md").read_text()
    rows = set(re.findall(r"^\| `([A-Z]+) (\S+)` \| (\w+) \|", page, re.MULTILINE))
    handlers = [*app.STATUS_ROUTES, *app.TOPIC_ROUTES, *app.READ_ROUTES, *app.WRITE_ROUTES]
    tokens = {Access.OPEN: "none", Access.READ: "read", Access.WRITE: "write"}
    assert rows == {
        (method, re.sub(r":\w+", "", path), tokens[handler.opt[Access.KEY]])
        for handler in handlers
        if isinstance(handler, HTTPRouteHandler)
        for method in handler.http_methods - {"HEAD", "OPTIONS"}
        for path in handler.paths
    }
