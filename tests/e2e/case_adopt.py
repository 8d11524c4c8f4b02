"""`flashcell adopt` and `release`: a volume with a file system behind a cache, in place, and back.

The volumes are image files; what has to be mounted needs root, and is skipped with that reason where a block device cannot come about.
"""

import contextlib
import hashlib
import mmap
import os
import random
import re
import signal
import subprocess
import time

from attached import Host, need_attach
from harness import MIB, ROOT, Cell, Place, binary, check, contains, equal, measured, need, pattern, run, test, timing, wait_until

# The smallest that mkfs.xfs makes.
VOLUME_BYTES = {"ext4": 64 * MIB, "xfs": 300 * MIB}
# Those the file systems were made for.
SECTORS = ("--sector-size", "512")


def image(place, name="vol.img", size_bytes=16 * MIB, fs="ext4"):
    path = place.path(name)
    with open(path, "wb") as file:
        file.truncate(size_bytes)
    if fs == "ext4":
        run(["mkfs.ext4", "-q", "-F", path])
    elif fs == "xfs":
        run(["mkfs.xfs", "-q", path])
    return path


def digest(path):
    whole = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(MIB):
            whole.update(piece)
    return whole.hexdigest()


def tree(directory):
    """{path: content} of all files."""
    found = {}
    for base, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(base, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, directory)] = file.read()
    return found


@contextlib.contextmanager
def mounted(path, place):
    """The volume itself, without the cell."""
    mount = place.path("direct")
    os.makedirs(mount, exist_ok=True)
    run(["mount", "-o", "loop", path, mount])
    try:
        yield mount
    finally:
        run(["umount", mount])
        # The loop device goes when its last user does.
        wait_until(lambda: path not in run(["losetup", "-a"]).stdout, 20, "the loop device is gone")


def adopt(cell, volume, *options, ok=True):
    return run([binary(), "adopt", volume, "-c", cell.dir, *options], ok=ok)


def release(cell, what, ok=True):
    return run([binary(), "release", what, "-c", cell.dir], ok=ok)


def small_cell(place, **options):
    return Cell(place, disks=("64M",), flash=("96M",), griddisks=(), **options)


def put_files(directory, seed):
    os.makedirs(os.path.join(directory, "deep", "er"), exist_ok=True)
    for name, length in (("a", 3 * MIB + 77), ("deep/b", 5), ("deep/er/c", 300_000)):
        with open(os.path.join(directory, name), "wb") as file:
            file.write(pattern(f"{seed}{name}", length))


def read_past_page_cache(path):
    """Through the block device."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    run(["sh", "-c", "echo 1 > /proc/sys/vm/drop_caches"])
    with open(path, "rb") as file:
        return file.read()


def read_in_pieces(path, piece_bytes=16 << 10):
    """Through the block device, in an order in which a cache takes all of it."""
    buffer = mmap.mmap(-1, piece_bytes)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        pieces = {}
        offsets = list(range(0, os.fstat(fd).st_size, piece_bytes))
        random.Random(7).shuffle(offsets)
        for offset in offsets:
            length = os.preadv(fd, [buffer], offset)
            pieces[offset] = buffer[:length]
        return b"".join(pieces[offset] for offset in sorted(pieces))
    finally:
        os.close(fd)


def round_trip(fs, checker):
    need_attach("losetup", f"mkfs.{fs}", checker[0])
    with Place("adopt") as place:
        volume = image(place, size_bytes=VOLUME_BYTES[fs], fs=fs)
        with mounted(volume, place) as mount:
            put_files(mount, "before")
            wanted = tree(mount)
        before = digest(volume)
        cell = small_cell(place)
        with open(cell.toml_path) as file:
            toml = file.read()
        done = adopt(cell, volume, "--name", "shop")
        equal(done.stdout, "shop\n", "stdout of adopt")
        contains(done.stderr, "file system", "what is on the volume")
        contains(done.stderr, " ".join(SECTORS), "the sectors to attach it with")
        equal(digest(volume), before, "the volume after adopt")
        host = Host(place)
        mount = place.path("mnt")
        os.mkdir(mount)
        try:
            cell.start()
            equal(cell.json("list griddisk attributes name, cachingMode, size")[0]["size"], VOLUME_BYTES[fs], "size of the grid disk")
            host.attach("shop", mount, "-c", cell.dir, *SECTORS)
            equal(tree(mount), wanted, "the files through the cell")
            put_files(os.path.join(mount, "more"), "through")
            os.remove(os.path.join(mount, "a"))
            with open(os.path.join(mount, "deep/er/c"), "r+b") as file:
                file.seek(100_000)
                file.write(pattern("patch", 70_001))
            wanted = tree(mount)
            host.detach(mount)
            cell.stop()
            # Once more, warm.
            cell.start()
            check("without the cell" not in cell.log(), "nobody else has used it")
            host.attach("shop", mount, "-c", cell.dir, *SECTORS)
            read_past_page_cache(os.path.join(mount, "deep/er/c"))
            equal(tree(mount), wanted, "the files after a clean restart")
            check(cell.metric("FC_IO_RQ_R", "FLASHCACHE") > 0, "hits after a clean restart")
            host.detach(mount)
        finally:
            host.end()
        cell.stop()
        at_stop = digest(volume)
        release(cell, "shop")
        equal(digest(volume), at_stop, "the volume after release")
        with open(cell.toml_path) as file:
            equal(file.read().strip(), toml.strip(), "cell.toml after release")
        equal([name for name in os.listdir(cell.dir) if name.startswith("adopted-")], [], "metadata files left")
        run([*checker, volume])
        with mounted(volume, place) as direct:
            equal(tree(direct), wanted, "the files on the volume alone")
        cell.start()
        equal(cell.json("list griddisk attributes name"), [], "grid disks after release")
        equal(len(cell.json("list celldisk attributes name")), 2, "cell disks after release")
        cell.stop()


@test
def an_ext4_volume_is_adopted_used_and_released():
    round_trip("ext4", ["e2fsck", "-fn"])


@test
def an_xfs_volume_is_adopted_used_and_released():
    round_trip("xfs", ["xfs_repair", "-n"])


def behind_our_back(fs):
    """Everything is cached; then, with the cell stopped, a file is overwritten in place. What the cell reads is the volume's content."""
    need_attach("losetup", f"mkfs.{fs}")
    with Place("adopt") as place:
        volume = image(place, size_bytes=VOLUME_BYTES[fs], fs=fs)
        with mounted(volume, place) as direct, open(os.path.join(direct, "file"), "wb") as file:
            file.write(pattern("old", 4 * MIB))
        cell = small_cell(place)
        cell.tune(sequential_cutoff="0")
        adopt(cell, volume, "--name", "shop")
        host = Host(place)
        mount = place.path("mnt")
        os.mkdir(mount)
        path = os.path.join(mount, "file")

        def through_the_cell(dies=False):
            cell.start()
            # Without the time of the last access: who only reads changes nothing.
            host.attach("shop", mount, "-c", cell.dir, "-o", "noatime", *SECTORS)
            content = read_in_pieces(path)
            read_in_pieces(path)
            hits = cell.metric("FC_IO_RQ_R", "FLASHCACHE")
            log, alerts = cell.log(), cell.json("list alerthistory attributes alertMessage")
            host.detach(mount)
            cell.kill() if dies else cell.stop()
            return content, hits, log, alerts

        def overwrite(what):
            with mounted(volume, place) as direct, open(os.path.join(direct, "file"), "r+b") as file:
                file.write(pattern(what, 4 * MIB))

        try:
            content, hits, _, _ = through_the_cell()
            equal(content, pattern("old", 4 * MIB), "what the volume had")
            measured(hits > 200, f"all of it is cached: {hits} hits")
            overwrite("new")
            content, hits, log, alerts = through_the_cell()
            equal(content, pattern("new", 4 * MIB), "what was written behind the cell's back")
            contains(log, "was used without the cell", "log")
            contains(str(alerts), "was used without the cell", "alert")
            # Nobody has, this time.
            content, hits, log, _ = through_the_cell(dies=True)
            measured(hits > 400, f"all of it is cached from the start: {hits} hits")
            equal(content, pattern("new", 4 * MIB), "what the volume has")
            check("without the cell" not in log and "begins empty" not in log, "a warm start after a clean stop")
            overwrite("newest")
            content, _, log, _ = through_the_cell()
            equal(content, pattern("newest", 4 * MIB), "what was written after kill -9")
            contains(log, "begins empty", "log after kill -9")
        finally:
            host.end()


@timing
def an_ext4_volume_used_behind_our_back_is_not_believed():
    behind_our_back("ext4")


@timing
def an_xfs_volume_used_behind_our_back_is_not_believed():
    behind_our_back("xfs")


@test
def killed_in_the_middle_of_writes_an_adopted_volume_is_consistent():
    need_attach("losetup", "e2fsck")
    with Place("adopt") as place:
        file = image(place, size_bytes=VOLUME_BYTES["ext4"])
        cell = small_cell(place)
        # A block device, which others find busy while the cell has it.
        loop = place.loop_device(file)
        volume = loop.path
        adopt(cell, volume, "--name", "shop")
        host = Host(place)
        mount = place.path("mnt")
        os.mkdir(mount)
        synced = {}
        try:
            cell.start()
            contains(run(["mount", volume, place.dir], ok=False).stderr, "busy", "a mount past the cell")
            host.attach("shop", mount, "-c", cell.dir, *SECTORS)
            for round_ in range(2):
                for number in range(24):
                    name = f"{round_}-{number}"
                    content = pattern(name, 40_000 + 1_000 * number)
                    with open(os.path.join(mount, name), "wb") as written:
                        written.write(content)
                        if number == 12:
                            # The rest waits for the cell that comes back.
                            cell.kill()
                            cell.start()
                        os.fsync(written.fileno())
                    synced[name] = content
            equal({name: content for name, content in tree(mount).items() if name in synced}, synced, "files after kill -9")
            host.detach(mount)
        finally:
            host.end()
        cell.stop()
        release(cell, volume)
        loop.detach()
        wait_until(lambda: file not in run(["losetup", "-a"]).stdout, 20, "the loop device is gone")
        run(["e2fsck", "-fn", file])
        with mounted(file, place) as direct:
            equal({name: content for name, content in tree(direct).items() if name in synced}, synced, "files on the volume alone")


@test
def what_cannot_be_adopted_is_refused_and_nothing_is_changed():
    need("mkfs.ext4")
    with Place("adopt") as place:
        cell = small_cell(place)
        volume = image(place)
        before = digest(volume)

        def refused(path, part, *options):
            error = adopt(cell, path, *options, ok=False).stderr
            contains(error, part, f"why {path} is refused")
            contains(error, "hint:", f"the way out for {path}")

        refused(place.path("none"), "no such file")
        refused(image(place, "tiny.img", 64 << 10, None), "less than 1 MiB")
        refused(image(place, "blank.img", 4 * MIB, None), "holds nothing")
        refused(cell.device("disk"), "is a disk of the cell")
        other = Cell(place, name="other", disks=("64M",), flash=(), griddisks=())
        refused(other.device("disk"), "of a Flashcell cell")
        refused(volume, "not cached in write-back:", "--mode", "write-back")
        refused(volume, "--exclusive-use", "--mode", "write-back-ordered")
        refused(volume, "no name for a grid disk", "--name", "a/b")
        member = image(place, "member.img", 4 * MIB, None)
        with open(member, "r+b") as file:
            file.seek(512)
            file.write(b"LABELONE")
        refused(member, "an LVM physical volume")
        if os.geteuid() == 0 and os.path.exists("/dev/loop-control"):
            loop = place.loop_device(volume)
            refused(volume, loop.path)
            mount = place.path("mnt")
            os.mkdir(mount)
            run(["mount", loop.path, mount])
            try:
                refused(loop.path, f"is mounted on {mount}")
            finally:
                run(["umount", mount])
            loop.detach()
            loop = place.loop_device(volume, "--read-only")
            refused(loop.path, "is read-only")
            loop.detach()
            before = digest(volume)
        cell.start()
        refused(volume, "is being served")
        cell.stop()
        equal(digest(volume), before, "the volume after all refusals")
        equal([name for name in os.listdir(cell.dir) if name.startswith("adopted-")], [], "metadata files of refused volumes")


@test
def nothing_is_made_or_changed_on_an_adopted_volume_and_its_last_bytes_are_kept():
    need("mkfs.ext4", "qemu-io")
    with Place("adopt") as place:
        cell = small_cell(place)
        # Not a multiple of 64 KiB: the grid disk has 60 KiB more.
        size_bytes = 16 * MIB + 4096
        volume = image(place, size_bytes=size_bytes)
        before = digest(volume)
        contains(adopt(cell, volume, "--name", "shop").stderr, "61440 bytes more", "what the grid disk has more")
        contains(adopt(cell, volume, ok=False).stderr, "is adopted already", "a second adopt")
        cell.start()
        disk = cell.json("list griddisk attributes name, cellDisk")[0]["cellDisk"]
        for statement, part in (
            (f"create griddisk more celldisk={disk}, size=1M", "is an adopted volume"),
            ("alter griddisk shop size=8M force", "is an adopted volume"),
            ("alter griddisk shop size=64M", "is an adopted volume"),
            ("alter griddisk shop cachingMode=write-back", "is an adopted volume"),
            ("alter griddisk shop cachingMode=write-back-ordered", "is an adopted volume"),
            ("drop griddisk shop", "is an adopted volume"),
            ("drop griddisk shop force", "is an adopted volume"),
            (f"drop celldisk {disk} force", "is an adopted volume"),
            (f"drop celldisk {disk}", "grid disks are on it"),
        ):
            contains(cell.cellcli(statement, ok=False).stderr, part, statement)
        cell.cellcli("alter cell flashCacheMode=WriteBack")
        equal(cell.json("list griddisk attributes cachingMode")[0]["cachingMode"], "write-through", "its mode")
        cell.stop()
        equal(digest(volume), before, "the volume after all refusals")
        cell.start()
        write = lambda what: run(["qemu-io", "-f", "raw", "-c", f"write -P {what} {size_bytes - 512} 1024", "-c", "flush", cell.uri("shop")])
        write(7)
        cell.stop()
        contains(release(cell, "shop", ok=False).stderr, "has no room", "data behind the end of the volume")
        cell.start()
        write(0)
        cell.stop()
        with open(volume, "rb") as file:
            file.seek(-512, os.SEEK_END)
            equal(file.read(), bytes(512), "the last bytes of the volume")
        equal(os.path.getsize(volume), size_bytes, "size of the volume")
        release(cell, "shop")
        contains(release(cell, "shop", ok=False).stderr, "not an adopted volume", "a second release")


@test
def adopt_and_release_that_are_killed_are_repeated():
    need("mkfs.ext4")
    with Place("adopt") as place:
        cell = small_cell(place)
        volume = image(place)
        before = digest(volume)
        chance = random.Random(12)

        def killed(*command):
            """Whether it was killed, rather than done."""
            process = subprocess.Popen([binary(), *command, "-c", cell.dir], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.005, 0.12))
            process.send_signal(signal.SIGKILL)
            return process.wait() == -signal.SIGKILL

        def adopted():
            with open(cell.toml_path) as file:
                return "metadata = " in file.read()

        for _ in range(2):
            kills = sum(killed("adopt", volume, "--name", "shop") for _ in range(4) if not adopted())
            if not adopted():
                adopt(cell, volume, "--name", "shop")
            equal(digest(volume), before, f"the volume after {kills} adopts that were killed")
            cell.start()
            equal([row["name"] for row in cell.json("list griddisk attributes name, status where status = active")], ["shop"], "grid disks")
            run(["qemu-io", "-f", "raw", "-r", "-c", f"read 0 {MIB}", cell.uri("shop")])
            cell.stop()
            kills = sum(killed("release", "shop") for _ in range(4) if adopted())
            if adopted():
                release(cell, "shop")
            equal(digest(volume), before, f"the volume after {kills} releases that were killed")
            cell.start()
            equal(cell.json("list griddisk attributes name"), [], "grid disks after release")
            equal(len(cell.json("list celldisk attributes name")), 2, "cell disks after release")
            cell.stop()


@test
def the_guide_to_adopting_is_carried_out():
    """The commands of docs/guide/adopt.md as they stand there, with an image for the volume and a size for the flash."""
    need_attach("losetup", "bash")
    with open(os.path.join(ROOT, "docs", "guide", "adopt.md")) as file:
        commands = [line[4:] for line in file.read().splitlines() if line.startswith("    ")]
    equal(len(commands), 10, "commands of the guide")
    (write_back,) = [line for line in commands if "--exclusive-use" in line]
    commands.remove(write_back)
    carry_out(commands)
    carry_out([write_back if line.startswith("flashcell adopt") else line for line in commands])


def carry_out(commands):
    with Place("adopt") as place:
        volume, mount = image(place), place.path("shop")
        os.mkdir(mount)
        run(["mount", "-o", "loop", volume, mount])
        put_files(mount, "guide")
        wanted = tree(mount)
        script = "set -e\n" + "\n".join(commands)
        for old, new in (
            ("mount /dev/vdb1", "mount -o loop /dev/vdb1"),
            ("--flash /dev/nvme0n1", "--flash 96M --sparse"),
            ("/srv/cell", place.path("cell")),
            ("/dev/vdb1", volume),
            ("/mnt/shop", mount),
            ("flashcell serve", "flashcell serve 2>" + place.path("log")),
        ):
            check(old in script, f"{old} in the guide")
            script = script.replace(old, new)
        script = script.replace(f"umount -o loop", "umount").replace("flashcell attach", "until test -S " + place.path("cell/nbd.sock") + "; do sleep 0.1; done\nflashcell attach")
        script = re.sub(r"(?m)^(umount .*)$", r"\1\nwhile losetup -a | grep -q " + volume + "; do sleep 0.1; done", script)
        env = dict(os.environ, FLASHCELL_RUN=place.path("run"), FLASHCELL=binary())
        # A cell that a failure has left behind ends with the script.
        script = 'flashcell() { "$FLASHCELL" "$@"; }\nset -m\ntrap \'kill $(jobs -p) 2>/dev/null || :\' EXIT\n' + re.sub(r"flashcell (serve .*) &", r'"$FLASHCELL" \1 >/dev/null &', script)
        try:
            run(["bash", "-c", script], env=env)
            equal(tree(mount), wanted, "the files after all commands of the guide")
        finally:
            Host(place).end()
            run(["umount", mount], ok=None)
