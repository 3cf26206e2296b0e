//! The layer: who asks for what, and whether it has been asked before.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use leasehold_data::idempotency::{Fingerprint, Key};
use tokio::sync::Semaphore;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument as _;

use super::answer::{Unread, read};
use super::header::{Shown, shown};
use super::run::{Asked, see_through};
use super::store::KeyStore;
use crate::body::{AnyBody, Body, whole};
use crate::problem::Problem;

/// Says who calls. A closure is one.
pub trait Caller: Send + Sync + 'static {
    /// The identity of the caller, as the service has found it out: a tenant, an account. Of 1 to 255
    /// bytes. `None` if there is none: the request is refused with 401.
    ///
    /// Not what the client says of itself unproven, and not its address.
    fn caller(&self, request: &Parts) -> Option<String>;
}

impl<F> Caller for F
where
    F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
{
    fn caller(&self, request: &Parts) -> Option<String> {
        self(request)
    }
}

/// A layer that runs a request once for each key. See the [module](super).
#[derive(Clone)]
pub struct IdempotencyLayer {
    pub(super) store: Arc<dyn KeyStore>,
    caller: Arc<dyn Caller>,
    methods: Vec<Method>,
    is_required: bool,
    is_kept: fn(StatusCode) -> bool,
    request_limit: usize,
    pub(super) answer_limit: usize,
    runs_limit: u32,
    pub(super) runs: Arc<Semaphore>,
}

impl IdempotencyLayer {
    /// Keeps keys and answers in this store, each under the caller it came from.
    pub fn new(store: impl KeyStore, caller: impl Caller) -> IdempotencyLayer {
        IdempotencyLayer {
            store: Arc::new(store),
            caller: Arc::new(caller),
            methods: vec![Method::POST, Method::PATCH],
            is_required: true,
            is_kept: |status| !status.is_server_error(),
            request_limit: 1024 * 1024,
            answer_limit: 1024 * 1024,
            runs_limit: 1024,
            runs: Arc::new(Semaphore::new(1024)),
        }
    }

    /// The methods that take a key, POST and PATCH unless said otherwise; others pass untouched.
    #[must_use]
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> IdempotencyLayer {
        self.methods = methods.into_iter().collect();
        self
    }

    /// A request without a key passes, and is run as often as it comes.
    #[must_use]
    pub fn optional(mut self) -> IdempotencyLayer {
        self.is_required = false;
        self
    }

    /// Which answers are stored, by their status: those below 500 unless said otherwise.
    ///
    /// What is not stored is run again by the next try: an answer of 500 and above from the last
    /// recovery point, another one as if the key had never been used, with whatever payload.
    #[must_use]
    pub fn keep_answers(mut self, is_kept: fn(StatusCode) -> bool) -> IdempotencyLayer {
        self.is_kept = is_kept;
        self
    }

    /// The most bytes that the body of a request may have: 1 MiB unless said otherwise.
    #[must_use]
    pub fn request_limit(mut self, bytes: usize) -> IdempotencyLayer {
        self.request_limit = bytes;
        self
    }

    /// The most bytes that the body of an answer may have: 1 MiB unless said otherwise. The store has
    /// a limit of its own, for headers and body.
    #[must_use]
    pub fn answer_limit(mut self, bytes: usize) -> IdempotencyLayer {
        self.answer_limit = bytes;
        self
    }

    /// How many runs there may be at once, 1024 unless said otherwise: those of clients that hung up
    /// count too.
    #[must_use]
    pub fn runs_at_most(mut self, runs: u32) -> IdempotencyLayer {
        self.runs_limit = runs;
        self.runs = Arc::new(Semaphore::new(usize::try_from(runs).unwrap_or(usize::MAX >> 3)));
        self
    }

    /// Done when no run is under way any more; new ones are refused with 503 from now on.
    ///
    /// For the end of a graceful shutdown, after the server has stopped listening: the runs of clients
    /// that hung up are nobody's but the layer's. Bound it by a time of your own.
    pub async fn drained(&self) {
        if let Ok(all) = self.runs.acquire_many(self.runs_limit).await {
            all.forget();
        }
    }

    pub(super) fn is_kept(&self, status: StatusCode) -> bool {
        (self.is_kept)(status)
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("methods", &self.methods)
            .field("is_required", &self.is_required)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> IdempotencyService<S> {
        IdempotencyService { inner, layer: Arc::new(self.clone()) }
    }
}

/// A service behind an [`IdempotencyLayer`].
#[derive(Clone)]
pub struct IdempotencyService<S> {
    inner: S,
    layer: Arc<IdempotencyLayer>,
}

impl<S: fmt::Debug> fmt::Debug for IdempotencyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (inner, layer) = (&self.inner, &self.layer);
        f.debug_struct("IdempotencyService").field("inner", inner).field("layer", layer).finish()
    }
}

impl<S, B, R> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<Body>, Response = Response<R>, Future: Send> + Clone + Send + 'static,
    S::Error: Send + 'static,
    B: AnyBody,
    R: AnyBody,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that was polled ready is called, and a fresh one takes its place.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let layer = Arc::clone(&self.layer);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let named = match layer.named(&parts) {
                Ok(Some(named)) => named,
                Ok(None) => {
                    let answer = inner.call(Request::from_parts(parts, body.boxed_up())).await?;
                    return Ok(answer.map(AnyBody::boxed_up));
                }
                Err(problem) => return Ok(problem.response()),
            };
            let body = match read(body, layer.request_limit).await {
                Ok(body) => body,
                Err(unread) => return Ok(layer.unread(&unread).response()),
            };
            let Ok(permit) = Arc::clone(&layer.runs).try_acquire_owned() else {
                return Ok(too_many().response());
            };
            let asked = Asked { key: named, payload: fingerprint(&parts, &body) };
            let request = Request::from_parts(parts, whole(body));
            // From here on it is seen through, whether the client stays or not.
            let seen_through = async move {
                let answer = see_through(&layer, asked, inner, request).await;
                drop(permit);
                answer
            };
            match tokio::spawn(seen_through.in_current_span()).await {
                Ok(answer) => answer,
                Err(error) => {
                    tracing::error!(target: "leasehold", %error, "a run was not seen through");
                    Ok(failed("the request was not seen through").response())
                }
            }
        })
    }
}

impl IdempotencyLayer {
    /// The caller's key; `None` if this request needs none.
    fn named(&self, parts: &Parts) -> Result<Option<Key>, Problem> {
        if !self.methods.contains(&parts.method) {
            return Ok(None);
        }
        let refuse = |status, code, why: &str| Err(Problem::new(status, code, why));
        let key = match shown(&parts.headers) {
            Shown::Key(key) => key,
            Shown::Nothing if !self.is_required => return Ok(None),
            Shown::Nothing => {
                let why = "this needs the header Idempotency-Key: a key of the client's own for \
                           each operation, sent again unchanged with each try of it";
                return refuse(StatusCode::BAD_REQUEST, "idempotency-key-missing", why);
            }
            Shown::Malformed(why) => {
                let why = format!("the header Idempotency-Key cannot be read: {why}");
                return refuse(StatusCode::BAD_REQUEST, "idempotency-key-malformed", &why);
            }
        };
        let caller = self.caller.caller(parts).filter(|caller| !caller.is_empty());
        let Some(caller) = caller else {
            let why = "a key is its caller's own, and who calls is not known";
            return refuse(StatusCode::UNAUTHORIZED, "caller-unknown", why);
        };
        Key::new(caller, key).map(Some).map_err(|error| {
            // The key was looked at before: it is the scope, which the service chose.
            tracing::error!(target: "leasehold", %error, "the caller's identity is unfit");
            failed("the caller's identity is unfit for a key")
        })
    }

    fn unread(&self, unread: &Unread) -> Problem {
        match unread {
            Unread::TooLarge => {
                let limit = self.request_limit;
                let why = format!("the body of a request with a key has at most {limit} bytes");
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "request-too-large", why)
            }
            Unread::Broken(error) => {
                let why = format!("the body was not received whole: {error}");
                Problem::new(StatusCode::BAD_REQUEST, "request-broken", why)
            }
        }
    }
}

/// Of method, path with query, and body.
fn fingerprint(parts: &Parts, body: &Bytes) -> Fingerprint {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    Fingerprint::of([parts.method.as_str().as_bytes(), path.as_bytes(), body])
}

fn too_many() -> Problem {
    let why = "as many requests as are allowed at once are under way";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-runs", why)
        .retry_after(Duration::from_secs(1))
}

pub(super) fn failed(why: &str) -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "run-failed", why)
}
