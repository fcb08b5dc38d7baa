//! The whole run: when it is done, what failures leave of the time, what it costs.

use super::outcome::{Goodput, Layout, Whole};
use super::request::{Request, Upkeep};
use crate::error::Error;
use collcast_scenarios::goodput::{self, Fleet, GoodputError, Job, Rates, Saving, WholeRun, simulate};
use collcast_sim::topology::Topology;

/// Failure rates that are taken where none are named: those of 16,384 H100 over 54 days.
const RATES: &str = "llama3-405b";
/// B/s of a copy to the host, and seconds of a barrier: by these a save stops the step that goes on in the background. 55
/// GB/s were measured on an H100 with PCIe 5, less some for strided tensors; the barrier is an assumption.
const HOST_RATE: f64 = 50e9;
const BARRIER: f64 = 0.5;
/// B/s that storage takes, an assumption: 2 TB/s is Meta's Tectonic for 16,384 GPUs (Llama 3 report, 3.3.1): as much a GPU.
const STORAGE_RATE: f64 = 2e12 / 16_384.0;
/// Seconds from a failure to the first new step, automated: the middle of 2 to 15 minutes (`docs/model/goodput.md`).
const RESTART: f64 = 600.0;
/// Seconds between failures where none was counted: a thousand years, beyond any job.
const NEVER: f64 = 1000.0 * 365.25 * 86_400.0;
/// Runs that are drawn at least and at most, and checkpoints of all of them: half a second of a core.
const SAMPLES: [f64; 2] = [10.0, 200.0];
const DRAWN: f64 = 40e6;
/// Goodput below which a run is refused.
const HOPELESS: f64 = 0.01;
/// How often spares are to be enough: the share for which ByteRobust keeps machines standing by (arXiv 2509.16293).
const ENOUGH: f64 = 0.99;

/// Refuses what says nothing of a run: a price or failures of none, spares of hosts that nobody repairs.
pub(super) fn check(request: &Request) -> Result<(), Error> {
    let upkeep = &request.upkeep;
    if request.tokens.is_none() && (request.price.is_some() || *upkeep != Upkeep::default()) {
        let what = "a price, and what is said of failures, needs --tokens: it is of the whole run";
        return Err(Error::usage(what, "give both, or neither"));
    }
    if upkeep.spares.is_some() && upkeep.repair.is_none() {
        return Err(Error::usage("--spares needs --repair", "say when a host that failed is back, as in --repair 24h"));
    }
    Ok(())
}

/// B/s that storage takes from a whole job.
pub(super) fn storage(request: &Request) -> f64 {
    request.upkeep.storage.unwrap_or(STORAGE_RATE * request.gpus as f64)
}

/// What is assumed of what the request does not say.
fn assumed(request: &Request, storage_bounds: bool) -> Option<String> {
    let upkeep = &request.upkeep;
    let parts: Vec<&str> = [
        (upkeep.failures.is_none(), "failures come as often a GPU as in the run of Llama 3 405B"),
        (!upkeep.blocking, "checkpoints are asynchronous"),
        (upkeep.storage.is_none(), "storage takes 122 MB/s a GPU"),
        (storage_bounds, "a checkpoint begins when the one before it is in storage, which sets the time between two"),
        (upkeep.restart.is_none(), "a restart takes 10 minutes"),
        (upkeep.spares.is_none(), "spare hosts are there, at no cost"),
        (upkeep.failures.is_none(), "no rank gets slow"),
    ]
    .into_iter()
    .filter_map(|(assumed, text)| assumed.then_some(text))
    .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// What a job runs on. Built-in rates were counted on hosts of eight GPUs with as many NICs, and hold by the GPU; those of a
/// file are of the machine's own hosts and NICs.
fn fleet(request: &Request, topology: &Topology) -> Fleet {
    let named = request.upkeep.failures.as_deref().unwrap_or(RATES);
    if goodput::text(named).is_some() {
        return Fleet::of_eight(request.gpus);
    }
    let count = |of: fn(&collcast_sim::topology::Host) -> usize| topology.hosts().first().map_or(0, of) as u64;
    let hosts = request.gpus.div_ceil(count(|host| host.gpus.len()).max(1));
    Fleet { gpus: request.gpus, hosts, nics: hosts * count(|host| host.nics.len()) }
}

/// A time in the unit that people say it in.
fn long(seconds: f64) -> String {
    match seconds {
        days if days >= 4.0 * 86_400.0 => format!("{:.1} days", days / 86_400.0),
        hours if hours >= 2.0 * 3600.0 => format!("{:.1} h", hours / 3600.0),
        minutes if minutes >= 60.0 => format!("{:.1} min", minutes / 60.0),
        seconds => format!("{seconds:.1} s"),
    }
}

/// The run that a layout makes of so many tokens a step, with a checkpoint of so many bytes; and what was assumed.
pub(super) fn whole(
    request: &Request,
    topology: &Topology,
    best: &Layout,
    (tokens_per_step, checkpoint_bytes): (f64, f64),
) -> Result<(Option<Whole>, Option<String>), Error> {
    let Some(tokens) = request.tokens else { return Ok((None, None)) };
    let refused = |error: GoodputError| {
        Error::usage(
            format!("the whole run cannot be forecast: {error}"),
            "change --tokens, or what is said of failures: --failures, --spares, --repair, --restart, --storage, --checkpoint-every",
        )
    };
    let steps = (tokens / tokens_per_step).ceil();
    let (gpus, upkeep) = (request.gpus, &request.upkeep);
    let rates = Rates::load(upkeep.failures.as_deref().unwrap_or(RATES))?;
    let saving = Saving {
        bytes: checkpoint_bytes,
        storage: storage(request),
        host_copy: (!upkeep.blocking).then_some((gpus, HOST_RATE)),
        barrier: BARRIER,
    };
    let (stall, durable) = saving.times().map_err(refused)?;
    // Nothing fails in a file without failures: then as good as never, in seconds that sums still hold.
    let fleet = fleet(request, topology);
    let mtbf = (rates.mtbf(&fleet) / upkeep.failures_times).min(NEVER);
    let job = Job { mtbf, stall, durable, restart: upkeep.restart.unwrap_or(RESTART) };
    // Storage takes one save at a time.
    let least = (durable - stall).max(best.step.seconds);
    let wanted = upkeep.checkpoint_every.unwrap_or_else(|| job.optimal());
    if wanted < least && upkeep.checkpoint_every.is_some() {
        let (every, least) = (long(wanted), (least / 60.0).ceil());
        let message = format!("a checkpoint cannot be taken every {every}: a save or a step takes longer");
        return Err(Error::usage(message, format!("take at least --checkpoint-every {least}min, or more --storage")));
    }
    let interval = wanted.max(least);
    if job.exact(interval) < HOPELESS {
        let (what, way) = match upkeep.checkpoint_every {
            _ if job.restart >= job.mtbf => {
                (format!("a restart takes {}", long(job.restart)), "give a shorter --restart, or fewer failures")
            }
            Some(_) => {
                let way = "give a shorter --checkpoint-every, or leave it out for the optimum";
                (format!("a save every {}", long(interval)), way)
            }
            None => {
                let way = "give --storage that takes checkpoints faster, or fewer failures";
                (format!("a save every {}", long(interval)), way)
            }
        };
        let failure = long(job.mtbf);
        return Err(Error::usage(format!("the run would hardly proceed: {what}, a failure every {failure}"), way));
    }
    let run = WholeRun {
        job,
        work: steps * best.step.seconds,
        interval,
        spares: upkeep.spares,
        repair: upkeep.repair.unwrap_or(0.0),
        hardware: rates.hardware,
        stragglers: rates.stragglers(&fleet),
    };
    let samples = (DRAWN * run.interval / run.work).clamp(SAMPLES[0], SAMPLES[1]);
    let outcome = simulate(&run, samples as u32, 1).map_err(refused)?;
    if outcome.goodput < HOPELESS {
        let left = 100.0 * outcome.goodput;
        let message =
            format!("the run would hardly proceed: failures, repairs and slow ranks leave it {left:.2}% of the time");
        return Err(Error::usage(
            message,
            "give more --spares, a shorter --repair, or a --failures file with fewer of both",
        ));
    }
    let enough = (upkeep.repair)
        .map(|repair| goodput::spares(rates.hardware * repair / job.mtbf, ENOUGH))
        .transpose()
        .map_err(refused)?;
    let day = 86_400.0;
    // A step that is slower than forecast makes the whole run as much slower; failures hardly spread it.
    let step = &best.step;
    let slower = [step.interval.0, step.seconds, step.interval.1].map(|seconds| seconds / step.seconds);
    let finish_days: [f64; 3] = std::array::from_fn(|i| outcome.finish[i] * slower[i] / day);
    // Hosts that stand by are held, too.
    let host = topology.hosts().first().map_or(1, |host| host.gpus.len()) as u64;
    let held = gpus + u64::from(upkeep.spares.unwrap_or(0)) * host;
    // In the mean of all runs.
    let gpu_hours = run.work / outcome.goodput / 3600.0 * held as f64;
    let share = |seconds: f64| seconds * outcome.goodput / run.work;
    let whole = Whole {
        tokens,
        steps,
        days: run.work / day,
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
            lost: share(outcome.lost),
            saving: share(outcome.saving),
            down: share(outcome.down - outcome.waiting),
            waiting: share(outcome.waiting),
            slow: share(outcome.slow),
            spares_enough: enough,
        },
    };
    Ok((Some(whole), assumed(request, wanted < least)))
}
