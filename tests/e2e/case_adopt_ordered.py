"""An adopted volume in write-back-ordered: taken on flash, given back whole, and what becomes of it where somebody else has used it."""

import contextlib
import os
import re

from attached import Host, need_attach
from case_adopt import SECTORS, VOLUME_BYTES, adopt, digest, image, mounted, put_files, read_in_pieces, release, small_cell, tree
from case_write_back import flash_away
from harness import MIB, Cell, Place, binary, check, contains, equal, pattern, run, test, wait_until

MODE = ("--name", "shop", "--mode", "write-back-ordered", "--exclusive-use")
CHECKERS = {"ext4": ["e2fsck", "-fn"], "xfs": ["xfs_repair", "-n"]}


def grid_disk(cell):
    return cell.json("list griddisk shop attributes all")[0]


def dirty(cell):
    """MB that flash alone has."""
    return cell.metric("GD_BY_FC_DIRTY", "shop")


def freeze(cell):
    """From here on what is written is on flash alone."""
    run([binary(), "freeze", "shop", "--for", "200", "-c", cell.dir])


class Shop:
    """A cell with an adopted volume, and where its grid disk is mounted."""

    def __init__(self, place, fs):
        self.place, self.fs = place, fs
        self.volume = image(place, size_bytes=VOLUME_BYTES[fs], fs=fs)
        with mounted(self.volume, place) as mount:
            put_files(mount, "before")
        self.cell = small_cell(place)
        self.cell.tune(sequential_cutoff="0")
        before = digest(self.volume)
        adopt(self.cell, self.volume, *MODE)
        equal(digest(self.volume), before, "the volume after adopt")
        self.host = Host(place)
        self.mount = place.path("mnt")
        os.mkdir(self.mount)

    def attach(self):
        self.host.attach("shop", self.mount, "-c", self.cell.dir, *SECTORS)

    def whole(self, wanted, what):
        """The volume alone is a file system without a fault that holds these files."""
        run([*CHECKERS[self.fs], self.volume])
        with mounted(self.volume, self.place) as direct:
            equal(tree(direct), wanted, what)

    def written_on_flash_alone(self, name="late"):
        """Files that the volume does not have, in a cell that has been stopped clean. All files."""
        self.cell.start()
        self.attach()
        freeze(self.cell)
        put_files(os.path.join(self.mount, name), name)
        wanted = tree(self.mount)
        self.host.detach(self.mount)
        check(dirty(self.cell) > 1, "flash has what the volume has not")
        self.cell.stop()
        return wanted

    def use_behind(self, change=lambda mount: None):
        with mounted(self.volume, self.place) as direct:
            change(direct)

    def with_a_clean_superblock(self):
        """Served and attached; flash has a file that the volume has not, and the superblock as the volume has it. The cell."""
        cell = self.cell
        cell.start()
        self.attach()
        put_files(os.path.join(self.mount, "more"), "more")
        os.sync()
        wait_until(lambda: cell.metric("GD_FC_IO_RQ_BATCH", "shop") > 0 and dirty(cell) == 0, 60, "the volume has what was written")
        freeze(cell)
        with open(os.path.join(self.mount, "late"), "wb") as file:
            file.write(pattern("late", 3 * MIB))
            os.fsync(file.fileno())
        check(dirty(cell) > 1, "flash has what the volume has not")
        return cell

    def used_after_a_kill(self, change=lambda mount: None):
        """The cell is killed, and the volume used before anybody starts it again."""
        self.cell.kill()
        self.host.end()
        self.use_behind(change)

    def is_offline(self, part="was used without the cell"):
        equal(grid_disk(self.cell)["status"], "offline", "status")
        contains(self.cell.log(), part, "log")
        contains(str(self.cell.json("list alerthistory attributes alertMessage")), part, "alert")
        refused = self.host.attach("shop", self.mount, "-c", self.cell.dir, ok=False).stderr
        contains(refused, "hint: LIST GRIDDISK ATTRIBUTES name, status", "attach")
        equal(self.host.rows(), [], "what a failed attach has left")


@contextlib.contextmanager
def shop(fs="ext4"):
    need_attach("losetup", f"mkfs.{fs}", CHECKERS[fs][0])
    with Place("adopt") as place:
        made = Shop(place, fs)
        try:
            yield made
        finally:
            made.host.end()


def round_trip(fs):
    with shop(fs) as it:
        cell = it.cell
        cell.start()
        equal(grid_disk(cell)["cachingMode"], "write-back-ordered", "mode")
        it.attach()
        equal(tree(it.mount).keys(), {"a", "deep/b", "deep/er/c"}, "the files through the cell")
        put_files(os.path.join(it.mount, "more"), "through")
        os.sync()
        wait_until(lambda: cell.metric("GD_FC_IO_RQ_BATCH", "shop") > 0 and dirty(cell) == 0, 60, "the volume has what was written")
        freeze(cell)
        with open(os.path.join(it.mount, "deep/er/c"), "r+b") as file:
            file.seek(100_000)
            file.write(pattern("patch", 70_001))
        os.remove(os.path.join(it.mount, "a"))
        put_files(os.path.join(it.mount, "late"), "late")
        wanted = tree(it.mount)
        it.host.detach(it.mount)
        check(dirty(cell) > 1, "flash has what the volume has not")
        # Another mode and back, with everything in place.
        run([binary(), "thaw", "--all", "-c", cell.dir])
        for mode in ("write-through", "write-back-ordered"):
            cell.cellcli(f"alter griddisk shop cachingMode={mode}")
        contains(cell.cellcli("alter griddisk shop cachingMode=write-back", ok=False).stderr, "is an adopted volume", "plain write-back")
        it.attach()
        freeze(cell)
        put_files(os.path.join(it.mount, "last"), "last")
        wanted = tree(it.mount)
        it.host.detach(it.mount)
        before = digest(it.volume)
        cell.stop()
        equal(digest(it.volume), before, "the volume after a clean stop: what is dirty stays on flash")
        done = release(cell, "shop")
        contains(done.stderr, "bytes that only flash had are on", "what release has written")
        equal([name for name in os.listdir(cell.dir) if name.startswith("adopted-")], [], "metadata files left")
        it.whole(wanted, "the files on the volume alone")
        cell.start()
        equal(cell.json("list griddisk attributes name"), [], "grid disks after release")
        equal(cell.metric("FC_BY_DIRTY"), 0, "dirty data after release")
        cell.stop()


@test
def an_ext4_volume_is_adopted_in_write_back_and_released():
    round_trip("ext4")


@test
def an_xfs_volume_is_adopted_in_write_back_and_released():
    round_trip("xfs")


@test
def killed_in_the_middle_of_writes_an_adopted_volume_in_write_back_has_everything():
    with shop() as it:
        cell, synced = it.cell, {}
        cell.start()
        it.attach()
        for round_ in range(3):
            for number in range(24):
                name = f"{round_}-{number}"
                content = pattern(name, 40_000 + 1_000 * number)
                with open(os.path.join(it.mount, name), "wb") as written:
                    written.write(content)
                    if number == 12:
                        cell.kill()
                        cell.start()
                        check(grid_disk(cell)["status"] == "active", f"after kill -9: {cell.log()}")
                        contains(cell.log(), "are the same on flash and volume", "what was compared")
                    os.fsync(written.fileno())
                synced[name] = content
        found = tree(it.mount)
        equal({name: found.get(name) for name in synced}, synced, "files after three kills")
        it.host.detach(it.mount)
        wanted = found
        cell.kill()
        release(cell, it.volume)
        it.whole(wanted, "the files on the volume alone, released after a kill")


@test
def a_volume_used_behind_our_back_with_dirty_data_waits_for_the_operator():
    with shop() as it:
        cell = it.cell
        it.written_on_flash_alone()
        it.use_behind(lambda mount: put_files(os.path.join(mount, "foreign"), "foreign"))
        with mounted(it.volume, it.place) as direct:
            foreign = tree(direct)
        before = digest(it.volume)
        cell.start()
        it.is_offline()
        # A death, and a clean stop, change nothing of that.
        cell.kill()
        cell.start()
        it.is_offline()
        cell.stop()
        equal(digest(it.volume), before, "the volume while its grid disk is offline")
        refused = release(cell, "shop", ok=False).stderr
        contains(refused, "was used without the cell", "release")
        for choice in ("--discard-dirty", "--believe-cache"):
            contains(refused, choice, "the choices")
        equal(digest(it.volume), before, "the volume after a refused release")
        cell.start()
        it.is_offline()
        # The volume counts.
        cell.cellcli("alter griddisk shop active force")
        equal((grid_disk(cell)["status"], grid_disk(cell)["cachingMode"]), ("active", "write-through"), "accepted")
        it.attach()
        equal(tree(it.mount), foreign, "the files of the volume")
        put_files(os.path.join(it.mount, "after"), "after")
        wanted = tree(it.mount)
        it.host.detach(it.mount)
        cell.kill()
        cell.start()
        equal(grid_disk(cell)["status"], "active", "status after a restart")
        cell.cellcli("alter griddisk shop cachingMode=write-back-ordered")
        cell.stop()
        release(cell, "shop")
        it.whole(wanted, "the files at the end: nothing of what was given up")


@test
def dirty_data_is_discarded_or_believed_at_a_release():
    with shop() as it:
        it.written_on_flash_alone()
        refused = run([binary(), "release", "shop", "-c", it.cell.dir, "--discard-dirty"], ok=False).stderr
        contains(refused, "nothing has to be given up", "a volume that belongs to its flash")
        it.use_behind(lambda mount: put_files(os.path.join(mount, "foreign"), "foreign"))
        before = digest(it.volume)
        run([binary(), "release", "shop", "-c", it.cell.dir, "--discard-dirty"])
        equal(digest(it.volume), before, "the volume as it was found")
        it.cell.start()
        equal((it.cell.json("list griddisk attributes name"), it.cell.metric("FC_BY_DIRTY")), ([], 0), "what is left in the cell")
        it.cell.stop()
    with shop() as it:
        wanted = it.written_on_flash_alone()
        # Nothing but the marks of a mount: what flash has over that is the file system as the cell had it.
        it.use_behind()
        it.cell.start()
        it.is_offline()
        it.cell.stop()
        done = run([binary(), "release", "shop", "-c", it.cell.dir, "--believe-cache"])
        contains(done.stderr, "check its file system", "what is to be done")
        check(run(["e2fsck", "-fy", it.volume], ok=None).returncode <= 1, "the file system can be mended")
        it.whole(wanted, "the files of the cell")


@test
def believing_the_cache_of_one_volume_touches_no_other_and_none_before_the_release_is_certain():
    with shop() as it:
        cell, other = it.cell, image(it.place, "other.img")
        adopt(cell, other, "--name", "other", *MODE[2:])
        cell.start()
        it.attach()
        mount = it.place.path("other")
        os.mkdir(mount)
        it.host.attach("other", mount, "-c", cell.dir, *SECTORS)
        run([binary(), "freeze", "other", "--for", "200", "-c", cell.dir])
        with open(os.path.join(mount, "late"), "wb") as file:
            file.write(pattern("late", MIB))
        it.host.detach(mount)
        check(cell.metric("GD_BY_FC_DIRTY", "other") > 0, "flash has what the other volume has not")
        freeze(cell)
        put_files(os.path.join(it.mount, "late"), "late")
        wanted = tree(it.mount)
        run(["sync", "-f", it.mount])
        check(dirty(cell) > 1, "flash has what the volume has not")
        # Still attached, for all that the cell knows.
        cell.stop()
        it.use_behind()
        with mounted(other, it.place) as direct, open(os.path.join(direct, "foreign"), "wb") as file:
            file.write(pattern("foreign", MIB))
        believe = [binary(), "release", "shop", "-c", cell.dir, "--believe-cache"]
        before, before_other = digest(it.volume), digest(other)
        contains(run(believe, ok=False).stderr, "is attached by", "a release that cannot be")
        equal(digest(it.volume), before, "the volume after a refused release")
        it.host.end()
        cell.start()
        it.is_offline()
        cell.stop()
        equal(digest(it.volume), before, "the volume while its grid disk is offline")
        run(believe)
        equal(digest(other), before_other, "the volume that nobody spoke of")
        check(run(["e2fsck", "-fy", it.volume], ok=None).returncode <= 1, "the file system can be mended")
        it.whole(wanted, "the files of the cell")
        cell.start()
        equal(cell.json("list griddisk other attributes status")[0]["status"], "offline", "the other one waits for the operator")
        cell.stop()
        equal(digest(other), before_other, "the volume that nobody spoke of, after a start")


@test
def lines_taken_out_of_the_configuration_do_not_make_adopt_give_up_dirty_data():
    with shop() as it:
        cell = it.cell
        wanted = it.written_on_flash_alone()
        path = os.path.join(cell.dir, "cell.toml")
        with open(path, encoding="utf-8") as file:
            whole = file.read()
        blocks = re.split(r"(?m)^(?=\[)", whole)
        with open(path, "w", encoding="utf-8") as file:
            file.write("".join(block for block in blocks if "adopted-shop.meta" not in block))
        metadata = os.path.join(cell.dir, "adopted-shop.meta")
        before = digest(metadata)
        refused = adopt(cell, it.volume, *MODE, ok=False).stderr
        contains(refused, "grid disk shop of this cell has data on flash that its volume does not have", "adopt under the old name")
        contains(refused, "hint: put its [[device]] lines", "the way out")
        equal(digest(metadata), before, "the metadata file")
        with open(path, "w", encoding="utf-8") as file:
            file.write(whole)
        release(cell, "shop")
        it.whole(wanted, "the files on the volume alone")


@test
def foreign_writes_after_a_kill_are_found_among_clean_blocks_and_dirty_ones_are_no_difference():
    with shop() as it:
        cell = it.cell
        with mounted(it.volume, it.place) as direct, open(os.path.join(direct, "file"), "wb") as file:
            file.write(pattern("old", 16 * MIB))
        cell.start()
        it.attach()
        equal(read_in_pieces(os.path.join(it.mount, "file")), pattern("old", 16 * MIB), "what the volume had")
        freeze(cell)
        put_files(os.path.join(it.mount, "late"), "late")
        wanted = tree(it.mount)
        it.host.detach(it.mount)
        check(dirty(cell) > 1, "flash has what the volume has not")
        cell.kill()
        cell.start()
        compared = re.search(r"(\d+) clean blocks are the same", cell.log())
        check(compared and int(compared[1]) >= 1000, f"a thousand are compared, dirty ones are not: {cell.log()}")
        equal(grid_disk(cell)["status"], "active", "status")
        freeze(cell)
        it.attach()
        equal(tree(it.mount), wanted, "the files after a kill")
        put_files(os.path.join(it.mount, "later"), "later")
        it.used_after_a_kill(lambda mount: open(os.path.join(mount, "file"), "r+b").write(pattern("new", 16 * MIB)))
        cell.start()
        it.is_offline()
        contains(cell.log(), "differ between flash and volume", "log")
        # One that was found so is not forgotten.
        cell.kill()
        cell.start()
        it.is_offline()
        cell.stop()


@test
def a_mount_after_a_kill_is_seen_by_the_superblock():
    with shop() as it:
        cell = it.with_a_clean_superblock()
        it.used_after_a_kill()
        cell.start()
        it.is_offline()
        cell.stop()


@test
def without_its_flash_an_adopted_volume_is_of_one_moment():
    with shop() as it:
        cell = it.cell
        it.written_on_flash_alone()
        before = digest(it.volume)
        with flash_away(cell):
            cell.start()
            it.is_offline("its disk is consistent as of")
            cell.stop()
            refused = release(cell, "shop", ok=False).stderr
            contains(refused, "holds writes that its disk does not have", "release without the flash")
            contains(refused, "--discard-dirty", "the way out")
            contains(
                run([binary(), "release", "shop", "-c", cell.dir, "--believe-cache"], ok=False).stderr, "cannot be believed", "a cache that is away"
            )
            equal(digest(it.volume), before, "the volume after all that")
            run([binary(), "release", "shop", "-c", cell.dir, "--discard-dirty"])
        equal(digest(it.volume), before, "the volume as it was at that moment")
        with mounted(it.volume, it.place) as direct:
            equal(set(tree(direct)), {"a", "deep/b", "deep/er/c"}, "files of that moment")


@test
def a_volume_that_could_not_be_compared_for_want_of_its_flash_is_compared_when_that_is_back():
    with shop() as it:
        cell = it.with_a_clean_superblock()
        it.used_after_a_kill(lambda mount: put_files(os.path.join(mount, "foreign"), "foreign"))
        with mounted(it.volume, it.place) as direct:
            foreign = tree(direct)
        before = digest(it.volume)
        with flash_away(cell):
            for _ in range(2):
                cell.start()
                equal(grid_disk(cell)["status"], "offline", "status without flash")
                cell.stop()
        cell.start()
        it.is_offline()
        cell.stop()
        equal(digest(it.volume), before, "the volume all the while")
        run([binary(), "release", "shop", "-c", cell.dir, "--discard-dirty"])
        it.whole(foreign, "the files of the volume")


@test
def write_back_of_an_adopted_volume_needs_a_word_and_flash():
    need_attach("losetup")
    with Place("adopt") as place:
        volume = image(place)
        cell = small_cell(place)
        refused = adopt(cell, volume, "--mode", "write-back-ordered", ok=False).stderr
        contains(refused, "add --exclusive-use if that is so", "without the word")
        refused = adopt(cell, volume, "--mode", "write-back", "--exclusive-use", ok=False).stderr
        contains(refused, "not cached in write-back:", "plain write-back")
        bare = Cell(place, name="bare", disks=("64M",), flash=(), griddisks=())
        refused = adopt(bare, volume, *MODE, ok=False).stderr
        contains(refused, "no flash cache", "without flash")
        bare.start()
        equal((bare.json("list griddisk attributes name"), len(bare.json("list celldisk attributes name"))), ([], 1), "what it has left")
        bare.stop()
        # Write-through with the word can be changed later; without it, it cannot.
        adopt(cell, volume, "--name", "shop", "--exclusive-use")
        cell.start()
        equal(grid_disk(cell)["cachingMode"], "write-through", "mode unless stated")
        cell.cellcli("alter griddisk shop cachingMode=write-back-ordered")
        cell.stop()
        release(cell, "shop")
        adopt(cell, volume, "--name", "shop")
        cell.start()
        refused = cell.cellcli("alter griddisk shop cachingMode=write-back-ordered", ok=False).stderr
        contains(refused, "adopted without --exclusive-use", "without the word")
        cell.stop()
        release(cell, "shop")
