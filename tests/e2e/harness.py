"""What every end-to-end test is built of: a cell in a temporary directory, the clients, the checks.

Only the standard library. Ends only processes it started, by their id. Nothing outside a test's own directory is touched.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB = 1 << 20
# A start may recover; machines that run tests are slow and shared.
READY_SECONDS_MAX = 60
COMMAND_SECONDS_MAX = 180
# For servers beside the cell, that talk.
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


class Failure(Exception):
    """A check did not hold."""


class OutOfBounds(Failure):
    """A measured figure (a time, a rate, a share of hits) is outside its bounds. The only failure for which a `timing` test runs again."""


class Skip(Exception):
    """The test cannot run here; the text says why."""


def binary():
    """The program under test: $FLASHCELL, else the release build of this tree."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return os.environ.get("FLASHCELL") or os.path.join(target, "release", "flashcell")


def need(*programs):
    """Skip the test when one of the programs is not installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise Skip("not installed: " + ", ".join(missing) + " (scripts/install-test-clients)")


def check(condition, what):
    if not condition:
        raise Failure(what)


def equal(got, want, what):
    if got != want:
        raise Failure(f"{what}: {shorten(got)}, expected {shorten(want)}")


def measured(condition, what):
    """Like `check`, for figures that depend on how busy the machine is: times, rates, shares of hits. For tests of kind `timing`."""
    if not condition:
        raise OutOfBounds(what)


def measured_equal(got, want, what):
    """Like `equal`, for figures that depend on how busy the machine is."""
    measured(got == want, f"{what}: {shorten(got)}, expected {shorten(want)}")


def shorten(value, limit=300):
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"


def contains(text, part, what):
    if part not in text:
        raise Failure(f"{what}: no {part!r} in {shorten(text, 1500)}")


def run(command, ok=True, seconds=COMMAND_SECONDS_MAX, **options):
    """Run a program to its end. `ok`: it must succeed; None: either; False: it must fail."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds, text=True, **options
        )
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{' '.join(map(str, command))[:300]}: not done in {seconds} s") from error
    if ok is not None and (done.returncode == 0) != ok:
        raise Failure(
            f"{' '.join(map(str, command))[:600]}: exit {done.returncode}\n"
            f"stdout: {done.stdout[-1500:]}\nstderr: {done.stderr[-1500:]}"
        )
    return done


def refusal(command, runner=None, **options):
    """What a libnbd program that must fail says, and what the server said to it, which libnbd tells when it debugs."""
    environment = dict(options.pop("env", os.environ), LIBNBD_DEBUG="1")
    return (runner or run)(command, ok=False, env=environment, **options).stderr


def wait_until(condition, seconds, what):
    """`what` is text, or a function that gives it when the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise Failure(f"not within {seconds} s: {what() if callable(what) else what}")


def pattern(seed, length):
    """Bytes that depend on the seed and on every position: a shifted or foreign piece shows."""
    import random

    return random.Random(seed).randbytes(length)


MEMORY = "/dev/shm"


def in_memory(bytes_needed):
    """A directory where no device is ever late: of a file system in memory with room for so much; None where there is none."""
    try:
        with open("/proc/self/mounts") as mounts:
            is_tmpfs = any(line.split()[1:3] == [MEMORY, "tmpfs"] for line in mounts)
        room = os.statvfs(MEMORY)
    except OSError:
        return None
    is_roomy = room.f_bavail * room.f_frsize >= bytes_needed
    return MEMORY if is_tmpfs and is_roomy and os.access(MEMORY, os.W_OK) else None


class Place:
    """A temporary directory, and everything started in it; all of it ends with the `with` block."""

    def __init__(self, name, base=None):
        self.name = name
        self.base = base
        self.processes = []
        self.cleanups = []

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="fc-", dir=self.base)
        return self

    def __exit__(self, kind, *_):
        for process in self.processes:
            end(process)
        for cleanup in self.cleanups:
            cleanup()
        if kind is not None and os.environ.get("E2E_KEEP"):
            print(f"# kept {self.dir}", file=sys.stderr)
            return
        shutil.rmtree(self.dir, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.dir, name)

    def spawn(self, command, **options):
        """Start a program that ends with this place at the latest. In a session of its own."""
        process = subprocess.Popen(command, start_new_session=True, **options)
        self.processes.append(process)
        return process

    def file(self, name, data):
        path = self.path(name)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def cell(self, **options):
        return Cell(self, **options)

    def loop_device(self, file, *options):
        """A loop device on `file`, detached with this place at the latest."""
        return LoopDevice(self, file, *options)


class LoopDevice:
    """A loop device. Detached once: its number may be another test's a moment later."""

    def __init__(self, place, file, *options):
        done = run(["losetup", *options, "--find", "--show", file], ok=None)
        if done.returncode != 0:
            raise Skip(f"no loop device is to be had: {done.stderr.strip()}")
        self.path = done.stdout.strip()
        self.is_attached = True
        place.cleanups.append(self.detach)

    def detach(self):
        if self.is_attached:
            self.is_attached = False
            run(["losetup", "--detach", self.path])


def end(process):
    if process.poll() is None:
        process.kill()
    process.wait()
    for stream in (process.stdout, process.stderr, process.stdin):
        if stream:
            stream.close()


class Cell:
    """One cell: made by `flashcell init`, started and ended as often as a test wants."""

    def __init__(
        self,
        place,
        disks=("256M",),
        flash=("96M",),
        griddisks=("data:64M",),
        model=None,
        name="cell",
        init=True,
        force=False,
        sparse=True,
        prefix=(),
    ):
        self.place = place
        # What the server is started with: `ip netns exec NAME`.
        self.prefix = list(prefix)
        self.dir = place.path(name)
        self.log_path = place.path(name + ".log")
        self.process = None
        self.ready_line = ""
        if init:
            # Where tests lie in memory or in a container, their cells behave as on a disk.
            command = [binary(), "init", self.dir, "--durable", "yes"]
            for disk in disks:
                command += ["--disk", disk]
            for flash_size in flash:
                command += ["--flash", flash_size]
            for griddisk in griddisks:
                command += ["--griddisk", griddisk]
            if model:
                command += ["--disk-model", model]
            if sparse:
                command += ["--sparse"]
            if force:
                command += ["--force"]
            run(command)

    # --- configuration ---------------------------------------------------------------------------------------------

    @property
    def toml_path(self):
        return os.path.join(self.dir, "cell.toml")

    def edit(self, change):
        """Rewrite cell.toml: `change` gets and gives its text."""
        with open(self.toml_path) as file:
            text = file.read()
        with open(self.toml_path, "w") as file:
            file.write(change(text))

    def tune(self, **values):
        """Set keys of [flash_cache] in cell.toml."""
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())

        def change(text):
            for key in values:
                text = re.sub(rf"(?m)^{key} = .*\n", "", text)
            return text.replace("[flash_cache]\n", "[flash_cache]\n" + lines, 1)

        self.edit(change)

    def set_device(self, line, kind=None):
        """Add a line to every [[device]] (of a kind)."""

        def change(text):
            head, *devices = re.split(r"(?m)^\[\[device\]\]\n", text)
            out = head
            for device in devices:
                if kind is None or f'kind = "{kind}"' in device:
                    device = line + "\n" + device
                out += "[[device]]\n" + device
            return out

        self.edit(change)

    def sabotage(self, name):
        """Break the cell on purpose (see DESIGN section 8: the alarms must ring)."""
        table = f'[test]\nsabotage = "{name}"\n\n[[device]]\n'
        self.edit(lambda text: re.sub(r"(?m)^\[\[device\]\]\n", lambda _: table, text, count=1))

    def device(self, kind, index=0):
        return os.path.join(self.dir, f"{kind}-{index}.img")

    # --- life ------------------------------------------------------------------------------------------------------

    def spawn_server(self, **options):
        log = open(self.log_path, "ab")
        process = self.place.spawn(
            [*self.prefix, binary(), "serve", self.dir], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, **options
        )
        log.close()
        return process

    def start(self, **options):
        """Start serving and wait for the ready line."""
        check(self.process is None, "the cell is already served")
        self.log_from = os.path.getsize(self.log_path) if os.path.exists(self.log_path) else 0
        self.process = self.spawn_server(**options)
        line = read_line(self.process, READY_SECONDS_MAX)
        if not line.startswith("ready "):
            self.process.wait(timeout=30)
            code, self.process = self.process.returncode, None
            raise Failure(f"no ready line but {line!r}, exit {code}; log:\n{self.log()[-2000:]}")
        self.ready_line = line
        words = dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
        self.socket = words["nbd"].removeprefix("unix:")
        self.admin_socket = words["admin"].removeprefix("unix:")
        return self

    def start_fails(self):
        """Start; it must refuse. Its message on stderr."""
        done = run([binary(), "serve", self.dir], ok=False, seconds=READY_SECONDS_MAX)
        equal(done.returncode, 1, "exit code of a refused serve")
        return done.stderr

    def kill(self):
        """kill -9, as a crash of the process."""
        self.process.send_signal(signal.SIGKILL)
        equal(self.process.wait(timeout=60), -signal.SIGKILL, "end of the killed server")
        self._gone()

    def stop(self, seconds=60):
        """SIGTERM: drains and exits 0."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"not stopped {seconds} s after SIGTERM; log:\n{self.log()[-2000:]}") from error
        equal(code, 0, f"exit code after SIGTERM; log: {self.log()[-1500:]}")
        self._gone()

    def _gone(self):
        self.process.stdout.close()
        self.process = None

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def check_alive(self):
        check(self.alive(), f"the server ended with {self.process and self.process.poll()}; log:\n{self.log()[-2500:]}")

    def log(self):
        """What the server has said since the last start."""
        with open(self.log_path, errors="replace") as file:
            file.seek(getattr(self, "log_from", 0))
            return file.read()

    # --- clients ---------------------------------------------------------------------------------------------------

    def uri(self, export="data"):
        return f"nbd+unix:///{export}?socket={self.socket}"

    def cellcli(self, statement, ok=True):
        return run([binary(), "cellcli", "-c", self.dir, "-e", statement], ok=ok)

    def json(self, statement):
        """The answer of a LIST as a list of objects."""
        return json.loads(run([binary(), "cellcli", "-c", self.dir, "--json", "-e", statement]).stdout)

    def metrics(self):
        """{(name, object): value in the unit shown} of everything."""
        rows = self.json("list metriccurrent attributes all")
        return {(row["name"], row["metricObjectName"]): row["metricValue"] for row in rows}

    def metric(self, name, object_name=None):
        found = [v for (n, o), v in self.metrics().items() if n == name and object_name in (None, o)]
        check(found, f"no metric {name}")
        return sum(found)

    def late_reads(self):
        """Reads of what is on flash that the disk answered since flash was late: disks of test machines stall for a while."""
        # The metric counts reads of rotten content too, and that is no lateness.
        equal(self.metric("FC_IO_ROT"), 0, "rotten parts on flash")
        return int(self.metric("FC_IO_RQ_R_SKIP_FC_THROTTLE"))

    def found_on_flash(self):
        """Reads of what is on flash, whoever answered them."""
        return int(self.metric("FC_IO_RQ_R")) + self.late_reads()

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def record(place, what, cell, path, *options):
    """Begin `flashcell {what} record` of a running cell. What came before is not in it."""
    recorder = place.spawn([binary(), what, "record", "-c", cell.dir, *options, path], stderr=subprocess.PIPE, text=True)
    # It has begun when the head of the file is there.
    wait_until(lambda: os.path.exists(path) and os.path.getsize(path) > 0, 20, "the recording begins")
    return recorder


def recorded(path):
    """The columns of each line of a recording."""
    if path.endswith(".zst"):
        text = run(["zstd", "--decompress", "--stdout", path]).stdout
    else:
        with open(path) as file:
            text = file.read()
    return [line.split(",") for line in text.splitlines() if not line.startswith(("#", "time_ns"))]


def read_line(process, seconds):
    """One line of a process's stdout, "" when it ends or nothing comes in time."""
    result = []
    reader = threading.Thread(target=lambda: result.append(process.stdout.readline()), daemon=True)
    reader.start()
    reader.join(seconds)
    return result[0].decode(errors="replace").strip() if result else ""


# Every test, in the order of registration. A test is of kind `data` (content, order, errors: run once) or `timing` (see `timing`).
TESTS = []
# Tests of kind `timing`.
TIMING = set()
# Tests that run with no other test beside them.
ALONE = set()


def test(function):
    """Register a test of kind `data`; its name is the function's."""
    TESTS.append(function)
    return function


def test_alone(function):
    """Register a test of kind `data` that needs the machine for itself."""
    ALONE.add(function)
    return test(function)


def timing(function):
    """Register a test of kind `timing`: where it fails with `OutOfBounds`, it runs again, alone, at most twice. Any other failure counts at once."""
    TIMING.add(function)
    return test(function)


def timing_alone(function):
    """Register a test of kind `timing` that needs the machine for itself."""
    ALONE.add(function)
    return timing(function)


@contextlib.contextmanager
def served(name="", **options):
    """A place with one cell, already served."""
    with Place(name) as place:
        yield place.cell(**options).start()
