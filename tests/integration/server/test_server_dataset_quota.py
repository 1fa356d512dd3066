"""How many names of datasets a principal may create, at a whole node."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from expected_errors import raises
from gateway_serving import node
from proving import Tokens, auth_section

import galileo
from galileo.errors import DatasetExists, InvalidSchema, QuotaExceeded
from galileo.rpc.access import Role

DEPTH = [galileo.Feature("depth")]
TIMEOUT_S = 30.0


async def test_names_count_towards_the_quota_of_their_creator_also_when_dropped(
    tmp_path: Path,
) -> None:
    tokens = Tokens.made(tmp_path / "principals.toml")
    tokens.add("root", Role.ADMIN)
    for name in ("bob", "ann"):
        tokens.add(name, Role.WRITER, datasets=("*", "galileo.*"), quotas=(("datasets_max", 3),))
    nodes = Tokens.made(tokens.path)
    auth = auth_section(tokens, nodes.add("nodes", Role.NODE))

    async def until_used(client: galileo.AsyncClient, names: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while (quota := (await client.whoami()).quotas["datasets_max"]).used != names:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (quota.bound, quota.counted) == (3, "cluster")

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
                await until_used(bob, 0)
                for number in range(3):
                    await bob.create_dataset(galileo.Schema(f"bob-{number}", DEPTH))
                    await bob.drop_dataset(f"bob-{number}")
            await until_used(bob, 3)
            with raises(QuotaExceeded, quota="datasets_max", bound=3):
                await bob.create_dataset(galileo.Schema("bob-3", DEPTH))
            await bob.create_dataset(galileo.Schema("bob-0", DEPTH))
            await bob.drop_dataset("bob-0")
            await until_used(ann, 1)
            if is_again:
                await ann.create_dataset(galileo.Schema("bob-0", DEPTH))
                await until_used(ann, 2)
                await until_used(bob, 2)
                await bob.create_dataset(galileo.Schema("bob-3", DEPTH))
