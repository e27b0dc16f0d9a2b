"""What writers tried, what they were told, and a checker that compares it with what the store holds in the end.

Independent of the client under test: the final state is read with bare gRPC calls, and the rules below are about
attempts and outcomes only.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import grpc

from llog.stores.metadata.oxia.client.proto import pb
from llog.stores.metadata.oxia.client.rpc import SERVICE


class Told(Enum):
    OK = "ok"
    CONFLICT = "conflict"
    UNCERTAIN = "uncertain"
    UNAVAILABLE = "nothing happened"


class Attempt(NamedTuple):
    key: str
    token: str
    told: Told
    version: int = -1


class Final(NamedTuple):
    value: bytes
    version: int
    modifications: int


@dataclass
class History:
    """`creations`: unconditional puts, each to a key of its own. `appends`: tokens added by CAS to one shared value."""

    creations: list[Attempt] = field(default_factory=list)
    appends: list[Attempt] = field(default_factory=list)
    tokens: itertools.count[int] = field(default_factory=itertools.count)

    def new_token(self) -> str:
        return f"t{next(self.tokens)}"

    def told(self) -> Counter[Told]:
        return Counter(attempt.told for attempt in [*self.creations, *self.appends])

    def faults(self, final: dict[str, Final], shared_key: str) -> list[str]:
        return [*self._creation_faults(final), *self._append_faults(final.get(shared_key))]

    def _creation_faults(self, final: dict[str, Final]) -> list[str]:
        faults = []
        for attempt in self.creations:
            found = final.get(attempt.key)
            if found is None:
                if attempt.told is Told.OK:
                    faults.append(f"lost: {attempt} was acknowledged and is not there")
                continue
            if attempt.told not in (Told.OK, Told.UNCERTAIN):
                faults.append(f"denied: {attempt} is there")
            if found.value != attempt.token.encode():
                faults.append(f"foreign: {attempt} reads {found}")
            if found.modifications:
                faults.append(f"repeated: {attempt} was applied {found.modifications + 1} times")
            if attempt.told is Told.OK and found.version != attempt.version:
                faults.append(f"version: {attempt} is at {found.version}")
        return faults

    def _append_faults(self, final: Final | None) -> list[str]:
        held = Counter(final.value.decode().split()) if final else Counter[str]()
        faults = [f"twice: {token} was appended {count} times" for token, count in held.items() if count > 1]
        by_token: dict[str, set[Told]] = {}
        for attempt in self.appends:
            by_token.setdefault(attempt.token, set()).add(attempt.told)
        for token, told in by_token.items():
            if Told.OK in told and token not in held:
                faults.append(f"lost: append of {token} was acknowledged and is not there")
            if token in held and not told & {Told.OK, Told.UNCERTAIN}:
                faults.append(f"denied: append of {token} is there, but was told {told}")
        versions = [attempt.version for attempt in self.appends if attempt.told is Told.OK]
        faults += [f"version {version} was given twice" for version, n in Counter(versions).items() if n > 1]
        if set(held) - by_token.keys():
            faults.append(f"foreign tokens: {set(held) - by_token.keys()}")
        return faults


async def read_final(address: str, shard: int, keys: list[str], seconds: float = 60.0) -> dict[str, Final]:
    """Everything under `keys`, once the server answers."""
    deadline = asyncio.get_running_loop().time() + seconds
    async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        read = channel.unary_stream(SERVICE + "Read", pb.ReadRequest.SerializeToString, pb.ReadResponse.FromString)
        found: dict[str, Final] = {}
        for at in range(0, len(keys), 500):
            request = pb.ReadRequest(shard=shard)
            part = keys[at : at + 500]
            for key in part:
                request.gets.add(key=key, include_value=True)
            while True:
                try:
                    answers = [answer async for frame in read(request, timeout=10) for answer in frame.gets]
                    break
                except grpc.aio.AioRpcError:
                    if asyncio.get_running_loop().time() > deadline:
                        raise
                    await asyncio.sleep(0.2)
            for key, answer in zip(part, answers, strict=True):
                if answer.status == pb.OK:
                    version = answer.version
                    found[key] = Final(answer.value, version.version_id, version.modifications_count)
    return found
