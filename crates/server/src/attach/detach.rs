//! `flashcell detach`: unmount, make durable, take the device apart, in this order; or give up what cannot be made durable.
//!
//! Never takes a device from under who uses it, unless it is forced.

use super::block::BlockDevice;
use super::host::{self, Mount};
use super::keeper::{Ask, Told};
use super::shared::State;
use super::spec::{Place, Record, Spec};
use super::{AttachError, await_end, link, told, trimmed};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

/// For keeper and driver to end when the device is gone: the driver's last FLUSH is in it.
const END: Duration = Duration::from_secs(60);
/// The same for a forced one, whose device may be used on.
const FORCED_END: Duration = Duration::from_secs(5);

/// For a cell that is away to come back, before a detach without force is refused: a cell that has just been started is connected to
/// again within a second, and what the keeper tells is half a second old.
const RETURN: Duration = Duration::from_secs(5);
/// For who uses the device to let it go: udev looks at what is on a device whenever somebody has written to it, as who unmounts it has.
const PASSING: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What to detach.
#[derive(Clone, Debug)]
pub struct DetachOptions {
    /// A device, a grid disk or a mount point.
    pub target: String,
    /// The name or directory of its cell, where grid disks of several cells are named alike.
    pub cell: Option<String>,
    /// Without the cell, and from under who uses it.
    pub force: bool,
}

/// Detach. What is not attached: nothing changes. What is worth telling, a line each.
///
/// # Errors
/// See [`AttachError`].
pub fn detach(options: &DetachOptions) -> Result<Vec<String>, AttachError> {
    if !rustix::process::geteuid().is_root() {
        return Err(AttachError::NotRoot { what: "detach" });
    }
    let all = || Place::all().into_iter().filter_map(|place| place.spec().ok().map(|spec| (place, spec)));
    let named: Vec<(Place, Spec)> = all().filter(|(_, spec)| is_named(spec, options)).collect();
    let found = match &named[..] {
        [] => all().filter(|(place, spec)| is_at(place, spec, options)).collect(),
        _ => named,
    };
    match &found[..] {
        [] => Ok(vec![format!("{} is not attached", options.target)]),
        [(place, spec)] => one(place, spec, options.force),
        several => Err(AttachError::Ambiguous {
            target: options.target.clone(),
            found: several
                .iter()
                .filter_map(|(place, _)| place.record().ok())
                .map(|record| record.device.display().to_string())
                .collect(),
        }),
    }
}

fn is_of_cell(spec: &Spec, options: &DetachOptions) -> bool {
    options.cell.as_ref().is_none_or(|cell| {
        *cell == spec.cell || spec.cell_dir.is_some() && std::fs::canonicalize(cell).ok() == spec.cell_dir
    })
}

/// A path without `..`, as it is written.
fn without_dots(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut so_far, component| {
        match component {
            Component::ParentDir => {
                so_far.pop();
            }
            other => so_far.push(other),
        }
        so_far
    })
}

/// Whether the target is the name of its grid disk.
fn is_named(spec: &Spec, options: &DetachOptions) -> bool {
    spec.grid_disk.eq_ignore_ascii_case(&options.target) && is_of_cell(spec, options)
}

/// Whether the target is its device, its link or its mount point. Never looks the path up: a mount point may not answer.
fn is_at(place: &Place, spec: &Spec, options: &DetachOptions) -> bool {
    let Ok(target) = std::path::absolute(trimmed(&options.target)) else { return false };
    let target = without_dots(&target);
    let Ok(record) = place.record() else { return false };
    is_of_cell(spec, options) && (record.device == target || spec.link() == target || is_mounted_at(&record, &target))
}

fn is_mounted_at(record: &Record, target: &Path) -> bool {
    mounts_of(record).iter().any(|mount| mount.path == target)
}

fn mounts_of(record: &Record) -> Vec<Mount> {
    host::number(&record.device).map(|number| host::mounts(&number)).unwrap_or_default()
}

fn one(place: &Place, spec: &Spec, force: bool) -> Result<Vec<String>, AttachError> {
    let Ok(record) = place.record() else {
        // One that never came about, or is coming about.
        if !place.is_live() {
            place.remove();
        }
        return Ok(Vec::new());
    };
    if !place.is_live() {
        bury(place)?;
        return Ok(vec![format!("{}: keeper and driver were gone", spec.grid_disk)]);
    }
    let mut notes = Vec::new();
    match told_up(place, if force { Duration::ZERO } else { RETURN }) {
        Some(told) if told.state == State::Up => {}
        _ if force => {}
        told => {
            let why = told.map_or_else(
                || "its keeper does not answer".to_owned(),
                |told| {
                    let lost = told.unflushed_bytes.max(told.given_up_bytes);
                    format!("it is {}; {lost} bytes are acknowledged and not flushed", told.state.word())
                },
            );
            return Err(AttachError::Away { grid_disk: spec.grid_disk.clone(), why });
        }
    }
    let mut how = How::Gently;
    // Looked for before it is unmounted: afterwards their paths are of no place.
    let users = if force {
        let below = mounts_of(&record).iter().find_map(|mount| host::users(&mount.path));
        below.or_else(|| host::users(&record.device))
    } else {
        None
    };
    if force {
        let (note, answers) = give_up(place, spec, &record);
        notes.push(note);
        how = if answers { How::Forced } else { How::Dead };
    }
    release(spec, &record, how)?;
    let _ = Ask::End.of(place);
    let patience = if force { FORCED_END } else { END };
    match await_end(place, patience) {
        true => place.remove(),
        false if force => {
            let (device, users) = (record.device.display(), host::told(users));
            notes.push(format!("{device} is gone when the last who uses it ends: {users}"));
        }
        false => {
            let why = format!("keeper and driver go on: {}", place.last_words());
            return Err(AttachError::Stuck { grid_disk: spec.grid_disk.clone(), why });
        }
    }
    Ok(notes)
}

/// What the keeper tells, when the attachment is up, or has failed, or `patience` has passed.
fn told_up(place: &Place, patience: Duration) -> Option<Told> {
    let deadline = Instant::now() + patience;
    loop {
        let told = told(place);
        let may_come_up = told.as_ref().is_some_and(|told| matches!(told.state, State::Starting | State::Waiting));
        if !may_come_up || Instant::now() >= deadline {
            return told;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Have everything answered EIO; how much is lost by that, in a line, and whether anybody answers. Does nothing to an attachment that is up and has all flushed
/// before its device is taken apart.
fn give_up(place: &Place, spec: &Spec, record: &Record) -> (String, bool) {
    if told(place).is_some_and(|told| told.state == State::Up) && syncs_in_time(spec, record) {
        return (format!("{}: flushed; nothing is given up", spec.grid_disk), true);
    }
    match Ask::GiveUp.of(place) {
        Ok(told) => {
            let lost = told.given_up_bytes;
            (format!("{}: gave up {lost} bytes that were acknowledged and not flushed", spec.grid_disk), true)
        }
        Err(_) => {
            // Without a keeper the driver is the last that has the file system, or the connection: it ends with it.
            end_driver(record.driver_pid);
            let note = "ended its driver; what was acknowledged and not flushed is given up, how much is not known";
            (format!("{}: {note}", spec.grid_disk), false)
        }
    }
}

/// A cell that goes away just then has the FLUSH wait, for longer than whoever forces it likes. So does opening the device while somebody syncs the whole
/// host: the kernel holds a lock of the device until what is dirty of it is written.
fn syncs_in_time(spec: &Spec, record: &Record) -> bool {
    let (done, hear) = std::sync::mpsc::channel();
    let (spec, path) = (spec.clone(), record.device.clone());
    let sync = move || {
        let synced = BlockDevice::open(&path).is_ok_and(|device| device.is_of(&spec) && device.sync().is_ok());
        // Fails when nobody waits any more.
        let _ = done.send(synced);
    };
    std::thread::Builder::new().name("sync".to_owned()).spawn(sync).is_ok()
        && hear.recv_timeout(FORCED_END).is_ok_and(|synced| synced)
}

/// Kill a process that is a driver of an attachment. Numbers of processes are used again: any other is left alone.
pub(super) fn end_driver(pid: u32) {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if line.split(|byte| *byte == 0).any(|word| word == b"attach-driver")
        && let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw)
    {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// How a device is taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// When nobody uses it, and all is flushed.
    Gently,
    /// From under who uses it.
    Forced,
    /// The same, and nobody is there to answer its requests.
    Dead,
}

/// Unmount and take apart.
fn release(spec: &Spec, record: &Record, how: How) -> Result<(), AttachError> {
    let force = how != How::Gently;
    let Ok(device) = BlockDevice::open(&record.device) else { return Ok(()) };
    if !device.is_of(spec) {
        return Ok(());
    }
    let busy = |users: String| AttachError::Busy { what: record.device.display().to_string(), users };
    let on_top = host::holders(&record.device);
    if !on_top.is_empty() && !force {
        return Err(busy(on_top.join(", ")));
    }
    let apart = || device.clear().map_err(|source| AttachError::File { path: record.device.clone(), source });
    let mounts = mounts_of(record);
    // The kernel would wait for a driver: with the device apart everything fails at once, and unmounting waits for nothing.
    let at_once = how == How::Dead && !matches!(device, BlockDevice::Loop(_));
    if at_once {
        apart()?;
    }
    let patience = if force { Duration::ZERO } else { PASSING };
    for mount in mounts {
        let unmounted = patiently(patience, || match host::unmount(&mount, false) {
            // Somebody else was quicker, as systemd may be at a shutdown.
            Err(_) if !mounts_of(record).contains(&mount) => Ok(()),
            done => done,
        });
        match unmounted {
            Ok(()) => {}
            Err(_) if force => host::unmount(&mount, true)?,
            Err(AttachError::Command { why, .. }) if why.contains("busy") => {
                let users = host::told(host::users(&mount.path));
                return Err(AttachError::Busy { what: mount.path.display().to_string(), users });
            }
            Err(error) => return Err(error),
        }
    }
    if !force {
        let unused = patiently(patience, || match (device.is_held(), host::users(&record.device)) {
            (false, None) => Ok(()),
            (_, users) => Err(host::told(users)),
        });
        unused.map_err(busy)?;
        device.sync().map_err(|source| AttachError::Away {
            grid_disk: spec.grid_disk.clone(),
            why: format!("FLUSH: {source}"),
        })?;
    }
    // Not twice: once it is free it may be somebody else's.
    if at_once { Ok(()) } else { apart() }
}

/// Try until it is done, or `patience` has passed: the last try's answer.
fn patiently<E>(patience: Duration, attempt: impl Fn() -> Result<(), E>) -> Result<(), E> {
    let deadline = Instant::now() + patience;
    loop {
        match attempt() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
            done => return done,
        }
    }
}

/// What is left of an attachment whose keeper and driver are gone: its device answers EIO to everything.
pub(super) fn bury(place: &Place) -> Result<(), AttachError> {
    if let (Ok(spec), Ok(record)) = (place.spec(), place.record()) {
        release(&spec, &record, How::Dead)?;
        link::remove(&spec, &record.device);
    }
    place.remove();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::without_dots;
    use std::path::Path;

    #[test]
    fn dots_lead_up_as_far_as_there_is_a_way() {
        for (given, wanted) in [("/mnt/a/../b", "/mnt/b"), ("/mnt/../../x", "/x"), ("/mnt/pg", "/mnt/pg"), ("/..", "/")]
        {
            assert_eq!(without_dots(Path::new(given)), Path::new(wanted), "{given}");
        }
    }
}
