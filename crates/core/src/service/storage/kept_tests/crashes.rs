//! Writes, cuts, holes, removals, reads and flushes in an order that a seed draws, with crashes after
//! each of the disk's and the journal's deeds, and with each of their operations failing in each way.

use super::*;
use crate::journal::twin::{Image, Possible};
use std::rc::Rc;

const OBJECTS: u64 = 5;
/// Memory and disk: chunks.
const SIZE: (usize, u64) = (24, 64);

type Allowed = Rc<Possible>;

/// What must be so.
struct Model {
    allowed: Vec<Allowed>,
    /// What readers must find, unless nobody can say.
    live: Vec<Option<Vec<u8>>>,
    /// At which deed each step had ended, and what a crash could leave then.
    history: Vec<(usize, Vec<Allowed>)>,
}

impl Model {
    fn new(deeds: usize) -> Model {
        let allowed = vec![Allowed::default(); OBJECTS as usize];
        let history = vec![(deeds, allowed.clone())];
        Model { allowed, live: vec![Some(Vec::new()); OBJECTS as usize], history }
    }

    fn allowed(&mut self, ino: u64) -> &mut Possible {
        Rc::make_mut(&mut self.allowed[ino as usize])
    }

    fn step_ended(&mut self, deeds: usize) {
        self.history.push((deeds, self.allowed.clone()));
    }

    fn written(&mut self, ino: u64, (start, end): (usize, usize), value: u8) {
        self.allowed(ino).written(start, end, value);
        if let Some(live) = &mut self.live[ino as usize] {
            live.resize(live.len().max(end), 0);
            live[start..end].fill(value);
        }
    }

    fn cut(&mut self, ino: u64, size: usize, safe: bool) {
        self.allowed(ino).cut(size, safe);
        let live = &mut self.live[ino as usize];
        *live = live.take().filter(|_| safe);
        live.iter_mut().for_each(|live| live.resize(size, 0));
    }

    fn removed(&mut self, ino: u64, safe: bool) {
        self.allowed(ino).cut(0, safe);
        self.live[ino as usize] = Some(Vec::new());
    }

    fn punched(&mut self, ino: u64, start: usize, end: usize) {
        self.allowed(ino).punched(start, end);
        if let Some(live) = &mut self.live[ino as usize] {
            let end = end.min(live.len());
            live[start.min(end)..end].fill(0);
        }
    }

    /// A flush has said that all is safe.
    fn safe(&mut self, ino: u64) {
        if let Some(live) = self.live[ino as usize].clone() {
            self.allowed(ino).synced(&live);
        }
    }

    /// Whether these bytes may be what a crash, at the end of one of these steps, left of an object.
    fn fits(steps: &[(usize, Vec<Allowed>)], ino: u64, found: &[u8]) -> bool {
        steps.iter().any(|(_, allowed)| allowed[ino as usize].allows(found))
    }
}

/// A fault: which operation, how, and whether those behind it fail as well.
type Failing = (u64, Fault, bool);

struct Play {
    seed: u64,
    failing: Option<Failing>,
    bed: Bed,
    random: Random,
    model: Model,
    begin: u64,
    /// Errors that callers were given.
    told: u64,
    /// Images looked at.
    images: usize,
}

impl Play {
    fn new(seed: u64, failing: Option<Failing>) -> Play {
        let bed = Bed::sized(seed, SIZE.0, SIZE.1);
        if let Some((n, fault, lasts)) = failing {
            bed.files[0].plan(n, fault, lasts);
        }
        let model = Model::new(bed.files[0].deeds());
        let begin = bed.files[0].operations();
        let random = Random(seed);
        Play { seed, failing, bed, random, model, begin, told: 0, images: 0 }
    }

    fn operations(&self) -> u64 {
        self.bed.files[0].operations() - self.begin
    }

    fn failed(&self) -> (u64, u64) {
        (self.bed.files[0].failed(), self.bed.files[1].failed())
    }

    fn says(&self) -> String {
        let Play { seed, failing, .. } = self;
        format!("seed {seed}, failing {failing:?}")
    }

    /// Somebody is told an error. There must be a reason.
    fn is_told(&mut self, what: &str, error: &Error) {
        let full = error.code == Code::NoSpace && self.failing.is_none();
        assert!(full || self.failed() != (0, 0), "{}: {what}: {error}", self.says());
        assert!(
            matches!(error.code, Code::Disk | Code::NoSpace),
            "{}: {what}: {error}",
            self.says()
        );
        self.told += 1;
    }

    fn trouble(&self, ino: u64) -> bool {
        let state = self.bed.target.lock();
        state.objects.get(&Ino(ino)).is_some_and(|object| object.trouble.is_some())
    }

    fn read(&mut self, ino: u64) {
        match self.bed.try_read(ino) {
            Ok(found) => match &self.model.live[ino as usize] {
                Some(live) => assert!(found == *live, "{}: object {ino} is read", self.says()),
                None => {
                    let now = [(0, self.model.allowed.clone())];
                    assert!(Model::fits(&now, ino, &found), "{}: object {ino}", self.says());
                    self.model.live[ino as usize] = Some(found);
                }
            },
            Err(error) => self.is_told("read", &error),
        }
    }

    fn flush(&mut self, ino: u64) -> bool {
        let in_trouble = self.trouble(ino);
        match self.bed.try_flush(ino) {
            Ok(()) => {
                assert!(!in_trouble, "{}: object {ino}: the flush hides an error", self.says());
                self.model.safe(ino);
                true
            }
            Err(error) => {
                self.is_told("flush", &error);
                false
            }
        }
    }

    fn step(&mut self, step: u64) {
        let ino = self.random.below(OBJECTS);
        let value = (step % 62) as u8 + 1;
        match self.random.below(12) {
            0..=3 => {
                let small = self.random.below(2) == 0;
                let offset = self.random.below(200_000);
                let length = 1 + self.random.below(if small { 9_000 } else { 150_000 });
                match self.bed.try_write(ino, offset, &vec![value; length as usize]) {
                    Ok(()) => {
                        let range = (offset as usize, (offset + length) as usize);
                        self.model.written(ino, range, value);
                    }
                    Err(error) => self.is_told("write", &error),
                }
            }
            4 => {
                let size = self.random.below(150_000);
                // The play has fewer values than steps.
                let result = self.bed.cut(ino, size, step as u32 + 1);
                self.model.cut(ino, size as usize, result.is_ok());
                result.seen(|error| self.is_told("cut", error));
            }
            5 if self.random.below(3) == 0 => {
                self.bed.target.remove(&[Ino(ino)]);
                let result = self.bed.settled();
                self.model.removed(ino, result.is_ok());
                result.seen(|error| self.is_told("remove", error));
            }
            6 => {
                (0..5).for_each(|_| self.bed.target.write_behind());
                self.bed.settle();
            }
            7 => {
                let (offset, length) = (self.random.below(150_000), 1 + self.random.below(90_000));
                self.bed.punch(ino, offset, length);
                self.model.punched(ino, offset as usize, (offset + length) as usize);
            }
            8 => self.read(ino),
            _ => drop(self.flush(ino)),
        }
        self.model.step_ended(self.bed.files[0].deeds());
    }

    fn steps(&mut self, count: u64) {
        for step in 0..count {
            self.step(step);
            if self.failing.is_none() {
                self.bed.audit();
            }
        }
    }

    /// Looks at the images that a crash at deed `from` or later can leave.
    fn crash(&mut self, from: usize, samples: usize) {
        let says = self.says();
        let Play { bed, model, random, images, .. } = self;
        let mut look = |Image { files, deeds }: Image| {
            *images += 1;
            let mut again = match Bed::back(files, SIZE.0, SIZE.1) {
                Ok(again) => again,
                Err(error) => panic!("{says}, after deed {deeds}: {error}"),
            };
            again.audit();
            // Between what was safe by then and what was under way.
            let at = model.history.iter().rposition(|(at, _)| *at <= deeds).unwrap_or(0);
            let near = &model.history[at..(at + 2).min(model.history.len())];
            for ino in 0..OBJECTS {
                let found = again.read(ino);
                assert!(
                    Model::fits(near, ino, &found),
                    "{says}, after deed {deeds} (step {at}): object {ino}"
                );
            }
        };
        bed.files[0].each_image(from, samples, &mut || random.next(), &mut look);
    }

    /// All has been done, and perhaps something has failed: who had to be told was, what is flushed now
    /// is safe, or its flush says that it is not, again and again.
    fn account(&mut self) {
        let (journal, disk) = self.failed();
        let ended = self.bed.writer.journal().failure().is_some();
        assert!(journal == 0 || ended, "{}: the journal goes on", self.says());
        let status = self.bed.target.status();
        if ended {
            assert!(status.disk_failed, "{}: the target passes for a whole one", self.says());
        }
        if ended || disk > 0 {
            assert!(status.disk_errors > 0, "{}: nothing was counted", self.says());
        }
        // What fails now is told in the round after.
        for round in 0..4 {
            for ino in 0..OBJECTS {
                let safe = self.flush(ino);
                assert!(!(ended && safe), "{}: flush {round} of object {ino}", self.says());
                let ended = self.bed.writer.journal().failure().is_some();
                let lasts = self.failing.is_some_and(|(_, _, lasts)| lasts);
                let well = ended || lasts || round < 3;
                assert!(safe || well, "{}: object {ino} is told of for ever", self.says());
            }
            self.model.step_ended(self.bed.files[0].deeds());
        }
        (0..OBJECTS).for_each(|ino| self.read(ino));
    }
}

trait Failed {
    fn seen(&self, see: impl FnOnce(&Error));
}

impl<T> Failed for Result<T> {
    fn seen(&self, see: impl FnOnce(&Error)) {
        if let Err(error) = self {
            see(error);
        }
    }
}

/// A crash leaves of each object at least what was flushed last, byte by byte either that or something
/// written since.
#[test]
fn whatever_a_crash_leaves_nothing_flushed_is_lost_or_stale() {
    let mut images = 0;
    for seed in 1..=4 {
        let mut play = Play::new(seed, None);
        play.steps(60);
        play.crash(play.model.history[0].0, 3);
        images += play.images;
    }
    assert!(images > 300, "only {images} images");
}

/// Steps of a play in which something fails.
const STEPS: u64 = 90;

/// How operations fail, and whether those behind fail as well.
const WAYS: [(Fault, bool); 6] = [
    (Fault::Error, false),
    (Fault::Short, false),
    (Fault::Full, false),
    (Fault::Error, true),
    (Fault::Full, true),
    (Fault::Gone, true),
];

/// The n-th operation on disk or journal fails, for all n: whoever is concerned is told, nothing that a
/// flush called safe is lost or stale, now or after a crash, and what readers find is right. Each n fails
/// in one way here, and with `WEIR_LONG` set in each.
#[test]
fn whichever_operation_fails_who_must_know_is_told_and_nothing_flushed_is_lost() {
    let long = std::env::var_os("WEIR_LONG").is_some();
    let (mut images, mut told) = (0, 0);
    for seed in 9..if long { 15 } else { 10 } {
        let mut whole = Play::new(seed, None);
        whole.steps(STEPS);
        whole.account();
        let operations = whole.operations();
        assert!(operations > 60, "{operations} operations");
        for n in 0..operations {
            for (at, &(fault, lasts)) in WAYS.iter().enumerate() {
                if !long && n % WAYS.len() as u64 != at as u64 {
                    continue;
                }
                let mut play = Play::new(seed, Some((n, fault, lasts)));
                play.steps(STEPS);
                play.account();
                play.crash(play.bed.files[0].deeds().saturating_sub(2), 1);
                images += play.images;
                told += u64::from(play.told > 0);
            }
        }
    }
    assert!(images > 100 && told > 30, "{images} images, {told} plays in which somebody was told");
}

/// A journal that failed while nobody waited for it. The flush that found out said so, the next one for the
/// object's head, and the third that all was safe.
#[test]
fn nothing_is_safe_after_the_journal_has_failed() {
    let mut bed = Bed::new(7);
    for ino in 1..=2 {
        bed.write(ino, 0, &[1; 100_000]);
        bed.flush(ino);
    }
    bed.settle();
    bed.files[0].plan(0, Fault::Full, true);
    bed.writer.checkpoint(bed.target.sources()).expect_err("nothing can be written");
    bed.write(1, 0, &[2; 100]);
    for _ in 0..4 {
        assert_eq!(bed.try_flush(1).expect_err("not safe").code, Code::Disk);
    }
    bed.target.remove(&[Ino(2)]);
    assert_eq!(bed.settled().expect_err("not safe").code, Code::Disk);
    let status = bed.target.status();
    assert!(status.disk_failed && status.disk_errors > 0, "{status:?}");
}
