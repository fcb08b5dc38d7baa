//! Several machines and counts of GPUs beside each other: which is the fastest, which takes least, which scale.

use collcast_reports::model::Input;
use collcast_scenarios::training::calls::{Calls, KnownCall};

use super::outcome::{Outcome, of_gpus};
use super::planning::{Planning, spec};
use super::request::Request;
use crate::error::Error;
use crate::shard::Shard;
use crate::site::{Site, SiteSpec};
use crate::watch::Watch;

/// Efficiency that counts as scaling well: the tenth that planners allow for.
pub(super) const SCALES: f64 = 0.9;

/// A machine with a count of GPUs.
#[derive(Debug)]
pub struct Choice {
    /// What it is called.
    pub name: String,
    /// The machine.
    pub machine: String,
    /// GPUs of the job.
    pub gpus: u64,
    /// Price of a GPU and hour.
    pub price: Option<f64>,
    /// Its plan, or why there is none.
    pub plan: Result<Outcome, Error>,
    /// Which of the options, from 0, is the first that differs from it by its count alone.
    pub series: usize,
    /// Tokens a second and GPU, of those with the fewest GPUs of its series.
    pub efficiency: Option<f64>,
    /// Whether no other one is at least as fast for at most as much.
    pub on_front: bool,
}

/// The best by some measure.
#[derive(Clone, PartialEq, Debug)]
pub struct Pick {
    /// Its place among the options.
    pub best: usize,
    /// Others that may be as good: intervals overlap.
    pub unsure: Vec<usize>,
    /// The next of those that are surely worse, and how many times as much it takes.
    pub next: Option<(usize, f64)>,
}

/// Plans beside each other, in the order asked for.
#[derive(Debug)]
pub struct Options {
    /// All of them.
    pub options: Vec<Choice>,
    /// The one that is done first.
    pub fastest: Pick,
    /// The one of the lowest cost, or of the fewest GPU hours where no price is given.
    pub cheapest: Pick,
    /// By series, the most GPUs that still have nine tenths of the tokens a second and GPU of the fewest.
    pub scales: Vec<usize>,
    /// Options with the one of fewer GPUs of its series that is at least as fast, as whoever leaves GPUs idle has it.
    pub idle: Vec<(usize, usize)>,
    /// Files that were read.
    pub inputs: Vec<Input>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What to know before using the numbers.
    pub warnings: Vec<String>,
}

impl Choice {
    /// Days of the whole run, or seconds of a token where no run is given: lower end, middle, upper end.
    pub fn time(&self) -> Option<[f64; 3]> {
        let plan = self.plan.as_ref().ok()?;
        let step = &plan.layouts.first()?.step;
        let tokens = plan.tokens_per_step;
        Some(match &plan.whole {
            Some(whole) => whole.finish_days,
            None => [step.interval.0, step.seconds, step.interval.1].map(|seconds| seconds / tokens),
        })
    }

    /// The interval of its step by what calls may be off by alone, of the step.
    fn of_calls(&self) -> Option<[f64; 3]> {
        let plan = self.plan.as_ref().ok()?;
        let step = &plan.layouts.first()?.step;
        let [less, more] = step.calls_off.map(|off| off / step.seconds);
        Some([1.0 - less, 1.0, 1.0 + more])
    }

    /// Whether its best layout fits into memory.
    pub fn fits(&self) -> bool {
        self.plan.as_ref().is_ok_and(|plan| plan.layouts.first().is_some_and(|layout| layout.fits))
    }

    /// What kind of GPU it has.
    fn kind(&self) -> Option<&str> {
        self.plan.as_ref().ok().map(|plan| plan.gpu.as_str())
    }

    /// Cost of that time, or GPU time in the same unit where no price is given.
    pub fn spent(&self) -> Option<[f64; 3]> {
        let price = self.price.map_or(1.0, |price| 24.0 * price);
        let time = self.time()?;
        // Hosts that stand by are paid, too, and rare long stops are in the mean.
        let held = match &self.plan.as_ref().ok()?.whole {
            Some(whole) => whole.gpu_hours / 24.0 / time[1],
            None => self.gpus as f64,
        };
        Some(time.map(|time| time * held * price))
    }
}

/// The machines of requests, each once.
#[derive(Debug)]
pub struct Sites {
    /// The machines.
    pub sites: Vec<Site>,
    /// The place of each request's machine among them.
    places: Vec<usize>,
    /// GPUs of the largest request, whose batch is that of all: else options would solve other problems.
    most_gpus: Option<u64>,
}

impl Sites {
    /// Those of requests of one question.
    ///
    /// # Errors
    /// Whatever cannot be read; requests of different questions.
    pub fn of(requests: &[Request]) -> Result<Self, Error> {
        of_one_question(requests)?;
        let mut specs: Vec<SiteSpec> = Vec::new();
        let mut places = Vec::new();
        for request in requests {
            let spec = spec(request)?;
            let place = specs.iter().position(|known| *known == spec);
            places.push(place.unwrap_or(specs.len()));
            if place.is_none() {
                specs.push(spec);
            }
        }
        let most_gpus = requests.iter().map(|request| request.gpus).max();
        Ok(Self { sites: specs.iter().map(SiteSpec::load).collect::<Result<_, _>>()?, places, most_gpus })
    }

    /// What calls take on each.
    fn calls(&self) -> Result<Vec<Calls<'_>>, Error> {
        self.sites.iter().map(Site::calls).collect()
    }

    /// The plan of a request, or why there is none.
    fn plan(
        &self,
        request: (usize, &Request),
        times: &[Calls<'_>],
        watch: &Watch,
    ) -> Result<Result<Outcome, Error>, Error> {
        let (index, request) = request;
        let place = self.places[index];
        let request = Request { batch_gpus: self.most_gpus, ..request.clone() };
        let planning = Planning::new(&request, &self.sites[place])?;
        match planning.plan(&request, &self.sites[place], &times[place], watch) {
            // Our own faults, and whoever stops us, are no rows.
            Err(error) if error.code() != 2 => Err(error),
            plan => Ok(plan),
        }
    }
}

/// What calls take in a shard of the requests, each with the place of its machine.
///
/// # Errors
/// As of [`compare`].
pub fn part(
    requests: &[Request],
    sites: &Sites,
    shard: Shard,
    watch: &Watch,
) -> Result<Vec<(usize, KnownCall)>, Error> {
    let times = sites.calls()?;
    let mine: Vec<usize> = (0..requests.len()).filter(|&index| shard.has(index)).collect();
    for (done, &index) in mine.iter().enumerate() {
        // Why one is no option is said where all are.
        let _ = sites.plan((index, &requests[index]), &times, &watch.one_of(done, mine.len()))?;
    }
    let known = |(place, calls): (usize, &Calls<'_>)| calls.all_known().into_iter().map(move |call| (place, call));
    Ok(times.iter().enumerate().flat_map(known).collect())
}

/// Searches each request. One on whose GPUs nothing fits is told so beside the others.
///
/// # Errors
/// Whatever cannot be read; requests of different questions; what is wrong with the first where all are refused.
pub fn compare(requests: &[Request], watch: &Watch) -> Result<Options, Error> {
    merged(requests, &Sites::of(requests)?, Vec::new(), watch)
}

/// [`compare`], where it is known what some calls take: see [`part`].
///
/// # Errors
/// As of [`compare`].
pub fn merged(
    requests: &[Request],
    sites: &Sites,
    known: Vec<(usize, KnownCall)>,
    watch: &Watch,
) -> Result<Options, Error> {
    let times = sites.calls()?;
    for (place, call) in known {
        times.get(place).into_iter().for_each(|calls| calls.know([call]));
    }
    let mut options: Vec<Choice> = Vec::new();
    let alike = |request: &Request| Request { gpus: 0, name: None, price: None, ..request.clone() };
    for (index, request) in requests.iter().enumerate() {
        let series = requests.iter().position(|other| alike(other) == alike(request)).unwrap_or(index);
        let plan = sites.plan((index, request), &times, &watch.one_of(index, requests.len()))?;
        let machine = sites.sites[sites.places[index]].topology.name.clone();
        options.push(Choice {
            name: request.name.clone().unwrap_or_else(|| format!("{} of {machine}", of_gpus(request.gpus))),
            machine,
            gpus: request.gpus,
            price: request.price,
            plan,
            series,
            efficiency: None,
            on_front: false,
        });
    }
    if options.iter().all(|option| option.plan.is_err()) {
        let first = options.into_iter().find_map(|option| option.plan.err());
        return Err(first.unwrap_or_else(|| Error::usage("there is nothing to plan", "name a machine and a count")));
    }
    judge(&mut options);
    let planned = || options.iter().filter_map(|o| Some((o.name.as_str(), o.plan.as_ref().ok()?)));
    let all = |of: fn(&Outcome) -> &[String]| told(&planned().map(|(name, plan)| (name, of(plan))).collect::<Vec<_>>());
    Ok(Options {
        fastest: pick(&options, Choice::time),
        cheapest: pick(&options, Choice::spent),
        scales: scaling(&options),
        idle: idle(&options),
        inputs: each_once(planned().flat_map(|(_, plan)| plan.inputs.iter().cloned())),
        notes: all(|plan| &plan.notes),
        warnings: all(|plan| &plan.warnings),
        options,
    })
}

/// Days are compared of as many tokens, costs where each has a price.
fn of_one_question(requests: &[Request]) -> Result<(), Error> {
    let Some(first) = requests.first() else { return Ok(()) };
    if requests.iter().any(|request| request.sensitivities || !request.vary.is_empty()) {
        return Err(Error::usage(
            "--sensitivities and --vary are of one machine and count, and these are several",
            "give one --on and one count, such as those of the best option",
        ));
    }
    if requests.iter().any(|request| request.tokens != first.tokens) {
        return Err(Error::usage(
            "the options are of different numbers of tokens",
            "give --tokens once: days and costs are compared of the same run",
        ));
    }
    let mut without = requests.iter().filter(|request| request.price.is_none());
    let (Some(first), true) = (without.next(), requests.iter().any(|request| request.price.is_some())) else {
        return Ok(());
    };
    let (what, way) = match &first.name {
        Some(name) => (format!("option `{name}`"), "give each option a `price`"),
        None => (format!("`{}`", first.machine()), "give one for each machine, as in --price dgx-h100=2.5,dgx-b200=4"),
    };
    Err(Error::usage(format!("there is no price of {what}, and others have one"), way))
}

/// Sets what an option is beside the others.
fn judge(options: &mut [Choice]) {
    let speed = |option: &Choice| Some(option.plan.as_ref().ok()?.layouts.first()?.tokens_per_s_per_gpu);
    let batch = |option: &Choice| Some(option.plan.as_ref().ok()?.tokens_per_step);
    let efficiency = |option: &Choice| {
        let same = options.iter().filter(|other| other.series == option.series && other.plan.is_ok());
        let fewest = same.min_by_key(|other| other.gpus)?;
        // A batch that odd counts share evenly is another one.
        (batch(option) == batch(fewest)).then_some(speed(option)? / speed(fewest)?)
    };
    let on_front = |option: &Choice| {
        let (Some([_, time, _]), Some([_, spent, _])) = (option.time(), option.spent()) else { return false };
        option.fits()
            && !options.iter().filter(|other| other.fits()).any(|other| {
                let (Some([_, t, _]), Some([_, s, _])) = (other.time(), other.spent()) else { return false };
                t <= time && s <= spent && (t < time || s < spent)
            })
    };
    let judged: Vec<_> = options.iter().map(|option| (efficiency(option), on_front(option))).collect();
    for (option, (efficiency, on_front)) in options.iter_mut().zip(judged) {
        (option.efficiency, option.on_front) = (efficiency, on_front);
    }
}

/// The one that takes least of those that fit, and which others it cannot be told from: intervals overlap. What kernels are
/// off by is the same for one kind of GPU, and does not count between two options of it.
fn pick(options: &[Choice], of: fn(&Choice) -> Option<[f64; 3]>) -> Pick {
    let fitting = options.iter().any(Choice::fits);
    let own = options.iter().enumerate().filter(|(_, option)| option.fits() || !fitting);
    let mut all: Vec<(usize, [f64; 3])> = own.filter_map(|(index, option)| Some((index, of(option)?))).collect();
    all.sort_by(|a, b| a.1[1].total_cmp(&b.1[1]));
    let mut pick = Pick { best: all.first().map_or(0, |first| first.0), unsure: Vec::new(), next: None };
    let Some((&(best, least), others)) = all.split_first() else { return pick };
    for &(index, more) in others {
        let alike = options[best].kind() == options[index].kind();
        let [of_best, of_other] = [(best, least), (index, more)].map(|(index, interval)| match alike {
            true => options[index].of_calls().map_or(interval, |parts| parts.map(|part| part * interval[1])),
            false => interval,
        });
        if of_other[0] <= of_best[2] {
            pick.unsure.push(index);
        } else if pick.next.is_none() {
            pick.next = Some((index, more[1] / least[1]));
        }
    }
    pick
}

/// The largest count of each series that scales well, of those with several counts.
fn scaling(options: &[Choice]) -> Vec<usize> {
    let mut found: Vec<usize> = Vec::new();
    for option in options {
        let of_series = || (0..).zip(options).filter(|(_, other)| other.series == option.series);
        let known = found.iter().any(|&index| options[index].series == option.series);
        if !known && of_series().filter(|(_, other)| other.efficiency.is_some()).count() > 1 {
            let well = of_series().filter(|(_, other)| other.fits() && other.efficiency.is_some_and(|e| e >= SCALES));
            found.extend(well.max_by_key(|(_, other)| other.gpus).map(|(index, _)| index));
        }
    }
    found
}

/// Options that are no faster than one of fewer GPUs of the same series, with the fastest of these.
fn idle(options: &[Choice]) -> Vec<(usize, usize)> {
    let fastest = |index: usize| {
        let option = &options[index];
        let fewer = (0..options.len()).filter(|&other| {
            options[other].series == option.series && options[other].gpus < option.gpus && options[other].fits()
        });
        let time = |index: usize| options[index].time().map_or(f64::INFINITY, |time| time[1]);
        let best = fewer.min_by(|&a, &b| time(a).total_cmp(&time(b)))?;
        (option.fits() && time(best) <= time(index)).then_some((index, best))
    };
    (0..options.len()).filter_map(fastest).collect()
}

/// What was assumed of all that have a name once, of some with their names.
pub(crate) fn told(all: &[(&str, &[String])]) -> Vec<String> {
    each_once(all.iter().flat_map(|(_, notes)| *notes).map(|note| {
        let of: Vec<&str> = all.iter().filter(|(_, notes)| notes.contains(note)).map(|(name, _)| *name).collect();
        if of.len() == all.len() { note.clone() } else { format!("{}: {note}", of.join(", ")) }
    }))
}

/// What is there several times once, in order.
pub(crate) fn each_once<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}
