//! How many workers of a layout a load needs at least, whatever the others are: found without simulating the load.
//!
//! Each bound takes a step as it is at its best: prompts in full steps, decodes as many at once as memory or the objective
//! lets. So a fleet below a bound cannot meet the objective, and one at it may not either. A time without a limit is taken
//! for one that must not grow: requests are to be served as fast as they come.

use std::collections::HashSet;

use collcast_scenarios::serving::prefix::Part;
use collcast_scenarios::serving::summary::Objective;
use collcast_scenarios::serving::{Batch, Policy, Request as Asked, Role, Steps};

use super::fleet::Group;

/// A load in numbers.
pub(super) struct Demand {
    /// Requests.
    count: f64,
    /// Seconds over which they arrive.
    span: f64,
    /// Mean tokens of a prompt that no prefix has, and of its prefix.
    computed: u64,
    prefix: u64,
    /// The same of the prompt that is longer than as many as have to meet the objective.
    long: (u64, u64),
    /// Mean tokens of a prompt and of its answer.
    input: u64,
    output: u64,
    objective: Objective,
}

impl Demand {
    pub(super) fn new(asked: &[Asked], objective: Objective) -> Self {
        let count = asked.len().max(1) as f64;
        // A worker can have what a request before it brought.
        let mut seen = HashSet::new();
        let mut prompts: Vec<(u64, u64)> = (asked.iter())
            .map(|request| {
                let known = |part: &Part| !seen.insert(part.key);
                let prefix = request.parts().filter(known).map(|part| part.tokens).sum::<u64>().min(request.input - 1);
                (request.input - prefix, prefix)
            })
            .collect();
        prompts.sort_unstable();
        let at = (objective.parts[0] * count).ceil() as usize;
        let mean = |of: &dyn Fn(&Asked) -> u64| (asked.iter().map(of).sum::<u64>() as f64 / count).round() as u64;
        let computed = (prompts.iter().map(|prompt| prompt.0).sum::<u64>() as f64 / count).round() as u64;
        let input = mean(&|request| request.input);
        let ends = || asked.iter().map(|request| request.at);
        Self {
            count,
            span: ends().fold(0.0, f64::max) - ends().fold(f64::INFINITY, f64::min),
            computed: computed.max(1),
            prefix: input.saturating_sub(computed),
            long: prompts.get(at.clamp(1, prompts.len().max(1)) - 1).copied().unwrap_or((1, 0)),
            input,
            output: mean(&|request| request.output),
            objective,
        }
    }

    /// Workers at least, each with so many blocks of cache.
    ///
    /// # Errors
    /// A prompt or a token that takes longer alone than the objective has.
    pub(super) fn least(
        &self,
        (role, group): (Role, Group),
        blocks: u64,
        policy: Policy,
        steps: &mut Steps<'_>,
    ) -> Result<u32, String> {
        let mut least = 1.0_f64;
        if role != Role::Decode {
            least = least.max(self.prefills(group, policy, steps)?);
        }
        if role != Role::Prefill {
            least = least.max(self.decodes(group, blocks, policy, steps)?);
        }
        Ok(least.ceil().min(f64::from(u32::MAX)) as u32)
    }

    /// Tokens of the prompt that is longer than as many as have to meet the objective.
    pub(super) fn longest(&self) -> u64 {
        self.long.0
    }

    /// Seconds of that prompt alone on its worker.
    pub(super) fn prompt_alone(&self, chunk: u64, steps: &mut Steps<'_>) -> f64 {
        prompts(self.long, 1, chunk, steps)
    }

    /// Seconds of a token of a mean request alone on its worker.
    pub(super) fn token_alone(&self, steps: &mut Steps<'_>) -> f64 {
        self.tokens(1, steps)
    }

    /// Seconds of a step that gives so many mean requests a token.
    fn tokens(&self, running: u64, steps: &mut Steps<'_>) -> f64 {
        let context = running.saturating_mul(self.input + self.output / 2);
        steps.seconds(&Batch { prompts: &[], decodes: running, context })
    }

    fn prefills(&self, group: Group, policy: Policy, steps: &mut Steps<'_>) -> Result<f64, String> {
        let Objective { ttft, parts, .. } = self.objective;
        let alone = self.prompt_alone(policy.chunk, steps);
        if alone > ttft {
            let (tokens, limit) = (self.long.0, ttft * 1e3);
            return Err(format!("a prompt of {tokens} tokens alone takes {:.0} ms, not {limit:.0}", alone * 1e3));
        }
        // As many prompts in a step as it takes, at each replica, or parts of them until it is full: what is faster.
        let replicas = u64::from(group.replicas);
        let copies = (policy.chunk / self.computed).max(1);
        let whole = prompts((self.computed, self.prefix), copies * replicas, policy.chunk, steps) / copies as f64;
        let each = whole.min(self.filled(replicas, policy, steps)) / replicas as f64 / f64::from(group.pipeline);
        let until = self.span + if ttft.is_finite() { ttft } else { 0.0 };
        Ok(each * self.count * parts[0] / until.max(each))
    }

    /// Seconds of a mean prompt of each replica where others fill up the step of its last piece.
    fn filled(&self, replicas: u64, policy: Policy, steps: &mut Steps<'_>) -> f64 {
        let (tokens, prefix, chunk) = (self.computed, self.prefix, policy.chunk);
        let mut step = |pieces: &[(u64, u64)]| {
            let prompts = pieces.repeat(replicas as usize);
            steps.seconds(&Batch { prompts: &prompts, decodes: 0, context: 0 })
        };
        let rest = tokens % chunk;
        let whole: f64 = (0..tokens / chunk).map(|nth| step(&[(chunk, prefix + nth * chunk)])).sum();
        if rest == 0 {
            return whole;
        }
        let mut pieces = vec![(rest, prefix + tokens - rest)];
        let mut left = chunk - rest;
        while left > 0 && pieces.len() < policy.prompts {
            let piece = left.min(tokens);
            pieces.push((piece, prefix));
            left -= piece;
        }
        whole + step(&pieces) * rest as f64 / (chunk - left) as f64
    }

    fn decodes(&self, group: Group, blocks: u64, policy: Policy, steps: &mut Steps<'_>) -> Result<f64, String> {
        let Objective { ttft, tpot, parts } = self.objective;
        let alone = self.token_alone(steps);
        let mut step = |running: u64| self.tokens(running, steps);
        if alone > tpot {
            return Err(format!("a token alone takes {:.1} ms, not {:.1}", alone * 1e3, tpot * 1e3));
        }
        let of_memory = blocks / (self.input + self.output).div_ceil(policy.block).max(1);
        let stages = u64::from(group.pipeline);
        let running = policy.running.saturating_mul(u64::from(group.replicas));
        let mut most = of_memory.min(running).div_ceil(stages).max(1);
        // Where most of the requests have to meet it, so has the mean step.
        if parts[1] >= 0.5 && step(most) > tpot {
            let (mut good, mut bad) = (1, most);
            while bad - good > 1 {
                let middle = good.midpoint(bad);
                if step(middle) <= tpot { good = middle } else { bad = middle }
            }
            most = good;
        }
        // A step of each stage's requests lasts as long as all stages take.
        let rate = (most * stages) as f64 / step(most);
        let tokens = self.count * parts[0].min(parts[1]) * self.output.saturating_sub(1) as f64;
        let slack = [ttft, tpot * self.output as f64].iter().filter(|time| time.is_finite()).sum::<f64>();
        Ok(tokens / rate / (self.span + slack).max(1e-9))
    }
}

/// Seconds of so many prompts at once, of as many tokens behind a prefix, in steps of at most `chunk` tokens of each.
fn prompts((tokens, prefix): (u64, u64), copies: u64, chunk: u64, steps: &mut Steps<'_>) -> f64 {
    let mut seconds = 0.0;
    let mut done = 0;
    while done < tokens {
        let piece = chunk.min(tokens - done);
        let prompts = vec![(piece, prefix + done); copies as usize];
        seconds += steps.seconds(&Batch { prompts: &prompts, decodes: 0, context: 0 });
        done += piece;
    }
    seconds
}
