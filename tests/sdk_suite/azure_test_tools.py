"""Pytest plugin: stand-ins for the Azure test tools that the SDK's tests import and that are not published with them.

Azure's tools record HTTP traffic, and their decorators ("preparers") create a namespace, queues, topics and keys by way
of Azure's resource manager and pass them to the test as keyword arguments. Here nothing is recorded, the namespace is
the broker under test, queues and topics are created over its management API, and keys over its control socket. Each
test gets resources of its own, and nothing is deleted: the broker does not outlive its group of tests.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError
from azure.servicebus import parse_connection_string
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from azure.servicebus.aio._base_handler_async import ServiceBusSharedKeyCredential as AsyncSharedKeyCredential
from azure.servicebus.management import AccessRights, ServiceBusAdministrationClient

from pairbus.broker.control.control_socket import request

Arguments = dict[str, Any]
Test = Callable[..., Any]


def connection_string() -> str:
    return os.environ["SUITE_CONNECTION_STRING"]


def broker() -> Any:
    """Return the address and the root key of the broker under test, as the SDK's `parse_connection_string` does."""
    return parse_connection_string(connection_string())


def prepare(test: Test, make: Callable[[Arguments], Arguments]) -> Test:
    """Return the test with the keyword arguments that `make` returns, beside those that it is called with."""
    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def prepared(*positional: Any, **given: Any) -> None:
            await test(*positional, **given | make(given))
    else:

        @functools.wraps(test)
        def prepared(*positional: Any, **given: Any) -> None:
            test(*positional, **given | make(given))

    return prepared


def preparer(parameter: str) -> Callable[[Callable[..., Arguments]], Callable[..., Callable[[Test], Test]]]:
    """Make a function that creates a resource into a preparer, which passes it as `parameter` unless told another."""

    def decorate(create: Callable[..., Arguments]) -> Callable[..., Callable[[Test], Test]]:
        def configure(name_prefix: str = "", parameter_name: str = parameter, **options: Any) -> Callable[[Test], Test]:
            return lambda test: prepare(test, lambda given: create(given, parameter_name, **options))

        return configure

    return decorate


def named_resource() -> SimpleNamespace:
    return SimpleNamespace(name=f"suite-{uuid.uuid4().hex}")


@preparer("resource_group")
def prepare_resource_group(given: Arguments, parameter: str) -> Arguments:
    return {parameter: named_resource()}


@preparer("servicebus_namespace")
def prepare_namespace(given: Arguments, parameter: str) -> Arguments:
    return {
        parameter: SimpleNamespace(name=broker().fully_qualified_namespace),
        f"{parameter}_connection_string": connection_string(),
        f"{parameter}_key_name": broker().shared_access_key_name,
        f"{parameter}_primary_key": broker().shared_access_key,
    }


@preparer("servicebus_queue")
def prepare_queue(given: Arguments, parameter: str, lock_duration: str = "PT30S", **options: Any) -> Arguments:
    queue = named_resource()
    with ServiceBusAdministrationClient.from_connection_string(connection_string()) as client:
        client.create_queue(queue.name, lock_duration=lock_duration, **options)
    return {parameter: queue}


@preparer("servicebus_topic")
def prepare_topic(given: Arguments, parameter: str) -> Arguments:
    topic = named_resource()
    with ServiceBusAdministrationClient.from_connection_string(connection_string()) as client:
        client.create_topic(topic.name)
    return {parameter: topic}


@preparer("servicebus_subscription")
def prepare_subscription(given: Arguments, parameter: str, lock_duration: str = "PT60S", **options: Any) -> Arguments:
    subscription = named_resource()
    with ServiceBusAdministrationClient.from_connection_string(connection_string()) as client:
        topic = given["servicebus_topic"].name
        client.create_subscription(topic, subscription.name, lock_duration=lock_duration, **options)
    return {parameter: subscription}


def add_rule(parameter: str, rights: Iterable[AccessRights], scope: Arguments) -> Arguments:
    rule = named_resource()
    asked = {"command": "rule", "namespace": os.environ["SUITE_NAMESPACE"], "name": rule.name, **scope}
    answer = request(Path(os.environ["SUITE_DATA"]), asked | {"rights": [right.value for right in rights]})
    if not answer["ok"]:
        raise RuntimeError(f"the broker added no authorization rule: {answer['error']}")
    parts = {
        "Endpoint": f"sb://{broker().fully_qualified_namespace}",
        "SharedAccessKeyName": rule.name,
        "SharedAccessKey": answer["primary_key"],
        "UseDevelopmentEmulator": "true",
    } | ({"EntityPath": scope["entity"]} if scope else {})
    return {parameter: rule, f"{parameter}_connection_string": "".join(f"{k}={v};" for k, v in parts.items())}


@preparer("servicebus_authorization_rule")
def prepare_namespace_rule(
    given: Arguments, parameter: str, access_rights: Iterable[AccessRights] = AccessRights
) -> Arguments:
    return add_rule(parameter, access_rights, {})


@preparer("servicebus_queue_authorization_rule")
def prepare_queue_rule(given: Arguments, parameter: str) -> Arguments:
    return add_rule(parameter, AccessRights, {"entity": given["servicebus_queue"].name})


class EnvironmentPreparer:
    """Passes the address and the key of the broker, which Azure's tool reads from environment variables."""

    def __init__(self, directory: str, **defaults: str) -> None:
        self._defaults = defaults

    def __call__(self, test: Test) -> Test:
        signature = inspect.signature(test)
        takes_all = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())

        def make(_: Arguments) -> Arguments:
            return {name: value for name, value in self._values().items() if takes_all or name in signature.parameters}

        prepared = prepare(test, make)
        # Pytest takes a parameter without a default for a fixture: those that are passed here leave the signature.
        others = [each for name, each in signature.parameters.items() if name not in self._defaults]
        prepared.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return prepared

    def _values(self) -> Arguments:
        return self._defaults | {
            "servicebus_connection_str": connection_string(),
            "servicebus_fully_qualified_namespace": broker().fully_qualified_namespace,
            "servicebus_sas_policy": broker().shared_access_key_name,
            "servicebus_sas_key": broker().shared_access_key,
        }


def unchanged(test: Test) -> Test:
    return test


class RecordedTestCase:
    """Base class of most test classes of the SDK."""

    await_prepared_test = staticmethod(unchanged)


def get_credential(is_async: bool = False) -> Any:
    kind = AsyncSharedKeyCredential if is_async else ServiceBusSharedKeyCredential
    return kind(broker().shared_access_key_name, broker().shared_access_key)


def do_nothing(**_: Any) -> None:
    """In the place of what configures the recordings."""


@pytest.fixture(scope="session")
def test_proxy() -> None:
    """In the place of Azure's recording proxy."""


def install(name: str, **members: Any) -> None:
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(members)


install(
    "devtools_testutils",
    AzureMgmtRecordedTestCase=RecordedTestCase,
    AzureRecordedTestCase=RecordedTestCase,
    CachedResourceGroupPreparer=prepare_resource_group,
    RandomNameResourceGroupPreparer=prepare_resource_group,
    PowerShellPreparer=EnvironmentPreparer,
    get_credential=get_credential,
    recorded_by_proxy=unchanged,
    set_custom_default_matcher=do_nothing,
)
install("devtools_testutils.aio", recorded_by_proxy_async=unchanged)
install(
    "devtools_testutils.sanitizers",
    add_general_regex_sanitizer=do_nothing,
    add_oauth_response_sanitizer=do_nothing,
    add_remove_header_sanitizer=do_nothing,
)
install("azure.common", AzureHttpError=HttpResponseError, AzureConflictHttpError=ResourceExistsError)
install("azure.mgmt")
install("azure.mgmt.servicebus")
install("azure.mgmt.servicebus.models", AccessRights=AccessRights)
# A file of the SDK's tests that imports more of Azure's tools; found in sys.modules, it is never read.
install(
    "servicebus_preparer",
    SERVICEBUS_ENDPOINT_SUFFIX="",
    CachedServiceBusNamespacePreparer=prepare_namespace,
    CachedServiceBusQueuePreparer=prepare_queue,
    CachedServiceBusResourceGroupPreparer=prepare_resource_group,
    CachedServiceBusSubscriptionPreparer=prepare_subscription,
    CachedServiceBusTopicPreparer=prepare_topic,
    ServiceBusNamespaceAuthorizationRulePreparer=prepare_namespace_rule,
    ServiceBusNamespacePreparer=prepare_namespace,
    ServiceBusQueueAuthorizationRulePreparer=prepare_queue_rule,
    ServiceBusQueuePreparer=prepare_queue,
    ServiceBusSubscriptionPreparer=prepare_subscription,
    ServiceBusTopicPreparer=prepare_topic,
)
