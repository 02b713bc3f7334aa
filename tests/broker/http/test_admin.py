"""The management API, call by call; `tests/broker/test_sdk_admin.py` asks a whole broker through the unmodified SDK."""

import json

import pytest

from pairbus import sas
from pairbus.broker.http import atom
from pairbus.broker.http.admin import AdminApi
from pairbus.broker.http.resources import Queues
from pairbus.broker.http.server import Request
from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.model.description import QueueDescription
from pairbus.broker.refusal import Refusal
from pairbus.sas import AuthorizationRule
from tests.broker.fake_namespace import FakeNamespace, entity

NOW = 1_700_000_000.0
ROOT = AuthorizationRule(key_name="RootManageSharedAccessKey", rights=("Manage",), primary_key="root-key")
SENDER = AuthorizationRule(key_name="sender", rights=("Send", "Listen"), primary_key="sender-key")


def authorize(token, now):
    return sas.verify(token, now, lambda path: (ROOT, SENDER), skew=sas.HTTP_SKEW_S)


@pytest.fixture
def namespace():
    return FakeNamespace()


@pytest.fixture
def call(namespace):
    """Call by call, no socket: (status, body as text)."""

    async def call(method, target, body=b"", *, token=None, headers=None, api=None, peer="127.0.0.1"):
        headers = {"host": "localhost:1"} | (headers or {})
        if token is None:
            token = sas.make_token("https://localhost:1", ROOT.key_name, ROOT.primary_key, NOW + 60)
        if token:
            headers["authorization"] = token
        api = api or AdminApi(namespace, authorize, lambda: NOW, new_id=lambda: "id-1")
        response = await api(Request(method, target, headers, body, peer, True))
        return response.status, response.body.decode(), response.headers

    return call


def entry(inside=""):
    return (
        f'<a:entry xmlns:a="{atom.ATOM}" xmlns="{atom.SERVICE_BUS}"><a:content type="application/xml">'
        f"<QueueDescription>{inside}</QueueDescription></a:content></a:entry>"
    ).encode()


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("DELETE", "/", 404),
        ("GET", "/$nothing", 404),
        ("GET", "/$resources/TOPICS", 200),
        ("PUT", "/$Resources/topics", 405),
        ("GET", "/absent", 404),
        ("DELETE", "/absent", 404),
        ("GET", "/absent/subscriptions/s", 404),
        ("PUT", "/absent/subscriptions/s", 404),
        ("DELETE", "/absent/subscriptions/s", 404),
        ("GET", "/absent/subscriptions", 404),
        ("PUT", "/absent/subscriptions", 405),
        ("GET", "/absent/Subscriptions/s/Rules", 404),
        ("PUT", "/absent/Subscriptions/s/Rules/r", 404),
        ("PUT", "/absent/Subscriptions/s/Rules/", 405),
        ("GET", "/absent/Subscriptions/s/Orders/r", 404),
        ("GET", "/absent/Subscriptions/s/Rules/r/x", 404),
        ("GET", "/absent/subscriptions?$top=x", 400),
        ("POST", "/q", 405),
        ("POST", "/q/messages", 405),
        ("PATCH", "/q", 405),
        ("PUT", "/$Resources/queues", 405),
        ("DELETE", "/$namespaceinfo", 405),
        ("GET", "/$Resources/queues?$skip=-1", 400),
        ("GET", "/$Resources/queues?$top=many", 400),
        ("GET", "/$Resources/queues?$top=99999999999", 400),
        ("GET", "/$Resources/queues?" + "a=1&" * 100, 400),
        ("GET", "/$RESOURCES/Queues", 200),
        ("HEAD", "/$NamespaceInfo", 200),
        ("GET", "http://[", 400),
    ],
)
async def test_paths_and_methods(call, method, target, status):
    got, body, headers = await call(method, target)
    assert got == status
    if status >= 400:
        assert body.startswith(f"<Error><Code>{status}</Code><Detail>SubCode={status}00. ")
        assert "TrackingId:id-1, SystemTracker:east:" in body and "Timestamp:2023-11-14T22:13:20<" in body
        assert headers["content-type"] == "application/xml; charset=utf-8"
    if target == "/q/messages":
        assert "Messages are sent and received over AMQP alone." in body
    if status == 405:
        assert headers["allow"]


async def test_names_come_encoded_or_not(call, namespace):
    assert (await call("PUT", "/a%2Fb?api-version=2021-05", entry()))[0] == 201
    assert (await call("GET", "/A/B?enrich=false"))[0] == 200
    assert (await call("GET", "/a%2fb/"))[0] == 200
    assert list(namespace.queues) == ["a/b"]


async def test_paging(call, namespace):
    for number in range(5):
        await call("PUT", f"/q{number}")
    _, body, headers = await call("GET", "/$Resources/queues?$skip=1&$top=2&api-version=2021-05")
    assert body.count("<entry") == 2 and "q1" in body and "q2" in body
    assert 'rel="next" href="https://localhost:1/$Resources/queues?$skip=3&amp;$top=2&amp;api-version=2021-05"' in body
    assert headers["content-type"] == "application/atom+xml;type=feed;charset=utf-8"
    for last in ("$skip=3&$top=2", "$skip=5", "$skip=99&$top=1", "$top=0", ""):
        assert 'rel="next"' not in (await call("GET", f"/$Resources/queues?{last}"))[1]


async def test_a_page_looks_once_for_what_there_is(call, namespace, monkeypatch):
    for number in range(5):
        await call("PUT", f"/q{number}")
    looked = []
    monkeypatch.setattr(Queues, "all", lambda self, path: looked.append(path) or namespace.queues)
    _, body, _ = await call("GET", "/$Resources/queues?$skip=0&$top=5")
    assert body.count("<entry") == 5 and len(looked) == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<oops", "not well-formed"),
        (b"<!DOCTYPE x><x/>", "DOCTYPE"),
        (entry("<LockDuration>later</LockDuration>"), "LockDuration may not be 'later'; allowed: an ISO 8601 duration"),
        (
            entry("<MaxSizeInMegabytes>0</MaxSizeInMegabytes>"),
            "MaxSizeInMegabytes may not be 0; allowed: a whole number",
        ),
        (
            entry("<LockDuration>P25D</LockDuration>"),
            "LockDuration may not be 2160000.0; allowed: a duration above zero",
        ),
        (entry("<AutoDeleteOnIdle>PT4M59S</AutoDeleteOnIdle>"), "AutoDeleteOnIdle may not be"),
        (entry("<ForwardTo>sb://elsewhere/other</ForwardTo>"), "allowed: a queue or topic of this namespace"),
        (entry("<Status>Sleepy</Status>"), "Status may not be 'Sleepy'; allowed: Active, Disabled"),
        (entry(f"<UserMetadata>{'x' * 2000}</UserMetadata>"), "xxx…; allowed: up to 1024 characters"),
        (entry().replace(b"QueueDesc", b"RuleDesc"), "here it must be QueueDescription or TopicDescription"),
    ],
)
async def test_what_is_wrong_is_named(call, namespace, body, said):
    status, text, _ = await call("PUT", "/q", body)
    assert status == 400 and said in text and len(text) < 800
    assert not namespace.queues


async def test_the_backlog_queues_of_a_pair_can_be_made(call, namespace):  # P9
    infinite = "P10675199DT2H48M5.47758S"
    body = entry(
        f"<LockDuration>PT1M</LockDuration><MaxSizeInMegabytes>5120</MaxSizeInMegabytes>"
        f"<DefaultMessageTimeToLive>{infinite}</DefaultMessageTimeToLive>"
        f"<DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>"
        f"<MaxDeliveryCount>2147483647</MaxDeliveryCount><AutoDeleteOnIdle>{infinite}</AutoDeleteOnIdle>"
    )
    assert (await call("PUT", "/east%2Fx-servicebus-transfer%2F0", body))[0] == 201
    assert namespace.queues["east/x-servicebus-transfer/0"].description.max_delivery_count == 2147483647


async def test_an_update_replaces_so_that_a_value_can_be_taken_away(call, namespace):
    await call("PUT", "/q", entry("<UserMetadata>x</UserMetadata><MaxDeliveryCount>3</MaxDeliveryCount>"))
    status, _, _ = await call("PUT", "/Q", entry("<MaxDeliveryCount>4</MaxDeliveryCount>"), headers={"if-match": "*"})
    description = namespace.queues["q"].description
    assert (status, description.user_metadata, description.max_delivery_count) == (200, None, 4)
    assert description.name == "q" and description.created_at == NOW
    status, text, _ = await call(
        "PUT", "/q", entry("<RequiresSession>true</RequiresSession>"), headers={"if-match": "*"}
    )
    assert status == 400 and "RequiresSession may not be True" in text and "fixed" in text
    assert "name may not be" in (await call("PUT", "/a//b"))[1]
    assert (await call("PUT", "/other", entry(), headers={"if-match": "*"}))[0] == 404


async def test_an_update_that_does_not_speak_of_keys_or_of_what_is_fixed_leaves_them(call, namespace):
    keys = (
        "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights><KeyName>k</KeyName>"
    )
    keys += "<PrimaryKey>p</PrimaryKey></AuthorizationRule></AuthorizationRules>"
    session = "<RequiresSession>true</RequiresSession>"
    size = "<MaxMessageSizeInKilobytes>100</MaxMessageSizeInKilobytes>"
    assert (await call("PUT", "/q", entry(session + keys + size)))[0] == 201
    before = namespace.queues["q"].description
    replace = {"if-match": "*"}
    assert (await call("PUT", "/q?api-version=2017-04", entry(), headers=replace))[0] == 200
    after = namespace.queues["q"].description
    assert after.requires_session and after.authorization_rules == before.authorization_rules
    assert after.max_message_size_kb == 100
    assert (await call("PUT", "/q?api-version=2021-05", entry(), headers=replace))[0] == 200
    assert namespace.queues["q"].description.max_message_size_kb == 256
    assert (await call("PUT", "/q", entry("<AuthorizationRules/>"), headers=replace))[0] == 200
    assert namespace.queues["q"].description.authorization_rules == ()
    assert (await call("PUT", "/q2?api-version=2017-04", entry(size)))[0] == 400


async def test_a_subscription_is_made_with_the_rule_that_comes_with_it(call, namespace):
    await call("PUT", "/t", entry().replace(b"QueueDesc", b"TopicDesc"))
    rule = (
        '<DefaultRuleDescription><Filter xmlns:p="http://www.w3.org/2001/XMLSchema-instance" p:type="FalseFilter"/>'
        "<Name>none</Name></DefaultRuleDescription>"
    )
    body = entry(rule).replace(b"QueueDesc", b"SubscriptionDesc")
    status, text, _ = await call("PUT", "/t/Subscriptions/s", body)
    assert status == 201 and "DefaultRuleDescription" not in text
    assert "<id>https://localhost:1/t/Subscriptions/s</id>" in text
    rules = namespace.topics["t"].subscriptions["s"].rules
    assert list(rules) == ["none"] and rules["none"].created_at == NOW
    assert (await call("PUT", "/t/Subscriptions/s", headers={"if-match": "*"}))[0] == 200
    assert namespace.topics["t"].subscriptions["s"].description.default_rule == rules["none"]
    assert (await call("PUT", "/t/Subscriptions/plain"))[0] == 201
    _, text, _ = await call("GET", "/t/Subscriptions/plain/Rules")
    assert "<id>https://localhost:1/t/Subscriptions/plain/Rules/$Default</id>" in text
    assert (await call("PUT", "/t/Subscriptions/wrong", entry()))[0] == 400
    assert (await call("PUT", "/t/Subscriptions/s/Rules/wrong", entry()))[0] == 400


async def test_the_next_page_of_a_topics_subscriptions(call, namespace):
    await call("PUT", "/a%2Ft", entry().replace(b"QueueDesc", b"TopicDesc"))
    for number in range(3):
        assert (await call("PUT", f"/a%2Ft/subscriptions/s{number}"))[0] == 201
    _, body, _ = await call("GET", "/a%2Ft/subscriptions?$skip=0&$top=2&api-version=2021-05")
    assert 'next" href="https://localhost:1/a/t/subscriptions?$skip=2&amp;$top=2&amp;api-version=2021-05"' in body


async def test_what_is_said_no_to_names_the_elements_of_its_kind(call, namespace):
    await call("PUT", "/t", entry().replace(b"QueueDesc", b"TopicDesc"))
    namespace.error = InvalidDescription("dead_letter_on_filter_errors", 7, "8")
    assert "DeadLetteringOnFilterEvaluationExceptions may not be 7" in (await call("PUT", "/t/Subscriptions/s"))[1]
    namespace.error = Refusal("amqp:not-found", "the topic is gone")
    assert (await call("PUT", "/t/Subscriptions/s"))[0] == 404


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("", "MissingToken"),
        ("Bearer eyJ0eXAi.e30.x", "InvalidToken"),
        ("nonsense", "InvalidToken"),
        (sas.make_token("https://h", ROOT.key_name, "guess", NOW + 60), "does not match"),
        (sas.make_token("https://h", ROOT.key_name, ROOT.primary_key, NOW - 100), "ran out"),
        (sas.make_token("https://h", SENDER.key_name, SENDER.primary_key, NOW + 60), "Manage claim is required"),
        (sas.make_token("https://h/other", ROOT.key_name, ROOT.primary_key, NOW + 60), "Manage claim is required"),
    ],
)
async def test_who_may_not(call, namespace, token, said):
    for method, target in (
        ("PUT", "/q"),
        ("GET", "/q"),
        ("DELETE", "/q"),
        ("POST", "/q"),
        ("GET", "/$Resources/queues"),
    ):
        status, body, _ = await call(method, target, token=token)
        assert status == 401 and said in body and ROOT.primary_key not in body
    assert not namespace.queues


async def test_a_token_for_one_entity_manages_that_entity(call):
    token = sas.make_token("https://h/q", ROOT.key_name, ROOT.primary_key, NOW + 60)
    assert (await call("PUT", "/q", token=token))[0] == 201
    assert (await call("GET", "/Q", token=token))[0] == 200
    assert (await call("GET", "/Q", token=f"Bearer {token}"))[0] == 200, "as the SDK sends a ready-made signature"
    for target in ("/q2", "/$Resources/queues", "/$namespaceinfo"):
        assert (await call("GET", target, token=token))[0] == 401


def signed(path="", rule=ROOT):
    return sas.make_token(f"sb://localhost:1/{path}", rule.key_name, rule.primary_key, NOW + 60)


@pytest.mark.parametrize(
    ("element", "header"),
    [
        ("ForwardTo", "servicebussupplementaryauthorization"),
        ("ForwardDeadLetteredMessagesTo", "servicebusdlqsupplementaryauthorization"),
    ],
)
@pytest.mark.parametrize(
    ("token", "supplementary", "status"),
    [
        (signed(), None, 201),
        (signed("q"), None, 401),
        (signed("q"), signed("other"), 201),
        (signed("q"), f"Bearer {signed()}", 201),
        (signed("q"), signed("q"), 401),
        (signed(), signed("other", SENDER), 401),
        (signed(), "nonsense", 401),
    ],
)
async def test_who_forwards_to_an_entity_may_manage_it(call, namespace, element, header, token, supplementary, status):
    headers = {} if supplementary is None else {header: supplementary}
    body = entry(f"<{element}>sb://localhost:1/other</{element}>")
    answer = await call("PUT", "/q", body, token=token, headers=headers)
    assert answer[0] == status, answer
    if status == 201:
        assert f"<{element}>sb://localhost:1/other</{element}>" in answer[1]
        headers = {"if-match": "*"}
        assert (await call("PUT", "/q", body, token=signed("q"), headers=headers))[0] == 200, "it is set already"
    else:
        assert "q" not in namespace.queues


async def test_what_a_forwarding_entity_holds_waits_to_be_transferred(call, namespace):
    namespace.queues["q"] = entity(QueueDescription(name="q", forward_to="other"))
    namespace.queues["q"].active_count = 3
    _, body, _ = await call("GET", "/q")
    for said in ("ActiveMessageCount>0<", "TransferMessageCount>3<", "<MessageCount>3<"):
        assert said in body


async def test_the_js_sdk_signs_the_whole_url(call):
    token = sas.make_token("https://localhost:1/a%2fb?api-version=2021-05", ROOT.key_name, ROOT.primary_key, NOW + 60)
    assert (await call("PUT", "/a%2Fb?api-version=2021-05", token=token))[0] == 201


async def test_a_token_that_the_sdk_renews_too_late(call):
    token = sas.make_token("https://h", ROOT.key_name, ROOT.primary_key, NOW - 59)
    assert (await call("GET", "/$namespaceinfo", token=token))[0] == 200


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (Refusal("com.microsoft:entity-already-exists", "there was one"), 409, "there was one"),
        (Refusal("amqp:not-found", "gone"), 404, "gone"),
        (Refusal("amqp:resource-limit-exceeded", "the disk is full"), 403, "the disk is full"),
        (Refusal("com.microsoft:server-busy", "wait"), 503, "wait"),
        (Refusal("amqp:internal-error", "no"), 500, "no"),
        (InvalidDescription("max_size_mb", 7, "8"), 400, "MaxSizeInMegabytes may not be 7; allowed: 8"),
        (OSError("with a /path/in/it"), 500, "could not be written"),
    ],
)
async def test_what_the_namespace_says_no_to(call, namespace, error, status, said):
    namespace.error = error
    got, body, _ = await call("PUT", "/q")
    assert got == status and said in body and "/path" not in body


async def test_health_and_metrics_need_no_token(call, namespace):
    trouble = None

    async def look():
        return trouble

    def metrics():
        yield
        return "up 1\n"

    api = AdminApi(namespace, authorize, lambda: NOW, metrics=metrics, trouble=look)
    status, body, headers = await call("GET", "/health", token="", api=api)
    assert status == 200 and json.loads(body) == {"status": "healthy", "message": "Service is healthy."}
    assert headers["content-type"] == "application/json"
    trouble = "the disk is full"
    status, body, _ = await call("GET", "/health", token="", api=api)
    assert status == 503 and json.loads(body) == {"status": "unhealthy", "message": "the disk is full"}
    assert (await call("GET", "/metrics", token="", api=api))[:2] == (200, "up 1\n")
    assert (await call("GET", "/metrics", token="", api=api, peer="::ffff:127.0.0.1"))[0] == 200
    for peer in ("10.0.0.1", "", "2001:db8::1"):
        assert (await call("GET", "/metrics", token="", api=api, peer=peer))[0] == 403
    assert (await call("GET", "/metrics", token=""))[0] == 404


async def test_the_root_needs_no_token_and_says_what_it_is(call, namespace):
    for method in ("GET", "HEAD"):
        status, body, headers = await call(method, "/", token="")
        assert (status, headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert body == "A Service Bus namespace on pairbus.\n"
    for method in ("PUT", "DELETE", "POST"):
        assert (await call(method, "/", token=""))[0] == 404


async def test_a_queue_may_be_called_health(call):
    assert (await call("PUT", "/health"))[0] == 201
    assert "<QueueDescription" in (await call("GET", "/health"))[1]
    assert "healthy" in (await call("GET", "/health", token=""))[1]


async def test_every_call_is_told_of(call, namespace):
    told = []
    times = iter((NOW, NOW + 0.5, NOW + 1, NOW + 1.25))
    api = AdminApi(namespace, authorize, lambda: next(times), answered=lambda *what: told.append(what))
    made, absent = [len((await call(*what, api=api))[1].encode()) for what in (("PUT", "/a%2Fb"), ("GET", "/absent"))]
    assert made > 0
    assert told == [("PUT", "a/b", 201, made, 0.5), ("GET", "absent", 404, absent, 0.25)]
