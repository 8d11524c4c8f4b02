"""Start and stop: the ready line, one server a directory, drains, sockets of the dead, refusals that name what is wrong."""

import os
import pwd
import resource
import shutil
import signal
import socket
import threading
import time

import nbdclient
from harness import (
    MIB,
    READY_SECONDS_MAX,
    Place,
    Skip,
    binary,
    check,
    contains,
    equal,
    measured,
    pattern,
    run,
    served,
    test,
    timing,
    timing_alone,
    wait_until,
)


@test
def the_ready_line_and_exit_codes():
    with served() as cell:
        contains(cell.ready_line, "nbd=unix:", "ready line")
        contains(cell.ready_line, "admin=unix:", "ready line")
        equal(os.stat(cell.socket).st_mode & 0o077, 0, "mode of the NBD socket: nobody else may connect")
        contains(cell.log(), "serving", "log on stderr")
        cell.stop()
        check(not os.path.exists(cell.socket), "a clean stop removes the NBD socket")
        check(not os.path.exists(cell.admin_socket), "a clean stop removes the admin socket")
    equal(run([binary(), "serve"], ok=False).returncode, 2, "exit code of wrong usage")
    equal(run([binary(), "nosuch"], ok=False).returncode, 2, "exit code of an unknown sub-command")
    done = run([binary(), "serve", "/nonexistent"], ok=False)
    equal(done.returncode, 1, "exit code of a failure")
    contains(done.stderr, "hint:", "message")


@test
def a_second_serve_is_refused():
    with served() as cell:
        message = run([binary(), "serve", cell.dir], ok=False, seconds=READY_SECONDS_MAX).stderr
        contains(message, str(cell.process.pid), "the message names the process that serves")
        contains(message, "hint:", "message")
        # Another configuration on the same devices is refused too: the devices are locked.
        other = cell.place.path("other")
        os.mkdir(other)
        with open(cell.toml_path) as file:
            text = file.read()
        text = text.replace('path = "', f'path = "{cell.dir}/')
        with open(os.path.join(other, "cell.toml"), "w") as file:
            file.write(text)
        message = run([binary(), "serve", other], ok=False, seconds=READY_SECONDS_MAX).stderr
        contains(message, "disk-0.img", "the message names the device")
        run([binary(), "init", cell.dir, "--disk", "64M", "--force"], ok=False)
        client = nbdclient.Client(cell.socket)
        client.write(0, b"x" * 4096)
        equal(client.read(0, 4096), b"x" * 4096, "the first server goes on")
        client.disconnect()
        cell.stop()


@test
def sigterm_drains():
    """Every request sent before the stop is answered; then the connection ends and the server exits 0."""
    # A slow disk, so that requests are under way when the signal comes.
    with served(model="fixed:20ms:4") as cell:
        client = nbdclient.Client(cell.socket)
        data = {i * 65536: pattern(i, 65536) for i in range(100)}
        cookies = {client.submit(nbdclient.WRITE, offset=at, data=bytes_): at for at, bytes_ in data.items()}
        # One reply means the server has begun to read what was sent.
        answered = [client.reply()]
        cell.process.send_signal(signal.SIGTERM)
        try:
            while client.pending:
                answered.append(client.reply())
        except nbdclient.Gone:
            pass
        done = {cookies[cookie] for cookie, error, _ in answered if error == 0}
        equal(cell.process.wait(timeout=60), 0, "exit code")
        cell._gone()
        check(done, "some writes were answered")
        cell.start()
        client = nbdclient.Client(cell.socket)
        for at in done:
            equal(client.read(at, 65536), data[at], f"what was acknowledged at {at}")
        client.disconnect()
        cell.stop()


@timing
def an_idle_client_does_not_hold_up_a_stop():
    with served() as cell:
        clients = [nbdclient.Client(cell.socket) for _ in range(5)] + [nbdclient.Raw(cell.socket)]
        started = time.monotonic()
        cell.stop(seconds=20)
        measured(time.monotonic() - started < 10, "idle connections end at once")
        for client in clients:
            client.close()


@test
def sockets_of_a_killed_server_are_cleaned_up():
    with served() as cell:
        for _ in range(3):
            cell.kill()
            check(os.path.exists(cell.socket), "kill -9 leaves the socket behind")
            cell.start()
            client = nbdclient.Client(cell.socket)
            client.read(0, 1)
            client.disconnect()
            equal(cell.json("list cell")[0]["name"], "cell", "the admin socket answers")
        cell.stop()
        # What is not a socket is never removed.
        with open(cell.socket, "w") as file:
            file.write("precious")
        contains(cell.start_fails(), "nbd.sock", "the message names the path")
        with open(cell.socket) as file:
            equal(file.read(), "precious", "the file")
        os.unlink(cell.socket)
        # A socket somebody else listens on is not taken over.
        other = socket.socket(socket.AF_UNIX)
        other.bind(cell.socket)
        other.listen(1)
        contains(cell.start_fails(), "nbd.sock", "the message names the address")
        other.close()
        cell.start()
        cell.stop()


@test
def killed_while_starting():
    with served(flash=("64M",)) as cell:
        client = nbdclient.Client(cell.socket)
        data = pattern("start", 8 * MIB)
        for at in range(0, len(data), MIB):
            client.write(at, data[at : at + MIB])
        client.flush()
        cell.kill()
        for i in range(8):
            process = cell.spawn_server()
            time.sleep(0.01 * (i + 1))
            process.send_signal(signal.SIGKILL)
            process.wait()
        cell.start()
        client = nbdclient.Client(cell.socket)
        for at in range(0, len(data), MIB):
            equal(client.read(at, MIB), data[at : at + MIB], f"flushed data at {at}")
        client.disconnect()
        cell.stop()


@test
def init_refuses_what_would_destroy():
    with Place("init") as place:
        run([binary(), "init", place.path("c"), "--disk", "64M"])
        message = run([binary(), "init", place.path("c"), "--disk", "64M"], ok=False).stderr
        contains(message, "--force", "message")
        precious = place.file("precious.img", bytes(1024) + b"\x53\xef" * 8 + bytes(64 * MIB))
        run(["mkfs.ext4", "-q", "-F", precious]) if os.path.exists("/sbin/mkfs.ext4") else None
        message = run([binary(), "init", place.path("d"), "--disk", precious], ok=False).stderr
        contains(message, "precious.img", "message names the device")
        contains(message, "hint:", "message")
        check(not os.path.exists(place.path("d/cell.toml")), "a cell that was not made has no cell.toml")
        for wrong in (["--griddisk", "x"], ["--griddisk", "x:1G:nosuch"], ["--disk-model", "tape"], ["--griddisk", "a:1T"]):
            done = run([binary(), "init", place.path("e"), "--disk", "64M", *wrong], ok=False)
            check(done.stderr.strip(), f"{wrong} is refused with a message")
        run([binary(), "init", place.path("c"), "--disk", "64M", "--griddisk", "g:16M", "--force"])
        cell = place.cell(name="c", init=False).start()
        equal([row["name"] for row in cell.json("list griddisk")], ["g"], "grid disks of the new cell")
        cell.stop()


@test
def stop_with_a_client_that_never_reads():
    """A client that sends and takes no replies must not hold up a stop beyond the deadline."""
    with served() as cell:
        cell.stop()
        cell.edit(lambda text: text.replace("stop_deadline_s = 60", "stop_deadline_s = 3"))
        cell.start()
        stuck = nbdclient.Client(cell.socket)
        sender = threading.Thread(target=fill, args=(stuck,), daemon=True)
        sender.start()
        time.sleep(1)
        cell.process.send_signal(signal.SIGTERM)
        code = cell.process.wait(timeout=30)
        check(code in (0, 1), f"exit code {code}: stopped clean, or told that it was not")
        if code == 1:
            contains(cell.log(), "requests", "the log says what does not end")
        cell._gone()
        stuck.sock.shutdown(socket.SHUT_RDWR)
        sender.join(5)
        stuck.close()
        cell.start()
        cell.stop()


def fill(client):
    """Reads without end, no reply taken."""
    try:
        while True:
            client.submit(nbdclient.READ, offset=0, length=1 << 20)
    except (nbdclient.Gone, OSError):
        pass


@timing_alone
def served_before_the_index_is_whole():
    """Flash that takes seconds to tell its log: the cell is ready, reads come from the disk, write-back waits, nothing is stale."""
    slow = ("kind = \"flash\"", "kind = \"flash\"\nmodel = \"sata-7200\"")
    disks = ("data:64M", "back:64M:write-back")
    with served(griddisks=disks, flash=("4G",)) as cell:
        for name in ("data", "back"):
            client = nbdclient.Client(cell.socket, export=name)
            for at in range(64):
                client.write(at * 65536, bytes([at + 1]) * 65536)
            client.flush()
            client.disconnect()
        cell.kill()
        cell.edit(lambda text: text.replace(*slow))
        begun = time.monotonic()
        cell.start()
        took = time.monotonic() - begun
        equal(cell.json("list flashcache attributes status")[0]["status"], "starting", "state of the flash cache")
        states = {row["name"]: row["status"] for row in cell.json("list griddisk attributes name,status")}
        equal(states, {"data": "active", "back": "starting"}, "states of the grid disks")
        client = nbdclient.Client(cell.socket)
        equal(client.read(0, 65536), b"\x01" * 65536, "what the disk has")
        client.write(0, b"n" * 4096)
        equal(client.read(0, 8192), b"n" * 4096 + b"\x01" * 4096, "what was just written")
        status = cell.json("list flashcache attributes status")[0]["status"]
        equal(status, "starting", "state of the flash cache still: else nothing has been tested")
        # Answered when the index is whole.
        back = nbdclient.Client(cell.socket, export="back")
        equal(back.read(0, 65536), b"\x01" * 65536, "what flash alone has")
        waited = time.monotonic() - begun
        print(f"# ready after {took:.1f} s, the index whole after {waited:.1f} s", flush=True)
        measured(waited > took, "write-back has waited")
        whole = lambda: cell.json("list flashcache attributes status")[0]["status"] == "normal"
        wait_until(whole, 30, "the index is whole")
        equal(client.read(0, 8192), b"n" * 4096 + b"\x01" * 4096, "nothing stale from flash")
        hits = cell.metrics()[("GD_FC_IO_RQ_R", "data")]
        equal(client.read(65536, 65536), b"\x02" * 65536, "the next block")
        measured(cell.metrics()[("GD_FC_IO_RQ_R", "data")] > hits, "what was on flash before the crash is of use")
        client.disconnect()
        back.disconnect()
        cell.stop()


def status_of(pid):
    with open(f"/proc/{pid}/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


# PF_MEMALLOC_NOIO of the kernel, which PR_SET_IO_FLUSHER sets.
NO_IO = 0x00080000
CAP_SYS_RESOURCE = 24


@test
def a_server_stays_when_memory_runs_out():
    """As root its memory is locked, allocations do not wait for its I/O, and it is ended last; as another user it says what that takes."""
    if os.getuid() != 0:
        raise Skip("root may lock memory; another user is tried by root")
    with served() as cell:
        pid = cell.process.pid
        check(int(status_of(pid)["VmLck"].split()[0]) > 0, "memory is locked")
        contains(cell.log(), "memory is not swapped out", "log")
        # What the others take: a container's root may lack it.
        if int(status_of(pid)["CapEff"], 16) >> CAP_SYS_RESOURCE & 1:
            with open(f"/proc/{pid}/oom_score_adj") as file:
                equal(int(file.read()), -900, "oom_score_adj")
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/stat") as file:
                    flags = int(file.read().rsplit(")", 1)[1].split()[6])
                check(flags & NO_IO, f"thread {task}: flags {flags:#x}")
            lines = ("allocations do not wait", "other processes are ended first")
        else:
            lines = ("allocations may wait", "the kernel may end this process first", "CAP_SYS_RESOURCE")
        for line in lines:
            contains(cell.log(), line, "log")
        cell.stop()
    with Place("memory") as place:
        cell = place.cell()
        other = pwd.getpwnam("nobody")
        os.chmod(place.dir, 0o755)
        program = place.path("flashcell")
        shutil.copy(binary(), program)
        for base, directories, files in os.walk(cell.dir):
            for name in (base, *(os.path.join(base, name) for name in files)):
                os.chown(name, other.pw_uid, other.pw_gid)
        limit = lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 * MIB, 8 * MIB))
        with open(place.path("log"), "wb") as log:
            server = place.spawn(
                [program, "serve", cell.dir], stdout=log, stderr=log, preexec_fn=limit,
                user=other.pw_uid, group=other.pw_gid, extra_groups=[], cwd="/",
            )
        read = lambda: open(place.path("log")).read()
        wait_until(lambda: "ready nbd=" in read(), READY_SECONDS_MAX, "it serves")
        equal(status_of(server.pid)["VmLck"].split()[0], "0", "nothing is locked")
        for line in ("memory may be swapped out", "LimitMEMLOCK=infinity", "allocations may wait", "the kernel may end this process first"):
            contains(read(), line, "log")
        # What it reserves beyond the limit is there.
        client = nbdclient.Client(os.path.join(cell.dir, "nbd.sock"))
        data = pattern("memory", 16 * MIB)
        client.write(0, data)
        equal(client.read(0, 16 * MIB), data, "content")
        client.disconnect()
        server.terminate()
        equal(server.wait(), 0, "a clean stop")


# An answer that never comes.
SILENT = 'model = "fixed:1000s:1"'


def silent(cell, kind):
    """From the next start on this kind of device answers nothing; a start waits three seconds for it."""
    cell.set_device(SILENT, kind=kind)
    cell.edit(lambda text: text.replace("start_deadline_s = 30", "start_deadline_s = 3"))


@test
def flash_that_does_not_answer_at_start_keeps_offline_what_needs_it():
    with served(griddisks=("data:64M", "back:64M:write-back")) as cell:
        for name in ("data", "back"):
            client = nbdclient.Client(cell.socket, export=name)
            client.write(0, b"1" * 65536)
            client.flush()
            client.disconnect()
        cell.kill()
        silent(cell, "flash")
        # A start that waits can be ended.
        process = cell.spawn_server()
        wait_until(lambda: "the start waits for this device" in cell.log(), 30, "the start says what it waits for")
        process.send_signal(signal.SIGTERM)
        equal(process.wait(timeout=30), -signal.SIGTERM, "end of a start that waits")
        process.stdout.close()

        cell.start()
        for part in ("flash-0.img", "the start goes on without it"):
            contains(cell.log(), part, "the log")
        states = {row["name"]: row["status"] for row in cell.json("list griddisk attributes name,status")}
        equal(states, {"data": "active", "back": "offline"}, "states of the grid disks")
        client = nbdclient.Client(cell.socket, export="data")
        equal(client.read(0, 65536), b"1" * 65536, "what the disk has")
        client.write(0, b"2" * 4096)
        client.flush()
        client.disconnect()
        cell.stop()

        cell.edit(lambda text: text.replace(SILENT + "\n", ""))
        cell.start()
        for name, first in (("data", b"2"), ("back", b"1")):
            client = nbdclient.Client(cell.socket, export=name)
            equal(client.read(0, 8192), first * 4096 + b"1" * 4096, f"{name} with the flash back")
            client.disconnect()
        cell.stop()


@test
def a_disk_that_does_not_answer_at_start_is_named():
    with served(disks=("128M", "128M"), griddisks=("data:64M",)) as cell:
        cell.stop()
        silent(cell, "disk")
        message = cell.start_fails()
        for part in ("disk-0.img has not answered within 3 s", "hint:", "start_deadline_s", "required = false"):
            contains(message, part, "message")
