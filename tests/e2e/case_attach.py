"""`flashcell attach`: a grid disk is a block device of this host, through restarts and deaths of the cell and of its own driver.

Needs root, /dev/fuse and loop devices; where the host lacks one the tests are skipped with that reason. Attachments are recorded in
a directory of the test's own, and ended with it.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time

from attached import Host, hosted
from harness import MIB, binary, check, contains, equal, measured, run, served, test, timing, wait_until

MODE = "write-through"


def size_of(device):
    with open(f"/sys/block/{os.path.basename(device)}/size") as file:
        return int(file.read()) * 512


def queue(device, name):
    with open(f"/sys/block/{os.path.basename(device)}/queue/{name}") as file:
        return file.read().strip()


class Writer(threading.Thread):
    """Writes blocks to a file with O_DIRECT one after the other, each followed by fsync now and then; remembers what was acknowledged
    and how long the longest took."""

    def __init__(self, path, blocks=256, block_bytes=16384):
        super().__init__(daemon=True)
        self.path, self.blocks, self.block_bytes = path, blocks, block_bytes
        self.written, self.longest, self.error, self.count = {}, 0.0, None, 0
        self.stopping = threading.Event()

    def content(self, block, round_):
        seed = hashlib.sha256(f"{block}/{round_}".encode()).digest()
        return seed * (self.block_bytes // len(seed))

    def run(self):
        import mmap

        buffer = mmap.mmap(-1, self.block_bytes)
        fd = os.open(self.path, os.O_RDWR | os.O_DIRECT | os.O_CREAT)
        try:
            round_ = 0
            while not self.stopping.is_set():
                round_ += 1
                for block in range(0, self.blocks):
                    if self.stopping.is_set():
                        break
                    buffer[:] = self.content(block, round_)
                    began = time.monotonic()
                    # From here on until it is acknowledged either content may be there.
                    self.pending = (block, round_)
                    os.pwrite(fd, buffer, block * self.block_bytes)
                    if block % 32 == 31:
                        os.fsync(fd)
                    self.longest = max(self.longest, time.monotonic() - began)
                    self.written[block] = round_
                    self.count += 1
        except OSError as error:
            self.error = error
        finally:
            os.close(fd)

    def finish(self):
        self.stopping.set()
        self.join(90)
        check(not self.is_alive(), "the writer ends")
        check(self.error is None, f"a write failed: {self.error}")

    def verify(self):
        """What was acknowledged is read back, past the page cache."""
        import mmap

        buffer = mmap.mmap(-1, self.block_bytes)
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        try:
            for block, round_ in self.written.items():
                os.preadv(fd, [buffer], block * self.block_bytes)
                check(bytes(buffer) == self.content(block, round_), f"block {block} is as written in round {round_}")
        finally:
            os.close(fd)


@test
def attach_gives_a_block_device():
    # A name of its own: the link is the host's, and tests run side by side.
    name = f"cell{os.getpid()}"
    with hosted("nbdinfo", "nbdcopy", "blkdiscard", griddisks=("data:64M", "other:32M"), name=name) as (cell, host, place):
        attached = host.attach("data", "-c", cell.dir, "--driver", "auto")
        device = attached.stdout.strip()
        driver = host.row()["driver"]
        check(device.startswith({"nbd": "/dev/nbd", "fuse": "/dev/loop"}[driver]), f"a device: {device}")
        contains(attached.stderr, f"driver {driver}", "which driver, and why")
        equal(size_of(device), 64 * MIB, "size")
        equal(queue(device, "logical_block_size"), "4096", "sector")
        is_rotational = json.loads(run(["nbdinfo", "--json", cell.uri()]).stdout)["exports"][0]["is_rotational"]
        equal(queue(device, "rotational"), str(int(is_rotational)), "rotational")
        equal(os.path.realpath(f"/dev/flashcell/{name}/data"), device, "link")
        # Again: nothing changes. By another name of the same grid disk too.
        equal(host.attach("data", "-c", cell.dir, "--driver", "auto").stdout.strip(), device, "attached again")
        equal(host.attach("DATA", "-c", cell.dir, "--driver", driver).stdout.strip(), device, "attached again, spelled otherwise")
        equal(len(host.rows()), 1, "attachments")
        row = host.row()
        equal((row["griddisk"], row["device"], row["state"]), ("data", device, "up"), "row")
        # Bytes go through, and are the grid disk's.
        with open(device, "r+b", buffering=0) as file:
            file.seek(5 * MIB)
            file.write(b"x" * MIB)
            os.fsync(file.fileno())
        equal(host.row()["unflushed_bytes"], 0, "un-flushed after fsync")
        copy = place.path("copy")
        run(["nbdcopy", cell.uri(), copy])
        with open(copy, "rb") as file:
            data = file.read()
        equal(data.count(b"x"), MIB, "bytes in the grid disk")
        check(data[5 * MIB : 6 * MIB] == b"x" * MIB, "where they were written")
        # Zeroes reach it, and discards read as zeroes.
        for offset, options in ((5 * MIB, ["-z"]), (5 * MIB + 512 * 1024, [])):
            run(["blkdiscard", *options, "-o", str(offset), "-l", str(256 * 1024), device])
        with open(device, "rb") as file:
            file.seek(5 * MIB)
            halves = [file.read(256 * 1024) for _ in range(4)]
        equal([half[:1] * len(half) == half and half[:1] for half in halves], [b"\0", b"x", b"\0", b"x"], "zeroed, left, discarded, left")
        equal(host.detach("data").stdout, "", "stdout of detach")
        equal(host.rows(), [], "attachments")
        check(not os.path.islink(f"/dev/flashcell/{name}/data"), "the link is gone")
        contains(host.detach("data").stderr, "is not attached", "detached again")
        cell.check_alive()
        cell.stop()


@test
def what_cannot_be_attached_is_told():
    with hosted() as (cell, host, place):
        done = host.attach("absent", "-c", cell.dir, ok=False)
        contains(done.stderr, "no grid disk absent", "unknown grid disk")
        contains(done.stderr, "hint:", "way out")
        for driver, module in (("ublk", "ublk_drv"), ("nbd", "nbd")):
            if not os.path.isdir(f"/sys/module/{module}"):
                refused = host.attach("data", "-c", cell.dir, "--driver", driver, ok=False).stderr
                contains(refused, f"driver {driver}: ", "a driver that is not there")
                contains(refused, f"hint: `modprobe {module}`", "way out")
        equal(host.attach("data", "-c", cell.dir, "--mkfs", "ext4", ok=False).returncode, 2, "mkfs without a mount point")
        mount = place.path("mnt")
        os.mkdir(mount)
        contains(host.attach("data", mount, "-c", cell.dir, ok=False).stderr, "--mkfs ext4", "empty grid disk")
        equal(host.rows(), [], "nothing is left attached")
        # A second one that writes, recorded elsewhere: refused, with the first named.
        device = host.attach("data", "-c", cell.dir).stdout.strip()
        other = Host(place)
        other.env = dict(other.env, FLASHCELL_RUN=place.path("run2"))
        second = other.attach("data", "-c", cell.dir, ok=False).stderr
        contains(second, "is attached already", "second attach")
        contains(second, f"process {host.row()['keeper_pid']}", "holder")
        # Who has the device open is named.
        with open(device, "rb"):
            contains(host.detach("data", ok=False).stderr, f"(pid {os.getpid()})", "who uses it")
        host.detach(device)
        # Without root: what is needed is told. (A directory that user may enter.)
        if shutil.which("setpriv"):
            os.chmod(place.dir, 0o755)
            nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
            done = run([*nobody, binary(), "attach", "data", "-c", cell.dir], ok=False, env=host.env)
            contains(done.stderr, "needs root", "without root")
        cell.stop()
        contains(host.attach("data", "-c", cell.dir, ok=False).stderr, "is the cell served?", "cell not served")


def may_grow_ext4():
    """Whether this process has CAP_SYS_RESOURCE, which the kernel wants for that."""
    with open("/proc/self/status") as file:
        (mask,) = [int(line.split()[1], 16) for line in file if line.startswith("CapEff:")]
    return mask >> 24 & 1 == 1


@test
def a_file_system_is_made_mounted_and_grows():
    fs, small, large, program = ("ext4", 64, 192, "resize2fs") if may_grow_ext4() else ("xfs", 320, 640, "xfs_growfs")
    programs = (program, f"mkfs.{fs}")
    with hosted(*programs, griddisks=(f"data:{small}M",), disks=("1G",)) as (cell, host, place):
        mount = place.path("mnt")
        os.mkdir(mount)
        device = host.attach("data", mount, "-c", cell.dir, "--mkfs", fs, "--fs").stdout.strip()
        check(os.path.ismount(mount), "mounted")
        with open(os.path.join(mount, "file"), "wb") as file:
            file.write(b"kept" * 1000)
            file.flush()
            os.fsync(file.fileno())
        # Again: the file system is there, and stays.
        host.attach("data", mount, "-c", cell.dir, "--mkfs", fs, "--fs")
        before = os.statvfs(mount).f_blocks
        cell.cellcli(f"alter griddisk data size={large}M")
        wait_until(lambda: size_of(device) == large * MIB, 20, "the device grows")
        wait_until(lambda: os.statvfs(mount).f_blocks > 1.5 * before, 20, "the file system grows")
        # Not while it is used: the cell sees the session.
        refused = cell.cellcli(f"alter griddisk data size={small}M", ok=False)
        equal(size_of(device), large * MIB, f"size after a shrink was refused ({refused.stderr.strip()})")
        # Who works in it is named; unmounted, then taken apart.
        sleeper = place.spawn(["sleep", "60"], cwd=mount)
        contains(host.detach(mount, ok=False).stderr, f"sleep (pid {sleeper.pid})", "who uses it")
        sleeper.kill()
        sleeper.wait()
        # By a path from where its user stands.
        run([binary(), "detach", os.path.basename(mount)], cwd=os.path.dirname(mount), env=host.env)
        check(not os.path.ismount(mount), "unmounted")
        host.attach("data", mount, "-c", cell.dir)
        with open(os.path.join(mount, "file"), "rb") as file:
            equal(file.read(), b"kept" * 1000, "file after detach and attach")
        # None is made over what is there.
        host.detach("data")
        other = "ext4" if fs == "xfs" else "xfs"
        contains(host.attach("data", mount, "-c", cell.dir, "--mkfs", other, ok=False).stderr, "none is made over it", "another one")
        device = host.attach("data", "-c", cell.dir).stdout.strip()
        run(["e2fsck", "-fn", device] if fs == "ext4" else ["xfs_repair", "-n", device])
        host.detach(device)


@timing
def cell_and_driver_die_under_load():
    with hosted(griddisks=(f"data:64M:data:{MODE}",)) as (cell, host, place):
        device = host.attach("data", "-c", cell.dir).stdout.strip()
        writer = Writer(device)
        writer.start()
        deaths = 0
        for _ in range(3):
            time.sleep(0.7)
            # The driver: another takes over, the requests it had are handed out again.
            os.kill(host.row()["driver_pid"], signal.SIGKILL)
            deaths += 1
            wait_until(lambda: host.row()["drivers_started"] == deaths + 1, 10, "another driver")
            time.sleep(0.7)
            # The cell: requests wait.
            cell.kill()
            time.sleep(0.3)
            cell.start()
            wait_until(lambda: host.row()["state"] == "up", 20, "up again")
        time.sleep(0.5)
        before = writer.count
        wait_until(lambda: writer.count > before + 10, 20, "writes go on")
        # A clean stop too: the instance stays, what was not answered is sent again.
        cell.stop()
        cell.start()
        wait_until(lambda: writer.count > before + 100, 20, "writes go on after a clean stop")
        writer.finish()
        writer.verify()
        measured(writer.longest < 10, f"the longest request took {writer.longest:.1f} s")
        host.detach("data")
        cell.stop()


@test
def force_gives_up_what_cannot_be_flushed():
    with hosted() as (cell, host, place):
        device = host.attach("data", "-c", cell.dir).stdout.strip()
        fd = os.open(device, os.O_RDWR | os.O_DIRECT)
        import mmap

        buffer = mmap.mmap(-1, 8192)
        os.pwrite(fd, buffer, 0)
        wait_until(lambda: host.row()["unflushed_bytes"] == 8192, 10, "un-flushed bytes are told")
        cell.kill()
        wait_until(lambda: host.row()["state"] != "up", 10, "the cell is missed")
        failed = []

        def write():
            try:
                os.pwrite(fd, buffer, 65536)
            except OSError as error:
                failed.append(error.errno)

        waiting = threading.Thread(target=write, daemon=True)
        waiting.start()
        time.sleep(0.5)
        check(waiting.is_alive(), "a write waits for the cell")
        contains(host.detach("data", ok=False).stderr, "without a loss", "without force")
        said = host.detach("data", "--force").stderr
        contains(said, "gave up 8192 bytes", "with force")
        contains(said, f"(pid {os.getpid()})", "who uses it still")
        waiting.join(10)
        equal(failed, [5], "the write that waited (EIO)")
        os.close(fd)
        wait_until(lambda: host.rows() == [], 20, "all of it is gone")
        cell.start()
        host.attach("data", "-c", cell.dir)
        host.detach("data")
        cell.stop()


@test
def force_ends_while_the_host_is_synced():
    """`sync` holds a lock of the device until what is dirty of it is written. Opening the device waits for that, and the cell does not answer."""
    with hosted() as (cell, host, _):
        device = host.attach("data", "-c", cell.dir).stdout.strip()
        # It stays open: the last close would wait as well.
        with open(device, "r+b", buffering=0) as file:
            cell.process.send_signal(signal.SIGSTOP)
            try:
                file.write(b"d" * (8 * MIB))
                synced = subprocess.Popen(["sync"])

                def holds_the_lock():
                    with open(f"/proc/{synced.pid}/stack") as stack:
                        return "sync_bdevs" in stack.read()

                wait_until(holds_the_lock, 60, "sync waits for a device")
                # A start looks for loop devices on its files, and must not wait for this one.
                with served("beside"):
                    pass
                command = [binary(), "detach", "data", "--force"]
                detached = subprocess.Popen(command, env=host.env, stderr=subprocess.PIPE, text=True)
                wait_until(lambda: detached.poll() is not None, 60, "detach --force ends")
                contains(detached.stderr.read(), "gave up 0 bytes", "what it tells")
            finally:
                cell.process.send_signal(signal.SIGCONT)
        wait_until(lambda: synced.poll() is not None, 120, "sync ends")
        wait_until(lambda: host.rows() == [], 20, "all of it is gone")


@test
def a_loss_is_written_again_or_told():
    """The cell forgets what was not flushed when it is killed. What the driver has kept it writes again; when the driver has gone as
    well nobody has it, and everything fails until it is detached (DESIGN I9)."""
    with hosted(griddisks=("data:16M",), flash=()) as (cell, host, _):
        cell.stop()
        cell.set_device("forgetful = true", kind="disk")
        cell.start()
        device = host.attach("data", "-c", cell.dir).stdout.strip()
        import mmap

        buffer = mmap.mmap(-1, 65536)
        buffer[:] = b"k" * 65536
        fd = os.open(device, os.O_RDWR | os.O_DIRECT)
        os.pwrite(fd, buffer, 0)
        cell.kill()
        cell.start()
        wait_until(lambda: host.row()["state"] == "up", 20, "up again")
        back = mmap.mmap(-1, 65536)
        os.preadv(fd, [back], 0)
        check(back[:] == buffer[:], "what was acknowledged and not flushed is there after the cell forgot it")
        # Both: the driver is stopped, so that it cannot write again before it is killed.
        wait_until(lambda: host.row()["unflushed_bytes"] > 0, 10, "un-flushed bytes are told")
        os.kill(host.row()["driver_pid"], signal.SIGSTOP)
        cell.kill()
        os.kill(host.row()["driver_pid"], signal.SIGKILL)
        cell.start()
        wait_until(lambda: host.row()["state"] == "failed", 30, "the loss is told")
        try:
            os.preadv(fd, [back], 0)
            check(False, "a read succeeded after a loss")
        except OSError as error:
            equal(error.errno, 5, "errno of a read")
        os.close(fd)
        host.detach("data", "--force")
        cell.stop()


@test
def a_driver_that_takes_over_has_the_cell_flush_first():
    """Nobody keeps the writes of a driver that died. The next one has the cell make them durable before it serves, so a cell that
    forgets what was not flushed afterwards loses nothing."""
    with hosted(griddisks=("data:16M",), flash=()) as (cell, host, _):
        cell.stop()
        cell.set_device("forgetful = true", kind="disk")
        cell.start()
        device = host.attach("data", "-c", cell.dir).stdout.strip()
        import mmap

        buffer, back = mmap.mmap(-1, 65536), mmap.mmap(-1, 65536)
        fd = os.open(device, os.O_RDWR | os.O_DIRECT)
        for turn in range(1, 4):
            buffer[:] = bytes([turn]) * 65536
            os.pwrite(fd, buffer, 0)
            os.kill(host.row()["driver_pid"], signal.SIGKILL)
            wait_until(lambda: host.row()["drivers_started"] == turn + 1, 10, "another driver")
            wait_until(lambda: host.row()["state"] == "up", 20, "up again")
            cell.kill()
            cell.start()
            wait_until(lambda: host.row()["state"] == "up", 20, "up again with another instance of the cell")
            os.fsync(fd)
            os.preadv(fd, [back], 0)
            check(back[:] == buffer[:], f"turn {turn}: what was acknowledged before the driver died is there after a FLUSH")
        os.close(fd)
        host.detach("data")
        cell.stop()


@test
def taken_over_waited_for_and_read_only():
    with hosted(griddisks=("data:16M",)) as (cell, host, place):
        device = host.attach("data", "-c", cell.dir, "--on-loss", "eio").stdout.strip()
        # Another way than the one it is attached in: refused, with the holder named; taken over when that is wanted.
        contains(host.attach("data", "-c", cell.dir, ok=False).stderr, f"as {device}, by process", "another way")
        keeper = host.row()["keeper_pid"]
        host.attach("data", "-c", cell.dir, "--take-over")
        check(host.row()["keeper_pid"] != keeper, "another keeper")
        # Read-only beside it.
        reader = host.attach("data", "-c", cell.dir, "--readonly").stdout.strip()
        equal(queue(reader, "../ro"), "1", "read-only")
        equal(sorted(row["read_only"] for row in host.rows()), [False, True], "rows")
        contains(host.detach("data", ok=False).stderr, "name the device", "two of that name")
        host.detach(reader)
        # One that waits for it, recorded elsewhere, has it when it is detached.
        other = Host(place)
        other.env = dict(other.env, FLASHCELL_RUN=place.path("run2"))
        waiting = place.spawn([binary(), "attach", "data", "-c", cell.dir, "--wait"], env=other.env, stdout=-1, stderr=-3)
        time.sleep(1)
        check(waiting.poll() is None, "it waits")
        host.detach("data")
        equal(waiting.wait(timeout=30), 0, "exit code of the one that waited")
        equal(len(other.rows()), 1, "attachments")
        # With eio nothing waits for a cell that is away.
        other.detach("data")
        device = host.attach("data", "-c", cell.dir, "--on-loss", "eio").stdout.strip()
        cell.kill()
        wait_until(lambda: host.row()["state"] == "failed", 20, "it fails at once")
        host.detach(device, "--force")
        # Waits for the cell as well.
        waiting = place.spawn([binary(), "attach", "data", "-c", cell.dir, "--wait"], env=host.env, stdout=-3, stderr=-3)
        time.sleep(1)
        cell.start()
        equal(waiting.wait(timeout=30), 0, "exit code of the one that waited for the cell")
        host.detach("data")
        cell.stop()


@test
def who_looks_into_the_device_for_a_moment_does_not_keep_it():
    """udev and blkid do, after each unmount."""
    with hosted(griddisks=("data:64M",)) as (cell, host, place):
        device = host.attach("data", "-c", cell.dir).stdout.strip()
        with open(device, "rb") as looked_into:
            looker = place.spawn(["sleep", "0.7"], stdin=looked_into)
        host.detach("data")
        equal(looker.wait(), 0, "it was waited for")
        equal(host.rows(), [], "attachments")
        cell.stop()


@test
def keeper_and_driver_are_gone():
    """Everything fails, nothing hangs, and detach cleans up; a new attach does so by itself."""
    with hosted(griddisks=("data:64M",)) as (cell, host, place):
        mount = place.path("mnt")
        os.mkdir(mount)
        host.attach("data", mount, "-c", cell.dir, "--mkfs", "ext4")
        for again in (False, True):
            row = host.row()
            os.kill(row["keeper_pid"], signal.SIGKILL)
            os.kill(row["driver_pid"], signal.SIGKILL)
            wait_until(lambda: host.row()["state"] == "gone", 20, "they are gone")
            if again:
                contains(host.detach("data").stderr, "were gone", "detach")
                equal(host.rows(), [], "attachments")
                break
            host.attach("data", mount, "-c", cell.dir)
            with open("/proc/mounts") as mounts:
                equal(sum(line.split()[1] == mount for line in mounts), 1, "mounts")
        check(not os.path.ismount(mount), "unmounted")
        # The keeper alone: the driver goes on, and detach works.
        device = host.attach("data", "-c", cell.dir).stdout.strip()
        os.kill(host.row()["keeper_pid"], signal.SIGKILL)
        with open(device, "rb") as file:
            equal(len(file.read(4096)), 4096, "a read without a keeper")
        host.detach("data", "--force")
        wait_until(lambda: host.rows() == [], 20, "all of it is gone")
        cell.stop()
