"""The principal of a client's certificate: its subject, as Java writes it, or what rules of the settings make of it.

    RULE:^CN=([^,]+),.*$/$1/,RULE:^(.*)$/$1/L,DEFAULT

Rules are those of Kafka's `ssl.principal.mapping.rules`: the first one whose pattern matches the whole subject decides;
`L` and `U` change the case; DEFAULT is the subject itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llog.errors import SettingsError
from llog.security.acl import ANONYMOUS, USER_PREFIX

if TYPE_CHECKING:
    from llog.settings import Settings

Certificate = Mapping[str, Any]
"""What `SSLObject.getpeercert` returns."""

_SHORT: Final = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "domainComponent": "DC",
    "userId": "UID",
    "streetAddress": "STREET",
}
_SPECIAL: Final = re.compile(r'([,+"\\<>;])')
_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")


def subject_of(certificate: Certificate) -> str:
    """The subject in the notation of RFC 2253: the last part first, as in `CN=ada,OU=billing,O=example`."""
    return ",".join(
        "+".join(f"{_SHORT.get(name, name)}={_escaped(str(value))}" for name, value in names)
        for names in reversed(certificate.get("subject", ()))
    )


def _escaped(value: str) -> str:
    text = _SPECIAL.sub(r"\\\1", value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(text) > 1 else text


class Rule(NamedTuple):
    """None as pattern: DEFAULT."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        matched = self.pattern.fullmatch(subject)
        if matched is None:
            return None
        name = re.sub(r"\$(\d)", lambda found: matched[int(found[1])] or "", self.replacement)
        return {"L": name.lower(), "U": name.upper()}.get(self.case, name)


DEFAULT_RULES: Final = (Rule(),)


def parse_rules(text: str) -> tuple[Rule, ...]:
    """`ValueError` says which rule cannot be read."""
    rules: list[Rule] = []
    rest = text.strip()
    while rest:
        if rest.startswith("DEFAULT"):
            rules.append(Rule())
            rest = rest[len("DEFAULT") :]
        elif matched := _RULE.match(rest):
            rules.append(_rule(matched))
            rest = rest[matched.end() :]
        else:
            raise ValueError(f"{rest[:60]!r} is no rule")
        if rest and not re.match(r"\s*,\s*\S", rest):
            raise ValueError(f"{rest[:60]!r}: a comma and another rule must follow")
        rest = rest.lstrip(" ,")
    return tuple(rules) or DEFAULT_RULES


def principal_rules(settings: Settings) -> tuple[Rule, ...]:
    """`SettingsError`."""
    try:
        return parse_rules(settings.tls_principal_rules)
    except ValueError as error:
        raise SettingsError("LLOG_TLS_PRINCIPAL_RULES", settings.tls_principal_rules, str(error)) from error


def _rule(matched: re.Match[str]) -> Rule:
    try:
        pattern = re.compile(matched[1].replace(r"\/", "/"))
    except re.error as error:
        raise ValueError(f"{matched[1]!r} is no pattern: {error}") from None
    replacement = matched[2].replace(r"\/", "/")
    highest = max((int(number) for number in re.findall(r"\$(\d)", replacement)), default=0)
    if highest > pattern.groups:
        raise ValueError(f"${highest} names no group of {matched[1]!r}")
    return Rule(pattern, replacement, matched[3])


def principal_of(certificate: Certificate | None, rules: Sequence[Rule] = DEFAULT_RULES) -> str:
    """Of a certificate that TLS has verified; None or one that no rule matches: `User:ANONYMOUS`."""
    if not certificate:
        return ANONYMOUS
    subject = subject_of(certificate)
    for rule in rules:
        name = rule.apply(subject)
        if name:
            return USER_PREFIX + name
    return ANONYMOUS
