"""`flashcell pin`: ranges are pinned, listed and un-pinned with I/O running, stay over kill -9, and are served as they say."""

import json

import nbdclient
from harness import MIB, binary, check, contains, equal, measured_equal, run, served, test, timing, wait_until

KIB = 1024


def pin(cell, *arguments, ok=True):
    return run([binary(), "pin", *arguments, "-c", cell.dir], ok=ok)


def pins(cell, name="data"):
    rows = json.loads(pin(cell, name, "--json").stdout)
    return [(row["offset"], row["length"], row["cachingPolicy"]) for row in rows]


def read_all(client, start, end):
    for offset in range(start, end, 64 * KIB):
        client.read(offset, 64 * KIB)


@test
def ranges_are_pinned_listed_and_unpinned():
    with served(griddisks=("data:32M", "other:32M")) as cell:
        equal(pin(cell, "data").stdout, "", "nothing is pinned")
        contains(pin(cell, "data", "1M", "4M", "keep").stdout, "Pin of data successfully created", "answer")
        pin(cell, "data", "4M", "2M", "none")
        both = [(MIB, 3 * MIB, "keep"), (4 * MIB, 2 * MIB, "none")]
        equal(pins(cell), both, "pins")
        equal(pins(cell, "other"), [], "pins of another grid disk")
        # In the language, by which any client may ask.
        equal(len(cell.json("list pin where cachingPolicy = none")), 1, "LIST PIN")
        equal(pin(cell, "DATA").stdout.split(), ["data", "keep", "3M", "1M", "data", "none", "2M", "4M"], "table")
        # Each change is there after kill -9.
        cell.kill()
        cell.start()
        equal(pins(cell), both, "pins after kill -9")
        pin(cell, "data", "2M", "1M", "off")
        equal(pins(cell), [(MIB, MIB, "keep"), (3 * MIB, MIB, "keep"), both[1]], "one is two without its middle")
        # The end of a grid disk takes its pins along, the whole of it all.
        cell.cellcli("alter griddisk data size=4M force")
        equal(pins(cell), [(MIB, MIB, "keep"), (3 * MIB, MIB, "keep")], "pins after a shrink")
        cell.cellcli("drop griddisk data")
        equal(cell.json("list pin"), [], "pins after a drop")
        cell.stop()


@test
def what_cannot_be_pinned_is_told():
    with served() as cell:
        for arguments, part in (
            (("absent", "0", "4K", "keep"), "does not exist"),
            (("absent",), "does not exist: absent"),
            (("data", "100", "4K", "keep"), "hint: round the offset down"),
            (("data", "0", "100T", "keep"), "within the grid disk, which has"),
            (("data", "0", "much", "keep"), "much"),
        ):
            done = pin(cell, *arguments, ok=False)
            equal(done.returncode, 1, f"exit code of {arguments}")
            contains(done.stderr, part, f"message to {arguments}")
        equal(pin(cell, "data", "0", "4K", ok=False).returncode, 2, "exit code of wrong usage")
        equal(pins(cell), [], "pins")
        cell.stop()


@timing
def pinned_data_is_kept_and_none_is_not_cached():
    with served(griddisks=("data:96M",), flash=("64M",)) as cell:
        pin(cell, "data", "0", "4M", "keep")
        pin(cell, "data", "4M", "4M", "none")
        client = nbdclient.Client(cell.socket)
        for _ in range(2):
            read_all(client, 0, 12 * MIB)
        kept = cell.metric("FC_BYKEEP_USED")
        equal(kept, 4, "MB of KEEP data")
        equal(cell.metric("FC_IO_RQKEEP_R"), 64, "reads of KEEP data from flash")
        measured_equal(cell.metric("FC_IO_RQKEEP_R_MISS"), 64, "reads of KEEP data from disk")
        equal(cell.metric("FC_BY_USED"), 8, "MB cached: nothing of the range that is not")
        # Twice the cache of other data, twice over, leaves it where it is.
        for _ in range(2):
            read_all(client, 8 * MIB, 96 * MIB)
        equal(cell.metric("FC_BYKEEP_USED"), kept, "MB of KEEP data after other data passed by")
        hits = cell.metric("FC_IO_RQKEEP_R")
        read_all(client, 0, 4 * MIB)
        measured_equal(cell.metric("FC_IO_RQKEEP_R"), hits + 64, "all of it comes from flash")
        # Un-pinned it is data like others; NONE frees what was cached.
        pin(cell, "data", "0", "4M", "off")
        wait_until(lambda: cell.metric("FC_BYKEEP_USED") < kept, 30, "KEEP data is none any more")
        used = cell.metric("FC_BY_USED")
        pin(cell, "data", "0", "96M", "none")
        wait_until(lambda: cell.metric("FC_BY_USED") == 0, 30, f"{used} MB come free")
        check(client.read(0, 64 * KIB) == bytes(64 * KIB), "content")
        client.disconnect()
        cell.stop()


@test
def a_range_of_a_kept_grid_disk_comes_and_goes_by_merit():
    with served(griddisks=("data:32M",), flash=("64M",)) as cell:
        cell.cellcli("alter griddisk data cachingPolicy=keep")
        pin(cell, "data", "4M", "4M", "default")
        client = nbdclient.Client(cell.socket)
        read_all(client, 0, 12 * MIB)
        equal((cell.metric("FC_BY_USED"), cell.metric("FC_BYKEEP_USED")), (12, 8), "MB cached, of them KEEP")
        cell.kill()
        cell.start()
        equal(pins(cell), [(4 * MIB, 4 * MIB, "default")], "pins after kill -9")
        client = nbdclient.Client(cell.socket)
        read_all(client, 4 * MIB, 8 * MIB)
        equal(cell.metric("FC_IO_RQKEEP_R"), 0, "reads of KEEP data that touch the range alone")
        # As the grid disk again.
        pin(cell, "data", "4M", "4M", "off")
        equal(pins(cell), [], "pins")
        read_all(client, 4 * MIB, 8 * MIB)
        equal(cell.metric("FC_IO_RQKEEP_R"), 64, "reads of KEEP data")
        client.disconnect()
        cell.stop()


@test
def a_pin_of_none_gives_the_disk_what_is_dirty_first():
    with served(griddisks=("data:32M:write-back",)) as cell:
        client = nbdclient.Client(cell.socket)
        client.write(MIB, b"dirty" * 4096)
        check(cell.metric("FC_BY_DIRTY") > 0, "something is dirty")
        pin(cell, "data", "0", "8M", "none")
        equal(cell.metric("FC_BY_DIRTY"), 0, "MB dirty")
        # What is written there goes to the disk from here on, elsewhere to flash.
        client.write(2 * MIB, b"plain" * 4096)
        equal(cell.metric("FC_BY_DIRTY"), 0, "MB dirty after a write to the range")
        client.write(16 * MIB, b"flash" * 4096)
        check(cell.metric("FC_BY_DIRTY") > 0, "a write elsewhere is dirty")
        cell.kill()
        cell.start()
        client = nbdclient.Client(cell.socket)
        for at, word in ((1, b"dirty"), (2, b"plain"), (16, b"flash")):
            equal(client.read(at * MIB, 20480), word * 4096, f"content at {at} MiB after kill -9")
        client.disconnect()
        cell.stop()
