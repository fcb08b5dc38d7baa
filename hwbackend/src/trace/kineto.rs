//! Traces of PyTorch's profiler, which its library Kineto writes as events of Chrome's tracing.
//!
//! Names of events and arguments are those of Kineto's `output_json.cpp`; times are microseconds. A kernel that was launched
//! before the recording began has no arguments that name its call.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};

use super::call::{Call, Group, Split, framework_collective, framework_dtype};
use super::head::{EVENTS_MAX, Head};
use super::loose::{Loose, Ranks, objects};

/// How names of kernels for symmetric memory begin: in NCCL 2.27, and since then.
const SYMMETRIC: [&str; 2] = ["ncclSymDevKernel", "ncclSymkDevKernel"];

/// What a GPU did.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Kernels {
    /// Kernels and copies, in the order of their beginnings.
    pub activities: Vec<Activity>,
    /// Steps that the program marked (`prof.step()`): number, and begin and end on the host in nanoseconds; in order.
    pub steps: Vec<(u32, i64, i64)>,
    /// Names of kernels.
    pub names: Vec<String>,
    /// The GPUs that kernels ran on, as the process numbers them; empty where the file does not say.
    pub devices: BTreeSet<u64>,
}

/// A kernel or a copy on a GPU. Times are nanoseconds of the file's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activity {
    /// Begin.
    pub begin: i64,
    /// End.
    pub end: i64,
    /// When the host had launched it; none where the file does not say.
    pub launched: Option<i64>,
    /// Index into [`Kernels::names`].
    pub name: u32,
    /// Index into [`Trace::calls`](super::Trace::calls), of kernels of NCCL whose call is known.
    pub call: Option<u32>,
    /// A kernel of NCCL: by its name, or because PyTorch gives it a collective's.
    pub nccl: bool,
}

objects! {
    /// An event; what is not named is passed over.
    struct Event {
        "ph" => ph: Loose,
        "cat" => cat: Loose,
        "name" => name: Loose,
        "ts" => ts: Loose,
        "dur" => dur: Loose,
        "args" => args: Args,
    }

    /// Its arguments.
    struct Args {
        "device" => device: Loose,
        "correlation" => correlation: Loose,
        "Collective name" => collective: Loose,
        "In msg nelems" => inputs: Loose,
        "Out msg nelems" => outputs: Loose,
        "dtype" => dtype: Loose,
        "In split size" => input_split: Loose,
        "Out split size" => output_split: Loose,
        "Group size" => group_size: Loose,
        "Process Group Name" => group_name: Loose,
        "Process Group Description" => group_description: Loose,
        "Process Group Ranks" => group_ranks: Loose,
    }
}

/// Takes events one by one.
#[derive(Default)]
pub(super) struct Builder {
    kernels: Kernels,
    /// Correlation of each activity, in the order of activities.
    correlations: Vec<Option<u64>>,
    /// When calls of the driver that launch had returned.
    launches: HashMap<u64, i64>,
    names: HashMap<String, u32>,
    calls: HashMap<Call, u32>,
    unreadable: u64,
}

impl Builder {
    fn add(&mut self, event: &Event) {
        if event.ph.text() != Some("X") {
            return;
        }
        let category = event.cat.text().unwrap_or_default().to_ascii_lowercase();
        let name = event.name.text().unwrap_or_default();
        let of_gpu = matches!(category.as_str(), "kernel" | "gpu_memcpy" | "gpu_memset" | "memcpy" | "memset");
        let of_driver = category.ends_with("runtime") || category.ends_with("driver");
        let step = (category == "user_annotation").then(|| name.strip_prefix("ProfilerStep#")).flatten();
        if !of_gpu && !of_driver && step.is_none() {
            return;
        }
        let (Some(begin), Some(duration)) = (event.ts.nanoseconds(), event.dur.nanoseconds().filter(|&d| d >= 0))
        else {
            self.unreadable += 1;
            return;
        };
        let end = begin + duration;
        if let Some(number) = step {
            match number.parse() {
                Ok(number) => self.kernels.steps.push((number, begin, end)),
                Err(_) => self.unreadable += 1,
            }
        } else if of_driver {
            if let Some(correlation) = event.args.correlation.count() {
                self.launches.insert(correlation, end);
            }
        } else {
            let symmetric = SYMMETRIC.iter().any(|begin| name.starts_with(begin));
            let named = || category == "kernel" && event.args.collective.text().is_some();
            let nccl = symmetric || name.starts_with("ncclDevKernel") || name.starts_with("ncclKernel") || named();
            let call = if nccl { self.call(&event.args, symmetric) } else { None };
            let name = self.name(name);
            self.kernels.devices.extend(event.args.device.count().filter(|_| category == "kernel"));
            self.kernels.activities.push(Activity { begin, end, launched: None, name, call, nccl });
            self.correlations.push(event.args.correlation.count());
        }
    }

    fn len(&self) -> usize {
        self.kernels.activities.len() + self.launches.len() + self.kernels.steps.len()
    }

    fn name(&mut self, name: &str) -> u32 {
        if let Some(&known) = self.names.get(name) {
            return known;
        }
        let index = u32::try_from(self.kernels.names.len()).unwrap_or(u32::MAX);
        self.kernels.names.push(name.to_owned());
        self.names.insert(name.to_owned(), index);
        index
    }

    /// The call that arguments name.
    fn call(&mut self, args: &Args, symmetric: bool) -> Option<u32> {
        let name = args.collective.text()?;
        let split = |list: &Loose| list.text().map_or(Split::Even, Split::of_text);
        let text = |value: &Loose| value.text().unwrap_or_default().to_owned();
        let size = args.group_size.count().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        let group = Group {
            name: text(&args.group_name),
            description: text(&args.group_description),
            ranks: ranks_of(args.group_ranks.text().unwrap_or_default(), size),
            size,
        };
        let call = Call {
            name: name.to_owned(),
            collective: framework_collective(name),
            group: Some(Arc::new(group)),
            dtype: args.dtype.text().and_then(framework_dtype),
            inputs: args.inputs.count().unwrap_or(0),
            outputs: args.outputs.count().unwrap_or(0),
            split: split(&args.input_split).max(split(&args.output_split)),
            symmetric,
        };
        let next = u32::try_from(self.calls.len()).unwrap_or(u32::MAX);
        Some(*self.calls.entry(call).or_insert(next))
    }

    pub(super) fn finish(self, head: &mut Head) -> Kernels {
        let Self { mut kernels, correlations, launches, calls, unreadable, .. } = self;
        for (activity, correlation) in kernels.activities.iter_mut().zip(correlations) {
            activity.launched = correlation.and_then(|id| launches.get(&id).copied());
        }
        kernels.activities.sort_by_key(|activity| (activity.begin, activity.end));
        kernels.steps.sort_unstable();
        kernels.steps.dedup_by_key(|step| step.0);
        let mut ordered: Vec<(Call, u32)> = calls.into_iter().collect();
        ordered.sort_unstable_by_key(|(_, index)| *index);
        head.calls = ordered.into_iter().map(|(call, _)| call).collect();
        for call in &mut head.calls {
            let Some(group) = &mut call.group else { continue };
            if let (true, Some(known)) = (group.ranks.is_empty(), head.groups.get(&group.name)) {
                Arc::make_mut(group).ranks.clone_from(&known.ranks);
            }
        }
        if kernels.devices.len() > 1 {
            head.notes.push(format!(
                "kernels of {} GPUs are in one file and count as those of one: record a process for each GPU",
                kernels.devices.len()
            ));
        }
        if unreadable > 0 {
            head.notes.push(format!("{unreadable} events without a time, a duration or a number are left out"));
        }
        kernels
    }
}

/// Ranks of a text. PyTorch leaves out the middle of long lists (`[0, 8, ..., 504]`): it is filled in where those that are
/// there are evenly apart and as many as the group has.
fn ranks_of(text: &str, size: u32) -> Vec<u32> {
    let Some((begin, end)) = text.split_once("...") else { return Ranks::of_text(text).0 };
    let begin = Ranks::of_text(begin.trim().trim_end_matches(',')).0;
    let end = Ranks::of_text(end.trim().trim_start_matches(',')).0;
    let ([first, second, ..], [.., last]) = (begin.as_slice(), end.as_slice()) else { return Vec::new() };
    let Some(stride) = second.checked_sub(*first).filter(|&stride| stride > 0) else { return Vec::new() };
    let even = begin.windows(2).all(|pair| pair[1].checked_sub(pair[0]) == Some(stride));
    let apart = last - first.min(last);
    let whole = size > 0 && apart / stride == size - 1 && apart % stride == 0;
    if even && whole && size < 1 << 20 { (0..size).map(|i| first + i * stride).collect() } else { Vec::new() }
}

/// The list of events.
pub(super) struct Events<'b>(pub(super) &'b mut Builder);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<(), A::Error> {
        while let Some(event) = parts.next_element::<Event>()? {
            self.0.add(&event);
            if self.0.len() > EVENTS_MAX {
                return Err(A::Error::custom(format!(
                    "more than {EVENTS_MAX} kernels and launches: record fewer steps"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_are_left_out_are_filled_in() {
        assert_eq!(ranks_of("[0, 1]", 2), [0, 1]);
        assert_eq!(ranks_of("[3, 11, ..., 27]", 4), [3, 11, 19, 27]);
        for wrong in ["[3, 11, ..., 27]", "[0, 1, 3, ..., 9]", "[..., 9]", "[5, 4, ..., 1]", "x", ""] {
            assert_eq!(ranks_of(wrong, 9), [0_u32; 0], "{wrong}");
        }
    }
}
