//! Marks in this process's memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_fence::{Access, Mark, Marks, Resource};
use tokio::sync::Notify;

use super::marks::{FenceMarks, Passage, Refused};

/// Marks in the memory of this process: right for what lives in this process alone.
///
/// Here the check and the work are one step: a newer holder waits until the older ones that are
/// inside are done (10 s at most unless [`MemoryFence::wait`] says otherwise), and none older comes
/// in meanwhile. Requests of one holder, with one token, run beside each other.
///
/// # When not to use it
///
/// With a second instance of the service, or with data that outlives the process: a mark that is
/// forgotten lets an old holder in again. Use [`SqlFence`](super::SqlFence).
#[derive(Debug)]
pub struct MemoryFence {
    names: Mutex<HashMap<Resource, Arc<One>>>,
    limit: usize,
    wait: Duration,
}

/// One resource.
#[derive(Debug, Default)]
struct One {
    state: Mutex<State>,
    left: Notify,
}

#[derive(Debug, Default)]
struct State {
    marks: Marks,
    inside: Vec<(Access, Mark)>,
}

impl Default for MemoryFence {
    fn default() -> MemoryFence {
        MemoryFence::new()
    }
}

impl MemoryFence {
    /// One that has seen nobody.
    pub fn new() -> MemoryFence {
        let wait = Duration::from_secs(10);
        MemoryFence { names: Mutex::default(), limit: 100_000, wait }
    }

    /// How many resources it remembers, 100,000 unless said otherwise. None is ever forgotten, so a
    /// new one is refused when it is full.
    #[must_use]
    pub fn limit(mut self, resources: usize) -> MemoryFence {
        self.limit = resources;
        self
    }

    /// How long a newer holder waits for the older ones that are inside.
    #[must_use]
    pub fn wait(mut self, at_most: Duration) -> MemoryFence {
        self.wait = at_most;
        self
    }

    /// The marks of a resource, for people and tests.
    pub fn marks(&self, resource: &Resource) -> Marks {
        let one = lock(&self.names).get(resource).map(Arc::clone);
        one.map_or_else(Marks::default, |one| lock(&one.state).marks)
    }

    fn one(&self, resource: &Resource) -> Result<Arc<One>, Refused> {
        let mut names = lock(&self.names);
        if let Some(one) = names.get(resource) {
            return Ok(Arc::clone(one));
        }
        if names.len() >= self.limit {
            let full = format!("the fence remembers {} resources and takes no more", self.limit);
            return Err(Refused::Failed(full.into()));
        }
        let one = Arc::new(One::default());
        names.insert(resource.clone(), Arc::clone(&one));
        Ok(one)
    }
}

#[async_trait]
impl FenceMarks for MemoryFence {
    async fn enter(
        &self,
        resource: &Resource,
        access: Access,
        mark: Mark,
    ) -> Result<Passage, Refused> {
        let one = self.one(resource)?;
        match tokio::time::timeout(self.wait, One::enter(&one, access, mark)).await {
            Ok(entered) => entered,
            Err(_) => Err(Refused::Busy),
        }
    }
}

impl One {
    async fn enter(one: &Arc<One>, access: Access, mark: Mark) -> Result<Passage, Refused> {
        loop {
            // Listens before it looks, so that none who leaves between is missed.
            let mut left = std::pin::pin!(one.left.notified());
            left.as_mut().enable();
            {
                let mut state = lock(&one.state);
                // Raised before the wait: none older comes in from now on. Looked at after each
                // wait: a newer one may have come.
                state.marks = state.marks.admit(access, mark).map_err(Refused::Stale)?;
                if !state.is_in_the_way(access, mark) {
                    state.inside.push((access, mark));
                    let inside = Inside { one: Arc::clone(one), access, mark };
                    return Ok(Passage::keeping(inside));
                }
            }
            left.await;
        }
    }
}

impl State {
    /// Another holder whose access conflicts with this one is inside.
    fn is_in_the_way(&self, access: Access, mark: Mark) -> bool {
        self.inside.iter().any(|&(other, its)| {
            its != mark && (access == Access::Exclusive || other == Access::Exclusive)
        })
    }
}

struct Inside {
    one: Arc<One>,
    access: Access,
    mark: Mark,
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut state = lock(&self.one.state);
        let at = state.inside.iter().position(|&one| one == (self.access, self.mark));
        if let Some(at) = at {
            state.inside.swap_remove(at);
        }
        drop(state);
        self.one.left.notify_waiters();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_fence::Token;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    fn at(n: u64) -> Mark {
        Mark::from(Token::new(n).unwrap())
    }

    fn resource() -> Resource {
        Resource::new("r").unwrap()
    }

    fn polled<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn a_newer_holder_waits_for_the_older_one_inside_and_keeps_its_like_out() {
        let fence = MemoryFence::new();
        let name = resource();
        let enter = |n| fence.enter(&name, Access::Exclusive, at(n));
        let older = enter(1).await.unwrap();
        let again = enter(1).await.unwrap();
        let mut newer = std::pin::pin!(enter(2));
        assert!(polled(newer.as_mut()).is_pending());
        assert!(matches!(enter(1).await, Err(Refused::Stale(_))), "the older one is past");
        drop(older);
        assert!(polled(newer.as_mut()).is_pending(), "its other request is inside still");
        drop(again);
        let _newer = newer.await.unwrap();
    }

    #[tokio::test]
    async fn one_that_waited_is_refused_if_a_newer_one_came_meanwhile() {
        let fence = MemoryFence::new();
        let name = resource();
        let enter = |n| fence.enter(&name, Access::Exclusive, at(n));
        let inside = enter(1).await.unwrap();
        let mut second = std::pin::pin!(enter(2));
        let mut third = std::pin::pin!(enter(3));
        assert!(polled(second.as_mut()).is_pending());
        assert!(polled(third.as_mut()).is_pending());
        drop(inside);
        assert!(matches!(second.await, Err(Refused::Stale(_))));
        third.await.map(drop).unwrap();
    }

    #[tokio::test]
    async fn readers_are_inside_together_and_a_wait_has_an_end() {
        let fence = MemoryFence::new().wait(Duration::from_millis(20));
        let name = resource();
        let older = fence.enter(&name, Access::Shared, at(11)).await.unwrap();
        let newer = fence.enter(&name, Access::Shared, at(12)).await.unwrap();
        let writer = fence.enter(&name, Access::Exclusive, at(13)).await;
        assert!(matches!(writer, Err(Refused::Busy)));
        drop((older, newer));
        fence.enter(&name, Access::Exclusive, at(13)).await.map(drop).unwrap();
        let late = fence.enter(&name, Access::Shared, at(12)).await;
        assert!(matches!(late, Err(Refused::Stale(_))));
    }

    #[tokio::test]
    async fn a_full_fence_refuses_what_is_new_and_forgets_nothing() {
        let fence = MemoryFence::new().limit(1);
        fence.enter(&resource(), Access::Exclusive, at(2)).await.map(drop).unwrap();
        let other = Resource::new("other").unwrap();
        let refused = fence.enter(&other, Access::Exclusive, at(9)).await;
        assert!(matches!(refused, Err(Refused::Failed(_))));
        let stale = fence.enter(&resource(), Access::Exclusive, at(1)).await;
        assert!(matches!(stale, Err(Refused::Stale(_))));
    }
}
