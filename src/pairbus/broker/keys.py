"""The key of a namespace: made at random at the first start, kept in a file that only its owner can read."""

from __future__ import annotations

import base64
import json
import os
import secrets
from pathlib import Path

from pairbus.errors import BrokerError

from .description import AuthorizationRule

ROOT_RULE = "RootManageSharedAccessKey"
_FILE = "keys.json"


def load_rule(folder: Path) -> AuthorizationRule:
    path = folder / _FILE
    try:
        return AuthorizationRule.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        return _make(path)
    except (ValueError, KeyError, TypeError) as error:
        raise BrokerError(
            f"{path} is not a key file ({error}); put it back from a copy, or remove it to have a new key made"
        ) from None


def _make(path: Path) -> AuthorizationRule:
    rule = AuthorizationRule(
        key_name=ROOT_RULE,
        rights=("Manage", "Send", "Listen"),
        primary_key=_random_key(),
        secondary_key=_random_key(),
    )
    # written whole and synced before it has its name: half a key file would lock everybody out
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(rule.to_json(), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return rule


def _random_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()
