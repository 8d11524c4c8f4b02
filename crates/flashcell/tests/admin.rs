//! Who may administer a cell: users of its host, certificates, tokens; what each is refused; what is written down.
//!
//! Method: the real binary on both sides, and clients that are wrong in one thing.

#![expect(clippy::unwrap_used, reason = "tests")]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_flashcell");
/// `nobody`, who owns nothing.
const NOBODY: u32 = 65534;

/// A directory that goes with the test. Others may enter it.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("flashcell-admin-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        Dir(dir)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Exit code, stdout, stderr of the binary, with a directory of trust.
fn run(trust: &str, args: &[&str]) -> (i32, String, String) {
    told(Command::new(BINARY).args(args).env("FLASHCELL_TRUST", trust))
}

fn told(command: &mut Command) -> (i32, String, String) {
    let output = command.env_remove("FLASHCELL_CELL").stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

fn done(trust: &str, args: &[&str]) -> String {
    let (code, out, err) = run(trust, args);
    assert_eq!(code, 0, "{args:?}: {err}");
    out
}

fn refused(trust: &str, args: &[&str]) -> String {
    let (code, out, err) = run(trust, args);
    assert_eq!((code, out.as_str()), (1, ""), "{args:?}");
    err
}

/// A server, killed with the test.
struct Server {
    child: Child,
    ready: String,
}

impl Server {
    fn start(cell: &str) -> Server {
        let log = std::fs::File::create(Path::new(cell).join("log")).unwrap();
        let mut child = Command::new(BINARY).args(["serve", cell]).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("ready "), "{}", std::fs::read_to_string(Path::new(cell).join("log")).unwrap());
        Server { child, ready }
    }

    /// Where it listens on TCP, as `-c` takes it.
    fn tcp(&self) -> String {
        self.ready.split_whitespace().find_map(|word| word.strip_prefix("admin=tcp:")).unwrap().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A cell with two grid disks, of which one is a database's; files everybody may find.
fn made(dir: &Dir) -> String {
    let cell = dir.path("c1");
    let nobody = dir.path("none");
    done(&nobody, &["init", &cell, "--disk", "128M", "--flash", "64M", "--griddisk", "a:16M", "--griddisk", "b:16M"]);
    std::fs::set_permissions(&cell, std::fs::Permissions::from_mode(0o755)).unwrap();
    cell
}

fn listen_on_tcp(cell: &str) {
    let toml = Path::new(cell).join("cell.toml");
    let text = std::fs::read_to_string(&toml).unwrap();
    std::fs::write(&toml, text.replace("admin = [", "admin = [\"tcp:127.0.0.1:0\", ")).unwrap();
}

/// The changes, then the refusals.
fn audit(cell: &str) -> Vec<Value> {
    let refusals = std::fs::read_to_string(Path::new(cell).join("audit-refused.log")).unwrap_or_default();
    let text = std::fs::read_to_string(Path::new(cell).join("audit.log")).unwrap() + &refusals;
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// One HTTP exchange over a unix socket, by hand: status and body.
fn http(cell: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut stream = UnixStream::connect(Path::new(cell).join("admin.sock")).unwrap();
    // A GET has no body to name the kind of; a page in a browser sends forms and text, and is told so.
    let kind = if body.starts_with("text=") { "text/plain" } else { "application/json; charset=utf-8" };
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or(Value::Null))
}

#[test]
fn nothing_listens_on_tcp_without_certificates() {
    let dir = Dir::new("closed");
    let cell = made(&dir);
    let server = Server::start(&cell);
    assert!(!server.ready.contains("tcp:"), "{}", server.ready);
    drop(server);
    listen_on_tcp(&cell);
    let error = refused(&dir.path("none"), &["serve", &cell]);
    assert!(error.contains("TCP is TLS") && error.contains("hint: `flashcell trust DIR`"), "{error}");
}

#[test]
fn over_tls_with_certificates() {
    let dir = Dir::new("tls");
    let cell = made(&dir);
    let own = dir.path("own");
    done(&own, &["trust", &cell]);
    listen_on_tcp(&cell);
    let server = Server::start(&cell);
    let tcp = server.tcp();
    // The administrator of the group.
    assert!(done(&own, &["cellcli", "-c", &tcp, "-e", "list cell"]).contains("online"));
    done(&own, &["cellcli", "-c", &tcp, "-e", "alter griddisk a availableTo='SALES'"]);
    // Read-only when asked for, by the server, too.
    let error = refused(&own, &["cellcli", "-c", &tcp, "-m", "-e", "drop flashcache"]);
    assert!(error.starts_with("CELL-09011: "), "{error}");
    // A monitor changes nothing.
    let monitor = dir.path("monitor");
    done(&own, &["trust", "--client", "grafana", "--role", "monitor", "--out", &monitor]);
    assert!(done(&monitor, &["cellcli", "-c", &tcp, "-e", "list celldisk"]).contains("CD_00"));
    let error = refused(&monitor, &["cellcli", "-c", &tcp, "-e", "drop griddisk a force"]);
    assert!(error.starts_with("CELL-09011: ") && error.contains("role of this session is monitor"), "{error}");
    // A database sees what is its own.
    let sales = dir.path("sales");
    done(&own, &["trust", "--client", "sales", "--role", "database:SALES", "--out", &sales]);
    assert_eq!(done(&sales, &["cellcli", "-c", &tcp, "-e", "list griddisk"]), "\t a\t active\n");
    let metrics =
        done(&sales, &["cellcli", "-c", &tcp, "--json", "-e", "list metriccurrent attributes metricObjectName"]);
    let objects: Vec<Value> = serde_json::from_str(&metrics).unwrap();
    assert!(!objects.is_empty() && objects.iter().all(|row| row["metricObjectName"] == "a"));
    for statement in ["list celldisk", "list cell", "list griddisk b", "alter griddisk a comment=x"] {
        let error = refused(&sales, &["cellcli", "-c", &tcp, "-e", statement]);
        assert!(error.starts_with("CELL-090"), "{statement}: {error}");
    }
    // Revoked, its certificate counts no more, at once; the others' do.
    done(&own, &["trust", &cell, "--revoke", "grafana"]);
    let error = refused(&monitor, &["cellcli", "-c", &tcp, "-e", "list cell"]);
    assert!(error.contains("certificate grafana is revoked"), "{error}");
    assert!(done(&sales, &["cellcli", "-c", &tcp, "-e", "list griddisk"]).contains("active"));
    // Nobody: no directory, another group, a certificate alone not shown, plain text.
    let error = refused(&dir.path("none"), &["cellcli", "-c", &tcp, "-e", "list cell"]);
    assert!(error.contains("nothing to show") && error.contains("hint: `flashcell trust`"), "{error}");
    let other = dir.path("other");
    done(&other, &["trust", "--client", "x", "--role", "administrator", "--out", &dir.path("x")]);
    assert!(refused(&other, &["cellcli", "-c", &tcp, "-e", "list cell"]).contains("no TLS with"));
    std::fs::copy(format!("{own}/ca.pem"), format!("{other}/ca.pem")).unwrap();
    assert!(refused(&other, &["cellcli", "-c", &tcp, "-e", "list cell"]).contains("no TLS with"));
    std::fs::remove_file(format!("{other}/client.pem")).unwrap();
    assert!(refused(&other, &["cellcli", "-c", &tcp, "-e", "list cell"]).contains("no TLS with"));
    let mut plain = std::net::TcpStream::connect(&tcp).unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "no word without TLS");
    // What was done and what was refused is written down, with who.
    let lines = audit(&cell);
    let find = |event: &str, part: &str| {
        let mut found = lines.iter().filter(|line| line["event"] == event);
        found.find(|line| line["statement"].as_str().unwrap().contains(part)).unwrap().clone()
    };
    let begin = find("begin", "availableTo");
    assert!(begin["who"].as_str().unwrap().contains("certificate ") && begin["role"] == "administrator", "{begin}");
    assert!(find("end", "availableTo").get("error").is_none());
    let no = find("refused", "DROP GRIDDISK a FORCE");
    assert!(no["who"].as_str().unwrap().starts_with("certificate grafana from 127.0.0.1:"), "{no}");
    assert!(no["error"].as_str().unwrap().starts_with("CELL-09011"), "{no}");
    let mode = std::fs::metadata(Path::new(&cell).join("audit.log")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn over_tls_with_tokens() {
    let dir = Dir::new("tokens");
    let cell = made(&dir);
    let own = dir.path("own");
    done(&own, &["trust", &cell]);
    let token = done(&own, &["trust", &cell, "--token", "prometheus", "--role", "monitor"]);
    listen_on_tcp(&cell);
    let server = Server::start(&cell);
    let tcp = server.tcp();
    let client = dir.path("client");
    std::fs::create_dir(&client).unwrap();
    std::fs::copy(format!("{own}/ca.pem"), format!("{client}/ca.pem")).unwrap();
    let with = |text: &str| std::fs::write(format!("{client}/token"), text).unwrap();
    let list = ["cellcli", "-c", &tcp, "-e", "list cell"];
    assert!(refused(&client, &list).contains("a client certificate or a token is needed"));
    with("0123");
    assert!(refused(&client, &list).contains("this token is not known here"));
    with(&token);
    assert!(done(&client, &list).contains("online"));
    let error = refused(&client, &["cellcli", "-c", &tcp, "-e", "drop flashcache"]);
    assert!(error.starts_with("CELL-09011: "), "{error}");
    // A second one, while the cell runs; then the first is made anew, and the old one is nobody's.
    let admin = done(&own, &["trust", &cell, "--token", "ann", "--role", "administrator"]);
    with(&admin);
    done(&client, &["cellcli", "-c", &tcp, "-e", "alter griddisk a comment=x"]);
    done(&own, &["trust", &cell, "--token", "prometheus", "--role", "monitor"]);
    with(&token);
    assert!(refused(&client, &list).contains("this token is not known here"));
    with(&admin);
    done(&own, &["trust", &cell, "--revoke", "ann"]);
    assert!(refused(&client, &list).contains("this token is not known here"));
    assert!(audit(&cell).iter().any(|line| line["who"].as_str().unwrap().starts_with("token ann from 127.0.0.1:")));
    // The file does not tell a token to who reads it.
    let file = std::fs::read_to_string(format!("{cell}/trust/tokens")).unwrap();
    assert!(!file.contains(token.trim()) && file.contains("monitor prometheus "), "{file}");
}

/// Over the unix socket the kernel tells who asks.
#[test]
#[expect(clippy::print_stdout, reason = "a part that is skipped says so")]
fn users_of_the_host() {
    let dir = Dir::new("users");
    let cell = made(&dir);
    let server = Server::start(&cell);
    let socket = Path::new(&cell).join("admin.sock");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o666);
    done("none", &["cellcli", "-c", &cell, "-e", "alter griddisk a comment=x"]);
    let who = audit(&cell)[0]["who"].as_str().unwrap().to_owned();
    assert!(who.starts_with("uid ") && who.contains(" pid "), "{who}");
    // Only root can become somebody else.
    let root = who.starts_with("uid 0 ");
    if !root {
        println!("skip the other users: not root");
        return;
    }
    // The binary where everybody may run it.
    let binary = dir.path("flashcell");
    std::fs::copy(BINARY, &binary).unwrap();
    let as_nobody = |group: u32, statement: &str| {
        let mut command = Command::new(&binary);
        told(command.args(["cellcli", "-c", &cell, "-e", statement]).uid(NOBODY).gid(group).current_dir("/"))
    };
    let (code, out, err) = as_nobody(NOBODY, "list griddisk attributes name, comment");
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("a"), "{out}");
    let (code, _, err) = as_nobody(NOBODY, "drop griddisk a force");
    assert!(code == 1 && err.starts_with("CELL-09011: ") && err.contains("is monitor"), "{err}");
    assert_eq!(audit(&cell).last().unwrap()["who"].as_str().unwrap().split(" pid ").next(), Some("uid 65534"));
    drop(server);
    // A member of the configured group; the name of the first group in the file that is not root's will do.
    let groups = std::fs::read_to_string("/etc/group").unwrap();
    let group: Vec<&str> = groups.lines().nth(1).unwrap().split(':').collect();
    let toml = Path::new(&cell).join("cell.toml");
    let text = std::fs::read_to_string(&toml).unwrap();
    let text = text.replacen("\n[memory]\n", &format!("\n[admin]\ngroup = \"{}\"\n\n[memory]\n", group[0]), 1);
    std::fs::write(&toml, text).unwrap();
    // Readable for others, as a client of theirs reads where the socket is.
    std::fs::set_permissions(&toml, std::fs::Permissions::from_mode(0o644)).unwrap();
    let _server = Server::start(&cell);
    let (code, _, err) = as_nobody(group[2].parse().unwrap(), "alter griddisk a comment=member");
    assert_eq!((code, err.as_str()), (0, ""));
    let (code, _, err) = as_nobody(NOBODY, "alter griddisk a comment=nobody");
    assert!(code == 1 && err.starts_with("CELL-09011: "), "{err}");
}

/// The operations of the document, each by its own path.
#[test]
fn operations_over_http() {
    let dir = Dir::new("http");
    let cell = made(&dir);
    let _server = Server::start(&cell);
    let (status, document) = http(&cell, "GET", "/v1/openapi.json", "");
    assert_eq!((status, document["openapi"].as_str()), (200, Some("3.1.0")));
    // Every operation of the document is there: none answers that it does not know the path or the method.
    let mut count = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            // A body that is no JSON: changes refuse it, and nothing is changed.
            let body = if method == "get" { "" } else { "x" };
            let (status, _) = http(&cell, &method.to_uppercase(), path, body);
            assert!(![404, 405].contains(&status), "{method} {path}: {status}");
            count += 1;
        }
    }
    assert!(count > 25, "{count} operations");
    let body = r#"{"names":["c"],"settings":{"celldisk":"CD_00_c1","size":"16M","comment":"it's \"new\""}}"#;
    let (status, answer) = http(&cell, "POST", "/v1/griddisk", body);
    assert_eq!((status, answer["output"].as_str()), (200, Some("GridDisk c successfully created\n")));
    assert_eq!(http(&cell, "POST", "/v1/griddisk", body).0, 409);
    let (status, rows) = http(&cell, "GET", "/v1/griddisk?names=c&attributes=name,comment,size", "");
    assert_eq!(status, 200);
    assert_eq!(rows, serde_json::json!([{"name": "c", "comment": "it's \"new\"", "size": 16 << 20}]));
    let (_, rows) = http(&cell, "GET", "/v1/griddisk?where=name%21%3Da&orderBy=name%20DESC&limit=1", "");
    assert_eq!(rows[0]["name"], "c");
    let (status, _) = http(&cell, "PATCH", "/v1/griddisk", r#"{"names":["c"],"settings":{"name":"d"}}"#);
    assert_eq!(status, 200);
    assert_eq!(http(&cell, "DELETE", "/v1/griddisk", r#"{"names":["c"]}"#).0, 404);
    assert_eq!(http(&cell, "DELETE", "/v1/griddisk", r#"{"names":["d"],"flags":["FORCE"]}"#).0, 200);
    let (status, attributes) = http(&cell, "GET", "/v1/griddisk/attributes", "");
    assert_eq!((status, attributes[0]["attribute"].as_str()), (200, Some("name")));
    for (method, path, body, expected) in [
        ("GET", "/v1/griddisk?where=name%3Da%3B+drop+flashcache", "", 400),
        ("GET", "/v1/griddisk?colour=blue", "", 400),
        ("GET", "/v1/griddisk?limit=many", "", 400),
        ("POST", "/v1/griddisk", "{\"names\":", 400),
        ("PATCH", "/v1/griddisk", r#"{"names":["a"],"operation":"FLUSH; DROP FLASHCACHE"}"#, 400),
        // What names a cell disk that is not there is not carried out on others.
        ("PATCH", "/v1/flashcache", r#"{"operation":"CANCEL FLUSH","settings":{"cellDisk":"AAA"}}"#, 404),
        ("PATCH", "/v1/flashcache", r#"{"operation":"CANCEL FLUSH","settings":{"cellDisk":["FD_00_c1"]}}"#, 200),
        ("POST", "/v1/cellcli", "text=drop flashcache", 415),
        ("PUT", "/v1/griddisk", "", 405),
        ("GET", "/v1/nosuch", "", 404),
    ] {
        assert_eq!(http(&cell, method, path, body).0, expected, "{method} {path} {body}");
    }
    assert_eq!(http(&cell, "GET", "/v1/flashcache", "").1[0]["status"], "normal", "it is still there");
    let long = format!("{{\"text\":\"{}\"}}", "x".repeat(8 << 20));
    // Refused before all of it has come: the rest may find nobody to take it.
    let mut stream = UnixStream::connect(Path::new(&cell).join("admin.sock")).unwrap();
    let head = format!(
        "POST /v1/cellcli HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        long.len()
    );
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(long.as_bytes()));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&answer));
    assert!(!audit(&cell).is_empty());
}

/// `-m` is the server's to enforce: a client that sends the change all the same is refused.
#[test]
fn a_monitor_session_is_enforced_by_the_server() {
    let dir = Dir::new("monitor");
    let cell = made(&dir);
    let _server = Server::start(&cell);
    let (status, answer) = http(&cell, "POST", "/v1/cellcli", r#"{"text":"drop flashcache","monitor":true}"#);
    assert_eq!(status, 200);
    let error = answer["results"][0]["error"].as_str().unwrap();
    assert!(error.starts_with("CELL-09011: DROP is not allowed in a monitor session"), "{error}");
    assert_eq!(http(&cell, "GET", "/v1/flashcache", "").1[0]["status"], "normal");
}
