//! The remote disk against a server that loses what was not flushed, one answer at a time.

use crate::world::*;
use device::sync::lock;
use device::*;
use nbd::client::{Sabotage, Standing};
use nbd::codec::*;
use nbd::server::{ExportInfo, Exports, Negotiation, NoExport, Step};
use nbd::{RemoteDisk, RemoteOptions};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZE: usize = 8 << 20;
const PAGE: usize = 4096;

/// A server whose losses the test decides. It answers at once what is not held back.
struct Server {
    world: World,
    state: Mutex<State>,
}

struct State {
    stamp: u128,
    now: Vec<u8>,
    durable: Vec<u8>,
    held: Vec<Command>,
    asked: Vec<Asked>,
    /// Connections before this one answer EIO to everything.
    broken_before: usize,
    /// FLUSHes still to fail, each with a loss.
    failing_flushes: usize,
    /// WRITEs still to fail for want of room.
    failing_writes: usize,
    /// TRIMs change nothing.
    declines_trims: bool,
    connections: usize,
    conns: Vec<Arc<dyn Conn>>,
}

/// A request that is held back.
struct Asked {
    conn: Arc<dyn Conn>,
    request: Request,
    data: Vec<u8>,
}

impl Exports for Server {
    fn list(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    fn find(&self, name: &str) -> Result<ExportInfo, NoExport> {
        Ok(ExportInfo {
            name: name.to_owned(),
            grid_disk: name.to_owned(),
            database: None,
            description: String::new(),
            size_bytes: SIZE as u64,
            flags: TransmissionFlags::HAS_FLAGS
                .with(TransmissionFlags::SEND_FLUSH)
                .with(TransmissionFlags::SEND_FUA)
                .with(TransmissionFlags::SEND_TRIM)
                .with(TransmissionFlags::SEND_WRITE_ZEROES),
            block_bytes_preferred: 4096,
            block_bytes_max: 1 << 20,
        })
    }
    fn instance_stamp(&self) -> u128 {
        lock(&self.state).stamp
    }
}

async fn receive(conn: &Arc<dyn Conn>, bytes: &mut Vec<u8>) -> bool {
    let (received, buf) = conn.receive(Buf::zeroed(65536)).await;
    let count = received.unwrap_or(0);
    bytes.extend_from_slice(&buf[..count]);
    count > 0
}

impl Server {
    async fn start(w: &TestWorld) -> Arc<Server> {
        let state = State {
            stamp: 1,
            now: vec![0; SIZE],
            durable: vec![0; SIZE],
            held: Vec::new(),
            asked: Vec::new(),
            broken_before: 0,
            failing_flushes: 0,
            failing_writes: 0,
            declines_trims: false,
            connections: 0,
            conns: Vec::new(),
        };
        let server = Arc::new(Server { world: w.world.clone(), state: Mutex::new(state) });
        let listener = w.net.listen(&unix("nbd")).await.unwrap();
        let accepting = server.clone();
        w.world.spawn.spawn(Box::pin(async move {
            while let Ok(conn) = listener.accept().await {
                let number = {
                    let mut state = lock(&accepting.state);
                    state.connections += 1;
                    state.conns.push(conn.clone());
                    state.connections
                };
                let serving = accepting.clone();
                accepting.world.spawn.spawn(Box::pin(async move {
                    serving.serve(&conn, number).await;
                    conn.close();
                }));
            }
        }));
        server
    }

    async fn serve(self: &Arc<Self>, conn: &Arc<dyn Conn>, number: usize) -> Option<()> {
        let greeting = encode_greeting(HandshakeFlags::FIXED_NEWSTYLE.with(HandshakeFlags::NO_ZEROES));
        conn.send(SharedBuf::from(greeting.to_vec()).into()).await.ok()?;
        let (mut negotiation, mut bytes) = (Negotiation::new(), Vec::new());
        loop {
            let mut out = Vec::new();
            let (used, step) = negotiation.input(&bytes, &**self, &mut out).ok()?;
            bytes.drain(..used);
            if !out.is_empty() {
                conn.send(SharedBuf::from(out).into()).await.ok()?;
            }
            match step {
                Step::Chosen(_) => break,
                Step::Next => {}
                Step::More => receive(conn, &mut bytes).await.then_some(())?,
                Step::StartTls | Step::Close => return None,
            }
        }
        loop {
            while bytes.len() < Request::BYTES {
                receive(conn, &mut bytes).await.then_some(())?;
            }
            let request = Request::decode(bytes.first_chunk()?).ok()?;
            bytes.drain(..Request::BYTES);
            while bytes.len() < request.payload_bytes() as usize {
                receive(conn, &mut bytes).await.then_some(())?;
            }
            let data = bytes.drain(..request.payload_bytes() as usize).collect();
            if request.command == Command::Disconnect {
                return None;
            }
            let asked = Asked { conn: conn.clone(), request, data };
            let errno = {
                let mut state = lock(&self.state);
                if state.held.contains(&request.command) {
                    state.asked.push(asked);
                    continue;
                }
                if number < state.broken_before {
                    Some(Errno::Io)
                } else if request.command == Command::Flush && state.failing_flushes > 0 {
                    state.failing_flushes -= 1;
                    state.lose();
                    Some(Errno::Io)
                } else if request.command == Command::Write && state.failing_writes > 0 {
                    state.failing_writes -= 1;
                    Some(Errno::NoSpc)
                } else {
                    state.apply(&asked);
                    None
                }
            };
            self.answer(&asked, errno).await;
        }
    }

    async fn answer(&self, asked: &Asked, errno: Option<Errno>) {
        let request = asked.request;
        let mut out = Vec::new();
        match errno {
            Some(errno) => encode_error(&mut out, request.cookie, errno, "", None),
            None if request.command == Command::Read => {
                encode_data_header(&mut out, request.cookie, request.offset, request.len, true);
                out.extend_from_slice(&lock(&self.state).now[request.offset as usize..][..request.len as usize]);
            }
            None => encode_none(&mut out, request.cookie),
        }
        let _ = asked.conn.send(SharedBuf::from(out).into()).await;
    }

    fn hold(&self, command: Command) {
        lock(&self.state).held.push(command);
    }

    fn release(&self) {
        lock(&self.state).held.clear();
    }

    /// The requests held back, once there are so many.
    async fn asked(&self, count: usize) -> Vec<Asked> {
        while lock(&self.state).asked.len() < count {
            self.world.clock.sleep(Duration::from_millis(1)).await;
        }
        std::mem::take(&mut lock(&self.state).asked)
    }

    /// Another FLUSH has failed: what was not durable is gone, and connections from before answer EIO from now on.
    fn break_sessions(&self) {
        let mut state = lock(&self.state);
        state.lose();
        state.stamp += 1;
        state.broken_before = state.connections + 1;
    }

    /// Power cut: another instance, with what was durable.
    fn crash(&self) {
        let conns = {
            let mut state = lock(&self.state);
            state.lose();
            state.stamp += 1;
            std::mem::take(&mut state.conns)
        };
        conns.iter().for_each(|conn| conn.close());
    }

    fn connections(&self) -> usize {
        lock(&self.state).connections
    }
}

impl State {
    fn lose(&mut self) {
        self.now.clone_from(&self.durable);
    }

    fn apply(&mut self, asked: &Asked) {
        let (start, len) = (asked.request.offset as usize, asked.request.len as usize);
        match asked.request.command {
            Command::Write => self.now[start..start + len].copy_from_slice(&asked.data),
            Command::Trim if self.declines_trims => {}
            Command::Trim | Command::WriteZeroes => self.now[start..start + len].fill(0),
            Command::Flush => self.durable.clone_from(&self.now),
            _ => {}
        }
        if asked.request.flags.contains(CommandFlags::FUA) {
            self.durable[start..start + len].copy_from_slice(&self.now[start..start + len]);
        }
    }
}

async fn write(disk: &Device, page: usize, byte: u8) -> Outcome {
    disk.write((page * PAGE) as u64, SharedBuf::from(vec![byte; PAGE]).into(), false).await.outcome
}

async fn read(disk: &Device, page: usize) -> (Outcome, u8) {
    let done = disk.read((page * PAGE) as u64, Buf::zeroed(PAGE).into()).await;
    let bytes = done.bufs.to_vec(0..PAGE);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a page of two versions");
    (done.outcome, bytes[0])
}

fn expect<T: PartialEq + std::fmt::Debug>(got: T, wanted: T, what: &str) -> Result<(), String> {
    if got == wanted { Ok(()) } else { Err(format!("{what}: {got:?}, not {wanted:?}")) }
}

/// What came of a scenario with these options.
fn run<F, Fut>(seed: u64, options: RemoteOptions, scenario: F) -> Result<(), String>
where
    F: FnOnce(Arc<Server>, World, Arc<RemoteDisk>, Device) -> Fut,
    Fut: Future<Output = Result<(), String>> + Send + 'static,
{
    let w = world(seed);
    let (server, disk) = {
        let of_task = w.clone();
        w.executor.block_on(async move {
            let server = Server::start(&of_task).await;
            let disk = RemoteDisk::connect(&of_task.world, &unix("nbd"), "data", options).await.unwrap();
            (server, Arc::new(disk))
        })
    };
    w.executor.block_on(scenario(server, w.world.clone(), disk.clone(), disk))
}

/// Two FLUSHes at a time, of which one fails: the server reports a lost write once.
fn flush_beside_a_failing_one(seed: u64, mut options: RemoteOptions) -> Result<(), String> {
    options.connections = 1;
    run(seed, options, move |server, world, _, disk| async move {
        expect(write(&disk, 0, 1).await, Outcome::Done, "write")?;
        server.hold(Command::Flush);
        let (one, other) = (disk.flush(), disk.flush());
        let mut held = server.asked(2).await;
        server.release();
        lock(&server.state).lose();
        let first = held.remove((seed % 2) as usize);
        let outcomes = if seed % 4 < 2 { [None, Some(Errno::Io)] } else { [Some(Errno::Io), None] };
        server.answer(&first, outcomes[0]).await;
        world.clock.sleep(Duration::from_millis(20)).await;
        server.answer(&held[0], outcomes[1]).await;
        let (_, _) = (one.await, other.await);
        expect(disk.flush().await.outcome, Outcome::Done, "the last FLUSH")?;
        expect(lock(&server.state).durable[0], 1, "an acknowledged and flushed write")
    })
}

#[test]
fn client_flush_beside_failing() {
    for seed in 0..8 {
        flush_beside_a_failing_one(seed, RemoteOptions::default()).unwrap();
    }
}

/// A write that finds no room has a FLUSH sent. If that fails nothing is lost: everything kept is written again.
#[test]
fn a_failed_flush_for_room_neither_fails_the_write_nor_loses() {
    let options = RemoteOptions { keep_bytes_max: 1, ..RemoteOptions::default() };
    let done = run(1, options, |server, _, _, disk| async move {
        const PAGES: usize = 1024;
        lock(&server.state).failing_flushes = 1;
        for page in 0..PAGES {
            expect(write(&disk, page, 1 + (page % 200) as u8).await, Outcome::Done, "write")?;
        }
        expect(lock(&server.state).failing_flushes, 0, "FLUSHes that were to fail")?;
        expect(disk.flush().await.outcome, Outcome::Done, "FLUSH")?;
        let state = lock(&server.state);
        for page in 0..PAGES {
            expect(state.durable[page * PAGE], 1 + (page % 200) as u8, "a page")?;
        }
        Ok(())
    });
    done.unwrap();
}

/// A server need not carry out a trim, nor do the same after a restart.
fn trim_then_crash(seed: u64, options: RemoteOptions) -> Result<(), String> {
    run(seed, options, move |server, _, remote, disk| async move {
        expect(write(&disk, 3, 7).await, Outcome::Done, "write")?;
        expect(disk.discard(3 * PAGE as u64, PAGE as u64).await.outcome, Outcome::Done, "trim")?;
        expect(read(&disk, 3).await, (Outcome::Done, 0), "what is trimmed")?;
        expect(remote.unflushed_bytes(), PAGE as u64, "bytes that are not flushed")?;
        lock(&server.state).declines_trims = seed % 2 == 1;
        server.crash();
        expect(read(&disk, 3).await, (Outcome::Done, 0), "what was trimmed, after the crash")?;
        expect(disk.flush().await.outcome, Outcome::Done, "FLUSH")?;
        expect((lock(&server.state).durable[3 * PAGE], remote.has_unflushed()), (0, false), "afterwards")
    })
}

#[test]
fn client_trims_not_kept() {
    for seed in 0..4 {
        trim_then_crash(seed, RemoteOptions::default()).unwrap();
    }
}

/// The second write of a page fails and is there to be read all the same.
fn failed_write_then_crash(seed: u64, options: RemoteOptions) -> Result<(), String> {
    run(seed, options, |server, _, _, disk| async move {
        expect(write(&disk, 5, 1).await, Outcome::Done, "write")?;
        server.hold(Command::Write);
        let failing = disk.write(5 * PAGE as u64, SharedBuf::from(vec![2; PAGE]).into(), false);
        let held = server.asked(1).await;
        server.release();
        lock(&server.state).apply(&held[0]);
        server.answer(&held[0], Some(Errno::Io)).await;
        expect(failing.await.outcome, Outcome::Failed(FailKind::Media), "the second write")?;
        expect(read(&disk, 5).await, (Outcome::Done, 2), "the page")?;
        server.crash();
        expect(read(&disk, 5).await, (Outcome::Done, 2), "the page after the crash")?;
        expect(disk.flush().await.outcome, Outcome::Done, "FLUSH")?;
        expect(lock(&server.state).durable[5 * PAGE], 2, "the page on the disk")
    })
}

#[test]
fn client_failed_not_kept() {
    failed_write_then_crash(1, RemoteOptions::default()).unwrap();
}

/// A FLUSH of another client has failed. Everything of this one is kept, so its callers see no error.
fn broken_session(seed: u64, options: RemoteOptions) -> Result<(), String> {
    run(seed, options, move |server, _, remote, disk| async move {
        expect(write(&disk, 0, 1).await, Outcome::Done, "write")?;
        server.break_sessions();
        match seed % 3 {
            0 => expect(read(&disk, 0).await, (Outcome::Done, 1), "read")?,
            1 => expect(write(&disk, 1, 2).await, Outcome::Done, "write")?,
            _ => expect(disk.flush().await.outcome, Outcome::Done, "FLUSH")?,
        }
        expect(remote.standing(), Standing::Up { stamp: Some(2) }, "standing")?;
        expect(read(&disk, 0).await, (Outcome::Done, 1), "read")?;
        expect(disk.flush().await.outcome, Outcome::Done, "FLUSH")?;
        expect(lock(&server.state).durable[0], 1, "the page on the disk")
    })
}

#[test]
fn client_broken_session_told() {
    for seed in 0..9 {
        broken_session(seed, RemoteOptions { connections: 1, ..RemoteOptions::default() }).unwrap();
    }
}

/// An error that is the request's own goes to the caller, and many at a time do not flood the server with connections.
#[test]
fn an_error_of_the_request_itself_is_told() {
    let done = run(1, RemoteOptions::default(), |server, _, remote, disk| async move {
        server.hold(Command::Read);
        let reads: Vec<Completion> = (0..50).map(|_| disk.read(0, Buf::zeroed(PAGE).into())).collect();
        for asked in server.asked(50).await {
            server.answer(&asked, Some(Errno::Io)).await;
        }
        for read in reads {
            expect(read.await.outcome, Outcome::Failed(FailKind::Media), "read")?;
        }
        expect(remote.standing(), Standing::Up { stamp: Some(1) }, "standing")?;
        expect(server.connections() < 10, true, "fewer than ten connections")
    });
    done.unwrap();
}

/// Giving up ends what a server has and does not answer.
#[test]
fn giving_up_waits_for_no_answer() {
    let done = run(1, RemoteOptions::default(), |server, _, remote, disk| async move {
        server.hold(Command::Read);
        let read = disk.read(0, Buf::zeroed(PAGE).into());
        server.asked(1).await;
        remote.give_up();
        expect(matches!(read.await.outcome, Outcome::Failed(_)), true, "the read ends")?;
        expect(remote.standing(), Standing::Dead, "standing")
    });
    done.unwrap();
}

/// A server that is another instance has no room for what is kept, and then it has.
fn replay_fails_once(seed: u64, options: RemoteOptions) -> Result<(), String> {
    run(seed, options, move |server, _, remote, disk| async move {
        expect(write(&disk, 2, 9).await, Outcome::Done, "write")?;
        lock(&server.state).failing_writes = 3;
        server.crash();
        expect(read(&disk, 2).await, (Outcome::Done, 9), "the page after the crash")?;
        expect(lock(&server.state).failing_writes, 0, "writes that were to fail")?;
        expect(remote.standing(), Standing::Up { stamp: Some(2) }, "standing")?;
        expect(disk.flush().await.outcome, Outcome::Done, "FLUSH")?;
        expect(lock(&server.state).durable[2 * PAGE], 9, "the page on the disk")
    })
}

#[test]
fn client_replay_tried_once() {
    replay_fails_once(1, RemoteOptions::default()).unwrap();
}

/// A client that takes over from one that died keeps none of its writes: a FLUSH under the same stamp has to succeed first.
fn take_over(seed: u64, options: RemoteOptions) -> Result<(), String> {
    run(seed, options.clone(), move |server, world, remote, disk| async move {
        expect(remote.flush_under(7).await, false, "another stamp")?;
        expect(write(&disk, 0, 1).await, Outcome::Done, "write of the one that dies")?;
        drop(disk);
        let successor = RemoteDisk::connect(&world, &unix("nbd"), "data", options).await.map_err(|e| e.to_string())?;
        match seed % 4 {
            0 => {
                expect(successor.flush_under(1).await, true, "FLUSH under the stamp")?;
                expect(lock(&server.state).durable[0], 1, "the page on the disk")?;
            }
            // The server loses it after the new client has seen the stamp.
            1 => {
                server.crash();
                expect(successor.flush_under(1).await, false, "FLUSH after a crash")?;
            }
            2 => {
                server.break_sessions();
                expect(successor.flush_under(1).await, false, "FLUSH of a broken session")?;
            }
            _ => {
                lock(&server.state).failing_flushes = 1;
                expect(successor.flush_under(1).await, false, "FLUSH that fails")?;
            }
        }
        Ok(())
    })
}

#[test]
fn client_take_over_unflushed() {
    for seed in 0..8 {
        take_over(seed, RemoteOptions::default()).unwrap();
    }
}

/// Each deliberate fault is noticed by the scenario that is named after it.
#[test]
fn every_broken_client_is_caught() {
    for fault in Sabotage::ALL {
        let options = RemoteOptions { sabotage: Some(fault), ..RemoteOptions::default() };
        let scenario = match fault {
            Sabotage::FlushBesideFailing => flush_beside_a_failing_one,
            Sabotage::TrimsNotKept => trim_then_crash,
            Sabotage::FailedNotKept => failed_write_then_crash,
            Sabotage::BrokenSessionTold => broken_session,
            Sabotage::TakeOverUnflushed => take_over,
            Sabotage::ReplayTriedOnce => replay_fails_once,
        };
        let is_caught = (0..8).any(|seed| scenario(seed, options.clone()).is_err());
        assert!(is_caught, "{} is not noticed", fault.name());
    }
}
