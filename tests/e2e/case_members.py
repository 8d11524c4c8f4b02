"""Flash devices join and leave the flash cache while clients write and verify; one that has failed is replaced. Hard disks join and leave."""

import os
import threading

import nbdclient
from case_clients import fio
from case_write_back import WRITE_BACK, flash_away, loaded
from harness import MIB, check, contains, equal, need, served, test, wait_until

# More than one region of the grid disk for each flash device, and a cache that does not hold all of it.
SIZE = "--size=24m"


def members(cell):
    return sorted(cell.json("list flashcache attributes all")[0]["cellDisk"])


def set_members(cell, *names):
    cell.cellcli(f"alter flashcache celldisk='{','.join(names)}'")
    equal(members(cell), sorted(names), "members of the flash cache")


def flash_names(cell):
    rows = cell.json("list celldisk attributes all")
    return sorted(row["name"] for row in rows if row["diskType"] == "FlashDisk")


@test
def flash_joins_and_leaves_under_fio_verify():
    need("fio")
    with served(griddisks=(WRITE_BACK,), flash=("48M", "48M", "48M")) as cell:
        names = flash_names(cell)
        equal(len(names), 3, "flash cell disks")
        failed = []

        def verify():
            try:
                common = (SIZE, "--bsrange=4k-64k", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--thread=1")
                backlog = ("--rw=randrw", "--verify_backlog=64", "--do_verify=1", "--io_size=512m", "--randseed=4")
                fio(cell, "w", "--uri=" + cell.uri(), *common, *backlog)
            except Exception as error:  # told in the main thread
                failed.append(error)

        thread = threading.Thread(target=verify)
        thread.start()
        changes = 0
        sets = (names[:2], names[1:], names, names[:1], [names[0], names[2]])
        while thread.is_alive():
            set_members(cell, *sets[changes % len(sets)])
            changes += 1
            thread.join(0.2)
        if failed:
            raise failed[0]
        print(f"# {changes} changes", flush=True)
        check(changes >= 3, "too few changes: the run tested nothing")
        refused = cell.cellcli("alter flashcache celldisk='CD_00_cell'", ok=None)
        check(refused.returncode != 0, "a disk is no member of a flash cache")
        contains(refused.stderr, "CELL-", "the message of a refused change")
        cell.stop()


@test
def members_are_kept_over_crashes_and_one_that_left_is_not_believed():
    with served(griddisks=(WRITE_BACK,), flash=("48M", "48M")) as cell:
        names = flash_names(cell)
        with loaded(cell) as load:
            for some in (names[:1], names, names[1:], names, names[1:]):
                load.more()
                set_members(cell, *some)
            load.more()
            load.end()
        for some in (names, names[:1]):
            cell.kill()
            cell.start()
            load.read()
            # What left before, with older data, joins again.
            set_members(cell, *some)
            load.read()
        cell.kill()
        cell.start()
        equal(members(cell), names[:1], "members after a crash")
        load.read()
        cell.stop()


def add_flash(cell, name, size, kind="flash"):
    """A further flash device (or disk) in cell.toml, blank."""
    path = f"{cell.dir}/{name}"
    with open(path, "wb") as file:
        file.truncate(size)
    cell.edit(lambda text: text.rstrip("\n") + f'\n\n[[device]]\npath = "{name}"\nkind = "{kind}"\n')


def make_blank(path):
    with open(path, "r+b") as file:
        size = file.seek(0, 2)
        file.truncate(0)
        file.truncate(size)


@test
def flash_replaced_while_the_cell_is_down_is_filled_with_what_was_hot():
    # Fewer than would be a scan, whose hits make nothing hot.
    block, blocks = 16 << 10, 240
    with served(griddisks=("data:32M",), flash=("48M",)) as cell:

        def read_all():
            """How many of the blocks were found on flash."""
            before = cell.found_on_flash()
            client = nbdclient.Client(cell.socket)
            for n in range(blocks):
                client.read(n * block, block)
            client.disconnect()
            return cell.found_on_flash() - before

        wait_until(lambda: read_all() == blocks, 20, "all blocks are cached")
        cell.stop()
        cell.start()
        path = os.path.join(cell.dir, "hot-blocks.json")
        wait_until(lambda: os.path.exists(path), 20, "what is hot is written down")
        equal(os.stat(path).st_mode & 0o777, 0o600, "mode of the list")
        cell.kill()
        make_blank(cell.device("flash", 0))
        cell.start()
        # Once more before the new flash is taken in.
        cell.stop()
        cell.start()
        cell.cellcli(f"create celldisk FD_new lun='{cell.device('flash', 0)}'")
        cell.cellcli("alter flashcache all")
        equal(members(cell), ["FD_new"], "members after the replacement")
        wait_until(lambda: cell.metric("FC_IO_RQ_W_REFILL") >= blocks, 60, "what was hot is brought back")
        equal(read_all(), blocks, "blocks on the new flash")
        # What is in the file is never believed, and holds up no start.
        cell.stop()
        for text in ("", "{", "[" * 100_000, '{"flashcell_hot_blocks": 1}'):
            with open(path, "w") as file:
                file.write(text)
            cell.start()
            contains(cell.log(), "the list of hot blocks is not used", "the log")
            equal(read_all(), blocks, "blocks on flash")
            cell.stop()


@test
def failed_flash_is_replaced_without_a_restart_and_filled_again():
    with served(griddisks=(WRITE_BACK,), flash=("48M", "48M")) as cell:
        first, second = flash_names(cell)
        refused = cell.cellcli("create celldisk FD_new lun='flash-new.img'", ok=False)
        contains(refused.stderr, "no [[device]]", "a device that cell.toml does not name")
        add_flash(cell, "flash-new.img", 48 * MIB)
        with loaded(cell) as load:
            load.more()
            load.end()
        # The second device is blank when the cell comes back: everything goes on, in write-through by and by.
        cell.kill()
        make_blank(cell.device("flash", 1))
        cell.start()
        load.read()
        cell.cellcli("create celldisk FD_new lun='flash-new.img'")
        cell.cellcli("alter flashcache all")
        equal(members(cell), sorted([first, "FD_new"]), "members after the replacement")
        cell.cellcli(f"drop celldisk {second}")
        equal(flash_names(cell), sorted([first, "FD_new"]), "flash cell disks after the replacement")
        load.read()
        with loaded(cell, load.models) as again:
            wait_until(lambda: again.writes > 200, 60, "clients write")
            # Two copies again.
            check(cell.metric("FC_BY_DIRTY") > 0, "data is dirty on the new pair")
            again.end()
        cell.kill()
        # Without the old one of the pair, the new one has everything.
        with flash_away(cell):
            cell.start()
            again.read()
            cell.stop()


def cell_disks(cell, condition=""):
    return sorted(row["name"] for row in cell.json(f"list celldisk {condition}"))


@test
def hard_disks_join_and_leave_a_running_cell():
    with served(griddisks=(WRITE_BACK,), flash=("48M", "48M")) as cell:
        contains(cell.cellcli("create celldisk all", ok=False).stderr, "[[device]]", "nothing to make cell disks of")
        refused = cell.cellcli("drop celldisk CD_00_cell force", ok=False)
        contains(refused.stderr, "no other hard disk", "the last disk")
        equal(names_of(cell), ["data"], "grid disks after a refused drop")
        with loaded(cell) as load:
            load.more()
            add_flash(cell, "disk-1.img", 64 * MIB, "disk")
            add_flash(cell, "flash-2.img", 48 * MIB)
            # Each kind by itself; what is there already is passed over.
            equal(cell.cellcli("create celldisk all harddisk").stdout, "CellDisk CD_01_cell successfully created\n", "answer")
            equal(cell.cellcli("create celldisk all flashdisk comment='third'").stdout, "CellDisk FD_02_cell successfully created\n", "answer")
            cell.cellcli("alter celldisk CD_01_cell comment='second'")
            equal([row["comment"] for row in cell.json("list celldisk CD_01_cell, FD_02_cell attributes comment")], ["second", "third"], "comments")
            cell.cellcli("create griddisk more celldisk=CD_01_cell, size=32M, cachingMode=write-back")
            client = nbdclient.Client(cell.socket, export="more")
            data = os.urandom(65536) * 16
            for at in range(0, len(data), 65536):
                client.write(at, data[at : at + 65536])
            client.disconnect()
            check(cell.metric("GD_BY_FC_DIRTY", "more") > 0, "what is on the new disk is dirty on flash")
            load.more()
            load.end()
        # It is whole only with the flash that it was paired with while the cell ran.
        cell.kill()
        cell.start()
        load.read()
        client = nbdclient.Client(cell.socket, export="more")
        equal(client.read(0, len(data)), data, "content on the new disk after kill -9")
        client.disconnect()
        cell.cellcli("alter celldisk CD_01_cell flush")
        equal(cell.metric("GD_BY_FC_DIRTY", "more"), 0, "dirty data after a flush of the cell disk")
        cell.cellcli("alter celldisk CD_01_cell cancel flush")

        refused = cell.cellcli("drop celldisk CD_01_cell", ok=False)
        contains(refused.stderr, "grid disks are on it", "message")
        done = cell.cellcli("drop celldisk CD_01_cell force")
        contains(done.stdout, "CellDisk CD_01_cell successfully dropped", "answer")
        contains(done.stdout, "disk-1.img out of cell.toml", "what is left to do")
        equal(cell_disks(cell, "where diskType=HardDisk"), ["CD_00_cell"], "hard disks")
        equal(names_of(cell), ["data"], "grid disks")
        drop_from_toml(cell, "disk-1.img")
        cell.kill()
        cell.start()
        load.read()
        cell.stop()


def names_of(cell):
    return sorted(row["name"] for row in cell.json("list griddisk"))


def drop_from_toml(cell, name):
    def change(text):
        head, *devices = text.split("[[device]]\n")
        return "[[device]]\n".join([head, *(device for device in devices if f'path = "{name}"' not in device)])

    cell.edit(change)
