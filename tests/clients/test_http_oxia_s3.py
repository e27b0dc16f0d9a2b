"""The seeds' requirements for a broker on Oxia and S3, which is configured by the seeds' own variable names."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from llog.settings import Settings
from llog.testing.servers import ACCESS_KEY, SECRET_KEY, Minio, OxiaServer, S3Server
from llog.wiring import open_object_store
from tests.clients.http_calls import Json, Running, a_batch, consumed, payloads, produced, running, wanted
from tests.clients.test_http_metrics import assert_histogram, prometheus
from tests.patience import wait_until
from tests.servers import started
from tests.system.broker_process import run_llog

pytestmark = [pytest.mark.slow, pytest.mark.server]
PARTITIONS: Final = 3


class Cluster:
    """Both servers, and the settings of a process that uses them."""

    def __init__(self, oxia: OxiaServer, s3: S3Server, directory: Path) -> None:
        self.bucket, self.directory = s3.bucket, directory
        self.settings = {
            "LLOG_OXIA_SERVICE_ADDRESS": oxia.address,
            "LLOG_S3_BUCKET": s3.bucket,
            "LLOG_S3_ENDPOINT_URL": s3.endpoint,
            "LLOG_S3_REGION_NAME": "us-east-1",
            "LLOG_S3_ACCESS_KEY_ID": ACCESS_KEY,
            "LLOG_S3_SECRET_ACCESS_KEY": SECRET_KEY,
        }

    @contextmanager
    def broker(self, name: str, *arguments: str, without: str = "") -> Iterator[Running]:
        settings = {key: text for key, text in self.settings.items() if key != without}
        with running("broker", *arguments, directory=self.directory, name=name, **settings) as it:
            yield it

    def told_by(self, *command: str) -> Any:
        """What the command line says of the stores."""
        ended = run_llog(*command, "--json", settings=self.settings)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def put(self, name: str, content: bytes) -> None:
        asyncio.run(self._put(name, content))

    def object_at(self, uri: str) -> bytes:
        return asyncio.run(self._get(uri.removeprefix(f"s3://{self.bucket}/")))

    async def _put(self, name: str, content: bytes) -> None:
        async with await open_object_store(f"s3://{self.bucket}", Settings.from_env(self.settings)) as store:
            await store.put(name, [content])

    async def _get(self, name: str) -> bytes:
        async with await open_object_store(f"s3://{self.bucket}", Settings.from_env(self.settings)) as store:
            return bytes(await store.get(name))


started_once = contextmanager(started)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started_once(lambda: OxiaServer(shards=2, sync=False)) as oxia, started_once(Minio) as s3:
        yield Cluster(oxia, s3, tmp_path_factory.mktemp("oxia-s3"))


@pytest.fixture(scope="module")
def both(cluster: Cluster) -> Iterator[Running]:
    with cluster.broker("both", "--broker-id", "broker-1") as it:
        yield it


@pytest.fixture
def written(both: Running, topic: str) -> list[Json]:
    """One request for every partition of a topic; its results."""
    made = both.http.post("/topics", json={"topic": topic, "partitions": PARTITIONS})
    assert made.status_code == 201, made.text
    return produced(both.http, *(a_batch(topic, p, f"{p}-a", {"base64": "AP8="}) for p in range(PARTITIONS)))


def expected(partition: int) -> list[Any]:
    return [f"{partition}-a", {"base64": "AP8="}]


# -- records ---------------------------------------------------------------------------------------------------------


def test_what_is_produced_is_consumed_from_every_partition_by_one_request(
    both: Running, topic: str, written: list[Json]
) -> None:
    assert [(item["start_offset"], item["end_offset"], item["count"]) for item in written] == [(1, 2, 2)] * PARTITIONS
    item = consumed(both.http, *(wanted(topic, p, 1) for p in range(PARTITIONS)))
    for partition, result in enumerate(item):
        assert (result["partition"], result["high_watermark"], result["next_fetch_offset"]) == (partition, 2, 3)
        assert [record["payload"] for record in result["records"]] == expected(partition)


def test_one_request_is_one_shared_blob_named_by_its_s3_uri(cluster: Cluster, topic: str, written: list[Json]) -> None:
    [uri] = {result["wal_uri"] for result in written}
    assert uri.startswith(f"s3://{cluster.bucket}/llog/wal-shared/")
    blob = cluster.object_at(uri)
    [header_bytes] = struct.unpack_from(">I", blob, 4)
    header = json.loads(blob[8 : 8 + header_bytes])
    assert blob[:4] == b"LLS1"
    assert {(part["topic"], part["partition"]) for part in header["partitions"]} >= {
        (topic, partition) for partition in range(PARTITIONS)
    }


def test_index_entries_in_oxia_name_the_blob_by_its_full_s3_uri(cluster: Cluster, written: list[Json]) -> None:
    for result in written:
        entry = cluster.told_by("meta", "show", result["index_key"])["value"]
        assert (entry["type"], entry["msg_count"], entry["data_key"]) == ("WAL", 2, result["wal_uri"])
        assert entry["byte_length"] > 0


def test_a_reader_without_a_bucket_fetches_a_shared_blob_once_for_all_its_partitions(
    cluster: Cluster, topic: str, written: list[Json]
) -> None:
    with cluster.broker("reader", "--role", "read", without="LLOG_S3_BUCKET") as reader:
        answer = consumed(reader.http, *(wanted(topic, p, 1) for p in range(PARTITIONS)))
        assert [[one["payload"] for one in result["records"]] for result in answer] == list(
            map(expected, range(PARTITIONS))
        )
        operations = reader.get("/metrics")["s3"]["operations"]
        assert operations["get"]["requests"] + operations["range_get"]["requests"] == 1
        assert operations["put"]["requests"] == 0


def test_a_compacted_object_is_named_by_its_full_s3_uri_and_read_back(
    cluster: Cluster, topic: str, written: list[Json]
) -> None:
    assert cluster.told_by("compact", f"{topic}:0")["logs"][0]["outcome"] == "compacted"
    [segment] = cluster.told_by("segments", "list", topic, "0")
    assert segment["data_key"].startswith(f"s3://{cluster.bucket}/llog/{topic}/partitions/0/data/compacted/")
    entry = cluster.told_by("meta", "show", written[0]["index_key"])["value"]
    assert (entry["type"], entry["data_key"]) == ("COMPACTED", segment["data_key"])
    with cluster.broker("after", "--role", "read") as reader:
        assert payloads(reader.http, topic, 0) == expected(0)


# -- metrics ---------------------------------------------------------------------------------------------------------


def test_the_stores_are_shown_by_kind_and_the_batch_settings_are_the_seeds(both: Running) -> None:
    answer = both.get("/metrics")["broker"]
    assert (answer["metadata_store"], answer["wal_store"], answer["object_store"]) == ("oxia", "s3", "s3")
    assert (answer["batch"]["max_bytes"], answer["batch"]["max_delay_seconds"]) == (8_388_608, 0.5)


def test_oxia_operations_have_counters_and_latency_on_both_pages(both: Running, written: list[Json]) -> None:
    answer, samples = both.get("/metrics")["oxia"], prometheus(both)
    assert answer["store"] == "oxia"
    assert samples['llog_metadata_info{store="oxia"}'] == 1
    for operation in ("get", "put", "write"):
        counted = answer["operations"][operation]
        assert_histogram(counted["latency_seconds"])
        assert counted["calls"] == counted["latency_seconds"]["count"] > 0
        labels = f'{{operation="{operation}",store="oxia"}}'
        # The broker's own housekeeping may go on between the two pages.
        assert samples[f"llog_metadata_calls_total{labels}"] >= counted["calls"]
        assert samples[f"llog_metadata_items_total{labels}"] >= counted["items"] > 0
        assert samples[f"llog_metadata_call_seconds_count{labels}"] >= counted["calls"]
        assert samples[f"llog_metadata_call_seconds_sum{labels}"] > 0


def test_an_append_is_counted_in_oxia_and_s3(both: Running, topic: str, written: list[Json]) -> None:
    before = both.get("/metrics")
    produced(both.http, a_batch(topic, 0, "x" * 5_000))
    after = both.get("/metrics")

    def writes(page: Json) -> int:
        return int(sum(page["oxia"]["operations"][name]["items"] for name in ("put", "write")))

    assert writes(after) > writes(before)
    put, put_before = after["s3"]["operations"]["put"], before["s3"]["operations"]["put"]
    assert put["requests"] == put_before["requests"] + 1
    assert put["bytes"] >= put_before["bytes"] + 5_000
    assert_histogram(put["latency_seconds"])
    labels = '{operation="put",store="s3",tier="objects"}'
    samples = prometheus(both)
    assert samples[f"llog_s3_requests_total{labels}"] == put["requests"]
    assert samples[f"llog_s3_bytes_total{labels}"] == put["bytes"]
    assert samples[f"llog_s3_call_seconds_sum{labels}"] > 0


def test_the_bill_counts_what_lies_below_the_root_prefix_and_lists_it_once(
    cluster: Cluster, both: Running, written: list[Json]
) -> None:
    blobs = {result["wal_uri"]: cluster.object_at(result["wal_uri"]) for result in written}
    cluster.put("elsewhere/large", bytes(1_000_000))
    with cluster.broker("billed", "--role", "read") as billed:
        # A reader opens the bucket when it first reads from it, and counts what is in it soon after.
        assert payloads(billed.http, written[0]["topic"]) == expected(0)
        wait_until(lambda: billed.metric("s3.billing.object_count") > 0, "the first listing", seconds=20.0)
        s3 = billed.get("/metrics")["s3"]
        billing, operations = s3["billing"], s3["operations"]
        assert billing["store"] == "s3"
        assert billing["assumptions"] == "S3 Standard, us-east-1"
        assert billing["object_count"] >= len(blobs)
        assert sum(map(len, blobs.values())) <= billing["stored_bytes"] < 1_000_000
        assert billing["stored_gb"] == pytest.approx(billing["stored_bytes"] / 2**30)
        assert billing["storage_cost_usd_per_month"] == pytest.approx(billing["stored_gb"] * 0.023)
        requests = {name: counted["requests"] for name, counted in operations.items()}
        dear, cheap = requests["put"] + requests["list"], requests["get"] + requests["range_get"] + requests["head"]
        assert billing["request_cost_usd"] == pytest.approx(dear * 0.005 / 1_000 + cheap * 0.004 / 10_000)
        samples = prometheus(billed)
        labels = '{store="s3",tier="objects"}'
        assert samples[f"llog_s3_billing_objects{labels}"] == billing["object_count"]
        assert samples[f"llog_s3_billing_stored_bytes{labels}"] == billing["stored_bytes"]
        # Cached: it is counted as `list`, and pages do not list again.
        assert requests["list"] >= 1
        for _ in range(5):
            billed.get("/metrics")
        assert billed.metric("s3.operations.list.requests") == requests["list"]
