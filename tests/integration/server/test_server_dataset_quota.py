"""How many names of datasets a principal may create, at a whole node."""

from __future__ import annotations

import contextlib
from pathlib import Path

from expected_errors import raises
from gateway_serving import node
from proving import Tokens, auth_section

import galileo
from galileo.errors import DatasetExists, InvalidSchema, QuotaExceeded
from galileo.rpc.access import Role

DEPTH = [galileo.Feature("depth")]


async def test_names_count_towards_the_quota_of_their_creator_also_when_dropped(
    tmp_path: Path,
) -> None:
    tokens = Tokens.made(tmp_path / "principals.toml")
    tokens.add("root", Role.ADMIN)
    for name in ("bob", "ann"):
        tokens.add(name, Role.WRITER, datasets=("*", "galileo.*"), quotas=(("datasets_max", 3),))
    nodes = Tokens.made(tokens.path)
    auth = auth_section(tokens, nodes.add("nodes", Role.NODE))

    async def used(client: galileo.AsyncClient) -> float | None:
        quota = (await client.whoami()).quotas["datasets_max"]
        assert (quota.bound, quota.counted) == (3, "node")
        return quota.used

    for is_again in (False, True):  # The node has started anew.
        async with (
            node(tmp_path / "node", {"auth": auth}) as at,
            contextlib.AsyncExitStack() as stack,
        ):
            bob, ann = [
                await stack.enter_async_context(
                    galileo.AsyncClient(at, timeout="30s", proof=tokens.proof(name))
                )
                for name in ("bob", "ann")
            ]
            if not is_again:
                await ann.create_dataset(galileo.Schema("sea", DEPTH))
                with raises(DatasetExists):
                    await bob.create_dataset(galileo.Schema("sea", [galileo.Feature("salt")]))
                with raises(InvalidSchema):
                    await bob.create_dataset(galileo.Schema("galileo.mine", DEPTH))
                assert await used(bob) == 0
                for number in range(3):
                    await bob.create_dataset(galileo.Schema(f"bob-{number}", DEPTH))
                    await bob.drop_dataset(f"bob-{number}")
            assert await used(bob) == 3
            with raises(QuotaExceeded, quota="datasets_max", bound=3):
                await bob.create_dataset(galileo.Schema("bob-3", DEPTH))
            await bob.create_dataset(galileo.Schema("bob-0", DEPTH))
            await bob.drop_dataset("bob-0")
            assert await used(ann) == 1
            if is_again:
                await ann.create_dataset(galileo.Schema("bob-0", DEPTH))
                assert (await used(ann), await used(bob)) == (2, 2)
                await bob.create_dataset(galileo.Schema("bob-3", DEPTH))
