from __future__ import annotations

import pytest

from llog.security.certificates import parse_rules, principal_of, subject_of

ADA = {
    "subject": (
        (("countryName", "CH"),),
        (("organizationName", "Example, Inc."),),
        (("organizationalUnitName", "billing"),),
        (("commonName", "ada"),),
    )
}


def test_a_subject_is_written_as_java_writes_it() -> None:
    assert subject_of(ADA) == r"CN=ada,OU=billing,O=Example\, Inc.,C=CH"
    assert principal_of(ADA) == r"User:CN=ada,OU=billing,O=Example\, Inc.,C=CH"
    assert subject_of({"subject": ((("commonName", " #a+b "),),)}) == r"CN=\ #a\+b\ "


def test_without_a_certificate_a_client_is_nobody() -> None:
    assert principal_of(None) == principal_of({}) == "User:ANONYMOUS"


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", "User:CN=ada,OU=billing,O=Example\\, Inc.,C=CH"),
        ("RULE:^CN=([^,]+),.*$/$1/", "User:ada"),
        ("RULE:^CN=([^,]+),.*$/$1/U", "User:ADA"),
        ("RULE:^CN=([^,]+),OU=([^,]+),.*$/$2-$1/L, DEFAULT", "User:billing-ada"),
        ("RULE:^CN=bob,.*$/bob/, RULE:^CN=(.*?),.*$/$1@example/", "User:ada@example"),
        ("RULE:^CN=bob,.*$/bob/", "User:ANONYMOUS"),
    ],
)
def test_the_first_rule_that_matches_makes_the_name(rules: str, principal: str) -> None:
    assert principal_of(ADA, parse_rules(rules)) == principal


@pytest.mark.parametrize("rules", ["RULE:", "RULE:^(/$1/", "RULE:^CN=a$/$1/", "DEFAULT DEFAULT", "nonsense"])
def test_a_rule_that_cannot_be_read_is_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_rules(rules)
