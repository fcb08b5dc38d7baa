//! Dumps of PyTorch's flight recorder: the last calls of a rank, those that never ended among them.
//!
//! Names of keys are those of `FlightRecorder.hpp` of PyTorch 2.5 to 2.11. Durations are there where
//! `TORCH_NCCL_ENABLE_TIMING=1` was set.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};

use super::call::{Call, Group, Split, framework_collective, framework_dtype};
use super::head::{EVENTS_MAX, Head};
use super::loose::{Elements, Lenient, Loose, lenient, objects};

/// How far a call came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum State {
    /// It ended.
    Completed,
    /// Its kernel runs.
    Started,
    /// Its kernel is enqueued.
    Scheduled,
}

/// A call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Entry {
    /// Index into [`Trace::calls`](super::Trace::calls).
    pub call: u32,
    /// Its number in its group, the same on all ranks.
    pub sequence: u64,
    /// Between two ranks: numbered apart.
    pub pair: bool,
    /// How far it came.
    pub state: State,
    /// Time on the GPU, ms.
    pub duration_ms: Option<f64>,
}

objects! {
    /// A call as it is written.
    struct Raw {
        "profiling_name" => profiling_name: Loose,
        "process_group" => process_group: Names,
        "collective_seq_id" => collective_seq_id: Loose,
        "p2p_seq_id" => p2p_seq_id: Loose,
        "is_p2p" => is_p2p: Flag,
        "state" => state: Loose,
        "duration_ms" => duration_ms: Loose,
        "input_sizes" => input_sizes: Elements,
        "output_sizes" => output_sizes: Elements,
        "input_dtypes" => input_dtypes: Names,
    }
}

/// Words of a list.
#[derive(Default)]
struct Names(Vec<String>);

impl Lenient for Names {
    fn words(text: &str) -> Self {
        Self(vec![text.to_owned()])
    }

    fn list<'de, A: SeqAccess<'de>>(mut parts: A) -> Result<Self, A::Error> {
        let mut names = Vec::new();
        while let Some(part) = parts.next_element::<Loose>()? {
            // The first of many tensors says the type of all.
            if names.len() < 2 {
                names.push(part.text().unwrap_or_default().to_owned());
            }
        }
        Ok(Self(names))
    }
}

/// Yes or no, in any form.
#[derive(Default)]
struct Flag(bool);

impl Lenient for Flag {
    fn flag(flag: bool) -> Self {
        Self(flag)
    }

    fn whole(number: i64) -> Self {
        Self(number > 0)
    }

    fn words(text: &str) -> Self {
        Self(text.trim().parse().is_ok_and(|number: u64| number > 0))
    }
}

lenient!(Names, Flag);

/// Takes entries one by one.
#[derive(Default)]
pub(super) struct Builder {
    entries: Vec<Entry>,
    calls: HashMap<Call, u32>,
    unreadable: u64,
}

impl Builder {
    fn add(&mut self, raw: &Raw) {
        let state = match raw.state.text() {
            Some("completed") => State::Completed,
            Some("started") => State::Started,
            Some("scheduled") => State::Scheduled,
            _ => {
                self.unreadable += 1;
                return;
            }
        };
        let pair = raw.is_p2p.0;
        let sequence = if pair { &raw.p2p_seq_id } else { &raw.collective_seq_id };
        let (Some(name), Some(sequence)) = (raw.profiling_name.text(), sequence.count()) else {
            self.unreadable += 1;
            return;
        };
        let mut of_group = raw.process_group.0.iter().cloned();
        let group = Group {
            name: of_group.next().unwrap_or_default(),
            description: of_group.next().unwrap_or_default(),
            ..Group::default()
        };
        let call = Call {
            name: name.to_owned(),
            collective: framework_collective(name),
            group: Some(Arc::new(group)),
            dtype: raw.input_dtypes.0.first().and_then(|name| framework_dtype(name)),
            inputs: raw.input_sizes.0,
            outputs: raw.output_sizes.0,
            split: Split::Even,
            symmetric: false,
        };
        let next = u32::try_from(self.calls.len()).unwrap_or(u32::MAX);
        let call = *self.calls.entry(call).or_insert(next);
        let duration_ms = match raw.duration_ms {
            Loose::Number(ms) => Some(ms).filter(|ms| ms.is_finite() && *ms >= 0.0),
            Loose::Whole(ms) => u32::try_from(ms).ok().map(f64::from),
            _ => None,
        };
        self.entries.push(Entry { call, sequence, pair, state, duration_ms });
    }

    pub(super) fn finish(self, head: &mut Head) -> Vec<Entry> {
        let mut ordered: Vec<(Call, u32)> = self.calls.into_iter().collect();
        ordered.sort_unstable_by_key(|(_, index)| *index);
        head.calls = ordered.into_iter().map(|(call, _)| call).collect();
        for call in &mut head.calls {
            let Some(group) = &mut call.group else { continue };
            let Some(known) = head.groups.get(&group.name) else { continue };
            let group = Arc::make_mut(group);
            group.ranks.clone_from(&known.ranks);
            group.size = u32::try_from(known.ranks.len()).unwrap_or(0);
        }
        if self.unreadable > 0 {
            head.notes.push(format!("{} entries without a name, a number or a state are left out", self.unreadable));
        }
        self.entries
    }
}

/// The list of entries.
pub(super) struct Entries<'b>(pub(super) &'b mut Builder);

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of calls")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<(), A::Error> {
        while let Some(entry) = parts.next_element::<Raw>()? {
            self.0.add(&entry);
            if self.0.entries.len() > EVENTS_MAX {
                return Err(A::Error::custom(format!("more than {EVENTS_MAX} calls")));
            }
        }
        Ok(())
    }
}
