"""Exchanges with a server that asks for authentication: right ones, wrong ones, hostile ones."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llog.kafka.codec.messages.api_versions import ApiVersionsRequest
from llog.kafka.codec.messages.metadata import MetadataRequest, MetadataRequestTopic
from llog.kafka.codec.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from llog.kafka.codec.messages.sasl_handshake import SaslHandshakeRequest
from llog.kafka.error_codes import ErrorCode
from llog.kafka.sasl import FAILURE_MS
from llog.security.changes import create_user, credentials_of
from llog.security.throttle import FAILURES_BURST
from tests.kafka_client import ConnectionEnded, KafkaClient, frame_of
from tests.patience import PATIENCE_SECONDS
from tests.unit.kafka.serving import ServedKafka, serve

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


@asynccontextmanager
async def guarded(**overrides: Any) -> AsyncIterator[ServedKafka]:
    """With the user `ada`, whose password is `pencil`."""
    async with serve(kafka_sasl_mechanisms=MECHANISMS, **overrides) as kafka:
        await create_user(kafka.broker.context, "ada", credentials_of("pencil", iterations=4096))
        await kafka.broker.security.changed()
        yield kafka


async def begin(client: KafkaClient, mechanism: str) -> None:
    assert (await client.ask(SaslHandshakeRequest(mechanism), 1)).error_code == 0


async def say(client: KafkaClient, message: bytes) -> SaslAuthenticateResponse:
    answer = await client.ask(SaslAuthenticateRequest(message), 2)
    assert isinstance(answer, SaslAuthenticateResponse)
    return answer


async def scram(
    client: KafkaClient, user: str, password: str, mechanism: str = "SCRAM-SHA-256"
) -> SaslAuthenticateResponse:
    """The client's side; checks that the server knows the password too."""
    await begin(client, mechanism)
    bare = f"n={user},r={base64.b64encode(os.urandom(12)).decode()}"
    first = await say(client, f"n,,{bare}".encode())
    assert first.error_code == 0
    answer = bytes(first.auth_bytes).decode()
    nonce, salt, iterations = (field[2:] for field in answer.split(","))
    name = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), base64.b64decode(salt), int(iterations))
    client_key = hmac.digest(salted, b"Client Key", name)
    signed = f"{bare},{answer},c=biws,r={nonce}".encode()
    signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    last = await say(client, f"c=biws,r={nonce},p={proof}".encode())
    if last.error_code == 0:
        expected = hmac.digest(hmac.digest(salted, b"Server Key", name), signed, name)
        assert bytes(last.auth_bytes) == b"v=" + base64.b64encode(expected)
    return last


async def plain(client: KafkaClient, user: str, password: str) -> SaslAuthenticateResponse:
    await begin(client, "PLAIN")
    return await say(client, f"\x00{user}\x00{password}".encode())


async def is_served(client: KafkaClient) -> bool:
    try:
        await client.ask(MetadataRequest(topics=[]), 12)
    except ConnectionEnded:
        return False
    return True


async def test_every_mechanism_lets_the_right_password_in() -> None:
    async with guarded() as kafka:
        for mechanism in MECHANISMS:
            async with kafka.client() as client:
                answer = await (
                    plain(client, "ada", "pencil")
                    if mechanism == "PLAIN"
                    else scram(client, "ada", "pencil", mechanism)
                )
                assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
                assert await is_served(client)


@pytest.mark.parametrize("exchange", [plain, scram])
async def test_a_wrong_password_and_an_unknown_user_fail_alike_and_late(exchange: object) -> None:
    async with guarded() as kafka:
        answers = []
        for user in ("ada", "nobody"):
            async with kafka.client() as client:
                started = time.monotonic()
                answers.append(await exchange(client, user, "wrong"))  # type: ignore[operator]
                assert (time.monotonic() - started) * 1_000 >= FAILURE_MS
                assert await client_ended(client)
        assert answers[0] == answers[1]
        assert answers[0].error_code == FAILED


async def client_ended(client: KafkaClient) -> bool:
    """The broker closes the connection behind its answer."""
    assert client._reading is not None
    await asyncio.wait_for(asyncio.shield(client._reading), PATIENCE_SECONDS)
    return True


async def test_nothing_else_is_answered_before_authentication() -> None:
    async with guarded() as kafka:
        async with kafka.client() as client:
            assert (await client.ask(ApiVersionsRequest("a", "1"), 3)).error_code == 0
            assert not await is_served(client)
        async with kafka.client() as client:  # not while the password is being checked either
            await begin(client, "PLAIN")
            asked = client.send(SaslAuthenticateRequest(b"\x00ada\x00pencil"), 2)
            early = client.send(MetadataRequest(topics=[]), 12)
            assert (await asked).error_code == 0
            with pytest.raises(ConnectionEnded):
                await early


@pytest.mark.parametrize(
    ("mechanism", "messages"),
    [
        ("PLAIN", [b""]),
        ("PLAIN", [b"ada\x00pencil"]),
        ("PLAIN", [b"\x00ada\x00pencil\x00"]),
        ("PLAIN", [b"root\x00ada\x00pencil"]),
        ("PLAIN", [b"\x00\x00pencil"]),
        ("PLAIN", [b"\x00\xff\x00pencil"]),
        ("PLAIN", [b"\x00ada\x00" + b"p" * 5_000]),
        ("SCRAM-SHA-256", [b"p=tls-server-end-point,,n=ada,r=abc"]),
        ("SCRAM-SHA-256", [b"c=biws,r=abc,p=AAAA"]),
        ("SCRAM-SHA-256", [b"n,,n=ada,r=abc", b"n,,n=ada,r=abc"]),
        ("SCRAM-SHA-256", [b"n,,n=ada,r=abc", b""]),
        ("SCRAM-SHA-256", [b"n,,n=ada,r=abc", b"\x00ada\x00pencil"]),
    ],
)
async def test_a_message_that_is_not_understood_ends_the_connection(mechanism: str, messages: list[bytes]) -> None:
    async with guarded() as kafka, kafka.client() as client:
        await begin(client, mechanism)
        *first, last = messages
        for message in first:
            assert (await say(client, message)).error_code == 0
        assert (await say(client, last)).error_code == FAILED
        assert await client_ended(client)


async def test_steps_out_of_order_end_the_connection() -> None:
    async with guarded() as kafka:
        async with kafka.client() as client:
            assert (await say(client, b"\x00ada\x00pencil")).error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert await client_ended(client)
        async with kafka.client() as client:
            await begin(client, "PLAIN")
            assert (await client.ask(SaslHandshakeRequest("PLAIN"), 1)).error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert await client_ended(client)
        async with kafka.client() as client:
            answer = await client.ask(SaslHandshakeRequest("GSSAPI"), 1)
            assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, list(MECHANISMS))
            assert await client_ended(client)


async def test_a_proof_of_one_exchange_is_worth_nothing_in_another() -> None:
    async with guarded() as kafka:
        bare, key = "n=ada,r=abcdef", b""
        proofs = []
        for _ in range(2):
            async with kafka.client() as client:
                await begin(client, "SCRAM-SHA-256")
                answer = bytes((await say(client, f"n,,{bare}".encode())).auth_bytes).decode()
                nonce, salt, iterations = (field[2:] for field in answer.split(","))
                salted = hashlib.pbkdf2_hmac("sha256", b"pencil", base64.b64decode(salt), int(iterations))
                key = hmac.digest(salted, b"Client Key", "sha256")
                signed = f"{bare},{answer},c=biws,r={nonce}".encode()
                signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
                proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
                proofs.append(f"c=biws,r={nonce},p={proof}".encode())
                assert (await say(client, proofs[0])).error_code == (0 if len(proofs) == 1 else FAILED)


async def test_large_frames_are_refused_until_the_client_has_authenticated() -> None:
    large = MetadataRequest(topics=[])
    async with guarded() as kafka:
        async with kafka.client() as client:
            client.writer.write((600 * 1024).to_bytes(4, "big") + b"".join(map(bytes, frame_of(large, 12)))[4:])
            assert await client.ended()
        async with kafka.client() as client:
            await plain(client, "ada", "pencil")
            names = [f"topic-{number:060d}" for number in range(10_000)]
            request = MetadataRequest(
                [MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
            )
            assert len((await client.ask(request, 12)).topics) == len(names)


async def test_an_address_that_failed_too_often_is_refused_with_the_right_password_too() -> None:
    async with guarded() as kafka:

        async def fail() -> None:
            async with kafka.client() as client:
                assert (await plain(client, "ada", "wrong")).error_code == FAILED

        await asyncio.gather(*(fail() for _ in range(FAILURES_BURST)))
        async with kafka.client() as client:
            assert (await plain(client, "ada", "pencil")).error_code == FAILED


async def test_a_session_ends_unless_the_same_user_authenticates_again() -> None:
    async with guarded(kafka_reauth_ms=300) as kafka:
        await create_user(kafka.broker.context, "bob", credentials_of("stylus", iterations=4096))
        await kafka.broker.security.changed()
        async with kafka.client() as client:
            assert (await plain(client, "ada", "pencil")).session_lifetime_ms == 300
            assert await is_served(client)
            assert (await plain(client, "ada", "pencil")).session_lifetime_ms == 300
            assert (await plain(client, "bob", "stylus")).error_code == FAILED
            assert await client_ended(client)
        async with kafka.client() as client:
            await plain(client, "ada", "pencil")
            await asyncio.sleep(0.31)
            assert not await is_served(client)


async def test_no_secret_is_in_any_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with guarded(log_requests="all") as kafka:
        for password in ("pencil", "hunter2"):
            async with kafka.client() as client:
                await plain(client, "ada", password)
    lines = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert "ada" in lines
    assert "pencil" not in lines
    assert "hunter2" not in lines
