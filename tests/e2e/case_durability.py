"""Durability class: what lies in memory, or on what cannot be seen, is not counted as durable unless the operator says so, and it is shown why."""

import json

import nbdclient
from harness import MEMORY, MIB, Place, Skip, binary, check, contains, equal, in_memory, run, test

NOTE = "FD_00_c is not counted as durable: tmpfs keeps its files in memory"
LIMIT = "no flash is of class durable: writes to data wait for the disk, as in write-through"


def place_in_memory():
    directory = in_memory(256 * MIB)
    if directory is None:
        raise Skip(f"{MEMORY} is no file system in memory with room")
    return Place("durability", directory)


def make(place, name, *options):
    command = [binary(), "init", place.path(name), "--sparse", "--disk", "64M", "--flash", "64M", "--griddisk", "data:16M:write-back"]
    return run([*command, *options]).stderr


def classes(cell):
    rows = cell.json("list celldisk detail")
    return {row["name"]: (row["deviceClass"], row["deviceClassSource"]) for row in rows}


@test
def flash_in_memory_is_not_durable_unless_the_operator_says_so():
    with place_in_memory() as place:
        said = make(place, "c")
        contains(said, NOTE, "what init says of flash on tmpfs")
        contains(said, "hint: make the cell anew (--force) with --durable yes", "the way out")
        contains(said, LIMIT, "what init says of a grid disk in write-back")
        cell = place.cell(init=False, name="c").start()
        found = ("ephemeral", "tmpfs keeps its files in memory")
        equal(classes(cell), {"CD_00_c": found, "FD_00_c": found}, "classes that were found")
        client = nbdclient.Client(cell.socket)
        client.write(0, b"\x5a" * 65536)
        client.flush()
        client.disconnect()
        dirty = cell.json("list metriccurrent FC_BY_DIRTY detail")[0]["metricValue"]
        equal(dirty, 0, "bytes that only flash in memory has")
        refused = cell.cellcli("create flashlog all", ok=False).stderr
        contains(refused, "the flash log needs flash of class durable", "a flash log on it")
        cell.stop()

        said = make(place, "d", "--durable", "yes")
        check("not counted" not in said and LIMIT not in said, said)
        cell = place.cell(init=False, name="d").start()
        stated = ("durable", "stated in cell.toml")
        equal(classes(cell), {"CD_00_d": stated, "FD_00_d": stated}, "classes that were stated")
        # The label decides: a cell that was made durable stays so without the line, and says that it was stated.
        cell.stop()
        cell.edit(lambda text: text.replace('class = "durable"\n', ""))
        cell.start()
        label = ("durable", "stated when the cell disk was made; now ephemeral: tmpfs keeps its files in memory")
        equal(classes(cell), {"CD_00_d": label, "FD_00_d": label}, "classes of an earlier day")
        cell.stop()

        said = make(place, "e", "--durable", "no")
        check("not counted" not in said, said)
        contains(said, LIMIT, "write-back on flash that is stated to be ephemeral")


@test
def a_cell_disk_that_is_made_at_run_time_says_why_it_is_not_durable():
    with place_in_memory() as place:
        cell = place.cell(name="c", flash=(), griddisks=()).start()
        for name in ("a", "b"):
            path = place.path(name)
            with open(path, "wb") as file:
                file.truncate(64 * MIB)
            cell.edit(lambda text: text + f"\n[[device]]\npath = {json.dumps(path)}\nkind = \"flash\"\n")
        said = cell.cellcli(f"create celldisk FD_00_c lun='{place.path('a')}'").stdout
        contains(said, NOTE, "CREATE CELLDISK")
        contains(said, "deviceClass=durable", "the way out")
        said = cell.cellcli(f"create celldisk FD_01_c lun='{place.path('b')}', deviceClass=durable").stdout
        check("not counted" not in said, said)
        found = {name: row[0] for name, row in classes(cell).items()}
        equal(found, {"CD_00_c": "durable", "FD_00_c": "ephemeral", "FD_01_c": "durable"}, "classes")
        cell.stop()
