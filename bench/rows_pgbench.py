"""PostgreSQL in the steady state: ten minutes of TPC-B, then select-only, in each caching mode, against a grid disk on flash.

The data fits the cache (600 MB on 800 MB of flash) and not the memory that PostgreSQL has (256 MB); the disk takes 4 ms. What has been
overwritten for ten minutes must still be cached: select-only tells. `pg_wal` is on a redo grid disk. Needs root and PostgreSQL; takes
about forty minutes, with --quick about eight.
"""

import os
import subprocess

import table
from place import MIB, Skip, talk
from table import Bound

SCALE, CLIENTS = 40, 8
MODEL = "fixed:4ms:64"
MEMORY_MIB = 256
CACHE_MIB, DATA_MIB, WAL_MIB = 800, 1024, 640
TPCB_SECONDS, TPCB_SECONDS_QUICK = 600, 90
# To fill PostgreSQL's memory, then measured.
SELECT_SECONDS, SELECT_SECONDS_QUICK = 45, 15
MODES, MODES_QUICK = ("write-through", "write-back", "write-back-ordered"), ("write-back",)
ALL_FLASH = "all flash"
OF_ALL_FLASH_MIN = 0.85
METRICS = ("FC_BY_USED", "FC_BY_DIRTY", "FC_IO_BY_W", "FC_IO_BY_FLASH_W", "FC_IO_RQ_R", "FC_IO_RQ_R_MISS")


def make_cell(place, name):
    """With grid disks `data` and `wal`; what is on flash has room for its data, everything else the cache and the flash log."""
    if name == ALL_FLASH:
        cell = place.cell(disks=("256M",), flash=(f"{DATA_MIB + WAL_MIB + 256}M",), griddisks=("spare:64M",)).start()
        cell.cellcli("drop flashcache")
        for grid_disk, size in (("data", DATA_MIB), ("wal", WAL_MIB)):
            cell.cellcli(f"create griddisk {grid_disk} celldisk=FD_00_cell, size={size}M")
        return cell
    griddisks = (f"data:{DATA_MIB}M:data:{name}", f"wal:{WAL_MIB}M:redo")
    disk_mib, flash_mib = DATA_MIB + WAL_MIB + 512, CACHE_MIB + 1024
    cell = place.cell(disks=(f"{disk_mib}M",), flash=(f"{flash_mib}M",), griddisks=griddisks, model=MODEL).start()
    cell.cellcli("drop flashcache")
    cell.cellcli(f"create flashcache all size={CACHE_MIB}M")
    return cell


def figures(cell):
    found = cell.metrics()
    return {name: sum(value for (of, _), value in found.items() if of == name) for name in METRICS}


def one(options, name):
    import attached
    import crashproof
    import pgload
    from harness import Place

    tpcb, select = (TPCB_SECONDS_QUICK, SELECT_SECONDS_QUICK) if options.quick else (TPCB_SECONDS, SELECT_SECONDS)
    with Place("pgbench") as place:
        cell = make_cell(place, name)
        host = attached.Host(place)
        place.cleanups.insert(0, host.end)
        memory = pgload.Memory(MEMORY_MIB * MIB)
        if memory.dir is None:
            raise Skip("no memory cgroup can be made, and the page cache would hold the database")
        mounts = {}
        for grid_disk in ("data", "wal"):
            mounts[grid_disk] = place.path("mnt-" + grid_disk)
            os.mkdir(mounts[grid_disk])
            host.attach(grid_disk, mounts[grid_disk], "-c", cell.dir, "--mkfs", "ext4", "-o", "noatime", seconds=180)
        talk(f"pgbench, {name}: tables of scale {SCALE}")
        database = crashproof.Database(place, mounts["data"])
        settings = {"max_wal_size": "'256MB'", "checkpoint_timeout": "'5min'"}
        database.make(wal=os.path.join(mounts["wal"], "wal"), settings=settings)
        database.start()
        try:
            pgload.load(database, SCALE)
            database.stop()
            subprocess.run(["sync", "-f", mounts["data"]], check=True)
            with open("/proc/sys/vm/drop_caches", "w") as file:
                file.write("1")
            database.start(before=memory.take)
            before = figures(cell)
            talk(f"pgbench, {name}: TPC-B, {tpcb} s")
            tpcb_tps, tpcb_p95 = pgload.pgbench(database, CLIENTS, tpcb)
            after = figures(cell)
            talk(f"pgbench, {name}: select-only, {2 * select} s")
            pgload.pgbench(database, CLIENTS, select, "-S")
            selecting = figures(cell)
            select_tps, select_p95 = pgload.pgbench(database, CLIENTS, select, "-S")
            selected = figures(cell)
            database.stop()
        finally:
            if database.server.poll() is None:
                database.kill()
            memory.end()
        for grid_disk in ("wal", "data"):
            host.detach(grid_disk)
        cell.stop()
    run = {"tpcb_tps": tpcb_tps, "tpcb_p95_ms": tpcb_p95, "select_tps": select_tps, "select_p95_ms": select_p95}
    if name != ALL_FLASH:
        asked = {key: selected[f"FC_IO_RQ_{key}"] - selecting[f"FC_IO_RQ_{key}"] for key in ("R", "R_MISS")}
        run["hit_ratio"] = asked["R"] / max(1, asked["R"] + asked["R_MISS"])
        run["cached_mb"] = selected["FC_BY_USED"]
        written = after["FC_IO_BY_W"] - before["FC_IO_BY_W"]
        run["flash_per_byte"] = (after["FC_IO_BY_FLASH_W"] - before["FC_IO_BY_FLASH_W"]) / max(1, written)
    return run


def measure(options, skips):
    """([group as JSON], [Bound])."""
    import harness

    runs = {}
    try:
        import attached
        import crashproof

        attached.need_attach("setpriv")
        crashproof.programs()
        for name in (ALL_FLASH, *(MODES_QUICK if options.quick else MODES)):
            runs[name] = one(options, name)
    except (Skip, harness.Skip) as reason:
        skips.add("pgbench", reason)
        return [], []
    reference = runs[ALL_FLASH]
    head = ("", "TPC-B TPS", "p95 ms", "select TPS", "p95 ms", "select, x all flash", "hits", "cached MB", "flash B per B written")
    lines = []
    for name, run in runs.items():
        lines.append((
            name,
            table.number(run["tpcb_tps"]),
            table.number(run["tpcb_p95_ms"], 1),
            table.number(run["select_tps"]),
            table.number(run["select_p95_ms"], 1),
            table.number(run["select_tps"] / reference["select_tps"], 2),
            table.number(run.get("hit_ratio"), 3),
            table.number(run.get("cached_mb")),
            table.number(run.get("flash_per_byte"), 2),
        ))  # fmt: skip
    title = f"PostgreSQL, pgbench scale {SCALE}, {CLIENTS} clients, {CACHE_MIB} MB of cache, disk {MODEL}"
    table.print_group(title, head, lines)
    groups = [{"section": "pgbench", "workload": title, "runs": runs}]
    bounds = [
        Bound(name, f"select-only after TPC-B, against {ALL_FLASH}", run["select_tps"] / reference["select_tps"], ">=", OF_ALL_FLASH_MIN)
        for name, run in runs.items()
        if name != ALL_FLASH
    ]
    return groups, bounds
