import base64
import hashlib
import hmac
from urllib.parse import quote, quote_plus

import pytest
from azure.servicebus._base_handler import _generate_sas_token
from hypothesis import given
from hypothesis import strategies as st

from pairbus import sas
from pairbus.sas import AuthorizationRule, Claims, SasError, is_sas, make_token, scope_path, verify

NOW = 1_700_000_000.0
ROOT = AuthorizationRule(
    key_name="RootManageSharedAccessKey", rights=("Manage",), primary_key="p/+=Key", secondary_key="s-Key"
)
SENDER = AuthorizationRule(key_name="send only/ü", rights=("Send",), primary_key="send-key")
ENTITY = AuthorizationRule(key_name="own", rights=("Listen",), primary_key="own-key")


def rules(path):
    yield ROOT
    yield SENDER
    if path.split("/")[0] == "orders":
        yield ENTITY


def test_what_is_made_is_verified():
    token = make_token("sb://localhost:1/Orders", ROOT.key_name, ROOT.primary_key, NOW + 60)
    assert verify(token, NOW, rules) == Claims(
        "orders", frozenset({"Manage", "Send", "Listen"}), NOW + 60, ROOT.key_name
    )


def test_the_sdk_makes_the_same_kind():
    access = _generate_sas_token("sb://localhost:5672/orders", ROOT.key_name, ROOT.primary_key)
    claims = verify(access.token, access.expires_on - 1, rules)
    assert claims.scope_path == "orders" and claims.expires_at == access.expires_on
    # its name has to be encoded, and the SDK does so twice
    access = _generate_sas_token("sb://localhost:5672/orders", SENDER.key_name, SENDER.primary_key)
    assert verify(access.token, access.expires_on - 1, rules).rights == {"Send"}


def signed(sr, se, key, skn, order=("sr", "sig", "se", "skn"), prefix="SharedAccessSignature "):
    sig = base64.b64encode(hmac.new(key.encode(), f"{sr}\n{se}".encode(), hashlib.sha256).digest())
    parts = {"sr": sr, "sig": quote_plus(sig), "se": str(se), "skn": skn}
    return prefix + "&".join(f"{name}={parts[name]}" for name in order)


@pytest.mark.parametrize(
    "sr",
    [
        "sb%3A%2F%2Fh%3A5672%2Forders",
        "sb%3a%2f%2fh%3a5672%2forders",  # .NET: lower-case escapes
        "sb://h/orders",
        "https%3A%2F%2Fh%2Forders%3Fapi-version%3D2021-05",
        "h.servicebus.windows.net%2Forders%2F",
        "h:5671/orders",
        "orders",
    ],
)
def test_the_signature_is_over_the_text_as_it_stands(sr):
    for order in (("sr", "sig", "se", "skn"), ("skn", "se", "sig", "sr")):
        token = signed(sr, int(NOW) + 10, ROOT.primary_key, ROOT.key_name, order)
        assert verify(token, NOW, rules).scope_path == "orders"


def test_the_secondary_key_counts_too():
    token = make_token("sb://h/", ROOT.key_name, "s-Key", NOW + 60)
    assert verify(token, NOW, rules).scope_path == ""


def test_an_absent_secondary_key_opens_nothing():
    with pytest.raises(SasError):
        verify(make_token("sb://h/", SENDER.key_name, "", NOW + 60), NOW, rules)


def test_a_rule_of_an_entity_reaches_no_further():
    assert verify(make_token("sb://h/orders", "own", "own-key", NOW + 60), NOW, rules).rights == {"Listen"}
    for resource in ("sb://h/", "sb://h", "sb://h/other", "sb://h/orders2"):
        with pytest.raises(SasError):
            verify(make_token(resource, "own", "own-key", NOW + 60), NOW, rules)


@pytest.mark.parametrize(
    ("expires_in", "skew", "good"),
    [(1, 0.0, True), (0, 0.0, False), (-4, 5.0, True), (-5, 5.0, False), (-60, sas.HTTP_SKEW_S, True)],
)
def test_expiry(expires_in, skew, good):
    token = make_token("sb://h/", ROOT.key_name, ROOT.primary_key, NOW + expires_in)
    if good:
        assert verify(token, NOW, rules, skew=skew).expires_at == NOW + expires_in
    else:
        with pytest.raises(SasError, match="ran out"):
            verify(token, NOW, rules, skew=skew)


GOOD = make_token("sb://h/q", ROOT.key_name, ROOT.primary_key, NOW + 60)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", "SharedAccessSignature"),
        ("eyJ0eXAiOiJKV1Qi.e30.c2ln", "SharedAccessSignature"),
        ("SharedAccessSignature", "SharedAccessSignature"),
        ("SharedAccessSignature ", "once"),
        ("SharedAccessSignature sr=a&sig=b&se=1", "no skn"),
        ("SharedAccessSignature sr=a&sig=YQ==&se=1&skn=", "no skn"),
        ("SharedAccessSignature sr=a&sr=b&sig=YQ==&se=1&skn=k", "once"),
        ("SharedAccessSignature sr=a&sig=%%%&se=1&skn=k", "base64"),
        ("SharedAccessSignature sr=a&sig=YQ==&se=soon&skn=k", "whole seconds"),
        ("SharedAccessSignature sr=a&sig=YQ==&se=-1&skn=k", "whole seconds"),
        ("SharedAccessSignature sr=a&sig=YQ==&se=1_0&skn=k", "whole seconds"),
        ("SharedAccessSignature sr=a&sig=YQ==&se=" + "9" * 400 + "&skn=k", "whole seconds"),
        ("SharedAccessSignature sr=a&sig=YQ==&se=1&skn=k", "does not match a key named 'k'"),
        ("SharedAccessSignature sr=a&sig=YQ==&se=١&skn=k", "SharedAccessSignature"),
        ("SharedAccessSignature sr=\ud800&sig=YQ==&se=1&skn=k", "SharedAccessSignature"),
        ("SharedAccessSignature " + "x" * 10_000, "characters"),
        (GOOD.replace("sr=sb", "sr=SB"), "does not match"),
        (GOOD.replace(f"se={int(NOW) + 60}", f"se={int(NOW) + 61}"), "does not match"),
        (make_token("sb://h/q", ROOT.key_name, "p/+=key", NOW + 60), "does not match"),
        (make_token("sb://h/q", ROOT.key_name.lower(), ROOT.primary_key, NOW + 60), "does not match"),
    ],
)
def test_bad_tokens(token, reason):
    with pytest.raises(SasError, match=reason) as info:
        verify(token, NOW, rules)
    assert ROOT.primary_key not in info.value.reason and len(info.value.reason) < 200


@given(st.text(max_size=200))
def test_nothing_but_sas_error_comes_of_any_text(text):
    for token in (text, "SharedAccessSignature " + text, f"SharedAccessSignature sr={text}&sig={text}&se=1&skn={text}"):
        with pytest.raises(SasError):
            verify(token, NOW, rules)


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30), st.text(max_size=40))
def test_any_name_key_and_path_go_round(name, key, path):
    rule = AuthorizationRule(key_name=name, rights=("Send",), primary_key=key)
    token = make_token("sb://h/" + path, name, key, NOW + 60)
    assert verify(token, NOW, lambda path: [rule]).key_name == name


@pytest.mark.parametrize(
    ("resource", "path"),
    [
        ("sb://h", ""), ("sb://h/", ""), ("https://h:443", ""), ("sb://h:1/A/b/", "a/b"), ("sb:///q", "q"),
        ("https://h/a%2fb?x=/y", "a/b"), ("q", "q"), ("a.b", "a.b"), ("a.b/c", "a.b/c"), ("h:5672", ""),
        ("N.ServiceBus.Windows.net/Q/$DeadLetterQueue", "q/$deadletterqueue"), ("", ""), ("amqps://h/q#f", "q"),
    ],
)  # fmt: skip
def test_scope_path(resource, path):
    assert scope_path(resource) == path


@pytest.mark.parametrize(
    ("scope", "path", "inside"),
    [
        ("", "anything/at/all", True),
        ("orders", "Orders", True),
        ("orders", "/orders/$management", True),
        ("orders", "orders/$DeadLetterQueue", True),
        ("orders", "orders2", False),
        ("orders", "", False),
        ("a/b", "a", False),
        ("a/b", "a/b", True),
        ("a/b", "a/bc", False),
    ],
)
def test_the_scope_is_a_prefix_by_segments(scope, path, inside):
    claims = Claims(scope, frozenset({"Send"}), NOW, "k")
    assert claims.allows("Send", path) is inside
    assert not claims.allows("Listen", path) and not claims.allows("Manage", path)


def test_sas_is_recognised_by_its_text():  # docs/reference/protocol.md#a-sas-token-is-recognised-by-its-text
    assert is_sas(GOOD) and is_sas("sharedaccesssignature sr=") and not is_sas("Bearer x")


def test_quote_is_what_the_sdk_uses():
    assert "sr=" + quote("sb://h/q", safe="") in GOOD


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("", ""), ("orders", "orders"), ("orders/$deadletterqueue", "orders"), ("a/b/$management", "a/b"),
        ("news/subscriptions/all", "news"), ("news/Subscriptions/all/$DeadLetterQueue", "news"), ("$cbs", "$cbs"),
        ("subscriptions", "subscriptions"), ("subscriptions/subscriptions/s", "subscriptions"), ("a/b", "a/b"),
    ],
)  # fmt: skip
def test_whose_a_path_is(path, owner):
    assert sas.owner_path(path) == owner


def test_a_key_of_an_entity_opens_that_entity_and_no_other():
    own = sas.EntityRule(key_name="own", rights=("Listen",), primary_key="own-key", entity="orders")
    for resource in ("sb://h/orders", "sb://h/Orders/$DeadLetterQueue"):
        claims = verify(make_token(resource, "own", "own-key", NOW + 60), NOW, lambda path: (ROOT, own))
        assert claims.entity == "orders"
        assert claims.allows("Listen", "ORDERS/$DeadLetterQueue")
        assert not claims.allows("Send", "orders/$DeadLetterQueue")
        for other in ("orders/eu", "orders2", "", "$cbs", "orders/eu/$DeadLetterQueue"):
            assert not claims.allows("Listen", other)
    # even when the token is for all of the namespace
    claims = verify(make_token("sb://h", "own", "own-key", NOW + 60), NOW, lambda path: (own,))
    assert claims.allows("Listen", "orders/$management") and not claims.allows("Listen", "other")
    topic = Claims("news", frozenset({"Listen"}), NOW, "k", "news")
    assert topic.allows("Listen", "News/Subscriptions/all") and not topic.allows("Listen", "news/eu/Subscriptions/all")
