//! Child processes that tests start, stop, continue and kill, with what they print and when.
//!
//! For tests in which a holder is killed or stopped for longer than its term. The child itself is
//! killed and waited for when its [`Process`] is dropped; what the child has started is for the test
//! to end, or for a keeper.
//!
//! ```
//! use std::{process::Command, time::Duration};
//! use leasehold_testkit::process::Process;
//!
//! let mut shell = Process::start(Command::new("sh").args(["-c", "echo ready; exec sleep 60"]))?;
//! let ready = shell.wait_for("ready", Duration::from_secs(30));
//! shell.stop()?;
//! shell.cont()?;
//! shell.kill9()?;
//! assert!(!shell.wait(Duration::from_secs(30)).success());
//! assert!(ready.at <= leasehold_testkit::process::monotonic());
//! # Ok::<(), std::io::Error>(())
//! ```

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{self, Pid, Signal, WaitId, WaitIdOptions};
use rustix::time::{ClockId, clock_gettime};

/// What CLOCK_MONOTONIC shows, which all processes of the machine read alike.
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanos)
}

/// From which stream a line came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// A line that a child printed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// When it was read, by [`monotonic`].
    pub at: Duration,
    /// Where it was printed.
    pub stream: Stream,
    /// The line, without its end; bytes that are not UTF-8 are replaced.
    pub text: String,
}

#[derive(Debug, Default)]
struct Printed {
    lines: Mutex<(Vec<Line>, usize)>,
    more: Condvar,
}

impl Printed {
    fn lock(&self) -> MutexGuard<'_, (Vec<Line>, usize)> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A child process under the hand of a test.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid: Pid,
    stdin: Option<ChildStdin>,
    printed: Arc<Printed>,
    readers: Vec<thread::JoinHandle<()>>,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts a command with pipes for its three streams.
    ///
    /// For signals to the whole group give it one of its own before:
    /// [`process_group(0)`](std::os::unix::process::CommandExt::process_group).
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Process> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let printed = Arc::new(Printed::default());
        let mut readers = Vec::new();
        if let Some(out) = child.stdout.take() {
            readers.push(read(out, Stream::Out, Arc::clone(&printed)));
        }
        if let Some(err) = child.stderr.take() {
            readers.push(read(err, Stream::Err, Arc::clone(&printed)));
        }
        let stdin = child.stdin.take();
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("a child without a process id"))?;
        Ok(Process { child, pid, stdin, printed, readers, status: None })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<Line> {
        self.printed.lock().0.clone()
    }

    /// What it has printed on one stream so far, for comparisons and messages.
    pub fn text(&self, stream: Stream) -> String {
        let lines = self.lines();
        let of = lines.iter().filter(|l| l.stream == stream);
        of.map(|l| format!("{}\n", l.text)).collect()
    }

    /// Waits for the first line that contains `text`.
    ///
    /// # Panics
    ///
    /// If none has come within this time, or when both streams have ended.
    pub fn wait_for(&self, text: &str, within: Duration) -> Line {
        self.wait_for_line(text, within, |line| line.text.contains(text))
    }

    /// Waits for the first line of which `is_it` holds; `what` is for the message.
    ///
    /// # Panics
    ///
    /// As [`Process::wait_for`].
    pub fn wait_for_line(
        &self,
        what: &str,
        within: Duration,
        is_it: impl Fn(&Line) -> bool,
    ) -> Line {
        let end = Instant::now() + within;
        let mut printed = self.printed.lock();
        loop {
            if let Some(line) = printed.0.iter().find(|line| is_it(line)) {
                return line.clone();
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no line {what:?} within {within:?}: {:?}", printed.0);
            assert!(printed.1 < self.readers.len(), "it ended without {what:?}: {:?}", printed.0);
            let waited = self.printed.more.wait_timeout(printed, left);
            printed = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Writes to its standard input.
    ///
    /// # Errors
    ///
    /// If it was closed, here or there.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stdin = self.stdin.as_mut();
        let stdin = stdin.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
        stdin.write_all(bytes)?;
        stdin.flush()
    }

    /// Closes its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Stops it, and returns when it stands still.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        // Without taking the exit status away, should it have ended instead.
        let what = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = process::waitid(WaitId::Pid(self.pid), what)?;
        match status {
            Some(status) if status.stopped() => Ok(()),
            _ => Err(io::Error::other("it ended before it stopped")),
        }
    }

    /// Lets it go on.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn cont(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills it, as `kill -9` does.
    ///
    /// # Errors
    ///
    /// If it was waited for before.
    pub fn kill9(&self) -> io::Result<()> {
        self.signal(Signal::KILL)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// If it was waited for before: its number may be another's by now.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        self.not_reaped()?;
        Ok(process::kill_process(self.pid, signal)?)
    }

    /// Sends a signal to the process group that it leads.
    ///
    /// # Errors
    ///
    /// If it was waited for before, or leads none.
    pub fn signal_group(&self, signal: Signal) -> io::Result<()> {
        self.not_reaped()?;
        Ok(process::kill_process_group(self.pid, signal)?)
    }

    fn not_reaped(&self) -> io::Result<()> {
        match self.status {
            None => Ok(()),
            Some(status) => Err(io::Error::other(format!("it has ended: {status}"))),
        }
    }

    /// Waits until it has ended, and until all it printed was read, unless others hold its streams.
    ///
    /// # Panics
    ///
    /// If it has not ended within this time.
    pub fn wait(&mut self, within: Duration) -> ExitStatus {
        if let Some(status) = self.status {
            return status;
        }
        let (sender, ended) = mpsc::channel();
        let pid = self.pid;
        thread::spawn(move || {
            let what = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let waited = process::waitid(WaitId::Pid(pid), what);
            let _ = sender.send(waited.is_ok()); // the receiver may have given up
        });
        let ended = ended.recv_timeout(within);
        assert!(ended.is_ok(), "it has not ended within {within:?}: {:?}", self.lines());
        self.stdin = None;
        match self.child.wait() {
            Ok(status) => {
                self.status = Some(status);
                self.read_rest(Duration::from_secs(5));
                status
            }
            Err(error) => panic!("a child cannot be waited for: {error}"),
        }
    }

    /// Waits for the readers, but not for ever: a grandchild may keep the streams open.
    fn read_rest(&self, within: Duration) {
        let end = Instant::now() + within;
        let mut printed = self.printed.lock();
        while printed.1 < self.readers.len() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.printed.more.wait_timeout(printed, left);
            printed = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The signal that ended it, if one did.
    pub fn ended_by(&self) -> Option<i32> {
        self.status.and_then(|status| status.signal())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.status.is_none() {
            // It may have ended by itself; then there is nothing to kill.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn read(
    from: impl Read + Send + 'static,
    stream: Stream,
    printed: Arc<Printed>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut bytes = Vec::new();
        while let Ok(1..) = from.read_until(b'\n', &mut bytes) {
            let at = monotonic();
            if bytes.last() == Some(&b'\n') {
                bytes.pop();
            }
            let text = String::from_utf8_lossy(&bytes).into_owned();
            printed.lock().0.push(Line { at, stream, text });
            printed.more.notify_all();
            bytes.clear();
        }
        printed.lock().1 += 1;
        printed.more.notify_all();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    fn sh(script: &str) -> Process {
        Process::start(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn lines_come_with_their_stream_and_time() {
        let before = monotonic();
        let mut child = sh("echo out; echo err >&2; printf end; exit 3");
        assert_eq!(child.wait(SOON).code(), Some(3));
        assert_eq!(child.text(Stream::Out), "out\nend\n");
        assert_eq!(child.text(Stream::Err), "err\n");
        let lines = child.lines();
        assert!(lines.iter().all(|l| l.at >= before && l.at <= monotonic()));
        assert!(child.signal(Signal::TERM).is_err(), "its number may be another's");
    }

    #[test]
    fn a_stopped_child_stands_still_until_it_goes_on() {
        let mut child = sh("while read line; do echo \"$line\"; done");
        child.write(b"one\n").unwrap();
        child.wait_for("one", SOON);
        child.stop().unwrap();
        child.write(b"two\n").unwrap();
        thread::sleep(Duration::from_millis(50));
        assert!(child.lines().iter().all(|l| l.text != "two"), "it runs though it was stopped");
        child.cont().unwrap();
        child.wait_for("two", SOON);
        child.close_stdin();
        assert!(child.wait(SOON).success());
    }

    #[test]
    fn a_killed_child_says_by_what() {
        let mut child = sh("echo ready; exec sleep 600");
        child.wait_for("ready", SOON);
        child.kill9().unwrap();
        child.wait(SOON);
        assert_eq!(child.ended_by(), Some(9));
    }

    #[test]
    fn a_dropped_child_is_gone_though_it_was_stopped() {
        let child = sh("echo ready; exec sleep 600");
        child.wait_for("ready", SOON);
        child.stop().unwrap();
        let pid = child.pid;
        drop(child);
        assert!(process::test_kill_process(pid).is_err(), "{pid:?} still exists");
    }

    #[test]
    #[should_panic(expected = "it ended without")]
    fn waiting_for_a_line_that_cannot_come_ends_at_once() {
        sh("echo other").wait_for("never", SOON);
    }
}
