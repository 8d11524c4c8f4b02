"""Memory as announced at the start, with as many grid disks as a cell has at most."""

import re

import nbdclient
from harness import MIB, Place, check, contains, equal, test

# As crates/celldisk has it, and the administrator's guide.
GRID_DISKS_MAX = 1024


def announced_bytes(cell):
    return int(re.search(r"all_max_mib=(\d+)", cell.log()).group(1)) * MIB


@test
def as_many_grid_disks_as_there_can_be_stay_within_the_memory_announced():
    with Place("many") as place:
        cell = place.cell(disks=("20G",), flash=("128M",), griddisks=("data:4M",))
        cell.start()
        few = cell.resident_bytes()
        statements = [f"create griddisk g{n:04} celldisk=CD_00_cell, size=4M" for n in range(1, GRID_DISKS_MAX)]
        for at in range(0, len(statements), 128):
            cell.cellcli(";\n".join(statements[at : at + 128]))
        equal(len(cell.json("list griddisk attributes name")), GRID_DISKS_MAX, "grid disks")
        told = cell.cellcli("create griddisk onemore celldisk=CD_00_cell, size=4M", ok=False).stderr
        contains(told, "CELL-09006", "one more")
        contains(told, "1024", "one more")
        contains(told, "hint:", "one more")
        # Served anew, so that nothing of making them is counted; and each is looked at once.
        for when in ("made", "served anew"):
            if when != "made":
                cell.stop()
                cell.start()
            for n in range(1, GRID_DISKS_MAX, 16):
                client = nbdclient.Client(cell.socket, export=f"g{n:04}")
                client.read(0, 4096)
                client.disconnect()
            resident = cell.resident_bytes()
            print(f"# {when}: {resident >> 20} MiB with {GRID_DISKS_MAX} grid disks, {few >> 20} with one, {announced_bytes(cell) >> 20} announced", flush=True)
            check(resident <= announced_bytes(cell), f"{resident >> 20} MiB resident, {announced_bytes(cell) >> 20} announced")
            # A grid disk that nobody uses takes some tens of KiB at most.
            check(resident - few <= GRID_DISKS_MAX * (64 << 10), f"{(resident - few) >> 10} KiB for {GRID_DISKS_MAX} idle grid disks")
        cell.stop()
