"""Miss rows: cold reads over a disk of 4 ms that takes 64 requests at once, against that disk bare over NBD.

The bare disk is served twice: by the cell itself (a grid disk without caching, on the same emulated disk) and by nbdkit's
delay filter. Nothing is read twice, so everything misses; that it did is checked with the cell's own counters.
"""

import os

import fio
import servers
import table
from place import MIB, TMPFS, Place, Skip, talk
from table import Bound

MODEL = "fixed:4ms:64"
PARALLEL = 64
# What one run at depth 32 reads at most, 8,000 blocks a second, with room to spare.
REGION_MIB = 96
COLD = "flashcell, cold"
BARE = "flashcell, no cache"
NBDKIT = "nbdkit delay"
# Reads the cache answered although nothing had been read before: more would make a row a lie.
HIT_SHARE_MAX = 0.001


def measure(options, skips):
    """([group as JSON], [Bound])."""
    groups, bounds = [], []
    rounds = 2 if options.quick else 6
    # Each depth reads its own regions.
    size_mib = REGION_MIB * rounds * 2
    try:
        fio.check()
        TMPFS.check(size_mib * 4 * MIB)
    except Skip as reason:
        skips.add("miss", reason)
        return groups, bounds
    with Place() as place:
        directory = place.dir_on(TMPFS)
        talk("miss: making a cell on a slow disk")
        targets = make_targets(place, directory, size_mib, skips)
        region = 0
        for depth, seconds in ((32, 1 if options.quick else 2), (1, 1 if options.quick else 2)):
            workload = fio.Workload("randread", depth, once=True)
            talk(f"miss, qd {depth}: {rounds} rounds")
            runs = {target.name: [] for target in targets}
            for _ in range(rounds):
                for target in targets:
                    where = region * REGION_MIB * MIB
                    run = fio.run(place, target, workload, seconds, REGION_MIB * MIB, where)
                    runs[target.name].append(run)
                region += 1
            report(depth, runs, groups, bounds)
    return groups, bounds


def make_targets(place, directory, size_mib, skips):
    # Both grid disks lie on the one emulated disk; their content is a hole, which costs the emulated disk as much.
    grid_disk = f"data:{size_mib}M"
    flash = f"{size_mib * 5 // 4 + 64}M"
    cell = servers.Cell(place, directory, f"{2 * size_mib + 64}M", flash, grid_disk, model=MODEL).start()
    cell.cellcli(f"create griddisk bare celldisk=CD_00_cell, size={size_mib}M, cachingMode=none")
    cell.load("data", size_mib * MIB)
    cell.load("bare", size_mib * MIB)
    targets = []
    try:
        path = os.path.join(directory, "bare.img")
        peer = servers.nbdkit_delay(place, directory, servers.random_file(path, size_mib * MIB), PARALLEL)
        targets.append(servers.Target(NBDKIT, peer, uri=peer.uri()))
    except Skip as reason:
        skips.add(f"miss, {NBDKIT}", reason)
    targets.append(servers.Target(BARE, cell, uri=cell.uri("bare")))
    targets.append(servers.Target(COLD, cell, uri=cell.uri("data"), hits=cell.hits))
    return targets


def report(depth, runs, groups, bounds):
    title = f"cold 4 KiB randread qd {depth}, disk {MODEL}"
    rows = []
    for who, own in runs.items():
        rows.append(table.io_row(who, own, table.median_ratio(own, runs[BARE], "iops")))
    table.print_group(f"Misses, {title} (reference: {BARE})", table.IO_HEAD, rows)
    cached = table.median_of(runs[COLD], "hit_share")
    if cached is None or cached > HIT_SHARE_MAX:
        print(f"  hits among the cold reads: {cached}: this row does not measure misses")
    iops, added = {}, {}
    for reference in (BARE, NBDKIT):
        if reference not in runs:
            continue
        iops[reference] = table.median_ratio(runs[COLD], runs[reference], "iops")
        added[reference] = (table.median_ratio(runs[COLD], runs[reference], "mean_us") - 1) * 100
        if depth == 32:
            bounds.append(Bound(title, f"IOPS against {reference}", iops[reference], ">=", 0.95))
        else:
            bounds.append(Bound(title, f"mean latency added to {reference}", added[reference], "<=", 3, "%"))
    groups.append(
        {
            "section": "miss",
            "workload": title,
            "iops_ratio": iops,
            "added_latency_percent": added,
            "runs": runs,
        }
    )
