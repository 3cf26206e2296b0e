//! A MariaDB server.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;

use super::{Certificates, FakeTime, Place, Program, Server, find};

/// How a server is to be run. The default: with nothing but its port.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// More arguments, as `["--read-only=ON"]`.
    pub args: Vec<String>,
    /// It speaks TLS, and takes connections without it too unless `args` say otherwise.
    pub tls: bool,
    /// The clock that it shows.
    pub time: Option<Arc<FakeTime>>,
}

/// A MariaDB server, whose user `root` needs no password and may log in from everywhere.
#[derive(Debug)]
pub struct MariaDb {
    server: Server,
}

impl MariaDb {
    /// An empty one, on a free port.
    ///
    /// # Panics
    ///
    /// If it does not start: with its log.
    pub fn start() -> MariaDb {
        MariaDb::with(Options::default())
    }

    /// One with these options.
    ///
    /// # Panics
    ///
    /// If it does not start: with its log.
    pub fn with(options: Options) -> MariaDb {
        MariaDb::with_ports(move |_| options.clone())
    }

    /// As [`MariaDb::with`]; the options are told a port that nobody else uses, beside its own.
    ///
    /// # Panics
    ///
    /// As [`MariaDb::with`].
    pub fn with_ports(options: impl Fn(u16) -> Options + Send + Sync + 'static) -> MariaDb {
        let server = Server::start(
            "mariadb",
            2,
            move |place| options(place.port_at(1)).program(place),
            |place| ask(place, "mysql", "SELECT 1").map(drop),
        );
        MariaDb { server }
    }

    /// The first node of a Galera cluster.
    ///
    /// # Panics
    ///
    /// As [`MariaDb::with`]; or without its library, which comes with the server.
    pub fn galera() -> MariaDb {
        let provider =
            find(&["/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so"]);
        MariaDb::with_ports(move |port| {
            let options = format!("base_port={port};gmcast.listen_addr=tcp://127.0.0.1:{port}");
            let args = [
                "--wsrep-on=ON".to_owned(),
                "--binlog-format=ROW".to_owned(),
                format!("--wsrep-provider={}", provider.display()),
                "--wsrep-cluster-address=gcomm://".to_owned(),
                "--wsrep-node-address=127.0.0.1".to_owned(),
                format!("--wsrep-provider-options={options}"),
            ];
            Options { args: args.into(), ..Options::default() }
        })
    }

    /// The process: to be stopped, killed and restarted.
    pub fn server(&self) -> &Server {
        &self.server
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
    pub fn certificates(&self) -> Certificates {
        Certificates::at(self.server.place())
    }

    /// What these statements print, as `root`: a line a row, tabs between columns.
    ///
    /// # Panics
    ///
    /// If the server does not answer, or answers with an error.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        self.try_sql(database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// As [`MariaDb::sql`].
    ///
    /// # Errors
    ///
    /// If the server does not answer, or answers with an error.
    pub fn try_sql(&self, database: &str, sql: &str) -> Result<String, String> {
        ask(self.server.place(), database, sql)
    }
}

impl Options {
    fn program(&self, place: &Place) -> Program {
        let (data, init) = (place.data(), place.file("init.sql"));
        // Each its own: a server that starts clears away what looks like an old one's.
        let tmp = format!("--tmpdir={}", place.file("tmp").display());
        if !data.exists() {
            for folder in [&data, &place.file("tmp")] {
                std::fs::create_dir(folder)
                    .unwrap_or_else(|e| panic!("make {}: {e}", folder.display()));
            }
            place.write(
                "init.sql",
                "CREATE USER IF NOT EXISTS 'root'@'%';\n\
                 GRANT ALL PRIVILEGES ON *.* TO 'root'@'%' WITH GRANT OPTION;\n",
            );
            // As ourselves: the server's program gives the folder away.
            let install = Program::new(find(&["mariadb-install-db"]))
                .arg("--no-defaults")
                .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
                .args(["--skip-name-resolve", "--innodb-log-file-size=8M", &tmp])
                .arg(format!("--datadir={}", data.display()));
            place.run(&install);
        }
        let mut program = Program::new(find(&["mariadbd", "mysqld"]))
            .arg("--no-defaults")
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}", place.file("socket").display()))
            .arg(format!("--pid-file={}", place.file("pid").display()))
            .arg(format!("--init-file={}", init.display()))
            .arg(format!("--port={}", place.port()))
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--console"])
            .args(["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M"])
            .args(["--performance-schema=OFF", "--max-connections=300", &tmp])
            .unprivileged("mysql");
        if self.tls {
            let made = Certificates::at(place);
            let files = [
                ("--ssl-ca", made.ca()),
                ("--ssl-cert", made.server()),
                ("--ssl-key", Certificates::key(&made.server())),
            ];
            for (name, file) in files {
                program = program.arg(format!("{name}={}", file.display()));
            }
        }
        if let Some(time) = &self.time {
            program = program.fake_time(time);
        }
        program.args(&self.args)
    }
}

fn ask(place: &Place, database: &str, sql: &str) -> Result<String, String> {
    // Without a listener the client would take longer to say so.
    TcpStream::connect(place.addr()).map_err(|e| e.to_string())?;
    let output = Command::new(find(&["mariadb", "mysql"]))
        .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root"])
        .args(["--batch", "--skip-column-names", "--skip-ssl"])
        .arg(format!("--port={}", place.port()))
        .arg(format!("--execute={sql}"))
        .arg(database)
        .output()
        .map_err(|e| format!("mariadb: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
