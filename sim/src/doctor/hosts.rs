//! Where scaling over hosts breaks.

/// Index of the first number of hosts from which on measured over expected is worse than before by
/// more than `least`, a natural logarithm. `excess`: by number of hosts, fewest first.
pub fn where_scaling_breaks(excess: &[f64], least: f64) -> Option<usize> {
    (1..excess.len()).find(|&i| {
        let before = excess[..i].iter().copied().fold(f64::INFINITY, f64::min);
        excess[i..].iter().all(|&e| e > before + least)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_breaks_where_it_stays_worse() {
        assert_eq!(where_scaling_breaks(&[0.0, 0.05, 0.6, 0.7], 0.3), Some(2));
        assert_eq!(where_scaling_breaks(&[0.0, 0.6, 0.1], 0.3), None);
        assert_eq!(where_scaling_breaks(&[0.1], 0.3), None);
    }
}
