//! Requests and their answers.

use super::jute::{Garbled, In, Out};

/// What the server remembers of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stat {
    /// The transaction that made the node.
    pub(crate) czxid: i64,
    /// When it was made, by the wall clock of the leader, in ms since 1970.
    pub(crate) ctime: i64,
    /// When its data was last set, likewise.
    pub(crate) mtime: i64,
    /// How often its data was set.
    pub(crate) version: i32,
    /// The session it ends with; 0 for none.
    pub(crate) owner: i64,
}

/// How a node is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Make {
    /// Stays until it is deleted.
    Persistent,
    /// Ends with its session.
    Ephemeral,
    /// Ends with its session; the server appends a number that rises within the parent.
    EphemeralSequential,
    /// The server removes it some time after its last child has gone.
    Container,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Create {
        path: String,
        data: Vec<u8>,
        make: Make,
    },
    /// A version of -1 stands for any.
    Delete {
        path: String,
        version: i32,
    },
    Exists {
        path: String,
        watch: bool,
    },
    Get {
        path: String,
        watch: bool,
    },
    Set {
        path: String,
        data: Vec<u8>,
        version: i32,
    },
    Children {
        path: String,
        watch: bool,
    },
    /// Lets the server catch up with the leader.
    Sync {
        path: String,
    },
    /// Only within `Multi`.
    Check {
        path: String,
        version: i32,
    },
    /// All or nothing.
    Multi(Vec<Op>),
    Close,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The path of what was made.
    Created(String),
    Stat(Stat),
    Data(Vec<u8>, Stat),
    Children(Vec<String>),
    Done,
    Multi(Vec<Reply>),
}

/// A refusal of the server, and at which part of a `Multi`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: i32,
    pub(crate) at: usize,
}

/// The server's codes that mean something here.
pub(crate) mod code {
    pub(crate) const NO_NODE: i32 = -101;
    pub(crate) const NO_AUTH: i32 = -102;
    pub(crate) const BAD_VERSION: i32 = -103;
    pub(crate) const NODE_EXISTS: i32 = -110;
    pub(crate) const NOT_EMPTY: i32 = -111;
    pub(crate) const SESSION_EXPIRED: i32 = -112;
    pub(crate) const INVALID_ACL: i32 = -114;
    pub(crate) const AUTH_FAILED: i32 = -115;
    pub(crate) const SESSION_MOVED: i32 = -118;
    pub(crate) const NOT_READ_ONLY: i32 = -119;
    pub(crate) const EPHEMERAL_ON_LOCAL_SESSION: i32 = -120;
    pub(crate) const SASL_REQUIRED: i32 = -124;
    pub(crate) const QUOTA_EXCEEDED: i32 = -125;
    pub(crate) const THROTTLED: i32 = -127;
    pub(crate) const UNIMPLEMENTED: i32 = -6;
    /// Of the parts of a `Multi` that another part's refusal undid.
    pub(crate) const RUNTIME_INCONSISTENCY: i32 = -2;
}

/// Who may do what with a node that is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acl {
    /// Everybody may do everything, as Curator's and `zkCli`'s nodes without credentials.
    #[default]
    Open,
    /// Only who shows the same credentials.
    Creator,
}

impl Acl {
    fn encode(self, out: &mut Out) {
        let (scheme, id) = match self {
            Acl::Open => ("world", "anyone"),
            Acl::Creator => ("auth", ""),
        };
        out.int(1).int(31).text(scheme).text(id);
    }
}

const CREATE: i32 = 1;
const ERROR: i32 = -1;
const CREATE_2: i32 = 15;
const CREATE_CONTAINER: i32 = 19;

impl Op {
    /// The number by which the server knows the kind of request.
    pub(crate) fn code(&self) -> i32 {
        match self {
            Op::Create { make: Make::Container, .. } => CREATE_CONTAINER,
            Op::Create { .. } => CREATE,
            Op::Delete { .. } => 2,
            Op::Exists { .. } => 3,
            Op::Get { .. } => 4,
            Op::Set { .. } => 5,
            Op::Children { .. } => 8,
            Op::Sync { .. } => 9,
            Op::Check { .. } => 13,
            Op::Multi(_) => 14,
            Op::Close => -11,
        }
    }

    /// Whether it may change something at the server.
    pub(crate) fn is_write(&self) -> bool {
        use Op::{Create, Delete, Multi, Set};
        matches!(self, Create { .. } | Delete { .. } | Set { .. } | Multi(_))
    }

    /// The path a watch is left on.
    pub(crate) fn path(&self) -> &str {
        match self {
            Op::Create { path, .. }
            | Op::Delete { path, .. }
            | Op::Exists { path, .. }
            | Op::Get { path, .. }
            | Op::Set { path, .. }
            | Op::Children { path, .. }
            | Op::Sync { path }
            | Op::Check { path, .. } => path,
            Op::Multi(_) | Op::Close => "",
        }
    }

    pub(crate) fn encode(&self, acl: Acl, out: &mut Out) {
        match self {
            Op::Create { path, data, make } => {
                out.text(path).bytes(data);
                acl.encode(out);
                out.int(match make {
                    Make::Persistent => 0,
                    Make::Ephemeral => 1,
                    Make::EphemeralSequential => 3,
                    Make::Container => 4,
                });
            }
            Op::Delete { path, version } | Op::Check { path, version } => {
                out.text(path).int(*version);
            }
            Op::Exists { path, watch } | Op::Get { path, watch } | Op::Children { path, watch } => {
                out.text(path).flag(*watch);
            }
            Op::Set { path, data, version } => {
                out.text(path).bytes(data).int(*version);
            }
            Op::Sync { path } => {
                out.text(path);
            }
            Op::Multi(ops) => {
                for op in ops {
                    out.int(op.code()).flag(false).int(-1);
                    op.encode(acl, out);
                }
                out.int(-1).flag(true).int(-1);
            }
            Op::Close => {}
        }
    }
}

/// Reads the answer to a request of this kind, which the server did not refuse as a whole.
pub(crate) fn decode(code: i32, frame: &mut In<'_>) -> Result<Result<Reply, Refusal>, Garbled> {
    Ok(Ok(match code {
        CREATE => Reply::Created(frame.text()?.to_owned()),
        CREATE_2 | CREATE_CONTAINER => {
            let path = frame.text()?.to_owned();
            stat(frame)?;
            Reply::Created(path)
        }
        2 | 13 | -11 => Reply::Done,
        9 => {
            frame.text()?;
            Reply::Done
        }
        3 | 5 => Reply::Stat(stat(frame)?),
        4 => {
            let data = frame.bytes()?.to_vec();
            Reply::Data(data, stat(frame)?)
        }
        8 => Reply::Children(frame.texts()?),
        14 => return multi(frame),
        _ => return Err(Garbled),
    }))
}

fn multi(frame: &mut In<'_>) -> Result<Result<Reply, Refusal>, Garbled> {
    let mut replies = Vec::new();
    let mut refusal: Option<Refusal> = None;
    loop {
        let (code, done, _) = (frame.int()?, frame.flag()?, frame.int()?);
        if done {
            break;
        }
        if code != ERROR {
            match decode(code, frame)? {
                Ok(reply) => replies.push(reply),
                Err(_) => return Err(Garbled),
            }
            continue;
        }
        let error = frame.int()?;
        let undone = error == 0 || error == code::RUNTIME_INCONSISTENCY;
        if refusal.is_none() && !undone {
            refusal = Some(Refusal { code: error, at: replies.len() });
        }
        replies.push(Reply::Done);
    }
    Ok(match refusal {
        Some(refusal) => Err(refusal),
        None => Ok(Reply::Multi(replies)),
    })
}

fn stat(frame: &mut In<'_>) -> Result<Stat, Garbled> {
    let (czxid, _mzxid) = (frame.long()?, frame.long()?);
    let (ctime, mtime) = (frame.long()?, frame.long()?);
    let (version, _cversion, _aversion) = (frame.int()?, frame.int()?, frame.int()?);
    let owner = frame.long()?;
    let (_data_length, _children, _pzxid) = (frame.int()?, frame.int()?, frame.long()?);
    Ok(Stat { czxid, ctime, mtime, version, owner })
}

/// What the server answers to the first frame of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Connected {
    pub(crate) timeout_ms: i32,
    /// 0 if the session that was asked for has ended.
    pub(crate) session: i64,
    pub(crate) password: Vec<u8>,
    pub(crate) read_only: bool,
}

impl Connected {
    pub(crate) fn decode(frame: &[u8]) -> Result<Connected, Garbled> {
        let mut frame = In(frame);
        let (_protocol, timeout_ms, session) = (frame.int()?, frame.int()?, frame.long()?);
        let password = frame.bytes()?.to_vec();
        // Servers before 3.4 do not say.
        let read_only = if frame.is_empty() { false } else { frame.flag()? };
        Ok(Connected { timeout_ms, session, password, read_only })
    }
}

/// The first frame of a connection.
pub(crate) fn hello(last_zxid: i64, timeout_ms: i32, session: i64, password: &[u8]) -> Vec<u8> {
    let mut out = Out::default();
    out.int(0).long(last_zxid).int(timeout_ms).long(session).bytes(password).flag(false);
    framed(out)
}

/// A frame with its length before it.
pub(crate) fn framed(out: Out) -> Vec<u8> {
    let mut frame = Out::default();
    frame.bytes(&out.0);
    frame.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_multi_names_the_part_that_was_refused() {
        let mut out = Out::default();
        for error in [0, code::NODE_EXISTS, code::RUNTIME_INCONSISTENCY] {
            out.int(ERROR).flag(false).int(error).int(error);
        }
        out.int(-1).flag(true).int(-1);
        let refusal = Refusal { code: code::NODE_EXISTS, at: 1 };
        assert_eq!(decode(14, &mut In(&out.0)), Ok(Err(refusal)));
    }

    #[test]
    fn an_answer_that_is_cut_is_garbled() {
        let mut out = Out::default();
        out.int(CREATE).flag(false).int(0).text("/a").int(-1).flag(true).int(-1);
        assert_eq!(
            decode(14, &mut In(&out.0)),
            Ok(Ok(Reply::Multi(vec![Reply::Created("/a".into())])))
        );
        for len in 0..out.0.len() {
            assert_eq!(decode(14, &mut In(&out.0[..len])), Err(Garbled), "cut at {len}");
        }
    }
}
