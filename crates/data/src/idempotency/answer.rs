//! What a finished run leaves for those who ask again.

/// The answer that a run has stored, and that every later claim of its key is given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    /// A number of the caller's: an HTTP status.
    pub status: u16,
    /// Bytes of the caller's that go before the body: HTTP headers.
    pub head: Vec<u8>,
    /// The answer itself.
    pub body: Vec<u8>,
}

impl Answer {
    /// An answer of this status and body, without a head.
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Answer {
        Answer { status, head: Vec::new(), body: body.into() }
    }

    /// The same answer with a head.
    #[must_use]
    pub fn with_head(self, head: impl Into<Vec<u8>>) -> Answer {
        Answer { head: head.into(), ..self }
    }

    /// What counts for the limit: the bytes of head and body.
    pub fn size(&self) -> usize {
        self.head.len().saturating_add(self.body.len())
    }
}
