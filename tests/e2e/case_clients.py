"""Clients nobody here wrote: nbdinfo, nbdcopy, nbdsh, qemu-img, qemu-io, fio."""

import json
import os
import re

from harness import MIB, binary, check, contains, equal, need, pattern, run, served, test

MODES = ("write-through", "write-back")


def nbdsh(cell, script, export="data", contexts=()):
    """Run Python lines in nbdsh; `h` is the handle, connected."""
    need("nbdsh")
    lines = [f"h.add_meta_context({context!r})" for context in contexts]
    lines += [f"h.connect_uri({cell.uri(export)!r})"]
    # A python of another place (pyenv and the like) does not have the binding of the distribution.
    environment = dict(os.environ, PATH="/usr/bin:/bin:" + os.environ.get("PATH", ""))
    return run(["nbdsh", "-c", "\n".join(lines), "-c", script], env=environment).stdout


@test
def nbdinfo_lists_and_describes():
    need("nbdinfo")
    with served(griddisks=("data:64M", "other:32M:redo", "bare:16M:none")) as cell:
        listed = json.loads(run(["nbdinfo", "--list", "--json", f"nbd+unix:///?socket={cell.socket}"]).stdout)
        exports = {export["export-name"]: export for export in listed["exports"]}
        equal(sorted(exports), ["bare", "data", "other"], "exports")
        equal(exports["other"]["export-size"], 32 * MIB, "size of the second export")
        info = json.loads(run(["nbdinfo", "--no-content", "--json", cell.uri()]).stdout)
        equal((info["protocol"], info["structured"]), ("newstyle-fixed", True), "protocol")
        export = info["exports"][0]
        for can in ("flush", "fua", "trim", "zero", "fast_zero", "cache", "multi_conn", "df"):
            equal(export.get("can_" + can), True, "can_" + can)
        equal(export["is_read_only"], False, "read-only")
        contexts = export["contexts"]
        for wanted in ("base:allocation", "flashcell:tier"):
            check(wanted in contexts, f"{wanted} is not in {contexts}")
        stamps = [name for name in contexts if re.fullmatch("flashcell:instance:[0-9a-f]{32}", name)]
        equal(len(stamps), 1, f"instance stamps in {contexts}")
        equal(export["block_size_minimum"], 1, "smallest block")
        check(export["block_size_preferred"] >= 4096, "preferred block")
        check(export["block_size_maximum"] >= MIB, "largest block")
        equal(int(run(["nbdinfo", "--size", cell.uri()]).stdout), 64 * MIB, "size")
        run(["nbdinfo", "--size", cell.uri("nosuch")], ok=False)
        # A database tag is the same disk.
        equal(int(run(["nbdinfo", "--size", cell.uri("data@SALES")]).stdout), 64 * MIB, "size under a database tag")


@test
def nbdinfo_maps_holes_and_tiers():
    need("nbdinfo", "qemu-io")
    with served() as cell:
        run(["qemu-io", "-f", "raw", "-c", "write -P 7 1M 1M", "-c", "flush", cell.uri()])
        extents = json.loads(run(["nbdinfo", "--map", "--json", cell.uri()]).stdout)
        covered = 0
        for extent in extents:
            equal(extent["offset"], covered, "extents follow each other")
            covered += extent["length"]
        equal(covered, 64 * MIB, "extents cover the disk")
        data = [e for e in extents if e["type"] & 3 == 0]
        check(data, "what was written is data")
        at_1m = next(e for e in extents if e["offset"] <= MIB < e["offset"] + e["length"])
        equal(at_1m["type"] & 2, 0, "what was written does not read as zeroes")
        # Reading what is cached makes it show as cached.
        run(["qemu-io", "-f", "raw", "-r", "-c", "read -P 7 1M 64k", "-c", "read -P 7 1M 64k", cell.uri()])
        tiers = json.loads(run(["nbdinfo", "--map=flashcell:tier", "--json", cell.uri()]).stdout)
        equal(sum(e["length"] for e in tiers), 64 * MIB, "tiers cover the disk")
        equal(max(e["type"] for e in tiers), 1, f"something is cached clean, nothing more: {tiers[:5]}")
        # In write-back a written block shows as dirty until it is flushed to the disk.
        cell.cellcli('alter griddisk data cachingMode="write-back"')
        run(["qemu-io", "-f", "raw", "-c", "write -P 8 1M 64k", cell.uri()])
        equal(tier_at(cell, MIB), 2, "tier of what was written in write-back")
        cell.cellcli("alter griddisk data flush")
        equal(tier_at(cell, MIB), 1, "tier after FLUSH")
        cell.cellcli('alter griddisk data cachingMode="write-through"')
        # What is cached of a pinned range shows as kept.
        run([binary(), "pin", "data", "2M", "64K", "keep", "-c", cell.dir])
        run(["qemu-io", "-f", "raw", "-c", "write -P 9 2M 64k", cell.uri()])
        equal(tier_at(cell, 2 * MIB), 3, "tier of a pinned range")
        stamp = next(
            name
            for name in json.loads(run(["nbdinfo", "--no-content", "--json", cell.uri()]).stdout)["exports"][0]["contexts"]
            if name.startswith("flashcell:instance:")
        )
        # The stamp stays across connections and a clean stop, and changes when un-flushed data may be gone.
        again = run(["nbdinfo", "--no-content", cell.uri()]).stdout
        contains(again, stamp, "the same stamp on the next connection")


def tier_at(cell, at):
    extents = json.loads(run(["nbdinfo", "--map=flashcell:tier", "--json", cell.uri()]).stdout)
    return next(e["type"] for e in extents if e["offset"] <= at < e["offset"] + e["length"])


@test
def nbdcopy_in_and_out():
    need("nbdcopy", "cmp")
    with served() as cell:
        source = cell.place.file("in", pattern("copy", 40 * MIB) + bytes(8 * MIB) + pattern("more", 16 * MIB))
        run(["nbdcopy", "--flush", source, cell.uri()])
        target = cell.place.path("out")
        run(["nbdcopy", cell.uri(), target])
        run(["cmp", source, target])
        # Many requests on several connections, and again from the cache.
        run(["nbdcopy", "--connections=4", "--requests=32", "--request-size=65536", cell.uri(), target])
        run(["cmp", source, target])
        run(["nbdcopy", "--connections=1", "--requests=64", "--request-size=4096", cell.uri(), target])
        run(["cmp", source, target])
        cell.stop()
        cell.start()
        run(["nbdcopy", "--connections=2", cell.uri(), target])
        run(["cmp", source, target])
        cell.stop()


@test
def nbdsh_every_request():
    script = r"""
import os, random
size = h.get_size()
assert size == 64 << 20, size
for can in (h.can_flush, h.can_fua, h.can_trim, h.can_zero, h.can_cache, h.can_multi_conn, h.can_df, h.can_fast_zero):
    assert can(), can
assert not h.is_read_only()
assert h.get_structured_replies_negotiated()
rng = random.Random(5)
model = bytearray(1 << 20)
base = 3 << 20
h.pwrite(bytes(model), base)
# Any offset and length, down to one byte.
for step in range(400):
    kind = rng.randrange(8)
    off = rng.randrange(len(model)); n = min(rng.choice([1, 1, 3, 511, 512, 513, 4095, 4096, 4097, 20000, 70000]), len(model) - off)
    if kind <= 2:
        data = rng.randbytes(n)
        h.pwrite(data, base + off, flags=nbd.CMD_FLAG_FUA if kind == 2 else 0)
        model[off:off + n] = data
    elif kind == 3:
        h.zero(n, base + off, flags=rng.choice([0, nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_FUA]))
        model[off:off + n] = bytes(n)
    elif kind == 4:
        h.cache(n, base + off)
    elif kind == 5 and step % 10 == 0:
        h.flush()
    else:
        got = h.pread(n, base + off)
        assert got == model[off:off + n], (step, off, n)
assert h.pread(len(model), base) == model
# A trimmed range reads the same every time.
h.trim(100000, base + 777, flags=nbd.CMD_FLAG_FUA)
first = h.pread(1 << 20, base)
assert first[:777] == model[:777] and first[100777:] == model[100777:]
for _ in range(3):
    assert h.pread(1 << 20, base) == first
# FAST_ZERO: done or refused with ENOTSUP, never slow, never half done.
try:
    h.zero(1 << 16, base, flags=nbd.CMD_FLAG_FAST_ZERO)
    assert h.pread(1 << 16, base) == bytes(1 << 16)
except nbd.Error as error:
    assert error.errno in ("ENOTSUP", "EOPNOTSUPP"), error
# DF: one chunk. Sparse reads: holes and data.
h.pwrite(b"x" * 65536, 0); h.zero(1 << 20, 65536)
chunks = []
def chunk(data, offset, status, error):
    chunks.append((offset, len(data), status))
assert h.pread_structured(1 << 20, 0, chunk) == b"x" * 65536 + bytes((1 << 20) - 65536)
assert sorted(c[0] for c in chunks)[0] == 0 and sum(c[1] for c in chunks) >= 65536
count = len(chunks); chunks.clear()
h.pread_structured(65536 * 2, 0, chunk, nbd.CMD_FLAG_DF)
assert len(chunks) == 1, chunks
# Last byte, last block.
h.pwrite(b"!", size - 1)
assert h.pread(1, size - 1) == b"!"
assert h.pread(4096, size - 4096)[-1:] == b"!"
# Status of a part, one extent.
seen = []
h.block_status(1 << 20, 0, lambda context, offset, extents, error: seen.append((context, offset, extents)), nbd.CMD_FLAG_REQ_ONE)
assert {s[0] for s in seen} == {"base:allocation", "flashcell:tier"}, seen
assert all(len(s[2]) == 2 and s[2][0] <= 1 << 20 for s in seen), seen
print("done", count)
"""
    for mode in MODES:
        with served(griddisks=(f"data:64M:data:{mode}",)) as cell:
            out = nbdsh(cell, script, contexts=("base:allocation", "flashcell:tier"))
            contains(out, "done", f"nbdsh in {mode}")
            cell.stop()


@test
def nbdsh_errors_have_the_protocol_s_errno():
    script = r"""
h.set_strict_mode(0)
size = h.get_size()
def refused(what, *wanted):
    try:
        what()
    except nbd.Error as error:
        assert error.errno in wanted, (error.errno, wanted)
        return
    raise SystemExit("not refused, expected %s" % (wanted,))
refused(lambda: h.pread(4096, size), "EINVAL")
refused(lambda: h.pread(4096, size - 1), "EINVAL")
refused(lambda: h.pwrite(b"a" * 512, size), "ENOSPC")
refused(lambda: h.pwrite(b"a" * 512, size - 100), "ENOSPC")
refused(lambda: h.pwrite(b"a" * 512, (1 << 63) - 512), "ENOSPC", "EINVAL")
refused(lambda: h.zero(4096, size), "ENOSPC", "EINVAL")
refused(lambda: h.trim(4096, size), "EINVAL")
refused(lambda: h.cache(4096, size), "EINVAL")
refused(lambda: h.pread(0, 0), "EINVAL") if False else None
refused(lambda: h.pread(16, 0, flags=0x8000), "EINVAL")
refused(lambda: h.flush(flags=0x4000), "EINVAL")
# The stream goes on: the payload of a refused write was drained.
h.pwrite(b"still here", 12345)
assert h.pread(10, 12345) == b"still here"
# Length 0 is legal for a client not to send; whatever the answer, the stream goes on.
for what in (lambda: h.pread(0, 0), lambda: h.pwrite(b"", 0), lambda: h.zero(0, 0)):
    try:
        what()
    except nbd.Error as error:
        assert error.errno == "EINVAL", error
assert h.pread(10, 12345) == b"still here"
print("done")
"""
    with served() as cell:
        contains(nbdsh(cell, script), "done", "nbdsh")
        cell.stop()


@test
def a_write_without_flush_survives_kill_9():
    write = r"""
import random
rng = random.Random(9)
for i in range(200):
    h.pwrite(rng.randbytes(rng.choice([1, 100, 4096, 10000])), i * 16384 + rng.randrange(1000))
h.pwrite(b"new bytes", 1 << 20)
h.zero(70000, 5 << 20)
print("written")
"""
    with served() as cell:
        run(["qemu-io", "-f", "raw", "-c", "write -P 1 0 8M", "-c", "flush", cell.uri()])
        # What is overwritten has been in the cache, so an old copy could come back.
        for _ in range(2):
            run(["qemu-io", "-f", "raw", "-r", "-c", "read -P 1 0 8M", cell.uri()])
            nbdsh(cell, "for i in range(2048): h.pread(4096, i * 4096)")
        contains(nbdsh(cell, write), "written", "nbdsh")
        cell.kill()
        cell.start()
        check_script = r"""
import random
rng = random.Random(9)
model = bytearray(b"\1" * (8 << 20))
for i in range(200):
    data = rng.randbytes(rng.choice([1, 100, 4096, 10000])); at = i * 16384 + rng.randrange(1000)
    model[at:at + len(data)] = data
model[1 << 20:(1 << 20) + 9] = b"new bytes"
model[5 << 20:(5 << 20) + 70000] = bytes(70000)
for again in range(3):
    for at in range(0, 8 << 20, 1 << 16):
        assert h.pread(1 << 16, at) == model[at:at + (1 << 16)], (again, at)
print("read back")
"""
        contains(nbdsh(cell, check_script), "read back", "nbdsh after the restart")
        cell.stop()


@test
def the_instance_stamp_changes_with_a_crash_only_when_it_must():
    need("nbdinfo")
    with served() as cell:

        def stamp():
            contexts = json.loads(run(["nbdinfo", "--no-content", "--json", cell.uri()]).stdout)["exports"][0]["contexts"]
            return next(name for name in contexts if name.startswith("flashcell:instance:"))

        first = stamp()
        equal(stamp(), first, "stamp of the next connection")
        cell.kill()
        cell.start()
        # kill -9 cannot be told from a power cut by what is on the devices: the stamp must change.
        check(stamp() != first, "the stamp is the same after a crash")
        cell.stop()


@test
def qemu_img_convert_compare_map():
    need("qemu-img", "qemu-io")
    with served() as cell:
        source = cell.place.file("in.raw", pattern("qemu", 20 * MIB) + bytes(24 * MIB) + pattern("x", 20 * MIB))
        run(["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, cell.uri()])
        run(["qemu-img", "compare", "-f", "raw", "-F", "raw", source, cell.uri()])
        info = json.loads(run(["qemu-img", "info", "--output=json", cell.uri()]).stdout)
        equal(info["virtual-size"], 64 * MIB, "virtual size")
        mapped = json.loads(run(["qemu-img", "map", "--output=json", "-f", "raw", cell.uri()]).stdout)
        equal(sum(extent["length"] for extent in mapped), 64 * MIB, "map covers the disk")
        copy = cell.place.path("copy.qcow2")
        run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-W", "-m", "16", cell.uri(), copy])
        run(["qemu-img", "compare", "-F", "raw", "-f", "qcow2", copy, cell.uri()])
        run(["qemu-io", "-f", "raw", "-c", "write -P 99 30M 4k", "-c", "flush", cell.uri()])
        done = run(["qemu-img", "compare", "-f", "raw", "-F", "raw", source, cell.uri()], ok=False)
        equal(done.returncode, 1, "compare finds the difference")
        cell.stop()


@test
def qemu_io_patterns():
    need("qemu-io")
    with served() as cell:
        commands = [
            "write -P 0x11 0 1M",
            "write -P 0x22 12345 54321",
            "write -z 100000 200000",
            "write -zu 2M 1M",
            "write -f -P 0x33 3M 512",
            "aio_write -P 0x44 4M 64k",
            "aio_write -P 0x55 4160k 64k",
            "aio_flush",
            "flush",
            "discard 8M 1M",
            "read -P 0x11 0 12345",
            "read -P 0x22 12345 54321",
            "read -P 0x11 66666 33334",
            "read -P 0 100000 200000",
            "read -P 0x11 300000 748576",
            "read -P 0 2M 1M",
            "read -P 0x33 3M 512",
            "read -P 0x44 4M 64k",
            "read -P 0x55 4160k 64k",
            "read -P 0x11 1000 1",
        ]
        arguments = [word for command in commands for word in ("-c", command)]
        out = run(["qemu-io", "-f", "raw", "-t", "none", *arguments, cell.uri()])
        check("verification failed" not in out.stdout, f"a pattern is wrong:\n{out.stdout}")
        cell.kill()
        cell.start()
        reads = [word for command in commands if command.startswith("read") for word in ("-c", command)]
        out = run(["qemu-io", "-f", "raw", *reads, cell.uri()])
        check("verification failed" not in out.stdout, f"a pattern is wrong after a crash:\n{out.stdout}")
        cell.stop()


def fio(cell, name, *options):
    command = ["fio", f"--name={name}", "--ioengine=nbd", "--minimal", *options]
    run(command, cwd=cell.place.dir)


@test
def fio_verifies_random_blocks_on_two_connections():
    need("fio")
    with served(flash=("48M",)) as cell:
        uri = "--uri=" + cell.uri().replace("&", "\\&")
        # Each job has a connection and a half of the disk; blocks from 512 bytes to 256 KiB, off any grid.
        for seed in (1, 2):
            fio(
                cell,
                "verify",
                uri,
                "--numjobs=2",
                "--size=32m",
                "--offset_increment=32m",
                "--rw=randrw",
                "--bsrange=512-256k",
                "--bs_unaligned=1",
                "--iodepth=16",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--do_verify=1",
                "--verify_backlog=64",
                "--io_size=24m",
                f"--randseed={seed}",
                "--thread=1",
            )
        cell.check_alive()
        hits = cell.metric("FC_IO_RQ_R")
        check(hits > 0, "no read was served from flash: the run tested nothing of the cache")
        cell.stop()


@test
def fio_verifies_small_blocks_after_a_crash():
    need("fio")
    for mode in MODES:
        with served(flash=("48M",), griddisks=(f"data:64M:data:{mode}",)) as cell:
            uri = "--uri=" + cell.uri()
            common = [uri, "--size=16m", "--bs=4k", "--iodepth=32", "--verify=crc32c", "--verify_fatal=1", "--thread=1"]
            fio(cell, "w", "--rw=randwrite", "--do_verify=0", "--randseed=3", "--end_fsync=1", *common)
            cell.kill()
            cell.start()
            fio(cell, "w", "--rw=randwrite", "--verify_only=1", "--randseed=3", *common)
            cell.stop()


@test
def two_clients_see_each_other_s_writes():
    """CAN_MULTI_CONN: a flush on one connection covers the other's writes; a reply makes a write visible to both."""
    need("nbdsh")
    script = r"""
import nbd, random
other = nbd.NBD(); other.connect_uri(URI)
rng = random.Random(3)
for step in range(300):
    a, b = (h, other) if step % 2 else (other, h)
    data = rng.randbytes(rng.choice([512, 4096, 5000])); at = rng.randrange(1 << 20)
    a.pwrite(data, at)
    assert b.pread(len(data), at) == data, step
    if step % 50 == 0: b.flush()
print("done")
"""
    with served() as cell:
        contains(nbdsh(cell, script.replace("URI", repr(cell.uri()))), "done", "nbdsh")
        cell.stop()


@test
def tcp_serves_the_same():
    need("nbdcopy", "nbdinfo")
    with served() as cell:
        cell.stop()
        cell.edit(lambda text: text.replace('nbd = ["unix:nbd.sock"]', 'nbd = ["unix:nbd.sock", "tcp-plain:127.0.0.1:0"]'))
        cell.start()
        address = next(w for w in cell.ready_line.split() if w.startswith("nbd=tcp:")).removeprefix("nbd=tcp:")
        source = cell.place.file("in", pattern("tcp", 64 * MIB))
        run(["nbdcopy", source, f"nbd://{address}/data"])
        target = cell.place.path("out")
        run(["nbdcopy", "--connections=2", f"nbd://{address}/data", target])
        run(["cmp", source, target])
        cell.stop()
