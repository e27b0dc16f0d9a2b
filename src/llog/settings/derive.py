"""Settings that follow from others, and settings that must agree.

A default such as "500 ms on S3, 10 ms on a disk" depends on another setting, and a store can be named in two ways.
Each rule is a pure function over a `Draft`, and the table in `llog.settings` names it. A rule reads other settings only
through the draft, so the order of the table does not matter; a check names every variable of a contradiction.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from llog.errors import SettingsError
from llog.limits import COMPACTOR_BACKUP_INTERVAL_MS_MAX, COMPACTOR_BACKUP_INTERVAL_MS_MIN
from llog.settings.resolve import Check, Derive, Derived, Draft
from llog.settings.urls import (
    LOCAL_SCHEMES,
    OXIA_SCHEMES,
    oxia_address,
    oxia_url,
    parse_oxia_url,
    scheme_of,
)


def data_dir(draft: Draft) -> Derived:
    """The user's data directory, so that every command finds the same log from any working directory."""
    base = draft.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(base):
        return Derived(Path(base) / "leaderless-log", ("XDG_DATA_HOME",))
    home = draft.environ.get("HOME") or "~"  # without HOME, the password database knows
    return Derived(Path(home) / ".local" / "share" / "leaderless-log", ("HOME",))


def metadata_url(draft: Draft) -> Derived:
    address = draft.value("oxia_service_address")
    if address is None:
        return Derived(f"lmdb://{draft.value('data_dir') / 'metadata'}", ("LLOG_DATA_DIR",))
    names = ["LLOG_OXIA_SERVICE_ADDRESS"]
    names += ["LLOG_OXIA_NAMESPACE"] if draft.given("oxia_namespace") else []
    names += ["LLOG_OXIA_TLS_CA_FILE"] if draft.given("oxia_tls_ca_file") else []
    url = oxia_url(address, draft.value("oxia_namespace"), tls=draft.value("oxia_tls_ca_file") is not None)
    return Derived(url, tuple(names))


def objects_url(draft: Draft) -> Derived:
    bucket = draft.value("s3_bucket")
    if bucket is None:
        return Derived(f"file://{draft.value('data_dir') / 'objects'}", ("LLOG_DATA_DIR",))
    return Derived(f"s3://{bucket}", ("LLOG_S3_BUCKET",))


def wal_url(draft: Draft) -> Derived:
    return Derived(draft.value("objects_url"), ("LLOG_OBJECTS_URL",))


def oxia_namespace(draft: Draft) -> Derived | None:
    if draft.given("metadata_url") and scheme_of(draft.value("metadata_url")) in OXIA_SCHEMES:
        namespace = parse_oxia_url(draft.value("metadata_url")).namespace
        if namespace:
            return Derived(namespace, ("LLOG_METADATA_URL",))
    return None


def client_identifier(_: Draft) -> Derived:
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64] or "host"
    return Derived(f"{host}-{os.getpid()}", ("host name", "process id"))


def compactor_id(draft: Draft) -> Derived:
    return Derived(draft.value("client_identifier"), ("LLOG_CLIENT_IDENTIFIER",))


def compactor_min_age_ms(draft: Draft) -> Derived:
    return Derived(2 * draft.value("request_timeout_ms"), ("LLOG_REQUEST_TIMEOUT_MS",))


def compactor_backup_interval_ms(draft: Draft) -> Derived:
    interval_ms = draft.value("vacuum_grace_ms") // 4
    bounded_ms = min(max(interval_ms, COMPACTOR_BACKUP_INTERVAL_MS_MIN), COMPACTOR_BACKUP_INTERVAL_MS_MAX)
    return Derived(bounded_ms, ("LLOG_VACUUM_GRACE_MS",))


def by_place(url_setting: str, *, local: int, remote: int) -> Derive:
    """One default for a store on this machine, another for a remote store."""

    def derive(draft: Draft) -> Derived:
        is_local = scheme_of(draft.value(url_setting)) in LOCAL_SCHEMES
        return Derived(local if is_local else remote, (f"LLOG_{url_setting.upper()}",))

    return derive


# -- settings that must agree ---------------------------------------------------------------------------------------


def one_metadata_store(draft: Draft) -> Sequence[SettingsError]:
    """If both the URL and the address are given, they must name the same store."""
    if not draft.may_contradict("metadata_url", "oxia_service_address"):
        return ()
    url, address = draft.value("metadata_url"), draft.value("oxia_service_address")
    if scheme_of(url) in OXIA_SCHEMES and parse_oxia_url(url).addresses == (oxia_address(address),):
        return ()
    return (_contradiction(draft, "metadata_url", "oxia_service_address"),)


def one_oxia_namespace(draft: Draft) -> Sequence[SettingsError]:
    if not (draft.given("metadata_url") and draft.given("oxia_namespace")):
        return ()
    url = draft.value("metadata_url")
    if scheme_of(url) not in OXIA_SCHEMES or parse_oxia_url(url).namespace in ("", draft.value("oxia_namespace")):
        return ()
    return (_contradiction(draft, "metadata_url", "oxia_namespace"),)


def one_object_store(draft: Draft) -> Sequence[SettingsError]:
    if not draft.may_contradict("objects_url", "s3_bucket"):
        return ()
    if draft.value("objects_url") == f"s3://{draft.value('s3_bucket')}":
        return ()
    return (_contradiction(draft, "objects_url", "s3_bucket"),)


def whole_credentials(draft: Draft) -> Sequence[SettingsError]:
    """A key id without its secret, or a secret without its key id, cannot sign a request."""
    pair = ("s3_access_key_id", "s3_secret_access_key")
    present = [name for name in pair if draft.value(name) is not None]
    if len(present) != 1:
        return ()
    [missing] = set(pair) - set(present)
    wanted = f"also needs LLOG_{missing.upper()} (or AWS_{missing.removeprefix('s3_').upper()})"
    return (SettingsError(f"LLOG_{present[0].upper()}", draft.shown(present[0]), wanted),)


def one_registry_login(draft: Draft) -> Sequence[SettingsError]:
    """The registry gets a token, or a user with a password."""
    user, password = draft.value("schema_registry_user"), draft.value("schema_registry_password")
    if (user is None) != (password is None):
        present, missing = ("user", "password") if password is None else ("password", "user")
        name = f"schema_registry_{present}"
        wanted = f"also needs LLOG_SCHEMA_REGISTRY_{missing.upper()}"
        return (SettingsError(draft.called(name), draft.shown(name), wanted),)
    if user is not None and draft.value("schema_registry_token") is not None:
        names = [draft.called(f"schema_registry_{name}") for name in ("user", "token")]
        shown = [draft.shown(f"schema_registry_{name}") for name in ("user", "token")]
        return (
            SettingsError(" and ".join(names), " and ".join(shown), "set one of them: the registry takes one login"),
        )
    return ()


def buffer_holds_a_batch(draft: Draft) -> Sequence[SettingsError]:
    if draft.value("batch_max_buffer_bytes") >= draft.value("batch_max_bytes"):
        return ()
    wanted = f"must be at least LLOG_BATCH_MAX_BYTES, which is {draft.shown('batch_max_bytes')}"
    return (SettingsError(draft.called("batch_max_buffer_bytes"), draft.shown("batch_max_buffer_bytes"), wanted),)


def bearer_tokens_have_keys(draft: Draft) -> Sequence[SettingsError]:
    """Without issuer and audience, a token that the provider signed for another service would be accepted."""
    if "OAUTHBEARER" not in draft.value("kafka_sasl_mechanisms"):
        return ()
    needed = ("oauth_jwks", "oauth_issuer", "oauth_audience")
    missing = [f"LLOG_{name.upper()}" for name in needed if draft.value(name) is None]
    if not missing:
        return ()
    name = "kafka_sasl_mechanisms"
    return (SettingsError(draft.called(name), draft.shown(name), f"OAUTHBEARER also needs {' and '.join(missing)}"),)


def client_certificates_are_checked(draft: Draft) -> Sequence[SettingsError]:
    wanted = draft.value("tls_client_auth")
    needed = ("tls_client_ca_file", "tls_cert_file")
    missing = [f"LLOG_{name.upper()}" for name in needed if draft.value(name) is None]
    if wanted == "none" or not missing:
        return ()
    return (SettingsError(draft.called("tls_client_auth"), wanted, f"also needs {' and '.join(missing)}"),)


def _contradiction(draft: Draft, first: str, second: str) -> SettingsError:
    return SettingsError(
        f"{draft.called(first)} and {draft.called(second)}",
        f"{draft.shown(first)} and {draft.shown(second)}",
        "they name different stores; set one of them, or both to the same store",
    )


CHECKS: Final[tuple[Check, ...]] = (
    one_metadata_store,
    one_oxia_namespace,
    one_object_store,
    whole_credentials,
    one_registry_login,
    buffer_holds_a_batch,
    bearer_tokens_have_keys,
    client_certificates_are_checked,
)
