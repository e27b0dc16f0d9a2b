from __future__ import annotations

import inspect
import re
from pathlib import Path
from sys import modules

import pytest

from llog.kafka.apis.handlers import handlers
from llog.kafka.codec import apis
from llog.kafka.page import REASONS, markdown

ROOT = Path(__file__).parents[3]


def test_the_reference_page_is_in_step_with_the_handlers() -> None:
    assert (ROOT / "docs/reference/kafka.md").read_text() == markdown(), "run `make docs`"


def test_every_known_api_is_served_or_its_absence_explained() -> None:
    explained = [key for keys in REASONS for key in keys]
    assert sorted([*handlers(), *explained]) == sorted(apis())


@pytest.mark.parametrize("key", handlers())
def test_versions_are_of_the_definition(key: int) -> None:
    handler, api = handlers()[key], apis()[key]
    assert api.versions.first <= handler.served.first <= handler.served.last <= api.versions.last
    assert all(version in handler.served for version in handler.added)


@pytest.mark.parametrize("key", handlers())
def test_a_handlers_module_opens_with_its_key_and_versions(key: int) -> None:
    handler = handlers()[key]
    text = inspect.getdoc(modules[handler.handle.__module__]) or ""
    assert re.search(rf"\bkey {key}\b", text), text.splitlines()[0]
    assert re.search(r"\b[Vv]ersions?\b", text)
