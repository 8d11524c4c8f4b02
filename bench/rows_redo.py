"""Redo rows: commits (a write and a flush) on a redo grid disk without the flash log and in each of its modes.

The disk is nbdkit in memory behind one of our models of a healthy disk; its stalls are nbdkit's pause filter, told by a
thread here. All modes run in turn on one cell, round by round, so that what disturbs the machine disturbs each.
"""

import json
import os
import random
import socket
import threading

import fio
import servers
import table
from place import MIB, TMPFS, Failure, Place, Skip, talk
from table import Bound

# A controller whose cache takes every write, as S1's, and a volume of a cloud.
HEALTHY = ("fixed:150us:64", "network-volume")
STALLING = "network-volume"
# S1: stalls of 0.2 to 2 s; as often as a run needs to have some of each length.
STALL_SECONDS = (0.2, 2.0)
BETWEEN_SECONDS = (1.0, 3.0)
OFF = "off"
MODES = (OFF, "race", "hedge", "auto", "flash")
ROUNDS, ROUNDS_QUICK = 5, 1
SECONDS, SECONDS_STALLING, SECONDS_QUICK = 5, 15, 4
REDO_MIB = 32
BLOCK_BYTES = 8192
HEAD = ("flashLogMode", "commits/s", "mean us", "median us", "p99 us", "p99.99 us", "x off (median)", "x off (p99.99)")


class Stalls:
    """Pauses an nbdkit now and then, from `with` to its end."""

    def __init__(self, control, seed):
        self.control = control
        self.random = random.Random(seed)
        self.over = threading.Event()
        self.count = 0
        self.thread = threading.Thread(target=self.run)

    def tell(self, letter):
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(self.control)
            control.sendall(letter)
            if control.recv(1) != letter.upper():
                raise Failure("nbdkit's pause filter does not answer")

    def run(self):
        while not self.over.wait(self.random.uniform(*BETWEEN_SECONDS)):
            self.tell(b"p")
            self.over.wait(self.random.uniform(*STALL_SECONDS))
            self.tell(b"r")
            self.count += 1

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def measure(options, skips):
    """([group as JSON], [Bound])."""
    groups, bounds = [], []
    try:
        fio.check()
        TMPFS.check(1024 * MIB)
        for model in HEALTHY:
            section(options, model, False, groups, bounds)
        section(options, STALLING, True, groups, bounds)
    except Skip as reason:
        skips.add("redo", reason)
    return groups, bounds


def section(options, model, stalling, groups, bounds):
    rounds = ROUNDS_QUICK if options.quick else ROUNDS
    seconds = SECONDS_QUICK if options.quick else SECONDS_STALLING if stalling else SECONDS
    state = f"stalls of {STALL_SECONDS[0]:g} to {STALL_SECONDS[1]:g} s" if stalling else "healthy"
    title = f"commits of 8 KiB, disk {model}, {state}"
    runs = {mode: [] for mode in MODES}
    with Place() as place:
        directory = place.dir_on(TMPFS)
        control = os.path.join(directory, "pause.sock")
        words = ["nbdkit", "-f", "-U", "SOCKET", "--filter=pause", "memory", "256M", f"pause-control={control}"]
        disk = servers.Peer(place, directory, "nbdkit-pause", words)
        cell = servers.Cell(place, directory, disk.uri(), "192M", f"redo:{REDO_MIB}M:redo", model=model).start()
        for statement in ("drop flashcache", "drop flashlog", "create flashlog all size=96M", "create flashcache all size=32M"):
            cell.cellcli(statement)
        target = servers.Target("redo", cell, uri=cell.uri("redo"))
        for turn in range(rounds):
            talk(f"redo: {title}: round {turn + 1} of {rounds}")
            for mode in MODES:
                cell.cellcli(f"alter griddisk redo flashLogMode={mode}")
                if stalling:
                    with Stalls(control, turn) as stalls:
                        run = commits(place, target, seconds)
                    run["stalls"] = stalls.count
                else:
                    run = commits(place, target, seconds)
                runs[mode].append(run)
    rows = []
    for mode, own in runs.items():
        fields = (("commits_s", 0), ("mean_us", 0), ("median_us", 0), ("p99_us", 0), ("p99_99_us", 0))
        cells = [table.number(table.median_of(own, key), digits) for key, digits in fields]
        ratios = [table.median_ratio(own, runs[OFF], key) for key in ("median_us", "p99_99_us")]
        rows.append((mode, *cells, table.number(ratios[0], 3), table.number(ratios[1], 4)))
        if mode == OFF:
            continue
        if stalling:
            lower = table.median_ratio(runs[OFF], own, "p99_99_us")
            bounds.append(Bound(title, f"p99.99 of off / {mode}", lower, ">=", 50))
        elif mode != "flash":
            bounds.append(Bound(title, f"median of {mode} / off", ratios[0], "<=", 1.02))
    table.print_group(f"Redo, {title} (reference: {OFF})", HEAD, rows)
    groups.append({"section": "redo", "workload": title, "runs": runs})


def commits(place, target, seconds):
    """fio, one connection, a flush after every write. What a commit takes is what its write and its flush take: means add up,
    of percentiles the greater one is at most a little below theirs."""
    command = ["fio", "--output-format=json", "--name=bench", "--thread", "--rw=write", f"--bs={BLOCK_BYTES}"]
    command += ["--iodepth=1", "--fsync=1", f"--size={REDO_MIB * MIB}", "--time_based", f"--runtime={seconds}"]
    command += ["--ioengine=nbd", f"--uri={target.uri}", "--percentile_list=50:99:99.99"]
    out = place.run(command, seconds + fio.SLACK_SECONDS)
    job = json.loads(out[out.index("{\n") :])["jobs"][0]
    write, flush = job["write"]["clat_ns"], job["sync"]["lat_ns"]
    at = lambda which, percent: which["percentile"][f"{percent:.6f}"] / 1e3
    return {
        "commits_s": job["write"]["iops"],
        "mean_us": (write["mean"] + flush["mean"]) / 1e3,
        "median_us": at(write, 50) + at(flush, 50),
        "p99_us": max(at(write, 99), at(flush, 99)),
        "p99_99_us": max(at(write, 99.99), at(flush, 99.99)),
        "commits": job["write"]["total_ios"],
    }
