//! One thread that wakes tasks at a time of the real clock, for the in-memory store, which has no
//! thread of its own. Started with the first wait.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Condvar, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
struct Timer {
    sleepers: Mutex<Sleepers>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Sleepers {
    next_id: u64,
    wakers: BTreeMap<(Instant, u64), Waker>,
}

static TIMER: OnceLock<&'static Timer> = OnceLock::new();

fn timer() -> &'static Timer {
    TIMER.get_or_init(|| {
        let timer: &'static Timer = Box::leak(Box::default());
        let builder = std::thread::Builder::new().name("leasehold-timer".into());
        // Without a thread a wait ends with its first wake by anything else.
        let _ = builder.spawn(move || timer.run());
        timer
    })
}

impl Timer {
    fn run(&self) -> ! {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(|e| e.into_inner());
        loop {
            let now = Instant::now();
            while let Some(entry) = sleepers.wakers.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                entry.remove().wake();
            }
            let wait = sleepers.wakers.first_key_value().map(|((at, _), _)| at.duration_since(now));
            let wait = wait.unwrap_or(Duration::from_secs(3600));
            let waited = self.changed.wait_timeout(sleepers, wait);
            sleepers = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
    }
}

/// Done after this long.
#[derive(Debug)]
pub(crate) struct After {
    until: Instant,
    key: Option<(Instant, u64)>,
}

impl After {
    pub(crate) fn new(span: Duration) -> After {
        After { until: Instant::now() + span.min(Duration::from_secs(3600 * 24)), key: None }
    }
}

impl Future for After {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.until {
            return Poll::Ready(());
        }
        let timer = timer();
        let mut sleepers = timer.sleepers.lock().unwrap_or_else(|e| e.into_inner());
        let key = self.key.unwrap_or_else(|| {
            sleepers.next_id += 1;
            (self.until, sleepers.next_id)
        });
        sleepers.wakers.insert(key, cx.waker().clone());
        timer.changed.notify_one();
        drop(sleepers);
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for After {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let mut sleepers = timer().sleepers.lock().unwrap_or_else(|e| e.into_inner());
            sleepers.wakers.remove(&key);
        }
    }
}
