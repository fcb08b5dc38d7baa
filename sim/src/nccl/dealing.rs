//! How the elements of one call, or of several in a group, are dealt to channels.
//!
//! Facts: NCCL `src/enqueue.cc` of 2.22.3, 2.25.1, 2.26.2, 2.28.3, 2.28.9, 2.29 and 2.30, restated. Where 2.23 and 2.24
//! stand between 2.22.3 and 2.25.1 we do not know: here 2.23 deals like the former, 2.24 like the latter.

use super::plan::Dealt;
use crate::call::Call;
use crate::collective::{Collective, Protocol};
use crate::nccl::Version;
use crate::nccl::rules::{Dealing, Rules};

/// Bytes of the cells that the parts of channels are made of: from 2.24 on one is worth a channel.
pub(super) fn cell_bytes(call: &Call, protocol: Protocol, version: Version) -> u64 {
    let rules = Rules::of(version).dealing;
    if rules.whole_cells {
        rules.least_traffic.div_ceil(traffic_per_byte(call, protocol, &rules)).next_multiple_of(16)
    } else {
        16
    }
}

/// What NCCL counts of a byte of a rank's part: how often it is sent, from 2.26 on LL for four times.
fn traffic_per_byte(call: &Call, protocol: Protocol, rules: &Dealing) -> u64 {
    let sent = match call.collective {
        Collective::AllReduce => 2,
        Collective::AllGather | Collective::ReduceScatter => u64::from(call.ranks),
        _ => 1,
    };
    sent * if protocol == Protocol::Ll { rules.ll_traffic } else { 1 }
}

/// What one call, alone or of a group, brings to the dealing of channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Elements of a rank's part.
    pub count: u64,
    /// Bytes of an element.
    pub element: u64,
    /// Channels that its choice gives it.
    pub most: u32,
    traffic_per_byte: u64,
    /// Bytes of a cell.
    cell: u64,
}

impl Share {
    /// The share of a call by its choice.
    pub fn new(call: &Call, protocol: Protocol, most: u32, version: Version) -> Self {
        Self {
            count: call.count,
            element: call.dtype.size(),
            most,
            traffic_per_byte: traffic_per_byte(call, protocol, &Rules::of(version).dealing),
            cell: cell_bytes(call, protocol, version),
        }
    }

    /// Bytes that it sends, by NCCL's count.
    pub fn traffic(&self) -> u64 {
        (self.count * self.element).saturating_mul(self.traffic_per_byte)
    }
}

/// All the channels of a share, with equal parts.
pub fn evenly(share: &Share) -> Dealt {
    let grain = (16 / share.element).max(1);
    let each = share.count.div_ceil(u64::from(share.most.max(1))).next_multiple_of(grain);
    Dealt { first: 0, last: share.most.max(1) - 1, low: each, middle: each }
}

/// Deals `channels` channels to the calls of a group, in this order: each has about the same traffic, and a channel has
/// the end of one call and the start of the next. Every call has elements. NCCL's `scheduleCollTasksToPlan`, 2.22 on.
pub fn deal(shares: &[Share], channels: u32, version: Version) -> Vec<Dealt> {
    let rules = Rules::of(version).dealing;
    let least = rules.least_traffic;
    let traffic = |share: &Share| if rules.whole_cells { share.traffic().max(least) } else { share.traffic() };
    let wanted: u64 = shares.iter().map(|share| u64::from(share.most)).sum();
    let each = shares.iter().map(traffic).sum::<u64>() / wanted.min(channels.into()).max(1);
    let per_channel = if rules.rounds_shares { each.next_multiple_of(16) } else { each.max(least) };
    let (mut channel, mut taken) = (0_u64, 0);
    let last_channel = u64::from(channels.max(1)) - 1;
    let mut out = Vec::new();
    for share in shares {
        let elements = (share.cell / share.element).max(1);
        let traffic = share.cell * share.traffic_per_byte;
        let cells = share.count.div_ceil(elements);
        let mut each = per_channel.div_ceil(traffic).min(cells).max(1);
        let room = per_channel.saturating_sub(taken);
        let mut low = match rules.whole_cells {
            _ if channel == last_channel => cells,
            true => room.div_ceil(traffic).min(cells),
            false => (room / traffic).min(cells),
        };
        let (mut middle, mut high) = ((cells - low) / each, (cells - low) % each);
        let used = u64::from(low > 0) + middle + u64::from(high > 0);
        if channel + used > last_channel + 1 {
            middle = (last_channel + 1).saturating_sub(channel + 2);
            each = (cells - low) / (middle + 1);
            high = each + (cells - low) % (middle + 1);
        }
        if high == 0 && middle > 0 {
            (high, middle) = (each, middle - 1);
        }
        if low == 0 {
            channel += 1;
            taken = 0;
            (low, middle, high) = if middle == 0 { (high, 0, 0) } else { (each, middle - 1, high) };
        }
        let last = channel + middle + u64::from(high > 0);
        let index = |channel: u64| u32::try_from(channel).unwrap_or(u32::MAX);
        out.push(Dealt { first: index(channel), last: index(last), low: low * elements, middle: each * elements });
        taken = match (high, middle) {
            (0, _) => taken + low * traffic,
            _ => high * traffic,
        };
        channel = last;
        if taken >= per_channel && channel < last_channel {
            (channel, taken) = (channel + 1, 0);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::DataType;
    use crate::units::Bytes;
    use proptest::prelude::*;

    /// One with cells of 16 KiB of traffic.
    const VERSION: Version = Version::new(2, 28, 9);

    /// Goal: NCCL's dealing worked by hand. Cells of all-reduce with LL have 2 KiB (16 KiB of traffic). 48 calls of
    /// 64 KiB on 24 channels: two on each. Three calls of 40, 24 and 16 KiB that may have 2, 1 and 1 channel: 20 KiB
    /// each; the first has two channels, the second the third and 4 KiB of the fourth, the last what is left there.
    #[test]
    fn channels_are_dealt_to_one_call_after_another() {
        let of = |sizes: &[(u64, u32)], channels| {
            let share = |&(size, most): &(u64, u32)| {
                let call = Call::of_size(Collective::AllReduce, 8, Bytes(size), DataType::Float32);
                Share::new(&call, Protocol::Ll, most, VERSION)
            };
            deal(&sizes.iter().map(share).collect::<Vec<_>>(), channels, VERSION)
        };
        let even = of(&[(64 << 10, 24); 48], 24);
        for (index, dealt) in even.iter().enumerate() {
            assert_eq!(
                (dealt.first, dealt.last, 4 * dealt.low),
                (index as u32 / 2, index as u32 / 2, 64 << 10),
                "{index}"
            );
        }
        let apart = of(&[(40 << 10, 2), (24 << 10, 1), (16 << 10, 1)], 24);
        let parts: Vec<_> = apart.iter().map(|d| (d.first, d.last, d.low >> 8)).collect();
        assert_eq!(parts, [(0, 1, 20), (2, 3, 20), (3, 3, 16)]);
        // More than the channels can have: the last takes what is left.
        let crowded = of(&[(1 << 20, 4), (1 << 20, 4), (1 << 20, 4)], 2);
        assert!(crowded.iter().all(|d| d.last < 2), "{crowded:?}");
    }

    proptest! {
        /// Goal: whatever is grouped, calls have channels in order, none beyond the last, and all their elements.
        #[test]
        fn every_call_of_a_group_has_all_its_elements(
            calls in prop::collection::vec(
                (prop_oneof![32_u64..5000, 5000_u64..40_000_000], 1_u32..33, 0_usize..3, 0_usize..3),
                1..30,
            ),
            channels in 1_u32..33,
            minor in prop_oneof![Just(22), Just(25), Just(28), Just(30)],
        ) {
            let version = Version::new(2, minor, 0);
            let collectives = [Collective::AllReduce, Collective::AllGather, Collective::Broadcast];
            let shares: Vec<Share> = (calls.iter())
                .map(|&(size, most, collective, protocol)| {
                    let call = Call::of_size(collectives[collective], 8, Bytes(size), DataType::Float32);
                    Share::new(&call, Protocol::ALL[protocol], most, version)
                })
                .collect();
            let mut before = 0;
            for (share, dealt) in shares.iter().zip(deal(&shares, channels, version)) {
                let in_order = before <= dealt.first && dealt.first <= dealt.last && dealt.last < channels;
                prop_assert!(in_order, "{:?}", dealt);
                before = dealt.last;
                let mut at = 0;
                for channel in 0..channels {
                    let (from, to) = dealt.range(channel, share.count);
                    prop_assert!(from <= to && (from == at || from == to), "{:?} {} {}-{}", dealt, channel, from, to);
                    at = at.max(to);
                }
                prop_assert_eq!(at, share.count);
            }
        }
    }
}
