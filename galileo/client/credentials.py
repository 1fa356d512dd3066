"""Credentials of a client: token and TLS files, from arguments or the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from galileo.errors import InputError
from galileo.wire.tls_credentials import TOKEN_VARIABLE, TlsFiles

TOKEN, TOKEN_FILE, TLS = TOKEN_VARIABLE, "GALILEO_TOKEN_FILE", "GALILEO_TLS"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of a client.

    Attributes:
        token: as `galileo token create` printed it. Never shown.
        token_file: file of the token, readable by its owner only, in its place.
        tls: a directory as `galileo cert issue` writes it, with certificate.pem, key.pem and
            authority.pem; "" without TLS.
        insecure: whether the token may travel unencrypted to other machines.
    """

    token: str = field(default="", repr=False)
    token_file: str | Path = ""
    tls: str | Path = ""
    insecure: bool = False

    def keys(self, environment: Mapping[str, str] | None = None) -> TlsFiles:
        """The files to read. What is not given comes from the environment, the process's own if
        absent: GALILEO_TOKEN, GALILEO_TOKEN_FILE, GALILEO_TLS.

        Raises:
            InputError: both a token and a token file were given.

        Example:
            >>> galileo.client.Credentials(token="secret").keys().token
            'secret'
        """
        known = os.environ if environment is None else environment
        token, token_file = self.token, str(self.token_file)
        if token and token_file:
            raise InputError("expected a token or a file of one, got both")
        if not token and not token_file:
            token_file = known.get(TOKEN_FILE, "")
            token = "" if token_file else known.get(TOKEN, "")
        tls = str(self.tls) or known.get(TLS, "")
        return TlsFiles.of(tls=tls, token_file=token_file, token=token, insecure=self.insecure)
