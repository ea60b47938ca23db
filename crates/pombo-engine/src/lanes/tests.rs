use std::collections::BTreeMap;

use proptest::prelude::*;
use uuid::Uuid;

use pombo_domain::id::{DeliveryId, EventId};

use super::*;

const ROOM: u32 = limits::LANE_ROOM_MIN as u32;

fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn rules(endpoint: u128, tenant: u128, cap: u16) -> LaneRules {
    let id = Uuid::from_u128;
    LaneRules { endpoint: EndpointId(id(endpoint)), tenant: TenantId(id(tenant)), cap }
}

fn job(rules: LaneRules, number: u128) -> Job {
    let token = Token { id: DeliveryId(Uuid::from_u128(number)), owner: SessionId(1), generation: 1 };
    let delivery = ClaimedDelivery {
        token,
        event_id: EventId(Uuid::from_u128(number)),
        event_at: at(0),
        kind: "order.paid".parse().expect("a type"),
        endpoint_id: rules.endpoint,
        tenant_id: rules.tenant,
        created_at: at(0),
        attempts: 0,
        rescues: 0,
        not_before: None,
    };
    Job { delivery, content: None, manual: None }
}

fn job_with(rules: LaneRules, number: u128, bytes: usize) -> Job {
    let content = Content { body: vec![0; bytes].into(), content_type: "text/plain".into() };
    Job { content: Some(content), ..job(rules, number) }
}

fn manual(rules: LaneRules, number: u128) -> Job {
    let wish = Manual { due_at: at(0), answer: None, force: false };
    Job { manual: Some(wish), ..job(rules, number) }
}

fn claim(lanes: &Lanes, rules: LaneRules, numbers: impl IntoIterator<Item = u128>) -> Vec<Displaced> {
    lanes.push_claimed(numbers.into_iter().map(|number| (rules, job(rules, number))).collect(), at(0))
}

fn next(lanes: &Lanes) -> Option<u128> {
    lanes.next().map(|job| job.token().id.0.as_u128())
}

#[test]
fn turns_go_round_tenants_then_endpoints() {
    let lanes = Lanes::default();
    let (a1, a2, b) = (rules(1, 10, 8), rules(2, 10, 8), rules(3, 20, 8));
    assert!(claim(&lanes, a1, [11, 12, 13]).is_empty());
    assert!(claim(&lanes, a2, [21, 22]).is_empty());
    assert!(claim(&lanes, b, [31, 32]).is_empty());
    let order: Vec<_> = std::iter::from_fn(|| next(&lanes)).collect();
    assert_eq!(order, [11, 31, 21, 32, 12, 22, 13]);
}

#[test]
fn no_more_than_the_cap_is_in_flight() {
    let lanes = Lanes::default();
    let one = rules(1, 1, 2);
    assert!(claim(&lanes, one, 1..=5).is_empty());
    assert_eq!((next(&lanes), next(&lanes), next(&lanes)), (Some(1), Some(2), None));
    assert_eq!(lanes.ready_to_send(), 0, "a slow receiver is no reason to hold accepts");
    lanes.finished(one.endpoint);
    assert_eq!((next(&lanes), next(&lanes)), (Some(3), None));
}

#[test]
fn a_hold_gives_back_what_is_queued_and_refuses_what_comes() {
    let lanes = Lanes::default();
    let one = rules(1, 1, 8);
    assert!(claim(&lanes, one, [1, 2]).is_empty());
    assert_eq!(lanes.reserve(one, at(0)), Place::Reserved);
    let back = lanes.hold(one, at(100));
    assert_eq!(back.iter().map(|job| job.due_at).collect::<Vec<_>>(), [at(100), at(100)]);
    assert_eq!(next(&lanes), None);
    assert_eq!(lanes.reserve(one, at(1)), Place::HoldUntil(at(100)));
    let late = lanes.push_reserved(vec![(one, job(one, 3))], at(1));
    assert_eq!(late[0].due_at, at(100), "the commit came after the hold");
    assert_eq!(claim(&lanes, one, [4])[0].due_at, at(100));
    assert!(lanes.hold(one, at(50)).is_empty());
    assert_eq!(lanes.hold_of(one.endpoint, at(1)), Some(at(100)), "a later end stays");
    assert_eq!(lanes.hold_of(one.endpoint, at(100)), None);
    assert_eq!(lanes.reserve(one, at(100)), Place::Reserved);
}

#[test]
fn a_person_passes_hold_room_and_queue() {
    let lanes = Lanes::default();
    let one = rules(1, 1, 1);
    assert!(claim(&lanes, one, 1..=u128::from(ROOM)).is_empty());
    assert!(lanes.push_claimed(vec![(one, manual(one, 100))], at(0)).is_empty());
    assert_eq!(next(&lanes), Some(100));
    assert!(lanes.push_claimed(vec![(one, manual(one, 101))], at(0)).is_empty());
    assert_eq!(lanes.hold(one, at(100)).len(), ROOM as usize, "the person's job stays");
    assert_eq!(next(&lanes), None, "but the cap counts for everyone");
    lanes.finished(one.endpoint);
    assert_eq!(next(&lanes), Some(101));
}

#[test]
fn a_full_lane_parks_and_wakes_its_backlog_when_half_empty() {
    let lanes = Lanes::default();
    let one = rules(1, 1, 8);
    for _ in 0..ROOM {
        assert_eq!(lanes.reserve(one, at(0)), Place::Reserved);
    }
    assert_eq!(lanes.reserve(one, at(0)), Place::Park);
    let jobs = (0..u128::from(ROOM)).map(|number| (one, job(one, number))).collect();
    assert!(lanes.push_reserved(jobs, at(0)).is_empty());
    assert_eq!(claim(&lanes, one, [99])[0].due_at, Timestamp::INFINITY);
    for _ in 0..ROOM / 2 {
        assert_eq!(lanes.take_wakes(at(0)), [], "not yet half empty");
        next(&lanes).expect("a job");
        lanes.finished(one.endpoint);
    }
    assert_eq!(lanes.take_wakes(at(0)), [(one.endpoint, ROOM / 2)]);
    assert_eq!(lanes.reserve(one, at(0)), Place::Park, "behind the backlog");
    lanes.woken(one.endpoint, Some((1, false)), at(0));
    assert_eq!(lanes.reserve(one, at(0)), Place::Reserved, "no backlog any more");
}

#[test]
fn woken_rows_that_do_not_come_are_forgotten_and_more_is_woken() {
    let lanes = Lanes::default();
    let one = rules(1, 1, 8);
    lanes.note_backlog(one);
    assert_eq!(lanes.take_wakes(at(0)), [(one.endpoint, ROOM)]);
    lanes.woken(one.endpoint, Some((ROOM, true)), at(0));
    assert_eq!(lanes.take_wakes(at(0)), []);
    assert!(lanes.expects());
    assert_eq!(lanes.take_wakes(at(2)), [(one.endpoint, ROOM)]);
    assert!(!lanes.expects());
    lanes.woken(one.endpoint, Some((0, true)), at(2));
    assert_eq!(lanes.take_wakes(at(2)), [(one.endpoint, ROOM)], "rows that keep a later time take no room");
    lanes.woken(one.endpoint, None, at(2));
    assert_eq!(lanes.take_wakes(at(2)), [], "a failure is not repeated at once");
    lanes.note_backlog(one);
    assert_eq!(lanes.take_wakes(at(2)), [(one.endpoint, ROOM)]);
    lanes.woken(one.endpoint, Some((0, false)), at(2));
    assert!(lanes.lock().lanes.is_empty(), "nothing is kept of an idle lane");
}

#[test]
fn accepts_go_on_while_a_backlog_is_only_sought() {
    let lanes = Lanes::default();
    let one = rules(1, 1, 8);
    lanes.seek_backlog(one);
    assert_eq!(lanes.reserve(one, at(0)), Place::Reserved);
    assert_eq!(lanes.take_wakes(at(0)), [(one.endpoint, ROOM - 1)]);
    lanes.woken(one.endpoint, Some((1, true)), at(0));
    assert_eq!(lanes.reserve(one, at(0)), Place::Park, "there is one");
}

#[test]
fn a_backlog_under_a_hold_stays_parked() {
    let lanes = Lanes::default();
    let one = rules(1, 1, 8);
    assert!(lanes.hold(one, at(100)).is_empty());
    lanes.note_backlog(one);
    assert_eq!(lanes.take_wakes(at(1)), []);
    lanes.note_backlog(one);
    assert_eq!(lanes.take_wakes(at(101)), [(one.endpoint, ROOM)]);
}

#[test]
fn bodies_over_the_bound_are_left_in_the_database() {
    let lanes = Lanes::default();
    let one = rules(1, 1, 8);
    let half = limits::LANE_BYTES_MAX / 2 + 1;
    let jobs =
        vec![(one, job_with(one, 1, half)), (one, job_with(one, 2, half)), (one, job_with(one, 3, 10))];
    assert!(lanes.push_claimed(jobs, at(0)).is_empty());
    let kept: Vec<_> = std::iter::from_fn(|| lanes.next()).map(|job| job.content.is_some()).collect();
    assert_eq!(kept, [true, false, true]);
    assert_eq!(lanes.bytes_free(), limits::LANE_BYTES_MAX);
}

#[test]
fn drained_jobs_leave_nothing_behind() {
    let lanes = Lanes::default();
    let (one, two) = (rules(1, 1, 8), rules(2, 1, 8));
    assert!(claim(&lanes, one, [1, 2]).is_empty());
    assert!(claim(&lanes, two, [3]).is_empty());
    assert_eq!(lanes.drain(|job| job.delivery.endpoint_id == one.endpoint).len(), 2);
    assert_eq!((next(&lanes), next(&lanes)), (Some(3), None));
    assert_eq!(lanes.drain_session(SessionId(2)).len(), 0);
    lanes.finished(two.endpoint);
    lanes.tidy(at(0));
    assert!(lanes.lock().lanes.is_empty());
}

#[derive(Debug, Clone)]
enum Step {
    Reserve(u128),
    Commit(u128),
    Abort(u128),
    Claim(u128, bool),
    Next,
    Finish(u128),
    Hold(u128, i64),
    Pass(i64),
    Wakes,
    Woken(u128, u32, bool),
    Drain(u128),
    Tidy,
}

fn step() -> impl Strategy<Value = Step> {
    let endpoint = 0_u128..5;
    prop_oneof![
        4 => endpoint.clone().prop_map(Step::Reserve),
        3 => endpoint.clone().prop_map(Step::Commit),
        1 => endpoint.clone().prop_map(Step::Abort),
        3 => (endpoint.clone(), any::<bool>()).prop_map(|(endpoint, manual)| Step::Claim(endpoint, manual)),
        6 => Just(Step::Next),
        5 => endpoint.clone().prop_map(Step::Finish),
        1 => (endpoint.clone(), 1_i64..20).prop_map(|(endpoint, secs)| Step::Hold(endpoint, secs)),
        1 => (1_i64..10).prop_map(Step::Pass),
        1 => Just(Step::Wakes),
        1 => (endpoint.clone(), 0_u32..40, any::<bool>()).prop_map(|(e, woken, more)| Step::Woken(e, woken, more)),
        1 => endpoint.prop_map(Step::Drain),
        1 => Just(Step::Tidy),
    ]
}

/// What the test itself counts of an endpoint.
#[derive(Default)]
struct Book {
    queued: usize,
    in_flight: usize,
    reserved: usize,
}

proptest! {
    #[test]
    fn counters_match_what_went_in_and_out(steps in proptest::collection::vec(step(), 1..400)) {
        let lanes = Lanes::default();
        let mut books: BTreeMap<u128, Book> = BTreeMap::new();
        let (mut now, mut number) = (0, 0);
        let rules_at = |endpoint: u128| rules(endpoint, endpoint % 2, 1 + endpoint as u16);
        let id = |rules: LaneRules| rules.endpoint.0.as_u128();
        for step in steps {
            number += 1;
            match step {
                Step::Reserve(endpoint) => {
                    if lanes.reserve(rules_at(endpoint), at(now)) == Place::Reserved {
                        books.entry(endpoint).or_default().reserved += 1;
                    }
                }
                Step::Commit(endpoint) => {
                    let book = books.entry(endpoint).or_default();
                    if book.reserved > 0 {
                        let one = rules_at(endpoint);
                        let back = lanes.push_reserved(vec![(one, job_with(one, number, 7))], at(now));
                        book.reserved -= 1;
                        book.queued += 1 - back.len();
                    }
                }
                Step::Abort(endpoint) => {
                    let book = books.entry(endpoint).or_default();
                    if book.reserved > 0 {
                        lanes.unreserve(rules_at(endpoint).endpoint);
                        book.reserved -= 1;
                    }
                }
                Step::Claim(endpoint, by_person) => {
                    let one = rules_at(endpoint);
                    let claimed = if by_person { manual(one, number) } else { job_with(one, number, 3) };
                    let back = lanes.push_claimed(vec![(one, claimed)], at(now));
                    prop_assert!(!by_person || back.is_empty());
                    books.entry(endpoint).or_default().queued += 1 - back.len();
                }
                Step::Next => {
                    if let Some(job) = lanes.next() {
                        let book = books.entry(job.delivery.endpoint_id.0.as_u128()).or_default();
                        book.queued -= 1;
                        book.in_flight += 1;
                    } else {
                        for (endpoint, book) in &books {
                            let cap = usize::from(rules_at(*endpoint).cap);
                            prop_assert!(book.queued == 0 || book.in_flight >= cap, "a runnable lane is passed over");
                        }
                    }
                }
                Step::Finish(endpoint) => {
                    let book = books.entry(endpoint).or_default();
                    if book.in_flight > 0 {
                        lanes.finished(rules_at(endpoint).endpoint);
                        book.in_flight -= 1;
                    }
                }
                Step::Hold(endpoint, secs) => {
                    let back = lanes.hold(rules_at(endpoint), at(now + secs));
                    books.entry(endpoint).or_default().queued -= back.len();
                }
                Step::Pass(secs) => now += secs,
                Step::Wakes => drop(lanes.take_wakes(at(now))),
                Step::Woken(endpoint, woken, more) => {
                    lanes.woken(rules_at(endpoint).endpoint, Some((woken, more)), at(now));
                }
                Step::Drain(endpoint) => {
                    let one = rules_at(endpoint);
                    let left = lanes.drain(|job| job.delivery.endpoint_id == one.endpoint);
                    prop_assert!(left.iter().all(|job| job.delivery.endpoint_id.0.as_u128() == id(one)));
                    let book = books.entry(endpoint).or_default();
                    prop_assert_eq!(left.len(), book.queued);
                    book.queued = 0;
                }
                Step::Tidy => lanes.tidy(at(now)),
            }
            check(&lanes, &books)?;
        }
        end(&lanes, &mut books, at(now + 1000))?;
    }
}

/// The lanes say what the test counted, and nothing is over its bound.
fn check(lanes: &Lanes, books: &BTreeMap<u128, Book>) -> Result<(), TestCaseError> {
    let inner = lanes.lock();
    let (mut bytes, mut ready) = (0, 0);
    for (endpoint, book) in books {
        let lane = inner.lanes.get(&EndpointId(Uuid::from_u128(*endpoint)));
        let seen =
            lane.map_or((0, 0, 0), |lane| (lane.queue.len(), usize::from(lane.in_flight), lane.reserved));
        prop_assert_eq!(seen, (book.queued, book.in_flight, book.reserved));
        let Some(lane) = lane else { continue };
        prop_assert!(lane.in_flight <= lane.cap);
        prop_assert!(lane.ready() == 0 || lane.in_ring);
        let by_rule = lane.queue.iter().filter(|job| job.manual.is_none()).count();
        prop_assert!(by_rule + lane.reserved <= lane.room());
        bytes += lane.queue.iter().map(Job::body_bytes).sum::<usize>();
        ready += lane.ready();
    }
    prop_assert_eq!((inner.bytes, inner.ready), (bytes, ready));
    let in_rings: usize = inner.rings.values().map(VecDeque::len).sum();
    prop_assert_eq!(in_rings, inner.lanes.values().filter(|lane| lane.in_ring).count());
    prop_assert_eq!(inner.tenants.len(), inner.rings.len());
    Ok(())
}

/// When all that was begun has ended, nothing is left.
fn end(lanes: &Lanes, books: &mut BTreeMap<u128, Book>, now: Timestamp) -> Result<(), TestCaseError> {
    for (endpoint, book) in books {
        let endpoint = EndpointId(Uuid::from_u128(*endpoint));
        (0..book.reserved).for_each(|_| lanes.unreserve(endpoint));
        (0..book.in_flight).for_each(|_| lanes.finished(endpoint));
    }
    while let Some(job) = lanes.next() {
        lanes.finished(job.delivery.endpoint_id);
    }
    let endpoints: Vec<_> = lanes.lock().lanes.keys().copied().collect();
    for endpoint in endpoints {
        lanes.woken(endpoint, Some((0, false)), now);
    }
    drop(lanes.take_wakes(now));
    lanes.tidy(now);
    let inner = lanes.lock();
    prop_assert!(inner.lanes.is_empty(), "{} lanes are left", inner.lanes.len());
    prop_assert_eq!((inner.bytes, inner.ready, inner.rings.len()), (0, 0, 0));
    Ok(())
}
