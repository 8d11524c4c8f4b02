"""`flashcell doctor` on this host: what it says of a cell's directory and of PostgreSQL, and that it leaves nothing behind."""

import json
import os

from harness import ROOT, Place, binary, check, contains, equal, run, test


def findings(*arguments, ok=None):
    return json.loads(run([binary(), "doctor", "--json", *arguments], ok=ok).stdout)


@test
def doctor_examines_a_cell_and_changes_nothing():
    with Place("doctor") as place:
        cell = place.cell()
        before = sorted(os.listdir(cell.dir))
        found = findings("-c", cell.dir, "--sync-seconds", "1")
        equal(sorted(os.listdir(cell.dir)), before, "the directory of the cell")
        checks = {finding["check"] for finding in found}
        for wanted in ("kernel", "io_uring", "open files", "locked memory", "attach", "clock", "free space", "sync"):
            check(wanted in checks, f"doctor says nothing of {wanted}: {sorted(checks)}")
        sync = [finding for finding in found if finding["check"] == "sync"]
        equal([finding["subject"] for finding in sync], [cell.dir], "where syncs were timed: once for both images")
        contains(sync[0]["found"], "a second (median", "what it says of them")
        check(all(finding["verdict"] != "warning" or finding.get("why") for finding in found), "each warning says why")
        quick = findings("-c", cell.dir, "--sync-seconds", "0")
        equal([finding for finding in quick if finding["check"] == "sync"], [], "syncs that were not asked for")


@test
def syncs_are_timed_in_a_directory_and_never_on_a_device():
    with Place("doctor-syncs") as place:
        found = [finding for finding in findings(place.dir, "--sync-seconds", "1") if finding["check"] == "sync"]
        equal([finding["subject"] for finding in found], [place.dir], "where syncs were timed")
        contains(found[0]["found"], "a second (median", "what it says of them")
        equal(os.listdir(place.dir), [], "what it has left")
        if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
            return
        # Blank, as one might take it for nobody's.
        file = place.file("blank.img", bytes(8 << 20))
        loop = place.loop_device(file)
        (found,) = [finding for finding in findings(loop.path, "--sync-seconds", "1") if finding["check"] == "sync"]
        equal((found["subject"], found["verdict"], found["found"]), (loop.path, "unknown", "not timed"), "a device")
        contains(found["mend"], "mounted: flashcell doctor MOUNTPOINT", "the way to time them")
        loop.detach()
        with open(file, "rb") as image:
            check(not any(image.read()), "the device was written to")


@test
def doctor_warns_of_a_database_that_does_not_sync():
    with Place("doctor-pg") as place:
        data = place.path("pg")
        os.mkdir(data)
        place.file("pg/postgresql.conf", b"fsync = on\n")
        place.file("pg/postgresql.auto.conf", b"fsync = 'off'\n")
        done = run([binary(), "doctor", "--postgres", data], ok=False)
        equal(done.returncode, 1, "exit code with a warning")
        lines = done.stdout.splitlines()
        at = next(at for at, line in enumerate(lines) if line.startswith("WARNING") and data in line)
        contains(lines[at], "fsync", "the warning")
        contains(lines[at + 2], "ALTER SYSTEM SET fsync = on", "what mends it")


@test
def doctor_refuses_what_is_no_device_and_what_is_no_rating():
    with Place("doctor-wrong") as place:
        done = run([binary(), "doctor", place.path("nothing")], ok=False)
        contains(done.stderr, "neither a block device nor a file on one\nhint: `lsblk`", "a device that is not there")
        done = run([binary(), "doctor", "--l2arc", "700"], ok=False)
        equal(done.returncode, 2, "exit code of wrong usage")
        contains(done.stderr, "SIZE:WRITES-PER-DAY", "a rating without writes")
        found = [finding for finding in findings("--l2arc", "700e9:10") if finding["check"] == "l2arc"]
        contains(found[0]["why"], "81.0 MB/s", "the rule of the field for 700 GB that may be written ten times a day")


@test
def the_guide_to_doctor_is_carried_out():
    """The commands of docs/guide/doctor.md as they stand there."""
    with open(os.path.join(ROOT, "docs", "guide", "doctor.md")) as file:
        commands = [line[4:].split("#")[0].split() for line in file.read().splitlines() if line.startswith("    ")]
    equal(len(commands), 4, "commands of the guide")
    with Place("guide") as place:
        cell = place.cell()
        data = place.path("pg")
        os.mkdir(data)
        place.file("pg/postgresql.conf", b"fsync = on\n")
        device = place.file("image", bytes(8 << 20))
        stands_for = {"/var/lib/flashcell/db": cell.dir, "/dev/nvme0n1": device, "/srv/pg": data}
        for words in commands:
            equal(words[:2], ["flashcell", "doctor"], "a command of the guide")
            done = run([binary(), "doctor", *(stands_for.get(word, word) for word in words[2:]), "--sync-seconds", "1"], ok=None)
            check(done.returncode in (0, 1), f"exit code {done.returncode} of {words}: {done.stderr}")
            check(done.stdout, f"what {words} tells")
