//! A device in memory for the tests of this crate: volatile cache, power cuts, failures, requests held back.
//!
//! What is written is visible at once and durable only after a flush or with FUA. A cut stops the machine after so many
//! requests: the requests in flight then, and everything in the volatile cache, is applied whole, in part (torn at 512 bytes)
//! or not at all, by seed. Time does not exist.

use celldisk::{
    CellDisk, CellId, CellStore, Changed, DeviceId, FormatOptions, OpenOptions, Opened, Role, Stamp, StoreError,
};
use device::spawn::yield_now;
use device::sync::lock;
use device::{
    Buf, Bufs, Class, Completed, Completion, Device, DeviceExtent, FailKind, Geometry, Io, Op, Outcome, Prng, Verb,
    WallTime,
};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const SECTOR: u64 = 512;
pub(crate) const CELL: CellId = CellId(0xce11);

pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    futures_executor::block_on(future)
}

/// For changes that every device is expected to take.
pub(crate) trait Whole<T> {
    /// The value; panics when the change failed anywhere.
    fn whole(self) -> T;
}

impl<T, E: std::fmt::Debug> Whole<T> for Result<Changed<T>, E> {
    fn whole(self) -> T {
        let changed = self.unwrap();
        assert!(changed.failed.is_empty(), "{:?}", changed.failed);
        changed.value
    }
}

/// Sparse content by sector; absent sectors are zero. Clones share what neither has changed since.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Image(BTreeMap<u64, Arc<Chunk>>);

/// The sectors of one MiB by their number within it.
type Chunk = BTreeMap<u64, [u8; SECTOR as usize]>;

const CHUNK_SECTORS: u64 = MIB / SECTOR;

impl Image {
    fn put(&mut self, number: u64, sector: &[u8]) {
        let (chunk, within) = (number / CHUNK_SECTORS, number % CHUNK_SECTORS);
        if sector.iter().any(|&b| b != 0) {
            Arc::make_mut(self.0.entry(chunk).or_default()).insert(within, sector.try_into().unwrap());
        } else if let Some(shared) = self.0.get_mut(&chunk)
            && shared.contains_key(&within)
        {
            Arc::make_mut(shared).remove(&within);
            if shared.is_empty() {
                self.0.remove(&chunk);
            }
        }
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert!(offset.is_multiple_of(SECTOR) && bytes.len().is_multiple_of(SECTOR as usize));
        for (index, sector) in bytes.chunks_exact(SECTOR as usize).enumerate() {
            self.put(offset / SECTOR + index as u64, sector);
        }
    }

    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        let mut number = offset / SECTOR;
        let end = (offset + len) / SECTOR;
        while number < end {
            if number.is_multiple_of(CHUNK_SECTORS) && end - number >= CHUNK_SECTORS {
                self.0.remove(&(number / CHUNK_SECTORS));
                number += CHUNK_SECTORS;
            } else {
                self.put(number, &[0; SECTOR as usize]);
                number += 1;
            }
        }
    }

    pub(crate) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        assert!(offset.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR as usize));
        let mut out = vec![0; len];
        for (index, sector) in out.chunks_exact_mut(SECTOR as usize).enumerate() {
            let number = offset / SECTOR + index as u64;
            let chunk = self.0.get(&(number / CHUNK_SECTORS));
            if let Some(bytes) = chunk.and_then(|chunk| chunk.get(&(number % CHUNK_SECTORS))) {
                sector.copy_from_slice(bytes);
            }
        }
        out
    }

    /// All sectors that are not zero: number and bytes.
    pub(crate) fn sectors(&self) -> impl Iterator<Item = (u64, &[u8; SECTOR as usize])> {
        let numbered = |(chunk, sectors): (&u64, _)| {
            let first = chunk * CHUNK_SECTORS;
            let sectors: &Arc<Chunk> = sectors;
            sectors.iter().map(move |(within, bytes)| (first + within, bytes))
        };
        self.0.iter().flat_map(numbered)
    }
}

/// A change in the volatile cache.
#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Zero(u64, u64),
}

impl Change {
    fn apply(&self, image: &mut Image) {
        match self {
            Change::Write(offset, bytes) => image.write(*offset, bytes),
            Change::Zero(offset, len) => image.zero(*offset, *len),
        }
    }

    /// Any part of it, by sector.
    fn apply_torn(&self, image: &mut Image, prng: &mut Prng) {
        match prng.below(3) {
            0 => {}
            1 => self.apply(image),
            _ => match self {
                Change::Write(offset, bytes) => {
                    // Drives write a prefix more often than a scatter; both happen.
                    let scatter = prng.chance(1, 3);
                    let prefix = prng.below(bytes.len() as u64 / SECTOR + 1);
                    for (index, sector) in bytes.chunks_exact(SECTOR as usize).enumerate() {
                        if if scatter { prng.chance(1, 2) } else { (index as u64) < prefix } {
                            image.write(offset + index as u64 * SECTOR, sector);
                        }
                    }
                }
                Change::Zero(offset, len) => image.zero(*offset, prng.below(len / SECTOR + 1) * SECTOR),
            },
        }
    }
}

/// Stops the machine: shared by all devices of a test.
#[derive(Clone, Default)]
pub(crate) struct Power(Arc<Mutex<PowerState>>);

#[derive(Default)]
struct PowerState {
    requests: u64,
    cut_after: Option<u64>,
}

impl Power {
    /// Cut in the middle of the request after the next `requests`.
    pub(crate) fn cut_after(&self, requests: u64) {
        let mut state = lock(&self.0);
        state.cut_after = Some(state.requests + requests);
    }
    pub(crate) fn is_off(&self) -> bool {
        let state = lock(&self.0);
        state.cut_after.is_some_and(|after| state.requests > after)
    }
    pub(crate) fn requests(&self) -> u64 {
        lock(&self.0).requests
    }
    fn request(&self) -> bool {
        lock(&self.0).requests += 1;
        !self.is_off()
    }
}

/// What a failing device answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    Fail(FailKind),
    /// It happens, and the device says it failed.
    FailLanded(FailKind),
    Short(u64),
    Unknown,
}

type FaultFor = Box<dyn Fn(Verb, u64, u64) -> Option<Fault> + Send>;

pub(crate) struct TestDisk {
    geometry: Geometry,
    state: Arc<Mutex<TestState>>,
    power: Power,
}

struct TestState {
    /// What a read sees.
    visible: Image,
    durable: Image,
    cache: Vec<Change>,
    /// Submitted, not yet performed: a cut tears them.
    in_flight: BTreeMap<u64, Change>,
    submitted: u64,
    fault: Option<FaultFor>,
    log: Vec<(Verb, u64, u64)>,
    size_bytes: u64,
    /// Requests held back until released.
    hold: bool,
    held: Vec<(device::Completer, Completed)>,
}

pub(crate) fn geometry(size_bytes: u64) -> Geometry {
    Geometry {
        size_bytes,
        logical_bytes: 512,
        page_bytes: 4096,
        rotational: false,
        volatile_cache: true,
        discard_bytes: 4096,
        fast_zeroes: true,
        transfer_bytes_max: 8 << 20,
        class: Class::Durable,
    }
}

impl TestDisk {
    pub(crate) fn new(size_bytes: u64) -> Arc<TestDisk> {
        TestDisk::with(geometry(size_bytes), Image::default(), Power::default())
    }

    pub(crate) fn with(geometry: Geometry, image: Image, power: Power) -> Arc<TestDisk> {
        let state = TestState {
            visible: image.clone(),
            durable: image,
            cache: Vec::new(),
            in_flight: BTreeMap::new(),
            submitted: 0,
            fault: None,
            log: Vec::new(),
            size_bytes: geometry.size_bytes,
            hold: false,
            held: Vec::new(),
        };
        Arc::new(TestDisk { geometry, state: Arc::new(Mutex::new(state)), power })
    }

    pub(crate) fn device(self: &Arc<TestDisk>) -> Device {
        self.clone()
    }

    /// What is on the medium after the power comes back.
    pub(crate) fn after_power_cut(&self, prng: &mut Prng) -> Image {
        let state = lock(&self.state);
        let mut image = state.durable.clone();
        for change in state.cache.iter().chain(state.in_flight.values()) {
            change.apply_torn(&mut image, prng);
        }
        image
    }

    /// What is on the medium when only the process dies.
    pub(crate) fn visible(&self) -> Image {
        lock(&self.state).visible.clone()
    }

    pub(crate) fn patch(&self, offset: u64, bytes: &[u8]) {
        let mut state = lock(&self.state);
        state.visible.write(offset, bytes);
        state.durable.write(offset, bytes);
    }

    pub(crate) fn fail(&self, fault: impl Fn(Verb, u64, u64) -> Option<Fault> + Send + 'static) {
        lock(&self.state).fault = Some(Box::new(fault));
    }

    pub(crate) fn mend(&self) {
        lock(&self.state).fault = None;
    }

    pub(crate) fn grow(&self, size_bytes: u64) {
        lock(&self.state).size_bytes = size_bytes;
    }

    pub(crate) fn take_log(&self) -> Vec<(Verb, u64, u64)> {
        std::mem::take(&mut lock(&self.state).log)
    }

    /// Complete nothing until [`TestDisk::release`].
    pub(crate) fn hold(&self) {
        lock(&self.state).hold = true;
    }

    pub(crate) fn release(&self) {
        let held = {
            let mut state = lock(&self.state);
            state.hold = false;
            std::mem::take(&mut state.held)
        };
        held.into_iter().for_each(|(completer, completed)| completer.complete(completed));
    }

    fn answer(state: &mut TestState, mut op: Op) -> Completed {
        let (offset, len) = op.range();
        let fault = state.fault.as_ref().and_then(|fault| fault(op.verb(), offset, len));
        let (outcome, extents) = match fault {
            None => TestDisk::perform(state, &mut op),
            Some(Fault::FailLanded(kind)) => {
                TestDisk::perform(state, &mut op);
                (Outcome::Failed(kind), Vec::new())
            }
            Some(Fault::Fail(kind)) => (Outcome::Failed(kind), Vec::new()),
            Some(Fault::Short(done)) => (Outcome::Short(done), Vec::new()),
            Some(Fault::Unknown) => (Outcome::Unknown, Vec::new()),
        };
        Completed { outcome, bufs: op.into_bufs(), extents }
    }

    fn perform(state: &mut TestState, op: &mut Op) -> (Outcome, Vec<DeviceExtent>) {
        let mut extents = Vec::new();
        let fua = match op {
            Op::Read { offset, bufs } => {
                let bytes = state.visible.read(*offset, bufs.len_bytes());
                bufs.copy_in(0, &bytes);
                false
            }
            Op::Write { offset, data, fua } => {
                let bytes = data.to_vec(0..data.len_bytes());
                state.visible.write(*offset, &bytes);
                state.cache.push(Change::Write(*offset, bytes));
                *fua
            }
            Op::WriteZeroes { offset, len, fua, .. } => {
                state.visible.zero(*offset, *len);
                state.cache.push(Change::Zero(*offset, *len));
                *fua
            }
            Op::Discard { .. } => false,
            Op::Flush => {
                for change in std::mem::take(&mut state.cache) {
                    change.apply(&mut state.durable);
                }
                false
            }
            Op::Status { offset, len } => {
                let hole = state.visible.read(*offset, *len as usize).iter().all(|&b| b == 0);
                extents.push(DeviceExtent { len: *len, hole });
                false
            }
        };
        if fua && let Some(change) = state.cache.pop() {
            // Only this request is durable: what else is in the cache stays there.
            change.apply(&mut state.durable);
        }
        (Outcome::Done, extents)
    }
}

impl Io for TestDisk {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: lock(&self.state).size_bytes, ..self.geometry.clone() }
    }

    fn submit(&self, op: Op) -> Completion {
        let (offset, len) = op.range();
        let verb = op.verb();
        let mut state = lock(&self.state);
        if !offset.is_multiple_of(512) || !len.is_multiple_of(512) || offset + len > state.size_bytes {
            return Completion::failed(FailKind::Invalid, op);
        }
        if matches!(verb, Verb::Read | Verb::Write) && len > u64::from(self.geometry.transfer_bytes_max) {
            return Completion::failed(FailKind::Invalid, op);
        }
        state.log.push((verb, offset, len));
        if self.power.is_off() {
            return Completion::failed(FailKind::Gone, op);
        }
        if state.hold {
            let completed = TestDisk::answer(&mut state, op);
            let (completer, completion) = Completion::pair();
            state.held.push((completer, completed));
            return completion;
        }
        // What is submitted together is in flight together: performed when its waiter is polled again.
        let number = state.submitted;
        state.submitted += 1;
        match &op {
            Op::Write { offset, data, .. } => {
                let change = Change::Write(*offset, data.to_vec(0..data.len_bytes()));
                state.in_flight.insert(number, change);
            }
            Op::WriteZeroes { offset, len, .. } => {
                state.in_flight.insert(number, Change::Zero(*offset, *len));
            }
            _ => {}
        }
        drop(state);
        let (state, power) = (self.state.clone(), self.power.clone());
        Completion::future(async move {
            yield_now().await;
            let mut state = lock(&state);
            if !power.request() {
                let outcome = Outcome::Failed(FailKind::Gone);
                return Completed { outcome, bufs: op.into_bufs(), extents: Vec::new() };
            }
            state.in_flight.remove(&number);
            TestDisk::answer(&mut state, op)
        })
    }
}

pub(crate) fn options(number: u128, role: Role) -> FormatOptions {
    let prefix = if role == Role::Disk { "CD" } else { "FD" };
    FormatOptions {
        cell_id: CELL,
        device_id: DeviceId(number),
        role,
        class: None,
        name: format!("{prefix}_{number:02}_c1"),
        au_bytes: None,
        page_bytes: None,
        created: WallTime(1_700_000_000_000_000_000),
        stamp: Stamp(0x5000 + number),
        force: false,
        adopted_bytes: None,
    }
}

/// A cell of `disks` disks and `flashes` flash devices, numbered from 1.
pub(crate) fn cell(disks: u128, flashes: u128, size_bytes: u64) -> (Arc<CellStore>, Vec<Arc<TestDisk>>) {
    let media: Vec<Arc<TestDisk>> = (0..disks + flashes).map(|_| TestDisk::new(size_bytes)).collect();
    let mut cell_disks = Vec::new();
    for (index, medium) in media.iter().enumerate() {
        let number = index as u128 + 1;
        let role = if number <= disks { Role::Disk } else { Role::Flash };
        cell_disks.push(run(CellDisk::format(medium.device(), options(number, role))).unwrap());
    }
    let store = run(CellStore::create("c1", cell_disks, WallTime(1), Stamp(0xaa), Stamp(0xbb))).unwrap();
    (store, media)
}

pub(crate) fn open_options(term_stamp: u128) -> OpenOptions {
    OpenOptions { cell_id: Some(CELL), term_stamp: Stamp(term_stamp), accept_diverged: false, sabotage: None }
}

pub(crate) fn open(media: &[Arc<TestDisk>], term_stamp: u128) -> Result<Opened, StoreError> {
    run(CellStore::open(media.iter().map(TestDisk::device).collect(), open_options(term_stamp)))
}

/// The same devices after a restart of the machine, from images.
pub(crate) fn restarted(images: &[Image], geometry: &Geometry, power: &Power) -> Vec<Arc<TestDisk>> {
    images.iter().map(|image| TestDisk::with(geometry.clone(), image.clone(), power.clone())).collect()
}

pub(crate) fn read(device: &dyn Io, offset: u64, len: usize) -> Result<Vec<u8>, FailKind> {
    let completion = device.submit(Op::Read { offset, bufs: Bufs::from(Buf::zeroed(len)) });
    let done = run(completion);
    done.outcome.ok()?;
    Ok(done.bufs.to_vec(0..len))
}

pub(crate) fn write(device: &dyn Io, offset: u64, bytes: &[u8], fua: bool) -> Outcome {
    let mut buf = Buf::zeroed(bytes.len());
    buf.copy_from_slice(bytes);
    run(device.submit(Op::Write { offset, data: Bufs::from(buf).freeze(), fua })).outcome
}
