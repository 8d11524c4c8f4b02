"""Where a section of the bench works: directories on the media to measure, processes that end with it, counted skips.

Only the standard library. Ends only processes it started, by their id; removes only directories it made.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
# The tests' NBD client and the choice of the binary are used here too.
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))

MIB = 1 << 20
# Starting a server includes recovery; the machine may be loaded.
READY_SECONDS_MAX = 60
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


class Failure(Exception):
    """The bench cannot go on."""


class Skip(Exception):
    """A row cannot be measured here; the text says why."""


class Skips:
    """What was not measured, with the reason."""

    def __init__(self):
        self.rows = []

    def add(self, row, reason):
        talk(f"skip {row}: {reason}")
        self.rows.append({"row": row, "reason": str(reason)})


def talk(text):
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def interrupt_on_signals():
    """SIGTERM and SIGHUP clean up as ^C does."""

    def handler(number, _frame):
        raise KeyboardInterrupt(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)


def file_system_of(path):
    """Type of the file system a directory is on."""
    path = os.path.realpath(path)
    best = ("", "")
    with open("/proc/self/mounts") as mounts:
        for line in mounts:
            _, point, kind, *_ = line.split(" ")
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best[0]):
                best = (point, kind)
    return best[1]


class Medium:
    """Where files are: `disk` (a real one, O_DIRECT) or `tmpfs` (memory, so that no device limits)."""

    def __init__(self, name, base):
        self.name = name
        self.base = base

    @property
    def direct(self):
        return self.name == "disk"

    def check(self, bytes_needed):
        """Raise Skip when files of that many bytes cannot be here."""
        if not os.path.isdir(self.base):
            raise Skip(f"{self.base} is not there")
        memory = file_system_of(self.base) in MEMORY_FILE_SYSTEMS
        if memory and self.direct:
            raise Skip(f"{self.base} is in memory; set BENCH_DISK_DIR to a directory on a disk")
        if not memory and not self.direct:
            raise Skip(f"{self.base} is not in memory")
        free = shutil.disk_usage(self.base).free
        if not self.direct:
            free = min(free, available_memory_bytes())
        if free < bytes_needed * 5 // 4:
            raise Skip(f"{self.base}: {free // MIB} MiB free, {bytes_needed * 5 // 4 // MIB} MiB wanted")


def available_memory_bytes():
    """MemAvailable of this machine."""
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


DISK = Medium("disk", os.environ.get("BENCH_DISK_DIR", "/var/tmp"))
TMPFS = Medium("tmpfs", "/dev/shm")


class Place:
    """Temporary directories and the processes started in them; all of it ends with the `with` block."""

    def __init__(self):
        self.dirs = []
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            end(process)
        for path in self.dirs:
            shutil.rmtree(path, ignore_errors=True)

    def dir_on(self, medium):
        """A new directory on a medium."""
        path = tempfile.mkdtemp(prefix="fc-bench-", dir=medium.base)
        self.dirs.append(path)
        return path

    def spawn(self, command, **options):
        """Start a program in a session of its own."""
        process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, **options)
        self.processes.append(process)
        return process

    def run(self, command, seconds=120):
        """Run a program to its end; its stdout. Raises Failure when it fails."""
        process = self.spawn(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"{shown(command)}: not done in {seconds} s") from error
        finally:
            end(process)
            self.processes.remove(process)
        if process.returncode != 0:
            raise Failure(f"{shown(command)}: exit {process.returncode}\n{(err or out)[-1500:]}")
        return out


def shown(command):
    return " ".join(map(str, command))[:400]


def end(process):
    """End a process we started, and what it started in its session."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def random_file(path, size_bytes):
    """A file that is really there: neither holes nor unwritten extents, which would read without the device."""
    with open(path, "wb") as file:
        for _ in range(size_bytes // MIB):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
    return path


def wait_until(condition, seconds, what):
    """Poll a condition. Raises Failure when it does not come true."""
    end_at = time.monotonic() + seconds
    while time.monotonic() < end_at:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise Failure(f"not within {seconds} s: {what}")
