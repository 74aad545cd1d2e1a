//! Pages and their states.

use super::*;

/// Bytes of a block.
const BLOCK: usize = 1024;

fn bytes(byte: u8) -> Arc<[u8]> {
    vec![byte; BLOCK].into()
}

fn page(byte: u8) -> Content {
    Content::whole(bytes(byte))
}

/// The first byte of a page.
fn first(content: &Content) -> u8 {
    let mut byte = [0];
    assert_eq!(content.copy_to(0, &mut byte), 1);
    byte[0]
}

fn set_first(map: &mut PageMap, lblk: u32, byte: u8) {
    let frames = SlabPages::new(BLOCK);
    assert!(map.dirty(lblk, |content| content.write(&frames, 0, &[byte])));
}

fn waiting(map: &mut PageMap, lblk: u32, cluster_bits: u32) {
    map.add(lblk, page(lblk as u8), false);
    map.set_place(lblk, Place::Reserved, cluster_bits);
    set_first(map, lblk, 1);
}

#[test]
fn taken_pages_are_snapshots() {
    let mut map = PageMap::default();
    (3..6).for_each(|l| waiting(&mut map, l, 0));
    let (taken, reserved) = map.take(0..100, 2, 0);
    assert_eq!((taken.len(), reserved), (2, 2));
    set_first(&mut map, 3, 9);
    assert_eq!((first(&taken[0].content), first(map.get(3).unwrap())), (1, 9));
    assert_eq!(map.cover(3, 0), Cover::Covered);
    map.written([3, 4]);
    assert!(map.has_dirty(3..4) && !map.has_dirty(4..5) && map.has_dirty(5..6));
    assert_eq!((map.totals().dirty, map.waiting(), map.totals().writing), (2, 2, 0));
}

#[test]
fn a_failed_page_goes_unless_it_was_changed_again() {
    let mut map = PageMap::default();
    (0..2).for_each(|l| waiting(&mut map, l, 0));
    let (taken, _) = map.take(0..2, 9, 0);
    set_first(&mut map, 1, 7);
    map.failed(taken.iter().map(|t| t.lblk));
    assert!(map.get(0).is_none());
    assert_eq!(map.cover(1, 0), Cover::Unknown);
    assert!(map.busy());
}

#[test]
fn a_cluster_is_reserved_once() {
    let mut map = PageMap::default();
    (0..4).for_each(|l| waiting(&mut map, l, 2));
    waiting(&mut map, 4, 2);
    assert!(map.cluster_reserved(7, 2));
    assert_eq!(map.remove(1..3, 2).reserved, 0);
    assert_eq!(map.remove(0..1, 2).reserved, 0);
    assert_eq!(map.remove(3..5, 2).reserved, 8);
    assert!(map.is_empty());
}

#[test]
fn a_clusters_reservation_goes_with_the_first_page_taken() {
    let mut map = PageMap::default();
    (0..4).for_each(|l| waiting(&mut map, l, 2));
    let (taken, reserved) = map.take(0..1, 9, 2);
    assert_eq!((taken.len(), reserved), (1, 4));
    assert_eq!(map.cover(2, 2), Cover::Covered);
    assert_eq!(map.take(0..9, 9, 2).1, 0);
    assert_eq!(map.remove(0..9, 2).reserved, 0);
}

#[test]
fn only_clean_pages_are_evicted_and_used_ones_last() {
    let mut map = PageMap::default();
    (0..8).for_each(|l| map.add(l, page(0), true));
    set_first(&mut map, 0, 7);
    map.pin(1..2);
    assert_eq!(map.evict(2), 2);
    assert_eq!(map.evict(100), 4);
    assert!(map.get(0).is_some() && map.get(1).is_some());
    assert_eq!(map.evict(100), 0);
}

#[test]
fn pages_read_before_a_change_are_not_added() {
    let mut map = PageMap::default();
    let seen = map.generation();
    map.invalidate(0..1);
    map.add_read(0, bytes(1), seen);
    assert!(map.is_empty());
    map.add_read(0, bytes(1), map.generation());
    assert!(!map.is_empty());
}

#[test]
fn busy_pages_are_found_in_order() {
    let mut map = PageMap::default();
    for lblk in [2, 5, 9] {
        waiting(&mut map, lblk, 0);
    }
    map.take(0..6, 9, 0);
    assert_eq!(map.next_busy(0..100), Some(2));
    assert_eq!(map.next_busy(3..100), Some(5));
    assert_eq!(map.next_busy(6..100), Some(9));
    assert_eq!(map.next_busy(10..100), None);
    assert!(map.busy_in(5..6) && !map.busy_in(6..9));
}
