"""DescribeUserScramCredentials: which mechanisms users have, with their iterations. API key 50, version 0.

Null or an empty list asks for all users. Salts and keys are never shown.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from llog.errors import LlogError
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import cluster_refusal
from llog.kafka.codec.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from llog.kafka.error_codes import ErrorCode, code_of
from llog.kafka.scram_mechanisms import CODES
from llog.security.changes import list_users
from llog.security.records import UserRecord


async def handle(call: Call) -> DescribeUserScramCredentialsResponse:
    if refusal := cluster_refusal(call):
        return DescribeUserScramCredentialsResponse(error_code=refusal, error_message="cluster authorization failed")
    request: DescribeUserScramCredentialsRequest = call.request
    try:
        users = {name: user for name, user in (await list_users(call.services.broker.context)).items() if user.scram}
    except LlogError as error:
        return DescribeUserScramCredentialsResponse(error_code=code_of(error), error_message=str(error))
    times = Counter(user.name for user in request.users or ()) or Counter(users)
    return DescribeUserScramCredentialsResponse(
        error_message=None, results=[_described(name, users.get(name), count) for name, count in times.items()]
    )


def _described(name: str, user: UserRecord | None, times: int) -> DescribeUserScramCredentialsResult:
    if times > 1:
        reason = "the request names this user more than once"
        return DescribeUserScramCredentialsResult(name, ErrorCode.DUPLICATE_RESOURCE, reason)
    if user is None:
        reason = "the user has no SCRAM credentials"
        return DescribeUserScramCredentialsResult(name, ErrorCode.RESOURCE_NOT_FOUND, reason)
    infos = [CredentialInfo(CODES[mechanism], one.iterations) for mechanism, one in sorted(user.scram.items())]
    return DescribeUserScramCredentialsResult(name, error_message=None, credential_infos=infos)


HANDLER: Final = Handler(key=50, handle=handle)
