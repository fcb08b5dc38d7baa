//! Commands that decide what a job may use: containers, masks of CPUs, limits, backends.

use super::setting::Scope;

/// A word of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Word {
    /// Without quotes.
    pub(super) text: String,
    /// Its line.
    pub(super) line: u64,
}

/// Bytes of /dev/shm below which jobs are known to fail: NCCL's proxies and the data loaders of eight processes. Docker's
/// own 64 MiB, and what people double it to, are below. Our estimate.
pub(super) const SHM_LEAST: u64 = 1 << 30;
/// Ports of a host below which set-up may fail: eight ranks with some hundred sockets each, for listening, the ring of
/// set-up, the root and the proxies of a few communicators. Our estimate.
pub(super) const PORTS_LEAST: u64 = 1024;

/// Looks at one command.
pub(super) fn look(command: &[Word], scope: &mut Scope) {
    let Some(program) = command.first() else { return };
    let line = Some(program.line);
    match program.text.rsplit('/').next().unwrap_or_default() {
        "docker" | "podman" | "nerdctl" if command.iter().any(|word| word.text == "run") => container(command, scope),
        "ulimit" => {
            let limit = command.iter().skip_while(|word| word.text != "-l").nth(1);
            if let Some(limit) = limit.filter(|limit| limit.text.parse::<u64>().is_ok()) {
                scope.sign("memlock", line, format!("locked memory is limited to {} KiB", limit.text));
            }
        }
        "sysctl" => {
            for word in command {
                if let Some((_, range)) = word.text.split_once("ip_local_port_range=") {
                    ports(range, Some(word.line), scope);
                }
            }
        }
        _ => {}
    }
    if let Some(mask) = command.iter().position(|word| word.text.ends_with("taskset")) {
        let list = command[mask + 1..].iter().find(|word| !word.text.starts_with('-'));
        let named = command[mask + 1..].iter().any(|word| word.text == "-c" || word.text == "--cpu-list");
        if let Some(list) = list.filter(|list| one_core(&list.text, named)) {
            scope.sign("one-core", Some(list.line), format!("the program is bound to CPU {}", list.text));
        }
    }
    backend(command, scope);
}

/// Whether a list (`0-7,16`) or a mask (`0xff`) is of one CPU; what cannot be read is not.
pub(super) fn one_core(text: &str, is_list: bool) -> bool {
    let text = text.trim();
    if is_list {
        return !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    }
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let bits: Option<u32> = digits.chars().filter(|&c| c != ',').map(|c| c.to_digit(16).map(u32::count_ones)).sum();
    bits == Some(1)
}

/// Two numbers: the first and last port that clients get.
pub(super) fn ports(range: &str, line: Option<u64>, scope: &mut Scope) {
    let numbers: Vec<u64> = range.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    if let [first, last] = numbers[..] {
        let count = last.saturating_add(1).saturating_sub(first);
        if count < PORTS_LEAST {
            scope.sign("narrow-ports", line, format!("{count} ephemeral ports, {first} to {last}"));
        }
    }
}

/// `--backend gloo` in its spellings.
fn backend(command: &[Word], scope: &mut Scope) {
    const OPTIONS: [&str; 5] =
        ["--backend", "--dist-backend", "--distributed-backend", "--ddp-backend", "--process-group-backend"];
    for (at, word) in command.iter().enumerate() {
        let (option, value) = match word.text.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (word.text.as_str(), command.get(at + 1).map(|next| next.text.as_str())),
        };
        let is_one = OPTIONS.contains(&option.replace('_', "-").as_str());
        if is_one && value.is_some_and(|value| value.eq_ignore_ascii_case("gloo")) {
            scope.sign("gloo", Some(word.line), "the backend is gloo");
        }
    }
}

/// A size as Docker and Kubernetes write it: `64m`, `1g`, `512Mi`.
pub(super) fn size(text: &str) -> Option<u64> {
    let text = text.trim().to_lowercase();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().ok()?;
    let power = match text[end..].trim_end_matches(['b', 'i']) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    number.checked_mul(1 << power)
}

/// `docker run` with GPUs.
fn container(command: &[Word], scope: &mut Scope) {
    let line = Some(command[0].line);
    let value = |option: &str| {
        command.iter().enumerate().find_map(|(at, word)| match word.text.strip_prefix(option)? {
            "" => command.get(at + 1).map(|next| next.text.as_str()),
            rest => rest.strip_prefix('='),
        })
    };
    let any = |text: &str| command.iter().any(|word| word.text.contains(text));
    if value("--gpus").is_none() && value("--runtime") != Some("nvidia") && !any("nvidia.com/gpu") {
        return;
    }
    let of_host = value("--ipc") == Some("host") || any("/dev/shm:/dev/shm");
    match value("--shm-size") {
        _ if of_host => {}
        None => scope.sign("small-shm", line, "docker run with GPUs, without --shm-size and --ipc=host"),
        Some(text) if size(text).is_some_and(|bytes| bytes < SHM_LEAST) => {
            scope.sign("small-shm", line, format!("--shm-size={text}"));
        }
        Some(_) => {}
    }
    let privileged = any("--privileged");
    let device = privileged || any("/dev/infiniband");
    scope.gpus = true;
    // Of several containers the first that lacks the devices counts.
    if scope.rdma_device != Some(false) {
        (scope.rdma_device, scope.line) = (Some(device), line);
    }
    if device && !privileged && !any("memlock=-1") && !any("memlock:-1") {
        scope.sign("memlock", line, "docker run with RDMA devices, without --ulimit memlock=-1");
    }
    if let Some(cpus) = value("--cpuset-cpus").filter(|list| one_core(list, true)) {
        scope.sign("one-core", line, format!("--cpuset-cpus={cpus}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sizes and masks as their tools read them.
    #[test]
    fn sizes_and_masks() {
        let [m64, g1, m512] = [64 << 20, 1 << 30, 512 << 20].map(Some);
        assert_eq!([size("64m"), size("1g"), size("512Mi"), size("lots")], [m64, g1, m512, None]);
        for (text, list, one) in [
            ("0", true, true),
            ("0-7", true, false),
            ("0,1", true, false),
            ("0x1", false, true),
            ("ff", false, false),
            ("00000000,00000010", false, true),
            ("zz", false, false),
            ("", true, false),
        ] {
            assert_eq!(one_core(text, list), one, "{text}");
        }
    }
}
