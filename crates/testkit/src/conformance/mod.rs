//! One suite for every store.
//!
//! A file a group, a public function a case; [`conformance!`](crate::conformance!) makes a test of
//! each. What a profile excludes changes the answer that a case asks for and never skips it:
//! without a queue `Busy` is expected, without shared claims `Unsupported`, and so on.
//!
//! Every line under "Behavior" of [`Store`](leasehold_core::Store), and the cases that prove it:
//!
//! | verb | behaviour | proven by |
//! |---|---|---|
//! | `enter` | admits by the shared predicate | [`enter::a_free_resource_is_granted`], [`queue::waiters_are_served_in_order`], [`shared::readers_hold_together`], [`shared::readers_do_not_starve_a_writer`], [`permits::they_fit_the_limit_and_share_no_slot`], [`permits::small_claims_do_not_starve_a_large_one`], [`permits::no_slot_is_out_twice_under_contention`], [`tokens::a_counter_under_the_lock_is_exact`] |
//! | | mints a token above every earlier one | [`tokens::they_rise_over_every_end`], [`clean::tokens_rise_over_it`], [`hurts::an_evicted_holder_is_told`] |
//! | | a re-entry keeps its outer grant's token | [`reentry::it_shares_the_token`], [`reentry::another_client_enters_where_the_store_counts`] |
//! | | without a place it never queues and leaves nothing | [`enter::without_a_place_it_is_busy_and_leaves_nothing`], [`queue::a_try_passes_no_waiter`] |
//! | | with a place it queues, and `changed` tells of it, also of what happened before | [`queue::a_hand_over_is_told_to_who_asks_later`], [`queue::a_hand_over_wakes_who_waits`] |
//! | | entered again, the claim is found where it is | [`enter::entering_again_finds_the_grant`], [`enter::entering_again_finds_the_place`], [`enter::entering_again_does_not_renew`] |
//! | | what has ended is gone | [`enter::what_has_left_is_gone`], [`enter::what_has_run_out_is_gone`], [`leave::an_enter_after_its_leave_makes_no_ghost`] |
//! | | a holder's claim that its grant covers is admitted at once | [`reentry::it_passes_those_who_wait`], [`reentry::there_is_no_upgrade`], [`reentry::inner_permits_add_nothing`] |
//! | | another kind or limit is refused | [`enter::another_kind_is_refused`], [`enter::another_limit_is_refused`], [`enter::impossible_permits_are_refused`] |
//! | | a term out of bounds is refused | [`terms::out_of_bounds_is_refused`] |
//! | `renew` | never creates, never revives | [`renew::it_never_creates`], [`renew::it_never_revives`], [`renew::a_late_renewal_after_a_leave_is_gone`] |
//! | | a grant lasts its new term from now, never less | [`renew::it_lasts_its_new_term_from_now`], [`renew::it_never_shortens`], [`reentry::an_inner_term_shortens_nothing`] |
//! | | a waiting claim keeps its place and is told of its grant | [`renew::a_waiter_keeps_its_place`], [`renew::a_waiter_is_told_of_its_grant`], [`queue::a_silent_waiter_is_passed`] |
//! | | a marked claim is gone, broken | [`breaking::a_marked_holder_is_told_and_keeps_others_out`] |
//! | | each is answered alone | [`renew::each_is_answered_alone_and_in_order`] |
//! | `leave` | ends this claim only | [`leave::it_ends_this_claim_only`], [`leave::a_repeated_leave_touches_no_newer_grant`], [`leave::a_late_leave_touches_no_newer_grant`], [`reentry::a_late_leave_frees_no_newer_count`] |
//! | | hands over to those who now fit | [`shared::a_writer_hands_over_to_all_readers`], [`permits::a_release_hands_over_to_all_that_fit`], [`leave::a_waiter_withdraws`], [`leave::a_withdrawal_that_crosses_the_grant_frees_it`] |
//! | | sent again, it says gone, released | [`leave::sent_again_it_says_gone`] |
//! | | unanswered enters are barred | [`leave::an_enter_after_its_leave_makes_no_ghost`], [`leave::an_enter_is_barred_for_a_term_from_its_leave`], [`leave::an_unanswered_enter_that_arrived_is_ended`] |
//! | | the last claim of a re-entered grant frees it | [`reentry::the_last_claim_frees`] |
//! | `changed` | returns at once after a change, and in time in any case | [`queue::a_hand_over_is_told_to_who_asks_later`], [`queue::a_watch_ends_in_time`], [`hurts::a_reconnect_wakes_waiters`] |
//! | | may return for nothing and miss a change | every case looks again by itself |
//! | `inspect` | shows the queue and changes nothing | [`queue::inspect_shows_the_queue`] |
//! | `list` | names in byte order, changing nothing | [`list::names_are_listed_in_order`], [`list::a_prefix_is_taken_as_bytes`], [`list::pages_follow_each_other`], [`names::each_is_one_of_its_own`] |
//! | `write` | nothing without a grant | [`records::nothing_is_written_without_a_grant`], [`breaking::a_marked_holder_writes_nothing`] |
//! | | replaces the record before; outlives the grant | [`records::it_outlives_its_grant_and_is_replaced`] |
//! | `read` | unless it has run out | [`records::what_is_written_is_read`], [`records::it_runs_out`] |
//! | `break_` | told at renewal; free when it leaves, runs out, or at once | [`breaking::a_marked_holder_is_told_and_keeps_others_out`], [`breaking::a_marked_holder_ends_with_its_term`], [`breaking::now_means_at_once`] |
//! | | only the grant with the expected token | [`breaking::another_token_is_left_alone`] |
//! | | the next token is higher | [`breaking::now_means_at_once`] |
//! | `clean` | later tokens are above all before | [`clean::tokens_rise_over_it`] |
//! | | dry changes nothing | [`clean::a_dry_run_changes_nothing`] |
//! | `close` | claims stay | [`leave::closing_a_client_ends_no_claim_of_term_life`] |

pub mod after_loss;
pub mod breaking;
mod cases;
pub mod clean;
pub mod enter;
pub mod hurts;
pub mod leave;
pub mod list;
pub mod names;
pub mod permits;
pub mod queue;
pub mod records;
pub mod reentry;
pub mod renew;
pub mod shared;
pub mod terms;
pub mod tokens;
mod world;

pub use world::{Form, Watch, World, answered, run_case, run_case_as};
