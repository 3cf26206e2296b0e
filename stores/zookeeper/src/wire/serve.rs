//! Serving one connection: frames out, frames in, pings in between.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_core::{Clock as _, Error, ErrorKind, Moment};
use leasehold_net::BootClock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;

use super::jute::{Garbled, In, Out};
use super::link::{CLOSE, End, Link, Stream, XID_AUTH, refuse, unreached};
use super::proto::{self, code};
use super::{Answer, Fail, Refusal, Request};

const XID_EVENT: i32 = -1;
const XID_PING: i32 = -2;
const OP_PING: i32 = 11;
/// The header of each answer: number, transaction, error.
const HEADER: usize = 16;
/// While this much is not written, no further request is taken.
const UNSENT_MAX: usize = 4 << 20;
/// How long the server may take to say that it closed the session.
const CLOSING: Duration = Duration::from_secs(1);

/// One connection.
#[derive(Default)]
struct Line {
    xid: i32,
    out: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    /// So much of an answer that is too large is still to be thrown away.
    skip: usize,
    asked: VecDeque<Asked>,
    pinged: Option<Moment>,
    last_sent: Moment,
    closing: Option<Moment>,
}

struct Asked {
    xid: i32,
    sent: Moment,
    code: i32,
    is_write: bool,
    watch: Option<(String, oneshot::Sender<()>)>,
    answer: oneshot::Sender<Answer>,
}

impl Link {
    /// Serves a connection until it breaks.
    pub(super) async fn serve(&mut self, stream: Box<dyn Stream>) -> End {
        let mut line = Line { last_sent: BootClock.now(), ..Line::default() };
        let end = self.serve_line(&mut line, stream).await;
        for asked in line.asked {
            let maybe = asked.is_write;
            let result = Err(Fail::Lost { maybe });
            let _ = asked.answer.send(Answer { sent: asked.sent, result });
        }
        end
    }

    async fn serve_line(&mut self, line: &mut Line, stream: Box<dyn Stream>) -> End {
        let timeout = self.session.lock().timeout;
        let period = (timeout / 40).clamp(Duration::from_millis(10), Duration::from_millis(200));
        let mut tick = tokio::time::interval(period);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut reader, mut writer) = tokio::io::split(stream);
        for request in std::mem::take(&mut self.waiting) {
            self.ask(line, request);
        }
        loop {
            let unsent = line.out.len() - line.written;
            tokio::select! {
                read = reader.read_buf(&mut line.input) => match read {
                    Ok(0) => return broken("the server closed the connection"),
                    Ok(_) => match self.take_in(line) {
                        Ok(false) => {}
                        Ok(true) => return End::Closed,
                        Err(end) => return end,
                    },
                    Err(error) => return broken(error.to_string()),
                },
                wrote = writer.write(&line.out[line.written..]), if unsent > 0 => {
                    match wrote {
                        Ok(count) => line.wrote(count),
                        Err(error) => return broken(error.to_string()),
                    }
                    if line.out.is_empty() && let Err(error) = writer.flush().await {
                        return broken(error.to_string());
                    }
                }
                request = self.queue.recv(), if unsent < UNSENT_MAX && line.closing.is_none() => {
                    match request {
                        Some(request) => self.ask(line, request),
                        None => line.close(),
                    }
                    while line.out.len() < UNSENT_MAX && let Ok(request) = self.queue.try_recv() {
                        self.ask(line, request);
                    }
                }
                _ = tick.tick() => if let Some(end) = self.look_at_the_time(line, timeout) {
                    return end;
                }
            }
        }
    }

    fn ask(&mut self, line: &mut Line, request: Request) {
        if request.answer.is_closed() {
            return;
        }
        let of_session = request.generation == self.session.lock().generation;
        if !of_session {
            return refuse(request, Fail::SessionOver);
        }
        let now = BootClock.now();
        if request.until <= now {
            return refuse(request, Fail::Lost { maybe: false });
        }
        line.xid = if line.xid == i32::MAX { 1 } else { line.xid + 1 };
        line.push(line.xid, request.code, &request.body);
        line.last_sent = now;
        if request.code == CLOSE {
            line.closing = Some(now);
        }
        line.asked.push_back(Asked {
            xid: line.xid,
            sent: now,
            code: request.code,
            is_write: request.is_write,
            watch: request.watch.map(|watch| (request.path, watch)),
            answer: request.answer,
        });
    }

    /// Pings, and gives up a server that is silent; a session that ends has half of it left to
    /// find another server.
    fn look_at_the_time(&mut self, line: &mut Line, timeout: Duration) -> Option<End> {
        let now = BootClock.now();
        let oldest = line.asked.front().map(|asked| asked.sent).into_iter().chain(line.pinged);
        if oldest.min().is_some_and(|sent| now >= sent + timeout / 4) {
            return Some(broken("the server did not answer in time"));
        }
        if line.closing.is_some_and(|since| now >= since + CLOSING) {
            return Some(End::Closed);
        }
        if line.pinged.is_none() && now >= line.last_sent + timeout / 6 {
            line.push(XID_PING, OP_PING, &[]);
            line.pinged = Some(now);
            line.last_sent = now;
        }
        self.watches.retain(|_, told| {
            told.retain(|watch| !watch.is_closed());
            !told.is_empty()
        });
        None
    }

    /// Whole frames that have come; true once the session is closed.
    fn take_in(&mut self, line: &mut Line) -> Result<bool, End> {
        let input = std::mem::take(&mut line.input);
        let mut rest = input.as_slice();
        let mut closed = false;
        while !closed {
            let skipped = line.skip.min(rest.len());
            line.skip -= skipped;
            rest = &rest[skipped..];
            let Some((length, body)) = rest.split_first_chunk::<4>() else { break };
            let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(usize::MAX);
            if length < HEADER || length > i32::MAX as usize {
                return Err(broken("the server's answer cannot be read"));
            }
            let too_large = length > self.config.answer_max;
            let wanted = if too_large { HEADER } else { length };
            let Some((frame, after)) = body.split_at_checked(wanted) else { break };
            rest = after;
            line.skip = length - wanted;
            let size = too_large.then_some(length);
            closed = self.on_frame(line, frame, size).map_err(|fail| match fail {
                Broken::Garbled => broken("the server's answer cannot be read"),
                Broken::Session => broken("the server says that the session has ended"),
            })?;
        }
        line.input = rest.to_vec();
        Ok(closed)
    }

    fn on_frame(
        &mut self,
        line: &mut Line,
        frame: &[u8],
        too_large: Option<usize>,
    ) -> Result<bool, Broken> {
        let mut frame = In(frame);
        let (xid, zxid, error) = (frame.int()?, frame.long()?, frame.int()?);
        if xid != XID_EVENT {
            self.zxid = self.zxid.max(zxid);
        }
        if error == code::SESSION_EXPIRED || error == code::SESSION_MOVED {
            return Err(Broken::Session);
        }
        match xid {
            XID_EVENT => {
                let (_kind, _state) = (frame.int()?, frame.int()?);
                drop(self.watches.remove(frame.text()?));
                return Ok(false);
            }
            XID_PING => {
                if let Some(sent) = line.pinged.take() {
                    self.vouch(sent);
                }
                return Ok(false);
            }
            XID_AUTH => {
                if error != 0 {
                    self.session.change(|state| state.trouble = Some(barred()));
                }
                return Ok(false);
            }
            _ => {}
        }
        let asked = line.asked.pop_front().filter(|asked| asked.xid == xid).ok_or(Garbled)?;
        self.vouch(asked.sent);
        let is_close = asked.code == CLOSE;
        let watched = error == 0 || (error == code::NO_NODE && asked.code == EXISTS);
        if let Some((path, watch)) = asked.watch
            && watched
        {
            self.watches.entry(path).or_default().push(watch);
        }
        let result = match (error, too_large) {
            (_, Some(size)) => Err(Fail::TooLarge(size)),
            (code::AUTH_FAILED | code::SASL_REQUIRED, _) => Err(Fail::Barred(barred())),
            (0, None) => proto::decode(asked.code, &mut frame)?.map_err(Fail::Refused),
            (error, None) => Err(Fail::Refused(match proto::decode(asked.code, &mut frame) {
                Ok(Err(refusal)) => refusal,
                _ => Refusal { code: error, at: 0 },
            })),
        };
        let _ = asked.answer.send(Answer { sent: asked.sent, result });
        Ok(is_close)
    }
}

const EXISTS: i32 = 3;

/// Why a connection is given up.
enum Broken {
    Garbled,
    Session,
}

impl From<Garbled> for Broken {
    fn from(_: Garbled) -> Broken {
        Broken::Garbled
    }
}

impl Line {
    fn push(&mut self, xid: i32, code: i32, body: &[u8]) {
        let mut out = Out::default();
        out.int(xid).int(code);
        out.0.extend_from_slice(body);
        self.out.extend_from_slice(&proto::framed(out));
    }

    fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written >= self.out.len() {
            self.out.clear();
            self.written = 0;
        }
    }

    /// Nobody is left who could use the session.
    fn close(&mut self) {
        let now = BootClock.now();
        self.xid = if self.xid == i32::MAX { 1 } else { self.xid + 1 };
        self.push(self.xid, CLOSE, &[]);
        self.closing = Some(now);
        let (answer, _) = oneshot::channel();
        let code = CLOSE;
        let asked = Asked { xid: self.xid, sent: now, code, is_write: false, watch: None, answer };
        self.asked.push_back(asked);
    }
}

fn broken(detail: impl Into<String>) -> End {
    End::Broken(unreached(detail))
}

fn barred() -> Error {
    Error::new(ErrorKind::Permission, "log in to ZooKeeper", "the server refuses the credentials")
        .advise("check the user and the password in the store's URL")
}
