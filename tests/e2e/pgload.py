"""pgbench as a load to be measured, and a limit for the memory of the database under it."""

import os
import re
import time


class Memory:
    """A limit for the database's memory, page cache included; none where no such cgroup can be made."""

    def __init__(self, limit_bytes):
        name = f"flashcell-pgbench-{os.getpid()}"
        self.dir = None
        for base, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            path = os.path.join(base, name)
            try:
                os.mkdir(path)
                with open(os.path.join(path, file), "w") as limit:
                    limit.write(str(limit_bytes))
                self.dir = path
                return
            except OSError:
                if os.path.isdir(path):
                    os.rmdir(path)

    def take(self, pid):
        if self.dir:
            with open(os.path.join(self.dir, "cgroup.procs"), "w") as procs:
                procs.write(str(pid))

    def failures(self):
        """How often the limit was reached."""
        for name, key in (("memory.failcnt", None), ("memory.events", "max")):
            path = os.path.join(self.dir, name)
            if os.path.exists(path):
                with open(path) as file:
                    words = file.read().split()
                return int(words[words.index(key) + 1] if key else words[0])
        return 0

    def lift(self):
        """No limit any more, for processes that would never end under it."""
        for file, none in (("memory.limit_in_bytes", "-1"), ("memory.max", "max")):
            path = os.path.join(self.dir, file)
            if os.path.exists(path):
                with open(path, "w") as limit:
                    limit.write(none)

    def end(self):
        if self.dir:
            for _ in range(50):
                try:
                    return os.rmdir(self.dir)
                except OSError:
                    time.sleep(0.1)


def load(database, scale):
    """The tables of pgbench, made durable."""
    arguments = ("-h", database.sock, "-p", database.port, "-U", "bench", "-i", "-q", "-s", scale, "postgres")
    database.run("pgbench", *arguments, seconds=900)
    database.sql("CHECKPOINT")


def pgbench(database, clients, seconds, *options):
    """Transactions a second, and the 95th percentile in ms, from pgbench's own log."""
    prefix = os.path.join(database.place.dir, "sock", f"log{time.monotonic_ns()}")
    out = database.run(
        "pgbench", "-h", database.sock, "-p", database.port, "-U", "bench", "-n", "-c", clients, "-j", 2, "-T", seconds,
        "-l", f"--log-prefix={prefix}", *options, "postgres", seconds=seconds + 120,
    ).stdout  # fmt: skip
    (tps,) = re.findall(r"tps = ([\d.]+)", out)
    times = []
    for name in os.listdir(os.path.dirname(prefix)):
        path = os.path.join(os.path.dirname(prefix), name)
        if path.startswith(prefix):
            with open(path) as file:
                times += [int(line.split()[2]) for line in file]
            os.unlink(path)
    times.sort()
    return float(tps), times[len(times) * 95 // 100] / 1000 if times else None
