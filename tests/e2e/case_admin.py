"""CellCLI against a running cell: what it changes survives kill -9, what it cannot do it says."""

import contextlib
import json
import os
import pwd
import random
import subprocess

import nbdclient
from harness import MIB, Place, Skip, binary, check, contains, equal, measured, run, served, test, timing, wait_until


def names(cell, what="griddisk"):
    return sorted(row["name"] for row in cell.json(f"list {what}"))


@test
def grid_disks_are_made_altered_and_dropped():
    with served(griddisks=("data:32M",)) as cell:
        out = cell.cellcli("create griddisk sales celldisk=CD_00_cell, size=24M, comment='for sales'").stdout
        contains(out, "GridDisk sales successfully created", "answer")
        equal(names(cell), ["data", "sales"], "grid disks")
        client = nbdclient.Client(cell.socket, export="sales")
        equal(client.size, 24 * MIB, "size over NBD")
        client.write(0, b"sold" * 1024)
        client.disconnect()
        # Each change is there after kill -9: it is durable when the answer comes.
        cell.kill()
        cell.start()
        equal(names(cell), ["data", "sales"], "grid disks after kill -9")
        cell.cellcli("alter griddisk sales size=40M, comment='grown'")
        cell.kill()
        cell.start()
        row = cell.json("list griddisk sales attributes all")[0]
        equal((row["size"], row["comment"]), (40 * MIB, "grown"), "altered attributes after kill -9")
        client = nbdclient.Client(cell.socket, export="sales")
        equal(client.size, 40 * MIB, "size over NBD")
        equal(client.read(0, 4096), b"sold" * 1024, "content after growing")
        equal(client.read(30 * MIB, 4096), bytes(4096), "what was added")
        client.disconnect()
        # Shrinking needs a word more.
        done = cell.cellcli("alter griddisk sales size=8M", ok=False)
        contains(done.stderr, "FORCE", "message")
        cell.cellcli("alter griddisk sales size=8M force")
        cell.cellcli("alter griddisk sales name=turnover")
        equal(names(cell), ["data", "turnover"], "grid disks")
        cell.kill()
        cell.start()
        equal(names(cell), ["data", "turnover"], "names after kill -9")
        contains(cell.cellcli("drop griddisk turnover").stdout, "GridDisk turnover successfully dropped", "answer")
        cell.kill()
        cell.start()
        equal(names(cell), ["data"], "grid disks after a drop and kill -9")
        cell.stop()


@test
def a_grid_disk_in_use_is_not_dropped_without_force():
    with served() as cell:
        client = nbdclient.Client(cell.socket)
        client.write(0, b"x" * 4096)
        done = cell.cellcli("drop griddisk data", ok=False)
        check(done.stderr.strip(), "a message")
        equal(client.read(0, 4096), b"x" * 4096, "the client goes on")
        cell.cellcli("drop griddisk data force")
        try:
            error, _ = client.call(nbdclient.READ, offset=0, length=4096)
            check(error != 0, "a read of a dropped grid disk fails")
        except nbdclient.Gone:
            pass
        cell.cellcli("create griddisk data celldisk=CD_00_cell, size=64M")
        client = nbdclient.Client(cell.socket)
        equal(client.read(0, 4096), bytes(4096), "a new grid disk of the old name is empty")
        client.disconnect()
        cell.stop()


def read_times(client, data, times, what="content"):
    """The beginning of the disk is this, each time."""
    for _ in range(times):
        equal(client.read(0, len(data)), data, what)


def cached_client(cell, data):
    """A client that has written the beginning of the disk and read it until it is in the cache."""
    client = nbdclient.Client(cell.socket)
    client.write(0, data)
    read_times(client, data, 3)
    return client


def read_anew_and_stop(cell, data, times, what):
    """The same for a client of its own, the last of the cell."""
    client = nbdclient.Client(cell.socket)
    read_times(client, data, times, what)
    client.disconnect()
    cell.stop()


@test
def s6_the_here_document_that_clears_the_cache():
    with served() as cell:
        data = b"cached" * 10000
        client = cached_client(cell, data)
        check(cell.metric("FC_BY_USED") > 0, "something is cached")
        script = "drop flashcache;\ncreate flashcache all;\n"
        done = run([binary(), "cellcli", "-c", cell.dir], input=script)
        contains(done.stdout, "successfully dropped", "answer")
        contains(done.stdout, "successfully created", "answer")
        equal(cell.metric("FC_BY_USED"), 0, "the new cache is empty")
        read_times(client, data, 1, "content from disk")
        equal(len(names(cell, "flashcache")), 1, "flash caches")
        cell.kill()
        cell.start()
        read_anew_and_stop(cell, data, 2, "content after kill -9")


@timing
def s6_caching_policy_none_stops_hits_at_once():
    with served() as cell:
        client = cached_client(cell, b"n" * 65536)
        before = cell.metric("FC_IO_RQ_R")
        measured(before > 0, "reads were hits")
        cell.cellcli("alter griddisk data cachingPolicy=none")
        newer = b"m" * 65536
        client.write(0, newer)
        read_times(client, newer, 5)
        equal(cell.metric("FC_IO_RQ_R"), before, "hits after NONE")
        cell.kill()
        cell.start()
        equal(cell.json("list griddisk data attributes all")[0]["cachingPolicy"], "none", "policy after kill -9")
        cell.cellcli("alter griddisk data cachingPolicy=default")
        read_anew_and_stop(cell, newer, 3, "nothing old comes back with DEFAULT")


@test
def lists_describe_and_help():
    with served(griddisks=("a:16M", "b:16M:redo", "c:16M:none")) as cell:
        equal(len(cell.json("list cell")), 1, "cells")
        equal(names(cell, "celldisk"), ["CD_00_cell", "FD_00_cell"], "cell disks")
        rows = cell.json("list griddisk where purpose = redo attributes name, size, status")
        equal(rows, [{"name": "b", "size": 16 * MIB, "status": "active"}], "a filtered list with chosen attributes")
        definitions = {row["name"] for row in cell.json("list metricdefinition")}
        current = {name for name, _ in cell.metrics()}
        check(current <= definitions, f"metrics without a definition: {current - definitions}")
        for wanted in ("FC_IO_RQ_R", "FC_IO_RQ_R_MISS", "GD_IO_RQ_R_SM", "CD_IO_RQ_R_SM"):
            check(wanted in current, f"{wanted} is among the metrics")
        contains(cell.cellcli("list griddisk").stdout, "active", "text form")
        contains(cell.cellcli("list griddisk a detail").stdout, "cachingMode:", "detailed form")
        contains(cell.cellcli("describe griddisk").stdout, "cachingPolicy", "description")
        contains(cell.cellcli("help").stdout, "LIST", "help")
        metric = cell.json("list metriccurrent where name = 'GD_IO_RQ_R_SM' and metricObjectName = 'a' attributes all")
        equal(len(metric), 1, "one metric of one object")
        client = nbdclient.Client(cell.socket, export="a")
        for i in range(10):
            client.read(i * 4096, 4096)
        client.disconnect()
        equal(cell.metric("GD_IO_RQ_R_SM", "a"), metric[0]["metricValue"] + 10, "reads are counted")
        cell.stop()


@test
def wrong_statements_are_told():
    with served() as cell:
        for statement, part in (
            ("lst griddisk", "hint"),
            ("list nosuch", "nosuch"),
            ("create griddisk x celldisk=NOSUCH, size=16M", "NOSUCH"),
            ("create griddisk x celldisk=CD_00_cell, size=1T", "bytes free"),
            ("create griddisk data celldisk=CD_00_cell, size=16M", "data"),
            ("drop griddisk nosuch", "nosuch"),
            ("alter cell shutdown services rs", "no restart server"),
            ("create flashcache all", "exist"),
        ):
            done = cell.cellcli(statement, ok=False)
            equal(done.returncode, 1, f"exit code of {statement!r}")
            contains((done.stderr + done.stdout).lower(), part.lower(), f"message of {statement!r}")
        # -m refuses every change.
        done = run([binary(), "cellcli", "-c", cell.dir, "-m", "-e", "drop griddisk data force"], ok=False)
        check(done.stderr.strip(), "a message")
        equal(names(cell), ["data"], "grid disks")
        cell.stop()
        done = run([binary(), "cellcli", "-c", cell.dir, "-e", "list cell"], ok=False)
        contains(done.stderr, "hint:", "message when nobody serves")


@test
def cellcli_by_its_own_name_and_by_variable():
    with served() as cell:
        link = cell.place.path("cellcli")
        os.symlink(binary(), link)
        environment = dict(os.environ, FLASHCELL_CELL=cell.dir)
        rows = json.loads(run([link, "--json", "-e", "list griddisk"], env=environment).stdout)
        equal(rows[0]["name"], "data", "grid disk")
        done = subprocess.run([link, "-n"], input="list cell\nlist griddisk\n", capture_output=True, text=True, env=environment)
        equal(done.returncode, 0, "exit code of a script")
        contains(done.stdout, "data", "answer of a script")
        cell.stop()


@test
def changes_survive_kill_9_at_any_moment():
    """The server is killed while statements run: each is there whole or not at all, and acknowledged ones are there."""
    with served(disks=("512M",), griddisks=("data:16M",)) as cell:
        rng = random.Random(21)
        sure = {"data"}
        for cycle in range(8):
            process = cell.place.spawn(
                [binary(), "cellcli", "-c", cell.dir],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            wanted = [f"g{cycle}_{i}" for i in range(8)]
            for name in wanted:
                process.stdin.write(f"create griddisk {name} celldisk=CD_00_cell, size=4M\n")
            process.stdin.flush()
            # Let so many be answered, then kill in the middle of the next.
            answered = []
            for _ in range(rng.randrange(4)):
                line = process.stdout.readline()
                if "successfully created" in line:
                    answered.append(line.split()[1])
            cell.kill()
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass
            rest = process.stdout.read()
            answered += [line.split()[1] for line in rest.splitlines() if "successfully created" in line]
            process.wait()
            cell.start()
            sure.update(answered)
            have = set(names(cell))
            check(sure <= have, f"acknowledged grid disks are gone: {sure - have}")
            check(have <= sure | set(wanted), f"grid disks nobody made: {have - sure}")
            sure = have
            for name in sorted(have - {"data"}):
                client = nbdclient.Client(cell.socket, export=name)
                equal(client.size, 4 * MIB, f"size of {name}")
                equal(client.read(0, 4 * MIB), bytes(4 * MIB), f"content of {name}")
                client.write(0, name.encode() * 100)
                client.disconnect()
                # The cell hears a moment later that nobody uses it any more.
                dropped = lambda name=name: cell.cellcli(f"drop griddisk {name}", ok=None).returncode == 0
                wait_until(dropped, 10, f"{name} is dropped")
                sure.discard(name)
        cell.stop()


def audited(cell, *names):
    text = ""
    for name in names:
        path = os.path.join(cell.dir, name)
        if os.path.exists(path):
            with open(path) as file:
                text += file.read()
    return text


@test
def refusals_do_not_push_changes_out_of_the_audit_log():
    if os.getuid() != 0:
        raise Skip("another user can only be tried as root")
    other = pwd.getpwnam("nobody")
    with served() as cell:
        cell.cellcli("alter griddisk data comment='what was done'")
        path = cell.dir
        while path not in ("/", "/tmp"):
            os.chmod(path, os.stat(path).st_mode | 0o011)
            path = os.path.dirname(path)
        # 36 MiB of statements, each refused: more than both files of the log hold.
        statement = "alter griddisk data comment='" + "x" * 4000 + "';\n"
        script = cell.place.file("script", (statement * 200).encode())
        os.chmod(script, 0o644)
        for _ in range(45):
            with open(script) as lines:
                done = run(
                    [binary(), "cellcli", "-c", cell.dir, "-n"],
                    ok=None, stdin=lines, user=other.pw_uid, group=other.pw_gid, extra_groups=[], cwd="/",
                )
            contains(done.stdout + done.stderr, "is not allowed", "refusal")
        check("what was done" in audited(cell, "audit.log", "audit.log.1"), "the change is in the log")
        refused = audited(cell, "audit-refused.log")
        check(0 < refused.count('"refused"') <= 60 * 10, "some of the refusals are there")
        check(len(refused) < 1 << 20, "and take little room")
        wait_until(lambda: '"suppressed","count":' in audited(cell, "audit-refused.log"), 90, "the others are counted")
        cell.stop()


@test
def what_chooses_nothing_says_so_and_changes_nothing():
    with served(griddisks=("data:64M:data:write-back", "other:32M")) as cell:
        told = cell.cellcli("drop griddisk all prefix=zz", ok=False).stderr
        contains(told, "CELL-09007: no grid disk has a name that begins with zz", "DROP")
        contains(told, "hint:", "DROP")
        equal(names(cell), ["data", "other"], "grid disks")
        # FLUSH of none is not FLUSH of all.
        client = nbdclient.Client(cell.socket)
        client.write(0, b"x" * 65536)
        client.flush()
        client.disconnect()
        dirty = cell.metric("FC_BY_DIRTY")
        check(dirty > 0, "something is dirty")
        cell.cellcli("alter griddisk all where name = nobody flush")
        equal(cell.metric("FC_BY_DIRTY"), dirty, "dirty after FLUSH of no grid disk")
        cell.stop()


@test
def a_reader_that_has_enough_is_no_error():
    with served() as cell:
        statements = "list metriccurrent;" * 20
        for words in (f"cellcli -c {cell.dir} -e '{statements}'", f"metrics --hosts {cell.dir} --watch 1 --count 3"):
            done = run(["bash", "-c", f"set -o pipefail; {binary()} {words} | head -1"], seconds=60)
            equal((done.stdout.count("\n"), done.stderr), (1, ""), f"{words[:20]} | head -1")
        cell.stop()


@test
def in_a_full_state_directory_changes_are_refused_with_an_alert():
    """A file system of its own, full but for the devices, whose space is there already; and a line cut short before."""
    if os.getuid() != 0:
        raise Skip("only root can mount a file system of its own")
    with Place("full") as place:
        home = place.path("home")
        os.mkdir(home)
        run(["mount", "-t", "tmpfs", "-o", "size=160M,mode=0755", "none", home])
        place.cleanups.append(lambda: run(["umount", "-l", home], ok=None))
        cell = place.cell(name="home/cell", disks=("64M",), flash=("48M",), griddisks=("data:16M",), sparse=False)
        cell.log_path = place.path("log")
        cell.start()
        alerts = lambda: [row for row in cell.json("list alerthistory attributes all") if row["definition"] == "Cell_Audit"]
        cell.cellcli("alter griddisk data comment=before")
        with open(os.path.join(home, "filler"), "wb", buffering=0) as filler:
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(4096))
        for n in range(200):
            done = cell.cellcli(f"alter griddisk data comment='{n:04}{'x' * 100}'", ok=None)
            if done.returncode:
                break
        contains(done.stderr, "is not carried out: it cannot be written to the audit log", "a change")
        equal(done.stderr.count("hint:"), 1, f"hints: {done.stderr}")
        made = cell.json("list griddisk attributes comment")[0]["comment"]
        check(not made.startswith(f"{n:04}"), "the change is not made")
        found = wait_until(alerts, 20, "an alert")
        contains(found[-1]["alertMessage"], "No space left", "alert")
        equal(found[-1]["severity"], "critical", "severity")
        os.remove(os.path.join(home, "filler"))
        wait_until(lambda: alerts()[-1]["severity"] == "clear", 20, "the alert is over as soon as there is room")
        # As a power cut or a killed process leaves it.
        cell.kill()
        path = os.path.join(cell.dir, "audit.log")
        with open(path, "a") as file:
            file.write('{"time":"2026-01-01T00:00:00+00:00","event":"beg')
        cell.start()
        cell.cellcli("alter griddisk data comment=after")
        with open(path) as file:
            lines = file.read().splitlines()
        broken = [line for line in lines if not line.endswith("}")]
        equal(len(broken), 1, "lines that are none")
        told = [json.loads(line) for line in lines if line not in broken]
        # The outcome of the last change may have found no room either.
        equal(sum(line["refused"] for line in told if line["event"] == "resumed"), 1, "changes refused, as the log says")
        equal([line["event"] for line in told[-2:]], ["begin", "end"], "the last change")
        contains(told[-1]["statement"], "after", "the last change")
        cell.stop()


@test
def a_change_that_cannot_be_audited_is_not_made():
    with served() as cell:
        path = os.path.join(cell.dir, "audit.log")
        # A log on a full file system, as the server of today and of yesterday would open it; and a directory.
        for kind in ("full", "directory"):
            if os.path.lexists(path):
                os.rename(path, path + ".aside")
            if kind == "full":
                os.symlink("/dev/full", path)
            else:
                os.mkdir(path)
            cell.stop()
            cell.start()
            for statement in ("create griddisk new celldisk=CD_00_cell, size=16M", "drop griddisk data", "alter cell comment=x"):
                done = cell.cellcli(statement, ok=False)
                contains(done.stderr, "is not carried out: it cannot be written to the audit log", statement)
                contains(done.stderr, "hint:", statement)
            equal(names(cell), ["data"], f"grid disks, {kind}")
            contains(cell.cellcli("list griddisk").stdout, "data", "looking is not changing")
            os.remove(path) if kind == "full" else os.rmdir(path)
            # As soon as it can be written again, without a restart.
            cell.cellcli(f"alter cell comment={kind}")
            contains(audited(cell, "audit.log"), kind, "the log")
        cell.stop()
