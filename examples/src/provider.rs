//! One call at a time to a payment provider that knows no tokens, and sometimes hangs.
//!
//! No fence is possible there: what was sent is not ours any more, and the provider compares no
//! tokens. Two things help. A key that is derived from what is paid, not from the try: the provider
//! then does it once. And a call that ends before the lease can: nobody calls beside the next
//! holder.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use leasehold::Client;
use leasehold_data::idempotency::Key;
use leasehold_http::idempotency::{IDEMPOTENCY_KEY, key_value};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OnceCell, Semaphore};

use crate::Result;
use crate::db::Db;
use crate::way::{Way, beyond};

const LOCK: &str = "charge/order-7";
/// Short, so that the example is; a call that takes longer is the case in point.
const TERM: Duration = Duration::from_secs(2);

/// Both ways.
///
/// # Errors
///
/// What the store of locks or the provider says.
pub async fn run(db: &Db) -> Result<Vec<Way>> {
    Ok(vec![wrong(db).await?, right(db).await?])
}

/// The provider: a real HTTP server. Its first call hangs, until it is told to go on.
#[derive(Clone)]
struct Provider {
    charges: Arc<AtomicU32>,
    by_key: Arc<Mutex<HashMap<String, Arc<OnceCell<u32>>>>>,
    calls: Arc<AtomicU32>,
    has_come: Arc<Semaphore>,
    goes_on: Arc<Semaphore>,
}

impl Provider {
    fn new() -> Provider {
        Provider {
            charges: Arc::default(),
            by_key: Arc::default(),
            calls: Arc::default(),
            has_come: Arc::new(Semaphore::new(0)),
            goes_on: Arc::new(Semaphore::new(0)),
        }
    }

    async fn serve(&self) -> Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let app = Router::new().route("/charge", post(charge)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(addr)
    }

    async fn until_a_call_hangs(&self) -> Result<()> {
        self.has_come.acquire().await?.forget();
        Ok(())
    }

    fn go_on(&self) {
        self.goes_on.add_permits(1);
    }

    fn charges(&self) -> i64 {
        i64::from(self.charges.load(Ordering::SeqCst))
    }

    /// Charges, as a provider does: whether or not its client still listens.
    async fn charge(self) -> u32 {
        if self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
            self.has_come.add_permits(1);
            if let Ok(word) = self.goes_on.acquire().await {
                word.forget();
            }
        }
        self.charges.fetch_add(1, Ordering::SeqCst) + 1
    }

    async fn charge_once(self, key: String) -> u32 {
        let known = {
            let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(by_key.entry(key).or_default())
        };
        *known.get_or_init(|| self.charge()).await
    }
}

async fn charge(State(provider): State<Provider>, headers: HeaderMap) -> (StatusCode, String) {
    let key = headers.get(IDEMPOTENCY_KEY).and_then(|key| key.to_str().ok()).map(str::to_owned);
    let work = tokio::spawn(async move {
        match key {
            Some(key) => provider.charge_once(key).await,
            None => provider.charge().await,
        }
    });
    match work.await {
        Ok(number) => (StatusCode::CREATED, format!("charge {number}")),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, String::new()),
    }
}

/// The smallest client: the body of the answer.
async fn call(addr: SocketAddr, key: Option<&str>) -> Result<String> {
    let mut stream = TcpStream::connect(addr).await?;
    let key = match key.and_then(key_value) {
        Some(key) => format!("idempotency-key: {}\r\n", key.to_str()?),
        None => String::new(),
    };
    let request = format!(
        "POST /charge HTTP/1.1\r\nhost: pay\r\nconnection: close\r\n{key}content-length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 201") => Ok(body.to_owned()),
        _ => Err(format!("the provider says {answer:?}").into()),
    }
}

/// When a call went on, and when its caller was the holder no more.
struct Called {
    ended: Instant,
    /// `None` if its caller stopped waiting.
    answer: Option<String>,
}

/// A lease of one term, and a call that knows nothing of it.
async fn call_under_lock(locks: &Client, addr: SocketAddr) -> Result<Called> {
    let lease = locks.lock(LOCK).ttl(TERM).fixed_term().acquire().await?;
    let answer = call(addr, None).await?;
    let _ = lease.release().await;
    Ok(Called { ended: Instant::now(), answer: Some(answer) })
}

/// The call ends with the lease at the latest, and carries a key that any holder would derive.
async fn call_in_time(locks: &Client, addr: SocketAddr) -> Result<Called> {
    let lease = locks.lock(LOCK).ttl(TERM).fixed_term().acquire().await?;
    let key = Key::new("shop-1", "order-7")?.step("charge");
    // The provider's own time limit, if there is that much left.
    let at_most = Duration::from_secs(30).min(lease.valid_for());
    let called = tokio::time::timeout(at_most, call(addr, Some(&key)));
    let answer = match lease.run(called).await {
        Ok(Ok(answer)) => Some(answer?),
        // Too late: whether it was charged is not known, and the next holder finds out by the key.
        Ok(Err(_)) | Err(_) => None,
    };
    let ended = Instant::now();
    let _ = lease.release().await;
    Ok(Called { ended, answer })
}

async fn wrong(db: &Db) -> Result<Way> {
    let provider = Provider::new();
    let addr = provider.serve().await?;
    let (first, second) = (db.locks().await?, db.locks().await?);
    let hangs = tokio::spawn(async move { call_under_lock(&first, addr).await });
    provider.until_a_call_hangs().await?;
    // Waits until the first one's term is over.
    let lease_taken = call_under_lock(&second, addr).await?.ended;
    provider.go_on();
    let first = hangs.await??;
    let beside = first.ended > lease_taken;
    let charges = provider.charges();
    let saw = format!("{charges} charges, {}", told(beside));
    Ok(Way::wrong("a lease, and a call that may take longer", saw, beyond(charges, 1)))
}

async fn right(db: &Db) -> Result<Way> {
    let provider = Provider::new();
    let addr = provider.serve().await?;
    let (first, second) = (db.locks().await?, db.locks().await?);
    let hangs = tokio::spawn(async move { call_in_time(&first, addr).await });
    provider.until_a_call_hangs().await?;
    let lease = second.lock(LOCK).acquire().await?;
    let lease_taken = Instant::now();
    let first = hangs.await??;
    let beside = first.ended > lease_taken;
    let _ = lease.release().await;
    // The second one's call meets the first one's, which goes on at the provider.
    let calls = tokio::spawn(async move { call_in_time(&second, addr).await });
    provider.go_on();
    let answer = calls.await??.answer.unwrap_or_default();
    let charges = provider.charges();
    let saw = format!("{charges} charge, {}, the second was told: {answer}", told(beside));
    let failures = beyond(charges, 1) + u64::from(beside) + u64::from(answer != "charge 1");
    let how = "a key derived from the order, and a call that ends before the lease";
    Ok(Way::right(how, saw, failures))
}

fn told(beside: bool) -> &'static str {
    if beside {
        "one call went on beside the next holder"
    } else {
        "no call went on beside another"
    }
}
