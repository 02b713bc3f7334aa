from __future__ import annotations

from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.connection_string import ConnectionString
from pairbus.credentials import (
    EntraToken,
    Login,
    SharedKey,
    SharedSignature,
    Token,
    as_credential,
    from_connection_string,
)
from pairbus.sas import AuthorizationRule, verify

NOW = 1_700_000_000.5


def test_a_shared_key_signs_what_the_broker_accepts() -> None:
    token = SharedKey("send only", "k+/=").token("sb://ns:5/orders", NOW)
    rule = AuthorizationRule(key_name="send only", primary_key="k+/=", rights=("Send",))
    claims = verify(token.text, NOW, lambda path: [rule])
    assert claims.scope_path == "orders"
    assert claims.allows("Send", "orders")
    assert token.kind == "servicebus.windows.net:sastoken"
    assert claims.expires_at == token.expires_at == 1_700_003_600


def test_a_signature_is_used_as_it_is() -> None:
    signature = SharedSignature("SharedAccessSignature sr=x&sig=y&se=1700000100&skn=k")
    token = signature.token("sb://anything", NOW)
    assert token == Token(signature.signature, "servicebus.windows.net:sastoken", 1_700_000_100.0)


@pytest.mark.parametrize("text", ["SharedAccessSignature sr=x&sig=y", "SharedAccessSignature se=soon", ""])
def test_a_signature_without_expiry_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="se=<unix seconds>"):
        SharedSignature(text)


def test_an_entra_answer() -> None:
    assert EntraToken.token(SimpleNamespace(token="eyJ", expires_on=5)) == Token("eyJ", "jwt", 5.0)
    with pytest.raises(TypeError, match="gave str; an object with token"):
        EntraToken.token("eyJ")


@given(st.floats(0.1, 1e7), st.floats(0, 1e9))
def test_renewal_comes_before_the_end_and_not_at_once(life: float, now: float) -> None:
    token = Token("t", "jwt", now + life)
    assert now <= token.renew_at(now) < token.expires_at


def test_renewal_times() -> None:
    assert Token("t", "jwt", 3600.0).renew_at(0.0) == 3240.0
    assert Token("t", "jwt", 100.0).renew_at(0.0) == 70.0
    assert Token("t", "jwt", 10.0).renew_at(0.0) == 5.0
    assert Token("t", "jwt", 10.0).renew_at(20.0) == 10.0


def test_what_counts_as_a_credential() -> None:
    key = SharedKey("a", "b")
    assert as_credential(key) is key
    assert as_credential(None) is None
    source = SimpleNamespace(get_token=lambda scope: None)
    assert as_credential(source) == EntraToken(source)
    with pytest.raises(TypeError, match="str is no credential"):
        as_credential("secret")  # type: ignore[arg-type]


def test_from_a_connection_string() -> None:
    keyed = ConnectionString.parse("Endpoint=sb://h/;SharedAccessKeyName=a;SharedAccessKey=b=")
    assert from_connection_string(keyed) == SharedKey("a", "b=")
    signed = ConnectionString.parse("Endpoint=sb://h/;SharedAccessSignature=SharedAccessSignature sr=x&sig=y&se=9")
    assert from_connection_string(signed) == SharedSignature("SharedAccessSignature sr=x&sig=y&se=9")


def test_no_secret_in_repr() -> None:
    made = [
        SharedKey("a", "SECRET"),
        SharedKey("a", "SECRET").token("sb://x", NOW),
        SharedSignature("SharedAccessSignature sig=SECRET&se=9"),
        Login("guest", "SECRET"),
        EntraToken(SimpleNamespace(get_token=print, text="SECRET")),
    ]
    signature = parse_qs(made[1].text)["sig"][0]  # type: ignore[attr-defined]
    for credential in made:
        assert "SECRET" not in repr(credential)
        assert signature not in repr(credential)


def test_login_is_sasl_plain() -> None:
    assert Login("guest", "pass").initial_response == b"\0guest\0pass"
