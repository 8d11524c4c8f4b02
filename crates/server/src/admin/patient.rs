//! A stream whose writes fail when the other end takes nothing for a while. Reads wait as long as they are left to.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// See the module's head.
pub(super) struct Patient<T> {
    io: T,
    stall: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<T> Patient<T> {
    pub(super) fn new(io: T, stall: Duration) -> Patient<T> {
        Patient { io, stall, waiting: None }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: Unpin> Patient<T> {
    /// What a verb of writing answers, or an error when it has been pending too long.
    fn timed<R>(&mut self, cx: &mut Context<'_>, answer: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if answer.is_ready() {
            self.waiting = None;
            return answer;
        }
        let stall = self.stall;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(stall)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let answer = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.timed(cx, answer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let answer = Pin::new(&mut self.io).poll_flush(cx);
        self.timed(cx, answer)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let answer = Pin::new(&mut self.io).poll_shutdown(cx);
        self.timed(cx, answer)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn a_reader_that_stops_ends_the_writer_and_a_slow_one_does_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (near, mut far) = tokio::io::duplex(16);
            let mut near = Patient::new(near, Duration::from_millis(200));
            let reading = tokio::spawn(async move {
                let mut piece = [0; 8];
                // Longer in all than the writer has patience for one piece.
                for _ in 0..6 {
                    tokio::time::sleep(Duration::from_millis(60)).await;
                    far.read_exact(&mut piece).await.unwrap();
                }
                far
            });
            near.write_all(&[0; 48]).await.unwrap();
            let _far = reading.await.unwrap();
            let error = near.write_all(&[0; 64]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }
}
