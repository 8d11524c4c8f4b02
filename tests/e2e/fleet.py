"""Several cells as a site has them: each with an sshd of its own on a loopback address, a home of its own, and its cellcli.

An sshd runs in a mount namespace in which /root is a directory of the test, so that keys and copies stay in the test. That
takes root; without it the tests are skipped.
"""

import os
import shutil
import socket
import subprocess

from harness import Skip, binary, check, need, run, wait_until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def need_sshd():
    need("ssh", "scp", "ssh-keygen", "unshare")
    if not os.access(SSHD, os.X_OK):
        raise Skip("not installed: sshd (scripts/install-test-clients)")
    if os.geteuid() != 0:
        raise Skip("not root: an sshd of the test needs a /root of its own")
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        raise Skip("no mount namespaces here")


def free_port(address):
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


class Network:
    """Hosts of their own: a network namespace for each cell and one for the client, all on one bridge."""

    def __init__(self, place, names):
        need("ip", "unshare")
        if os.geteuid() != 0:
            raise Skip("not root: network namespaces")
        self.prefix = f"fc{os.getpid()}"
        self.names = names
        self.spaces = [f"{self.prefix}-{i}" for i in range(len(names) + 1)]
        if subprocess.run(["ip", "netns", "add", self.spaces[0]], capture_output=True).returncode != 0:
            raise Skip("no network namespaces here")
        place.cleanups.append(self.remove)
        lines = ["127.0.0.1 localhost"]
        client = ["ip", "-n", self.spaces[0]]
        run([*client, "link", "set", "lo", "up"])
        run([*client, "link", "add", "bridge", "type", "bridge"])
        run([*client, "addr", "add", "10.77.0.254/24", "dev", "bridge"])
        run([*client, "link", "set", "bridge", "up"])
        for i, name in enumerate(names):
            space = self.spaces[i + 1]
            run(["ip", "netns", "add", space])
            run([*client, "link", "add", f"to{i}", "type", "veth", "peer", "name", "eth0", "netns", space])
            run([*client, "link", "set", f"to{i}", "master", "bridge", "up"])
            run(["ip", "-n", space, "addr", "add", f"{self.address(i)}/24", "dev", "eth0"])
            for device in ("lo", "eth0"):
                run(["ip", "-n", space, "link", "set", device, "up"])
            lines.append(f"{self.address(i)} {name}")
        self.hosts = place.file("hosts", ("\n".join(lines) + "\n").encode())

    def address(self, i):
        return f"10.77.0.{i + 1}"

    def inside(self, i):
        """What starts a program on the host of a cell."""
        return ["ip", "netns", "exec", self.spaces[i + 1]]

    def client(self):
        """What starts a program on the client's host, where the cells have names."""
        script = f'mount --bind {self.hosts} /etc/hosts && exec "$@"'
        return ["ip", "netns", "exec", self.spaces[0], "unshare", "-m", "sh", "-c", script, "sh"]

    def cut(self, name):
        """Pull the plug of a cell's host: nothing goes in or out any more, and nobody is told."""
        run(["ip", "-n", self.spaces[0], "link", "set", f"to{self.names.index(name)}", "down"])

    def remove(self):
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


class Fleet:
    """Cells named exa1cel01 and so on, and the client's side: a key, a configuration of ssh, a group file, a PATH."""

    def __init__(self, place, count=3, serve=True, networked=False, **options):
        need_sshd()
        self.place = place
        self.names = [f"exa1cel{i + 1:02}" for i in range(count)]
        self.network = Network(place, self.names) if networked else None
        self.home = place.path("home")
        os.makedirs(os.path.join(self.home, ".ssh"), mode=0o700)
        self.key = os.path.join(self.home, ".ssh", "id_ed25519")
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key])
        self.bin = place.path("bin")
        os.makedirs(self.bin)
        for name in ("dcli", "cellcli", "flashcell"):
            os.symlink(os.path.abspath(binary()), os.path.join(self.bin, name))
        self.cells, self.homes, self.sshd = {}, {}, {}
        self.config = place.path("ssh_config")
        lines = []
        for i, name in enumerate(self.names):
            if self.network:
                address, port, prefix = self.network.address(i), 22, self.network.inside(i)
            else:
                address, prefix = f"127.0.77.{i + 1}", []
                port = free_port(address)
            if serve:
                self.cells[name] = place.cell(name=name, prefix=prefix, **options).start()
            self._sshd(name, address, port, prefix)
            lines += [f"Host {name}", f"  HostName {address}", f"  Port {port}"]
        lines += ["Host *", f"  IdentityFile {self.key}", "  IdentitiesOnly yes", "  StrictHostKeyChecking accept-new"]
        lines += [f"  UserKnownHostsFile {place.path('known_hosts')}"]
        place.file("ssh_config", ("\n".join(lines) + "\n").encode())
        self.group = place.file("cells", ("\n".join(self.names) + "\n").encode())

    def _sshd(self, name, address, port, prefix):
        directory = self.place.path(f"sshd-{name}")
        home = os.path.join(directory, "root")
        os.makedirs(os.path.join(home, ".ssh"), mode=0o700)
        os.chmod(directory, 0o755)
        os.chmod(home, 0o700)
        host_key = os.path.join(directory, "host_key")
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", host_key])
        self.homes[name] = home
        cell = self.place.path(name)
        config = self.place.file(
            f"sshd_config-{name}",
            (
                f"ListenAddress {address}\nPort {port}\nHostKey {host_key}\nPermitRootLogin prohibit-password\n"
                "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nPidFile none\n"
                "AuthorizedKeysFile /root/.ssh/authorized_keys /root/.ssh/test_keys\nStrictModes no\n"
                "Subsystem sftp internal-sftp\nMaxStartups 100\n"
                f'SetEnv PATH={self.bin}:/usr/bin:/bin FLASHCELL_CELL={cell}\n'
            ).encode(),
        )
        # The way in before dcli -k has been used: a file that dcli does not touch.
        shutil.copy(self.key + ".pub", os.path.join(home, ".ssh", "test_keys"))
        script = 'mount --bind "$1" /root && mount -t tmpfs none /run && mkdir /run/sshd && exec "$2" -D -e -f "$3"'
        with open(self.place.path(f"sshd-{name}.log"), "ab") as log:
            process = self.place.spawn(
                [*prefix, "unshare", "-m", "sh", "-c", script, "sh", home, SSHD, config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.sshd[name] = process

        def listening():
            with open(self.place.path(f"sshd-{name}.log")) as log:
                text = log.read()
            check(process.poll() is None, f"sshd of {name} ended: {text}")
            return "Server listening on" in text

        wait_until(listening, 20, f"sshd of {name}")

    def environment(self, **more):
        path = self.bin + ":" + os.environ["PATH"]
        return dict(os.environ, PATH=path, HOME=self.home, **more)

    def dcli(self, *arguments, ok=True, seconds=120, **options):
        """`dcli` as a user calls it, by that name; the configuration of ssh is the only thing it is told besides."""
        return self.client([os.path.join(self.bin, "dcli"), "-s", f"-F {self.config}", *arguments], ok, seconds, **options)

    def client(self, command, ok=True, seconds=120, **options):
        """Run a program where the user sits."""
        prefix = self.network.client() if self.network else []
        environment = self.environment(FLASHCELL_TRUST=self.place.path("own"))
        return run([*prefix, *command], ok=ok, seconds=seconds, env=environment, **options)

    def kill_sshd(self, name):
        """The cell is gone for ssh: its server and every session of it."""
        children = run(["pgrep", "-P", str(self.sshd[name].pid)], ok=None).stdout.split()
        for pid in [self.sshd[name].pid, *map(int, children)]:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        self.sshd[name].wait()
