"""A guest with a kernel of its own: what the host's files make of an initramfs, booted in QEMU, heard over its serial console.

Only the standard library. Nothing is installed on the host and nothing of it is changed; the guest has no network and no disk.
"""

import glob
import gzip
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from typing import NamedTuple

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))

from harness import ROOT, Failure, Place, Skip, binary, need, run  # noqa: E402

# Where scripts/install-test-clients unpacks it.
KERNEL_DIR = os.path.join(ROOT, "target", "guest-kernel")
# The oldest whose nbd has all that is tested (WRITE_ZEROES).
KERNEL_MIN = (6, 12)
PROGRAMS = ("mkfs.ext4", "e2fsck", "resize2fs", "blkdiscard")
MODULES = ("nbd", "loop", "ublk_drv")
MEMORY_MIB = 1536
# Of the time for a test: for the kernel to come up, and to tell what hangs.
BOOT_SECONDS = 30
# Of the console, when something failed.
LINES_TOLD = 150
# A guest whose kernel panics while it comes up is started again, so often at most in all.
BOOTS_MAX = 3
FIRST_PROCESS = "guest: up"
PANIC = re.compile("(Oops|BUG|Kernel panic).*")
# The last line of a guest's script.
END = "exit "


class Extra(NamedTuple):
    """What one script needs beside the others: programs of the host, and modules in the order they are loaded in."""

    programs: tuple[str, ...]
    modules: tuple[str, ...]


class Kernel:
    """A kernel image and its modules, found in a directory a Debian package was unpacked to: $GUEST_KERNEL names another."""

    def __init__(self):
        root = os.environ.get("GUEST_KERNEL") or KERNEL_DIR
        images = sorted(glob.glob(os.path.join(root, "boot", "vmlinuz-*")))
        if not images:
            raise Skip(f"no kernel for a guest in {root} (scripts/install-test-clients)")
        self.image = images[-1]
        self.release = os.path.basename(self.image).removeprefix("vmlinuz-")
        # Packages of Debian 13 and newer have them below usr.
        places = (os.path.join(root, lib, "modules", self.release) for lib in ("lib", "usr/lib"))
        self.modules = next(filter(os.path.isdir, places), root)
        version = tuple(int(part) for part in self.release.split(".")[:2])
        if version < KERNEL_MIN:
            raise Skip(f"the kernel for a guest is {self.release}, and {KERNEL_MIN[0]}.{KERNEL_MIN[1]} is needed")

    def module(self, name):
        """The module, as the kernel loads it; None: it is built in, or there is none."""
        found = glob.glob(os.path.join(self.modules, "kernel", "**", f"{name}.ko*"), recursive=True)
        if not found:
            return None
        with open(found[0], "rb") as file:
            data = file.read()
        return lzma.decompress(data) if found[0].endswith(".xz") else data


class Initramfs:
    """Files in the form the kernel unpacks at boot (cpio, "newc")."""

    def __init__(self):
        self.entries = {}

    def dir(self, path):
        if path and path not in self.entries:
            self.dir(os.path.dirname(path))
            self.entries[path] = (stat.S_IFDIR | 0o755, b"")

    def file(self, path, data, mode=0o755):
        self.dir(os.path.dirname(path))
        self.entries[path] = (stat.S_IFREG | mode, data)

    def link(self, path, target):
        self.dir(os.path.dirname(path))
        self.entries[path] = (stat.S_IFLNK | 0o777, target.encode())

    def program(self, path, source):
        """A program of the host, with the libraries it is linked against where it looks for them."""
        with open(source, "rb") as file:
            self.file(path, file.read())
        for line in run(["ldd", source], ok=None).stdout.splitlines():
            for word in line.split():
                if word.startswith("/") and os.path.exists(word):
                    with open(os.path.realpath(word), "rb") as file:
                        self.file(word.lstrip("/"), file.read())

    def pack(self):
        out = bytearray()
        for number, (path, (mode, data)) in enumerate([*self.entries.items(), ("TRAILER!!!", (0, b""))], 1):
            name = path.encode() + b"\0"
            fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
            out += b"070701" + b"".join(b"%08x" % field for field in fields) + name
            out += bytes(-len(out) % 4)
            out += data
            out += bytes(-len(out) % 4)
        return gzip.compress(bytes(out), 1)


def initramfs(kernel, place, script, seconds, settings, modules=None, programs=PROGRAMS, more=Extra((), ())):
    """Busybox, our program, the file system's programs, modules (each with its name, in the order they are loaded in), and the script to run."""
    made = Initramfs()
    stripped = place.path("flashcell")
    # Debug information is most of it.
    if run(["strip", "-o", stripped, binary()], ok=None).returncode != 0:
        shutil.copy(binary(), stripped)
    made.program("bin/flashcell", stripped)
    made.program("bin/busybox", shutil.which("busybox"))
    made.link("bin/sh", "busybox")
    for program in (*programs, *more.programs):
        path = shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        if path is None:
            raise Skip(f"not installed: {program} (scripts/install-test-clients)")
        made.program(f"sbin/{program}", path)
    if modules is None:
        modules = [(name, data) for name in (*MODULES, *more.modules) if (data := kernel.module(name)) is not None]
    for number, (name, data) in enumerate(modules):
        made.file(f"modules/{number:02}-{name}.ko", data)
    for name in ("init", "lib.sh", script):
        with open(os.path.join(HERE, "inside", name), "rb") as file:
            made.file(name, file.read())
    lines = [f"{key}={value}\n" for key, value in {"SCRIPT": script, "SECONDS_MAX": seconds - BOOT_SECONDS, **settings}.items()]
    made.file("settings", "".join(lines).encode())
    for path in ("proc", "sys", "dev", "tmp", "run", "mnt", "etc"):
        made.dir(path)
    return made.pack()


def boot(place, script, seconds, more=Extra((), ()), **settings):
    """Run a script of `inside/` in a guest; what it reported. Raises Failure when it failed or did not end in time."""
    need("qemu-system-x86_64", "busybox", "strip")
    kernel = Kernel()
    image = place.file("initramfs", initramfs(kernel, place, script, seconds, settings, more=more))
    log = place.path("console")
    # Without -cx16 the kernel panicked now and then.
    command = [
        "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max,-cx16,-erms,-fsrm", "-m", str(MEMORY_MIB), "-smp", "2", "-nodefaults", "-no-user-config",
        "-display", "none", "-nic", "none", "-no-reboot", "-serial", f"file:{log}", "-kernel", kernel.image, "-initrd", image,
        "-append", "console=ttyS0 quiet panic=-1 oops=panic",
    ]  # fmt: skip
    guest, text = booted(lambda: place.spawn(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE), log, seconds)
    lines = [line.strip() for line in text.splitlines()]
    said = [line.removeprefix("guest: ") for line in lines if line.startswith("guest: ")]
    return [kernel.release] + finish(guest, text, said, seconds)


def booted(spawn, log, seconds):
    """Start a guest; the process and what came over its console. One whose kernel panics before its first process runs is started again: while it
    changes its own code, the emulated processors were seen to run what is half changed ("int3")."""
    for _ in range(BOOTS_MAX):
        guest = spawn()
        text = console(guest, log, seconds)
        if "Kernel panic" not in text or FIRST_PROCESS in text:
            break
        print(f"the kernel of a guest panicked while it came up: {PANIC.search(text).group(0)}", file=sys.stderr)
        os.unlink(log)
    return guest, text


def console(guest, log, seconds):
    """What came over the console of a guest, when it has ended or its time is over."""
    until = time.monotonic() + seconds
    while guest.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    if not os.path.exists(log):
        return ""
    with open(log, errors="replace") as file:
        return file.read()


def finish(guest, text, said, seconds):
    """What the script of a guest said before its end. Raises Failure when that was not in time or not good."""
    told = "\n".join([line.strip() for line in text.splitlines()][-LINES_TOLD:])
    if guest.poll() is None:
        raise Failure(f"the guest did not end in {seconds} s; its console:\n{told}")
    if END + "0" not in said:
        raise Failure(f"the guest failed ({guest.stderr.read().decode(errors='replace').strip()}); its console:\n{told}")
    return [line for line in said if not line.startswith(END)]
