"""Memory as announced at the start, with as many grid disks as a cell has at most."""

import os
import re
import time

import catalog
import nbdclient
from harness import MIB, Place, check, contains, equal, test

# As crates/celldisk has it, and the administrator's guide.
GRID_DISKS_MAX = 16384
# Beyond so many the metrics of those that nobody has used are not shown.
GRID_DISKS_UNUSED_MAX = 1024
# So many have more than the 100,000 values that LIST METRICCURRENT shows.
USED = 2100


def announced_bytes(cell):
    return int(re.findall(r"all_max_mib=(\d+)", cell.log())[-1]) * MIB


def within_announced(cell, when):
    resident = cell.resident_bytes()
    print(f"# {when}: {resident >> 20} MiB resident, {announced_bytes(cell) >> 20} announced", flush=True)
    check(resident <= announced_bytes(cell), f"{when}: {resident >> 20} MiB resident, {announced_bytes(cell) >> 20} announced")
    return resident


@test
def a_thousand_idle_grid_disks_stay_within_the_memory_announced():
    with Place("thousand") as place:
        cell = place.cell(disks=("20G",), flash=("128M",), griddisks=("data:4M",))
        cell.start()
        few = cell.resident_bytes()
        statements = [f"create griddisk g{n:04} celldisk=CD_00_cell, size=4M" for n in range(1, GRID_DISKS_UNUSED_MAX)]
        for at in range(0, len(statements), 128):
            cell.cellcli(";\n".join(statements[at : at + 128]))
        equal(len(cell.json("list griddisk attributes name")), GRID_DISKS_UNUSED_MAX, "grid disks")
        # Served anew, so that nothing of making them is counted; and each is looked at once.
        for when in ("made", "served anew"):
            if when != "made":
                cell.stop()
                cell.start()
            for n in range(1, GRID_DISKS_UNUSED_MAX, 16):
                client = nbdclient.Client(cell.socket, export=f"g{n:04}")
                client.read(0, 4096)
                client.disconnect()
            resident = within_announced(cell, when)
            # A grid disk that nobody uses takes some tens of KiB at most.
            check(resident - few <= GRID_DISKS_UNUSED_MAX * (64 << 10), f"{(resident - few) >> 10} KiB for {GRID_DISKS_UNUSED_MAX} idle grid disks")
        names = {row["metricObjectName"] for row in cell.json("list metriccurrent GD_IO_RQ_R_SM")}
        equal(len(names), GRID_DISKS_UNUSED_MAX, "each has metrics, used or not")
        # The next one is beyond what was announced.
        before = announced_bytes(cell)
        cell.cellcli("create griddisk onemore celldisk=CD_00_cell, size=4M")
        check(announced_bytes(cell) > before, "announced anew")
        cell.stop()


@test
def as_many_grid_disks_as_there_can_be_stay_within_the_memory_announced():
    with Place("many") as place:
        cell = place.cell(disks=("300G",), flash=("128M",), griddisks=("data:64K",))
        cell.start()
        cell.stop()
        # Making them one by one takes minutes.
        catalog.fill([cell.device("disk"), cell.device("flash")], GRID_DISKS_MAX, 64 << 10)
        began = time.monotonic()
        cell.start()
        print(f"# started in {time.monotonic() - began:.1f} s", flush=True)
        within_announced(cell, "started")
        equal(len(cell.json("list griddisk attributes name")), GRID_DISKS_MAX, "grid disks")
        told = cell.cellcli("create griddisk onemore celldisk=CD_00_cell, size=64K", ok=False).stderr
        contains(told, "CELL-09006", "one more")
        contains(told, "16384", "one more")
        contains(told, "hint:", "one more")
        last = f"g{GRID_DISKS_MAX:05}"
        written = {name: os.urandom(4096) for name in ("data", last)}
        for name, data in written.items():
            client = nbdclient.Client(cell.socket, export=name)
            equal(client.read(4096, 4096), bytes(4096), f"{name}, never written")
            client.write(4096, data)
            client.flush()
            client.disconnect()
        names = {row["metricObjectName"] for row in cell.json("list metriccurrent GD_IO_RQ_R_SM")}
        equal(names, {"data", last}, "metrics of those that are used")
        # What is used has metrics: more than one answer has room for.
        for n in range(100, 100 + USED):
            client = nbdclient.Client(cell.socket, export=f"g{n:05}")
            client.read(0, 512)
            client.disconnect()
        equal(len(cell.json("list metriccurrent GD_IO_RQ_R_SM")), USED + 2, "metrics of those that are used")
        told = cell.cellcli("list metriccurrent", ok=False).stderr
        contains(told, "CELL-09006", "all metrics")
        contains(told, "hint:", "all metrics")
        check(len(cell.json("list metriccurrent where metricObjectName = 'g00100'")) > 40, "all of one grid disk")
        within_announced(cell, f"{USED} used")
        cell.cellcli("drop griddisk g00007")
        cell.cellcli("create griddisk again celldisk=CD_00_cell, size=64K")
        contains(cell.cellcli("create griddisk onemore celldisk=CD_00_cell, size=64K", ok=False).stderr, "CELL-09006", "full again")
        within_announced(cell, "changed")
        cell.stop()
        cell.start()
        for name, data in written.items():
            client = nbdclient.Client(cell.socket, export=name)
            equal(client.read(4096, 4096), data, name)
            client.disconnect()
        equal(len(cell.json("list griddisk attributes name")), GRID_DISKS_MAX, "grid disks")
        within_announced(cell, "served anew")
        cell.stop()
