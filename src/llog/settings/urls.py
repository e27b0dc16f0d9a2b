"""Store URLs: checks, a normal form for comparison, and output without passwords.

A store is named by its URL or by older settings (`LLOG_OXIA_SERVICE_ADDRESS`, `LLOG_S3_BUCKET`); both are converted to
one form to find out whether they name the same store. `mask_url` hides the password in any text, well-formed or not; in
doubt it hides too much. Any scheme is accepted here; `llog.wiring` knows the installed stores.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from llog.limits import KIB

SETTINGS_URL_BYTES_MAX: Final = 2 * KIB

MASK: Final = "***"
OXIA_PORT: Final = 6648
OXIA_SCHEMES: Final = ("oxia", "oxia+tls")
PATH_SCHEMES: Final = ("file", "lmdb")
# Stores on this machine: a put costs no money and a read no network round trip.
LOCAL_SCHEMES: Final = ("file", "lmdb", "memory")

_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9a-f:.]+(?:%[A-Za-z0-9._-]+)?", re.ASCII)
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9.-]*(?:\+[a-z0-9.-]+)*", re.ASCII)
# From the first colon after // to the last @, so that a password with an unescaped / or @ is hidden completely. A later
# @ (in a query) hides too much, which is fine.
_USER_INFO: Final = re.compile(r"(//[^:/?#@]*):.*@", re.DOTALL)
_SECRET_PARAMETER: Final = re.compile(r"(?i)([?&;\s][a-z_-]*(?:password|passwd|pwd|secret|token|key)[a-z_-]*=)[^&;\s]*")


class OxiaTarget(NamedTuple):
    addresses: tuple[str, ...]
    """`host:port` of the first servers to contact; one is enough, since it knows the others."""
    namespace: str
    """Empty if the URL has none."""
    tls: bool


def mask_url(text: str) -> str:
    """`text` with every possible password replaced by ***."""
    return _SECRET_PARAMETER.sub(rf"\1{MASK}", _USER_INFO.sub(rf"\1:{MASK}@", text))


def scheme_of(url: str) -> str:
    return url.partition(":")[0].lower()


def normalise_url(text: str) -> str:
    """Normal form of a store URL: scheme in lower case, no slash at the end. Raises `ValueError`."""
    if len(text.encode("utf-8", "surrogatepass")) > SETTINGS_URL_BYTES_MAX:
        raise ValueError(f"longer than {SETTINGS_URL_BYTES_MAX} bytes")
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    # A directory name may contain spaces; stores use paths without percent-decoding.
    if not text.isprintable() or (" " in text and scheme not in PATH_SCHEMES):
        raise ValueError("has a space or an unprintable character")
    if not separator or not _SCHEME.fullmatch(scheme):
        raise ValueError("not a URL of the form scheme://…")
    url = f"{scheme}://{rest.rstrip('/')}"
    if scheme in PATH_SCHEMES:
        return f"{scheme}://{_normalise_path(scheme, rest)}"
    if scheme == "s3":
        check_bucket(rest.partition("/")[0])
    elif scheme in OXIA_SCHEMES:
        parse_oxia_url(url)
    return url


def check_bucket(name: str) -> str:
    """A part of the rule of S3 for bucket names, enough to refuse a path or a URL."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]", name, re.ASCII):
        # The name is not repeated, because it may be a URL with a password.
        raise ValueError("the bucket's name is not 3 to 255 letters, digits, dots, dashes, underscores")
    return name


def parse_host_port(text: str, default_port: int | None = None) -> tuple[str, int]:
    """`host:port` or `[v6]:port`. Raises `ValueError` with the reason."""
    parts = _split("//" + text)
    if parts.path or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("not of the form host:port")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("the port is not a number from 1 to 65535") from None
    if not parts.hostname:
        raise ValueError("has no host")
    if not _HOST.fullmatch(parts.hostname):
        raise ValueError("the host is not a name or an address")
    if port is None:
        if default_port is None:
            raise ValueError("has no port: host:port is expected")
        port = default_port
    if port == 0:
        raise ValueError("the port is not a number from 1 to 65535")
    return parts.hostname, port


def format_host_port(host: str, port: int) -> str:
    """What `parse_host_port` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_oxia_url(url: str) -> OxiaTarget:
    """`oxia://host[:port][,host[:port]…][/namespace]`, the same with `oxia+tls` for TLS."""
    parts = _split(url)
    if parts.scheme not in OXIA_SCHEMES:
        raise ValueError("an Oxia URL begins with oxia:// or oxia+tls://")
    if parts.query or parts.fragment:
        raise ValueError("an Oxia URL has no query: oxia://host:port/namespace")
    namespace = parts.path.strip("/")
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise ValueError(
            "the namespace after the address has letters, digits, '.', '_', '-': oxia://host:port/namespace"
        )
    addresses = tuple(oxia_address(address) for address in parts.netloc.split(","))
    return OxiaTarget(addresses, namespace, parts.scheme == "oxia+tls")


def oxia_address(text: str) -> str:
    """`host[:port]` with the port written out."""
    host, port = parse_host_port(text, OXIA_PORT)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def oxia_url(address: str, namespace: str, *, tls: bool) -> str:
    """The URL of a service address and a namespace."""
    suffix = "" if namespace in ("", "default") else "/" + namespace
    return f"oxia{'+tls' if tls else ''}://{oxia_address(address)}{suffix}"


def _normalise_path(scheme: str, rest: str) -> str:
    """One spelling per directory, so that a URI below it is recognised; options after `?` are not changed."""
    path, mark, options = rest.partition("?") if scheme == "lmdb" else (rest, "", "")
    if not path.startswith("/"):
        raise ValueError(f"needs an absolute path, with three slashes: {scheme}:///path")
    if ".." in path.split("/"):
        raise ValueError("the path may not hold '..'")
    path = posixpath.normpath("/" + path.lstrip("/"))
    if path == "/":
        raise ValueError("the root of the file system is not a place for a store")
    return path + mark + options


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # its message may contain a password
        raise ValueError("the address is not well formed") from None
