"""One fio run against a target: what it did, and what the server spent on it."""

import json
import shutil
import subprocess

from place import Skip

# fio itself starts and ends; the machine may be loaded.
SLACK_SECONDS = 60


def check():
    """Raise Skip when fio, or its NBD engine, is missing."""
    if shutil.which("fio") is None:
        raise Skip("fio is not installed (scripts/install-test-clients)")
    engines = subprocess.run(["fio", "--enghelp"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if "nbd" not in engines.stdout.split():
        raise Skip("this fio has no nbd engine")


class Workload:
    """`kind` as fio names it; block and region in bytes; `depth` per connection."""

    def __init__(self, kind, depth, connections=1, block_bytes=4096, once=False):
        self.kind = kind
        self.depth = depth
        self.connections = connections
        self.block_bytes = block_bytes
        # Every block at most once: what has been read is no longer cold.
        self.once = once

    @property
    def writes(self):
        return "write" in self.kind

    @property
    def large(self):
        return self.block_bytes > 4096

    def __str__(self):
        block = "4 KiB" if not self.large else "1 MiB"
        connections = "1 connection" if self.connections == 1 else f"{self.connections} connections"
        return f"{block} {self.kind} qd {self.depth}, {connections}"


def run(place, target, workload, seconds, size_bytes, offset_bytes=0, direct=False):
    """Run it; raw figures: iops, mb_s, mean_us, p99_us, server_cpu_us (per I/O, None without a server), hit_share."""
    command = ["fio", "--output-format=json", "--name=bench", "--thread", "--group_reporting"]
    command += [f"--rw={workload.kind}", f"--bs={workload.block_bytes}", f"--iodepth={workload.depth}"]
    command += [f"--numjobs={workload.connections}", f"--size={size_bytes}", f"--offset={offset_bytes}"]
    command += ["--time_based", f"--runtime={seconds}", "--randrepeat=0"]
    command += [] if workload.once else ["--norandommap"]
    if target.uri:
        command += ["--ioengine=nbd", f"--uri={target.uri}"]
    else:
        command += ["--ioengine=io_uring", f"--filename={target.path}", "--allow_file_create=0"]
        command += [f"--direct={int(direct)}"]
    hits = target.hits() if target.hits else None
    cpu = target.server.cpu_seconds() if target.server else None
    out = place.run(command, seconds + SLACK_SECONDS)
    # fio may say something before it begins.
    job = json.loads(out[out.index("{\n") :])["jobs"][0]
    side = job["write" if workload.writes else "read"]
    ios = side["total_ios"]
    row = {
        "iops": side["iops"],
        "mb_s": side["bw_bytes"] / 1e6,
        "mean_us": side["lat_ns"]["mean"] / 1e3,
        "p99_us": side["clat_ns"]["percentile"]["99.000000"] / 1e3,
        "ios": ios,
        "client_cpu_us": (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1e3 / max(ios, 1),
        "server_cpu_us": None,
        "hit_share": None,
    }
    if target.server:
        row["server_cpu_us"] = (target.server.cpu_seconds() - cpu) * 1e6 / max(ios, 1)
    if target.hits:
        now = target.hits()
        hit, miss = now[0] - hits[0], now[1] - hits[1]
        row["hit_share"] = hit / (hit + miss) if hit + miss else None
    return row
