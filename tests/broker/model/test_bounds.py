import pytest

from pairbus.broker.model.bounds import (
    InvalidDescription,
    check_all,
    flag,
    validate_name,
    validate_rule_name,
    validate_subscription_name,
)


@pytest.mark.parametrize(
    "name",
    ["a", "Orders", "orders-2", "a.b_c~d", "txt/.-_123", "a/b/c", "subscriptions", "x" * 260, "0", "a/b..c/d"],
)
def test_names_that_may_be(name):
    validate_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "", "/a", "a/", "a//b", "x" * 261, "$Resources", "a b", "a?b", "a#b", "a%2Fb", "a\n", "-a", "a.", "grün",
        "a/$DeadLetterQueue", "a/./b", "a/../b", "t/Subscriptions/s", "a:b", "a\\b", None, 7,
    ],
)  # fmt: skip
def test_names_that_may_not_be(name):
    with pytest.raises(InvalidDescription) as info:
        validate_name(name)
    assert info.value.field == "name"


@pytest.mark.parametrize("name", ["all", "A", "sub_testkkk", "a.b-c_d", "9", "x" * 50, "subscriptions", "rules"])
def test_names_of_parts_that_may_be(name):
    validate_subscription_name(name)
    validate_rule_name(name)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 51, "a b", "a$b", "a\n", "ü", ".a", "a.", "$", "a~b", "..", None, 5])
def test_names_of_parts_that_may_not_be(name):
    for check in (validate_subscription_name, validate_rule_name):
        with pytest.raises(InvalidDescription) as info:
            check(name)
        assert info.value.field == "name" and "1 to 50 characters" in str(info.value)


def test_a_rule_may_be_called_default():
    validate_rule_name("$Default")
    with pytest.raises(InvalidDescription):
        validate_subscription_name("$Default")


def test_the_first_field_that_is_wrong_is_named():
    class Two:
        a = True
        b = "yes"

    with pytest.raises(InvalidDescription, match=r"b may not be 'yes'; allowed: true or false") as info:
        check_all(Two, {"a": (flag, "true or false"), "b": (flag, "true or false")})
    assert (info.value.field, info.value.value) == ("b", "yes")
