//! The colours of every picture: one table, so that an algorithm or a kind of link looks the same wherever it is drawn.

use collcast_sim::topology::LinkKind;

/// A colour of the table, by its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Hue(pub u8);

/// Colours that colour-blind readers tell apart (Okabe and Ito, "Color Universal Design", 2008). Yellow is left out and
/// black is grey here: on white, and on black, they would not show.
pub const COLOURS: [(u8, u8, u8); 7] =
    [(0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (230, 159, 0), (128, 128, 128)];

/// What stands beside the coloured: references, what was left as it is.
pub const GREY: Hue = Hue(6);
/// What is as it should be.
pub const GOOD: Hue = Hue(2);
/// What is not.
pub const BAD: Hue = Hue(1);

impl Hue {
    /// The colour of the n-th thing of a picture whose things have no colour of their own.
    pub fn nth(index: usize) -> Self {
        Self((index % COLOURS.len()) as u8)
    }

    /// Red, green and blue.
    pub fn rgb(self) -> (u8, u8, u8) {
        COLOURS[usize::from(self.0) % COLOURS.len()]
    }
}

/// The colour of an algorithm, by its name; algorithms of one family that never stand beside each other share one.
pub fn algorithm(name: &str) -> Hue {
    Hue(match name {
        "ring" => 0,
        "tree" => 1,
        "nvls" => 2,
        "nvls_tree" => 3,
        "pat" => 4,
        "collnet_direct" | "collnet_chain" => 5,
        _ => GREY.0,
    })
}

/// How busy something is, from not at all to all the time: on paper that is light, and on dark. Each step stands out more
/// than the one before, so that the order can be seen without colour.
pub const HEAT: [(&str, &str); 6] = [
    ("#b9c1c8", "#4a545c"),
    ("#e3b341", "#6f5620"),
    ("#e38a1e", "#9c6a1a"),
    ("#d05a12", "#d1842c"),
    ("#a8330f", "#f2a65a"),
    ("#6d0f14", "#ffd9a8"),
];

/// The step of [`HEAT`] for a share: 0 for what is not used, then one for each fifth.
pub fn heat(share: f64) -> usize {
    let steps = HEAT.len() - 1;
    if share <= 0.0 { 0 } else { ((share * steps as f64).ceil() as usize).clamp(1, steps) }
}

/// The colour of a kind of link; dark enough on a light background, apart for most colour-blind readers, and never the
/// only carrier of meaning.
pub fn link(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Nvlink => "#3f8f29",
        LinkKind::C2c => "#7a4fb5",
        LinkKind::Pcie => "#5b6770",
        LinkKind::CpuInterconnect => "#a0692c",
        LinkKind::Infiniband => "#1f6fb2",
        LinkKind::Roce => "#0b7f81",
        LinkKind::Efa => "#c4610a",
        LinkKind::Slingshot => "#b23a6f",
        LinkKind::Ethernet => "#7d7d1b",
    }
}
