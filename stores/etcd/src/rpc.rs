//! One call to the cluster: to one member at a time, with the token of the user, in bounded time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::uri::PathAndQuery;
use leasehold_core::Result;
use prost::Message;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::config::{EtcdConfig, PORT, bad};
use crate::error::{Cause, Failure};
use crate::proto::{AUTHENTICATE, AuthenticateRequest, AuthenticateResponse};

/// How long a call may take.
pub(crate) const CALL_WITHIN: Duration = Duration::from_secs(5);
/// How long a member may take to be connected.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Members refuse pings that come more often than every five seconds.
const PING_EVERY: Duration = Duration::from_secs(6);
const PING_WITHIN: Duration = Duration::from_secs(4);
/// The largest answer: a queue of ten thousand claims is smaller.
const ANSWER_MAX: usize = 32 * 1024 * 1024;

/// A connection to one member at a time, from one runtime. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Rpc {
    inner: Arc<Inner>,
}

struct Inner {
    targets: Arc<[Endpoint]>,
    auth: Arc<Auth>,
    handle: Handle,
    at: Mutex<At>,
}

/// Which member is asked now.
struct At {
    index: usize,
    channel: Option<Channel>,
    /// New with each channel, so that one failure does not pass over two members.
    number: u64,
}

/// Who we are to the cluster. Shared by all connections.
pub(crate) struct Auth {
    login: Option<AuthenticateRequest>,
    token: tokio::sync::Mutex<Token>,
}

#[derive(Clone)]
enum Token {
    /// To be asked for.
    Unknown,
    Known(MetadataValue<Ascii>),
    /// The cluster asks nobody who they are.
    NoAuth,
}

impl std::fmt::Debug for Rpc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rpc").finish_non_exhaustive()
    }
}

impl Auth {
    pub(crate) fn new(config: &EtcdConfig) -> Arc<Auth> {
        let login = config.user.as_ref().zip(config.password.as_ref());
        let login = login.map(|(user, password)| AuthenticateRequest {
            name: user.clone(),
            password: password.expose().to_owned(),
        });
        Arc::new(Auth { login, token: tokio::sync::Mutex::new(Token::Unknown) })
    }

    /// The token to show, asked for where there is none yet or `old` is no good any more.
    async fn token(
        &self,
        channel: &Channel,
        old: Option<&MetadataValue<Ascii>>,
    ) -> Result<Option<MetadataValue<Ascii>>, Status> {
        let Some(login) = &self.login else { return Ok(None) };
        let mut token = self.token.lock().await;
        match &*token {
            Token::NoAuth => return Ok(None),
            Token::Known(known) if Some(known) != old => return Ok(Some(known.clone())),
            _ => {}
        }
        let asked: Result<AuthenticateResponse, Status> =
            once(channel.clone(), AUTHENTICATE, login.clone(), None).await;
        match asked {
            Ok(answer) => {
                let known: MetadataValue<Ascii> = answer
                    .token
                    .parse()
                    .map_err(|_| Status::internal("a token that is no header value"))?;
                *token = Token::Known(known.clone());
                Ok(Some(known))
            }
            Err(status) if Failure::of(&status).cause == Cause::NoAuth => {
                *token = Token::NoAuth;
                Ok(None)
            }
            Err(status) => Err(status),
        }
    }
}

/// The members as endpoints.
pub(crate) fn targets(config: &EtcdConfig) -> Result<Arc<[Endpoint]>> {
    let tls = match &config.tls {
        Some(tls) => {
            let pems = tls.pems()?;
            let mut client = ClientTlsConfig::new();
            client = match pems.ca {
                Some(ca) => client.ca_certificate(Certificate::from_pem(ca)),
                None => client.with_native_roots(),
            };
            if let Some((cert, key)) = pems.identity {
                client = client.identity(Identity::from_pem(cert, key));
            }
            Some(match &tls.server_name {
                Some(name) => client.domain_name(name),
                None => client,
            })
        }
        None => None,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let one = |host: &leasehold_net::HostPort| -> Result<Endpoint> {
        let (name, port) = host.or_port(PORT);
        let name = if name.contains(':') { format!("[{name}]") } else { name };
        let unfit = |e: tonic::transport::Error| bad(format!("the member {host} is unfit: {e}"));
        let endpoint = Endpoint::from_shared(format!("{scheme}://{name}:{port}"))
            .map_err(unfit)?
            .connect_timeout(CONNECT_WITHIN)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_WITHIN)
            .keep_alive_while_idle(true);
        match &tls {
            Some(tls) => endpoint.tls_config(tls.clone()).map_err(unfit),
            None => Ok(endpoint),
        }
    };
    config.hosts.iter().map(one).collect()
}

impl Rpc {
    /// Connects when it is first used, in this runtime.
    pub(crate) fn new(targets: Arc<[Endpoint]>, auth: Arc<Auth>, handle: Handle) -> Rpc {
        let at = Mutex::new(At { index: 0, channel: None, number: 0 });
        Rpc { inner: Arc::new(Inner { targets, auth, handle, at }) }
    }

    /// The same members, asked over a connection of its own from another runtime.
    pub(crate) fn elsewhere(&self, handle: Handle) -> Rpc {
        let (targets, auth) = (Arc::clone(&self.inner.targets), Arc::clone(&self.inner.auth));
        Rpc::new(targets, auth, handle)
    }

    fn channel(&self) -> (Channel, u64) {
        let mut at = self.inner.at.lock().unwrap_or_else(PoisonError::into_inner);
        let number = at.number;
        if let Some(channel) = &at.channel {
            return (channel.clone(), number);
        }
        let _in = self.inner.handle.enter();
        let target = &self.inner.targets[at.index % self.inner.targets.len()];
        let channel = target.connect_lazy();
        at.channel = Some(channel.clone());
        (channel, number)
    }

    /// The next member is asked from now on, unless somebody has passed on already.
    pub(crate) fn pass_on(&self, number: u64) {
        let mut at = self.inner.at.lock().unwrap_or_else(PoisonError::into_inner);
        if at.number == number {
            at.index = (at.index + 1) % self.inner.targets.len();
            at.channel = None;
            at.number += 1;
        }
    }

    /// One question, one answer.
    pub(crate) async fn call<Q, A>(&self, path: &'static str, question: Q) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.call_within(CALL_WITHIN, path, question).await
    }

    /// As [`Rpc::call`], within this time.
    pub(crate) async fn call_within<Q, A>(
        &self,
        within: Duration,
        path: &'static str,
        question: Q,
    ) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let deadline = Instant::now() + within;
        let mut unsent = 0;
        let mut old = None;
        loop {
            let (channel, number) = self.channel();
            let asked = async {
                let token = self.inner.auth.token(&channel, old.as_ref()).await;
                let token = token.map_err(|status| (status, None))?;
                once(channel.clone(), path, question.clone(), token.clone())
                    .await
                    .map_err(|status| (status, token))
            };
            let (status, token) = match timeout_at(deadline, asked).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failed)) => failed,
                Err(_) => {
                    self.pass_on(number);
                    return Err(Failure::late());
                }
            };
            let failure = Failure::of(&status);
            match failure.cause {
                Cause::NotSent => {
                    self.pass_on(number);
                    unsent += 1;
                    if unsent >= self.inner.targets.len() {
                        return Err(failure);
                    }
                }
                Cause::Token if old.is_none() && token.is_some() => old = token,
                Cause::Member => {
                    self.pass_on(number);
                    return Err(failure);
                }
                _ => return Err(failure),
            }
        }
    }

    /// Opens a stream both ways; what it sends first has to be in `outbound` already, since a
    /// member answers nothing before. The number is for [`Rpc::pass_on`].
    pub(crate) async fn stream<Q, A>(
        &self,
        path: &'static str,
        within: Duration,
        outbound: impl Stream<Item = Q> + Send + 'static,
    ) -> (u64, Result<Streaming<A>, Failure>)
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (channel, number) = self.channel();
        let opened = async {
            let token = self.inner.auth.token(&channel, None).await?;
            let mut client = client(channel).await?;
            let request = dressed(Request::new(outbound), token);
            let codec: ProstCodec<Q, A> = ProstCodec::default();
            client.streaming(request, PathAndQuery::from_static(path), codec).await
        };
        match timeout_at(Instant::now() + within, opened).await {
            Ok(Ok(response)) => (number, Ok(response.into_inner())),
            Ok(Err(status)) => (number, Err(Failure::of(&status))),
            Err(_) => (number, Err(Failure::late())),
        }
    }

    /// A stream said that the token is no good: the next one asks for another.
    pub(crate) async fn forget_token(&self) {
        let mut token = self.inner.auth.token.lock().await;
        if matches!(*token, Token::Known(_)) {
            *token = Token::Unknown;
        }
    }
}

async fn client(channel: Channel) -> Result<Grpc<Channel>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(ANSWER_MAX);
    client.ready().await.map_err(|e| Status::from_error(e.into()))?;
    Ok(client)
}

async fn once<Q, A>(
    channel: Channel,
    path: &'static str,
    question: Q,
    token: Option<MetadataValue<Ascii>>,
) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut client = client(channel).await?;
    let request = dressed(Request::new(question), token);
    let codec: ProstCodec<Q, A> = ProstCodec::default();
    Ok(client.unary(request, PathAndQuery::from_static(path), codec).await?.into_inner())
}

/// With our token, and only to a member that knows a leader.
fn dressed<T>(mut request: Request<T>, token: Option<MetadataValue<Ascii>>) -> Request<T> {
    let headers = request.metadata_mut();
    headers.insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        headers.insert("token", token);
    }
    request
}
