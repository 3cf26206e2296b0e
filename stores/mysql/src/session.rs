//! One connection: made, checked and set up; statements sent and answers read, within a time limit.

use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::HostPort;
use mysql_async::prelude::Queryable;
use mysql_async::{ClientIdentity, Conn, Opts, OptsBuilder, Row, SslOpts};

use crate::config::{MysqlConfig, PORT};
use crate::error::{Fail, Step, from_driver, is_fatal, made};
use crate::lit::Sql;
use crate::server::Server;

/// No answer within this time: the connection is given up. A lock is waited for a second at most.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);
/// No connection within this time: the next host is tried.
const REACH_WITHIN: Duration = Duration::from_secs(4);

/// What each session is told first, whatever the server's defaults are.
const SETUP: &str = "SET SESSION time_zone = '+00:00', autocommit = 1, completion_type = 0, \
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_safe_updates = 0, \
    sql_select_limit = 18446744073709551615, innodb_lock_wait_timeout = 1, \
    net_write_timeout = 20; \
    SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;";

/// One connection.
pub(crate) struct Session {
    conn: Option<Conn>,
    /// What was found when it was made.
    pub(crate) server: Server,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("server", &self.server).finish_non_exhaustive()
    }
}

/// The answer to one statement.
#[derive(Debug, Default)]
pub(crate) struct Set {
    pub(crate) rows: Vec<Row>,
    pub(crate) affected: u64,
    pub(crate) insert_id: u64,
}

/// How connections are made, worked out once.
#[derive(Clone)]
pub(crate) struct Dialer {
    base: OptsBuilder,
    hosts: Vec<HostPort>,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl Dialer {
    pub(crate) fn new(config: &MysqlConfig) -> Result<Dialer> {
        let base = OptsBuilder::default()
            .user(config.user.clone())
            .pass(config.password.as_ref().map(|p| p.expose().to_owned()))
            .db_name(Some(config.database.clone()))
            .prefer_socket(false)
            .client_found_rows(true)
            .stmt_cache_size(0)
            // Named here, they need not be asked for.
            .max_allowed_packet(Some(16 * 1024 * 1024))
            .wait_timeout(Some(28_800))
            .tcp_keepalive(Some(Duration::from_secs(10)))
            .ssl_opts(tls(config)?);
        Ok(Dialer { base, hosts: config.hosts.clone() })
    }

    /// A session at the first host that answers and can be written.
    pub(crate) async fn dial(&self) -> Result<Session> {
        let mut first = None;
        for host in &self.hosts {
            match self.dial_one(host).await {
                Ok(session) => return Ok(session),
                // Where a server is reached, what is wrong with it is worth more than silence.
                Err(error) if first.is_none() || error.kind() != ErrorKind::Unreachable => {
                    first = Some(error);
                }
                Err(_) => {}
            }
        }
        Err(first.unwrap_or_else(|| made(ErrorKind::Config, "no host is named")))
    }

    async fn dial_one(&self, host: &HostPort) -> Result<Session> {
        let (name, port) = host.or_port(PORT);
        let opts = Opts::from(self.base.clone().ip_or_hostname(name).tcp_port(port));
        let dialling = async {
            let conn = Conn::new(opts).await.map_err(|e| from_driver(e).into_error())?;
            let mut session = Session { conn: Some(conn), server: Server::default() };
            let mut setup = Sql::new();
            setup.text(SETUP).text(crate::server::LOOK);
            let sets = session.run(&setup).await.map_err(Fail::into_error)?;
            session.server = Server::read(sets)?;
            Ok(session)
        };
        match tokio::time::timeout(REACH_WITHIN, dialling).await {
            Ok(result) => result,
            Err(_) => {
                let detail = format!("{host} did not answer within {REACH_WITHIN:?}");
                Err(made(ErrorKind::Unreachable, detail))
            }
        }
    }
}

impl Session {
    /// Sends these statements in one packet; an answer each. Where one fails, those before it have
    /// been done, and those after it not. Where no answer comes, they may have been.
    pub(crate) async fn run(&mut self, sql: &Sql) -> Step<Vec<Set>> {
        match self.ask(sql).await {
            Err(Fail::Error(error)) if self.conn.is_none() => {
                Err(Fail::Error(error.maybe_applied()))
            }
            other => other,
        }
    }

    /// As [`Session::run`], of what changes nothing that stays.
    pub(crate) async fn ask(&mut self, sql: &Sql) -> Step<Vec<Set>> {
        let Some(conn) = self.conn.as_mut() else {
            return Err(Fail::Error(made(ErrorKind::Unreachable, "the connection is gone")));
        };
        let failed = match tokio::time::timeout(ANSWER_WITHIN, query(conn, sql.as_str())).await {
            Ok(Ok(sets)) => return Ok(sets),
            Ok(Err(error)) if !is_fatal(&error) => return Err(from_driver(error)),
            Ok(Err(error)) => from_driver(error).into_error(),
            Err(_) => made(ErrorKind::Unreachable, "the server did not answer in time"),
        };
        // Dropped, not said good-bye to: that might wait.
        self.conn = None;
        Err(Fail::Error(failed))
    }

    /// Ends what a failed step has begun; a session that cannot be asked to is given up.
    pub(crate) async fn roll_back(&mut self) {
        if self.ask(Sql::new().text("ROLLBACK")).await.is_err() {
            self.conn = None;
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.conn.is_none()
    }

    pub(crate) async fn close(mut self) {
        if let Some(conn) = self.conn.take() {
            // Whatever comes of it, it is closed.
            let _ = tokio::time::timeout(Duration::from_secs(1), conn.disconnect()).await;
        }
    }
}

async fn query(conn: &mut Conn, sql: &str) -> mysql_async::Result<Vec<Set>> {
    let mut result = conn.query_iter(sql).await?;
    let mut sets = Vec::new();
    while result.columns().is_some() {
        let (affected, insert_id) = (result.affected_rows(), result.last_insert_id().unwrap_or(0));
        let rows: Vec<Row> = result.collect().await?;
        sets.push(Set { rows, affected, insert_id });
    }
    // Where a later statement failed, the driver says so only now.
    result.drop_result().await?;
    Ok(sets)
}

fn tls(config: &MysqlConfig) -> Result<Option<SslOpts>> {
    let Some(tls) = &config.tls else { return Ok(None) };
    // The driver takes the process's provider; where there is none yet it is the one we came with.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let pems = tls.pems()?;
    let roots: Vec<Vec<u8>> = match pems.ca {
        Some(ca) => vec![ca],
        None => {
            let found = rustls_native_certs::load_native_certs();
            found.certs.iter().map(|cert| cert.to_vec()).collect()
        }
    };
    if roots.is_empty() {
        let error = Error::new(ErrorKind::Config, "set up TLS", "the system trusts no certificate");
        return Err(error.advise("install ca-certificates, or name the authority with `?ca=PATH`"));
    }
    let identity = pems.identity.map(|(cert, key)| ClientIdentity::new(cert.into(), key.into()));
    Ok(Some(
        SslOpts::default()
            .with_disable_built_in_roots(true)
            .with_root_certs(roots.into_iter().map(Into::into).collect())
            .with_client_identity(identity)
            .with_danger_tls_hostname_override(tls.server_name.clone()),
    ))
}
