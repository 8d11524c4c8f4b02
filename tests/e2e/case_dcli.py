"""dcli against real sshd on loopback addresses (S6): the field's own lines, output, exit codes, cells that are gone."""

import fcntl
import json
import os
import pty
import resource
import select
import signal
import stat
import subprocess
import termios
import threading
import time

from fleet import Fleet
from harness import Place, binary, check, contains, equal, measured, need, run, test, timing, timing_alone

ALL = "exa1cel01,exa1cel02,exa1cel03"
# As the field wrote it: the here-document has no end marker.
FLUSHCACHE = b"cellcli <<!\ndrop flashcache;\ncreate flashcache all;\n"


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@test
def s6_flushcache_over_dcli():
    """`dcli -c … --serial -k -l userid -x flushcache.sh`, then the listing of S1."""
    with Place("dcli") as place:
        fleet = Fleet(place, griddisks=("data:32M",))
        script = place.file("flushcache.sh", FLUSHCACHE)
        before = {name: cell.json("list flashcache attributes all")[0]["id"] for name, cell in fleet.cells.items()}
        done = fleet.dcli("-c", ALL, "--serial", "-k", "-l", "root", "-x", script)
        lines = done.stdout.splitlines()
        for name in fleet.names:
            contains(lines, f"{name}: ssh key added", "key")
            contains(lines, f"{name}: Flash cache {name}_FLASHCACHE successfully dropped", "script")
            contains(lines, f"{name}: Flash cache {name}_FLASHCACHE successfully created", "script")
            now = fleet.cells[name].json("list flashcache attributes all")[0]["id"]
            check(now != before[name], f"{name} has a new flash cache")
            # Keys lie safely, and no copy of the script is left.
            home = fleet.homes[name]
            equal(mode(os.path.join(home, ".ssh", "authorized_keys")), 0o600, "mode of authorized_keys")
            equal(sorted(os.listdir(home)), [".ssh"], "files left at home")
        # Once more: nothing doubles.
        again = fleet.dcli("-c", ALL, "-k", "-l", "root").stdout.splitlines()
        equal(again, [f"{name}: ssh key already exists" for name in fleet.names], "second -k")
        with open(os.path.join(fleet.homes["exa1cel01"], ".ssh", "authorized_keys")) as file:
            text = file.read()
        equal(text.count("ssh-ed25519"), 1, "keys in authorized_keys")
        with open(fleet.key + ".pub") as file:
            equal(text, file.read(), "authorized_keys")
        # The field's listing; its line is one word for ssh.
        out = fleet.dcli("-g", fleet.group, "-l", "root", "cellcli -e list flashcache detail").stdout.splitlines()
        for name in fleet.names:
            mine = [line for line in out if line.startswith(f"{name}: ")]
            contains(mine[0], f"{name}_FLASHCACHE", "first attribute")
            check(mine[0].startswith(f"{name}: name:"), "leading blanks are trimmed")
            contains("\n".join(mine), "effectiveCacheSize:", "attributes")
        equal(list(dict.fromkeys(line.split(":")[0] for line in out)), fleet.names, "grouped, in the order asked for")
        # The same in words, and metrics of the S1 listing.
        words = fleet.dcli("-g", fleet.group, "-l", "root", "cellcli", "-e", "list", "flashcache", "detail").stdout
        equal(words.splitlines(), out, "words and one word")
        where = "cellcli -e \"list metriccurrent where name like 'FC_IO_RQ_R.*'\""
        contains(fleet.dcli("-c", "exa1cel02", "-l", "root", where).stdout, "exa1cel02: FC_IO_RQ_R ", "metrics")
        dropped = fleet.dcli("-c", ALL, "--unkey", "-l", "root").stdout.splitlines()
        equal(dropped, [f"{name}: ssh key dropped" for name in fleet.names], "--unkey")
        for cell in fleet.cells.values():
            cell.stop()


@timing_alone
def dcli_forms_of_output_and_copies():
    with Place("dcli") as place:
        fleet = Fleet(place, serve=False)
        run_on = lambda *words, **options: fleet.dcli("-g", fleet.group, "-l", "root", *words, **options)
        equal(run_on("-t").stdout, "Target cells: ['exa1cel01', 'exa1cel02', 'exa1cel03']\n", "-t")
        # In parallel: three naps take the time of one; quotes reach the cell as they were.
        started = time.monotonic()
        out = run_on("sleep 2; echo '  a  b' \"$((1+1))\"").stdout
        measured(time.monotonic() - started < 5.5, "cells work at the same time")
        equal(out, "".join(f"{name}: a  b 2\n" for name in fleet.names), "output")
        # One that fails: exit 1, everything else is there.
        fails = "hostname_of=$(basename $FLASHCELL_CELL); echo $hostname_of; test $hostname_of != exa1cel02"
        done = run_on(fails, ok=False)
        equal(done.returncode, 1, "exit code when one fails")
        equal(done.stdout, "".join(f"{name}: {name}\n" for name in fleet.names), "output of all")
        contains(done.stderr, "exa1cel02: failed with exit code 1", "who failed")
        done = run_on("-n", fails, ok=False)
        equal(done.stdout, "OK: ['exa1cel01', 'exa1cel03']\nexa1cel02: exa1cel02\n", "-n")
        done = run_on("-r", ".*cel0[12]", "basename $FLASHCELL_CELL")
        equal(done.stdout, "exa1cel03: exa1cel03\n.*cel0[12]: ['exa1cel01', 'exa1cel02']\n", "-r")
        # stderr of the command, shown or hidden; --maxlines; --serial; -v.
        equal(run_on("--hidestderr", "echo a; echo b >&2", "-c", "x", ok=None).returncode, 0, "options after the command are its own")
        equal(fleet.dcli("-c", "exa1cel01", "-l", "root", "echo a; echo b >&2").stdout.count("exa1cel01: "), 2, "stderr")
        equal(fleet.dcli("-c", "exa1cel01", "-l", "root", "--hidestderr", "echo a; echo b >&2").stdout, "exa1cel01: a\n", "stderr")
        done = fleet.dcli("-c", "exa1cel01", "-l", "root", "--maxlines", "3", "seq 10")
        equal(done.stdout.count("\n"), 3, "--maxlines")
        contains(done.stderr, "7 lines more are not shown", "--maxlines")
        contains(run_on("--serial", "-v", "echo x").stderr, "ssh ", "-v shows the command line")
        # Copies: a pattern, a destination; a script with its own interpreter that stays; nothing else is left.
        for name in ("one.txt", "two.txt"):
            place.file(name, name.encode())
        run_on("-f", place.path("*.txt"))
        run_on("-f", place.path("one.txt"), "-d", "/root/renamed")
        own = place.file("own.py", b"#!/usr/bin/python3\nprint('by python')\n")
        equal(run_on("-x", own, "-d", "/root").stdout, "".join(f"{n}: by python\n" for n in fleet.names), "-x with -d")
        for name in fleet.names:
            left = sorted(os.listdir(fleet.homes[name]))
            equal(left, [".ssh", "one.txt", "own.py", "renamed", "two.txt"], "files at home")
        # Usage: nothing was run.
        for words, part in (
            (("-c", "exa1cel01"), "nothing to do"),
            (("echo", "x"), "no cells are named"),
            (("-g", place.path("none"), "x"), "none"),
            (("-c", "exa1cel01", "-x", place.path("none")), "none"),
            (("-c", "a,-oProxyCommand=x", "x"), "not the name of a host"),
            (("-c", "exa1cel01", "--nosuch", "x"), "nosuch"),
        ):
            done = fleet.dcli(*words, ok=False)
            equal((done.returncode, done.stdout), (2, ""), f"exit code of {words}")
            contains(done.stderr, part, "message")


@test
def dcli_runs_scl_files_by_cellcli():
    with Place("dcli") as place:
        fleet = Fleet(place, count=2, griddisks=("data:32M",))
        good = place.file("list.scl", b"list griddisk attributes name, size;\nlist cell attributes status\n")
        out = fleet.dcli("-g", fleet.group, "-l", "root", "-x", good).stdout.splitlines()
        # Each row's own leading blanks are trimmed, the columns' are not.
        equal([line.split() for line in out if "exa1cel01" in line], [["exa1cel01:", "data", "32M"], ["exa1cel01:", "online"]], "rows")
        bad = place.file("bad.SCL", b"list nosuch\n")
        done = fleet.dcli("-g", fleet.group, "-l", "root", "-x", bad, ok=False)
        equal(done.returncode, 1, "exit code of a failing statement")
        contains(done.stdout, "exa1cel02: CELL-0", "the message has the prefix scripts look for")
        for cell in fleet.cells.values():
            cell.stop()


@timing
def dcli_names_cells_that_are_gone():
    """One is down from the start, one is killed in the middle, one accepts and says nothing: the others answer."""
    with Place("dcli") as place:
        fleet = Fleet(place, count=4, serve=False)
        fleet.kill_sshd("exa1cel02")
        killer = threading.Timer(3, fleet.kill_sshd, ["exa1cel03"])
        killer.start()
        started = time.monotonic()
        done = fleet.dcli("-g", fleet.group, "-l", "root", "echo begun; sleep 6; echo done", ok=False)
        killer.join()
        equal(done.returncode, 1, "exit code")
        contains(done.stderr, "Unable to connect to cells: ['exa1cel02', 'exa1cel03']", "who is gone")
        lines = done.stdout.splitlines()
        for name in ("exa1cel01", "exa1cel04"):
            equal([line for line in lines if line.startswith(name)], [f"{name}: begun", f"{name}: done"], "the others")
        contains(lines, "exa1cel03: begun", "what the lost one had said")
        check("exa1cel03: done" not in lines, "the lost one did not end")
        measured(time.monotonic() - started < 30, "nobody waits for the lost ones")
        done = fleet.dcli("-g", fleet.group, "-l", "root", "--json", 'echo one; echo "t w o"; exit 3', ok=False)
        answers = json.loads(done.stdout)
        equal([answer["cell"] for answer in answers], fleet.names, "each cell once, in order")
        equal([answer["end"] for answer in answers], ["failed", "unreached", "unreached", "failed"], "how each ended")
        equal([(answers[at]["exitCode"], answers[at]["lines"]) for at in (0, 3)], [(3, ["one", "t w o"])] * 2, "what the others said")
        # A silent host: the time for connecting bounds it.
        import socket

        with socket.socket() as silent:
            silent.bind(("127.0.77.99", 0))
            silent.listen(8)
            started = time.monotonic()
            config = f"-F {fleet.config} -o Port={silent.getsockname()[1]}"
            command = [os.path.join(fleet.bin, "dcli"), "-s", config, "--ctimeout", "2", "-c", "127.0.77.99", "-l", "root", "x"]
            done = run(command, ok=False, env=fleet.environment())
            contains(done.stderr, "Unable to connect to cells: ['127.0.77.99']", "the silent one")
            measured(time.monotonic() - started < 10, "--ctimeout")


@test
def dcli_vmstat_of_all_cells():
    need("vmstat")
    with Place("dcli") as place:
        fleet = Fleet(place, count=2, serve=False)
        lines = fleet.dcli("-g", fleet.group, "-l", "root", "--vmstat=1 2").stdout.splitlines()
        firsts = [line.split()[0] for line in lines]
        rows = ["exa1cel01:", "exa1cel02:", "Minimum:", "Maximum:", "Average:"]
        equal(firsts, ["r", *rows, *rows], "rows")
        check(len({len(line.split()) for line in lines[1:]}) == 1, "every row has every column")
        contains(fleet.dcli("-c", "exa1cel01", "-l", "root", "--vmstat=-s").stdout, "exa1cel01: ", "a table of one cell")


@test
def dcli_asks_once_for_the_password_of_all_cells():
    """At a terminal, with an ssh in its place that asks as the real one does; the password is nowhere afterwards."""
    with Place("dcli") as place:
        os.makedirs(place.path("bin"))
        os.makedirs(place.path("tmp"))
        fake = place.file(
            "bin/ssh", b'#!/bin/sh\necho "$SSH_ASKPASS_REQUIRE $("$SSH_ASKPASS" "password: ")" >> "$OUT"\necho "ssh key added"\n'
        )
        os.chmod(fake, 0o755)
        key = place.path("key")
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key])
        environment = dict(os.environ, PATH=place.path("bin") + ":" + os.environ["PATH"], OUT=place.path("out"), TMPDIR=place.path("tmp"))
        command = [binary(), "dcli", "-c", "c1,c2", "-s", f"-i {key}", "-k", "--key-with-one-password"]
        pid, terminal = pty.fork()
        if pid == 0:
            os.execvpe(command[0], command, environment)
        shown = b""
        deadline = time.monotonic() + 30
        sent = False
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 1)[0]:
                continue
            try:
                piece = os.read(terminal, 4096)
            except OSError:  # the terminal of a process that has ended
                break
            if not piece:
                break
            shown += piece
            if not sent and b"Password for all cells:" in shown:
                os.write(terminal, b"tiger's word\n")
                sent = True
        # Its terminal hangs up: it ends, whatever it waits for.
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
        text = shown.decode(errors="replace")
        equal(os.waitstatus_to_exitcode(status), 0, f"exit code; the terminal showed {text!r}")
        equal(text.count("Password"), 1, "questions")
        check("tiger" not in text, "the password is not shown")
        contains(text, "c2: ssh key added", "output")
        with open(place.path("out")) as file:
            equal(file.read(), "force tiger's word\n" * 2, "what ssh was told")
        equal(os.listdir(place.path("tmp")), [], "what is left of it")
        # Without a terminal there is nobody to ask.
        done = run(command, ok=False, env=environment, stdin=subprocess.DEVNULL)
        equal(done.returncode, 2, "exit code without a terminal")


def echoes(terminal):
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)


@test
def dcli_leaves_the_terminal_with_echo_however_asking_ends():
    with Place("dcli") as place:
        key = place.path("key")
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key])
        command = [binary(), "dcli", "-c", "c1", "-s", f"-i {key}", "-k", "--key-with-one-password"]
        interrupt = lambda terminal, pid: os.write(terminal, b"tig\x03")
        quit = lambda terminal, pid: os.write(terminal, b"\x1c")
        kill = lambda terminal, pid: os.kill(pid, signal.SIGTERM)
        for ends, expected in ((interrupt, signal.SIGINT), (quit, signal.SIGQUIT), (kill, signal.SIGTERM)):
            # A terminal of its own that outlives it, as a shell's does.
            terminal, inside = pty.openpty()
            check(echoes(inside), "a terminal echoes to begin with")

            def begin():
                os.setsid()
                fcntl.ioctl(inside, termios.TIOCSCTTY, 0)
                # A core file would be the only thing left of it.
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                # Whoever runs the tests in the background has them ignored, and so would it.
                for ignored in (signal.SIGINT, signal.SIGQUIT):
                    signal.signal(ignored, signal.SIG_DFL)

            client = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, preexec_fn=begin)
            shown = b""
            deadline = time.monotonic() + 30
            while b"Password for all cells:" not in shown and time.monotonic() < deadline:
                if select.select([terminal], [], [], 1)[0]:
                    shown += os.read(terminal, 4096)
            contains(shown.decode(), "Password for all cells:", "the question")
            check(not echoes(inside), "nothing is echoed while it asks")
            ends(terminal, client.pid)
            equal(client.wait(30), -expected, "ended by the signal, as whoever started it sees")
            check(echoes(inside), f"the terminal echoes again after {expected.name}")
            os.close(terminal)
            os.close(inside)
