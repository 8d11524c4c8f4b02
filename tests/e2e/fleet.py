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


class Fleet:
    """Cells named exa1cel01 and so on, and the client's side: a key, a configuration of ssh, a group file, a PATH."""

    def __init__(self, place, count=3, serve=True, **options):
        need_sshd()
        self.place = place
        self.names = [f"exa1cel{i + 1:02}" for i in range(count)]
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
            address = f"127.0.77.{i + 1}"
            port = free_port(address)
            if serve:
                self.cells[name] = place.cell(name=name, **options).start()
            self._sshd(name, address, port)
            lines += [f"Host {name}", f"  HostName {address}", f"  Port {port}"]
        lines += ["Host *", f"  IdentityFile {self.key}", "  IdentitiesOnly yes", "  StrictHostKeyChecking accept-new"]
        lines += [f"  UserKnownHostsFile {place.path('known_hosts')}"]
        place.file("ssh_config", ("\n".join(lines) + "\n").encode())
        self.group = place.file("cells", ("\n".join(self.names) + "\n").encode())

    def _sshd(self, name, address, port):
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
                ["unshare", "-m", "sh", "-c", script, "sh", home, SSHD, config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.sshd[name] = process

        def listening():
            check(process.poll() is None, f"sshd of {name} ended: {open(self.place.path(f'sshd-{name}.log')).read()}")
            with socket.socket() as probe:
                return probe.connect_ex((address, port)) == 0

        wait_until(listening, 20, f"sshd of {name}")

    def environment(self, **more):
        path = self.bin + ":" + os.environ["PATH"]
        return dict(os.environ, PATH=path, HOME=self.home, **more)

    def dcli(self, *arguments, ok=True, seconds=120, **options):
        """`dcli` as a user calls it, by that name; the configuration of ssh is the only thing it is told besides."""
        command = [os.path.join(self.bin, "dcli"), "-s", f"-F {self.config}", *arguments]
        return run(command, ok=ok, seconds=seconds, env=self.environment(), **options)

    def kill_sshd(self, name):
        """The cell is gone for ssh: its server and every session of it."""
        children = run(["pgrep", "-P", str(self.sshd[name].pid)], ok=None).stdout.split()
        for pid in [self.sshd[name].pid, *map(int, children)]:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        self.sshd[name].wait()
