"""The object contract on real S3 servers: versitygw and MinIO, with and without a prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from llog.errors import ObjectStoreDenied, ObjectStoreError, ObjectStoreMisconfigured, ObjectStoreUnavailable
from llog.stores.objects import s3
from llog.stores.objects.port import ObjectStore, checked
from llog.stores.objects.wrappers import RetryingObjectStore
from llog.testing.object_contract import ObjectStoreContract
from llog.testing.servers import ACCESS_KEY, SECRET_KEY, Minio, S3Server, VersityGateway, free_port
from tests.patience import PATIENCE_SECONDS
from tests.servers import started


@dataclass
class Settings:
    s3_endpoint_url: str | None
    s3_region_name: str | None = "us-east-1"
    s3_access_key_id: str | None = ACCESS_KEY
    s3_secret_access_key: str | None = SECRET_KEY
    s3_session_token: str | None = None
    request_timeout_ms: int | None = int(PATIENCE_SECONDS * 1_000)


@pytest.mark.server
class OnServer(ObjectStoreContract):
    many_objects = 1_050  # more than a page

    @pytest.fixture
    async def store(self, server: S3Server) -> AsyncIterator[ObjectStore]:
        async with await checked(await s3.open_from_url(f"s3://{server.bucket}", Settings(server.endpoint))) as store:
            yield store

    async def test_a_missing_bucket_is_found_at_the_start(self, server: S3Server) -> None:
        with pytest.raises(ObjectStoreMisconfigured, match=r"'no-such-bucket'.*check that the bucket exists"):
            await checked(await s3.open_from_url("s3://no-such-bucket", Settings(server.endpoint)))

    async def test_wrong_credentials_are_found_at_the_start(self, server: S3Server) -> None:
        wrong_secret = Settings(server.endpoint, s3_secret_access_key="wrong")
        wrong_key = Settings(server.endpoint, s3_access_key_id="wrong")
        for settings in (wrong_secret, wrong_key):
            with pytest.raises(ObjectStoreDenied, match="check the access key"):
                await checked(await s3.open_from_url(f"s3://{server.bucket}", settings))

    async def test_a_server_that_is_not_there_is_unavailable(self, server: S3Server) -> None:
        with pytest.raises(ObjectStoreUnavailable):
            await checked(await s3.open_from_url(f"s3://{server.bucket}", Settings(f"http://127.0.0.1:{free_port()}")))

    async def test_a_bucket_below_a_prefix_sees_only_its_own_names(self, server: S3Server, store: ObjectStore) -> None:
        settings = Settings(server.endpoint)
        await store.put("tenant-b/x", [b"other"])
        async with await checked(await s3.open_from_url(f"s3://{server.bucket}/tenant", settings)) as tenant:
            await tenant.put("x/y", [b"mine"])
            assert [m.name async for m in tenant.list()] == ["x/y"]
            assert [m.name async for m in tenant.list("x")] == ["x/y"]
            assert [m.name async for m in tenant.list(start_after="x/y")] == []
            assert tenant.uri("x/y") == store.uri("tenant/x/y")
            assert bytes(await store.get("tenant/x/y")) == b"mine"

    async def test_a_large_refused_put_if_absent_is_settled_by_the_retries(self, store: ObjectStore) -> None:
        """versitygw closes the connection before it has read the body; the plain store can only say "uncertain"."""
        retrying = RetryingObjectStore(store)
        await retrying.put("large", [bytes(8 << 20)], if_absent=True)
        with pytest.raises(ObjectStoreError) as refused:
            await retrying.put("large", [bytes(8 << 20), b"x"], if_absent=True)
        assert type(refused.value).__name__ == "ObjectAlreadyExists"


class TestVersityGateway(OnServer):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[S3Server]:
        yield from started(VersityGateway)


class TestMinio(OnServer):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[S3Server]:
        yield from started(Minio)
