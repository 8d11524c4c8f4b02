"""A small NBD client for what the installed ones cannot do: requests in flight while the server is killed, malformed bytes.

Written from the protocol text, not from the server. Blocking sockets, no threads, simple or structured replies.
"""

import socket
import struct

OPTS_MAGIC = b"NBDMAGICIHAVEOPT"
OPTION_REPLY_MAGIC = 0x3E889045565A9
REQUEST_MAGIC = 0x25609513
SIMPLE_MAGIC = 0x67446698
STRUCTURED_MAGIC = 0x668E33EF
OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_INFO, OPT_GO, OPT_STRUCTURED = 1, 2, 3, 6, 7, 8
REP_ACK, REP_SERVER, REP_INFO = 1, 2, 3
READ, WRITE, DISC, FLUSH, TRIM, CACHE, ZEROES, STATUS = range(8)
FUA = 1


class Gone(Exception):
    """The server has gone away."""


class Refused(Exception):
    """The server refused an option."""


class Client:
    """One connection in the transmission phase. `socket` is a path, or (host, port)."""

    def __init__(self, address, export="data", seconds=60):
        self.sock = connect(address, seconds)
        self.buffer = b""
        self.next_cookie = 1
        self.pending = {}
        greet(self)
        data = struct.pack(">I", len(export)) + export.encode() + struct.pack(">H", 0)
        self.send(option(OPT_GO, data))
        self.size = self.flags = None
        while True:
            _, kind, payload = self.option_reply()
            if kind == REP_ACK:
                break
            if kind & 1 << 31:
                raise Refused(f"{kind:#x} {payload[:200]!r}")
            if kind == REP_INFO and payload[:2] == b"\0\0":
                self.size, self.flags = struct.unpack(">QH", payload[2:12])

    # --- bytes -----------------------------------------------------------------------------------------------------

    def send(self, data):
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise Gone(str(error)) from error

    def receive(self, count):
        while len(self.buffer) < count:
            try:
                more = self.sock.recv(max(65536, count - len(self.buffer)))
            except OSError as error:
                raise Gone(str(error)) from error
            if not more:
                raise Gone("end of stream")
            self.buffer += more
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def option_reply(self):
        magic, opt, kind, length = struct.unpack(">QIII", self.receive(20))
        assert magic == OPTION_REPLY_MAGIC, hex(magic)
        return opt, kind, self.receive(length)

    def close(self):
        self.sock.close()

    # --- requests --------------------------------------------------------------------------------------------------

    def submit(self, command, offset=0, length=0, data=b"", flags=0):
        """Send a request; its cookie."""
        cookie = self.next_cookie
        self.next_cookie += 1
        self.pending[cookie] = length if command == READ else 0
        head = struct.pack(">IHHQQI", REQUEST_MAGIC, flags, command, cookie, offset, length or len(data))
        self.send(head + data)
        return cookie

    def reply(self):
        """The next reply: (cookie, errno, data of a READ)."""
        magic, error, cookie = struct.unpack(">IIQ", self.receive(16))
        assert magic == SIMPLE_MAGIC, hex(magic)
        length = self.pending.pop(cookie)
        return cookie, error, self.receive(length) if length and not error else b""

    def call(self, command, **request):
        """Send a request and wait: (errno, data)."""
        cookie = self.submit(command, **request)
        got, error, data = self.reply()
        assert got == cookie, "replies of a client that has one request under way come in order"
        return error, data

    def read(self, offset, length):
        error, data = self.call(READ, offset=offset, length=length)
        if error:
            raise OSError(error, "READ")
        return data

    def write(self, offset, data, fua=False):
        error, _ = self.call(WRITE, offset=offset, data=data, flags=FUA if fua else 0)
        if error:
            raise OSError(error, "WRITE")

    def flush(self):
        error, _ = self.call(FLUSH)
        if error:
            raise OSError(error, "FLUSH")

    def disconnect(self):
        try:
            self.send(struct.pack(">IHHQQI", REQUEST_MAGIC, 0, DISC, 0, 0, 0))
        except Gone:
            pass
        self.sock.close()


def connect(address, seconds=60):
    if isinstance(address, str):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(seconds)
    try:
        sock.connect(address)
    except OSError as error:
        sock.close()
        raise Gone(str(error)) from error
    return sock


def greet(client):
    """The handshake up to the client's flags: fixed newstyle, no zeroes."""
    hello = client.receive(18)
    assert hello[:16] == OPTS_MAGIC, hello
    client.send(struct.pack(">I", 3))


def option(kind, data=b""):
    return b"IHAVEOPT" + struct.pack(">II", kind, len(data)) + data


class Raw:
    """A connection that has greeted and does what a test wants."""

    receive, send, close, option_reply = Client.receive, Client.send, Client.close, Client.option_reply

    def __init__(self, address, seconds=20, hello=True):
        self.sock, self.buffer = connect(address, seconds), b""
        if hello:
            greet(self)
