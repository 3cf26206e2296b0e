//! Bytes to and from a server: a socket, in the clear or under TLS.

use std::fmt;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use leasehold_core::{Error, ErrorKind};
use rustls::{ClientConfig, ClientConnection, pki_types::ServerName};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::refusal::DOING;
use super::resp::{self, Parsed, Reply};

/// How much is read at a time.
const CHUNK: usize = 16 * 1024;
/// From how many bytes of answers already taken on the rest is moved to the front.
const COMPACT: usize = 64 * 1024;

/// Why a connection is of no more use.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The server closed it.
    Closed,
    Io(io::Error),
    Tls(rustls::Error),
    /// What came is not the protocol.
    Protocol(&'static str),
    /// It did not answer in time.
    Silent,
    /// We let go of it, for this reason.
    Dropped(&'static str),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Closed => f.write_str("the server closed the connection"),
            Broken::Io(error) => write!(f, "{error}"),
            Broken::Tls(error) => write!(f, "TLS: {error}"),
            Broken::Protocol(why) => write!(f, "the server does not speak the protocol: {why}"),
            Broken::Silent => f.write_str("the server did not answer in time"),
            Broken::Dropped(why) => f.write_str(why),
        }
    }
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Broken {
        Broken::Io(error)
    }
}

impl Broken {
    /// The error that it is for a call.
    pub(crate) fn error(&self) -> Error {
        match self {
            Broken::Tls(error) => {
                let error = Error::new(ErrorKind::Config, DOING, format!("TLS: {error}"));
                error.advise(
                    "name the authority of the server's certificate (?ca=FILE), or use redis:// \
                     where the server does without TLS",
                )
            }
            Broken::Protocol(_) => Error::new(ErrorKind::Config, DOING, self.to_string())
                .advise("use rediss:// where the server wants TLS; otherwise check the port"),
            _ => Error::new(ErrorKind::Unreachable, DOING, self.to_string()),
        }
    }
}

/// What is still to be sent.
pub(crate) struct Out {
    /// Commands in the clear; the first `sent` bytes are gone.
    pub(crate) buffer: Vec<u8>,
    sent: usize,
    tls: Option<Box<ClientConnection>>,
}

impl Out {
    /// Sends what can be sent now; whether that was all.
    pub(crate) fn flush(&mut self, socket: &OwnedWriteHalf) -> io::Result<bool> {
        if let Some(tls) = &mut self.tls {
            if !self.buffer.is_empty() {
                tls.writer().write_all(&self.buffer)?;
                self.buffer.clear();
            }
            while tls.wants_write() {
                match tls.write_tls(&mut Socket(socket)) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    written => written?,
                };
            }
            return Ok(true);
        }
        while self.sent < self.buffer.len() {
            match socket.try_write(&self.buffer[self.sent..]) {
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.buffer.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Whether something waits to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty() && self.tls.as_ref().is_none_or(|tls| !tls.wants_write())
    }
}

/// A socket that is written without waiting.
struct Socket<'s>(&'s OwnedWriteHalf);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What has come and was not yet taken.
pub(crate) struct Inlet {
    socket: OwnedReadHalf,
    chunk: Box<[u8]>,
    /// Answers in the clear; the first `taken` bytes are done with.
    inbox: Vec<u8>,
    taken: usize,
    /// How many bytes the answer at the front takes at least.
    needed: usize,
}

impl Inlet {
    /// Reads a chunk; how long it is, or 0 at the end.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut chunk = ReadBuf::new(&mut self.chunk);
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut chunk))?;
        Poll::Ready(Ok(chunk.filled().len()))
    }

    /// Takes in a chunk that was read.
    pub(crate) fn take_in(&mut self, length: usize, out: &mut Out) -> Result<(), Broken> {
        let mut chunk = self.chunk.get(..length).unwrap_or_default();
        let Some(tls) = &mut out.tls else {
            self.inbox.extend_from_slice(chunk);
            return Ok(());
        };
        while !chunk.is_empty() {
            tls.read_tls(&mut chunk)?;
            tls.process_new_packets().map_err(Broken::Tls)?;
            match tls.reader().read_to_end(&mut self.inbox) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                read => drop(read?),
            }
        }
        Ok(())
    }

    /// The next whole answer.
    pub(crate) fn next_reply(&mut self) -> Result<Option<Reply>, Broken> {
        let rest = self.inbox.get(self.taken..).unwrap_or_default();
        if rest.is_empty() || rest.len() < self.needed {
            return Ok(None);
        }
        match resp::parse(rest).map_err(|malformed| Broken::Protocol(malformed.0))? {
            Parsed::Whole(reply, length) => {
                self.taken += length;
                self.needed = 0;
                if self.taken == self.inbox.len() {
                    self.inbox.clear();
                    self.taken = 0;
                } else if self.taken > COMPACT {
                    self.inbox.drain(..self.taken);
                    self.taken = 0;
                }
                Ok(Some(reply))
            }
            Parsed::Short(needed) => {
                self.needed = needed;
                Ok(None)
            }
        }
    }
}

/// Both directions, in one hand.
pub(crate) struct Pipe {
    pub(crate) socket: OwnedWriteHalf,
    pub(crate) out: Out,
    pub(crate) inlet: Inlet,
}

impl Pipe {
    /// Over a connected socket, under TLS where a configuration and a name are given.
    pub(crate) fn new(
        stream: TcpStream,
        tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    ) -> Result<Pipe, Broken> {
        let tls = match tls {
            Some((config, name)) => {
                let mut tls = ClientConnection::new(config, name).map_err(Broken::Tls)?;
                // What waits to be sent is bounded by who sends.
                tls.set_buffer_limit(None);
                Some(Box::new(tls))
            }
            None => None,
        };
        let (read, socket) = stream.into_split();
        let inlet = Inlet {
            socket: read,
            chunk: vec![0; CHUNK].into_boxed_slice(),
            inbox: Vec::new(),
            taken: 0,
            needed: 0,
        };
        Ok(Pipe { socket, out: Out { buffer: Vec::new(), sent: 0, tls }, inlet })
    }

    /// Writes a command, to be sent with the next answer that is waited for.
    pub(crate) fn say(&mut self, words: &[&[u8]]) {
        resp::words(&mut self.out.buffer, words);
    }

    /// Sends what was said, and waits for the next answer.
    pub(crate) async fn reply(&mut self) -> Result<Reply, Broken> {
        std::future::poll_fn(|cx| self.poll_reply(cx)).await
    }

    /// As [`Pipe::reply`]; nothing is lost when it is not polled to its end.
    pub(crate) fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Result<Reply, Broken>> {
        loop {
            if let Some(reply) = self.inlet.next_reply()? {
                return Poll::Ready(Ok(reply));
            }
            while !self.out.flush(&self.socket)? {
                if self.socket.as_ref().poll_write_ready(cx)?.is_pending() {
                    break;
                }
            }
            match ready!(self.inlet.poll_chunk(cx))? {
                0 => return Poll::Ready(Err(Broken::Closed)),
                length => self.inlet.take_in(length, &mut self.out)?,
            }
        }
    }
}
