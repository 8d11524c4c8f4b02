//! A session: one client connection's view of a grid disk. Checks ranges, cuts long requests, aligns odd ones, and
//! fails everything once acknowledged writes of its grid disk may be gone (I6).
//!
//! Never decides what is cached: the request path ([`crate::request::path`]) does.

use crate::base::active::{Active, ActiveKind};
use crate::base::request::{Context, Extent, RequestError, ZeroFlags};
use crate::base::units::PIECE_BYTES_MAX;
use crate::base::units::ZERO_PIECE_BYTES_MAX;
use crate::disk::client_io::{ClientRead, ClientWrite};
use crate::disk::grid_disk::GridDisk;
use crate::disk::seat::{Leave, Verb};
use crate::disk::traced::Begun;
use crate::durability::losses::{Covered, Epoch, Lost};
use crate::plan::Ticket;
use device::{Bufs, SharedBufs};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One connection's access to a grid disk.
#[derive(Debug)]
pub struct Session {
    disk: Arc<GridDisk>,
    context: Context,
    active: Arc<Active>,
    /// How many losses of acknowledged writes the grid disk had told when this session was opened. After one more
    /// everything fails until the client reconnects, whoever wrote: FLUSH speaks for all connections (I6).
    broken_before: u64,
}

impl Session {
    pub(crate) fn new(disk: Arc<GridDisk>, context: Context) -> Session {
        disk.sessions.fetch_add(1, Ordering::AcqRel);
        let active = disk.active.join(&context);
        let broken_before = disk.promises_broken();
        Session { active, disk, context, broken_before }
    }

    /// The grid disk served.
    #[must_use]
    pub fn grid_disk(&self) -> &Arc<GridDisk> {
        &self.disk
    }

    /// So much of its database waits in the I/O plan that whoever reads its requests should have no second one under way.
    #[must_use]
    pub fn is_held_back(&self) -> bool {
        self.context.account.as_ref().is_some_and(|account| account.is_held_back())
    }

    /// What its requests carry.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Whether a request may begin; the loss epoch it begins in.
    fn check(&self, offset: u64, len: u64) -> Result<Epoch, RequestError> {
        self.disk.check(offset, len)?;
        let epoch = self.disk.losses.epoch();
        self.check_promises()?;
        Ok(epoch)
    }

    /// Whether writes that were acknowledged since the session was opened, on any connection, may be gone.
    fn check_promises(&self) -> Result<(), RequestError> {
        let broken = self.disk.promises_broken();
        if broken == self.broken_before {
            return Ok(());
        }
        if self.context.fence.as_ref().is_none_or(|fence| !fence.is_closed()) {
            self.disk.losses.promises().tell(broken);
        }
        Err(RequestError::Io)
    }

    /// Whether there was a loss before this session that no client was told of. A client that compares the stamp of the instance has been told by that.
    fn check_earlier_promises(&self) -> Result<(), RequestError> {
        let is_news = self.disk.losses.promises().tell(self.broken_before);
        if is_news && !self.context.knows_instance { Err(RequestError::Io) } else { Ok(()) }
    }

    /// The answer to a request: what became of it, unless the session has heard of a loss since it began.
    fn answer<T>(&self, begun: Begun, result: Result<T, RequestError>) -> Result<T, RequestError> {
        let heard = self.check_promises();
        self.ends(begun, result.and_then(|answer| heard.map(|()| answer)))
    }

    /// A change or a flush is acknowledged with what covers it.
    fn acknowledge(&self, begun: Begun, covered: Result<Covered, RequestError>) -> Result<(), RequestError> {
        self.answer(begun, covered.map(drop))
    }

    /// A request has this answer.
    fn ends<T>(&self, begun: Begun, result: Result<T, RequestError>) -> Result<T, RequestError> {
        if result.is_ok() {
            begun.answered(&self.disk);
        }
        self.counted(result)
    }

    fn check_change(&self, offset: u64, len: u64) -> Result<Epoch, RequestError> {
        let checked = self.check(offset, len).and_then(|epoch| self.disk.check_writable().map(|()| epoch));
        self.counted(checked)
    }

    /// A request has been let through.
    fn begins(&self, kind: ActiveKind, offset: u64, len: u64) -> Begun {
        self.disk.trace(&self.context, kind, offset, len)
    }

    /// Count what failed. What fails while the grid disk goes away fails because of that: its device may be gone already.
    fn counted<T>(&self, result: Result<T, RequestError>) -> Result<T, RequestError> {
        let Err(error) = result else { return result };
        self.disk.counters.errors.one();
        Err(if error == RequestError::Io && self.disk.is_stopping() { RequestError::Stopping } else { error })
    }

    /// Wait for the leave of the I/O plan: before anything is taken that others wait for. What changed meanwhile is looked at again.
    async fn pass(&self, verb: Verb, offset: u64, len: u64) -> Result<Option<Ticket>, RequestError> {
        if !self.context.account.as_ref().is_some_and(|account| account.may_wait()) {
            return Ok(None);
        }
        // Boxed: those that have no plan do not carry it.
        let ticket = Box::pin(self.disk.pass_plan(&self.context, verb, offset, len)).await;
        self.disk.check(offset, len)?;
        Ok(ticket)
    }

    async fn read_piece(&self, read: &mut ClientRead<'_>, offset: u64, bufs: Bufs) -> (Result<(), RequestError>, Bufs) {
        match self.pass(Verb::Read, offset, bufs.len_bytes() as u64).await {
            Ok(_ticket) => self.disk.read_piece(read, offset, bufs).await,
            Err(error) => (Err(error), bufs),
        }
    }

    /// Fill `bufs` from `offset`; any offset and length. The buffers come back in every case; after an error their
    /// content is undefined.
    ///
    /// # Errors
    /// Out of range, stopping, or an I/O error.
    pub async fn read(&self, offset: u64, bufs: Bufs) -> (Result<(), RequestError>, Bufs) {
        let _going = self.active.begin(ActiveKind::Read, offset, bufs.len_bytes() as u64);
        self.disk.await_release().await;
        let len = bufs.len_bytes() as u64;
        if let Err(error) = self.check(offset, len) {
            return (self.counted(Err(error)), bufs);
        }
        let begun = self.begins(ActiveKind::Read, offset, len);
        let mut read = ClientRead::new(&self.context, offset, len);
        let (result, bufs) = if len <= PIECE_BYTES_MAX {
            self.read_piece(&mut read, offset, bufs).await
        } else {
            // Boxed: the NBD server asks for one piece at a time, and its requests do not carry it.
            Box::pin(self.read_pieces(&mut read, offset, bufs)).await
        };
        read.count(&self.disk);
        (self.answer(begun, result), bufs)
    }

    async fn read_pieces(
        &self,
        read: &mut ClientRead<'_>,
        offset: u64,
        bufs: Bufs,
    ) -> (Result<(), RequestError>, Bufs) {
        let mut rest = bufs;
        let mut done = Bufs::new();
        let mut result = Ok(());
        let mut at = offset;
        while !rest.is_empty() {
            // Pieces end at piece borders, so that only the first and the last may be odd.
            let len = (PIECE_BYTES_MAX - at % PIECE_BYTES_MAX).min(rest.len_bytes() as u64);
            let mut piece = rest.split_to(len as usize);
            if result.is_ok() {
                (result, piece) = self.read_piece(read, at, piece).await;
            }
            done.append(piece);
            at += len;
        }
        (result, done)
    }

    /// Write `data` at `offset`; any offset and length.
    ///
    /// # Errors
    /// Out of range, read-only, stopping, no space, or an I/O error; then any part of it may have been written.
    pub async fn write(&self, offset: u64, data: SharedBufs, fua: bool) -> Result<(), RequestError> {
        let _going = self.active.begin(ActiveKind::Write, offset, data.len_bytes() as u64);
        self.disk.await_release().await;
        self.disk.await_writes().await;
        let len = data.len_bytes() as u64;
        let epoch = self.check_change(offset, len)?;
        let begun = self.begins(ActiveKind::Write, offset, len);
        let mut write = ClientWrite::new(&self.context, offset, len);
        let result = self.write_pieces(&mut write, offset, data, fua).await;
        write.count(&self.disk.counters);
        self.counted(result)?;
        self.acknowledge(begun, self.wrote(epoch))
    }

    async fn write_pieces(
        &self,
        write: &mut ClientWrite<'_>,
        offset: u64,
        data: SharedBufs,
        fua: bool,
    ) -> Result<(), RequestError> {
        let len = data.len_bytes() as u64;
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let n = (PIECE_BYTES_MAX - at % PIECE_BYTES_MAX).min(len - done);
            let piece = if n == len { data.clone() } else { data.slice(done as usize..(done + n) as usize) };
            let ticket = self.pass(Verb::Write, at, n).await?;
            let mut leave = Leave::new(&self.disk, &self.context, Verb::Write, (at, n), ticket);
            self.disk.write_piece(write, &mut leave, at, piece, fua).await?;
            done += n;
        }
        Ok(())
    }

    /// A change that began in loss epoch `epoch` is done.
    fn wrote(&self, epoch: Epoch) -> Result<Covered, RequestError> {
        self.disk.losses.covers_change(epoch).map_err(|Lost| RequestError::Io)
    }

    /// Make durable every write acknowledged before, on any session of the grid disk.
    ///
    /// # Errors
    /// An I/O error, also when the device has lost something since this was asked, whoever heard of it first: the
    /// un-flushed writes of every session are suspect from now on. Also, once, when it had lost something before the session was opened and no client was told.
    pub async fn flush(&self) -> Result<(), RequestError> {
        let _going = self.active.begin(ActiveKind::Flush, 0, 0);
        self.disk.await_release().await;
        self.counted(self.check(0, 0).and_then(|_| self.check_earlier_promises()))?;
        let begun = self.begins(ActiveKind::Flush, 0, 0);
        self.disk.counters.flushes.one();
        self.disk.watch.flushes();
        let result = self.disk.flush_for(&self.context).await;
        if self.disk.losses.believes_later_flush() {
            return self.ends(begun, result.map(drop));
        }
        self.acknowledge(begun, result)
    }

    /// The content of a range is dead. It reads as zeroes or as before afterwards, and stays so.
    ///
    /// # Errors
    /// As [`Session::write`].
    pub async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), RequestError> {
        let _going = self.active.begin(ActiveKind::Trim, offset, len);
        self.disk.await_release().await;
        self.disk.await_writes().await;
        let epoch = self.check_change(offset, len)?;
        let begun = self.begins(ActiveKind::Trim, offset, len);
        self.disk.counters.trims.requests.one();
        self.disk.counters.trims.bytes.add(len);
        if !self.disk.limits().fast_zeroes {
            // Zeroing would cost as much as writing, and a bare discard reads as anything: keep the old content.
            return self.ends(begun, Ok(()));
        }
        // Whole parts only: the odd edges keep their content, which trim permits.
        let logical = self.disk.logical_bytes.max(crate::base::units::PART_BYTES);
        let (start, end) = (offset.next_multiple_of(logical), (offset + len) / logical * logical);
        if start < end {
            let result = self.zero_pieces(start, end - start, ZeroFlags { fua, ..ZeroFlags::default() }, epoch).await;
            return self.acknowledge(begun, result);
        }
        self.ends(begun, Ok(()))
    }

    /// Make a range read as zeroes.
    ///
    /// # Errors
    /// As [`Session::write`]; [`RequestError::NotSupported`] when `fast` is asked and it would be slow.
    pub async fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<(), RequestError> {
        let _going = self.active.begin(ActiveKind::Zero, offset, len);
        self.disk.await_release().await;
        self.disk.await_writes().await;
        let epoch = self.check_change(offset, len)?;
        if flags.fast && !self.disk.zeroes_fast(len, flags.no_hole) {
            return self.counted(Err(RequestError::NotSupported));
        }
        let begun = self.begins(ActiveKind::Zero, offset, len);
        self.disk.counters.zeroes.requests.one();
        self.disk.counters.zeroes.bytes.add(len);
        let result = self.zero_pieces(offset, len, flags, epoch).await;
        self.acknowledge(begun, result)
    }

    async fn zero_pieces(
        &self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        epoch: Epoch,
    ) -> Result<Covered, RequestError> {
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let n = (ZERO_PIECE_BYTES_MAX - at % ZERO_PIECE_BYTES_MAX).min(len - done);
            let ticket = self.pass(Verb::Zero, at, n).await?;
            let mut leave = Leave::new(&self.disk, &self.context, Verb::Zero, (at, n), ticket);
            self.disk.zero_piece(&self.context, &mut leave, at, n, flags).await?;
            drop(leave);
            done += n;
            device::spawn::yield_now().await;
        }
        self.wrote(epoch)
    }

    /// Bring a range into the flash cache. Best effort: what is refused is not an error.
    ///
    /// # Errors
    /// Out of range, stopping, or an I/O error of the disk.
    pub async fn prefetch(&self, offset: u64, len: u64) -> Result<(), RequestError> {
        let _going = self.active.begin(ActiveKind::Prefetch, offset, len);
        self.disk.await_release().await;
        self.counted(self.check(offset, len))?;
        let begun = self.begins(ActiveKind::Prefetch, offset, len);
        let mut done = 0;
        let mut populates = false;
        while done < len {
            let at = offset + done;
            let n = (PIECE_BYTES_MAX - at % PIECE_BYTES_MAX).min(len - done);
            let passed = self.pass(Verb::Read, at, n).await;
            let _ticket = self.counted(passed)?;
            let result = self.disk.prefetch_piece(&self.context, at, n).await;
            populates |= self.counted(result)?;
            done += n;
        }
        if populates {
            self.disk.counters.cache_populates.one();
        }
        self.answer(begun, Ok(()))
    }

    /// Where the bytes from `offset` on live: at most `extents_max` extents, at least one, covering at most `len`.
    ///
    /// # Errors
    /// Out of range, stopping, or an I/O error.
    pub async fn extents(&self, offset: u64, len: u64, extents_max: usize) -> Result<Vec<Extent>, RequestError> {
        self.disk.await_release().await;
        self.counted(self.check(offset, len))?;
        let result = self.disk.extents(offset, len, extents_max).await;
        let heard = self.check_promises();
        self.counted(result.and_then(|extents| heard.map(|()| extents)))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.disk.sessions.fetch_sub(1, Ordering::AcqRel);
    }
}
