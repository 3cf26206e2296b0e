//! `hold`: holds a lock for something else, until it is told to stop.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use leasehold::Release;
use leasehold_core::Loss;
use leasehold_supervise::Process;
use rustix::fs::FileType;

use crate::acquiring::{self, Report, Watch};
use crate::args::{Common, Hold};
use crate::asked::Asked;
use crate::commands::run::loss_words;
use crate::context::{Context, variable};
use crate::exit::{Code, End, usage};
use crate::output;
use crate::patience::{Alone, Ears, Heard};
use crate::records::{self, Granted};

pub(crate) fn hold(common: &Common, args: &Hold) -> Result<End, End> {
    let context = Context::new(common)?;
    let named = context.names.full(&args.name)?;
    let asked = Asked::new(&args.ask)?;
    let mut ears = Alone::new()?;
    let until = Until::new(&mut ears, args)?;
    let service = Service::from_env();
    let opened = context.open_within(&mut ears, asked.reach(context.timeout))?;
    let client = &opened.client;
    let request = asked.request(&opened, &named, None, context.timeout)?;
    let watch = Watch::new(ears.waker(), |_| {});
    let lease = {
        let report = Report::new(context.voice, &named)
            .on_status(|line| service.tell(&format!("STATUS={line}")))
            .on_ready(|at| match until.ready(at) {
                Next::GoOn => Ok(()),
                Next::Over(why) => {
                    let why = format!("{why} before {} was free", named.shown());
                    Err(End::Fail(Code::Busy, why))
                }
            });
        acquiring::acquire(&mut ears, client, request, &watch, report)
            .map_err(|no_lease| no_lease.end(Code::Busy))?
    };
    let url = &client.profile().url;
    let namespace = context.names.namespace();
    let granted = Granted::new(&named, namespace, url, &lease, asked.mode, asked.ttl);
    // Whoever started this may not want to read it.
    if !output::is_closed()
        && let Err(End::Fail(_, why)) = output::data(&records::line(&granted)?)
    {
        context.voice.warn(format_args!("{why}; holding {} all the same", named.shown()));
    }
    service.tell(&format!("READY=1\nSTATUS=holding {}", named.shown()));
    let ended = Holding { ears: &mut ears, until, watch: &watch, context: &context }.wait()?;
    let loss = match ended {
        Ended::Lost(loss) => Some(loss),
        Ended::Exit(_) => None,
    };
    let loss = match (loss, leasehold::blocking::release(lease)) {
        (Some(loss), _) | (None, Release::AlreadyLost(loss)) => Some(loss),
        (None, Release::Released) => None,
        (None, Release::Unknown(error)) => {
            let text = "could not be released and ends by its term: failed to";
            context.voice.warn(format_args!("{} {text} {error}", named.shown()));
            None
        }
    };
    opened.say_farewell();
    match (ended, loss) {
        (_, Some(loss)) => {
            let text = format!("lost {}: {}", named.shown(), loss_words(loss));
            Ok(End::Fail(Code::Lost, text))
        }
        (Ended::Exit(end), None) => Ok(end),
        (Ended::Lost(_), None) => Ok(End::code(Code::Lost)),
    }
}

enum Ended {
    Exit(End),
    Lost(Loss),
}

struct Holding<'a> {
    ears: &'a mut Alone,
    until: Until,
    watch: &'a Watch,
    context: &'a Context,
}

impl Holding<'_> {
    fn wait(&mut self) -> Result<Ended, End> {
        loop {
            let told = self.watch.take();
            if let Some(loss) = told.loss {
                self.until.lost();
                return Ok(Ended::Lost(loss));
            }
            if told.at_risk {
                self.context.voice.detail("a renewal is overdue");
            }
            match self.ears.hear(None)? {
                Heard::Signal(signal) if signal.asks_to_end() => {
                    self.ears.end_at_once();
                    return Ok(Ended::Exit(End::by_signal(signal.number)));
                }
                Heard::Ready(at) => match self.until.ready(at) {
                    Next::GoOn => {}
                    Next::Over(why) => {
                        self.context.voice.detail(why);
                        return Ok(Ended::Exit(End::DONE));
                    }
                },
                _ => {}
            }
        }
    }
}

/// What ends the holding, besides signals.
struct Until {
    stdin_at: Option<usize>,
    process_at: Option<usize>,
    process: Option<Process>,
    pid: i32,
    /// The process is sent TERM when the lock is lost.
    tells: bool,
}

enum Next {
    GoOn,
    Over(String),
}

impl Until {
    fn new(ears: &mut Alone, args: &Hold) -> Result<Until, End> {
        let tells = args.on_lost.is_some();
        let mut until = Until { stdin_at: None, process_at: None, process: None, pid: 0, tells };
        if let Some(stdin) = stdin_that_closes() {
            until.stdin_at = Some(ears.watch(stdin));
        }
        if let Some(pid) = args.pid {
            let gone = |_| usage(format!("--pid {pid}: there is no such process"));
            let process = Process::open(pid).map_err(gone)?;
            let copy = process.as_fd().try_clone_to_owned();
            let copy = copy.map_err(|error| {
                End::Fail(Code::Bug, format!("cannot watch process {pid}: {error}"))
            })?;
            until.process_at = Some(ears.watch(copy));
            until.process = Some(process);
            until.pid = pid;
        }
        Ok(until)
    }

    fn ready(&self, at: usize) -> Next {
        if Some(at) == self.process_at {
            return Next::Over(format!("process {} ended", self.pid));
        }
        let mut buffer = [0_u8; 4096];
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Ok(1..) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Next::GoOn,
            Ok(0) | Err(_) => Next::Over("stdin closed".into()),
        }
    }

    /// The lock is lost: whoever it was held for is told, if that was asked for.
    fn lost(&self) {
        if let Some(process) = self.process.as_ref().filter(|_| self.tells) {
            let _ = process.signal(rustix::process::Signal::TERM.as_raw());
        }
    }
}

/// Stdin, if its end means something: a pipe's or a socket's does, a background job's /dev/null
/// does not.
fn stdin_that_closes() -> Option<OwnedFd> {
    let stat = rustix::fs::fstat(rustix::stdio::stdin()).ok()?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo | FileType::Socket => std::io::stdin().as_fd().try_clone_to_owned().ok(),
        _ => None,
    }
}

/// The service manager that started this, if it wants to be told.
struct Service(Option<(UnixDatagram, SocketAddr)>);

impl Service {
    fn from_env() -> Service {
        let connected = variable("NOTIFY_SOCKET").and_then(|name| {
            let address = match name.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
                name => SocketAddr::from_pathname(OsStr::from_bytes(name)),
            };
            Some((UnixDatagram::unbound().ok()?, address.ok()?))
        });
        Service(connected)
    }

    /// Tells it. What cannot be told is not worth ending for.
    fn tell(&self, text: &str) {
        if let Some((socket, address)) = &self.0 {
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}
