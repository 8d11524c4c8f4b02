"""PostgreSQL on attached grid disks: as the guide has it, and through kill -9 (the short form of tests/crash-proof)."""

import os

from attached import Host, need_attach
from crashproof import Database, Lost, proof, programs
from harness import Failure, Place, contains, equal, test


@test
def postgresql_is_set_up_as_in_the_guide():
    """The five commands of docs/guide/postgresql.md, with sizes that fit a test: data cached, pg_wal on a redo grid disk."""
    need_attach("setpriv")
    programs()
    with Place("guide") as place:
        cell = place.cell(disks=("1500M",), flash=("768M",), griddisks=("pgdata:400M", "pgwal:400M:redo")).start()
        host = Host(place)
        try:
            for name in ("pgdata", "pgwal"):
                os.mkdir(place.path(name))
                host.attach(name, place.path(name), "-c", cell.dir, "--mkfs", "ext4", "-o", "noatime")
            database = Database(place, place.path("pgdata"))
            database.make(wal=os.path.join(place.path("pgwal"), "main"))
            database.start()
            bench = ("-h", database.sock, "-p", database.port, "-U", "bench", "postgres")
            database.run("pgbench", "-i", "-q", "-s", 2, *bench)
            contains(database.run("pgbench", "-T", 2, "-c", 4, *bench).stdout, "number of failed transactions: 0", "pgbench")
            database.stop()
            for name in ("pgwal", "pgdata"):
                host.detach(name)
            equal(host.rows(), [], "attachments")
        finally:
            host.end()
        cell.stop()


@test
def postgresql_keeps_every_commit():
    kinds = ("driver", "flash-old", "cell", "cache", "mirror", "all", "grow", "database", "copy", "mode")
    total = proof(len(kinds), seed=1, kinds=kinds, seconds=3, wal="own")
    if total < 300:
        raise Failure(f"{total} commits in {len(kinds)} rounds prove nothing")


@test
def a_flush_that_does_nothing_loses_commits():
    try:
        proof(6, seed=2, sabotage="flush-not-waiting", kinds=("all", "cell"), seconds=3, wal="with-data")
    except Lost:
        return
    raise Failure("a FLUSH that does nothing lost no commit: the proof is blind")
