"""A trace replayed over NBD into a real cell gives the miss ratio `flashcell lab policies` foretells; so does what a cell records."""

import gzip
import json
import os
import random
import signal
import time

import nbdclient
from harness import (
    MIB,
    Place,
    Skip,
    binary,
    check,
    contains,
    equal,
    in_memory,
    measured,
    need,
    record,
    recorded,
    run,
    test_alone,
    timing_alone,
    wait_until,
)

BLOCK = 16 * 1024
SEGMENT_BLOCKS = 32
SEGMENT = f"{SEGMENT_BLOCKS * BLOCK >> 10}K"
REFERENCES = 130_000
# Of the references: half a percentage point of the miss ratio.
APART_MAX = 0.005
# `lab policies` fills whatever misses. A cell fills nothing while reclaim makes room, so where others take the processors the trace is
# replayed again with pauses: so many seconds after as many references as fill a segment.
PAUSES_S = (0, 0.01, 0.04)
# Of the references: reads that passed flash by, which is slow for a moment on a busy machine, and fills that were refused though the policy
# let them in.
PASSED_MAX = 0.001
REFUSED_MAX = 0.002
# Why a read that missed was not filled, by metric.
NOT_FILLED = [
    "REPLACEMENT_FAILED",
    *(f"W_SKIP_{why}" for why in ("ENDURANCE", "INDEX", "MEM", "POLICY", "SLOW")),
    *(f"W_POPULATE_SKIP_{why}" for why in ("FC_BUSY", "SCAN")),
]
TRACES = os.path.join(os.path.dirname(__file__), "..", "..", "..", "shared", "traces")


def mixture(distinct):
    """Hot blocks, warm blocks and scans, in about equal shares of the misses."""
    prng = random.Random(11)
    scan = 0
    while True:
        draw = prng.randrange(10)
        if draw == 0:
            yield from ((scan + i) % distinct for i in range(20))
            scan += 20
        elif draw < 5:
            yield prng.randrange(distinct // 40)
        else:
            yield prng.randrange(distinct // 3)


def foretold(place, path, references, size_blocks):
    """Misses by `lab policies`."""
    rows = place.path("rows.json")
    sizes = ["--sizes", str(size_blocks), "--block", "16k", "--segment", SEGMENT, "--policies", "flashcell"]
    run([binary(), "lab", "policies", path, "--json", rows, *sizes])
    with open(rows) as file:
        row = json.load(file)[0]
    equal(row["references"], references, "references")
    return row["misses"]


def replayed(place, blocks, distinct, flash, pause_s, recording=None):
    """Misses of a cell, how many blocks' worth of flash it has, reads that passed flash by, and misses that the policy let in and that were
    not filled.

    `recording`: what is to be recorded into.
    """
    disk = (distinct * BLOCK // MIB + 64) * MIB
    griddisk = f"data:{distinct * BLOCK // MIB + 1}M"
    cell = place.cell(disks=(str(disk),), flash=(flash,), griddisks=(griddisk,))
    # Each reference for itself, as `lab policies` takes them: it knows no streams, and the blocks of a trace are numbered here as they come
    # first, so that new ones look like a scan.
    cell.tune(block="16K", segment=SEGMENT, sequential_cutoff="0")
    cell.start()
    # With blocks and segments as they are wanted.
    cell.cellcli("drop flashcache")
    cell.cellcli("create flashcache all")
    size_bytes = cell.json("list flashcache attributes size")[0]["size"]
    client = nbdclient.Client(cell.socket)
    if recording:
        recorder = record(place, "trace", cell, recording)
    for n, block in enumerate(blocks):
        client.read(block * BLOCK, BLOCK)
        if pause_s and n % SEGMENT_BLOCKS == 0:
            time.sleep(pause_s)
    client.disconnect()
    if recording:
        wait_until(lambda: len(recorded(recording)) >= len(blocks), 20, "everything is recorded")
        recorder.terminate()
        recorder.wait(timeout=20)
        equal(len(recorded(recording)), len(blocks), "requests recorded")
    misses = cell.metric("FC_IO_RQ_R_MISS")
    passed = cell.metric("FC_IO_RQ_R_SKIP")
    equal(misses + cell.metric("FC_IO_RQ_R") + passed, len(blocks), "hits and misses")

    refused, reasons = 0, 0

    def has_reasons():
        nonlocal refused, reasons
        refused = misses - cell.metric("FC_IO_RQ_W_POPULATE")
        reasons = sum(cell.metric(f"FC_IO_RQ_{why}") for why in NOT_FILLED)
        # A read that passed flash by is no miss, yet what it read may have been offered to the cache, and taken or refused there.
        return abs(refused - reasons) <= passed

    # Fills end after the answers of their reads, and metrics are read one after another.
    wait_until(has_reasons, 10, lambda: f"{refused} misses were not filled, {reasons} have a reason, {passed} reads passed flash by")
    refused -= cell.metric("FC_IO_RQ_W_SKIP_POLICY")
    cell.stop()
    return misses, size_bytes // BLOCK, passed, refused


def compare(name, blocks, distinct, flash, recorded_too=False):
    # Flash that is late is filled with nothing meanwhile: what is measured is the policy, not the disk.
    base = in_memory(4 * distinct * BLOCK)
    for pause_s in PAUSES_S:
        with Place(name, base) as place:
            recording = place.path("own.trace") if recorded_too else None
            got, size_blocks, passed, refused = replayed(place, blocks, distinct, flash, pause_s, recording)
            if passed > PASSED_MAX * len(blocks) or refused > REFUSED_MAX * len(blocks):
                print(f"# with pauses of {pause_s} s {passed} reads passed flash by and {refused} misses were not filled")
                continue
            lines = "".join(f"{block} 1 0 {n}\n" for n, block in enumerate(blocks)).encode()
            path = recording or place.file("trace.lis", lines)
            want = foretold(place, path, len(blocks), size_blocks)
        check(len(blocks) // 20 < want < len(blocks), f"the trace tells hits from misses: {want} of {len(blocks)}")
        apart = abs(got - want) / len(blocks)
        told = f"misses of {len(blocks)} references: {want} foretold, {got} in the cell, {100 * apart:.2f} points apart"
        print(f"# {told}")
        return measured(apart <= APART_MAX, told)
    raise AssertionError(f"the cell does not keep up with a read each {PAUSES_S[-1] / SEGMENT_BLOCKS * 1e6:.0f} us")


@timing_alone
def a_cell_misses_what_lab_policies_foretells_on_a_mixture():
    distinct = 12_000
    source = mixture(distinct)
    compare("replay", [next(source) for _ in range(REFERENCES)], distinct, "40M")


@timing_alone
def a_cell_misses_what_lab_policies_foretells_on_a_real_trace():
    path = os.path.join(TRACES, "lirs-sprite.trace.gz")
    if not os.path.exists(path):
        raise Skip("no shared traces here")
    numbers = {}
    with gzip.open(path, "rt") as file:
        ids = [line.strip() for line in file if line.strip() not in ("", "*")]
    blocks = [numbers.setdefault(name, len(numbers)) for name in ids][:REFERENCES]
    compare("replay-real", blocks, len(numbers), "40M")


@timing_alone
def a_recorded_cell_misses_what_lab_policies_foretells_on_its_recording():
    distinct = 6_000
    source = mixture(distinct)
    compare("replay-recorded", [next(source) for _ in range(60_000)], distinct, "40M", recorded_too=True)


@test_alone
def a_recording_tells_every_request_and_whose_it_is():
    page = 4096
    with Place("trace-record") as place:
        cell = place.cell(disks=("96M",), flash=("64M",), griddisks=("data:16M", "other:16M")).start()
        tagged, plain = (nbdclient.Client(cell.socket, export=export) for export in ("data@SALES", "data"))
        other = nbdclient.Client(cell.socket, export="other")
        paths = [place.path(name) for name in ("all.trace", "data.trace")]
        # Long enough for the few requests that follow.
        of_one = ["--griddisk", "DATA"]
        recorders = [record(place, "trace", cell, path, "--for", "6s", *own) for path, own in zip(paths, ([], of_one))]
        for client in (tagged, plain, other):
            client.write(0, b"\1" * 3 * page)
            client.read(page, page)
            client.flush()
            client.call(nbdclient.TRIM, offset=page, length=page)
            client.call(nbdclient.ZEROES, offset=8 * page, length=2 * page)
        equal([recorder.wait(timeout=60) for recorder in recorders], [0, 0], "exit codes of the recordings")
        said = [recorder.stderr.read().strip() for recorder in recorders]
        equal(said, ["15 requests recorded", "10 requests recorded"], "what they say in the end")
        with open(paths[0]) as file:
            equal(file.readline().strip(), "# flashcell trace capture v2", "the first line")
        rows = recorded(paths[0])
        want = [("write", "0", "12288"), ("read", "4096", "4096"), ("flush", "0", "0"), ("trim", "4096", "4096")]
        want.append(("zero", "32768", "8192"))
        for grid_disk, database in (("data", "SALES"), ("data", ""), ("other", "")):
            own = [tuple(row[3:6]) for row in rows if row[1:3] == [grid_disk, database]]
            equal(own, want, f"requests of {grid_disk}@{database}")
        times = [int(row[0]) for row in rows]
        check(times == sorted(times), "in the order they began")
        check(all(0 < int(row[6]) < 6e9 for row in rows), f"each has taken its time: {rows}")
        rows = place.path("rows.json")
        run([binary(), "lab", "policies", paths[1], "--sizes", "100", "--policies", "lru", "--json", rows])
        with open(rows) as file:
            row = json.load(file)[0]
        # Of each client three blocks written, one read, two zeroed; the second client finds all of them.
        equal((row["references"], row["misses"]), (12, 5), "references and misses of what was recorded")
        said = run([binary(), "trace", "record", "-c", cell.dir, paths[0]], ok=False).stderr
        contains(said, "hint: ", "a file that is there")
        cell.stop()


@timing_alone
def a_recording_tells_how_long_each_request_took():
    page, slow_ns = 4096, 20_000_000
    with Place("trace-latency") as place:
        cell = place.cell(disks=("96M",), flash=("64M",), griddisks=("data:16M",), model="fixed:20ms:4").start()
        client = nbdclient.Client(cell.socket)
        path = place.path("own.trace")
        recorder = record(place, "trace", cell, path)
        # From the disk, then from flash when it is filled.
        for n in range(20):
            client.read(n * page, page)
        time.sleep(0.5)
        for n in range(20):
            client.read(n * page, page)
        # The last of them before the cell is asked again: what is there when it is interrupted is taken.
        client.write(0, b"\1" * page)
        recorder.send_signal(signal.SIGINT)
        said = recorder.communicate(timeout=20)[1]
        equal(recorder.returncode, -signal.SIGINT, "how it ended: as whoever interrupts it expects")
        contains(said, "41 requests recorded", "what it says in the end")
        took = [int(row[6]) for row in recorded(path)]
        equal(len(took), 41, "lines")
        measured(all(slow_ns <= ns < 10 * slow_ns for ns in took[:20:4]), f"reads of the disk: {took[:20]}")
        measured(sorted(took[20:40])[10] < slow_ns / 2, f"reads of flash: {took[20:40]}")
        measured(took[40] >= slow_ns, f"a write through to the disk: {took[40]}")
        client.disconnect()
        cell.stop()


@test_alone
def a_packed_recording_holds_what_a_plain_one_does():
    need("zstd")
    page = 4096
    with Place("trace-packed") as place:
        cell = place.cell(disks=("96M",), flash=("64M",), griddisks=("data:16M",)).start()
        client = nbdclient.Client(cell.socket)
        paths = [place.path(name) for name in ("own.trace", "own.trace.zst", "killed.trace.zst", "left.trace.zst")]
        recorders = [record(place, "trace", cell, path) for path in paths]
        for n in range(4000):
            client.read(n * 17 % 4096 * page, page)
        # Longer than lines are gathered for.
        time.sleep(6)
        client.read(0, page)
        time.sleep(0.5)
        recorders[2].kill()
        for recorder in recorders[:2]:
            recorder.send_signal(signal.SIGTERM)
            contains(recorder.communicate(timeout=20)[1], "4001 requests recorded", "what it says in the end")
        client.disconnect()
        cell.stop()
        check(recorders[3].wait(timeout=30) == 1, "a cell that stops is an error")
        plain, packed, killed, left = (recorded(path) for path in paths)
        equal(packed, plain, "lines")
        equal(left, plain, "lines of a recorder whose cell has stopped")
        equal(killed, plain[:len(killed)], "lines of the one that was killed")
        check(len(killed) >= 4000, f"{len(killed)} lines before the one that was killed")
        run(["zstd", "--test", *paths[1:]])
        sizes = [os.path.getsize(path) for path in paths]
        check(sizes[1] < sizes[0] / 2, f"bytes: {sizes}")
        answers = []
        for path in paths[:2]:
            rows = place.path("rows.json")
            run([binary(), "lab", "what-if", path, "--flash", "8M", "--json", rows])
            with open(rows) as file:
                answers.append({**json.load(file), "trace": None})
        equal(answers[1], answers[0], "what is foretold")
