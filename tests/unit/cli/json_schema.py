"""The interfaces of docs/json.md as a checker: what nsprof writes is held against what it says it writes.

The notation is TypeScript's, of which this reads what the page uses: interfaces, unions, arrays, tuples, literals and
index signatures. Checking is strict both ways: no key that is not declared, none missing that has no question mark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["DOCS", "Interface", "check", "interfaces", "kinds"]

DOCS = Path(__file__).resolve().parents[3] / "docs" / "json.md"
_TOKEN = re.compile(r"""\s+|//[^\n]*|(?P<token>"[^"]*"|[A-Za-z_][A-Za-z0-9_-]*|\d+|[{}\[\]:;|?(),])""")
Type = tuple[Any, ...]


@dataclass(frozen=True)
class Interface:
    """One object: name -> (type, whether it may be absent); `other` is the type of all other keys, if allowed."""

    fields: dict[str, tuple[Type, bool]]
    other: Type | None = None


def interfaces(path: Path = DOCS) -> dict[str, Interface]:
    """All interfaces of the page's `ts` blocks by name."""
    text = "\n".join(re.findall(r"^```ts\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE))
    parser = _Parser(text)
    found: dict[str, Interface] = {}
    while parser.peek():
        parser.take("interface")
        name = parser.take()
        assert name not in found, f"interface {name} is declared twice"
        found[name] = parser.body()
    return found


def kinds(known: dict[str, Interface]) -> dict[str, str]:
    """What stands in `nsprof` -> the interface of that document."""
    made = {}
    for name, interface in known.items():
        kind = interface.fields.get("nsprof")
        if kind:
            assert kind[0][0] == "literal", name
            made[kind[0][1]] = name
    return made


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            assert match, f"docs/json.md: not understood: {text[at : at + 40]!r}"
            if match["token"]:
                self.tokens.append(match["token"])
            at = match.end()
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        word = self.peek()
        assert word and (not wanted or word == wanted), f"{word!r} where {wanted or 'more'!r} should stand"
        self.at += 1
        return word

    def body(self) -> Interface:
        self.take("{")
        fields: dict[str, tuple[Type, bool]] = {}
        other: Type | None = None
        while self.peek() != "}":
            if self.peek() == "[":  # [key: string]: T
                for word in ("[", "key", ":", "string", "]", ":"):
                    self.take(word)
                other = self.union()
            else:
                name = self.take().strip('"')
                absent = self.peek() == "?"
                if absent:
                    self.take("?")
                self.take(":")
                assert name not in fields, name
                fields[name] = (self.union(), absent)
            self.take(";")
        self.take("}")
        return Interface(fields, other)

    def union(self) -> Type:
        parts = [self.one()]
        while self.peek() == "|":
            self.take("|")
            parts.append(self.one())
        return parts[0] if len(parts) == 1 else ("union", *parts)

    def one(self) -> Type:
        word = self.peek()
        made: Type
        if word == "{":
            made = ("object", self.body())
        elif word == "[":
            self.take("[")
            parts = [self.union()]
            while self.peek() == ",":
                self.take(",")
                parts.append(self.union())
            self.take("]")
            made = ("tuple", *parts)
        elif word == "(":
            self.take("(")
            made = self.union()
            self.take(")")
        else:
            self.take()
            made = (
                ("literal", word.strip('"'))
                if word[0] == '"'
                else ("literal", int(word))
                if word.isdigit()
                else ("name", word)
            )
        while self.peek() == "[" and self.tokens[self.at + 1] == "]":
            self.take("[")
            self.take("]")
            made = ("array", made)
        return made


def check(document: Any, known: dict[str, Interface]) -> None:
    """Fail, saying where, unless the document is what its interface says."""
    kind = document.get("nsprof") if isinstance(document, dict) else None
    name = kinds(known).get(str(kind))
    assert name, f"docs/json.md has no interface for {kind!r}"
    problems = list(_interface(document, known[name], known, name))
    assert not problems, "\n".join(problems[:12])


def _interface(value: Any, wanted: Interface, known: dict[str, Interface], where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where}: {type(value).__name__}, not an object"]
    found = [f"{where}.{n}: missing" for n, (_, absent) in wanted.fields.items() if not absent and n not in value]
    for name, inner in value.items():
        if name in wanted.fields:
            found += _type(inner, wanted.fields[name][0], known, f"{where}.{name}")
        elif wanted.other is not None:
            found += _type(inner, wanted.other, known, f"{where}.{name}")
        else:
            found.append(f"{where}.{name}: not in docs/json.md")
    return found


def _type(value: Any, wanted: Type, known: dict[str, Interface], where: str) -> list[str]:
    sort = wanted[0]
    if sort == "union":
        tries = [_type(value, each, known, where) for each in wanted[1:]]
        return min(tries, key=lambda t: (len(t), 0)) if all(tries) else []
    if sort == "literal":
        return [] if value == wanted[1] else [f"{where}: {value!r}, not {wanted[1]!r}"]
    if sort == "array":
        if not isinstance(value, list):
            return [f"{where}: {value!r:.60}, not a list"]
        return [text for i, each in enumerate(value) for text in _type(each, wanted[1], known, f"{where}[{i}]")]
    if sort == "tuple":
        if not isinstance(value, list) or len(value) != len(wanted) - 1:
            return [f"{where}: {value!r:.60}, not {len(wanted) - 1} values"]
        pairs = zip(value, wanted[1:], strict=True)
        return [text for i, (each, t) in enumerate(pairs) for text in _type(each, t, known, f"{where}[{i}]")]
    if sort == "object":
        return _interface(value, wanted[1], known, where)
    return _named(value, wanted[1], known, where)


def _named(value: Any, name: str, known: dict[str, Interface], where: str) -> list[str]:
    if name in known:
        return _interface(value, known[name], known, where)
    right = {
        "unknown": True,
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "number": isinstance(value, (int, float)) and not isinstance(value, bool),
        "null": value is None,
    }
    assert name in right, f"docs/json.md: {name} is no type"
    return [] if right[name] else [f"{where}: {value!r:.60}, not {name}"]
