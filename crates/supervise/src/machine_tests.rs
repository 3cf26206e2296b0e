//! The keeper's decisions, with time as an argument.

use super::*;

const S: u64 = 1_000_000_000;
const GRACE: u64 = 5 * S;

fn machine(on_deadline: OnDeadline, wait_all: bool, at: Option<u64>) -> Machine {
    let mut machine = Machine::new(GRACE, on_deadline, wait_all);
    machine.handle(0, Input::Started { pid: 7, deadline: at, sent_at: 0 });
    assert_eq!(effects(&mut machine), [Effect::Report(ToFront::Started(7))]);
    machine
}

/// Killing, deadline at 30 s: TERM at 25 s, KILL at 29.5 s.
fn killing() -> Machine {
    machine(OnDeadline::Kill, false, Some(30 * S))
}

fn effects(machine: &mut Machine) -> Vec<Effect> {
    std::iter::from_fn(|| machine.poll_effect()).collect()
}

fn ending(reason: Reason) -> Effect {
    Effect::Report(ToFront::Ending(reason))
}

fn ended(how: How, forced: Option<Reason>, deadline_passed: bool, tree_gone: bool) -> Effect {
    let unkillable = Vec::new();
    Effect::Report(ToFront::Ended(Ended { how, forced, deadline_passed, tree_gone, unkillable }))
}

fn exits(how: How, alone: bool) -> Input {
    Input::CommandEnded { how, alone }
}

#[test]
fn asks_at_the_deadline_less_the_grace_and_kills_before_it() {
    let mut m = killing();
    assert_eq!(m.timer(), Some(25 * S));
    m.handle(25 * S - 1, Input::Tick);
    assert_eq!(effects(&mut m), []);
    m.handle(25 * S, Input::Tick);
    assert_eq!(effects(&mut m), [ending(Reason::Deadline), Effect::Term]);
    assert!(!m.is_killing());
    assert_eq!(m.timer(), Some(30 * S - S / 2));
    m.handle(30 * S - S / 2, Input::Tick);
    assert!(m.is_killing());
    m.handle(30 * S - S / 4, exits(How::Signaled(9), true));
    m.handle(30 * S - S / 4, Input::TreeGone);
    let how = How::Signaled(9);
    assert_eq!(effects(&mut m), [ended(how, Some(Reason::Deadline), false, true), Effect::Exit]);
}

#[test]
fn a_new_deadline_moves_both_moments() {
    let mut m = killing();
    m.handle(10 * S, Input::Extend { at: 40 * S, sent_at: 10 * S });
    assert_eq!(m.timer(), Some(35 * S));
    m.handle(30 * S, Input::Tick);
    assert_eq!(effects(&mut m), []);
    m.handle(35 * S, Input::Tick);
    assert_eq!(effects(&mut m), [ending(Reason::Deadline), Effect::Term]);
    assert_eq!(m.timer(), Some(40 * S - S / 2));
}

#[test]
fn once_asked_no_deadline_revives() {
    let mut m = killing();
    m.handle(25 * S, Input::Tick);
    let _ = effects(&mut m);
    // Even one that was sent in time and was only heard late.
    m.handle(26 * S, Input::Extend { at: 60 * S, sent_at: 24 * S });
    assert_eq!(m.timer(), Some(30 * S - S / 2));
    m.handle(30 * S - S / 2, Input::Tick);
    assert!(m.is_killing());
}

#[test]
fn one_sent_after_it_was_due_is_too_late_though_the_keeper_was_asleep() {
    // Frozen as a whole from 20 s to 60 s: the front woke first and renewed.
    let mut m = killing();
    m.handle(60 * S, Input::Extend { at: 90 * S, sent_at: 60 * S });
    assert!(m.is_killing());
    assert_eq!(effects(&mut m), [ending(Reason::Deadline)]);
    // Woken between TERM and KILL, the same, with what grace is left.
    let mut m = killing();
    m.handle(26 * S, Input::Extend { at: 56 * S, sent_at: 26 * S });
    assert_eq!(effects(&mut m), [ending(Reason::Deadline), Effect::Term]);
    assert_eq!(m.timer(), Some(30 * S - S / 2));
}

#[test]
fn one_sent_in_time_counts_though_the_keeper_hears_it_late() {
    let mut m = killing();
    m.handle(26 * S, Input::Extend { at: 50 * S, sent_at: 25 * S - 1 });
    assert_eq!(effects(&mut m), []);
    // The grace is a third of what was left, at most 5 s.
    assert_eq!(m.timer(), Some(45 * S));
}

#[test]
fn the_end_by_itself_is_told_at_once() {
    for alone in [true, false] {
        let mut m = killing();
        m.handle(S, exits(How::Exited(3), alone));
        assert_eq!(effects(&mut m), [ended(How::Exited(3), None, false, alone), Effect::Exit]);
        m.handle(S, Input::TreeGone);
        m.handle(60 * S, Input::FrontGone);
        assert_eq!(effects(&mut m), []);
    }
}

#[test]
fn with_wait_all_the_deadline_goes_on_for_what_is_left() {
    let mut m = machine(OnDeadline::Kill, true, Some(30 * S));
    m.handle(S, exits(How::Exited(0), false));
    assert_eq!(effects(&mut m), []);
    m.handle(25 * S, Input::Tick);
    assert_eq!(effects(&mut m), [ending(Reason::Deadline), Effect::Term]);
    m.handle(26 * S, Input::TreeGone);
    let forced = Some(Reason::Deadline);
    assert_eq!(effects(&mut m), [ended(How::Exited(0), forced, false, true), Effect::Exit]);

    let mut m = machine(OnDeadline::Kill, true, Some(30 * S));
    m.handle(S, exits(How::Exited(5), false));
    m.handle(2 * S, Input::TreeGone);
    assert_eq!(effects(&mut m), [ended(How::Exited(5), None, false, true), Effect::Exit]);
}

#[test]
fn what_ended_by_itself_and_is_seen_after_the_deadline_was_late() {
    let mut m = killing();
    m.handle(31 * S, exits(How::Exited(0), false));
    assert_eq!(effects(&mut m), [ending(Reason::Deadline)]);
    assert!(m.is_killing());
    m.handle(31 * S, Input::TreeGone);
    let forced = Some(Reason::Deadline);
    assert_eq!(effects(&mut m), [ended(How::Exited(0), forced, true, true), Effect::Exit]);
}

#[test]
fn forced_ends_wait_for_the_whole_tree() {
    let mut m = killing();
    m.handle(S, Input::End(Reason::Lost));
    assert_eq!(effects(&mut m), [ending(Reason::Lost), Effect::Term]);
    m.handle(2 * S, exits(How::Signaled(15), false));
    assert_eq!(effects(&mut m), []);
    assert_eq!(m.timer(), Some(6 * S));
    m.handle(6 * S, Input::Tick);
    assert!(m.is_killing());
    m.handle(6 * S, Input::TreeGone);
    let forced = Some(Reason::Lost);
    assert_eq!(effects(&mut m), [ended(How::Signaled(15), forced, false, true), Effect::Exit]);
}

#[test]
fn an_end_has_no_more_grace_than_the_deadline_leaves() {
    let mut m = killing();
    m.handle(24 * S + S / 2 + S / 4, Input::End(Reason::Asked));
    assert_eq!(m.timer(), Some(30 * S - S / 2));
    // Asked again, it can only become sooner.
    m.handle(24 * S + S / 2 + S / 4, Input::End(Reason::Asked));
    assert_eq!(m.timer(), Some(30 * S - S / 2));
    // And without a deadline it has the whole.
    let mut m = machine(OnDeadline::Kill, false, None);
    assert_eq!(m.timer(), None);
    m.handle(100 * S, Input::End(Reason::Asked));
    assert_eq!(m.timer(), Some(105 * S));
}

#[test]
fn a_front_that_died_leaves_no_grace() {
    let mut m = killing();
    m.handle(S, Input::FrontGone);
    assert!(m.is_killing());
    // Also where the deadline would only have warned, and while the tree was being asked.
    let mut m = machine(OnDeadline::Warn, false, Some(30 * S));
    m.handle(S, Input::FrontGone);
    assert!(m.is_killing());
    let mut m = killing();
    m.handle(S, Input::End(Reason::Asked));
    m.handle(S, Input::FrontGone);
    assert!(m.is_killing());
    // Before the start there is nothing to do but to go.
    let mut m = Machine::new(GRACE, OnDeadline::Kill, false);
    m.handle(0, Input::FrontGone);
    assert_eq!(effects(&mut m), [Effect::Exit]);
}

#[test]
fn a_parent_that_ended_ends_the_command_with_grace() {
    let mut m = killing();
    m.handle(S, Input::ParentGone);
    let told = Effect::Report(ToFront::ParentEnded);
    assert_eq!(effects(&mut m), [told.clone(), ending(Reason::ParentEnded), Effect::Term]);
    assert_eq!(m.timer(), Some(6 * S));
    // Before the start the front is told, and decides.
    let mut m = Machine::new(GRACE, OnDeadline::Kill, false);
    m.handle(0, Input::ParentGone);
    assert_eq!(effects(&mut m), [told]);
}

#[test]
fn warns_once_at_the_deadline_and_kills_nothing() {
    let mut m = machine(OnDeadline::Warn, false, Some(30 * S));
    assert_eq!(m.timer(), Some(30 * S));
    m.handle(30 * S - 1, Input::Extend { at: 40 * S, sent_at: 30 * S - 1 });
    assert_eq!(m.timer(), Some(40 * S));
    m.handle(40 * S, Input::Tick);
    m.handle(41 * S, Input::Extend { at: 70 * S, sent_at: 41 * S });
    m.handle(80 * S, Input::Tick);
    assert_eq!(effects(&mut m), [Effect::Report(ToFront::DeadlinePassed)]);
    assert_eq!(m.timer(), None);
    m.handle(90 * S, exits(How::Exited(0), true));
    assert_eq!(effects(&mut m), [ended(How::Exited(0), None, true, true), Effect::Exit]);
}

#[test]
fn what_cannot_be_killed_is_named_and_the_keeper_stays_while_the_right_lasts() {
    let mut m = killing();
    m.handle(S, Input::FrontGone);
    let _ = effects(&mut m);
    m.handle(2 * S, Input::Stuck(vec![99]));
    let report = Effect::Report(ToFront::Ended(Ended {
        how: How::StillRunning,
        forced: Some(Reason::FrontGone),
        deadline_passed: false,
        tree_gone: false,
        unkillable: vec![99],
    }));
    assert_eq!(effects(&mut m), [report]);
    assert!(!m.is_killing());
    assert_eq!(m.timer(), Some(30 * S));
    m.handle(30 * S - 1, Input::Tick);
    assert_eq!(effects(&mut m), []);
    m.handle(30 * S, Input::Tick);
    assert_eq!(effects(&mut m), [Effect::Exit]);
}

#[test]
fn a_start_that_failed_is_an_end() {
    let mut m = Machine::new(GRACE, OnDeadline::Kill, false);
    m.handle(0, Input::StartFailed { errno: libc::ENOENT });
    let how = How::StartFailed(libc::ENOENT);
    assert_eq!(effects(&mut m), [ended(how, None, false, true), Effect::Exit]);
    assert_eq!(how.code(), Some(127));
    assert_eq!(How::StartFailed(libc::EACCES).code(), Some(126));
}
