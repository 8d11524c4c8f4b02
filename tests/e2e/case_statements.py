"""The field's own statements, as they stand, and what the language has beyond them, against a running cell."""

import os
import re
import threading

import nbdclient
from harness import MIB, Place, binary, check, contains, equal, run, served, test, wait_until


def field_cell(place, **options):
    return place.cell(name="exa1cel01", flash=("96M", "96M"), **options).start()


@test
def flash_beside_the_cache_as_the_field_did_it():
    """S4: `drop flashcache`, `create flashcache all size=288g`, `create griddisk all flashdisk prefix=ssddisk`."""
    with Place("s4") as place:
        cell = field_cell(place)
        equal(cell.cellcli("drop flashcache").stdout, "Flash cache exa1cel01_FLASHCACHE successfully dropped\n", "answer")
        # The device is smaller: the error names the largest size possible, which then works as it stands.
        error = cell.cellcli("create flashcache all size=288g", ok=False).stderr
        contains(error, "CELL-09012: size=288G is more than the flash has free: the largest possible is ", "error")
        largest = re.search(r"the largest possible is (\S+)\.\n", error).group(1)
        done = "Flash cache exa1cel01_FLASHCACHE successfully created\n"
        equal(cell.cellcli(f"create flashcache all size={largest}").stdout, done, "answer")
        cell.cellcli("drop flashcache")
        equal(cell.cellcli("create flashcache all size=96m").stdout, done, "answer")
        out = cell.cellcli("create griddisk all flashdisk prefix=ssddisk").stdout
        names = [row["name"] for row in cell.json("list griddisk where diskType = FlashDisk")]
        equal(names, ["ssddisk_FD_00_exa1cel01", "ssddisk_FD_01_exa1cel01"], "grid disks on flash")
        equal(out, "".join(f"GridDisk {name} successfully created\n" for name in names), "answer")
        client = nbdclient.Client(cell.socket, export=names[0])
        client.write(0, b"ssd" * 1000)
        equal(client.read(0, 3000), b"ssd" * 1000, "content of a grid disk on flash")
        client.disconnect()
        cell.kill()
        cell.start()
        equal(len(cell.json("list griddisk where diskType = FlashDisk")), 2, "grid disks after kill -9")
        equal(cell.cellcli("list metriccurrent where objectType='FLASHLOG'").stdout, "", "no flash log, no rows")
        modes = {row["cachingMode"] for row in cell.json("list griddisk where diskType = FlashDisk attributes cachingMode")}
        equal(modes, {"none"}, "caching of what lies on flash already")
        cell.cellcli("drop griddisk all flashdisk prefix=ssddisk")
        cell.cellcli("drop flashcache")
        equal(cell.cellcli("create flashcache all").stdout, done, "answer")
        cell.stop()


@test
def the_mode_of_the_cache_is_switched_for_all_data_at_once():
    with Place("mode") as place:
        cell = field_cell(place, griddisks=("data:64M", "sales:32M", "log:32M:redo", "spare:16M:data:none"))

        def modes():
            return {row["name"]: row["cachingMode"] for row in cell.json("list griddisk attributes name, cachingMode")}

        through = {"data": "write-through", "sales": "write-through", "log": "none", "spare": "none"}
        equal(modes(), through, "modes at first")
        client = nbdclient.Client(cell.socket)
        equal(cell.cellcli("alter cell flashCacheMode=WriteBack").stdout, "Cell exa1cel01 successfully altered\n", "answer")
        back = {**through, "data": "write-back", "sales": "write-back"}
        equal(modes(), back, "redo and what is not cached stay as they are")
        equal(cell.json("list cell attributes flashCacheMode"), [{"flashCacheMode": "WriteBack"}], "CELL")
        client.write(0, b"dirty---" * 512)
        check(cell.metric("FC_BY_DIRTY") > 0, "a write is dirty on flash")
        client.disconnect()
        cell.cellcli("create griddisk later celldisk=CD_00_exa1cel01, size=16M")
        equal(modes()["later"], "write-back", "a grid disk made since")
        cell.kill()
        cell.start()
        equal(modes(), {**back, "later": "write-back"}, "modes after kill -9")
        for statement in ("alter flashcache all flush", "alter flashcache all cancel flush"):
            equal(cell.cellcli(statement).stdout, "Flash cache exa1cel01_FLASHCACHE successfully altered\n", statement)
        client = nbdclient.Client(cell.socket)
        client.write(MIB, b"more----" * 512)
        cell.cellcli("alter cell flashCacheMode=WriteThrough")
        equal(modes(), {**through, "later": "write-through"}, "and back, with a client at work")
        equal(cell.metric("FC_BY_DIRTY"), 0, "dirty data")
        equal(client.read(0, 4096) + client.read(MIB, 4096), b"dirty---" * 512 + b"more----" * 512, "content")
        client.disconnect()
        # In write-back in flush order too, whose journals go.
        cell.cellcli("alter griddisk data cachingMode=write-back-ordered")
        cell.cellcli("alter cell flashCacheMode=WriteThrough")
        equal(modes(), {**through, "later": "write-through"}, "from flush order")
        cell.kill()
        cell.start()
        equal(modes(), {**through, "later": "write-through"}, "modes after kill -9")
        client = nbdclient.Client(cell.socket)
        equal(client.read(0, 4096) + client.read(MIB, 4096), b"dirty---" * 512 + b"more----" * 512, "content after it")
        client.disconnect()
        cell.stop()


@test
def order_limit_or_and_in():
    with served(griddisks=("a:16M", "b:32M", "c:48M")) as cell:

        def names(rest):
            return "".join(row["name"] for row in cell.json(f"list griddisk {rest}"))

        equal(names("order by size desc"), "cba", "ORDER BY")
        equal(names("order by size limit 2"), "ab", "LIMIT")
        equal(names("where name = a or name = c"), "ac", "OR")
        equal(names("where (name = a or name = c) and size > 16M"), "c", "parentheses")
        equal(names("where name in (b, c)"), "bc", "IN")
        equal(names("where name not in (b, c)"), "a", "NOT IN")
        equal(names("where size >= 32M and size <= 32M"), "b", ">= and <=")
        rows = cell.json("list metriccurrent GD_IO_RQ_R_SM attributes description, unit, age where metricObjectName = a")
        equal(rows, [{"description": "small reads of a grid disk", "unit": "IO requests", "age": 0}], "the join")
        cell.stop()


@test
def devices_below_the_cell_disks():
    with served(flash=("96M",)) as cell:
        rows = cell.json("list physicaldisk attributes name, cellDisk, diskType, status, physicalSize, luns")
        equal([(row["cellDisk"], row["diskType"], row["status"]) for row in rows],
              [("CD_00_cell", "HardDisk", "normal"), ("FD_00_cell", "FlashDisk", "normal")], "physical disks")
        equal([row["physicalSize"] for row in rows], [256 * MIB, 96 * MIB], "their sizes")
        check(all(row["luns"] == [row["name"]] for row in rows), "a LUN each")
        luns = cell.json("list lun attributes name, cellDisk, lunSize")
        equal([(row["name"], row["lunSize"]) for row in luns], [(row["name"], row["physicalSize"]) for row in rows], "LUNs")
        equal(cell.json("list celldisk attributes physicalDisk"), [{"physicalDisk": row["name"]} for row in rows], "CELLDISK")
        cell.stop()


@test
def scripts_of_the_session():
    """SPOOL, SET, START and @, REM and continuation lines."""
    with served(griddisks=("a:16M",)) as cell:
        inner = cell.place.file("inner.scl", b"rem a comment\nlist griddisk -\n  attributes name, -\n  size;\n")
        spool = cell.place.path("spool")
        script = f"set echo on\nset dateformat standard\nspool {spool}\n@{inner}\nstart {inner}\nspool off\nlist cell\nexit\nlist griddisk\n"
        done = run([binary(), "cellcli", "-c", cell.dir, "-n", "-x"], input=script)
        with open(spool) as file:
            spooled = file.read()
        equal(spooled.count("\t a\t 16M\n"), 2, f"rows in {spooled!r}")
        equal(done.stdout.count("\t a\t 16M\n"), 2, f"rows in {done.stdout!r}")
        contains(done.stdout, "online", "LIST CELL, not spooled")
        check("online" not in spooled, "what came after SPOOL OFF")
        cell.stop()


@test
def requests_under_way_and_what_is_on_flash():
    with Place("activity") as place:
        cell = place.cell(griddisks=("data:64M",), model="sata-7200").start()
        stop = threading.Event()

        def reads():
            client = nbdclient.Client(cell.socket, export="data@SALES")
            offset = 0
            while not stop.is_set():
                client.read(offset % (32 * MIB), 64 << 10)
                offset += 64 << 10
            client.disconnect()

        reader = threading.Thread(target=reads)
        reader.start()
        try:
            rows = wait_until(lambda: cell.json("list activerequest attributes all"), 30, "a request under way")
            row = rows[0]
            got = (row["ioType"], row["ioBytes"], row["ioGridDisk"], row["dbName"], row["requestState"])
            equal(got, ("read", 64 << 10, "data", "SALES", "active"), "the request")
            check(row["ioOffset"] % (64 << 10) == 0 and row["age"] >= 0, f"where, and since when: {row}")
            contains(cell.cellcli("calibrate", ok=False).stderr, "CELL-09009: the cell serves 1 connections", "CALIBRATE")
        finally:
            stop.set()
            reader.join()
        rows = wait_until(lambda: cell.json("list flashcachecontent attributes all"), 30, "something in the cache")
        used = sum(row["cachedSize"] for row in rows)
        equal(used, cell.metric("FC_BY_USED") * MIB, "bytes of all ranges and of the whole cache")
        check(all(row["name"] == "data" and row["length"] == MIB and row["offset"] % MIB == 0 for row in rows), "ranges")
        check(all(row["cachedWriteSize"] == 0 and row["missCount"] > 0 for row in rows), "nothing dirty, and misses")
        equal(cell.json("list activerequest"), [], "requests when nobody asks for anything")
        cell.stop()


@test
def calibrate_reads_every_device():
    with served() as cell:
        out = cell.cellcli("calibrate").stdout
        for media in ("hard disk", "flash disk"):
            found = re.search(rf"Aggregate random read IOs per second \(IOPS\) across all {media} LUNs: (\d+)\n", out)
            check(found and int(found.group(1)) > 0, f"{media}: {out}")
            check(re.search(rf"Aggregate sequential read throughput across all {media} LUNs: [1-9]\d* MBPS\n", out), out)
        equal(len(re.findall(r"(?m)^LUN /\S+ sequential read throughput: \d+ MBPS, random reads: \d+ IOPS$", out)), 2, "devices")
        done = run([binary(), "cellcli", "-c", cell.dir, "-m", "-e", "calibrate"], ok=False)
        contains(done.stderr, "CELL-09011", "in a monitor's session")
        contains(open(os.path.join(cell.dir, "audit.log")).read(), "CALIBRATE", "audit log")
        cell.stop()
