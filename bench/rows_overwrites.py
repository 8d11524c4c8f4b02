"""Overwrites by how full the flash is: rounds of zipfian reads and writes, then uniform reads, over a cache that holds everything or nearly.

What fits must stay cached, and cost few bytes of flash for each that is written. Bytes are the cell's own counters and, where loop devices can be made (root),
those of the device. Rounds draw another hot set each. About half an hour; with --quick, three rows of eight rounds, three minutes.
"""

import json
import os
import subprocess

import fio
import servers
import table
from place import DISK, MIB, Failure, Place, Skip, shown, talk
from table import Bound

FLASH_MIB = 800
ROUNDS, ROUNDS_QUICK = 20, 8
# The load and the first rounds leave the log in an order that does not last.
SETTLING_ROUNDS = 5
MODES = ("write-through", "write-back", "write-back-ordered")
HALF, THREE_QUARTERS = 400, 600
# Mode, MiB of the grid disk, flash devices: on two, what is dirty has two copies.
ROWS = (
    *((mode, size_mib, 1) for mode in MODES for size_mib in (HALF, THREE_QUARTERS)),
    ("write-back", THREE_QUARTERS, 2),
    *((mode, size_mib, 1) for mode in MODES[:2] for size_mib in (680, 736, 784)),
)
ROWS_QUICK = tuple((mode, THREE_QUARTERS, 1) for mode in MODES)
# Bytes to flash per byte written, by how full the flash is: of write-through, and what write-back may have.
PER_BYTE_MAX = {("write-through", HALF): 1.35, ("write-through", THREE_QUARTERS): 2.2, ("write-back", THREE_QUARTERS): 2.5}
CACHED_MIN = HIT_MIN = 0.97
# Of the bytes written to flash.
CARRIED_MAX = 0.03
P99_TO_HALF_MAX = 2
COPIES_MAX = 3
METRICS = ("FC_BY_USED", "FC_IO_BY_FLASH_W", "FC_IO_BY_COPY", "FC_IO_BY_CARRY", "FC_IO_RQ_EVICT", "FC_IO_RQ_R", "FC_IO_RQ_R_MISS")
SECTOR_BYTES = 512


class Flash:
    """Files, or loop devices on them, whose own counters tell what was written."""

    def __init__(self, place, directory, count):
        self.place = place
        self.devices = []
        self.paths = []
        for n in range(count):
            path = os.path.join(directory, f"flash-{n}.img")
            with open(path, "wb") as file:
                file.truncate(FLASH_MIB * MIB)
            self.paths.append(self.loop(path) or f"{FLASH_MIB}M")

    def loop(self, path):
        command = ["losetup", "--find", "--show", "--direct-io=on", "--sector-size", "4096", path]
        if os.geteuid() != 0:
            return None
        try:
            self.devices.append(self.place.run(command).strip())
        except (Failure, OSError):
            return None
        return self.devices[-1]

    def written_bytes(self):
        """None where no device counts."""
        if not self.devices:
            return None
        stats = (f"/sys/block/{os.path.basename(device)}/stat" for device in self.devices)
        return sum(int(open(stat).read().split()[6]) * SECTOR_BYTES for stat in stats)

    def end(self):
        for device in self.devices:
            subprocess.run(["losetup", "--detach", device], check=False)


class Cell(servers.Cell):
    """With the flash given, one device or several."""

    def __init__(self, place, directory, flash, grid_disk, size_mib):
        import harness

        self.place = place
        self.binary = harness.binary()
        self.dir = os.path.join(directory, "cell")
        self.log_path = os.path.join(directory, "cell.log")
        command = [self.binary, "init", "--sparse", self.dir, "--disk", f"{size_mib + 512}M", "--griddisk", grid_disk]
        for path in flash.paths:
            command += ["--flash", path]
        place.run(command)

    def figures(self):
        rows = json.loads(self.cellcli("list metriccurrent attributes name, metricValue"))
        return {name: sum(row["metricValue"] for row in rows if row["name"] == name) for name in METRICS}


def fio_run(place, cell, words):
    """One fio run over NBD; its job."""
    command = ["fio", "--output-format=json", "--name=bench", "--thread", "--ioengine=nbd", f"--uri={cell.uri('data')}", "--iodepth=8"]
    out = place.run([*command, "--randrepeat=0", *words], 600)
    try:
        return json.loads(out[out.index("{\n") :])["jobs"][0]
    except (ValueError, KeyError, IndexError) as error:
        raise Failure(f"{shown(words)}: fio printed no job") from error


def one(options, mode, size_mib, copies):
    """Medians and sums over the rounds that count."""
    rounds = ROUNDS_QUICK if options.quick else ROUNDS
    with Place() as place:
        DISK.check((size_mib + 512 + copies * FLASH_MIB) * MIB)
        directory = place.dir_on(DISK)
        flash = Flash(place, directory, copies)
        try:
            cell = Cell(place, directory, flash, f"data:{size_mib}M:data:{mode}", size_mib).start()
            size = f"--size={size_mib}m"
            for words in (["--rw=write", "--bs=64k"], ["--rw=randread", "--bs=8k"], ["--rw=read", "--bs=64k"]):
                fio_run(place, cell, [*words, size])
            written, latencies, shares, before = 0, {"read": [], "write": []}, [], None
            for n in range(rounds):
                if n == min(SETTLING_ROUNDS, rounds - 1):
                    before = (cell.figures(), flash.written_bytes())
                    written, latencies = 0, {"read": [], "write": []}
                mixed = ["--rw=randrw", "--rwmixread=50", "--bs=8k", "--random_distribution=zipf:0.9", "--norandommap", "--fsync=32"]
                job = fio_run(place, cell, [*mixed, size, f"--io_size={size_mib // 2}m"])
                written += job["write"]["io_bytes"]
                for side, list_us in latencies.items():
                    list_us.append(job[side]["clat_ns"]["percentile"]["99.000000"] / 1e3)
                early = cell.figures()
                fio_run(place, cell, ["--rw=randread", "--bs=8k", "--norandommap", size, f"--io_size={size_mib // 6}m"])
                late = cell.figures()
                hits, misses = (late[name] - early[name] for name in ("FC_IO_RQ_R", "FC_IO_RQ_R_MISS"))
                shares.append(hits / max(1, hits + misses))
            after = (cell.figures(), flash.written_bytes())
            cell.stop()
        finally:
            flash.end()
    by = {name: (after[0][name] - before[0][name]) * MIB / written / copies for name in METRICS if "_BY_" in name}
    device = None if after[1] is None else (after[1] - before[1]) / written / copies
    return {
        # Where what is dirty has two copies it counts twice.
        "valid_mb": after[0]["FC_BY_USED"],
        "hits_last": shares[-1],
        "flash_per_byte": by["FC_IO_BY_FLASH_W"],
        "device_per_byte": device,
        "copies_per_byte": by["FC_IO_BY_COPY"],
        "carried_share": by["FC_IO_BY_CARRY"] / max(1e-9, by["FC_IO_BY_FLASH_W"]),
        "evictions": after[0]["FC_IO_RQ_EVICT"] - before[0]["FC_IO_RQ_EVICT"],
        "read_p99_us": table.median(latencies["read"]),
        "write_p99_us": table.median(latencies["write"]),
    }


def name_of(mode, size_mib, copies):
    return f"{mode}, {size_mib} MB of {FLASH_MIB}" + (f", {copies} copies" if copies > 1 else "")


def measure(options, skips):
    """([group as JSON], [Bound])."""
    runs = {}
    try:
        fio.check()
        for row in ROWS_QUICK if options.quick else ROWS:
            talk(f"overwrites: {name_of(*row)}")
            runs[row] = one(options, *row)
    except Skip as reason:
        skips.add("overwrites", reason)
    if not runs:
        return [], []
    head = ("", "valid MB", "reads hit", "flash B per B", "by device", "copies", "carried", "evicted", "read p99 us", "write p99 us")
    lines = []
    for row, run in runs.items():
        lines.append((
            name_of(*row),
            table.number(run["valid_mb"]),
            table.number(run["hits_last"], 3),
            table.number(run["flash_per_byte"], 2),
            table.number(run["device_per_byte"], 2),
            table.number(run["copies_per_byte"], 2),
            table.number(run["carried_share"], 4),
            table.number(run["evictions"]),
            table.number(run["read_p99_us"]),
            table.number(run["write_p99_us"]),
        ))  # fmt: skip
    title = f"Overwrites: rounds of half reads, half writes of 8 KiB, zipf 0.9, a quarter of the data written in each; {FLASH_MIB} MB of flash"
    table.print_group(title, head, lines)
    groups = [{"section": "overwrites", "workload": title, "runs": {name_of(*row): run for row, run in runs.items()}}]
    return groups, [bound for row, run in runs.items() for bound in bounds_of(row, run, runs.get((row[0], HALF, 1)))]


def bounds_of(row, run, at_half):
    """Below 85 % all of it stays; above, latency and copies stay within what half costs."""
    mode, size_mib, copies = row
    name = name_of(*row)
    bounds = []
    if size_mib <= THREE_QUARTERS:
        bounds.append(Bound(name, "of the data cached at the end", run["valid_mb"] / size_mib, ">=", CACHED_MIN))
        bounds.append(Bound(name, "of the uniform reads hit at the end", run["hits_last"], ">=", HIT_MIN))
    else:
        bounds.append(Bound(name, "bytes copied per byte written", run["copies_per_byte"], "<=", COPIES_MAX, "B"))
        for side in ("read", "write") if at_half else ():
            ratio = run[f"{side}_p99_us"] / at_half[f"{side}_p99_us"]
            bounds.append(Bound(name, f"{side} p99 to that at half", ratio, "<=", P99_TO_HALF_MAX))
    most = PER_BYTE_MAX.get((mode, size_mib))
    if most:
        bounds.append(Bound(name, "flash bytes per byte written" + (", each copy" if copies > 1 else ""), run["flash_per_byte"], "<=", most, "B"))
    bounds.append(Bound(name, "of the flash bytes are records carried on", run["carried_share"], "<=", CARRIED_MAX))
    return bounds
