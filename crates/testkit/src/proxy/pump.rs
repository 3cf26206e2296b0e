//! What moves the bytes of one connection: for each way a thread that reads and one that writes,
//! so that a delay delays and does not slow down.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use super::{Shared, State, Verdict, Way};

const CHUNK: usize = 16 * 1024;

/// How many chunks are read before those who send are made to wait.
const QUEUE: usize = 256;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);

struct Chunk {
    read_at: Instant,
    /// None at the end of the stream.
    bytes: Option<Vec<u8>>,
}

/// Serves a connection to its end.
pub(super) fn run(shared: &Arc<Shared>, number: u64, client: TcpStream) {
    if let Some(server) = connect(shared, number)
        && let (Ok(client_too), Ok(server_too)) = (client.try_clone(), server.try_clone())
    {
        // Without it small chunks would wait for each other.
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let back = {
            let shared = Arc::clone(shared);
            thread::spawn(move || pump(&shared, number, Way::ToClient, server_too, client_too))
        };
        pump(shared, number, Way::ToServer, client, server);
        // A panic there has been printed.
        let _ = back.join();
    }
    shared.cut(number);
}

/// The connection to the server, once the way to it is open.
fn connect(shared: &Arc<Shared>, number: u64) -> Option<TcpStream> {
    let mut state = shared.lock();
    while state.connections.contains_key(&number) && state.paused.contains(&true) {
        state = shared.wait(state, None);
    }
    let target = state.target;
    drop(state);
    let server = TcpStream::connect_timeout(&target, CONNECT_WITHIN).ok()?;
    let own = server.try_clone().ok()?;
    // Gone if it was cut meanwhile.
    shared.lock().connections.get_mut(&number)?.server = Some(own);
    Some(server)
}

fn pump(shared: &Arc<Shared>, number: u64, way: Way, from: TcpStream, to: TcpStream) {
    let (sender, chunks) = sync_channel(QUEUE);
    let reader = thread::spawn(move || read(from, &sender));
    if write(shared, number, way, &chunks, to).is_none() {
        shared.cut(number);
    }
    drop(chunks);
    // A panic there has been printed.
    let _ = reader.join();
}

fn read(mut from: TcpStream, chunks: &SyncSender<Chunk>) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let bytes = match from.read(&mut buffer) {
            Ok(size @ 1..) => Some(buffer[..size].to_vec()),
            Ok(0) | Err(_) => None,
        };
        let end = bytes.is_none();
        if chunks.send(Chunk { read_at: Instant::now(), bytes }).is_err() || end {
            return;
        }
    }
}

/// Passes chunks on, up to the end of the stream; none if the connection is to be cut.
fn write(
    shared: &Shared,
    number: u64,
    way: Way,
    chunks: &Receiver<Chunk>,
    mut to: TcpStream,
) -> Option<()> {
    while let Ok(chunk) = chunks.recv() {
        let state = gate(shared, number, way, Some(chunk.read_at), None)?;
        let Some(bytes) = chunk.bytes else {
            drop(state);
            return to.shutdown(Shutdown::Write).ok();
        };
        let Some(mut state) = judge(shared, state, number, way, &bytes)? else { continue };
        if way == Way::ToClient && state.drop_replies > 0 {
            state.drop_replies -= 1;
            return None;
        }
        state.writing[way.index()] += 1;
        drop(state);
        let written = to.write_all(&bytes);
        let mut state = shared.lock();
        state.writing[way.index()] -= 1;
        if written.is_ok() {
            state.bytes[way.index()] += bytes.len() as u64;
        }
        shared.changed.notify_all();
        written.ok()?;
    }
    None
}

/// Waits until what was read then may pass; none if the connection was cut. What was held waits for
/// a release after that of this number, too.
fn gate<'a>(
    shared: &'a Shared,
    number: u64,
    way: Way,
    read_at: Option<Instant>,
    held_at: Option<u64>,
) -> Option<MutexGuard<'a, State>> {
    let mut state = shared.lock();
    loop {
        if !state.connections.contains_key(&number) {
            return None;
        }
        let due = read_at.map(|at| at + state.delay).filter(|due| *due > Instant::now());
        let held = state.paused[way.index()] || held_at == Some(state.released);
        if !held && due.is_none() {
            return Some(state);
        }
        state = shared.wait(state, if held { None } else { due });
    }
}

/// Asks the hook: whether the chunk passes, or, none, the connection is to be cut.
#[expect(clippy::option_option, reason = "cut, drop, or pass")]
fn judge<'a>(
    shared: &'a Shared,
    state: MutexGuard<'a, State>,
    number: u64,
    way: Way,
    bytes: &[u8],
) -> Option<Option<MutexGuard<'a, State>>> {
    let Some(hook) = state.hook.clone() else { return Some(Some(state)) };
    let released = state.released;
    // It may call the proxy.
    drop(state);
    match hook(way, number, bytes) {
        Verdict::Pass => gate(shared, number, way, None, None).map(Some),
        Verdict::Swallow => Some(None),
        Verdict::Hold => gate(shared, number, way, None, Some(released)).map(Some),
        Verdict::Cut => None,
    }
}
