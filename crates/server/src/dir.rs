//! Directories that are held open, and files in them by their names alone: what is written as root in a directory of somebody else stays
//! in that directory.
//!
//! The owner of a directory may put a symbolic or a hard link at any name in it, and replace what is there at any moment. So every
//! file is reached through the descriptor of its directory, no link is followed, a new file is written under a name that cannot be
//! foreseen, and owner and mode are set on descriptors. Never changes owner or mode of what it has not made.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// For its owner alone.
pub(crate) const PRIVATE: u32 = 0o600;
/// For its owner to change and for its group to read, as far as the mask of the process lets them.
pub(crate) const GROUP: u32 = 0o640;
/// For everybody, as far as the mask of the process lets them.
pub(crate) const PUBLIC: u32 = 0o666;
/// Of a directory that only its owner enters.
const PRIVATE_DIR: u32 = 0o700;
/// Symbolic links on the way to a directory: as many as the kernel follows.
const LINKS_MAX: usize = 40;
/// Bits of a mode by which others than the owner may change a directory, and the one by which they may change only what is theirs.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// User and group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    uid: u32,
    gid: u32,
}

impl Owner {
    fn of(stat: &Stat) -> Owner {
        Owner { uid: stat.st_uid, gid: stat.st_gid }
    }

    /// The number of the user.
    pub(crate) fn uid(self) -> u32 {
        self.uid
    }

    /// Whether it is the user of this process.
    fn is_me(self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }

    /// Whether it is nobody that this process has to be afraid of.
    fn is_trusted(self) -> bool {
        self.uid == 0 || self.is_me()
    }
}

/// A directory.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl Dir {
    /// Open one. A symbolic link on the way is followed only where it lies in a directory that nobody but root and this user can change.
    pub(crate) fn open(path: &Path) -> Result<Dir> {
        Dir::walk(path, false)
    }

    /// As [`Dir::open`]; what is missing of it is made, for this user alone.
    pub(crate) fn open_or_make(path: &Path) -> Result<Dir> {
        Dir::walk(path, true)
    }

    /// The directory in which `path` names something, and that name.
    pub(crate) fn of(path: &Path) -> Result<(Dir, &OsStr)> {
        let name = path.file_name().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "it names no file"))?;
        Ok((Dir::open(path.parent().unwrap_or(Path::new("")))?, name))
    }

    fn walk(path: &Path, makes: bool) -> Result<Dir> {
        let by_path = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = rustix::fs::open(".", by_path, Mode::empty())?;
        let mut links = 0;
        let mut todo: Vec<OsString> = Vec::new();
        push(&mut todo, path);
        while let Some(name) = todo.pop() {
            let next = match rustix::fs::openat(&at, &name, by_path | OFlags::NOFOLLOW, Mode::empty()) {
                Err(Errno::NOENT) if makes => {
                    match rustix::fs::mkdirat(&at, &name, Mode::from_raw_mode(PRIVATE_DIR)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                    rustix::fs::openat(&at, &name, by_path | OFlags::NOFOLLOW, Mode::empty())
                }
                found => found,
            };
            match next {
                Ok(next) => at = next,
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    let stat = rustix::fs::statat(&at, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                        return Err(Errno::NOTDIR.into());
                    }
                    if !is_safe(&rustix::fs::fstat(&at)?, &stat) {
                        let name = name.to_string_lossy();
                        return Err(Error::new(
                            ErrorKind::PermissionDenied,
                            format!(
                                "{name:?} in it is a symbolic link that another user can change; name the directory itself"
                            ),
                        ));
                    }
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    let target = rustix::fs::readlinkat(&at, &name, Vec::new())?;
                    push(&mut todo, Path::new(OsStr::from_bytes(target.as_bytes())));
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        let read = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Dir { fd: rustix::fs::openat(&at, ".", read, Mode::empty())?, path: path.to_owned() })
    }

    /// As it was named.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whose it is.
    pub(crate) fn owner(&self) -> Result<Owner> {
        Ok(Owner::of(&rustix::fs::fstat(&self.fd)?))
    }

    /// Whose the file of this name is, be it a link; none where there is none.
    pub(crate) fn owner_of(&self, name: &OsStr) -> Result<Option<Owner>> {
        Ok(self.stat(name)?.as_ref().map(Owner::of))
    }

    fn stat(&self, name: &OsStr) -> Result<Option<Stat>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether it has anything of this name, be it a link.
    pub(crate) fn has(&self, name: &OsStr) -> Result<bool> {
        Ok(self.stat(name)?.is_some())
    }

    /// Whether it is the same directory as another one.
    pub(crate) fn is(&self, other: &Dir) -> Result<bool> {
        let identity = |dir: &Dir| rustix::fs::fstat(&dir.fd).map(|stat| (stat.st_dev, stat.st_ino));
        Ok(identity(self)? == identity(other)?)
    }

    /// The directory of this name in it, which is no link.
    pub(crate) fn sub(&self, name: &OsStr) -> Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())?;
        Ok(Dir { fd, path: self.path.join(name) })
    }

    /// Make a directory in it, for `owner` alone. It is theirs from the moment it has its name.
    pub(crate) fn make(&self, name: &OsStr, owner: Owner) -> Result<Dir> {
        let made = unforeseen(name)?;
        rustix::fs::mkdirat(&self.fd, &made, Mode::from_raw_mode(PRIVATE_DIR))?;
        let finish = || {
            let Dir { fd, .. } = self.sub(&made)?;
            give(&fd, owner)?;
            rustix::fs::renameat_with(&self.fd, &made, &self.fd, name, rustix::fs::RenameFlags::NOREPLACE)?;
            rustix::fs::fsync(&self.fd)?;
            Ok(Dir { fd, path: self.path.join(name) })
        };
        finish().inspect_err(|_: &Error| {
            // It is empty, and nobody's to find.
            let _ = rustix::fs::unlinkat(&self.fd, &made, AtFlags::REMOVEDIR);
        })
    }

    /// All of a file of at most `bytes_max`; none where there is none.
    ///
    /// # Errors
    /// Also for what is no regular file, for a link, and for a file with more bytes or another name besides.
    pub(crate) fn read(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        let file = match self.file(OsStr::new(name), OFlags::RDONLY, PRIVATE) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = Vec::new();
        file.take(bytes_max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            return Err(Error::new(ErrorKind::FileTooLarge, format!("it has more than {bytes_max} bytes")));
        }
        Ok(Some(bytes))
    }

    /// Write a file of this mode, durably; one that is there is replaced, whole. `owner`: whose it becomes, else this user's.
    pub(crate) fn write(&self, name: &OsStr, mode: u32, owner: Option<Owner>, bytes: &[u8]) -> Result<()> {
        let made = unforeseen(name)?;
        let file = self.file(&made, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode)?;
        let finish = |mut file: File| {
            file.write_all(bytes)?;
            if let Some(owner) = owner {
                give(&file, owner)?;
            }
            file.sync_all()?;
            rustix::fs::renameat(&self.fd, &made, &self.fd, name)?;
            rustix::fs::fsync(&self.fd)?;
            Ok(())
        };
        finish(file).inspect_err(|_: &Error| {
            // Nothing of it counts.
            let _ = rustix::fs::unlinkat(&self.fd, &made, AtFlags::empty());
        })
    }

    /// Make a symbolic link; whatever has that name already stays.
    pub(crate) fn link(&self, name: &str, target: &str) -> Result<()> {
        match rustix::fs::symlinkat(target, &self.fd, name) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Let everybody connect to a socket in it.
    pub(crate) fn open_to_all(&self, socket: &OsStr) -> Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, socket, flags, Mode::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != FileType::Socket {
            return Err(Error::new(ErrorKind::InvalidInput, "it is no socket"));
        }
        // By its descriptor: its name may be another's by now. A descriptor of this kind has a mode only by this way.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        Ok(rustix::fs::chmod(path, Mode::from_raw_mode(PUBLIC))?)
    }

    /// Open a file to read and change it in place, made for its owner alone where there is none. Errors as of [`Dir::read`].
    pub(crate) fn change(&self, name: impl AsRef<OsStr>) -> Result<File> {
        self.file(name.as_ref(), OFlags::RDWR | OFlags::CREATE, PRIVATE)
    }

    /// As [`Dir::change`], to append to it, and to read what is there.
    pub(crate) fn append(&self, name: &str) -> Result<File> {
        self.file(OsStr::new(name), OFlags::RDWR | OFlags::APPEND | OFlags::CREATE, PRIVATE)
    }

    /// Give a file another name in the same directory; one of that name goes.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    fn file(&self, name: &OsStr, flags: OFlags, mode: u32) -> Result<File> {
        // A pipe put there must not be waited for.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(mode)).map_err(|errno| match errno {
            Errno::LOOP => Error::new(ErrorKind::InvalidInput, "it is a symbolic link, where a file is wanted"),
            errno => errno.into(),
        })?;
        let stat = rustix::fs::fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::new(ErrorKind::InvalidInput, "it is no regular file"));
        }
        if stat.st_nlink > 1 {
            return Err(Error::new(ErrorKind::InvalidInput, "it has another name besides: a hard link"));
        }
        Ok(fd.into())
    }
}

/// Write a file as [`Dir::write`] does, for this user.
pub(crate) fn write(path: &Path, mode: u32, bytes: &[u8]) -> Result<()> {
    let (dir, name) = Dir::of(path)?;
    dir.write(name, mode, None, bytes)
}

/// The components of a path, the next one last.
fn push(todo: &mut Vec<OsString>, path: &Path) {
    todo.extend(path.components().rev().filter(|it| *it != Component::CurDir).map(|it| it.as_os_str().to_owned()));
}

/// Whether nobody but root and this user can have put this link into this directory.
fn is_safe(dir: &Stat, link: &Stat) -> bool {
    let changes = dir.st_mode & OTHERS_WRITE != 0;
    let keeps = dir.st_mode & STICKY != 0 && Owner::of(link).is_trusted();
    Owner::of(dir).is_trusted() && (!changes || keeps)
}

/// A name beside another one that nobody can have taken.
fn unforeseen(name: &OsStr) -> Result<OsString> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| Error::other(error.to_string()))?;
    let mut made = OsString::from(".");
    made.push(name);
    made.push(format!(".{:032x}", u128::from_le_bytes(random)));
    Ok(made)
}

fn give(fd: impl std::os::fd::AsFd, owner: Owner) -> Result<()> {
    if Owner::of(&rustix::fs::fstat(&fd)?) == owner {
        return Ok(());
    }
    let (uid, gid) = (rustix::fs::Uid::from_raw(owner.uid), rustix::fs::Gid::from_raw(owner.gid));
    Ok(rustix::fs::fchown(fd, Some(uid), Some(gid))?)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    //! Goal: nothing outside a directory is touched, whatever its owner has put into it. Method: links and others at every name.
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn a_file_is_replaced_and_its_mode_is_what_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write(&path, PRIVATE, b"one").unwrap();
        write(&path, PRIVATE, b"2").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"2");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, PRIVATE);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
        assert!(write(&dir.path().join("none/file"), PUBLIC, b"").is_err());
        assert!(write(&dir.path().join(".."), PUBLIC, b"").is_err());
    }

    #[test]
    fn links_are_replaced_and_never_followed() {
        let outside = tempfile::tempdir().unwrap();
        let victim = outside.path().join("victim");
        std::fs::write(&victim, "untouched").unwrap();
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        for name in ["soft", "hard"] {
            let path = place.path().join(name);
            if name == "soft" { symlink(&victim, &path) } else { std::fs::hard_link(&victim, &path) }.unwrap();
            assert!(dir.read(name, 100).is_err(), "{name} is not read");
            assert!(dir.append(name).is_err() && dir.change(name).is_err(), "{name} is not changed");
            dir.write(OsStr::new(name), PRIVATE, None, b"own").unwrap();
            assert_eq!(dir.read(name, 3).unwrap().unwrap(), b"own");
            assert!(dir.read(name, 2).is_err(), "too long");
        }
        // Nor a link to nothing, a pipe, a directory.
        assert!(dir.open_to_all(OsStr::new("soft")).is_err());
        drop(std::os::unix::net::UnixListener::bind(place.path().join("socket")).unwrap());
        dir.open_to_all(OsStr::new("socket")).unwrap();
        assert_eq!(std::fs::metadata(place.path().join("socket")).unwrap().mode() & 0o777, PUBLIC);
        symlink(outside.path().join("made"), place.path().join("to-make")).unwrap();
        assert!(dir.append("to-make").is_err() && dir.change("to-make").is_err());
        let fifo = place.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(dir.read("pipe", 100).is_err() && dir.append("pipe").is_err(), "and nothing waits for a reader");
        std::fs::create_dir(place.path().join("dir")).unwrap();
        assert!(dir.read("dir", 100).is_err());
        assert_eq!(dir.read("none", 100).unwrap(), None);
        // A directory that is a link is none.
        let me = dir.owner().unwrap();
        symlink(outside.path(), place.path().join("sub")).unwrap();
        assert!(dir.sub(OsStr::new("sub")).is_err() && dir.make(OsStr::new("sub"), me).is_err());
        let made = dir.make(OsStr::new("made"), me).unwrap();
        assert_eq!(std::fs::metadata(made.path()).unwrap().mode() & 0o777, PRIVATE_DIR);
        made.write(OsStr::new("file"), PRIVATE, None, b"x").unwrap();
        assert_eq!(dir.sub(OsStr::new("made")).unwrap().read("file", 10).unwrap().unwrap(), b"x");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
        let left = std::fs::read_dir(place.path())
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().as_bytes().starts_with(b"."));
        assert_eq!(left.count(), 0, "nothing is left beside them");
    }

    #[test]
    fn a_link_on_the_way_is_followed_only_where_nobody_else_could_have_put_it() {
        let place = tempfile::tempdir().unwrap();
        let real = place.path().join("real/below");
        std::fs::create_dir_all(&real).unwrap();
        symlink("real", place.path().join("link")).unwrap();
        symlink("loop", place.path().join("loop")).unwrap();
        assert!(Dir::open(&place.path().join("link/below/../below")).is_ok());
        assert!(Dir::open(&place.path().join("loop")).is_err());
        assert!(Dir::open(&place.path().join("none")).is_err());
        let made = Dir::open_or_make(&place.path().join("link/a/b")).unwrap();
        assert_eq!(made.owner_of(OsStr::new("x")).unwrap(), None);
        assert!(place.path().join("real/a/b").is_dir());
        // Others may change the directory the link lies in.
        std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let error = Dir::open(&place.path().join("link/below")).unwrap_err().to_string();
        assert!(error.contains("symbolic link that another user can change"), "{error}");
        std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        assert!(Dir::open(&place.path().join("link/below")).is_ok(), "but not the link");
    }
}
