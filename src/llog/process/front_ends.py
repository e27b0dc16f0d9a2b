"""The listeners of a broker process: HTTP, and Kafka unless it is turned off. They start and stop together.

A worker (`LLOG_WORKERS`) listens twice for each protocol: at a port of its own, which clients are given, and at the
port that it shares with the other workers.
"""

from __future__ import annotations

import asyncio

from llog.broker.broker import Broker
from llog.http.routes.app import HttpApp
from llog.http.server import HttpServer
from llog.kafka.server import KafkaServer
from llog.kafka.services import KafkaServices
from llog.listener.server import SocketListener
from llog.settings import Settings
from llog.settings.listening import SharedPorts, advertised_address


class FrontEnds:
    def __init__(
        self,
        app: HttpApp,
        broker: Broker,
        settings: Settings,
        *,
        host: str | None = None,
        port: int | None = None,
        shared: SharedPorts | None = None,
    ) -> None:
        self._settings = settings
        self.http = HttpServer(app, settings, host=host, port=port, shared_port=shared.http if shared else None)
        self._kafka: list[KafkaServer] = []
        if settings.kafka_port is not None:
            services, kafka_host = KafkaServices(broker, broker.cluster, broker.topics), settings.kafka_host
            self._kafka.append(KafkaServer(services, settings, kafka_host, settings.kafka_port))
            if shared is not None and shared.kafka is not None:
                self._kafka.append(KafkaServer(services, settings, kafka_host, shared.kafka, reuse_port=True))

    @property
    def kafka_address(self) -> tuple[str, int] | None:
        """Where Kafka clients connect."""
        return advertised_address(self._settings, self._kafka[0].port) if self._kafka else None

    @property
    def kafka_url(self) -> str:
        return self._kafka[0].url if self._kafka else ""

    def _listeners(self) -> list[SocketListener]:
        return [self.http, *self._kafka]

    async def start(self) -> None:
        """`ExposureRefused` or `SettingsError` when an address cannot be used; then nothing listens."""
        try:
            for listener in self._listeners():
                await listener.start()
        except BaseException:
            await self.stop(at_once=True)
            raise

    async def stop(self, *, at_once: bool = False) -> None:
        """Accept no more, answer requests in flight (not `at_once`). Idempotent."""
        await asyncio.gather(*(listener.stop(at_once=at_once) for listener in self._listeners()))
