"""Miss rows: cold reads over a disk of 4 ms that takes 64 requests at once, against that disk bare over NBD.

The bare disk is served twice: by the cell itself (a grid disk without caching, on the same emulated disk) and by nbdkit's
delay filter. Nothing is read twice, so everything misses; that it did is checked with the cell's own counters.
"""

import os
import random
import time

import fio
import nbdclient
import servers
import table
from place import MIB, TMPFS, Place, Skip, talk
from table import Bound

MODEL = "fixed:4ms:64"
PARALLEL = 64
DEPTH = 32
ROUNDS, ROUNDS_QUICK = 6, 2
READS, READS_QUICK = 600, 200
BLOCK_BYTES = 4096
# Distance of two reads in blocks: none is in a cache block another has touched.
SPREAD = 16
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
    rounds = ROUNDS_QUICK if options.quick else ROUNDS
    size_mib = REGION_MIB * (rounds + 1)
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
        parallel(place, targets, rounds, 1 if options.quick else 2, groups, bounds)
        single(targets, rounds * REGION_MIB * MIB, READS_QUICK if options.quick else READS, groups, bounds)
    return groups, bounds


def make_targets(place, directory, size_mib, skips):
    # Both grid disks lie on the one emulated disk.
    grid_disk = f"data:{size_mib}M"
    flash = f"{size_mib * 5 // 4 + 64}M"
    cell = servers.Cell(place, directory, f"{2 * size_mib + 64}M", flash, grid_disk, model=MODEL).start()
    cell.cellcli(f"create griddisk bare celldisk=CD_00_cell, size={size_mib}M, cachingMode=none")
    cell.load("data", size_mib * MIB)
    cell.load("bare", size_mib * MIB)
    cell.chill()
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


def parallel(place, targets, rounds, seconds, groups, bounds):
    """Depth 32, by fio; every round reads a region of its own."""
    talk(f"miss, qd {DEPTH}: {rounds} rounds")
    workload = fio.Workload("randread", DEPTH, once=True)
    runs = {target.name: [] for target in targets}
    for region in range(rounds):
        for target in targets:
            where = region * REGION_MIB * MIB
            runs[target.name].append(fio.run(place, target, workload, seconds, REGION_MIB * MIB, where))
    title = f"cold 4 KiB randread qd {DEPTH}, disk {MODEL}"
    rows = [table.io_row(who, own, table.median_ratio(own, runs[BARE], "iops")) for who, own in runs.items()]
    table.print_group(f"Misses, {title} (reference: {BARE})", table.IO_HEAD, rows)
    check_cold(table.median_of(runs[COLD], "hit_share"))
    ratios = {}
    for reference in (BARE, NBDKIT):
        if reference in runs:
            ratios[reference] = table.median_ratio(runs[COLD], runs[reference], "iops")
            bounds.append(Bound(title, f"IOPS against {reference}", ratios[reference], ">=", 0.95))
    groups.append({"section": "miss", "workload": title, "iops_ratio": ratios, "runs": runs})


def single(targets, offset, count, groups, bounds):
    """One read at a time, on each target in turn, read by read: a few per cent of 4 ms drown in any coarser turn."""
    talk(f"miss, qd 1: {count} reads on each in turn")
    blocks = list(range(offset // BLOCK_BYTES, offset // BLOCK_BYTES + count * SPREAD, SPREAD))
    random.Random(1).shuffle(blocks)
    clients, took_us = {}, {}
    cold = next(target for target in targets if target.name == COLD)
    for target in targets:
        export = {BARE: "bare", COLD: "data"}.get(target.name, "")
        clients[target.name] = nbdclient.Client(target.server.socket, export)
        took_us[target.name] = []
    before = cold.hits()
    for block in blocks:
        for name, client in clients.items():
            begin = time.perf_counter_ns()
            client.read(block * BLOCK_BYTES, BLOCK_BYTES)
            took_us[name].append((time.perf_counter_ns() - begin) / 1e3)
    after = cold.hits()
    for client in clients.values():
        client.disconnect()
    title = f"cold 4 KiB randread qd 1, disk {MODEL}"
    median, rows = {name: table.median(times) for name, times in took_us.items()}, []
    for name, times in took_us.items():
        ordered = sorted(times)
        cells = (median[name], sum(times) / count, ordered[count * 9 // 10], ordered[count * 99 // 100])
        percent = (median[name] / median[BARE] - 1) * 100
        rows.append((name, *[table.number(cell, 1) for cell in cells], table.number(percent, 2)))
    head = ("", "median us", "mean us", "p90 us", "p99 us", f"% over {BARE} (median)")
    table.print_group(f"Misses, {title}, read by read in turn", head, rows)
    check_cold((after[0] - before[0]) / count)
    added = {}
    for reference in (BARE, NBDKIT):
        if reference in median:
            added[reference] = (median[COLD] / median[reference] - 1) * 100
            bounds.append(Bound(title, f"median latency added to {reference}", added[reference], "<=", 3, "%"))
    groups.append({"section": "miss", "workload": title, "added_latency_percent": added, "runs_us": took_us})


def check_cold(hit_share):
    if hit_share is None or hit_share > HIT_SHARE_MAX:
        print(f"  hits among the cold reads: {hit_share}: this row does not measure misses")
