//! The queue of a resource as the server lists it, in order.

use leasehold_core::admission::Walk;
use leasehold_core::{Error, ErrorKind, Kind, Mode, ResourceName, Result};

use crate::config::Layout;
use crate::error::DOING;
use crate::hall::{Hall, stat};
use crate::names::{Contender, Paths};
use crate::wire::{Fail, Op, code};

/// From this number on the counter of a queue is soon used up: a million contenders are left.
const SEQUENCE_WARN: i64 = (1 << 31) - 1_000_000;

/// Contenders in order, and who of them is admitted.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) contenders: Vec<Contender>,
    pub(crate) admitted: Vec<bool>,
}

impl Line {
    /// Reads the names of a queue's children.
    ///
    /// # Errors
    ///
    /// `Corrupt` for a child that is no contender: others may take it for one, or not.
    pub(crate) fn read(
        names: &[String],
        layout: Layout,
        resource: &ResourceName,
        path: &str,
    ) -> Result<Line> {
        let mut contenders = Vec::with_capacity(names.len());
        for name in names {
            let Some(contender) = Contender::parse(name, layout) else {
                let name = leasehold_core::shown(name, 60);
                let detail = format!("{path} holds `{name}`, which is no contender for a lock");
                return Err(Error::new(ErrorKind::Corrupt, DOING, detail)
                    .on(resource)
                    .advise("remove that node, or lock below another path"));
            };
            contenders.push(contender);
        }
        contenders.sort_by(|a, b| (a.sequence, &a.name).cmp(&(b.sequence, &b.name)));
        warn(&contenders, layout, path);
        Ok(Line { contenders, admitted: Vec::new() })
    }

    fn admit(mut self) -> Line {
        let mut walk = Walk::new();
        self.admitted = self.contenders.iter().map(|c| walk.admits(c.mode)).collect();
        self
    }

    /// Where this contender stands.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.contenders.iter().position(|c| c.name == name)
    }

    /// The kind of those before this place, if there are any.
    pub(crate) fn kind_before(&self, place: usize) -> Option<Kind> {
        let first = self.contenders.first().filter(|_| place > 0)?;
        Some(first.mode.kind())
    }

    /// Whom the contender at this place waits for: when that node changes or goes, it looks again.
    /// `None` for any change of the whole queue.
    pub(crate) fn wait_for(&self, place: usize) -> Option<&Contender> {
        let before = self.contenders.get(..place)?;
        match self.contenders.get(place)?.mode {
            Mode::Exclusive => before.last(),
            Mode::Shared => before.iter().rev().find(|c| c.mode != Mode::Shared),
            Mode::Permits { .. } => {
                let is_next = self.admitted.get(place.checked_sub(1)?).copied()?;
                before.last().filter(|_| !is_next)
            }
        }
    }
}

/// Lists a queue; an empty one for a queue that is not there.
pub(crate) async fn read(
    hall: &Hall,
    generation: u64,
    resource: &ResourceName,
    paths: &Paths,
    names: &[String],
) -> Result<Line> {
    let mut line = Line::read(names, hall.config.layout, resource, &paths.queue)?;
    if Contender::ties(&line.contenders) {
        order_by_making(hall, generation, paths, &mut line).await.map_err(|e| hall.error(e))?;
    }
    Ok(line.admit())
}

/// Where numbers do not tell, the transactions do that made the nodes. A reader that Curator made
/// with the number of the writer it was stays where that writer stood.
async fn order_by_making(
    hall: &Hall,
    generation: u64,
    paths: &Paths,
    line: &mut Line,
) -> Result<(), Fail> {
    let calls: Vec<_> = line
        .contenders
        .drain(..)
        .map(|contender| {
            let path = format!("{}/{}", paths.queue, contender.name);
            (contender, hall.wire.call(generation, &Op::Exists { path, watch: false }))
        })
        .collect();
    let mut made = Vec::with_capacity(calls.len());
    for (contender, call) in calls {
        match stat(call.answer().await.result) {
            Ok(stat) => made.push((stat.czxid, contender)),
            Err(Fail::Refused(refusal)) if refusal.code == code::NO_NODE => {}
            Err(fail) => return Err(fail),
        }
    }
    let over = made.iter().any(|(_, c)| Contender::overflowed(c.sequence));
    made.sort_by_key(|(czxid, c)| (if over { 0 } else { c.sequence }, *czxid));
    line.contenders = made.into_iter().map(|(_, contender)| contender).collect();
    Ok(())
}

fn warn(contenders: &[Contender], layout: Layout, path: &str) {
    if let Some(odd) = contenders.iter().find(|c| !c.sorts && c.claim.is_none()) {
        tracing::warn!(
            path,
            contender = odd.name,
            ?layout,
            "a foreign client names its contenders so that Curator's clients do not wait for them"
        );
    }
    if contenders.last().is_some_and(|c| c.sequence >= SEQUENCE_WARN) {
        tracing::warn!(
            path,
            "the numbers of this queue are nearly used up: let it become empty, and clean it"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(names: &[&str]) -> Line {
        let names: Vec<String> = names.iter().map(|&n| n.into()).collect();
        let name = ResourceName::new("x").unwrap();
        Line::read(&names, Layout::ReadWrite, &name, "/x").unwrap().admit()
    }

    #[test]
    fn each_waits_for_one_only() {
        let of = |who: &str, n: u32| format!("_c_1-{who}{n:010}");
        let (r1, r2, w3) = (of("__READ__", 1), of("__READ__", 2), of("__WRIT__", 3));
        let (r4, w5) = (of("__READ__", 4), of("__WRIT__", 5));
        let line = line(&[&w5, &r4, &r1, &w3, &r2]);
        assert_eq!(line.admitted, [true, true, false, false, false]);
        let waits =
            |name: &str| line.wait_for(line.position(name).unwrap()).map(|c| c.name.clone());
        assert_eq!(waits(&w3), Some(r2));
        assert_eq!(waits(&r4), Some(w3));
        assert_eq!(waits(&w5), Some(r4));
    }

    #[test]
    fn the_first_that_waits_for_permits_hears_of_all() {
        let of = |n: u32| format!("_c_1-__PERMIT_2_3__-__WRIT__{n:010}");
        let line = line(&[&of(1), &of(2), &of(3)]);
        assert_eq!(line.admitted, [true, false, false]);
        assert_eq!(line.wait_for(1), None);
        assert_eq!(line.wait_for(2).map(|c| c.sequence), Some(2));
    }

    #[test]
    fn what_is_no_contender_is_named() {
        let name = ResourceName::new("x").unwrap();
        let error = Line::read(&["notes".into()], Layout::Mutex, &name, "/a/x").unwrap_err();
        assert!(error.to_string().contains("/a/x holds `notes`"), "{error}");
    }

    /// Collects what is warned of.
    #[derive(Default)]
    struct Warnings(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            struct Text(String);
            impl tracing::field::Visit for Text {
                fn record_debug(
                    &mut self,
                    field: &tracing::field::Field,
                    value: &dyn std::fmt::Debug,
                ) {
                    use std::fmt::Write as _;
                    let _ = write!(self.0, "{field}={value:?} ");
                }
            }
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push(text.0);
        }

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn numbers_that_run_out_and_contenders_that_curator_overlooks_are_warned_of() {
        let warned = |names: &[&str]| {
            let warnings = Warnings::default();
            let told = std::sync::Arc::clone(&warnings.0);
            tracing::subscriber::with_default(warnings, || drop(line(names)));
            std::mem::take(&mut *told.lock().unwrap())
        };
        let uuid = "11111111-2222-3333-4444-555555555555";
        let curators = |number: u32| format!("_c_{uuid}-__WRIT__{number:010}");
        assert_eq!(warned(&[&curators(2_146_000_000)]), [""; 0]);
        let told = warned(&[&curators(2_147_000_000)]);
        assert!(told.len() == 1 && told[0].contains("nearly used up"), "{told:?}");
        let told = warned(&["0123456789abcdef0123456789abcdef__lock__0000000001"]);
        assert!(told.len() == 1 && told[0].contains("do not wait for them"), "{told:?}");
    }
}
