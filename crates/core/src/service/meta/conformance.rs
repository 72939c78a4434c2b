//! What every [`MetaStore`] must do: one suite, run against each of them.

use super::store::{BATCH_OPERATIONS_MAX, Batch, MetaStore, Outcome};
use crate::error::Code;

fn bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn puts(pairs: &[(&str, &str)]) -> Batch {
    let puts = pairs.iter().map(|(key, value)| (bytes(key), bytes(value))).collect();
    Batch { puts, ..Batch::default() }
}

/// Runs the suite. `make` makes an empty store of the given stated memory (bytes).
///
/// # Panics
///
/// Where the store does not do what [`MetaStore`] says.
pub async fn store_conformance<S: MetaStore>(mut make: impl FnMut(u64) -> S) {
    reads_see_commits(&make(1 << 20)).await;
    ranges_are_ordered_half_open_and_limited(&make(1 << 20)).await;
    conditions_guard_the_whole_batch(&make(1 << 20)).await;
    versions_are_never_used_again(&make(1 << 20)).await;
    emptiness_is_a_condition(&make(1 << 20)).await;
    a_moment_hides_no_conflict(&make(1 << 20)).await;
    memory_is_what_was_stated(&make(64 * 1024)).await;
    batches_are_bounded(&make(1 << 20)).await;
}

async fn get(store: &impl MetaStore, key: &str) -> Option<(String, u64)> {
    let found = store.get(key.as_bytes()).await.expect("get works");
    found.map(|found| (String::from_utf8(found.value).expect("text"), found.version))
}

async fn commit(store: &impl MetaStore, batch: Batch) -> Outcome {
    store.commit(batch).await.expect("commit works")
}

async fn reads_see_commits(store: &impl MetaStore) {
    assert_eq!(get(store, "a").await, None);
    assert_eq!(store.usage().used, 0, "an empty store uses nothing");
    assert_eq!(commit(store, puts(&[("a", "1"), ("b", "2")])).await, Outcome::Done);
    let (value, first) = get(store, "a").await.expect("stored");
    assert_eq!(value, "1");
    assert_eq!(commit(store, puts(&[("a", "3")])).await, Outcome::Done);
    let (value, second) = get(store, "a").await.expect("stored");
    assert_eq!(value, "3");
    assert_ne!(first, second);
    let batch = Batch { deletes: vec![bytes("a"), bytes("absent")], ..Batch::default() };
    assert_eq!(commit(store, batch).await, Outcome::Done);
    assert_eq!(get(store, "a").await, None);
    assert_eq!(get(store, "b").await.expect("untouched").0, "2");
    // Empty values and binary keys are values and keys like others.
    let batch = Batch { puts: vec![(vec![0, 255, 0], vec![])], ..Batch::default() };
    assert_eq!(commit(store, batch).await, Outcome::Done);
    let found = store.get(&[0, 255, 0]).await.expect("get works").expect("stored");
    assert_eq!(found.value, Vec::<u8>::new());
}

async fn ranges_are_ordered_half_open_and_limited(store: &impl MetaStore) {
    let all = [("a", "1"), ("aa", "2"), ("b", "3"), ("ba", "4"), ("c", "5")];
    let mut shuffled = all;
    shuffled.reverse();
    commit(store, puts(&shuffled)).await;
    let keys = async |start: &str, end: &str, limit| {
        let items = store.range(start.as_bytes(), end.as_bytes(), limit).await.expect("range");
        for item in &items {
            let got = store.get(&item.key).await.expect("get works").expect("there");
            assert_eq!((got.value, got.version), (item.value.clone(), item.version));
        }
        items.into_iter().map(|item| String::from_utf8(item.key).expect("text")).collect::<Vec<_>>()
    };
    assert_eq!(keys("a", "z", 10).await, ["a", "aa", "b", "ba", "c"]);
    assert_eq!(keys("aa", "c", 10).await, ["aa", "b", "ba"]);
    assert_eq!(keys("a", "z", 2).await, ["a", "aa"]);
    assert_eq!(keys("a\0", "b", 10).await, ["aa"]);
    assert!(keys("b", "b", 10).await.is_empty());
    assert!(keys("c", "a", 10).await.is_empty());
    assert!(keys("a", "z", 0).await.is_empty());
}

async fn conditions_guard_the_whole_batch(store: &impl MetaStore) {
    commit(store, puts(&[("a", "1"), ("b", "2")])).await;
    let (_, version) = get(store, "a").await.expect("stored");
    let batch = Batch {
        conditions: vec![(bytes("a"), Some(version)), (bytes("c"), None)],
        ..puts(&[("a", "x"), ("c", "y")])
    };
    assert_eq!(commit(store, batch.clone()).await, Outcome::Done);
    let used = store.usage().used;
    assert_eq!(commit(store, batch).await, Outcome::Conflict);
    for conditions in [
        vec![(bytes("b"), None)],
        vec![(bytes("absent"), Some(version))],
        vec![(bytes("a"), Some(version))],
    ] {
        let batch =
            Batch { conditions, deletes: vec![bytes("b")], ..puts(&[("a", "z"), ("d", "z")]) };
        assert_eq!(commit(store, batch).await, Outcome::Conflict);
    }
    assert_eq!(get(store, "a").await.expect("kept").0, "x");
    assert_eq!(get(store, "b").await.expect("kept").0, "2");
    assert_eq!(get(store, "d").await, None);
    assert_eq!(store.usage().used, used, "what conflicts changes nothing");
}

async fn versions_are_never_used_again(store: &impl MetaStore) {
    let mut seen = Vec::new();
    for _ in 0..3 {
        commit(store, puts(&[("a", "same")])).await;
        seen.push(get(store, "a").await.expect("stored").1);
        commit(store, Batch { deletes: vec![bytes("a")], ..Batch::default() }).await;
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 3);
}

async fn a_moment_hides_no_conflict(store: &impl MetaStore) {
    assert_eq!(commit(store, puts(&[("a", "1")])).await, Outcome::Done);
    let moment = store.moment();
    let version = get(store, "a").await.expect("stored").1;
    let change = |value: &str| Batch {
        conditions: vec![(bytes("a"), Some(version))],
        moment,
        ..puts(&[("a", value)])
    };
    assert_eq!(commit(store, change("2")).await, Outcome::Done);
    assert_eq!(commit(store, change("3")).await, Outcome::Conflict);
    assert_eq!(get(store, "a").await.expect("stored").0, "2");
    if moment.is_some() {
        assert_ne!(store.moment(), moment);
    }
}

async fn emptiness_is_a_condition(store: &impl MetaStore) {
    commit(store, puts(&[("d/x", "1")])).await;
    let batch = || Batch { empty: vec![(bytes("d/"), bytes("d0"))], ..puts(&[("gone", "d")]) };
    assert_eq!(commit(store, batch()).await, Outcome::Conflict);
    commit(store, Batch { deletes: vec![bytes("d/x")], ..Batch::default() }).await;
    assert_eq!(commit(store, batch()).await, Outcome::Done);
    let beside = Batch { empty: vec![(bytes("a"), bytes("gone"))], ..Batch::default() };
    assert_eq!(commit(store, beside).await, Outcome::Done, "the end is not part of the range");
}

async fn memory_is_what_was_stated(store: &impl MetaStore) {
    let limit = store.usage().limit;
    let value = "v".repeat(1000);
    let key = |i: usize| format!("key {i:05}");
    let mut count = 0;
    let failure = loop {
        let used = store.usage().used;
        match store.commit(puts(&[(&key(count), &value)])).await {
            Ok(outcome) => assert_eq!(outcome, Outcome::Done),
            Err(error) => {
                assert_eq!(store.usage().used, used, "what is refused changes nothing");
                break error;
            }
        }
        count += 1;
        assert!(count < 1000, "a full store refuses");
        assert!(store.usage().used <= limit);
    };
    assert_eq!(failure.code, Code::NoMetadataSpace);
    assert!(count > 30, "{count} kilobytes fit into 64 KiB");
    assert_eq!(get(store, &key(0)).await.expect("still readable").0, value);
    // The reserve is for those who may use it, and what shrinks always works.
    let small = Batch { reserve: true, ..puts(&[("reserve", "r")]) };
    assert_eq!(commit(store, small).await, Outcome::Done);
    for i in 0..count {
        assert_eq!(commit(store, puts(&[(&key(i), "")])).await, Outcome::Done);
    }
    assert_eq!(commit(store, puts(&[(&key(0), &value)])).await, Outcome::Done);
    let deletes = (0..count).map(|i| key(i).into_bytes()).chain([bytes("reserve")]).collect();
    assert_eq!(commit(store, Batch { deletes, ..Batch::default() }).await, Outcome::Done);
    assert_eq!(store.usage().used, 0, "nothing stored, nothing used");
}

async fn batches_are_bounded(store: &impl MetaStore) {
    let deletes = vec![bytes("a"); BATCH_OPERATIONS_MAX + 1];
    let error = store.commit(Batch { deletes, ..Batch::default() }).await.expect_err("too many");
    assert_eq!(error.code, Code::TooMany);
}
