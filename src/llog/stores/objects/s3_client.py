"""The obstore client for one bucket: address, credentials, timeouts.

The retries of obstore are off, because `RetryingObjectStore` retries. The second part rounds prefixes and offsets of
listings: the port lists by any prefix and after any name, obstore only by whole path segments. Both are rounded to a
path that sorts no later, and the adapter drops the few extra keys.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from obstore.store import S3Store

from llog.errors import InvalidArgument, ObjectStoreMisconfigured
from llog.limits import OBJECT_BYTES_MAX
from llog.stores.objects.port import check_name, is_name

if TYPE_CHECKING:
    from obstore.store import S3Credential
from typing import Final

from llog.limits import KIB

# Bytes per second below which a request counts as stalled; see `allowed_ms`.
OBJECT_TRANSFER_BYTES_PER_MS_MIN: Final = 4 * KIB
OBJECT_CONNECT_TIMEOUT_MS: Final = 3_000
OBJECT_IDLE_CONNECTIONS_MAX: Final = 64
# Shorter than the idle timeout of servers, so that a put rarely uses a connection that was just closed.
OBJECT_IDLE_CONNECTION_MS_MAX: Final = 15_000


class S3Settings(Protocol):
    """The settings of this adapter; None means the default of the AWS tools."""

    @property
    def s3_endpoint_url(self) -> str | None: ...
    @property
    def s3_region_name(self) -> str | None: ...
    @property
    def s3_access_key_id(self) -> str | None: ...
    @property
    def s3_secret_access_key(self) -> str | None: ...
    @property
    def s3_session_token(self) -> str | None: ...
    @property
    def request_timeout_ms(self) -> int | None: ...


def allowed_ms(timeout_ms: int, byte_length: int) -> int:
    return timeout_ms + byte_length // OBJECT_TRANSFER_BYTES_PER_MS_MIN


def open_client(bucket: str, settings: S3Settings, timeout_ms: int) -> S3Store:
    endpoint = settings.s3_endpoint_url
    if (settings.s3_access_key_id is None) != (settings.s3_secret_access_key is None):
        reason = "an access key without its secret, or a secret without its key: give both or neither"
        raise ObjectStoreMisconfigured("open", f"s3://{bucket}", reason)
    if endpoint is not None and (urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc):
        reason = f"the endpoint {endpoint!r} is not of the form http://host:port or https://host"
        raise ObjectStoreMisconfigured("open", f"s3://{bucket}", reason)
    given = {"endpoint": endpoint, "region": settings.s3_region_name, "credential_provider": _credentials(settings)}
    options: Any = {key: value for key, value in given.items() if value is not None}
    # AWS expects the bucket in the host name, unless its certificate would not match; other servers in the path.
    options["virtual_hosted_style_request"] = endpoint is None and "." not in bucket
    try:
        return S3Store(
            bucket,
            client_options={
                "allow_http": (endpoint or "").startswith("http://"),
                "connect_timeout": timedelta(milliseconds=min(OBJECT_CONNECT_TIMEOUT_MS, timeout_ms)),
                # Only a safety net: asyncio enforces the timeout of each request, which depends on its size.
                "timeout": timedelta(milliseconds=allowed_ms(timeout_ms, OBJECT_BYTES_MAX)),
                "pool_idle_timeout": timedelta(milliseconds=OBJECT_IDLE_CONNECTION_MS_MAX),
                "pool_max_idle_per_host": str(OBJECT_IDLE_CONNECTIONS_MAX),
            },
            retry_config={"max_retries": 0, "retry_timeout": timedelta(milliseconds=timeout_ms)},
            **options,
        )
    except Exception as error:
        raise ObjectStoreMisconfigured("open", f"s3://{bucket}", str(error).partition("\n")[0]) from error


def _credentials(settings: S3Settings) -> Callable[[], S3Credential] | None:
    """Only the given keys. Given as options, obstore would add AWS_… variables, such as the session token of another
    key."""
    key_id, secret = settings.s3_access_key_id, settings.s3_secret_access_key
    if key_id is None or secret is None:
        return None
    given: S3Credential = {"access_key_id": key_id, "secret_access_key": secret, "expires_at": None}
    if settings.s3_session_token is not None:
        given["token"] = settings.s3_session_token
    return lambda: given


def bucket_and_root(url: str) -> tuple[str, str]:
    scheme, separator, rest = url.partition("://")
    bucket, _, root = rest.strip("/").partition("/")
    if scheme != "s3" or not separator or not bucket or rest.startswith("/"):
        raise InvalidArgument("url", f"{url!r} is not of the form s3://bucket or s3://bucket/prefix")
    if root:
        check_name(root)
    return bucket, root


# -- listing -----------------------------------------------------------------------------------------------------------


# The last code point: sorts after every continuation of a prefix.
_LAST: Final = "\U0010ffff"


def is_possible_prefix(prefix: str) -> bool:
    """Whether a valid name can begin with this."""
    directory, slash, _ = prefix.rpartition("/")
    return prefix.isprintable() and (not slash or is_name(directory))


def list_prefix(key_prefix: str) -> str | None:
    """The whole segments of a prefix."""
    return _proper_path(key_prefix.rpartition("/")[0]) or None


def list_offset(key_prefix: str, start_after: str) -> str | None:
    """A key that sorts closely before every wanted key."""
    return _proper_path(max(_just_before(key_prefix), start_after)) or None


def page_end(key_prefix: str) -> str:
    """No wanted key sorts after this one."""
    return key_prefix + _LAST


def _just_before(key_prefix: str) -> str:
    if not key_prefix or key_prefix.endswith("/"):
        return ""  # whole segments: the prefix is enough
    # The largest printable ASCII character stands for every continuation.
    return key_prefix[:-1] + chr(ord(key_prefix[-1]) - 1) + "~"


def _proper_path(text: str) -> str:
    """The longest prefix of whole valid segments; a prefix never sorts after the whole."""
    kept: list[str] = []
    for segment in text.split("/"):
        if segment in ("", ".", "..") or not segment.isprintable():
            break
        kept.append(segment)
    return "/".join(kept)
