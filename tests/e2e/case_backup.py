"""`flashcell backup`: a script that makes the same cell again, on new devices."""

import os

from harness import ROOT, Cell, Place, binary, check, contains, equal, run, served, test

OBJECTS = ("griddisk", "flashcache", "flashlog", "pin", "iormplan", "database", "threshold", "cell")
# Of the devices, of the moment, and of this one cell.
OWN = {"id", "creationTime", "instanceStamp", "upTime", "errorCount", "physicalDisk", "flashCacheUsed", "offset", "freeSpace", "efficiency"}


def told(cell):
    """What a cell is, but for what two of the same kind differ in."""
    rows = {name: cell.json(f"list {name} attributes all") for name in OBJECTS}
    return {name: [{key: row[key] for key in row if key not in OWN} for row in rows[name]] for name in OBJECTS}


def backup(cell):
    return run([binary(), "backup", "-c", cell.dir]).stdout


@test
def a_backup_makes_an_equal_cell():
    griddisks = ("data:64M:data:write-back", "wal:32M:redo")
    with served(flash=("256M",), griddisks=griddisks) as cell:
        for statement in (
            # A grid disk on flash wants flash that the cache leaves.
            "drop flashcache",
            "create flashcache all size=96M",
            "create griddisk tmp celldisk=FD_00_cell, size=16M, purpose=temp, cachingMode=none",
            "alter griddisk data comment='it''s the shop''s', availableTo='shop,app', cachingPolicy=keep",
            "alter griddisk wal flashLogMode=race, readOnly=TRUE",
            "create pin data offset=0, length=1M, cachingPolicy=none",
            "create pin data offset=8M, length=2M, cachingPolicy=keep",
            "alter iormplan objective=balanced, dbplan=((name=shop,share=8,flashcachemin=16M),(name=dss,share=2,limit=50))",
            "create threshold cd_io_errs_min.prod comparison='>', critical=10, occurrences=2",
            "alter cell comment='rack 7', metricHistoryDays=3, notificationPolicy='critical,clear'",
            "alter flashlog outlierLimit=250",
            "alter griddisk wal inactive",
        ):
            cell.cellcli(statement)
        script = backup(cell)
        contains(script, "flashcell init cell --disk 268435456 --flash 268435456", "what the script is for")
        wanted = told(cell)
        with Place("backup") as place:
            twin = Cell(place, griddisks=(), disks=("256M",), flash=("256M",)).start()
            path = place.path("backup.scl")
            with open(path, "w") as file:
                file.write(script)
            done = twin.cellcli(f"start '{path}'")
            equal(done.stderr, "", "what the script had to complain of")
            got = told(twin)
            for name in OBJECTS:
                equal(got[name], wanted[name], name)
            plain = [line for line in script.splitlines() if not line.startswith("REM Cell disk")]
            equal([line for line in backup(twin).splitlines() if not line.startswith("REM Cell disk")], plain, "a backup of the twin")
            twin.stop()


@test
def a_backup_of_no_cell_says_so():
    with Place("backup") as place:
        done = run([binary(), "backup", "-c", place.path("nothing")], ok=False)
        check(done.returncode != 0 and not done.stdout, "a backup of nothing")
        contains(done.stderr, "nothing", "which cell")
        done = run([binary(), "backup"], ok=False, cwd=place.path(""), env={k: v for k, v in os.environ.items() if k != "FLASHCELL_CELL"})
        contains(done.stderr, "hint:", "the way out")


@test
def the_guide_to_backups_is_carried_out():
    """The commands of docs/guide/backup.md as they stand there, with sizes for the devices."""
    with open(os.path.join(ROOT, "docs", "guide", "backup.md")) as file:
        commands = [line[4:] for line in file.read().splitlines() if line.startswith("    ")]
    equal(len(commands), 4, "commands of the guide")
    with served(griddisks=("data:32M", "more:16M")) as cell, Place("guide") as place:
        cell.cellcli("alter griddisk more comment='of the guide'")
        new = place.path("new/cell")
        os.mkdir(place.path("new"))
        script = "set -e\n" + "\n".join(commands)
        for old, this in (
            ("/srv/cell", cell.dir),
            ("/srv/new/cell", new),
            ("/dev/sdd", "256M"),
            ("/dev/nvme2n1", "96M --sparse"),
            (" &", f" >/dev/null 2>{place.path('log')} &\nuntil test -S {new}/admin.sock; do sleep 0.1; done"),
        ):
            check(old in script, f"{old} in the guide")
            script = script.replace(old, this)
        script += f'\n"$FLASHCELL" cellcli -c {new} -e "list griddisk attributes name, comment"'
        # A cell that a failure has left behind ends with the script.
        head = 'flashcell() { exec "$FLASHCELL" "$@"; }\nset -m\ntrap \'kill $(jobs -p) 2>/dev/null || :; wait\' EXIT\n'
        script = head.replace("exec ", "") + script.replace("flashcell serve", '"$FLASHCELL" serve')
        done = run(["bash", "-c", script], cwd=place.dir, env=dict(os.environ, FLASHCELL=binary()))
        told = [line.split() for line in done.stdout.splitlines() if "of the guide" in line]
        equal([words[0] for words in told], ["more"], "the grid disks of the new cell")
