"""Cost rows: what counting and an I/O plan cost a 4 KiB read hit, each against the same without it.

Counting: this tree against a build of it that counts nothing (`--cfg uncounted`, made here, in a target directory of its own).
The plan: one cell with a plan whose objective delays, against itself without any. Everything in memory and one connection, so that
the engine's part of a request is as large as it gets. Each round runs every arm once, in turns that change; ratios are taken
within a round. CPU time is the server's.
"""

import os

import cargo
import fio
import servers
import table
from place import MIB, TMPFS, Place, Skip, talk
from table import Bound

SIZE_MIB = 64
FOOTPRINT_FACTOR = 12
ROUNDS, SECONDS = 15, 2
ROUNDS_QUICK, SECONDS_QUICK = 3, 1

COUNTED, UNCOUNTED, PLANNED = "as it is", "without counting", "with a plan"
PLAN = "alter iormplan dbplan=((name=bench, share=4), (name=default, share=1)), objective=balanced"
NO_PLAN = "alter iormplan dbplan='', objective=auto"
WORKLOADS = (fio.Workload("randread", 32), fio.Workload("randread", 1))
# Bounds on ratios: the server's CPU time as it is to that without counting, and p99 with a plan to that as it is.
COUNTING_CPU_MAX = 1.02
PLAN_P99_MAX = 1.02


def measure(options, skips):
    """([group as JSON], [Bound])."""
    groups, bounds = [], []
    try:
        fio.check()
        TMPFS.check(SIZE_MIB * FOOTPRINT_FACTOR * MIB)
        with Place() as place:
            uncounted = uncounted_binary(place)
            directory = place.dir_on(TMPFS)
            talk("cost: making two cells and warming them")
            counting = servers.serving_cell(place, directory, SIZE_MIB, name="counting")
            still = servers.serving_cell(place, directory, SIZE_MIB, name="still", binary=uncounted)
            for workload in WORKLOADS:
                compare(options, place, counting, still, workload, groups, bounds)
    except Skip as reason:
        skips.add("cost", reason)
    return groups, bounds


def uncounted_binary(place):
    """The path of a flashcell that counts nothing: $FLASHCELL_UNCOUNTED, else built here."""
    if os.environ.get("FLASHCELL_UNCOUNTED"):
        return os.environ["FLASHCELL_UNCOUNTED"]
    talk("building a flashcell that counts nothing (minutes, the first time)")
    release = cargo.build(place, ("-p", "flashcell"), flags="--cfg uncounted", directory="uncounted")
    return os.path.join(release, "flashcell")


def compare(options, place, counting, still, workload, groups, bounds):
    rounds, seconds = (ROUNDS_QUICK, SECONDS_QUICK) if options.quick else (ROUNDS, SECONDS)
    talk(f"cost, {workload}: {rounds} rounds")
    cells = {COUNTED: counting, UNCOUNTED: still, PLANNED: counting}
    runs = {arm: [] for arm in cells}
    for turn in range(rounds):
        arms = list(cells)
        for arm in arms[turn % 3 :] + arms[: turn % 3]:
            cell = cells[arm]
            counting.cellcli(PLAN if arm == PLANNED else NO_PLAN)
            hits = cell.hits if cell is counting else None
            target = servers.Target(arm, cell, uri=cell.uri("data@bench"), hits=hits)
            runs[arm].append(fio.run(place, target, workload, seconds, SIZE_MIB * MIB))
    counting.cellcli(NO_PLAN)
    cpu = {
        COUNTED: table.median_ratio(runs[COUNTED], runs[UNCOUNTED], "server_cpu_us"),
        PLANNED: table.median_ratio(runs[PLANNED], runs[COUNTED], "server_cpu_us"),
    }
    p99 = table.median_ratio(runs[PLANNED], runs[COUNTED], "p99_us")
    rows = [table.io_row(arm, own, cpu.get(arm)) for arm, own in runs.items()]
    head = (*table.IO_HEAD[:-1], "x CPU of the one without")
    table.print_group(f"Cost, {workload}, in memory", head, rows)
    bounds.append(Bound(f"cost, {workload}", "server CPU per I/O, counting", cpu[COUNTED], "<=", COUNTING_CPU_MAX))
    bounds.append(Bound(f"cost, {workload}", "p99 with a plan", p99, "<=", PLAN_P99_MAX))
    groups.append({"section": "cost", "workload": str(workload), "cpu_ratio": cpu, "plan_p99_ratio": p99, "runs": runs})
