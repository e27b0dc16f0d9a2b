"""The kinds of values of settings: parsing, accepted values and formatting.

Every setting of the table has a kind, which parsing, error messages, generated pages and `llog settings` use. `read`
and `check` raise `ValueError` with a reason, which does not repeat a value that may hold a secret (URLs, tokens).
`read` parses the text of `write`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from llog.limits import KIB
from llog.settings.units import format_bytes, format_ms, parse_bytes, parse_ms
from llog.settings.urls import MASK, check_bucket, mask_url, normalise_url, parse_host_port

SETTINGS_TEXT_BYTES_MAX: Final = 4 * KIB
# A segment of the root must leave room for topic, partition and offset within METADATA_KEY_BYTES_MAX.
SETTINGS_ROOT_PREFIX_BYTES_MAX: Final = 100
SETTINGS_COMPACTOR_TARGETS_MAX: Final = 10_000
# A shorter bearer token could be guessed.
SETTINGS_TOKEN_CHARACTERS_MIN: Final = 16


SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


class CompactorTarget(NamedTuple):
    """A log that the compactor handles without discovering it."""

    topic: str
    partition: int


@dataclass(frozen=True)
class ValueKind:
    accepted: str
    """Accepted values, for error messages and the reference page."""
    read: Callable[[str], Any]
    """Text to value, for variables and flags."""
    check: Callable[[Any], Any]
    """Checks a value from an argument or from `read`, and returns it."""
    write: Callable[[Any], str] = str
    show: Callable[[Any], str] | None = None
    """Formats a value for output if that differs from `write` (a URL without its password)."""

    def convert(self, given: object) -> Any:
        return self.check(self.read(given.strip()) if isinstance(given, str) else given)

    def display(self, value: Any) -> str:
        return (self.show or self.write)(value)


def integer(low: int, high: int) -> ValueKind:
    def read(text: str) -> int:
        if not re.fullmatch(r"-?[0-9][0-9_]{0,23}", text, re.ASCII):
            raise ValueError("not a whole number")
        return int(text)

    return ValueKind(f"a whole number from {low:,} to {high:,}", read, _between(low, high, str))


def size(low: int, high: int) -> ValueKind:
    accepted = f"{format_bytes(low)} to {format_bytes(high)}; bytes, or with a unit"
    return ValueKind(accepted, parse_bytes, _between(low, high, format_bytes), format_bytes)


def duration(low: int, high: int) -> ValueKind:
    accepted = f"{format_ms(low)} to {format_ms(high)}; milliseconds, or with a unit"
    return ValueKind(accepted, parse_ms, _between(low, high, format_ms), format_ms)


def choice(*names: str) -> ValueKind:
    def check(value: object) -> str:
        if value not in names:
            raise ValueError("not one of them")
        return str(value)

    return ValueKind(" or ".join(f"`{name}`" for name in names), str, check)


def text(accepted: str, pattern: str = r".+") -> ValueKind:
    """Printable text without a line break that matches `pattern` completely."""

    def check(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"a {type(value).__name__}, not text")
        if len(value.encode("utf-8", "surrogatepass")) > SETTINGS_TEXT_BYTES_MAX:
            raise ValueError(f"longer than {SETTINGS_TEXT_BYTES_MAX} bytes")
        if not value.isprintable():
            raise ValueError("has an unprintable character")
        if not re.fullmatch(pattern, value):
            raise ValueError("does not look like one")
        return value

    return ValueKind(accepted, str, check)


def _between(low: int, high: int, write: Callable[[int], str]) -> Callable[[Any], int]:
    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"a {type(value).__name__}, not a whole number")
        if value < low:
            raise ValueError(f"less than {write(low)}")
        if value > high:
            raise ValueError(f"more than {write(high)}")
        return value

    return check


def _checked_text(check: Callable[[str], str]) -> Callable[[Any], str]:
    def checked(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"a {type(value).__name__}, not text")
        return check(value)

    return checked


_BOOLEANS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def _read_boolean(value: str) -> bool:
    try:
        return _BOOLEANS[value.lower()]
    except KeyError:
        raise ValueError("not one of them") from None


def _check_boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"a {type(value).__name__}, not a boolean")
    return value


def _check_path(value: object) -> Path:
    """Expands `~` and makes a relative path absolute."""
    if not isinstance(value, str | Path):
        raise ValueError(f"a {type(value).__name__}, not a path")
    if "\0" in str(value) or not str(value).isprintable():
        raise ValueError("has an unprintable character")
    try:
        return Path(value).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise ValueError(f"cannot be made absolute: {error}") from None


def _check_data_dir(value: object) -> Path:
    path = _check_path(value)
    if re.search(r"[?#%]", str(path)):
        raise ValueError("has a character that cannot stand in a store's URL")
    return path


def _check_http_url(value: str) -> str:
    scheme, separator, rest = value.rstrip("/").partition("://")
    if not separator or scheme.lower() not in ("http", "https"):
        raise ValueError("does not begin with http:// or https://")
    parse_host_port(rest.partition("/")[0], 443 if scheme.lower() == "https" else 80)
    return f"{scheme.lower()}://{rest}"


def _check_registry_url(value: str) -> str:
    """An HTTP URL that may hold `user:password@` and a path, but nothing behind it."""
    scheme, separator, rest = value.partition("://")
    host, slash, path = rest.partition("/")
    credentials, at, host = host.rpartition("@")
    if at and not all(credentials.partition(":")):
        raise ValueError("has a user without a password before the @")
    if "?" in value or "#" in value or not value.isprintable() or " " in value:
        raise ValueError("has a query, a fragment, a space or an unprintable character")
    url = _check_http_url(f"{scheme}{separator}{host}{slash}{path}")
    return url.replace("://", f"://{credentials}{at}", 1)


def _mask_login(value: str) -> str:
    """The URL without user and password: a lone user may be a token."""
    return re.sub(r"//.*@", f"//{MASK}@", mask_url(value), flags=re.DOTALL)


def _check_token(value: object) -> str:
    token: str = SECRET.check(value)
    if len(token) < SETTINGS_TOKEN_CHARACTERS_MIN:
        raise ValueError(f"has {len(token)} characters, too few to be secret")
    return token


def _check_root_prefix(value: str) -> str:
    if len(value) > SETTINGS_ROOT_PREFIX_BYTES_MAX:
        raise ValueError(f"longer than {SETTINGS_ROOT_PREFIX_BYTES_MAX} characters")
    for segment in value.split("/"):
        if not re.fullmatch(r"[A-Za-z0-9._-]+", segment, re.ASCII) or segment in (".", ".."):
            raise ValueError("has an empty, dotted or unusual segment")
    if value.startswith("__oxia"):
        raise ValueError("is in Oxia's own space")
    return value


def _check_address(value: str) -> str:
    parse_host_port(value, 1)  # the port is optional
    return value


def _check_advertised(value: str) -> str:
    host, _ = parse_host_port(value, 1)  # the port is optional
    if is_wildcard(host):
        raise ValueError("no client can connect to it")
    return value


def is_wildcard(host: str) -> bool:
    """Whether a listener there accepts connections at every address of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _read_targets(value: str) -> tuple[CompactorTarget, ...]:
    targets = []
    for part in value.split(","):
        topic, separator, partition = part.strip().rpartition(":")
        if not separator or not re.fullmatch(r"[0-9]{1,10}", partition, re.ASCII):
            raise ValueError(f"{part.strip()!r} is not of the form topic:partition")
        targets.append(CompactorTarget(topic, int(partition)))
    return tuple(targets)


def _check_targets(value: object) -> tuple[CompactorTarget, ...]:
    """Valid targets in the given order, without repetitions."""
    if not isinstance(value, tuple | list):
        raise ValueError(f"a {type(value).__name__}, not a list of (topic, partition)")
    if len(value) > SETTINGS_COMPACTOR_TARGETS_MAX:
        raise ValueError(f"names more than {SETTINGS_COMPACTOR_TARGETS_MAX} partitions")
    targets = []
    for item in value:
        try:
            topic, partition = item
        except (TypeError, ValueError):
            raise ValueError(f"{item!r} is not (topic, partition)") from None
        if not isinstance(topic, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic, re.ASCII):
            raise ValueError(f"{topic!r} is not a topic name")
        if topic in (".", "..", "wal-shared"):
            raise ValueError(f"{topic!r} cannot be a topic name")
        if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition < 2**31:
            raise ValueError(f"{partition!r} is not a partition number")
        targets.append(CompactorTarget(topic, partition))
    return tuple(dict.fromkeys(targets))


def _write_targets(value: tuple[CompactorTarget, ...]) -> str:
    return ",".join(f"{topic}:{partition}" for topic, partition in value)


def _read_list(separator: str) -> Callable[[str], tuple[str, ...]]:
    return lambda text: tuple(dict.fromkeys(part.strip() for part in text.split(separator) if part.strip()))


def _checked_list(check: Callable[[str], str]) -> Callable[[object], tuple[str, ...]]:
    def checked(value: object) -> tuple[str, ...]:
        if not isinstance(value, tuple | list):
            raise ValueError(f"a {type(value).__name__}, not a list")
        return tuple(dict.fromkeys(check(one) for one in value))

    return checked


def _check_user(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"User:.+", value) or not value.isprintable():
        raise ValueError(f"{value!r:.100} does not look like `User:name`")
    return value


def _check_mechanism(value: object) -> str:
    if value not in SASL_MECHANISMS:
        raise ValueError(f"{value!r:.100} is none of {', '.join(SASL_MECHANISMS)}")
    return str(value)


def _check_key_source(value: str) -> str:
    """Keys that arrive over a connection that others can change would let these sign tokens."""
    if value.startswith("http://"):
        raise ValueError("needs https: keys that others can change on their way are no proof")
    if not value or not value.isprintable():
        raise ValueError("does not look like one")
    return value


BOOLEAN: Final = ValueKind(
    "`1`, `true`, `yes`, `on` or `0`, `false`, `no`, `off`", _read_boolean, _check_boolean, lambda v: str(v).lower()
)
PATH: Final = ValueKind("a path; `~` is the home directory", str, _check_path)
DATA_DIR: Final = ValueKind("a path without `?`, `#` and `%`; `~` is the home directory", str, _check_data_dir)
STORE_URL: Final = ValueKind("a store's URL, `scheme://…`", str, _checked_text(normalise_url), show=mask_url)
HTTP_URL: Final = ValueKind(
    "`http://host[:port]` or `https://host[:port]`", str, _checked_text(_check_http_url), show=mask_url
)
REGISTRY_URL: Final = ValueKind(
    "`http(s)://[user:password@]host[:port][/path]`", str, _checked_text(_check_registry_url), show=_mask_login
)
HOST_PORT: Final = ValueKind("`host:port`", str, _checked_text(_check_address))
ADVERTISED: Final = ValueKind(
    "`host:port`, or `host` with the port that is listened on", str, _checked_text(_check_advertised)
)
BUCKET: Final = ValueKind("a bucket's name", str, _checked_text(check_bucket))
HOST: Final = text("a host name or address to listen on", r"[A-Za-z0-9.:_%-]+")
PORT: Final = integer(0, 65_535)
IDENTIFIER: Final = text("1 to 128 letters, digits, `.`, `_`, `-`, `:`, `@`", r"[A-Za-z0-9._:@-]{1,128}")
REGION: Final = text("a region's name, such as `eu-central-1`", r"[A-Za-z0-9-]{1,64}")
ZONE: Final = text("1 to 64 letters, digits, `.`, `_`, `-`", r"[A-Za-z0-9._-]{1,64}")
NAMESPACE: Final = text("1 to 128 letters, digits, `.`, `_`, `-`", r"[A-Za-z0-9._-]{1,128}")
SECRET: Final = text("text without spaces", r"\S+")
TOKEN: Final = ValueKind(
    f"at least {SETTINGS_TOKEN_CHARACTERS_MIN} characters without spaces, as `openssl rand -hex 32` makes them",
    str,
    _check_token,
)
ROOT_PREFIX: Final = ValueKind(
    "segments of letters, digits, `.`, `_`, `-`, joined by `/`", str, _checked_text(_check_root_prefix)
)
USERS: Final = ValueKind("`User:name`, separated by semicolons", _read_list(";"), _checked_list(_check_user), ";".join)
MECHANISMS: Final = ValueKind(
    f"{', '.join(f'`{name}`' for name in SASL_MECHANISMS)}, separated by commas",
    _read_list(","),
    _checked_list(_check_mechanism),
    ",".join,
)
KEY_SOURCE: Final = ValueKind("a file, or an `https://` URL", str, _checked_text(_check_key_source))
TARGETS: Final = ValueKind("`topic:partition`, separated by commas", _read_targets, _check_targets, _write_targets)
