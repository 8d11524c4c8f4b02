"""Alerts by mail: a cell against a mail server made here, plain and over TLS, with one that refuses, one that is silent and one that is gone."""

import base64
import email
import email.policy
import os
import socket
import ssl
import threading

from case_alerts import alerts
from harness import Place, binary, check, contains, equal, run, test, wait_until


class MailServer:
    """SMTP as RFC 5321 has it, as much as a client needs. `tls`: an SSL context for STARTTLS. `refuse`: addresses it does not take."""

    def __init__(self, tls=None, login=None, refuse=(), silent=False):
        self.tls, self.login, self.refuse, self.silent = tls, login, refuse, silent
        self.mails, self.talks = [], []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.quietly, args=(connection,), daemon=True).start()

    def quietly(self, connection):
        try:
            self.talk(connection)
        except (OSError, ssl.SSLError):
            pass
        finally:
            connection.close()

    def talk(self, connection):
        if self.silent:
            threading.Event().wait(60)
            return
        secure, known, to, lines = False, self.login is None, [], connection.makefile("rb")
        talk = []
        self.talks.append(talk)
        say = lambda text: connection.sendall(text.encode() + b"\r\n")
        say("220 mail.test ESMTP")
        while line := lines.readline():
            line = line.rstrip(b"\r\n").decode()
            talk.append(line)
            word = line.split(" ")[0].upper()
            if word == "EHLO":
                offers = ["mail.test"] + (["STARTTLS"] if self.tls and not secure else []) + (["AUTH PLAIN"] if secure and self.login else [])
                say("\r\n".join(f"250{'-' if offer != offers[-1] else ' '}{offer}" for offer in offers))
            elif word == "STARTTLS":
                say("220 go ahead")
                connection = self.tls.wrap_socket(connection, server_side=True)
                lines, secure = connection.makefile("rb"), True
            elif word == "AUTH":
                known = base64.b64decode(line.split(" ")[2]).split(b"\0")[1:] == [part.encode() for part in self.login]
                say("235 welcome" if known else "535 no such user")
            elif word == "RCPT":
                refused = any(address in line for address in self.refuse)
                to += [] if refused else [line.split("<")[1].split(">")[0]]
                say("550 no such mailbox here" if refused else "250 ok")
            elif word == "DATA":
                say("354 go on")
                data = []
                while (part := lines.readline()) != b".\r\n":
                    data.append(part.removeprefix(b".") if part.startswith(b"..") else part)
                self.mails.append((to, email.message_from_bytes(b"".join(data), policy=email.policy.default)))
                to = []
                say("250 taken")
            elif word == "QUIT":
                say("221 bye")
                return
            else:
                say("250 ok" if known else "530 authenticate first")

    def close(self):
        self.socket.close()


def set_up(cell, server, to="dba@b.example", more=""):
    cell.cellcli(f"alter cell smtpServer='127.0.0.1', smtpPort={server.port}, smtpFrom='Cell of rack 7', smtpFromAddr='cell@a.example', smtpToAddr='{to}'{more}")


@test
def a_lost_flash_device_is_told_by_mail():
    server = MailServer(refuse=("gone@b.example",))
    with Place("mail") as place:
        cell = place.cell().start()
        row = cell.json("list cell attributes notificationMethod, smtpUseSSL, smtpServer")[0]
        equal((row["notificationMethod"], row["smtpUseSSL"], row.get("smtpServer")), (["none"], "FALSE", None), "a new cell")
        refused = cell.cellcli("alter cell notificationMethod='mail'", ok=False).stderr
        contains(refused, "mail needs smtpServer, which is not set.\nhint: ALTER CELL smtpServer=", "without a server")
        for bad, part in (
            ("smtpToAddr='dba'", "smtpToAddr takes mail addresses, not \"dba\""),
            ("smtpFromAddr='a@b> x'", "smtpFromAddr takes mail addresses"),
            ("smtpPort=70000", "smtpPort takes a port from 1 to 65535, not 70000"),
            ("notificationMethod='snmp'", "notificationMethod takes mail, or none, not snmp"),
        ):
            contains(cell.cellcli(f"alter cell {bad}", ok=False).stderr, part, bad)
        set_up(cell, server, to="dba@b.example,gone@b.example")
        # What the server does not take is named, and the others get theirs.
        refused = cell.cellcli("alter cell validate mail", ok=False).stderr
        contains(refused, f"smtp://127.0.0.1:{server.port} did not take a mail to gone@b.example: ", "one address is refused")
        contains(refused, "no such mailbox here", "why")
        equal([to for to, _ in server.mails], [["dba@b.example"]], "the test mail")
        set_up(cell, server)
        out = cell.cellcli("alter cell validate mail").stdout
        contains(out, "A test mail to dba@b.example was taken by smtp://127.0.0.1:", "validate")
        contains(out, "Alerts do not go by mail yet: ALTER CELL notificationMethod='mail'", "validate")
        cell.cellcli("alter cell notificationMethod='mail', notificationPolicy='critical,warning'")
        contains(cell.cellcli("alter cell smtpToAddr=''", ok=False).stderr, "mail needs smtpToAddr", "what is needed cannot go")
        # What the cell keeps, it has after a crash.
        cell.kill()
        flash = cell.device("flash")
        os.rename(flash, flash + ".away")
        del server.mails[:]
        cell.start()
        wait_until(lambda: len(server.mails) >= 2, 60, "mails of both alerts")
        found = {}
        for to, mail in server.mails:
            equal((to, mail["to"], mail["from"]), (["dba@b.example"], "dba@b.example", 'Cell of rack 7 <cell@a.example>'), "addresses")
            equal(mail["auto-submitted"], "auto-generated", "no automatic answers")
            check(mail["date"] and mail["message-id"], "date and id")
            found[mail["subject"].split(": ")[1].split(" ")[0]] = mail
        equal(set(found), {"CellDisk_NotPresent", "FlashCache_MemberFailed"}, "alerts")
        lost = found["CellDisk_NotPresent"]
        check(lost["subject"].startswith("[cell] warning: CellDisk_NotPresent"), lost["subject"])
        alert = alerts(cell, "where definition = CellDisk_NotPresent")[0]
        text = lost.get_content().replace("\r\n", "\n")
        for part in (alert["alertMessage"], f"Alert        {alert['name']}\n", "Severity     warning\n"):
            contains(text, part, "the text")
        script = run([binary(), "backup", "-c", cell.dir]).stdout
        contains(script, "smtpServer='127.0.0.1'", "backup")
        cell.stop()
    server.close()


@test
def mail_over_tls_with_a_password_from_a_file():
    with Place("mails") as place:
        cell = place.cell()
        run([binary(), "trust", cell.dir, "--trust", place.path("own")])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(os.path.join(cell.dir, "trust", "cell.pem"), os.path.join(cell.dir, "trust", "cell.key"))
        server = MailServer(tls=context, login=("cell", "s3cret word"))
        with open(os.path.join(cell.dir, "mail.password"), "w") as file:
            file.write("s3cret word\n")
        own = os.path.join(place.path("own"), "ca.pem")
        mail = f'[alerts.mail]\nuser = "cell"\npassword_file = "mail.password"\nca = "{own}"\ntimeout_s = 2\n\n[[device]]\n'
        cell.edit(lambda text: text.replace("[[device]]\n", mail, 1))
        cell.start()
        set_up(cell, server)
        refused = cell.cellcli("alter cell validate mail", ok=False).stderr
        contains(refused, "a password goes over TLS only: smtpUseSSL is not TRUE", "no TLS")
        equal(server.talks, [], "nothing was said")
        cell.cellcli("alter cell smtpUseSSL=TRUE, notificationMethod='mail'")
        contains(cell.cellcli("alter cell validate mail").stdout, "was taken by", "over TLS")
        equal(len(server.mails), 1, "mails")
        said = [line.split(" ")[0] for line in server.talks[0]]
        equal(said[:4], ["EHLO", "STARTTLS", "EHLO", "AUTH"], "TLS before the password")
        # A server without TLS gets no password; one that is silent or gone is given up.
        plain, silent = MailServer(login=("cell", "s3cret word")), MailServer(silent=True)
        for other, part in ((plain, "STARTTLS"), (silent, "no answer within 2 s")):
            cell.cellcli(f"alter cell smtpPort={other.port}")
            contains(cell.cellcli("alter cell validate mail", ok=False).stderr, part, "a server that will not do")
        check(not any("AUTH" in line for talk in plain.talks for line in talk), "no password in the clear")
        # A wrong password.
        with open(os.path.join(cell.dir, "mail.password"), "w") as file:
            file.write("wrong")
        cell.cellcli(f"alter cell smtpPort={server.port}")
        contains(cell.cellcli("alter cell validate mail", ok=False).stderr, "no such user", "a wrong password")
        check("s3cret" not in cell.log(), "no password in the log")
        cell.stop()
        for each in (server, plain, silent):
            each.close()
