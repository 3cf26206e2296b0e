//! A store that does harm as it is told, and waiting for what other threads do.

#![allow(dead_code, reason = "each test uses a part")]

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::core::{
    Admission, Claim, ClaimId, ClaimRef, Cursor, Hint, Record, Renewed, Result, Route, Written,
};
use leasehold::memory::Memory;
use leasehold::{
    Broken, Cleaned, Client, Error, ErrorKind, Left, Options, Page, Profile, Queue, ResourceName,
    Store, Token,
};

/// A verb that can be harmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Enter,
    Renew,
    Leave,
    Changed,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Passes,
    /// It fails without effect.
    Fails,
    /// It takes effect and fails.
    ReplyLost,
    /// It never answers and has no effect.
    Hangs,
    /// It takes effect and never answers.
    HangsAfter,
    /// It takes this many polls before its effect, and as many after.
    Slow(u32),
    /// It takes effect, and once the wait is over it answers.
    Late(Duration),
    /// It takes effect after the wait.
    Delayed(Duration),
}

type Script = Box<dyn FnMut(Verb) -> Fate + Send>;

/// The in-memory store behind a script.
pub(crate) struct Faulty {
    memory: Memory,
    profile: Profile,
    script: Mutex<Script>,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

/// A client over a harmed store.
pub(crate) fn faulty(
    memory: &Memory,
    polls_anywhere: bool,
    call_within: Duration,
    script: impl FnMut(Verb) -> Fate + Send + 'static,
) -> Client {
    let profile = Profile { polls_anywhere, ..memory.profile().clone() };
    let script: Mutex<Script> = Mutex::new(Box::new(script));
    let store = Faulty { memory: memory.clone(), profile, script };
    let mut options = Options::default();
    options.call_within = call_within;
    Client::new(Arc::new(store), options).unwrap()
}

fn lost() -> Error {
    Error::new(ErrorKind::Unreachable, "ask", "the reply was lost").maybe_applied()
}

impl Faulty {
    fn fate(&self, verb: Verb) -> Fate {
        self.script.lock().unwrap()(verb)
    }

    async fn before(fate: Fate) -> Result<()> {
        match fate {
            Fate::Slow(polls) => turns(polls).await,
            Fate::Delayed(span) => after(span).await,
            Fate::Hangs => std::future::pending().await,
            Fate::Fails => return Err(Error::new(ErrorKind::Unreachable, "ask", "told to fail")),
            _ => {}
        }
        Ok(())
    }

    async fn after(fate: Fate) -> Result<()> {
        match fate {
            Fate::Slow(polls) => turns(polls).await,
            Fate::HangsAfter => std::future::pending().await,
            Fate::ReplyLost => return Err(lost()),
            Fate::Late(span) => after(span).await,
            _ => {}
        }
        Ok(())
    }
}

/// Pends this often, and asks to be polled again at once.
async fn turns(mut polls: u32) {
    poll_fn(|cx| {
        if polls == 0 {
            return Poll::Ready(());
        }
        polls -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Done after this long, by a thread of its own.
pub(crate) async fn after(span: Duration) {
    let (send, receive) = std::sync::mpsc::channel::<std::task::Waker>();
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let told = Arc::clone(&done);
    std::thread::spawn(move || {
        std::thread::sleep(span);
        told.store(true, std::sync::atomic::Ordering::SeqCst);
        receive.try_iter().for_each(std::task::Waker::wake);
    });
    poll_fn(|cx| {
        let _ = send.send(cx.waker().clone());
        if done.load(std::sync::atomic::Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[async_trait]
impl Store for Faulty {
    fn profile(&self) -> &Profile {
        &self.profile
    }
    fn route(&self, r: &ResourceName) -> Route {
        self.memory.route(r)
    }
    async fn enter(&self, c: &Claim) -> Result<Admission> {
        let fate = self.fate(Verb::Enter);
        Faulty::before(fate).await?;
        let answer = self.memory.enter(c).await?;
        Faulty::after(fate).await?;
        Ok(answer)
    }
    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        let fate = self.fate(Verb::Renew);
        if let Err(error) = Faulty::before(fate).await {
            return vec![Renewed::Unknown(error); claims.len()];
        }
        let answer = self.memory.renew(claims).await;
        match Faulty::after(fate).await {
            Ok(()) => answer,
            Err(error) => vec![Renewed::Unknown(error); claims.len()],
        }
    }
    async fn leave(&self, c: &ClaimRef) -> Result<Left> {
        let fate = self.fate(Verb::Leave);
        Faulty::before(fate).await?;
        let answer = self.memory.leave(c).await?;
        Faulty::after(fate).await?;
        Ok(answer)
    }
    async fn changed(
        &self,
        r: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        let fate = self.fate(Verb::Changed);
        Faulty::before(fate).await?;
        let answer = self.memory.changed(r, claim, since, at_most).await?;
        Faulty::after(fate).await?;
        Ok(answer)
    }
    async fn inspect(&self, r: &ResourceName) -> Result<Queue> {
        self.memory.inspect(r).await
    }
    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        self.memory.list(page).await
    }
    async fn write(&self, c: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        self.memory.write(c, value, keep).await
    }
    async fn read(&self, r: &ResourceName) -> Result<Option<Record>> {
        self.memory.read(r).await
    }
    async fn break_(&self, r: &ResourceName, expect: Option<Token>, now: bool) -> Result<Broken> {
        self.memory.break_(r, expect, now).await
    }
    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        self.memory.clean(keep, page, dry).await
    }
    async fn disturbed(&self, _since: Cursor) -> Cursor {
        std::future::pending().await
    }

    async fn close(&self) {
        self.memory.close().await;
    }
}

/// Polls until a condition holds; other threads need a moment of real time.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("not within twenty seconds: {what}");
}

/// Runs on a thread of its own; fails if it is not done in time.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(work()));
    match receive.recv_timeout(limit) {
        Ok(value) => value,
        Err(_) => panic!("not done within {limit:?}: {what}"),
    }
}
