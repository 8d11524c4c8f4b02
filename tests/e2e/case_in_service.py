"""Taking grid disks and the cell out of service, as rolling maintenance does: ALTER GRIDDISK INACTIVE and ACTIVE, ALTER CELL ... SERVICES."""

import contextlib
import fcntl
import os

import nbdclient
from harness import check, contains, equal, pattern, served, test, wait_until

WRITE_BACK = "data:64M:data:write-back"


def state(cell, name="data"):
    row = cell.json(f"list griddisk {name} attributes status, asmDeactivationOutcome")[0]
    return row["status"], row["asmDeactivationOutcome"]


def write_small(client, data, piece=65536):
    """In pieces that flash takes: longer ones go to the disk."""
    for at in range(0, len(data), piece):
        client.write(at, data[at : at + piece])


def refused_export(cell, name="data"):
    try:
        nbdclient.Client(cell.socket, export=name).disconnect()
    except nbdclient.Refused as error:
        return str(error)
    return ""


@test
def an_inactive_grid_disk_is_withdrawn_until_it_is_active():
    with served(griddisks=(WRITE_BACK, "other:32M")) as cell:
        equal(state(cell), ("active", "Yes"), "state of an idle grid disk")
        data = pattern(1, 1 << 20)
        client = nbdclient.Client(cell.socket)
        write_small(client, data)
        # The two agree: what the attribute says no to is refused.
        status, outcome = state(cell)
        equal(status, "active", "status")
        contains(outcome, "connections that use it: 1", "asmDeactivationOutcome")
        done = cell.cellcli("alter griddisk data inactive", ok=False)
        contains(done.stderr, "CELL-09009", "message")
        contains(done.stderr, "FORCE", "hint")
        equal(client.read(0, len(data)), data, "the client goes on")
        client.disconnect()
        wait_until(lambda: state(cell)[1] == "Yes", 20, "the connection is gone")
        check(cell.metric("GD_BY_FC_DIRTY", "data") > 0, "data is dirty on flash")

        contains(cell.cellcli("alter griddisk data inactive").stdout, "GridDisk data successfully altered", "answer")
        equal(state(cell), ("inactive", "Yes"), "state")
        equal(cell.metric("GD_BY_FC_DIRTY", "data"), 0, "dirty data of an inactive grid disk")
        contains(refused_export(cell), "ALTER GRIDDISK data ACTIVE", "the refusal of the export")
        check(refused_export(cell, "other") == "", "other grid disks are served")
        # Again changes nothing, and so does a crash.
        cell.cellcli("alter griddisk data inactive")
        cell.kill()
        cell.start()
        equal(state(cell), ("inactive", "Yes"), "state after kill -9")
        contains(refused_export(cell), "inactive", "the refusal of the export after kill -9")
        cell.cellcli("alter griddisk data active")
        equal(state(cell)[0], "active", "status")
        cell.kill()
        cell.start()
        client = nbdclient.Client(cell.socket)
        equal(client.read(0, len(data)), data, "content")
        client.disconnect()
        cell.stop()


@test
def force_ends_connections_once_their_writes_are_answered():
    with served(griddisks=(WRITE_BACK,)) as cell:
        client = nbdclient.Client(cell.socket)
        blocks = {number: pattern(number, 65536) for number in range(32)}
        cookies = {client.submit(nbdclient.WRITE, number * 65536, data=data): number for number, data in blocks.items()}
        cell.cellcli("alter griddisk data inactive force")
        equal(state(cell), ("inactive", "Yes"), "state")
        acknowledged = []
        with contextlib.suppress(nbdclient.Gone):
            while True:
                cookie, error, _ = client.reply()
                if not error:
                    acknowledged.append(cookies[cookie])
        equal(cell.metric("GD_BY_FC_DIRTY", "data"), 0, "dirty data")
        cell.kill()
        cell.start()
        cell.cellcli("alter griddisk all active")
        client = nbdclient.Client(cell.socket)
        for number in acknowledged:
            equal(client.read(number * 65536, 65536), blocks[number], f"block {number}, which was acknowledged")
        client.disconnect()
        cell.stop()


@test
def nowait_leaves_dirty_data_on_flash_for_later():
    with served(griddisks=(WRITE_BACK,)) as cell:
        client = nbdclient.Client(cell.socket)
        data = pattern(2, 1 << 20)
        write_small(client, data)
        client.flush()
        client.disconnect()
        wait_until(lambda: state(cell)[1] == "Yes", 20, "the connection is gone")
        cell.cellcli("alter griddisk data inactive nowait")
        equal(state(cell), ("inactive", "Yes"), "state")
        # All of it is there, wherever it is by now.
        cell.cellcli("alter griddisk data active")
        client = nbdclient.Client(cell.socket)
        equal(client.read(0, len(data)), data, "content")
        client.disconnect()
        cell.stop()


@test
def an_attached_grid_disk_stays_in_service():
    """An attachment that writes holds a lock in the cell's directory, signed: taken here in its place, for it needs root."""
    with served() as cell:
        with open(os.path.join(cell.dir, "attach-data.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write("process 1, recorded in nowhere")
            lock.flush()
            contains(state(cell)[1], "attached by process 1", "asmDeactivationOutcome")
            done = cell.cellcli("alter griddisk data inactive", ok=False)
            contains(done.stderr, "flashcell detach data", "hint")
            equal(state(cell)[0], "active", "status")
            cell.cellcli("alter griddisk data inactive force")
        equal(state(cell), ("inactive", "Yes"), "state")
        cell.stop()


@test
def services_are_stopped_and_started_again():
    with served(griddisks=(WRITE_BACK,)) as cell:
        client = nbdclient.Client(cell.socket)
        data = pattern(3, 65536)
        client.write(0, data)
        for action in ("shutdown", "restart"):
            done = cell.cellcli(f"alter cell {action} services all", ok=False)
            contains(done.stderr, "clients are connected to grid disk data", "message")
        equal(client.read(0, len(data)), data, "the client goes on")
        for statement, part in (
            ("shutdown services ms", "SHUTDOWN SERVICES ALL"),
            ("restart services rs", "no restart server"),
        ):
            contains(cell.cellcli(f"alter cell {statement}", ok=False).stderr, part, statement)
        contains(cell.cellcli("alter cell startup services all").stdout, "running already", "answer")
        contains(cell.cellcli("alter cell restart services ms").stdout, "RESTART of MS services was successful", "answer")
        client.disconnect()

        # The process stays the same: whatever supervises it goes on doing so.
        stamp = cell.json("list cell attributes instanceStamp")[0]["instanceStamp"]
        began = started(cell)
        contains(cell.cellcli("alter cell restart services all force").stdout, "Restarting ALL services...", "answer")
        wait_until(lambda: started(cell) not in (None, began), 60, "the cell is there again")
        cell.check_alive()
        equal(cell.json("list cell attributes instanceStamp")[0]["instanceStamp"], stamp, "stamp after a clean stop")
        client = nbdclient.Client(cell.socket)
        equal(client.read(0, len(data)), data, "content")
        client.disconnect()
        cell.check_alive()

        contains(cell.cellcli("alter cell shutdown services cellsrv force").stdout, "Stopping CELLSRV services...", "answer")
        equal(cell.process.wait(timeout=60), 0, "exit code")
        cell.process = None
        cell.start()
        cell.stop()


def started(cell):
    """When the cell began to serve, as its log tells; None while it does not answer."""
    if not cell.alive() or "serving" not in cell.log():
        return None
    with contextlib.suppress(Exception):
        cell.json("list cell")
        return cell.log().count("serving")
    return None
