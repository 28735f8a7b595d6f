//! Ordered sets of table indices: AVL trees that share one array of nodes.

use crate::storage::{NIL, Slice};

/// The links of one table index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    key: u128,
    left: u32,
    right: u32,
    parent: u32,
    // Of the subtree; 0: in no tree.
    height: u8,
}

impl Node {
    pub(crate) const OUT: Self = Self {
        key: 0,
        left: NIL,
        right: NIL,
        parent: NIL,
        height: 0,
    };
}

impl Default for Node {
    fn default() -> Self {
        Self::OUT
    }
}

/// One ordered set. Its nodes are in the [`Forest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tree {
    root: u32,
    first: u32,
    len: u32,
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            root: NIL,
            first: NIL,
            len: 0,
        }
    }
}

impl Tree {
    pub(crate) const EMPTY: Self = Self {
        root: NIL,
        first: NIL,
        len: 0,
    };

    /// Elements present.
    #[cfg(any(test, feature = "check"))]
    pub(crate) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    #[cfg(any(test, feature = "check"))]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The nodes of several trees. An index is in at most one tree of a forest at a time, and each
/// call must name the tree that it is in.
///
/// AVL: `insert` and `remove` are O(log n) in the worst case (at most 46 steps for 2^32
/// elements), whatever keys a remote party can bring about. Equal keys are ordered by index.
#[derive(Debug)]
pub(crate) struct Forest<'a> {
    nodes: Slice<'a, Node>,
}

impl<'a> Forest<'a> {
    /// A forest without trees for indices below the length of `nodes`.
    pub(crate) fn new(mut nodes: Slice<'a, Node>) -> Self {
        nodes.fill(Node::default());
        Self { nodes }
    }

    // `NIL` is beyond the end: it reads as a node without height and links, and writes to it
    // do nothing. This spares the algorithms their special cases.

    #[inline]
    fn get(&self, idx: u32) -> Option<&Node> {
        self.nodes.get(idx as usize)
    }

    #[inline]
    fn left(&self, idx: u32) -> u32 {
        self.get(idx).map_or(NIL, |n| n.left)
    }

    #[inline]
    fn right(&self, idx: u32) -> u32 {
        self.get(idx).map_or(NIL, |n| n.right)
    }

    #[inline]
    fn parent(&self, idx: u32) -> u32 {
        self.get(idx).map_or(NIL, |n| n.parent)
    }

    #[inline]
    fn height(&self, idx: u32) -> u8 {
        self.get(idx).map_or(0, |n| n.height)
    }

    #[inline]
    fn update(&mut self, idx: u32, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.nodes.get_mut(idx as usize) {
            change(node);
        }
    }

    fn leftmost(&self, mut idx: u32) -> u32 {
        while self.left(idx) != NIL {
            idx = self.left(idx);
        }
        idx
    }

    fn rightmost(&self, mut idx: u32) -> u32 {
        while self.right(idx) != NIL {
            idx = self.right(idx);
        }
        idx
    }

    /// The smallest element.
    #[inline]
    pub(crate) fn first(&self, tree: &Tree) -> Option<u32> {
        (tree.first != NIL).then_some(tree.first)
    }

    /// The element after `idx` in its tree.
    pub(crate) fn next(&self, idx: u32) -> Option<u32> {
        let right = self.right(idx);
        if right != NIL {
            return Some(self.leftmost(right));
        }
        let (mut child, mut at) = (idx, self.parent(idx));
        while at != NIL && self.right(at) == child {
            (child, at) = (at, self.parent(at));
        }
        (at != NIL).then_some(at)
    }

    /// The element before `idx` in its tree.
    pub(crate) fn previous(&self, idx: u32) -> Option<u32> {
        let left = self.left(idx);
        if left != NIL {
            return Some(self.rightmost(left));
        }
        let (mut child, mut at) = (idx, self.parent(idx));
        while at != NIL && self.left(at) == child {
            (child, at) = (at, self.parent(at));
        }
        (at != NIL).then_some(at)
    }

    /// The key of an element; `None` when it is in no tree.
    #[inline]
    pub(crate) fn key(&self, idx: u32) -> Option<u128> {
        self.get(idx).filter(|n| n.height != 0).map(|n| n.key)
    }

    /// Whether `idx` is in a tree of this forest.
    #[inline]
    pub(crate) fn contains(&self, idx: u32) -> bool {
        self.height(idx) != 0
    }

    /// Adds `idx`, which must be in no tree of this forest.
    pub(crate) fn insert(&mut self, tree: &mut Tree, idx: u32, key: u128) {
        debug_assert!((idx as usize) < self.nodes.len() && !self.contains(idx));
        if idx as usize >= self.nodes.len() || self.contains(idx) {
            return;
        }
        let (mut parent, mut at) = (NIL, tree.root);
        let (mut is_left, mut is_first) = (false, true);
        while let Some(node) = self.get(at) {
            parent = at;
            is_left = (key, idx) < (node.key, at);
            is_first &= is_left;
            at = if is_left { node.left } else { node.right };
        }
        self.update(idx, |n| {
            *n = Node {
                key,
                parent,
                height: 1,
                ..Node::default()
            };
        });
        if parent == NIL {
            tree.root = idx;
        } else if is_left {
            self.update(parent, |n| n.left = idx);
        } else {
            self.update(parent, |n| n.right = idx);
        }
        if is_first {
            tree.first = idx;
        }
        tree.len = tree.len.wrapping_add(1);
        self.rebalance(tree, parent);
    }

    /// Removes `idx` from `tree`. `false`: it was in no tree.
    pub(crate) fn remove(&mut self, tree: &mut Tree, idx: u32) -> bool {
        let Some(&node) = self.get(idx).filter(|n| n.height != 0) else {
            return false;
        };
        debug_assert!(self.is_in(tree, idx));
        if tree.first == idx {
            // The first has no left child, so its right one, if any, is a leaf by balance.
            tree.first = if node.right == NIL {
                node.parent
            } else {
                node.right
            };
        }
        let lowest_changed = if node.left == NIL || node.right == NIL {
            let child = if node.left == NIL {
                node.right
            } else {
                node.left
            };
            self.replace_child(tree, node.parent, idx, child);
            node.parent
        } else {
            // The successor, which has no left child, takes the place.
            let heir = self.leftmost(node.right);
            let lowest_changed = if heir == node.right {
                heir
            } else {
                let (parent, child) = (self.parent(heir), self.right(heir));
                self.update(parent, |n| n.left = child);
                self.update(child, |n| n.parent = parent);
                self.update(heir, |n| n.right = node.right);
                self.update(node.right, |n| n.parent = heir);
                parent
            };
            self.update(heir, |n| {
                n.left = node.left;
                n.height = node.height;
            });
            self.update(node.left, |n| n.parent = heir);
            self.replace_child(tree, node.parent, idx, heir);
            lowest_changed
        };
        self.update(idx, |n| *n = Node::default());
        tree.len = tree.len.wrapping_sub(1);
        self.rebalance(tree, lowest_changed);
        true
    }

    /// Changes the key of `idx`, which must be in `tree`. O(1) when its neighbour in the
    /// direction of the change stays its neighbour and is near (as for the first element and a
    /// smaller key); else as `remove` and `insert`.
    pub(crate) fn rekey(&mut self, tree: &mut Tree, idx: u32, key: u128) {
        let Some(old) = self.key(idx) else {
            debug_assert!(false, "rekey of an element in no tree");
            return;
        };
        let stays = if key <= old {
            tree.first == idx
                || self
                    .previous(idx)
                    .is_none_or(|p| self.key(p).map(|k| (k, p)) < Some((key, idx)))
        } else {
            self.next(idx)
                .is_none_or(|n| Some((key, idx)) < self.key(n).map(|k| (k, n)))
        };
        if stays {
            self.update(idx, |n| n.key = key);
        } else {
            self.remove(tree, idx);
            self.insert(tree, idx, key);
        }
    }

    /// Puts `new` (or nothing) in the place of `old` below `parent`.
    #[inline]
    fn replace_child(&mut self, tree: &mut Tree, parent: u32, old: u32, new: u32) {
        self.update(new, |n| n.parent = parent);
        if parent == NIL {
            tree.root = new;
        } else {
            self.update(parent, |n| {
                if n.left == old {
                    n.left = new;
                } else {
                    n.right = new;
                }
            });
        }
    }

    /// Corrects heights and balance from `at` upwards, until a subtree is as high as before.
    fn rebalance(&mut self, tree: &mut Tree, mut at: u32) {
        while let Some(&node) = self.get(at) {
            let (left, right) = (self.height(node.left), self.height(node.right));
            let top = if left > right.saturating_add(1) {
                if self.height(self.left(node.left)) < self.height(self.right(node.left)) {
                    self.rotate_left(tree, node.left);
                }
                self.rotate_right(tree, at)
            } else if right > left.saturating_add(1) {
                if self.height(self.right(node.right)) < self.height(self.left(node.right)) {
                    self.rotate_right(tree, node.right);
                }
                self.rotate_left(tree, at)
            } else {
                self.measure(at);
                at
            };
            if self.height(top) == node.height {
                break;
            }
            at = self.parent(top);
        }
    }

    #[inline]
    fn measure(&mut self, idx: u32) {
        let below = self
            .height(self.left(idx))
            .max(self.height(self.right(idx)));
        self.update(idx, |n| n.height = below.saturating_add(1));
    }

    /// Lifts the right child of `idx` above it; returns the new top.
    fn rotate_left(&mut self, tree: &mut Tree, idx: u32) -> u32 {
        let top = self.right(idx);
        let between = self.left(top);
        self.replace_child(tree, self.parent(idx), idx, top);
        self.update(idx, |n| {
            n.right = between;
            n.parent = top;
        });
        self.update(between, |n| n.parent = idx);
        self.update(top, |n| n.left = idx);
        self.measure(idx);
        self.measure(top);
        top
    }

    /// Lifts the left child of `idx` above it; returns the new top.
    fn rotate_right(&mut self, tree: &mut Tree, idx: u32) -> u32 {
        let top = self.left(idx);
        let between = self.right(top);
        self.replace_child(tree, self.parent(idx), idx, top);
        self.update(idx, |n| {
            n.left = between;
            n.parent = top;
        });
        self.update(between, |n| n.parent = idx);
        self.update(top, |n| n.right = idx);
        self.measure(idx);
        self.measure(top);
        top
    }

    /// Whether `idx` is in this tree: a walk to the root.
    fn is_in(&self, tree: &Tree, mut idx: u32) -> bool {
        while self.parent(idx) != NIL {
            idx = self.parent(idx);
        }
        idx == tree.root
    }

    /// Order, links, heights, balance, count and the cached first element of one tree.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn check(&self, tree: &Tree) -> Result<(), &'static str> {
        if tree.first != self.leftmost(tree.root) || self.parent(tree.root) != NIL {
            return Err("tree: wrong first or root");
        }
        let (mut count, mut before, mut at) = (0u32, None, tree.first);
        while let Some(node) = self.get(at) {
            count = count.wrapping_add(1);
            if count > tree.len {
                return Err("tree: more elements than counted");
            }
            if before >= Some((node.key, at)) {
                return Err("tree: out of order");
            }
            before = Some((node.key, at));
            let (left, right) = (self.height(node.left), self.height(node.right));
            if node.height != left.max(right).saturating_add(1) || left.abs_diff(right) > 1 {
                return Err("tree: out of balance");
            }
            for child in [node.left, node.right] {
                if child != NIL && self.parent(child) != at {
                    return Err("tree: a child has another parent");
                }
            }
            at = self.next(at).unwrap_or(NIL);
        }
        if count != tree.len {
            return Err("tree: fewer elements than counted");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::SplitMix;
    use crate::storage::test_table;
    use std::collections::BTreeSet;
    use std::vec;

    const NODES: u32 = 200;
    const TREES: usize = 3;

    /// Random operations on several trees of one forest against ordered sets.
    fn run(seed: u128, keys: u128) {
        let mut memory = vec![
            Node {
                height: 3,
                ..Node::default()
            };
            NODES as usize
        ];
        let mut forest = Forest::new(Slice::from(&mut memory[..]));
        let mut trees = [Tree::default(); TREES];
        let mut models = [const { BTreeSet::<(u128, u32)>::new() }; TREES];
        let mut homes: Vec<Option<(usize, u128)>> = vec![None; NODES as usize];
        let mut random = SplitMix::new(seed);
        for step in 0..6000u32 {
            let grows = (step / 700).is_multiple_of(2);
            let idx = (random.next_u64() % u64::from(NODES)) as u32;
            let wide = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
            let key = if keys == u128::MAX { wide } else { wide % keys };
            let kind = random.next_u64() % 8;
            let touched = match homes[idx as usize] {
                None if grows || kind == 0 => {
                    let t = (random.next_u64() % TREES as u64) as usize;
                    forest.insert(&mut trees[t], idx, key);
                    models[t].insert((key, idx));
                    homes[idx as usize] = Some((t, key));
                    t
                }
                None => {
                    assert!(!forest.remove(&mut trees[0], idx));
                    0
                }
                Some((t, old)) if kind < 4 => {
                    // Small steps, also across neighbours, and jumps.
                    let key = match kind {
                        0 => old.saturating_sub(1),
                        1 => old.saturating_add(1),
                        _ => key,
                    };
                    forest.rekey(&mut trees[t], idx, key);
                    models[t].remove(&(old, idx));
                    models[t].insert((key, idx));
                    homes[idx as usize] = Some((t, key));
                    t
                }
                Some((t, old)) => {
                    // Often the first, as a queue does.
                    let (old, idx) = if kind == 4 {
                        *models[t].first().unwrap()
                    } else {
                        (old, idx)
                    };
                    assert!(forest.remove(&mut trees[t], idx));
                    models[t].remove(&(old, idx));
                    homes[idx as usize] = None;
                    t
                }
            };
            let (tree, model) = (&trees[touched], &models[touched]);
            forest.check(tree).unwrap();
            assert_eq!(tree.len(), model.len());
            assert_eq!(tree.is_empty(), model.is_empty());
            assert_eq!(forest.first(tree), model.first().map(|&(_, i)| i));
            assert_eq!(forest.key(idx), homes[idx as usize].map(|(_, k)| k));
            assert_eq!(forest.contains(idx), homes[idx as usize].is_some());
            if let Some((t, key)) = homes[idx as usize] {
                let before = models[t].range(..(key, idx)).next_back();
                assert_eq!(forest.previous(idx), before.map(|&(_, i)| i));
            }
            if step % 100 == 0 {
                for (tree, model) in trees.iter().zip(&models) {
                    forest.check(tree).unwrap();
                    let mut at = forest.first(tree);
                    for &(_, idx) in model {
                        assert_eq!(at, Some(idx));
                        at = forest.next(idx);
                    }
                    assert_eq!(at, None);
                }
            }
        }
    }

    use std::vec::Vec;

    #[test]
    fn matches_ordered_set() {
        for seed in 0..8 {
            for keys in [1, 2, 50, 1 << 70, u128::MAX] {
                run(seed, keys);
            }
        }
    }

    /// Sorted input, both ways, and removal from either end.
    #[test]
    fn sorted_input_stays_balanced() {
        for falling in [false, true] {
            let mut forest = Forest::new(test_table(5000));
            let mut tree = Tree::default();
            for idx in 0..5000 {
                let key = if falling {
                    5000 - u128::from(idx)
                } else {
                    u128::from(idx)
                };
                forest.insert(&mut tree, idx, key);
            }
            forest.check(&tree).unwrap();
            // An AVL tree of 5000 elements is at most 1.44 · log2(5002) − 0.33 high.
            assert!(forest.height(tree.root) <= 17);
            for idx in 0..4990 {
                assert!(forest.remove(&mut tree, idx));
            }
            forest.check(&tree).unwrap();
            assert!(forest.height(tree.root) <= 4);
        }
    }
}
