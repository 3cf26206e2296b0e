//! The layer: reads the header, enters, lets the handler run inside.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use leasehold_fence::{Access, Mark, Resource};
use tower_layer::Layer;
use tower_service::Service;

use super::header::{Shown, shown};
use super::marks::{FenceMarks, Passage, Refused};
use crate::body::{AnyBody, Body, BodyError};
use crate::problem::Problem;

/// What a request is about, and how it accesses it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guarded {
    /// What is guarded: the name of the lock under which clients come.
    pub resource: Resource,
    /// Under which kind of grant.
    pub access: Access,
}

impl Guarded {
    /// Accessed under an exclusive grant.
    pub fn exclusive(resource: Resource) -> Guarded {
        Guarded { resource, access: Access::Exclusive }
    }

    /// Accessed under a shared grant, beside other readers.
    pub fn shared(resource: Resource) -> Guarded {
        Guarded { resource, access: Access::Shared }
    }
}

/// Says what a request is about. A closure is one.
pub trait Guard: Send + Sync + 'static {
    /// What the request is about; `None` if it is not guarded.
    ///
    /// # Errors
    ///
    /// If the request names what cannot be a resource: it is refused with 400.
    fn guarded(&self, request: &Parts) -> Result<Option<Guarded>, leasehold_fence::Error>;
}

impl<F> Guard for F
where
    F: Fn(&Parts) -> Result<Option<Guarded>, leasehold_fence::Error> + Send + Sync + 'static,
{
    fn guarded(&self, request: &Parts) -> Result<Option<Guarded>, leasehold_fence::Error> {
        self(request)
    }
}

/// That a request has entered its fence: in the extensions of every request that did.
///
/// Behind [`SqlFence`](super::SqlFence) the handler enters again in its own transaction, before it
/// reads: [`Entered::enter`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Entered {
    /// What is guarded.
    pub resource: Resource,
    /// How it is accessed.
    pub access: Access,
    /// The token that was shown.
    pub mark: Mark,
}

/// A layer that refuses requests of holders whose lease has ended. See the [module](super).
#[derive(Clone)]
pub struct FenceLayer {
    shared: Arc<Shared>,
}

struct Shared {
    marks: Box<dyn FenceMarks>,
    guard: Box<dyn Guard>,
}

impl FenceLayer {
    /// Guards what `guard` says, by these marks.
    pub fn new(marks: impl FenceMarks, guard: impl Guard) -> FenceLayer {
        FenceLayer { shared: Arc::new(Shared { marks: Box::new(marks), guard: Box::new(guard) }) }
    }
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer").finish_non_exhaustive()
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = FenceService<S>;

    fn layer(&self, inner: S) -> FenceService<S> {
        FenceService { inner, shared: Arc::clone(&self.shared) }
    }
}

/// A service behind a [`FenceLayer`].
#[derive(Clone)]
pub struct FenceService<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S: fmt::Debug> fmt::Debug for FenceService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for FenceService<S>
where
    S: Service<Request<B>, Response = Response<R>, Future: Send> + Clone + Send + 'static,
    B: Send + 'static,
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
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let passage = match shared.enter(&mut parts).await {
                Ok(passage) => passage,
                Err(problem) => return Ok(problem.response()),
            };
            let answer = inner.call(Request::from_parts(parts, body)).await?;
            Ok(answer.map(|body| inside(body, passage)))
        })
    }
}

/// A body whose reader is inside until it has read it, or lets go of it.
struct Inside {
    body: Body,
    _passage: Passage,
}

impl http_body::Body for Inside {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn inside(body: impl AnyBody, passage: Passage) -> Body {
    Inside { body: body.boxed_up(), _passage: passage }.boxed_up()
}

impl Shared {
    async fn enter(&self, parts: &mut Parts) -> Result<Passage, Problem> {
        let guarded = self.guard.guarded(parts).map_err(|error| {
            let why = format!("the request names what cannot be guarded: {error}");
            Problem::new(StatusCode::BAD_REQUEST, "bad-resource", why)
        })?;
        let Some(Guarded { resource, access }) = guarded else { return Ok(Passage::open()) };
        let mark = match shown(&parts.headers) {
            Shown::Token(mark) => mark,
            Shown::Nothing => return Err(missing(&resource)),
            Shown::Malformed(why) => {
                let why = format!("the header Fencing-Token cannot be read: {why}");
                return Err(Problem::new(StatusCode::BAD_REQUEST, "fencing-token-malformed", why));
            }
        };
        let entered = self.marks.enter(&resource, access, mark).await;
        let passage = entered.map_err(|refused| refusal(&resource, refused))?;
        parts.extensions.insert(Entered { resource, access, mark });
        Ok(passage)
    }
}

fn missing(resource: &Resource) -> Problem {
    let why = format!(
        "{resource} is changed under a lease only: send its token in the header Fencing-Token, \
         as N or EPOCH:N"
    );
    Problem::new(StatusCode::PRECONDITION_REQUIRED, "fencing-token-missing", why)
}

pub(super) fn refusal(resource: &Resource, refused: Refused) -> Problem {
    match refused {
        Refused::Stale(stale) => {
            let why = format!("{resource}: {stale}; the lease has ended, stop");
            Problem::new(StatusCode::PRECONDITION_FAILED, "fencing-token-stale", why)
                .member("offered", stale.offered)
                .member("newest", stale.newest)
        }
        Refused::Busy => {
            let why = format!("{resource}: an older holder's request is not done yet");
            unavailable("fence-busy", why)
        }
        Refused::Failed(error) => {
            tracing::error!(target: "leasehold", %resource, %error, "a fence cannot tell");
            unavailable("fence-unavailable", format!("{resource}: its fence cannot be asked now"))
        }
    }
}

fn unavailable(code: &'static str, why: String) -> Problem {
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, why);
    problem.retry_after(Duration::from_secs(1))
}
