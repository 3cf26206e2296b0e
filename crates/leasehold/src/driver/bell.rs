//! What wakes the driver's thread.

use std::sync::{Arc, Condvar, Mutex};
use std::task::Wake;
use std::time::Duration;

/// A flag that one thread waits for and any other sets.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    /// Wakes the waiting thread, or lets its next wait return at once.
    pub(crate) fn ring(&self) {
        *self.rung.lock().unwrap_or_else(|e| e.into_inner()) = true;
        self.changed.notify_one();
    }

    /// Waits until rung, or for this long.
    pub(crate) fn wait(&self, at_most: Option<Duration>) {
        let mut rung = self.rung.lock().unwrap_or_else(|e| e.into_inner());
        if !*rung {
            rung = match at_most {
                Some(span) => {
                    let waited = self.changed.wait_timeout_while(rung, span, |rung| !*rung);
                    waited.unwrap_or_else(|e| e.into_inner()).0
                }
                None => {
                    let waited = self.changed.wait_while(rung, |rung| !*rung);
                    waited.unwrap_or_else(|e| e.into_inner())
                }
            };
        }
        *rung = false;
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}
