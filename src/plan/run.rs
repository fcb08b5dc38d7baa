//! The whole run: when it is done, what failures leave of the time, what it costs.

use super::outcome::{Goodput, Layout, Whole};
use super::request::Request;
use crate::error::Error;
use collcast_scenarios::goodput::{Fleet, Job, Rates, Run, simulate};
use collcast_scenarios::memory::Software;
use collcast_scenarios::transformer::Transformer;

/// Failure rates that are taken: those of 16,384 H100 over 54 days.
const RATES: &str = "llama3-405b";
/// B/s of a copy to the host, and seconds of a barrier: by these a save stops the step that goes on in the background. 55
/// GB/s were measured on an H100 with PCIe 5, less some for strided tensors; the barrier is an assumption.
const HOST_RATE: f64 = 50e9;
const BARRIER: f64 = 0.5;
/// B/s that storage takes, an assumption: 2 TB/s is Meta's Tectonic for 16,384 GPUs (Llama 3 report, 3.3.1): as much a GPU.
const STORAGE_RATE: f64 = 2e12 / 16_384.0;
/// Seconds from a failure to the first new step, automated: the middle of 2 to 15 minutes (`docs/model/goodput.md`).
const RESTART: f64 = 600.0;
/// What the answer says of these.
pub(super) const ASSUMED: &str = "failures come as often a GPU as in the run of Llama 3 405B; checkpoints are asynchronous, storage takes 122 MB/s a GPU, a restart takes 10 minutes, spare hosts are there";
/// Runs that are drawn.
const SAMPLES: u32 = 200;

/// The run that a layout makes.
pub(super) fn whole(
    request: &Request,
    model: &Transformer,
    software: &Software,
    best: &Layout,
    tokens_per_step: f64,
) -> Result<Option<Whole>, Error> {
    let Some(tokens) = request.tokens else { return Ok(None) };
    let steps = (tokens / tokens_per_step).ceil();
    let work = steps * best.step.seconds;
    let gpus = request.gpus;
    let rates = Rates::load(RATES)?;
    let fleet = Fleet::of_eight(gpus);
    let checkpoint_bytes = model.parameters().held() as f64 * software.states.checkpoint();
    let stall = checkpoint_bytes / gpus as f64 / HOST_RATE + BARRIER;
    let durable = checkpoint_bytes / (STORAGE_RATE * gpus as f64);
    let job = Job { mtbf: rates.mtbf(&fleet), stall, durable, restart: RESTART };
    let interval = job.optimal().max(best.step.seconds);
    let run =
        Run { job, work, interval, detect: 0.0, spares: None, repair: 0.0, hardware: rates.hardware, stragglers: None };
    let outcome = simulate(&run, SAMPLES, 1).map_err(|e| Error::usage(e.to_string(), "give other --tokens"))?;
    let day = 86_400.0;
    // A step that is slower than forecast makes the whole run as much slower; failures hardly spread it.
    let step = &best.step;
    let slower = [step.interval.0, step.seconds, step.interval.1].map(|seconds| seconds / step.seconds);
    let finish_days = std::array::from_fn(|i| outcome.finish[i] * slower[i] / day);
    let gpu_hours = finish_days[1] * 24.0 * gpus as f64;
    Ok(Some(Whole {
        tokens,
        steps,
        days: work / day,
        finish_days,
        gpu_hours,
        cost: request.price.map(|price| price * gpu_hours),
        failures: Goodput {
            goodput: outcome.goodput,
            mtbf_s: job.mtbf,
            interval_s: interval,
            stall_s: stall,
            durable_s: durable,
            checkpoint_bytes,
            failures: outcome.failures,
        },
    }))
}
