"""Serving rows: read hits, a flash grid disk, and the peers on a file of the same medium.

Each round runs every target once, one after the other (A B C A B C …); ratios are taken within a round.
"""

import fio
import servers
import table
from place import DISK, MIB, TMPFS, Failure, Place, Skip, talk
from table import Bound

SIZE_MIB = 256
SIZE_QUICK_MIB = 128
# Disk, flash (grid disk, cache, slack) and the peers' file.
FOOTPRINT_FACTOR = 6

HIT = "flashcell, cached"
GRID = "flashcell, on flash"
FILE = "fio on the file"
NBDKIT = "nbdkit file"
QEMU = "qemu-nbd"
# Peers whose better one is the reference where no device is in the way.
PEERS = (NBDKIT, QEMU)

KEY = fio.Workload("randread", 32)


def workloads(quick):
    """(workload, rounds, seconds): the rows that have bounds are measured longest. Reads first: writes disturb the cache."""
    key = (KEY, 3, 1) if quick else (KEY, 7, 2)
    if quick:
        return [key, (fio.Workload("randread", 1), 1, 1), (fio.Workload("randwrite", 32), 1, 1)]
    rounds, seconds = 2, 1
    rest = [
        fio.Workload("randread", 1),
        fio.Workload("randread", 1, 2),
        fio.Workload("randread", 32, 2),
        fio.Workload("read", 8, 1, MIB),
        fio.Workload("read", 8, 2, MIB),
        fio.Workload("randwrite", 1),
        fio.Workload("randwrite", 32),
        fio.Workload("randwrite", 32, 2),
        fio.Workload("write", 8, 1, MIB),
        fio.Workload("write", 8, 2, MIB),
    ]
    return [key] + [(workload, rounds, seconds) for workload in rest]


def measure(options, skips):
    """All groups on both media: ([group as JSON], [Bound])."""
    groups, bounds = [], []
    try:
        fio.check()
    except Skip as reason:
        skips.add("serving", reason)
        return groups, bounds
    for medium in (DISK, TMPFS):
        try:
            medium.check((SIZE_QUICK_MIB if options.quick else SIZE_MIB) * FOOTPRINT_FACTOR * MIB)
        except Skip as reason:
            skips.add(f"serving, {medium.name}", reason)
            continue
        with Place() as place:
            on_medium(options, skips, place, medium, groups, bounds)
    return groups, bounds


def targets_on(place, medium, size_mib, skips):
    directory = place.dir_on(medium)
    talk(f"serving, {medium.name}: making a cell and warming it")
    cell = servers.serving_cell(place, directory, size_mib)
    twin = servers.twin(directory, size_mib)
    targets = [servers.Target(FILE, path=twin)]
    for name, start in ((NBDKIT, servers.nbdkit), (QEMU, servers.qemu_nbd)):
        try:
            peer = start(place, directory, twin)
        except Skip as reason:
            skips.add(f"serving, {medium.name}, {name}", reason)
            continue
        targets.append(servers.Target(name, peer, uri=peer.uri()))
    targets.append(servers.Target(HIT, cell, uri=cell.uri("data"), hits=cell.hits))
    targets.append(servers.Target(GRID, cell, uri=cell.uri("flash")))
    return targets


def on_medium(options, skips, place, medium, groups, bounds):
    size_mib = SIZE_QUICK_MIB if options.quick else SIZE_MIB
    targets = targets_on(place, medium, size_mib, skips)
    for workload, rounds, seconds in workloads(options.quick):
        title = f"{medium.name}: {workload}"
        talk(f"serving, {title}: {rounds} rounds")
        runs = {target.name: [] for target in targets}
        for _ in range(rounds):
            for target in list(targets):
                try:
                    run = fio.run(place, target, workload, seconds, size_mib * MIB, direct=medium.direct)
                except Failure as error:
                    if target.name in (HIT, GRID):
                        raise
                    # A peer that cannot do it here is not an error of ours.
                    skips.add(f"serving, {title}, {target.name}", str(error).replace("\n", " ")[-300:])
                    targets.remove(target)
                    del runs[target.name]
                    continue
                runs[target.name].append(run)
        report(medium, workload, title, runs, groups, bounds)


def best_peer(runs):
    """Round by round the run of the peer with the most I/Os per second: ([run], name of the one that is it mostly)."""
    peers = [name for name in PEERS if runs.get(name)]
    if not peers:
        return [], None
    rounds = range(min(len(runs[name]) for name in peers))
    chosen = [max(peers, key=lambda name, i=i: runs[name][i]["iops"]) for i in rounds]
    return [runs[name][i] for i, name in enumerate(chosen)], max(set(chosen), key=chosen.count)


def report(medium, workload, title, runs, groups, bounds):
    if medium.direct:
        reference, name = runs.get(FILE, []), FILE
    else:
        reference, name = best_peer(runs)
    ratios = {who: table.median_ratio(own, reference, "iops") for who, own in runs.items()}
    rows = [table.io_row(who, own, ratios[who]) for who, own in runs.items()]
    table.print_group(f"Serving, {title} (reference: {name or 'none'})", table.IO_HEAD, rows)
    cached = table.median_of(runs[HIT], "hit_share")
    if not workload.writes and not workload.large and cached is not None and cached < 0.999:
        print(f"  only {cached:.4f} of the reads were served from flash")
    cpu = table.median_ratio(runs[HIT], reference, "server_cpu_us")
    if workload is KEY and medium.direct:
        bounds.append(Bound(title, f"hits, IOPS against {FILE}", ratios[HIT], ">=", 0.9))
    elif workload is KEY:
        bounds.append(Bound(title, f"hits, IOPS against the better peer ({name})", ratios[HIT], ">=", 1.0))
        bounds.append(Bound(title, f"hits, server CPU per I/O against {name}", cpu, "<=", 0.7))
    groups.append(
        {
            "section": "serving",
            "medium": medium.name,
            "workload": str(workload),
            "reference": name,
            "iops_ratio": ratios,
            "server_cpu_ratio": {who: table.median_ratio(own, reference, "server_cpu_us") for who, own in runs.items()},
            "runs": runs,
        }
    )
