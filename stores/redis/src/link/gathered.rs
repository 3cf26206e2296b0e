//! Scripts of one kind that are told to the server as one.

use leasehold_core::Error;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::resp::{self, Reply};
use super::script::Usual;

/// How many are told as one at most.
const MANY: usize = 64;

/// What is told together.
pub(crate) struct Gathered {
    usual: &'static Usual,
    /// When the first of them is to be answered.
    due: Instant,
    senders: Vec<oneshot::Sender<Result<Reply, Error>>>,
    /// Parts of a command, written already, and how many they are.
    same: (Vec<u8>, usize),
    keys: (Vec<u8>, usize),
    args: (Vec<u8>, usize),
}

impl Gathered {
    pub(crate) fn new(usual: &'static Usual, due: Instant) -> Gathered {
        let (same, keys, args) = Default::default();
        Gathered { usual, due, senders: Vec::new(), same, keys, args }
    }

    pub(crate) fn is_of(&self, usual: &'static Usual) -> bool {
        std::ptr::eq(self.usual, usual)
    }

    /// Adds one; whether no more fit.
    pub(crate) fn add(
        &mut self,
        keys: &[&[u8]],
        same: &[&[u8]],
        args: &[&[u8]],
        sender: oneshot::Sender<Result<Reply, Error>>,
    ) -> bool {
        if self.senders.is_empty() {
            add(&mut self.same, same);
        }
        add(&mut self.keys, keys);
        add(&mut self.args, args);
        self.senders.push(sender);
        self.senders.len() >= MANY
    }

    /// Writes the command; those who wait for its answer, and until when.
    pub(crate) fn write(
        self,
        out: &mut Vec<u8>,
    ) -> (Vec<oneshot::Sender<Result<Reply, Error>>>, Instant) {
        let script = if self.senders.len() == 1 { &self.usual.one } else { &self.usual.many };
        let [same, keys, args] = [self.same, self.keys, self.args];
        resp::command(out, 3 + keys.1 + same.1 + args.1);
        resp::part(out, b"EVALSHA");
        resp::part(out, script.hash().as_bytes());
        resp::part(out, keys.1.to_string().as_bytes());
        [keys, same, args].iter().for_each(|(bytes, _)| out.extend_from_slice(bytes));
        (self.senders, self.due)
    }
}

fn add(to: &mut (Vec<u8>, usize), parts: &[&[u8]]) {
    parts.iter().for_each(|part| resp::part(&mut to.0, part));
    to.1 += parts.len();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Script;

    #[test]
    fn one_is_told_by_its_own_script_and_many_by_that_for_many() {
        static USUAL: Usual =
            Usual { one: Script::new("a", "return 1"), many: Script::new("b", "") };
        let told = |count: usize| {
            let mut all = Gathered::new(&USUAL, Instant::now());
            for n in 0..count {
                let is_full = all.add(&[b"k"], &[b"same"], &[b"a", b"b"], oneshot::channel().0);
                assert_eq!(is_full, n + 1 >= MANY);
            }
            let mut out = Vec::new();
            assert_eq!(all.write(&mut out).0.len(), count);
            let text = String::from_utf8(out).unwrap();
            let parts: usize = text[1..].split("\r\n").next().unwrap().parse().unwrap();
            let words: Vec<_> = text.split("\r\n").skip(2).step_by(2).map(str::to_owned).collect();
            assert_eq!(words.len(), parts);
            words[1..].join(" ")
        };
        assert_eq!(told(1), format!("{} 1 k same a b", USUAL.one.hash()));
        assert_eq!(told(2), format!("{} 2 k k same a b a b", USUAL.many.hash()));
    }
}
