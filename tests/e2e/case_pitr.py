"""Recovery to a point in time: a frozen copy of data and WAL, and the archive, as docs/guide/postgresql.md has it."""

import os
import time

from attached import Host, need_attach
from crashproof import Database, database_on, frozen_copy, programs
from harness import Place, check, equal, test, wait_until


def numbers(database):
    return [int(row[0]) for row in database.rows("SELECT n FROM t ORDER BY n")]


@test
def a_frozen_copy_and_the_archive_recover_to_a_point_in_time():
    need_attach("setpriv")
    programs()
    with Place("pitr") as place:
        # The default modes: data in write-through, pg_wal on a redo grid disk before the flash log.
        cell = place.cell(disks=("1500M",), flash=("512M",), griddisks=("data:256M", "wal:256M:redo")).start()
        host = Host(place)
        database = copied = None
        try:
            mounts = {name: place.path(f"mnt-{name}") for name in ("data", "wal")}
            for name, mount in mounts.items():
                os.mkdir(mount)
                host.attach(name, mount, "-c", cell.dir, "--mkfs", "ext4", "-o", "noatime")
            database = Database(place, mounts["data"])
            archive = place.path("archive")
            os.mkdir(archive)
            os.chown(archive, database.user.pw_uid, database.user.pw_gid)
            archived = {"archive_mode": "on", "archive_command": f"'test ! -f {archive}/%f && cp %p {archive}/%f'"}
            database.make(wal=os.path.join(mounts["wal"], "wal"), settings=archived)
            database.start()
            database.sql("CREATE TABLE t (n int PRIMARY KEY)")
            database.sql("INSERT INTO t SELECT generate_series(1, 1000)")
            with frozen_copy(place, cell, list(mounts)) as copies:
                database.sql("INSERT INTO t SELECT generate_series(1001, 2000)")
                time.sleep(0.1)
                ((until,),) = database.rows("SELECT clock_timestamp()")
                time.sleep(0.1)
                # What should not have happened.
                database.sql("DELETE FROM t WHERE n % 2 = 0")
                ((segment,),) = database.rows("SELECT pg_walfile_name(pg_switch_wal())")
                wait_until(lambda: os.path.exists(os.path.join(archive, segment)), 60, "the archive has it")
                equal(len(numbers(database)), 1000, "rows in the database")
                copied = database_on(place, copies)
                with open(os.path.join(copied.data, "postgresql.auto.conf"), "a") as file:
                    file.write(f"restore_command = 'cp {archive}/%f %p'\nrecovery_target_time = '{until}'\narchive_mode = off\n")
                signal = os.path.join(copied.data, "recovery.signal")
                with open(signal, "w"):
                    pass
                os.chown(signal, copied.user.pw_uid, copied.user.pw_gid)
                copied.start()
                wait_until(lambda: copied.rows("SELECT pg_is_wal_replay_paused()") == [["t"]], 60, "it waits at that time")
                equal(numbers(copied), list(range(1, 2001)), "rows at that time")
                copied.sql("SELECT pg_wal_replay_resume()")
                wait_until(lambda: copied.rows("SELECT pg_is_in_recovery()") == [["f"]], 60, "the recovery ends")
                copied.sql("INSERT INTO t VALUES (0)")
                check(copied.rows("SELECT count(*) FROM t") == [["2001"]], "it can be written to")
                copied.stop()
            database.stop()
            for name in ("wal", "data"):
                host.detach(name)
        finally:
            for one in (copied, database):
                if one is not None and one.server is not None and one.server.poll() is None:
                    one.kill()
            host.end()
        cell.stop()
