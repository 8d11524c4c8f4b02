"""Image files and a file system that becomes full: allocated images go on, sparse ones fail truthfully and recover."""

import os

import nbdclient
from harness import MIB, Place, Skip, binary, check, contains, equal, need, pattern, run, test, wait_until

ENOSPC = 28


def small_file_system(place, mib):
    """A directory on an ext4 of its own; gone with the place."""
    need("losetup", "mkfs.ext4", "mount", "umount")
    if os.geteuid() != 0:
        raise Skip("mounting needs root")
    image, directory = place.path("fs.img"), place.path("fs")
    os.mkdir(directory)
    with open(image, "wb") as file:
        file.truncate(mib * MIB)
    run(["mkfs.ext4", "-q", "-F", "-m", "0", image])
    run(["mount", "-o", "loop", image, directory])

    # The ring of a process that has ended may hold its files a moment longer.
    def unmounted():
        return run(["umount", directory], ok=None).returncode == 0

    place.cleanups.append(lambda: wait_until(unmounted, 20, f"umount of {directory}"))
    return directory


def fill_up(directory):
    """Take all the space that is left; the file that has it."""
    path = os.path.join(directory, "others")
    with open(path, "wb") as file:
        try:
            while True:
                file.write(bytes(MIB))
                file.flush()
        except OSError as error:
            equal(error.errno, ENOSPC, "how a full file system answers")
    return path


def allocated(path):
    return os.stat(path).st_blocks * 512


@test
def images_have_their_space_and_keep_it_when_the_file_system_is_full():
    with Place("images") as place:
        directory = small_file_system(place, 256)
        cell = place.cell(
            name="fs/c", disks=("96M",), flash=("64M",), griddisks=("data:48M:data:write-back",), sparse=False
        )
        sizes = {cell.device("disk"): 96 * MIB, cell.device("flash"): 64 * MIB}
        for path, size in sizes.items():
            check(allocated(path) >= size, f"{path} has {allocated(path)} of {size} bytes")
        cell.start()
        client = nbdclient.Client(cell.socket)
        # What is zeroed and trimmed keeps its space: it can be written again on a file system that is full.
        for at in range(0, 48 * MIB, MIB):
            client.write(at, pattern(at, MIB))
        client.flush()
        client.call(nbdclient.TRIM, offset=0, length=16 * MIB)
        client.call(nbdclient.ZEROES, offset=16 * MIB, length=16 * MIB)
        client.flush()
        equal(client.read(20 * MIB, MIB), bytes(MIB), "what was zeroed")
        fill_up(directory)
        for at in range(0, 48 * MIB, MIB):
            client.write(at, pattern(at + 1, MIB))
        client.flush()
        client.disconnect()
        cell.check_alive()
        for path, size in sizes.items():
            check(allocated(path) >= size, f"{path} has {allocated(path)} of {size} bytes")
        equal(cell.json("list flashcache attributes all")[0]["status"], "normal", "flash on a full file system")
        cell.kill()
        cell.start()
        client = nbdclient.Client(cell.socket)
        for at in range(0, 48 * MIB, MIB):
            equal(client.read(at, MIB), pattern(at + 1, MIB), f"content at {at}")
        client.disconnect()
        cell.stop()


@test
def a_sparse_image_on_a_full_file_system_answers_no_space_and_recovers():
    with Place("sparse") as place:
        directory = small_file_system(place, 128)
        cell = place.cell(name="fs/c", disks=("200M",), flash=(), griddisks=("data:150M:data:none",))
        check(allocated(cell.device("disk")) < 20 * MIB, "a sparse image takes what it needs")
        cell.start()
        client = nbdclient.Client(cell.socket)
        client.write(0, pattern("kept", MIB))
        client.flush()
        others = fill_up(directory)
        refused = 0
        for at in range(MIB, 20 * MIB, MIB):
            try:
                client.write(at, pattern(at, MIB))
            except OSError as error:
                equal(error.errno, ENOSPC, "the error of a write without space")
                refused += 1
        check(refused > 10, f"only {refused} writes were refused")
        cell.check_alive()
        equal(client.read(0, MIB), pattern("kept", MIB), "what was there before")
        os.remove(others)
        for at in range(MIB, 20 * MIB, MIB):
            client.write(at, pattern(at, MIB))
        client.flush()
        equal(client.read(5 * MIB, MIB), pattern(5 * MIB, MIB), "what was written once there was room")
        client.disconnect()
        cell.stop()


@test
def init_says_how_much_was_asked_and_how_much_is_free():
    with Place("room") as place:
        directory = small_file_system(place, 64)
        cell = os.path.join(directory, "c")
        message = run([binary(), "init", cell, "--disk", "2G"], ok=False).stderr
        contains(message, "disk-0.img: 2G asked", "message")
        contains(message, "free", "message")
        contains(message, "hint:", "message")
        contains(message, "--sparse", "message")
        check(not os.path.exists(os.path.join(cell, "disk-0.img")), "nothing is left behind")
        done = run([binary(), "init", cell, "--disk", "8M", "--flash", "24M"])
        contains(done.stderr, "writing flash-0.img once", "what takes long is said")
        run([binary(), "init", "--sparse", os.path.join(directory, "d"), "--disk", "2G"])
