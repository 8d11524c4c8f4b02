"""PostgreSQL on flash alone and on a cell, in turn: ratios within a round, and where the processors' time goes.

Three sides, each with a database of its own, made once; one at a time is measured, round by round:

  ext4 on the flash       two loop devices with direct I/O on files of the disk the bench measures; no Flashcell
  all flash               grid disks on a flash device that is a file there, attached (driver fuse: a loop device with direct I/O)
  write-back + flash log  the same kind of flash before a disk that takes 4 ms; `pg_wal` on a redo grid disk

The cell's flash is behind a delay layer of 80 us. It answers no sooner than that, and no sooner than the file does; ext4 has the file
alone, which makes it the harder thing to be compared with. A layer below ext4 could only be a user-space server (nbdkit's delay with nbdfuse), which
takes more time and more of the processors than the 80 us it stands for, and would flatter the cell. What a read of 8 KiB of each flash takes is
measured first and told. Each server runs in the same memory cgroup, page cache included. Needs root and PostgreSQL; takes about twenty minutes, with
--quick about five.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time

import cpu
import table
from place import DISK, MIB, Failure, Skip, talk
from table import Bound

SCALE, CLIENTS = 40, 8
FLASH_MODEL, DISK_MODEL = "fixed:80us:64", "fixed:4ms:64"
MEMORY_MIB = 256
CACHE_MIB, DATA_MIB, WAL_MIB = 800, 1024, 640
ROUNDS, ROUNDS_QUICK = 5, 2
# To fill PostgreSQL's memory; select-only; TPC-B.
SECONDS, SECONDS_QUICK = (15, 20, 30), (6, 8, 10)
# All that is asked is cached before the first round, or it is told that it was not.
WARM_SECONDS, WARM_SECONDS_MAX, WARM_SECONDS_MAX_QUICK = 10, 240, 80
HITS_MIN = 0.995
READ_SECONDS = 3
# What a cell destages after its turn would take the processors and the disk from the side that is next. It begins 5 s after the last write.
SETTLE_SECONDS_MAX, SETTLE_POLL_SECONDS, SETTLED_WRITES_MAX = 180, 8, 30
EXT4, FLASH, CACHED = "ext4 on the flash", "all flash", "write-back + flash log"
SIDES = (EXT4, FLASH, CACHED)
KINDS = (("select", "select-only", ("-S",)), ("tpcb", "TPC-B", ()))
# Side, side it is compared with, least ratio of select-only and of TPC-B; none: told without a bound.
RATIOS = ((CACHED, EXT4, 0.5, 0.7), (CACHED, FLASH, 0.85, 0.9), (FLASH, EXT4, None, None))
# Files of all sides, written whole.
BYTES_NEEDED = 8192 * MIB


class Side:
    """Devices, their mounts and a database on them, which is not running."""

    def __init__(self, place, host, name):
        import crashproof

        self.place, self.host, self.name = place, host, name
        self.short = f"side{SIDES.index(name)}"
        self.cell, self.loops, self.devices = None, [], {}
        self.mounts = {disk: place.path(f"{self.short}-{disk}") for disk in ("data", "wal")}
        for mount in self.mounts.values():
            os.mkdir(mount)
        if name == EXT4:
            self.make_files()
        else:
            self.make_cell()
        self.database = crashproof.Database(place, self.mounts["data"])
        settings = {"max_wal_size": "'256MB'", "checkpoint_timeout": "'5min'"}
        self.database.make(wal=os.path.join(self.mounts["wal"], "wal"), settings=settings)

    def make_files(self):
        from harness import run

        block = os.urandom(MIB)
        for disk, size_mib in (("data", DATA_MIB), ("wal", WAL_MIB)):
            path = self.place.path(f"{self.short}-{disk}.img")
            with open(path, "wb") as file:
                for _ in range(size_mib):
                    file.write(block)
                os.fsync(file.fileno())
            # The sectors of an attached grid disk.
            loop = self.place.loop_device(path, "--direct-io=on", "--sector-size=4096")
            self.loops.append(loop)
            self.devices[disk] = loop.path
            run(["mkfs.ext4", "-q", "-F", loop.path])
            run(["mount", "-o", "noatime", loop.path, self.mounts[disk]])

    def make_cell(self):
        if self.name == FLASH:
            cell = self.place.cell(name=self.short, disks=("256M",), flash=(f"{DATA_MIB + WAL_MIB + 256}M",), griddisks=("spare:64M",), sparse=False)
        else:
            griddisks = (f"data:{DATA_MIB}M:data:write-back", f"wal:{WAL_MIB}M:redo")
            disk_mib, flash_mib = DATA_MIB + WAL_MIB + 512, CACHE_MIB + 1024
            cell = self.place.cell(name=self.short, disks=(f"{disk_mib}M",), flash=(f"{flash_mib}M",), griddisks=griddisks, model=DISK_MODEL, sparse=False)
        cell.set_device(f'model = "{FLASH_MODEL}"', kind="flash")
        self.cell = cell.start()
        cell.cellcli("drop flashcache")
        if self.name == FLASH:
            for disk, size_mib in (("data", DATA_MIB), ("wal", WAL_MIB)):
                cell.cellcli(f"create griddisk {disk} celldisk=FD_00_{self.short}, size={size_mib}M")
        else:
            cell.cellcli(f"create flashcache all size={CACHE_MIB}M")
        for disk, mount in self.mounts.items():
            self.devices[disk] = self.host.attach(disk, mount, "-c", cell.dir, "--mkfs", "ext4", "-o", "noatime", seconds=180).stdout.strip()

    def pids(self):
        """(the cell's, its drivers' and keepers')"""
        if self.cell is None:
            return [], []
        rows = [row for row in self.host.rows() if row["device"] in self.devices.values()]
        return [self.cell.process.pid], [row[key] for row in rows for key in ("driver_pid", "keeper_pid")]

    def read_us(self):
        """What a read of 8 KiB of its flash takes at depth 1, as a file system sees it; None where there is more than that below it, or no fio."""
        from harness import run

        if self.name == CACHED or shutil.which("fio") is None:
            return None
        command = ["fio", "--output-format=json", "--name=read", "--rw=randread", "--bs=8k", "--direct=1", "--ioengine=psync", "--allow_file_create=0"]
        out = run([*command, f"--filename={self.devices['data']}", "--time_based", f"--runtime={READ_SECONDS}", "--randrepeat=0"]).stdout
        return json.loads(out[out.index("{\n") :])["jobs"][0]["read"]["lat_ns"]["mean"] / 1e3

    def hits(self):
        found = self.cell.metrics()
        return [sum(value for (name, _), value in found.items() if name == key) for key in ("FC_IO_RQ_R", "FC_IO_RQ_R_MISS")]

    def writing(self):
        """(writes of its cell to all devices so far, MB that are dirty)"""
        found = self.cell.metrics().items()
        return [sum(value for (name, _), value in found if name in names) for names in (("CD_IO_RQ_W_SM", "CD_IO_RQ_W_LG"), ("FC_BY_DIRTY",))]

    def settle(self):
        """Wait until its cell has written what it writes by itself; the seconds that took."""
        if self.cell is None:
            return 0.0
        began = time.monotonic()
        before, _ = self.writing()
        while time.monotonic() - began < SETTLE_SECONDS_MAX:
            time.sleep(SETTLE_POLL_SECONDS)
            now, dirty_mb = self.writing()
            if now - before <= SETTLED_WRITES_MAX and dirty_mb < 1:
                break
            before = now
        return time.monotonic() - began

    def end(self):
        from harness import run

        if self.cell is not None:
            for disk in ("wal", "data"):
                self.host.detach(disk, "-c", self.cell.dir)
            self.cell.stop()
            return
        for mount in self.mounts.values():
            if os.path.ismount(mount):
                run(["umount", mount])
        for loop in self.loops:
            loop.detach()


def share(before, after):
    """Of the reads of cached blocks and misses between two moments, the hits."""
    hits, misses = (now - then for now, then in zip(after, before))
    return hits / max(1, hits + misses)


def drop_caches():
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("1")


def warm(side, memory, seconds_max):
    """Select-only until what is asked is in the cache; the share of hits of the last run."""
    import pgload

    side.database.start(before=memory.take)
    found = 0.0
    for _ in range(seconds_max // WARM_SECONDS):
        before = side.hits()
        pgload.pgbench(side.database, CLIENTS, WARM_SECONDS, "-S")
        found = share(before, side.hits())
        if found >= HITS_MIN:
            break
    side.database.stop()
    return found


def measure_side(side, others, memory, seconds):
    """One round of one side."""
    import pgload

    to_warm, *each = seconds
    # What the others had in memory is not in the way.
    drop_caches()
    side.database.start(before=memory.take)
    pgload.pgbench(side.database, CLIENTS, to_warm, "-S")
    run = {}
    cell, drivers = side.pids()
    idle = [pid for other in others for pids in other.pids() for pid in pids]
    for (key, _, options), duration in zip(KINDS, each):
        hits = side.hits() if side.name == CACHED else None
        before = cpu.Snapshot(side.database.server.pid, cell, drivers, idle)
        run[key + "_tps"], run[key + "_p95_ms"] = pgload.pgbench(side.database, CLIENTS, duration, *options)
        spent = cpu.Snapshot(side.database.server.pid, cell, drivers, idle).since(before)
        transactions = max(1.0, run[key + "_tps"] * duration)
        run[key + "_cpu_us"] = {name: 1e6 * part / transactions for name, part in spent.items()}
        if hits:
            run[key + "_hits"] = share(hits, side.hits())
    side.database.stop()
    for mount in side.mounts.values():
        subprocess.run(["sync", "-f", mount], check=True)
    run["settle_s"] = side.settle()
    return run


def rounds_of(options, place, host):
    """{side: [round]}, {side: us of a read}"""
    import pgload

    rounds, seconds, warm_max = (ROUNDS_QUICK, SECONDS_QUICK, WARM_SECONDS_MAX_QUICK) if options.quick else (ROUNDS, SECONDS, WARM_SECONDS_MAX)
    memory = pgload.Memory(MEMORY_MIB * MIB)
    if memory.dir is None:
        raise Skip("no memory cgroup can be made, and the page cache would hold the database")
    sides = []
    try:
        for name in SIDES:
            talk(f"postgres, {name}: devices, and tables of scale {SCALE}")
            side = Side(place, host, name)
            sides.append(side)
            side.database.start()
            pgload.load(side.database, SCALE)
            side.database.stop()
            if name == CACHED:
                talk(f"postgres, {name}: {warm(side, memory, warm_max):.3f} of the reads hit once it is warm")
        for side in sides:
            side.settle()
        reads = {side.name: side.read_us() for side in sides}
        runs = {name: [] for name in SIDES}
        for number in range(rounds):
            for side in sides:
                talk(f"postgres, round {number + 1} of {rounds}, {side.name}: {sum(seconds)} s")
                runs[side.name].append(measure_side(side, [other for other in sides if other is not side], memory, seconds))
    finally:
        for side in sides:
            if side.database.server is not None and side.database.server.poll() is None:
                side.database.kill()
        memory.end()
        for side in sides:
            side.end()
    return runs, reads


def ratios(runs, key, of, to):
    return [a[key] / b[key] for a, b in zip(runs[of], runs[to])]


def print_rates(runs, reads):
    numbers = [f"round {number + 1}" for number in range(len(runs[EXT4]))]
    for key, title, _ in KINDS:
        lines = []
        for name in SIDES:
            of = [run[key + "_tps"] for run in runs[name]]
            p95 = table.median_of(runs[name], key + "_p95_ms")
            hits = table.median_of(runs[name], key + "_hits")
            lines.append((name, *map(table.number, of), table.number(table.median(of)), table.number(p95, 1), table.number(hits, 3)))
        head = ("TPS", *numbers, "median", "p95 ms", "hits")
        table.print_group(f"PostgreSQL in turn, {title}: pgbench scale {SCALE}, {CLIENTS} clients, flash {FLASH_MODEL}, disk {DISK_MODEL}", head, lines)
    lines = []
    for of, to, *_ in RATIOS:
        for key, title, _ in KINDS:
            found = ratios(runs, key + "_tps", of, to)
            lines.append((f"{of} / {to}", title, *(table.number(ratio, 2) for ratio in found), table.number(table.median(found), 2)))
    table.print_group("Ratios within a round", ("", "", *numbers, "median"), lines, left=2)
    told = [f"{name} {table.number(us)} us" for name, us in reads.items() if us is not None]
    settled = [f"{name} {table.number(table.median_of(runs[name], 'settle_s'), 0)} s" for name in SIDES[1:]]
    print(f"  until a cell writes nothing more after its turn: {', '.join(settled)}")
    print(f"  8 KiB random read at depth 1, idle: {', '.join(told) or 'not measured'}")


def print_cpu(runs):
    for key, title, _ in KINDS:
        lines = []
        for name in SIDES:
            parts = [table.median([run[key + "_cpu_us"][part] for run in runs[name]]) for part in cpu.PARTS]
            # What the transaction itself needs: without other sides and other programs.
            lines.append((name, *map(table.number, parts), table.number(sum(parts[:-2]))))
        table.print_group(f"CPU us per transaction, {title}, medians", ("", *cpu.PARTS, "sum without the last two"), lines)


def measure(options, skips):
    """([group as JSON], [Bound])."""
    import harness

    before = tempfile.tempdir
    try:
        import attached
        import crashproof

        attached.need_attach("setpriv", "losetup")
        crashproof.programs()
        DISK.check(BYTES_NEEDED)
        # All files of this row are on the disk that is measured.
        tempfile.tempdir = DISK.base
        with harness.Place("postgres") as place:
            host = attached.Host(place)
            place.cleanups.insert(0, host.end)
            runs, reads = rounds_of(options, place, host)
    except (Skip, harness.Skip) as reason:
        skips.add("postgres", reason)
        return [], []
    except harness.Failure as error:
        raise Failure(str(error)) from error
    finally:
        tempfile.tempdir = before
    print_rates(runs, reads)
    print_cpu(runs)
    bounds = []
    for of, to, *least in RATIOS:
        for (key, title, _), limit in zip(KINDS, least):
            if limit is not None:
                bounds.append(Bound(of, f"{title}, against {to}", table.median(ratios(runs, key + "_tps", of, to)), ">=", limit))
    return [{"section": "postgres", "workload": f"pgbench scale {SCALE}", "read_us": reads, "runs": runs}], bounds
