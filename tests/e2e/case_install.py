"""What a supervisor hears of a cell, and what `make install` and the Debian package put in place."""

import os
import select
import signal
import socket
import time

from harness import MIB, QUIET, ROOT, Cell, Place, Skip, binary, check, contains, equal, need, run, test, wait_until

PACKAGE_BYTES_MAX = 20 * MIB
WATCHDOG_SECONDS = 1.5


class Supervisor:
    """Stands where systemd does: hears what is told at $NOTIFY_SOCKET."""

    def __init__(self, place):
        self.path = place.path("notify.sock")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.heard = []
        place.cleanups.append(self.socket.close)

    def environment(self, watchdog=False):
        more = {"WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6))} if watchdog else {}
        return dict(os.environ, NOTIFY_SOCKET=self.path, **more)

    def hear(self, seconds):
        """All lines that come within so long."""
        lines, end = [], time.monotonic() + seconds
        while select.select([self.socket], [], [], max(0, end - time.monotonic()))[0]:
            lines += self.socket.recv(4096).decode().splitlines()
        self.heard += lines
        return lines

    def until(self, line, seconds):
        wait_until(lambda: line in self.hear(0.05), seconds, f"the supervisor hears {line}")


@test
def a_supervisor_hears_when_a_cell_is_ready_and_when_it_stops():
    with Place("supervised") as place:
        supervisor, cell = Supervisor(place), place.cell()
        cell.start(env=supervisor.environment())
        supervisor.until("READY=1", 10)
        contains(supervisor.heard, "STATUS=serving 1 grid disks", "what it hears of the cell")
        # A start anew is no stop: a supervisor that heard of one would wait for the end of the process.
        cell.cellcli("alter cell restart services all")
        supervisor.heard.clear()
        supervisor.until("READY=1", 60)
        check("STOPPING=1" not in supervisor.heard, f"a restart is no stop: {supervisor.heard}")
        cell.stop()
        supervisor.hear(0.5)
        contains(supervisor.heard, "STOPPING=1", "what it hears at the stop")
        check(any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in supervisor.heard), "how long the stop may take")
        check("WATCHDOG=1" not in supervisor.heard, "nobody asked for the watchdog")


@test
def a_disk_that_hangs_does_not_trip_the_watchdog():
    need("nbdkit", "nbdinfo", "qemu-io")
    with Place("watchdog") as place:
        path = place.path("disk.sock")
        server = place.spawn(["nbdkit", "-f", "-U", path, "memory", "256M"], **QUIET)
        wait_until(lambda: os.path.exists(path), 10, "nbdkit listens")
        supervisor, cell = Supervisor(place), Cell(place, disks=(f"nbd+unix:///?socket={path}",), flash=())
        cell.start(env=supervisor.environment(watchdog=True))
        supervisor.until("WATCHDOG=1", 10)
        server.send_signal(signal.SIGSTOP)
        reader = place.spawn(["qemu-io", "-r", "-f", "raw", "-c", "read 0 4k", cell.uri()], **QUIET)
        lines = supervisor.hear(3 * WATCHDOG_SECONDS)
        check(lines.count("WATCHDOG=1") >= 4, f"the cell lives while its disk hangs: {lines}")
        equal(reader.poll(), None, "the read of the disk that hangs")
        server.send_signal(signal.SIGCONT)
        equal(reader.wait(timeout=60), 0, "the read once the disk answers")
        # A process that hangs is another matter.
        cell.process.send_signal(signal.SIGSTOP)
        supervisor.hear(0.2)
        equal(supervisor.hear(WATCHDOG_SECONDS), [], "what a process that is stopped tells")
        cell.process.send_signal(signal.SIGCONT)
        supervisor.until("WATCHDOG=1", 10)
        cell.stop()


def installed(place):
    need("make", "strip")
    if "FLASHCELL" in os.environ:
        raise Skip("$FLASHCELL names another program than the one that make installs")
    root = place.path("root")
    run(["make", "-C", ROOT, "-o", "build", "install", f"DESTDIR={root}", "PREFIX=/usr"])
    return root


def files(root):
    found = set()
    for at, _, names in os.walk(root):
        found |= {os.path.relpath(os.path.join(at, name), root) for name in names}
    return found


@test
def install_puts_everything_in_place_and_uninstall_takes_it_away():
    with Place("install") as place:
        root = installed(place)
        found = files(root)
        program = os.path.join(root, "usr/bin/flashcell")
        equal(run([program, "--version"]).stdout, run([binary(), "--version"]).stdout, "the program installed")
        contains(run([os.path.join(root, "usr/bin/cellcli"), "--help"]).stdout, "Usage: cellcli", "cellcli by its name")
        for name in ("flashcell", "flashcell-serve", "flashcell-attach", "flashcell-lab-policies", "cellcli"):
            with open(os.path.join(root, f"usr/share/man/man1/{name}.1")) as file:
                contains(file.read(), ".TH", f"the man page {name}")
        hidden = [name for name in found if "keeper" in name or "driver" in name or name.endswith("manual.1")]
        equal(hidden, [], "man pages of what is not for people")
        for shell, path in (("bash", "bash-completion/completions/flashcell.bash"), ("zsh", "zsh/site-functions/_flashcell"), ("fish", "fish/vendor_completions.d/flashcell.fish")):
            check(f"usr/share/{path}" in found, f"the completion of {shell}")
        completion = os.path.join(root, "usr/share/bash-completion/completions/flashcell.bash")
        asked = f'. {completion}; COMP_WORDS=(flashcell att); COMP_CWORD=1; _flashcell flashcell att flashcell; echo "${{COMPREPLY[@]}}"'
        equal(run(["bash", "-c", asked]).stdout.split(), ["attach"], "what bash completes")
        run(["make", "-C", ROOT, "uninstall", f"DESTDIR={root}", "PREFIX=/usr"])
        equal(files(root), set(), "what uninstall leaves")


@test
def the_units_and_rules_are_what_systemd_takes():
    need("systemd-analyze")
    with Place("units") as place:
        root = installed(place)
        units = [os.path.join(root, "usr/lib/systemd/system", name) for name in ("flashcell@.service", "flashcell-attach@.service")]
        for unit in units:
            text = open(unit).read()
            path = place.path(os.path.basename(unit).replace("@", "@cell"))
            with open(path, "w") as file:
                # The program and its user are not on this host.
                file.write(text.replace("/usr/bin/flashcell", binary()).replace("User=flashcell", "User=root").replace("Group=flashcell", "Group=root"))
            done = run(["systemd-analyze", "verify", "--man=no", path], ok=None)
            told = [line for line in done.stderr.splitlines() if "flashcell" in line]
            equal(told, [], f"what systemd-analyze says of {os.path.basename(unit)}")
        done = run(["systemd-analyze", "security", "--offline=true", "--threshold=40", place.path("flashcell@cell.service")], ok=None)
        if "Unknown" not in done.stderr and "unrecognized" not in done.stderr:
            equal(done.returncode, 0, f"exposure of the cell by systemd-analyze security:\n{done.stdout[-400:]}{done.stderr[-400:]}")


@test
def a_package_has_what_install_has_and_is_newer_by_its_version():
    need("dpkg-deb", "dpkg", "objdump")
    with Place("package") as place:
        root = installed(place)
        out = place.path("out")
        script = os.path.join(ROOT, "scripts/package-deb")
        first = run([script, out]).stdout.strip()
        unpacked = place.path("unpacked")
        run(["dpkg-deb", "-x", first, unpacked])
        equal(files(unpacked), files(root), "the files of the package")
        field = lambda name: run(["dpkg-deb", "-f", first, name]).stdout.strip()
        version = run([binary(), "--version"]).stdout.split()[1]
        equal((field("Package"), field("Version")), ("flashcell", version), "what the package is called")
        contains(field("Depends"), "libc6 (>= 2.", "what it needs")
        check(os.path.getsize(first) <= PACKAGE_BYTES_MAX, f"the package has {os.path.getsize(first) / MIB:.1f} MiB")
        control = place.path("control")
        run(["dpkg-deb", "-e", first, control])
        for name in ("preinst", "postinst", "prerm", "postrm"):
            run(["sh", "-n", os.path.join(control, name)])
            check(os.access(os.path.join(control, name), os.X_OK), f"{name} can be run")
        run(["dpkg", "--compare-versions", version, "lt", f"{version}+1"])
