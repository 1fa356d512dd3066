from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fault_injection.ledger import Audit
from fault_injection.requirements import Need
from faults import __main__ as program
from faults.registry import Outcome, Scenario, Trial
from faults.report import summed, table
from faults.running import RunOptions, run, run_all


def scenario(work: Callable[[Trial], None], *, missing: str | None = None) -> Scenario:
    need = Need("luck", lambda: missing)
    return Scenario("roulette", "spins and must come to rest", (need,), 3, work)


def silent(_: str) -> None:
    """Nobody listens."""


def spin(trial: Trial) -> None:
    for number in trial.each_round():
        trial.counts["spins"] += number
        (trial.directory / str(number)).touch()


def lose(trial: Trial) -> None:
    for number in trial.each_round():
        trial.counts["spins"] += 1
        trial.judge(Audit(10, 0, 9, 1, 0, 0, 0), f"spin {number}")


def test_what_holds_is_counted_and_leaves_nothing(tmp_path: Path) -> None:
    outcome = run(scenario(spin), RunOptions(directory=tmp_path), silent)
    assert (outcome.verdict, outcome.counts) == ("held", {"rounds": 3, "spins": 6})
    assert run(scenario(spin), RunOptions(rounds=2), silent).counts["spins"] == 3
    assert list(tmp_path.iterdir()) == []


def test_a_complaint_ends_the_rounds_and_breaks_the_scenario() -> None:
    outcome = run(scenario(lose), RunOptions(seed=7), silent)
    assert (outcome.verdict, outcome.counts["spins"], outcome.counts["lost"]) == ("broken", 1, 1)
    assert "after spin 1" in outcome.complaints[0]
    assert "--seed 7" in table([outcome])


def test_an_exception_is_a_complaint() -> None:
    def explode(trial: Trial) -> None:
        raise TimeoutError("it never came to rest")

    outcome = run(scenario(explode), RunOptions(), silent)
    assert outcome.verdict == "broken"
    assert "it never came to rest" in outcome.complaints[0]


def test_what_the_machine_lacks_is_skipped_with_the_reason() -> None:
    outcome = run(scenario(lose, missing="sold out"), RunOptions(), silent)
    assert (outcome.verdict, outcome.reason) == ("skipped", "no luck: sold out")
    assert "sold out" in table([outcome])
    forever = RunOptions(minutes=60.0)
    assert len(list(run_all([scenario(lose, missing="sold out")], forever, silent))) == 1


def test_the_same_seed_draws_the_same() -> None:
    def draw(trial: Trial) -> None:
        trial.counts["drawn"] = trial.random.randrange(10**9)

    first, second, other = (
        run(scenario(draw), RunOptions(seed=seed), silent).counts for seed in (4, 4, 5)
    )
    assert first == second == {"drawn": random.Random(4).randrange(10**9)}
    assert other != first


def test_minutes_repeat_with_further_seeds() -> None:
    outcomes = list(run_all([scenario(spin)], RunOptions(minutes=0.002), silent))
    assert [one.seed for one in outcomes] == list(range(1, len(outcomes) + 1))
    (total,) = summed(outcomes)
    assert total.counts["spins"] == 6 * len(outcomes)


def test_the_worst_verdict_stands_for_all() -> None:
    held, broken = (
        Outcome("kill", "kills", verdict, seed, 1.0, counts={"lost": lost}, complaints=complaints)
        for verdict, seed, lost, complaints in (("held", 1, 0, ()), ("broken", 2, 3, ("lost",)))
    )
    (total,) = summed([held, broken, held])
    assert (total.verdict, total.seed, total.took_s) == ("broken", 2, 3.0)
    assert (total.counts, total.complaints) == ({"lost": 3}, ("lost",))


@pytest.mark.parametrize(("work", "status"), [(spin, 0), (lose, 1)])
def test_the_exit_status_says_whether_anything_broke(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    work: Callable[[Trial], None],
    status: int,
) -> None:
    monkeypatch.setattr(program, "SCENARIOS", (scenario(work),))
    monkeypatch.setattr("sys.argv", ["chaos", "--json", "--only", "roulette", "--rounds", "1"])
    assert program.main() == status
    (told,) = json.loads(capsys.readouterr().out)
    assert told["verdict"] == ("broken" if status else "held")
    assert told["counts"]["rounds"] == 1


def test_lasting_scenarios_share_the_time_and_have_one_world_each() -> None:
    worlds: list[Trial] = []

    def last(trial: Trial) -> None:
        worlds.append(trial)
        for _ in trial.each_round():
            time.sleep(0.01)

    chosen = [replace(scenario(last), name=name, is_lasting=True) for name in ("one", "other")]
    started = time.monotonic()
    outcomes = list(run_all(chosen, RunOptions(minutes=0.05), silent))
    assert time.monotonic() - started > 2.5
    assert [one.name for one in outcomes] == ["one", "other"]
    assert [one.lasts_s for one in worlds] == [1.5, 1.5]
    assert all(one.counts["rounds"] > one.rounds for one in worlds)
    assert all(one.share_done == 1.0 for one in worlds)


def test_half_of_the_rounds_is_half_of_what_is_to_be_done() -> None:
    shares: list[float] = []

    def count(trial: Trial) -> None:
        shares.extend(trial.share_done for _ in trial.each_round())

    run(scenario(count), RunOptions(rounds=4), silent)
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_how_often_each_process_was_killed_and_stopped_is_told() -> None:
    counts = {"kill worker": 2, "pause worker": 1, "pause client": 3, "kills": 7}
    text = table([Outcome("storm", "storms", "held", 1, 60.0, counts=counts)])
    assert "| worker | 2 | 1 |" in text
    assert "| client | 0 | 3 |" in text
    assert "killed" not in table([Outcome("kill", "kills", "held", 1, 1.0, counts={"kills": 7})])
