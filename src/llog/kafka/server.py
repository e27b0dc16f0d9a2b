"""The Kafka front end on its address, in the loop that the broker already runs.

    server = KafkaServer(services, settings, host, port)
    await server.start()          # listens when this returns; server.port is the real one
    await server.stop()           # accepts no more, answers requests in flight, within LLOG_HTTP_STOP_TIMEOUT_MS

An address that other machines reach is protected, or refused before the socket is bound.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from llog.broker.produce.pool import MemoryPool
from llog.kafka.apis.handler import Handler
from llog.kafka.apis.handlers import handlers as all_handlers
from llog.kafka.dispatch import Dispatcher
from llog.kafka.net.connection import KafkaConnection
from llog.kafka.net.context import ConnectionContext
from llog.kafka.net.memory import FRAME_BYTES_MAX, FRONT_END_BYTES_MAX
from llog.kafka.net.request_log import KafkaRequestLog
from llog.kafka.sasl import Authentication
from llog.kafka.services import KafkaServices
from llog.listener.connection import ConnectionSet
from llog.listener.server import CONNECTIONS_MAX, SocketListener
from llog.settings import Settings
from llog.settings.listening import check_kafka_address


class KafkaServer(SocketListener):
    def __init__(
        self,
        services: KafkaServices,
        settings: Settings,
        host: str,
        port: int,
        *,
        handlers: Mapping[int, Handler] | None = None,
        connections_max: int = CONNECTIONS_MAX,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        front_end_bytes_max: int = FRONT_END_BYTES_MAX,
        reuse_port: bool = False,
    ) -> None:
        """`handlers` and limits are for tests."""
        dispatcher = Dispatcher(services, all_handlers() if handlers is None else handlers)
        log = KafkaRequestLog(services.broker.metrics, settings, time.perf_counter)
        self.context = ConnectionContext(
            dispatcher,
            services.broker.pool,
            log,
            frame_bytes_max=frame_bytes_max,
            front_end_bytes_max=front_end_bytes_max,
            authentication=Authentication.of(services.broker.security, settings, services.broker.metrics),
        )
        super().__init__(
            settings,
            self._connection,
            host=host,
            port=port,
            variables="LLOG_KAFKA",
            scheme="kafka",
            connections_max=connections_max,
            reuse_port=reuse_port,
        )

    @property
    def front_end(self) -> MemoryPool:
        """The memory of frames without records and of answers."""
        return self.context.front_end

    def _connection(self, peers: ConnectionSet) -> KafkaConnection:
        return KafkaConnection(peers, self.context)

    async def start(self) -> None:
        """`ExposureRefused` or `SettingsError` when it cannot listen there."""
        check_kafka_address(self._settings, host=self.host)
        await super().start()

    async def stop(self, *, at_once: bool = False) -> None:
        await super().stop(at_once=at_once)
        self.context.close()
        if self.context.authentication is not None:
            self.context.authentication.close()
