"""The I/O resource plan over the wire: two fio clients on tagged exports get their shares, and the plan outlives the cell."""

import json
import os
import subprocess

import nbdclient
from harness import Failure, Place, check, contains, equal, measured, need, run, test_alone, timing_alone, wait_until

# 4 ms, 8 at a time: 2,000 a second.
DISK = "fixed:4ms:8"
# A minute under --soak.
SECONDS = 60 if os.environ.get("E2E_SOAK") else 8
RAMP_SECONDS = 3


def fio_reads(cell, database):
    """Random reads as fast as they are answered, for SECONDS; started, not waited for."""
    command = ["fio", f"--name={database}", "--ioengine=nbd", "--output-format=json", "--thread=1", "--time_based=1"]
    command += [f"--uri={cell.uri('data@' + database)}", "--rw=randread", "--bs=4k", "--size=64m", "--iodepth=32"]
    command += ["--norandommap=1", f"--runtime={SECONDS}", f"--ramp_time={RAMP_SECONDS}", f"--randseed={len(database)}"]
    return cell.place.spawn(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cell.place.dir)


def race(cell):
    """Reads a second of SALES and of SPOT, side by side."""
    rates = []
    clients = [fio_reads(cell, database) for database in ("SALES", "SPOT")]
    for client in clients:
        out, err = client.communicate(timeout=SECONDS + 60)
        if client.returncode != 0:
            raise Failure(f"fio: exit {client.returncode}\n{err[-1500:]}")
        rates.append(json.loads(out[out.index("{") :])["jobs"][0]["read"]["iops"])
    return rates


@timing_alone
def iorm_holds_the_shares_of_two_fio_clients():
    need("fio")
    with Place("iorm") as place:
        cell = place.cell(disks=("256M",), flash=(), griddisks=("data:64M",), model=DISK)
        cell.start()
        free = race(cell)
        part = free[0] / sum(free)
        measured(0.4 < part < 0.6, f"without a plan SALES has {part:.1%} of {sum(free):.0f} a second: nothing to divide")
        cell.cellcli("ALTER IORMPLAN dbplan=((name=SALES, share=3),(name=SPOT, share=7))")
        shared = race(cell)
        part = shared[0] / sum(shared)
        print(f"# {part:.1%} of {sum(shared):.0f} a second with 30 %, {free[0] / sum(free):.1%} of {sum(free):.0f} without")
        measured(0.27 <= part <= 0.33, f"SALES has {part:.1%}, 30 % planned: {shared}")
        measured(sum(shared) >= 0.85 * sum(free), f"the plan costs throughput: {sum(shared):.0f} of {sum(free):.0f}")
        # It outlives the cell, and says of itself what it does.
        cell.stop()
        cell.start()
        limited = "((name=SALES,limit=20),(name=SPOT,share=7))"
        equal(cell.json("list iormplan")[0]["dbPlan"], "((name=SALES,share=3),(name=SPOT,share=7))", "the plan")
        cell.cellcli(f"ALTER IORMPLAN dbplan={limited}, objective=low_latency")
        equal(cell.json("list iormplan attributes objective,status"), [{"objective": "low_latency", "status": "active"}], "its aim")
        again = race(cell)
        measured(again[0] <= 0.22 * 2000, f"SALES has {again[0]:.0f} a second, 400 are a fifth of the disk's")
        metrics = cell.metrics()
        measured(metrics["DB_IO_WT_SM", "SALES"] > 1000, "nobody has waited")
        # Longer waits than for a share: the limit's.
        per_request = [metrics["DB_IO_WT_SM", name] / metrics["DB_IO_RQ_SM", name] for name in ("SALES", "SPOT")]
        measured(per_request[0] > 2 * per_request[1], f"waits of a request in ms: {per_request}")
        equal(sorted(row["name"] for row in cell.json("list database")), ["SALES", "SPOT"], "databases")
        cell.cellcli("ALTER IORMPLAN INACTIVE")
        part = (lambda rates: rates[0] / sum(rates))(race(cell))
        measured(0.4 < part < 0.6, f"with the plan inactive SALES has {part:.1%}")
        cell.stop()


@test_alone
def a_stop_does_not_wait_for_a_limit():
    with Place("iorm") as place:
        cell = place.cell(disks=("256M",), flash=(), griddisks=("data:64M",), model="fixed:20ms:1")
        cell.start()
        cell.cellcli("alter iormplan dbplan=((name=slow,limit=1))")
        client = nbdclient.Client(cell.socket, export="data@slow")
        for _ in range(3):
            client.read(0, 4096)
        command = ["fio", "--name=slow", "--ioengine=nbd", "--thread=1", f"--uri={cell.uri('data@slow')}", "--rw=randread"]
        command += ["--bs=4k", "--size=64m", "--iodepth=32"]
        need("fio")
        place.spawn(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=place.dir)
        wait_until(lambda: cell.metric("DB_IO_LOAD", "slow") >= 0 and cell.metric("DB_IO_RQ_SM", "slow") >= 5, 60, "reads")
        # 32 reads at one in two seconds would be a minute.
        cell.stop(seconds=20)


def with_redo_of(place, database):
    """A cell with a flash log; eight commits of a database; how many went past the log for the plan."""
    cell = place.cell(griddisks=("data:64M", "redo:32M:redo"))
    cell.start()
    client = nbdclient.Client(cell.socket, export=f"redo@{database}")

    def commit():
        for page in range(8):
            client.write(page * 8192, bytes([page + 1]) * 8192)
            client.flush()

    return cell, commit, lambda: cell.metric("FL_IO_W_SKIP_IORM_PLAN")


@test_alone
def iorm_runs_the_field_s_script_as_it_stands():
    """S6: flash switched for one database, `$1` on and then off, from standard input."""
    with Place("iorm") as place:
        cell, commit, skipped = with_redo_of(place, "SPOT")
        for word, skips in (("on", 0), ("off", 8), ("on", 8)):
            out = cell.cellcli(f"ALTER IORMPLAN dbplan=((name='SPOT', flashLog={word}),(name=other,flashlog=on))").stdout
            contains(out, "IORMPLAN successfully altered", "the answer")
            commit()
            equal(skipped(), skips, f"redo writes past the flash log, flashLog={word}")
        out = cell.cellcli("list iormplan detail").stdout
        contains(out, "((name=SPOT,flashlog=on),(name=other,flashlog=on))", "the plan in detail")
        for statement, part in (
            ("alter iormplan dbplan=((name=a,share=33))", "CELL-00023"),
            ("alter iormplan dbplan=((name=a,level=1,allocation=70),(name=other,level=1,allocation=31))", "101 %"),
            ("alter iormplan dbplan=((name=a,flashcachesize=1G,flashcachelimit=2G))", "state one of them"),
            ("alter iormplan catplan=((name=c,level=1,allocation=70))", "not supported"),
            ("alter iormplan objective=quick", "CELL-09003"),
            ("alter iormplan", "CELL-01504"),
        ):
            failed = cell.cellcli(statement, ok=False)
            contains(failed.stderr + failed.stdout, part, statement)
        contains(cell.cellcli("list iormplan").stdout, "flashlog=on", "what stays when a statement is refused")
        for statement in ('ALTER IORMPLAN dbplan=""', "ALTER IORMPLAN dbplan=''", "ALTER IORMPLAN catplan='', dbplan=''"):
            cell.cellcli(statement)
            equal(cell.json("list iormplan")[0]["dbPlan"], "", statement)
        cell.stop()


@timing_alone
def iorm_switches_the_flash_cache_for_what_is_cached():
    with Place("iorm") as place:
        cell = place.cell(griddisks=("data:64M:data:write-back",))
        cell.start()
        mine, other = (nbdclient.Client(cell.socket, export="data@" + name) for name in ("MINE", "OTHER"))
        mine.write(0, b"a" * 8192)
        hits = lambda: cell.metric("FC_IO_RQ_R")
        equal(mine.read(0, 8192), b"a" * 8192, "what was written")
        measured(hits() == 1, "it is cached")
        cell.cellcli("alter iormplan dbplan=((name=mine,flashcache=off))")
        equal(mine.read(0, 8192), b"a" * 8192, "what only flash has")
        check(hits() == 1, "not a hit")
        mine.write(0, b"b" * 4096)
        mine.write(65536, b"c" * 4096)
        equal(other.read(0, 8192), b"b" * 4096 + b"a" * 4096, "newer and older parts")
        check(cell.metric("FC_IO_RQ_R_SKIP") >= 1, "counted")
        cell.kill()
        cell.start()
        mine = nbdclient.Client(cell.socket, export="data@mine")
        equal(mine.read(0, 8192), b"b" * 4096 + b"a" * 4096, "after a crash")
        equal(mine.read(65536, 4096), b"c" * 4096, "after a crash")
        check(cell.metric("FC_IO_RQ_R") == 0, "off after a crash too")
        cell.stop()


@test_alone
def iorm_profiles_are_given_to_databases():
    with Place("iorm") as place:
        cell, commit, skipped = with_redo_of(place, "SALES")
        plan = "((name=gold,limit=100,share=10,flashlog=off,type=profile),(name=bronze,share=1,type=profile),(name=FINANCE,share=8))"
        # As the vendor writes it.
        cell.cellcli("ALTER IORMPLAN dbplan=((name=gold, share=10, limit=100, flashlog=off, type=profile), "
                     "(name=bronze, share=1, type=profile), (name=FINANCE, share=8))")
        equal(cell.json("list iormplan")[0]["dbPlan"], plan, "the plan")
        contains(cell.cellcli("list iormprofile").stdout, "bronze", "the profiles")
        commit()
        equal(skipped(), 0, "without a profile")
        contains(cell.cellcli("ALTER DATABASE sales, HR profile=GOLD").stdout, "Database HR successfully altered", "the answer")
        commit()
        equal(skipped(), 8, "at once, for connections that are there")
        rows = {row["name"]: row for row in cell.json("list database attributes all")}
        equal([(rows[name].get("profile"), rows[name].get("iormShare")) for name in ("sales", "HR", "FINANCE")],
              [("gold", 10), ("gold", 10), (None, 8)], "databases")
        profiles = cell.json("list iormprofile attributes name, databases, limit, flashLog")
        equal(profiles[0], {"name": "gold", "databases": ["HR", "sales"], "limit": 100, "flashLog": "off"}, "who has gold")
        for statement, part in (
            ("ALTER DATABASE SALES profile=silver", "SALES has the profile silver, which the plan does not state"),
            ("ALTER IORMPLAN dbplan=''", "has the profile GOLD, which the plan does not state"),
            ("ALTER DATABASE other profile=gold", "is no name of a database"),
            ("ALTER DATABASE nobody profile=''", "CELL-09007"),
            ("ALTER DATABASE SALES", "CELL-01504"),
            ("CREATE IORMPROFILE silver", "CELL-01504"),
        ):
            failed = cell.cellcli(statement, ok=False)
            contains(failed.stderr + failed.stdout, part, statement)
        # With the plan stated anew, and after a crash.
        cell.cellcli("ALTER IORMPLAN dbplan=((name=gold,share=4,type=profile),(name=FINANCE,share=8))")
        cell.kill()
        cell.start()
        share = lambda: {row["name"]: row.get("iormShare") for row in cell.json("list database attributes name, iormShare")}
        equal(share(), {"FINANCE": 8, "HR": 4, "sales": 4}, "after a crash")
        cell.cellcli("ALTER DATABASE ALL profile='' WHERE profile=gold")
        cell.cellcli("ALTER IORMPLAN dbplan=''")
        equal((cell.json("list database"), cell.json("list iormprofile")), ([], []), "nothing is left")
        cell.stop()
