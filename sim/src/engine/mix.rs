//! How places and numbers become keys.

/// A key from two numbers, the same on every machine: a 64-bit mixer.
///
/// # Source
/// The finaliser of splitmix64: Steele, Lea and Flood, OOPSLA 2014.
pub fn mix(seed: u64, value: u64) -> u64 {
    let mut z = seed.rotate_left(17) ^ value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
