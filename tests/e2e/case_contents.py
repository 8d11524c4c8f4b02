"""`flashcell contents`: what is on flash, by range and by file of a mounted file system."""

import json
import mmap
import os

from harness import MIB, Skip, binary, check, contains, equal, measured, measured_equal, need, run, served, test, timing, wait_until

KIB = 1024


def contents(cell, *arguments, ok=True):
    return run([binary(), "contents", *arguments, "-c", cell.dir], ok=ok)


def is_mounted(path):
    # Never a stat: a mount whose server has died answers nothing.
    with open("/proc/mounts") as mounts:
        return any(line.split()[1] == path for line in mounts)


class Mounted:
    """A new file system on a grid disk, by way of nbdfuse and a loop device."""

    def __init__(self, cell, grid_disk):
        need("nbdfuse", "losetup", "mkfs.ext4", "mount")
        if not os.path.exists("/dev/fuse") or os.geteuid() != 0:
            raise Skip("mounting a grid disk here needs /dev/fuse and root")
        place = cell.place
        fuse, self.path = place.path("fuse"), place.path("mnt")
        os.mkdir(fuse)
        os.mkdir(self.path)
        place.cleanups.append(lambda: is_mounted(fuse) and run(["umount", "-l", fuse], ok=None))
        self.image = os.path.join(fuse, "image")
        place.spawn(["nbdfuse", self.image, cell.uri(grid_disk)])
        wait_until(lambda: is_mounted(fuse), 20, "nbdfuse has mounted")
        self.device = place.loop_device(self.image, "--direct-io=on").path
        run(["mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "nodiscard", self.device])
        run(["mount", self.device, self.path])
        place.cleanups.append(self.unmount)

    def unmount(self):
        if is_mounted(self.path):
            run(["umount", self.path], ok=None)

    def file(self, name, size_bytes):
        path = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(os.urandom(size_bytes))
            file.flush()
            os.fsync(file.fileno())
        return path


def read_directly(path, start, end):
    """Past the page cache of this host."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 64 * KIB)
    try:
        for offset in range(start, end, len(buffer)):
            equal(os.preadv(descriptor, [buffer], offset), len(buffer), "bytes read")
    finally:
        os.close(descriptor)


@timing
def files_of_a_mounted_file_system_are_told_by_what_is_on_flash():
    with served(griddisks=("data:64M",)) as cell:
        mounted = Mounted(cell, "data")
        # What is written is not cached meanwhile: only what is read below.
        cell.cellcli("alter griddisk data cachingPolicy=none")
        hot, cold = mounted.file("base/hot", 8 * MIB), mounted.file("base/cold", 4 * MIB)
        os.symlink("/", os.path.join(mounted.path, "away"))
        run(["sync", "-f", mounted.path])
        cell.cellcli("alter griddisk data cachingPolicy=default")

        def held():
            told = json.loads(contents(cell, "data", mounted.path, "--json").stdout)
            equal(told["skipped"], [], "files skipped")
            return {row["file"]: row for row in told["files"]}

        before = held()
        equal(sorted(before), sorted([hot, cold]), "files")
        equal([before[hot]["cachedSize"], before[cold]["cachedSize"]], [0, 0], "bytes on flash before the reads")
        equal([before[path][key] for path in (hot, cold) for key in ("size", "located")], [8 * MIB] * 2 + [4 * MIB] * 2, "sizes")

        def half_is_cached():
            read_directly(hot, 0, 4 * MIB)
            return held()[hot]["cachedSize"] == 4 * MIB

        wait_until(half_is_cached, 20, "half of the file is on flash")
        after = held()
        equal(after[cold]["cachedSize"], 0, "bytes of the other file on flash")
        # In the table, and asked for by itself.
        table = contents(cell, "data", hot, cold).stdout.splitlines()
        equal(table[0].split(), ["cached", "%", "keep", "dirty", "size", "reads", "hit%", "saved", "file"], "head")
        row = table[1].split()
        equal(row[:5] + row[-1:], ["4M", "50.0", "0", "0", "8M", hot], "the file that was read")
        contains(table[2], "1 file with nothing on flash and few reads", "the rest")
        # Every read of ours is told of with its file, and what it found there.
        told, late = held(), cell.late_reads()
        read_directly(hot, 0, 4 * MIB)
        now, late = held(), cell.late_reads() - late
        equal(now[hot]["reads"] - told[hot]["reads"], 64, "reads of 64 KiB")
        measured_equal(now[hot]["hits"] - told[hot]["hits"], 64 - late, "those that flash served")
        equal(now[cold]["reads"], told[cold]["reads"], "reads of the other file")
        saved_ms = cell.metric("GD_FC_TM_SAVED", "data") / 1e3
        measured(now[hot]["savedMs"] <= saved_ms + 1, f"{now[hot]} of {saved_ms} ms saved on all of the grid disk")
        contains(table[3], "2 files in all", "the sum")
        # By range it is the cell's own report.
        by_range = json.loads(contents(cell, "data", "--json").stdout)
        check(sum(row["cachedSize"] for row in by_range) >= 4 * MIB, "by range it is there too")
        equal(json.loads(contents(cell, "--json").stdout), by_range, "of all grid disks")

        # Told where it begins, it goes by that: one megabyte on are other bytes.
        shifted = json.loads(contents(cell, "data", cold, "--offset", "0", "--json").stdout)
        equal(shifted["files"][0]["cachedSize"], 0, "with the offset told")
        contains(contents(cell, "data", hot, "--offset", "63M", ok=False).stderr, "past the end of grid disk data", "a wrong offset")
        mounted.unmount()
        cell.stop()


@test
def what_cannot_be_told_of_files_is_said():
    with served(griddisks=("data:32M",)) as cell:
        here = cell.place.path("here")
        os.mkdir(here)
        contains(contents(cell, "absent", here, ok=False).stderr, "there is no grid disk absent", "no such grid disk")
        contains(contents(cell, "data", os.path.join(here, "none"), ok=False).stderr, "cannot look at", "no such file")
        refused = contents(cell, "data", here, ok=False).stderr
        check("hint:" in refused and ("grid disk data has" in refused or "--offset" in refused), refused)
        contains(contents(cell, "data", here, "/proc", ok=False).stderr, "two file systems", "two file systems")
        cell.stop()
