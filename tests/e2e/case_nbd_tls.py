"""NBD over TCP is TLS: what real clients do over it, who is let in to what, and what the others are told."""

import json
import os
import pwd
import re
import select
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time

import nbdclient
from harness import (
    MIB,
    Place,
    binary,
    check,
    contains,
    equal,
    measured,
    need,
    pattern,
    refusal,
    run,
    test,
    test_alone,
    timing_alone,
    wait_until,
)

STARTTLS = b"IHAVEOPT" + struct.pack(">II", 5, 0)


class Door:
    """A cell on TCP with certificates, and the directories of its clients."""

    def __init__(self, cell, listen='"tcp:127.0.0.1:0"'):
        self.cell = cell
        self.own = cell.place.path("own")
        self.environment = dict(os.environ, FLASHCELL_TRUST=self.own)
        self.trust(cell.dir)
        cell.edit(lambda text: text.replace('nbd = ["unix:nbd.sock"]', f'nbd = ["unix:nbd.sock", {listen}]'))
        self.start()

    def start(self):
        self.cell.start()
        words = [word.removeprefix("nbd=tcp:") for word in self.cell.ready_line.split() if word.startswith("nbd=tcp:")]
        self.address = words[0]
        self.port = int(self.address.rsplit(":", 1)[1])
        # The ready line names every socket; the harness takes the last.
        self.cell.socket = os.path.join(self.cell.dir, "nbd.sock")

    def trust(self, *arguments):
        return run([binary(), "trust", *arguments], env=self.environment)

    def client(self, name, role):
        """A directory with the certificate of a client."""
        path = self.cell.place.path(name)
        self.trust("--client", name, "--role", role, "--out", path)
        return path

    def uri(self, export="data", certificates=None):
        return f"nbds://{self.address}/{export}?tls-certificates={certificates or self.own}"

    def refused(self, export="data", certificates=None):
        """What nbdinfo is told."""
        return refusal(["nbdinfo", "--size", self.uri(export, certificates)])

    def exports(self, certificates=None):
        listed = run(["nbdinfo", "--list", "--json", self.uri("", certificates)]).stdout
        return sorted(export["export-name"] for export in json.loads(listed)["exports"])

    def raw(self):
        """A socket on which the server has greeted and the client has said its flags."""
        client = socket.create_connection(("127.0.0.1", self.port))
        client.settimeout(60)
        equal(receive(client, 18)[:16], b"NBDMAGICIHAVEOPT", "greeting")
        client.sendall(struct.pack(">I", 3))
        return client


def receive(client, count):
    got = b""
    while len(got) < count:
        piece = client.recv(count - len(got))
        check(piece, f"the stream ended after {got!r}")
        got += piece
    return got


def reply(client):
    """Kind and text of an option's reply."""
    _, _, kind, length = struct.unpack(">QIII", receive(client, 20))
    return kind, receive(client, length)


def ended(client):
    """Whether the server closes, with whatever it says before."""
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


@test
def tls_serves_the_same():
    need("nbdinfo", "nbdcopy", "cmp")
    with Place("tls") as place:
        door = Door(place.cell(griddisks=("data:128M", "other:16M")))
        info = json.loads(run(["nbdinfo", "--no-content", "--json", door.uri()]).stdout)
        equal((info["TLS"], info["structured"], info["exports"][0]["export-size"]), (True, True, 128 * MIB), "what nbdinfo sees")
        source = place.file("in", pattern("tls", 80 * MIB) + bytes(16 * MIB) + pattern("more", 32 * MIB))
        target = place.path("out")
        run(["nbdcopy", "--flush", source, door.uri()])
        for options in ([], ["--connections=1", "--requests=64", "--request-size=4096"], ["--request-size=33554432"]):
            run(["nbdcopy", *options, door.uri(), target])
            run(["cmp", source, target])
        # The unix socket has the same data, and no TLS.
        run(["nbdcopy", door.cell.uri(), target])
        run(["cmp", source, target])
        run(["nbdinfo", "--size", f"nbds+unix:///data?socket={door.cell.socket}&tls-certificates={door.own}"], ok=False)
        door.cell.stop()


@test
def qemu_uses_tls():
    need("qemu-img", "qemu-io", "cmp")
    with Place("tls") as place:
        door = Door(place.cell())
        source, target = place.file("in", pattern("qemu", 64 * MIB)), place.path("out")
        credentials = ["--object", f"tls-creds-x509,id=tls0,endpoint=client,dir={door.own}"]
        remote = f"driver=nbd,host=127.0.0.1,port={door.port},export=data,tls-creds=tls0"
        run(["qemu-img", "convert", "-n", *credentials, "-f", "raw", source, "--target-image-opts", remote])
        run(["qemu-img", "convert", *credentials, "--image-opts", remote, "-O", "raw", target])
        run(["cmp", source, target])
        script = ["-c", "write -P 7 1M 3M", "-c", "write -z 2M 64k", "-c", "flush", "-c", "read -P 7 1M 1M", "-c", "read -P 0 2M 64k"]
        run(["qemu-io", *credentials, *script, "--image-opts", remote])
        # Without credentials it is told what is missing.
        contains(run(["qemu-img", "info", f"nbd://{door.address}/data"], ok=False).stderr.lower(), "tls", "what qemu says")
        door.cell.stop()


@test
def nbdsh_over_tls_in_every_length():
    need("nbdsh")
    script = r"""
import random
rng, model, base = random.Random(3), bytearray(2 << 20), 5 << 20
h.pwrite(bytes(model), base)
for step in range(300):
    off = rng.randrange(len(model)); n = min(rng.choice([1, 3, 511, 4096, 16383, 16384, 16385, 70000, 1 << 20]), len(model) - off)
    if step % 2:
        data = rng.randbytes(n); h.pwrite(data, base + off); model[off:off + n] = data
    else:
        assert h.pread(n, base + off) == model[off:off + n], (step, off, n)
h.flush()
h.shutdown()
print("done")
"""
    with Place("tls") as place:
        door = Door(place.cell())
        environment = dict(os.environ, PATH="/usr/bin:/bin:" + os.environ.get("PATH", ""))
        connect = f"h.set_uri_allow_local_file(True); h.connect_uri({door.uri()!r})"
        contains(run(["nbdsh", "-c", connect, "-c", script], env=environment).stdout, "done", "nbdsh")
        door.cell.stop()


@test
def tls_lets_in_whom_the_authority_and_the_lists_name():
    need("nbdinfo", "nbdcopy")
    with Place("tls") as place:
        door = Door(place.cell(griddisks=("data:16M", "sales:16M", "hr:16M")))
        cell = door.cell
        cell.cellcli("alter griddisk sales availableTo='SALES'")
        cell.cellcli("alter griddisk hr availableTo='HR,watcher'")
        sales, watcher = door.client("sales01", "database:SALES"), door.client("watcher", "monitor")
        equal(door.exports(), ["data", "hr", "sales"], "exports for an administrator")
        # A database sees what names it, not what names nobody; and no tag changes that.
        equal(door.exports(sales), ["sales"], "exports for a database")
        source = place.file("in", pattern("who", MIB))
        run(["nbdcopy", source, door.uri("sales", sales)])
        run(["nbdinfo", "--size", door.uri("sales@SALES", sales)])
        # What is there for others and what is not there are one answer; of its own it is told more.
        for export in ("data", "hr", "hr@SALES", "nosuch", "nosuch@SALES"):
            told = door.refused(export, sales)
            contains(told, f"no grid disk {export} for this client; hint: there is sales", f"answer for {export}")
        contains(door.refused("sales@HR", sales), "certificate sales01 (database:SALES) does not work for HR", "another's tag")
        # Its work is the database's without a tag.
        equal([row["name"] for row in cell.json("list database") if row["name"] == "SALES"], ["SALES"], "whose work it was")
        # A monitor looks at the cell, not at data, but where a list names its certificate: to read.
        equal(door.exports(watcher), ["hr"], "exports for a monitor")
        info = json.loads(run(["nbdinfo", "--no-content", "--json", door.uri("hr", watcher)]).stdout)["exports"][0]
        equal(info["is_read_only"], True, "read-only for a monitor")
        run(["nbdcopy", source, door.uri("hr", watcher)], ok=False)
        # A revoked certificate opens nothing from its next connection on.
        door.trust(cell.dir, "--revoke", "sales01")
        contains(door.refused("sales", sales), "certificate sales01 is revoked", "revoked")
        equal(door.exports(sales), [], "exports for the revoked")
        equal(door.exports(), ["data", "hr", "sales"], "exports for an administrator after that")
        cell.stop()


@test
def tls_keeps_out_the_unproven():
    need("nbdinfo")
    with Place("tls") as place:
        door = Door(place.cell())
        # In the clear: nothing but that TLS comes first.
        contains(refusal(["nbdinfo", "--size", f"nbd://{door.address}/data"]), "TLS comes first", "in the clear")
        client = door.raw()
        client.sendall(b"IHAVEOPT" + struct.pack(">II", 3, 0))
        kind, text = reply(client)
        equal(kind, 0x80000005, "NBD_REP_ERR_TLS_REQD to LIST")
        contains(text.decode(), "TLS comes first", "in words")
        client.close()
        # Without a certificate, even where administration takes tokens.
        door.trust(door.cell.dir, "--token", "p", "--role", "administrator")
        door.cell.stop()
        door.start()
        bare = place.path("bare")
        os.mkdir(bare)
        os.symlink(os.path.join(door.own, "ca.pem"), os.path.join(bare, "ca-cert.pem"))
        door.refused(certificates=bare)
        # The client hears of it before the log has it.
        wait_until(lambda: "no TLS came about with an NBD client" in door.cell.log(), 10, "the log tells of it")
        # A client of another group does not believe this cell.
        other = place.path("other")
        run([binary(), "trust", "--trust", other, "--client", "x", "--role", "administrator", "--out", other])
        contains(door.refused(certificates=other).lower(), "certificate", "what it says")
        # And were it made to, it is not believed.
        os.remove(os.path.join(other, "ca.pem"))
        os.symlink(os.path.join(door.own, "ca.pem"), os.path.join(other, "ca.pem"))
        door.refused(certificates=other)
        # With the cell's own: it is a server's.
        cells = place.path("cells")
        os.mkdir(cells)
        for name, file in (("ca-cert.pem", "ca.pem"), ("client-cert.pem", "cell.pem"), ("client-key.pem", "cell.key")):
            os.symlink(os.path.join(door.cell.dir, "trust", file), os.path.join(cells, name))
        door.refused(certificates=cells)
        run(["nbdinfo", "--size", door.uri()])
        door.cell.stop()


@timing_alone
def tls_before_its_answer_and_garbage_and_silence():
    need("nbdinfo")
    with Place("tls") as place:
        door = Door(place.cell())
        # A hello in one send with STARTTLS: neither answered nor used.
        context = ssl.create_default_context(cafile=os.path.join(door.own, "ca.pem"))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        client = door.raw()
        client.sendall(STARTTLS + outgoing.read())
        equal(client.recv(100), b"", "what is said to it")
        # Garbage in place of a hello: an alert, and the end once the client leaves.
        client = door.raw()
        client.sendall(STARTTLS)
        equal(reply(client)[0], 1, "ACK")
        client.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        client.shutdown(socket.SHUT_WR)
        check(ended(client), "the server closes after garbage")
        # Silence, and half a hello, many times: others are served, and all of them are closed in time.
        silent = [door.raw() for _ in range(60)]
        started = time.monotonic()
        for number, client in enumerate(silent):
            client.sendall(STARTTLS)
            equal(reply(client)[0], 1, "ACK")
            if number % 2:
                client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        run(["nbdinfo", "--size", door.uri()])
        check(all(ended(client) for client in silent), "silent clients are closed")
        seconds = time.monotonic() - started
        measured(25 < seconds < 50, f"after 30 s: {seconds:.0f} s")
        run(["nbdinfo", "--size", door.uri()])
        door.cell.check_alive()
        door.cell.stop()


@test
def tls_is_on_unless_told_otherwise():
    need("nbdinfo")
    with Place("tls") as place:
        cell = place.cell()
        cell.edit(lambda text: text.replace('nbd = ["unix:nbd.sock"]', 'nbd = ["unix:nbd.sock", "tcp:127.0.0.1:0"]'))
        text = cell.start_fails()
        contains(text, "TCP is TLS, and there are no certificates", "why it does not start")
        contains(text, "flashcell trust", "hint")
        cell.edit(lambda text: text.replace('"tcp:127.0.0.1:0"', '"tcp-plain:127.0.0.1:0"'))
        cell.start()
        contains(cell.log(), "NBD without TLS", "a warning")
        address = [w for w in cell.ready_line.split() if w.startswith("nbd=tcp:")][0].removeprefix("nbd=tcp:")
        run(["nbdinfo", "--size", f"nbd://{address}/data"])
        cell.cellcli("alter griddisk data availableTo='SALES'")
        contains(refusal(["nbdinfo", "--size", f"nbd://{address}/data"]), "for this client", "a list")
        cell.stop()


@test
def certificates_are_renewed_without_a_restart():
    need("nbdinfo", "openssl")
    with Place("tls") as place:
        door = Door(place.cell())

        def shown():
            """The certificate that NBD shows."""
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.load_cert_chain(os.path.join(door.own, "client.pem"), os.path.join(door.own, "client.key"))
            client = door.raw()
            client.sendall(STARTTLS)
            equal(reply(client)[0], 1, "the answer to STARTTLS")
            return context.wrap_socket(client).getpeercert(binary_form=True)

        first = shown()
        equal(first, shown(), "the same while nothing has changed")
        door.trust(door.cell.dir)
        wait_until(lambda: shown() != first, 30, "the renewed certificate, by itself")
        second = shown()
        run(["nbdinfo", "--size", door.uri()])
        key = os.path.join(door.cell.dir, "trust", "cell.key")
        with open(key, "rb") as file:
            good = file.read()
        with open(key, "wb") as file:
            file.write(good[: len(good) // 2])
        told = lambda: door.cell.json("list alerthistory where definition = Cell_Certificates attributes all")
        row = wait_until(told, 30, "an alert")[0]
        contains(row["alertMessage"], "cell.key", "what is wrong")
        equal(shown(), second, "the cell goes on with the one before")
        with open(key, "wb") as file:
            file.write(good)
        os.kill(door.cell.process.pid, signal.SIGHUP)
        wait_until(lambda: "clear" in [row["severity"] for row in told()], 30, "it is over")
        equal(shown(), second, "the one before")
        door.cell.stop()


@test
def client_hosts_have_what_they_sent_and_received():
    need("nbdcopy")
    with Place("tls") as place:
        door = Door(place.cell(griddisks=("data:64M",)))
        source = place.file("in", pattern("hosts", 4 * MIB))
        run(["nbdcopy", source, door.uri()])
        local = nbdclient.Client(door.cell.socket)
        for at in range(3):
            local.read(at * MIB, MIB)
        rows = door.cell.json("list metriccurrent attributes all where objectType = HOST_INTERCONNECT and name like 'N_MB_(SENT|RECEIVED)'")
        found = {(row["name"], row["metricObjectName"]): (row["metricValue"], row["unit"]) for row in rows}
        equal(found["N_MB_RECEIVED", "127.0.0.1"], (4, "MB"), "written over TCP")
        equal(found["N_MB_SENT", "localhost"], (3, "MB"), "read over the unix socket")
        equal((found["N_MB_SENT", "127.0.0.1"][0], found["N_MB_RECEIVED", "localhost"][0]), (0, 0), "and no more")
        door.cell.stop()


LIVE = r"""
import sys, time
h.pread(512, 0)
print("ready", flush=True)
written = 0
try:
    while True:
        h.pwrite(bytes([written % 251]) * 4096, 0)
        written += 1
        time.sleep(0.02)
except nbd.Error as error:
    print("ended", written, flush=True)
"""


class Live:
    """A client that writes until its session ends."""

    def __init__(self, place, uri, user=None):
        environment = dict(os.environ, PATH="/usr/bin:/bin:" + os.environ.get("PATH", ""))
        connect = f"h.set_uri_allow_local_file(True); h.connect_uri({uri!r})"
        who = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        self.process = place.spawn(
            ["nbdsh", "-c", connect, "-c", LIVE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True, **who
        )
        equal(self.process.stdout.readline().strip(), "ready", "a live session")

    def is_over(self):
        return self.process.poll() is not None

    def ended(self, why):
        wait_until(self.is_over, 15, f"the session ends: {why}")
        contains(self.process.stdout.read(), "ended", why)


@test
def live_sessions_end_with_their_leave():
    need("nbdsh", "nbdinfo")
    with Place("tls") as place:
        door = Door(place.cell(griddisks=("data:16M", "sales:16M")))
        cell = door.cell
        cell.cellcli("alter griddisk sales availableTo='SALES'")
        first, second = door.client("sales01", "database:SALES"), door.client("sales02", "database:SALES")
        revoked, withdrawn = Live(place, door.uri("sales", first)), Live(place, door.uri("sales", second))
        operator = Live(place, door.uri("sales"))
        door.trust(cell.dir, "--revoke", "sales01")
        revoked.ended("its certificate is revoked")
        check(not withdrawn.is_over() and not operator.is_over(), "the others go on")
        contains(cell.log(), "the session of an NBD client ends", "log")
        # A list that cannot be read ends no session; the next one does.
        path = os.path.join(cell.dir, "trust", "revoked")
        os.rename(path, path + ".aside")
        os.mkdir(path)
        time.sleep(3)
        check(not withdrawn.is_over(), "an unreadable list ends nothing")
        os.rmdir(path)
        os.rename(path + ".aside", path)
        cell.cellcli("alter griddisk sales availableTo='HR'")
        withdrawn.ended("availableTo names it no longer")
        check(not operator.is_over(), "an administrator goes on")
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody").pw_uid
            os.chmod(cell.socket, 0o666)
            for path in (place.dir, cell.dir):
                os.chmod(path, 0o755)
            user = Live(place, cell.uri("data"), nobody)
            cell.cellcli("alter griddisk data availableTo='bob'")
            user.ended("a user of this host")
        check(not operator.is_over(), "an administrator goes on")
        cell.stop()


@test
def a_list_of_revoked_names_that_cannot_be_read_refuses_every_certificate():
    need("nbdinfo")
    with Place("tls") as place:
        door, admin = administered(place)
        cell = door.cell
        path = os.path.join(cell.dir, "trust", "revoked")

        def unreadable(kind):
            if kind == "a directory":
                os.mkdir(path)
                return lambda: os.rmdir(path)
            text = {"a line that is no name": b"ann\ntwo words\n", "no text": b"ann\n\xff\xfe\n", "too long": b"ann\n" * (3 << 20)}[kind]
            with open(path, "wb") as file:
                file.write(text)
            return lambda: os.remove(path)

        def alerts():
            return [row["severity"] for row in cell.json("list alerthistory attributes all") if "revoked" in row["alertMessage"]]

        run([binary(), "cellcli", "-c", admin, "-e", "list cell"], env=door.environment)
        for kind in ("a directory", "a line that is no name", "no text", "too long"):
            mend = unreadable(kind)
            before = None if os.path.isdir(path) else open(path, "rb").read()
            contains(door.refused(), "no certificate counts while the list of revoked ones is not known", f"NBD, {kind}")
            told = run([binary(), "cellcli", "-c", admin, "-e", "list cell"], env=door.environment, ok=False).stderr
            contains(told, "no certificate counts", f"administration, {kind}")
            contains(told, "hint:", f"administration, {kind}")
            wait_until(lambda: alerts()[-1:] == ["critical"], 30, f"an alert, {kind}")
            told = run([binary(), "trust", cell.dir, "--revoke", "bob"], env=door.environment, ok=False).stderr
            contains(told, "revoked is left as it is", f"trust, {kind}")
            if before is not None:
                equal(open(path, "rb").read() == before, True, "the list is as it was")
            mend()
            run(["nbdinfo", "--size", door.uri()])
        contains(cell.log(), "a certificate was shown that does not count", "log")
        cell.stop()


class Crowd:
    """Clients that connect and say nothing, always so many, until told to end."""

    def __init__(self, port, count):
        self.port, self.count, self.ends = port, count, False
        self.full = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        check(self.full.wait(60), "the crowd is there")

    def run(self):
        clients = []
        while not self.ends:
            if len(clients) >= self.count:
                self.full.set()
                clients.pop(0).close()
                time.sleep(0.002)
            try:
                client = socket.create_connection(("127.0.0.1", self.port), timeout=0.2)
                clients.append(client)
            except OSError:
                time.sleep(0.05)
                # The backlog is full as well.
                self.full.set()
        for client in clients:
            client.close()

    def end(self):
        self.ends = True
        self.thread.join()


def administered(place):
    """A door whose cell has an admin service over TCP too, and the address of that."""
    door = Door(place.cell())
    door.cell.stop()
    door.cell.edit(lambda text: text.replace("admin = [", 'admin = ["tcp:127.0.0.1:0", ', 1))
    door.start()
    (admin,) = [word for word in door.cell.ready_line.split() if word.startswith("admin=tcp:")]
    return door, admin.removeprefix("admin=tcp:")


@test_alone
def a_crowd_of_strangers_keeps_no_administrator_out():
    need("nbdinfo")
    with Place("tls") as place:
        door, admin = administered(place)
        cell = door.cell
        for port, command in (
            (door.port, ["nbdinfo", "--size", door.uri()]),
            (int(admin.rsplit(":", 1)[1]), [binary(), "cellcli", "-c", admin, "-e", "list cell"]),
        ):
            crowd = Crowd(port, 400)
            try:
                for _ in range(5):
                    run(command, env=door.environment, seconds=20)
            finally:
                crowd.end()
        cell.stop()


class Reopened:
    """So many connections that say nothing, each opened again the moment it is closed: nobody waits in between."""

    def __init__(self, address, count):
        self.address, self.count, self.ends, self.opened = address, count, False, 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        wait_until(lambda: self.opened >= count, 30, "the connections are there")

    def open(self, poll, clients):
        client = socket.socket(socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET)
        client.setblocking(False)
        client.connect_ex(self.address)
        poll.register(client, select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR)
        clients[client.fileno()] = client
        self.opened += 1

    def run(self):
        poll, clients = select.epoll(), {}
        while not self.ends:
            while len(clients) < self.count:
                self.open(poll, clients)
            for number, _ in poll.poll(0.1):
                poll.unregister(number)
                clients.pop(number).close()
        for client in clients.values():
            client.close()
        poll.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ends = True
        self.thread.join()


@timing_alone
def connections_that_are_reopened_as_they_close_delay_nobody():
    """As an evaluation did it: 150 at the admin port, 600 at the NBD port, from the host the others come from as well."""
    need("nbdinfo")
    with Place("tls") as place:
        door, admin = administered(place)
        cell = door.cell
        statement = [binary(), "cellcli", "-c", admin, "-e", "list cell"]
        for port, count, command in (
            (int(admin.rsplit(":", 1)[1]), 150, statement),
            (int(admin.rsplit(":", 1)[1]), 600, statement),
            (door.port, 600, ["nbdinfo", "--size", door.uri()]),
        ):
            with Reopened(("127.0.0.1", port), count) as crowd:
                times = []
                for _ in range(10):
                    started = time.monotonic()
                    run(command, env=door.environment, seconds=30)
                    times.append(time.monotonic() - started)
            print(f"# beside {count} silent connections, {crowd.opened} in all: {max(times):.2f} s at most", flush=True)
            measured(max(times) < 8, f"{times}")
        cell.stop()


@timing_alone
def idle_connections_of_root_delay_no_administrator_of_this_host():
    """Idle and reopened as they close, without a word and with the beginning of a request."""
    with Place("idle") as place:
        cell = place.cell().start()
        with Reopened(cell.admin_socket, 200):
            half = []
            for _ in range(200):
                client = socket.socket(socket.AF_UNIX)
                client.connect(cell.admin_socket)
                client.sendall(b"POST /v1/cellcli HTTP/1.1\r\n")
                half.append(client)
            for _ in range(10):
                started = time.monotonic()
                contains(cell.cellcli("list griddisk").stdout, "data", "a statement beside them")
                measured(time.monotonic() - started < 3, f"{time.monotonic() - started:.1f} s")
            for client in half:
                client.close()
        cell.stop()


@test
def clients_without_a_certificate_have_few_places():
    need("nbdinfo")
    with Place("tls") as place:
        door = Door(place.cell(), listen='"tcp:127.0.0.1:0", "tcp-plain:127.0.0.1:0"')
        plain = [word for word in door.cell.ready_line.split() if word.startswith("nbd=tcp:")][1]
        address = ("127.0.0.1", int(plain.rsplit(":", 1)[1]))
        served, refused = [], []
        for _ in range(300):
            try:
                served.append(nbdclient.Client(address))
            except nbdclient.Refused as why:
                refused.append(str(why))
        equal((len(served), len(refused)), (256, 44), "served and refused")
        contains(refused[0], "without a certificate", "reason")
        run(["nbdinfo", "--size", door.uri()])
        nbdclient.Client(door.cell.socket).disconnect()
        for client in served:
            client.disconnect()
        door.cell.stop()


@test
def connections_over_tls_take_no_more_than_announced():
    count = 600
    with Place("tlsmemory") as place:
        door = Door(place.cell())
        said = {name: int(value) for name, value in re.findall(r"(\w+_max(?:_mib)?)=(\d+)", door.cell.log())}
        # Less payloads and 8 KiB for each request, as docs/administration.md has it.
        most = (said["clients_max_mib"] * MIB - 160 * MIB - 16384 * 8192) // said["connections_max"]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(os.path.join(door.own, "ca-cert.pem"))
        certificate, key = (os.path.join(door.own, name) for name in ("client-cert.pem", "client-key.pem"))
        context.load_cert_chain(certificate, key)

        def connected():
            client = door.raw()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.sendall(STARTTLS)
            reply(client)
            client = context.wrap_socket(client)
            client.sendall(b"IHAVEOPT" + struct.pack(">III", 7, 10, 4) + b"data" + b"\0\0")
            while (kind := reply(client)[0]) != 1:
                check(kind < 1 << 31, f"the server answers {kind:#x}")
            return client

        # What the first take is the library's own.
        warm = [connected() for _ in range(20)]
        before = door.cell.resident_bytes()
        clients = [connected() for _ in range(count)]
        time.sleep(0.5)
        each = (door.cell.resident_bytes() - before) // count
        print(f"# {each / 1024:.1f} KiB of memory for each idle connection over TLS, {most / 1024:.0f} announced", flush=True)
        check(each <= most, f"{each} bytes for each connection, {most} announced")
        for client in warm + clients:
            client.close()
        door.cell.stop()
