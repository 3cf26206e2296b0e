//! Which channels this process listens to, and who hears what is said there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold_core::{Error, Result};
use tokio::sync::{Notify, oneshot};

/// For how long the server goes on telling of a channel that nobody listens to: where one after
/// another waits for a lock, each would cost a SUBSCRIBE and an UNSUBSCRIBE.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// A channel's name.
pub(crate) type Name = Arc<[u8]>;

/// What one who listens hears.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event<'w> {
    /// Somebody said this.
    Message(&'w [u8]),
    /// Something may have been missed: look.
    Nudge,
}

/// Who listens: called where the connection is, so it must not wait.
pub(crate) type Listener = Arc<dyn Fn(Event<'_>) + Send + Sync>;

/// The channels that are listened to on one side of a link.
#[derive(Default)]
pub(crate) struct Board(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    channels: HashMap<Name, Channel>,
    /// How many have listened so far.
    listened: u64,
    /// By node: the channels to look at, and the bell of its ear.
    ears: HashMap<u64, Ear>,
}

#[derive(Debug, Default)]
struct Ear {
    changed: Vec<Name>,
    bell: Arc<Notify>,
}

struct Channel {
    /// The node where it is listened to.
    node: u64,
    listeners: Vec<(u64, Listener)>,
    /// Whether the server has confirmed, on the connection there is now.
    confirmed: bool,
    /// Whether it had ever: then words may have been lost in between.
    heard: bool,
    waiting: Vec<oneshot::Sender<Result<()>>>,
    idle_since: Option<Instant>,
}

/// The ear at a node is to be started.
pub(crate) struct Start(pub(crate) Arc<Notify>);

impl Board {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to a channel at a node: the listener's number, what resolves once the server has
    /// confirmed (unless it has already), and whether an ear is to be started there.
    pub(crate) fn add(
        &self,
        name: &Name,
        node: u64,
        listener: Listener,
    ) -> (u64, Option<oneshot::Receiver<Result<()>>>, Option<Start>) {
        let mut inner = self.inner();
        inner.listened += 1;
        let number = inner.listened;
        let channel = inner.channels.entry(Arc::clone(name)).or_insert_with(|| Channel {
            node,
            listeners: Vec::new(),
            confirmed: false,
            heard: false,
            waiting: Vec::new(),
            idle_since: None,
        });
        channel.listeners.push((number, listener));
        channel.idle_since = None;
        if channel.confirmed {
            return (number, None, None);
        }
        let (sender, receiver) = oneshot::channel();
        channel.waiting.push(sender);
        let node = channel.node;
        let start = inner.change(node, name);
        (number, Some(receiver), start)
    }

    /// One who listened does so no more.
    pub(crate) fn remove(&self, name: &Name, number: u64) {
        let mut inner = self.inner();
        let Some(channel) = inner.channels.get_mut(name) else { return };
        channel.listeners.retain(|(other, _)| *other != number);
        if channel.listeners.is_empty() {
            channel.idle_since = Some(Instant::now());
        }
    }

    /// Hands a word to all who listen to the channel.
    pub(crate) fn deliver(&self, name: &[u8], word: &[u8]) {
        let listeners = match self.inner().channels.get(name) {
            Some(channel) => channel.listeners.clone(),
            None => return,
        };
        for (_, listener) in listeners {
            listener(Event::Message(word));
        }
    }

    /// The channels to look at again at a node.
    pub(crate) fn changed(&self, node: u64) -> Vec<Name> {
        self.inner()
            .ears
            .get_mut(&node)
            .map(|ear| std::mem::take(&mut ear.changed))
            .unwrap_or_default()
    }

    /// Whether a channel is to be listened to at this node.
    pub(crate) fn wants(&self, name: &Name, node: u64) -> bool {
        self.inner().channels.get(name).is_some_and(|channel| channel.node == node)
    }

    /// All channels that are to be listened to at this node.
    pub(crate) fn all_at(&self, node: u64) -> Vec<Name> {
        let inner = self.inner();
        let at_node = inner.channels.iter().filter(|(_, channel)| channel.node == node);
        at_node.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Whether anybody waits for a word from this node.
    pub(crate) fn is_waited_for(&self, node: u64) -> bool {
        let inner = self.inner();
        inner.channels.values().any(|c| c.node == node && !c.listeners.is_empty())
    }

    /// The server has confirmed.
    pub(crate) fn confirm(&self, name: &Name, node: u64) {
        let mut inner = self.inner();
        let Some(channel) = inner.channels.get_mut(name).filter(|c| c.node == node) else { return };
        let missed = channel.heard && !channel.confirmed;
        (channel.confirmed, channel.heard) = (true, true);
        let waiting = std::mem::take(&mut channel.waiting);
        let nudged = if missed { channel.listeners.clone() } else { Vec::new() };
        drop(inner);
        for one in waiting {
            let _ = one.send(Ok(()));
        }
        for (_, listener) in nudged {
            listener(Event::Nudge);
        }
    }

    /// The server does not tell of the channel now, or not any more.
    pub(crate) fn lose(&self, name: &Name) {
        if let Some(channel) = self.inner().channels.get_mut(name) {
            channel.confirmed = false;
        }
    }

    /// The server refuses: those who wait for its word are told, those who listened look for
    /// themselves.
    pub(crate) fn fail(&self, name: &Name, error: &Error) {
        let mut inner = self.inner();
        let Some(channel) = inner.channels.get_mut(name) else { return };
        channel.confirmed = false;
        let waiting = std::mem::take(&mut channel.waiting);
        let nudged = if channel.heard { channel.listeners.clone() } else { Vec::new() };
        if !channel.heard {
            inner.channels.remove(name);
        }
        drop(inner);
        for one in waiting {
            let _ = one.send(Err(error.clone()));
        }
        for (_, listener) in nudged {
            listener(Event::Nudge);
        }
    }

    /// Forgets the channels at a node that nobody has listened to for a while.
    pub(crate) fn sweep(&self, node: u64) {
        let mut inner = self.inner();
        let gone = |channel: &Channel| {
            channel.node == node
                && channel.idle_since.is_some_and(|since| since.elapsed() >= LINGER)
        };
        let mut left = Vec::new();
        inner.channels.retain(|name, channel| {
            let gone = gone(channel);
            if gone {
                left.push(Arc::clone(name));
            }
            !gone
        });
        for name in left {
            inner.change(node, &name);
        }
    }

    /// Listens elsewhere to those channels that are at another node now; says at which nodes ears
    /// are to be started.
    pub(crate) fn follow(&self, owner: impl Fn(&[u8]) -> Option<u64>) -> Vec<(u64, Start)> {
        let mut inner = self.inner();
        let mut moved = Vec::new();
        for (name, channel) in &mut inner.channels {
            if let Some(now) = owner(name).filter(|now| *now != channel.node) {
                moved.push((Arc::clone(name), channel.node, now));
                channel.node = now;
                channel.confirmed = false;
            }
        }
        let mut starts = Vec::new();
        for (name, before, now) in moved {
            inner.change(before, &name);
            starts.extend(inner.change(now, &name).map(|start| (now, start)));
        }
        starts
    }

    /// How many channels the servers were asked to tell of.
    pub(crate) fn len(&self) -> usize {
        self.inner().channels.len()
    }
}

impl Inner {
    /// Has the ear of a node look at a channel.
    fn change(&mut self, node: u64, name: &Name) -> Option<Start> {
        let mut start = None;
        let ear = self.ears.entry(node).or_insert_with(|| {
            let ear = Ear::default();
            start = Some(Start(Arc::clone(&ear.bell)));
            ear
        });
        ear.changed.push(Arc::clone(name));
        ear.bell.notify_one();
        start
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Heard, Mailbox};
    use super::*;
    use leasehold_core::ErrorKind;

    fn name(name: &str) -> Name {
        name.as_bytes().into()
    }

    fn nobody() -> Listener {
        Arc::new(|_| {})
    }

    #[test]
    fn the_first_confirmation_answers_and_later_ones_nudge() {
        let (board, name) = (Board::default(), name("c"));
        let mailbox = Arc::new(Mailbox::default());
        let (_, waiting, start) = board.add(&name, 1, Mailbox::listener(&mailbox));
        assert!(start.is_some());
        assert_eq!(board.changed(1), std::slice::from_ref(&name));
        board.confirm(&name, 1);
        assert!(waiting.unwrap().try_recv().unwrap().is_ok());
        assert_eq!(mailbox.take(), None);
        // Confirmed: the next one needs no word from the server.
        assert!(board.add(&name, 1, nobody()).1.is_none());
        board.lose(&name);
        board.confirm(&name, 1);
        assert_eq!(mailbox.take(), Some(Heard::Nudge));
        board.deliver(b"c", b"0");
        assert_eq!(mailbox.take(), Some(Heard::Message(b"0".to_vec())));
    }

    #[test]
    fn a_refusal_is_told_to_those_who_wait_for_the_first_word() {
        let (board, name) = (Board::default(), name("c"));
        let (_, waiting, _) = board.add(&name, 1, nobody());
        board.fail(&name, &Error::new(ErrorKind::Permission, "listen", "no"));
        let refused = waiting.unwrap().try_recv().unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Permission);
    }

    #[test]
    fn channels_follow_their_slot() {
        let (board, name) = (Board::default(), name("c"));
        let (_, _waiting, _) = board.add(&name, 1, nobody());
        board.confirm(&name, 1);
        board.changed(1);
        let starts = board.follow(|_| Some(2));
        assert_eq!(starts.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [2]);
        assert!(!board.wants(&name, 1) && board.wants(&name, 2));
        assert_eq!(board.changed(1), std::slice::from_ref(&name));
        assert_eq!(board.changed(2), std::slice::from_ref(&name));
        // A late confirmation of the old node counts for nothing.
        board.confirm(&name, 1);
        assert!(board.add(&name, 2, nobody()).1.is_some());
        assert!(board.follow(|_| Some(2)).is_empty());
    }

    #[test]
    fn a_channel_lingers_and_is_forgotten() {
        let (board, name) = (Board::default(), name("c"));
        let (number, _, _) = board.add(&name, 1, nobody());
        board.confirm(&name, 1);
        board.remove(&name, number);
        assert!(!board.is_waited_for(1));
        board.sweep(1);
        assert_eq!(board.len(), 1);
        let long_ago = Instant::now().checked_sub(LINGER).unwrap();
        board.inner().channels.get_mut(&name).unwrap().idle_since = Some(long_ago);
        board.changed(1);
        board.sweep(1);
        assert_eq!((board.len(), board.changed(1)), (0, vec![name]));
    }
}
