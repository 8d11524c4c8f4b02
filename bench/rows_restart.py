"""Restart rows: recovery after a crash, memory and CPU per hit by the size of the index (cell's example `restart_bench`)."""

import json

import cargo
import table
from place import Failure, Place, Skip, available_memory_bytes, talk
from table import Bound

ENTRIES = (10**5, 10**6, 10**7)
ENTRIES_QUICK = (10**5, 10**6)
ENTRIES_LONG = (10**5, 10**6, 10**7, 10**8)
READS = 1_000_000
# What the log says of a block, what the cell keeps of it, and slack while it is read; with the checkpoint and what is made of it.
BYTES_PER_ENTRY = 150
BYTES_PER_ENTRY_TWICE = 270
CRASH_ONLY = 10**8
RUN_SECONDS_MAX = 900


def measure(options, skips):
    """([group as JSON], [Bound])."""
    entries = ENTRIES_LONG if options.long else ENTRIES_QUICK if options.quick else ENTRIES
    rounds = 2 if options.quick else 3
    runs = {}
    with Place() as place:
        try:
            program = cargo.example(place, "restart_bench")
        except Skip as reason:
            skips.add("restart", reason)
            return [], []
        for count in entries:
            bytes_wanted = count * (BYTES_PER_ENTRY if count >= CRASH_ONLY else BYTES_PER_ENTRY_TWICE)
            if available_memory_bytes() < bytes_wanted:
                skips.add(f"restart, {count:,} entries", f"{bytes_wanted >> 20} MiB of free memory wanted")
                continue
            # The largest takes minutes, most of them to make what it recovers.
            times = rounds if count < CRASH_ONLY else 1
            more = ["crash-only"] if count >= CRASH_ONLY else []
            talk(f"restart, {count:,} entries: {times} rounds")
            out = [place.run([program, str(count), str(READS), *more], RUN_SECONDS_MAX) for _ in range(times)]
            runs[count] = [json.loads(text) for text in out]
            for run in runs[count]:
                if run["hits"] != run["reads"]:
                    raise Failure(f"restart, {count:,} entries: {run['hits']} hits of {run['reads']} reads")
    return report(runs)


HEAD = {
    "blocks_per_cpu_s": "blocks/s of CPU",
    "blocks_per_s": "blocks/s",
    "index_bytes_per_entry": "index B/entry",
    "resident_bytes_per_entry": "resident B/entry",
    "most_bytes_per_entry": "most while recovering",
    "lookup_cpu_ns": "CPU ns/look-up",
    "hit_cpu_ns": "CPU ns/hit",
    "checkpoint_blocks_per_cpu_s": "by checkpoint, blocks/s of CPU",
    "checkpoint_wall_ms": "by checkpoint, ms",
}


def report(runs):
    if not runs:
        return [], []
    rows, bounds, hit = [], [], {}
    for count, own in runs.items():
        for run in own:
            wall_ns = run.get("checkpoint_wall_ns")
            run["checkpoint_wall_ms"] = wall_ns and wall_ns / 1e6
        figures = {key: table.median_of(own, key) for key in HEAD}
        rows.append((f"{count:,}", *[table.number(value) for value in figures.values()]))
        hit[count] = figures["hit_cpu_ns"]
        name = f"restart, {count:,} entries"
        speed = figures["blocks_per_cpu_s"] / 1e6
        bounds.append(Bound(name, "recovery after a crash, of one processor", speed, ">=", 5.0, "M blocks/s"))
        if figures["checkpoint_wall_ms"] is not None:
            seconds = figures["checkpoint_wall_ms"] / 1000
            bounds.append(Bound(name, "index there again after a clean stop", seconds, "<=", 2.0, "s"))
        bounds.append(Bound(name, "index per block", figures["index_bytes_per_entry"], "<=", 20, "B"))
    title = "Restart after a crash, 16 KiB blocks, one thread, no device in the way; 4 KiB hits afterwards"
    table.print_group(title, ("entries", *HEAD.values()), rows)
    if len(hit) > 1:
        growth = max(hit.values()) / min(hit.values())
        what = f"CPU per hit, most against least, {min(hit):,} to {max(hit):,} entries"
        bounds.append(Bound("restart", what, growth, "<=", 2.0))
    return [{"section": "restart", "runs": {str(count): own for count, own in runs.items()}}], bounds
