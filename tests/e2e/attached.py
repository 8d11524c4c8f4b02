"""Block devices of this host made of grid disks, for the tests that need them."""

import contextlib
import json
import os

from harness import Place, Skip, binary, need, run


def need_attach(*programs):
    """Skip where a block device cannot come about."""
    if os.geteuid() != 0:
        raise Skip("attach needs root")
    for path in ("/dev/fuse", "/dev/loop-control"):
        try:
            os.close(os.open(path, os.O_RDWR))
        except OSError as error:
            raise Skip(f"attach needs {path}: {error.strerror}") from error
    need("mkfs.ext4", "mount", *programs)


class Host:
    """Attachments of one test, recorded apart from the host's own."""

    def __init__(self, place):
        self.env = dict(os.environ, FLASHCELL_RUN=place.path("run"))

    @staticmethod
    def command(verb, *arguments):
        # What these tests look at is this driver's; the others have tests/guest.
        if verb == "attach" and "--driver" not in arguments and "--list" not in arguments:
            arguments = (*arguments, "--driver", "fuse")
        return [binary(), verb, *map(str, arguments)]

    def attach(self, *arguments, ok=True, seconds=60):
        return run(self.command("attach", *arguments), ok=ok, seconds=seconds, env=self.env)

    def detach(self, *arguments, ok=True, seconds=90):
        return run([binary(), "detach", *map(str, arguments)], ok=ok, seconds=seconds, env=self.env)

    def rows(self):
        return json.loads(self.attach("--list", "--json").stdout)

    def row(self):
        (row,) = self.rows()
        return row

    def end(self):
        for row in self.rows():
            self.detach(row["device"], "--force", ok=None)


@contextlib.contextmanager
def hosted(*programs, **options):
    """A served cell, and what is attached of it; all of it is gone afterwards."""
    need_attach(*programs)
    with Place("attach") as place:
        cell = place.cell(**options).start()
        host = Host(place)
        try:
            yield cell, host, place
        finally:
            host.end()
