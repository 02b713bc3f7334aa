from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.connection_string import ConnectionString, ConnectionStringError, namespace_name

KEY = "c2VjcmV0LXNlY3JldA=="
BASE = f"Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={KEY}"


def test_azure() -> None:
    parsed = ConnectionString.parse(BASE)
    assert parsed == ConnectionString(host="ns.servicebus.windows.net", key_name="root", key=KEY)
    assert (parsed.port, parsed.tls, parsed.authority) == (5671, True, "ns.servicebus.windows.net")


@pytest.mark.parametrize(
    ("text", "port", "tls", "authority"),
    [
        (f"{BASE};UseDevelopmentEmulator=true;", 5672, False, "ns.servicebus.windows.net"),
        (BASE.replace(".net/", ".net:7001"), 7001, True, "ns.servicebus.windows.net:7001"),
        (f"{BASE.replace('.net/', '.net:9/')};UseDevelopmentEmulator=TRUE", 9, False, "ns.servicebus.windows.net:9"),
        (f"{BASE};UseDevelopmentEmulator=false", 5671, True, "ns.servicebus.windows.net"),
        (f"  {BASE};  ", 5671, True, "ns.servicebus.windows.net"),
        (f"Endpoint=sb://[::1]:99/;SharedAccessKeyName=a;SharedAccessKey={KEY}", 99, True, "[::1]:99"),
        (f"endpoint=amqps://h;sharedaccesskeyname=a;SHAREDACCESSKEY={KEY}", 5671, True, "h"),
    ],
)  # fmt: skip
def test_where_it_leads(text: str, port: int, tls: bool, authority: str) -> None:
    parsed = ConnectionString.parse(text)
    assert (parsed.port, parsed.tls, parsed.authority, parsed.key) == (port, tls, authority, KEY)


def test_entity_and_signature() -> None:
    text = "Endpoint=sb://h/;SharedAccessSignature=SharedAccessSignature sr=x&sig=y%3D&se=9&skn=k;EntityPath=orders/new"
    parsed = ConnectionString.parse(text)
    assert parsed.signature == "SharedAccessSignature sr=x&sig=y%3D&se=9&skn=k"
    assert parsed.entity == "orders/new"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no Endpoint"),
        (f"SharedAccessKeyName=a;SharedAccessKey={KEY}", "no Endpoint"),
        ("Endpoint=sb://h/", "neither SharedAccessKeyName"),
        ("Endpoint=sb://h/;SharedAccessKeyName=a", "no SharedAccessKey;"),
        (f"Endpoint=sb://h/;SharedAccessKey={KEY}", "no SharedAccessKeyName;"),
        (f"{BASE};Endpoint=sb://other/", "Endpoint twice"),
        (f"{BASE};EntityPth=orders", "'EntityPth' is no key"),
        (f"{BASE};nonsense", "part 4 has no '='"),
        (f"{BASE};EntityPath=", "EntityPath is empty"),
        (f"{BASE};UseDevelopmentEmulator=yes", "UseDevelopmentEmulator is something else; right is true or false"),
        (BASE.replace("sb://", "http://"), "Endpoint is no address; right is sb://<host>[:port]/"),
        (BASE.replace("sb://", ""), "is no address; right is sb://<host>[:port]/"),
        (BASE.replace(".net/", ".net:0/"), "port 0"),
        (BASE.replace(".net/", ".net:70000/"), "Endpoint"),
        (BASE.replace(".net/", ".net:x/"), "Endpoint"),
        (BASE.replace("sb://", "sb://[::1"), "Endpoint"),
        (BASE.replace(".net/", ".net/orders"), "an entity goes into EntityPath"),
        (f"Endpoint={KEY};SharedAccessKeyName=a;SharedAccessKey=b", "Endpoint is no address"),
        (f"Endpoint=sb://h/{KEY};SharedAccessKeyName=a;SharedAccessKey=b", "Endpoint has more than a host"),
        (f"{BASE};UseDevelopmentEmulator={KEY}", "UseDevelopmentEmulator is something else"),
        (BASE.replace("sb://", "sb://user:pass@"), "user name or password"),
        (f"{BASE};SharedAccessSignature=SharedAccessSignature sr=x", "one or the other"),
        ("Endpoint=sb://h/;SharedAccessSignature=sr=x&sig=y", "must read 'SharedAccessSignature sr="),
        ("x" * 5000, "at most 4096"),
    ],
)
def test_the_error_names_the_key_and_what_would_be_right(text: str, named: str) -> None:
    with pytest.raises(ConnectionStringError) as caught:
        ConnectionString.parse(text)
    assert named in str(caught.value)
    assert KEY not in str(caught.value)
    assert "user:pass" not in str(caught.value)


def test_no_secret_in_repr() -> None:
    assert KEY not in repr(ConnectionString.parse(BASE))
    signed = ConnectionString.parse("Endpoint=sb://h/;SharedAccessSignature=SharedAccessSignature sr=x&sig=SECRET&se=1")
    assert "SECRET" not in repr(signed)


def test_a_mangled_text_does_not_show_its_secret() -> None:
    with pytest.raises(ConnectionStringError) as caught:
        ConnectionString.parse(f"Endpoint=sb://h/;SharedAccessKeyName=a;{KEY};")
    assert "c2Vjc" not in str(caught.value)


@given(st.text(max_size=200))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        ConnectionString.parse(text)
    except ConnectionStringError:
        pass


@given(st.text(st.characters(codec="ascii", exclude_characters=";\x00"), min_size=1, max_size=60))
def test_a_key_is_taken_as_it_stands(key: str) -> None:
    if key.strip():
        text = f"Endpoint=sb://h/;SharedAccessKeyName=a;SharedAccessKey={key}"
        assert ConnectionString.parse(text).key == key.strip()


@pytest.mark.parametrize(
    ("host", "port", "container", "properties", "name"),
    [
        ("127.0.0.1", 49152, "Contoso", {"product": "pairbus"}, "contoso"),
        ("bus.example.org", 5671, "contoso", {"product": "pairbus"}, "contoso"),
        ("Contoso.servicebus.windows.net", 5671, "f00d_G7", None, "contoso.servicebus.windows.net"),
        ("contoso.servicebus.windows.net.", 443, "other", {"product": "x"}, "contoso.servicebus.windows.net"),
        ("127.0.0.1", 5672, "random", {}, "localhost"),
        ("::1", 5673, "random", {}, "localhost:5673"),
        ("10.0.0.7", 5673, "random", None, "10.0.0.7:5673"),
    ],
)
def test_by_what_a_namespace_is_known(
    host: str, port: int, container: str, properties: dict[str, str] | None, name: str
) -> None:
    assert namespace_name(host, port, container, properties) == name
