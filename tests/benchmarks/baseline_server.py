"""The least that an HTTP server of our stack can do with a produce request: parse its JSON and answer.

`python -m tests.benchmarks.baseline_server`: uvicorn with httptools on uvloop, Litestar, msgspec, as the broker has
them, without a guard, a log line, a metric, a limit, a log or a store. Prints where it listens.
"""

from __future__ import annotations

import socket

import msgspec
import uvicorn
import uvloop
from litestar import Litestar, Request, Response, post

from llog.http.json.schemas import ProduceAnswer, ProduceRequest, ProduceResult

DECODER = msgspec.json.Decoder(ProduceRequest)
ENCODER = msgspec.json.Encoder()


@post("/produce", status_code=200)
async def produce(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    wanted = DECODER.decode(await request.body())
    results = [
        ProduceResult(topic=batch.topic, partition=batch.partition or 0, ok=True, count=len(batch.records))
        for batch in wanted.topic_partitions
        if batch.partition is not msgspec.UNSET  # every batch of the benchmarks has one
    ]
    answer = ENCODER.encode(ProduceAnswer(results, len(results), 0))
    return Response(answer, status_code=200, media_type="application/json")


async def serve() -> None:
    app = Litestar(route_handlers=[produce], openapi_config=None, logging_config=None, request_max_body_size=None)
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=600,
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    uvloop.run(serve())
