//! The process that greeted a connection: a pooler greets with a number of its own, and the process
//! that answers later is another.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::CancelToken;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// Reads it out of the request that would cancel the connection's statement, which is never sent:
/// its length, its code, the process, its secret.
pub(super) async fn of(token: &CancelToken) -> Option<u32> {
    let mut caught = Catch::default();
    token.cancel_query_raw(&mut caught, Plain).await.ok()?;
    let request = caught.written.last_chunk::<16>()?;
    let &[_, _, _, _, _, _, _, _, a, b, c, d, ..] = request;
    Some(u32::from_be_bytes([a, b, c, d]))
}

/// A server that would speak TLS, and keeps what it is told.
#[derive(Default)]
struct Catch {
    written: Vec<u8>,
}

struct Plain;

impl<'a> TlsConnect<&'a mut Catch> for Plain {
    type Stream = &'a mut Catch;
    type Error = Infallible;
    type Future = Ready<Result<&'a mut Catch, Infallible>>;

    fn connect(self, stream: &'a mut Catch) -> Self::Future {
        ready(Ok(stream))
    }
}

impl TlsStream for &mut Catch {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Catch {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0 {
            buffer.put_slice(b"S");
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Catch {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
