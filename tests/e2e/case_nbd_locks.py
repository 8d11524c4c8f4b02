"""The locks of the NBD doors: who may use which grid disk, and who may only read."""

import json
import os
import pwd

import nbdclient
from harness import Skip, contains, equal, need, pattern, refusal, run, served, test

# A user of every Debian that owns nothing.
OTHER = "nobody"


def as_other(command, **options):
    """Run a command as a user who is neither root nor the cell's."""
    if os.getuid() != 0:
        raise Skip("another user can only be tried as root")
    who = pwd.getpwnam(OTHER)
    return run(command, user=who.pw_uid, group=who.pw_gid, extra_groups=[], **options)


def opened(cell):
    """The socket as an operator opens it to other users: it, and the way to it."""
    os.chmod(cell.socket, 0o666)
    path = os.path.dirname(cell.socket)
    while path not in ("/", "/tmp"):
        os.chmod(path, os.stat(path).st_mode | 0o011)
        path = os.path.dirname(path)


def exports(cell, runner=run):
    listed = runner(["nbdinfo", "--list", "--json", f"nbd+unix:///?socket={cell.socket}"]).stdout
    return sorted(export["export-name"] for export in json.loads(listed)["exports"])


@test
def exports_are_for_the_users_they_name():
    need("nbdinfo", "nbdcopy")
    disks = ("data:32M", "theirs:16M", "bobs:16M")
    with served(griddisks=disks) as cell:
        cell.cellcli(f"alter griddisk theirs availableTo='SALES,{OTHER}'")
        cell.cellcli("alter griddisk bobs availableTo='bob'")
        opened(cell)
        equal(exports(cell), ["bobs", "data", "theirs"], "exports for root")
        equal(exports(cell, as_other), ["data", "theirs"], "exports for another user")
        for name in ("data", "theirs"):
            as_other(["nbdinfo", "--size", cell.uri(name)])
        # A grid disk that is for others and one that is not there are one answer; a tag is no key.
        for name in ("bobs", "bobs@bob", "nosuch", "nosuch@bob"):
            told = refusal(["nbdinfo", "--size", cell.uri(name)], as_other)
            contains(told, f"no grid disk {name} for this client; hint: there is data, theirs", f"answer for {name}")
        # By number as well; the change counts for the next connection, and outlasts a restart.
        cell.cellcli(f"alter griddisk bobs availableTo='{pwd.getpwnam(OTHER).pw_uid}'")
        as_other(["nbdinfo", "--size", cell.uri("bobs")])
        cell.cellcli("alter griddisk data availableTo='bob'")
        cell.stop()
        cell.start()
        opened(cell)
        equal(exports(cell, as_other), ["bobs", "theirs"], "exports after a restart")
        # Without a list it is there for all again.
        cell.cellcli("alter griddisk data availableTo=''")
        equal(exports(cell, as_other), ["bobs", "data", "theirs"], "exports once the list is gone")
        cell.stop()


@test
def a_read_only_grid_disk_is_announced_and_kept():
    need("nbdinfo", "nbdcopy")
    with served(griddisks=("data:16M", "other:16M")) as cell:
        source = cell.place.file("in", pattern("locks", 1 << 20))
        run(["nbdcopy", source, cell.uri()])
        before = nbdclient.Client(cell.socket)
        before.write(0, b"x" * 512)
        equal(cell.json("list griddisk data attributes readOnly")[0]["readOnly"], "FALSE", "at first")
        cell.cellcli("alter griddisk data readOnly=true")
        # Whoever was there is refused from now on, and may go on reading.
        for command in (dict(command=nbdclient.WRITE, data=b"y" * 512), dict(command=nbdclient.TRIM, length=4096),
                        dict(command=nbdclient.ZEROES, length=4096)):
            equal(before.call(**command)[0], 1, f"EPERM for {command['command']}")
        equal(before.read(0, 512), b"x" * 512, "what it reads")
        before.flush()
        before.disconnect()
        info = json.loads(run(["nbdinfo", "--no-content", "--json", cell.uri()]).stdout)["exports"][0]
        equal(info["is_read_only"], True, "is announced")
        run(["nbdcopy", source, cell.uri()], ok=False)
        run(["nbdcopy", source, cell.uri("other")])
        cell.stop()
        cell.start()
        equal(cell.json("list griddisk data attributes readOnly")[0]["readOnly"], "TRUE", "after a restart")
        run(["nbdcopy", source, cell.uri()], ok=False)
        cell.cellcli("alter griddisk data readOnly=false")
        run(["nbdcopy", source, cell.uri()])
        cell.stop()
