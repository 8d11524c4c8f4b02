"""`flashcell trace record --device`: a block device of this host that no cell has is recorded by the kernel's events, and replayed.

Needs root, loop devices and tracefs with block events; where the host lacks one the tests are skipped with that reason.
"""

import json
import mmap
import os
import signal
import stat
import subprocess
import time

from attached import hosted
from harness import MIB, Place, Skip, binary, check, contains, equal, measured, need, run, test_alone, timing_alone, wait_until

TRACING = "/sys/kernel/tracing"
EVENT = f"{TRACING}/events/block/block_bio_queue"
PAGE = 4096


def need_tracing(*programs):
    if os.geteuid() != 0:
        raise Skip("only root may look at the kernel's events")
    if not os.path.isdir(EVENT):
        raise Skip(f"no events of block devices in {TRACING}")
    need("losetup", *programs)


def loop_device(place, name, *options):
    path = place.path(name)
    with open(path, "wb") as file:
        file.truncate(64 * MIB)
    return place.loop_device(path, "--sector-size=4096", *options).path


def instances():
    return [name for name in os.listdir(f"{TRACING}/instances") if name.startswith("flashcell-trace-")]


class Recorder:
    """A recording under way."""

    def __init__(self, place, path, *options):
        command = [binary(), "trace", "record", *options, path]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        place.cleanups.append(self.kill)
        self.path = path
        wait_until(lambda: os.path.exists(path) and os.path.getsize(path) > 0, 20, "the recording to begin")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def end(self):
        """What it says when it is interrupted, and the lines that are there."""
        # The kernel's events are looked at ten times a second.
        time.sleep(0.3)
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=20)
        return said, self.lines()

    def lines(self):
        with open(self.path) as file:
            return [line.split(",") for line in file.read().splitlines()[2:]]


def numbers(lines):
    """(what, offset, bytes) of each line."""
    return [(kind, int(offset), int(count)) for _, _, _, kind, offset, count, _ in lines]


def took_ns(lines, *wanted):
    """The latencies of lines that are like this; each has one."""
    return [int(line[6]) for line, one in zip(lines, numbers(lines)) if one in wanted]


def direct(path):
    return os.open(path, os.O_RDWR | os.O_DIRECT)


@timing_alone
def a_device_without_a_cell_is_recorded_and_what_flash_would_give_is_told():
    need_tracing("blkdiscard")
    with Place("record-device") as place:
        device, other = loop_device(place, "disk"), loop_device(place, "other")
        begun_ns = time.time_ns()
        recorder = Recorder(place, place.path("own.trace"), "--device", device)
        page = mmap.mmap(-1, PAGE)
        page[:] = b"\1" * PAGE
        for path in (device, other):
            fd = direct(path)
            os.pwritev(fd, [page], 8 * PAGE)
            os.fsync(fd)
            os.preadv(fd, [page], 5 * PAGE)
            os.close(fd)
        run(["blkdiscard", "--offset", str(MIB), "--length", str(MIB), device])
        # Over and over, a few pages: what flash is for. Where nobody looks for file systems.
        hot = [40 * MIB + (n % 16) * PAGE for n in range(3000)]
        fd = direct(device)
        for at in hot:
            os.preadv(fd, [page], at)
        os.close(fd)
        said, lines = recorder.end()
        got = numbers(lines)
        wanted = [("write", 8 * PAGE, PAGE), ("flush", 0, 0), ("read", 5 * PAGE, PAGE), ("trim", MIB, MIB)]
        equal([one for one in got if one in wanted][:4], wanted, "what was asked, in order")
        equal([one for one in got if 40 * MIB <= one[1] < 41 * MIB], [("read", at, PAGE) for at in hot], "the reads")
        equal({line[1] for line in lines}, {os.path.basename(device)}, "devices that were recorded")
        took = took_ns(lines, *wanted) + [int(line[6]) for line in lines if line[3] == "read" and 40 * MIB <= int(line[4]) < 41 * MIB]
        check(len(took) >= 3004 and all(0 < ns < 1e9 for ns in took), f"each has taken its time: {sorted(took)[:9]}")
        check(all(begun_ns <= int(line[0]) <= time.time_ns() for line in lines), "times are those of the clock")
        contains(said, f"{len(lines)} requests recorded\n", "what is said at the end")
        equal(recorder.process.returncode, -signal.SIGINT, "how it ended: as whoever interrupts it expects")
        equal(instances(), [], "instances of tracefs that are left")
        rows = place.path("rows.json")
        run([binary(), "lab", "what-if", recorder.path, "--flash", "16M", "--modes", "write-through", "--json", rows])
        with open(rows) as file:
            answer = json.load(file)
        cached = [row for row in answer["configurations"] if row["mode"] == "write-through"]
        measured(cached and cached[0]["read_hit_ratio"] > 0.9, f"flash would serve the reads: {cached}")


@test_alone
def a_part_of_a_disk_is_recorded_by_its_own_offsets():
    need_tracing("addpart")
    with Place("record-part") as place:
        disk = loop_device(place, "disk", "--partscan")
        name = os.path.basename(disk)
        if run(["addpart", disk, "1", "2048", "32768"], ok=None).returncode != 0:
            raise Skip("the kernel makes no parts of loop devices")
        with open(f"/sys/block/{name}/{name}p1/dev") as file:
            major, minor = map(int, file.read().split(":"))
        # Where devices appear by themselves and where they do not.
        part = place.path("part")
        os.mknod(part, stat.S_IFBLK | 0o600, os.makedev(major, minor))
        recorder = Recorder(place, place.path("part.trace"), "--device", part)
        page = mmap.mmap(-1, PAGE)
        for path in (part, disk):
            fd = direct(path)
            os.preadv(fd, [page], 3 * PAGE)
            os.preadv(fd, [page], 2048 * 512 + 7 * PAGE)
            os.fsync(fd)
            os.close(fd)
        _, lines = recorder.end()
        # The second read of the part, the second of the disk which lies in it, and both flushes, which are the disk's.
        wanted = [("read", 3 * PAGE, PAGE), ("read", 2048 * 512 + 7 * PAGE, PAGE), ("flush", 0, 0), ("read", 7 * PAGE, PAGE), ("flush", 0, 0)]
        equal([one for one in numbers(lines) if one in wanted], wanted, "requests")
        equal({line[1] for line in lines}, {f"{name}p1"}, "its name")


@timing_alone
def a_recording_by_time_ends_by_itself_and_what_a_killed_one_left_is_removed():
    need_tracing()
    with Place("record-time") as place:
        device = loop_device(place, "disk")
        killed = Recorder(place, place.path("killed.trace"), "--device", device)
        killed.kill()
        equal(instances(), [f"flashcell-trace-{killed.process.pid}"], "left by the one that was killed")
        path = place.path("timed.trace")
        begun = time.monotonic()
        done = run([binary(), "trace", "record", "--device", device, "--for", "1s", path])
        measured(1 <= time.monotonic() - begun < 20, "as long as it was told")
        contains(done.stderr, "0 requests recorded\nhint: nothing was asked of it", "what is said")
        with open(path) as file:
            contains(file.readline(), "# flashcell trace capture", "a recording, of nothing")
        # As `nohup` starts it: it goes on when its terminal is closed.
        path = place.path("nohup.trace")
        command = ["nohup", binary(), "trace", "record", "--device", device, "--device", device, "--for", "0.05m", path]
        begun = time.monotonic()
        process = place.spawn(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: os.path.exists(path) and os.path.getsize(path) > 0, 20, "the recording to begin")
        process.send_signal(signal.SIGHUP)
        fd = direct(device)
        os.fsync(fd)
        os.close(fd)
        _, said = process.communicate(timeout=30)
        check(process.returncode == 0 and time.monotonic() - begun >= 3, f"it went on: {said}")
        with open(path) as file:
            equal(sum(line.split(",")[3:4] == ["flush"] for line in file), 1, "flushes of a device that is named twice")
        equal(instances(), [], "instances that are left")


@test_alone
def what_cannot_be_recorded_is_refused_by_name():
    need_tracing("setpriv")
    with Place("record-refused") as place:
        device = loop_device(place, "disk")
        path = place.path("out.trace")
        file = place.file("file", b"x" * PAGE)

        def refused(*command, prefix=()):
            done = run([*prefix, binary(), "trace", "record", *command, "--for", "1s", path], ok=False)
            check(not os.path.exists(path), "nothing is left of it")
            return done.stderr

        contains(refused("--device", file), f"{file} is not a block device", "a file")
        contains(refused("--device", "/dev/not-there"), "cannot look at /dev/not-there", "what is not there")
        contains(refused("--device", device, "-c", "somewhere"), "cannot be used with", "a cell and a device")
        os.chmod(place.dir, 0o777)
        nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        contains(refused("--device", device, prefix=nobody), "run it as root", "somebody else than root")
        equal(instances(), [], "instances that are left")


@test_alone
def a_slow_disk_shows_in_what_is_recorded():
    need_tracing()
    slow_ns = 20_000_000
    with hosted(disks=("96M",), flash=("64M",), griddisks=("data:32M:none",), model="fixed:20ms:8") as (cell, host, place):
        device = host.attach("data", "-c", cell.dir).stdout.strip()
        recorder = Recorder(place, place.path("slow.trace"), "--device", device)
        page = mmap.mmap(-1, PAGE)
        fd = direct(device)
        for n in range(10):
            os.preadv(fd, [page], n * MIB)
            os.pwritev(fd, [page], 16 * MIB + n * MIB)
        os.fsync(fd)
        os.close(fd)
        _, lines = recorder.end()
        reads = took_ns(lines, *(("read", n * MIB, PAGE) for n in range(10)))
        writes = took_ns(lines, *(("write", 16 * MIB + n * MIB, PAGE) for n in range(10)))
        for name, took in (("reads", reads), ("writes", writes)):
            check(len(took) >= 10 and all(slow_ns <= ns < 1e9 for ns in took) and min(took) < 5 * slow_ns, f"{name}: {took}")
        took_ns(lines, ("flush", 0, 0))
