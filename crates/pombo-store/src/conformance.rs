//! The suite that every store passes.
//!
//! A store's tests hand [`crate::conformance_suite!`] an async function that makes a fresh [`Database`]; the
//! macro expands to one test per case, so that the behaviour's name shows in the output. A case is an async
//! function over a [`Database`] in the module of its topic, and stands in the list below.
//!
//! Some cases must age rows or damage them. They do it through [`Database::execute`] with SQL that both
//! databases read, over these names (every store has them): `session(id, state, expires_at, died_at)`,
//! `event_key(tenant_id, key, expires_at)`, `event(id, body)`, `delivery(id, event_id, endpoint_id, owner,
//! gen, seq, due_at, not_before, rescues)`, `attempt(delivery_id, started_at, settles, late)`,
//! `dead_letter(delivery_id, died_at)`, `outbox(id, tenant, type, data, key, …)`, `outbox_rejected(reason)`,
//! `config(version)`.

use std::sync::Arc;

use async_trait::async_trait;
use uuid::Uuid;

use pombo_domain::clock::Timestamp;

use crate::Store;

pub mod accept;
pub mod admin;
pub mod check;
pub mod claim;
pub mod endpoints;
pub mod flush;
pub mod outbox;
pub mod parking;
pub mod people;
pub mod reading;
pub mod scene;
pub mod sessions;

/// A database that belongs to one test and is gone after it.
#[async_trait]
pub trait Database: Send + Sync {
    /// Opens a store on it, migrated, with the keyring of this database.
    async fn open(&self) -> Arc<dyn Store>;

    /// Closes `old`, the only handle on its store, and opens the database again, as a new process would.
    async fn reopen(&self, old: Arc<dyn Store>) -> Arc<dyn Store>;

    /// The full name of a table (`pombo_delivery`, `pombo.delivery`).
    fn table(&self, name: &str) -> String;

    /// A uuid as a literal of this database.
    fn uuid(&self, id: Uuid) -> String;

    /// An instant as a literal of this database.
    fn time(&self, at: Timestamp) -> String;

    /// Runs one statement as an application or a person at a prompt would: on a connection of its own,
    /// committed. Returns the number of rows changed.
    async fn execute(&self, sql: &str) -> u64;

    /// Runs a query that gives one whole number.
    async fn number(&self, sql: &str) -> i64;

    /// Whether these bytes stand anywhere in what the database keeps: in any column of any table of Pombo,
    /// or in its files.
    async fn holds(&self, needle: &[u8]) -> bool;
}

/// Makes one `#[tokio::test]` per case. `$fresh` is the name of an async function in the calling module that
/// returns `Box<dyn Database>`.
#[macro_export]
macro_rules! conformance_suite {
    ($fresh:ident) => {
        $crate::conformance_topic!(
            $fresh,
            sessions,
            [
                a_session_id_is_never_used_twice,
                deliverers_are_live_and_deliver,
                the_epoch_stays_while_the_database_lives,
                an_expired_session_is_not_renewed,
                only_expired_sessions_are_buried,
                an_ended_session_stays_ended,
                rows_of_the_dead_are_claimed_by_others,
                rows_of_the_living_and_the_expired_stay,
                releasing_goes_in_chunks,
                releasing_matches_whole_tokens,
                rescues_count_until_an_attempt_is_recorded,
                a_released_row_keeps_its_time,
                a_lease_is_taken_over_only_from_the_dead,
                dead_sessions_are_forgotten_after_a_day,
            ]
        );
        $crate::conformance_topic!(
            $fresh,
            accept,
            [
                an_event_is_there_with_its_deliveries,
                bodies_are_kept_byte_for_byte,
                a_stale_batch_inserts_nothing,
                every_change_of_an_endpoint_makes_batches_stale,
                a_taken_key_is_answered_with_the_earlier_event,
                the_first_of_a_batch_has_the_key,
                keys_are_apart_by_tenant,
                an_expired_key_is_taken_over,
                placements_are_kept,
                a_due_time_in_the_past_becomes_now,
                waiting_for_ever_is_waiting_for_no_time,
                accepted_order_is_the_order_of_the_batch,
                an_unmatched_event_is_kept,
                an_event_keeps_what_came_with_it,
                a_refused_batch_leaves_nothing_behind,
            ]
        );
        $crate::conformance_topic!(
            $fresh,
            outbox,
            [
                a_row_becomes_an_event,
                defaults_make_rows_complete,
                rows_come_in_order_and_within_bounds,
                the_floor_hides_rows_and_marks_grow,
                only_the_holder_of_the_lease_relays,
                a_stale_relay_takes_nothing,
                a_bad_row_is_set_aside,
                a_taken_key_is_dropped_or_set_aside,
                a_row_relayed_twice_is_one_event,
                an_id_used_for_another_event_is_set_aside,
                the_tenant_of_a_row_is_made,
                a_row_comes_as_it_was_written,
            ]
        );
        $crate::conformance_topic!(
            $fresh,
            claim,
            [
                a_claimed_row_is_owned_once,
                only_my_shards_are_claimed,
                what_waits_is_not_claimed,
                the_oldest_due_come_first,
                half_of_a_claim_is_for_the_fresh,
                the_floor_hides_what_lies_below,
                a_claim_tells_of_holds,
                a_claim_tells_clock_and_version,
                missing_bodies_are_left_out,
                a_claimed_row_reads_as_sending,
            ]
        );
        $crate::conformance_topic!(
            $fresh,
            flush,
            [
                a_success_settles,
                an_attempt_is_kept_whole,
                a_retry_waits_for_its_time,
                a_late_written_retry_is_due_now,
                a_dead_delivery_is_a_dead_letter,
                a_repeated_flush_changes_nothing,
                a_late_success_settles_a_released_row,
                a_late_success_leaves_an_owned_row,
                a_late_success_leaves_a_row_that_moved_on,
                a_late_failure_changes_nothing,
                a_late_result_is_recorded_once,
                a_result_written_before_its_row_settles_when_it_is_repeated,
                a_result_after_the_end_is_late,
                a_token_matches_in_all_three_parts,
                results_keep_the_order_of_the_items,
                record_only_changes_no_row,
                the_later_hold_stays,
                gone_disables_the_endpoint,
                gone_leaves_what_a_person_disabled,
                a_retry_may_park,
                an_empty_flush_is_fine,
            ]
        );
        $crate::conformance_topic!(
            $fresh,
            parking,
            [
                a_claimed_row_is_given_back,
                endpoints_with_parked_rows_are_found,
                the_oldest_parked_wake_first,
                a_woken_row_keeps_its_time,
                nothing_wakes_of_an_endpoint_that_is_not_active,
                no_room_tells_of_the_backlog,
                parked_rows_of_a_paused_endpoint_read_as_paused,
                a_parked_row_taken_by_a_person_parks_again,
                rows_of_a_deleted_endpoint_are_cancelled,
            ]
        );
        $crate::conformance_topic!(
            $fresh,
            endpoints,
            [
                settings_come_back_as_they_were_set,
                an_update_needs_the_version_it_saw,
                a_status_change_twice_is_once,
                an_old_secret_signs_until_its_overlap_is_over,
                a_deleted_endpoint_is_unknown,
                an_unknown_endpoint_is_no_error,
                the_catalogue_tells_what_changed,
                endpoints_are_apart_by_tenant,
                endpoints_are_listed_in_pages,
                secrets_are_sealed,
            ]
        );
        $crate::conformance_topic!(
            $fresh,
            reading,
            [
                live_and_settled_are_one_list,
                a_status_gives_its_deliveries,
                filters_narrow_both_halves,
                times_narrow_lists,
                pages_stay_stable_while_rows_move,
                a_full_last_page_has_no_next,
                events_are_listed_in_pages,
                reads_are_apart_by_tenant,
                unknown_ids_are_nothing,
                a_revived_delivery_reads_as_its_latest_life,
                dead_letters_are_listed_in_pages,
                a_hold_is_shown_with_its_deliveries,
                the_last_message_is_shown,
            ]
        );
        $crate::conformance_topic!(
            $fresh,
            people,
            [
                a_waiting_row_is_taken_by_a_person,
                a_parked_row_taken_by_a_person_keeps_its_time,
                only_an_unowned_live_row_is_taken,
                a_failed_manual_attempt_leaves_the_schedule,
                a_dead_letter_is_revived,
                only_the_dead_and_the_cancelled_are_revived,
                a_cancelled_delivery_is_revived,
                a_revival_behind_a_paused_endpoint_is_parked,
                each_run_ends_once,
                an_old_failure_does_not_touch_a_revived_row,
                a_live_delivery_is_cancelled,
                a_cancellation_without_reason_has_none,
                only_live_deliveries_are_cancelled,
                a_cancellation_is_the_newest_record,
                acts_are_audited_with_their_reason,
                a_manual_claim_ends_older_tokens,
            ]
        );
        $crate::conformance_topic!(
            $fresh,
            admin,
            [
                migrating_twice_is_migrating_once,
                the_first_key_is_made_once,
                a_key_is_found_by_its_hash,
                the_audit_log_is_listed_in_pages,
                the_database_answers,
                the_sample_counts_what_is_there,
            ]
        );
        $crate::conformance_topic!(
            $fresh,
            check,
            [
                a_used_database_is_sound,
                a_lost_delivery_is_found,
                a_settled_row_that_is_live_is_found,
                dead_letters_and_deaths_must_agree,
                owners_that_are_gone_are_found,
                a_missing_body_is_found,
                a_finding_names_an_example,
            ]
        );
    };
}

/// One module of [`conformance_suite!`].
#[macro_export]
macro_rules! conformance_topic {
    ($fresh:ident, $topic:ident, [$($case:ident),* $(,)?]) => {
        mod $topic {
            $(
                #[tokio::test]
                async fn $case() {
                    let database = super::$fresh().await;
                    $crate::conformance::$topic::$case(&*database).await;
                }
            )*
        }
    };
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    /// A case that is missing from the list would be a test that never runs.
    #[test]
    fn every_case_is_listed() {
        let list: Vec<_> = include_str!("conformance.rs").split_whitespace().collect();
        let list = list.join(" ");
        for (topic, text) in [
            ("accept", include_str!("conformance/accept.rs")),
            ("admin", include_str!("conformance/admin.rs")),
            ("check", include_str!("conformance/check.rs")),
            ("claim", include_str!("conformance/claim.rs")),
            ("endpoints", include_str!("conformance/endpoints.rs")),
            ("flush", include_str!("conformance/flush.rs")),
            ("outbox", include_str!("conformance/outbox.rs")),
            ("parking", include_str!("conformance/parking.rs")),
            ("people", include_str!("conformance/people.rs")),
            ("reading", include_str!("conformance/reading.rs")),
            ("sessions", include_str!("conformance/sessions.rs")),
        ] {
            let start =
                list.find(&format!("$fresh, {topic}, [")).unwrap_or_else(|| panic!("{topic} is not listed"));
            let end = start + list[start..].find(']').expect("a closed list");
            let names: HashSet<&str> = list[start..end].split([' ', ',', '[', '\n']).collect();
            let cases = text.lines().filter_map(|line| line.strip_prefix("pub async fn "));
            for case in cases.map(|rest| rest.split('(').next().expect("a name")) {
                assert!(names.contains(case), "{topic}::{case} is not listed");
            }
        }
    }
}
