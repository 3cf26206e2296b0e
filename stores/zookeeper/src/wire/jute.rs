//! The encoding of ZooKeeper's protocol: big-endian integers, and what is prefixed by its length.

/// What was received cannot be what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Garbled;

/// Appends to a frame.
#[derive(Debug, Default)]
pub(crate) struct Out(pub(crate) Vec<u8>);

impl Out {
    pub(crate) fn int(&mut self, value: i32) -> &mut Out {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(crate) fn long(&mut self, value: i64) -> &mut Out {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(crate) fn flag(&mut self, value: bool) -> &mut Out {
        self.0.push(u8::from(value));
        self
    }

    /// Everything that is sent is bounded far below 2^31.
    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Out {
        self.int(i32::try_from(value.len()).unwrap_or(i32::MAX));
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn text(&mut self, value: &str) -> &mut Out {
        self.bytes(value.as_bytes())
    }
}

/// Reads from a frame.
#[derive(Debug)]
pub(crate) struct In<'f>(pub(crate) &'f [u8]);

impl<'f> In<'f> {
    fn take(&mut self, len: usize) -> Result<&'f [u8], Garbled> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(Garbled)?;
        self.0 = tail;
        Ok(head)
    }

    pub(crate) fn int(&mut self) -> Result<i32, Garbled> {
        let bytes = self.take(4)?.try_into().map_err(|_| Garbled)?;
        Ok(i32::from_be_bytes(bytes))
    }

    pub(crate) fn long(&mut self) -> Result<i64, Garbled> {
        let bytes = self.take(8)?.try_into().map_err(|_| Garbled)?;
        Ok(i64::from_be_bytes(bytes))
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Garbled> {
        Ok(self.take(1)? != [0])
    }

    /// A length of -1 stands for nothing, which nobody here tells from empty.
    pub(crate) fn bytes(&mut self) -> Result<&'f [u8], Garbled> {
        match self.int()? {
            -1 => Ok(&[]),
            len => self.take(usize::try_from(len).map_err(|_| Garbled)?),
        }
    }

    pub(crate) fn text(&mut self) -> Result<&'f str, Garbled> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Garbled)
    }

    pub(crate) fn texts(&mut self) -> Result<Vec<String>, Garbled> {
        let count = usize::try_from(self.int()?.max(0)).map_err(|_| Garbled)?;
        // Each takes four bytes at least: a count cannot make us reserve more than came.
        let mut texts = Vec::with_capacity(count.min(self.0.len() / 4));
        for _ in 0..count {
            texts.push(self.text()?.to_owned());
        }
        Ok(texts)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_lies_about_lengths_are_not_believed() {
        let mut out = Out::default();
        out.int(-2).long(i64::MIN).flag(true).text("é").bytes(b"").int(2).text("a").text("b");
        let mut frame = In(&out.0);
        assert_eq!(frame.int(), Ok(-2));
        assert_eq!(frame.long(), Ok(i64::MIN));
        assert_eq!(frame.flag(), Ok(true));
        assert_eq!(frame.text(), Ok("é"));
        assert_eq!(frame.bytes(), Ok(&b""[..]));
        assert_eq!(frame.texts(), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert!(frame.is_empty());
        let mut lie = Out::default();
        lie.int(i32::MAX);
        assert_eq!(In(&lie.0).bytes(), Err(Garbled));
        assert_eq!(In(&lie.0).texts(), Err(Garbled));
        assert_eq!(In(&[0, 0]).int(), Err(Garbled));
        let mut wrong = Out::default();
        wrong.bytes(b"\xff");
        assert_eq!(In(&wrong.0).text(), Err(Garbled));
    }
}
