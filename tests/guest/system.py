"""A guest that is a Debian host: systemd, udev and PostgreSQL on an image of their own, with disks for a cell. It boots more than once.

The image is made by scripts/install-test-clients and never written: what a guest changes is gone with it. Only the standard library.
"""

import os
import re
import shlex
import shutil
import subprocess

from guest import BOOT_SECONDS, HERE, Initramfs, Kernel, console, finish
from harness import MIB, ROOT, Skip, binary, equal, need, run

# Where scripts/install-test-clients makes it: root.img, and the kernel its modules are of.
SYSTEM_DIR = os.path.join(ROOT, "target", "guest-system")
# What is loaded before there is a root file system.
MODULES = ("virtio_blk",)
# Cells and drivers are locked in memory: two cells, four drivers.
MEMORY_MIB = 1536
DISK_BYTES, FLASH_BYTES, SPARE_BYTES = 1024 * MIB, 256 * MIB, 256 * MIB
# Of a script, each a file of `inside/`.
PARTS = ("install.sh", "checks.sh", "boots.sh", "upgrade.sh", "removal.sh")
# So slow that it is seen which device a request waits for.
DISK_IOPS = 400
# A line of a guest's script comes through the kernel's log: whole, whatever else is written to the console.
LINE = re.compile(r"guest: (.*)$")
# What the last process of a shutdown could not unmount or detach, and whom it had to end.
LEFT = re.compile(r"systemd-shutdown.*(Failed|Could not|Unable|Not all|Sending SIGKILL to PID|still)")


def image(kernel):
    """The image of the root file system, where it is of this kernel."""
    path, marker = os.path.join(SYSTEM_DIR, "root.img"), os.path.join(SYSTEM_DIR, "kernel")
    if not os.path.exists(path) or not os.path.exists(marker):
        raise Skip(f"no system for a guest in {SYSTEM_DIR} (scripts/install-test-clients)")
    with open(marker) as file:
        of = file.read().strip()
    if of != kernel.release:
        raise Skip(f"the system for a guest has modules of {of}, and the kernel is {kernel.release}")
    return path


def packages(place, newer):
    """The package of the tree; `newer`: also one of a newer version, and a still newer one whose formats have moved on."""
    version = run([binary(), "--version"]).stdout.split()[1]
    wanted = [("this", version, {})]
    if newer:
        wanted += [("next", f"{version}+1", {}), ("moved", f"{version}+2", {"PACKAGE_FORMAT": "1000"})]
    made = {}
    for name, number, more in wanted:
        environment = dict(os.environ, PACKAGE_COMPRESSION="none", **more)
        made[name] = run([os.path.join(ROOT, "scripts/package-deb"), place.path("packages"), number], env=environment).stdout.strip()
    return made


def initramfs(kernel, settings, script, files):
    """Busybox and what leads to the root file system; `files` are put into it at the first boot."""
    made = Initramfs()
    made.program("bin/busybox", shutil.which("busybox"))
    made.link("bin/sh", "busybox")
    for name in MODULES:
        data = kernel.module(name)
        if data is not None:
            made.file(f"modules/{name}.ko", data)
    parts = [(f"payload/{name}", name) for name in PARTS]
    for name, path in (("init", "system-init"), ("payload/script", script), *parts):
        with open(os.path.join(HERE, "inside", path), "rb") as file:
            made.file(name, file.read())
    for name, path in files.items():
        with open(path, "rb") as file:
            made.file(f"payload/{name}", file.read(), 0o644)
    made.file("payload/settings", "".join(f"{key}={shlex.quote(str(value))}\n" for key, value in settings.items()).encode())
    for path in ("proc", "sys", "dev", "root"):
        made.dir(path)
    return made.pack()


def disk(place, name, size):
    path = place.path(name)
    with open(path, "wb") as file:
        file.truncate(size)
    return path


def boot_system(place, script, seconds, **settings):
    """Run a script of `inside/` in a guest that is a Debian host; what it reported. Raises Failure when it failed or did not end in time."""
    need("qemu-system-x86_64", "busybox", "strip", "dpkg-deb", "objdump")
    if "FLASHCELL" in os.environ:
        raise Skip("$FLASHCELL names another program than the one that packages have")
    kernel = Kernel()
    root = image(kernel)
    files = {f"{name}.deb": path for name, path in packages(place, "LONG" in settings).items()}
    packed = place.file("initramfs", initramfs(kernel, {"SECONDS_MAX": seconds - BOOT_SECONDS, **settings}, script, files))
    spare = disk(place, "spare", SPARE_BYTES)
    drives = [(disk(place, "disk", DISK_BYTES), f"throttling.iops-total={DISK_IOPS}"), (disk(place, "flash", FLASH_BYTES), None), (spare, None)]
    guest, text = powered_on(place, kernel, root, packed, drives, seconds)
    left = [line.strip() for line in text.splitlines() if LEFT.search(line)]
    told = finish(guest, text, said_in(text), seconds)
    equal(left, [], "what was left at a shutdown")
    return [kernel.release] + told


def said_in(text):
    """What the script of a guest said, of its console."""
    return [found.group(1).strip() for found in map(LINE.search, text.splitlines()) if found]


def powered_on(place, kernel, root, packed, drives, seconds):
    """Boot from an image that is not written, with disks: (path, more options or none); the process and what came over the console."""
    log = place.path("console")
    drive = "if=virtio,format=raw,cache=unsafe,discard=unmap"
    command = [
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max,-cx16,-erms,-fsrm", "-m", str(MEMORY_MIB), "-smp", "2", "-nodefaults", "-no-user-config",
        "-display", "none", "-nic", "none", "-serial", f"file:{log}", "-kernel", kernel.image, "-initrd", packed,
        "-drive", f"file={root},{drive},snapshot=on",
        "-append", "console=ttyS0 root=/dev/vda loglevel=7 panic=-1 oops=panic printk.devkmsg=on systemd.show_status=false module_blacklist=kvm,kvm_amd,kvm_intel,powernow_k8,ata_piix",
    ]  # fmt: skip
    for path, more in drives:
        command += ["-drive", ",".join(filter(None, (f"file={path},{drive}", more)))]
    guest = place.spawn(command, env=dict(os.environ, TMPDIR=place.path("")), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return guest, console(guest, log, seconds)
