//! Answers that are worked out once, whoever asks.

use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustc_hash::{FxBuildHasher, FxHashMap};

/// Answers by question, up to `most` of them: what is asked beyond that is worked out anew.
#[derive(Debug)]
pub(crate) struct Memo<K, V> {
    places: Mutex<FxHashMap<K, Arc<OnceLock<V>>>>,
    most: usize,
}

impl<K, V> Memo<K, V> {
    pub(crate) const fn new(most: usize) -> Self {
        Self { places: Mutex::new(FxHashMap::with_hasher(FxBuildHasher)), most }
    }
}

/// Of any number of questions.
impl<K, V> Default for Memo<K, V> {
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl<K: Eq + Hash, V: Clone> Memo<K, V> {
    /// The answer to a question. Others may ask other questions meanwhile; who asks this one waits.
    pub(crate) fn get(&self, question: K, answer: impl FnOnce() -> V) -> V {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = if places.len() < self.most || places.contains_key(&question) {
            Arc::clone(places.entry(question).or_default())
        } else {
            Arc::default()
        };
        drop(places);
        place.get_or_init(answer).clone()
    }

    /// How many questions it knows.
    pub(crate) fn len(&self) -> usize {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an answer is worked out once, and what there is no room for is answered all the same.
    #[test]
    fn answers_are_worked_out_once() {
        let memo = Memo::new(1);
        let mut worked = Vec::new();
        let mut ask = |question: u32| {
            memo.get(question, || {
                worked.push(question);
                2 * question
            })
        };
        assert_eq!([ask(1), ask(1), ask(2), ask(2), ask(1)], [2, 2, 4, 4, 2]);
        assert_eq!((worked, memo.len()), (vec![1, 2, 2], 1));
    }
}
