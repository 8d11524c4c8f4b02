"""A trace replayed over NBD into a real cell gives the miss ratio `flashcell lab policies` foretells."""

import gzip
import json
import os
import random

import nbdclient
from harness import MIB, Place, Skip, binary, check, equal, run, test

BLOCK = 16 * 1024
SEGMENT = "512K"
REFERENCES = 130_000
# Of the references: half a percentage point of the miss ratio.
APART_MAX = 0.005
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


def foretold(place, blocks, size_blocks):
    """Misses by `lab policies`."""
    path = place.file("trace.lis", "".join(f"{block} 1 0 {n}\n" for n, block in enumerate(blocks)).encode())
    rows = place.path("rows.json")
    sizes = ["--sizes", str(size_blocks), "--block", "16k", "--policies", "flashcell"]
    run([binary(), "lab", "policies", path, "--format", "lis", "--json", rows, *sizes])
    with open(rows) as file:
        row = json.load(file)[0]
    equal(row["references"], len(blocks), "references")
    return row["misses"]


def replayed(place, blocks, distinct, flash):
    """Misses of a cell, and how many blocks' worth of flash it has."""
    disk = (distinct * BLOCK // MIB + 64) * MIB
    griddisk = f"data:{distinct * BLOCK // MIB + 1}M"
    cell = place.cell(disks=(str(disk),), flash=(flash,), griddisks=(griddisk,))
    cell.tune(block="16K", segment=SEGMENT)
    cell.start()
    # With blocks and segments as they are wanted.
    cell.cellcli("drop flashcache")
    cell.cellcli("create flashcache all")
    size_bytes = cell.json("list flashcache attributes size")[0]["size"]
    client = nbdclient.Client(cell.socket)
    for block in blocks:
        client.read(block * BLOCK, BLOCK)
    client.disconnect()
    misses = cell.metric("FC_IO_RQ_R_MISS")
    equal(misses + cell.metric("FC_IO_RQ_R"), len(blocks), "hits and misses")
    cell.stop()
    return misses, size_bytes // BLOCK


def compare(place, blocks, distinct, flash):
    got, size_blocks = replayed(place, blocks, distinct, flash)
    want = foretold(place, blocks, size_blocks)
    check(len(blocks) // 20 < want < len(blocks), f"the trace tells hits from misses: {want} of {len(blocks)}")
    apart = abs(got - want) / len(blocks)
    told = f"misses of {len(blocks)} references: {want} foretold, {got} in the cell, {100 * apart:.2f} points apart"
    print(f"# {told}")
    check(apart <= APART_MAX, told)


@test
def a_cell_misses_what_lab_policies_foretells_on_a_mixture():
    distinct = 12_000
    source = mixture(distinct)
    with Place("replay") as place:
        compare(place, [next(source) for _ in range(REFERENCES)], distinct, "40M")


@test
def a_cell_misses_what_lab_policies_foretells_on_a_real_trace():
    path = os.path.join(TRACES, "lirs-sprite.trace.gz")
    if not os.path.exists(path):
        raise Skip("no shared traces here")
    numbers = {}
    with gzip.open(path, "rt") as file:
        ids = [line.strip() for line in file if line.strip() not in ("", "*")]
    blocks = [numbers.setdefault(name, len(numbers)) for name in ids][:REFERENCES]
    with Place("replay-real") as place:
        compare(place, blocks, len(numbers), "40M")
