"""A listening socket, or a sentence that names the setting to change: a port that is taken is what a new user meets
first."""

from __future__ import annotations

import errno
import socket

from llog.errors import SettingsError


def listening_socket(host: str, port: int, *, of: str, backlog: int) -> socket.socket:
    """Who connects from now on waits, up to `backlog` of them, until somebody serves. `of`: how the two settings begin
    (`LLOG_HTTP`)."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, proto)
    except OSError as error:
        raise SettingsError(f"{of}_BIND_HOST", host, f"an address of this machine ({error})") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(backlog)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise SettingsError(f"{of}_BIND_HOST", host, "an address of this machine") from error
        accepted = f"a free port of {host} ({error.strerror}); 0 takes one"
        raise SettingsError(f"{of}_PORT", str(port), accepted) from error
    return listening
