"""What another release has written: a cell is refused by an older program, and its devices are as they were."""

import os
import struct

from catalog import crc32c
from harness import ROOT, Place, check, contains, equal, run, test

# Of docs/internals/disk-format.md.
PLACES = [n << 20 for n in range(4)]
SECTIONS = (4096, 65536)
VERSION_AT, CRC_AT = 8, 124


def of_a_newer_release(path):
    """Raise the format version in every header of a device."""
    changed = 0
    with open(path, "r+b") as file:
        for at in (place + section for place in PLACES for section in SECTIONS):
            file.seek(at)
            header = bytearray(file.read(CRC_AT + 4))
            if not any(header):
                continue
            (version,) = struct.unpack_from("<I", header, VERSION_AT)
            struct.pack_into("<I", header, VERSION_AT, version + 1)
            struct.pack_into("<I", header, CRC_AT, crc32c(header[:CRC_AT]))
            file.seek(at)
            file.write(header)
            changed += 1
    return changed


def content(path):
    with open(path, "rb") as file:
        return file.read()


@test
def a_cell_of_a_newer_release_is_refused_and_left_as_it_is():
    for kind in ("disk", "flash"):
        with Place(f"newer-{kind}") as place:
            cell = place.cell()
            cell.start()
            cell.stop()
            check(of_a_newer_release(cell.device(kind)) == 8, "headers of the format described")
            before = {name: content(cell.device(name)) for name in ("disk", "flash")}
            told = cell.start_fails()
            contains(told, "the device was written by a newer release: format version 2 is newer than 1", f"{kind}: the reason")
            contains(told, "hint: install the newer release", f"{kind}: the way out")
            contains(told, os.path.basename(cell.device(kind)), f"{kind}: which device")
            for name, data in before.items():
                check(content(cell.device(name)) == data, f"{name} is as it was, with {kind} of a newer release")


@test
def a_package_says_which_format_it_writes():
    with open(os.path.join(ROOT, "crates/celldisk/src/layout.rs")) as file:
        (version,) = [line.split("= ")[1].rstrip(";\n") for line in file if "const FORMAT_VERSION" in line]
    with Place("package-format") as place:
        environment = dict(os.environ, PACKAGE_COMPRESSION="none")
        package = run([os.path.join(ROOT, "scripts/package-deb"), place.path("out")], env=environment).stdout.strip()
        run(["dpkg-deb", "-R", package, place.path("unpacked")])
        equal(content(place.path("unpacked/usr/lib/flashcell/format")).decode(), version + "\n", "the format in the package")
        contains(content(place.path("unpacked/DEBIAN/preinst")).decode(), f"\nours={version}\n", "the format in its preinst")
