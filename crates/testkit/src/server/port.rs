//! Ports that only one test process of the machine uses at a time.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Below the range from which the kernel takes ports for outgoing connections: such a one would
/// else take the port of a server that is being restarted.
const RANGE: Range<u16> = 20_000..32_000;

/// A port of the loopback address, reserved until dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// A name in the kernel that ends with this process, however it ends.
    _reservation: UnixListener,
}

impl Port {
    /// Reserves one on which nobody listens.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn reserve() -> Port {
        let size = RANGE.end - RANGE.start;
        for _ in 0..size {
            let number = RANGE.start + next() % size;
            if let Some(reservation) = claim(number) {
                // Asked last: else two processes would get in each other's way here.
                if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                    return Port { number, _reservation: reservation };
                }
            }
        }
        panic!("no port of {RANGE:?} is free");
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}

fn claim(number: u16) -> Option<UnixListener> {
    let name = UnixAddr::from_abstract_name(format!("leasehold-test-port-{number}")).ok()?;
    UnixListener::bind_addr(&name).ok()
}

/// Runs through the range, from a start that differs between processes.
fn next() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    if NEXT.load(Ordering::Relaxed) == 0 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = (now.subsec_nanos() ^ process::id().wrapping_mul(7919)) % 0x8000;
        let start = u16::try_from(start).unwrap_or_default();
        // Another thread may have been faster: both starts are as good.
        let _ = NEXT.compare_exchange(0, start + 1, Ordering::Relaxed, Ordering::Relaxed);
    }
    NEXT.fetch_add(1, Ordering::Relaxed)
}
