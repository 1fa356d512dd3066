"""A lexer that finds the SPARQL keywords that reach beyond a graph, without parsing the text.

The grammar of the engine has no tokens: `ASKFROM<a>` is `ASK FROM <a>`, and where the prefix `:` is
declared, `service:a {` may be `SERVICE :a {`. So the lexer searches for keywords within each word
and prefix, and accepts one where a name can follow. Only `<` is ambiguous: it begins an IRI or is
"less than", and what is a string or comment after it depends on that. The lexer follows both
readings; they soon join again, and no position is read twice, so the time is proportional to the
length of the text.

If it finds no keyword, there is none. If it finds one, the text may also be wrong in other ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from galileo.rdf import terms

# Characters beyond ASCII occur only in names, strings, IRIs and comments.
_PART = r"(?:[A-Za-z0-9_-]|[^\x00-\x7f]|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8})"
_ESCAPED = r"%[0-9A-Fa-f]{2}|\\[_~.\-!$&'()*+,;=/?#@%]"
_LOCAL = rf"(?:[A-Za-z0-9_:-]|[^\x00-\x7f]|{_ESCAPED})"
_FIRST = rf"(?:[A-Za-z0-9_:]|[^\x00-\x7f]|{_ESCAPED})"
_NAME = rf"(?P<local>:(?:{_FIRST}{_LOCAL}*(?:\.+{_LOCAL}+)*)?)"
_WORD = (
    rf"(?:(?P<word>(?![0-9-]){_PART}+(?:\.+{_PART}+)*){_NAME}?|{_NAME.replace('local', 'bare')})"
)
_TOKEN = re.compile(
    r"[ \t\r\n]+|#[^\r\n]*"
    r"|'''(?:'{0,2}(?:[^'\\]|\\[\s\S]))*'''"
    r'|"""(?:"{0,2}(?:[^"\\]|\\[\s\S]))*"""'
    r"|(?P<short>'(?:[^'\\\r\n]|\\[^\r\n])*'"
    r'|"(?:[^"\\\r\n]|\\[^\r\n])*")'
    r"|[?$](?:[A-Za-z0-9_]|[^\x00-\x7f])+"
    r"|@[A-Za-z]+(?:-+[A-Za-z0-9]+)*"
    rf"|[0-9]+|{_WORD}|[\s\S]"
)
_IRI = re.compile(r"<(?:[^<>\"{}|^`\\\x00-\x20]|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8})*>")
# `<` and a scheme with `://` cannot be "less than" and a prefix.
_CERTAIN = re.compile(r"<[A-Za-z][A-Za-z0-9+.-]*://")
_KEYWORD = re.compile("service|from|load", re.IGNORECASE)
_GAP = r"(?:[ \t\r\n]|#[^\r\n]*(?:[\r\n]|\Z))*+"
_FOLLOWED = re.compile(rf"{_GAP}(?:(?:silent|named){_GAP})?(?:[<?$]|{_WORD})", re.IGNORECASE)
_AFTER_NAME = re.compile(
    rf"{_GAP}(?:\{{|\Z|(?:from|where|group|having|order|limit|offset|values))", re.IGNORECASE
)
_OPEN, _CLOSE = frozenset("{(["), frozenset("})]")
_UNICODE = re.compile(r"\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}")
_QUOTES = frozenset("'\"")
_DECLARES = "prefix"
_PROLOGUE = frozenset({"PREFIX", "BASE", "VERSION"})
_UPDATES = "insert|delete|load|clear|drop|create|add|move|copy|with"
_UPDATE = re.compile(_UPDATES, re.IGNORECASE)
ODD_MAX = 8
"""Unterminated strings, for each of which the lexer reads to the end of the text; and keywords
within one word."""


@dataclass(frozen=True, slots=True)
class Keyword:
    """A keyword in a text.

    Attributes:
        name: "SERVICE", "FROM" or "LOAD".
        at: 0-based offset.
        named: whether a name follows, as it must.
    """

    name: str
    at: int
    named: bool


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix in a text, without its colon, and its 0-based offset."""

    name: str
    at: int


class Unlexable(Exception):
    """The text has more than `ODD_MAX` unterminated strings, or keywords within a word.

    Attributes:
        at: 0-based offset.
    """

    def __init__(self, at: int) -> None:
        super().__init__(
            f"too many unterminated strings or keywords within a word, the last at {at}"
        )
        self.at = at


def find_keyword(text: str) -> Keyword | None:
    """The first of the keywords that a name follows; else the first without a name.

    Raises:
        Unlexable: finding one would take too long.
    """
    words = list(_words(text))
    declared = set(terms.PREFIXES)
    for match in words:
        if match["local"] == ":" or match["bare"] == ":":
            name = match["word"] or ""
            declared |= {name, _without(_DECLARES, name)}
    lone: Keyword | None = None
    for match in words:
        for candidate in _keywords(text, match, declared):
            if candidate.named:
                return candidate
            if lone is None or candidate.at < lone.at:
                lone = candidate
    return lone


def is_update(text: str) -> bool:
    """Whether the first word that is no declaration begins an update. Raises Unlexable."""
    for match in _read(text):
        word = match["word"]
        if word and not match["local"] and word.upper() not in _PROLOGUE:
            return _UPDATE.match(word) is not None
    return False


def first_undeclared_prefix(text: str) -> Prefix | None:
    """The first prefix that neither the text nor `terms.PREFIXES` declares. Raises Unlexable."""
    used: list[Prefix] = []
    declared, before = {*terms.PREFIXES, "_"}, ""
    for match in _read(text):
        if match["local"] or match["bare"]:
            name, is_whole = match["word"] or "", (match["local"] or match["bare"]) == ":"
            if is_whole and before == _DECLARES:
                declared.add(name)
            elif is_whole and name.lower().startswith(_DECLARES):
                declared |= {name, _without(_DECLARES, name)}
            elif "\\" not in name and text[match.start() - 1] != "<":  # not an invalid IRI
                used.append(Prefix(name, match.start()))
        if not match[0].isspace() and not match[0].startswith("#"):
            before = match[0].lower()
    return next((prefix for prefix in used if prefix.name not in declared), None)


def names_of(text: str, *, prefix: str) -> list[str]:
    """The local names that a text uses with one of the prefixes of `terms.PREFIXES`, each once.

    None where the text declares the prefix for another namespace. Raises Unlexable.
    """
    declared = re.search(rf"\bprefix\s+{prefix}:\s*<([^>]*)>", text, re.IGNORECASE)
    if declared is not None and declared[1] != terms.PREFIXES[prefix]:
        return []
    local = (match["local"] for match in _read(text) if match["word"] == prefix)
    return list(dict.fromkeys(name[1:] for name in local if name and name != ":"))


def nesting_depth(text: str) -> int:
    """The depth of nested brackets. Raises Unlexable."""
    depth = depth_max = 0
    for match in _read(text):
        depth += (match[0] in _OPEN) - (match[0] in _CLOSE)
        depth_max = max(depth_max, depth)
    return depth_max


class _Tokens:
    """Matches the tokens of a text other than IRIs."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._unterminated = 0

    def at(self, place: int) -> re.Match[str]:
        match = _TOKEN.match(self._text, place)
        assert match is not None, "any character is a token"
        quote = match[0][0]
        if quote in _QUOTES:
            is_long = match[0] == 2 * quote and self._text.startswith(3 * quote, place)
            self._unterminated += is_long or match[0] == quote
            if self._unterminated > ODD_MAX:
                raise Unlexable(place)
        return match


def _read(text: str) -> Iterator[re.Match[str]]:
    """All tokens other than IRIs, where `<` begins an IRI wherever it can."""
    at, tokens = 0, _Tokens(text)
    while at < len(text):
        match = _IRI.match(text, at)
        if match is None:
            match = tokens.at(at)
            yield match
        at = match.end()


def _words(text: str) -> Iterator[re.Match[str]]:
    """Words and prefixed names of all readings; the one that takes `<` for IRIs comes first."""
    seen, tokens = bytearray(len(text)), _Tokens(text)
    waiting = [0]
    while waiting:
        at = waiting.pop()
        while at < len(text) and not seen[at]:
            seen[at] = 1
            match = _IRI.match(text, at)
            if match is None:
                match = tokens.at(at)
                if match["word"] or match["bare"]:
                    yield match
            elif not _CERTAIN.match(text, at):
                waiting.append(at + 1)
            at = match.end()


def _keywords(text: str, match: re.Match[str], declared: set[str]) -> Iterator[Keyword]:
    """The keywords within a word or a prefix."""
    word, local = match["word"] or "", match["local"]
    if "\\" in word:
        escaped = _KEYWORD.search(_UNICODE.sub(_character, word))
        if escaped is not None:
            yield Keyword(escaped[0].upper(), match.start(), named=True)
        return
    for number, keyword in enumerate(_KEYWORD.finditer(word)):
        name, at = keyword[0].upper(), match.start() + keyword.start()
        if number == ODD_MAX:
            raise Unlexable(at)
        if local is None:
            is_named = _is_name(_FOLLOWED.match(text, match.start() + keyword.end()))
            if is_named or keyword[0] == word:
                yield Keyword(name, at, named=is_named)
            continue
        is_declared = _may_be_declared(word[keyword.end() :], declared)
        if is_declared and _AFTER_NAME.match(text, match.end()):
            yield Keyword(name, at, named=True)


def _is_name(follows: re.Match[str] | None) -> bool:
    return follows is not None and (
        follows["bare"] is not None or follows["local"] is not None or follows["word"] is None
    )


def _may_be_declared(prefix: str, declared: set[str]) -> bool:
    return bool({prefix, _without("silent", prefix), _without("named", prefix)} & declared)


def _without(keyword: str, name: str) -> str:
    return name[len(keyword) :] if name.lower().startswith(keyword) else name


def _character(escaped: re.Match[str]) -> str:
    code = int(escaped[0][2:], 16)
    return chr(code) if code < 0x11_0000 else "?"
