import pytest

from pairbus.broker.http.resources import Missing, Queues, ResourcePath, Rules, Subscriptions, Topics, parse_path
from pairbus.broker.model.description import SubscriptionDescription, TopicDescription
from pairbus.broker.model.rule_description import CorrelationFilter, FalseFilter, RuleDescription
from tests.broker.fake_namespace import FakeNamespace, entity


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("news", ResourcePath("news")),
        ("a/b/c", ResourcePath("a/b/c")),
        ("subscriptions", ResourcePath("subscriptions")),
        ("news/subscriptions", ResourcePath("news", "")),
        ("a/b/Subscriptions/All", ResourcePath("a/b", "All")),
        ("subscriptions/subscriptions/s", ResourcePath("subscriptions", "s")),
        ("t/subscriptions/subscriptions", ResourcePath("t", "subscriptions")),
        ("t/subscriptions/s/rules", ResourcePath("t", "s", "")),
        ("t/SUBSCRIPTIONS/s/RULES/$Default", ResourcePath("t", "s", "$Default")),
        ("t/subscriptions/rules/rules/rules", ResourcePath("t", "rules", "rules")),
        ("t/subscriptions/s/x", None),
        ("t/subscriptions/s/rules/r/x", None),
    ],
)
def test_paths(path, place):
    assert parse_path(path) == place


def test_the_name_is_that_of_the_last_part():
    paths = (ResourcePath("a/b"), ResourcePath("t", ""), ResourcePath("t", "s"), ResourcePath("t", "s", ""))
    assert [path.name for path in paths] == [
        "a/b", "", "s", "",
    ]  # fmt: skip
    assert ResourcePath("t", "s", "r").name == "r"


@pytest.fixture
def namespace():
    made = FakeNamespace()
    made.topics["news"] = entity(TopicDescription(name="News"))
    subscription = entity(SubscriptionDescription(topic="News", name="All"))
    subscription.rules["r"] = RuleDescription(name="R", filter=CorrelationFilter(label="x"))
    subscription.rules["f"] = RuleDescription(name="f", filter=FalseFilter())
    made.topics["news"].subscriptions["all"] = subscription
    return made


def test_things_are_found_in_any_case_and_shown_as_they_were_named(namespace):
    place = ResourcePath("NEWS", "ALL", "r")
    rules = Rules(namespace)
    assert list(rules.all(place)) == ["r", "f"]
    assert rules.path(place, rules.all(place)["r"]) == "News/Subscriptions/All/Rules/R"
    subscriptions = Subscriptions(namespace)
    assert subscriptions.path(place, subscriptions.all(place)["all"].description) == "News/Subscriptions/All"
    assert subscriptions.describe(ResourcePath("NEWS", "new"), {}, 5.0) == SubscriptionDescription(
        topic="News", name="new", created_at=5.0, updated_at=5.0
    )
    assert Queues(namespace).all(ResourcePath("q")) == {}


def test_a_topics_counts(namespace):
    counts = Topics(namespace).counts(namespace.topics["news"])
    assert (counts.subscriptions, counts.sql_filters, counts.correlation_filters) == (1, 1, 1)


@pytest.mark.parametrize(
    ("resource_kind", "place", "said"),
    [
        (Subscriptions, ResourcePath("absent", "s"), "The topic 'absent' does not exist"),
        (Rules, ResourcePath("absent", "s", "r"), "The topic 'absent' does not exist"),
        (Rules, ResourcePath("news", "absent", "r"), "The subscription 'absent' does not exist"),
    ],
)
def test_what_a_path_leads_through_must_be_there(namespace, resource_kind, place, said):
    with pytest.raises(Missing, match=said):
        resource_kind(namespace).all(place)
    with pytest.raises(Missing, match=said):
        resource_kind(namespace).describe(place, {}, 1.0)
