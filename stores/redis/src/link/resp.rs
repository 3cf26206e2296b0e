//! The protocol: what is said to a server, and what it answers (RESP2 and RESP3).

use std::fmt;

use leasehold_core::{Error, ErrorKind, Result};

/// The longest single answer that is read: nothing of ours comes near it.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// The most elements of one list.
const ITEMS_MAX: usize = 4 * 1024 * 1024;
/// How deep lists may nest.
const DEPTH_MAX: usize = 16;

/// An answer of a server.
#[derive(Clone, PartialEq)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// A line such as `OK`.
    Text(String),
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    Double(f64),
    Bool(bool),
    /// A refusal. As the whole answer of a call it becomes an [`Error`].
    Error(String),
    /// What the server says unasked.
    Push(Vec<Reply>),
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Nil => f.write_str("nil"),
            Reply::Int(n) => write!(f, "{n}"),
            Reply::Bulk(bytes) => write!(f, "{:?}", String::from_utf8_lossy(bytes)),
            Reply::Text(text) => write!(f, "+{text:?}"),
            Reply::Array(items) => f.debug_list().entries(items).finish(),
            Reply::Map(pairs) => {
                f.debug_map().entries(pairs.iter().map(|(key, value)| (key, value))).finish()
            }
            Reply::Double(n) => write!(f, "{n}"),
            Reply::Bool(b) => write!(f, "{b}"),
            Reply::Error(text) => write!(f, "-{text:?}"),
            Reply::Push(items) => f.debug_tuple("Push").field(items).finish(),
        }
    }
}

impl Reply {
    pub(crate) fn is_nil(&self) -> bool {
        matches!(self, Reply::Nil)
    }

    /// A whole number, also one told as a string.
    pub(crate) fn int(&self) -> Result<i64> {
        match self {
            Reply::Int(n) => Ok(*n),
            Reply::Bulk(_) | Reply::Text(_) => {
                self.str()?.parse().map_err(|_| self.wrong("a whole number"))
            }
            _ => Err(self.wrong("a whole number")),
        }
    }

    pub(crate) fn bytes(&self) -> Result<&[u8]> {
        match self {
            Reply::Bulk(bytes) => Ok(bytes),
            Reply::Text(text) => Ok(text.as_bytes()),
            _ => Err(self.wrong("a string")),
        }
    }

    pub(crate) fn str(&self) -> Result<&str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| self.wrong("text"))
    }

    pub(crate) fn array(&self) -> Result<&[Reply]> {
        match self {
            Reply::Array(items) | Reply::Push(items) => Ok(items),
            _ => Err(self.wrong("a list")),
        }
    }

    pub(crate) fn into_array(self) -> Result<Vec<Reply>> {
        match self {
            Reply::Array(items) | Reply::Push(items) => Ok(items),
            _ => Err(self.wrong("a list")),
        }
    }

    /// The value under a name in a map, or in a list of names and values as RESP2 has it.
    pub(crate) fn under(&self, name: &str) -> Option<&Reply> {
        let is_it = |key: &Reply| key.bytes().is_ok_and(|key| key == name.as_bytes());
        match self {
            Reply::Map(pairs) => pairs.iter().find_map(|(key, value)| is_it(key).then_some(value)),
            Reply::Array(items) => items.chunks_exact(2).find_map(|pair| match pair {
                [key, value] if is_it(key) => Some(value),
                _ => None,
            }),
            _ => None,
        }
    }

    fn wrong(&self, wanted: &str) -> Error {
        let mut shown = format!("{self:?}");
        if let Some((cut, _)) = shown.char_indices().nth(80) {
            shown.truncate(cut);
        }
        let detail = format!("the server answered {shown} where {wanted} was expected");
        Error::new(ErrorKind::Corrupt, "read the server's answer", detail)
    }
}

/// Bytes that are not the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// What stands at the beginning of what was read.
#[derive(Debug, PartialEq)]
pub(crate) enum Parsed {
    /// An answer, and how many bytes it took.
    Whole(Reply, usize),
    /// The beginning of an answer that takes at least this many bytes.
    Short(usize),
}

/// Reads one answer from the beginning of these bytes.
pub(crate) fn parse(input: &[u8]) -> Result<Parsed, Malformed> {
    let mut reader = Reader { input, at: 0 };
    match reader.reply(0) {
        Ok(reply) => Ok(Parsed::Whole(reply, reader.at)),
        Err(Stop::Short(needed)) => Ok(Parsed::Short(needed)),
        Err(Stop::Malformed(why)) => Err(Malformed(why)),
    }
}

enum Stop {
    Short(usize),
    Malformed(&'static str),
}

struct Reader<'i> {
    input: &'i [u8],
    at: usize,
}

impl<'i> Reader<'i> {
    fn reply(&mut self, depth: usize) -> Result<Reply, Stop> {
        if depth > DEPTH_MAX {
            return Err(Stop::Malformed("lists nest too deep"));
        }
        let line = self.line()?;
        let (Some((&kind, rest)), text) = (line.split_first(), line) else {
            return Err(Stop::Malformed("an empty line"));
        };
        match kind {
            b'+' => Ok(Reply::Text(lossy(rest))),
            b'-' => Ok(Reply::Error(lossy(rest))),
            b':' => Ok(Reply::Int(number(rest)?)),
            b'$' | b'=' => Ok(self.string(rest)?.map_or(Reply::Nil, |s| Reply::Bulk(s.to_vec()))),
            b'!' => Ok(Reply::Error(lossy(self.string(rest)?.unwrap_or_default()))),
            b'*' | b'~' if rest == b"-1" => Ok(Reply::Nil),
            b'*' | b'~' => Ok(Reply::Array(self.items(rest, depth)?)),
            b'>' => Ok(Reply::Push(self.items(rest, depth)?)),
            b'%' => Ok(Reply::Map(self.pairs(rest, depth)?)),
            b'|' => {
                self.pairs(rest, depth)?;
                self.reply(depth + 1)
            }
            b'_' => Ok(Reply::Nil),
            b'#' => Ok(Reply::Bool(rest == b"t")),
            b',' => match std::str::from_utf8(rest).map(str::parse) {
                Ok(Ok(n)) => Ok(Reply::Double(n)),
                _ => Err(Stop::Malformed("a fraction that is none")),
            },
            b'(' => Ok(Reply::Text(lossy(rest))),
            _ if text.starts_with(b"HTTP/") => Err(Stop::Malformed("it speaks HTTP")),
            _ => Err(Stop::Malformed("an unknown kind of answer")),
        }
    }

    fn line(&mut self) -> Result<&'i [u8], Stop> {
        let rest = self.input.get(self.at..).unwrap_or_default();
        let Some(end) = rest.iter().position(|&byte| byte == b'\r') else {
            if rest.len() > BYTES_MAX {
                return Err(Stop::Malformed("a line without an end"));
            }
            return Err(Stop::Short(self.input.len() + 1));
        };
        match rest.get(end + 1) {
            None => Err(Stop::Short(self.input.len() + 1)),
            Some(b'\n') => {
                self.at += end + 2;
                Ok(&rest[..end])
            }
            Some(_) => Err(Stop::Malformed("a line with a strange end")),
        }
    }

    fn string(&mut self, length: &[u8]) -> Result<Option<&'i [u8]>, Stop> {
        if length == b"-1" {
            return Ok(None);
        }
        let length = size(length, BYTES_MAX)?;
        let end = self.at + length;
        let Some(bytes) = self.input.get(self.at..end) else {
            return Err(Stop::Short(end + 2));
        };
        match self.input.get(end..end + 2) {
            None => Err(Stop::Short(end + 2)),
            Some(b"\r\n") => {
                self.at = end + 2;
                Ok(Some(bytes))
            }
            Some(_) => Err(Stop::Malformed("a string longer than it said")),
        }
    }

    fn items(&mut self, count: &[u8], depth: usize) -> Result<Vec<Reply>, Stop> {
        let count = size(count, ITEMS_MAX)?;
        let mut items = Vec::with_capacity(count.min(256));
        for _ in 0..count {
            items.push(self.reply(depth + 1)?);
        }
        Ok(items)
    }

    fn pairs(&mut self, count: &[u8], depth: usize) -> Result<Vec<(Reply, Reply)>, Stop> {
        let count = size(count, ITEMS_MAX)?;
        let mut pairs = Vec::with_capacity(count.min(256));
        for _ in 0..count {
            pairs.push((self.reply(depth + 1)?, self.reply(depth + 1)?));
        }
        Ok(pairs)
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn number(digits: &[u8]) -> Result<i64, Stop> {
    let text = std::str::from_utf8(digits).ok();
    text.and_then(|text| text.parse().ok()).ok_or(Stop::Malformed("a number that is none"))
}

fn size(digits: &[u8], most: usize) -> Result<usize, Stop> {
    let size = usize::try_from(number(digits)?).map_err(|_| Stop::Malformed("a size below 0"))?;
    if size > most { Err(Stop::Malformed("a size beyond all bounds")) } else { Ok(size) }
}

/// Begins a command of so many parts.
pub(crate) fn command(out: &mut Vec<u8>, parts: usize) {
    header(out, b'*', parts);
}

/// Writes the next part of a command.
pub(crate) fn part(out: &mut Vec<u8>, bytes: &[u8]) {
    header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Writes one command out of plain words.
pub(crate) fn words(out: &mut Vec<u8>, words: &[&[u8]]) {
    command(out, words.len());
    words.iter().for_each(|word| part(out, word));
}

fn header(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    decimal(out, number);
    out.extend_from_slice(b"\r\n");
}

/// Writes a number in decimal digits.
fn decimal(out: &mut Vec<u8>, mut number: usize) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789"[number % 10];
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(input: &[u8]) -> Reply {
        match parse(input).unwrap() {
            Parsed::Whole(reply, taken) => {
                assert_eq!(taken, input.len());
                reply
            }
            short @ Parsed::Short(_) => panic!("{short:?}"),
        }
    }

    #[test]
    fn every_kind_of_answer_is_read() {
        assert_eq!(whole(b"+OK\r\n"), Reply::Text("OK".into()));
        assert_eq!(whole(b"-NOAUTH no\r\n"), Reply::Error("NOAUTH no".into()));
        assert_eq!(whole(b"!5\r\nERR a\r\n"), Reply::Error("ERR a".into()));
        assert_eq!(whole(b":-7\r\n"), Reply::Int(-7));
        assert_eq!(whole(b"$3\r\na\r\n\r\n"), Reply::Bulk(b"a\r\n".to_vec()));
        assert_eq!(whole(b"$-1\r\n"), Reply::Nil);
        assert_eq!(whole(b"*-1\r\n"), Reply::Nil);
        assert_eq!(whole(b"_\r\n"), Reply::Nil);
        assert_eq!(whole(b"#t\r\n"), Reply::Bool(true));
        assert_eq!(whole(b",1.5\r\n"), Reply::Double(1.5));
        assert_eq!(whole(b"*2\r\n:1\r\n*0\r\n"), {
            Reply::Array(vec![Reply::Int(1), Reply::Array(vec![])])
        });
        assert_eq!(whole(b">1\r\n+x\r\n"), Reply::Push(vec![Reply::Text("x".into())]));
        let map = whole(b"%1\r\n+role\r\n$6\r\nmaster\r\n");
        assert_eq!(map.under("role"), Some(&Reply::Bulk(b"master".to_vec())));
        let list = whole(b"*2\r\n$4\r\nrole\r\n$6\r\nmaster\r\n");
        assert_eq!(list.under("role").unwrap().str().unwrap(), "master");
        assert_eq!(whole(b"|1\r\n+ttl\r\n:3\r\n:4\r\n"), Reply::Int(4));
    }

    #[test]
    fn what_is_not_the_protocol_is_told() {
        for input in [
            &b"HTTP/1.1 400\r\n"[..],
            b"hello\r\n",
            b"\r\n",
            b":x\r\n",
            b"$99999999999\r\n",
            b"*-2\r\n",
            b"+a\rb\n",
            b"$1\r\nab\r\n",
        ] {
            assert!(parse(input).is_err(), "{:?}", String::from_utf8_lossy(input));
        }
        let deep = b"*1\r\n".repeat(64);
        assert_eq!(parse(&deep), Err(Malformed("lists nest too deep")));
    }

    #[test]
    fn wrong_shapes_are_errors() {
        assert_eq!(Reply::Nil.int().unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(Reply::Bulk(b"12".to_vec()).int().unwrap(), 12);
        assert!(Reply::Bulk(vec![0xff]).str().is_err());
        assert!(Reply::Int(1).array().is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_whole_from_any_cut(
            parts in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..40), 1..6),
        ) {
            let mut out = Vec::new();
            words(&mut out, &parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
            for cut in 0..out.len() {
                match parse(&out[..cut]).unwrap() {
                    Parsed::Short(needed) => prop_assert!(needed > cut && needed <= out.len()),
                    whole @ Parsed::Whole(..) => prop_assert!(false, "{whole:?} from {cut} bytes"),
                }
            }
            let expected = Reply::Array(parts.into_iter().map(Reply::Bulk).collect());
            prop_assert_eq!(parse(&out).unwrap(), Parsed::Whole(expected, out.len()));
        }

        #[test]
        fn no_bytes_make_it_panic(input in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&input);
        }
    }
}
