//! PgBouncer before a PostgreSQL server, in transaction mode.

use std::net::SocketAddr;
use std::net::TcpStream;

use super::{Program, Server, find};

/// A PgBouncer that lends server connections for one transaction.
#[derive(Debug)]
pub struct PgBouncer {
    server: Server,
}

impl PgBouncer {
    /// One that passes all databases of the server on this port on, with so many server
    /// connections.
    ///
    /// # Panics
    ///
    /// If it does not start: with its log.
    pub fn start(server_port: u16, pool: u32) -> PgBouncer {
        let server = Server::start(
            "pgbouncer",
            1,
            move |place| {
                let users = place.write("users.txt", "\"postgres\" \"\"\n\"app\" \"\"\n");
                let settings = format!(
                    "[databases]\n* = host=127.0.0.1 port={server_port}\n[pgbouncer]\n\
                     listen_addr = 127.0.0.1\nlisten_port = {}\nauth_type = trust\nauth_file = {}\n\
                     unix_socket_dir =\npool_mode = transaction\ndefault_pool_size = {pool}\n\
                     max_client_conn = 1000\nserver_login_retry = 0.1\nignore_startup_parameters =\n",
                    place.port(),
                    users.display(),
                );
                let file = place.write("pgbouncer.ini", &settings);
                Program::new(find(&["pgbouncer", "/usr/sbin/pgbouncer"]))
                    .arg(file)
                    .unprivileged("postgres")
            },
            |place| TcpStream::connect(place.addr()).map(drop).map_err(|e| e.to_string()),
        );
        PgBouncer { server }
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
}
