//! A hash that is the same on every machine. `build.rs` has it too: it needs nothing else of this crate.

use std::hash::Hasher;

/// FNV-1a of 64 bits (Fowler, Noll, Vo). The standard library does not promise of its own hasher that it stays the same.
#[derive(Clone, Copy, Debug)]
pub struct Fnv(u64);

impl Fnv {
    /// One that goes on from another hash, or any number.
    pub fn after(hash: u64) -> Self {
        Self(hash)
    }
}

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The hash of some bytes, as those of a file.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hasher = Fnv::default();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: it is the hash of that name: test vectors of its authors.
    #[test]
    fn it_is_fnv() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
