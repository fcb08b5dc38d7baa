//! NVLinks by GPU generation: their nominal rates, what NCCL counts for one, and how many there are.

use std::ops::Range;

use super::version::Version;

/// NVLinks of a GPU generation. Rates are GB/s in one direction.
#[derive(Debug)]
pub struct Nvlinks {
    /// Compute capabilities, times ten.
    pub capability: Range<u32>,
    /// Nominal rate of one link.
    pub nominal: f64,
    /// What NCCL counts for one, the newest first, with the minors of version 2 that may do so.
    counted: &'static [(Range<u16>, f64)],
    /// Links between two GPUs of one board or bridge.
    pub direct: &'static [u32],
    /// Links from a GPU to NVSwitches.
    pub switched: &'static [u32],
}

/// Minors of all versions.
const ALWAYS: Range<u16> = 0..u16::MAX;

/// All generations. Versions are told apart where another generation has the same rates; those before 2.21 and after 2.19 may
/// count either.
///
/// # Source
/// Nominal rates and links: data sheets and white papers of P100 (DGX-1), V100 (DGX-1, DGX-2, IBM AC922), A100 (HGX of 4 and
/// of 8, PCIe with bridges) and A800, A40, H100 (HGX of 4 and of 8, PCIe and NVL with bridges) and H800, B200.
/// Counted: NCCL `src/graph/topo.h` of 2.12 to 2.30. Of Hopper, 2.19.4 printed 360.0 for 18 links (NVIDIA/nccl#1197).
pub const NVLINKS: [Nvlinks; 6] = [
    Nvlinks { capability: 60..70, nominal: 20.0, counted: &[(ALWAYS, 18.0)], direct: &[1, 2], switched: &[] },
    Nvlinks {
        capability: 70..80,
        nominal: 25.0,
        counted: &[(ALWAYS, 20.0), (ALWAYS, 22.0)],
        direct: &[1, 2, 3],
        switched: &[6],
    },
    Nvlinks {
        capability: 80..86,
        nominal: 25.0,
        counted: &[(ALWAYS, 20.0), (ALWAYS, 22.0)],
        direct: &[4, 12],
        switched: &[8, 12],
    },
    Nvlinks { capability: 86..87, nominal: 14.0625, counted: &[(ALWAYS, 12.0)], direct: &[4], switched: &[] },
    Nvlinks {
        capability: 90..100,
        nominal: 25.0,
        counted: &[(20..u16::MAX, 20.6), (0..21, 20.0)],
        direct: &[6, 12],
        switched: &[8, 18],
    },
    Nvlinks {
        capability: 100..u32::MAX,
        nominal: 50.0,
        counted: &[(ALWAYS, 40.1), (ALWAYS, 40.0)],
        direct: &[],
        switched: &[18],
    },
];

/// What NCCL counts for a link of a GPU that it knows none of; source: NCCL `src/graph/topo.h`, `ncclTopoNVLinkBw`.
const OTHERS_GB_PER_S: f64 = 20.0;

/// Rates are printed with one digit after the point.
const HALF_A_DIGIT: f64 = 0.05 + 1e-6;

impl Nvlinks {
    /// Those of a compute capability, times ten.
    pub fn of(capability: u32) -> Option<&'static Self> {
        NVLINKS.iter().find(|links| links.capability.contains(&capability))
    }

    /// What a version of NCCL may count for one, the newest first.
    fn counted(&self, version: Option<Version>) -> impl Iterator<Item = f64> {
        let may = move |minors: &Range<u16>| version.is_none_or(|version| minors.contains(&version.minor));
        self.counted.iter().filter(move |(minors, _)| may(minors)).map(|(_, rate)| *rate)
    }

    /// Generations of which a host may have NVLinks that NCCL prints like these: the rate to each peer, and whether that is an
    /// NVSwitch.
    pub fn printed(version: Option<Version>, printed: &[(f64, bool)]) -> Vec<&'static Self> {
        let fits = |links: &Self, one: f64, &(rate, switched): &(f64, bool)| {
            let counts = if switched { links.switched } else { links.direct };
            counts.iter().any(|&count| (f64::from(count) * one - rate).abs() < HALF_A_DIGIT)
        };
        let fit = |links: &&Self| links.counted(version).any(|one| printed.iter().all(|of| fits(links, one, of)));
        NVLINKS.iter().filter(fit).collect()
    }
}

/// What NCCL counts today for one NVLink of a GPU, in GB/s, by compute capability times ten.
pub fn counted(capability: u32) -> f64 {
    Nvlinks::of(capability).and_then(|links| links.counted(None).next()).unwrap_or(OTHERS_GB_PER_S)
}

/// How many NVLinks a printed rate is, of a GPU whose compute capability, times ten, is known.
pub fn number(capability: u32, version: Option<Version>, rate: f64) -> u32 {
    let off = |one: f64| (rate / one - (rate / one).round()).abs();
    let rates = Nvlinks::of(capability).into_iter().flat_map(|links| links.counted(version));
    let one = rates.min_by(|a, b| off(*a).total_cmp(&off(*b))).unwrap_or_else(|| counted(capability));
    (rate / one).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: rates that logs print are of the GPUs that printed them, and of several or none where nothing tells.
    #[test]
    fn printed_rates_tell_the_generation() {
        let switch = |rate| vec![(rate, true)];
        let [old, new] = [Some(Version::new(2, 19, 4)), Some(Version::new(2, 28, 9))];
        for (version, printed, firsts) in [
            (old, switch(120.0), &[70][..]),
            (Some(Version::new(2, 12, 7)), switch(132.0), &[70]),
            (new, vec![(20.0, false), (40.0, false)], &[70]),
            (new, vec![(18.0, false)], &[60]),
            (new, switch(240.0), &[80]),
            (new, vec![(80.0, false)], &[80]),
            (new, vec![(240.0, false)], &[80]),
            (new, vec![(48.0, false)], &[86]),
            (old, switch(360.0), &[90]),
            (new, switch(370.8), &[90]),
            (new, switch(721.8), &[100]),
            // A800 or H800; A100 with bridges, or H100.
            (old, switch(160.0), &[80, 90]),
            (None, vec![(240.0, false)], &[80, 90]),
            // Of no GPU: three links, such as 40.1 GB/s goes into; two generations at once.
            (new, switch(80.0), &[]),
            (new, vec![(20.0, false), (240.0, false)], &[]),
        ] {
            let found: Vec<u32> =
                Nvlinks::printed(version, &printed).iter().map(|links| links.capability.start).collect();
            assert_eq!(found, firsts, "{version:?} {printed:?}");
        }
    }

    /// Goal: links are counted by what the version counts for one.
    #[test]
    fn links_are_counted() {
        for (capability, rate, links) in
            [(70, 120.0, 6), (70, 132.0, 6), (90, 360.0, 18), (90, 370.8, 18), (103, 721.8, 18)]
        {
            assert_eq!(number(capability, None, rate), links, "{capability} {rate}");
        }
    }

    /// Goal: no capability is of two generations, and each counts less than it nominally has.
    #[test]
    fn generations_are_apart() {
        for pair in NVLINKS.windows(2) {
            assert!(pair[0].capability.end <= pair[1].capability.start, "{pair:?}");
        }
        for links in &NVLINKS {
            assert!(links.counted.iter().all(|(_, one)| *one < links.nominal), "{links:?}");
        }
        assert_eq!(counted(89), OTHERS_GB_PER_S);
    }
}
