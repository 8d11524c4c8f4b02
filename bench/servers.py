"""The servers that are compared: a cell, nbdkit, qemu-nbd, each a process whose CPU time and memory can be read.

A `Target` is what fio is pointed at: an export of a server, or (without a server) a file.
"""

import json
import os
import shutil
import socket
import subprocess

from place import MIB, READY_SECONDS_MAX, Failure, Skip, end, random_file, wait_until


class Target:
    """Something to read and write: `uri` of an export, or `path` of a file. `server` may be None."""

    def __init__(self, name, server=None, uri=None, path=None, hits=None):
        self.name = name
        self.server = server
        self.uri = uri
        self.path = path
        # Reads () of the cache so far as (hits, misses), where there is a cache.
        self.hits = hits


class Server:
    """A process that serves NBD on a unix socket."""

    process = None
    socket = None

    def cpu_seconds(self):
        """User and system time of all threads so far."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def uri(self, export=""):
        return f"nbd+unix:///{export}?socket={self.socket}"

    def stop(self):
        end(self.process)

    def wait_for_socket(self, what):
        def answers():
            if self.process.poll() is not None:
                raise Failure(f"{what} ended with {self.process.returncode}: {tail(self.log_path)}")
            probe = socket.socket(socket.AF_UNIX)
            try:
                probe.connect(self.socket)
                return True
            except OSError:
                return False
            finally:
                probe.close()

        wait_until(answers, READY_SECONDS_MAX, f"{what} listens")


class Peer(Server):
    """nbdkit or qemu-nbd."""

    def __init__(self, place, directory, name, command):
        if shutil.which(command[0]) is None:
            raise Skip(f"{command[0]} is not installed (scripts/install-test-clients)")
        self.socket = os.path.join(directory, name + ".sock")
        self.log_path = os.path.join(directory, name + ".log")
        command = [word.replace("SOCKET", self.socket) for word in command]
        with open(self.log_path, "wb") as log:
            self.process = place.spawn(command, stdout=log, stderr=log)
        self.wait_for_socket(name)


def nbdkit(place, directory, path):
    """nbdkit's file plugin: through the page cache, since it has no O_DIRECT."""
    return Peer(place, directory, "nbdkit", ["nbdkit", "-f", "-U", "SOCKET", "file", path, "cache=none"])


def nbdkit_delay(place, directory, path, parallel):
    """nbdkit as a disk of 4 ms that takes `parallel` requests at once."""
    words = ["nbdkit", "-f", "-U", "SOCKET", "-t", str(parallel), "--filter=delay", "file", path, "rdelay=4ms"]
    return Peer(place, directory, "nbdkit-delay", words)


def qemu_nbd(place, directory, path):
    words = ["qemu-nbd", "-t", "-k", "SOCKET", "-e", "1024", "-f", "raw", "--cache=none", "--aio=io_uring", path]
    return Peer(place, directory, "qemu-nbd", words)


class Cell(Server):
    """A cell made by `flashcell init` in a directory of its own."""

    def __init__(self, place, directory, disk, flash, grid_disk, model=None, name="cell", binary=None):
        import harness

        self.place = place
        self.binary = binary or harness.binary()
        self.dir = os.path.join(directory, name)
        self.log_path = os.path.join(directory, name + ".log")
        command = [self.binary, "init", "--sparse", self.dir, "--disk", disk, "--griddisk", grid_disk]
        command += ["--flash", flash] if flash else []
        command += ["--disk-model", model] if model else []
        # Files in memory count as durable only where that is said; a base from before that does not know the word.
        if "--durable" in place.run([self.binary, "init", "--help"]):
            command += ["--durable", "yes"]
        place.run(command)

    def start(self):
        """Serve; back when it is ready."""
        from harness import read_line

        with open(self.log_path, "ab") as log:
            self.process = self.place.spawn(
                [self.binary, "serve", self.dir], stdout=subprocess.PIPE, stderr=log
            )
        line = read_line(self.process, READY_SECONDS_MAX)
        words = dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
        if not line.startswith("ready ") or "nbd" not in words:
            raise Failure(f"flashcell serve: no ready line but {line!r}: {tail(self.log_path)}")
        self.socket = words["nbd"].removeprefix("unix:")
        return self

    def stop(self):
        """A clean stop: the cache stays warm."""
        self.process.terminate()
        try:
            self.process.wait(timeout=READY_SECONDS_MAX)
        finally:
            end(self.process)

    def cellcli(self, statement):
        return self.place.run([self.binary, "cellcli", "-c", self.dir, "--json", "-e", statement])

    def metric(self, name):
        """Sum of a metric over its objects."""
        rows = json.loads(self.cellcli(f"list metriccurrent {name} attributes all"))
        return sum(row["metricValue"] for row in rows)

    def hits(self):
        """Reads so far that were served whole from flash, and those that needed the disk."""
        return self.metric("FC_IO_RQ_R"), self.metric("FC_IO_RQ_R_MISS")

    def load(self, export, size_bytes):
        """Write every byte of a grid disk, with content that does not compress to a hole."""
        import nbdclient

        client = nbdclient.Client(self.socket, export)
        for offset in range(0, size_bytes, MIB):
            client.write(offset, os.urandom(MIB))
        client.flush()
        client.disconnect()

    def chill(self):
        """Empty the flash cache: what was written is cached where there was room."""
        for statement in ("drop flashcache", "create flashcache all"):
            self.cellcli(statement)

    def warm(self, export, size_bytes):
        """Bring a whole grid disk into the flash cache, and wait until nothing is missing."""
        import nbdclient

        client = nbdclient.Client(self.socket, export)

        def everything_is_cached():
            before = self.metric("FC_BY_USED")
            for offset in range(0, size_bytes, MIB):
                error, _ = client.call(nbdclient.CACHE, offset=offset, length=MIB)
                if error:
                    raise Failure(f"CACHE at {offset}: errno {error}")
            return self.metric("FC_BY_USED") == before

        # A fill never waits: one that finds no room on its way to flash is forgotten and has to be asked for again.
        wait_until(everything_is_cached, READY_SECONDS_MAX, f"{export} is cached whole")
        client.disconnect()


def serving_cell(place, directory, size_mib, name="cell", binary=None):
    """A served cell with grid disks `data` (on disk, cached whole) and `flash` (on flash), and its targets."""
    cache_mib = size_mib * 3 // 2
    disk, flash = f"{size_mib + 64}M", f"{size_mib + cache_mib + 64}M"
    cell = Cell(place, directory, disk, flash, f"data:{size_mib}M", name=name, binary=binary).start()
    # The cell was made with a cache over all flash: a grid disk needs some of it.
    cell.cellcli("drop flashcache")
    cell.cellcli(f"create griddisk flash celldisk=FD_00_{name}, size={size_mib}M, cachingMode=none")
    cell.cellcli(f"create flashcache all size={cache_mib}M")
    cell.load("data", size_mib * MIB)
    cell.load("flash", size_mib * MIB)
    cell.warm("data", size_mib * MIB)
    return cell


def twin(directory, size_mib):
    """A file like the flash file, for who must not touch the cell's own: same medium, same size, written whole."""
    return random_file(os.path.join(directory, "twin.img"), size_mib * MIB)


def tail(path):
    try:
        with open(path, errors="replace") as file:
            return file.read()[-1500:]
    except OSError:
        return ""
