//! PostgreSQL servers.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use super::{Certificates, FakeTime, Place, Program, Server, find, wait_until};

/// The account that the server runs as when the tests run as root, which it refuses.
const ACCOUNT: &str = "postgres";

/// How a server is to be run. The default: the system's, with durable commits.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// More settings, as `["synchronous_commit=off"]`.
    pub settings: Vec<String>,
    /// Lines of `pg_hba.conf` that go before the one that lets everybody in from this machine.
    pub hba: Vec<String>,
    /// The port of the primary of which it is a streaming standby, and the name by which it is
    /// known there.
    pub standby_of: Option<(u16, String)>,
    /// It speaks TLS, too.
    pub tls: bool,
    /// The clock that it shows.
    pub time: Option<Arc<FakeTime>>,
}

/// A PostgreSQL server, with a superuser `postgres` that needs no password.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
    options: Options,
}

impl Postgres {
    /// The system's, empty, on a free port.
    ///
    /// # Panics
    ///
    /// If it does not start: with its log.
    pub fn start() -> Postgres {
        Postgres::with(Options::default())
    }

    /// One with these options.
    ///
    /// # Panics
    ///
    /// If it does not start: with its log.
    pub fn with(options: Options) -> Postgres {
        let make = options.clone();
        let is_standby = options.standby_of.is_some();
        let server = Server::start(
            "postgres",
            1,
            move |place| make.program(place),
            move |place| match ask(place.port(), "postgres", "SELECT pg_is_in_recovery()") {
                Ok(answer) if answer == "f" || is_standby => Ok(()),
                Ok(_) => Err("it still recovers".to_owned()),
                Err(error) => Err(error),
            },
        );
        Postgres { server, options }
    }

    /// The process: to be stopped, killed and restarted.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Ends it, cutting all its connections, and starts it again. ([`Server::restart`] waits for
    /// its clients to go by themselves.)
    ///
    /// # Panics
    ///
    /// If it does not end, or does not start: with its log.
    pub fn restart(&self) {
        self.server.signal(Signal::INT);
        wait_until("the server ends", Duration::from_secs(60), || {
            if self.server.is_running() { Err("it runs".to_owned()) } else { Ok(()) }
        });
        self.server.start_again();
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// The certificates of a server with TLS.
    ///
    /// # Panics
    ///
    /// If it has none.
    pub fn certificates(&self) -> Certificates {
        assert!(self.options.tls, "it does not speak TLS");
        Certificates::at(self.server.place())
    }

    /// What `psql` prints for statements in the database `postgres`: the values alone.
    ///
    /// # Panics
    ///
    /// If the server does not answer, or answers with an error.
    pub fn sql(&self, statements: &str) -> String {
        self.sql_in("postgres", statements)
    }

    /// As [`Postgres::sql`], in another database.
    ///
    /// # Panics
    ///
    /// As [`Postgres::sql`].
    pub fn sql_in(&self, database: &str, statements: &str) -> String {
        let answer = ask(self.port(), database, statements);
        answer.unwrap_or_else(|error| panic!("{statements}: {error}"))
    }

    /// Makes a database.
    ///
    /// # Panics
    ///
    /// As [`Postgres::sql`].
    pub fn create_database(&self, name: &str) {
        self.sql(&format!("CREATE DATABASE {name}"));
    }

    /// Lets this standby take over, and waits until it has.
    ///
    /// # Panics
    ///
    /// If it does not within a minute.
    pub fn promote(&self) {
        assert_eq!(self.sql("SELECT pg_promote(true, 60)"), "t", "it was not promoted");
    }
}

impl Options {
    fn program(&self, place: &Place) -> Program {
        let data = place.data();
        if !data.exists() {
            match &self.standby_of {
                None => init(place),
                Some((primary, name)) => follow(place, *primary, name),
            }
        }
        self.configure(place);
        let mut program =
            Program::new(binary("postgres")).arg("-D").arg(data).unprivileged(ACCOUNT);
        if let Some(time) = &self.time {
            program = program.fake_time(time);
        }
        program
    }

    fn configure(&self, place: &Place) {
        let data = place.data();
        let mut hba: String = self.hba.iter().map(|line| format!("{line}\n")).collect();
        hba.push_str("local all all trust\nhost all all 127.0.0.1/32 trust\n");
        hba.push_str("host replication all 127.0.0.1/32 trust\n");
        write(&data.join("pg_hba.conf"), &hba);
        let mut settings = format!(
            "port = {}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\n\
             shared_buffers = '32MB'\nmax_connections = 200\nmax_wal_senders = 5\n\
             log_line_prefix = '%m [%p] '\n",
            place.port(),
            data.display(),
        );
        if self.tls {
            let made = Certificates::at(place);
            // The server takes its key only from a file of its own.
            let (cert, key) = (data.join("server.crt"), data.join("server.key"));
            copy(&made.server(), &cert);
            copy(&Certificates::key(&made.server()), &key);
            settings.push_str(&format!(
                "ssl = on\nssl_cert_file = '{}'\nssl_key_file = '{}'\n",
                cert.display(),
                key.display()
            ));
        }
        for setting in &self.settings {
            settings.push_str(setting);
            settings.push('\n');
        }
        write(&data.join("leasehold.conf"), &settings);
        let conf = data.join("postgresql.conf");
        let whole = fs::read_to_string(&conf).unwrap_or_default();
        if !whole.contains("leasehold.conf") {
            write(&conf, &format!("{whole}\ninclude 'leasehold.conf'\n"));
        }
    }
}

fn init(place: &Place) {
    let program = Program::new(binary("initdb"))
        .arg("-D")
        .arg(place.data())
        .args(["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"])
        .unprivileged(ACCOUNT);
    place.run(&program);
}

/// A copy of the primary that follows it.
fn follow(place: &Place, primary: u16, name: &str) {
    let at = format!("host=127.0.0.1 port={primary} user=postgres application_name={name}");
    let program = Program::new(binary("pg_basebackup"))
        .arg("-D")
        .arg(place.data())
        .args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", &at])
        .unprivileged(ACCOUNT);
    place.run(&program);
}

fn write(path: &std::path::Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::copy(from, to).unwrap_or_else(|e| panic!("copy {}: {e}", from.display()));
    let mode = fs::Permissions::from_mode(0o600);
    fs::set_permissions(to, mode).unwrap_or_else(|e| panic!("{}: {e}", to.display()));
}

/// A program of PostgreSQL, of the newest version that is installed.
fn binary(name: &str) -> PathBuf {
    let folder = fs::read_dir("/usr/lib/postgresql");
    let versions = folder.into_iter().flatten().filter_map(Result::ok).map(|e| e.path());
    let newest = versions
        .filter(|path| path.join("bin").join(name).exists())
        .max_by_key(|path| version(path).unwrap_or(0));
    match newest {
        Some(path) => path.join("bin").join(name),
        None => find(&[name]),
    }
}

fn version(path: &std::path::Path) -> Option<u32> {
    path.file_name()?.to_str()?.parse().ok()
}

fn ask(port: u16, database: &str, statements: &str) -> Result<String, String> {
    // Without a listener the client would take longer to say so.
    TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port)).map_err(|e| e.to_string())?;
    let output = Command::new(binary("psql"))
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "postgres", "-d", database])
        .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statements])
        .env_remove("PGOPTIONS")
        .output()
        .map_err(|e| format!("psql: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    if output.status.success() {
        return Ok(text);
    }
    Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}
