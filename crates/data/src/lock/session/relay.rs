//! The way to a MySQL server, through this process: the driver reads an idle connection only when it
//! is used next, and would not see its end. What passes is not looked at, and may be TLS.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use mysql_async::{Opts, OptsBuilder};
use tokio::io::{AsyncRead, AsyncWrite, copy};
use tokio::net::{TcpListener, TcpStream, UnixStream};

/// A stream to the server.
pub(super) type Stream = Pin<Box<dyn Duplex>>;

/// Both ways of a stream.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// Connects to the server that these options name, and sees to it that the kernel notices a peer
/// that is gone without a word.
pub(super) async fn reach(opts: &Opts, term: Duration) -> io::Result<Stream> {
    if let Some(path) = opts.socket() {
        return Ok(Box::pin(UnixStream::connect(PathBuf::from(path)).await?));
    }
    let port = opts.tcp_port();
    let stream = match opts.resolved_ips() {
        Some(ips) => {
            let ips: Vec<_> = ips.iter().map(|ip: &IpAddr| (*ip, port).into()).collect();
            TcpStream::connect(ips.as_slice()).await?
        }
        None => TcpStream::connect((opts.ip_or_hostname(), port)).await?,
    };
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
    #[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
    {
        let second = Duration::from_secs(1);
        rustix::net::sockopt::set_tcp_keepidle(&stream, second.max(term / 3))?;
        rustix::net::sockopt::set_tcp_keepintvl(&stream, second)?;
    }
    #[cfg(target_os = "linux")]
    {
        let millis = u32::try_from(term.as_millis()).unwrap_or(u32::MAX);
        rustix::net::sockopt::set_tcp_user_timeout(&stream, millis)?;
    }
    Ok(Box::pin(stream))
}

/// Where the driver connects to in the server's place, and the options that lead it there. The
/// server's certificate is checked against the server's name still.
pub(super) async fn doorway(opts: &Opts) -> io::Result<(TcpListener, Opts)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let tls = opts.ssl_opts().cloned().map(|tls| match tls.tls_hostname_override() {
        Some(_) => tls,
        None => tls.with_danger_tls_hostname_override(Some(opts.ip_or_hostname().to_owned())),
    });
    let opts = OptsBuilder::from_opts(opts.clone())
        .ip_or_hostname(Ipv4Addr::LOCALHOST.to_string())
        .tcp_port(listener.local_addr()?.port())
        .resolved_ips(None::<Vec<IpAddr>>)
        .socket(None::<String>)
        .prefer_socket(false)
        .ssl_opts(tls)
        .tcp_keepalive(None);
    Ok((listener, opts.into()))
}

/// Moves what comes from either side to the other, until one of them ends.
pub(super) async fn run(near: TcpStream, far: Stream) -> String {
    let (mut near_in, mut near_out) = tokio::io::split(near);
    let (mut far_in, mut far_out) = tokio::io::split(far);
    tokio::select! {
        ended = copy(&mut far_in, &mut near_out) => match ended {
            Ok(_) => "the server closed it".to_owned(),
            Err(error) => error.to_string(),
        },
        ended = copy(&mut near_in, &mut far_out) => match ended {
            Ok(_) => "it was closed".to_owned(),
            Err(error) => error.to_string(),
        },
    }
}
