"""Engine rows: CPU per 4 KiB read hit without network and without devices (cell's example `engine_bench`)."""

import json

import cargo
import table
from place import Failure, Place, Skip, available_memory_bytes, talk
from table import Bound

ENTRIES = (10**5, 10**6)
ENTRIES_QUICK = (10**5,)
ENTRIES_LONG = (10**5, 10**6, 10**7)
READS = 1_000_000
# The cached data itself and a part of it again for headers and slack, in memory.
BYTES_PER_ENTRY = 4096 * 5 // 4
RUN_SECONDS_MAX = 300


def measure(options, skips):
    """([group as JSON], [Bound])."""
    entries = ENTRIES_LONG if options.long else ENTRIES_QUICK if options.quick else ENTRIES
    rounds = 2 if options.quick else 3
    runs = {}
    with Place() as place:
        try:
            program = cargo.example(place, "engine_bench")
        except Skip as reason:
            skips.add("engine", reason)
            return [], []
        for count in entries:
            if available_memory_bytes() < count * BYTES_PER_ENTRY * 5 // 4:
                skips.add(f"engine, {count:,} entries", f"{count * BYTES_PER_ENTRY >> 20} MiB of free memory wanted")
                continue
            talk(f"engine, {count:,} entries: {rounds} rounds")
            out = [place.run([program, str(count), str(READS)], RUN_SECONDS_MAX) for _ in range(rounds)]
            runs[count] = [json.loads(text) for text in out]
            for run in runs[count]:
                if run["hits"] != run["reads"]:
                    raise Failure(f"engine, {count:,} entries: {run['hits']} hits of {run['reads']} reads")
    return report(runs)


def report(runs):
    if not runs:
        return [], []
    head = ("entries", "CPU ns/hit", "of it bare read + copy", "wall ns/hit", "index B/entry")
    keys = ("cpu_ns_per_read", "copy_cpu_ns_per_read", "wall_ns_per_read", "index_bytes_per_entry")
    rows, bounds, cpu = [], [], {}
    for count, own in runs.items():
        rows.append((f"{count:,}", *[table.number(table.median_of(own, key)) for key in keys]))
        cpu[count] = table.median_of(own, "cpu_ns_per_read")
        bounds.append(Bound(f"engine, {count:,} entries", "CPU per 4 KiB read hit", cpu[count] / 1000, "<=", 1.0, "us"))
        index = table.median_of(own, "index_bytes_per_entry")
        bounds.append(Bound(f"engine, {count:,} entries", "index per block of one part", index, "<=", 24, "B"))
    table.print_group("Engine, 4 KiB read hits, memory devices, one thread, copy included", head, rows)
    if len(cpu) > 1:
        growth = max(cpu.values()) / min(cpu.values())
        bounds.append(Bound("engine", f"most against least, {min(cpu):,} to {max(cpu):,} entries", growth, "<=", 2.0))
    return [{"section": "engine", "runs": {str(count): own for count, own in runs.items()}}], bounds
