//! `GET_LOCK` of MySQL and MariaDB.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use leasehold_core::ResourceName;
use leasehold_sql::Class;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};

use super::keep::{self, Session};
use super::relay;
use super::wire::Wire;
use super::{ANSWER_WITHIN, Guard, TERM, check_term, clock, within};
use crate::lock::key::user_lock;
use crate::lock::statement::body;
use crate::lock::wait::seconds;
use crate::lock::{Error, Result, Wait};

/// The longest single wait at the server, which does not see that a waiter is gone.
const SLICE: Duration = Duration::from_secs(1);
/// How often is tried in the last second, as MySQL waits for whole ones.
const PAUSE: Duration = Duration::from_millis(25);

/// Where `GET_LOCK` is called: each lock on a connection that it opens for itself.
///
/// A lock is the server's, whatever the database. It is not replicated, and gone with the server.
#[derive(Clone)]
pub struct Mysql {
    opts: Opts,
    term: Duration,
}

impl fmt::Debug for Mysql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Mysql");
        debug.field("host", &self.opts.ip_or_hostname()).field("port", &self.opts.tcp_port());
        debug.field("term", &self.term).finish_non_exhaustive()
    }
}

impl Mysql {
    /// At this server: itself, and no proxy that answers from another connection before it.
    ///
    /// The driver is led to the server through a port of this process on the loopback address, so
    /// that the socket can be watched. It is open for as long as it takes to connect; TLS, where
    /// asked for, goes through it to the server.
    pub fn new(opts: impl Into<Opts>) -> Mysql {
        Mysql { opts: opts.into(), term: TERM }
    }

    /// For how long the server keeps a session of which it hears nothing.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] unless it is 2 s to an hour.
    pub fn term(mut self, term: Duration) -> Result<Mysql> {
        self.term = check_term(term)?;
        Ok(self)
    }

    /// Takes the lock, for its guard alone. The wait begins when the connection is there.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] for a name that is none; [`Error::Busy`] or [`Error::WaitOver`] if another
    /// has it; [`Error::Unreachable`] or [`Error::Permission`] if there is no connection;
    /// [`Error::Pooled`], [`Error::SeveralWriters`], [`Error::ReadOnly`] or [`Error::NotKept`] where
    /// the lock would exclude nobody; [`Error::ConnectionLost`].
    pub async fn lock(&self, name: &str, wait: Wait) -> Result<Guard> {
        let name = ResourceName::new(name)?;
        let (conn, wire) = within(ANSWER_WITHIN * 2, self.connect()).await?;
        let mut session = Held { conn, name: user_lock(&name) };
        within(ANSWER_WITHIN, session.look()).await?;
        session.take(&name, wait).await?;
        // Asked again, in a statement of its own: it must be there without the one that took it.
        let sent = clock::now();
        if !within(ANSWER_WITHIN, session.is_held()).await? {
            return Err(Error::NotKept);
        }
        Ok(keep::start(name.as_str().to_owned(), session, wire, self.term, sent))
    }

    async fn connect(&self) -> Result<(Conn, Wire)> {
        let far = relay::reach(&self.opts, self.term).await.map_err(unreached)?;
        let (listener, opts) = relay::doorway(&self.opts).await.map_err(unreached)?;
        let term = usize::try_from(seconds(self.term)).unwrap_or(usize::MAX);
        let opts = OptsBuilder::from_opts(opts).stmt_cache_size(0).wait_timeout(Some(term));
        let connecting = async { Conn::new(opts).await.map_err(not_connected) };
        let relaying = async {
            let (near, _) = listener.accept().await.map_err(unreached)?;
            near.set_nodelay(true).map_err(unreached)?;
            // Nobody else comes in.
            drop(listener);
            Ok(Wire::start(relay::run(near, far)))
        };
        let (mut conn, wire) = tokio::try_join!(connecting, relaying)?;
        // The driver's own option only says what the server's is.
        let set = format!("SET SESSION wait_timeout = {term}");
        conn.query_drop(set).await.map_err(failed)?;
        Ok((conn, wire))
    }
}

/// A session that has the lock, or waits for it.
struct Held {
    conn: Conn,
    /// As the server knows it.
    name: String,
}

impl Held {
    async fn look(&mut self) -> Result<()> {
        let greeted = self.conn.id();
        let answered: Option<u64> =
            self.conn.query_first("SELECT CONNECTION_ID()").await.map_err(failed)?;
        let answered = answered.and_then(|id| u32::try_from(id).ok()).unwrap_or_default();
        if answered != greeted {
            return Err(Error::Pooled { greeted, answered });
        }
        let look = body(include_str!("../sql/mysql/session_look.sql"));
        let found: Vec<(String, String)> = self.conn.query(look).await.map_err(failed)?;
        let found: HashMap<String, String> =
            found.into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect();
        check(&found)
    }

    async fn take(&mut self, name: &ResourceName, wait: Wait) -> Result<()> {
        let left = wait.begin();
        if self.get(0).await? {
            return Ok(());
        }
        while let Some(time) = left.time() {
            if time < SLICE {
                tokio::time::sleep(time.min(PAUSE)).await;
            }
            if self.get(time.min(SLICE).as_secs()).await? {
                return Ok(());
            }
        }
        Err(wait.refused(name.as_str(), false))
    }

    async fn get(&mut self, seconds: u64) -> Result<bool> {
        let file = include_str!("../sql/mysql/session_take.sql");
        let statement = self.statement(file).replace(":seconds", &seconds.to_string());
        let time = ANSWER_WITHIN + Duration::from_secs(seconds);
        match within(time, self.number(statement)).await? {
            Some(taken) => Ok(taken == 1),
            // Killed, or out of memory.
            None => Err(Error::NotKept),
        }
    }

    async fn is_held(&mut self) -> Result<bool> {
        let statement = self.statement(include_str!("../sql/mysql/session_held.sql"));
        Ok(self.number(statement).await? == Some(1))
    }

    async fn number(&mut self, statement: String) -> Result<Option<i64>> {
        let answer: Option<Option<i64>> = self.conn.query_first(statement).await.map_err(failed)?;
        Ok(answer.flatten())
    }

    /// As text: its name is hexadecimal digits, and nothing is prepared.
    fn statement(&self, file: &'static str) -> String {
        body(file).replace(":name", &self.name)
    }
}

impl Session for Held {
    async fn ask(&mut self) -> Result<bool> {
        self.is_held().await
    }

    async fn free(&mut self) -> Result<bool> {
        let statement = self.statement(include_str!("../sql/mysql/session_free.sql"));
        Ok(self.number(statement).await? == Some(1))
    }

    async fn close(self) {
        // The socket is closed either way.
        let _ = self.conn.disconnect().await;
    }
}

/// Whether the lock would exclude everybody.
fn check(found: &HashMap<String, String>) -> Result<()> {
    let is = |name: &str, value: &str| {
        found.get(name).is_some_and(|found| found.eq_ignore_ascii_case(value))
    };
    let group = found.get("group_replication_group_name").is_some_and(|name| !name.is_empty());
    if is("wsrep_on", "ON") || (group && is("group_replication_single_primary_mode", "OFF")) {
        return Err(Error::SeveralWriters);
    }
    if ["read_only", "super_read_only", "innodb_read_only"].iter().any(|name| is(name, "ON")) {
        return Err(Error::ReadOnly(None));
    }
    Ok(())
}

fn failed(error: mysql_async::Error) -> Error {
    let (class, code) = match &error {
        mysql_async::Error::Server(server) => {
            (Class::of_mysql(server.code), Some(server.code.to_string()))
        }
        mysql_async::Error::Io(_) => (Class::Connection, None),
        mysql_async::Error::Driver(mysql_async::DriverError::ConnectionClosed) => {
            (Class::Connection, None)
        }
        _ => (Class::Other, None),
    };
    leasehold_sql::Error::new(class, code, error).into()
}

/// Before there is a connection: refused by name, or not reached.
fn not_connected(error: mysql_async::Error) -> Error {
    match &error {
        mysql_async::Error::Server(server) if Class::of_mysql(server.code) == Class::Permission => {
            let code = Some(server.code.to_string());
            Error::Permission(leasehold_sql::Error::new(Class::Permission, code, error))
        }
        _ => Error::Unreachable { why: error.to_string(), source: Some(Box::new(error)) },
    }
}

fn unreached(error: std::io::Error) -> Error {
    Error::Unreachable { why: error.to_string(), source: Some(Box::new(error)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_of_several_writers_and_replicas_are_refused() {
        let look = |found: &[(&str, &str)]| {
            let found = found.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
            check(&found.collect())
        };
        assert!(look(&[("wsrep_on", "OFF"), ("read_only", "OFF")]).is_ok());
        assert!(matches!(look(&[("wsrep_on", "ON")]), Err(Error::SeveralWriters)));
        let group = ("group_replication_group_name", "7f0c");
        let single = "group_replication_single_primary_mode";
        assert!(matches!(look(&[group, (single, "OFF")]), Err(Error::SeveralWriters)));
        assert!(look(&[group, (single, "ON")]).is_ok());
        assert!(look(&[("group_replication_group_name", ""), (single, "OFF")]).is_ok());
        assert!(matches!(look(&[("super_read_only", "ON")]), Err(Error::ReadOnly(_))));
    }
}
