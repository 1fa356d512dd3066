"""Removal of secrets from logs, error messages and command output.

No message contains a secret on purpose. But a user may put a token where another value belongs, and
an error quotes it; or an unexpected exception has it in its message.
"""

from __future__ import annotations

import re

_SECRETS = re.compile(
    r"(?P<token>glt_[A-Za-z0-9_-]+)"
    # A key in PEM, as it stands or as `repr` shows it.
    r"|(?P<key>-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[A-Za-z0-9+/=\s]|\\[nr])*"
    r"(?:-----END [A-Z ]*PRIVATE KEY-----)?)"
    # `https://user:password@host`; the last @ counts, since a password may have some.
    r"|(?<=://)(?P<password>[^/\s'\"]+)(?=@)"
    # `sc://host:15002/;token=...` of Spark Connect.
    r"|(?<=;token=)(?P<bearer>[^;\s'\"]+)"
)
_WORDS = {"token": "(a token)", "key": "(a key)", "password": "(a password)", "bearer": "(a token)"}


def redacted(text: str) -> str:
    """The text with a word in place of each token, private key, and password in an address."""
    return _SECRETS.sub(lambda match: _WORDS[match.lastgroup or ""], text)
