//! Tasks: work beside the schedules, in a graph of what must be over before what.
//!
//! A task waits for others (each with a lag), passes its gate, takes away capacity, and then lasts
//! a fixed time, is a flow, starts kernels of schedules, or several of these; it is over when all
//! of them are. A gate is what a GPU gives to one kernel after another: who occupies it runs to
//! the end of its task, and who only has to enter waits until then.
//!
//! Within an instant tasks go as far as they can, then lanes, and again. Tasks go in rounds: all that
//! are ready are looked at together, against the gates as they stood before; who is over at once
//! makes others ready for the next round.

use smallvec::SmallVec;

use super::instance::{Gate, TaskSpec};
use super::observe::Observer;
use super::state::{GateRun, KernelRun, Owner, Simulation, Stage, TaskRun};
use crate::schedule::wiring::UNUSED;
use crate::units::SimTime;

pub(super) fn prepare(specs: &[TaskSpec], kernels: &mut [KernelRun]) -> (Vec<TaskRun>, Vec<GateRun>) {
    let mut runs: Vec<TaskRun> = specs
        .iter()
        .map(|spec| TaskRun {
            stage: Stage::Waiting,
            missing: spec.after.len(),
            ready_at: spec.at.0,
            cause: UNUSED,
            next: SmallVec::new(),
            releases: SmallVec::new(),
            kernels: spec.kernels.len(),
        })
        .collect();
    let mut gates = 0;
    for (index, spec) in (0..).zip(specs) {
        for &(before, lag) in &spec.after {
            runs[before as usize].next.push((index, lag.0));
        }
        if !spec.holds.is_empty() {
            runs[spec.until.unwrap_or(index) as usize].releases.push(index);
        }
        for &kernel in &spec.kernels {
            kernels[kernel as usize].task = index;
        }
        match spec.gate {
            Gate::Occupies { gate, .. } | Gate::Enters { gate, .. } => gates = gates.max(gate as usize + 1),
            Gate::None => {}
        }
    }
    let gate = || GateRun { left: UNUSED, ..GateRun::default() };
    (runs, std::iter::repeat_with(gate).take(gates).collect())
}

impl<O: Observer> Simulation<'_, '_, O> {
    /// A task's time has come: to start, to go on from its fixed time, or to end with its flow.
    pub(super) fn task_event(&mut self, task: u32) {
        let run = &mut self.tasks[task as usize];
        match run.stage {
            Stage::Waiting => {
                if run.missing == 0 && run.ready_at == self.now {
                    self.ready_tasks.push(task);
                }
            }
            Stage::Lasting => self.task_work(task),
            Stage::Flowing => self.task_kernels(task),
            Stage::Running | Stage::Over => {}
        }
    }

    /// Starts what is ready and let pass. Those who enter come before those who occupy, so that
    /// no order within an instant matters; among equals the earlier task comes first.
    pub(super) fn start_tasks(&mut self) {
        while !self.ready_tasks.is_empty() {
            let mut ready = std::mem::take(&mut self.ready_tasks);
            ready.sort_unstable();
            ready.dedup();
            let mut touched: SmallVec<[u32; 8]> = SmallVec::new();
            for &task in &ready {
                match self.instance.tasks[task as usize].gate {
                    Gate::None => self.start_task(task),
                    Gate::Enters { gate, .. } => {
                        self.gates[gate as usize].enter.push(task);
                        touched.push(gate);
                    }
                    Gate::Occupies { gate, .. } => {
                        self.gates[gate as usize].occupy.push(task);
                        touched.push(gate);
                    }
                }
            }
            touched.sort_unstable();
            touched.dedup();
            for gate in touched {
                self.pass(gate);
            }
        }
    }

    /// Lets through a gate whoever may pass now.
    fn pass(&mut self, gate: u32) {
        let tasks = &self.instance.tasks;
        let run = &mut self.gates[gate as usize];
        let (kernels, left) = (run.kernels, run.left);
        // Between two waves there is room for all, but only who is urgent takes it.
        let room = run.waves.iter().copied().min();
        let may_enter = |task: &u32| match tasks[*task as usize].gate {
            Gate::Enters { urgent, needs, .. } => kernels == 0 || room.map_or(urgent, |room| room >= needs),
            _ => true,
        };
        let (entering, waiting): (Vec<u32>, Vec<u32>) = run.enter.drain(..).partition(may_enter);
        let crowded = !waiting.is_empty();
        run.enter = waiting;
        let starts_now = |task: &u32| match tasks[*task as usize].gate {
            Gate::Occupies { first, .. } => !first || !crowded,
            _ => true,
        };
        let (occupying, waiting): (Vec<u32>, Vec<u32>) = run.occupy.drain(..).partition(starts_now);
        run.occupy = waiting;
        for &task in &occupying {
            if let Gate::Occupies { first, room, .. } = tasks[task as usize].gate {
                run.waves.push(room);
                run.kernels += u32::from(first);
                if room > 0 {
                    self.ready_tasks.append(&mut run.enter);
                }
            }
        }
        for task in entering.into_iter().chain(occupying) {
            // Whoever came later than its last dependency was kept by the last to leave.
            let run = &mut self.tasks[task as usize];
            if run.ready_at < self.now && left != UNUSED {
                run.cause = left;
            }
            self.start_task(task);
        }
    }

    fn start_task(&mut self, task: u32) {
        let spec = &self.instance.tasks[task as usize];
        if spec.until.is_none_or(|until| self.tasks[until as usize].stage != Stage::Over) {
            for &(resource, amount) in &spec.holds {
                self.flows.hold(resource, amount);
            }
        }
        self.outcome.task_starts[task as usize] = SimTime(self.now);
        self.outcome.task_causes[task as usize] = self.tasks[task as usize].cause;
        if spec.lasts.0 > 0 {
            self.tasks[task as usize].stage = Stage::Lasting;
            self.wake(Owner::Task(task), self.now.saturating_add(spec.lasts.0));
        } else {
            self.task_work(task);
        }
    }

    fn task_work(&mut self, task: u32) {
        let instance = self.instance;
        let spec = &instance.tasks[task as usize];
        if spec.uses.is_empty() {
            return self.task_kernels(task);
        }
        self.tasks[task as usize].stage = Stage::Flowing;
        self.start_flow(spec.work.max(1), &spec.uses, Owner::Task(task));
    }

    fn task_kernels(&mut self, task: u32) {
        let instance = self.instance;
        self.tasks[task as usize].stage = Stage::Running;
        for &kernel in &instance.tasks[task as usize].kernels {
            self.start_kernel(kernel);
        }
        if self.tasks[task as usize].kernels == 0 {
            self.end_task(task);
        }
    }

    pub(super) fn kernel_ended(&mut self, task: u32) {
        self.tasks[task as usize].kernels -= 1;
        if self.tasks[task as usize].kernels == 0 {
            self.end_task(task);
        }
    }

    fn end_task(&mut self, task: u32) {
        let instance = self.instance;
        let now = self.now;
        self.done += 1;
        self.outcome.task_ends[task as usize] = SimTime(now);
        self.outcome.end = self.outcome.end.max(SimTime(now));
        let run = &mut self.tasks[task as usize];
        run.stage = Stage::Over;
        let (next, releases) = (std::mem::take(&mut run.next), std::mem::take(&mut run.releases));
        for held in releases {
            if self.tasks[held as usize].stage == Stage::Waiting {
                continue;
            }
            for &(resource, amount) in &instance.tasks[held as usize].holds {
                self.flows.release(resource, amount);
            }
        }
        for (other, lag) in next {
            let run = &mut self.tasks[other as usize];
            run.missing -= 1;
            let at = now.saturating_add(lag).max(instance.tasks[other as usize].at.0);
            // Of several that end it at the same time the first task counts, whatever the order.
            if at > run.ready_at || run.cause == UNUSED || at == run.ready_at && task < run.cause {
                (run.ready_at, run.cause) = (at, task);
            }
            if run.missing == 0 {
                let at = run.ready_at;
                if at == now {
                    self.ready_tasks.push(other);
                } else {
                    self.wake(Owner::Task(other), at);
                }
            }
        }
        if let Gate::Occupies { gate, last, room, .. } = instance.tasks[task as usize].gate {
            let run = &mut self.gates[gate as usize];
            if let Some(wave) = run.waves.iter().position(|&w| w == room) {
                run.waves.swap_remove(wave);
            }
            run.kernels -= u32::from(last);
            run.left = if run.left_at == now { run.left.min(task) } else { task };
            run.left_at = now;
            // Who waits looks again, once all events of this instant are applied.
            let mut waiting = std::mem::take(&mut run.enter);
            waiting.append(&mut run.occupy);
            self.ready_tasks.append(&mut waiting);
        }
    }
}
