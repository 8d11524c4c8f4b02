"""Devices that do not have what they had: a disk that loses what it had not made durable, and flash that is put back in time."""

import json
import os
import shutil
import time

import nbdclient
from case_clients import nbdsh
from harness import Place, QUIET, check, contains, equal, need, test, wait_until

EIO = 5
# A disk behind nbdkit whose next flush, once armed, takes a while and fails.
FLUSH = """[ -e "$1/armed" ] || exit 0
rm -f "$1/armed"; touch "$1/flushing"; sleep 1; echo "EIO the cache of the disk is lost" >&2; exit 1
"""
# Connection `a` asks for the flush that fails; `b`, whose write is acknowledged and not flushed, and `c`, which never wrote, flush
# while it is under way. `d` comes later.
CLIENTS = """
import json, os, threading, time
def connect():
    handle = nbd.NBD()
    handle.connect_uri(uri)
    return handle
def told(request, *arguments):
    try:
        request(*arguments)
        return 0
    except nbd.Error as error:
        return error.errnum
a, b, c = connect(), connect(), connect()
a.pwrite(b"a" * 4096, 0)
heard = {"flush before": told(a.flush)}
b.pwrite(b"b" * 4096, 65536)
open(place + "/armed", "w").close()
def flush(name, handle):
    heard[name] = told(handle.flush)
threads = [threading.Thread(target=flush, args=("the flush that fails", a))]
threads[0].start()
while not os.path.exists(place + "/flushing"):
    time.sleep(0.01)
for name, handle in (("behind it, with a write", b), ("behind it, without", c)):
    threads.append(threading.Thread(target=flush, args=(name, handle)))
    threads[-1].start()
for thread in threads:
    thread.join()
heard["a read afterwards"] = told(c.pread, 4096, 0)
heard["a write afterwards"] = told(b.pwrite, b"b" * 4096, 0)
d = connect()
heard["a new connection writes"] = told(d.pwrite, b"d" * 4096, 65536)
heard["and flushes"] = told(d.flush)
print(json.dumps(heard))
"""


@test
def no_connection_believes_in_writes_that_a_disk_has_lost():
    need("nbdkit")
    with Place("losses") as place:
        raw, socket = place.path("raw"), place.path("disk.sock")
        with open(raw, "wb") as file:
            file.truncate(1 << 30)
        place.file("flush", FLUSH.encode())
        disk = [
            f"get_size=stat -c %s {raw}",
            "can_write=exit 0",
            "can_flush=exit 0",
            "can_multi_conn=exit 0",
            "thread_model=echo parallel",
            f"pread=dd if={raw} skip=$4 count=$3 iflag=count_bytes,skip_bytes status=none",
            f"pwrite=dd of={raw} seek=$4 conv=notrunc oflag=seek_bytes status=none",
            f"flush=sh {place.path('flush')} {place.dir}",
        ]
        place.spawn(["nbdkit", "-f", "-U", socket, "eval", *disk], **QUIET)
        wait_until(lambda: os.path.exists(socket), 20, "nbdkit listens")
        cell = place.cell(disks=(f"nbd+unix:///?socket={socket}",)).start()
        head = f"uri = {cell.uri()!r}; place = {place.dir!r}\n"
        heard = json.loads(nbdsh(cell, head + CLIENTS))
        good = ("flush before", "a new connection writes", "and flushes")
        equal(heard, {name: 0 if name in good else EIO for name in heard}, "what the clients heard")
        check(len(heard) == 8, f"all of them: {heard}")
        cell.stop()


# What is on flash counts as settled when its region has been quiet for five seconds, which is looked at every five.
SETTLED_SECONDS = 12


@test
def flash_of_an_earlier_moment_of_the_same_life_is_not_believed():
    """A flash volume is restored from a snapshot that was taken while the cell was served, which has not been stopped since."""
    need("nbdsh")
    with Place("losses") as place:
        cell = place.cell(griddisks=("data:64M:data:write-through",))
        cell.tune(stamps_every="1s", sequential_cutoff="0")
        cell.start()
        write = "for at in range(0, 4 << 20, 65536): h.pwrite({!r} * 65536, at)\nh.flush()\n"
        read = "print(sorted({bytes([byte]).decode() for at in range(0, 4 << 20, 65536) for byte in h.pread(65536, at)}))\n"

        def asked(script):
            return nbdsh(cell, script).strip()

        asked(write.format(b"a"))
        equal(asked(read + read), "['a']\n['a']", "what was written")
        check(cell.metric("FC_IO_RQ_R", "FLASHCACHE") > 0, "it is cached")
        time.sleep(SETTLED_SECONDS)
        # That it is settled is on flash with what is written there next.
        asked("h.pwrite(b'z' * 65536, 32 << 20); h.flush()")
        time.sleep(1.5)
        flash, old = cell.device("flash"), place.path("old")
        shutil.copy(flash, old)
        asked(write.format(b"b"))
        # Two periods of the stamps.
        time.sleep(2.5)
        cell.kill()
        os.replace(old, flash)
        cell.start()
        equal(asked(read), "['b']", "what the disk has, whatever the flash of before says")
        asked(write.format(b"c"))
        equal(asked(read), "['c']", "and it serves on")
        cell.stop()


# Each of them could end what only the absent flash holds.
ENDING = (
    "drop griddisk data",
    "drop griddisk all",
    "drop griddisk all prefix=dat",
    "alter griddisk data active",
    "alter griddisk all active",
    "alter griddisk data cachingMode=write-through",
    "alter griddisk data cachingMode=none",
    "alter griddisk data cachingPolicy=none",
    "alter griddisk data size=16M",
    "drop flashcache",
    "drop flashcache all",
    "alter flashcache all flush",
    "alter flashcache all size=48M",
    "drop celldisk FD_00_cell",
    "drop celldisk all flashdisk",
    "drop celldisk all",
    "alter cell flashCacheMode=writethrough",
)


@test
def no_statement_ends_the_last_copy_without_force():
    """The flash with flushed data is absent: each statement is refused or leaves the data, and says so; with FORCE it goes."""
    for mode in ("write-back", "write-back-ordered"):
        with Place("last-copy") as place:
            cell = place.cell(flash=("128M",), griddisks=(f"data:64M:{mode}",)).start()
            client = nbdclient.Client(cell.socket)
            for at in range(0, 200 * 16384, 16384):
                client.write(at, b"n" * 4096)
            client.flush()
            client.disconnect()
            cell.kill()
            flash = cell.device("flash")
            os.rename(flash, flash + ".away")
            cell.start()
            for statement in ENDING:
                done = cell.cellcli(statement, ok=None)
                told = (done.stdout + done.stderr).strip()
                check(told, f"{statement}: an answer")
                print(f"# {mode}: {statement}: {done.returncode}: {told.splitlines()[0][:150]}", flush=True)
                state = cell.json("list griddisk data attributes status")[0]["status"]
                equal(state, "offline", f"state after {statement}")
            for statement in ("drop griddisk data", "alter griddisk data active"):
                contains(cell.cellcli(statement, ok=False).stderr, "FORCE", statement)
            cell.stop()
            os.rename(flash + ".away", flash)
            cell.start()
            client = nbdclient.Client(cell.socket)
            for at in range(0, 200 * 16384, 16384):
                equal(client.read(at, 4096), b"n" * 4096, f"{mode}: what was flushed at {at}")
            client.disconnect()
            cell.kill()
            os.rename(flash, flash + ".away")
            cell.start()
            cell.cellcli("drop griddisk data force")
            equal(cell.json("list griddisk"), [], "grid disks after FORCE")
            cell.stop()
