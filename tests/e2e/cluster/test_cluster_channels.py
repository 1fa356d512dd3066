"""A channel of a running cluster, while nodes of it are killed, restarted, and lose their disks."""

from __future__ import annotations

from pathlib import Path

import pytest
from channel_users import SETTINGS, Users, await_whole, judge_disks, lose_disk

from galileo.cluster import LocalCluster


def test_followers_get_everything_once_although_a_node_is_killed(tmp_path: Path) -> None:
    with LocalCluster(2, 1, tmp_path, replicas=1, settings=SETTINGS) as cluster:
        users = Users(cluster)
        users.go_on(5)
        cluster.nodes[1].kill()
        cluster.nodes[1].start()
        cluster.nodes[1].wait()
        users.go_on(5)
        users.judge()
        users.await_executed()
    check_disks(users, cluster)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("replicas", [1, 3])
def test_followers_get_everything_once_whatever_happens_to_nodes(
    tmp_path: Path, replicas: int
) -> None:
    with LocalCluster(3, 1, tmp_path, replicas=replicas, settings=SETTINGS) as cluster:
        users = Users(cluster)
        users.go_on(5)
        for number, node in enumerate(cluster.nodes):
            node.kill()
            if replicas > 1:
                users.go_on(5)
            node.start()
            node.wait()
            users.go_on(5)
            if replicas > 1 and number == 1:
                await_whole(users.client)
                lose_disk(node, tmp_path)
                await_whole(users.client)
                users.go_on(5)
        users.judge()
        for node in cluster.nodes:  # Tokens and logs outlive everything.
            node.restart()
            node.wait()
        await_whole(users.client)
        for follower in users.followers:
            again = [
                (subscription, number)
                for batch in users.client.follow("hot", follower.broker, wait="3s")
                for subscription, number in batch.to_pandas()[["subscription", "number"]].values
            ]
            assert sorted(again) == sorted((name, one.number) for _, name, one in follower.got)
            assert not list(
                users.client.follow("hot", follower.broker, token=follower.token, wait="1s")
            )
        users.await_executed()
    check_disks(users, cluster)


def check_disks(users: Users, cluster: LocalCluster) -> None:
    counts = judge_disks(users.audit, cluster)
    assert counts["notifications"]
    wrong = ("missed", "repeated", "foreign", "copies that differ")
    assert not any(counts[name] for name in wrong), counts
