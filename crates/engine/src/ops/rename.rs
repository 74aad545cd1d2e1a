//! rename, with RENAME_NOREPLACE, RENAME_EXCHANGE and RENAME_WHITEOUT.

use super::create::{MAX_DIR_LINKS, check_dir, check_dir_writable};
use super::unlink::{Left, check_removable, check_removable_name};
use super::{Node, Operations, lock_dirs, lock_inodes};
use crate::error::{Errno, Result};
use crate::file;
use crate::inode::{Inode, Step, Tx};
use crate::orphan::Orphans;
use crate::store::Store;
use crate::vfs::{Caller, Target};
use crate::volume::SpaceRights;
use crate::{
    alloc::Alloc,
    dir::{self, Held, NewName},
};
use bitflags::bitflags;
use extant_format::inode::InodeFlags;
use extant_format::types::{FileType, InodeNr};
use std::sync::Arc;

bitflags! {
    /// Flags of renameat2(2), with its values.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail with EEXIST if the new name is there.
        const NOREPLACE = 1;
        /// Exchange the two names.
        const EXCHANGE = 2;
        /// Leave a whiteout under the old name.
        const WHITEOUT = 4;
    }
}

/// One side of a rename: a name in a directory.
struct Side<'a> {
    dir: &'a Arc<Inode>,
    name: &'a [u8],
}

/// The caller of a rename.
#[derive(Clone, Copy)]
struct By<'a> {
    caller: &'a Caller<'a>,
    rights: SpaceRights,
}

/// A rename that gives an inode another name, and may replace an inode there.
#[derive(Clone, Copy)]
struct Move<'a> {
    from: &'a Side<'a>,
    to: &'a Side<'a>,
    moved: &'a Arc<Inode>,
    target: Option<&'a Arc<Inode>>,
}

/// The old name of an inode that moves, and the inode that takes its place.
#[derive(Clone, Copy)]
struct OldName<'a> {
    held: &'a Held,
    whiteout: Option<&'a Arc<Inode>>,
}

/// Directories between a directory and the root at most, before the tree counts as a loop.
const MAX_DEPTH: u32 = 1 << 20;

impl Operations {
    /// Gives the name `from`, in a directory, the place `to`. A whiteout belongs to root.
    pub fn rename(
        &self,
        from: (&Node, &[u8]),
        to: (&Node, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let by = By { caller: &Caller::default(), rights: SpaceRights::default() };
        self.rename_by(by, from, to, flags)
    }

    /// As [`Operations::rename`]. A whiteout belongs to the caller; quota limits do not apply to
    /// root.
    pub fn rename_as(
        &self,
        caller: &Caller<'_>,
        from: (&Node, &[u8]),
        to: (&Node, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.rename_by(By { caller, rights: caller.rights() }, from, to, flags)
    }

    fn rename_by(
        &self,
        by: By<'_>,
        (dir, name): (&Node, &[u8]),
        (new_dir, new_name): (&Node, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.own(dir)?;
        self.own(new_dir)?;
        check_removable_name(name, Errno::Busy)?;
        check_removable_name(new_name, Errno::Busy)?;
        check_dir(&dir.0)?;
        check_dir(&new_dir.0)?;
        if flags.contains(RenameFlags::EXCHANGE)
            && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT)
        {
            return Err(Errno::Inval.into());
        }
        let from = Side { dir: &dir.0, name };
        let to = Side { dir: &new_dir.0, name: new_name };
        self.with_space(|| self.rename_once(by, &from, &to, flags))
    }

    fn rename_once(
        &self,
        by: By<'_>,
        from: &Side<'_>,
        to: &Side<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.st().writable()?;
        loop {
            // No lock is kept from these lookups: they show which inodes must be locked.
            let moved = self.child_inode(from.dir, from.name)?;
            let target = self.vfs.child_inode(to.dir, to.name)?;
            if let Some(target) = &target {
                self.write_replacing(&moved, target, flags);
            }
            let cross = from.dir.ino != to.dir.ino;
            let moves_dir =
                cross && (moved.is_dir() || target.as_ref().is_some_and(|t| t.is_dir()));
            let _rename = moves_dir.then(|| self.vfs.rename.lock());
            let change = Move { from, to, moved: &moved, target: target.as_ref() };
            if moves_dir {
                self.check_no_loop(change, flags)?;
            }
            let others = || std::iter::once(&moved).chain(target.as_ref());
            let _dirs = lock_dirs([from.dir, to.dir].into_iter().chain(others()));
            let _files = lock_inodes(others());
            if self.freezing.is_halted() {
                drop((_dirs, _files, _rename));
                self.freezing.wait();
                continue;
            }
            // With all locks held, the names must lead to the same inodes.
            if !self.still_leads(from.dir, from.name, &moved)?
                || !self.still_same(to, target.as_ref())?
            {
                continue;
            }
            let freed = self.rename_locked(by, change, flags)?;
            drop((_dirs, _files, _rename));
            if let (true, Some(target)) = (freed, target) {
                self.vfs.inodes.lost_name(&target);
                self.bury_or_free(&target);
            }
            return Ok(());
        }
    }

    /// Before a name changes from one file to another: writes content that waits, so that no commit
    /// has the new name without it. Failures are noted for the descriptors of the file.
    fn write_replacing(&self, moved: &Arc<Inode>, target: &Arc<Inode>, flags: RenameFlags) {
        let _ = file::write_waiting(self.st(), moved);
        if flags.contains(RenameFlags::EXCHANGE) {
            let _ = file::write_waiting(self.st(), target);
        }
    }

    fn still_same(&self, side: &Side<'_>, inode: Option<&Arc<Inode>>) -> Result<bool> {
        match inode {
            Some(inode) => self.still_leads(side.dir, side.name, inode),
            None => Ok(self.vfs.child_locked(side.dir, side.name)?.is_none()),
        }
    }

    /// A directory must not move into itself. The rename lock is held, so the way to the root
    /// stands still.
    fn check_no_loop(&self, change: Move<'_>, flags: RenameFlags) -> Result<()> {
        let Move { from, to, moved, target } = change;
        if moved.is_dir() && self.is_ancestor(moved.ino, to.dir)? {
            return Err(Errno::Inval.into());
        }
        let Some(target) = target.filter(|t| t.is_dir()) else { return Ok(()) };
        if self.is_ancestor(target.ino, from.dir)? {
            return Err(if flags.contains(RenameFlags::EXCHANGE) {
                Errno::Inval
            } else {
                Errno::NotEmpty
            }
            .into());
        }
        Ok(())
    }

    fn is_ancestor(&self, ino: InodeNr, dir: &Arc<Inode>) -> Result<bool> {
        let mut at = dir.clone();
        for _ in 0..MAX_DEPTH {
            if at.ino == ino {
                return Ok(true);
            }
            if at.ino == InodeNr::ROOT {
                return Ok(false);
            }
            let parent = self.vfs.parent(&at)?;
            at = Arc::clone(&parent);
        }
        Err(extant_format::error::Corrupt::new("directory without a way to the root")
            .at_inode(dir.ino)
            .into())
    }

    /// Everything is locked. True if the replaced inode has no name left.
    fn rename_locked(&self, by: By<'_>, change: Move<'_>, flags: RenameFlags) -> Result<bool> {
        let (st, Move { from, to, moved, target }) = (self.st(), change);
        check_sides(change, flags)?;
        let (held, _replaced) = self.hold_entries(change)?;
        if flags.contains(RenameFlags::EXCHANGE) {
            let target = target.ok_or(Errno::NoEnt)?;
            return self.exchange(change, target).map(|()| false);
        }
        if target.is_some_and(|t| t.ino == moved.ino) {
            return self.respell(by, change, flags).map(|()| false);
        }
        if let Some(target) = target {
            check_replace(moved, target)?;
            if target.is_dir() && !dir::is_empty(st, target)? {
                return Err(Errno::NotEmpty.into());
            }
        }
        if moved.is_dir() && from.dir.ino != to.dir.ino {
            if target.is_none() {
                check_room_for_dir(st, to.dir)?;
            }
            // Before anything is changed: it has a `..` to be changed.
            dir::parent(st, moved)?;
        }
        let plan =
            flags.contains(RenameFlags::WHITEOUT).then(|| self.plan_whiteout(by.caller, from.dir));
        plan.as_ref().map_or(Ok(()), |plan| plan.owners(self))?;
        let mut tx = st.begin(self.rename_credits(to))?.with_rights(by.rights);
        [from.dir, to.dir, moved]
            .into_iter()
            .chain(target)
            .try_for_each(|inode| tx.touch(inode))?;
        let old = OldName { held: &held, whiteout: None };
        let Some(plan) = plan else { return self.move_name(&mut tx, change, old) };
        self.with_new(&mut tx, &plan, |tx, whiteout| {
            // Before its name leads to it: then it could be loaded a second time.
            self.vfs.inodes.insert(whiteout.clone());
            self.move_name(tx, change, OldName { whiteout: Some(whiteout), ..old })
        })
    }

    /// Finds the entries that a change takes and replaces.
    fn hold_entries(&self, change: Move<'_>) -> Result<(Held, Option<Held>)> {
        let (st, Move { from, to, target, .. }) = (self.st(), change);
        let replaced = target.map(|_| dir::hold(st, to.dir, to.name)).transpose()?;
        let taken = dir::hold(st, from.dir, from.name)?.ok_or(Errno::NoEnt)?;
        Ok((taken, replaced.flatten()))
    }

    /// Both names lead to one inode: as links of it they stay. Where names fold, the one name of
    /// both may get another spelling.
    fn respell(&self, by: By<'_>, change: Move<'_>, flags: RenameFlags) -> Result<()> {
        let (st, Move { from, to, moved, .. }) = (self.st(), change);
        let one = from.dir.ino == to.dir.ino && dir::are_spellings(st, to.dir, from.name, to.name);
        if !one || flags.contains(RenameFlags::WHITEOUT) {
            return Ok(());
        }
        let mut tx = st.begin(self.rename_credits(to))?.with_rights(by.rights);
        [to.dir, moved].into_iter().try_for_each(|inode| tx.touch(inode))?;
        dir::respell(st, &mut tx, to.dir, (from.name, to.name), |step| {
            self.touch_dir(step, to.dir, 0)?;
            self.touch_moved(step, moved)
        })
    }

    fn rename_credits(&self, to: &Side<'_>) -> u32 {
        let st = self.st();
        dir::insert_credits(st, to.dir)
            + 3 * dir::CHANGE_CREDITS
            + 6
            + Orphans::CREDITS * 2
            + Alloc::INODE_CREDITS
            + st.owner_credits()
    }

    /// Gives the inode its new name and takes the old one, in one step. Only the new name may lack
    /// space, and it comes first. Returns true if the replaced inode has no name left.
    fn move_name(&self, tx: &mut Tx<'_>, change: Move<'_>, old: OldName<'_>) -> Result<bool> {
        let (st, Move { to, moved, target, .. }) = (self.st(), change);
        let (ino, ftype) = (moved.ino, moved.ftype);
        match target {
            Some(target) => tx.step(|step| {
                dir::replace(st, step, to.dir, to.name, (ino, ftype))?;
                let left = self.drop_link(step, target)?;
                self.leave_name(step, change, old)?;
                Ok(left == Left::Orphan)
            }),
            None => {
                let new = NewName { name: to.name, ino, ftype, slot: None };
                let leave = |step: &mut Step<'_>| self.leave_name(step, change, old);
                dir::insert(st, tx, to.dir, new, leave).map(|()| false)
            }
        }
    }

    /// Takes the old name of an inode that has its new one.
    fn leave_name(&self, step: &mut Step<'_>, change: Move<'_>, old: OldName<'_>) -> Result<()> {
        let (st, Move { from, to, moved, target }) = (self.st(), change);
        let is_dir = moved.is_dir();
        let cross = from.dir.ino != to.dir.ino;
        match old.whiteout {
            Some(inode) => dir::replace(st, step, from.dir, from.name, (inode.ino, inode.ftype))?,
            None => dir::remove_held(st, step, from.dir, from.name, old.held)?,
        }
        if is_dir && cross {
            dir::replace(st, step, moved, b"..", (to.dir.ino, FileType::Directory))?;
        }
        let gained = i32::from(is_dir && cross) - i32::from(target.is_some_and(|t| t.is_dir()));
        self.touch_dir(step, to.dir, gained)?;
        if cross {
            self.touch_dir(step, from.dir, -i32::from(is_dir))?;
        }
        self.touch_moved(step, moved)?;
        self.remember_both((to, Some(moved)), (from, old.whiteout));
        Ok(())
    }

    fn exchange(&self, change: Move<'_>, target: &Arc<Inode>) -> Result<()> {
        let (st, Move { from, to, moved, .. }) = (self.st(), change);
        if from.dir.ino != to.dir.ino {
            match (moved.is_dir(), target.is_dir()) {
                (true, false) => check_room_for_dir(st, to.dir)?,
                (false, true) => check_room_for_dir(st, from.dir)?,
                _ => {}
            }
            // Before anything is changed: directories have a `..` to be changed.
            [moved, target]
                .into_iter()
                .filter(|inode| inode.is_dir())
                .try_for_each(|dir| dir::parent(st, dir).map(drop))?;
        }
        let mut tx = st.begin(4 * dir::CHANGE_CREDITS + 4)?;
        [from.dir, to.dir, moved, target].into_iter().try_for_each(|inode| tx.touch(inode))?;
        tx.step(|step| self.exchange_names(step, change, target))
    }

    fn exchange_names(
        &self,
        step: &mut Step<'_>,
        change: Move<'_>,
        target: &Arc<Inode>,
    ) -> Result<()> {
        let (st, Move { from, to, moved, .. }) = (self.st(), change);
        dir::replace(st, step, to.dir, to.name, (moved.ino, moved.ftype))?;
        dir::replace(st, step, from.dir, from.name, (target.ino, target.ftype))?;
        if from.dir.ino != to.dir.ino {
            for (inode, parent) in [(moved, to.dir), (target, from.dir)] {
                if inode.is_dir() {
                    dir::replace(st, step, inode, b"..", (parent.ino, FileType::Directory))?;
                }
            }
            let shift = i32::from(moved.is_dir()) - i32::from(target.is_dir());
            self.touch_dir(step, from.dir, -shift)?;
            self.touch_dir(step, to.dir, shift)?;
        } else {
            self.touch_dir(step, to.dir, 0)?;
        }
        self.touch_moved(step, moved)?;
        self.touch_moved(step, target)?;
        self.remember_both((to, Some(moved)), (from, Some(target)));
        Ok(())
    }

    fn touch_moved(&self, step: &mut Step<'_>, inode: &Arc<Inode>) -> Result<()> {
        let now = self.st().now();
        step.edit(inode)?.ctime = now;
        Ok(())
    }

    /// Publishes the new targets of the two names, and the parents of directories, to walks without
    /// locks. Walks that wait for the directories' locks see them later.
    fn remember_both(
        &self,
        to: (&Side<'_>, Option<&Arc<Inode>>),
        from: (&Side<'_>, Option<&Arc<Inode>>),
    ) {
        let dirs = [to.1, from.1].into_iter().flatten().any(|inode| inode.is_dir());
        let _moving = dirs.then(|| self.vfs.moves.begin());
        let cross = to.0.dir.ino != from.0.dir.ino;
        for (side, inode) in [to, from] {
            self.remember(side, inode);
            if let Some(dir) = inode.filter(|inode| inode.is_dir() && cross) {
                // It is locked for writing, since it moves.
                self.vfs.change_parent(dir, side.dir);
            }
        }
    }

    fn remember(&self, side: &Side<'_>, inode: Option<&Arc<Inode>>) {
        let target = inode.map(|i| Target { ino: i.ino, generation: i.generation, ftype: i.ftype });
        self.vfs.remember(side.dir, side.name, target);
    }
}

fn check_sides(change: Move<'_>, flags: RenameFlags) -> Result<()> {
    let Move { from, to, moved, target } = change;
    for side in [from, to] {
        check_dir_writable(side.dir)?;
        dir::check_key(side.dir)?;
        side.dir.check_live().map_err(|_| Errno::NoEnt)?;
    }
    if flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
        return Err(Errno::Exist.into());
    }
    check_removable(from.dir, moved)?;
    if let Some(target) = target {
        check_removable(to.dir, target)?;
    }
    if let Some(target) = target.filter(|_| flags.contains(RenameFlags::EXCHANGE)) {
        check_project(from.dir, target)?;
    }
    check_project(to.dir, moved)
}

/// EMLINK where a directory cannot have one more subdirectory.
fn check_room_for_dir(st: &Store, dir: &Inode) -> Result<()> {
    let full = dir.links() >= MAX_DIR_LINKS && !st.geo.has_dir_nlink();
    if full { Err(Errno::Mlink.into()) } else { Ok(()) }
}

/// A directory that hands its project down takes only inodes of that project.
fn check_project(dir: &Inode, moved: &Inode) -> Result<()> {
    let wanted = {
        let body = dir.body();
        body.flags.contains(InodeFlags::PROJINHERIT).then_some(body.projid)
    };
    if wanted.is_some_and(|p| p != moved.body().projid) { Err(Errno::Xdev.into()) } else { Ok(()) }
}

fn check_replace(moved: &Inode, target: &Inode) -> Result<()> {
    match (moved.is_dir(), target.is_dir()) {
        (true, false) => Err(Errno::NotDir.into()),
        (false, true) => Err(Errno::IsDir.into()),
        _ => Ok(()),
    }
}
