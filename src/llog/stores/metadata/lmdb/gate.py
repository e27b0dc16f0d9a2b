"""The gate of the memory map: many may use it, or one may change its size.

Why it exists: LMDB forbids changing the map's size while a transaction of this process is open, and growing must not
be the operator's business. Readers on the event loop never wait here (`try_enter`); threads may.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class MapGate:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._users = 0
        self._resizing = False

    def try_enter(self) -> bool:
        with self._changed:
            if self._resizing:
                return False
            self._users += 1
            return True

    def enter(self) -> None:
        with self._changed:
            while self._resizing:
                self._changed.wait()
            self._users += 1

    def leave(self) -> None:
        with self._changed:
            self._users -= 1
            if self._resizing and not self._users:
                self._changed.notify_all()

    @contextmanager
    def using(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else is inside. New ones wait until this is over, so it comes soon."""
        with self._changed:
            while self._resizing:
                self._changed.wait()
            self._resizing = True
            while self._users:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._resizing = False
                self._changed.notify_all()
