"""A party's own certificates while it runs: read again when their files change, and their end said weeks ahead."""

import logging
import time
from datetime import UTC, datetime, timedelta

import grpc

from . import certs

SOON = timedelta(weeks=4)  # before the end of a certificate it is said,
AGAIN = 86400.0  # and said again after so many seconds


class Credentials:
    """What a party shows. A folder that is half copied is not used: what was there before is."""

    def __init__(self, identity: certs.Identity, use: certs.Use | None, log: logging.Logger):
        self._identity, self._use, self._log = identity, use, log
        self._told = ""

    def current(self) -> certs.Identity:
        """As the folder has it now, or had it when it was last whole."""
        try:
            found = certs.again(self._identity, self._use)
        except certs.CertificateError as error:
            if str(error) != self._told:
                self._told = str(error)
                self._log.warning("certificates not read again", extra={"facts": {"why": str(error)}})
            return self._identity
        if found is not self._identity:
            self._identity, self._told = found, ""
            until = certs.ends(found.cert)
            self._log.info("certificates read again", extra={"facts": {"until": f"{until:%Y-%m-%d}"}})
        return self._identity

    def of_server(self) -> grpc.ServerCredentials:
        """For a port: every handshake shows the newest certificate."""
        shown = [self._identity]

        def newest() -> grpc.ServerCertificateConfiguration | None:
            found = self.current()
            if found is shown[0]:
                return None
            shown[0] = found
            return _configuration(found)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._identity), newest, require_client_authentication=True
        )

    def of_client(self) -> grpc.ChannelCredentials:
        own = self.current()
        return grpc.ssl_channel_credentials(own.ca, own.key, own.cert)


def _configuration(own: certs.Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(own.key, own.cert)], own.ca)


class Expiry:
    """Until when certificates hold, by the name of whose they are; says it once a day when the end is near."""

    def __init__(self, log: logging.Logger):
        self.ends: dict[str, datetime] = {}
        self._log, self._said = log, dict[str, float]()

    def note(self, who: str, pem: bytes) -> None:
        self.ends[who] = end = certs.ends(pem)
        left, now = end - datetime.now(UTC), time.monotonic()
        if left < SOON and now - self._said.get(who, -AGAIN) >= AGAIN:
            self._said[who] = now
            facts = {"whose": who, "on": f"{end:%Y-%m-%d %H:%M} UTC", "days": max(0, left.days)}
            way_out = "`cutlayer certs … --renew` makes a new one; copy its folder, nothing needs a restart"
            self._log.warning("certificate ends soon", extra={"facts": {**facts, "way_out": way_out}})

    def own(self, identity: certs.Identity, who: str) -> None:
        """A party's own certificate, and its authority's."""
        self.note(who, identity.cert)
        self.note("authority", identity.ca)

    def facts(self) -> dict[str, str]:
        """For the status."""
        return {who: end.isoformat() for who, end in sorted(self.ends.items())}
