"""`flashcell pin PATH…` and `--table`: what files and tables lie on is kept in flash, through growth and VACUUM FULL, and let go again."""

import json
import os
import shutil
import subprocess

from attached import hosted
from crashproof import Database, programs
from harness import MIB, Skip, binary, check, contains, equal, measured, run, test, timing, wait_until


def fill(path, mib, seed=1):
    """Data that is not zero, on the device."""
    with open(path, "wb") as file:
        for at in range(mib):
            file.write(bytes([seed + at % 200]) * MIB)
        file.flush()
        os.fsync(file.fileno())


def mounted(cell, host, place):
    """Where grid disk `data` is mounted."""
    mount = place.path("mnt")
    os.mkdir(mount)
    host.attach("data", mount, "-c", cell.dir, "--mkfs", "ext4", "-o", "noatime")
    return mount


class Pinner:
    def __init__(self, place, cell, host):
        self.place, self.cell, self.host = place, cell, host

    def pin(self, *arguments, ok=True):
        return run([binary(), "pin", *map(str, arguments)], ok=ok, env=self.host.env)

    def follow(self, *arguments):
        command = [binary(), "pin", "--follow=1", *map(str, arguments)]
        return self.place.spawn(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self.host.env)

    def held(self, *paths, name="data", what="cachedKeepSize"):
        """(located, kept) bytes of files."""
        command = [binary(), "contents", name, *map(str, paths), "-c", self.cell.dir, "--json"]
        files = json.loads(run(command, ok=None, env=self.host.env).stdout)["files"]
        return sum(file["located"] for file in files), sum(file[what] for file in files)

    def are_pinned(self, *paths):
        """Whether all of files lies in pinned ranges as far as sizes tell, and is cached. What was cached before as other data counts as KEEP
        data when reclaim has come to it, and not before."""
        located, cached = self.held(*paths, what="cachedSize")
        return located > 0 and cached >= 0.99 * located and self.pinned_bytes() >= located

    def pinned_bytes(self, name="data"):
        return sum(row["length"] for row in self.cell.json(f"list pin {name}"))


def sweep(host, cell, mib):
    """Read a grid disk that is nobody's past the caches of the kernel, twice."""
    device = host.attach("other", "-c", cell.dir).stdout.strip()
    for _ in range(2):
        run(["dd", f"if={device}", "of=/dev/null", "bs=1M", f"count={mib}", "iflag=direct"])
    host.detach("other")


@timing
def files_are_pinned_by_path_and_followed():
    griddisks = ("data:128M", "other:512M")
    with hosted("dd", disks=("768M",), flash=("128M",), griddisks=griddisks) as (cell, host, place):
        mount = mounted(cell, host, place)
        pinner = Pinner(place, cell, host)
        hot, cold = os.path.join(mount, "hot"), os.path.join(mount, "cold")
        # Written past the cache, so that what is cached of them is what a pin has brought there.
        cell.cellcli("alter griddisk data cachingMode=none")
        fill(hot, 12)
        fill(cold, 12, seed=7)
        cell.cellcli("alter griddisk data cachingMode=write-through")
        # Neither grid disk nor cell are named: what the file system is on is attached here.
        answer = json.loads(pinner.pin(hot, "keep", "--json").stdout)
        equal((answer["griddisk"], answer["located_bytes"], answer["range_bytes"]), ("data", 12 * MIB, 12 * MIB), "what is pinned")
        equal(pinner.held(hot), (12 * MIB, 12 * MIB), "read into the cache at once")
        equal(pinner.held(cold)[1], 0, "the other file is not kept")
        sweep(host, cell, 512)
        located, kept = pinner.held(hot)
        measured(kept >= 0.99 * located, f"kept through two scans of eight times the cache: {kept} of {located}")
        # Again: nothing to do.
        contains(pinner.pin(hot, "keep").stdout, "0 added, 0 dropped", "a second time")
        # It grows, is written anew elsewhere, and goes; whoever follows it sees that.
        follower = pinner.follow(mount, "keep")
        wait_until(lambda: pinner.held(cold)[1] == 12 * MIB, 20, "a directory with all below it")
        contains(run([binary(), "contents", hot], env=host.env).stdout, hot, "contents without a grid disk's name")
        fill(cold, 20, seed=9)
        os.sync()
        wait_until(lambda: pinner.pinned_bytes() >= 32 * MIB and pinner.are_pinned(cold), 20, "a file that has grown")
        shutil.copy(hot, hot + ".new")
        os.rename(hot + ".new", hot)
        os.sync()
        wait_until(lambda: pinner.are_pinned(hot, cold), 20, "a file that was written anew")
        os.unlink(cold)
        os.sync()
        wait_until(lambda: pinner.pinned_bytes() < 16 * MIB, 20, "what a file has left is let go")
        follower.kill()
        follower.wait()
        pinner.pin(mount, "off")
        equal(pinner.pinned_bytes(), 0, "ranges after off")
        for arguments, part in (
            ((hot, "kep"), 'is to be keep, default, none or off, and is "kep"'),
            ((os.path.join(mount, "none"), "keep"), "No such file"),
            (("/proc/self/status", "keep"), "on no grid disk that is attached to this host"),
            ((hot, "keep", "--griddisk", "absent", "-c", cell.dir), "absent"),
            (("--table", "orders", "keep"), "names no table"),
            (("data", "0", "keep"), "GRIDDISK OFFSET LENGTH POLICY"),
            ((hot, "off", "--follow"), "nothing to follow"),
        ):
            refused = pinner.pin(*arguments, ok=False)
            contains(refused.stderr, part, str(arguments))
        host.detach("data")
        cell.stop()


def as_a_view(database, command, host):
    """The same by SQL, for a role that may look and no more."""
    contains(run([*command, "--view", "make"], env=host.env).stdout, "view flashcell.contents made in database postgres", "said")
    run([*command, "--view", "make"], env=host.env)
    database.sql("CREATE ROLE looker LOGIN; GRANT pg_monitor TO looker; CREATE ROLE stranger LOGIN")
    asked = "SELECT relation, kept_bytes FROM flashcell.contents WHERE kept_bytes > 0 ORDER BY relation"
    rows = [row[0] for row in database.rows(asked, user="looker")]
    equal(rows, ["public.pgbench_accounts", "public.pgbench_accounts_pkey"], "relations that are kept, by the view")
    served = "SELECT reads > 0, hit_percent BETWEEN 0 AND 100, saved_ms >= 0 FROM flashcell.contents WHERE relation = 'public.pgbench_accounts'"
    equal(database.rows(served, user="looker"), [["t", "t", "t"]], "its reads, by the view")
    joined = "SELECT count(*) FROM flashcell.contents JOIN pg_class ON oid = relation::regclass WHERE relation LIKE 'public.%'"
    equal(database.rows(joined, user="looker"), [["7"]], "it joins with the catalog: four tables, three keys")
    for user, what in (("stranger", "SELECT * FROM flashcell.contents"), ("looker", "SELECT * FROM flashcell.report")):
        contains(database.sql(what, user=user, ok=False).stderr, "permission denied", f"{user} is refused")
    # A tablespace that is on no grid disk is said to be, and hides nothing.
    away = database.place.path("away")
    os.mkdir(away)
    os.chown(away, database.user.pw_uid, database.user.pw_gid)
    database.sql(f"CREATE TABLESPACE away LOCATION '{away}'")
    database.sql("CREATE TABLE far TABLESPACE away AS SELECT 1 AS n")
    told = run([*command, "--json"], ok=False, env=host.env)
    contains(told.stderr, "are on no grid disk", "what is left out")
    names = [row["relation"] for row in json.loads(told.stdout)["relations"]]
    check("public.pgbench_accounts" in names and "public.far" not in names, "the rest is told of")
    equal([row[0] for row in database.rows(asked, user="looker")], rows, "by the view too")
    contains(run([*command, "--view", "drop"], env=host.env).stdout, "dropped", "said")
    run([*command, "--view", "drop"], env=host.env)
    contains(database.sql(asked, ok=False).stderr, "does not exist", "it is gone")


@test
def a_table_is_pinned_with_its_indexes_through_vacuum_full():
    programs()
    if shutil.which("psql") is None:
        raise Skip("not installed: psql (scripts/install-test-clients)")
    griddisks = ("data:512M", "other:768M")
    with hosted("setpriv", "dd", disks=("1500M",), flash=("192M",), griddisks=griddisks) as (cell, host, place):
        mount = mounted(cell, host, place)
        database = Database(place, mount)
        database.make()
        database.start()
        try:
            # Loaded past the cache, so that what is cached of it is what the pin has brought there.
            cell.cellcli("alter griddisk data cachingMode=none")
            database.run("pgbench", "-h", database.sock, "-p", database.port, "-U", "bench", "-i", "-q", "-s", 2, "postgres")
            database.sql("CHECKPOINT")
            run(["sync", "-f", mount])
            cell.cellcli("alter griddisk data cachingMode=write-through")
            pinner = Pinner(place, cell, host)
            psql = " ".join(database.command("psql", "-h", database.sock, "-p", database.port, "-U", "bench"))

            def files():
                names = "SELECT current_setting('data_directory') || '/' || pg_relation_filepath(oid) FROM pg_class WHERE relname LIKE 'pgbench_accounts%'"
                return [row[0] for row in database.rows(names)]

            equal(len(files()), 2, "the table and its index")
            follower = pinner.follow("--table", "postgres.public.pgbench_accounts", "keep", "--psql", psql)

            def is_kept():
                located, kept = pinner.held(*files())
                cached = pinner.held(*files(), what="cachedSize")[1]
                return located > 28 * MIB and cached >= 0.99 * located and kept >= 0.95 * located

            wait_until(is_kept, 30, "table and index are kept")
            command = [binary(), "contents", "--database", "postgres", "--psql", psql]
            told = json.loads(run([*command, "--json"], env=host.env).stdout)["relations"]
            kept = {row["relation"]: row["cachedKeepSize"] for row in told if row["cachedKeepSize"]}
            equal(sorted(kept), ["public.pgbench_accounts", "public.pgbench_accounts_pkey"], "relations that are kept")
            check(any(row["relation"] == "pg_catalog.pg_class" for row in told), "all relations are told of")
            contains(run(command, env=host.env).stdout, "public.pgbench_accounts_pkey", "as a table")
            as_a_view(database, command, host)
            for _ in range(2):
                sweep(host, cell, 700)
            check(is_kept(), f"kept through scans of ten times the cache: {pinner.held(*files())}")
            before = files()
            database.sql("VACUUM FULL pgbench_accounts")
            database.sql("CHECKPOINT")
            run(["sync", "-f", mount])
            check(set(before).isdisjoint(files()), "VACUUM FULL has written it anew")
            wait_until(lambda: pinner.are_pinned(*files()), 60, "the new files are pinned")
            sweep(host, cell, 700)
            check(pinner.are_pinned(*files()), f"and stay: {pinner.held(*files(), what='cachedSize')}")
            follower.kill()
            follower.wait()
            pinner.pin("--table", "postgres.public.pgbench_accounts", "off", "--psql", psql)
            equal(pinner.pinned_bytes(), 0, "ranges after off")
            absent = pinner.pin("--table", "postgres.public.absent", "keep", "--psql", psql, ok=False)
            contains(absent.stderr, 'relation "public.absent" does not exist', "no such table")
            database.stop()
        finally:
            if database.server.poll() is None:
                database.kill()
        host.detach("data")
        cell.stop()


@test
def what_is_on_flash_here_is_brought_to_flash_elsewhere():
    """A standby has the files of its primary: by name and content, not by place."""
    with hosted(disks=("600M",), flash=("192M",), griddisks=("here:160M", "there:160M")) as (cell, host, place):
        mounts = {}
        cell.cellcli("alter griddisk all cachingMode=none")
        for name, order in (("here", ("base/hot", "base/cold", "only")), ("there", ("base/cold", "base/hot"))):
            mounts[name] = place.path(name)
            os.mkdir(mounts[name])
            host.attach(name, mounts[name], "-c", cell.dir, "--mkfs", "ext4", "-o", "noatime")
            os.mkdir(os.path.join(mounts[name], "base"))
            for file in order:
                fill(os.path.join(mounts[name], file), 24)
            run(["sync", "-f", mounts[name]])
        cell.cellcli("alter griddisk all cachingMode=write-through")
        pinner = Pinner(place, cell, host)
        files = {name: [os.path.join(mounts[name], file) for file in ("base/hot", "base/cold")] for name in mounts}

        def cached(name):
            return [pinner.held(path, name=name, what="cachedSize")[1] for path in files[name]]

        def half_is_cached():
            run(["dd", f"if={files['here'][0]}", "of=/dev/null", "bs=64k", "count=192", "iflag=direct"])
            run(["dd", f"if={mounts['here']}/only", "of=/dev/null", "bs=64k", "count=16", "iflag=direct"])
            return cached("here") == [12 * MIB, 0]

        wait_until(half_is_cached, 20, "half of a file is on flash")
        equal(cached("there"), [0, 0], "on flash of the standby before")
        saved, command = place.path("list"), [binary(), "warm"]
        contains(run([*command, mounts["here"], "--save", saved], env=host.env).stderr, "13M of 2 files are on flash", "said")
        done = json.loads(run([*command, mounts["there"], "--from", saved, "--json"], env=host.env).stdout)
        equal((done["files"], done["files_missing"], done["missing_bytes"]), (2, 1, 0), "what came of it")
        equal((done["listed_bytes"], done["absent_bytes"]), (13 * MIB, MIB), "and in bytes")
        equal(cached("there"), [12 * MIB, 0], "the same is on flash there")
        contains(run([*command, mounts["there"], "--from", saved], env=host.env).stdout, "12M of 13M on flash after", "again, for people")
        lying = place.file("lying", b'{"flashcell_warm":1}\n{"file":"../../etc/shadow","parts":[[0,4096]]}\n')
        contains(run([*command, mounts["there"], "--from", lying], ok=False, env=host.env).stderr, "no name below", "a list that leads away")
        for name in mounts:
            host.detach(name)
        cell.stop()
