//! Starts this command in processes of its own: once a rank, on this host, as a launcher would, or once with other variables.

use std::ffi::OsString;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::process::parent_id;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use collcast::Error;
use collcast::bench::{Children, PARENT, not_too_many};
use collcast_reports::read::{NoResult, read};

use super::call::{self, Code};

/// How long the others may take to end after rank 0 has: they hear from it that it is over.
const GRACE: Duration = Duration::from_secs(5);
/// How often a process is asked whether it has ended.
const TICK: Duration = Duration::from_millis(10);

/// Whether this process was started by this program. It ends then when that one does, however that ends, and before this call
/// too: who waits for a peer would keep its GPU.
pub(crate) fn works_for_parent() -> bool {
    const TICK: Duration = Duration::from_millis(500);
    let Ok(told) = std::env::var(PARENT) else { return false };
    std::thread::spawn(move || {
        while told == parent_id().to_string() {
            std::thread::sleep(TICK);
        }
        std::process::exit(1);
    });
    true
}

/// Starts the command once for each rank; rank 0 speaks for all, and its exit code is that of the command.
pub(crate) fn processes(ranks: u32) -> Result<Code, Error> {
    not_too_many(ranks)?;
    // Free now; should another program take it before rank 0 does, the run ends in an error.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    let port = port.map_err(file("find a free port on", "127.0.0.1"))?.port();
    let mut children = Children(Vec::new());
    for rank in 0..ranks {
        let mut command = again()?;
        command.env("MASTER_ADDR", "127.0.0.1").env(PARENT, std::process::id().to_string());
        command.envs([("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string())]);
        command.envs([("WORLD_SIZE", ranks.to_string()), ("COLLCAST_PORT", port.to_string())]);
        if rank > 0 {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        }
        children.0.push(command.spawn().map_err(file("start", "this program"))?);
    }
    let answer = answered(&mut children.0[0], "rank 0")?;
    let begin = Instant::now();
    while begin.elapsed() < GRACE && children.0.iter_mut().any(|rank| matches!(rank.try_wait(), Ok(None))) {
        std::thread::sleep(TICK);
    }
    Ok(answer)
}

/// This command for a process of its own, which answers a program that asks in JSON.
pub(crate) fn again() -> Result<Command, Error> {
    let mut command = Command::new(call::program().map_err(file("find", "this program"))?);
    let mut words: Vec<OsString> = call::words().into_iter().skip(1).collect();
    if call::asked() {
        let place = words.iter().position(|word| word == "bench" || word == "probe").map_or(0, |place| place + 1);
        let writes = |word: &OsString| word.to_string_lossy().starts_with("--output");
        // Of `probe` it is the folder of files beside the answer.
        if words.iter().take_while(|word| *word != "--").any(writes) && !words.iter().any(|word| word == "probe") {
            return Err(Error::usage(
                "this run is in a process of its own, which cannot both answer and write `output`",
                "leave `output` out and save the answer",
            ));
        }
        words.insert(place, "--format=json".into());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    } else {
        // Ctrl-C reaches all; the one that speaks keeps its rows and says how it ended.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::default());
    }
    command.args(words);
    Ok(command)
}

/// Waits for the process that speaks for the command: to a shell by itself, to a program that asks by what it prints.
pub(crate) fn answered(child: &mut Child, name: &str) -> Result<Code, Error> {
    let Some(stop) = call::stop() else { return code(child.wait().map_err(file("wait for", name))?, name) };
    let (text, told) = (child.stdout.take().map(read_whole), child.stderr.take().map(read_whole));
    let status = loop {
        if let Some(status) = child.try_wait().map_err(file("wait for", name))? {
            break status;
        }
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        std::thread::sleep(TICK);
    };
    let whole = |reader: Option<JoinHandle<String>>| reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
    let (text, told) = (whole(text), whole(told));
    let code = code(status, name)?;
    let told = format!("\n{told}");
    let (notes, error) = told.split_once("\nerror: ").map_or((&*told, None), |(notes, error)| (notes, Some(error)));
    call::keep(|answer| answer.notes.push_str(notes.trim_start()));
    match (read(&text), error) {
        (Ok(report), None) => {
            call::keep(|answer| answer.reports.push(report));
            Ok(code)
        }
        // Of a kind that is not read back.
        (Err(NoResult::Schema(Some(_))), None) => {
            call::keep(|answer| answer.text.push_str(&text));
            Ok(code)
        }
        (_, error) => {
            let error = error.unwrap_or("the process printed no result");
            let (message, hint) =
                error.split_once("\n\nhint: ").map_or((error, None), |(what, hint)| (what, Some(hint)));
            let (message, hint) = (message.trim().to_owned(), hint.map(|hint| hint.trim().to_owned()));
            Err(Error::Exec { code: code.0.max(1), message, hint })
        }
    }
}

/// The exit code of a process.
fn code(status: ExitStatus, name: &str) -> Result<Code, Error> {
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) => Ok(Code(code)),
        None => Err(Error::Exec { code: 1, message: format!("{name} ended with {status}"), hint: None }),
    }
}

/// Reads all that comes on a thread of its own: a process waits where nobody reads.
fn read_whole(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn file(what: &'static str, path: &str) -> impl FnOnce(std::io::Error) -> Error + use<> {
    let path = path.into();
    move |source| Error::File { what, path, source }
}
