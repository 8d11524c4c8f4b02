"""Rows against another build: each row with this binary and with $FLASHCELL_BASE, in turn.

Before a change lands this says what it costs. Two cells that are alike, even of one build, differ by some percent for as long as they
live, by where their memory came to lie; so there are several pairs, which of the two is made first changing. Each round runs both, the
first of them by turns; ratios are taken within a round. CPU time is the server's.
"""

import os

import fio
import rows_redo
import servers
import table
from place import DISK, MIB, TMPFS, Failure, Place, Skip, talk
from table import Bound

SIZE_MIB = 128
FOOTPRINT_FACTOR = 12
# Pairs of cells, rounds of each pair, seconds of a run.
PAIRS, ROUNDS, SECONDS = 6, 2, 1
PAIRS_QUICK = 2
OURS, BASE = "this build", "base"
WORSE_MAX = 0.03

HITS = (
    fio.Workload("randread", 32),
    fio.Workload("randread", 1),
    fio.Workload("randread", 32, 2),
    fio.Workload("read", 8, 1, MIB),
)
WRITES = (fio.Workload("randwrite", 32), fio.Workload("randwrite", 1), fio.Workload("write", 8, 1, MIB))
ON_DISK = (fio.Workload("randread", 32), fio.Workload("randwrite", 32))
# Cold reads: a region of their own each round, more than is read of it in a second.
MISS = fio.Workload("randread", 32, once=True)
MISS_MIB, MISS_MODEL = 64, "fixed:4ms:64"
REDO_MODEL = "fixed:150us:64"
REDO_MODES = ("off", "race", "auto")


class Runs:
    """What each workload came to: {title: {arm: [run]}}."""

    def __init__(self):
        self.of = {}

    def in_turn(self, title, first, one):
        """Some rounds of `one(arm, round)` on a pair of which `first` was made first."""
        talk(f"against, {title}")
        runs = self.of.setdefault(title, {OURS: [], BASE: []})
        for turn in range(ROUNDS):
            for arm in order(first + turn):
                runs[arm].append(one(arm, turn))


def order(number):
    return (OURS, BASE) if number % 2 == 0 else (BASE, OURS)


def measure(options, skips):
    """([group as JSON], [Bound])."""
    groups, bounds = [], []
    base = os.environ.get("FLASHCELL_BASE")
    if not base:
        skips.add("against", "$FLASHCELL_BASE names no binary to compare with")
        return groups, bounds
    runs = Runs()
    binaries = {OURS: None, BASE: base}
    try:
        fio.check()
        TMPFS.check(SIZE_MIB * FOOTPRINT_FACTOR * MIB)
        for number in range(PAIRS_QUICK if options.quick else PAIRS):
            talk(f"against: pair {number + 1}")
            for medium in (TMPFS, DISK):
                serving(runs, medium, number, binaries)
            misses(runs, number, binaries)
            redo(runs, number, binaries)
    except Skip as reason:
        skips.add("against", reason)
    for title, own in runs.of.items():
        report(title, own, groups, bounds)
    return groups, bounds


def pair(number, binaries, make):
    """{arm: cell} of `make(name, binary)`."""
    return {arm: make(arm.split()[-1], binaries[arm]) for arm in order(number)}


def serving(runs, medium, number, binaries):
    with Place() as place:
        directory = place.dir_on(medium)
        cells = pair(
            number, binaries, lambda name, binary: servers.serving_cell(place, directory, SIZE_MIB, name=name, binary=binary)
        )

        def rows(workloads, what, export="data"):
            for workload in workloads:

                def one(arm, _, workload=workload):
                    cell = cells[arm]
                    target = servers.Target(arm, cell, uri=cell.uri(export), hits=cell.hits)
                    return fio.run(place, target, workload, SECONDS, SIZE_MIB * MIB)

                runs.in_turn(f"{medium.name}: {what}, {workload}", number, one)

        if medium is DISK:
            rows(ON_DISK, "cached")
            return
        rows(HITS, "hits")
        rows((HITS[0], HITS[-1], WRITES[0]), "grid disk on flash", "flash")
        rows(WRITES, "write-through")
        for cell in cells.values():
            cell.cellcli("alter griddisk data cachingMode=write-back")
        rows(WRITES[:2], "write-back")


def misses(runs, number, binaries):
    size_mib = MISS_MIB * ROUNDS
    with Place() as place:
        directory = place.dir_on(TMPFS)

        def make(name, binary):
            sizes = (f"{size_mib + 64}M", f"{size_mib * 3 // 2 + 64}M", f"data:{size_mib}M")
            cell = servers.Cell(place, directory, *sizes, model=MISS_MODEL, name=name, binary=binary).start()
            cell.load("data", size_mib * MIB)
            cell.chill()
            return cell

        cells = pair(number, binaries, make)

        def one(arm, turn):
            cell = cells[arm]
            target = servers.Target(arm, cell, uri=cell.uri("data"), hits=cell.hits)
            return fio.run(place, target, MISS, SECONDS, MISS_MIB * MIB, turn * MISS_MIB * MIB)

        runs.in_turn(f"misses, {MISS}, disk {MISS_MODEL}", number, one)


def redo(runs, number, binaries):
    with Place() as place:
        directory = place.dir_on(TMPFS)

        def make(name, binary):
            grid_disk = f"redo:{rows_redo.REDO_MIB}M:redo"
            cell = servers.Cell(place, directory, "256M", "192M", grid_disk, model=REDO_MODEL, name=name, binary=binary).start()
            try:
                cell.cellcli("drop flashlog")
            except Failure:
                # An older `init` makes none.
                pass
            for statement in ("drop flashcache", "create flashlog all size=96M", "create flashcache all size=32M"):
                cell.cellcli(statement)
            return cell

        cells = pair(number, binaries, make)
        for mode in REDO_MODES:
            for cell in cells.values():
                cell.cellcli(f"alter griddisk redo flashLogMode={mode}")

            def one(arm, _):
                cell = cells[arm]
                cpu = cell.cpu_seconds()
                run = rows_redo.commits(place, servers.Target(arm, cell, uri=cell.uri("redo")), SECONDS)
                run["server_cpu_us"] = (cell.cpu_seconds() - cpu) * 1e6 / max(run["commits"], 1)
                run["iops"] = run["commits_s"]
                return run

            runs.in_turn(f"commits of 8 KiB, disk {REDO_MODEL}, flashLogMode {mode}", number, one)


def report(title, runs, groups, bounds):
    keys = ("iops", "mean_us", "p99_us", "server_cpu_us")
    rows = []
    for arm, own in runs.items():
        hits = table.median_of(own, "hit_share")
        rows.append((arm, *[table.number(table.median_of(own, key), 2) for key in keys], table.number(hits, 3)))
    ratio = {key: table.median_ratio(runs[OURS], runs[BASE], key) for key in keys}
    rows.append(("ratio", *[table.number(ratio[key], 3) for key in keys], ""))
    table.print_group(f"Against the base, {title}", ("", "IOPS", "mean us", "p99 us", "server CPU us/IO", "hits"), rows)
    bounds.append(Bound(title, "IOPS against the base", ratio["iops"], ">=", 1 - WORSE_MAX))
    bounds.append(Bound(title, "server CPU per I/O against the base", ratio["server_cpu_us"], "<=", 1 + WORSE_MAX))
    groups.append({"section": "against", "workload": title, "ratios": ratio, "runs": runs})
