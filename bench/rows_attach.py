"""Rows at the block device: `flashcell attach` beside nbdfuse with a loop device, and the export itself over NBD.

All three are of one grid disk of one cell, served whole from flash on tmpfs; then of a grid disk on a disk of 4 ms that is not cached.
Needs root, /dev/fuse and loop devices.
"""

import os
import shutil
import time

import fio
import servers
import table
from place import MIB, TMPFS, Place, Skip, talk, wait_until
from table import Bound

SIZE_MIB, SIZE_QUICK_MIB = 256, 128
REGION_MIB = 96
ROUNDS, ROUNDS_QUICK = 5, 2
MODEL = "fixed:4ms:64"
NBD = "over NBD"
ATTACH = "flashcell attach"
NBDFUSE = "nbdfuse + loop"


def check():
    fio.check()
    if os.geteuid() != 0:
        raise Skip("attach needs root")
    for path in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(path):
            raise Skip(f"{path} is not there")
    for program in ("nbdfuse", "losetup"):
        if shutil.which(program) is None:
            raise Skip(f"{program} is not installed (scripts/install-test-clients)")


class Devices:
    """A grid disk as block devices, by both ways."""

    def __init__(self, place, directory, cell, export):
        self.place, self.cell, self.export = place, cell, export
        self.run_dir = os.path.join(directory, "run")
        self.mount = os.path.join(directory, "nbdfuse")
        os.mkdir(self.mount)

    def __enter__(self):
        os.environ["FLASHCELL_RUN"] = self.run_dir
        command = [self.cell.binary, "attach", self.export, "-c", self.cell.dir]
        self.attached = self.place.run(command).strip()
        self.nbdfuse = self.place.spawn(["nbdfuse", self.mount, self.cell.uri(self.export)])
        wait_until(self.is_mounted, 20, "nbdfuse has mounted")
        file = os.path.join(self.mount, "nbd")
        losetup = ["losetup", "--direct-io=on", "--sector-size", "4096", "-f", "--show", file]
        self.loop = self.place.run(losetup).strip()
        return self

    def is_mounted(self):
        with open("/proc/mounts") as mounts:
            return any(line.split()[1] == self.mount for line in mounts)

    def __exit__(self, *_):
        self.place.run(["losetup", "-d", self.loop])
        time.sleep(0.2)
        self.place.run(["umount", self.mount])
        self.place.run([self.cell.binary, "detach", self.attached])

    def targets(self):
        return [
            servers.Target(NBDFUSE, self.cell, path=self.loop),
            servers.Target(ATTACH, self.cell, path=self.attached),
            servers.Target(NBD, self.cell, uri=self.cell.uri(self.export)),
        ]


def rows(place, targets, workload, rounds, seconds, size_bytes, title, groups, region_bytes=0):
    talk(f"attach, {workload}: {rounds} rounds")
    runs = {target.name: [] for target in targets}
    for round_ in range(rounds):
        for target in targets:
            where = round_ * region_bytes
            runs[target.name].append(fio.run(place, target, workload, seconds, size_bytes, where, direct=not target.uri))
    lines = [table.io_row(who, own, table.median_ratio(own, runs[NBDFUSE], "iops")) for who, own in runs.items()]
    table.print_group(f"{title} (reference: {NBDFUSE})", table.IO_HEAD, lines)
    ratios = {
        "nbdfuse": table.median_ratio(runs[ATTACH], runs[NBDFUSE], "iops"),
        "nbd": table.median_ratio(runs[ATTACH], runs[NBD], "iops"),
        "nbdfuse_to_nbd": table.median_ratio(runs[NBDFUSE], runs[NBD], "iops"),
    }
    groups.append({"section": "attach", "workload": title, "iops_ratio": ratios, "runs": runs})
    return ratios


def measure(options, skips):
    """([group as JSON], [Bound])."""
    groups, bounds = [], []
    size_mib = SIZE_QUICK_MIB if options.quick else SIZE_MIB
    rounds, seconds = (ROUNDS_QUICK, 1) if options.quick else (ROUNDS, 2)
    try:
        check()
        TMPFS.check(6 * size_mib * MIB)
    except Skip as reason:
        skips.add("attach", reason)
        return groups, bounds
    with Place() as place:
        directory = place.dir_on(TMPFS)
        talk("attach: making a cell that serves hits")
        cell = servers.serving_cell(place, directory, size_mib)
        with Devices(place, directory, cell, "data") as devices:
            for depth, limit in ((32, 2), (1, 1)):
                title = f"Block device, 4 KiB randread qd {depth}, hits"
                workload = fio.Workload("randread", depth)
                ratios = rows(place, devices.targets(), workload, rounds, seconds, size_mib * MIB, title, groups)
                bounds.append(Bound(title, f"IOPS against {NBDFUSE}", ratios["nbdfuse"], ">=", limit))
            workload = fio.Workload("randwrite", 32)
            rows(place, devices.targets(), workload, rounds, seconds, size_mib * MIB, "Block device, 4 KiB randwrite qd 32", groups)
        cell.stop()
    with Place() as place:
        directory = place.dir_on(TMPFS)
        talk("attach: making a cell on a slow disk")
        size_mib = REGION_MIB * rounds
        cell = servers.Cell(place, directory, f"{size_mib + 64}M", None, f"data:{size_mib}M", model=MODEL).start()
        cell.load("data", size_mib * MIB)
        with Devices(place, directory, cell, "data") as devices:
            title = f"Block device, 4 KiB randread qd 32, disk {MODEL}"
            workload = fio.Workload("randread", 32)
            ratios = rows(place, devices.targets(), workload, rounds, seconds, REGION_MIB * MIB, title, groups, REGION_MIB * MIB)
            bounds.append(Bound(title, "IOPS against the export over NBD", ratios["nbd"], ">=", 0.9))
        cell.stop()
    return groups, bounds
