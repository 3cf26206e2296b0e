//! The one type of body on both sides of the layers.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body whose own type nobody needs to know.
pub struct Body(UnsyncBoxBody<Bytes, BodyError>);

/// What went wrong with a body.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BodyError(BoxError);

impl Body {
    /// Any body of bytes, or what is there whole: `Body::new(Full::new(bytes))`.
    pub fn new(body: impl AnyBody) -> Body {
        body.boxed_up()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}

/// What the layers ask of a body: chunks of bytes, which may move to another thread.
pub trait AnyBody:
    http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Sized + 'static
{
    /// The same, without its type.
    fn boxed_up(self) -> Body;
}

impl<B> AnyBody for B
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    fn boxed_up(self) -> Body {
        Body(self.map_err(|error| BodyError(error.into())).boxed_unsync())
    }
}

/// A body that is there whole.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_up()
}
