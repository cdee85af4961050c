"""The radix tree on texts of a few letters, a letter a page; and against the slow tree over random doings."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from simulator.radix import Node, RadixTree
from tests.reference_radix import SlowTree


def keys(text: str) -> list[str]:
    """A key for each page: its text and all before it."""
    return [text[:end] for end in range(1, len(text) + 1)]


def spelled(node: Node) -> str:
    return str(node.keys[node.end - 1]) if node.end else ""


def nodes(tree: RadixTree) -> list[Node]:
    """All but the root."""
    found: list[Node] = []
    waiting = list(tree.root.children.values())
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += node.children.values()
    return found


def tree_of(*texts: str) -> RadixTree:
    tree = RadixTree()
    for text in texts:
        tree.insert(keys(text), len(text))
    return tree


def match(tree: RadixTree, text: str) -> Node:
    return tree.match(keys(text), len(text))


def runs(tree: RadixTree) -> set[str]:
    """The runs with what is before them in brackets."""
    return {f"({spelled(node)[: node.start]}){spelled(node)[node.start :]}" for node in nodes(tree)}


def test_an_empty_tree_matches_nothing() -> None:
    """The match is the root, at which no page ends."""
    tree = RadixTree()
    assert match(tree, "abc") is tree.root
    assert tree.root.end == 0


def test_a_match_is_the_longest_known_beginning() -> None:
    """`abcd` and `abxy` part after two pages; `abxz` goes three pages along the second."""
    assert match(tree_of("abcd", "abxy"), "abxz").end == 3


def test_only_the_pages_asked_for_are_matched() -> None:
    """The last token of a prompt is always computed: `abcd` is asked for without its last page."""
    assert tree_of("abcd").match(keys("abcd"), 3).end == 3


def test_a_match_that_ends_inside_a_node_splits_it() -> None:
    """`abcd` becomes `ab` and `cd`, and the match is the former."""
    tree = tree_of("abcd")
    assert spelled(match(tree, "abx")) == "ab"
    assert runs(tree) == {"()ab", "(ab)cd"}


def test_a_match_enters_nothing() -> None:
    """What was looked for and not found is no part of the tree."""
    tree = tree_of("ab")
    match(tree, "abcd")
    assert runs(tree) == {"()ab"}


def test_insert_says_how_much_was_there() -> None:
    """Two pages of `abxy` are known from `abcd`; the rest becomes a leaf of its own."""
    tree = tree_of("abcd")
    leaf, present = tree.insert(keys("abxy"), 4)
    assert (spelled(leaf), leaf.start, present) == ("abxy", 2, 2)
    assert tree.evictable == 6


def test_insert_of_a_known_beginning_splits_at_its_end() -> None:
    """So the output can be evicted before the prompt."""
    tree = tree_of("abcd")
    assert tree.insert(keys("ab"), 2)[1] == 2
    assert runs(tree) == {"()ab", "(ab)cd"}


def test_the_oldest_leaf_goes_first_and_whole() -> None:
    """One page is asked for; all four of the older sequence go."""
    tree = tree_of("abcd", "xyz")
    assert tree.evict(1) == 4
    assert runs(tree) == {"()xyz"}


def test_a_match_makes_young() -> None:
    """`abcd` was entered first and looked up last."""
    tree = tree_of("abcd", "xyz")
    match(tree, "abcd")
    assert tree.evict(1) == 3
    assert runs(tree) == {"()abcd"}


def test_a_split_makes_its_lower_part_young() -> None:
    """`abcd` is cut by the look-up of `abx`, which does not ask for `cd`; still `cd` outlives `xyz`."""
    tree = tree_of("abcd", "xyz")
    match(tree, "abx")
    tree.evict(1)
    assert runs(tree) == {"()ab", "(ab)cd"}


def test_a_parent_goes_once_its_children_have() -> None:
    """`cd`, then `ab`, which is a leaf by then and older than `xyz`."""
    tree = tree_of("ab", "abcd", "xyz")
    assert tree.evict(3) == 4
    assert runs(tree) == {"()xyz"}


def test_what_is_held_stays_with_all_above_it() -> None:
    """The lock of `abcd` holds `ab` too; nothing else is left to evict."""
    tree = tree_of("ab", "abcd", "xyz")
    tree.lock(match(tree, "abcd"))
    assert (tree.evictable, tree.protected) == (3, 4)
    assert tree.evict(7) == 3
    assert runs(tree) == {"()ab", "(ab)cd"}


def test_a_lock_outlives_a_split() -> None:
    """`abcd` is held and then cut: both parts are held, and both are free once its holder lets go."""
    tree = tree_of("abcd")
    held = match(tree, "abcd")
    tree.lock(held)
    match(tree, "abx")
    assert tree.protected == 4
    tree.unlock(held)
    assert (tree.evictable, tree.protected) == (4, 0)
    assert tree.evict(4) == 4


def test_what_two_hold_stays_until_both_let_go() -> None:
    """The first unlock changes nothing."""
    tree = tree_of("abcd")
    node = match(tree, "abcd")
    tree.lock(node)
    tree.lock(node)
    tree.unlock(node)
    assert tree.evict(1) == 0
    tree.unlock(node)
    assert tree.evict(1) == 4


DOINGS = st.lists(
    st.tuples(
        st.sampled_from(["match", "insert", "insert", "lock", "unlock", "evict"]),
        st.text("ab", max_size=9),
        st.integers(0, 12),
    ),
    max_size=60,
)


@given(DOINGS)
def test_it_does_what_the_slow_tree_does(doings: list[tuple[str, str, int]]) -> None:
    """Matches, counts, evictions and the recency of all runs agree after whatever was done."""
    tree, slow = RadixTree(), SlowTree()
    held: list[tuple[Node, str]] = []
    for doing, text, number in doings:
        if doing == "match":
            assert spelled(match(tree, text)) == slow.match(text)
        elif doing == "insert":
            assert tree.insert(keys(text), len(text))[1] == slow.insert(text)
        elif doing == "lock":
            held.append((match(tree, text), slow.match(text)))
            tree.lock(held[-1][0])
            slow.lock(held[-1][1])
        elif doing == "unlock" and held:
            node, held_text = held.pop(number % len(held))
            tree.unlock(node)
            slow.lock(held_text, -1)
        elif doing == "evict":
            assert tree.evict(number) == slow.evict(number)
        assert (tree.evictable, tree.protected) == (slow.evictable, slow.protected)
        assert by_age(tree) == [
            (run.begin, run.text, run.holders) for run in sorted(slow.runs, key=lambda run: run.stamp)
        ]


def by_age(tree: RadixTree) -> list[tuple[Any, ...]]:
    """All runs, the oldest first."""
    return [(node.start, spelled(node), node.locks) for node in sorted(nodes(tree), key=lambda node: node.stamp)]
