"""Where a server listens: a port that is its own on every address of the host's name."""

import contextlib
import errno
import ipaddress
import socket

TRIES = 100


def own_port(listen: str) -> str:
    """HOST:PORT with a port, chosen here if it is 0, that nobody else has on any address of HOST.

    gRPC is content with those addresses of a name that are free; clients that try another one first would come to a
    stranger.
    """
    host, _, asked = listen.rpartition(":")
    addresses = _addresses(host)
    if not addresses:
        return listen
    for _ in range(TRIES):
        if port := _free(addresses, int(asked)):
            return f"{host}:{port}"
        if int(asked):
            break
    raise OSError(
        f"cannot listen on {listen}: the port is taken on one of {', '.join(text for _, text in addresses)}"
    )


def _addresses(host: str) -> list[tuple[int, str]]:
    """None of what is an address itself, nor of a name that nobody knows: gRPC says so."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host.strip("[]"))
        return []
    try:
        found = {(one[0], str(one[4][0])) for one in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}
    except OSError:
        return []
    if host == "localhost":  # gRPC knows both, whatever the hosts file says
        found |= {(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")}
    return sorted(found)


def _free(addresses: list[tuple[int, str]], port: int) -> int:
    """The port if it is free on all of them, one that is for 0, and 0 if it is taken."""
    with contextlib.ExitStack() as held:
        for family, address in addresses:
            try:
                one = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
                one.setsockopt(
                    socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
                )  # what lingers of a server before takes nothing
                one.bind((address, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return 0
            else:  # an address that this machine does not have is none to listen on
                port = one.getsockname()[1]
    return port
