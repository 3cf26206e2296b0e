//! Session-scoped advisory locks of PostgreSQL.

use std::fmt;
use std::time::Duration;

use leasehold_sql::Class;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Row, Socket};

use super::keep::{self, Session};
use super::wire::Wire;
use super::{ANSWER_WITHIN, Guard, TERM, check_term, clock, process_id, within};
use crate::lock::statement::body;
use crate::lock::wait::millis;
use crate::lock::{Error, Key, Result, Wait};

/// The longest single wait at the server: shorter than its `deadlock_timeout`, after which it would
/// take a waiter on whose snapshot an index waits for a deadlock.
const SLICE: Duration = Duration::from_millis(400);

/// Where session locks of PostgreSQL are taken: each on a connection that it opens for itself.
///
/// They exclude, and are excluded by, the [transaction's locks](crate::lock::advisory) of the same
/// [`Key`] in the same database.
#[derive(Clone)]
pub struct Postgres<T> {
    config: Config,
    tls: T,
    term: Duration,
}

impl<T> fmt::Debug for Postgres<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Postgres");
        debug.field("config", &self.config).field("term", &self.term).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy)]
enum Mode {
    Exclusive,
    Shared,
}

impl<T> Postgres<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync,
    T::TlsConnect: Send,
    T::Stream: Send + 'static,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    /// At this server: itself, and no pooler before it.
    pub fn new(config: Config, tls: T) -> Postgres<T> {
        Postgres { config, tls, term: TERM }
    }

    /// For how long the server keeps a session of which it hears nothing.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] unless it is 2 s to an hour.
    pub fn term(mut self, term: Duration) -> Result<Postgres<T>> {
        self.term = check_term(term)?;
        Ok(self)
    }

    /// Takes the lock, for its guard alone. The wait begins when the connection is there.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] or [`Error::WaitOver`] if another has it; [`Error::Unreachable`] or
    /// [`Error::Permission`] if there is no connection; [`Error::Pooled`], [`Error::ReadOnly`] or
    /// [`Error::NotKept`] where the lock would exclude nobody; [`Error::ConnectionLost`].
    pub async fn lock(&self, key: &Key, wait: Wait) -> Result<Guard> {
        self.take(key, Mode::Exclusive, wait).await
    }

    /// Takes the lock together with all who share it.
    ///
    /// # Errors
    ///
    /// As [`Postgres::lock`].
    pub async fn lock_shared(&self, key: &Key, wait: Wait) -> Result<Guard> {
        self.take(key, Mode::Shared, wait).await
    }

    async fn take(&self, key: &Key, mode: Mode, wait: Wait) -> Result<Guard> {
        let (client, wire) = within(ANSWER_WITHIN * 2, self.connect(key)).await?;
        within(ANSWER_WITHIN, self.look_and_set(&client)).await?;
        let session = Held { client, key: key.number(), mode };
        session.take(wait, key).await?;
        // Asked again, in a statement of its own: it must be there without the one that took it.
        let sent = clock::now();
        if !within(ANSWER_WITHIN, session.is_held()).await? {
            return Err(Error::NotKept);
        }
        Ok(keep::start(key.shown().to_owned(), session, wire, self.term, sent))
    }

    async fn connect(&self, key: &Key) -> Result<(Client, Wire)> {
        let mut config = self.config.clone();
        if config.get_application_name().is_none() {
            config.application_name(format!("leasehold lock {}", key.shown()));
        }
        let second = Duration::from_secs(1);
        config.keepalives_idle(second.max(self.term / 3)).keepalives_interval(second);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(self.term);
        }
        let (client, connection) = config.connect(self.tls.clone()).await.map_err(not_connected)?;
        let wire = Wire::start(async {
            match connection.await {
                Ok(()) => "it was closed".to_owned(),
                Err(error) => shown(&error),
            }
        });
        Ok((client, wire))
    }

    /// Looks before it sets anything: a pooler would give the settings to others.
    async fn look_and_set(&self, client: &Client) -> Result<()> {
        let greeted = process_id::of(&client.cancel_token()).await.unwrap_or_default();
        let row = ask(client, include_str!("../sql/postgres/session_look.sql"), &[]).await?;
        let answered = u32::try_from(number(&row, 0)?).unwrap_or_default();
        if answered != greeted {
            return Err(Error::Pooled { greeted, answered });
        }
        if number(&row, 2)? != 0 {
            return Err(Error::ReadOnly(None));
        }
        let version = number(&row, 1)?;
        let mut settings = body(include_str!("../sql/postgres/session_settings.sql")).to_owned();
        for (since, more) in [
            (120_000, include_str!("../sql/postgres/session_settings_12.sql")),
            (140_000, include_str!("../sql/postgres/session_settings_14.sql")),
        ] {
            if version >= since {
                settings = format!("{settings};\n{}", body(more));
            }
        }
        let settings = settings
            .replace(":term", &millis(self.term).to_string())
            .replace(":seconds", &self.term.as_secs().to_string());
        client.batch_execute(&settings).await.map_err(failed)
    }
}

/// A session that has the lock, or waits for it.
struct Held {
    client: Client,
    key: i64,
    mode: Mode,
}

impl Held {
    async fn take(&self, wait: Wait, key: &Key) -> Result<()> {
        let left = wait.begin();
        let tries = self.mode.of([
            include_str!("../sql/postgres/session_try.sql"),
            include_str!("../sql/postgres/session_try_shared.sql"),
        ]);
        let row = within(ANSWER_WITHIN, self.ask(tries)).await?;
        if row.try_get(0).map_err(failed)? {
            return Ok(());
        }
        while let Some(time) = left.time() {
            let slice = time.min(SLICE);
            if within(slice + ANSWER_WITHIN, self.wait(slice)).await? {
                return Ok(());
            }
        }
        Err(wait.refused(key.shown(), false))
    }

    async fn wait(&self, slice: Duration) -> Result<bool> {
        let set = include_str!("../sql/postgres/session_slice.sql");
        ask(&self.client, set, &[(&millis(slice), Type::INT8)]).await?;
        let statement = self.mode.of([
            include_str!("../sql/postgres/session_wait.sql"),
            include_str!("../sql/postgres/session_wait_shared.sql"),
        ]);
        match self.ask(statement).await {
            Ok(_) => Ok(true),
            // The lock may be granted just as the wait for it ends: the server is asked, not the
            // error.
            Err(Error::Sql(error)) if error.class() == Class::Busy => self.is_held().await,
            Err(error) => Err(error),
        }
    }

    async fn is_held(&self) -> Result<bool> {
        let statement = include_str!("../sql/postgres/advisory_held.sql");
        let mode = self.mode.of(["ExclusiveLock", "ShareLock"]);
        let values: [(&(dyn ToSql + Sync), Type); 2] =
            [(&self.key, Type::INT8), (&mode, Type::TEXT)];
        let row = ask(&self.client, statement, &values).await?;
        Ok(number(&row, 0)? > 0)
    }

    async fn ask(&self, statement: &'static str) -> Result<Row> {
        ask(&self.client, statement, &[(&self.key, Type::INT8)]).await
    }
}

impl Session for Held {
    /// A session that answers has its locks, unless somebody unlocked them all on it.
    async fn ask(&mut self) -> Result<bool> {
        self.is_held().await
    }

    async fn free(&mut self) -> Result<bool> {
        let statement = self.mode.of([
            include_str!("../sql/postgres/session_unlock.sql"),
            include_str!("../sql/postgres/session_unlock_shared.sql"),
        ]);
        Held::ask(self, statement).await?.try_get(0).map_err(failed)
    }

    /// The connection says goodbye by itself, when its last client is gone.
    async fn close(self) {}
}

impl Mode {
    fn of(self, [exclusive, shared]: [&'static str; 2]) -> &'static str {
        match self {
            Mode::Exclusive => exclusive,
            Mode::Shared => shared,
        }
    }
}

/// The one row of a statement, in one round trip and without a named statement.
async fn ask(
    client: &Client,
    statement: &'static str,
    values: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Row> {
    let rows = client.query_typed(body(statement), values).await.map_err(failed)?;
    rows.into_iter().next().ok_or(Error::NotKept)
}

fn number(row: &Row, at: usize) -> Result<i64> {
    row.try_get(at).map_err(failed)
}

fn failed(error: tokio_postgres::Error) -> Error {
    let code = error.code().map(|code| code.code().to_owned());
    let class = match &code {
        Some(code) => Class::of_postgres(code),
        None if error.is_closed() => Class::Connection,
        None if std::error::Error::source(&error).is_some_and(|e| e.is::<std::io::Error>()) => {
            Class::Connection
        }
        None => Class::Other,
    };
    leasehold_sql::Error::new(class, code, error).into()
}

/// Before there is a connection: refused by name, or not reached.
fn not_connected(error: tokio_postgres::Error) -> Error {
    let code = error.code().map(|code| code.code().to_owned());
    if code.as_ref().is_some_and(|code| code.starts_with("28")) {
        return Error::Permission(leasehold_sql::Error::new(Class::Permission, code, error));
    }
    Error::Unreachable { why: shown(&error), source: Some(Box::new(error)) }
}

/// An error of the driver with what is behind it, which its own text leaves out.
fn shown(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
