//! The lists of cases, and the macro that makes tests of them.

/// Makes one `#[test]` a case of the suite, in a module `conformance`.
///
/// The expression makes a fresh [`Harness`](crate::Harness); it is evaluated once a case. The cases
/// of a mutex are run three times: on plain locks, on semaphores of one permit, and on the
/// exclusive claims of read-write locks. No case is ever left out: a limitation that the profile
/// states changes the answer that is asked for.
///
/// ```
/// # mod tests {
/// use leasehold_testkit::MemoryHarness;
///
/// leasehold_testkit::conformance!(MemoryHarness::new());
/// # }
/// ```
#[macro_export]
macro_rules! conformance {
    ($harness:expr) => {
        mod conformance {
            #[allow(unused_imports, reason = "the expression may name them")]
            use super::*;

            $crate::__once_cases! { $harness }
            $crate::__mutex_cases! { $harness, Lock }

            mod one_permit {
                #[allow(unused_imports, reason = "the expression may name them")]
                use super::super::*;
                $crate::__mutex_cases! { $harness, OnePermit }
            }

            mod write_lock {
                #[allow(unused_imports, reason = "the expression may name them")]
                use super::super::*;
                $crate::__mutex_cases! { $harness, WriteLock }
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __mutex_cases {
    ($harness:expr, $form:ident) => {
        $crate::__cases! { $harness, $form,
            enter:
                a_free_resource_is_granted
                without_a_place_it_is_busy_and_leaves_nothing
                a_busy_answer_names_the_holder
                entering_again_finds_the_grant
                entering_again_does_not_renew
                entering_again_finds_the_place
                what_has_left_is_gone
                what_has_run_out_is_gone
                another_kind_is_refused
                another_limit_is_refused
                impossible_permits_are_refused
                the_first_grant_says_so;
            renew:
                it_never_creates
                it_never_revives
                a_late_renewal_after_a_leave_is_gone
                it_lasts_its_new_term_from_now
                it_never_shortens
                without_a_token_it_tells_the_grant
                it_names_the_grant
                a_waiter_keeps_its_place
                a_waiter_is_told_of_its_grant
                each_is_answered_alone_and_in_order
                an_empty_batch_is_empty
                it_may_change_the_life;
            leave:
                it_ends_this_claim_only
                sent_again_it_says_gone
                a_repeated_leave_touches_no_newer_grant
                a_late_leave_touches_no_newer_grant
                a_waiter_withdraws
                a_withdrawal_that_crosses_the_grant_frees_it
                an_enter_after_its_leave_makes_no_ghost
                an_enter_is_barred_for_a_term_from_its_leave
                an_unanswered_enter_that_arrived_is_ended
                another_client_may_act_by_the_id
                closing_a_client_ends_no_claim_of_term_life;
            queue:
                waiters_are_served_in_order
                a_try_passes_no_waiter
                a_silent_waiter_is_passed
                a_silent_new_holder_is_passed
                a_hand_over_is_told_to_who_asks_later
                a_hand_over_wakes_who_waits
                a_watch_ends_in_time
                a_waiting_answer_says_when_to_look_again
                inspect_shows_the_queue;
            reentry:
                it_shares_the_token
                another_client_enters_where_the_store_counts
                the_last_claim_frees
                an_inner_term_shortens_nothing
                an_outer_term_ends_alone
                it_passes_those_who_wait
                a_label_does_not_reenter
                a_late_leave_frees_no_newer_count
                there_is_no_upgrade
                inner_permits_add_nothing;
            breaking:
                a_marked_holder_is_told_and_keeps_others_out
                a_marked_holder_ends_with_its_term
                now_means_at_once
                another_token_is_left_alone
                nothing_is_nothing
                a_marked_holder_writes_nothing
                a_marked_grant_is_not_reentered;
            after_loss:
                a_careful_claim_is_held_back
                nobody_passes_it
                a_clean_end_holds_nobody_back
                a_grant_tells_how_the_one_before_ended;
            tokens:
                they_rise_over_every_end
                they_survive_json
                a_counter_under_the_lock_is_exact;
            terms:
                out_of_bounds_is_refused
                a_grant_ends_by_itself
                belief_ends_before_another_gets_in;
            hurts:
                a_dead_holder_frees
                a_claim_of_term_life_outlives_its_maker
                a_dead_waiter_is_passed
                an_evicted_holder_is_told
                cut_connections_lose_nothing
                a_reconnect_wakes_waiters
                a_silent_server_loses_nothing;
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __once_cases {
    ($harness:expr) => {
        $crate::__cases! { $harness, Lock,
            shared:
                readers_hold_together
                a_writer_waits_for_all_readers
                readers_do_not_starve_a_writer
                a_writer_hands_over_to_all_readers
                a_withdrawn_writer_lets_readers_in;
            permits:
                they_fit_the_limit_and_share_no_slot
                a_free_slot_is_given_again
                a_release_hands_over_to_all_that_fit
                small_claims_do_not_starve_a_large_one
                no_slot_is_out_twice_under_contention;
            records:
                what_is_written_is_read
                it_outlives_its_grant_and_is_replaced
                nothing_is_written_without_a_grant
                it_runs_out
                too_large_is_refused;
            list:
                names_are_listed_in_order
                a_prefix_is_taken_as_bytes
                pages_follow_each_other;
            clean:
                tokens_rise_over_it
                what_was_used_lately_stays
                a_dry_run_changes_nothing
                what_lives_stays
                it_goes_page_by_page;
            names:
                each_is_one_of_its_own
                the_longest_works
                labels_come_back;
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __cases {
    ($harness:expr, $form:ident, $($group:ident: $($case:ident)*;)*) => {
        $(mod $group {
            #[allow(unused_imports, reason = "the expression may name them")]
            use super::*;
            $(
                #[test]
                fn $case() {
                    $crate::run_case_as($harness, $crate::Form::$form, |w| {
                        ::std::boxed::Box::pin($crate::conformance::$group::$case(w))
                    });
                }
            )*
        })*
    };
}

#[cfg(test)]
mod tests {
    /// A case that no list names would silently never run.
    #[test]
    fn every_case_is_in_the_lists() {
        let lists = include_str!("cases.rs");
        let files = [
            include_str!("after_loss.rs"),
            include_str!("breaking.rs"),
            include_str!("clean.rs"),
            include_str!("enter.rs"),
            include_str!("hurts.rs"),
            include_str!("leave.rs"),
            include_str!("list.rs"),
            include_str!("names.rs"),
            include_str!("permits.rs"),
            include_str!("queue.rs"),
            include_str!("records.rs"),
            include_str!("reentry.rs"),
            include_str!("renew.rs"),
            include_str!("shared.rs"),
            include_str!("terms.rs"),
            include_str!("tokens.rs"),
        ];
        let mut count = 0;
        for line in files.iter().flat_map(|file| file.lines()) {
            let Some(rest) = line.strip_prefix("pub async fn ") else { continue };
            let name = rest.split('(').next().unwrap_or_default();
            let listed = lists.lines().any(|l| l.trim().trim_end_matches(';') == name);
            assert!(listed, "the case {name} is in no list");
            count += 1;
        }
        assert!(count >= 80, "only {count} cases were found");
    }
}
