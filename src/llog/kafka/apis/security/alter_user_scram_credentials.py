"""AlterUserScramCredentials: set and remove passwords. API key 51, version 0.

The client salts the password, so it never leaves it; this side keeps what verifies it. A user that names no credential
and no HTTP token any more is deleted. Users that the request names twice for one mechanism are refused.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from llog.audit_log import Principal, act_as
from llog.errors import InvalidArgument, LlogError
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import cluster_refusal
from llog.kafka.codec.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from llog.kafka.error_codes import ErrorCode, Refusal, code_of
from llog.kafka.scram_mechanisms import MECHANISMS
from llog.security.changes import NoSuchUser, check_user_name, remove_scram, set_scram
from llog.security.records import ScramCredential
from llog.security.scram import HASHES, ITERATIONS_MAX, ITERATIONS_MIN, credential_of

SALT_BYTES_MAX: Final = 256
SALTED_BYTES_MAX: Final = 64
USERS_PER_REQUEST_MAX: Final = 100


async def handle(call: Call) -> AlterUserScramCredentialsResponse:
    request: AlterUserScramCredentialsRequest = call.request
    named: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
    users = dict.fromkeys(one.name for one in named)
    refusal = cluster_refusal(call)
    if refusal is ErrorCode.NONE and len(users) > USERS_PER_REQUEST_MAX:
        refusal = ErrorCode.INVALID_REQUEST
    if refusal is not ErrorCode.NONE:
        return _answer({name: Refusal(refusal, refusal.name.lower().replace("_", " ")) for name in users})
    act_as(Principal(call.client.principal, call.client.host))
    twice = {pair[0] for pair, count in Counter((one.name, one.mechanism) for one in named).items() if count > 1}
    outcomes: dict[str, LlogError | None] = {
        name: Refusal(ErrorCode.DUPLICATE_RESOURCE, "a mechanism of this user is named twice") for name in twice
    }
    for name in users:
        if name not in twice:
            outcomes[name] = await _altered(call, name)
    try:
        await call.services.broker.security.changed()
    except LlogError as error:
        outcomes = {name: outcome or error for name, outcome in outcomes.items()}
    return _answer({name: outcomes[name] for name in users})


def _answer(outcomes: dict[str, LlogError | None] | dict[str, Refusal]) -> AlterUserScramCredentialsResponse:
    results = []
    for name, outcome in outcomes.items():
        code, message = (ErrorCode.NONE, None) if outcome is None else (code_of(outcome), str(outcome))
        results.append(AlterUserScramCredentialsResult(name, code, message))
    return AlterUserScramCredentialsResponse(results=results)


async def _altered(call: Call, name: str) -> LlogError | None:
    """Why the user's credentials were not changed. All are checked before one is."""
    request: AlterUserScramCredentialsRequest = call.request
    context = call.services.broker.context
    try:
        _check_name(name)
        deleted = [_mechanism(one.mechanism) for one in request.deletions if one.name == name]
        upserted = {_mechanism(one.mechanism): _credential(one) for one in request.upsertions if one.name == name}
        if upserted:
            await set_scram(context, name, upserted, create=True)
        for mechanism in deleted:
            await remove_scram(context, name, mechanism)
    except NoSuchUser:
        return Refusal(ErrorCode.RESOURCE_NOT_FOUND, "the user has no such credential")
    except LlogError as error:
        return error
    return None


def _check_name(name: str) -> None:
    try:
        check_user_name(name)
    except InvalidArgument as error:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)) from error


def _mechanism(code: int) -> str:
    if code not in MECHANISMS:
        raise Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"unknown mechanism {code}")
    return MECHANISMS[code]


def _credential(wanted: ScramCredentialUpsertion) -> ScramCredential:
    salt, salted = bytes(wanted.salt), bytes(wanted.salted_password)
    if not ITERATIONS_MIN <= wanted.iterations <= ITERATIONS_MAX:
        reason = f"iterations must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, reason)
    if not 1 <= len(salt) <= SALT_BYTES_MAX or not 1 <= len(salted) <= SALTED_BYTES_MAX:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the salt or the salted password has no valid length")
    return credential_of(salted, salt, wanted.iterations, HASHES[_mechanism(wanted.mechanism)])


HANDLER: Final = Handler(key=51, handle=handle)
