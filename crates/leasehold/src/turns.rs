//! Tasks of one process take turns: one of them at a time stands in the store's queue for a
//! resource, so that the store sees one waiter a process however many tasks wait.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use leasehold_core::ResourceName;

/// The turns of all resources of a client. First come, first served.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns {
    queues: Arc<Mutex<HashMap<ResourceName, Queue>>>,
}

/// Present while some task has the turn.
#[derive(Debug, Default)]
struct Queue {
    next_ticket: u64,
    waiting: VecDeque<(u64, Option<Waker>)>,
    /// The ticket that has been given the turn and has not taken it up yet.
    called: Option<u64>,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, HashMap<ResourceName, Queue>> {
        self.queues.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits for the turn.
    pub(crate) fn take(&self, name: &ResourceName) -> Taking {
        Taking { turns: self.clone(), name: name.clone(), ticket: None, done: false }
    }

    /// The turn passes to the next in line, if there is one.
    fn pass(&self, name: &ResourceName) {
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(name) else { return };
        match queue.waiting.pop_front() {
            Some((ticket, waker)) => {
                queue.called = Some(ticket);
                drop(queues);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            None => {
                queues.remove(name);
            }
        }
    }
}

/// The future of [`Turns::take`]. Dropping it leaves the line.
#[derive(Debug)]
pub(crate) struct Taking {
    turns: Turns,
    name: ResourceName,
    ticket: Option<u64>,
    done: bool,
}

impl Future for Taking {
    type Output = Turn;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Turn> {
        let turns = self.turns.clone();
        let mut queues = turns.lock();
        match self.ticket {
            None => {
                let Some(queue) = queues.get_mut(&self.name) else {
                    queues.insert(self.name.clone(), Queue::default());
                    drop(queues);
                    return Poll::Ready(self.taken());
                };
                queue.next_ticket += 1;
                let ticket = queue.next_ticket;
                queue.waiting.push_back((ticket, Some(cx.waker().clone())));
                drop(queues);
                self.ticket = Some(ticket);
                Poll::Pending
            }
            Some(ticket) => {
                let queue = queues.entry(self.name.clone()).or_default();
                if queue.called == Some(ticket) {
                    queue.called = None;
                    drop(queues);
                    return Poll::Ready(self.taken());
                }
                if let Some(place) = queue.waiting.iter_mut().find(|(t, _)| *t == ticket) {
                    place.1 = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl Taking {
    fn taken(&mut self) -> Turn {
        self.done = true;
        Turn { turns: self.turns.clone(), name: self.name.clone() }
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        let (false, Some(ticket)) = (self.done, self.ticket) else { return };
        let mut queues = self.turns.lock();
        let Some(queue) = queues.get_mut(&self.name) else { return };
        queue.waiting.retain(|(t, _)| *t != ticket);
        if queue.called == Some(ticket) {
            queue.called = None;
            drop(queues);
            self.turns.pass(&self.name);
        }
    }
}

/// The turn; dropping it passes it on.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    name: ResourceName,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.pass(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    #[test]
    fn turns_are_taken_in_order_and_a_dropped_wait_loses_none() {
        block_on(async {
            let turns = Turns::default();
            let name = ResourceName::new("r").unwrap();
            let first = turns.take(&name).await;
            let mut second = Box::pin(turns.take(&name));
            let mut third = Box::pin(turns.take(&name));
            let mut fourth = Box::pin(turns.take(&name));
            assert!(poll_once(&mut second).await.is_none());
            assert!(poll_once(&mut third).await.is_none());
            assert!(poll_once(&mut fourth).await.is_none());
            drop(second); // leaves the line
            drop(first);
            assert!(poll_once(&mut fourth).await.is_none(), "the third is before it");
            drop(third); // was called and never took it up
            let turn = poll_once(&mut fourth).await;
            assert!(turn.is_some());
            drop(turn);
            assert!(turns.lock().is_empty(), "nothing is kept for an idle resource");
        });
    }
}
