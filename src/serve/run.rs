//! Runs the requests of a load through a fleet.

use collcast_scenarios::serving::arrivals::{self, MOST_REQUESTS};
use collcast_scenarios::serving::summary::{place, summarise};
use collcast_scenarios::serving::{Outcome as Ran, Request as Asked, Role, ServingError, simulate};
use collcast_scenarios::training::calls::{Exchange, Shape};

use super::alone::{Alone, faster, roomier};
use super::bound::Demand;
use super::contention::Contention;
use super::fleet::Fleet;
use super::hand_off::{HandOff, HandOffs, tier_ways};
use super::outcome::{Outcome, Phase, WorkerRow};
use super::request::{Load, Request};
use super::served::Served;
use super::setup::{Exchanges, Setup, role_name, steps};
use crate::error::Error;
use crate::files::read_text;
use crate::values::number;

/// Part of the tokens that are asked for by which a fleet may fall short of them without a note.
const SHORT: f64 = 0.02;

/// Prefixes of a load at most.
const MOST_PREFIXES: u64 = 1_000_000;

/// Runs the requests of a load through a fleet.
///
/// # Errors
/// A model, machine or trace that cannot be read; weights that do not fit; a request that no cache holds; too much of it.
pub fn serve(request: &Request) -> Result<Outcome, Error> {
    let setup = Setup::new(request, request.fleet.gpus())?;
    let asked = load(request)?;
    run(request, &setup, request.fleet, &asked)
}

/// The requests that arrive.
pub(super) fn load(request: &Request) -> Result<Vec<Asked>, Error> {
    if request.policy.chunk == 0 || request.policy.running == 0 {
        return Err(Error::usage("steps of no tokens serve nobody", "give a budget of 1 or more"));
    }
    let asked = match &request.load {
        Load::Trace(path) => {
            let wrong = |e| Error::usage(format!("{}: {e}", path.display()), "docs/formats.md says what a line has");
            let text = read_text("read the trace", path)?;
            let named = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("jsonl"));
            let is_json = named || text.trim_start().starts_with('{');
            if is_json { arrivals::mooncake(&text) } else { arrivals::trace(&text) }.map_err(wrong)?
        }
        &Load::Poisson { rate, seconds, input, output, prefixes, seed } => {
            let most = MOST_REQUESTS as f64 * 0.9;
            if !(rate > 0.0 && seconds > 0.0 && rate * seconds <= most) {
                let message = format!("{} requests a second over {} s", number(rate), number(seconds));
                return Err(Error::usage(message, format!("ask for more than 0 and at most {most} of them")));
            }
            if input == 0 || output == 0 || input.max(output) > 1 << 30 {
                return Err(Error::usage("a prompt and its answer have 1 token or more", "give both lengths"));
            }
            let mut asked = arrivals::poisson(rate, seconds, (input, output), seed);
            if let Some(prefixes) = prefixes {
                if prefixes.tokens == 0 || prefixes.tokens >= input || !(1..=MOST_PREFIXES).contains(&prefixes.count) {
                    let message = format!("{} prefixes of {} tokens", prefixes.count, prefixes.tokens);
                    let hint = format!("give 1 to {MOST_PREFIXES} of them, each of 1 token to less than a prompt");
                    return Err(Error::usage(message, hint));
                }
                arrivals::share(&mut asked, prefixes, seed);
            }
            asked
        }
    };
    let keeps = request.host_cache > 0 || request.drive_cache > 0;
    if keeps && !asked.is_empty() && asked.iter().all(|asked| asked.prefix.is_none()) {
        let hint = "leave them out, or give --prefixes, or a trace in JSON Lines with hash_ids";
        return Err(Error::usage("--host-cache and --drive-cache keep prefixes, and no two prompts share one", hint));
    }
    if asked.is_empty() {
        return Err(Error::usage(
            "no request arrives",
            "give a longer --duration, a higher --rate or a trace with lines",
        ));
    }
    Ok(asked)
}

/// Runs requests through one fleet.
pub(super) fn run(request: &Request, setup: &Setup, fleet: Fleet, asked: &[Asked]) -> Result<Outcome, Error> {
    let laid = fleet.laid(&setup.site.topology);
    if laid.end > setup.site.topology.ranks() {
        return run(request, &Setup::new(request, laid.end)?, fleet, asked);
    }
    let workers = setup.workers((&fleet, &laid), request)?;
    let calls = setup.site.calls()?;
    let exchanges = Exchanges::new(&calls);
    // The first worker of each group, for all of them.
    let firsts: Vec<&[u32]> = laid.groups.iter().filter_map(|workers| workers.first()).map(Vec::as_slice).collect();
    let groups = || fleet.groups().into_iter().zip(&firsts);
    let tiers: Vec<_> = groups().map(|((_, group), stages)| tier_ways(setup, group, stages)).collect();
    let hand_offs = HandOffs::new(setup, (&fleet, &laid), request.policy.block)?;
    let mut contentions = Vec::new();
    for (((role, group), stages), tiers) in groups().zip(&tiers) {
        // Decoders fetch nothing, and of two tiers the faster is the one that is read most.
        let kept = [request.host_cache, request.drive_cache].into_iter().zip(tiers).find(|(bytes, _)| *bytes > 0);
        let fetched = kept.filter(|_| role != Role::Decode).and_then(|(_, way)| way.as_ref());
        let fetched = fetched.map(HandOff::ways).unwrap_or_default();
        let handed = hand_offs.as_ref().and_then(HandOffs::first).unwrap_or_default();
        contentions.push(Contention::new(setup, (group, stages.first().copied().unwrap_or(0)), [handed, fetched]));
    }
    let exchange = |contention: usize| {
        let (contention, exchanges): (&Contention<'_>, _) = (&contentions[contention], &exchanges);
        move |shape: Shape, exchange: Exchange, bytes: u64| {
            contention.taken(shape, exchange, bytes, exchanges.seconds(shape, exchange, bytes))
        }
    };
    let taken: Vec<_> = (0..contentions.len()).map(exchange).collect();
    let mut of_groups = Vec::new();
    let mut end = 0;
    for ((_, group), taken) in fleet.groups().into_iter().zip(&taken) {
        end += (group.workers * group.pipeline) as usize;
        of_groups.push((end, steps(setup, group, request.precision, taken)?));
    }
    let path = hand_offs.as_ref().and_then(HandOffs::path).map(str::to_owned);
    let mut machine = Served { steps: of_groups, tiers, hand_offs };
    let ran = simulate(asked, &workers, request.policy, &mut machine).map_err(|error| refused(&error))?;
    machine.hand_offs.map_or(Ok(()), HandOffs::failed)?;
    let demand = Demand::new(asked, request.objective);
    let mut alone = Alone { tokens: demand.longest(), ..Alone::default() };
    for ((role, _), (_, steps)) in fleet.groups().iter().zip(&mut machine.steps) {
        if *role != Role::Decode {
            alone.seconds[0] = demand.prompt_alone(request.policy.chunk, steps);
        }
        if *role != Role::Prefill {
            alone.seconds[1] = demand.token_alone(steps);
        }
    }
    faster(request, fleet, &demand, &mut alone);
    drop(machine.steps);
    if let Some(error) = contentions.iter().find_map(|contention| contention.failed.take()) {
        return Err(Error::usage(error.to_string(), "take fewer GPUs a worker"));
    }
    if let Some(error) = exchanges.failed.take() {
        return Err(error.into());
    }
    let summary = summarise(asked, &ran, request.objective, request.load.window());
    let offered = asked.iter().map(|asked| asked.output as f64).sum::<f64>() / request.load.window();
    let unsteady = (summary.tokens_per_s < (1.0 - SHORT) * offered && offered.is_finite()).then(|| {
        format!(
            "requests ask for {offered:.0} output tokens/s, and the fleet makes {:.0} at most over a quarter of --duration: it is \
             overloaded, or a longer --duration tells more",
            summary.tokens_per_s
        )
    });
    let mut rows = Vec::new();
    let (mut first, mut pipe) = (0, 0);
    for (role, group) in fleet.groups() {
        let pipes = pipe..pipe + group.workers as usize;
        pipe = pipes.end;
        let members = first..first + (group.workers * group.pipeline) as usize;
        first = members.end;
        let busy: u64 = members.clone().map(|worker| ran.busy[worker]).sum();
        let peak = ran.peak[pipes].iter().copied().max().unwrap_or(0);
        let blocks = workers[members.start].blocks;
        rows.push(WorkerRow {
            role: role_name(role),
            workers: group.workers,
            gpus: group.gpus(),
            busy: busy as f64 * 1e-9 / (summary.seconds * f64::from(group.workers)),
            cache_tokens: blocks * request.policy.block,
            cache_peak: peak as f64 / blocks.max(1) as f64,
        });
    }
    if !request.objective.held(&summary)[0] {
        roomier(request, fleet, &demand, &mut alone);
    }
    Ok(Outcome {
        model: setup.model.name.clone(),
        machine: setup.site.topology.name.clone(),
        fleet,
        objective: request.objective,
        inputs: setup.site.sources.clone(),
        notes: notes(setup, request, path.as_deref(), asked).into_iter().chain(unsteady).collect(),
        warnings: setup.site.told.warnings.clone(),
        summary,
        reuse: (ran.reuse.hits.iter().sum::<u64>() > 0).then_some(ran.reuse),
        workers: rows,
        phases: phases(&ran),
        path,
        alone,
    })
}

fn refused(error: &ServingError) -> Error {
    let hint = match error {
        ServingError::TooLong { .. } => "take more GPUs a worker, or shorter requests",
        ServingError::NoWorker => "give --prefill and --decode, or --aggregated",
        ServingError::TooMany(_) => "take a shorter --duration or a lower --rate",
    };
    Error::usage(error.to_string(), hint)
}

fn notes(setup: &Setup, request: &Request, path: Option<&str>, asked: &[Asked]) -> Vec<String> {
    let mut notes = setup.rests_on();
    let longest = asked.iter().map(|asked| asked.input + asked.output).max().unwrap_or(0);
    notes.extend(setup.model.too_long(longest, "the longest request with its answer"));
    notes.push(
        "steps take their kernels and exchanges alone: scheduler, sampling and tokenisation take no time".to_owned(),
    );
    notes.push(
        "the cache is in BF16; memory is reserved for a whole request, as by GUARANTEED_NO_EVICT of TensorRT-LLM"
            .to_owned(),
    );
    if let Some(path) = path {
        let when =
            if request.policy.by_layers { "layer by layer beside the prefill" } else { "once a prompt is through" };
        notes.push(format!("caches go by {path} {when}, one at a time for each worker"));
    }
    notes
}

/// Of requests at some percentiles of the whole time: what they waited for.
fn phases(ran: &Ran) -> Vec<Phase> {
    let mut order: Vec<usize> = (0..ran.served.len()).collect();
    order.sort_by_key(|&index| ran.served[index].last - ran.served[index].arrived);
    let seconds = |from: u64, to: u64| (to - from) as f64 * 1e-9;
    let of = |percentile: u32| {
        let served = ran.served[order[place(order.len(), f64::from(percentile) / 100.0)]];
        Phase {
            percentile,
            at: seconds(0, served.arrived),
            queue: seconds(served.arrived, served.begun),
            prefill: seconds(served.begun, served.prefilled),
            hand_off: seconds(served.prefilled, served.first),
            decode: seconds(served.first, served.last),
        }
    };
    [50, 90, 99].map(of).to_vec()
}
