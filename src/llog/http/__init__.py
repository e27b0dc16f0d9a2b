"""The HTTP front end: produce, consume, positions, topics and what is known of the process, over one broker.

app = build_app(services)              # any ASGI server can run it
server = HttpServer(app, settings)     # ours, in the loop that is already running
await server.start()
await server.stop()
"""

from __future__ import annotations

from llog.http.listener.server import HttpServer
from llog.http.routes.app import HttpApp, build_app, build_status_app
from llog.http.routes.services import BrokerServices, HttpMetrics, StatusServices

__all__ = ["BrokerServices", "HttpApp", "HttpMetrics", "HttpServer", "StatusServices", "build_app", "build_status_app"]
