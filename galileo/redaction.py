"""Removal of secrets and control characters from logs, error messages and command output.

No message contains a secret on purpose. But a user may put a token where another value belongs, and
an error quotes it; or an unexpected exception has it in its message; or an endpoint that got a
secret says it in its answer.
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
SECRET_CHARACTERS_MAX = 4_096
"""Longest secret that `redacted_start` is sure to hide where the text is cut."""
HIDDEN_MAX = 1_000
"""Secrets of sinks that are recognised, the latest ones."""
HIDDEN_CHARACTERS_MIN = 4
"""A shorter secret is not recognised: it is part of ordinary words."""
_hidden: dict[str, None] = {}
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def hide(*secrets: str) -> None:
    """Makes `redacted` recognise secrets that this process has read."""
    for secret in secrets:
        if len(secret) >= HIDDEN_CHARACTERS_MIN:
            _hidden[secret] = None
    for secret in list(_hidden)[:-HIDDEN_MAX]:
        _hidden.pop(secret, None)


def redacted(text: str) -> str:
    """The text with words in place of tokens, private keys, passwords in addresses, and of what
    was hidden.
    """
    for secret in sorted(_hidden, key=len, reverse=True):
        text = text.replace(secret, "(a secret)")
    return _SECRETS.sub(lambda match: _WORDS[match.lastgroup or ""], text)


def redacted_start(text: str, size: int) -> str:
    """As `redacted`, for the first characters of a text; the time does not grow with the rest."""
    part = text[: size + SECRET_CHARACTERS_MAX]
    # A secret that is cut off is not recognised, therefore characters that it may have are dropped.
    end = None if len(part) == len(text) else -SECRET_CHARACTERS_MAX
    return redacted(part)[:end][:size]


def visible(text: str, *, keep: str = "\n") -> str:
    """The text with its control characters escaped, but for those to keep."""

    def escaped(control: re.Match[str]) -> str:
        return control[0] if control[0] in keep else f"\\x{ord(control[0]):02x}"

    return _CONTROLS.sub(escaped, text)


def printable(text: str) -> str:
    """One line without secrets and control characters of a text that strangers have written."""
    return visible(redacted(text), keep="")
