"""What `flashcell lab what-if` foretells of captured workloads, beside the same runs against a served cell (`--real`).

fio asks a cell over NBD while it is recorded; the recording is replayed in both worlds. Delays are so long that a processor which others have for a few
milliseconds does not make a percentile; runs are long beside the timers of the cell (five seconds).
"""

import json
import os
import signal
import subprocess
import time

import fio
import servers
import table
from place import MIB, TMPFS, Failure, Place, Skip, talk
from table import Bound

RUNS, RUNS_QUICK = 5, 2
REQUESTS, REQUESTS_QUICK = 3_000, 1_000
SESSIONS = 16
DEVICES = "fixed:200ms:16,fixed:50ms:32"
# Name, share of reads, MiB that are asked for, size of the cache, mode.
WORKLOADS = (
    ("half write, everything fits", 50, 12, "64M", "write-back"),
    ("nine of ten read, a third fits", 90, 24, "8M", "write-through"),
    ("three of ten write, half fits", 70, 16, "8M", "write-back"),
)
HEAD = ("configuration", "figure", "foretold", "measured", "from", "to", "deviation", "")


def measure(options, skips):
    """([group as JSON], [Bound])."""
    groups, bounds = [], []
    try:
        fio.check()
        TMPFS.check(1024 * MIB)
        for workload in WORKLOADS:
            section(options, workload, groups, bounds)
    except Skip as reason:
        skips.add("what-if", reason)
    return groups, bounds


def captured(place, directory, reads, size_mib, requests):
    """A recording of fio on a cell that nothing slows down."""
    path = os.path.join(directory, "own.trace")
    cell = servers.Cell(place, directory, "192M", "64M", f"data:{size_mib}M:none").start()
    recorder = place.spawn([cell.binary, "trace", "record", "-c", cell.dir, path])
    time.sleep(1)
    command = ["fio", "--name=bench", "--thread", "--rw=randrw", f"--rwmixread={reads}", "--bs=8k", f"--iodepth={SESSIONS}", "--randrepeat=1"]
    command += ["--random_distribution=zipf:1.05", "--norandommap", f"--size={size_mib}M", f"--io_size={requests * 8192}"]
    place.run(command + ["--ioengine=nbd", f"--uri={cell.uri('data')}"])
    time.sleep(2)
    recorder.send_signal(signal.SIGTERM)
    recorder.wait(timeout=20)
    cell.stop()
    return path, cell.binary


def section(options, workload, groups, bounds):
    name, reads, size_mib, flash, mode = workload
    runs = RUNS_QUICK if options.quick else RUNS
    title = f"{name}: {flash} in {mode}, {DEVICES}"
    with Place() as place:
        directory = place.dir_on(TMPFS)
        talk(f"what-if: {title}: recording")
        path, binary = captured(place, directory, reads, size_mib, REQUESTS_QUICK if options.quick else REQUESTS)
        rows = os.path.join(directory, "rows.json")
        command = [binary, "lab", "what-if", path, "--flash", flash, "--modes", mode, "--devices", DEVICES]
        command += ["--sessions", str(SESSIONS), "--real", "--runs", str(runs), "--dir", directory, "--json", rows]
        talk(f"what-if: {title}: {runs} real runs")
        process = place.spawn(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = process.communicate()[1]
        # 1: something is off, which is what is to be told.
        if process.returncode not in (0, 1):
            raise Failure(f"lab what-if: exit {process.returncode}\n{said[-1500:]}")
        with open(rows) as file:
            answer = json.load(file)
    lines, off, all_figures = [], 0, 0
    for row in answer["configurations"]:
        for figure in row["real"]:
            measured = sorted(figure["measured"])
            cells = [table.number(value, 3) for value in (figure["foretold"], table.median(measured), measured[0], measured[-1])]
            verdict = "agrees" if figure["agrees"] else "OFF"
            lines.append((row["configuration"], figure["figure"], *cells, f"{100 * figure['deviation']:+.1f} %", verdict))
            all_figures += 1
            off += not figure["agrees"]
    table.print_group(f"What-if, {title}", HEAD, lines, left=2)
    bounds.append(Bound(f"what-if, {title}", f"figures off, of {all_figures}", off, "<=", 0, ""))
    groups.append({"section": "what-if", "workload": title, "answer": answer})
