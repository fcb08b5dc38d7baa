//! Which hosts and NICs are slow, by runs over different sets of them, and where scaling breaks.

use super::evidence::{backward, factorise, forward};

/// A member of runs that are slower with it than without.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Suspect {
    /// Its index.
    pub member: usize,
    /// What it makes a run take longer, as a natural logarithm.
    pub log_slower: f64,
    /// The same in standard deviations.
    pub z: f64,
    /// Runs with it, and without.
    pub runs: (usize, usize),
}

/// Standard deviation of a member's effect before anything is measured: tens of percent.
const EFFECT: f64 = 0.5;
/// Standard deviation of a run's own scatter, at least: repeats differ by some percent.
const SCATTER_MIN: f64 = 0.03;
/// The same before anything is known of it.
const SCATTER_FIRST: f64 = 0.1;
/// A normal distribution's standard deviation over the median of its absolute value.
const OVER_MEDIAN: f64 = 1.48;
/// Most members that are told apart; a matrix of them is solved.
const MEMBERS_MAX: usize = 1024;
/// Residuals beyond so many standard deviations count less (Huber, "Robust statistics", 1981).
const HUBER: f64 = 1.5;

/// Members by what they make runs take longer, the slowest first.
///
/// `runs`: of each, its members and the natural logarithm of measured over expected. A ridge
/// regression with weights that make single odd runs count less; what all runs share is no member's
/// fault.
pub fn rank_members(members: usize, runs: &[(Vec<usize>, f64)]) -> Vec<Suspect> {
    let n = members.min(MEMBERS_MAX) + 1;
    let has = |run: &(Vec<usize>, f64), member: usize| run.0.contains(&member);
    let mut weights = vec![1.0; runs.len()];
    let mut effects = vec![0.0; n];
    let mut lower = Vec::new();
    let mut scatter = SCATTER_FIRST;
    for _ in 0..20 {
        let mut matrix = vec![vec![0.0; n]; n];
        let mut right = vec![0.0; n];
        for ((of, value), weight) in runs.iter().zip(&weights) {
            // Column 0 is what all runs share.
            let columns: Vec<usize> = std::iter::once(0).chain(of.iter().map(|m| m + 1).filter(|&c| c < n)).collect();
            for &a in &columns {
                right[a] += weight * value;
                for &b in &columns {
                    matrix[a][b] += weight;
                }
            }
        }
        let ridge = (scatter / EFFECT).powi(2);
        for (index, row) in matrix.iter_mut().enumerate() {
            row[index] += if index == 0 { 1e-9 } else { ridge };
        }
        factorise(&mut matrix);
        effects = backward(&matrix, &forward(&matrix, &right));
        lower = matrix;
        let left: Vec<f64> = runs
            .iter()
            .map(|(of, value)| value - effects[0] - of.iter().filter_map(|m| effects.get(m + 1)).sum::<f64>())
            .collect();
        let mut sizes: Vec<f64> = left.iter().map(|l| l.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        // 1.48 times the median is the standard deviation of a normal distribution.
        scatter = (OVER_MEDIAN * sizes.get(sizes.len() / 2).copied().unwrap_or(0.0)).max(SCATTER_MIN);
        weights = left.iter().map(|l| (HUBER * scatter / l.abs().max(1e-12)).min(1.0)).collect();
    }
    // Sets of one size do not tell what all members add from what all runs share: a member is
    // compared with the others.
    let mut sorted = effects[1..].to_vec();
    sorted.sort_by(f64::total_cmp);
    let usual = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
    let suspect = |member: usize| {
        let with = runs.iter().filter(|r| has(r, member)).count();
        let mut contrast = vec![-1.0 / (n - 1) as f64; n];
        contrast[0] = 0.0;
        contrast[member + 1] += 1.0;
        let variance: f64 = forward(&lower, &contrast).iter().map(|c| c * c).sum::<f64>() * scatter * scatter;
        let log_slower = effects[member + 1] - usual;
        Suspect { member, log_slower, z: log_slower / variance.sqrt(), runs: (with, runs.len() - with) }
    };
    let mut ranked: Vec<Suspect> = (0..n - 1).map(suspect).filter(|s| s.runs.0 > 0 && s.runs.1 > 0).collect();
    ranked.sort_by(|a, b| b.log_slower.total_cmp(&a.log_slower).then(a.member.cmp(&b.member)));
    ranked
}

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

    fn pairs(hosts: usize, slow: &[(usize, f64)]) -> Vec<(Vec<usize>, f64)> {
        let mut runs = Vec::new();
        for a in 0..hosts {
            for b in a + 1..hosts {
                let of = |h: usize| slow.iter().find(|s| s.0 == h).map_or(0.0, |s| s.1);
                // Deterministic scatter of 2%.
                let scatter = 0.02 * (((a * 7 + b * 13) % 5) as f64 - 2.0) / 2.0;
                runs.push((vec![a, b], 0.2 + of(a).max(of(b)) + scatter));
            }
        }
        runs
    }

    /// Goal: of all pairs of 8 hosts, two of them slow, these two come first and no other is near;
    /// what all runs share is nobody's fault.
    #[test]
    fn slow_hosts_come_first() {
        let ranked = rank_members(8, &pairs(8, &[(2, 0.7), (5, 0.4)]));
        assert_eq!((ranked[0].member, ranked[1].member), (2, 5));
        assert!((ranked[0].log_slower - 0.7).abs() < 0.1, "{ranked:?}");
        assert!(ranked[0].z > 5.0 && ranked[2].log_slower < 0.1, "{ranked:?}");
        let healthy = rank_members(8, &pairs(8, &[]));
        assert!(healthy[0].log_slower < 0.05, "{healthy:?}");
        assert!(rank_members(2, &[(vec![0, 1], 1.0)]).is_empty(), "one set of hosts tells nothing");
    }

    /// Goal: one odd run does not blame its hosts.
    #[test]
    fn one_odd_run_blames_nobody() {
        let mut runs = pairs(8, &[]);
        runs[3].1 += 1.5;
        assert!(rank_members(8, &runs)[0].log_slower < 0.15);
    }

    #[test]
    fn scaling_breaks_where_it_stays_worse() {
        assert_eq!(where_scaling_breaks(&[0.0, 0.05, 0.6, 0.7], 0.3), Some(2));
        assert_eq!(where_scaling_breaks(&[0.0, 0.6, 0.1], 0.3), None);
        assert_eq!(where_scaling_breaks(&[0.1], 0.3), None);
    }
}
