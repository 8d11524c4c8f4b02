//! The real binary: making, serving, administering and stopping a cell; what it refuses, with which words and exit code.
//!
//! Data over NBD is the business of `tests/e2e`; here it is the command line, the admin socket and the life of a cell.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_flashcell");

/// A directory that goes with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        // Socket paths are short; the build's own directory may not be.
        let dir = std::env::temp_dir().join(format!("flashcell-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
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

fn run(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).env_remove("FLASHCELL_CELL").stdin(Stdio::null()).output().unwrap()
}

fn told(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// A server, killed with the test.
struct Server {
    child: Child,
    ready: String,
}

/// Send a signal, with what every shell has built in: a minimal system has no program for it.
fn signal(to: &Child, name: &str) {
    let command = format!("kill -{name} {}", to.id());
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
}

impl Server {
    fn start(cell: &str) -> Server {
        let log = std::fs::File::create(Path::new(cell).join("log")).unwrap();
        let mut child = Command::new(BINARY).args(["serve", cell]).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let server = Server { child, ready };
        assert!(
            server.ready.starts_with("ready nbd=unix:"),
            "{}",
            std::fs::read_to_string(Path::new(cell).join("log")).unwrap()
        );
        server
    }

    /// SIGTERM; the exit code.
    fn stop(mut self) -> i32 {
        signal(&self.child, "TERM");
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    /// SIGKILL.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A statement that has to be carried out; what it printed.
fn cellcli(cell: &str, statement: &str) -> String {
    let (code, out, err) = told(&run(&["cellcli", "-c", cell, "-e", statement]));
    assert_eq!((code, err.as_str()), (0, ""), "{statement}");
    out
}

/// A statement that has to be refused; what it complained.
fn refused(cell: &str, statement: &str) -> String {
    let (code, out, err) = told(&run(&["cellcli", "-c", cell, "-e", statement]));
    assert_eq!((code, out.as_str()), (1, ""), "{statement}");
    err
}

fn made(dir: &Dir) -> String {
    let cell = dir.path("c1");
    let args =
        ["init", &cell, "--disk", "96M", "--flash", "64M", "--griddisk", "data:32M", "--griddisk", "log:16M:redo:none"];
    let (code, out, err) = told(&run(&args));
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    cell
}

#[test]
fn wrong_usage_is_2_and_failure_is_1() {
    for args in
        [&[][..], &["nonsense"], &["init"], &["serve"], &["init", "/tmp/x", "--disk", "1G", "--griddisk", "bad"]]
    {
        assert_eq!(told(&run(args)).0, 2, "{args:?}");
    }
    for args in [&["serve", "/nonexistent"][..], &["cellcli", "-c", "/nonexistent", "-e", "list cell"]] {
        let (code, out, err) = told(&run(args));
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}");
        assert!(err.contains("hint: "), "{err}");
    }
    assert_eq!(told(&run(&["--help"])).0, 0);
}

#[test]
fn changes_survive_a_stop_and_a_kill() {
    let dir = Dir::new("life");
    let cell = made(&dir);
    let server = Server::start(&cell);
    assert!(server.ready.contains(&format!("admin=unix:{cell}/admin.sock")), "{}", server.ready);

    let attributes = "list griddisk attributes name,size,purpose,cachingMode,cachingPolicy,comment";
    assert_eq!(
        cellcli(&cell, attributes),
        "\t data\t 32M\t data\t write-through\t default\n\t log \t 16M\t redo\t none         \t default\n"
    );
    assert_eq!(
        cellcli(&cell, "alter griddisk data comment='a b', cachingPolicy=none"),
        "GridDisk data successfully altered\n"
    );
    assert_eq!(cellcli(&cell, "alter griddisk log name=redo, size=24M"), "GridDisk redo successfully altered\n");
    assert_eq!(
        cellcli(&cell, "create griddisk more celldisk=CD_00_c1, size=8M"),
        "GridDisk more successfully created\n"
    );
    assert_eq!(cellcli(&cell, "drop flashcache"), "Flash cache c1_FLASHCACHE successfully dropped\n");
    assert_eq!(cellcli(&cell, "create flashcache all size=32M"), "Flash cache c1_FLASHCACHE successfully created\n");
    assert_eq!(cellcli(&cell, "alter cell name=exa1, comment=x"), "Cell exa1 successfully altered\n");
    let everything = |cell: &str| {
        let lists = [
            "griddisk attributes name,size,purpose,cachingPolicy,comment",
            "flashcache attributes name,size",
            "cell attributes name,comment",
        ];
        lists.map(|list| cellcli(cell, &format!("list {list}"))).join("")
    };
    let before = everything(&cell);
    assert!(
        before.contains("\t redo\t 24M\t redo\t default\n") && before.contains("exa1_FLASHCACHE\t 32M"),
        "{before}"
    );

    assert_eq!(server.stop(), 0);
    assert!(!Path::new(&cell).join("nbd.sock").exists() && !Path::new(&cell).join("admin.sock").exists());
    let server = Server::start(&cell);
    assert_eq!(everything(&cell), before);
    assert_eq!(cellcli(&cell, "drop griddisk more"), "GridDisk more successfully dropped\n");
    let before = everything(&cell);
    server.kill();
    // Sockets are left behind; they must not be in the way.
    let server = Server::start(&cell);
    assert_eq!(everything(&cell), before);
    let log = std::fs::read_to_string(Path::new(&cell).join("log")).unwrap();
    assert!(log.contains("the last stop was not clean"), "{log}");
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_served_cell_is_not_served_or_made_twice() {
    let dir = Dir::new("twice");
    let cell = made(&dir);
    let server = Server::start(&cell);
    let (code, out, err) = told(&run(&["serve", &cell]));
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains(&format!("is being served by process {}", server.child.id())), "{err}");
    let (code, _, err) = told(&run(&["init", &cell, "--disk", "96M", "--force"]));
    assert!(code == 1 && err.contains("is being served"), "{err}");
    // The same devices from another directory: the lock is on the devices.
    let other = dir.path("c2");
    std::fs::create_dir(&other).unwrap();
    let toml = format!("[[device]]\npath = \"{cell}/disk-0.img\"\nkind = \"disk\"\n");
    std::fs::write(Path::new(&other).join("cell.toml"), toml).unwrap();
    let (code, _, err) = told(&run(&["serve", &other]));
    assert!(code == 1 && err.contains("disk-0.img is in use"), "{err}");
    // The live server's sockets are still there, and it answers.
    assert!(cellcli(&cell, "list cell").contains("online"));
    assert_eq!(server.stop(), 0);
}

#[test]
fn init_overwrites_nothing_unless_forced() {
    let dir = Dir::new("force");
    let cell = made(&dir);
    let again = ["init", &cell, "--disk", "64M"];
    let (code, _, err) = told(&run(&again));
    assert!(code == 1 && err.contains("holds a cell already") && err.contains("--force"), "{err}");
    // Without cell.toml the files are still somebody's.
    std::fs::remove_file(Path::new(&cell).join("cell.toml")).unwrap();
    let (code, _, err) = told(&run(&again));
    assert!(code == 1 && err.contains("disk-0.img is there already"), "{err}");
    // A disk given by its path is looked at.
    let disk = format!("{cell}/disk-0.img");
    let (code, _, err) = told(&run(&["init", &dir.path("c3"), "--disk", &disk]));
    assert!(code == 1 && err.contains("CD_00_c1") && err.contains("--force"), "{err}");
    assert!(!Path::new(&dir.path("c3")).join("cell.toml").exists());
    assert_eq!(told(&run(&[&again[..], &["--force"]].concat())).0, 0);
    let server = Server::start(&cell);
    assert_eq!(cellcli(&cell, "list griddisk"), "", "the new cell is empty");
    assert_eq!(server.stop(), 0);
}

#[test]
fn missing_and_damaged_devices_are_named() {
    let dir = Dir::new("missing");
    let cell = made(&dir);
    let at = |name: &str| Path::new(&cell).join(name);

    // Flash is gone: the cell goes on from disk and says so.
    std::fs::rename(at("flash-0.img"), at("away.img")).unwrap();
    let server = Server::start(&cell);
    let log = std::fs::read_to_string(at("log")).unwrap();
    assert!(log.contains("going on without") && log.contains("flash-0.img"), "{log}");
    let state = cellcli(&cell, "list flashcache attributes status,degradedCelldisks");
    assert_eq!(state, "\t critical\t FD_00_c1\n");
    assert_eq!(cellcli(&cell, "list celldisk"), "\t CD_00_c1\t normal\n\t FD_00_c1\t not present\n");
    assert_eq!(server.stop(), 0);
    std::fs::rename(at("away.img"), at("flash-0.img")).unwrap();

    // A disk is gone: nothing is served.
    std::fs::rename(at("disk-0.img"), at("away.img")).unwrap();
    let (code, out, err) = told(&run(&["serve", &cell]));
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("disk-0.img: no such file") && err.contains("hint: "), "{err}");

    // Something else is in its place.
    std::fs::File::create(at("disk-0.img")).unwrap().set_len(96 << 20).unwrap();
    let (_, _, err) = told(&run(&["serve", &cell]));
    assert!(err.contains("disk-0.img: the device is blank") && err.contains("required = false"), "{err}");
    std::fs::rename(at("away.img"), at("disk-0.img")).unwrap();

    // Its labels are destroyed.
    let mut file = std::fs::File::options().write(true).open(at("disk-0.img")).unwrap();
    file.write_all(&vec![0xa5; 4 << 20]).unwrap();
    drop(file);
    let (code, _, err) = told(&run(&["serve", &cell]));
    assert!(code == 1 && err.contains("disk-0.img: ") && err.contains("hint: "), "{err}");
}

#[test]
fn statements_are_refused_by_code() {
    let dir = Dir::new("refused");
    let cell = made(&dir);
    let server = Server::start(&cell);
    for (statement, starts, contains) in [
        ("lst cell", "CELL-01504: ", "did you mean LIST?"),
        ("list griddisk nope", "CELL-09007: ", "nope"),
        ("create griddisk data celldisk=CD_00_c1, size=1M", "CELL-09008: ", "data"),
        ("create griddisk big celldisk=CD_00_c1, size=1T", "CELL-09012: ", "CD_00_c1"),
        ("create griddisk x celldisk=nope", "CELL-09007: ", "LIST CELLDISK"),
        // Its journal has no room beside all that is free.
        ("create griddisk x celldisk=CD_00_c1, cachingMode=write-back-ordered", "CELL-09012: ", "CD_00_c1"),
        ("alter griddisk data size=1M", "CELL-09009: ", "FORCE"),
        ("alter cell notificationMethod='mail'", "CELL-09005: ", "smtpServer"),
        ("create flashcache all", "CELL-09008: ", "flash cache"),
        ("create celldisk all", "CELL-09007: ", "[[device]]"),
        ("alter cell shutdown services rs", "CELL-09009: ", "no restart server"),
    ] {
        let err = refused(&cell, statement);
        assert!(err.starts_with(starts) && err.contains(contains), "{statement}: {err}");
    }
    let monitor = told(&run(&["cellcli", "-c", &cell, "-m", "-e", "drop flashcache"]));
    assert!(monitor.0 == 1 && monitor.2.starts_with("CELL-09011: "), "{}", monitor.2);
    assert_eq!(server.stop(), 0);
}

/// S6: a program called `cellcli` that reads a here-document.
#[test]
fn cellcli_by_its_own_name_reads_a_script() {
    let dir = Dir::new("script");
    let cell = made(&dir);
    let server = Server::start(&cell);
    let link = dir.path("cellcli");
    std::os::unix::fs::symlink(BINARY, &link).unwrap();
    let script = |text: &str| {
        let mut child = Command::new(&link)
            .env("FLASHCELL_CELL", &cell)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        told(&child.wait_with_output().unwrap())
    };
    let (code, out, err) = script("    drop flashcache;\n    create flashcache all;\n");
    assert_eq!((code, err.as_str()), (0, ""));
    let expected = "Flash cache c1_FLASHCACHE successfully dropped\nFlash cache c1_FLASHCACHE successfully created\n";
    assert_eq!(out, expected);
    // A failure does not stop the script, and is told at the end.
    let (code, out, err) = script("drop griddisk nope\nset echo on\nlist -\ngriddisk data\nexit\nlist cell\n");
    assert_eq!(code, 1);
    assert!(err.starts_with("CELL-09007: "), "{err}");
    assert_eq!(out, "> list -\ngriddisk data\n\t data\t active\n> exit\n");
    assert_eq!(server.stop(), 0);
}

#[test]
fn json_is_raw_numbers() {
    let dir = Dir::new("json");
    let cell = made(&dir);
    let server = Server::start(&cell);
    let list = |statement| {
        let (code, out, err) = told(&run(&["cellcli", "-c", &cell, "--json", "-e", statement]));
        assert_eq!((code, err.as_str()), (0, ""), "{statement}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()
    };
    let disks = list("list griddisk attributes name,size");
    assert_eq!(disks[0], serde_json::json!({"name": "data", "size": 32 << 20}));
    let metrics = list("list metriccurrent where objectType='GRIDDISK' attributes name,metricObjectName,metricValue");
    assert!(metrics.as_array().unwrap().len() > 20);
    assert!(metrics.as_array().unwrap().iter().all(|m| m["metricValue"].is_number()));
    let definitions = list("list metricdefinition attributes name,description,unit");
    assert!(definitions.as_array().unwrap().iter().all(|d| !d["description"].as_str().unwrap().is_empty()));
    assert_eq!(server.stop(), 0);
}

/// A cell on the grid disk of another one: made, served, and there again after the other was killed in between.
#[test]
fn a_disk_may_be_an_nbd_export() {
    let dir = Dir::new("remote");
    let far = made(&dir);
    let uri = format!("nbd+unix:///data?socket={far}/nbd.sock");
    let near = dir.path("c2");
    let (code, _, err) = told(&run(&["init", &near, "--disk", &uri]));
    assert!(code == 1 && err.contains(&uri) && err.contains("hint: start its server"), "{err}");

    let far_server = Server::start(&far);
    assert_eq!(told(&run(&["init", &near, "--disk", &uri, "--griddisk", "inner:8M"])).0, 0);
    let server = Server::start(&near);
    let disk = cellcli(&near, "list celldisk attributes name,deviceName,status");
    assert_eq!(disk, format!("\t CD_00_c2\t {uri}\t normal\n"));
    far_server.kill();
    let far_server = Server::start(&far);
    assert_eq!(cellcli(&near, "alter griddisk inner comment=kept"), "GridDisk inner successfully altered\n");
    assert_eq!(server.stop(), 0);
    let server = Server::start(&near);
    assert_eq!(cellcli(&near, "list griddisk attributes name,comment"), "\t inner\t kept\n");
    assert_eq!(server.stop(), 0);
    assert_eq!(far_server.stop(), 0);
}

/// A disk that hangs does not hold up a stop for ever, and is named.
#[test]
fn a_stop_has_a_deadline_and_names_who_hangs() {
    let dir = Dir::new("hang");
    let far = made(&dir);
    let far_server = Server::start(&far);
    let near = dir.path("c2");
    let uri = format!("nbd+unix:///data?socket={far}/nbd.sock");
    assert_eq!(told(&run(&["init", &near, "--disk", &uri, "--griddisk", "inner:8M"])).0, 0);
    let toml = Path::new(&near).join("cell.toml");
    let text = std::fs::read_to_string(&toml).unwrap();
    std::fs::write(&toml, text.replace("stop_deadline_s = 60", "stop_deadline_s = 1")).unwrap();
    let server = Server::start(&near);
    signal(&far_server.child, "STOP");
    let began = std::time::Instant::now();
    let code = server.stop();
    let took = began.elapsed();
    signal(&far_server.child, "CONT");
    let log = std::fs::read_to_string(Path::new(&near).join("log")).unwrap();
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("not stopped clean within 1 s") && log.contains(&uri), "{log}");
    assert!(took.as_secs() < 20, "{took:?}");
    // Nothing is lost by it.
    let server = Server::start(&near);
    assert!(cellcli(&near, "list griddisk").contains("inner"));
    assert_eq!(server.stop(), 0);
    assert_eq!(far_server.stop(), 0);
}
