import pytest

from pairbus.broker.http.resources import Missing, Place, Queues, Rules, Subscriptions, Topics, parse_place
from pairbus.broker.model.description import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from tests.broker.fake_namespace import FakeNamespace, entity


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("news", Place("news")),
        ("a/b/c", Place("a/b/c")),
        ("subscriptions", Place("subscriptions")),
        ("news/subscriptions", Place("news", "")),
        ("a/b/Subscriptions/All", Place("a/b", "All")),
        ("subscriptions/subscriptions/s", Place("subscriptions", "s")),
        ("t/subscriptions/subscriptions", Place("t", "subscriptions")),
        ("t/subscriptions/s/rules", Place("t", "s", "")),
        ("t/SUBSCRIPTIONS/s/RULES/$Default", Place("t", "s", "$Default")),
        ("t/subscriptions/rules/rules/rules", Place("t", "rules", "rules")),
        ("t/subscriptions/s/x", None),
        ("t/subscriptions/s/rules/r/x", None),
    ],
)
def test_paths(path, place):
    assert parse_place(path) == place


def test_the_name_is_that_of_the_last_part():
    assert [place.name for place in (Place("a/b"), Place("t", ""), Place("t", "s"), Place("t", "s", ""))] == [
        "a/b", "", "s", "",
    ]  # fmt: skip
    assert Place("t", "s", "r").name == "r"


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
    place = Place("NEWS", "ALL", "r")
    rules = Rules(namespace)
    assert list(rules.all(place)) == ["r", "f"]
    assert rules.path(place, rules.all(place)["r"]) == "News/Subscriptions/All/Rules/R"
    subscriptions = Subscriptions(namespace)
    assert subscriptions.path(place, subscriptions.all(place)["all"].description) == "News/Subscriptions/All"
    assert subscriptions.describe(Place("NEWS", "new"), {}, 5.0) == SubscriptionDescription(
        topic="News", name="new", created_at=5.0, updated_at=5.0
    )
    assert Queues(namespace).all(Place("q")) == {}


def test_a_topics_counts(namespace):
    counts = Topics(namespace).counts(namespace.topics["news"])
    assert (counts.subscriptions, counts.sql_filters, counts.correlation_filters) == (1, 1, 1)


@pytest.mark.parametrize(
    ("shelf", "place", "said"),
    [
        (Subscriptions, Place("absent", "s"), "The topic 'absent' does not exist"),
        (Rules, Place("absent", "s", "r"), "The topic 'absent' does not exist"),
        (Rules, Place("news", "absent", "r"), "The subscription 'absent' does not exist"),
    ],
)
def test_what_a_path_leads_through_must_be_there(namespace, shelf, place, said):
    with pytest.raises(Missing, match=said):
        shelf(namespace).all(place)
    with pytest.raises(Missing, match=said):
        shelf(namespace).describe(place, {}, 1.0)
