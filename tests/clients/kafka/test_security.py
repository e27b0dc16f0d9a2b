"""Real clients on a broker with TLS, SASL and authorization: who authenticates, and what ACLs let it do."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPartition

from llog.security.scram import HASHES
from tests.clients.kafka.brokers import Certificate, KafkaBroker, our_broker
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.system.broker_process import run_llog

TOPIC: Final = "orders"
GROUP = "readers"
PASSWORD: Final = "pencil-9d27ab41"
ROOT_TOKEN: Final = "root-5e3b90c4d1a2"


class Guarded(NamedTuple):
    broker: KafkaBroker
    settings: dict[str, str]
    signing_key: Any
    """Of the identity provider; None where no library makes tokens."""
    log: Path

    @property
    def address(self) -> str:
        return self.broker.address

    @property
    def ca(self) -> str:
        return str(self.broker.ca_file)

    def llog(self, *arguments: str, text: str = "") -> str:
        done = run_llog(*arguments, settings=self.settings, standard_input=text)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def guarded(certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("security")
    settings = {"LLOG_DATA_DIR": str(directory / "data")}
    mechanisms, key, more = ["PLAIN", *HASHES], None, {}
    try:
        import jwt
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        pass
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
        (directory / "jwks.json").write_text(json.dumps({"keys": [public | {"kid": "one"}]}))
        mechanisms.append("OAUTHBEARER")
        more = {
            "llog_oauth_jwks": str(directory / "jwks.json"),
            "llog_oauth_issuer": "https://id.example",
            "llog_oauth_audience": "llog",
        }
    with our_broker(
        directory,
        certificate,
        llog_authorization="1",
        llog_super_users="User:write-token",
        llog_http_write_token=ROOT_TOKEN,
        llog_kafka_sasl_mechanisms=",".join(mechanisms),
        **more,
    ) as broker:
        made = Guarded(broker, settings, key, directory / "log-broker")
        for user in ("ada", "mallory"):
            made.llog("user", "create", user, text=f"{PASSWORD}\n")
        made.llog("topic", "create", TOPIC, "--first-offset", "0")
        for user in ("ada", "tester"):
            made.llog("acl", "add", f"User:{user}", "READ", "group", GROUP)
        for operation in ("READ", "WRITE"):
            made.llog("acl", "add", "User:ada", operation, "topic", TOPIC)
        made.llog("acl", "add", "User:tester", "ALL", "topic", TOPIC)
        _wait_for_acls(made)
        yield made


def _wait_for_acls(guarded: Guarded) -> None:
    def sees() -> bool:
        return TOPIC in AdminClient(confluent(guarded, "SCRAM-SHA-256")).list_topics(timeout=5).topics

    wait_until(sees, "the broker sees the last ACL")


def confluent(guarded: Guarded, mechanism: str, user: str = "ada", password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": guarded.address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": guarded.ca,
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


def round_trip(config: dict[str, Any], value: bytes) -> None:
    """Produce idempotently, and consume what was produced."""
    producer = Producer(config | {"enable.idempotence": True})
    places: list[Any] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        places.append(error if error is not None else (message.partition(), message.offset()))

    producer.produce(TOPIC, value, partition=0, on_delivery=delivered)
    assert producer.flush(PATIENCE_SECONDS) == 0
    [(partition, offset)] = places
    consumer = Consumer(config | {"group.id": GROUP, "enable.auto.commit": False})
    consumer.assign([ConfluentPartition(TOPIC, partition, offset)])
    try:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        assert message.error() is None
        assert message.value() == value
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_confluent_kafka_produces_and_consumes(guarded: Guarded, mechanism: str) -> None:
    round_trip(confluent(guarded, mechanism), mechanism.encode())


def test_confluent_kafka_authenticates_with_a_token(guarded: Guarded) -> None:
    if guarded.signing_key is None:
        pytest.skip("PyJWT and cryptography, which sign the token, are not installed")
    import jwt

    def token(_: str) -> tuple[str, float]:
        end = time.time() + 300
        claims = {"sub": "tester", "iss": "https://id.example", "aud": "llog", "exp": int(end)}
        return jwt.encode(claims, guarded.signing_key, algorithm="ES256", headers={"kid": "one"}), end

    config = {
        "bootstrap.servers": guarded.address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": guarded.ca,
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": token,
    }
    round_trip(config, b"by token")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_confluent_kafka_reports_a_wrong_password(guarded: Guarded, mechanism: str) -> None:
    errors: list[KafkaError] = []
    wrong = confluent(guarded, mechanism, password="guess-71aa02") | {"error_cb": errors.append}
    producer = Producer(wrong)

    def refused() -> bool:
        producer.poll(0.1)
        return any(error.code() == KafkaError._AUTHENTICATION for error in errors)

    wait_until(refused, "the authentication fails")
    log = guarded.log.read_text()
    assert '"action":"authenticate"' in log.replace(" ", "")
    assert "guess-71aa02" not in log
    assert PASSWORD not in log


def test_a_user_without_rights_sees_no_topic_and_cannot_write(guarded: Guarded) -> None:
    config = confluent(guarded, "SCRAM-SHA-256", "mallory")
    admin = AdminClient(config)
    assert TOPIC not in admin.list_topics(timeout=PATIENCE_SECONDS).topics
    for name in (TOPIC, "nothing-of-this-name"):
        [asked] = admin.list_topics(name, timeout=PATIENCE_SECONDS).topics.values()
        assert asked.error is not None
        assert asked.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    refused: list[Any] = []
    producer = Producer(config)
    producer.produce(TOPIC, b"x", partition=0, on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert [error.code() for error in refused] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]


def test_an_acl_that_is_added_and_removed_counts_within_seconds(guarded: Guarded) -> None:
    admin = AdminClient(confluent(guarded, "SCRAM-SHA-256", "mallory"))

    def sees() -> bool:
        return TOPIC in admin.list_topics(timeout=PATIENCE_SECONDS).topics

    for change, expected in (("add", True), ("remove", False)):
        rights = ("DESCRIBE", "topic", TOPIC) if change == "add" else ()
        guarded.llog("acl", change, "User:mallory", *rights)
        began = time.monotonic()
        wait_until(lambda expected=expected: sees() is expected, f"the broker follows `acl {change}`")  # type: ignore[misc]
        assert time.monotonic() - began < 5


def test_kafka_python_produces_and_consumes(guarded: Guarded) -> None:
    config: dict[str, Any] = {
        "bootstrap_servers": guarded.address,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": guarded.ca,
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ada",
        "sasl_plain_password": PASSWORD,
    }
    producer = KafkaProducer(**config)
    sent = producer.send(TOPIC, b"kafka-python", partition=0).get(PATIENCE_SECONDS)
    producer.close()
    consumer = KafkaConsumer(**config, group_id=None, consumer_timeout_ms=PATIENCE_SECONDS * 1_000)
    partition = KafkaPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, sent.offset)
    assert next(consumer).value == b"kafka-python"
    consumer.close()


async def test_aiokafka_produces_and_consumes(guarded: Guarded) -> None:
    config: dict[str, Any] = {
        "bootstrap_servers": guarded.address,
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=guarded.ca),
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "ada",
        "sasl_plain_password": PASSWORD,
    }
    async with AIOKafkaProducer(**config) as producer:
        sent = await producer.send_and_wait(TOPIC, b"aiokafka", partition=0)
    async with AIOKafkaConsumer(**config) as consumer:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, sent.offset)
        assert (await asyncio.wait_for(consumer.getone(), PATIENCE_SECONDS)).value == b"aiokafka"


def test_a_users_token_opens_http_and_is_rotated_without_a_restart(guarded: Guarded) -> None:
    ours = guarded.broker.ours
    assert ours is not None
    first = guarded.llog("user", "token", "add", "ada", "first")
    with httpx.Client(base_url=ours.url, verify=ssl.create_default_context(cafile=guarded.ca)) as http:

        def status(token: str) -> int:
            return http.get(f"/topics/{TOPIC}", headers={"authorization": f"Bearer {token}"}).status_code

        wait_until(lambda: status(first) == 200, "the token is known")
        second = guarded.llog("user", "token", "add", "ada", "second")
        wait_until(lambda: status(second) == 200, "the new token is known")
        guarded.llog("user", "token", "revoke", "ada", "first")
        wait_until(lambda: status(first) == 401, "the old token is revoked")
        assert status(second) == 200
        assert status(ROOT_TOKEN) == 200
        basic = base64.b64encode(f"ada:{PASSWORD}".encode()).decode()
        assert http.get(f"/topics/{TOPIC}", headers={"authorization": f"Basic {basic}"}).status_code == 401


def test_admins_list_acls_and_users_over_kafka(guarded: Guarded) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    wanted = AclBindingFilter(
        ResourceType.TOPIC, TOPIC, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    admin = AdminClient(confluent(guarded, "PLAIN"))
    own = AclBinding(
        ResourceType.TOPIC,
        TOPIC,
        ResourcePatternType.LITERAL,
        "User:ada",
        "*",
        AclOperation.ALL,
        AclPermissionType.ALLOW,
    )
    [future] = admin.create_acls([own]).values()
    with pytest.raises(KafkaException) as refused:
        future.result(PATIENCE_SECONDS)
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert admin.describe_acls(wanted).result(PATIENCE_SECONDS) == []  # librdkafka does not report the code
    for operation in ("DESCRIBE", "ALTER"):
        guarded.llog("acl", "add", "User:ada", operation, "cluster")

    def described() -> Any:
        return admin.describe_acls(wanted).result(PATIENCE_SECONDS)

    wait_until(described, "ada may describe the cluster")
    assert {(acl.principal, acl.operation.name) for acl in described()} >= {("User:ada", "READ"), ("User:ada", "WRITE")}
    users = admin.describe_user_scram_credentials(["ada", "mallory"])  # without names librdkafka's wrapper crashes
    described_users = {name: future.result(PATIENCE_SECONDS) for name, future in users.items()}
    assert {len(one.scram_credential_infos) for one in described_users.values()} == {2}
