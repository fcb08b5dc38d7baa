//! How long a NIC waits for an acknowledgement before it sends again, and how often it does.

use std::time::Duration;

/// How often a NIC sends again what is not acknowledged; 7 is the most there is.
pub(super) const RETRIES: u8 = 7;
/// Unit of the time after which a NIC sends again: 4.096 us times a power of 2 (InfiniBand specification, volume 1,
/// local ACK timeout).
const UNIT: Duration = Duration::from_nanos(4096);
/// Exponents that are used of it: 4 ms, below which a busy host looks dead, to 8.8 s.
const EXPONENTS: (u32, u32) = (10, 21);

/// The NIC's exponent of the time after which it sends again, so that all tries together take about `patience`.
pub(super) fn timeout(patience: Duration) -> u8 {
    let tries = patience.as_secs_f64() / f64::from(RETRIES + 1) / UNIT.as_secs_f64();
    (tries.max(1.0).log2() as u32).clamp(EXPONENTS.0, EXPONENTS.1) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a NIC gives up about when we do, by hand: 2 s over 8 tries are 250 ms, and 2^15 x 4.096 us are 134 ms.
    #[test]
    fn a_nic_gives_up_about_when_we_do() {
        assert_eq!(timeout(Duration::from_secs(2)), 15);
        assert_eq!(timeout(Duration::from_millis(1)), 10);
        assert_eq!(timeout(Duration::from_secs(3600)), 21);
    }
}
