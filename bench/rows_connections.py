"""Connection rows: total throughput of read hits from 1 to 1,000 connections, and memory of an idle connection."""

import time

import servers
import table
from load import Connections
from place import MIB, TMPFS, Place, Skip, talk, wait_until
from table import Bound

SIZE_MIB = 64
DEPTH = 32
COUNTS = (1, 10, 100, 1000)
COUNTS_QUICK = (1, 100, 1000)
# nbdkit has 16 threads for each connection: a thousand connections would be 16,000 of them.
PEER_CONNECTIONS_MAX = 100
# Below this many the noise of the allocator is larger than what is measured.
IDLE_COUNT_MIN = 100
OURS = "flashcell, cached"
PEER = "nbdkit file"


def measure(options, skips):
    """([group as JSON], [Bound])."""
    counts = COUNTS_QUICK if options.quick else COUNTS
    rounds, seconds = (1, 1) if options.quick else (3, 1.5)
    try:
        TMPFS.check(SIZE_MIB * 6 * MIB)
    except Skip as reason:
        skips.add("connections", reason)
        return [], []
    with Place() as place:
        directory = place.dir_on(TMPFS)
        talk("connections: making a cell and warming it")
        cell = servers.serving_cell(place, directory, SIZE_MIB)
        targets = [(OURS, cell, "data")]
        try:
            targets.append((PEER, servers.nbdkit(place, directory, servers.twin(directory, SIZE_MIB)), ""))
        except Skip as reason:
            skips.add(f"connections, {PEER}", reason)
        idle = idle_memory(place, cell, counts)
        runs = throughput(targets, counts, rounds, seconds)
    return report(counts, idle, runs)


def idle_memory(place, cell, counts):
    """Resident bytes a connection costs once it has served one read and idles, from a server started afresh."""
    idle = {}
    for count in counts:
        cell.stop()
        cell.start()
        # What the first connection of all allocates is not a connection's.
        first = Connections(cell.socket, "data", 1, SIZE_MIB * MIB)
        first.touch()
        before = settled(cell)
        talk(f"connections: {count} idle")
        many = Connections(cell.socket, "data", count, SIZE_MIB * MIB)
        many.touch()
        after = settled(cell)
        idle[count] = {"resident_bytes": after, "bytes_per_connection": (after - before) / count}
        many.close()
        first.close()
    return idle


def settled(cell):
    """Resident memory once it has stopped to change."""
    last = [None]

    def still():
        time.sleep(0.2)
        now = cell.resident_bytes()
        same, last[0] = now == last[0], now
        return same

    wait_until(still, 10, "memory settles")
    return last[0]


def throughput(targets, counts, rounds, seconds):
    runs = {}
    for count in counts:
        talk(f"connections: {count} connections at qd {DEPTH}: {rounds} rounds")
        for _ in range(rounds):
            for name, server, export in targets:
                if name == PEER and count > PEER_CONNECTIONS_MAX:
                    continue
                connections = Connections(server.socket, export, count, SIZE_MIB * MIB)
                cpu = server.cpu_seconds()
                reads, took, client_cpu = connections.run(DEPTH, seconds)
                cpu = server.cpu_seconds() - cpu
                connections.close()
                run = {
                    "iops": reads / took,
                    "server_cpu_us": cpu * 1e6 / max(reads, 1),
                    "client_cpu_us": client_cpu * 1e6 / max(reads, 1),
                    "client_busy": client_cpu / took,
                    "server_busy": cpu / took,
                }
                runs.setdefault((name, count), []).append(run)
    return runs


def report(counts, idle, runs):
    head = ("", "connections", "IOPS", "server CPU us/IO", "client CPU us/IO", "server cores", "client cores", "x of 1", "idle KiB/conn")
    rows, ratios, limits = [], {}, {}
    for (name, count), own in runs.items():
        ratio = table.median_ratio(own, runs[(name, counts[0])], "iops")
        memory = idle[count]["bytes_per_connection"] / 1024 if name == OURS else None
        if name == OURS:
            ratios[count] = ratio
            limits[count] = limit_of(own)
        cells = [table.number(table.median_of(own, "iops"))]
        for key in ("server_cpu_us", "client_cpu_us", "server_busy", "client_busy"):
            cells.append(table.number(table.median_of(own, key), 2))
        rows.append((name, count, *cells, table.number(ratio, 2), table.number(memory, 1)))
    rows.sort(key=lambda row: (row[0], row[1]))
    title = f"Connections, tmpfs: 4 KiB randread hits, qd {DEPTH} on each connection, one epoll client (bench/load.py)"
    table.print_group(title, head, rows)
    for count in counts:
        print(f"  {count} connections: {limits[count]}")
    lowest = min(ratios.values())
    most = max(counts)
    per_idle = max(idle[count]["bytes_per_connection"] for count in counts if count >= IDLE_COUNT_MIN) / 1024
    bounds = [
        Bound("connections", f"lowest total IOPS from 1 to {most}, against 1", lowest, ">=", 0.8),
        Bound("connections", f"memory of an idle connection ({IDLE_COUNT_MIN} to {most})", per_idle, "<=", 64, "KiB"),
    ]
    group = {
        "section": "connections",
        "depth": DEPTH,
        "idle": idle,
        "limits": limits,
        "runs": [{"server": name, "connections": count, "runs": own} for (name, count), own in runs.items()],
    }
    return [group], bounds


def limit_of(own):
    """What was busy: the client is one thread, so one core is all it can use."""
    client, server = table.median_of(own, "client_busy"), table.median_of(own, "server_busy")
    if client > 0.9:
        return f"the client limits ({client:.2f} of its one core; server {server:.2f} cores)"
    return f"client {client:.2f} of its one core, server {server:.2f} cores"
