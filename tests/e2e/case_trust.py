"""`flashcell trust` to cells over ssh, CellCLI and dcli's cells over TLS, and an admin service that slow clients cannot take."""

import json
import os
import pwd
import socket
import stat
import time

from fleet import Fleet
from harness import Place, Skip, binary, check, contains, equal, measured, run, served, test, timing


@test
def trust_of_a_group_of_cells_in_one_command():
    with Place("trust") as place:
        fleet = Fleet(place, count=2, griddisks=("data:32M",))
        own = place.path("own")
        environment = fleet.environment(FLASHCELL_TRUST=own)
        flashcell = [binary()]
        names = [word for name in fleet.names for word in (f"root@{name}:{fleet.cells[name].dir}",)]
        options = ["-s", f"-F {fleet.config}", "--name", "127.0.0.1"]
        done = run(flashcell + ["trust", *names, *options], env=environment)
        for name in fleet.names:
            contains(done.stderr, f"root@{name}: certificate installed", "talk")
            trust = os.path.join(fleet.cells[name].dir, "trust")
            equal(sorted(os.listdir(trust)), ["ca.pem", "cell.key", "cell.pem"], "files of a cell")
            equal(stat.S_IMODE(os.stat(trust).st_mode), 0o700, "mode of the directory")
            equal({stat.S_IMODE(os.stat(os.path.join(trust, f)).st_mode) for f in os.listdir(trust)}, {0o600}, "modes of files")
        files = ["ca-cert.pem", "ca.key", "ca.name", "ca.pem", "client-cert.pem", "client-key.pem", "client.key", "client.pem"]
        equal(sorted(os.listdir(own)), files, "files of the operator")
        for cell in fleet.cells.values():
            cell.stop()
            cell.edit(lambda text: text.replace("admin = [", 'admin = ["tcp:127.0.0.1:0", ', 1))
            # The ready line names both sockets; the harness takes the last.
            cell.start()
            tcp = [w for w in cell.ready_line.split() if w.startswith("admin=tcp:")][0].removeprefix("admin=tcp:")
            answer = run(flashcell + ["cellcli", "-c", tcp, "--json", "-e", "list cell"], env=environment).stdout
            equal(json.loads(answer)[0]["status"], "online", "over TLS")
        # A token for all of them, over ssh as well; a host that is not there is named, the others have it.
        gone = f"root@nosuch.invalid:{place.dir}"
        done = run(flashcell + ["trust", *names, gone, *options, "--token", "p", "--role", "monitor"], env=environment, ok=False)
        contains(done.stderr, "Unable to connect to cells: ['root@nosuch.invalid']", "who is not there")
        for name in fleet.names:
            contains(done.stderr, f"root@{name}: token installed", "talk")
            with open(os.path.join(fleet.cells[name].dir, "trust", "tokens")) as file:
                contains(file.read(), "monitor p ", "tokens")
        run(flashcell + ["trust", *names, *options, "--revoke", "p"], env=environment)
        for name in fleet.names:
            trust = os.path.join(fleet.cells[name].dir, "trust")
            with open(os.path.join(trust, "tokens")) as tokens, open(os.path.join(trust, "revoked")) as revoked:
                equal((tokens.read(), revoked.read()), ("", "p\n"), "after --revoke")
        done = run(flashcell + ["trust", f"root@{fleet.names[0]}:{place.dir}", *options], env=environment, ok=False)
        contains(done.stderr, "is not the directory of a cell", "a wrong directory")
        for cell in fleet.cells.values():
            cell.stop()


@timing
def slow_clients_do_not_take_the_admin_service():
    """More connections that say nothing than the service takes at a time: they are cut off, and statements get through."""
    with served() as cell:
        silent = []
        for _ in range(100):
            client = socket.socket(socket.AF_UNIX)
            client.connect(cell.admin_socket)
            client.sendall(b"POST /v1/cellcli HTTP/1.1\r\n")
            silent.append(client)
        started = time.monotonic()
        contains(cell.cellcli("list griddisk").stdout, "data", "a statement beside them")
        measured(time.monotonic() - started < 25, "within the time a head may take")
        # And one that does not read its answer takes no more than its place.
        deaf = socket.socket(socket.AF_UNIX)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(cell.admin_socket)
        body = json.dumps({"text": "list metriccurrent attributes all;" * 200, "form": "json"}).encode()
        deaf.sendall(b"POST /v1/cellcli HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        contains(cell.cellcli("list cell").stdout, "online", "a statement beside it")
        for client in silent + [deaf]:
            client.close()
        cell.stop()


FILES = ("ca.pem", "cell.key", "cell.pem", "tokens", "revoked")


class Attacker:
    """A user who owns the directory of a cell, and what he would like to have changed: files and directories of root."""

    def __init__(self, place, cell):
        if os.getuid() != 0:
            raise Skip("another user can only be tried as root")
        self.who = pwd.getpwnam("nobody")
        self.cell = cell
        self.victim = place.path("victim")
        os.makedirs(os.path.join(self.victim, "trust"), mode=0o755)
        for path in ("file", *FILES, *(f"trust/{name}" for name in FILES), "cell.toml", "audit.log"):
            with open(os.path.join(self.victim, path), "w") as file:
                file.write(f"secret of root in {path}\n")
            os.chmod(os.path.join(self.victim, path), 0o644)
        os.makedirs(os.path.join(self.victim, "empty"))
        os.chmod(place.dir, 0o755)
        self.give(cell.dir)
        self.before = self.look()

    def give(self, top):
        for base, directories, files in os.walk(top):
            for name in (base, *(os.path.join(base, name) for name in directories + files)):
                os.lchown(name, self.who.pw_uid, self.who.pw_gid)

    def look(self):
        """Everything outside, as it is."""
        seen = {}
        for base, directories, files in os.walk(self.victim):
            for path in (base, *(os.path.join(base, name) for name in files)):
                found = os.lstat(path)
                content = open(path).read() if stat.S_ISREG(found.st_mode) else None
                seen[path] = (found.st_mode, found.st_uid, found.st_gid, found.st_nlink if content else 0, content)
        return seen

    def unharmed(self, what):
        equal(self.look(), self.before, f"files of root: {what}")

    def clear(self):
        run(["rm", "-rf", os.path.join(self.cell.dir, "trust")])

    def plant(self, links):
        """Links as he makes them himself: name in the cell's directory, target."""
        for name, target in links:
            path = os.path.join(self.cell.dir, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.lexists(path):
                os.remove(path)
            os.symlink(target, path)
        self.give(self.cell.dir)


def planted(attacker):
    """What he plants, time after time."""
    file = os.path.join(attacker.victim, "file")
    yield "the directory of certificates", [("trust", attacker.victim)]
    yield "an empty directory", [("trust", os.path.join(attacker.victim, "empty"))]
    yield "files", [(f"trust/{name}", os.path.join(attacker.victim, name)) for name in FILES]
    yield "files that do not exist", [(f"trust/{name}", os.path.join(attacker.victim, "made-" + name)) for name in FILES]
    for ending in (".new", ".tmp", "~"):
        yield f"temporary files {ending}", [(f"trust/{name}{ending}", file) for name in FILES]
    yield "a file beside them", [("trust/other", file), ("trust/sub", attacker.victim)]


@test
def trust_as_root_stays_in_the_directory_of_another_user():
    with Place("trust") as place:
        cell = place.cell()
        attacker = Attacker(place, cell)
        environment = dict(os.environ, FLASHCELL_TRUST=place.path("own"))
        trust = lambda *arguments: run([binary(), "trust", cell.dir, *arguments], env=environment, ok=None)
        for what, links in planted(attacker):
            attacker.clear()
            attacker.plant(links)
            for arguments in ((), ("--token", "p", "--role", "monitor"), ("--revoke", "q")):
                trust(*arguments)
                attacker.unharmed(f"{what}, {arguments}")
        # cell.toml names a directory of root, or one behind a link on the way to it.
        os.symlink(attacker.victim, os.path.join(cell.dir, "way"))
        for named in (attacker.victim, os.path.join(attacker.victim, "trust"), "way/trust", "way/new"):
            cell.edit(lambda text: text.split("[admin]")[0].rstrip() + f'\n\n[admin]\ntrust = "{named}"\n')
            attacker.give(cell.dir)
            for arguments in ((), ("--token", "p", "--role", "monitor"), ("--revoke", "q")):
                check(trust(*arguments).returncode != 0, f"{named} is refused")
                attacker.unharmed(f"admin.trust = {named}, {arguments}")
        # And where nothing is planted, everything is there and is his.
        cell.edit(lambda text: text.split("[admin]")[0])
        attacker.give(cell.dir)
        attacker.clear()
        for arguments in ((), ("--token", "p", "--role", "monitor"), ("--revoke", "q")):
            equal(trust(*arguments).returncode, 0, f"trust {arguments}")
        directory = os.path.join(cell.dir, "trust")
        equal(sorted(os.listdir(directory)), sorted(FILES), "files")
        for path in (directory, *(os.path.join(directory, name) for name in FILES)):
            equal(os.stat(path).st_uid, attacker.who.pw_uid, f"owner of {path}")


@test
def a_server_of_root_stays_in_the_directory_of_another_user():
    with Place("trust") as place:
        cell = place.cell()
        attacker = Attacker(place, cell)
        file = os.path.join(attacker.victim, "file")
        for name in ("audit.log", "audit-refused.log", "serve.lock", "hot.json.new", "cell.toml.new"):
            attacker.plant([(name, file)])
            # It may refuse to serve, and to change anything.
            command = [binary(), "serve", cell.dir]
            server = place.spawn(command, stdout=open(os.devnull, "w"), stderr=open(place.path("log"), "ab"))
            for _ in range(100):
                if server.poll() is not None or run([binary(), "cellcli", "-c", cell.dir, "-e", "alter cell comment=x"], ok=None).returncode in (0, 1):
                    break
                time.sleep(0.1)
            time.sleep(1)
            server.terminate()
            server.wait()
            attacker.unharmed(name)
            os.remove(os.path.join(cell.dir, name))


@test
def trust_over_ssh_stays_in_the_directory_of_another_user():
    with Place("trust") as place:
        fleet = Fleet(place, count=1, griddisks=("data:32M",))
        name = fleet.names[0]
        cell = fleet.cells[name]
        cell.stop()
        attacker = Attacker(place, cell)
        environment = fleet.environment(FLASHCELL_TRUST=place.path("own"))
        trust = lambda *arguments: run([binary(), "trust", f"root@{name}:{cell.dir}", "-s", f"-F {fleet.config}", *arguments], env=environment, ok=None)
        for what, links in planted(attacker):
            attacker.clear()
            attacker.plant(links)
            for arguments in ((), ("--token", "p", "--role", "monitor"), ("--revoke", "q")):
                trust(*arguments)
                attacker.unharmed(f"{what}, {arguments}")
        attacker.clear()
        for arguments in ((), ("--token", "p", "--role", "monitor"), ("--revoke", "q")):
            equal(trust(*arguments).returncode, 0, f"trust {arguments}")
        equal(sorted(os.listdir(os.path.join(cell.dir, "trust"))), sorted(FILES), "files")
