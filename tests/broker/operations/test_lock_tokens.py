from __future__ import annotations

import uuid

from pairbus.broker.operations.lock_tokens import random_tokens


def test_tokens_are_random_uuids_in_dotnet_order() -> None:
    new_token = random_tokens()
    tokens = [new_token() for _ in range(1000)]
    assert len(set(tokens)) == 1000
    for token in tokens:
        as_uuid = uuid.UUID(bytes_le=token)
        assert (as_uuid.version, as_uuid.variant) == (4, uuid.RFC_4122)
