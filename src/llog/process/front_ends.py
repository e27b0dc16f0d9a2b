"""The listeners of a broker process: HTTP, and Kafka unless it is turned off. They start and stop together."""

from __future__ import annotations

import asyncio

from llog.broker.broker import Broker
from llog.http.routes.app import HttpApp
from llog.http.server import HttpServer
from llog.kafka.server import KafkaServer
from llog.kafka.services import KafkaServices
from llog.listener.server import SocketListener
from llog.settings import Settings
from llog.settings.listening import advertised_address


class FrontEnds:
    def __init__(
        self, app: HttpApp, broker: Broker, settings: Settings, *, host: str | None = None, port: int | None = None
    ) -> None:
        self._settings = settings
        self.http = HttpServer(app, settings, host=host, port=port)
        self._kafka: KafkaServer | None = None
        if settings.kafka_port is not None:
            services = KafkaServices(broker, broker.cluster, broker.topics)
            self._kafka = KafkaServer(services, settings, settings.kafka_host, settings.kafka_port)

    @property
    def kafka_address(self) -> tuple[str, int] | None:
        """Where Kafka clients connect."""
        return None if self._kafka is None else advertised_address(self._settings, self._kafka.port)

    @property
    def kafka_url(self) -> str:
        return "" if self._kafka is None else self._kafka.url

    def _listeners(self) -> list[SocketListener]:
        return [self.http] if self._kafka is None else [self.http, self._kafka]

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
