"""The HTTP front end: produce, consume, positions, topics and status pages, over one broker.

server = HttpServer(build_app(services), settings)     # in the event loop that is already running
await server.start()
await server.stop()
"""

from __future__ import annotations

from llog.http.routes.app import HttpApp, build_app
from llog.http.routes.runtime import BrokerServices
from llog.http.server import HttpServer

__all__ = ["BrokerServices", "HttpApp", "HttpServer", "build_app"]
