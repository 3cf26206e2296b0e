//! How waiters hear of a hand-over: by notification, or by looking.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::{Backoff, Clock, Result};
use leasehold_net::BootClock;
use serde_json::Value;
use tokio::time::{sleep, timeout};
use tokio_postgres::{AsyncMessage, Client};

use crate::answer::pushed;
use crate::connect::{Connector, Messages, Opened, ended, next};
use crate::error::{DOING, Failed, failed};
use crate::hub::Hub;
use crate::line::{Line, Text};
use crate::schema::quote;

/// How long a notification may take that shows whether they come at all.
const PROOF_WITHIN: Duration = Duration::from_millis(500);
/// How often a connection that listens is looked at while claims wait.
const PING_EVERY: Duration = Duration::from_secs(5);

/// The channel of a process.
pub(crate) fn channel(home: i64) -> String {
    format!("leasehold_{:016x}", home.cast_unsigned())
}

/// Listens on this connection and sees whether a notification sent on another one arrives: poolers
/// that lend server connections for one transaction take LISTEN and pass nothing on.
pub(crate) async fn proven(opened: &mut Opened, other: &mut Opened, home: i64) -> bool {
    let channel = channel(home);
    let listening = format!("LISTEN {channel}");
    if exchange(&opened.client, &mut opened.messages, &listening).await.is_err() {
        return false;
    }
    let ping = format!("SELECT pg_notify('{channel}', '')");
    if exchange(&other.client, &mut other.messages, &ping).await.is_err() {
        return false;
    }
    let heard = timeout(PROOF_WITHIN, async {
        loop {
            match next(&mut opened.messages).await {
                Some(Ok(AsyncMessage::Notification(_))) => return true,
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return false,
            }
        }
    });
    let proven = heard.await.unwrap_or(false);
    if !proven {
        // Most likely the pooler lends the same server connection again.
        let _ = exchange(&opened.client, &mut opened.messages, "UNLISTEN *").await;
    }
    proven
}

async fn exchange(client: &Client, messages: &mut Messages, sql: &str) -> Result<()> {
    let mut sent = std::pin::pin!(timeout(PING_EVERY, client.batch_execute(sql)));
    loop {
        tokio::select! {
            biased;
            done = &mut sent => return match done {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(told(failed(error))),
                Err(_) => Err(ended()),
            },
            message = next(messages) => match message {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(told(failed(error))),
                None => return Err(ended()),
            },
        }
    }
}

fn told(failed: Failed) -> leasehold_core::Error {
    match failed {
        Failed::Connection(error) | Failed::Statement(error) => error,
    }
}

/// Listens for this process, from its first waiter on.
pub(crate) struct Listener {
    pub(crate) connector: Arc<Connector>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) home: i64,
    /// Whether words arrive now; while they do not, others look.
    pub(crate) hears: Arc<AtomicBool>,
}

impl Listener {
    pub(crate) async fn run(self) {
        let seed = self.home.cast_unsigned();
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1), seed);
        loop {
            self.hub.any_waiting().await;
            match self.connector.open_listener().await {
                Ok(opened) => {
                    let error = self.listen(opened, &mut backoff).await;
                    self.hears.store(false, Ordering::SeqCst);
                    self.hub.moved_all();
                    tracing::debug!(%error, "the connection that listens is down");
                }
                Err(error) => tracing::debug!(%error, "no connection to listen on"),
            }
            sleep(backoff.next_wait()).await;
        }
    }

    async fn listen(&self, mut opened: Opened, backoff: &mut Backoff) -> leasehold_core::Error {
        let listen = format!("LISTEN {}", channel(self.home));
        if let Err(error) = exchange(&opened.client, &mut opened.messages, &listen).await {
            return error;
        }
        self.hears.store(true, Ordering::SeqCst);
        backoff.reset();
        // What was said before.
        self.hub.moved_all();
        loop {
            match timeout(PING_EVERY, next(&mut opened.messages)).await {
                Ok(Some(Ok(AsyncMessage::Notification(word)))) => self.word(word.payload()),
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(error))) => return told(failed(error)),
                Ok(None) => return ended(),
                Err(_) if self.hub.has_waiting() => {
                    if let Err(error) = self.ping(&mut opened).await {
                        return error;
                    }
                }
                Err(_) => {}
            }
        }
    }

    /// Sees that the connection lives; words that come meanwhile are heard.
    async fn ping(&self, opened: &mut Opened) -> Result<()> {
        let mut sent = std::pin::pin!(timeout(PING_EVERY, opened.client.batch_execute("")));
        loop {
            tokio::select! {
                biased;
                message = next(&mut opened.messages) => match message {
                    Some(Ok(AsyncMessage::Notification(word))) => self.word(word.payload()),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(told(failed(error))),
                    None => return Err(ended()),
                },
                done = &mut sent => return match done {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(error)) => Err(told(failed(error))),
                    Err(_) => Err(ended()),
                },
            }
        }
    }

    fn word(&self, payload: &str) {
        let Ok(word) = serde_json::from_str::<Value>(payload) else { return };
        match pushed(&word) {
            Some(Ok(pushed)) => self.hub.granted(pushed),
            Some(Err(claim)) => self.hub.moved(claim),
            None => tracing::debug!("a word that cannot be read was passed over"),
        }
    }
}

/// Looks for grants of this process while words do not arrive: one query for all that wait.
pub(crate) struct Poller {
    pub(crate) line: Arc<Line>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) hears: Arc<AtomicBool>,
    pub(crate) schema: String,
}

impl Poller {
    pub(crate) async fn run(self) {
        let seed = BootClock.now().as_nanos();
        let mut backoff = Backoff::new(Duration::from_millis(8), Duration::from_millis(250), seed);
        let mut before = Vec::new();
        loop {
            self.hub.any_waiting().await;
            sleep(backoff.next_wait()).await;
            if self.hears.load(Ordering::SeqCst) {
                // Looked at again in case that ends.
                sleep(Duration::from_secs(1)).await;
                continue;
            }
            let mut waiting: Vec<_> = self.hub.waiting().into_iter().map(|(id, _)| id).collect();
            waiting.sort_unstable();
            if waiting != before {
                backoff.reset();
                before = waiting;
            }
            if self.look().await {
                backoff.reset();
            }
        }
    }

    /// Whether any of the waiting claims was granted.
    async fn look(&self) -> bool {
        let waiting = self.hub.waiting();
        let ids: Vec<String> = waiting.iter().map(|(id, _)| id.to_string()).collect();
        let mut names: Vec<String> = waiting.iter().map(|(_, n)| n.as_str().to_owned()).collect();
        names.sort_unstable();
        names.dedup();
        let sql =
            include_str!("sql/poll.sql").replace("public.", &format!("{}.", quote(&self.schema)));
        let rows = self.line.query(sql, vec![Text::Many(names), Text::Many(ids)]).await;
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                tracing::debug!(error = %error.while_doing(DOING), "no look at waiting claims");
                return false;
            }
        };
        let mut any = false;
        for row in rows {
            let id = row.try_get::<_, String>(0).ok();
            if let Some(id) = id.and_then(|id| id.parse().ok()) {
                self.hub.moved(id);
                any = true;
            }
        }
        any
    }
}
