//! How a lock is asked for, checked before anything is touched.

use std::time::Duration;

use leasehold::Request;
use leasehold_core::{Holder, Mode, Profile};

use crate::args::Ask;
use crate::durations::brief;
use crate::exit::{End, usage};
use crate::names::Named;
use crate::store::Opened;

/// The shortest term that a command's life can be governed by.
pub(crate) const TERM_MIN: Duration = Duration::from_secs(1);

/// Checked options of a claim.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    wait: Wait,
    label: Option<String>,
    after_loss: Duration,
}

/// For how long a store is tried until it is reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    pub(crate) within: Duration,
    /// It is tried again after what it may answer better later.
    pub(crate) insists: bool,
}

#[derive(Debug, Clone, Copy)]
enum Wait {
    Forever,
    AtMost(Duration),
    No,
}

impl Asked {
    /// Checks what needs no store.
    pub(crate) fn new(ask: &Ask) -> Result<Asked, End> {
        check_term(ask.ttl)?;
        let mode = match (ask.shared, ask.permits, ask.limit) {
            (true, ..) => Mode::Shared,
            (false, Some(count), Some(limit)) => permits(count, limit)?,
            _ => Mode::Exclusive,
        };
        let wait = match (ask.wait, ask.no_wait) {
            (_, true) => Wait::No,
            (Some(Duration::ZERO), false) => Wait::No,
            (Some(span), false) => Wait::AtMost(span),
            (None, false) => Wait::Forever,
        };
        let label = ask.holder.clone();
        if label.as_ref().is_some_and(|label| label.trim().is_empty()) {
            return Err(usage("--holder is empty: want a text by which people know the holder"));
        }
        Ok(Asked { mode, ttl: ask.ttl, wait, label, after_loss: ask.after_loss })
    }

    /// For how long the store is tried until it is reached: until the end of the wait, where it has
    /// one.
    pub(crate) fn reach(&self, timeout: Duration) -> Reach {
        match self.wait {
            Wait::AtMost(span) => Reach { within: span, insists: true },
            Wait::Forever | Wait::No => Reach { within: timeout, insists: false },
        }
    }

    /// The label that the user chose.
    pub(crate) fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// The request, as this holder or as a new one. What the way to the store took is not waited
    /// once more.
    pub(crate) fn request(
        &self,
        opened: &Opened,
        named: &Named,
        holder: Option<&Holder>,
        timeout: Duration,
    ) -> Result<Request, End> {
        let client = &opened.client;
        check_bounds(self.ttl, client.profile())?;
        let left = |span: Duration| span.saturating_sub(opened.took).max(Duration::from_millis(1));
        let reach = left(self.reach(timeout).within);
        let request = client.lock(named.full.as_str()).ttl(self.ttl).reach_within(reach);
        let request = match self.wait {
            Wait::Forever => request,
            Wait::AtMost(span) => request.wait(left(span)),
            Wait::No => request.no_wait(),
        };
        let request = match self.mode {
            Mode::Exclusive => request,
            Mode::Shared => request.shared(),
            Mode::Permits { count, limit } => request.permits(count, limit),
        };
        let request = match (holder, &self.label) {
            (Some(holder), _) => request.holder(holder),
            (None, Some(label)) => request.label(label),
            (None, None) => request,
        };
        Ok(request.after_loss(self.after_loss))
    }
}

/// A term is not shorter than a keeper can guard.
pub(crate) fn check_term(ttl: Duration) -> Result<(), End> {
    if ttl < TERM_MIN {
        return Err(usage(format!("a term of {} is too short: want at least 1s", brief(ttl))));
    }
    Ok(())
}

/// A term is within the store's bounds.
pub(crate) fn check_bounds(ttl: Duration, profile: &Profile) -> Result<(), End> {
    let (shortest, longest) = profile.term_bounds;
    if ttl < shortest || ttl > longest {
        return Err(usage(format!(
            "a term of {} is out of bounds: {} takes {} to {}",
            brief(ttl),
            profile.url,
            brief(shortest.max(TERM_MIN)),
            brief(longest)
        )));
    }
    Ok(())
}

fn permits(count: u32, limit: u32) -> Result<Mode, End> {
    let mode = Mode::Permits { count, limit };
    if mode.is_valid() {
        return Ok(mode);
    }
    Err(usage(if limit == 0 || limit > Mode::LIMIT_MAX {
        format!("--limit {limit} is out of bounds: want 1 to {}", Mode::LIMIT_MAX)
    } else {
        format!("--permits {count} is out of bounds: want 1 to the limit, {limit}")
    }))
}
