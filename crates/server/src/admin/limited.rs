//! A listener that has so many connections at a time; further ones wait in its backlog.

use axum::serve::Listener;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// See the module's head.
pub(super) struct Limited<L> {
    inner: L,
    slots: Arc<Semaphore>,
}

impl<L> Limited<L> {
    pub(super) fn new(inner: L, connections_max: usize) -> Limited<L> {
        Limited { inner, slots: Arc::new(Semaphore::new(connections_max)) }
    }
}

impl<L: Listener> Listener for Limited<L>
where
    L::Io: Unpin,
{
    type Io = Held<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // Never closed, so there is always a permit to come.
        let permit = self.slots.clone().acquire_owned().await.ok();
        let (io, address) = self.inner.accept().await;
        (Held { io, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.inner.local_addr()
    }
}

/// A connection and its slot.
pub(super) struct Held<T> {
    io: T,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Held<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Held<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::net::{TcpListener, TcpStream};

    #[test]
    fn the_third_waits_until_one_goes() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let inner = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = inner.local_addr().unwrap();
            let mut listener = Limited::new(inner, 2);
            let mut clients = Vec::new();
            for _ in 0..3 {
                clients.push(TcpStream::connect(address).await.unwrap());
            }
            let first = listener.accept().await;
            let _second = listener.accept().await;
            let soon = Duration::from_millis(50);
            assert!(tokio::time::timeout(soon, listener.accept()).await.is_err());
            drop(first);
            assert!(tokio::time::timeout(soon, listener.accept()).await.is_ok());
        });
    }
}
