//! How places and numbers become keys.

use std::hash::Hasher;

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

/// A hasher of [`mix`], for keys that decide what is taken to be equal.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            self.0 = mix(self.0, u64::from_le_bytes(whole));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0, value);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
