use super::*;
use crate::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};

const LONG: Duration = Duration::from_secs(60);

fn lanes() -> Lanes {
    Lanes {
        foreground: 3,
        general: 2,
        per_owner: 1,
        background: 1,
        spares: 2,
        stuck_after: LONG,
        lower_priority: || (),
    }
}

/// A task that tells each of its runs, and the sender that lets a run end, or all when it is
/// dropped: before the task is.
struct Gated {
    open: Sender<()>,
    told: Receiver<()>,
    task: Task,
}

impl Gated {
    fn new(owner: &TaskOwner, lane: Lane) -> Gated {
        let ((tell, told), (open, gate)) = (channel(), channel());
        let task = owner.task(lane, "gated", move || {
            let _ = tell.send(());
            let _ = gate.recv();
            NextRun::WhenWoken
        });
        Gated { open, told, task }
    }

    fn wake(&self) -> bool {
        self.task.wake()
    }

    fn runs(&self) -> bool {
        runs(&self.told)
    }

    fn waits(&self) -> bool {
        waits(&self.told)
    }

    fn end(&self) {
        self.open.send(()).unwrap();
    }
}

fn runs(told: &Receiver<()>) -> bool {
    told.recv_timeout(LONG).is_ok()
}

fn waits(told: &Receiver<()>) -> bool {
    told.recv_timeout(Duration::from_millis(50)).is_err()
}

#[test]
fn a_task_that_is_woken_runs_and_an_idle_scheduler_does_not_wake() {
    let scheduler = Scheduler::new(lanes());
    let (owner, (tell, told)) = (scheduler.owner(), channel());
    let task = owner.task(Lane::Device, "tells", move || {
        let _ = tell.send(());
        NextRun::WhenWoken
    });
    assert_eq!(scheduler.stats().threads, 0);
    for _ in 0..100 {
        assert!(task.wake());
        assert!(runs(&told));
    }
    task.wake_after(Duration::from_millis(20));
    assert!(runs(&told) && waits(&told));
    let before = scheduler.stats();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(scheduler.stats(), before);
    assert!(before.threads <= 2 && before.expired == 1, "{before:?}");
    drop(task);
    assert_eq!(scheduler.stats().tasks, 0);
}

#[test]
fn many_tasks_share_few_threads() {
    let scheduler = Scheduler::new(lanes());
    let count = Arc::new(AtomicU32::new(0));
    let tasks: Vec<Task> = (0..300)
        .map(|n| {
            let (count, mut left) = (count.clone(), 3);
            let lane = [Lane::Device, Lane::General, Lane::Background][n % 3];
            scheduler.owner().task(lane, "counts", move || {
                count.fetch_add(1, SeqCst);
                left -= 1;
                match left {
                    0 => NextRun::Never,
                    1 => NextRun::After(Duration::from_millis(1)),
                    _ => NextRun::Again,
                }
            })
        })
        .collect();
    tasks.iter().for_each(|task| {
        let _ = task.wake();
    });
    let deadline = Instant::now() + LONG;
    while count.load(SeqCst) < 900 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(count.load(SeqCst), 900);
    let stats = scheduler.stats();
    assert!(stats.most_threads <= 5, "{stats:?}");
}

#[test]
fn general_jobs_leave_threads_to_those_for_devices() {
    let scheduler = Scheduler::new(lanes());
    let general = [(); 3].map(|()| Gated::new(&scheduler.owner(), Lane::General));
    for one in &general[..2] {
        assert!(one.wake() && one.runs());
    }
    assert!(!general[2].wake() && general[2].waits(), "no thread is free for the third");
    let device = Gated::new(&scheduler.owner(), Lane::Device);
    assert!(device.wake() && device.runs());
    let next = Gated::new(&scheduler.owner(), Lane::Device);
    assert!(!next.wake() && next.waits());
    device.end();
    assert!(next.runs());
    general[0].end();
    assert!(general[2].runs());
}

#[test]
fn an_owner_gets_no_second_place() {
    let scheduler = Scheduler::new(lanes());
    let owner = scheduler.owner();
    let [first, second] = [Lane::General, Lane::Device].map(|lane| Gated::new(&owner, lane));
    assert!(first.wake() && first.runs());
    assert!(!second.wake() && second.waits());
    let other = Gated::new(&scheduler.owner(), Lane::General);
    assert!(other.wake() && other.runs());
    first.end();
    assert!(second.runs());
}

#[test]
fn a_stuck_job_gets_a_spare_thread_in_its_place() {
    let stuck_after = Duration::from_millis(30);
    let scheduler = Scheduler::new(Lanes { foreground: 1, stuck_after, ..lanes() });
    let hang = [(); 3].map(|()| Gated::new(&scheduler.owner(), Lane::Device));
    for one in &hang {
        one.wake();
        assert!(one.runs());
    }
    let last = Gated::new(&scheduler.owner(), Lane::Device);
    assert!(!last.wake());
    assert!(last.waits() && last.waits(), "there are two spares");
    hang.iter().for_each(Gated::end);
    assert!(last.runs());
}

#[test]
fn a_panic_ends_its_task_only() {
    let scheduler = Scheduler::new(lanes());
    let (owner, (tell, told)) = (scheduler.owner(), channel());
    let task = owner.task(Lane::Device, "panics", || panic!("planted"));
    let next = owner.task(Lane::Device, "tells", move || {
        let _ = tell.send(());
        NextRun::WhenWoken
    });
    task.wake();
    next.wake();
    assert!(runs(&told));
    task.stop();
    assert!(!task.wake());
}

#[test]
fn a_stop_waits_for_its_own_job_only() {
    let scheduler = Scheduler::new(lanes());
    let [hangs, ends] = [(); 2].map(|()| Gated::new(&scheduler.owner(), Lane::Device));
    assert!(hangs.wake() && hangs.runs() && ends.wake() && ends.runs());
    std::thread::scope(|scope| {
        let stops = scope.spawn(|| ends.task.stop());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!stops.is_finished());
        ends.end();
    });
    assert!(!ends.wake() && ends.waits());
}

#[test]
fn a_job_may_hold_the_last_reference_to_its_scheduler() {
    let (tell, told) = channel();
    {
        let scheduler = Scheduler::new(lanes());
        let own: Arc<Mutex<Option<Task>>> = Arc::new(Mutex::new(Level::FsState, None));
        let inner = own.clone();
        let task = scheduler.owner().task(Lane::General, "last", move || {
            drop(inner.lock().take());
            let _ = tell.send(());
            NextRun::WhenWoken
        });
        let mut kept = own.lock();
        assert!(task.wake());
        *kept = Some(task);
    }
    assert!(runs(&told));
}
