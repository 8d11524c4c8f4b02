"""PostgreSQL on an attached grid disk through kill -9: the short form of tests/crash-proof."""

from crashproof import Lost, proof
from harness import Failure, test


@test
def postgresql_keeps_every_commit():
    total = proof(3, seed=1, kinds=("driver", "cell", "all"), seconds=3)
    if total < 100:
        raise Failure(f"{total} commits in three rounds prove nothing")


@test
def a_flush_that_does_nothing_loses_commits():
    try:
        proof(6, seed=2, sabotage="flush-not-waiting", kinds=("all", "cell"), seconds=3)
    except Lost:
        return
    raise Failure("a FLUSH that does nothing lost no commit: the proof is blind")
