//! What front and keeper say to each other: one datagram a message, a tag and little-endian
//! fields. Pure. Both ends are one program, so an unreadable message is a bug, and is passed over.

use crate::plan::{Ended, How, Reason};
use crate::time::ClockKind;

/// The longest message.
pub(crate) const MESSAGE_MOST: usize = 128 * 1024;
/// The longest one to the front.
pub(crate) const REPORT_MOST: usize = 8 * 1024;
/// The most that a start may carry for the environment.
pub(crate) const ENV_MOST: usize = 96 * 1024;
/// The most processes that a report names.
const PIDS_MOST: usize = 1024;

/// From the front to the keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToKeeper {
    /// Start the command.
    Start {
        /// The clock of all deadlines, and the first of them.
        deadline: Option<(ClockKind, u64)>,
        /// When this was sent, on that clock.
        sent_at: u64,
        /// The group that the command joins; 0 for one of its own.
        group: i32,
        /// `NAME=value` entries that the environment gains.
        env_set: Vec<Vec<u8>>,
        /// Names that it loses.
        env_remove: Vec<Vec<u8>>,
    },
    /// A new deadline.
    Extend { at: u64, sent_at: u64 },
    /// End the tree.
    End(Reason),
    /// Pass a signal on to the command.
    Forward(i32),
    /// The front runs again after it was told that the command stopped.
    Resumed,
}

/// From the keeper to the front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToFront {
    Started(i32),
    Stopped(i32),
    Continued,
    DeadlinePassed,
    Ending(Reason),
    ParentEnded,
    Ended(Ended),
}

impl ToKeeper {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer(Vec::with_capacity(64));
        match self {
            Self::Start { deadline, sent_at, group, env_set, env_remove } => {
                w.u8(1);
                w.u8(match deadline {
                    None => 0,
                    Some((ClockKind::Monotonic, _)) => 1,
                    Some((ClockKind::Boot, _)) => 2,
                });
                w.u64(deadline.map_or(0, |(_, at)| at));
                w.u64(*sent_at);
                w.i32(*group);
                w.list(env_set);
                w.list(env_remove);
            }
            Self::Extend { at, sent_at } => {
                w.u8(2);
                w.u64(*at);
                w.u64(*sent_at);
            }
            Self::End(reason) => {
                w.u8(3);
                w.u8(reason_code(*reason));
            }
            Self::Forward(signal) => {
                w.u8(4);
                w.i32(*signal);
            }
            Self::Resumed => w.u8(5),
        }
        w.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader(bytes);
        let message = match r.u8()? {
            1 => {
                let clock = match r.u8()? {
                    0 => None,
                    1 => Some(ClockKind::Monotonic),
                    2 => Some(ClockKind::Boot),
                    _ => return None,
                };
                let at = r.u64()?;
                Self::Start {
                    deadline: clock.map(|clock| (clock, at)),
                    sent_at: r.u64()?,
                    group: r.i32()?,
                    env_set: r.list()?,
                    env_remove: r.list()?,
                }
            }
            2 => Self::Extend { at: r.u64()?, sent_at: r.u64()? },
            3 => Self::End(reason_of(r.u8()?)?),
            4 => Self::Forward(r.i32()?),
            5 => Self::Resumed,
            _ => return None,
        };
        r.0.is_empty().then_some(message)
    }
}

impl ToFront {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer(Vec::with_capacity(32));
        match self {
            Self::Started(pid) => {
                w.u8(1);
                w.i32(*pid);
            }
            Self::Stopped(signal) => {
                w.u8(2);
                w.i32(*signal);
            }
            Self::Continued => w.u8(3),
            Self::DeadlinePassed => w.u8(4),
            Self::Ending(reason) => {
                w.u8(5);
                w.u8(reason_code(*reason));
            }
            Self::ParentEnded => w.u8(6),
            Self::Ended(ended) => {
                w.u8(7);
                w.ended(ended);
            }
        }
        w.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader(bytes);
        let message = match r.u8()? {
            1 => Self::Started(r.i32()?),
            2 => Self::Stopped(r.i32()?),
            3 => Self::Continued,
            4 => Self::DeadlinePassed,
            5 => Self::Ending(reason_of(r.u8()?)?),
            6 => Self::ParentEnded,
            7 => Self::Ended(r.ended()?),
            _ => return None,
        };
        r.0.is_empty().then_some(message)
    }
}

const REASONS: [Reason; 6] = [
    Reason::Deadline,
    Reason::Lost,
    Reason::Asked,
    Reason::ParentEnded,
    Reason::FrontGone,
    Reason::KeeperGone,
];

const fn reason_code(reason: Reason) -> u8 {
    match reason {
        Reason::Deadline => 1,
        Reason::Lost => 2,
        Reason::Asked => 3,
        Reason::ParentEnded => 4,
        Reason::FrontGone => 5,
        Reason::KeeperGone => 6,
    }
}

fn reason_of(code: u8) -> Option<Reason> {
    REASONS.into_iter().find(|reason| reason_code(*reason) == code)
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, v: u8) {
        self.0.push(v);
    }

    fn i32(&mut self, v: i32) {
        self.0.extend(v.to_le_bytes());
    }

    fn u64(&mut self, v: u64) {
        self.0.extend(v.to_le_bytes());
    }

    fn len(&mut self, v: usize) {
        self.u64(v as u64);
    }

    fn list(&mut self, items: &[Vec<u8>]) {
        self.len(items.len());
        for item in items {
            self.len(item.len());
            self.0.extend(item);
        }
    }

    fn ended(&mut self, ended: &Ended) {
        let (kind, value) = match ended.how {
            How::Exited(code) => (1, code),
            How::Signaled(signal) => (2, signal),
            How::StartFailed(errno) => (3, errno),
            How::StillRunning => (4, 0),
            How::Unknown => (5, 0),
        };
        self.u8(kind);
        self.i32(value);
        self.u8(ended.forced.map_or(0, reason_code));
        self.u8(u8::from(ended.deadline_passed));
        self.u8(u8::from(ended.tree_gone));
        let pids = ended.unkillable.get(..PIDS_MOST).unwrap_or(&ended.unkillable);
        self.len(pids.len());
        for pid in pids {
            self.i32(*pid);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn i32(&mut self) -> Option<i32> {
        self.take(4)?.try_into().ok().map(i32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// A length that the rest of the message can hold.
    fn len(&mut self) -> Option<usize> {
        usize::try_from(self.u64()?).ok().filter(|n| *n <= self.0.len())
    }

    fn list(&mut self) -> Option<Vec<Vec<u8>>> {
        let count = self.len()?;
        let mut items = Vec::new();
        for _ in 0..count {
            let n = self.len()?;
            items.push(self.take(n)?.to_vec());
        }
        Some(items)
    }

    fn ended(&mut self) -> Option<Ended> {
        let (kind, value) = (self.u8()?, self.i32()?);
        let how = match kind {
            1 => How::Exited(value),
            2 => How::Signaled(value),
            3 => How::StartFailed(value),
            4 => How::StillRunning,
            5 => How::Unknown,
            _ => return None,
        };
        let forced = match self.u8()? {
            0 => None,
            code => Some(reason_of(code)?),
        };
        let (deadline_passed, tree_gone) = (self.u8()? != 0, self.u8()? != 0);
        let count = self.len()?;
        let mut unkillable = Vec::new();
        for _ in 0..count {
            unkillable.push(self.i32()?);
        }
        Some(Ended { how, forced, deadline_passed, tree_gone, unkillable })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_keeper() -> Vec<ToKeeper> {
        let start = |deadline, env_set: &[&[u8]]| ToKeeper::Start {
            deadline,
            sent_at: 7,
            group: 42,
            env_set: env_set.iter().map(|e| e.to_vec()).collect(),
            env_remove: vec![b"GONE".to_vec()],
        };
        let mut all = vec![
            start(None, &[]),
            start(Some((ClockKind::Boot, u64::MAX)), &[b"A=1", b"B=\xff\xfe", b""]),
            start(Some((ClockKind::Monotonic, 0)), &[b"A=1"]),
            ToKeeper::Extend { at: 1, sent_at: 2 },
            ToKeeper::Forward(15),
            ToKeeper::Resumed,
        ];
        all.extend(REASONS.map(ToKeeper::End));
        all
    }

    fn to_front() -> Vec<ToFront> {
        let ended = |how, forced, unkillable| {
            let (deadline_passed, tree_gone) = (forced == Some(Reason::Deadline), true);
            ToFront::Ended(Ended { how, forced, deadline_passed, tree_gone, unkillable })
        };
        let mut all = vec![
            ToFront::Started(5),
            ToFront::Stopped(20),
            ToFront::Continued,
            ToFront::DeadlinePassed,
            ToFront::ParentEnded,
            ended(How::Exited(3), None, vec![]),
            ended(How::Signaled(9), Some(Reason::Deadline), vec![1, 2, 3]),
            ended(How::StartFailed(13), None, vec![]),
            ended(How::StillRunning, Some(Reason::Lost), vec![77]),
            ended(How::Unknown, Some(Reason::KeeperGone), vec![]),
        ];
        all.extend(REASONS.map(ToFront::Ending));
        all
    }

    #[test]
    fn every_message_comes_back_as_it_went() {
        for message in to_keeper() {
            assert_eq!(ToKeeper::decode(&message.encode()), Some(message));
        }
        for message in to_front() {
            assert_eq!(ToFront::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn a_message_cut_short_or_with_a_tail_is_none() {
        let keeper = to_keeper().into_iter().map(|m| (m.encode(), true));
        let front = to_front().into_iter().map(|m| (m.encode(), false));
        for (bytes, to_keeper) in keeper.chain(front) {
            let reads = |b: &[u8]| match to_keeper {
                true => ToKeeper::decode(b).is_some(),
                false => ToFront::decode(b).is_some(),
            };
            for n in 0..bytes.len() {
                assert!(!reads(&bytes[..n]), "{bytes:?} cut to {n}");
            }
            let longer: Vec<u8> = bytes.iter().copied().chain([0]).collect();
            assert!(!reads(&longer), "{bytes:?} with a tail");
        }
    }

    #[test]
    fn a_huge_count_is_refused_before_anything_is_made() {
        let mut bytes = ToFront::Ended(Ended {
            how: How::Unknown,
            forced: None,
            deadline_passed: false,
            tree_gone: true,
            unkillable: vec![],
        })
        .encode();
        let at = bytes.len() - 8;
        bytes[at..].fill(0xff);
        assert_eq!(ToFront::decode(&bytes), None);
    }

    #[test]
    fn a_report_of_a_great_many_processes_is_cut() {
        let ended = Ended {
            how: How::StillRunning,
            forced: Some(Reason::Lost),
            deadline_passed: true,
            tree_gone: false,
            unkillable: (0..100_000).collect(),
        };
        let bytes = ToFront::Ended(ended).encode();
        assert!(bytes.len() < REPORT_MOST);
        let Some(ToFront::Ended(ended)) = ToFront::decode(&bytes) else { panic!("unreadable") };
        assert_eq!(ended.unkillable.len(), PIDS_MOST);
    }
}
